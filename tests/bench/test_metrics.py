"""Definitions, tables and the signs of a busy machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from draftproof.bench import noise
from draftproof.bench.bandwidth import last_level_cache_bytes, read_bandwidth
from draftproof.bench.metrics import (
    gb_per_second,
    geometric_mean,
    median,
    overall_speedup,
    spread,
    token_digest,
    tokens_per_second,
)
from draftproof.bench.tables import comma_separated, markdown


def test_rates() -> None:
    assert tokens_per_second(11, 2.0) == 5.0  # the first token is the prompt's
    assert tokens_per_second(1, 0.0) == 0.0
    assert gb_per_second(3e9, 1.5) == 2.0
    assert median([]) == 0.0
    assert spread([9.0, 10.0, 12.0]) == pytest.approx(0.3)
    assert spread([5.0]) == 0.0
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_overall_speedup_weighs_by_time_not_by_prompt() -> None:
    # 100 tokens in 50 plain steps, 10 tokens in 20.
    assert overall_speedup([100, 10], [2.0, 0.5]) == pytest.approx(110 / 70)
    assert overall_speedup([1], [0.0]) == 0.0


def test_token_digest_is_over_int32() -> None:
    ids = [0, 1, 151643]
    assert token_digest(ids) == hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()


def test_markdown_lines_up_with_wide_characters() -> None:
    table = markdown(["name", "n"], [["第7点", "1"], ["a|b", "10"]])
    assert table.splitlines() == [
        "| name  |   n |",
        "| ----- | --: |",
        "| 第7点 |   1 |",
        "| a\\|b  |  10 |",
    ]


def test_csv_quotes() -> None:
    assert comma_separated(["a", "b"], [['x, "y"', None]]) == 'a,b\n"x, ""y""",\n'


def _times(busy: float, own: float, wall: float, steal: float = 0.0) -> noise.CpuTimes:
    return noise.CpuTimes(busy=busy, steal=steal, own=own, wall=wall, cpus=2)


@pytest.mark.parametrize(
    ("after", "doubts"),
    [
        (_times(busy=20.0, own=20.0, wall=10.0), 0),  # all of it was ours
        (_times(busy=20.0, own=19.5, wall=10.0), 0),
        (_times(busy=20.0, own=10.0, wall=10.0), 1),  # half of it was others'
        (_times(busy=10.0, own=10.0, wall=10.0, steal=2.0), 1),
        (_times(busy=18.0, own=9.0, wall=10.0, steal=2.0), 2),
    ],
)
def test_load_of_others_is_noticed(after: noise.CpuTimes, doubts: int) -> None:
    assert len(noise.load_reasons(_times(0.0, 0.0, 0.0), after)) == doubts
    assert noise.load_reasons(None, after) == []


def test_a_slow_mode_is_noticed_and_a_hiccup_is_not() -> None:
    assert noise.drift_reasons([10.0] * 4 + [10.2] * 4 + [15.0] * 4)
    assert not noise.drift_reasons([10.0, 10.1, 30.0, 10.0, 10.1, 10.0, 10.0, 10.2, 10.1])
    assert noise.drift([1.0]) == 1.0


def test_cpu_times_of_a_made_up_system(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 100 100 999 50 0 0 300 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n")
    found = noise.cpu_times(stat)
    assert found is not None
    assert found.cpus == 2
    assert found.steal == pytest.approx(found.busy)  # 300 ticks each
    assert noise.cpu_times(tmp_path / "nothing") is None


def test_cache_sizes(tmp_path: Path) -> None:
    for i, size in enumerate(("48K", "1024K", "32M", "what")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 32 << 20
    assert last_level_cache_bytes(tmp_path / "none") == 32 << 20


def test_read_bandwidth_counts_every_byte() -> None:
    found = read_bandwidth(2, buffer_bytes=8 << 20, rounds=3)
    assert found.buffer_bytes == 8 << 20
    assert 0.1 < found.gb_per_second <= found.best < 10_000
