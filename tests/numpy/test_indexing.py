"""Reading and writing by index: every key that NumPy takes, and NumPy's errors."""

from __future__ import annotations

import array as arrays
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
import ge2.numpy as gnp
from ge2.base.config import config
from ge2.base.errors import (
    ConcretizationTypeError,
    InPlaceError,
    InputError,
    OutOfBoundsError,
    ShapeError,
)
from ge2.ir import type_of
from ge2.trace import Input, stage
from tests.exhaustive import sampled
from tests.numpy.agreement import DTYPES, agree, attempt, compare, draw, traced

SHAPE = (3, 4, 2, 3)
OF_NO_AXIS = (None, None, None, True, False, np.True_, np.array(True), np.array(False))
X = np.arange(72).reshape(SHAPE)


@st.composite
def parts(draw: st.DrawFn, n: int) -> Any:
    """One part of a key, for an axis of size n; now and then outside."""
    index = st.integers(-n, n - 1)
    bound = st.none() | st.integers(-n - 2, n + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    arrays = st.lists(index, min_size=1, max_size=3)
    return draw(
        index
        | st.builds(slice, bound, bound, step)
        | index.map(np.int64)
        | arrays
        | st.lists(index, min_size=3, max_size=3).map(np.array)
        | st.lists(index, min_size=2, max_size=2).map(lambda x: np.array(x)[:, None])
        | st.lists(st.booleans(), min_size=n, max_size=n).map(np.array)
        | st.just(slice(None))
    )


def masks(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    size = int(np.prod(shape))
    given = st.lists(st.booleans(), min_size=size, max_size=size)
    return given.map(lambda on: np.array(on).reshape(shape))


@st.composite
def keys(draw: st.DrawFn) -> Any:
    """A key for an array of that shape."""
    before = draw(st.integers(0, len(SHAPE)))
    key = [draw(parts(n)) for n in SHAPE[:before]]
    if before >= 2 and draw(st.booleans()):
        key[:2] = [draw(masks(SHAPE[:2]))]
    if draw(st.booleans()):
        after = draw(st.integers(0, len(SHAPE) - before))
        key += [Ellipsis, *(draw(parts(n)) for n in SHAPE[len(SHAPE) - after :])]
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), draw(st.sampled_from(OF_NO_AXIS)))
    return key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


def get(key: Any) -> Any:
    return lambda x: x[key]


@given(keys())
def test_reading(key: Any) -> None:
    want = attempt(get(key), X)
    compare(want, attempt(gnp.getitem, X, key), True, str(key))
    compare(want, attempt(traced, get(key), X), True, f"traced {key}")


@given(keys())
def test_reading_with_traced_indices(key: Any) -> None:
    key = key if type(key) is tuple else (key,)
    places = [
        i
        for i, k in enumerate(key)
        if isinstance(k, np.ndarray | np.int64) and k.dtype != np.dtype(bool)
    ]
    want = attempt(get(key), X)
    got = attempt(traced, lambda x, *key: x[key], X, *key, only=[0, *(i + 1 for i in places)])
    compare(want, got, True, f"{key}, arrays traced")


@given(keys(), st.data())
def test_writing(key: Any, data: st.DataObject) -> None:
    seen = attempt(get(key), X)
    if (
        isinstance(seen, Exception) or len(np.unique(seen[0])) < seen[0].size
    ):  # NumPy promises no order of writes
        return
    shape = data.draw(st.sampled_from([seen[0].shape, (), seen[0].shape[-1:], (1, *seen[0].shape)]))
    value = -1 - np.arange(int(np.prod(shape))).reshape(shape)
    want = X.copy()
    want[key] = value
    compare([want], attempt(gnp.setitem, X, key, value), True, str(key))

    def write(x: Any, value: Any) -> Any:
        y = x.copy()
        y[key] = value
        return y

    compare([want], attempt(traced, write, X, value), True, f"traced {key}")


@pytest.mark.parametrize("key", [5, -4, (0, 0, 2), (slice(None), 4), [0, 3], np.array([[-4]]),
                                 (0,) * 5, (..., ...), 1.5, "a", [0.5],
                                 ([0, 1], [0, 1, 2]), np.ones(4, bool), np.ones((3, 3), bool),
                                 (0, np.ones(3, bool))], ids=str)  # fmt: skip
