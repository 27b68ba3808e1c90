"""Every setting at the door: what is refused, with the field's name, in one line."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from draftproof.config import (
    EngineConfig,
    SpeculativeConfig,
    _cgroup_cpus,
    default_threads,
    parse_bytes,
)
from draftproof.errors import InvalidRequestError
from draftproof.request import SamplingParams

NAN, INF = math.nan, math.inf

BAD_SAMPLING = [
    *[("temperature", v) for v in (NAN, INF, -INF, -0.1, 1e-9, 101, "1", None, True)],
    *[("top_k", v) for v in (-1, 2**31, 1.0, True, None)],
    *[("top_p", v) for v in (0.0, -0.5, 1.01, NAN, INF)],
    *[("min_p", v) for v in (-0.1, 1.1, NAN)],
    *[("seed", v) for v in (-1, 2**64, 1.5, "x")],
    *[("max_tokens", v) for v in (0, -5, 2.0, True)],
    *[("stop", v) for v in ("", ("a", ""), ("a",) * 10_000, 3, (3,), ("x" * 2000,))],
    *[("stop_token_ids", v) for v in ((-1,), (1.5,), "12", (0,) * 10_000)],
    ("ignore_eos", 1),
]
BAD_SPECULATION: list[tuple[str, dict[str, Any]]] = [
    ("drafter", {"drafter": "ngram"}),
    *[("k", {"k": v}) for v in (64, -1, 2.0, True, "auto")],
    *[("k_max", {"k_max": v}) for v in (64, -1, 2.0, True, None)],
    *[("remember", {"remember": v}) for v in (1, None)],
    *[("scope", {"scope": v}) for v in (1, None)],
    *[("reference", {"reference": v}) for v in (3, (-1,), ["a"])],
    ("reference has 100001 tokens", {"reference": (1,) * 100_001}),
    ("reference has 1000001 characters", {"reference": "a" * 1_000_001}),
    ("verify", {"verify": "fast"}),
    ("recording", {"drafter": "oracle"}),
    ("recording", {"drafter": "oracle", "recording": ()}),
    ("recording", {"drafter": "window", "recording": (1,)}),
    *[
        ("acceptance", {"drafter": "oracle", "recording": (1,), "acceptance": v})
        for v in (-0.1, 1.1, NAN)
    ],
]
BAD_ENGINE = [
    *[("threads", v) for v in (0, -1, 1.5, None, 5000)],
    *[("ctx", v) for v in (0, 1, -4, 2.5)],
    *[("kv_type", v) for v in ("f8", "", None, 16)],
    *[("prefill_chunk", v) for v in (0, 10**6, "a")],
    ("isa", 3),
]


def refused(name: str, make: Any, **values: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make(**values)
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert len(message) < 250


@pytest.mark.parametrize(("name", "value"), BAD_SAMPLING)
def test_bad_sampling(name: str, value: Any) -> None:
    refused(name, SamplingParams, **{name: value})


@pytest.mark.parametrize(("name", "values"), BAD_SPECULATION)
def test_bad_speculation(name: str, values: dict[str, Any]) -> None:
    refused(name, SpeculativeConfig, **values)


@pytest.mark.parametrize(("name", "value"), BAD_ENGINE)
def test_bad_engine(name: str, value: Any) -> None:
    refused(name, EngineConfig, **{"threads": 1, name: value})


def test_good_settings() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    SamplingParams(0.7, 40, 0.9, 0.05, 2**64 - 1, 1, ("x",), (0,), True)
    assert SpeculativeConfig() == SpeculativeConfig("auto", None, "exact")
    assert [SpeculativeConfig("window", k).k for k in (0, 1, 63)] == [0, 1, 63]
    assert SpeculativeConfig(reference=[1, 2]).reference == (1, 2)  # type: ignore[arg-type]


def test_the_largest_draft() -> None:
    def largest(*args: Any, **options: Any) -> tuple[int, bool]:
        config = SpeculativeConfig(*args, **options)
        return config.largest_draft, config.is_controlled

    assert largest() == (63, True)
    assert largest("window", k_max=7) == (7, True)
    assert largest("window", 5) == (5, False)
    assert largest("auto", 0) == (0, False)
    assert largest("off") == largest("off", 8) == (0, False)
    assert largest("window", None, "replay") == (4, False)  # replay never pays: nothing to choose


def test_good_engine_settings() -> None:
    for chunk in (1, 64, 256):
        config = EngineConfig(threads=1, prefill_chunk=chunk)
        assert config.max_rows == chunk + 128
        assert config.max_logit_rows == 128
    assert EngineConfig(threads=1, max_running=300).max_logit_rows == 300


@pytest.mark.parametrize(
    ("text", "size"),
    [("2G", 2 << 30), ("800m", 800 << 20), ("1.5 GiB", 3 << 29), ("4096", 4096), ("1KB", 1024)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("--kv-memory", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "2 Q", "1e9", "nan", "9" * 30, "2G2"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--kv-memory"):
        parse_bytes("--kv-memory", text)


def test_threads_follow_affinity_and_quota(tmp_path: Path) -> None:
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    inner = tmp_path / "root/outer/inner"
    inner.mkdir(parents=True)
    root = tmp_path / "root"
    assert _cgroup_cpus(membership, root) == INF
    (inner / "cpu.max").write_text("max 100000\n")
    assert _cgroup_cpus(membership, root) == INF
    (root / "outer/cpu.max").write_text("150000 100000\n")
    assert _cgroup_cpus(membership, root) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert _cgroup_cpus(membership, root) == 0.5
    (inner / "cpu.max").write_text("what\n")
    assert _cgroup_cpus(membership, root) == 1.5
    assert _cgroup_cpus(tmp_path / "none", root) == INF


def test_quota_of_cgroup_v1(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/unified\n")
    folder = tmp_path / "root/cpu/docker/x"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert _cgroup_cpus(membership, tmp_path / "root") == INF
    (folder / "cpu.cfs_quota_us").write_text("320000\n")
    assert _cgroup_cpus(membership, tmp_path / "root") == 3.2
