"""Records whose values come, one after the other, from a table in the prompt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Run, ToyTokenizer, simulate

from draftproof.drafting import Drafter
from draftproof.drafting.columns import Columns
from draftproof.drafting.suffix import SuffixDrafter
from draftproof.drafting.template import TemplateDrafter

ROWS = [
    ("Alice Moore", 30, "Paris"),
    ("Bob", 25, "Berlin"),
    ("Carla Diaz", 41, "Madrid"),
    ("Dmitri", 19, "Oslo"),
    ("Erin O'Neil", 56, "Dublin"),
    ("Farid", 33, "Cairo"),
    ("Grace Hopper", 85, "New York"),
    ("Hiro", 27, "Osaka"),
    ("Ines", 38, "Lisbon"),
    ("Jürgen", 44, "Köln"),
    ("李雷", 29, "北京"),
    ("Lena", 31, "Kiel"),
]
CSV = "id,name,age,city\n" + "".join(f"{i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(ROWS, 1))
MARKDOWN = "".join(f"| {i} | {a} | {b} | {c} |\n" for i, (a, b, c) in enumerate(ROWS, 1))
JSON = "".join(
    f'{{"id": {i}, "name": "{a}", "age": {b}, "city": "{c}"}},\n'
    for i, (a, b, c) in enumerate(ROWS, 1)
)
JSON_LINES = "".join(
    f'{{\n  "name": "{a}",\n  "age": {b},\n  "city": "{c}"\n}},\n' for a, b, c in ROWS
)
SQL = "".join(f"INSERT INTO people VALUES ('{a}', {b}, '{c}');\n" for a, b, c in ROWS)


def run(prompt: str, output: str, make: str = "template") -> Run:
    tokenizer = ToyTokenizer()
    template = TemplateDrafter(tokenizer.token_bytes, tokenizer.encode)
    drafter: Drafter = template if make == "template" else SuffixDrafter()
    return simulate(drafter, tokenizer.encode(prompt), tokenizer.encode(output))


@pytest.mark.parametrize(
    ("source", "output", "least", "steps_at_the_end"),
    [
        (CSV, JSON, 6.5, 14),
        (MARKDOWN, JSON, 6.5, 14),
        (CSV, JSON_LINES, 7.5, 14),
        (CSV, SQL, 5.0, 9),
    ],
    ids=["csv to json", "markdown to json", "csv to json over lines", "csv to sql"],
)
def test_values_come_from_the_table(
    source: str, output: str, least: float, steps_at_the_end: int
) -> None:
    with_table = run("Reformat:\n" + source, output)
    without = run("Reformat:\n", output)
    assert with_table.tokens_per_step() > least
    assert with_table.tokens_per_step() > 1.25 * without.tokens_per_step()
    assert with_table.tokens_per_step() > 1.5 * run(source, output, "suffix").tokens_per_step()
    # The second half: 6 records.
    half = len(ToyTokenizer().encode(output)) // 2
    assert with_table.steps(half) <= steps_at_the_end


TABLE = bytearray(b"a,Bob Ray,25\nb,Carla,41\nc,Di Lu,33\n")


def learned() -> Columns:
    """Columns after a record has written `Bob Ray` at symbol 5 and ` 25.` at symbol 9, and then
    `Carla` at symbol 15."""
    columns = Columns()
    columns.limit = len(TABLE)
    text = TABLE + b"Bob Ray 25. Carla"
    n = len(TABLE)
    columns.learn(text, 5, 2, n, n + 7)
    columns.learn(text, 9, 1, n + 7, n + 11)
    columns.learn(text, 15, 1, n + 12, n + 17)
    return columns


def test_gap_and_end_are_learned() -> None:
    columns = learned()
    assert columns.cursor == TABLE.index(b",41")
    assert columns.width(5) == 2
    assert columns.width(6) == 0
    assert columns.next_value(TABLE, 5, columns.cursor) is None  # nothing was known before it
    number = columns.next_value(TABLE, 9, columns.cursor)
    assert number == (" 41.", TABLE.index(b"\nc"))
    assert columns.next_value(TABLE, 15, TABLE.index(b"\nb")) == ("Carla", TABLE.index(b",41"))
    di = columns.next_value(TABLE, 15, TABLE.index(b"\nc"))
    assert di == ("Di Lu", TABLE.index(b",33"))  # the b of \nb, stands for any word
    assert columns.next_value(TABLE, 15, TABLE.index(b",33")) is None


def test_only_whole_words_before_the_limit_are_values() -> None:
    columns = Columns()
    columns.limit = len(TABLE)
    text = TABLE + b"Bo Carla"
    columns.learn(text, 1, 1, len(TABLE), len(TABLE) + 2)
    assert columns.cursor == -1
    columns.limit = TABLE.index(b"Carla")
    columns.learn(text, 2, 1, len(TABLE) + 3, len(text))
    assert columns.cursor == -1


def test_a_table_that_is_not_used_is_given_up() -> None:
    columns = learned()
    text = TABLE + b"nothing"
    for position in range(20, 24):
        assert columns.cursor >= 0
        columns.learn(text, position, 1, len(TABLE), len(text))
    assert columns.cursor == -1


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 12)), max_size=12),
    st.integers(0, 90),
)
def test_any_bytes(text: bytes, values: list[tuple[int, int]], limit: int) -> None:
    columns = Columns()
    columns.limit = min(limit, len(text))
    stream = bytearray(text)
    for position, (begin, length) in enumerate(values):
        begin = min(begin, len(text))
        columns.learn(stream, position, 1, begin, min(begin + length, len(text)))
        assert -1 <= columns.cursor <= columns.limit
        for cursor in (-1, columns.cursor, len(text)):
            found = columns.next_value(stream, position, cursor)
            assert found is None or cursor <= found[1] <= columns.limit
