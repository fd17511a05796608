"""`ge2.lax.top_k`: JAX's function, with NumPy's order of NaN and of zeros."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.errors import ArgumentError, ShapeError, TypeRuleError
from ge2.test_util import check_grads

X = np.array([[3.0, 1.0, 3.0, 2.0], [0.0, 5.0, -1.0, 5.0]])


def test_values_and_indices():
    values, indices = ge2.lax.top_k(X, 2)
    assert values.tolist() == [[3.0, 3.0], [5.0, 5.0]] and indices.tolist() == [[0, 2], [1, 3]]
    assert (values.dtype, indices.dtype) == (np.float64, np.int64)
    values, indices = ge2.lax.top_k(X, 1, axis=0)
    assert values.tolist() == [[3.0, 5.0, 3.0, 5.0]] and indices.tolist() == [[0, 1, 0, 1]]
    assert ge2.lax.top_k([1, 2], 0)[0].shape == (0,)
    assert ge2.lax.top_k(X, 2, -2)[1].tolist() == ge2.lax.top_k(X, np.int64(2), 0)[1].tolist()


def test_nan_and_zeros():
    x = np.array([0.0, -np.nan, -0.0, np.inf, np.nan])
    values, indices = ge2.lax.top_k(x, 5)
    assert indices.tolist() == [1, 4, 3, 0, 2]
    assert np.signbit(values).tolist() == [True, False, False, False, True]


def test_derivatives_and_batches():
    def f(x):
        values, indices = ge2.lax.top_k(x, 2)
        return (values**2).sum() + 0 * indices.sum()

    x = np.random.default_rng(0).permutation(np.arange(12.0)).reshape(3, 4)
    assert ge2.grad(f)(X[0] + [0, 0, 1, 0]).tolist() == [6.0, 0.0, 8.0, 0.0]
    check_grads(f, (x,), order=2)
    each = [ge2.lax.top_k(row, 3) for row in x]
    for of in (ge2.vmap, lambda g, *a: ge2.jit(ge2.vmap(g, *a))):
        values, indices = of(lambda r: ge2.lax.top_k(r, 3))(x)
        assert np.array_equal(values, [v for v, _ in each]) and np.array_equal(
            indices, [i for _, i in each]
        )
        turned, _ = of(lambda r: ge2.lax.top_k(r, 3), 1)(x.T)
        assert np.array_equal(turned, values)
    assert np.array_equal(ge2.jit(ge2.jacfwd(f))(x), ge2.jacrev(f)(x))


def test_its_text_reads_back():
    traced = ge2.make_jaxpr(lambda x: ge2.lax.top_k(x, 2))(X)
    assert "top_k[axis=1 k=2]" in str(traced) and ge2.parse(str(traced)) == traced.graph


def test_what_is_refused():
    with pytest.raises(ShapeError, match=r"top_k of 5 elements along axis 1 of f64\[2,4\]"):
        ge2.lax.top_k(X, 5)
    with pytest.raises(ShapeError, match="top_k of -1 elements"):
        ge2.lax.top_k(X, -1)
    with pytest.raises(TypeRuleError, match=r"(?s)top_k takes real numbers.*x.real"):
        ge2.lax.top_k(X + 1j, 1)
    for k in (2.0, True, None, X):
        with pytest.raises(ArgumentError, match="top_k takes k as an int"):
            ge2.lax.top_k(X, k)
    with pytest.raises(ArgumentError, match="static_argnames"):
        ge2.jit(ge2.lax.top_k)(X, 2)
