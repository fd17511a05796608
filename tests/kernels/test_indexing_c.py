"""Gather and scatter in C against their references: every dtype, any views, any
axes, and indices outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import INTEGERS, SHORT
from ge2.base.compiler import significant
from ge2.base.config import config
from ge2.ops.index import Gather, Scatter, ScatterAdd, ScatterMax, ScatterMin
from ge2.ops.reduce import kept
from ge2.ops.shape import Reshape, Rev, Transpose
from ge2.passes.take_to_mask import Index
from tests.exhaustive import covering
from tests.kernels.programs import Programs, alike, eager_threads, needs_compiler, numbers

pytestmark = [needs_compiler, pytest.mark.usefixtures("eager_threads")]
__all__ = ["eager_threads"]
DTYPES, INDICES = list(SHORT), sorted(INTEGERS, key=str)


def drawn(draw: Any, programs: Programs, op: type[Any]) -> None:
    """One operation on views of random arrays."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5, 70)), min_size=1, max_size=3)))
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    over = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 4, 9)), max_size=2)))
    dtype = draw(st.sampled_from(DTYPES))
    indices = []
    for axis in axes:
        kind, n = draw(st.sampled_from(INDICES)), shape[axis]
        low = 0 if kind.kind == "u" else -n
        size = over if draw(st.booleans()) or axis == axes[0] else ()
        indices.append(programs.view(draw, rng.integers(low, n, size).astype(kind)))
    x = programs.view(draw, numbers(rng, shape, dtype))
    if op is Gather:
        programs.add(op(axes), x, *indices)
        return
    rest = tuple(shape[a] for a in kept(axes, len(shape)))
    programs.add(op(axes), x, programs.view(draw, numbers(rng, (*over, *rest), dtype)), *indices)


@settings(max_examples=4)
@given(st.data(), st.sampled_from((Gather, ScatterAdd, ScatterMax, ScatterMin, Scatter)))
def test_as_the_references(data: st.DataObject, op: type[Any]) -> None:
    programs = Programs()
    for _ in range(6):
        drawn(data.draw, programs, op)
    programs.check()


@pytest.mark.parametrize("width", [0, 1, 3, 4, 16, 17])
def test_short_rows_at_many_indices(width: int) -> None:
    """Where they begin is found for 256 indices at a time: of one axis and of two, in steps, from
    the end, and where one index is a number.
    """
    rng, programs, n = np.random.default_rng(width), Programs(), 777
    row = (width,) if width else ()
    kinds, ways = (np.int64, np.int32, np.uint8), range(4)
    taken_at = lambda case: {("kind", case[0]), ("axes", case[1])}  # noqa: E731
    name = lambda case: f"{width} at {case}"  # noqa: E731
    wanted = covering([(kind, way) for kind in kinds for way in ways], name, taken_at)
    for kind in kinds:
        low = 0 if kind is np.uint8 else -9
        near, far = (rng.integers(low, 9, (n, 2)).astype(kind)[:, k] for k in (0, 1))
        views = programs.given(near), programs.apply(Rev((0,)), programs.given(far))
        x = rng.random((9, 11, *row))
        each = (views[0], near), (views[1], far[::-1])
        one = programs.given(np.array(5, kind)), np.array(5, kind)
        cases = ((0, 1), each), ((0, 1), (one, each[0])), ((1,), each[:1]), ((0,), each[1:])
        for axes, taken in [case for n, case in enumerate(cases) if (kind, n) in wanted]:
            rest = tuple(m for a, m in enumerate(x.shape) if a not in axes)
            updates = rng.random((n, *rest))
            programs.add(Gather(axes), (programs.given(x), x), *taken)
            for op in (ScatterAdd, ScatterMax, Scatter):
                given = (programs.given(x), x), (programs.given(updates), updates)
                programs.add(op(axes), *given, *taken)
    programs.check()


