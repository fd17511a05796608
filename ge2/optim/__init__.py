"""Optimisers: each two pure functions over containers of arrays, as plain NumPy.

>>> import numpy as np, ge2
>>> from ge2 import optim
>>> optimizer = optim.adamw(optim.cosine(0.3, warmup=5, steps=100), decay=0.0)
>>> loss = lambda params: np.sum((params["w"] - 3.0) ** 2)
>>> @ge2.jit(donate_argnums=(0, 1))
... def step(params, state):
...     return optimizer.update(ge2.grad(loss)(params), state, params)
>>> params = {"w": np.zeros(2, np.float32)}
>>> state = optimizer.init(params)
>>> for _ in range(100):
...     params, state = step(params, state)
>>> bool(np.allclose(params["w"], 3.0, atol=0.01)), state["step"]
(True, 100)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.optim.rule import Mask, Now, Rate, by_leaf, check_range, kept
from ge2.optim.rule import Optimizer as Optimizer
from ge2.optim.rule import accumulate as accumulate
from ge2.optim.rule import clip_by_global_norm as clip_by_global_norm
from ge2.optim.rule import clip_by_value as clip_by_value
from ge2.optim.rule import constant as constant
from ge2.optim.rule import cosine as cosine
from ge2.optim.rule import ema as ema
from ge2.optim.rule import exponential as exponential
from ge2.optim.rule import global_norm as global_norm
from ge2.optim.rule import linear as linear
from ge2.optim.rule import loss_scale as loss_scale
from ge2.optim.rule import matrices as matrices
from ge2.optim.rule import microbatches as microbatches
from ge2.optim.rule import split as split
from ge2.optim.rule import step_decay as step_decay

__all__ = [
    "Optimizer", "accumulate", "adafactor", "adagrad", "adam", "adamw", "clip_by_global_norm",
    "clip_by_value", "constant", "cosine", "ema", "exponential", "global_norm", "lamb", "linear",
    "lion", "loss_scale", "matrices", "microbatches", "muon", "rmsprop", "sgd", "split", "step_decay",
]  # fmt: skip


# -------- Optimisers whose rule for an array is a line or two: pointwise, so that a compiler fuses
# them into what makes the gradient.
# `rate` is a number or a schedule, a function of the number of steps taken. `decay` is that of
# weights, `mask` says of which arrays, `dtype` is that of the states. Defaults are torch's.


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

    check_range(momentum=momentum)

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

    check_range(below=1, smoothing=smoothing)
    check_range(momentum=momentum)

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

    check_range(below=1, b1=b1, b2=b2)

    def rule(now: Now, g: Any, p: Any, m: Any) -> Sequence[Any]:
        by = np.sign(b1 * m + (1 - b1) * g)
        by = by + now.decay * p if now.decay else by
        return p - now.rate * by, b2 * m + (1 - b2) * g

    return by_leaf(rule, ("m",), rate, decay, mask, dtype)


# -------- Adam and its relatives: moving means of gradients and of their squares.


def means(g: Any, m: Any, v: Any, b1: float, b2: float) -> tuple[Any, Any]:
    """The moving means of g and of g^2."""
    return b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (g * g)


def direction(now: Now, m: Any, v: Any, b1: float, b2: float, eps: float) -> Any:
    """m / (sqrt(v) + eps), both without the bias of having begun with zeros."""
    c1 = now.once("c1", lambda: 1 - b1**now.step)
    c2 = now.once("c2", lambda: (1 - b2**now.step) ** 0.5)
    return m / c1 / (np.sqrt(v) / c2 + eps)


def by_means(
    step: Callable[..., Any], rate: Rate, b1: float, b2: float, eps: float, *rest: Any
) -> Optimizer:
    """The optimiser whose next p is `step(now, p, by)`, `by` being the direction of the means."""

    check_range(below=1, b1=b1, b2=b2)
    check_range(eps=eps)

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

    check_range(below=1, b1=b1, b2=b2)
    check_range(eps=eps)

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


# -------- Optimisers that know rows and columns.


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def root_mean_square(x: Any) -> Any:
    return np.sqrt(np.mean(x * x))


def adafactor(
    rate: Rate = 1e-2,
    *,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    clip: float = 1.0,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
) -> Optimizer:
    """p - alpha g / sqrt(v), v of a matrix kept as the mean squares of its rows and columns alone.

    alpha is the smaller of `rate` and 1 / sqrt(step), times the root mean square of p; a step
    whose own is above `clip` is divided by that. An array of more axes is matrices over its last
    two, and one of fewer keeps v. Shazeer and Stern, 2018, in the form of `torch.optim.Adafactor`.

    >>> optimizer = adafactor()
    >>> p = np.ones((3, 2))
    >>> p, state = optimizer.update(np.ones((3, 2)), optimizer.init(p), p)
    >>> state["rows"].shape, state["columns"].shape
    ((3, 1), (1, 2))
    """

    def zeros(p: Any) -> Sequence[Any]:
        as_kept = kept(p, dtype)
        if p.ndim < 2:
            return np.zeros_like(p, as_kept), np.zeros_like(p, as_kept, shape=(0,))
        shapes = (*p.shape[:-1], 1), (*p.shape[:-2], 1, p.shape[-1])
        return [np.zeros_like(p, as_kept, shape=shape) for shape in shapes]

    def rule(now: Now, g: Any, p: Any, rows: Any, columns: Any) -> Sequence[Any]:
        new = now.once("new", lambda: now.step**beta2_decay)
        least = float(np.finfo(p.dtype).eps) if eps[0] is None else eps[0]
        size = np.maximum(root_mean_square(p), eps[1])
        slowing = now.once("slowing", lambda: 1 / now.step**0.5)
        alpha = size * least_of(now.rate, slowing)
        p = p * (1 - now.rate * now.decay) if now.decay else p
        if p.ndim < 2:
            v = rows = (1 - new) * rows + new * (g * g)
        else:
            rows = (1 - new) * rows + new * np.mean(g * g, -1, keepdims=True)
            columns = (1 - new) * columns + new * np.mean(g * g, -2, keepdims=True)
            v = rows * columns / np.maximum(np.mean(rows, -2, keepdims=True), least)
        by = g / np.sqrt(np.maximum(v, least * least))
        by = by / np.maximum(root_mean_square(by) / clip, 1.0)
        return p - (alpha * by).astype(p.dtype), rows, columns

    return by_leaf(rule, ("rows", "columns"), rate, decay, mask, dtype, zeros)


def least_of(a: Any, b: Any) -> Any:
    """The smaller of two numbers, in float32 where they are traced."""
    return np.minimum(np.float32(1) * a, np.float32(1) * b)


def orthogonalised(x: Any, steps: int = 5, eps: float = 1e-7) -> Any:
    """About the orthogonal matrix nearest to x[..., m, n]: singular values go to 0.7 to 1.2.

    By steps of the iteration of Newton and Schulz with the coefficients of Jordan and others, 2024.

    >>> y = orthogonalised(np.diag([1.0, 3.0]))
    >>> bool((np.linalg.svd(y)[1] > 0.6).all())
    True
    """
    a, b, c = NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = np.swapaxes(x, -1, -2) if tall else x
    x = x / np.maximum(np.sqrt(np.sum(x * x, (-2, -1), keepdims=True)), eps)
    for _ in range(steps):
        square = x @ np.swapaxes(x, -1, -2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return np.swapaxes(x, -1, -2) if tall else x


def muon(
    rate: Rate = 1e-3,
    momentum: float = 0.95,
    *,
    nesterov: bool = True,
    steps: int = 5,
    decay: float = 0.1,
    mask: Mask = matrices,
    others: Optimizer | None = None,
    dtype: Any = None,
) -> Optimizer:
    """For matrices: p (1 - rate decay) - rate sqrt(max(1, m / n)) orthogonalised(g'), g' being the
    gradient with momentum. Jordan and others, 2024, in the form of `torch.optim.Muon`.

    `mask` says which arrays are such matrices: those of two axes or more, whose rows are the last
    but one; embeddings are better left out. `others` serves the rest, `adamw(rate)` unless given.

    Raises InputError where `mask` is True for an array of fewer axes.

    >>> optimizer = muon(0.1)
    >>> params = {"w": np.eye(2), "b": np.ones(2)}
    >>> params, state = optimizer.update({"w": np.eye(2), "b": np.ones(2)}, optimizer.init(params), params)
    >>> state["first"]["m"], state["second"]["m"]
    ({'w': array([[0.05, 0.  ], [0.  , 0.05]]), 'b': None}, {'w': None, 'b': array([0.1, 0.1])})
    """

    check_range(below=1, momentum=momentum)

    def rule(now: Now, g: Any, p: Any, m: Any) -> Sequence[Any]:
        if p.ndim < 2:
            what = f"muon is for arrays of two axes or more, and `mask` is True for one of shape {p.shape}"
            raise InputError(what, where=here(), fix="mask=ge2.optim.matrices")
        m = momentum * m + (1 - momentum) * g
        by = orthogonalised(momentum * m + (1 - momentum) * g if nesterov else m, steps)
        p = p * (1 - now.rate * now.decay) if now.decay else p
        return p - now.rate * math.sqrt(max(1.0, p.shape[-2] / p.shape[-1])) * by, m

    hidden = by_leaf(rule, ("m",), rate, decay, None, dtype)
    return split(mask, hidden, adamw(rate, dtype=dtype) if others is None else others)


publish(globals(), advise=True)
