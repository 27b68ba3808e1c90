"""A caller that flushes denormals must not change what a sampling parameter means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fp_control
import pytest
from runs import Bench

from draftproof.config import EngineConfig
from draftproof.request import SamplingParams
from tiny_models import TinyModels


@pytest.mark.skipif(not fp_control.available(), reason="MXCSR is a register of x86")
def test_a_tiny_min_p_under_flush_to_zero(tiny: TinyModels, load: Callable[..., Any]) -> None:
    fields = {"threads": 1, "ctx": 256}
    bench = Bench(load(tiny.path("llama", "F32"), **fields), EngineConfig(**fields))
    for seed in range(3):
        sampling = SamplingParams(
            max_tokens=20, ignore_eos=True, temperature=1.0, seed=seed, min_p=1e-40
        )
        plain = bench.run([11, 12, 13], sampling)
        with fp_control.set_to(fp_control.FLUSH):
            flushed = bench.run([11, 12, 13], sampling)
        assert flushed.outcome == plain.outcome
