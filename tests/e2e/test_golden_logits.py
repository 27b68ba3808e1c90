"""Logits of small models are the recorded bits: today, on this machine, on every row of the
dispatch table. The models are made of integers, so that they are the same bytes everywhere.

A change of arithmetic version makes the file anew: python -m e2e.test_golden_logits, in tests/.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pytest

from draftproof import _native
from draftproof.config import EngineConfig
from draftproof.models import load_model
from e2e.golden_models import TOKENS, golden_prompt, write_golden_model
from parity.logits import all_logits

Case = tuple[str, str, str]  # model, tensor type, KV type
FILE = Path(__file__).with_name("golden_logits.txt")
# Every family, every tensor type, every kind of KV.
CASES: tuple[Case, ...] = (
    ("llama", "F32", "f32"),
    ("llama-wide", "Q4_K", "f16"),
    ("llama", "Q5_1", "f16"),
    ("qwen2", "Q8_0", "f16"),
    ("qwen2-wide", "Q6_K", "bf16"),
    ("qwen2-wide", "IQ4_XS", "f16"),
    ("qwen2", "MXFP4", "f32"),
    ("qwen2", "IQ4_NL", "f16"),
    ("qwen3", "BF16", "f16"),
    ("qwen3", "F16", "f32"),
    ("qwen3", "Q4_0", "f16"),
    ("qwen3", "Q4_1", "bf16"),
    ("qwen3", "Q5_0", "f16"),
    ("qwen3-wide", "Q5_K", "f16"),
    ("qwen3-wide-untied", "Q2_K", "f16"),
    ("qwen3-wide", "Q3_K", "f16"),
    ("qwen3moe-wide", "Q4_K", "f16"),
)


def logits_digest(path: Path, case: Case, isa: str, chunk: int) -> str:
    """Of the logits [TOKENS, vocab] as little-endian float32."""
    name, _, kv_type = case
    loaded = load_model(path, EngineConfig(kv_type=kv_type, ctx=512, threads=2, isa=isa))
    logits = all_logits(loaded, golden_prompt(name), chunk)
    assert np.isfinite(logits).all()
    assert logits.shape[0] == TOKENS
    assert logits.std() > 0.05
    assert len(np.unique(logits, axis=0)) > TOKENS // 2
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()[:32]


def recorded() -> dict[Case, tuple[str, str]]:
    lines = [line.split() for line in FILE.read_text().splitlines() if not line.startswith("#")]
    return {(name, type_, kv): (model, logits) for name, type_, kv, model, logits in lines}


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Path]:
    case: Case = request.param
    path = tmp_path_factory.mktemp("golden") / "golden.gguf"
    tensors = write_golden_model(path, case[0], case[1])
    assert tensors[:32] == recorded()[case][0], "other tensors than recorded, so other logits"
    return case, path


def test_logits_are_the_recorded_bits(written: tuple[Case, Path], isa: str) -> None:
    case, path = written
    for chunk in (1, 16, 60) if isa != "scalar" else (13,):
        assert logits_digest(path, case, isa, chunk) == recorded()[case][1], chunk


def test_every_case_is_recorded() -> None:
    assert set(recorded()) == set(CASES)


def _write() -> None:
    lines = [
        "# SHA-256 (first 32 digits) of the tensors of tiny models and of their logits, the same",
        "# on every row of the dispatch table and every machine. Made on x86-64 by the scalar row,",
        "# one token at a time, with: python -m e2e.test_golden_logits, in tests/.",
        f"# Arithmetic version {_native.ARITHMETIC_VERSION}.",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.gguf"
        for case in CASES:
            tensors = write_golden_model(path, case[0], case[1])[:32]
            lines += [" ".join((*case, tensors, logits_digest(path, case, "scalar", 1)))]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    _write()
