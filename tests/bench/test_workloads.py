"""Reading prompts: what is accepted, and what is said about what isn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.bench.builtin import BUILT_IN
from draftproof.bench.workloads import load_workloads, sample
from draftproof.errors import InvalidRequestError

GOOD = (
    '{"id": "a", "kind": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}'
)


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f'\ufeff{GOOD}\n\n{{"prompt": "Once upon", "source": "x"}}\n', "utf-8")
    workloads, complaints = load_workloads([path])
    assert complaints == []
    first, second = workloads
    assert (first.id, first.kind, first.max_tokens) == ("a", "chat", 9)
    assert first.prompt == ({"role": "user", "content": "hi"},)
    assert (second.id, second.kind) == ("mine.jsonl:3", "mine")
    assert (second.prompt, second.max_tokens) == ("Once upon", 256)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"id": "x"}', "messages (or prompt) is missing"),
        ('{"prompt": "p", "messages": []}', "exclude each other"),
        ('{"prompt": ""}', "prompt must be"),
        ('{"messages": []}', "messages must be a list"),
        ('{"messages": ["hi"]}', "messages[0]"),
        ('{"messages": [{"role": "user"}]}', "messages[0] has no text in content"),
        ('{"messages": [{"role": 1, "content": "x"}]}', "messages[0] has no text in role"),
        ('{"prompt": "p", "max_tokens": 0}', "max_tokens"),
        ('{"prompt": "p", "max_tokens": true}', "max_tokens"),
        ('{"prompt": "p", "max_tokens": 1.5}', "max_tokens"),
        ('{"prompt": "p", "id": 7}', "id must be"),
        ('{"prompt": "p", "kind": ""}', "kind must be"),
        ('{"prompt": "p", "id": "a"}', "already that of"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_kept(line: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(f'{GOOD}\n{line}\n{{"prompt": "last"}}\n', "utf-8")
    workloads, (complaint,) = load_workloads([path])
    assert complaint.startswith(f"{path}:2: ")
    assert word in complaint
    assert "\n" not in complaint
    assert len(complaint) < len(str(path)) + 120
    assert [w.prompt for w in workloads][-1] == "last"
    assert len(workloads) == 2


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"nowhere\.jsonl can't be read"):
        load_workloads([tmp_path / "nowhere.jsonl"])
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(InvalidRequestError, match="isn't UTF-8"):
        load_workloads([latin])


def test_sampling_is_seeded_and_keeps_the_order() -> None:
    one, again, other = (sample(BUILT_IN, 3, seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    places = [BUILT_IN.index(w) for w in one]
    assert places == sorted(places)
    assert len(places) == 3
    assert sample(BUILT_IN, 100, 0) == list(BUILT_IN) == sample(BUILT_IN, None, 0)


def test_built_in_workloads_have_ids_of_their_own() -> None:
    assert len({w.id for w in BUILT_IN}) == len(BUILT_IN)
    assert {"repeat", "edit", "convert", "counter", "prose"} == {w.kind for w in BUILT_IN}
