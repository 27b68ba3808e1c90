"""The page at `/`: files that lie in `static`, sent as they are. Knows nothing of their content.

The page needs nothing from elsewhere, and its policy lets it get nothing from elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """`/`, and `/static/NAME` for each of its files."""
    files = sorted(path for path in _FOLDER.iterdir() if path.suffix in _TYPES)
    found = [_route(f"/static/{path.name}", path) for path in files if path.suffix != ".html"]
    return [_route("/", _FOLDER / "index.html"), *found]


def _route(url: str, path: Path) -> Route:
    content, kind = path.read_bytes(), _TYPES[path.suffix]

    async def send(request: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=kind)

    return Route(url, send, methods=["GET"])