def test_bad_keys(key: Any) -> None:
    want, got = attempt(get(key), X), attempt(gnp.getitem, X, key)
    assert isinstance(want, IndexError) and isinstance(got, IndexError | TypeError), got
    assert isinstance(attempt(gnp.setitem, X, key, 0), IndexError | TypeError)
    assert isinstance(attempt(traced, get(key), X), IndexError | TypeError)


def test_errors_speak_as_numpy_does() -> None:
    x = np.ones((2, 3), "f4")
    with pytest.raises(OutOfBoundsError, match="index 5 is out of bounds for axis 1 with size 3"):
        gnp.getitem(x, (0, 5))
    with pytest.raises(
        OutOfBoundsError,
        match="too many indices for array: array is 2-dimensional, but 3 were indexed",
    ):
        gnp.getitem(x, (0, 0, 0))
    with pytest.raises(
        ShapeError,
        match=r"could not broadcast input array from shape \(4,\) into shape \(3,\) of f32\[2,3\]",
    ):
        gnp.setitem(x, 0, np.ones(4))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        traced(lambda x, i: x[i], x, np.int64(7))


@pytest.mark.parametrize("mask", [(0,), (0, 3), (0, 4), (3, 0), (0, 0), (3, 4, 0)])
def test_masks_that_are_empty_along_an_axis(mask: tuple[int, ...]) -> None:
    on = np.zeros(mask, bool)
    want = attempt(get(on), X)
    compare(want, attempt(traced, lambda x, m: x[m], X, on), True, f"traced {mask}")

    def write(x: Any, m: Any) -> Any:
        y = x.copy()
        y[m] = 7
        return y

    compare(attempt(write, X, on), attempt(traced, write, X, on), True, f"writing {mask}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writing_casts(dtype: np.dtype, rng: np.random.Generator) -> None:
    x = draw(rng, dtype, (3, 4))
    for value in (1, True, draw(rng, "f8", (4,), 0), draw(rng, "i1", (3, 1), 0)):
        want = x.copy()
        want[1:, ::2] = np.broadcast_to(value, (3, 4))[1:, ::2]
        compare(
            [want],
            [
                gnp.setitem(
                    x,
                    (slice(1, None), slice(None, None, 2)),
                    np.broadcast_to(value, (3, 4))[1:, ::2],
                )
            ],
            True,
            str(dtype),
        )
        want[1] = np.broadcast_to(value, (3, 4))[1]
    compare(
        [np.where(np.eye(3, 4, dtype=bool), dtype.type(1), x)],
        [gnp.setitem(x, np.eye(3, 4, dtype=bool), 1)],
        True,
        "mask",
    )
    agree(lambda x: x[2], x, ours=lambda x: gnp.getitem(x, 2))


def test_the_last_of_several_values_for_one_place_stays() -> None:
    assert gnp.setitem(np.zeros(3), [1, 1, 1], [5.0, 6.0, 7.0]).tolist() == [0, 7, 0]


# -------------------------------------------------------------------------------------------- masks


def test_a_known_mask_is_an_index_array() -> None:
    mask = X % 5 == 0
    agree(get(mask), X, ours=lambda x: gnp.getitem(x, mask))
    agree(get(mask[0]), X[0], ours=lambda x: gnp.getitem(x, mask[0]))


def test_a_traced_mask_is_an_error_that_offers_where() -> None:
    x = np.arange(4.0)
    with pytest.raises(
        ConcretizationTypeError,
        match=r"depends on the values of mask, which is traced bool\[4\](.|\n)*try  np.where",
    ):
        traced(lambda x: x[x > 1], x)
    for f in (
        np.nonzero,
        np.flatnonzero,
        np.argwhere,
        lambda x: np.compress(x > 1, x),
        lambda x: np.extract(x > 1, x),
    ):
        with pytest.raises(ConcretizationTypeError, match="depends on the values of"):
            traced(f, x)


def test_a_traced_mask_takes_a_number() -> None:
    x = np.arange(12.0).reshape(3, 4)

    def clip(x: Any) -> Any:
        y = x.copy()
        y[y > 5] = 0
        y[y[:, 0] > 3] = [1.0, 2.0, 3.0, 4.0]
        return y

    compare([clip(x)], [traced(clip, x)], True, "mask")


def test_a_traced_mask_takes_as_many_values_as_it_chooses() -> None:
    x = np.arange(12.0).reshape(3, 4)

    def write(x: Any, n: int) -> Any:
        y = x.copy()
        y[y > 5] = np.arange(float(n))
        return y

    for n in (1, 6):
        compare([write(x, n)], [traced(write, x, n)], True, f"{n} values")
    for n in (2, 5, 7, 12):
        with pytest.raises(IndexError, match="out of bounds"):
            traced(write, x, n)


# ---------------------------------------------------------------------------------------- functions


def test_take(rng: np.random.Generator) -> None:
    for axis in (None, 0, 1, -1):
        for index in (1, [0, 1], np.array([[0, -1], [1, 0]]), []):
            agree(np.take, X, index, axis)
            agree(np.take, X, index, axis, mode="wrap")
    for mode in ("clip", "wrap", "raise"):
        agree(np.take, X, np.array([-9, 7]), 1, mode=mode, trace=mode != "raise")
    with pytest.raises(InputError, match="indices are integers"):  # NumPy truncates
        gnp.take(X, [0.5], 1)
    agree(np.take, X, 0, 7)


def test_take_along_axis(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 2))
    for axis in (0, 1, -1):
        agree(np.take_along_axis, x, np.argsort(x, axis), axis)
    agree(np.take_along_axis, x, np.array([[[0]], [[3]], [[-1]]]), 1)
    agree(np.take_along_axis, x, np.array([3, 0]), None)
    agree(np.take_along_axis, x, np.array([3, 0]), 1)
    agree(np.take_along_axis, x, np.array([[[4]]]), 1, trace=False)
    agree(np.take_along_axis, x, np.array([[[0.5]]]), 1)


