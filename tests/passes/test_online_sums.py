"""Sums of exponentials beside the maximum of long rows, and of squares beside the mean: one fold,
as right as two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special

import ge2
from ge2.base.config import config
from ge2.passes import TIDY
from ge2.passes.context import TUNING, run
from ge2.passes.folds import online_sums
from tests.together import needs_compiler

# a row of more than so many elements is long
SHORT = replace(TUNING, fusion=replace(TUNING.fusion, row=64, row_again=64, columns_again=1 << 10))


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def total(x: Any) -> Any:
    return np.exp(x - x.max(1, keepdims=True)).sum(1)


def logarithm(x: Any) -> Any:
    return np.log(total(x)) + x.max(1)


def masked(x: Any) -> Any:
    return softmax(np.where(np.arange(x.shape[1]) % 3 == 1, -np.inf, x * np.float32(0.5)))


FUNCTIONS = {
    "softmax": softmax,
    "of columns": lambda x: softmax(x, 0),
    "total": total,
    "logarithm": logarithm,
    "masked": masked,
    "scipy": lambda x: scipy.special.logsumexp(x, 1),
}


def names(function: Any, *arrays: Any) -> list[str]:
    graph = run(TIDY, ge2.make_jaxpr(function)(*arrays).graph)
    return [e.op.name for e in online_sums(graph).eqns]


def rows(n: int, dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """Rows in any order, of one number, of very small and very large ones, and with -inf."""
    x = rng.standard_normal((9, n)) * 8
    x[1], x[2] = np.sort(x[1]), np.sort(x[2])[::-1]
    x[3], x[4] = 3.5, x[4] * 1e-6
    x[5], x[6] = x[5] * 1e30, np.linspace(0, 1e-3, n)
    x[7, ::2], x[7, : n // 2] = -np.inf, -np.inf
    x[8] = np.linspace(-200, 200, n)
    return x.astype(dtype)


def in_one_read_and_two(f: Any, x: np.ndarray, fold: str) -> list[Any]:
    """The results with the fold of one read, and without the pass that makes it."""
    found = list[Any]()
    for off in ((), ("online_sums",)):
        with config.using(executor="shim", tuning=(SHORT,), passes_off=off):
            g = ge2.jit(lambda x: f(x))
            found.append(g(x))
            assert (fold in str(g.lower(x).kernels)) != bool(off)
    return found


@needs_compiler
@pytest.mark.exhaustive("dtype", table="online sums")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [65, 1000, 4099])
def test_it_is_as_right_as_two_folds(
    name: str, n: int, dtype: Any, rng: np.random.Generator
) -> None:
    """Against longer floats: wrong by no more than the program of two folds, and twice the epsilon: an
    exp of the last factor, the rounding of its argument, and of the product.
    """
    x, f = rows(n, dtype, rng), FUNCTIONS[name]
    x = x.T.copy() if name == "of columns" else x
    exact = f(x.astype(np.longdouble)) if name != "scipy" else logarithm(x.astype(np.longdouble))
    found = in_one_read_and_two(f, x, "reduce_sum_exp")
    unit = np.abs(exact) * np.finfo(dtype).eps + np.finfo(dtype).tiny
    largest = [float((np.abs(y - exact) / unit).max()) for y in found]
    assert largest[0] <= largest[1] + 2, largest


@needs_compiler
@pytest.mark.parametrize("name", ["softmax", "total", "logarithm", "scipy"])
def test_what_is_not_finite(name: str) -> None:
    x = np.zeros((6, 200), np.float32)
    x[0], x[1, 7], x[2, 150] = -np.inf, np.inf, np.nan
    x[3, [3, 199]], x[4, 1:], x[5, :100] = np.inf, -np.inf, -np.inf
    f = FUNCTIONS[name]
    with config.using(executor="shim", tuning=(SHORT,)), np.errstate(all="ignore"):
        np.testing.assert_allclose(ge2.jit(lambda x: f(x))(x), f(x), rtol=1e-6)


def test_which_sums_are_such() -> None:
    x, short = np.zeros((2, 70_000), np.float32), np.zeros((2, 7000), np.float32)
    for f in FUNCTIONS.values():
        if f is not FUNCTIONS["of columns"]:
            assert "reduce_sum_exp" in names(f, x)
            assert "reduce_sum_exp" not in names(f, short)
    for other in (
        lambda x: np.exp(x - x.min(1, keepdims=True)).sum(1),
        lambda x: np.exp(x - x.max()).sum(1),
        lambda x: np.exp(x - (2 * x).max(1, keepdims=True)).sum(1),
        lambda x: np.exp2(x - x.max(1, keepdims=True)).sum(1),
        lambda x: np.exp(x.max(1, keepdims=True) - x).sum(1),
    ):
        assert "reduce_sum_exp" not in names(other, x)


# -------- Squares beside the mean.


def standardised(x: Any) -> Any:
    m = x.mean(1, keepdims=True)
    return (x - m) / np.sqrt(np.mean((x - m) ** 2, 1, keepdims=True) + 1e-5)


VARIANCES = {
    "rows": lambda x: x.var(1),
    "columns": lambda x: x.var(0),
    "all": lambda x: x.var(),
    "standardised": standardised,
    "deviations": lambda x: np.std(x, 0, ddof=1),
    "in groups": lambda x: x[:, :64].reshape(x.shape[0], 4, 16).var((0, 2)),
    "of what is computed": lambda x: np.exp(x * 1e-3).var(1),
}


@needs_compiler
@pytest.mark.exhaustive("dtype", table="variances")
@pytest.mark.parametrize("apart", [0.0, 1e3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", VARIANCES)
@pytest.mark.parametrize("n", [65, 1000, 4099])
def test_variances_are_as_right_as_of_two_reads(
    name: str, n: int, dtype: Any, apart: float, rng: np.random.Generator
) -> None:
    """Against longer floats, elements far from 0, and an outlier that comes first, among them: wrong
    by no more than the program of two reads and eight units, one for each time that the parts of
    the 256 threads of a block are merged by twos.
    """
    x = (rng.standard_normal((130, n)) * 8 + apart).astype(dtype)
    x[0, 0], x[:, -1] = 1e4, apart
    f = VARIANCES[name]
    exact = f(x.astype(np.longdouble))
    found = in_one_read_and_two(f, x, "reduce_deviations")
    unit = np.abs(exact).max() * np.finfo(dtype).eps
    largest = [float(np.abs(y - exact).max() / unit) for y in found]
    assert largest[0] <= largest[1] + 8, largest


@needs_compiler
def test_a_variance_of_what_is_constant_is_nothing() -> None:
    x = np.full((70, 300), np.float32(0.1))
    with config.using(executor="shim", tuning=(SHORT,)):
        for axis in (0, 1, None):
            assert not np.any(ge2.jit(lambda x, axis=axis: x.var(axis))(x))


@needs_compiler
def test_a_variance_of_what_is_not_finite_is_not_a_number() -> None:
    x = np.zeros((4, 200), np.float32)
    x[0, 7], x[1, 0], x[2, 199] = np.inf, np.nan, -np.inf
    with config.using(executor="shim", tuning=(SHORT,)):
        found = ge2.jit(lambda x: x.var(1))(x)
    np.testing.assert_array_equal(found, [np.nan, np.nan, np.nan, 0])


def test_which_sums_are_variances() -> None:
    x, short = np.zeros((3, 50_000), np.float32), np.zeros((3, 5000), np.float32)
    for f in (VARIANCES["rows"], VARIANCES["all"], standardised):
        assert "reduce_deviations" in names(f, x)
        assert "reduce_deviations" not in names(f, short)
    assert "reduce_deviations" in names(
        VARIANCES["columns"], np.zeros((1 << 13, 1 << 10), np.float32)
    )
    for other in (
        lambda x: ((x - x.mean(1, keepdims=True)) ** 3).sum(1),
        lambda x: ((x - x.mean()) ** 2).sum(1),
        lambda x: ((x - (2 * x).mean(1, keepdims=True)) ** 2).sum(1),
        lambda x: ((x - x.sum(1, keepdims=True) / 49_999) ** 2).sum(1),
        lambda x: (x**2).sum(1) - x.mean(1) ** 2,
    ):
        assert "reduce_deviations" not in names(other, x)
