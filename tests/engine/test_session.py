"""Sessions and pages against the plainest model of both; hypothesis drives them."""

from __future__ import annotations

from typing import Any

import pytest
from fake_native import FakeKvCache
from hypothesis import given
from hypothesis import strategies as st

from draftproof.engine.block_pool import BlockPool
from draftproof.engine.session import Session
from draftproof.errors import OutOfMemoryError

PAGE = 4


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 12)), max_size=60))
def test_append_and_truncate(moves: list[tuple[int, bool, int]]) -> None:
    pool = BlockPool(16, PAGE)
    sessions = [Session(pool, 30), Session(pool, 30)]
    expected: list[list[int]] = [[], []]
    for which, grow, amount in moves:
        session, tokens = sessions[which], expected[which]
        if grow:
            new = list(range(min(amount, 30 - len(tokens))))
            session.append(new)
            tokens += new
        else:
            length = max(0, len(tokens) - amount)
            session.truncate(length)
            del tokens[length:]
        assert [s.tokens for s in sessions] == expected
        tables = [s.pages.tolist() for s in sessions]
        assert [len(t) for t in tables] == [-(-len(e) // PAGE) for e in expected]
        used = tables[0] + tables[1]
        assert len(set(used)) == len(used)
        assert pool.num_free == 16 - len(used)
    for session in sessions:
        session.close()
        session.close()
    assert pool.num_free == pool.num_unreserved == 16


def test_a_page_that_stays_keeps_its_place() -> None:
    session = Session(BlockPool(8, PAGE), 30)
    session.append([1] * 10)
    before = session.pages.tolist()
    session.truncate(5)
    session.append([2] * 3)
    assert session.pages.tolist() == before[:2]


def test_limits() -> None:
    pool = BlockPool(4, PAGE)
    session = Session(pool, 13)
    with pytest.raises(OutOfMemoryError, match="0 of 4 pages"):
        Session(pool, 1)
    with pytest.raises(ValueError, match="past"):
        session.append([0] * 14)
    session.append([0] * 13)
    for length in (-1, 14):
        with pytest.raises(ValueError, match="truncate"):
            session.truncate(length)


def test_digest_covers_exactly_the_positions() -> None:
    kv: Any = FakeKvCache(8, PAGE)
    session = Session(BlockPool(8, PAGE), 30)
    session.append([1] * 6)
    digest = session.digest(kv)
    kv.cells[session.pages[1], 2] += 1
    assert session.digest(kv) == digest
    kv.cells[session.pages[1], 1] += 1
    assert session.digest(kv) != digest
