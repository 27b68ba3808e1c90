"""Whatever a user hands in as an image -> an RGB picture, within limits that are checked before
anything is decoded.

Owns which formats are read, how large they may be and how modes become RGB. Knows no model.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from draftproof.errors import InvalidRequestError

if TYPE_CHECKING:
    from PIL.Image import Image

# Formats whose readers are plain decoders: none runs another program or reads another file.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_BYTES = 64 << 20
MAX_PIXELS = 64_000_000  # decoded as RGB: 192 MB
MAX_SIDE = 65_535
MAX_RATIO = 200


def read_image(source: Any, where: str = "image") -> Image:
    """An RGB picture, upright by its EXIF orientation; of an animation the first frame.

    source: a path, the bytes of a file, a PIL image, or an array [h, w], [h, w, 3] or [h, w, 4] of
    uint8. where: how messages name it. Raises InvalidRequestError: no such file, no image, larger
    than the limits (nothing has been decoded then), longer than 200 times its width, truncated.
    """
    from PIL import Image, ImageOps

    if isinstance(source, np.ndarray):
        return _of_array(source, where)
    if isinstance(source, Image.Image):
        image = source
    elif isinstance(source, (bytes, bytearray, memoryview)):
        image = _open(bytes(source), where)
    elif isinstance(source, (str, os.PathLike)):
        image = _open(read_path(Path(source), where), where)
    else:
        raise InvalidRequestError(
            f"{where} is a {type(source).__name__}: give a path, bytes, a PIL image or an array"
        )
    _check_size(*image.size, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on metadata, on transparent palettes
            return ImageOps.exif_transpose(image).convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # a decoder may fail in any way on hostile bytes
        raise InvalidRequestError(
            f"{where} can't be decoded ({_one_line(error)}): it is truncated or damaged"
        ) from None


def _of_array(values: np.ndarray[Any, Any], where: str) -> Image:
    from PIL import Image

    shape_fits = values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (3, 4))
    if values.dtype != np.uint8 or not shape_fits:
        raise InvalidRequestError(
            f"{where} is an array {list(values.shape)} of {values.dtype}: "
            "[h, w], [h, w, 3] or [h, w, 4] of uint8 is needed"
        )
    _check_size(values.shape[1], values.shape[0], where)
    return Image.fromarray(np.ascontiguousarray(values)).convert("RGB")


def read_path(path: Path, where: str) -> bytes:
    """The bytes of a file. Raises InvalidRequestError."""
    try:
        # Without O_NONBLOCK opening a named pipe would wait for a writer forever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no valid path"
        raise InvalidRequestError(f"{where} {str(path)!r:.200} can't be opened: {reason}") from None
    return read_fd(fd, where)


def read_fd(fd: int, where: str) -> bytes:
    """All of a regular file of bearable size; closes it. Raises InvalidRequestError."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequestError(f"{where} isn't a regular file")
        check_bytes(status.st_size, where)
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES)
    finally:
        os.close(fd)


def check_bytes(size: int, where: str) -> None:
    """Raises InvalidRequestError for a file that is larger than any image should be."""
    if size > MAX_BYTES:
        raise InvalidRequestError(
            f"{where} has {size / 1e6:.0f} MB, at most {MAX_BYTES / 1e6:.0f} MB are read: "
            "make it smaller"
        )


def _open(data: bytes, where: str) -> Image:
    """Reads the header only."""
    from PIL import Image

    check_bytes(len(data), where)
    if not data:
        raise InvalidRequestError(f"{where} is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own limit is lower than the one that warns
            return Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise _too_large(where) from None
    except MemoryError:
        raise
    except Exception:
        raise InvalidRequestError(
            f"{where} is no image that can be read here (PNG, JPEG, WebP, GIF, BMP, TIFF, PPM)"
        ) from None


def _check_size(width: int, height: int, where: str) -> None:
    if width < 1 or height < 1:
        raise InvalidRequestError(f"{where} is {width} x {height} pixels: nothing to see")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise _too_large(where, f"{width} x {height} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidRequestError(
            f"{where} is {width} x {height} pixels: one side may be at most {MAX_RATIO} times the "
            "other"
        )


def _too_large(where: str, size: str = "far too many pixels") -> InvalidRequestError:
    return InvalidRequestError(
        f"{where} has {size}, at most {MAX_PIXELS / 1e6:.0f} million are decoded: make it smaller"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
