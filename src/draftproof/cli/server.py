"""The options of `draftproof serve` into a server that runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof import catalogue
from draftproof.cli.terminal import model_progress, note
from draftproof.config import EngineConfig, default_threads, parse_bytes
from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.server.config import ServerConfig
    from draftproof.vision.media import MediaPolicy


@dataclass(frozen=True)
class ServeOptions:
    """The command line of `serve`; see its --help."""

    model: str | None
    host: str
    port: int
    alias: str | None
    api_key: str | None
    allowed_host: str | None
    cors_origins: str | None
    chat_template: Path | None
    threads: int | None
    ctx: int | None
    kv_type: str
    quantize: str | None
    kv_memory: str | None
    mmproj: Path | None
    image_max_tokens: int
    image_min_tokens: int
    media_path: Path | None
    allow_remote_media: bool
    prefill_chunk: int
    max_running: int
    max_queue: int
    prefix_cache: bool
    max_body_mb: int
    request_timeout: float
    shutdown_grace: float
    sse_ping_interval: float
    log_json: bool
    lora: str | None


def run_server(options: ServeOptions) -> None:
    """Serves until a signal comes. Raises the errors of draftproof.errors."""
    if os.name == "nt":
        raise InvalidRequestError("Windows isn't supported yet: use WSL")
    if options.lora:
        raise InvalidRequestError("--lora: LoRA adapters aren't supported yet")
    settings = _settings(options)
    EngineConfig(**settings)  # mistakes now, not in the middle of loading
    config = server_config(options)
    media = _media(options)
    try:
        from draftproof.server.run import serve
    except ImportError as error:
        raise InvalidRequestError(
            f"the server needs the package {error.name}: pip install {error.name}"
        ) from None
    serve(
        config,
        lambda: _load(
            options.model,
            config.chat_template,
            mmproj=options.mmproj,
            media=media,
            **settings,
        ),
        lambda url: note(
            f"draftproof: listening at {url} (a page to chat with, OpenAI's API under /v1)"
        ),
    )


def server_config(options: ServeOptions) -> ServerConfig:
    from draftproof.server.config import ServerConfig

    template = None
    if options.chat_template is not None:
        try:
            template = options.chat_template.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"--chat-template {options.chat_template} can't be read: {error}"
            ) from None
    return ServerConfig(
        names=_words(options.alias) or default_names(options.model),
        host=options.host,
        port=options.port,
        api_keys=_words(options.api_key),
        allowed_hosts=_words(options.allowed_host),
        cors_origins=_words(options.cors_origins),
        max_body=options.max_body_mb << 20,
        request_timeout=options.request_timeout,
        shutdown_grace=options.shutdown_grace,
        ping_interval=options.sse_ping_interval,
        chat_template=template,
        log_json=options.log_json,
    )


def default_names(model: str | None) -> tuple[str, ...]:
    """A catalogue name as it is; a file without folder and suffix, or with them."""
    if model is None:
        return (catalogue.DEFAULT_MODEL,)
    if model in catalogue.CATALOGUE:
        return (model,)
    path = Path(model)
    names = (path.name.removesuffix(".gguf"), path.name, model)
    return tuple(dict.fromkeys(name for name in names if name))


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in (text or "").split(",")) if word)


def _settings(options: ServeOptions) -> dict[str, Any]:
    """Those of the engine."""
    kv_memory = None
    if options.kv_memory is not None:
        kv_memory = parse_bytes("--kv-memory", options.kv_memory)
    return {
        "threads": default_threads() if options.threads is None else options.threads,
        "ctx": options.ctx,
        "kv_type": options.kv_type,
        "quantize": options.quantize,
        "prefill_chunk": options.prefill_chunk,
        "kv_memory": kv_memory,
        "max_running": options.max_running,
        "max_queue": options.max_queue,
        "prefix_cache": options.prefix_cache,
        "image_max_tokens": options.image_max_tokens,
        "image_min_tokens": options.image_min_tokens,
    }


def _media(options: ServeOptions) -> MediaPolicy:
    """Which images a client may have us read: never by a path of this computer."""
    from draftproof.vision.media import MediaPolicy

    folder = options.media_path
    if folder is not None:
        try:
            folder = folder.resolve(strict=True)
        except (OSError, RuntimeError):
            folder = None
        if folder is None or not folder.is_dir():
            raise InvalidRequestError(f"--media-path {options.media_path} is no folder")
    return MediaPolicy(paths=False, folder=folder, remote=options.allow_remote_media)


def _load(model: str | None, chat_template: str | None, **settings: Any) -> LLM:
    from draftproof.llm import LLM

    with model_progress() as progress:
        return LLM(model, progress=progress, chat_template=chat_template, **settings)
