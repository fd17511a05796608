"""A hundred functions, branches or loops in each other compile, in time that
grows with their number.
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import lax
from tests.backends.compilers import needs_compiler

DEPTH = 100


def branches(x, depth=DEPTH):
    if depth == 0:
        return x * 2
    return lax.cond(
        x.sum() > 5 * depth, lambda x: branches(x + 1, depth - 1), lambda x: x - depth, x
    )


def as_numpy(x):
    for depth in range(DEPTH, 0, -1):
        if not x.sum() > 5 * depth:
            return x - depth
        x = x + 1
    return x * 2


@needs_compiler
@ge2.config.using(check=False)  # which reads what is inside anew at each depth
def test_nested_branches():
    before = sys.getrecursionlimit()
    f, xs = ge2.jit(branches), [np.full(5, v) for v in (0.0, 60.0, 98.5, 101.0)]
    for x in xs:
        np.testing.assert_array_equal(f(x), as_numpy(x))
    assert sys.getrecursionlimit() == before
    lines = f.lower(xs[0]).as_text("c").splitlines()
    kinds = tuple(f"{kind} int cond_" for kind in ("static", "GE2_SINGLE", "GE2_FN"))
    calls = [line for line in lines if line.startswith(kinds)]
    functions = [line for line in calls if not line.startswith("GE2_FN")]
    # equal branches are one, and inlined code does not add up
    assert DEPTH < len(calls) <= 2 * DEPTH and len(functions) >= len(calls) // 4


@ge2.config.using(check=False)
def test_nested_functions():
    f = lambda x: x * 2  # noqa: E731
    for _ in range(DEPTH):
        f = ge2.jit(lambda x, inner=f: inner(x) + 1)
    np.testing.assert_array_equal(f(np.ones(3)), np.full(3, 2.0 + DEPTH))
