"""An mmproj file into a tower that is ready to encode images.

Owns the order of loading, the tower's player and its scratch memory. Features are exact: those of
an image depend on its pixels and on the file alone, never on threads, instruction set or other
images.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftproof import _native
from draftproof.config import EngineConfig
from draftproof.errors import ModelFileError, OutOfMemoryError
from draftproof.formats import GGML_TYPES, GgufFile, dequantize
from draftproof.models import qwen3vl_vision
from draftproof.models.config import ModelConfig
from draftproof.models.memory import available_bytes
from draftproof.models.program import ProgramBuilder
from draftproof.models.qwen3vl_vision import VisionConfig
from draftproof.models.source_digest import file_digest

MAX_PATCHES = 65536  # rows of one pass
F32 = 0
PATCH, TABLE = "v.patch_embd.weight", "v.position_embd.weight"


class VisionTower:
    """config: the tower's sizes. digest: of the file, so that features can be told apart.

    Safe from any thread: one image at a time.
    """

    def __init__(
        self,
        config: VisionConfig,
        digest: str,
        weights: _native.Weights,
        ids: dict[str, tuple[int, int]],
        positions: NDArray[np.float32],
        engine: EngineConfig,
        isa: str,
    ) -> None:
        """positions [table_side^2, hidden_size]: the learned table."""
        self.config = config
        self.digest = digest
        self._table = positions
        self._lock = threading.Lock()
        page = _native.KvCache.page_positions
        self._kv = _native.KvCache(
            1, config.num_heads, config.head_dim, "f32", -(-MAX_PATCHES // page)
        )
        self._pages = np.arange(MAX_PATCHES // page, dtype=np.int32)
        turns, axes = qwen3vl_vision.rotary(config)
        builder = ProgramBuilder(
            weights,
            self._kv,
            ids,
            hidden_size=config.hidden_size,
            head_dim=config.head_dim,
            eps=config.layer_norm_eps,
            turns=turns,
            axes=axes,
        )
        self._features = [builder.buffer(name) for name in qwen3vl_vision.record(builder, config)]
        # Memory for the largest image is reserved, and touched as far as an image needs it.
        self._player = _native.Player(
            builder.program,
            MAX_PATCHES,
            MAX_PATCHES // config.patches_per_token,
            engine.threads,
            isa,
        )

    def vectors(self, patches: int) -> NDArray[np.float32]:
        """An array for `encode`, whose first patch_values columns are to be filled with pixels."""
        width = self.config.patch_values + self.config.hidden_size
        return np.empty((patches, width), np.float32)

    def encode(
        self,
        vectors: NDArray[np.float32],
        rows: int,
        columns: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Features [rows * columns / patches_per_token, feature_width] of one image or one group of
        frames.

        vectors [rows * columns, patch_values + hidden_size]: pixels, squares of merge_size one
        behind the other; the columns behind the pixels are filled in here.
        progress: is told some times a second, by a thread, (operations begun, operations).
        Raises ModelFileError if the weights give values that are not finite.
        """
        config = self.config
        count = rows * columns
        place = grid_places(rows, columns, config.merge_size)
        indices, mix = table_mix(place, rows, columns, config.table_side)
        _native.mix_rows(self._table, indices, mix, vectors, config.patch_values)
        positions = np.zeros((count, 3), np.int32)
        positions[:, 1:] = place
        marked = np.arange(
            config.patches_per_token - 1, count, config.patches_per_token, dtype=np.int32
        )
        with self._lock, self._reported(progress):
            flags = self._player.forward(
                -1 - np.arange(count, dtype=np.int32),
                positions,
                np.array([[count, 0, 0]], np.int32),
                self._pages,
                marked,
                vectors,
            )
            features = np.concatenate([self._player.values(b) for b in self._features], axis=1)
        if flags.any() or not np.isfinite(features).all():
            raise ModelFileError(
                "the vision tower gives values that are not finite: the mmproj file is damaged"
            )
        return features

    @contextmanager
    def _reported(self, progress: Callable[[int, int], None] | None) -> Iterator[None]:
        if progress is None:
            yield
            return
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                progress(self._player.begun_ops, self._player.num_ops)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def grid_places(rows: int, columns: int, merge: int) -> NDArray[np.int32]:
    """(row, column) of every patch [rows * columns, 2]: squares of `merge` in raster order, patches
    in raster order inside."""
    place = np.indices((rows, columns), dtype=np.int32).reshape(
        2, rows // merge, merge, columns // merge, merge
    )
    return np.ascontiguousarray(place.transpose(1, 3, 2, 4, 0)).reshape(-1, 2)


