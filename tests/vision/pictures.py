"""Thirty pictures of all kinds, made here: sizes, modes, formats, orientations."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

SIZES = [  # width, height
    (640, 480), (480, 640), (100, 100), (224, 224), (16, 16), (1000, 336), (80, 48), (272, 240),
    (33, 31), (1, 1), (3, 500), (500, 3), (1023, 1025), (64, 64), (47, 48), (320, 1000),
]  # fmt: skip
MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F", "PA"]


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with noise on them."""
    rng = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 / max(width, 1), y * 255 / max(height, 1), (x + y) % 256], 2)
    return Image.fromarray((base * 0.7 + rng.integers(0, 77, base.shape)).astype(np.uint8))


def of_mode(mode: str) -> Image.Image:
    picture = noise(90, 70, 3)
    if mode in ("I;16", "I", "F"):
        values = np.asarray(picture.convert("L"))
        return Image.fromarray(
            values.astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]) * 3
        )
    if mode in ("LA", "RGBA", "PA"):
        alpha = Image.fromarray(np.linspace(0, 255, 90 * 70).reshape(70, 90).astype(np.uint8))
        picture.putalpha(alpha)
    return picture.convert(mode)


def encoded(picture: Image.Image, format_: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, format_, **options)
    return out.getvalue()


def turned(orientation: int) -> bytes:
    """A JPEG with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(noise(120, 60, 5), "JPEG", exif=exif)


def thirty() -> dict[str, Any]:
    """Name -> a PIL image or the bytes of a file."""
    out: dict[str, Any] = {
        f"{w}x{h}": noise(w, h) for w, h in SIZES if max(w, h) <= 200 * min(w, h)
    }
    out |= {f"mode {mode}": of_mode(mode) for mode in MODES}
    out |= {f"orientation {n}": turned(n) for n in (3, 6, 8)}
    frames = [noise(60, 40, n) for n in range(3)]
    out["animated gif"] = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    out["webp"] = encoded(of_mode("RGBA"), "WEBP", lossless=True)
    out["bmp"] = encoded(noise(75, 75), "BMP")
    return out