@pytest.mark.parametrize("index", [7, -6, 300, -(2**63), 2**63 - 1])
def test_the_first_index_outside_is_named(index: int) -> None:
    bad = np.zeros((4, 200), np.int64)
    bad[2, 150] = index
    bad[3, 1] = 100
    programs = Programs()
    x, i = np.arange(15.0).reshape(5, 3), programs.given(bad)
    var, updates = programs.given(x), programs.given(np.zeros((4, 200, 3)))
    programs.outs = [programs.apply(Gather((0,)), var, i)]
    with pytest.raises(IndexError, match=f"index {index} is out of bounds for axis 0 with size 5"):
        programs.compiled()(*programs.arrays)
    for op in (ScatterAdd((0,)), Scatter((0,))):
        programs.eqns, programs.outs = [], []
        programs.outs = [programs.apply(op, var, updates, i)]
        with pytest.raises(
            IndexError, match=f"index {index} is out of bounds for axis 0 with size 5"
        ):
            programs.compiled()(*programs.arrays)
        with pytest.raises(IndexError, match=f"index {index} is out of bounds"):
            op.reference(x, np.zeros((4, 200, 3)), bad)


def test_every_axis_and_every_integer_is_checked() -> None:
    for k, kind in enumerate(INDICES):
        programs = Programs()
        good, bad = np.array([1, 0], kind), np.array([1, 5 + k], kind)
        x = programs.given(np.zeros((2, 5)))
        programs.outs = [
            programs.apply(Gather((0, 1)), x, programs.given(good), programs.given(bad))
        ]
        with pytest.raises(
            IndexError, match=f"index {5 + k} is out of bounds for axis 1 with size 5"
        ):
            programs.compiled(1)(*programs.arrays)


def test_nothing_can_be_read_of_an_empty_axis() -> None:
    programs = Programs()
    x, i = programs.given(np.zeros((0, 3))), programs.given(np.zeros(2, int))
    programs.outs = [programs.apply(Gather((0,)), x, i)]
    with pytest.raises(IndexError, match="index 0 is out of bounds for axis 0 with size 0"):
        programs.compiled()(*programs.arrays)


def test_the_error_names_the_users_line_and_the_next_call_is_unharmed() -> None:
    with config.using(executor="c"):
        f = ge2.jit(lambda x, i: 2 * x[i])
        x = np.arange(5.0)
        with pytest.raises(
            IndexError, match="bounds for axis 0 with size 5\n  at   test_indexing_c.py"
        ):
            f(x, np.array([0, 7]))
        np.testing.assert_array_equal(f(x, np.array([0, -1])), [0, 8])


def test_another_size_compiles_nothing() -> None:
    texts = set()
    for n, m in ((20, 30), (21, 77)):
        programs = Programs()
        x, i = programs.given(np.zeros((n, 4), np.float32)), programs.given(np.zeros(m, int))
        u = programs.given(np.zeros((m, 4), np.float32))
        programs.outs = [
            programs.apply(Gather((0,)), x, i),
            programs.apply(ScatterAdd((0,)), x, u, i),
        ]
        texts.add(significant(programs.compiled().source()))
    assert len(texts) == 1


def test_sums_begin_where_their_zeros_were_made() -> None:
    """The arena holds what is added, and no zeros."""
    with config.using(executor="c"):
        f = ge2.jit(ge2.grad(lambda x, i: (x[i] ** 2).sum()))
        x, i = np.arange(6.0).reshape(3, 2), np.array([0, 2, 0])
        np.testing.assert_array_equal(f(x, i), [[0, 4], [0, 0], [8, 10]])
        assert f.lower(x, i).executable.memory_analysis().arena <= 2 * 64


def test_sums_are_returned_in_another_form() -> None:
    x, u, i = np.ones((4, 2)), np.arange(6.0).reshape(3, 2), np.array([1, 3, 1])
    programs = Programs()
    total = programs.apply(Reshape((2, 4)), programs.given(x))
    again = programs.apply(Reshape((4, 2)), programs.apply(Transpose((1, 0)), total))
    summed = programs.apply(ScatterAdd((0,)), again, programs.given(u), programs.given(i))
    programs.outs = [programs.apply(Reshape((8,)), summed)]
    y = programs.compiled()(*programs.arrays)[0]
    np.testing.assert_array_equal(y, ScatterAdd((0,)).reference(x, u, i).reshape(8))


def test_an_update_of_itself_reads_before_it_writes() -> None:
    def shifted(x: Any) -> Any:
        x[1:] = x[:-1]
        return x

    with config.using(executor="c"):
        f = ge2.jit(lambda x: shifted(x.copy()), donate_argnums=(0,))
        np.testing.assert_array_equal(f(np.arange(6.0)), [0, 0, 1, 2, 3, 4])


