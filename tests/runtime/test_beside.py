"""Arrays of steps that know nothing of each other lie apart; those that
follow share their place.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.compile.pipeline import rewritten
from ge2.compile.schedule import schedule
from ge2.program import Concurrent, Program
from ge2.program.timeline import (
    Lifetime,
    behind,
    in_time,
    keeps_apart,
    lowest,
    plan,
    planned_beside,
)

ALIGNMENT = 256
lifetimes = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 5000), st.integers(0, 30), st.integers(0, 8),
)  # fmt: skip


@given(st.lists(lifetimes, max_size=30), st.randoms(use_true_random=False))
def test_what_is_to_lie_apart_does(lives, random):
    """Whoever may not share a place does not, and lives that overlap never do."""
    pairs = {(i, j): random.random() < 0.3 for i in range(len(lives)) for j in range(i)}

    def apart(i: int, j: int) -> bool:
        a, b = lives[i], lives[j]
        return (a.first <= b.last and b.first <= a.last) or pairs[max(i, j), min(i, j)]

    found = lowest(lives, in_time(lives), apart, ALIGNMENT)
    for i, (a, at) in enumerate(zip(lives, found.offsets, strict=True)):
        assert at % ALIGNMENT == 0 and at + a.nbytes <= found.nbytes
        for j in range(i):
            b, other = lives[j], found.offsets[j]
            assert not apart(i, j) or at + a.nbytes <= other or other + b.nbytes <= at


def program(f: Any, *xs: Any) -> Program:
    return schedule(rewritten(ge2.make_jaxpr(f)(*xs).graph, "cuda"), (False,) * len(xs), "cuda")


def arena(made: Program) -> list[tuple[str, Lifetime]]:
    found = [b for b in made.buffers.values() if b.storage == "arena"]
    return [(b.name, Lifetime(b.type.nbytes, b.first, b.last)) for b in found]


def two_chains(x: Any, y: Any) -> Any:
    """Two chains of running sums, which never fuse, and which know nothing of each other."""
    for axis in (0, 1, 0):
        x = x.cumsum(axis)
    for axis in (0, 1, 0):
        y = y.cumsum(axis)
    return x, y


def chain(x: Any) -> Any:
    for axis in (0, 1, 0, 1, 0):
        x = x.cumsum(axis)
    return x


def given_arrays(n: int, *shape: int) -> list[Any]:
    return [np.ones(shape, np.float32) for _ in range(n)]


def test_chains_share_nothing():
    made = program(two_chains, *given_arrays(2, 16, 16))
    needs = arena(made)
    found = planned_beside(made, needs, ALIGNMENT, Concurrent())
    assert found.nbytes > plan([life for _, life in needs], ALIGNMENT).nbytes
    before = behind(made)
    by = dict(zip((name for name, _ in needs), found.offsets, strict=True))
    makers = {made.buffers[v].name: s.number for s in made.steps for v in s.eqn.outs}
    for one, at in by.items():
        for other, there in by.items():
            if one != other and at == there:
                early, late = sorted((makers[one], makers[other]))
                assert before[late] >> early & 1, f"{one} and {other} lie at one place"


def test_a_chain_is_as_tight_as_may_be():
    made = program(chain, *given_arrays(1, 16, 16))
    needs = arena(made)
    assert planned_beside(made, needs, ALIGNMENT, Concurrent()) == plan(
        [life for _, life in needs], ALIGNMENT
    )


def test_large_arrays_go_by_time_alone():
    lives = [Lifetime(65, 0, 1), Lifetime(64, 2, 3), Lifetime(64, 4, 5)]
    apart = keeps_apart(lives, [{0, 1}, {2, 3}, {4, 5}], [0] * 6, 64)
    assert not apart(0, 1) and not apart(0, 2) and apart(1, 2)


def test_what_costs_too_much_is_tight():
    made = program(two_chains, *given_arrays(2, 16, 16))
    needs = arena(made)
    found = planned_beside(made, needs, ALIGNMENT, Concurrent(more=0))
    assert found == plan([life for _, life in needs], ALIGNMENT)


def test_who_writes_over_an_argument_needs_its_readers():
    def f(w: Any, x: Any) -> Any:
        return x @ w, w * 0.5

    (x,), (w,) = given_arrays(1, 4, 8), given_arrays(1, 8, 8)
    graph = rewritten(ge2.make_jaxpr(f)(w, x).graph, "cuda")
    made = schedule(graph, (True, False), "cuda")
    product = next(s for s in made.steps if s.name == "dot_general")
    update = next(s for s in made.steps if s.name == "pointwise")
    assert behind(made)[update.number] >> product.number & 1
    kept = schedule(graph, (False, False), "cuda")
    assert not behind(kept)[update.number] >> product.number & 1


def test_a_limit_on_memory_is_kept_to_the_byte():
    """With a limit the plan is the tight one: what was promised is what is taken."""
    from ge2.base.config import config

    xs = given_arrays(2, 16, 16)
    with config.using(executor="shim"):
        free = ge2.jit(two_chains).lower(*xs).compile().memory_analysis()
        limited = (
            ge2.jit(partial(two_chains), memory_limit=free.peak)
            .lower(*xs)
            .compile()
            .memory_analysis()
        )
    assert limited.peak < free.peak
