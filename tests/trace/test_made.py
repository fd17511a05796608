"""Arrays that NumPy makes in a traced function: written, of traced values, read at traced places."""

from __future__ import annotations

import functools
import inspect
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import sin as sine
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import sqrt, zeros
from numpy.lib.stride_tricks import as_strided

import ge2
from ge2.errors import (
    ArgumentError,
    InPlaceError,
    InputError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)
from ge2.trace import writes

X = np.array([1.5, -2.0, 3.0])
OUTER = np.zeros(3)


def filled(x: Any) -> Any:
    y = np.zeros(4)
    y[1:] = x
    y[0] = x[0] * x[1]
    return y


def added(x: Any) -> Any:
    y = np.ones_like(OUTER)
    y += x
    np.multiply(y, x, out=y)
    return y


def grown(x: Any) -> Any:
    rows = [np.array([x[i], i, x[i] ** 2]) for i in range(3)]
    return np.array(rows) + np.array([[0, 1, 2]], dtype=np.float32)


def joined(x: Any) -> Any:
    return np.r_[0.0, x, np.arange(2)], np.c_[x, np.empty(3) * 0 + 1]


def looked_up(x: Any) -> Any:
    table = np.linspace(0, 1, 7)
    return table[np.clip(x, 0, 6).astype(int)] + np.array([1, 2, 3])[int(np.argmax(OUTER))]


def permuted(x: Any) -> Any:
    places = np.arange(3)
    places[np.argmin(x)] = 0
    return x[places]


def scalars(x: Any) -> Any:
    y = np.full((2, 2), 0.5)
    y[0, 0] = math.sin(x[0]) + math.atan2(x[1], 2) * math.pi
    y[1, 0] = math.log(x[2], 3) + math.log(x[0]) + math.erf(x[1])
    y[0, 1] = x[math.floor(x[0])] + math.sqrt(2)
    return y


def copied(x: Any) -> Any:
    y = np.copy(OUTER)
    y[1] = x[2]
    return y + OUTER, np.asarray(x), np.eye(3) @ x


FUNCTIONS = (filled, added, grown, joined, looked_up, permuted, scalars, copied)
each = pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12)


@each
@pytest.mark.exhaustive
def test_it_means_what_numpy_means(f: Callable[[Any], Any]) -> None:
    same(ge2.jit(f)(X), f(X))
    assert not OUTER.any()


@each
def test_under_vmap_each_row_has_its_own(f: Callable[[Any], Any]) -> None:
    rows = np.stack([X, X + 0.25, X - 0.5])
    wanted = [np.stack(parts) for parts in zip(*[ge2.tree.leaves(f(row)) for row in rows])]  # noqa: B905
    same(ge2.vmap(f)(rows), wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("f", [filled, added, grown, scalars])
def test_a_derivative_flows_through_it(f: Callable[[Any], Any]) -> None:
    step = 1e-6
    wanted = [(f(X + d).sum() - f(X - d).sum()) / (2 * step) for d in step * np.eye(3)]
    for grad in (ge2.grad, lambda g: ge2.jit(ge2.grad(g))):
        np.testing.assert_allclose(grad(lambda x: f(x).sum())(X), wanted, rtol=1e-7)


def test_a_function_that_needs_it_not_is_traced_once_and_keeps_real_arrays() -> None:
    met: list[Any] = []

    def f(x: Any) -> Any:
        met.append(np.array([1.0, 2.0, 3.0]))
        return x * met[-1]

    ge2.jit(f)(X)
    assert [type(y) for y in met] == [np.ndarray]


def test_strings_objects_and_sizes_are_numpys() -> None:
    def f(x: Any) -> Any:
        y = np.zeros(x.shape[0])
        y[0] = x[0]
        names = np.array(["a", "b"])
        assert type(names) is np.ndarray
        assert type(np.empty(2, dtype=object)) is np.ndarray
        assert math.sqrt(4.0) == 2.0
        return y

    np.testing.assert_array_equal(ge2.jit(f)(X), [1.5, 0, 0])


def test_the_real_one_is_called_by_libraries_and_by_other_threads() -> None:
    both, found = Barrier(2), []

    def f(x: Any) -> Any:
        y = np.zeros(3)
        y[0] = x[0]
        if writes.turn():
            both.wait(10)
            both.wait(10)
            assert np.atleast_1d([1.0]).sum() == 1  # a function of NumPy's that makes an array
        return y

    def other() -> None:
        both.wait(10)
        found.append((np.zeros is not ORIGINAL[0], type(np.zeros(2)), type(np.r_[1, 2])))
        both.wait(10)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other)
        ge2.jit(f)(X)
        waiting.result(10)
    assert found == [(True, np.ndarray, np.ndarray)]
    assert np.zeros is ORIGINAL[0]


