"""The template drafter on records it must foresee, on some it can't, and on anything at all."""

from __future__ import annotations

import random
import time
import tracemalloc
from datetime import date, datetime, timedelta
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulation import Run, ToyTokenizer, simulate
from template_cases import CASES

from draftproof.drafting import NO_DRAFT, Draft, fields
from draftproof.drafting.template import TemplateDrafter
from draftproof.formats.gguf import GgufFile
from draftproof.text import Tokenizer

K = 16


def drafter_of(tokenizer: ToyTokenizer | Tokenizer) -> TemplateDrafter:
    if isinstance(tokenizer, ToyTokenizer):
        return TemplateDrafter(tokenizer.token_bytes, tokenizer.encode)
    return TemplateDrafter(tokenizer.token_bytes, lambda text: tokenizer.encode(text, False))


def ids_of(tokenizer: ToyTokenizer | Tokenizer, text: str) -> list[int]:
    if isinstance(tokenizer, ToyTokenizer):
        return tokenizer.encode(text)
    return tokenizer.encode(text, parse_special=False)


@pytest.fixture(scope="session", params=["smollm2-135m", "qwen2.5-coder-0.5b"])
def real_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    fixture = {"smollm2-135m": "smollm2", "qwen2.5-coder-0.5b": "qwen05"}[request.param]
    path: Path = request.getfixturevalue(fixture)
    with GgufFile.open(path) as file:
        return Tokenizer.from_gguf(file.metadata)


def check_foreseen(tokenizer: ToyTokenizer | Tokenizer, texts: list[str], needed: int) -> None:
    """From the first step in the record behind the `needed` examples on, every draft is as long as
    it may be and right. The records follow a prompt, as in life."""
    prompt = ids_of(tokenizer, "Write the list.\n")
    output = ids_of(tokenizer, "".join(texts))
    ends = list(accumulate(len(tokenizer.token_bytes(token)) for token in output))
    examples = len("".join(texts[:needed]).encode())
    # Its first tokens may be needed to see that a record begins.
    first = sum(end <= examples for end in ends) + (4 if needed < 3 else 0)
    run = simulate(drafter_of(tokenizer), prompt, output, K)
    rows = list(zip(run.begins, run.drafted, run.accepted, strict=True))
    late = [row for row in rows if row[0] >= first]
    assert late
    for begin, drafted, accepted in late:
        assert (drafted, accepted) == (min(K, len(output) - begin - 1),) * 2, begin


IDS = [case[0] for case in CASES]


@pytest.mark.parametrize("digits", [1, 3])
@pytest.mark.parametrize(("texts", "needed"), [case[1:] for case in CASES], ids=IDS)
def test_foreseen(texts: list[str], needed: int, digits: int) -> None:
    check_foreseen(ToyTokenizer(digits), texts, needed)


@pytest.mark.parametrize(("texts", "needed"), [case[1:] for case in CASES], ids=IDS)
def test_foreseen_with_a_real_tokenizer(
    texts: list[str], needed: int, real_tokenizer: Tokenizer
) -> None:
    check_foreseen(real_tokenizer, texts, needed)


# ---- what can't be foreseen


def run_on(text: str, prompt: str = "", digits: int = 1, k: int = K) -> Run:
    tokenizer = ToyTokenizer(digits)
    output = tokenizer.encode(text)
    return simulate(drafter_of(tokenizer), tokenizer.encode(prompt), output, k)


