"""Which cells the bit tests run: the axes of every operation and a seeded sample of their product.

A cell is one call of a kernel in one setting, compared with one row at a time on the scalar row.
Owns axes and counts; the tests own what a cell does.
"""

from __future__ import annotations

from blocks import ACT_KINDS, TYPES, WEIGHT_KINDS

from draftproof import _native
from pairwise import Cell, pairwise, whole

ROWS = (*range(1, 18), 33, 130)
THREADS = (1, 2, 3, 4)
ISAS = tuple(_native.isa_rows())
TYPE_NAMES = tuple(TYPES)
_COMMON = {"isa": ISAS, "rows": ROWS, "threads": THREADS}

# outs: widths of the outputs of one operation. blocks: of the input, 32 or 256 wide (37 if float).
LINEAR = {
    **_COMMON,
    "weights": WEIGHT_KINDS,
    "acts": ACT_KINDS,
    "outs": ((1,), (16,), (41,), (64,), (100, 16, 7)),
    "blocks": (1, 2, 5),
    "extra": ("none", "bias", "residual", "bias+residual"),
}
# Types of gate and up may differ: panels of 16 beside panels of 64.
SWIGLU = {
    **_COMMON,
    "up": ("same", "f16", "q8_0"),
    "acts": ("normal", "saturating", "ties", "sparse"),
    "out": (1, 16, 63, 130),
}
# Types of gate, up and down. used of experts; "equal": every row chooses the same ones.
MOE = {
    **_COMMON,
    "types": (
        ("q4_k", "q4_k", "q6_k"),
        ("q8_0", "q8_0", "q8_0"),
        ("f32", "f32", "f32"),
        ("q4_k", "q8_0", "f16"),
        ("bf16", "q5_0", "q4_k"),
    ),
    "experts": ((1, 1), (7, 3), (40, 8)),
    "choice": ("random", "equal"),
    "renormalise": (True, False),
    "residual": (True, False),
}
NORM = {
    **_COMMON,
    # width, length of the weight
    "shape": ((16, 16), (37, 37), (96, 16), (576, 576), (130, 65), (192, 24), (1, 1)),
    "acts": ("normal", "saturating", "ties", "sparse"),
    "eps": (1e-6, 1e-5),
}
ROPE = {
    **_COMMON,
    "head_dim": (16, 24, 64, 72, 128),
    "heads": (1, 3),
    "axes": ("text", "three"),
    "first": (0, 1000, 2**31 - 200),
}
ATTENTION = {
    **_COMMON,
    "head_dim": (16, 24, 64, 72, 128),
    "kv_type": ("f32", "f16", "bf16", "q8_0"),
    "heads": ((1, 1), (1, 6), (2, 3), (1, 14), (3, 1), (1, 64)),  # KV heads, queries for each
    "length": (130, 192, 200, 512, 513, 580, 1041),
}

# Enough tiles that each thread walks all spans of its own; mostly they share the spans of one.
WALKED = {
    **ATTENTION,
    "rows": (17, 33, 130),
    "heads": ((2, 3), (3, 1), (1, 14), (1, 64)),
    "length": (513, 580, 1041),
}

# A cell of these costs about a millisecond; attention a few.
LINEAR_CELLS_PER_TYPE = 150
SWIGLU_CELLS_PER_TYPE = 80
MOE_CELLS = 240
NORM_CELLS = 240
ROPE_CELLS = 240
ATTENTION_CELLS = 240
WALKED_CELLS = 60


def linear_cells(type_name: str, exhaustive: bool) -> list[Cell]:
    if exhaustive:
        return whole(LINEAR)
    return pairwise(LINEAR, LINEAR_CELLS_PER_TYPE, seed=TYPE_NAMES.index(type_name))


def swiglu_cells(type_name: str, exhaustive: bool) -> list[Cell]:
    if exhaustive:
        return whole(SWIGLU)
    return pairwise(SWIGLU, SWIGLU_CELLS_PER_TYPE, seed=100 + TYPE_NAMES.index(type_name))


def moe_cells(exhaustive: bool) -> list[Cell]:
    return whole(MOE) if exhaustive else pairwise(MOE, MOE_CELLS, seed=5)


def norm_cells(exhaustive: bool) -> list[Cell]:
    return whole(NORM) if exhaustive else pairwise(NORM, NORM_CELLS, seed=1)


def rope_cells(exhaustive: bool) -> list[Cell]:
    return whole(ROPE) if exhaustive else pairwise(ROPE, ROPE_CELLS, seed=2)


def attention_cells(exhaustive: bool) -> list[Cell]:
    if exhaustive:
        return whole(ATTENTION)
    return pairwise(ATTENTION, ATTENTION_CELLS, seed=3) + pairwise(WALKED, WALKED_CELLS, seed=4)
