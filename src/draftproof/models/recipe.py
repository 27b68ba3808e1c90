"""Which tensor gets which type when a model is quantized.

`q4_k_m` is the mix that llama.cpp's users know by that name: most matrices Q4_K, the more sensitive
ones Q6_K. A row whose length the type's block doesn't divide gets a stand-in, as it does there.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftproof.errors import InvalidRequestError
from draftproof.formats import GGML_TYPES, TensorInfo
from draftproof.models.config import ModelConfig

F32, F16, Q5_0, Q8_0, Q4_K, Q6_K, BF16 = 0, 1, 6, 8, 12, 14, 30
FLOATS = (F32, F16, BF16)

# Name -> (type of most matrices, `general.file_type` of GGUF).
RECIPES: Mapping[str, tuple[int, int]] = {
    "f32": (F32, 0),
    "f16": (F16, 1),
    "bf16": (BF16, 32),
    "q8_0": (Q8_0, 7),
    "q4_k_m": (Q4_K, 15),
}
_STAND_INS = {Q4_K: Q5_0, Q6_K: Q8_0, Q5_0: F16, Q8_0: F16}


def target_type(recipe: str, tensor: TensorInfo, model: ModelConfig) -> int:
    """The ggml type that `recipe` gives a tensor. Vectors and routers stay F32: they are small, and
    much depends on them."""
    name = tensor.name
    if len(tensor.shape) == 1 or "ffn_gate_inp" in name:
        return F32
    kind = RECIPES[recipe][0]
    if recipe == "q4_k_m":
        head = name == "output.weight" or (model.tied and name == "token_embd.weight")
        if head or (_is_sensitive(name) and _gets_more_bits(name, model.num_layers)):
            kind = Q6_K
    while tensor.shape[-1] % GGML_TYPES[kind].block_elems:
        kind = _STAND_INS[kind]
    return kind


def check_source(recipe: str, tensors: Mapping[str, TensorInfo]) -> None:
    """Raises InvalidRequestError if a tensor is quantized already: twice loses more than once."""
    for tensor in tensors.values():
        if tensor.ggml_type not in FLOATS:
            kind = GGML_TYPES[tensor.ggml_type].name
            raise InvalidRequestError(
                f"can't quantize to {recipe}: {tensor.name} is {kind} already; give the F16, BF16"
                " or F32 model"
            )


def _is_sensitive(name: str) -> bool:
    return any(part in name for part in ("attn_v.", "ffn_down.", "ffn_down_exps."))


def _gets_more_bits(name: str, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    layer = int(name.split(".")[1])
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