def test_choosing_and_others() -> None:
    agree(np.choose, np.array([[0, 1], [2, 1]]), [X[0, :2, 0, 0], 7, X[1, :2, :2, 0]])
    agree(np.choose, np.array([0, 5, -1]), [10, 20, 30], mode="clip")
    agree(np.choose, np.array([0, 5, -1]), [10, 20, 30], mode="wrap")
    agree(np.unravel_index, np.array([5, 11, 0]), (3, 4))
    agree(np.compress, [True, False, True], X, 0)
    agree(np.extract, X % 2 == 0, X, trace=False)
    want, got = np.ix_([0, 2], [True, False, True]), gnp.ix_([0, 2], [True, False, True])
    compare(list(want), list(got), True, "ix_")


def test_one_hot() -> None:
    x = np.array([[0, 2], [1, 5]])
    want = np.concatenate([np.eye(3), np.zeros((3, 3))])[x]
    compare([want], [gnp.one_hot(x, 3)], True, "one_hot")
    compare(
        [want.astype("f4")], [traced(lambda x: gnp.one_hot(x, 3, dtype="f4"), x)], True, "one_hot"
    )
    compare([np.moveaxis(want, -1, 0)], [gnp.one_hot(x, 3, axis=0)], True, "one_hot")


@pytest.mark.parametrize("wrap", [False, True])
def test_diagonals_are_filled_as_numpys(wrap: bool) -> None:
    for shape in ((7, 3), (3, 7), (3, 3, 3)):
        for value in (9, np.arange(1.0, 6.0)):

            def run(x: Any, value: Any = value) -> Any:
                y = x.copy()
                np.fill_diagonal(y, value, wrap)
                return y

            x = np.zeros(shape)
            compare([run(x)], [traced(run, x)], True, f"{shape} {value}")
    with pytest.raises(ShapeError, match="equal sides"):
        traced(lambda x: np.fill_diagonal(x.copy(), 1), np.zeros((2, 3, 2)))


def test_writing_functions() -> None:
    def run(x: Any) -> Any:
        y = x.copy()
        np.put_along_axis(y, np.array([[1], [0], [2]]), -1, 1)
        np.copyto(y, 7, where=y == 5)
        np.put(y, [0, -1], [100, 200])
        np.putmask(y, y == 4, -4)
        np.fill_diagonal(y, 9)
        return y

    x = np.arange(12.0).reshape(3, 4)
    compare([run(x)], [traced(run, x)], True, "writing")
    with pytest.raises(InPlaceError, match="write a traced value into a real array"):
        traced(lambda x: gnp.copyto(np.bartlett(4), x[0]), x)


