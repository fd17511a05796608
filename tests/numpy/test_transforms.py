"""Functions under every transform: grad and jvp are differences, vmap is a
loop, jit changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp

pytestmark = pytest.mark.any_executor

Function = Callable[[Any], Any]
W = np.random.default_rng(5).uniform(-1.5, 1.5, (3, 4))
X = np.random.default_rng(6).uniform(0.2, 0.9, (3, 4))
STEP = 1e-5

FUNCTIONS: dict[str, Function] = {
    "logsumexp": lambda x: (gnp.logsumexp(x, 1) * W[:, 0]).sum(),
    "modf": lambda x: (np.modf(3 * x)[0] * W).sum(),
    "divmod": lambda x: sum(p.sum() for p in np.divmod(x, 0.3)),
    "hypot": lambda x: np.hypot(x, W).sum(),
    "power": lambda x: np.power(x, W).sum() + (x**0.5 * x**-2).sum(),
    "float_power": lambda x: np.float_power(x, 2).sum(),
    "clip": lambda x: (np.clip(x, 0.3, 0.7) * W).sum(),
    "where": lambda x: np.where(x > 0.5, x**3, x**0.5).sum(),
    "select": lambda x: np.select([x > 0.7, x > 0.4], [x**2, x**3], 0.0).sum(),
    "nan_to_num": lambda x: np.nan_to_num(x * W).sum(),
    "sinc": lambda x: (np.sinc(x) * W).sum(),
    "round": lambda x: (np.round(x, 1) + x).sum(),
    "mean": lambda x: np.mean(x * W),
    "average": lambda x: np.average(x, 1, W[0] ** 2).sum(),
    "var": lambda x: np.var(x, 1).sum(),
    "std": lambda x: (np.std(x, 0) * W[0]).sum(),
    "prod": lambda x: np.prod(x, 0).sum(),
    "max": lambda x: np.max(x, 1).sum() - np.ptp(x, 0).sum(),
    "median": lambda x: np.median(x, 1).sum(),
    "quantile": lambda x: np.quantile(x, [0.3, 0.6], 0).sum(),
    "cumprod": lambda x: (np.cumprod(x, 1) * W).sum(),
    "cummax": lambda x: (gnp.cummax(x, 1) * W).sum(),
    "diff": lambda x: (np.diff(x, axis=1) ** 2).sum(),
    "trapezoid": lambda x: (np.trapezoid(x, axis=0) * W[0]).sum(),
    "unwrap": lambda x: (np.unwrap(x * 9) * W).sum(),
    "sort": lambda x: (np.sort(x, 0) * W).sum(),
    "interp": lambda x: np.interp(x, [0, 0.4, 1], [1, 3, 2.0]).sum(),
    "interp of values": lambda x: np.interp(W.ravel(), [-1, 0.3, 1], x[0, :3]).sum(),
    "take_along_axis": lambda x: (np.take_along_axis(x, np.argsort(W, 1), 1) * W).sum(),
    "indexing": lambda x: (x[[0, 2], :, None][:, ::-2] ** 2).sum(),
    "setitem": lambda x: (gnp.setitem(x, (slice(None), 1), x[:, 0] ** 2) * W).sum(),
    "one_hot": lambda x: (gnp.one_hot(np.array([0, 1]), 3) @ x).sum(),
    "tril": lambda x: (np.tril(x) ** 2).sum(),
    "diagonal": lambda x: (np.diagonal(x, 1) ** 2).sum(),
    "trace": lambda x: np.trace(x[:, :3] @ x[:, 1:]),
    "pad by reflection": lambda x: (np.pad(x, 2, "reflect") ** 2).sum(),
    "pad by edges": lambda x: (np.pad(x, 1, "edge") ** 2).sum(),
    "pad by ramps": lambda x: (np.pad(x, 2, "linear_ramp", end_values=x[0, 0]) ** 2).sum(),
    "pad by means": lambda x: (np.pad(x, 1, "mean", stat_length=2) ** 2).sum(),
    "pad by medians": lambda x: (np.pad(x, 1, "median") * np.pad(x, 1, "maximum")).sum(),
    "pad by numbers": lambda x: (np.pad(x, 1, constant_values=2.0) ** 2).sum(),
    "roll": lambda x: (np.roll(x, 1) * W * x).sum(),
    "tile": lambda x: (np.tile(x, (2, 2)) ** 2).sum(),
    "repeat": lambda x: (np.repeat(x, [1, 0, 2], 0) ** 2).sum(),
    "stack": lambda x: (np.stack([x, x * 2], 1) ** 2).sum(),
    "split": lambda x: sum((p**2).sum() for p in np.split(x, 2, 1)),
    "block": lambda x: (np.block([[x, x], [x, x]]) ** 2).sum(),
    "meshgrid": lambda x: (np.meshgrid(x[0], x[1])[0] ** 2).sum(),
    "linspace": lambda x: (np.linspace(x[0], x[1], 5) ** 2).sum(),
    "vander": lambda x: np.vander(x[0]).sum(),
    "einsum": lambda x: (np.einsum("ij,kj->ik", x, W) ** 2).sum(),
    "kron": lambda x: (np.kron(x, W) ** 2).sum(),
    "cross": lambda x: (np.cross(x.T, W.T) ** 2).sum(),
    "norm": lambda x: np.linalg.norm(x) + np.linalg.norm(x, 3, 1).sum() + np.linalg.norm(x, 1),
    "matrix_power": lambda x: np.linalg.matrix_power(x[:, :3], 3).sum(),
}


def differences(f: Function, x: Any) -> Any:
    slope = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = STEP
        slope[i] = (f(x + step) - f(x - step)) / (2 * STEP)
    return slope


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    f = FUNCTIONS[name]
    slope = differences(f, X)
    np.testing.assert_allclose(ge2.grad(f)(X), slope, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(ge2.jvp(f, (X,), (W,))[1], (slope * W).sum(), atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(ge2.jit(f)(X), f(X), rtol=1e-12)
    np.testing.assert_allclose(ge2.vmap(f)(np.stack([X, 1.1 * X])), [f(X), f(1.1 * X)], rtol=1e-12)


def test_the_derivative_of_logsumexp_where_everything_is_minus_infinity() -> None:
    x = np.array([[-np.inf, -np.inf], [-np.inf, 1.0]])
    slope = ge2.grad(lambda x: (gnp.logsumexp(x, 1) * np.array([1.0, 2.0])).sum())(x)
    np.testing.assert_array_equal(slope, [[0, 0], [0, 2]])


def test_a_mask_is_known_under_grad() -> None:
    slope = ge2.grad(lambda x: (x[x > 0.5] ** 2).sum())(X)
    np.testing.assert_allclose(slope, np.where(X > 0.5, 2 * X, 0))
    with pytest.raises(TypeError, match="depends on the values of mask"):
        ge2.jit(lambda x: x[x > 0.5])(X)
