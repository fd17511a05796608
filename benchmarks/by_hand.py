"""What one writes in NumPy without a compiler: derivatives by hand, arrays used
again where they can be.

Derivatives are of the sum of squares of the function, unless their docstring says otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

EPSILON = 1e-5


def softmax(x: Any) -> Any:
    y = x - x.max(-1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(-1, keepdims=True)
    return y


def softmax_grad(x: Any) -> tuple[Any]:
    p = softmax(x)
    shift = (p * p).sum(-1, keepdims=True)
    dx = p - shift
    dx *= p
    dx *= 2
    return (dx,)


def logsumexp(x: Any) -> Any:
    most = x.max(-1, keepdims=True)
    y = x - most
    np.exp(y, out=y)
    return np.log(y.sum(-1)) + most[..., 0]


def logsumexp_grad(x: Any) -> tuple[Any]:
    most = x.max(-1, keepdims=True)
    dx = x - most
    np.exp(dx, out=dx)
    total = dx.sum(-1, keepdims=True)
    dx *= 2 * (np.log(total) + most) / total
    return (dx,)


def normalised(x: Any) -> tuple[Any, Any]:
    """The rows of `x` less their mean, times the inverse of their deviation; and that inverse."""
    h = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((h * h).mean(-1, keepdims=True) + EPSILON)
    h *= inverse
    return h, inverse


def layernorm(x: Any, scale: Any, bias: Any) -> Any:
    y, _ = normalised(x)
    y *= scale
    y += bias
    return y


def layernorm_grad(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    h, inverse = normalised(x)
    ct = h * scale
    ct += bias
    ct *= 2
    dbias = ct.sum(0)
    dscale = np.einsum("ij,ij->j", ct, h)
    ct *= scale
    slope = np.einsum("ij,ij->i", ct, h)[:, None] / h.shape[-1]
    ct -= ct.mean(-1, keepdims=True)
    h *= slope
    ct -= h
    ct *= inverse
    return ct, dscale, dbias


def cross_entropy(z: Any, labels: Any) -> Any:
    """The mean over rows of -log softmax(z)[label]."""
    rows = np.arange(len(z))
    z = z - z.max(-1, keepdims=True)
    picked = z[rows, labels]
    np.exp(z, out=z)
    return (np.log(z.sum(-1)) - picked).mean()


def cross_entropy_grad(z: Any, labels: Any) -> tuple[Any]:
    """Of `cross_entropy` itself."""
    dz = softmax(z)
    dz[np.arange(len(z)), labels] -= 1
    dz /= len(z)
    return (dz,)


def scatter_add(table: Any, ids: Any, updates: Any) -> tuple[Any]:
    """The derivative of (table[ids] * updates).sum() by the table."""
    found = np.zeros_like(table)
    np.add.at(found, ids, updates)
    return (found,)


def transposed(x: Any) -> Any:
    """x.T + 1 in C order: `x.T + 1` would keep the order of `x`, and move nothing."""
    return np.add(x.T, 1, order="C")
