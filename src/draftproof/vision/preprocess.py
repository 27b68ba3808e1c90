"""Pictures to patches: resizing to whole tokens within limits, normalising, the order of patches.

The steps and the rounding are those of the model's own processor (transformers'
Qwen2VLImageProcessor on Pillow), so the pixels are the same. Knows files as little as weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Grid:
    """How a model cuts pictures: patches of patch_size pixels, merge_size^2 of them to a token,
    min_tokens .. max_tokens of a picture."""

    patch_size: int
    merge_size: int
    min_tokens: int
    max_tokens: int

    @property
    def factor(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, eq=False)
class Picture:
    """What the tower sees of one image, or of one group of frames, before normalising.

    pixels: uint8 [frames, height, width, 3], 1 or 2 frames, sides whole tokens.
    """

    pixels: NDArray[np.uint8]
    grid: Grid

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return int(self.pixels.shape[1]) // self.grid.patch_size

    @property
    def columns(self) -> int:
        return int(self.pixels.shape[2]) // self.grid.patch_size

    @property
    def tokens(self) -> int:
        return self.rows * self.columns // self.grid.merge_size**2

    @property
    def content(self) -> bytes:
        """A digest: equal for equal pixels only."""
        digest = hashlib.sha256(repr(self.pixels.shape).encode())
        digest.update(self.pixels.tobytes())
        return digest.digest()

    def write_patches(
        self, out: NDArray[np.float32], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        """Fills `out` [rows * columns, 3 * frames * patch_size^2] with normalised values: patches
        in squares of merge_size; within a patch colour, frame, row, column. Where `out` has more
        frames than the picture, its only one is repeated."""
        p, m = self.grid.patch_size, self.grid.merge_size
        table = _normalised(mean, std)  # [256, 3]
        shown, height, width, colours = self.pixels.shape
        blocks = self.pixels.reshape(
            shown, height // (p * m), m, p, width // (p * m), m, p, colours
        ).transpose(1, 4, 2, 5, 7, 0, 3, 6)
        values = out.reshape(*blocks.shape[:5], out.shape[1] // (colours * p * p), p, p)
        for colour in range(colours):
            values[:, :, :, :, colour] = table[:, colour][blocks[:, :, :, :, colour]]


def _normalised(mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """Every value of a colour byte, scaled to 0..1 and normalised."""
    scaled = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)[:, None]
    values: NDArray[np.float32] = scaled - np.array(mean, np.float32)
    values /= np.array(std, np.float32)
    return values


def target_size(height: int, width: int, grid: Grid, frames: int = 1) -> tuple[int, int]:
    """(height, width) to resize to: multiples of the factor, tokens within the limits, the shape
    kept as far as that allows. frames: of a video, which share the limits.

    Halves are rounded to even, as Python's round does.
    """
    factor = grid.factor
    least, most = grid.min_tokens * factor**2, grid.max_tokens * factor**2
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if frames * new_height * new_width > most:
        shrink = math.sqrt(frames * height * width / most)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif frames * new_height * new_width < least:
        grow = math.sqrt(least / (frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def picture(image: Image, grid: Grid) -> Picture:
    """One image, resized by stretching."""
    return Picture(_resized(image, *target_size(image.height, image.width, grid))[None], grid)


def frame_groups(frames: Sequence[Image], grid: Grid, per_group: int = 2) -> list[Picture]:
    """A video's frames, two and two; an odd last one is repeated. All frames together share the
    limits. The frames have one size, and are two at least."""
    height, width = frames[0].height, frames[0].width
    if min(height, width) < grid.factor:
        scale = grid.factor / min(height, width)
        height, width = int(height * scale), int(width * scale)
    shown = round(len(frames) / per_group) * per_group
    size = target_size(height, width, grid, shown)
    arrays = [_resized(frame, *size) for frame in frames]
    arrays += arrays[-1:] * (-len(arrays) % per_group)
    return [
        Picture(np.stack(arrays[i : i + per_group]), grid) for i in range(0, len(arrays), per_group)
    ]


def _resized(image: Image, height: int, width: int) -> NDArray[np.uint8]:
    from PIL import Image as Pillow

    return np.asarray(image.resize((width, height), Pillow.Resampling.BICUBIC), np.uint8)