ORIGINAL = (np.zeros,)  # in a tuple: a name of its own would be replaced, too


def test_pythons_mathematics_is_of_float64_and_gives_python_numbers() -> None:
    x = np.array([1.5, 0.25, 3.0], np.float32)

    def f(x: Any) -> Any:
        y = np.zeros(2)
        y[0] = math.exp(60 * x[0]) + math.hypot(x[1], x[2])
        return y, x * math.sin(x[1]), x * math.floor(x[0]), math.pow(x[2] > 0, -1) + math.sqrt(4)

    wide = x.astype(np.float64)
    found = ge2.jit(f)(x)
    np.testing.assert_allclose(found[0][0], math.exp(60 * wide[0]) + math.hypot(*wide[1:]))
    assert [a.dtype for a in found[1:3]] == [np.float32, np.float32]
    np.testing.assert_allclose(found[1], x * math.sin(wide[1]), rtol=1e-6)
    np.testing.assert_array_equal(found[2], x)
    assert found[3] == 3.0
    for wrong in (
        lambda x: math.sin(x),
        lambda x: math.hypot(x[0], x[1], x[2]),
        lambda x: math.sin(x[0] * 1j),
    ):
        with pytest.raises(TypeError):
            ge2.jit(lambda x, wrong=wrong: (f(x), wrong(x)))(x)


@functools.lru_cache
def table(n: int) -> Any:
    return np.arange(float(n)) ** 2


def test_tables_that_outlive_the_trace_are_numpys() -> None:
    def f(x: Any) -> Any:
        y = np.zeros(3)
        y[0] = x[0]
        assert np.isscalar(np.arange(3)[0])
        return y + table(3), np.zeros(3, like=np.ones(1))

    same(ge2.jit(f)(X), f(X))
    assert type(table(3)) is np.ndarray
    same(ge2.jit(f)(X.astype(np.float32)), f(X.astype(np.float32)))


def test_numpy_is_as_before_after_a_function_that_fails_twice() -> None:
    def f(x: Any) -> Any:
        y = np.zeros(3)
        y[0] = x[0]
        OUTER[0] = x[1]
        return y

    with pytest.raises(TypeError, match="OUTER as an argument, which may be written"):
        ge2.jit(f)(X)
    assert np.zeros is ORIGINAL[0]
    assert math.sin is MATHS


MATHS = math.sin


@pytest.mark.parametrize(
    ("f", "error"),
    [
        (lambda x: np.zeros(int(x[0])), TracerIntegerConversionError),
        (lambda x: np.zeros(3) if x[0] > 1 else x, TracerBoolConversionError),
        (lambda x: np.add(x, 1, out=OUTER), InPlaceError),
    ],
)
def test_what_no_array_of_ours_mends_is_still_an_error(f: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="try"):
        ge2.jit(f)(X)


def flagged(x: Any) -> Any:
    y = np.zeros((2, 3), bool)
    y[0, 1] = x[0] > 0  # NumPy asks for the truth of an element, and for the elements of a row
    y[0, 2] |= x[2] > 5
    y[1] = x > 0
    return y


def test_booleans_are_written_one_by_one() -> None:
    same(ge2.jit(flagged)(X), flagged(X))


def imported(x: Any) -> Any:
    y = zeros(3)
    y[1] = x[0] + sine(x[1])
    return y


def test_names_that_a_module_has_imported_are_traced_and_given_back() -> None:
    same(ge2.jit(imported)(X), imported(X))
    np.testing.assert_allclose(ge2.grad(lambda x: imported(x).sum())(X), [1, math.cos(-2), 0])
    assert zeros is np.zeros
    assert sine is math.sin
    assert type(zeros(2)) is np.ndarray
    names: dict[str, Any] = {}
    exec("from numpy import ones\ndef f(x):\n    y = ones(3)\n    y[0] = x[0]\n    return y", names)
    same(ge2.jit(names["f"])(X), names["f"](X))
    assert names["ones"] is np.ones


