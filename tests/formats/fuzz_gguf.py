"""A mutating fuzzer for the GGUF reader.

Takes the header of a sound file, changes it at random (byte flips, length and count fields set to
extreme values, splices, truncation), and demands that opening it either works, with all tensor
data inside the file, or raises ModelFileError with one line, in less than a second of CPU time.

    python tests/formats/fuzz_gguf.py --seconds 300 [--seed 0]
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import ModelFileError
from draftproof.formats import GgufFile

REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PARSE_LIMIT_SECONDS = 1.0
HANG_SECONDS = 60

EXTREMES = (
    *(0, 1, 2, 3, 5, 7, 8, 9, 13, 31, 32, 33, 63, 64, 255, 256),
    *(2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 32, 2**32 - 1, 2**32),
    *(2**58, 2**59, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1),
)


@dataclass
class Result:
    accepted: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0


def real_header(path: Path) -> tuple[bytes, int]:
    """The header of a real file (up to its first tensor's data) and the size of the file."""
    with GgufFile.open(path) as file, path.open("rb") as raw:
        end = min(info.offset for info in file.tensors.values())
        return raw.read(end), path.stat().st_size


def field_offsets(header: bytes) -> list[int]:
    """Offsets of likely length, count, type and dimension fields.

    The strings are found as a u64 length before that many printable bytes; the fields of a record
    lie before and behind its name. Long runs of strings are vocabularies: a few of them suffice.
    """
    found = [4, 8, 16]
    pos, run = 24, 0
    while pos + 8 < len(header):
        length = struct.unpack_from("<Q", header, pos)[0]
        text = header[pos + 8 : pos + 8 + length] if 0 < length < 1024 else b""
        if length and len(text) == length and all(byte >= 32 for byte in text):
            run += 1
            if run < 8:
                found.append(pos)
                found.extend(pos + 8 + length + step for step in range(0, 48, 4))
            pos += 8 + length
        else:
            run = 0
            pos += 1
    return [offset for offset in found if offset + 8 <= len(header)]


def mutate(header: bytes, size: int, fields: list[int], rng: random.Random) -> bytes:
    """One to four random changes."""
    out = bytearray(header)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if len(out) < 32:
            break
        at = rng.choice(fields) if rng.random() < 0.7 else rng.randrange(len(out))
        at = min(at, len(out) - 8)
        match rng.randrange(7):
            case 0:
                out[at + rng.randrange(8)] ^= 1 << rng.randrange(8)
            case 1:
                out[at + rng.randrange(8)] = rng.randrange(256)
            case 2:
                values = (*EXTREMES, size, size - at, size - at - 8, size + 1, len(out))
                out[at : at + 8] = struct.pack("<Q", rng.choice(values) % 2**64)
            case 3:
                out[at : at + 4] = struct.pack("<I", rng.choice(EXTREMES) % 2**32)
            case 4:  # a piece of the header over another, same length
                source = rng.choice(fields)
                piece = bytes(out[source : source + rng.choice((4, 8, 16, 64, 256))])
                out[at : at + len(piece)] = piece
            case 5:  # inserted or removed bytes move everything behind
                count = rng.choice((1, 4, 8, 32))
                if rng.random() < 0.5:
                    del out[at : at + count]
                else:
                    out[at:at] = rng.randbytes(count)
            case _:
                # Small steps keep the file nearly consistent and reach deeper checks.
                value = struct.unpack_from("<Q", out, at)[0]
                struct.pack_into("<Q", out, at, (value + rng.choice((-1, 1, 8, 32))) % 2**64)
    return bytes(out)


def check_message(message: str) -> None:
    assert "\n" not in message, f"more than one line: {message}"
    assert len(message) < 1500, f"a long message: {message}"


def check_getters(file: GgufFile, key: str) -> None:
    """Each typed getter gives a value or refuses with a proper message."""
    getters: tuple[Callable[[], object], ...] = (
        lambda: file.int_value(key, 0, 100),
        lambda: file.float_value(key, 0.0, 1.0),
        lambda: file.bool_value(key),
        lambda: file.str_value(key),
        lambda: file.str_list(key),
        lambda: file.int_list(key, 0, 100),
    )
    for get in getters:
        try:
            get()
        except ModelFileError as error:  # noqa: PERF203
            check_message(str(error))


def check(path: Path) -> bool:
    """Open a mutated file as a loader would. True: accepted. AssertionError: a defect."""
    size = path.stat().st_size
    try:
        with GgufFile.open(path) as file:
            for key in file.metadata:
                check_getters(file, key)
            last = 0
            for info in sorted(file.tensors.values(), key=lambda info: info.offset):
                assert last <= info.offset
                last = info.offset + info.nbytes
                assert last <= size
                view = file.data(info.name)
                assert len(view) == info.nbytes > 0
                assert 0 <= view[0] + view[-1] < 512  # touches both ends: SIGBUS if unmapped
                file.release(info.name)
    except ModelFileError as error:
        check_message(str(error))
        return False
    return True


def fuzz(header: bytes, size: int, folder: Path, seed: int, seconds: float) -> Result:
    """Mutate for some time. AssertionError names the seed of the case and leaves its file."""
    fields = field_offsets(header)
    path = folder / "fuzzed.gguf"
    result = Result()
    deadline = time.monotonic() + seconds
    case = 0
    while time.monotonic() < deadline:
        rng = random.Random(f"{seed}/{case}")
        data = mutate(header, size, fields, rng)
        path.write_bytes(data)
        length = size
        if rng.random() < 0.1:  # truncation: in the header or in the (sparse) tensor data
            length = rng.randrange(len(data) if rng.random() < 0.5 else size)
        os.truncate(path, length)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        start = time.process_time()
        try:
            accepted = check(path)
        except Exception as error:
            raise AssertionError(
                f"case {seed}/{case} ({path}): {type(error).__name__}: {error}"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        spent = time.process_time() - start
        assert spent < PARSE_LIMIT_SECONDS, f"case {seed}/{case} ({path}) took {spent:.2f} s"
        result.slowest_seconds = max(result.slowest_seconds, spent)
        if accepted:
            result.accepted += 1
        else:
            result.refused += 1
        case += 1
    return result


def main() -> int:
    from gguf_builder import small_model
    from model_cache import cached_model

    parser = argparse.ArgumentParser(description="Fuzz the GGUF reader with mutated headers.")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    small = small_model()
    sources = {"small file": (small.header(), len(small.build()))}
    if path := cached_model(REAL_MODEL):
        sources[REAL_MODEL] = real_header(path)
    else:
        print(f"{REAL_MODEL} is not in the cache: only the small file is mutated")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-gguf-"))
    for name, (header, size) in sources.items():
        seconds = options.seconds / len(sources)
        result = fuzz(header, size, folder, options.seed, seconds)
        print(
            f"{name}: {result.accepted} accepted, {result.refused} refused,"
            f" slowest {result.slowest_seconds:.3f} s",
            flush=True,
        )
    (folder / "fuzzed.gguf").unlink(missing_ok=True)
    folder.rmdir()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
