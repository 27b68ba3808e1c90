"""The plans of the bit tests: every pair of values occurs, and the suite has at least 2,000 cells.
(The tests that run a plan assert that they ran all of it.)"""

from __future__ import annotations

import plans

from pairwise import uncovered


def test_all_pairs_and_enough_cells() -> None:
    sampled = [(plans.LINEAR, plans.linear_cells(name, False)) for name in plans.TYPE_NAMES]
    sampled += [(plans.SWIGLU, plans.swiglu_cells(name, False)) for name in plans.TYPE_NAMES]
    sampled += [
        (plans.NORM, plans.norm_cells(False)),
        (plans.ROPE, plans.rope_cells(False)),
        (plans.ATTENTION, plans.attention_cells(False)),
    ]
    for axes, cells in sampled:
        assert not uncovered(axes, cells)
    assert sum(len(cells) for _, cells in sampled) >= 2_000
