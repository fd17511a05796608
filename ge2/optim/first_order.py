"""Optimisers whose rule for an array is a line or two: pointwise, so that a compiler fuses them into
what makes the gradient.

`rate` is a number or a schedule, a function of the number of steps taken. `decay` is that of
weights, `mask` says of which arrays, `dtype` is that of the states. Defaults are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.optim.rule import Mask, Now, Optimizer, Rate, by_leaf


def sgd(
    rate: Rate,
    momentum: float = 0.0,
    *,
    nesterov: bool = False,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """Gradient descent: p - rate m, m = momentum m + g + decay p.

    With `nesterov` g + momentum m takes the place of m. Sutskever and others, 2013.

    >>> optimizer = sgd(0.1)
    >>> params = {"w": np.array([1.0, 2.0])}
    >>> params, state = optimizer.update({"w": np.ones(2)}, optimizer.init(params), params)
    >>> params, state
    ({'w': array([0.9, 1.9])}, {'step': 1})
    """

    def rule(now: Now, g: Any, p: Any, *m: Any) -> Sequence[Any]:
        g = g + now.decay * p if now.decay else g
        if not m:
            return [p - now.rate * g]
        moved = momentum * m[0] + g
        return p - now.rate * (g + momentum * moved if nesterov else moved), moved

    return by_leaf(rule, ("m",) if momentum else (), rate, decay, mask, dtype)


def adagrad(
    rate: Rate = 1e-2,
    *,
    eps: float = 1e-10,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """p - rate g / (sqrt(v) + eps), v the sum of g^2. Duchi, Hazan and Singer, 2011.

    >>> optimizer = adagrad(0.5)
    >>> p = np.array([1.0])
    >>> optimizer.update(np.array([3.0]), optimizer.init(p), p)
    (array([0.5]), {'step': 1, 'v': array([9.])})
    """

    def rule(now: Now, g: Any, p: Any, v: Any) -> Sequence[Any]:
        g = g + now.decay * p if now.decay else g
        v = v + g * g
        return p - now.rate * (g / (np.sqrt(v) + eps)), v

    return by_leaf(rule, ("v",), rate, decay, mask, dtype)


def rmsprop(
    rate: Rate = 1e-2,
    smoothing: float = 0.99,
    *,
    momentum: float = 0.0,
    centered: bool = False,
    eps: float = 1e-8,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """p - rate g / (sqrt(v) + eps), v the moving mean of g^2; of its variance if `centered`.

    Tieleman and Hinton, lecture 6.5, 2012; Graves, 2013. With `momentum`, of the quotients.

    >>> optimizer = rmsprop(0.1, smoothing=0.75)
    >>> p = np.array([1.0])
    >>> optimizer.update(np.array([2.0]), optimizer.init(p), p)
    (array([0.8]), {'step': 1, 'v': array([1.])})
    """
    names = ("v", *(("mean",) if centered else ()), *(("m",) if momentum else ()))

    def rule(now: Now, g: Any, p: Any, *states: Any) -> Sequence[Any]:
        old = dict(zip(names, states, strict=True))
        g = g + now.decay * p if now.decay else g
        new = {"v": smoothing * old["v"] + (1 - smoothing) * (g * g)}
        spread = new["v"]
        if centered:
            new["mean"] = smoothing * old["mean"] + (1 - smoothing) * g
            spread = spread - new["mean"] * new["mean"]
        by = g / (np.sqrt(spread) + eps)
        if momentum:
            by = new["m"] = momentum * old["m"] + by
        return p - now.rate * by, *(new[name] for name in names)

    return by_leaf(rule, names, rate, decay, mask, dtype)


def lion(
    rate: Rate = 1e-4,
    b1: float = 0.9,
    b2: float = 0.99,
    *,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """p - rate (sign(b1 m + (1 - b1) g) + decay p), m = b2 m + (1 - b2) g. Chen and others, 2023.

    >>> optimizer = lion(0.1)
    >>> p = np.array([1.0, 1.0])
    >>> optimizer.update(np.array([3.0, -2.0]), optimizer.init(p), p)[0]
    array([0.9, 1.1])
    """

    def rule(now: Now, g: Any, p: Any, m: Any) -> Sequence[Any]:
        by = np.sign(b1 * m + (1 - b1) * g)
        by = by + now.decay * p if now.decay else by
        return p - now.rate * by, b2 * m + (1 - b2) * g

    return by_leaf(rule, ("m",), rate, decay, mask, dtype)
