"""Models are found where other programs keep them, by names that `resolve` takes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof import LLM, catalogue, discovery
from draftproof.cli.app import app
from draftproof.discovery.describe import describe
from draftproof.discovery.hub import choose_files, parse_id
from draftproof.discovery.places import Place, quant_of, shards_of
from draftproof.errors import ModelNotFoundError
from tiny_folders import write_folder
from tiny_models import SPECS, TinyModels

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any model, and no network."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "own"))
    return tmp_path


def snapshot(home: Path, repository: str, *, ref: bool = True) -> Path:
    folder = home / ".cache/huggingface/hub" / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    if ref:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(COMMIT)
    return folder / "snapshots" / COMMIT


def put_ollama(root: Path, name: str, model: Path | None, *, digest: str | None = None) -> None:
    """name: REGISTRY/SPACE/MODEL/TAG. model: None leaves the blob away."""
    hexes = hashlib.sha256(name.encode()).hexdigest()
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00"},
        {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": digest or f"sha256:{hexes}",
        },
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    (root / "blobs").mkdir(exist_ok=True)
    if model is not None:
        shutil.copy(model, root / "blobs" / f"sha256-{hexes}")


def names(places: list[Place] | None = None) -> dict[str, str]:
    return {place.name: place.source for place in places or discovery.all_places()}


def test_an_empty_machine(home: Path) -> None:
    assert discovery.all_places() == []


def test_the_hugging_face_cache(home: Path, tiny: TinyModels) -> None:
    write_folder(snapshot(home, "Qwen/Qwen3-Tiny"), SPECS["qwen3"])
    ggufs = snapshot(home, "Qwen/Qwen3-Tiny-GGUF", ref=False)
    for name in ("qwen3-tiny-q8_0.gguf", "qwen3-tiny-Q4_K_M.gguf", "mmproj-F16.gguf"):
        shutil.copy(tiny.path("qwen3", "Q8_0"), ggufs / name)
    assert names() == {
        "Qwen/Qwen3-Tiny": "huggingface",
        "Qwen/Qwen3-Tiny-GGUF:Q8_0": "huggingface",
        "Qwen/Qwen3-Tiny-GGUF:Q4_K_M": "huggingface",
    }
    assert discovery.resolve("Qwen/Qwen3-Tiny").name == COMMIT
    assert discovery.resolve("qwen/qwen3-tiny-gguf").name == "qwen3-tiny-Q4_K_M.gguf"
    assert discovery.resolve("Qwen/Qwen3-Tiny-GGUF:q8_0").name == "qwen3-tiny-q8_0.gguf"
    with LLM("Qwen/Qwen3-Tiny", ctx=256, threads=1) as llm:
        assert llm.info.name == "Qwen3-Tiny"


def test_the_environment_moves_the_hugging_face_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(snapshot(home, "a/b"), SPECS["qwen3"])
    monkeypatch.setenv("HF_HOME", str(home / "elsewhere"))
    assert names() == {}
    monkeypatch.setenv("HF_HUB_CACHE", str(home / ".cache/huggingface/hub"))
    assert names() == {"a/b": "huggingface"}


def test_the_ollama_store(home: Path, tiny: TinyModels) -> None:
    root = home / ".ollama/models"
    put_ollama(root, "registry.ollama.ai/library/qwen3/0.6b", tiny.path("qwen3"))
    put_ollama(root, "registry.ollama.ai/someone/qwen3/latest", tiny.path("qwen3"))
    put_ollama(root, "hf.co/unsloth/Qwen3-GGUF/Q4_K_M", tiny.path("qwen3"))
    put_ollama(root, "registry.ollama.ai/library/gone/1b", None)
    put_ollama(root, "registry.ollama.ai/library/evil/1b", None, digest="sha256:../../x")
    (root / "manifests/registry.ollama.ai/library/evil/2b").write_text("[" * 100_000)
    (root / "manifests/registry.ollama.ai/library/evil/3b").write_text('{"layers": 5}')
    assert names() == {
        "qwen3:0.6b": "ollama",
        "someone/qwen3:latest": "ollama",
        "hf.co/unsloth/Qwen3-GGUF:Q4_K_M": "ollama",
    }
    assert discovery.resolve("qwen3:0.6b").name.startswith("sha256-")
    assert discovery.resolve("someone/qwen3") == discovery.resolve("someone/qwen3:latest")
    with LLM("qwen3:0.6b", ctx=256, threads=1) as llm:
        assert llm.info.family == "qwen3"


def test_lm_studio_and_our_own(home: Path, tiny: TinyModels) -> None:
    studio = home / ".lmstudio/models/lmstudio-community/Qwen3-GGUF"
    studio.mkdir(parents=True)
    shutil.copy(tiny.path("qwen3", "Q8_0"), studio / "Qwen3-Q8_0.gguf")
    own = home / "own/models"
    own.mkdir(parents=True)
    shutil.copy(tiny.path("qwen2", "Q8_0"), own / "mine.gguf")
    write_folder(own / "folder", SPECS["qwen2"])
    assert names() == {
        "mine": "draftproof",
        "folder": "draftproof",
        "lmstudio-community/Qwen3-GGUF:Q8_0": "lmstudio",
    }
    assert discovery.resolve("mine") == own / "mine.gguf"


def test_what_is_found_is_described(home: Path, tiny: TinyModels) -> None:
    folder = write_folder(home / "m", SPECS["qwen3"], "BF16", shards=2)
    found = describe(Place("m", folder, "draftproof"))
    assert (found.family, found.quantization, found.context) == ("qwen3", "BF16", 2048)
    assert found.size > sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert found.needs > 200 << 20
    assert found.fits
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "1 of 2 weight files are missing" in describe(Place("m", folder, "draftproof")).problem
    broken = home / "b.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    assert "GGUF version 0" in describe(Place("b", broken, "draftproof")).problem


def test_a_model_that_does_not_fit_is_said_so(
    home: Path, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.discovery.describe.available_bytes", lambda: 100 << 20)
    assert describe(Place("m", tiny.path("qwen3"), "draftproof")).fits is False


def test_the_command_lists_them(home: Path, tiny: TinyModels) -> None:
    put_ollama(home / ".ollama/models", "registry.ollama.ai/library/q/1b", tiny.path("qwen3"))
    result = CliRunner().invoke(app, ["models", "--json"], catch_exceptions=False)
    (row,) = json.loads(result.stdout)["found"]
    assert (row["name"], row["source"], row["quantization"]) == ("q:1b", "ollama", "F32")
    assert row["fits"] is True
    assert row["needs_bytes"] > row["size_bytes"] > 0
    table = CliRunner().invoke(app, ["models"], catch_exceptions=False, env={"COLUMNS": "200"})
    assert "q:1b" in table.stdout
    assert "ollama" in table.stdout


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.gguf", "no/such/path/x", "", "a/../b", "smolm2"])
def test_other_names_never_reach_the_hub(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.discovery.hub.fetch", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ModelNotFoundError):
        discovery.resolve(name)


def test_a_mistyped_path_never_reaches_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.discovery.hub.fetch", lambda *_: pytest.fail("asked the hub"))
    monkeypatch.chdir(home)
    (home / "models").mkdir()
    with pytest.raises(ModelNotFoundError, match="models/qwen"):
        discovery.resolve("models/qwen")


def test_offline_is_said_in_one_line(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="in no cache here, and HF_HUB_OFFLINE is set"):
        discovery.resolve("Qwen/Qwen3-8B")


def test_the_catalogue_comes_before_caches(home: Path, tiny: TinyModels) -> None:
    put_ollama(home / ".ollama/models", "registry.ollama.ai/library/smollm2/135m", None)
    entry = catalogue.CATALOGUE["qwen2.5-coder-0.5b"]
    with pytest.raises(ModelNotFoundError, match=entry.file):
        discovery.resolve(entry.name)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("Qwen/Qwen3-8B", ("Qwen/Qwen3-8B", None)),
        ("Qwen/Qwen3-8B-GGUF:Q4_K_M", ("Qwen/Qwen3-8B-GGUF", "Q4_K_M")),
        ("qwen3", None),
        ("a/b/c", None),
        ("a/b.gguf", None),
        ("a/b:", None),
        ("../b", None),
        ("a b/c", None),
    ],
)
def test_hub_ids(name: str, parsed: tuple[str, str | None] | None) -> None:
    assert parse_id(name) == parsed


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("Qwen3-30B-A3B-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("model.BF16-00001-of-00002.gguf", "BF16"),
        ("Qwen3-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("my-model.gguf", "my-model"),
    ],
)
def test_the_type_in_a_file_name(file: str, quant: str) -> None:
    assert quant_of(file) == quant


def test_shards() -> None:
    first = Path("x/m-Q8_0-00001-of-00003.gguf")
    assert [p.name[-19:-5] for p in shards_of(first)] == [
        *("00001-of-00003", "00002-of-00003", "00003-of-00003"),
    ]
    assert shards_of(Path("x/m.gguf")) == [Path("x/m.gguf")]


FOLDER = ["config.json", "tokenizer.json", "model.safetensors", "README.md", "onnx/m.safetensors"]


def test_files_of_a_repository() -> None:
    assert choose_files("r", FOLDER, None) == ["config.json", "tokenizer.json", "model.safetensors"]
    ggufs = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf", "config.json"]
    assert choose_files("r", ggufs, None) == ["m-Q4_K_M.gguf"]
    assert choose_files("r", ggufs, "q8_0") == ["m-Q8_0.gguf"]
    assert choose_files("r", ["b.gguf", "a.gguf"], None) == ["a.gguf"]
    shards = [f"q/m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    assert choose_files("r", shards, "Q8_0") == shards
    for files, quant, said in [
        (ggufs, "Q2_K", "has no Q2_K: it has Q4_K_M, Q8_0"),
        (shards[:1], None, "lacks a part"),
        (["README.md"], None, "has no .gguf file"),
    ]:
        with pytest.raises(ModelNotFoundError, match=said):
            choose_files("r", files, quant)
