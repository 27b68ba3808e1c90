"""`draftproof doctor` and `draftproof models`: true words about this machine and this cache."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest
from fake_llm import Invoke

import draftproof
from draftproof.catalogue import CATALOGUE
from draftproof.cli.doctor import memory_limit


def native(problem: str | None = None) -> types.ModuleType:
    module = types.ModuleType("draftproof._native")

    def probe() -> None:
        if problem is not None:
            raise RuntimeError(problem)

    vars(module).update(
        ARITHMETIC_VERSION=1,
        isa_rows=lambda: ["scalar", "avx2"],
        cpu_features=lambda: {"avx2": True, "amx_int8": False},
        probe_arithmetic=probe,
    )
    return module


@pytest.fixture
def with_native(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, native())
    monkeypatch.delenv("DRAFTPROOF_ISA", raising=False)


def install(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    monkeypatch.setitem(sys.modules, "draftproof._native", module)
    monkeypatch.setattr(draftproof, "_native", module, raising=False)


@pytest.mark.usefixtures("with_native")
def test_doctor_json(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("doctor", "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    kernels = value["kernels"]
    assert kernels["isa_rows"] == ["scalar", "avx2"]
    assert kernels["cpu_features"] == {"avx2": True, "amx_int8": False}
    assert (kernels["isa"], kernels["arithmetic_version"]) == ("avx2", 1)
    assert "best" in kernels["isa_reason"]
    assert value["cores"]["affinity"] == len(os.sched_getaffinity(0))
    assert 1 <= value["cores"]["threads"] <= value["cores"]["affinity"]
    assert 0 < value["memory"]["available_bytes"] <= value["memory"]["total_bytes"]
    assert value["cache_dir"] == str(tmp_path / "cache")
    assert {row["state"] for row in value["models"]} == {"absent"}


@pytest.mark.usefixtures("with_native")
def test_doctor_for_people(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert lines["Features"] == "avx2"
    assert lines["Kernels"].startswith("avx2: the best row")
    assert "scalar < avx2" in lines["Kernels"]
    assert lines["Threads"][0].isdigit()
    assert "GiB free of" in lines["Memory"]
    assert lines["Cache"] == str(tmp_path / "cache")
    assert lines["smollm2-135m"] == "absent"


@pytest.mark.usefixtures("with_native")
def test_doctor_says_why_a_row_was_chosen(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_ISA", "scalar")
    kernels = json.loads(invoke("doctor", "--json").stdout)["kernels"]
    assert (kernels["isa"], kernels["isa_reason"]) == ("scalar", "forced by DRAFTPROOF_ISA")
    monkeypatch.setenv("DRAFTPROOF_ISA", "neon")
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "DRAFTPROOF_ISA=neon can't run here" in result.stdout


def test_doctor_reports_a_build_with_wrong_arithmetic(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, native("a*b+c is fused"))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "a*b+c is fused" in result.stdout


def test_doctor_without_the_extension(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "draftproof._native", None)
    monkeypatch.delattr(draftproof, "_native", raising=False)
    result = invoke("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["kernels"]["built"] is False


@pytest.mark.usefixtures("with_native")
def test_doctor_says_when_a_quota_decides(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr("draftproof.cli.doctor.default_threads", lambda: 3)
    cores = json.loads(invoke("doctor", "--json").stdout)["cores"]
    assert (cores["threads"], cores["affinity"]) == (3, 8)
    assert "quota" in cores["reason"]
    assert "8" in cores["reason"]


def test_memory_limit_is_the_tightest_of_all_levels(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, "/a/b") is None
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path, "/a/b") is None
    (tmp_path / "a" / "memory.max").write_text("4096\n")
    (tmp_path / "memory.max").write_text("8192\n")
    assert memory_limit(tmp_path, "/a/b") == 4096
    assert memory_limit(tmp_path, "/") == 8192


def test_models(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / CATALOGUE["qwen2.5-coder-0.5b"].file).write_bytes(b"short")
    with (folder / CATALOGUE["smollm2-135m"].file).open("wb") as file:
        file.truncate(CATALOGUE["smollm2-135m"].size)
    value = json.loads(invoke("models", "--json").stdout)
    assert value["models_dir"] == str(folder)
    assert {row["name"]: row["state"] for row in value["models"]} == {
        "smollm2-135m": "in cache",
        "qwen2.5-coder-0.5b": "wrong size",
        "qwen2.5-coder-1.5b": "absent",
    }
    assert [row["name"] for row in value["models"] if row["default"]] == ["smollm2-135m"]
    table = invoke("models")
    assert table.exit_code == 0
    for word in ("smollm2-135m (default)", "98 MB", "1,117 MB", "in cache", "wrong size", "absent"):
        assert word in table.stdout