def test_wrapped_indices() -> None:
    programs = Programs()
    for kind in INDICES:
        low = 0 if kind.kind == "u" else -9
        i = np.arange(low, 9).astype(kind)
        programs.add(Index(9, 1), (programs.given(i), i))
    programs.check()
    programs = Programs()
    programs.outs = [programs.apply(Index(9, 1), programs.given(np.array([3, -10, 12])))]
    with pytest.raises(IndexError, match="index -10 is out of bounds for axis 1 with size 9"):
        programs.compiled()(*programs.arrays)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i4", "u1"])
def test_many_updates_of_few_places(dtype: str, rng: np.random.Generator) -> None:
    """Each stretch is summed in places of its own; the same for any number of threads."""
    n, places = 150_000, 60
    index = rng.integers(-places, places - 1, n)  # one place has none
    index[index == -1] = 0
    updates = (rng.normal(size=n) * 4).astype(dtype)
    x = np.full(places, -0.0 if dtype[0] == "f" else 1).astype(dtype)

    def added(x: Any, index: Any, updates: Any) -> Any:
        x = x.copy()
        np.add.at(x, index, updates)
        return x

    found = []
    for threads in (1, 3):
        with config.using(executor="c", threads=threads):
            found.append(ge2.jit(added)(x, index, updates))
    assert found[0].tobytes() == found[1].tobytes()
    if dtype[0] in "iu":
        np.testing.assert_array_equal(found[0], added(x, index, updates))
        return
    wanted = np.zeros(places)
    np.add.at(wanted, index, updates.astype(np.float64))
    np.testing.assert_allclose(found[0], wanted, rtol=4 * np.finfo(dtype).eps, atol=1e-3)
    assert np.signbit(found[0][-1]) and found[0][-1] == 0


@pytest.mark.parametrize("order", ["sorted", "sorted at first", "at first not", "one"])
def test_updates_of_places_in_a_row(order: str, rng: np.random.Generator) -> None:
    """The same bits as one after the other, whether the first places of a stretch are the same or not."""
    n, places = 150_000, 60
    index = np.sort(rng.integers(0, places, n))
    if order == "one":
        index[:] = 7
    elif order != "sorted":
        part = slice(3000, None) if order == "sorted at first" else slice(0, 3000)
        rng.shuffle(index[part])
    updates = rng.integers(-1000, 1000, n) * 0.25  # sums of which are exact
    wanted = np.zeros(places)
    np.add.at(wanted, index, updates)
    low = np.full(places, np.inf)
    np.minimum.at(low, index, updates)

    def added(x: Any, y: Any, index: Any, updates: Any) -> Any:
        x, y = x.copy(), y.copy()
        np.add.at(x, index, updates)
        np.minimum.at(y, index, updates)
        return x, y

    x, y = np.zeros(places), np.full(places, np.inf)
    for threads in (1, 3):
        with config.using(executor="c", threads=threads):
            for found, z in zip(ge2.jit(added)(x, y, index, updates), (wanted, low), strict=True):
                alike(found, z)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i4", "u1", "?", "c16"])
def test_extremes_of_few_places_are_numpys_to_the_bit(dtype: str, rng: np.random.Generator) -> None:
    """NaN, infinities and zeros of either sign included; also by many threads, stretch by stretch."""
    n, places = 150_000, 60
    index = rng.integers(-places, places - 1, n)  # one place has none
    index[index == -1] = 0
    updates = rng.normal(size=n).astype(dtype)
    special = rng.choice(n, 200, replace=False)
    if dtype[0] in "fc":
        updates[special] = rng.choice([0.0, -0.0, np.inf, -np.inf], 200)
        updates[index == 3] = 0.0 * rng.choice([-1.0, 1.0], (index == 3).sum())
        updates[np.flatnonzero(index == 4)[2:4]] = np.nan
    x = np.full(places, -0.0 if dtype[0] in "fc" else 1).astype(dtype)

    def extremes(x: Any, index: Any, updates: Any) -> Any:
        top, low = x.copy(), x.copy()
        np.maximum.at(top, index, updates)
        np.minimum.at(low, index, updates)
        return top, low

    with np.errstate(invalid="ignore"):
        wanted = extremes(x, index, updates)
    for threads in (1, 3):
        with config.using(executor="c", threads=threads):
            for found, y in zip(ge2.jit(extremes)(x, index, updates), wanted, strict=True):
                alike(found, y)