def test_put_repeats_its_values_in_their_own_order(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3))
    for index, values, mode in (
        ([[0, 1, 2], [3, 4, 5]], [[1.0], [2.0]], "raise"),
        ([0, 2, -1], [57, 58], "raise"),
        ([0, 7, -9], [1, 2, 3, 4], "wrap"),
        ([0, 7, -9], [1, 2], "clip"),
        ([1], [], "raise"),
        ([], [1.0], "raise"),
    ):

        def run(x: Any, index: Any = index, values: Any = values, mode: Any = mode) -> Any:
            y = x.copy()
            np.put(y, index, values, mode)
            return y

        compare([run(x)], [traced(run, x)], True, f"{index} {values} {mode}")


# ------------------------------------------------------------------------------------------- graphs


def names(f: Any, *shapes: tuple[int, ...]) -> list[str]:
    return [
        e.op.name
        for e in stage(
            lambda *xs: [f(*xs)], [Input(type_of(np.ones(s))) for s in shapes]
        ).graph.eqns
    ]


def test_basic_keys_are_views() -> None:
    assert names(lambda x: x[:], (3, 4)) == names(lambda x: x[...], (3, 4)) == []
    assert names(lambda x: x[1:, ::2], (3, 4)) == ["slice"]
    assert names(lambda x: x[1], (3, 4)) == ["slice", "reshape"]
    assert names(lambda x: x[None], (3, 4)) == ["reshape"]
    assert names(lambda x: x[::-1], (3, 4)) == ["rev"]
    assert names(lambda x: x[[0, 2]], (3, 4)) == ["gather"]
    assert names(lambda x: x[np.arange(3), [0, 1, 0]], (3, 4)) == ["gather"]
    assert names(lambda x: gnp.setitem(x, slice(1, 2), 0), (3, 4)) == [
        "broadcast_in_dim",
        "update_slice",
    ]


def written_at(x: Any, key: Any, v: Any, way: str) -> Any:
    y = x.copy()
    if way == "set":
        y[key] = v
    elif way == "augmented":
        y[key] += v
    else:
        np.add.at(y, key, v)
    return y


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (3, 1, 3), (1, 3, 1)])
def test_an_integer_beside_index_arrays_drops_an_axis_of_size_one(shape: tuple[int, ...]) -> None:
    """No slice leaves anything out there, and yet the axis is not written along."""
    x, i, a = np.arange(float(np.prod(shape))).reshape(shape), np.int64(0), np.array([0, 0])
    parts = {
        "i": lambda i, a: i,
        "0": lambda i, a: 0,
        "a": lambda i, a: a,
        ":": lambda i, a: slice(None),
        "::-1": lambda i, a: slice(None, None, -1),
    }
    for names in itertools.product(parts, repeat=len(shape)):
        if "0" not in names or not {"i", "a"} & {*names}:
            continue

        def f(x: Any, i: Any, a: Any, v: Any, way: str, names: Any = names) -> Any:
            return written_at(x, tuple(parts[n](i, a) for n in names), v, way)

        for way in ("set", "augmented", "at"):
            v = np.full(x[tuple(parts[n](i, a) for n in names)].shape, 7.0)
            with config.using(executor="reference"):
                found = ge2.jit(f, static_argnums=4)(x, i, a, v, way)
            np.testing.assert_array_equal(found, f(x, i, a, v, way), str((names, way)))


EMPTY = [[[]], [[[]]], ([[]], [[]]), (slice(None), [[], []]), (0, [[]])]


