"""YaRN's frequencies: as transformers computes them, exactly repeatable; settings that aren't built
are refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftproof.errors import ModelFileError
from draftproof.models import open_model
from draftproof.models.rotary import Yarn, rotary_turns
from tiny_models import SPECS, gguf_tensors, hf_weights, metadata, write_gguf

CASES = [
    (Yarn(4.0, 32768), 1e6, 128),  # as Qwen3's cards say
    (Yarn(4.0, 262144), 5e6, 128),
    (Yarn(2.5, 4096, 16.0, 2.0), 1e4, 64),
    (Yarn(8.0, 8192, truncate=False), 5e5, 96),
    (Yarn(4.0, 32768, attention_factor=1.0), 1e6, 128),
    (Yarn(4.0, 2, 32.0, 31.0), 1e6, 16),  # both ends before the first pair
]


@pytest.mark.parametrize(("yarn", "theta", "head_dim"), CASES)
def test_frequencies_are_those_of_transformers(yarn: Yarn, theta: float, head_dim: int) -> None:
    settings: dict[str, Any] = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.trained,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "truncate": yarn.truncate,
    }
    if yarn.attention_factor is not None:
        settings["attention_factor"] = yarn.attention_factor
    longest = int(yarn.factor * yarn.trained)
    config = Qwen3Config(
        head_dim=head_dim, max_position_embeddings=longest, rope_parameters=settings
    )
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    turns = rotary_turns(theta, head_dim, yarn.divisors(theta, head_dim))
    ours = turns.astype(np.float64) / 2.0**64 * 2 * math.pi
    np.testing.assert_allclose(ours, expected.numpy(), rtol=2e-6)
    assert yarn.magnitude == pytest.approx(factor, rel=1e-15)


def test_both_ends_of_the_line() -> None:
    divisors = [float(d) for d in Yarn(4.0, 32768).divisors(1e6, 128)]
    assert divisors[0] == 1
    assert divisors[-1] == 4
    assert divisors == sorted(divisors)
    assert sum(1 < d < 4 for d in divisors) > 5


def _file(folder: Path, **keys: tuple[Any, GGUFValueType]) -> Path:
    spec = SPECS["qwen3"]
    meta = metadata(spec)
    for name, value in keys.items():
        meta[f"qwen3.rope.scaling.{name}"] = value
    path = folder / "x.gguf"
    write_gguf(path, spec.arch, meta, gguf_tensors(spec, hf_weights(spec)))
    return path


F32, STR, U32 = GGUFValueType.FLOAT32, GGUFValueType.STRING, GGUFValueType.UINT32
YARN = {"type": ("yarn", STR), "factor": (4.0, F32), "original_context_length": (512, U32)}


def test_gguf_settings(tmp_path: Path) -> None:
    source = open_model(_file(tmp_path, **YARN, yarn_beta_fast=(16.0, F32)))
    assert source.config().yarn == Yarn(4.0, 512, 16.0)
    source.close()


@pytest.mark.parametrize("kind", ["none", "yarn"])
def test_a_factor_of_one_changes_nothing(kind: str, tmp_path: Path) -> None:
    source = open_model(_file(tmp_path, type=(kind, STR), factor=(1.0, F32)))
    assert source.config().yarn is None
    assert source.config().rope_divisors is None
    source.close()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"factor": (0.5, F32)}, "factor"),
        ({"factor": (float("nan"), F32)}, "factor"),
        ({"attn_factor": (2.0, F32)}, "attn_factor"),
        ({"yarn_ext_factor": (0.5, F32)}, "yarn_ext_factor"),
        ({"yarn_log_multiplier": (0.1, F32)}, "yarn_log_multiplier"),
        ({"yarn_beta_slow": (32.0, F32)}, "yarn_beta_fast"),
        ({"original_context_length": (0, U32)}, "original_context_length"),
        ({"type": ("longrope", STR)}, "longrope"),
    ],
)
def test_other_settings_are_refused_by_name(
    keys: dict[str, tuple[Any, GGUFValueType]], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=named) as refused:
        open_model(_file(tmp_path, **{**YARN, **keys})).config()
    assert "\n" not in str(refused.value)
