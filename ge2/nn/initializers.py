"""Initial values of parameters, under the names of `jax.nn.initializers`.

Each is a function of (key, shape, dtype), or makes one; the result is where the key is, so that a
key of CuPy's gives CuPy's arrays. A weight has its inputs along axis -2 and its outputs along -1,
as in x @ weight; axes before those count as a receptive field. dtype is float32 unless another is
asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2 import random
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.nn.functions import check_choice
from ge2.numpy.rare.special import ndtri

__all__ = [
    "constant", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal",
    "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal",
    "truncated_normal", "uniform", "variance_scaling", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

Shape = tuple[int, ...]
Initializer = Callable[..., Any]
MODES = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("truncated_normal", "normal", "uniform")
CUT_AT_TWO = 0.87962566103423978  # the standard deviation of a normal variable within [-2, 2]


def constant(value: float) -> Initializer:
    """An initialiser of one value.

    >>> constant(0.5)(random.key(0), (2,))
    array([0.5, 0.5], dtype=float32)
    """

    def init(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
        return np.full_like(key, value, dtype, shape=shape)

    return init


def zeros(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
    """Zeros; the key is not used.

    >>> zeros(random.key(0), (2,))
    array([0., 0.], dtype=float32)
    """
    return np.zeros_like(key, dtype, shape=shape)


def ones(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
    """Ones; the key is not used.

    >>> ones(random.key(0), (2,))
    array([1., 1.], dtype=float32)
    """
    return np.ones_like(key, dtype, shape=shape)


def uniform(scale: float = 1e-2) -> Initializer:
    """An initialiser of numbers in [0, scale).

    >>> bool(uniform(3.0)(random.key(0), (100,)).max() < 3)
    True
    """

    def init(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
        return random.uniform(key, shape, dtype, 0.0, scale)

    return init


def normal(stddev: float = 1e-2) -> Initializer:
    """An initialiser of normal numbers of mean 0.

    >>> bool(abs(normal(2.0)(random.key(0), (4000,)).std() - 2) < 0.1)
    True
    """

    def init(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
        return (random.normal(key, shape, dtype) * stddev).astype(dtype)

    return init


def truncated_normal(stddev: float = 1e-2, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """An initialiser of normal numbers within `lower` and `upper`, times `stddev`.

    By the inverse of the distribution function, so that each number takes one word of random bits.

    >>> bool(abs(truncated_normal(1.0)(random.key(0), (1000,))).max() <= 2)
    True
    """
    low, high = (0.5 * math.erfc(-z / math.sqrt(2)) for z in (lower, upper))

    def init(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
        u = random.uniform(key, shape, np.float32, low, high)
        return (np.clip(ndtri(u), lower, upper) * stddev).astype(dtype)

    return init


def variance_scaling(
    scale: float, mode: str, distribution: str, in_axis: int = -2, out_axis: int = -1
) -> Initializer:
    """An initialiser of variance scale / n, n the number of inputs, of outputs, or their mean.

    `mode`: "fan_in", "fan_out" or "fan_avg". `distribution`: "truncated_normal" (at two standard
    deviations), "normal" or "uniform". All that follow are of this one, whose names and formulas
    are those of JAX.

    Raises ArgumentError for a word that is none of these, ShapeError for a shape of one axis.

    >>> weight = variance_scaling(1.0, "fan_in", "uniform")(random.key(0), (300, 100))
    >>> bool(abs(weight.std() * 300 ** 0.5 - 1) < 0.02)
    True
    """
    check_choice("mode", mode, MODES)
    check_choice("distribution", distribution, DISTRIBUTIONS)

    def init(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
        ins, outs = fans(shape, in_axis, out_axis)
        count = {"fan_in": ins, "fan_out": outs, "fan_avg": (ins + outs) / 2}[mode]
        deviation = math.sqrt(scale / max(count, 1))
        if distribution == "uniform":
            end = math.sqrt(3) * deviation
            return random.uniform(key, shape, dtype, -end, end)
        if distribution == "normal":
            return normal(deviation)(key, shape, dtype)
        return truncated_normal(deviation / CUT_AT_TWO)(key, shape, dtype)

    return init


def fans(shape: Shape, in_axis: int, out_axis: int) -> tuple[float, float]:
    """The numbers of inputs and outputs of a weight, by its shape."""
    if len(shape) < 2:
        what = f"the variance of a weight follows from its two axes of inputs and outputs; got shape {shape}"
        raise ShapeError(what, where=here(), fix="ge2.nn.initializers.normal(stddev), or zeros")
    field = math.prod(shape) / max(shape[in_axis] * shape[out_axis], 1)
    return shape[in_axis] * field, shape[out_axis] * field


def scaled(name: str, scale: float, mode: str, distribution: str, source: str) -> Any:
    """`variance_scaling` by a name that people know."""

    def make(in_axis: int = -2, out_axis: int = -1) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f'`variance_scaling({scale}, "{mode}", "{distribution}")`. {source}.'
    return make


GLOROT, HE, LECUN = "Glorot and Bengio, 2010", "He and others, 2015", "LeCun and others, 1998"
# fmt: off
glorot_uniform = scaled("glorot_uniform", 1.0, "fan_avg", "uniform",          GLOROT)
glorot_normal  = scaled("glorot_normal",  1.0, "fan_avg", "truncated_normal", GLOROT)
he_uniform     = scaled("he_uniform",     2.0, "fan_in",  "uniform",          HE)
he_normal      = scaled("he_normal",      2.0, "fan_in",  "truncated_normal", HE)
lecun_uniform  = scaled("lecun_uniform",  1.0, "fan_in",  "uniform",          LECUN)
lecun_normal   = scaled("lecun_normal",   1.0, "fan_in",  "truncated_normal", LECUN)
# fmt: on
xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


def orthogonal(scale: float = 1.0, column_axis: int = -1) -> Initializer:
    """An initialiser of matrices whose columns, or rows if those are fewer, are orthonormal.

    All axes but `column_axis` count as rows. Saxe, McClelland and Ganguli, 2013; by the QR
    decomposition of normal numbers, the signs of R's diagonal divided out (Mezzadri, 2007).

    >>> q = orthogonal()(random.key(0), (5, 3))
    >>> np.allclose(q.T @ q, np.eye(3), atol=1e-6)
    True
    """

    def init(key: Any, shape: Shape, dtype: Any = np.float32) -> Any:
        if len(shape) < 2:
            what = f"an orthogonal initial value is a matrix; got shape {shape}"
            raise ArgumentError(what, where=here(), fix="ge2.nn.initializers.normal(stddev)")
        columns = shape[column_axis]
        rows = math.prod(shape) // max(columns, 1)
        tall = (max(rows, columns), min(rows, columns))
        q, r = np.linalg.qr(random.normal(key, tall, np.float32))
        q = q * np.where(np.diagonal(r) < 0, -1, 1).astype(np.float32)
        q = (q.T if rows < columns else q) * scale
        rest = [n for i, n in enumerate(shape) if i != column_axis % len(shape)]
        return np.moveaxis(q.reshape(*rest, columns), -1, column_axis).astype(dtype)

    return init


publish(globals())
