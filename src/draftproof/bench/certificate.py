"""The certificate of exactness: what was compared with plain decoding, and what came out.

Owns the comparison of two answers, the verdict, and the file. Runs nothing (that is `proof`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidRequestError
from draftproof.outputs import LogitsRow

FORMAT = 1
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Question:
    """One request of a proof, in token ids, so that it is the same request everywhere."""

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """What must not depend on how it was computed. rows: the logits behind every token."""

    token_ids: tuple[int, ...]
    rows: tuple[LogitsRow, ...]
    logits_sha256: str
    kv_sha256: str
    kv_length: int


@dataclass(frozen=True)
class Difference:
    """The first place where an answer isn't that of plain decoding. kind: "logits", "token", "end"
    (one answer is longer) or "kv". position: of the output token, from 0. plain_top, other_top: the
    five highest logits there, as (token id, logit); empty where there is no such row."""

    axis: str
    setting: str
    question: str
    kind: str
    position: int
    plain_top: tuple[tuple[int, float], ...] = ()
    other_top: tuple[tuple[int, float], ...] = ()

    def lines(self) -> list[str]:
        """For people."""
        found = [
            f"{self.question}: {self.kind} at output position {self.position} differs from plain "
            f"decoding; axis: {self.axis}, {self.setting}"
        ]
        for name, top in (("plain", self.plain_top), ("other", self.other_top)):
            shown = "  ".join(f"{token}: {logit:.9g}" for token, logit in top)
            found.append(f"  {name}: {shown or 'no such position'}")
        return found


@dataclass(frozen=True)
class Line:
    """One setting compared. tokens: compared with plain decoding, bit by bit. evidence: what shows
    that the setting was in force (rows of steps shared, prompt steps, tokens from the cache)."""

    axis: str
    setting: str
    tokens: int
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    evidence: str = ""


@dataclass(frozen=True)
class Certificate:
    """model: name and sha256 of the file. engine: versions and numeric settings. machine: CPU and
    rows of the dispatch table. plain: where plain decoding ran. lines: in the order of the runs;
    they end at the first difference. missing: what keeps this from being a proof."""

    model: dict[str, Any]
    engine: dict[str, Any]
    machine: dict[str, Any]
    plain: dict[str, Any]
    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    lines: tuple[Line, ...]
    missing: tuple[str, ...] = ()
    difference: Difference | None = None

    @property
    def holds(self) -> bool:
        return self.difference is None and not self.missing

    @property
    def digest(self) -> str:
        """sha256 over model, arithmetic, numeric settings, questions and answers: equal digests on
        two machines mean the same bits. The machine and the lines aren't in it."""
        answered = [
            [
                *(list(q.prompt_ids), q.max_tokens, q.temperature, q.seed),
                *(list(a.token_ids), a.logits_sha256, a.kv_sha256, a.kv_length),
            ]
            for q, a in zip(self.questions, self.answers, strict=True)
        ]
        engine = [self.engine["arithmetic_version"], self.engine["kv_type"]]
        text = json.dumps([self.model["sha256"], engine, answered], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def total(self, name: str) -> int:
        """Sum of "tokens", "drafted", "accepted" or "rejected" over all lines."""
        return sum(getattr(line, name) for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "certificate": FORMAT,
            "holds": self.holds,
            "digest": self.digest,
            "tokens": self.total("tokens"),
            "drafted": self.total("drafted"),
            "accepted": self.total("accepted"),
            "rejected": self.total("rejected"),
            **asdict(self),
        }


def compare(
    axis: str, setting: str, question: str, plain: Answer, other: Answer, *, whole: bool = True
) -> Difference | None:
    """The first difference, None if there is none. whole: `other` was asked for as many tokens as
    `plain`; else it must be its beginning."""

    def found(kind: str, position: int) -> Difference:
        return Difference(
            axis, setting, question, kind, position, _top(plain, position), _top(other, position)
        )

    for i, (a, b) in enumerate(zip(plain.rows, other.rows, strict=False)):
        if a != b:
            return found("logits", i)
        if plain.token_ids[i] != other.token_ids[i]:
            return found("token", i)
    if len(other.token_ids) != len(plain.token_ids):
        if whole or len(other.token_ids) > len(plain.token_ids):
            return found("end", min(len(plain.token_ids), len(other.token_ids)))
        return None
    if plain.logits_sha256 != other.logits_sha256:
        return found("logits", len(plain.rows))
    if (plain.kv_sha256, plain.kv_length) != (other.kv_sha256, other.kv_length):
        return found("kv", len(plain.rows))
    return None


def _top(answer: Answer, position: int) -> tuple[tuple[int, float], ...]:
    return answer.rows[position].top if position < len(answer.rows) else ()


def load(path: Path) -> Certificate:
    """Reads a certificate of any machine. InvalidRequestError: it can't be read, isn't one, was
    changed, or doesn't hold."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError
        value = json.loads(path.read_text("utf-8"))
        if value["certificate"] != FORMAT:
            raise InvalidRequestError(
                f"{path} is a certificate of format {value['certificate']!r:.20}; this version "
                f"reads format {FORMAT}: use the version of Draftproof that wrote it"
            )
        certificate = _parse(value)
        if certificate.digest != value["digest"]:
            raise InvalidRequestError(
                f"{path} was changed after it was written: its digest isn't that of its answers"
            )
    except OSError as error:
        raise InvalidRequestError(
            f"the certificate {path} can't be read: {error.strerror or error}"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InvalidRequestError(
            f"{path} isn't a certificate, or a broken one: it should be the JSON file that "
            "`draftproof prove` wrote"
        ) from None
    if not certificate.holds or value["holds"] is not True:
        raise InvalidRequestError(f"{path} records a proof that failed: there is nothing to check")
    return certificate


def _parse(value: dict[str, Any]) -> Certificate:
    """ValueError, TypeError or KeyError where a part is missing or of the wrong kind."""
    questions = tuple(
        Question(
            str(q["id"]),
            _ids(q["prompt_ids"]),
            _int(q["max_tokens"]),
            float(q["temperature"]),
            _int(q["seed"]),
        )
        for q in value["questions"]
    )
    answers = tuple(
        Answer(
            _ids(a["token_ids"]),
            tuple(LogitsRow(str(row["sha256"]), _pairs(row["top"])) for row in a["rows"]),
            str(a["logits_sha256"]),
            str(a["kv_sha256"]),
            _int(a["kv_length"]),
        )
        for a in value["answers"]
    )
    if not questions or len(questions) != len(answers):
        raise ValueError
    if any(len(a.rows) != len(a.token_ids) for a in answers):
        raise ValueError
    return Certificate(
        model={"name": str(value["model"]["name"]), "sha256": str(value["model"]["sha256"])},
        engine={
            "version": str(value["engine"]["version"]),
            "arithmetic_version": _int(value["engine"]["arithmetic_version"]),
            "kv_type": str(value["engine"]["kv_type"]),
            "system_fingerprint": str(value["engine"]["system_fingerprint"]),
        },
        machine=dict(value["machine"]),
        plain=dict(value["plain"]),
        questions=questions,
        answers=answers,
        lines=tuple(Line(**line) for line in value["lines"]),
        missing=tuple(map(str, value["missing"])),
        difference=None if value["difference"] is None else Difference(**value["difference"]),
    )


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _ids(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_int, values))


def _pairs(values: Sequence[Any]) -> tuple[tuple[int, float], ...]:
    return tuple((_int(token), float(logit)) for token, logit in values)
