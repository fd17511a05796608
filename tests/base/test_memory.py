"""The memory plan: arrays that live at the same time never overlap, and little is wasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge2.base.config import config
from ge2.program.timeline import ALIGNMENT, ARENAS, Arenas, Lifetime, first_come, most_at_once, plan

lifetimes = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 30),
    st.integers(0, 8),
)


@pytest.mark.parametrize("large", [ARENAS.large, 1])
@given(st.lists(lifetimes, max_size=40))
def test_what_lives_together_lies_apart(large, arrays):
    with config.using(tuning=(Arenas(large),)):
        found = plan(arrays)
    assert len(found.offsets) == len(arrays)
    for i, (a, at) in enumerate(zip(arrays, found.offsets, strict=True)):
        assert at % ALIGNMENT == 0
        assert at + a.nbytes <= found.nbytes
        for b, other in zip(arrays[:i], found.offsets[:i], strict=True):
            together = a.first <= b.last and b.first <= a.last
            apart = at + a.nbytes <= other or other + b.nbytes <= at
            assert not together or apart


def test_a_chain_needs_two_arrays():
    assert plan([Lifetime(6400, i, i + 1) for i in range(100)]).nbytes == 2 * 6400


def test_freed_neighbours_are_one_gap():
    small = [Lifetime(64, 0, 0) for _ in range(10)]
    assert plan([*small, Lifetime(640, 1, 1)]).nbytes == 640


def test_the_largest_are_placed_first_where_that_takes_less():
    """In the order of time what takes a gap leaves too little of it for what is larger."""
    needs = (4, 3, 5), (2, 2, 4), (3, 0, 1), (1, 1, 3)
    arrays = [Lifetime(n * ARENAS.large, first, last) for n, first, last in needs]
    assert first_come(arrays, ALIGNMENT).nbytes == 8 * ARENAS.large
    assert plan(arrays).nbytes == most_at_once(arrays) == 7 * ARENAS.large


def test_it_is_a_pure_function():
    arrays = [Lifetime(100 * i, i % 7, i % 7 + i % 3) for i in range(50)]
    assert plan(arrays) == plan(list(arrays))
    assert plan([]).nbytes == 0
