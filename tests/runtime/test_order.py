"""Launches wait for those that touch the same memory, and for no others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ge2.targets.cuda.launch.graph import Access, waits


def run(launches, order):
    """Memory after the launches, each of which leaves its number and what it read."""
    memory = {}
    for i in order:
        read = [(a.base, b) for a in launches[i] if not a.written for b in range(a.first, a.last)]
        seen = tuple(memory.get(place) for place in read)
        for a in launches[i]:
            if a.written:
                memory.update({(a.base, b): hash((i, seen)) for b in range(a.first, a.last)})
    return memory


def access(base, first, size, written):
    return Access(base, first, first + size, written)


accesses = st.builds(
    access, st.sampled_from("ab"), st.integers(0, 6), st.integers(1, 4), st.booleans()
)


@given(st.lists(st.lists(accesses, max_size=3), max_size=9), st.randoms(use_true_random=False))
def test_any_order_that_waits_means_the_same(launches, random):
    """Launches in a random order, each after those it waits for."""
    needs, order = waits(launches), []
    while len(order) < len(launches):
        free = [i for i in range(len(launches)) if i not in order and set(needs[i]) <= set(order)]
        order.append(random.choice(free))
    assert run(launches, order) == run(launches, range(len(launches)))


def test_what_is_apart_does_not_wait():
    """Two chains through halves of an arena."""
    left, right = (0, 64), (64, 128)
    launches = [
        [Access("arena", *half, written), Access("out", i, i + 1, True)]
        for i, (half, written) in enumerate(
            [(left, True), (right, True), (left, False), (right, False)]
        )
    ]
    assert waits(launches) == [(), (), (0,), (1,)]


def test_a_chain_names_its_last_link_alone():
    same = [Access("x", 0, 8, True)]
    assert waits([same] * 5) == [(), (0,), (1,), (2,), (3,)]


def test_many_readers_of_one_chain_are_one():
    """A weight that each round of a loop reads, and that is updated after it."""
    rounds = [[Access("w", 0, 8, False), Access("h", 0, 8, True)] for _ in range(50)]
    assert waits([*rounds, [Access("w", 0, 8, True)]])[-1] == (49,)


def test_readers_do_not_wait_for_each_other():
    write, read = [Access("x", 0, 8, True)], [Access("x", 0, 8, False)]
    assert waits([write, read, read, read, write]) == [(), (0,), (0,), (0,), (1, 2, 3)]