def propose_after(text: str, k: int = K) -> str:
    tokenizer = ToyTokenizer()
    drafter = drafter_of(tokenizer)
    history = tokenizer.encode(text)
    drafter.start(history[: len(history) // 2])
    for n in range(len(history) // 2, len(history)):
        drafter.propose(history[:n], 4)
    return tokenizer.decode(drafter.propose(history, k).tokens)


NAMES = ["Bob", "Carl", "Dave", "Eve", "Fred", "Gus", "Hal", "Ivy", "Jan", "Kim", "Lou", "Max"]


def test_variable_text_stops_the_draft_and_is_stepped_over() -> None:
    text = "".join(f"row {i},{name},{i * 5}\n" for i, name in enumerate(NAMES, 1))
    run = run_on(text)
    late = len(ToyTokenizer().encode(text)) // 4
    assert run.rejections(late) == 0
    assert run.steps(late) == 9  # one per record: everything but the name is drafted


def test_an_unknown_number_stops_the_draft_and_is_stepped_over() -> None:
    draws = random.Random(4)
    text = "".join(f"job {i} took {draws.randrange(100, 1000)} ms\n" for i in range(10, 30))
    run = run_on(text, digits=3)
    assert run.rejections(60) == 0
    assert run.steps(60) <= 15


def test_the_end_of_an_unknown_number_of_constant_width_is_known() -> None:
    text = "".join(f"job {i} has id {i * 7919 % 900 + 100}\n" for i in range(10, 18))
    assert propose_after(text + "job 18 has id 471").startswith("\njob 19 has id ")
    assert propose_after(text + "job 18 has id 47") == ""


@pytest.mark.parametrize(
    ("written", "rest"),
    [("", "109 cm\n"), ("1", "09 cm\n"), ("10", "9 cm\n"), ("109", " cm\n"), ("2", ""), ("11", "")],
)
def test_a_number_that_was_begun_is_finished(written: str, rest: str) -> None:
    text = "".join(f"mark {i} cm\n" for i in range(94, 109, 3))
    assert propose_after(f"{text}mark {written}", 7).startswith(rest)
    assert bool(propose_after(f"{text}mark {written}", 7)) == bool(rest)


@pytest.mark.parametrize(
    ("written", "rest"), [("123", "45 cm"), ("12", "345 cm"), ("1", "2345 cm")]
)
def test_a_number_may_be_begun_with_other_tokens(written: str, rest: str) -> None:
    tokenizer = ToyTokenizer(3)  # writes 12345 as 123, 45
    drafter = drafter_of(tokenizer)
    history = tokenizer.encode("".join(f"mark {i} cm\n" for i in range(12340, 12345)) + "mark ")
    drafter.start(history[:20])
    for n in range(20, len(history) + 1):
        drafter.propose(history[:n], 4)
    for piece in (written[:1], written[1:]):
        history += tokenizer.encode(piece)
    assert tokenizer.decode(drafter.propose(history, 16).tokens).startswith(rest)


def test_a_list_that_starts_again_costs_one_rejection() -> None:
    one = "".join(f"{i}. do it\n" for i in range(1, 12))
    run = run_on(one + one)
    begin = len(ToyTokenizer().encode(one))
    assert run.rejections(begin - 10) == 1


def test_nothing_follows_z_or_zero() -> None:
    letters = "".join(f"{chr(i)}) yes or no\n" for i in range(ord("v"), ord("z") + 1))
    assert propose_after(letters, 2) == ""
    assert propose_after("".join(f"left {i} of all\n" for i in range(4, -1, -1)) + "left ", 2) == ""


def test_numbers_of_a_verbatim_copy_are_copied() -> None:
    draws = random.Random(8)
    source = "".join(
        f"{name} lives at {draws.randrange(1000)} and has {draws.randrange(90)} cats\n"
        for name in NAMES
    )
    tokenizer = ToyTokenizer()
    run = run_on(source, source + "Again:\n")
    n = len(tokenizer.encode(source))
    assert run.rejections(n // 6) == 0
    assert run.steps(n // 6) <= n // 12


def test_a_counter_in_the_prompt_is_continued_at_once() -> None:
    prompt = "".join(f"Item {i}: ok\n" for i in range(1, 6))
    assert propose_after(prompt, 24).startswith("Item 6: ok\nItem 7: ok\n")


def test_prose_is_left_alone() -> None:
    draws = random.Random(1)
    words = [f" w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300)]
    text = "".join(draws.choice(words) + ("." if draws.random() < 0.1 else "") for _ in range(800))
    assert sum(run_on(text).drafted) < 40


# ---- anything at all

texts = st.lists(
    st.sampled_from(
        ["7", "42", "099", "1.5", "00:59", "2024-02-29", "a)", "(b)", " is", " to", "点"]
    )
    | st.sampled_from(
        ["\n", " ", ",", ":", "-", "Item", "999999999999999999", "12345678901234567890"]
    )
    | st.text(max_size=3),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(texts, st.lists(st.integers(1, 9), max_size=40), st.integers(0, 20), st.sampled_from([1, 3]))
def test_any_history(pieces: list[str], steps: list[int], k: int, digits: int) -> None:
    tokenizer = ToyTokenizer(digits)
    history = tokenizer.encode("".join(pieces) * 2)
    drafters = [drafter_of(tokenizer), drafter_of(tokenizer)]
    done = len(history) // 3
    for drafter in drafters:
        drafter.start(history[:done])
    for step in [*steps, len(history)]:
        done = min(done + step, len(history))
        first, second = (drafter.propose(history[:done], k) for drafter in drafters)
        assert first == second
        assert len(first.tokens) <= k
        assert all(0 <= token < len(tokenizer) for token in first.tokens)
        assert (first == NO_DRAFT) == (not first.tokens)
        tokenizer.decode(first.tokens)
        for drafter in drafters:
            drafter.observe(first, len(first.tokens) // 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_ids_of_a_real_vocabulary(real_tokenizer: Tokenizer, data: st.DataObject) -> None:
    common = real_tokenizer.encode(
        "Item 12: a) 2024-01-02 03:04 第 7 点\n" * 3, parse_special=False
    )
    ids = st.sampled_from(common) | st.integers(0, real_tokenizer.vocab_size - 1)
    history = data.draw(st.lists(ids, max_size=80)) * 2
    drafter = drafter_of(real_tokenizer)
    drafter.start(history[:10])
    for done in range(10, len(history), 7):
        for token in drafter.propose(history[:done], 16).tokens:
            real_tokenizer.token_bytes(token)


def test_a_draft_with_k_0_is_none_and_a_repeated_question_has_the_same_answer() -> None:
    tokenizer = ToyTokenizer()
    drafter = drafter_of(tokenizer)
    history = tokenizer.encode("".join(f"Item {i}: ok\n" for i in range(1, 6)))
    drafter.start(history[:5])
    for n in range(5, len(history)):
        assert drafter.propose(history[:n], 0) == NO_DRAFT
    first = drafter.propose(history, 8)
    assert isinstance(first, Draft)
    assert first.tokens
    assert first.source == "template"
    assert first.match_length > 8
    assert drafter.propose(history, 8) == first


# ---- work and memory


@pytest.mark.parametrize("kind", ["records", "equal", "digits", "random"])
def test_work_and_memory_are_bounded(kind: str) -> None:
    tokenizer = ToyTokenizer()
    draws = random.Random(3)
    text = {
        "records": lambda: "".join(f"{i} is at 12:{i % 60:02} of {i * i}\n" for i in range(1500)),
        "equal": lambda: "x" * 30_000,
        "digits": lambda: "7" * 30_000,
        "random": lambda: "".join(draws.choice("ab1 \n:.-") for _ in range(30_000)),
    }[kind]()
    history = tokenizer.encode(text)
    drafter = drafter_of(tokenizer)
    tracemalloc.start()
    drafter.start(history[:-300])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100_000 + 120 * len(history)
    times = []
    for n in range(len(history) - 300, len(history)):
        begin = time.perf_counter()
        drafter.propose(history[:n], 16)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[150] < 1e-3  # about 0.1 ms; the rest is for busy machines
    assert len(drafter._places) <= 6


# ---- fields


@given(st.integers(0, 10**6), st.integers(0, 999), st.integers(0, 9), st.integers(3, 6))
def test_first_and_second_differences_go_on(a: int, b: int, c: int, n: int) -> None:
    values = [a + b * i + c * i * i for i in range(n + 1)]
    assume(fields._ratio(values[max(0, n - 4) : n]) is None)  # 1, 2, 4 is read as 8, not as 7
    assert fields.next_value(values[:n]) == values[n]
    down = [values[n] - value for value in values]
    assert fields.next_value(down[:n]) == down[n]


@pytest.mark.parametrize(
    ("values", "following"),
    [
        ([3], None),
        ([3, 3], 3),
        ([3, 4], 5),
        ([3, 1], -1),
        ([1, 4, 9], 16),
        ([1, 2, 4], 8),
        ([3, 9, 27, 81], 243),
        ([1, 8, 27, 64, 125], 216),
        ([0, 1, 0, 1], 0),
        ([0, 1, 2, 0, 1, 2], 0),
        ([8, 9, 10, 1], 2),
        ([8, 9, 10, 1, 2], 3),
        ([5, 5, 5, 7], 7),
        ([5, 5, 9], None),
        ([3, 17, 5], None),
        ([3, 17, 5, 90], None),
        ([31, 4, 15, 92, 65, 35], None),
    ],
)
def test_next_value(values: list[int], following: int | None) -> None:
    assert fields.next_value(values) == following


@pytest.mark.parametrize(
    ("texts", "following"),
    [
        (["08", "09"], "10"),
        (["98", "99"], "100"),
        (["098", "099"], "100"),
        (["099", "100"], "101"),
        (["0099", "0100"], "0101"),
        (["02", "01"], "00"),
        (["01", "00"], None),
        (["999999999999999998", "999999999999999999"], None),
        (["000", "000"], "000"),
    ],
)
def test_next_number(texts: list[str], following: str | None) -> None:
    assert fields.next_number(texts) == following


DAY = datetime(2023, 1, 1)


@given(
    st.integers(0, 10**9), st.integers(-(10**7), 10**7), st.integers(2, 5), st.sampled_from(" T")
)
def test_timestamps_equal_the_calendar(start: int, step: int, n: int, gap: str) -> None:
    moments = [DAY + timedelta(seconds=start + i * step) for i in range(n + 1)]
    parts = [tuple(f"{m:%Y %m %d %H %M %S}".split()) for m in moments]
    assert fields.next_composite(f"--{gap}::", parts[:n]) == parts[n]


@given(st.integers(0, 10**6), st.integers(-(10**4), 10**4), st.integers(2, 5))
def test_dates_equal_the_calendar(start: int, step: int, n: int) -> None:
    days = [date.fromordinal(700_000 + start % 50_000 + i * step) for i in range(n + 1)]
    parts = [tuple(f"{day:%Y %m %d}".split()) for day in days]
    if len({part[2] for part in parts[:n]}) > 1:
        assert fields.next_composite("--", parts[:n]) == parts[n]


@pytest.mark.parametrize(
    ("separators", "earlier"),
    [
        (":", [("12", "58"), ("12", "61")]),
        (":", [("12", "8"), ("12", "9")]),
        ("--", [("2023", "02", "29"), ("2023", "02", "30")]),
        ("--", [("9999", "12", "30"), ("9999", "12", "31")]),
        ("--", [("26", "12", "30"), ("26", "12", "31")]),
        (":", [("00", "01"), ("00", "00")]),
        (".", [("1", "9"), ("1", "10")]),
        (",", [("1", "99"), ("1", "98")]),
    ],
)
def test_what_is_no_time_or_date(separators: str, earlier: list[fields.Parts]) -> None:
    assert fields.next_composite(separators, earlier) is None


@pytest.mark.parametrize(
    ("separators", "index", "span"),
    [
        ("-- ::", 3, (0, 6)),
        ("--T::.", 6, (0, 7)),
        (":-:", 2, (2, 4)),
        (":-:", 1, (0, 2)),
        ("::::::::", 4, (2, 5)),
        ("..", 1, None),
        ("-", 0, None),
        (".", 1, (0, 2)),
    ],
)
def test_composite_span(separators: str, index: int, span: tuple[int, int] | None) -> None:
    assert fields.composite_span(separators, index) == span
