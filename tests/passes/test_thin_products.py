"""Products of few terms in C: loops with what is done to their elements, where those are quicker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.passes.linear_algebra import thin_products
from tests.passes.graphs import alike, names
from tests.together import needs_compiler

RNG = np.random.default_rng(3)


def drawn(*shape: int, dtype: Any = "f4") -> Any:
    return RNG.standard_normal(shape).astype(dtype)


X, W, B = drawn(600, 3), drawn(3, 20), drawn(20)


def products(f: Any, *xs: Any) -> int:
    """The products after the pass, which changes no value but by rounding."""
    return names(alike(thin_products, f, *xs, rtol=1e-5, atol=1e-5)).count("dot_general")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, w, b: np.maximum(x @ w + b, 0),
        lambda x, w, b: (x @ w).sum(0) + b,
        lambda x, w, b: np.exp(x.reshape(20, 30, 3) @ w),
        lambda x, w, b: np.tanh(x[:, :2] @ w[:2]) * (x @ w),
    ],
)
def test_products_of_few_terms_go(f: Any, dtype: str) -> None:
    assert products(f, *(a.astype(dtype) for a in (X, W, B))) == 0


@pytest.mark.parametrize(
    ("name", "f", "xs"),
    [
        ("it is a result", lambda x, w: x @ w, (X, W)),
        ("it is a result, too", lambda x, w: (lambda y: (y, np.tanh(y)))(x @ w), (X, W)),
        ("it is read twice", lambda x, w: (lambda y: y - y.max(1, keepdims=True))(x @ w), (X, W)),
        ("another product reads it", lambda x, w: (x @ w) @ w.T, (X, W)),
        ("terms lie side by side", lambda x, w: np.tanh(x @ w.T), (X, drawn(20, 3))),
        ("it has many terms", lambda x, w: np.tanh(x @ w), (drawn(600, 5), drawn(5, 20))),
        ("it is tiny", lambda x, w: np.tanh(x @ w), (X[:10], W)),
        ("it is a vector", lambda x, w: np.tanh(x @ w), (drawn(6000, 3), drawn(3))),
        ("it is one column", lambda x, w: np.tanh(x @ w), (drawn(6000, 3), drawn(3, 1))),
        ("it is of integers", lambda x, w: np.abs(x @ w), (X.astype(int), W.astype(int))),
        ("there are several", lambda x, w: np.tanh(x @ w), (drawn(9, 600, 3), drawn(9, 3, 20))),
    ],
)
def test_other_products_stay(name: str, f: Any, xs: Any) -> None:
    assert products(f, *xs) >= 1, name


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_a_layer_is_one_kernel_and_as_exact(terms: int, dtype: str) -> None:
    """Each element errs by no more than its terms round."""
    x, w, b = (drawn(*s, dtype=dtype) for s in ((1000, terms), (terms, 33), (33,)))
    with config.using(executor="c"):
        layer = ge2.jit(lambda x, w, b: np.maximum(x @ w + b, 0))
        assert [k.kind for k in layer.lower(x, w, b).kernels] == ["pointwise"]
        found = layer(x, w, b)
    wide = [a.astype("longdouble") for a in (x, w, b)]
    wanted = np.maximum(wide[0] @ wide[1] + wide[2], 0)
    size = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2])
    assert (np.abs(found - wanted) <= (terms + 1) * np.finfo(dtype).eps * size).all()


@needs_compiler
def test_infinities_and_nans_are_numpys() -> None:
    x, w = X.copy(), W.copy()
    x[3, 0], x[4, 1], w[2, 5] = np.inf, np.nan, -np.inf
    with config.using(executor="c"), np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(
            np.isnan(ge2.jit(lambda x, w: np.abs(x @ w))(x, w)), np.isnan(np.abs(x @ w))
        )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_without_sums_are_products_of_elements(dtype: Any) -> None:
    """The derivatives of a product of two vectors, by each; and of a matrix and a vector."""
    x, y, a = drawn(7, dtype=dtype), drawn(7, dtype=dtype), drawn(5, 7, dtype=dtype)
    assert products(ge2.grad(lambda x, y: np.sin(x @ y), (0, 1)), x, y) == 1
    assert products(ge2.grad(lambda a, x: np.sum(np.sin(a @ x))), a, x) == 1
    with config.using(executor="c"):
        kernels = ge2.jit(ge2.grad(lambda x, y: np.sin(x @ y), (0, 1))).lower(x, y).kernels
    assert len(kernels) == 2


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_large_matrix_that_a_vector_alone_reads_is_made_where_it_is_multiplied(
    dtype: str,
) -> None:
    """A library would read from memory what a kernel wrote there; a smaller one, or one that is read
    again, it reads as it is, and so is what no kernel makes.
    """
    a, x = drawn(2100, 1000, dtype=dtype), drawn(1000, dtype=dtype)
    y, z = drawn(2100, dtype=dtype), drawn(1000, 1, dtype=dtype)

    def left(f: Any, *xs: Any) -> int:
        return names(alike(thin_products, f, *xs, rtol=1e-3, atol=1e-3)).count("dot_general")

    assert left(lambda a, x: (2 * a + 1) @ x, a, x) == 0
    assert left(lambda a, y: y @ (a * np.tanh(a)), a, y) == 0
    assert left(lambda a, z: (a * 0.5) @ z, a, z) == 0
    assert left(lambda a, x: a @ x, a, x) == 1
    assert left(lambda a, x: (2 * a)[:700] @ x, a, x) == 1
    assert left(lambda a, x: (lambda b: (b, b @ x))(2 * a), a, x) == 1
    assert left(lambda a: (2 * a) @ np.ones((1000, 2), dtype), a) == 1
    with config.using(executor="c"):
        low = ge2.jit(lambda a, b, x: (1.5 * a + b * 1.2) @ x).lower(a, a, x)
    assert [k.kind for k in low.kernels] == ["reduce"]