def repeated(x: Any) -> Any:
    i = np.argmin(x)
    y, z = np.tile([1.0, 2.0], 2), np.repeat(1.5, 4)
    rows = np.indices(n for n in (2, 3)).reshape(2, -1).T
    y[i], z[i], rows[:, 1] = x[0], x[1], i
    return y, z, rows, np.tri(3)[i], np.diag([1, 2, 3])[i], np.logspace(0, 1, 3)[i]


def test_what_is_repeated_or_counted_is_written_and_indexed() -> None:
    same(ge2.jit(repeated)(X), repeated(X))


def listed(x: Any) -> Any:
    several = [x[0], x[1] * 2, 3.0]
    rows = [[x[0], 1], [2, x[2]]]
    return (
        np.max(several), np.argmax(several), np.sum(rows, axis=0), np.exp(several), sqrt((x[0], 4)),
        np.maximum([x[0], x[1]], 0), np.dot([x[0], x[1]], [1, 2]), np.linalg.norm(several),
        np.mean([x, x * 2], axis=0), np.any([x[0] > 1, x[1] > 2]), np.fft.fft(several),
        np.concatenate([x, [x[0], 1.0]]), np.add.reduce([1, 2]), np.stack([x, x]),
    )  # fmt: skip


def test_functions_take_lists_of_traced_values() -> None:
    same(ge2.jit(listed)(X), listed(X))
    assert type(np.exp) is np.ufunc
    assert np.max is MAX[0]
    found = ge2.grad(lambda x: np.max([x[0] ** 2, x[1]]) + np.sum(np.exp([x[0], x[1]])))(X)
    np.testing.assert_allclose(found, [2 * X[0] + np.exp(X[0]), np.exp(X[1]), 0])


def methods_of_lists(x: Any) -> Any:
    y = np.zeros(3)
    np.add.at(y, [0, 0, 2], [x[0], x[1], 1.0])
    return (
        y, np.maximum.reduce([x, x[::-1], 2 * x]), np.add.outer([x[0], 1.0], (x[1], x[2])),
        np.logical_and.reduce((x > 0, x < 3)), np.minimum.accumulate([x[0], x[1], x[2]]),
    )  # fmt: skip


def test_methods_of_ufuncs_take_lists_of_traced_values() -> None:
    same(ge2.jit(methods_of_lists)(X), methods_of_lists(X))
    found = ge2.grad(lambda x: np.maximum.reduce([x[0] ** 2, x[1], 1.0]))(X)
    np.testing.assert_allclose(found, [2 * X[0], 0, 0])


def test_what_numpy_makes_of_an_error_is_no_result() -> None:
    """`np.array_equal` of what it cannot read is False, whatever the reason."""
    f = ge2.jit(lambda x: (np.array_equal([x[0], 2.0], [1.5, 2.0]), np.array_equiv(x, [x[0]])))
    assert f(X) == (True, False)
    assert f(X + 1) == (False, False)


def diagonal_of(x: Any) -> Any:
    y = np.zeros(3)
    y[:] = x
    a = np.diag(y)  # of one axis it makes an array, of two it is a view
    y[0] = 9
    return a, np.diag(np.outer(y, y))


def test_functions_that_are_replaced_are_known_as_what_they_are() -> None:
    same(ge2.jit(diagonal_of)(X), diagonal_of(X))


def of_scalar_types(x: Any) -> Any:
    assert isinstance(np.float32(3), np.float32) and not isinstance(x, np.float32 | np.int8)
    assert issubclass(np.float64, np.floating) and np.issubdtype(x.dtype, np.float64)
    assert x.dtype.type == np.float64 == x.dtype == np.double and np.float32 == np.dtype("f4")
    assert x.dtype.type in (np.float32, np.float64) and {np.float64: 1}[x.dtype.type] == 1
    assert np.finfo(np.float32).bits == 32 and np.iinfo(np.uint8).max == 255
    assert np.result_type(np.int8, np.float16) == np.float16 and inspect.isclass(np.int8)
    assert np.float32.__name__ == "float32" and np.float64.fromhex("0x1p-1") == 0.5
    z, number = np.zeros(3, dtype=np.complex128), np.float64(x[0])
    z[0] = x[0]
    number += 1  # no array, which would change
    same = np.float64(y := x * 1)
    same[0] = 9.0  # as NumPy gives the array itself
    return (
        np.uint8(x * 40), NARROW(x[1]), np.int64(2.7 * x[1]), np.float32([x[0], 1.0]), number, y, z,
        np.float32(x[0]) + x[0], x.astype(np.int16), np.sum(x, dtype=np.float32), np.int8(-3) * x,
    )  # fmt: skip


