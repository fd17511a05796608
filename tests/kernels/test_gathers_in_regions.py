"""Reads at indices that a region computes, in C, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from tests.compared import all_close
from tests.exhaustive import examples
from tests.kernels.programs import needs_compiler

pytestmark = needs_compiler
DTYPES = [np.dtype(t) for t in ("f4", "f8", "i4", "u1", "?", "c8", "c16", "f2")]
INDICES = [np.dtype(t) for t in ("i1", "i4", "i8", "u1", "u4", "u8")]


def kernels(f: Callable[..., Any], *args: Any) -> list[str]:
    return [kernel.name for kernel in ge2.jit(f).lower(*args).kernels]


def drawn(draw: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    """A table, the indices of some of its axes, a factor, and whether two axes are exchanged."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 5, 40)), min_size=1, max_size=3)))
    first = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(1, len(shape) - first))
    over = tuple(draw(st.lists(st.sampled_from((0, 1, 3, 33)), min_size=1, max_size=2)))
    indices = []
    for n in shape[first : first + count]:
        dtype = draw(st.sampled_from(INDICES))
        low = 0 if dtype.kind == "u" else -n
        some = over if draw(st.booleans()) else tuple(m if m < 3 else 1 for m in over)
        indices.append(rng.integers(low, n, some).astype(dtype))
    table = rng.integers(-4, 4, shape).astype(draw(st.sampled_from(DTYPES)))
    return table, first, indices


