"""Messages with pictures -> messages with placeholders, and the pictures' features.

Owns which message parts are pictures, how many a request may have, and the features of pictures
that were read before. Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import InvalidRequestError
from draftproof.models.vision_tower import VisionTower
from draftproof.vision.images import read_image
from draftproof.vision.media import MediaLoader, MediaPolicy
from draftproof.vision.preprocess import Grid, Picture, frame_groups, picture
from draftproof.vision.prompt import Placed, ReadPrompt, VisionPrompt, expand, lay_out

if TYPE_CHECKING:
    from PIL.Image import Image

Message = Mapping[str, Any]
Progress = Callable[[str, int, "int | None"], None]
"""(what is being read, operations done, operations in all)"""

MAX_PICTURES = 128  # images and pairs of frames of one request
MAX_PIXELS = 128_000_000  # of all pictures of a request, resized
CACHED_BYTES = 256 << 20
PLACEHOLDERS = ("<|image_pad|>", "<|video_pad|>")
DEFAULT_FPS = 24.0


def has_pictures(messages: Sequence[Message]) -> bool:
    """Whether any message has a part that is no text."""
    return any(_kind(part) for message in messages for part in _parts(message))


class PictureReader:
    """tower: what turns pictures into features. token_ids: control tokens of the model."""

    def __init__(
        self,
        tower: VisionTower,
        min_tokens: int,
        max_tokens: int,
        token_ids: Mapping[str, int],
        media: MediaPolicy | None = None,
    ) -> None:
        config = tower.config
        self._tower = tower
        self._grid = Grid(config.patch_size, config.merge_size, min_tokens, max_tokens)
        self._placeholders = {token_ids[name] for name in PLACEHOLDERS if name in token_ids}
        self._media = MediaLoader(media)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()

    def take(self, messages: Sequence[Message]) -> tuple[list[Message], list[Picture]]:
        """The messages with bare placeholders for pictures, and the pictures, read and resized.

        Raises InvalidRequestError that names the message and the part.
        """
        pictures: list[Picture] = []
        cleaned: list[Message] = []
        for i, message in enumerate(messages):
            parts = []
            for j, part in enumerate(_parts(message)):
                parts += self._read(part, f"messages[{i}].content[{j}]", pictures)
                if len(pictures) > MAX_PICTURES:
                    raise InvalidRequestError(
                        f"more than {MAX_PICTURES} images: ask with fewer of them"
                    )
                if sum(p.pixels.size // 3 for p in pictures) > MAX_PIXELS:
                    raise InvalidRequestError(
                        "the images have too many pixels together: ask with fewer of them"
                    )
            cleaned.append({**message, "content": parts} if parts else message)
        return cleaned, pictures

    def place(self, ids: Sequence[int], pictures: Sequence[Picture]) -> ReadPrompt:
        """The prompt's ids with every placeholder repeated. Raises InvalidRequestError."""
        merge = self._grid.merge_size
        sizes = [(p.rows // merge, p.columns // merge) for p in pictures]
        expanded, begins = expand(ids, self._placeholders, sizes)
        return ReadPrompt(expanded, pictures, begins)

    def encode(self, prompt: ReadPrompt, progress: Progress | None = None) -> VisionPrompt:
        """Plays the tower for every picture that isn't known yet."""
        merge = self._grid.merge_size
        placed, features = [], []
        for i, (shown, first) in enumerate(zip(prompt.pictures, prompt.begins, strict=True)):
            what = f"reading image {i + 1} of {len(prompt.pictures)}"
            content = shown.content
            features.append(self._features(shown, content, what, progress))
            placed.append(Placed(first, shown.rows // merge, shown.columns // merge, content))
        return lay_out(len(prompt), placed, np.concatenate(features))

    def _features(
        self, shown: Picture, content: bytes, what: str, progress: Progress | None
    ) -> NDArray[np.float32]:
        with self._lock:
            known = self._known.get(content)
            if known is not None:
                self._known.move_to_end(content)
                return known
            tower, config = self._tower, self._tower.config
            vectors = tower.vectors(shown.rows * shown.columns)
            shown.write_patches(vectors[:, : config.patch_values], config.mean, config.std)
            report = None if progress is None else lambda at, all_: progress(what, at, all_)
            features = tower.encode(vectors, shown.rows, shown.columns, report)
            features.setflags(write=False)
            self._known[content] = features
            while len(self._known) > 1 and self._held_bytes > CACHED_BYTES:
                self._known.popitem(last=False)
            return features

    @property
    def _held_bytes(self) -> int:
        return sum(features.nbytes for features in self._known.values())

    def _read(self, part: Any, where: str, pictures: list[Picture]) -> list[Any]:
        """Appends the part's pictures; what the chat template gets in place of it."""
        kind = _kind(part)
        if kind == "":
            return [{"type": "text", "text": part} if isinstance(part, str) else part]
        if kind in ("image", "image_url"):
            pictures.append(picture(self._image(part.get(kind), where), self._grid))
            return [{"type": "image"}]
        if kind == "video":
            return self._read_video(part, where, pictures)
        raise InvalidRequestError(f"{where} is of type {kind}: text and images are read here")

    def _image(self, source: Any, where: str) -> Image:
        """What an image part holds: a URL, {"url": ...}, or anything that `read_image` takes."""
        if isinstance(source, Mapping):
            source = source.get("url")
        if isinstance(source, (str, os.PathLike)):
            source = self._media.load(source, where)
        return read_image(source, where)

    def _read_video(
        self, part: Mapping[str, Any], where: str, pictures: list[Picture]
    ) -> list[Any]:
        """Every pair of frames behind its time, as the model's own processor has it."""
        frames, fps = part.get("video"), part.get("fps") or DEFAULT_FPS
        if not isinstance(frames, (list, tuple)) or not isinstance(fps, (int, float)) or fps <= 0:
            raise InvalidRequestError(f"{where}: a video is a list of frames, with fps above 0")
        if len(frames) < 2:
            raise InvalidRequestError(f"{where}: a video needs at least 2 frames")
        if len(frames) > 2 * MAX_PICTURES:
            raise InvalidRequestError(f"{where} has {len(frames)} frames: show fewer of them")
        images = [self._image(frame, f"{where}.video[{n}]") for n, frame in enumerate(frames)]
        indices = part.get("frame_indices") or range(len(frames))
        if len(indices) != len(frames) or not all(isinstance(n, int) and n >= 0 for n in indices):
            raise InvalidRequestError(f"{where}: frame_indices must be one number per frame")
        indices = [*indices, *([indices[-1]] * (len(indices) % 2))]
        if len({image.size for image in images}) > 1:
            raise InvalidRequestError(f"{where}: the frames of a video must have one size")
        groups = frame_groups(images, self._grid)
        parts: list[Any] = []
        for n, group in enumerate(groups):
            time = (indices[2 * n] / fps + indices[2 * n + 1] / fps) / 2
            parts += [{"type": "text", "text": f"<{time:.1f} seconds>"}, {"type": "video"}]
            pictures.append(group)
        return parts


def _parts(message: Message) -> Sequence[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, (list, tuple)) else ()


def _kind(part: Any) -> str:
    """image, image_url, video, or another type of media; "" for text and for what is no part."""
    if not isinstance(part, Mapping):
        return ""
    for kind in ("image", "image_url", "video", "video_url", "audio", "input_audio"):
        if kind in part:
            return kind
    kind = part.get("type", "text")
    return "" if kind == "text" or not isinstance(kind, str) else kind
