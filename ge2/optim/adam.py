"""Adam and its relatives: moving means of gradients and of their squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.optim.rule import Mask, Now, Optimizer, Rate, by_leaf


def means(g: Any, m: Any, v: Any, b1: float, b2: float) -> tuple[Any, Any]:
    """The moving means of g and of g^2."""
    return b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (g * g)


def direction(now: Now, m: Any, v: Any, b1: float, b2: float, eps: float) -> Any:
    """m / (sqrt(v) + eps), both without the bias of having begun with zeros."""
    c1, c2 = 1 - b1**now.step, (1 - b2**now.step) ** 0.5
    return m / c1 / (np.sqrt(v) / c2 + eps)


def by_means(
    step: Callable[..., Any], rate: Rate, b1: float, b2: float, eps: float, *rest: Any
) -> Optimizer:
    """The optimiser whose next p is `step(now, p, by)`, `by` being the direction of the means."""

    def rule(now: Now, g: Any, p: Any, m: Any, v: Any) -> Sequence[Any]:
        m, v = means(g, m, v, b1, b2)
        return step(now, p, direction(now, m, v, b1, b2, eps)), m, v

    return by_leaf(rule, ("m", "v"), rate, *rest)


def adam(
    rate: Rate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    *,
    eps: float = 1e-8,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """p - rate m / (sqrt(v) + eps), m and v the moving means of g and g^2, corrected for the zeros
    that they begin with. Kingma and Ba, 2014. `decay` adds decay p to g, as in torch.

    >>> optimizer = adam(0.1)
    >>> p = np.array([1.0])
    >>> p, state = optimizer.update(np.array([5.0]), optimizer.init(p), p)
    >>> p, sorted(state)
    (array([0.9]), ['m', 'step', 'v'])
    """

    def rule(now: Now, g: Any, p: Any, m: Any, v: Any) -> Sequence[Any]:
        g = g + now.decay * p if now.decay else g
        m, v = means(g, m, v, b1, b2)
        return p - now.rate * direction(now, m, v, b1, b2, eps), m, v

    return by_leaf(rule, ("m", "v"), rate, decay, mask, dtype)


def adamw(
    rate: Rate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    *,
    eps: float = 1e-8,
    decay: float = 1e-2,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """`adam` after p has become p (1 - rate decay). Loshchilov and Hutter, 2017.

    >>> optimizer = adamw(0.1, decay=0.5, mask={"w": True, "b": False})
    >>> params = {"w": np.array([1.0]), "b": np.array([1.0])}
    >>> grads = {"w": np.array([5.0]), "b": np.array([5.0])}
    >>> optimizer.update(grads, optimizer.init(params), params)[0]
    {'w': array([0.85]), 'b': array([0.9])}
    """

    def step(now: Now, p: Any, by: Any) -> Any:
        p = p * (1 - now.rate * now.decay) if now.decay else p
        return p - now.rate * by

    return by_means(step, rate, b1, b2, eps, decay, mask, dtype)


def lamb(
    rate: Rate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    *,
    eps: float = 1e-6,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """Adam's direction plus decay p, scaled for each array to the length of p. You and others, 2019.

    The scale is 1 where either length is 0.

    >>> optimizer = lamb(0.1)
    >>> p = np.array([3.0, 4.0])
    >>> optimizer.update(np.array([1.0, 1.0]), optimizer.init(p), p)[0].round(3)
    array([2.646, 3.646])
    """

    def step(now: Now, p: Any, by: Any) -> Any:
        by = by + now.decay * p if now.decay else by
        length, size = np.sqrt(np.sum(p * p)), np.sqrt(np.sum(by * by))
        known = (length > 0) & (size > 0)
        trust = np.where(known, length / np.where(known, size, 1), 1).astype(p.dtype)
        return p - now.rate * trust * by

    return by_means(step, rate, b1, b2, eps, decay, mask, dtype)
