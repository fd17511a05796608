"""Optimisers that know rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.optim.adam import adamw
from ge2.optim.rule import Mask, Now, Optimizer, Rate, by_leaf, kept, matrices, split

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
        new = now.step**beta2_decay
        least = float(np.finfo(p.dtype).eps) if eps[0] is None else eps[0]
        size = np.maximum(root_mean_square(p), eps[1])
        alpha = size * least_of(now.rate, 1 / now.step**0.5)
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
