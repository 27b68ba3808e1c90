"""A mutating fuzzer for model folders: safetensors headers, the index, and the JSON files beside.

Takes a sound folder, changes one file at random (bytes, or values inside its JSON), and demands
that opening it either works, with all tensor data inside the files, or raises an error of ours with
one line, in less than a second of CPU time.

    python tests/formats/fuzz_safetensors.py --seconds 300 [--seed 0]
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import struct
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.errors import DraftproofError
from draftproof.models import FAMILIES
from draftproof.models.folder_source import FolderSource
from draftproof.models.loader import checked_tensors

PARSE_LIMIT_SECONDS = 1.0
HANG_SECONDS = 60
EXTREMES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 63, 64, 255, 65535, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1),
    *(2**63, 2**64 - 1, 2**64, 10**400, -(2**63), 0.0, -0.0, 1.5, 1e308, -1e308, 1e-320),
    *(
        None,
        True,
        False,
        "",
        "x",
        "\ud800",
        "../x",
        "F32",
        "BF16",
        "a" * 5000,
        [],
        {},
        [[]],
        [0, 0],
    ),
)


@dataclass
class Result:
    accepted: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    messages: set[str] = field(default_factory=set)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value; of a long list or object a few."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys if len(keys) <= 40 else [*keys[:20], *keys[-20:]]:
            found.append((value, key))
            found += places(value[key])
    return found


def mutate_json(text: bytes, rng: random.Random) -> bytes:
    """One to three values replaced, removed, doubled, shifted or swapped."""
    top = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        spots = places(top)
        if not spots:
            break
        holder, key = rng.choice(spots)
        match rng.randrange(6):
            case 0 | 1:
                holder[key] = rng.choice(EXTREMES)
            case 2:
                del holder[key]
            case 3:
                other, other_key = rng.choice(spots)
                try:
                    holder[key] = json.loads(json.dumps(other[other_key]))
                except (KeyError, IndexError):
                    continue
            case 4 if isinstance(holder[key], int):
                holder[key] += rng.choice((-8, -4, -1, 1, 4, 8, 64))
            case _:
                if isinstance(holder, list):
                    holder.append(rng.choice(EXTREMES))
                else:
                    holder[f"{key}{rng.choice(('', '2', chr(0xD800)))}"] = rng.choice(EXTREMES)
    return json.dumps(top, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def mutate_bytes(text: bytes, rng: random.Random) -> bytes:
    out = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out)) if out else 0
        match rng.randrange(5):
            case 0 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at:at] = rng.choice((b"[" * 5000, b"\xff", b"{", b"]", b'"', b"1e999", b"\0"))
            case 2:
                del out[at : at + rng.choice((1, 4, 64))]
            case 3:
                del out[at:]
            case _:
                out[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)))
    return bytes(out)


def mutate(name: str, data: bytes, rng: random.Random) -> bytes:
    """One file of a folder, changed."""
    if not name.endswith(".safetensors"):
        return mutate_json(data, rng) if rng.random() < 0.6 else mutate_bytes(data, rng)
    length = struct.unpack_from("<Q", data)[0]
    header, rest = data[8 : 8 + length], data[8 + length :]
    match rng.randrange(4):
        case 0 | 1:
            header = mutate_json(header, rng)
        case 2:
            header = mutate_bytes(header, rng)
        case _:
            return mutate_bytes(data, rng)
    return struct.pack("<Q", len(header)) + header + rest


def check(folder: Path) -> str:
    """Opens a folder as the loader would: "" if that works, else the message."""
    try:
        with closing(FolderSource(folder)) as source:
            tokenizer = source.tokenizer()
            source.chat_template(tokenizer)
            source.generation_config()
            model = source.config()
            checked_tensors(source, FAMILIES[model.architecture], model)
            for name, info in source.tensors.items():
                view = source.data(name)
                assert memoryview(view).nbytes == info.nbytes
                ends = bytes(memoryview(view).cast("B")[:1]), bytes(memoryview(view).cast("B")[-1:])
                assert all(len(end) <= 1 for end in ends)  # touches both: SIGBUS if unmapped
                del view
                source.release(name)
    except DraftproofError as error:
        message = str(error)
        assert "\n" not in message, f"more than one line: {message}"
        assert len(message) < 1500, f"a long message: {message}"
        return message
    return ""


def fuzz(folder: Path, seed: int, seconds: float) -> Result:
    """Mutate for some time. AssertionError names the seed of the case and leaves its folder."""
    sound = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    assert check(folder) == ""
    result = Result()
    deadline = time.monotonic() + seconds
    case = 0
    while time.monotonic() < deadline:
        rng = random.Random(f"{seed}/{case}")
        name = rng.choice([*sound])
        (folder / name).write_bytes(mutate(name, sound[name], rng))
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        start = time.process_time()
        try:
            message = check(folder)
        except Exception as error:
            raise AssertionError(
                f"case {seed}/{case} ({folder / name}): {type(error).__name__}: {error}"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        spent = time.process_time() - start
        assert spent < PARSE_LIMIT_SECONDS, f"case {seed}/{case} ({name}) took {spent:.2f} s"
        (folder / name).write_bytes(sound[name])
        result.slowest_seconds = max(result.slowest_seconds, spent)
        result.accepted += not message
        result.refused += bool(message)
        result.messages.add(message.split(";")[0][:40])
        case += 1
    return result


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny_folders import write_folder
    from tiny_models import SPECS

    parser = argparse.ArgumentParser(description="Fuzz the reader of model folders.")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="fuzz-folder-"))
    for name in ("qwen3", "llama", "qwen3moe"):
        folder = write_folder(top / name, SPECS[name], shards=2)
        result = fuzz(folder, options.seed, options.seconds / 3)
        print(
            f"{name}: {result.accepted} accepted, {result.refused} refused with"
            f" {len(result.messages)} messages, slowest {result.slowest_seconds:.3f} s",
            flush=True,
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
