"""The resync drafter on edits it must follow, and on anything at all."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resync_cases import CASES, CODE, TEXT, renamed
from simulation import Run, ToyTokenizer, simulate

from draftproof.drafting import NO_DRAFT
from draftproof.drafting.resync import ResyncDrafter

K = 16
IDS = [case[0] for case in CASES]


def run_on(source: str, output: str, in_reference: bool = False, k: int = K) -> Run:
    tokenizer = ToyTokenizer()
    source_ids = tokenizer.encode(source)
    request = tokenizer.encode("Change the text.\n---\n")
    if in_reference:
        return simulate(ResyncDrafter(source_ids), request, tokenizer.encode(output), k)
    return simulate(ResyncDrafter(), source_ids + request, tokenizer.encode(output), k)


@pytest.mark.parametrize("in_reference", [False, True])
@pytest.mark.parametrize(
    ("source", "output", "rejections", "steps"), [c[1:] for c in CASES], ids=IDS
)
def test_follows(source: str, output: str, rejections: int, steps: int, in_reference: bool) -> None:
    run = run_on(source, output, in_reference)
    assert run.rejections() <= rejections
    assert run.steps() <= steps


def count(text: str) -> int:
    return len(ToyTokenizer().encode(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cat", "dog"),
        ("cat", "small dog"),
        ("The cat", "Dogs"),
        ("the cat", "his big dog"),
        (".", "!"),
    ],
)
def test_a_replacement_is_learned_once(old: str, new: str) -> None:
    """The second time and later it is drafted with what stands around it."""
    text = f"So the tale begins here, {old} for one. " + TEXT.replace("The", "the")
    tail = " ".join(f"And {old} number w{c} was {old} again." for c in "abcdefgh")
    output = (text + tail).replace(old, new)
    run = run_on(text + tail, output)
    assert run.rejections(count(text.replace(old, new))) == 0
    assert run.tokens_per_step() > 5


def test_a_replacement_that_does_not_hold_is_dropped() -> None:
    """One `result` is renamed, the later ones aren't."""
    text = "".join(f"the result of w{c} is a result\n" for c in "abcdefghijklmnop")
    run = run_on(text, text.replace("result", "number", 1))
    assert run.rejections(count(text) // 8) <= 1


def test_a_rule_follows_an_edit_over_the_end_of_a_draft() -> None:
    """k = 2 cuts every replacement in the middle."""
    output = renamed("result", "grand total of all")
    run = run_on(CODE, output, k=2)
    # ` result` and `result` are learned at one place each; the skip is guessed up to four times.
    assert run.rejections() <= 9


def test_the_copy_goes_on_in_the_draft() -> None:
    drafter = ResyncDrafter()
    history = [1, 2, 3] * 5
    drafter.start(history)
    draft = drafter.propose(history, 20)
    assert draft.tokens == tuple([1, 2, 3] * 7)[:20]
    assert draft.source == "resync"
    assert draft.match_length == 12


def test_a_reference_ends_where_it_ends() -> None:
    drafter = ResyncDrafter([1, 2, 3, 4, 5])
    drafter.start([9, 1, 2, 3])
    assert drafter.propose([9, 1, 2, 3], 16).tokens == (4, 5)
    assert drafter.propose([9, 1, 2, 3, 4, 5], 16) == NO_DRAFT
    assert drafter.propose([9, 1, 2, 3, 4, 5, 9], 0) == NO_DRAFT


# ---- one edit of any kind, at any place

edits = st.tuples(st.integers(40, 150), st.integers(0, 4), st.integers(0, 4))


@settings(max_examples=150, deadline=None)
@given(edits, st.booleans())
def test_back_in_step_after_any_edit(edit: tuple[int, int, int], in_reference: bool) -> None:
    """`left_out` source tokens become `put_in` other ones: from two tokens behind the edit on,
    everything is drafted again."""
    place, left_out, put_in = edit
    source = random.Random(place).sample(range(1000, 9000), 200)
    output = [*source[:place], *range(20_000, 20_000 + put_in), *source[place + left_out :]]
    drafter = ResyncDrafter(source if in_reference else ())
    run = simulate(drafter, [7] if in_reference else [*source, 7], output, K)
    behind = place + put_in + 2
    assert run.rejections(behind) == 0
    assert run.steps(behind) <= 2 + (len(output) - behind) / (K + 1)
    assert run.rejections(10) <= 1 + put_in


# ---- anything at all


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), max_size=150),
    st.lists(st.integers(1, 9), max_size=60),
    st.integers(0, 20),
)
def test_any_history(reference: list[int], history: list[int], steps: list[int], k: int) -> None:
    drafters = [ResyncDrafter(reference), ResyncDrafter(reference)]
    done = len(history) // 4
    for drafter in drafters:
        drafter.start(history[:done])
    for step in [*steps, len(history)]:
        done = min(done + step, len(history))
        first, second = (drafter.propose(history[:done], k) for drafter in drafters)
        assert first == second
        assert len(first.tokens) <= k
        assert set(first.tokens) <= {*reference, *history[:done]}
        assert (first == NO_DRAFT) == (not first.tokens)
        for drafter in drafters:
            drafter.observe(first, len(first.tokens) // 2)


def test_noisy_copies() -> None:
    """Edits everywhere, tokens that repeat: nothing raises, and it still pays."""
    draws = random.Random(11)
    source = [draws.randrange(60) for _ in range(1500)]
    output: list[int] = []
    for token in source:
        kind = draws.random()
        if kind < 0.02:
            output += [draws.randrange(60), token]
        elif kind < 0.04:
            output.append(draws.randrange(60))
        elif kind > 0.02 + 0.04:
            output.append(token)
    run = simulate(ResyncDrafter(), source, output, K)
    assert run.tokens_per_step() > 4


# ---- work and memory


@pytest.mark.parametrize("kind", ["equal", "period", "random", "edits"])
def test_work_and_memory_are_bounded(kind: str) -> None:
    draws = random.Random(3)
    n = 20_000
    tokens = {
        "equal": lambda: [7] * n,
        "period": lambda: [1, 2, 3, 4, 5] * (n // 5),
        "random": lambda: [draws.randrange(4) for _ in range(n)],
        "edits": lambda: [
            i % 50 if draws.random() < 0.8 else draws.randrange(999) for i in range(n)
        ],
    }[kind]()
    drafter = ResyncDrafter()
    drafter.start(tokens[: n // 2])
    tracemalloc.start()
    times = []
    for end in range(n // 2, n // 2 + 4000):
        begin = time.perf_counter()
        drafter.propose(tokens[:end], 16)
        times.append(time.perf_counter() - begin)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, drafter._rules.values())) <= 256
    assert used < 400_000
    assert sorted(times)[2000] < 1e-3  # about 0.05 ms; the rest is for busy machines