@settings(max_examples=examples(40))
@given(st.data())
def test_as_numpy(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    table, first, indices = drawn(data.draw, rng)
    turned = data.draw(st.booleans())
    how = data.draw(st.sampled_from(("read", "sum", "first", "twice")))

    def f(table: Any, *given: Any) -> Any:
        x = table.T if turned else table
        offset = x.ndim - first - len(indices) if turned else first
        sizes = x.shape[offset : offset + len(indices)]
        some, nothing = given[: len(indices)], given[len(indices) :]
        i = [a + b for a, b in zip(some, nothing, strict=True)][:: -1 if turned else 1]
        before = (slice(None),) * offset
        y = x[(*before, *i)]
        if how == "sum":
            return (y * 2).sum(-1), y.sum(0)
        if how == "first":
            return y + x.ravel()[0], y
        if how == "twice":
            signed = all(j.dtype.kind == "i" for j in i)
            back = [np.where(j < 0, j + n, j - n) for j, n in zip(i, sizes, strict=True)]
            return y + x[(*before, *back)] if signed else y + y
        return y

    nothing = [np.zeros((), i.dtype) for i in indices]
    for threads in (1, 3):
        with config.using(executor="c", threads=threads):
            found = ge2.jit(f)(table, *indices, *nothing)
        wanted = f(table, *indices, *nothing)
        for a, b in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_a_read_is_part_of_the_region_that_computes_its_indices(rng: np.random.Generator) -> None:
    x, at = rng.normal(size=(50, 40)), rng.integers(0, 1000, (30, 20))

    def f(x: Any, at: Any) -> Any:
        return (x[at & 31, (at + 7) & 15] * 2 + 1).sum(1)

    def rows(x: Any, at: Any) -> Any:
        return x[at % 50].mean(1)

    with config.using(executor="c"):
        assert kernels(f, x, at) == ["reduce_0"]
        assert kernels(rows, x, at) == ["rowwise_0"]
        np.testing.assert_allclose(ge2.jit(f)(x, at), f(x, at))
        np.testing.assert_allclose(ge2.jit(rows)(x, at), rows(x, at))


def test_indices_that_a_trace_has_copied_are_read_inside(rng: np.random.Generator) -> None:
    """Unless they are too many to be copied: the caller may write to them while they are read."""
    x = rng.normal(size=(50, 40))

    def resized(x: Any, n: int = 33, m: int = 70) -> Any:
        i, j = np.arange(n) * 50 / n, np.arange(m) * 40 / m
        i0, j0 = i.astype(int)[:, None], j.astype(int)[None, :]
        y = x[i0, j0] * (i[:, None] - i0) + x[-i0, np.minimum(j0 + 1, 39)] * (j - j0)
        return y, y.sum(0), (x[i0, j0] * 2).sum(1)

    def many(x: Any) -> Any:
        return (x[np.arange(1 << 18) % 50, 0] * 2,)

    with config.using(executor="c"):
        assert len(kernels(resized, x)) < 3 and "gather" not in str(kernels(resized, x))
        assert kernels(many, x) == ["gather_0", "pointwise_1"]
        for f in (resized, many):
            all_close(ge2.jit(f)(x), f(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("rows", [1, 40])
def test_an_index_that_stays_along_the_innermost_loop(rows: int) -> None:
    """It is looked at before that loop."""

    def f(x: Any, steps: Any, k: Any) -> Any:
        return x[np.cumsum(steps)[:, None], (np.arange(9) + k)[None]] * 2

    x, steps = np.arange(360.0).reshape(40, 9), np.eye(1, rows, dtype=np.int64)[0]
    with config.using(executor="c"):
        g = ge2.jit(f)
        assert kernels(f, x, steps, 0) == ["cumsum_0", "pointwise_1"]
        for at in (39, -40, 3):
            np.testing.assert_array_equal(g(x, at * steps, 0), f(x, at * steps, 0))
        for at, k, wanted in (
            (40, 0, "40 is out of bounds for axis 0"),
            (-41, 0, "-41"),
            (3, 5, "13"),
        ):
            with pytest.raises(IndexError, match=f"index {wanted}"):
                g(x, at * steps, k)


def test_single_elements_are_read_apart_from_costly_work() -> None:
    """A remainder or a function beside them would be computed element by element, or the reads wait."""
    x, at = np.arange(1.0, 101.0), np.arange(3000)

    with config.using(executor="c"):
        assert kernels(lambda x, at: np.exp(x[at & 63]), x, at) == ["pointwise_0", "pointwise_1"]
        assert kernels(lambda x, at: x[at % 100] + 1, x, at) == ["pointwise_0", "pointwise_1"]
        # vectors have quotients of 32 bits by a number
        assert kernels(lambda x, at: x[at % 100] + 1, x, at.astype(np.int32)) == ["pointwise_0"]
        # functions of few elements are no matter
        few = kernels(lambda x, at: np.log(x[at & 63].sum(1)), x, at.reshape(50, 60))
        assert few == ["rowwise_0"]


def test_what_is_read_is_made_before(rng: np.random.Generator) -> None:
    """A table is never computed by the region that reads it at indices."""
    x, at = rng.normal(size=100), rng.integers(0, 100, 100)

    def f(x: Any, at: Any) -> Any:
        i = (at * 3) & 63
        y = np.sin(x)
        z = y[i] + y
        return z[i] * z, y

    with config.using(executor="c"):
        assert len(kernels(f, x, at)) == 3
        all_close(ge2.jit(f)(x, at), f(x, at), rtol=1e-14)


@pytest.mark.parametrize("bad", [9, -10, 2**40, -(2**63)])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_index_outside_is_an_error_that_names_it(bad: int, threads: int) -> None:
    at = np.zeros((400, 300), np.int64)
    at[3, 200], at[390, 7] = bad, 8

    def f(x: Any, at: Any) -> Any:
        return np.exp(x[at + 0 * at]) * 2

    with config.using(executor="c", threads=threads):
        g = ge2.jit(f)
        with pytest.raises(
            IndexError,
            match=f"index {bad} is out of bounds for axis 0 with size 9\n  at   test_gathers_in",
        ):
            g(np.arange(9.0), at)
        at[3, 200] = -9
        np.testing.assert_array_equal(g(np.arange(9.0), at), f(np.arange(9.0), at))


def test_of_many_outside_the_same_is_named_by_any_number_of_threads() -> None:
    at = np.arange(-100_000, 300_000)

    def f(x: Any, at: Any) -> Any:
        return x[at * 1 + 0 * at, np.where(at > 0, at, 0)] * np.sin(at)

    for threads in (1, 3):
        with config.using(executor="c", threads=threads):
            with pytest.raises(IndexError, match="index -100000 is out of bounds for axis 0"):
                ge2.jit(f)(np.ones((5, 4)), at)
            with pytest.raises(IndexError, match="index 299999 is out of bounds for axis 0"):
                ge2.jit(f)(np.ones((5, 4)), np.maximum(at, 0))


def test_an_index_outside_in_an_outer_loop(rng: np.random.Generator) -> None:
    x, at = rng.normal(size=(9, 40)), np.array([3, 1, 9, -1])

    def f(x: Any, at: Any) -> Any:
        return x[at + np.minimum(at, 0) * 0] + 1

    with config.using(executor="c"):
        with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 9"):
            ge2.jit(f)(x, at)
        np.testing.assert_array_equal(ge2.jit(f)(x, at[:2]), f(x, at[:2]))


def test_a_result_lies_nowhere_in_what_is_read() -> None:
    """The result of elements side by side may take the memory of an operand; here it may not."""

    def f(x: Any, at: Any) -> Any:
        y = np.sqrt(x)
        i = len(x) - 1 - np.minimum(at, 3000)
        return y[i] + 1.0

    x, at = np.arange(3001.0), np.arange(3001)
    with config.using(executor="c"):
        np.testing.assert_array_equal(ge2.jit(f, donate_argnums=(0,))(x.copy(), at), f(x, at))


def test_derivatives_and_batches(rng: np.random.Generator) -> None:
    x, at = rng.normal(size=(30, 6)), rng.integers(0, 500, (3, 20))

    def f(x: Any, at: Any) -> Any:
        return (np.tanh(x[at % 30]) ** 2).sum()

    with config.using(executor="c"):
        found = ge2.jit(ge2.vmap(ge2.grad(f), (None, 0)))(x, at)
        by_hand = np.zeros((3, 30, 6))
        for k in range(3):
            np.add.at(by_hand[k], at[k] % 30, 1.0)
        by_hand *= 2 * np.tanh(x) * (1 - np.tanh(x) ** 2)
        np.testing.assert_allclose(found, by_hand, rtol=1e-12)


def test_places_that_are_kept_have_names_of_their_own(rng):
    """Attention with a bias for each distance: values in the scratch of a thread, and places beside them."""

    def f(scores, bias):
        i = np.arange(20)
        e = scores + bias[i[:, None] - i + 19].transpose(2, 0, 1)
        e = np.exp(e - e.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    args = rng.standard_normal((16, 12, 20, 20)), rng.standard_normal((39, 12))
    np.testing.assert_allclose(ge2.jit(f)(*args), f(*args), 1e-13)
