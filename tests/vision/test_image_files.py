"""What can't be read as an image: one clear line, and nothing large has been decoded."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded, noise, thirty, turned
from PIL import Image

from draftproof.errors import InvalidRequestError
from draftproof.vision import images
from draftproof.vision.images import read_image


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


GOOD = encoded(noise(40, 30), "PNG")
FILES = [v for v in thirty().values() if isinstance(v, bytes)]
FILES += [GOOD, encoded(noise(30, 30), "TIFF"), encoded(noise(30, 30), "PPM")]
BAD: dict[str, tuple[Any, str]] = {
    "a bomb": (png_header(60000, 60000), "has far too many pixels|million"),
    "a smaller bomb": (png_header(9000, 9000), "million are decoded"),
    "0 wide": (png_header(0, 10), "no image|nothing to see"),
    "1 x 10000": (png_header(1, 10000), "at most 200 times"),
    "10000 x 1": (np.zeros((1, 10000, 3), np.uint8), "at most 200 times"),
    "0 x 0": (np.zeros((0, 0, 3), np.uint8), "nothing to see"),
    "truncated": (GOOD[: len(GOOD) // 2], "truncated or damaged"),
    "a header only": (GOOD[:20], "no image"),
    "empty": (b"", "is empty"),
    "text": (b"hello", "no image"),
    "a script": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image"),
    "a float array": (np.zeros((4, 4, 3), np.float32), "of uint8 is needed"),
    "a flat array": (np.zeros(12, np.uint8), "of uint8 is needed"),
    "five channels": (np.zeros((4, 4, 5), np.uint8), "of uint8 is needed"),
    "nothing": (None, "NoneType"),
    "a number": (7, "a int"),
    "no such file": ("/nonexistent/picture.png", "can't be opened: No such file"),
    "a folder": ("/", "isn't a regular file"),
    "a NUL in the path": ("a\0b", "can't be opened"),
    "a huge name": ("x" * 5000, "can't be opened"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images(name: str) -> None:
    source, message = BAD[name]
    with pytest.raises(InvalidRequestError, match=message) as caught:
        read_image(source, "messages[0].content[1]")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("messages[0].content[1]")


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(InvalidRequestError, match="million"):
        read_image(png_header(20000, 5000))


def test_a_pipe_doesnt_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="isn't a regular file"):
        read_image(tmp_path / "pipe")


def test_too_many_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    (tmp_path / "a.png").write_bytes(GOOD)
    for source in (GOOD, tmp_path / "a.png"):
        with pytest.raises(InvalidRequestError, match="at most"):
            read_image(source)


@pytest.mark.parametrize("seed", range(300))
def test_damaged_files_never_crash(seed: int) -> None:
    """Bytes changed, cut out and repeated: an image or one clear line."""
    rng = np.random.default_rng(seed)
    data = bytearray(FILES[seed % len(FILES)])
    for _ in range(int(rng.integers(1, 12))):
        at = int(rng.integers(len(data)))
        if rng.random() < 0.7:
            data[at] = int(rng.integers(256))
        elif rng.random() < 0.5:
            del data[at : at + int(rng.integers(50))]
        else:
            data[at:at] = data[: int(rng.integers(50))]
    message = ""
    try:
        read_image(bytes(data))
    except InvalidRequestError as error:
        message = str(error)
    assert "\n" not in message


def test_the_orientation_of_a_photo_counts() -> None:
    plain, turned_ = read_image(turned(1)), read_image(turned(6))
    assert plain.size == (120, 60)
    assert turned_.size == (60, 120)
    back = turned_.transpose(Image.Transpose.ROTATE_90)
    assert np.array_equal(np.asarray(back), np.asarray(plain))


def test_sources_of_one_picture_are_one(tmp_path: Path) -> None:
    image = noise(40, 30)
    (tmp_path / "a.png").write_bytes(GOOD)
    expected = np.asarray(image)
    for source in (image, GOOD, bytearray(GOOD), tmp_path / "a.png", str(tmp_path / "a.png"),
                   np.asarray(image)):  # fmt: skip
        assert np.array_equal(np.asarray(read_image(source)), expected)
    grey = np.asarray(image.convert("L"))
    assert np.array_equal(np.asarray(read_image(grey))[:, :, 1], grey)
    assert Image.open(io.BytesIO(GOOD)).size == (40, 30)
