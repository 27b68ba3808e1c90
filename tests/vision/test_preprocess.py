"""Pixels as the model's own processor makes them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from pictures import noise, thirty
from PIL import Image

from draftproof.vision.images import read_image
from draftproof.vision.preprocess import Grid, frame_groups, picture, target_size

HALF = (0.5, 0.5, 0.5)
GRID = Grid(patch_size=16, merge_size=2, min_tokens=64, max_tokens=16384)
SMALL = Grid(patch_size=16, merge_size=2, min_tokens=4, max_tokens=48)


def reference(grid: Grid) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    area = grid.factor**2
    return Qwen2VLImageProcessorPil(
        patch_size=grid.patch_size,
        merge_size=grid.merge_size,
        size={"shortest_edge": grid.min_tokens * area, "longest_edge": grid.max_tokens * area},
        image_mean=list(HALF),
        image_std=list(HALF),
    )


def values(shown: Any, columns: int) -> np.ndarray[Any, Any]:
    out = np.empty((shown.rows * shown.columns, columns), np.float32)
    shown.write_patches(out, HALF, HALF)
    return out


PICTURES = thirty()


def test_there_are_thirty() -> None:
    assert len(PICTURES) >= 30


@pytest.mark.parametrize("grid", [GRID, SMALL], ids=["wide", "small"])
@pytest.mark.parametrize("name", PICTURES)
def test_pixels_are_the_processors(name: str, grid: Grid) -> None:
    from transformers.image_utils import load_image

    source = PICTURES[name]
    opened = Image.open(io.BytesIO(source)) if isinstance(source, bytes) else source
    expected = reference(grid)(images=[load_image(opened)], return_tensors="np")
    shown = picture(read_image(source), grid)
    assert [1, shown.rows, shown.columns] == expected["image_grid_thw"][0].tolist()
    got = values(shown, expected["pixel_values"].shape[1])
    assert np.abs(got - expected["pixel_values"]).max() <= 1e-6
    assert grid.min_tokens <= shown.tokens <= grid.max_tokens


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (480, 640, (480, 640)),
        (1080, 1920, (1088, 1920)),
        (100, 100, (256, 256)),
        (16, 16, (256, 256)),
        (3000, 4000, (3008, 4000)),
        (336, 1000, (320, 992)),
        (48, 80, (224, 352)),
        (240, 272, (256, 256)),
    ],
)
def test_sizes(height: int, width: int, expected: tuple[int, int]) -> None:
    assert target_size(height, width, GRID) == expected


def test_content_tells_pictures_apart() -> None:
    one, same, other = (picture(noise(64, 64, n), SMALL) for n in (1, 1, 2))
    assert one.content == same.content != other.content
    # The same bytes in another shape.
    tall, wide = (picture(Image.new("RGB", size), SMALL) for size in ((64, 128), (128, 64)))
    assert tall.pixels.tobytes() == wide.pixels.tobytes()
    assert tall.content != wide.content


def test_frames_of_a_video() -> None:
    """Two and two; an odd last one is repeated; pixels as the video processor has them."""
    frames = [noise(70, 50, n) for n in range(5)]
    groups = frame_groups(frames, SMALL)
    assert len(groups) == 3
    assert np.array_equal(groups[2].pixels[0], groups[2].pixels[1])
    assert not np.array_equal(groups[0].pixels[0], groups[0].pixels[1])
    assert sum(group.tokens for group in groups) <= SMALL.max_tokens + groups[0].tokens
    height, width = groups[0].pixels.shape[1:3]
    resized = frames[1].resize((width, height), Image.Resampling.BICUBIC)
    assert np.array_equal(groups[0].pixels[1], np.asarray(resized))
    got = values(groups[0], 2 * 3 * 256).reshape(-1, 3, 2, 16, 16)
    assert not np.array_equal(got[:, :, 0], got[:, :, 1])