def table_mix(
    place: NDArray[np.int32], rows: int, columns: int, side: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Which four rows of the table make up each patch's position, and their weights [n, 4]:
    bilinear, the grid's corners on the table's."""

    def along(index: NDArray[np.int32], size: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        at = index.astype(np.float64) * (side - 1) / max(size - 1, 1)
        low = np.floor(at).astype(np.int32)
        return low, (at - low).astype(np.float32)

    y, ay = along(place[:, 0], rows)
    x, ax = along(place[:, 1], columns)
    below, right = np.minimum(y + 1, side - 1), np.minimum(x + 1, side - 1)
    indices = np.stack([y * side + x, y * side + right, below * side + x, below * side + right], 1)
    by, bx = 1 - ay, 1 - ax
    weights = np.stack([by * bx, by * ax, ay * bx, ay * ax], 1)
    return np.ascontiguousarray(indices, np.int32), np.ascontiguousarray(weights, np.float32)


def load_tower(path: Path, text: ModelConfig, engine: EngineConfig, isa: str) -> VisionTower:
    """Loads the mmproj file at `path` for a text model.

    Raises ModelFileError (broken, another projector, made for another model) and OutOfMemoryError.
    """
    with GgufFile.open(path) as file:
        config = VisionConfig.from_gguf(file)
        _check_fit(file, config, text)
        tensors = _checked(file, config)
        packed = _packed_size(file, config, tensors)
        have = available_bytes()
        if have is not None and have < packed:
            raise OutOfMemoryError(
                f"{path.name} needs {packed / 1e9:.2f} GB, {have / 1e9:.2f} GB are free: use a "
                "smaller mmproj file or a lower --ctx"
            )
        try:
            weights = _native.Weights(packed, engine.threads)
            ids = _pack(file, config, tensors, weights)
        except MemoryError:
            raise OutOfMemoryError(
                f"{path.name}: no memory left for the vision tower: use a smaller mmproj file"
            ) from None
        positions = _floats(file, TABLE)
    return VisionTower(config, file_digest(path), weights, ids, positions, engine, isa)


def _check_fit(file: GgufFile, vision: VisionConfig, text: ModelConfig) -> None:
    hint = "give the mmproj file that was made with this model"
    if vision.output_size != text.hidden_size:
        raise file.error(
            f"belongs to another model: features of {vision.output_size} values, "
            f"{text.name} reads {text.hidden_size}",
            hint,
        )
    if len(vision.deepstack_layers) != text.deepstack_layers:
        raise file.error(
            f"belongs to another model: {len(vision.deepstack_layers)} DeepStack features, "
            f"{text.name} reads {text.deepstack_layers}",
            hint,
        )


def _checked(file: GgufFile, config: VisionConfig) -> Sequence[str]:
    """The names of exactly the tensors that the sizes call for."""
    expected = qwen3vl_vision.shapes(config)
    for name, shape in expected.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            raise file.error(f"the tensor {name} is missing")
        if tensor.shape != shape:
            raise file.error(f"{name} has the shape {tensor.shape}, {shape} is needed")
        if len(shape) == 1 and tensor.ggml_type != F32:
            raise file.error(f"{name} is {GGML_TYPES[tensor.ggml_type].name}, F32 is needed")
    for name in file.tensors:
        if name not in expected:
            raise file.error(
                f"{name} is no tensor of a {qwen3vl_vision.PROJECTOR} as it is known here",
                "a newer converter may have written it: use an older file, or report it",
            )
    return [name for name in file.tensors if name in expected]


def _packed_size(file: GgufFile, config: VisionConfig, names: Sequence[str]) -> int:
    """Bytes of all linear weights."""
    size = _native.Weights.packed_size
    total = size(F32, config.hidden_size, config.patch_values)
    for name in names:
        tensor = file.tensors[name]
        if len(tensor.shape) == 2 and name != TABLE:
            parts = _parts(name)
            rows = tensor.shape[0] // len(parts)
            total += len(parts) * size(tensor.ggml_type, rows, tensor.shape[1])
    return total


def _parts(name: str) -> list[str]:
    """A tensor as the program knows it: q, k and v lie in one, and are used apart."""
    if ".attn_qkv." in name:
        return [name.replace("attn_qkv", f"attn_{x}") for x in "qkv"]
    return [name]


def _pack(
    file: GgufFile, config: VisionConfig, tensors: Sequence[str], weights: _native.Weights
) -> dict[str, tuple[int, int]]:
    ids: dict[str, tuple[int, int]] = {}
    try:
        # Frames of a patch lie inside a colour: [output, colour, frame, row, column].
        kernels = [_floats(file, PATCH), _floats(file, PATCH + ".1")]
        patch = np.ascontiguousarray(np.stack(kernels, axis=2))
        shape = (config.hidden_size, config.patch_values)
        ids[PATCH] = (weights.add_linear(PATCH, F32, patch, *shape), shape[0])
        for name in tensors:
            tensor = file.tensors[name]
            if name.startswith(PATCH) or name == TABLE:
                continue
            data = file.data(name)
            parts = _parts(name)
            out, size = tensor.shape[0] // len(parts), tensor.nbytes // len(parts)
            for i, part in enumerate(parts):
                piece = data[i * size : (i + 1) * size]
                if len(tensor.shape) == 1:
                    id_ = weights.add_vector(part, np.frombuffer(piece, np.float32))
                else:
                    id_ = weights.add_linear(part, tensor.ggml_type, piece, out, tensor.shape[1])
                ids[part] = (id_, out)
                piece.release()
            data.release()
            file.release(name)
    except ValueError as error:
        raise file.error(str(error)) from None
    return ids


def _floats(file: GgufFile, name: str) -> NDArray[np.float32]:
    tensor = file.tensors[name]
    data = file.data(name)
    values = np.array(dequantize(tensor.ggml_type, data, tensor.shape), np.float32)
    data.release()
    if not np.isfinite(values).all():
        raise file.error(f"the tensor {name} has a value that is not finite")
    return values
