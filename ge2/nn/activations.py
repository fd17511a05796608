"""Activations, as plain NumPy: of traced values, of NumPy's arrays and of CuPy's.

A result has the dtype of its argument; half types are computed in float32 inside and rounded once.
Integers become float64, as in NumPy, but for `relu`, which keeps them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge2.base.errors import ShapeError
from ge2.base.source import here
from ge2.nn.values import array, described, rounds_once, wide
from ge2.numpy.rare.special import erf, expit

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def relu(x: Any) -> Any:
    """max(x, 0), elementwise; its derivative at 0 is 0.

    >>> relu(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    x = array(x)
    return np.where(x <= 0, 0, x)


@rounds_once
def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    """x where it is positive, else `slope` times x. Maas, Hannun and Ng, 2013.

    >>> leaky_relu(np.array([-1.0, 2.0]))
    array([-0.01,  2.  ])
    """
    return np.where(x > 0, x, slope * x)


@rounds_once
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), the logistic function, elementwise.

    >>> sigmoid(np.array([0.0, 1000.0, -1000.0]))
    array([0.5, 1. , 0. ])
    """
    return expit(x)


@rounds_once
def tanh(x: Any) -> Any:
    """The hyperbolic tangent, elementwise.

    >>> tanh(np.array([0.0, 1000.0]))
    array([0., 1.])
    """
    return np.tanh(x)


@rounds_once
def silu(x: Any) -> Any:
    """x sigmoid(x), also known as swish. Elfwing, Uchibe and Doya, 2017.

    >>> silu(np.array([0.0, 1000.0]))
    array([   0., 1000.])
    """
    return x * expit(x)


@rounds_once
def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x: by tanh, or by erf if not `approximate`.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> gelu(np.array([0.0, 1.0])).round(4), gelu(1.0, approximate=False).round(4)
    (array([0.    , 0.8412]), np.float64(0.8413))
    """
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * (x * x)))
        return 0.5 * x * (1.0 + np.tanh(inner))
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


@rounds_once
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow.

    >>> softplus(np.array([0.0, 1000.0])).round(4)
    array([6.931e-01, 1.000e+03])
    """
    return np.logaddexp(x, 0)


@rounds_once
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where it is positive, else alpha (exp(x) - 1). Clevert, Unterthiner and Hochreiter, 2015.

    >>> elu(np.array([-1000.0, 2.0]))
    array([-1.,  2.])
    """
    below = np.where(x > 0, 0, x)  # exp of what is above could overflow, and spoil a derivative
    return np.where(x > 0, x, alpha * np.expm1(below))


@rounds_once
def selu(x: Any) -> Any:
    """`elu` of such a scale that layers keep mean 0 and variance 1. Klambauer and others, 2017.

    >>> selu(np.array([-1000.0, 1.0])).round(4)
    array([-1.7581,  1.0507])
    """
    return SELU_SCALE * elu(x, SELU_ALPHA)


@rounds_once
def hardswish(x: Any) -> Any:
    """x clip(x + 3, 0, 6) / 6. Howard and others, "Searching for MobileNetV3", 2019.

    >>> hardswish(np.array([-4.0, 0.0, 4.0]))
    array([-0.,  0.,  4.])
    """
    return x * (np.clip(x + 3.0, 0.0, 6.0) * (1 / 6))


@rounds_once
def mish(x: Any) -> Any:
    """x tanh(softplus(x)). Misra, 2019.

    >>> mish(np.array([0.0, 1000.0]))
    array([   0., 1000.])
    """
    return x * np.tanh(np.logaddexp(x, 0))


def glu(x: Any, axis: int = -1) -> Any:
    """The first half along an axis times the sigmoid of the second. Dauphin and others, 2016.

    Raises ShapeError for an axis of an odd size.

    >>> glu(np.array([2.0, 4.0, 0.0, 0.0]))
    array([1., 2.])
    """
    x = array(x)
    size = x.shape[axis]
    if size % 2:
        what = f"glu halves axis {axis}, which has {size} elements; got {described(x)}"
        raise ShapeError(what, where=here(), fix="an axis of an even size")
    a, b = np.split(wide(x), 2, axis)
    return (a * expit(b)).astype(x.dtype)
