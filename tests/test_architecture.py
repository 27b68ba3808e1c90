"""Imports go one way, the map in ARCHITECTURE.md is complete, and no file grows beyond reading.

Reads sources as text; imports nothing of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "draftproof"
NATIVE = ROOT / "csrc"
MAX_LINES = 450

# Part of the package -> the parts it may import. A part is a folder or a file directly below
# draftproof; itself goes without saying.
MAY_IMPORT = {
    "errors": set(),
    "_native": set(),
    "config": {"errors"},
    "outputs": set(),
    "sampling": {"config", "errors"},
    "catalogue": {"errors"},
    "formats": {"errors", "_native"},
    "text": {"errors"},
    "drafting": {"config", "errors", "_native"},
    "verification": {"drafting", "errors", "outputs"},
    "models": {"catalogue", "config", "outputs", "errors", "formats", "text", "_native"},
    "vision": {"errors", "models"},
    "discovery": {"catalogue", "errors", "formats", "models"},
    "request": {"config", "errors", "outputs", "sampling", "drafting"},
    "reading": {"config", "engine", "errors", "outputs", "request", "sampling", "vision"},
    "prompts": {"errors", "models"},
    "answer": {"outputs", "request", "models", "engine"},
    "asking": {"config", "request", "sampling", "engine", "text"},
    "engine": {
        *("config", "errors", "outputs", "sampling", "request", "drafting", "verification"),
        *("models", "text", "_native"),
    },
}
MAY_IMPORT["prompts"] = {"config", "errors", "models", "request", "vision"}
MAY_IMPORT["llm"] = {*MAY_IMPORT, "catalogue"}
MAY_IMPORT["bench"] = {*MAY_IMPORT}
MAY_IMPORT["server"] = {*MAY_IMPORT} - {"bench"}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
MAY_IMPORT["__init__"] = {"config", "errors", "llm", "outputs", "sampling"}
MAY_IMPORT["__main__"] = {"cli"}

# Names in annotations only: a Request holds the session and the replay that the engine gives it.
TYPES_ONLY = {
    ("request", "engine"),
    ("request", "verification"),
    ("request", "vision"),
    ("engine", "vision"),
}


def modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(part, line, whether only for annotations) of every import of our own, at any depth."""
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "draftproof" and rest:
                # `from draftproof import LLM` is an import of the package itself.
                part = rest[0] if rest[0] in MAY_IMPORT else "__init__"
                yield part, node.lineno, id(node) in typing_only


def forbidden_imports(path: Path) -> list[str]:
    """Of one file, as "file:line: part imports part"."""
    own = part_of(path)
    return [
        f"{path.relative_to(ROOT)}:{line}: {own} imports {part}"
        for part, line, is_type in imports(path)
        if part != own
        and part not in MAY_IMPORT[own]
        and not (is_type and (own, part) in TYPES_ONLY)
    ]


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in modules()} <= {*MAY_IMPORT}


def test_imports_go_one_way() -> None:
    assert [line for path in modules() for line in forbidden_imports(path)] == []


def test_the_rules_have_no_cycle() -> None:
    below: dict[str, set[str]] = {part: {*parts} for part, parts in MAY_IMPORT.items()}
    while below:
        lowest = {part for part, parts in below.items() if not parts & {*below}}
        assert lowest, f"a cycle among {sorted(below)}"
        below = {part: parts for part, parts in below.items() if part not in lowest}


def test_a_wrong_import_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("test_architecture.SOURCES", tmp_path)
    monkeypatch.setattr("test_architecture.ROOT", tmp_path)
    path = tmp_path / "formats" / "late.py"
    path.parent.mkdir()
    path.write_text(
        "def f():\n    from draftproof.engine import Engine\n    import draftproof.llm\n"
    )
    assert forbidden_imports(path) == [
        "formats/late.py:2: formats imports engine",
        "formats/late.py:3: formats imports llm",
    ]


@pytest.mark.parametrize("folder", ["ops", "simd", "isa"])
def test_kernels_know_no_model(folder: str) -> None:
    """Kernels include each other and the two headers of the kernel API, nothing above them."""
    for path in sorted((NATIVE / folder).iterdir()):
        for header in re.findall(r'#include "([^"]+)"', path.read_text("utf-8")):
            known = {"kernels.h", "packed.h"} | {p.name for p in path.parent.iterdir()}
            assert header in known or header.startswith(("ops/", "simd/")), path.name


# --- the map -------------------------------------------------------------------------------------


def architecture() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def test_every_module_is_on_the_map() -> None:
    text = architecture()
    missing = [
        name
        for name in (path.relative_to(SOURCES).as_posix() for path in modules())
        # A package's __init__ says what its folder is.
        if not name.endswith("/__init__.py") and f"`{name}`" not in text
    ]
    assert missing == []


def test_every_native_file_is_on_the_map() -> None:
    text = architecture()
    named = set(re.findall(r"`([\w/]+)\.(?:h|cpp)`", text))
    missing = [
        path.relative_to(NATIVE).as_posix()
        for path in sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp")])
        if path.parent.name not in {"tests", "isa"}
        and path.relative_to(NATIVE).with_suffix("").as_posix() not in named
    ]
    assert missing == []


def test_the_map_names_no_file_that_is_not_there() -> None:
    places = (SOURCES, NATIVE, ROOT, NATIVE / "simd")
    gone = [
        name
        for name in re.findall(r"`([\w./]+\.(?:py|pyi|h|cpp|md|txt))`", architecture())
        if not any((place / name.removeprefix("csrc/")).exists() for place in places)
    ]
    assert gone == []


@pytest.mark.parametrize("folder", [SOURCES, NATIVE], ids=["src", "csrc"])
def test_no_file_is_too_long_to_read(folder: Path) -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for path in folder.rglob("*")
        if path.suffix in {".py", ".pyi", ".h", ".cpp"}
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