def test_classes_of_scalars_are_functions_of_traced_values_and_else_classes() -> None:
    same(ge2.jit(of_scalar_types)(X), of_scalar_types(X))
    found = ge2.jit(lambda n: (np.float32(n) * 2, np.int64(n)))(3.7)
    assert [y.dtype for y in found] == [np.float32, np.int64] and found[1] == 3
    assert ge2.grad(lambda x: np.float64(x) ** 2)(3.0) == 6.0
    np.testing.assert_array_equal(ge2.vmap(lambda x: np.float32(x) * 2)(X), X * 2)
    assert type(np.float64(1)) is np.float64 and pickle.loads(pickle.dumps(np.int8)) is np.int8


NARROW = np.float16
MAX = (np.max,)


def seeded(x: Any) -> Any:
    np.random.seed(0)
    noise = np.random.uniform(-1, 1, (3, 3))  # compiled code, which reads what `np.empty` made
    y = np.empty(3)
    y[:] = noise @ x
    rows = list(map(np.array, [[x[0], 1.0], [2.0, x[1]]]))
    made = functools.partial(np.zeros, 2)()
    made[0] = x[0]
    return y, rows, made, [np.ones][0](1)


def test_compiled_modules_get_arrays_of_numpys() -> None:
    np.random.seed(0)
    np.random.uniform(size=9)  # so that the function leaves the generator as it was
    same(ge2.jit(seeded)(X), seeded(X))


def windows_of(x: Any) -> Any:
    rows = np.sin(np.outer(x, x))
    blocks = np.lib.stride_tricks.as_strided(rows, (2, 2, 2, 2), rows.strides * 2)
    return as_strided(x, (2, 2), (x.itemsize, x.strides[0])), blocks.sum((2, 3))


def test_memory_is_read_by_strides() -> None:
    same(ge2.jit(windows_of)(X), windows_of(X))
    f = lambda x: sum(np.sum(y**2) for y in windows_of(x))  # noqa: E731
    wanted = [(f(X + d) - f(X - d)) / 2e-6 for d in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(ge2.grad(f)(X), wanted, rtol=1e-6)


@given(st.data())
def test_any_strides_that_fit(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=4))
    steps = [data.draw(st.integers(0, 6)) for _ in sizes]
    x = np.arange(float(np.prod(shape))).reshape(shape)
    read = lambda x: as_strided(x, tuple(sizes), tuple(8 * s for s in steps))  # noqa: E731
    if sum((n - 1) * s for n, s in zip(sizes, steps, strict=True)) < x.size:
        np.testing.assert_array_equal(ge2.vmap(read)(x[None])[0], read(x))
    else:
        with pytest.raises(ArgumentError, match="outside"):
            ge2.vmap(read)(x[None])


def test_what_lies_otherwise_in_memory_is_refused_and_windows_are_not_written() -> None:
    def turned(x: Any) -> Any:
        y = x.T
        return as_strided(y, (2, 2), y.strides)

    def written(x: Any) -> Any:
        y = as_strided(x, (2, 2), (8, 8))
        y[0] = 1
        return y

    with pytest.raises(InputError, match=r"C order(.|\n)*ascontiguousarray"):
        ge2.jit(turned)(np.outer(X, X))
    with pytest.raises(InPlaceError, match="read-only"):
        ge2.jit(written)(X)
    for strides in ((-8, 8), (4, 8)):
        with pytest.raises(ArgumentError, match="between its elements"):
            ge2.jit(lambda x, s=strides: as_strided(x, (2, 2), s))(X)


def counted(x: Any) -> Any:
    return sum(value * (place[0] + 1) for place, value in np.ndenumerate(x))


def test_elements_are_counted_and_iterators_are_refused_by_name() -> None:
    same(ge2.jit(counted)(X), counted(X))

    def iterated(x: Any) -> Any:
        walk = np.nditer([x, None])
        for a, b in walk:
            b[...] = a + 1
        return walk.operands[1]

    with pytest.raises(TracerArrayConversionError, match=r"nditer(.|\n)*in iterated(.|\n)*ndindex"):
        ge2.jit(iterated)(X)
