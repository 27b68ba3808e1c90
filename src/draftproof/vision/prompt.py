"""A prompt with placeholders -> the prompt as the engine plays it: one token per feature, positions
in three dimensions, and which rows are features.

Pure arithmetic on token ids. Knows neither pixels nor weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from draftproof.vision.preprocess import Picture


class ReadPrompt(list[int]):
    """Token ids, with one placeholder per feature of the pictures that come with them. begins:
    where in the prompt each picture begins."""

    def __init__(
        self,
        token_ids: Sequence[int],
        pictures: Sequence[Picture] = (),
        begins: Sequence[int] = (),
    ) -> None:
        super().__init__(token_ids)
        self.pictures = tuple(pictures)
        self.begins = tuple(begins)


@dataclass(frozen=True)
class Placed:
    """One picture in a prompt: tokens first .. first + rows * columns - 1, in raster order.
    content: what tells it from others, for caches."""

    first: int
    rows: int
    columns: int
    content: bytes

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, eq=False)
class VisionPrompt:
    """What a prompt with pictures has beyond its token ids.

    positions: int32 [prompt tokens, 3], (time, row, column). delta: a later token's position on all
    axes is its index plus delta. features: float32 [tokens of all pictures, width], in order.
    feature_of: int32 [prompt tokens], the row of `features`, -1 for text.
    """

    positions: NDArray[np.int32]
    delta: int
    feature_of: NDArray[np.int32]
    features: NDArray[np.float32]
    pictures: tuple[Placed, ...]

    @property
    def tokens(self) -> int:
        return len(self.features)

    def content_keys(self) -> dict[int, tuple[bytes, int]]:
        """What the tokens of pictures show, by their index: equal for the same token of equal
        pictures only. For caches of keys and values."""
        return {
            placed.first + i: (placed.content, i)
            for placed in self.pictures
            for i in range(placed.tokens)
        }


def expand(
    ids: Sequence[int], placeholders: Collection[int], sizes: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """Every placeholder repeated once per token of its picture; also where each picture begins.
    sizes: (rows, columns) in tokens, in the order of the placeholders.

    Raises InvalidRequestError if the template wrote more or fewer placeholders than pictures.
    """
    out: list[int] = []
    begins: list[int] = []
    for id_ in ids:
        if id_ not in placeholders:
            out.append(id_)
            continue
        if len(begins) < len(sizes):
            rows, columns = sizes[len(begins)]
            begins.append(len(out))
            out += [id_] * (rows * columns)
        else:
            begins.append(-1)
    if len(begins) != len(sizes):
        raise InvalidRequestError(
            f"the chat template has {len(begins)} places for {len(sizes)} images: "
            "put images into messages of the user"
        )
    return out, begins


def lay_out(
    num_tokens: int, pictures: Sequence[Placed], features: NDArray[np.float32]
) -> VisionPrompt:
    """Positions and feature rows of a prompt. A text token moves all axes on by one; a picture
    spreads over rows and columns and moves them on by the longer of its sides."""
    positions = np.empty((num_tokens, 3), np.int32)
    feature_of = np.full(num_tokens, -1, np.int32)
    at = position = row = 0
    for placed in pictures:
        text = placed.first - at
        positions[at : placed.first] = position + np.arange(text, dtype=np.int32)[:, None]
        position += text
        at = placed.first + placed.tokens
        here = positions[placed.first : at].reshape(placed.rows, placed.columns, 3)
        here[..., 0] = position
        here[..., 1] = position + np.arange(placed.rows, dtype=np.int32)[:, None]
        here[..., 2] = position + np.arange(placed.columns, dtype=np.int32)
        feature_of[placed.first : at] = row + np.arange(placed.tokens, dtype=np.int32)
        row += placed.tokens
        position += max(placed.rows, placed.columns)
    positions[at:] = position + np.arange(num_tokens - at, dtype=np.int32)[:, None]
    delta = position - at
    if row != len(features):
        raise ValueError(f"{row} placeholders, but {len(features)} feature rows")
    return VisionPrompt(positions, delta, feature_of, features, tuple(pictures))
