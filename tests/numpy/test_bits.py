"""`x.view(dtype)` of traced values against NumPy's, between all dtypes, in every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import BFLOAT16
from tests.numpy.agreement import draw

DTYPES = [np.dtype(d) for d in ("?", "i1", "f2", "u4", "f8", "c8", "c16")]


def views(x: Any) -> tuple[Any, ...]:
    """The array as all dtypes; as bools only bytes that are 0 or 1."""
    bools = ((x & 1).view(bool),) if x.dtype.itemsize == 1 else ()
    return (*bools, *(x.view(d) for d in (*DTYPES[1:], BFLOAT16)))


def programs() -> tuple[Any, ...]:
    """A batch of each dtype, its numbers so chosen that no bits of them are NaN."""
    rng = np.random.default_rng(0)
    return tuple(draw(rng, d, (2, 16), 0, 3) for d in (*DTYPES, BFLOAT16))


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "blocked", "reference", "shim"])
def test_all_dtypes_as_all_others(executor: str) -> None:
    xs = programs()
    with ge2.config.using(executor=executor, compile_patience=0):  # the loop is meant
        got = ge2.jit(lambda xs: [views(x) for x in xs])(xs)
    for x, ys in zip(xs, got, strict=True):
        for y, want in zip(ys, views(x), strict=True):
            assert (y.dtype, y.shape, y.tobytes()) == (want.dtype, want.shape, want.tobytes())


def test_bits_of_special_numbers_and_of_scalars() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324])
    f = ge2.jit(
        lambda x: (x.view(np.uint64), x.view("u4"), x[3].view("i8"), x.astype("f2").view("i2"))
    )
    for y, want in zip(
        f(x), (x.view("u8"), x.view("u4"), x[3].view("i8"), x.astype("f2").view("i2")), strict=True
    ):
        assert y.dtype == want.dtype
        np.testing.assert_array_equal(y, want)


def test_a_write_to_a_view_reaches_the_array_and_the_argument() -> None:
    def f(x: Any, z: Any) -> Any:
        x.view("u8")[1] |= np.uint64(1) << np.uint64(63)
        y = z.copy()
        y.view(float)[::2] = 7
        y.view()[0] += 1
        return y

    x, z = np.ones(3), np.array([1 + 2j, 3 - 4j])
    np.testing.assert_array_equal(ge2.jit(f)(x, z), [8 + 2j, 7 - 4j])
    np.testing.assert_array_equal(x, [1, -1, 1])


def test_pairs_of_numbers_are_differentiated_and_bits_are_not() -> None:
    def f(v: Any) -> Any:
        return (v.view(complex) * (1 + 2j)).imag.sum() + v.view("u8").astype(float).sum() * 0

    np.testing.assert_array_equal(ge2.grad(f)(np.arange(6.0)), [2, 1, 2, 1, 2, 1])
    rows = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(ge2.vmap(lambda v: v.view("u4"))(rows), rows.view("u4"))
    np.testing.assert_array_equal(ge2.vmap(lambda v: v.view("u8"), 1, 1)(rows), rows.view("u8"))


@pytest.mark.parametrize("f", [lambda x: x[0].view("u4"), lambda x: x[:3].astype("f4").view("f8")])
def test_what_numpy_refuses(f: Any) -> None:
    with pytest.raises(ValueError):
        f(np.arange(4.0))
    with pytest.raises(ge2.errors.ShapeError, match="view of"):
        ge2.jit(f)(np.arange(4.0))
