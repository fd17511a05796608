"""Reads take what was written, writes that others hide go, and an array is joined of its writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.ir import Graph
from ge2.passes.context import NOTHING, Context
from ge2.passes.fold import apart, forward_writes, unread_writes, within
from ge2.targets.cuda.limits import H200
from tests.passes.graphs import alike, names

X = np.arange(24.0).reshape(6, 4)
ON_H200 = Context(caps=H200)
targets = pytest.mark.parametrize("context", [NOTHING, ON_H200], ids=["in place", "copies"])


def after(f: Any, *xs: Any, context: Context = ON_H200, step: Any = forward_writes) -> Graph:
    """The graph after the pass, which gives what it gave."""
    return alike(lambda graph: step(graph, context), f, *xs)


def state(x: Any) -> Any:
    """Rows that are written and read again, as the state of a cipher."""
    x = x.copy()
    for _ in range(3):
        x[0] = x[0] + x[1]
        x[3] = np.sin(x[3] * x[0])
        x[1] = x[1] - x[3]
    return x


def test_rows_that_are_read_again_are_what_was_written() -> None:
    copied = names(after(state, X))
    assert copied.count("update_slice") == 0
    assert copied.count("concatenate") == 1
    assert names(after(state, X, context=NOTHING)).count("update_slice") == 9  # of few elements


def test_in_place_all_writes_go_or_all_stay() -> None:
    wide = np.arange(400.0).reshape(4, 100)

    def whole(x: Any) -> Any:
        y = state(x)
        y[2] = 1.0
        return y

    assert "update_slice" not in names(after(whole, wide, context=NOTHING))
    graph = ge2.make_jaxpr(whole)(wide).graph
    for kept in (Context(body=True), Context(written=(0,))):
        assert forward_writes(graph, kept) is graph

    def edges(x: Any) -> Any:
        y = whole(x)
        y[:, 1:-1] = np.sin(x[:, 1:-1])
        return y

    assert (
        forward_writes(ge2.make_jaxpr(edges)(wide).graph, NOTHING).eqns[-1].op.name
        == "update_slice"
    )


@targets
def test_columns_of_a_recurrence_are_no_array(context: Context) -> None:
    xs = np.arange(400.0).reshape(100, 4)

    def f(x: Any) -> Any:
        y = np.zeros_like(x)
        y[:, 0] = x[:, 0]
        for k in range(1, 4):
            y[:, k] = 0.5 * y[:, k - 1] + x[:, k]
        return y[:, -1]

    assert "update_slice" not in names(after(f, xs, context=context))


def test_what_is_read_between_stays() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y[0] = 1.0
        whole = y.sum()
        y[0] = 2.0
        return y, whole

    assert names(after(f, X)).count("update_slice") == 2


def test_a_write_that_another_hides_goes() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y[2] = np.sin(x[0])
        y[2] = np.cos(x[1])
        return y

    found = names(after(f, X))
    assert found.count("update_slice") == 1
    assert "sin" not in found


def test_few_rows_of_many_are_written_where_they_are() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y[0], y[5] = x[1], x[2]
        return y

    assert names(after(f, X)).count("update_slice") == 2


def test_a_slice_that_is_partly_written_is_read_of_the_whole() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y[1:3] = 0.0
        return y[2:5], y[1:3], y[3:]

    found = after(f, X)
    assert names(found).count("update_slice") == 1


spans = st.integers(0, 6).flatmap(
    lambda first: st.tuples(st.just(first), st.integers(1, 3), st.integers(0, 4))
)


@given(spans, spans)
def test_places_of_spans(read: tuple[int, int, int], write: tuple[int, int, int]) -> None:
    a, b = ({first + k * step for k in range(n)} for first, step, n in (read, write))
    assert not within(read, write) or a <= b
    assert not apart(read, write) or not a & b
    if a and b and len(a) > 1 < len(b):
        assert apart(read, write) or a & b or read[1] != write[1]


axis = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 2)).map(
    lambda t: slice(min(t[:2]), max(t[:2]) + 1, t[2])
)


@given(st.lists(st.tuples(st.booleans(), axis, axis), min_size=2, max_size=8))
@targets
def test_any_writes_and_reads(context: Context, steps: list[tuple[bool, slice, slice]]) -> None:
    def f(x: Any) -> Any:
        y, found = x.copy(), [x.sum()]
        for k, (writes, rows, columns) in enumerate(steps):
            if writes:
                y[rows, columns] = np.sin(y[rows, columns] + k)
            else:
                found.append(y[rows, columns] * k)
        return (y, *found)

    after(f, np.arange(36.0).reshape(6, 6), context=context)


def spread(x: Any) -> Any:
    """Zeros between elements, and around all of them, as a transposed convolution has them."""
    y = np.zeros((2 * len(x) - 1, 3 * x.shape[1]), x.dtype)
    y[::2, 1::3] = x
    return np.pad(y, ((1, 2), (0, 1)))


def test_one_write_into_zeros_is_a_pad_on_a_gpu() -> None:
    for dtype in (np.float32, bool, np.int8, np.complex64):
        assert names(after(spread, X.astype(dtype))) == ["pad"]
    assert "update_slice" in names(after(spread, np.ones((9, 9)), context=NOTHING))


def test_writes_that_are_no_pads_stay() -> None:
    def of(value: float, twice: bool = False) -> Any:
        def f(x: Any) -> Any:
            y = np.full((2 * len(x), x.shape[1]), value, x.dtype)
            y[::2] = x
            if twice:
                y[3] = x[0]
            return y

        return f

    for f in (of(-0.0), of(1.0), of(0.0, twice=True)):
        assert "update_slice" in names(after(f, X))


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 3), axis, axis)
def test_any_pads_of_writes_into_zeros(
    sides: list[int], n: int, rows: slice, columns: slice
) -> None:
    def f(x: Any) -> Any:
        y = np.zeros((6, 6), x.dtype)
        y[rows, columns] = x[rows, columns]
        z = np.pad(np.pad(y, (sides[:2], sides[2:])), n)
        return z, z.sum(), np.pad(z[1:], 1)

    after(f, np.arange(36.0).reshape(6, 6))


def test_a_slice_that_two_values_are_made_of_stays_for_the_second() -> None:
    """It was given up when its first reader was moved, and asked for again by the second."""

    def f(y: Any, u: Any) -> Any:
        y = y * 1
        y[0:3] = u[0:3] * 2
        o = y[0:1].sum()
        y[0:3] = (u + o)[0:3] * 5
        return y

    y, u = np.ones((4, 3)), np.arange(12.0).reshape(4, 3)
    with ge2.config.using(executor="emulator"):
        np.testing.assert_array_equal(ge2.jit(f)(y, u), f(y, u))


def diagonal_of(x: Any, c: Any) -> Any:
    y = np.zeros(c.shape)
    for i in range(x.shape[0]):
        y[i, i] = np.sin(x[i])
    y[1, 1] = 2 * x[0]  # again
    return np.sum(y * c)


def test_an_array_that_slices_alone_read_is_never_written() -> None:
    """The derivative of a loop that writes elements: each would keep an array for its reader."""
    c = np.arange(36.0).reshape(6, 6)
    found = after(ge2.grad(diagonal_of), X[:, 0], c, step=unread_writes)
    assert names(found).count("update_slice") == 0
    step = 1e-6 * np.eye(6)
    wanted = [(diagonal_of(X[:, 0] + d, c) - diagonal_of(X[:, 0] - d, c)) / 2e-6 for d in step]
    np.testing.assert_allclose(ge2.jit(ge2.grad(diagonal_of))(X[:, 0], c), wanted, atol=1e-6)


def test_such_arrays_go_and_others_stay(rng: np.random.Generator) -> None:
    def f(x: Any, c: Any) -> Any:
        y, z = x.copy(), x.copy()
        for i in range(3):
            y[i, 1:3] = c[i, 1:3] + y[i + 1, 1:3]
            z[i] = z[i] * c[i]
        return y[0, 1:3] + y[2, 1:3], z  # of `y` slices alone

    plain = names(ge2.make_jaxpr(f)(X, X + 1).graph).count("update_slice")
    assert (plain, names(after(f, X, X + 1, step=unread_writes)).count("update_slice")) == (6, 3)
    many = rng.normal(size=(40, 40))

    def elements(c: Any) -> Any:
        y = np.zeros((40, 40))
        for i in range(40):
            for j in range(0, 40, 4):
                y[i, j] = c[i, j] ** 2
        return np.sum(y * c)

    ge2.test_util.check_grads(elements, (many,), order=1)


@pytest.mark.parametrize("step", [forward_writes, unread_writes])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=8))
def test_any_order_of_tiles(step: Any, places: list[tuple[int, int, bool]]) -> None:
    """Elements and pairs, written in any order, and each read right after."""

    def f(x: Any, c: Any) -> Any:
        y, read = x.copy(), [c[0, 0]]
        for i, j, pair in places:
            read.append(np.sum(y[i, j : j + 2]) + y[j, 3])
            y[i, j : j + 1 + pair] = read[-1] * c[i, j] + i
        return sum(read)

    after(f, X, X + 1, step=step)