@pytest.mark.parametrize("key", EMPTY, ids=str)
def test_nested_empty_lists_are_indices_of_none(key: Any) -> None:
    def f(x: Any) -> Any:
        y = x * 1
        y[key] = 7
        return x[key], y

    for got, want in zip(traced(f, X), f(X), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.shape == want.shape and got.dtype == want.dtype


def changed(write: Callable[..., None]) -> Callable[..., Any]:
    def f(x: Any, y: Any, *masks: Any) -> Any:
        x = x.copy()
        write(x, y, *masks)
        return x

    return f


def write(x: Any, key: Any, value: Any) -> None:
    x[key] = value


def add(x: Any, key: Any, value: Any) -> None:
    x[key] += value


# of x and y of shape (3, 4, 2), and masks of shapes (3,), (4,), (2,) and (3, 4)
MASKED: dict[str, Callable[..., Any]] = {
    "x[m, 1] = 7": changed(lambda x, y, m, n, o, mn: write(x, (m, 1), 7)),
    "x[m, 1, 0] = y[m, 0, 1]": changed(lambda x, y, m, n, o, mn: write(x, (m, 1, 0), y[m, 0, 1])),
    "x[m, :, 0] += y[m, :, 0] ** 2": changed(
        lambda x, y, m, n, o, mn: add(x, (m, slice(None), 0), y[m, :, 0] ** 2)
    ),
    "x[:, n] = y[:, n]": changed(lambda x, y, m, n, o, mn: write(x, (slice(None), n), y[:, n])),
    "x[:, n] = y[0, n] + 1": changed(
        lambda x, y, m, n, o, mn: write(x, (slice(None), n), y[0, n] + 1)
    ),
    "x[1, n] = y[:, n][1]": changed(lambda x, y, m, n, o, mn: write(x, (1, n), y[1][n] * 2)),
    "x[..., o] *= 2": changed(lambda x, y, m, n, o, mn: write(x, (..., o), x[..., o] * 2)),
    "x[..., o] = y[1, 1, o]": changed(
        lambda x, y, m, n, o, mn: write(x, (..., o), y[1, 1, o] - x[..., o])
    ),
    "x[m, ::-1] = y[m]": changed(
        lambda x, y, m, n, o, mn: write(x, (m, slice(None, None, -1)), y[m])
    ),
    "x[mn, 1] = y[mn, 0]": changed(lambda x, y, m, n, o, mn: write(x, (mn, 1), y[mn, 0])),
    "x[1:, n, 0] = row": changed(
        lambda x, y, m, n, o, mn: write(x, (slice(1, None), n, 0), y[0, 0, 1])
    ),
    "x[m, :, 1] = 0": changed(lambda x, y, m, n, o, mn: write(x, (m, slice(None), 1), 0)),
    "sum": lambda x, y, m, n, o, mn: x[m].sum() + np.sum(np.exp(x[:, n]), axis=1),
    "sum of rows": lambda x, y, m, n, o, mn: x[m].sum(axis=0),
    "sum of columns": lambda x, y, m, n, o, mn: x[..., o].sum(-1),
    "prod, all": lambda x, y, m, n, o, mn: x[mn].prod() + (x[mn] > 0.5).all(),
    "any": lambda x, y, m, n, o, mn: np.any(x[m] > y[m], axis=(0, 2)),
    "count": lambda x, y, m, n, o, mn: np.count_nonzero(x[mn] > y[mn]),
    "ints": lambda x, y, m, n, o, mn: (x[mn] * 9).astype(int).sum(dtype=np.int16),
    "reduce": lambda x, y, m, n, o, mn: np.add.reduce(x[m] * y[m]),
    "ge2's": lambda x, y, m, n, o, mn: gnp.sum(gnp.cos(x[m]), axis=0),
    "x[np.where(mn)] = y[mn] * 2": changed(
        lambda x, y, m, n, o, mn: write(x, np.where(mn), y[mn] * 2)
    ),
    "x[np.nonzero(m)[0], 1] += 1": changed(
        lambda x, y, m, n, o, mn: add(x, (np.nonzero(m)[0], 1), 1)
    ),
    "x[:, i] = y[:, i], i of fewer": changed(
        lambda x, y, m, n, o, mn: write(
            x, (slice(None), gnp.flatnonzero(n[1:])), y[:, n[1:].nonzero()[0]]
        )
    ),
    "compress": lambda x, y, m, n, o, mn: np.compress(n[:3], x, axis=1).sum(1),
    "extract": lambda x, y, m, n, o, mn: np.extract(x > y, x * y).sum() + np.compress(n, y).sum(),
    "indices": lambda x, y, m, n, o, mn: np.where(mn)[1].sum() + x[np.where(mn)].sum(),
    "size": lambda x, y, m, n, o, mn: x.sum() * (x[:, n].size + np.nonzero(mn)[0].size),
}
FILLED: dict[str, Callable[..., Any]] = {
    "mean, var": lambda x, y, m, n, o, mn: np.mean(x[m]) + np.var(x[mn], ddof=1),
    "average, std": lambda x, y, m, n, o, mn: np.average(x[:, n], axis=1) + y[0, n].std(),
    "max": lambda x, y, m, n, o, mn: x[m].max() - np.min(y[:, n], axis=1),
    "ge2's": lambda x, y, m, n, o, mn: gnp.max(gnp.log(x[m]), axis=0) + gnp.mean(x[m]),
    "first": lambda x, y, m, n, o, mn: x[m][0] * np.where(mn)[0][-1] + y[np.nonzero(m)[0][0]],
}


@pytest.mark.parametrize("kind", ["some", "all", "none"])
def test_what_a_traced_mask_chooses_is_written_and_reduced(kind: str) -> None:
    """Of a sample of the programs; of every one under `--all`."""
    rng = np.random.default_rng(3)
    x, y = rng.random((2, 3, 4, 2))
    masks = [rng.random(s) < {"some": 0.6, "all": 2, "none": -1}[kind] for s in (3, 4, 2, (3, 4))]
    masks[0][0] = masks[1][1] = kind != "none"
    every = MASKED | (FILLED if kind != "none" else {})
    names = sampled(every, lambda name: f"{kind}: {name}", lambda name: len(name) % 5)
    programs = {name: every[name] for name in names}

    def all_of(x: Any, y: Any, *masks: Any) -> dict[str, Any]:
        return {name: f(x, y, *masks) for name, f in programs.items()}

    got = ge2.jit(all_of)(x, y, *masks)
    for name, f in programs.items():
        want = f(x, y, *masks)
        assert got[name].dtype == want.dtype, name
        np.testing.assert_allclose(got[name], want, 1e-13, 1e-15, err_msg=name)


def test_what_a_mask_chooses_has_no_largest_if_it_chooses_none() -> None:
    f = ge2.jit(lambda x, m: x[m].max())
    assert f(np.arange(3.0), np.array([True, True, False])) == 1
    for g in (f, ge2.jit(lambda x, m: x[m][0]), ge2.jit(lambda x, m: np.nonzero(m)[0][-1])):
        with pytest.raises(IndexError):
            g(np.arange(3.0), np.zeros(3, bool))


def test_derivatives_of_what_a_traced_mask_chooses() -> None:
    def f(x: Any, m: Any) -> Any:
        y = x * 2
        y[:, m] = np.log(x[:, m])
        y[m[1:], 0] **= 2
        return y.sum() + np.sqrt(x[:, m]).mean() + x[m[1:]].max()

    x, m = np.array([[1.0, -2.0, 3.0], [4.0, -5.0, 7.0]]), np.array([True, False, True])
    slope = ge2.jit(ge2.grad(f))(x, m)
    for at in np.ndindex(2, 3):
        step = np.zeros_like(x)
        step[at] = 1e-6
        difference = (f(x + step, m) - f(x - step, m)) / 2e-6
        np.testing.assert_allclose(slope[at], difference, 1e-7, 1e-7)
    np.testing.assert_array_equal(ge2.vmap(f)(np.stack([x, x]), np.stack([m, m])), [f(x, m)] * 2)


def test_no_nan_that_a_mask_leaves_out_reaches_a_derivative() -> None:
    x, m = np.array([1.0, np.nan, 4.0, np.inf]), np.array([True, False, True, False])
    for f in (np.sum, np.mean, np.var, np.prod, np.max, lambda x: np.log(x).sum()):
        slope = ge2.jit(ge2.grad(lambda x, m: f(x[m])))(x, m)  # noqa: B023
        np.testing.assert_array_equal(slope[[1, 3]], 0)
        np.testing.assert_allclose(slope[[0, 2]], ge2.grad(f)(x[m]), 1e-12)


@pytest.mark.parametrize(
    "s",
    [
        range(3),
        deque([0, 1, 2]),
        arrays.array("l", [0, 1, 2]),
        memoryview(arrays.array("b", [0, 1, 2])),
    ],
    ids=lambda s: type(s).__name__,
)
def test_sequences_of_any_kind_index_and_compute_as_lists_do(s: Any) -> None:
    """picoGPT's `wpe[range(n)]`; and `x == deque` was False, whatever its elements."""
    x = np.arange(6.0)

    def written(x: Any) -> Any:
        y = x.copy()
        y[s] = 7
        y[3:] = s
        return y

    for f in (
        lambda x: x[s], lambda x: x.reshape(2, 3)[:, s], lambda x: x[:3] + s, lambda x: x[2::-1] == s, written,
        lambda x: np.where(x[:3] > 1, s, x[:3]), lambda x: np.take(x, s), lambda x: np.dot(s, x[:3]),
        lambda x: np.stack([x[:3], s]), lambda x: np.array(deque([x, x])), lambda x: x[:3] @ s,
    ):  # fmt: skip
        np.testing.assert_array_equal(ge2.jit(f)(x), f(x), strict=True)
