"""The seeded sample of a product of axes: all pairs, distinct cells, the same for the same seed."""

from __future__ import annotations

from pairwise import Axes, pairwise, uncovered, whole

AXES: Axes = {"a": range(5), "b": ("x", "y", "z"), "c": (None, 1), "d": range(4)}


def test_all_pairs_occur_in_far_fewer_cells_than_the_product() -> None:
    cells = pairwise(AXES, at_least=1)
    assert not uncovered(AXES, cells)
    assert len(cells) <= 2 * 5 * 4
    assert len({tuple(cell.values()) for cell in cells}) == len(cells)


def test_a_missing_pair_is_noticed() -> None:
    cells = [cell for cell in whole(AXES) if not (cell["a"] == 3 and cell["b"] == "y")]
    assert uncovered(AXES, cells) == {(0, 3, 1, 1)}


def test_it_is_filled_up_and_the_same_for_the_same_seed() -> None:
    cells = pairwise(AXES, at_least=77, seed=5)
    assert len(cells) == 77
    assert cells == pairwise(AXES, at_least=77, seed=5)
    assert cells != pairwise(AXES, at_least=77, seed=6)
    assert len(pairwise(AXES, at_least=10_000)) == len(whole(AXES)) == 120
