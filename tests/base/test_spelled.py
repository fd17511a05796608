"""Structures spelled out as code take apart and put together as the walk does,
and know what does not fit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.pytree import flatten
from ge2.dispatch.arguments import builder, matcher


class Pair(NamedTuple):
    left: Any
    right: Any


LETTERS = "a'\"\\\0\n é€𝄞"  # of all that there are, hypothesis makes tables for seconds
LEAVES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.sampled_from([np.zeros(3), np.ones((2, 0), "f4")]),
)
TREES = st.recursive(
    LEAVES | st.none(),
    lambda t: st.one_of(
        st.lists(t, max_size=3),
        st.lists(t, max_size=3).map(tuple),
        st.dictionaries(st.text(LETTERS, max_size=2), t, max_size=3),
        st.builds(Pair, t, t),
    ),
    max_leaves=8,
)


def key(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, np.ndarray) else type(x)


@given(TREES, TREES)
def test_it_does_what_the_walk_does(tree: Any, other: Any) -> None:
    leaves, structure = flatten((tree,))
    match, build = matcher(structure, list(map(key, leaves))), builder(structure)
    assert match is not None and build is not None
    found = match((tree,))
    assert found is not None and all(a is b for a, b in zip(found, leaves, strict=True))
    again = build(leaves)
    assert flatten(again)[1] == structure and type(again[0]) is type(tree)
    others, shape = flatten((other,))
    same = shape == structure and list(map(key, others)) == list(map(key, leaves))
    assert (match((other,)) is not None) == same


@pytest.mark.parametrize("tree", [OrderedDict(a=1), {1: 2}, [{(1, 2): 3}]])
def test_other_containers_are_left_to_the_walk(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert matcher(structure, list(map(key, leaves))) is None
    assert builder(structure) is None


def test_a_call_is_told_from_one_of_another_signature() -> None:
    f = ge2.jit(lambda p, t: {"w": p["w"] * t, "n": p["n"] + 1})
    x = np.arange(3.0)
    for _ in range(4):
        y = f({"w": x, "n": 1}, 2.0)
        assert y["n"] == 2 and np.array_equal(y["w"], x * 2)
    assert f({"w": x.astype("f4"), "n": 1}, 2.0)["w"].dtype == np.float32
    assert f({"w": x[:2], "n": 1.5}, 2)["n"] == 2.5
    assert f({"n": 1, "w": x}, 3.0)["w"][1] == 3.0
    with pytest.raises(KeyError):
        f({"w": x}, 2.0)
    with ge2.disable_jit():
        assert type(f({"w": [1.0], "n": 1}, 2)["w"]) is list


SCALE = np.ones(3)
RATE = 2.0


def test_what_the_function_closes_over_is_looked_at_each_time() -> None:
    global RATE, SCALE
    f = ge2.jit(lambda p: p["w"] * SCALE * RATE)
    x = np.arange(3.0)
    for _ in range(4):
        f({"w": x})
    try:
        SCALE = np.full(3, 5.0)
        assert np.array_equal(f({"w": x}), x * 10)
        RATE = 3.0
        assert np.array_equal(f({"w": x}), x * 15)
        assert np.array_equal(f({"w": x}), x * 15)
    finally:
        SCALE, RATE = np.ones(3), 2.0


def test_the_last_of_two_signatures_in_turns() -> None:
    f = ge2.jit(lambda p: p[0] + p[1])
    a, b = np.ones(3), np.ones(4)
    for _ in range(5):
        assert f([a, a]).shape == (3,) and f([b, b]).shape == (4,)
    assert len(f._entries) == 2
