"""How long a context may be, and how many KV pages there are: what was asked for, or what the model
and the memory allow. Decides before anything large is allocated."""

from __future__ import annotations

from draftproof import _native
from draftproof.config import EngineConfig
from draftproof.errors import InvalidRequestError, OutOfMemoryError
from draftproof.models.config import ModelConfig
from draftproof.models.memory import available_bytes

DEFAULT_CONTEXT = 32768
MIN_CONTEXT = 512
OVERHEAD_BYTES = 200 << 20  # interpreter, tokenizer, row buffers, scratch
_MOST_CONTEXTS = 8  # pages for so many full contexts, unless asked for more
_SHARE = 4  # of the memory that is left, a quarter at most


def kv_budget(name: str, config: EngineConfig, model: ModelConfig, packed: int) -> tuple[int, int]:
    """(positions granted to one request, pages of the KV cache). name: of the file, for messages.
    packed: bytes of the weights.

    Without `kv_memory`: at least one full context, as many as eight where memory is plenty; what
    running requests don't need keeps earlier prefixes. Memory is taken page by page, when used.
    """
    if config.ctx is not None and config.ctx > model.context_length:
        raise InvalidRequestError(
            f"ctx {config.ctx} is more than the {model.context_length} positions of {name}"
        )
    wanted = config.ctx or min(model.context_length, DEFAULT_CONTEXT)
    page = _native.KvCache.page_positions
    per_position = bytes_per_position(model, config.kv_type)
    have = available_bytes()
    left = None if have is None else have - packed - OVERHEAD_BYTES
    if config.kv_memory is not None:
        pages = config.kv_memory // (per_position * page)
        if pages < 1:
            raise InvalidRequestError(
                f"kv_memory {config.kv_memory} is less than one page of {name}: at least "
                f"{per_position * page} bytes are needed"
            )
        if left is not None and config.kv_memory > left:
            raise OutOfMemoryError(
                f"{name} with {_gb(config.kv_memory)} of KV memory needs "
                f"{_gb(packed + OVERHEAD_BYTES + config.kv_memory)}, {_gb(have or 0)} are free: "
                "use a smaller model or a lower --kv-memory"
            )
        return (wanted if config.ctx is not None else min(wanted, pages * page)), pages
    if left is None:
        return wanted, -(-wanted // page)
    fits = left // per_position // page * page
    least = wanted if config.ctx is not None else min(wanted, MIN_CONTEXT)
    if fits < least:
        need = packed + OVERHEAD_BYTES + least * per_position
        raise OutOfMemoryError(
            f"{name} with {least} positions needs {_gb(need)}, {_gb(have or 0)} are free: "
            "use a smaller model, a lower --ctx, or --kv-type f16 or q8_0"
        )
    wanted = min(wanted, fits) if config.ctx is None else wanted
    one = -(-wanted // page)
    return wanted, max(one, min(_MOST_CONTEXTS * one, fits // page // _SHARE))


def bytes_per_position(model: ModelConfig, kv_type: str) -> int:
    """Of keys and values of all layers, as the native side lays them out."""
    values = model.head_dim + _padded(model.head_dim)
    if kv_type == "q8_0":
        row = values + 2 * 4 * -(-model.head_dim // 32)  # and a float32 scale per 32 values
    else:
        row = values * (4 if kv_type == "f32" else 2)
    return model.num_layers * model.num_kv_heads * row


def _padded(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


def _gb(n: int) -> str:
    return f"{n / 1e9:.2f} GB"
