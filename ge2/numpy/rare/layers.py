"""Functions of neural networks, of values: those that `ge2.op_call` names beside operations.

Half types are computed in float32 inside and rounded once, at the end. There is nothing here that
NumPy could not say: the compiler finds their kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from ge2.base.arrays import BOOL, FLOAT32, HALF
from ge2.base.errors import ArgumentError, InputError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import composite, creation, products, reductions, shapes
from ge2.numpy import elementwise as e
from ge2.numpy.promotion import cast
from ge2.numpy.rare import special

Function = Callable[..., Any]


def inside(x: Any) -> Any:
    """The values in which a function of x is computed: float32 for half types."""
    x = special.floating(x, "a layer")
    return cast(x, FLOAT32) if type_of(x).dtype in HALF else x


def as_was(y: Any, x: Any) -> Any:
    """A result in the dtype of what it was made of, if that was a half type."""
    dtype = type_of(x).dtype
    return cast(y, dtype) if dtype in HALF else y


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return e.maximum(x, 0)


def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), also known as swish."""
    wide = inside(x)
    return as_was(e.multiply(wide, special.expit(wide)), x)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x, by tanh, or by erf if not `approximate`.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    wide = inside(x)
    if approximate:
        cube = e.multiply(0.044715, e.multiply(wide, e.multiply(wide, wide)))
        part = e.tanh(e.multiply(math.sqrt(2 / math.pi), e.add(wide, cube)))
    else:
        part = special.erf(e.multiply(wide, math.sqrt(0.5)))
    return as_was(e.multiply(e.multiply(0.5, wide), e.add(1.0, part)), x)


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) by their sum along an axis; of no elements, none."""
    if not type_of(x).size:
        return as_was(inside(x), x)
    return as_was(special.softmax(inside(x), axis), x)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of `softmax`."""
    if not type_of(x).size:
        return as_was(inside(x), x)
    return as_was(special.log_softmax(inside(x), axis), x)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] less its mean over its standard deviation along the last axis, times weight[n], plus
    bias[n]. Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    wide = inside(x)
    away = e.subtract(wide, reductions.mean(wide, -1, keepdims=True))
    variance = reductions.mean(e.multiply(away, away), -1, keepdims=True)
    y = e.divide(away, e.sqrt(e.add(variance, eps)))
    return as_was(scaled(y, weight, bias), x)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] over the root of its mean square along the last axis, times weight[n]."""
    wide = inside(x)
    square = reductions.mean(e.multiply(wide, wide), -1, keepdims=True)
    return as_was(scaled(e.divide(wide, e.sqrt(e.add(square, eps))), weight, None), x)


def scaled(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else e.multiply(y, inside(weight))
    return y if bias is None else e.add(y, inside(bias))


def gemm(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """a[..., m, k] @ b[..., k, n], either of which may be given with its last axes exchanged."""
    a = shapes.swapaxes(a, -1, -2) if transpose_a else a
    return products.matmul(a, shapes.swapaxes(b, -1, -2) if transpose_b else b)


def bias_add(x: Any, bias: Any) -> Any:
    """x[..., n] + bias[n]."""
    return e.add(x, bias)


def gemm_bias_act(a: Any, b: Any, bias: Any, act: str = "gelu") -> Any:
    """An activation of a[..., m, k] @ b[k, n] + bias[n]: relu, gelu, silu, tanh or none."""
    if act not in ACTIVATIONS:
        what = f"gemm_bias_act: there is no activation {act!r}"
        raise ArgumentError(what, where=here(), fix=" or ".join(map(repr, ACTIVATIONS)))
    return ACTIVATIONS[act](bias_add(gemm(a, b), bias))


ACTIVATIONS: Final[dict[str, Function]] = {
    "relu": relu, "gelu": gelu, "silu": silu, "tanh": e.tanh, "none": lambda x: x,
}  # fmt: skip


def sdpa(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Any:
    """Attention of q[..., s, d] to k[..., t, d] and v[..., t, e]: softmax(q k^T scale) v.

    `mask`: bool[..., s, t], False where nothing is read; `causal`: row i reads columns up to
    i + t - s. `scale` is 1 / sqrt(d) unless given. Vaswani and others, "Attention Is All You Need",
    2017.
    """
    scale = 1 / math.sqrt(type_of(q).shape[-1]) if scale is None else scale
    scores = e.multiply(inside(gemm(q, k, transpose_b=True)), scale)
    s, t = type_of(scores).shape[-2:]
    if causal:
        scores = composite.where(creation.tri(s, t, t - s, dtype=bool), scores, -math.inf)
    if mask is not None:
        if (given := type_of(mask)).dtype != BOOL:
            what = f"sdpa: a mask is of bool, True where a key is read; got {given}"
            raise InputError(what, where=here(), fix="mask > -np.inf, of one that would be added")
        scores = composite.where(mask, scores, -math.inf)
    return products.matmul(as_was(special.softmax(scores, -1), q), v)


FUNCTIONS: Final[dict[str, Function]] = {
    f.__name__: f
    for f in (
        relu, silu, gelu, softmax, log_softmax, layer_norm, rms_norm, gemm, bias_add, gemm_bias_act, sdpa,
    )
}  # fmt: skip
