"""The .safetensors files of a model folder: one, or those that an index names.

Owns which files belong to a folder and that together they hold every tensor once.
"""

from __future__ import annotations

from pathlib import Path

from draftproof.errors import ModelFileError, ModelNotFoundError
from draftproof.formats.json_file import JsonFile
from draftproof.formats.mapped_file import file_label
from draftproof.formats.safetensors import SafetensorsFile

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 1024


def shard_names(folder: Path) -> list[str]:
    """Names of the folder's weight files. Raises ModelFileError, ModelNotFoundError."""
    if (folder / SINGLE).exists():
        return [SINGLE]
    if not (folder / INDEX).exists():
        raise ModelNotFoundError(f"{file_label(folder)}: {_what_is_there(folder)}")
    return sorted(set(_weight_map(folder).values()))


def open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> the open file that holds it. Close every file.

    Raises ModelNotFoundError (no weights, or a file of the index is missing) and ModelFileError (a
    damaged file, or the files don't hold what the index says).
    """
    names = shard_names(folder)
    by_index = {} if names == [SINGLE] else _weight_map(folder)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ModelNotFoundError(
            f"{file_label(folder)}: {len(missing)} of {len(names)} weight files are missing"
            f" ({missing[0]}), the download isn't complete; download them"
        )
    holder: dict[str, SafetensorsFile] = {}
    opened: list[SafetensorsFile] = []
    try:
        for name in names:
            file = SafetensorsFile.open(folder / name)
            opened.append(file)
            for tensor in file.tensors:
                if tensor in holder:
                    raise ModelFileError(
                        f"{name}: the tensor {tensor[:80]!r} is in {holder[tensor].path.name} too;"
                        " get the folder anew"
                    )
                holder[tensor] = file
        for tensor, name in by_index.items():
            if tensor not in holder or holder[tensor].path.name != name:
                raise ModelFileError(
                    f"{name}: has no tensor {tensor[:80]!r}, which {INDEX} says it has; download"
                    " it again"
                )
    except BaseException:
        for file in opened:
            file.close()
        raise
    return holder


def _weight_map(folder: Path) -> dict[str, str]:
    index = JsonFile.read(folder / INDEX)
    part = index.part("weight_map")
    if part is None or not part.values:
        raise index.error("weight_map", "is missing or empty")
    for tensor, name in part.values.items():
        # A plain name: an index can't reach out of its folder.
        plain = isinstance(name, str) and Path(name).name == name and name.isprintable()
        if (
            not plain
            or len(name.encode()) > 255
            or "\\" in name
            or not name.endswith(".safetensors")
        ):
            raise part.error(tensor[:80], "doesn't name a .safetensors file in this folder")
    if len(set(part.values.values())) > MAX_SHARDS:
        raise index.error("weight_map", f"names more than {MAX_SHARDS} files")
    return dict(part.values)


def _what_is_there(folder: Path) -> str:
    if any(folder.glob("*.gguf")):
        return "holds no .safetensors model; give the .gguf file in it"
    if any(folder.glob("pytorch_model*.bin")):
        return "holds pickled weights only, which can run code; get the model as .safetensors"
    return f"has neither {SINGLE} nor {INDEX}; the download isn't complete, start it again"
