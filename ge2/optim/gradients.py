"""Functions of gradients on their way to an optimiser, and of parameters after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import INTEGERS
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.pytrees.pytree import leaves, structure
from ge2.base.source import here
from ge2.ir import type_of
from ge2.optim.rule import Optimizer, check_arrays, kept, wide
from ge2.transforms.control.branches import cond
from ge2.transforms.control.loops import scan
from ge2.transforms.inspect import ShapeDtypeStruct, eval_shape
from ge2.tree import map as tree_map


def global_norm(tree: Any) -> Any:
    """The length of all arrays as one vector, in float32 for half types.

    >>> global_norm({"w": np.array([3.0, 0.0]), "b": np.array([4.0])})
    np.float64(5.0)
    """
    check_arrays("global_norm", tree)
    squares = [np.sum(wide(x) * wide(x)) for x in leaves(tree)]
    return np.sqrt(sum(squares[1:], squares[0])) if squares else 0.0


def clip_by_value(grads: Any, limit: float) -> Any:
    """Each element within [-limit, limit].

    >>> clip_by_value(np.array([-3.0, 0.5]), 1.0)
    array([-1. ,  0.5])
    """
    check_arrays("clip_by_value", grads)
    return tree_map(lambda g: np.clip(g, -limit, limit), grads)


def clip_by_global_norm(grads: Any, limit: float) -> Any:
    """The gradients, scaled to the length `limit` if all together are longer. Pascanu and others,
    2012.

    >>> clip_by_global_norm(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    """
    scale = limit / np.maximum(global_norm(grads), limit)
    return tree_map(lambda g: (wide(g) * scale).astype(g.dtype), grads)


def accumulate(optimizer: Optimizer, steps: int) -> Optimizer:
    """An optimiser that gathers gradients, and updates by their mean at each call that is the last
    of `steps`; parameters stay as they are at the others.

    >>> from ge2 import optim
    >>> optimizer, p = accumulate(optim.sgd(1.0), 2), np.zeros(1)
    >>> p, state = optimizer.update(np.array([1.0]), optimizer.init(p), p)
    >>> p, optimizer.update(np.array([3.0]), state, p)[0]
    (array([0.]), array([-2.]))
    """

    check_count("accumulate", steps)

    def init(params: Any) -> Any:
        check_arrays("accumulate", params)
        zeros = tree_map(lambda p: np.zeros_like(p, kept(p, None)), params)
        return {"calls": 0, "sum": zeros, "inner": optimizer.init(params)}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        total = tree_map(lambda s, g: s + wide(g), state["sum"], grads)
        calls = state["calls"] + 1

        def last(total: Any, inner: Any, params: Any) -> Any:
            mean = tree_map(lambda s: s * (1 / steps), total)
            params, inner = optimizer.update(mean, inner, params)
            return tree_map(np.zeros_like, total), inner, params

        total, inner, params = cond(
            calls % steps == 0, last, lambda *same: same, total, state["inner"], params
        )
        return params, {"calls": calls, "sum": total, "inner": inner}

    return Optimizer(init, update)


def microbatches(f: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """The mean of f(params, *parts) over `steps` parts of a batch, one after another: what f gives
    of a whole batch, in the memory of a part, if f is such a mean, as `ge2.value_and_grad` of one.

    The arrays after the first argument are cut along their first axis. Raises ShapeError for a
    batch that so many do not divide.

    >>> import ge2
    >>> f = ge2.value_and_grad(lambda w, x: np.mean(w * x))
    >>> microbatches(f, 2)(2.0, np.array([1.0, 2.0, 3.0, 4.0]))
    (np.float64(5.0), np.float64(2.5))
    """

    check_count("microbatches", steps)

    def cut(x: Any) -> Any:
        if x.ndim == 0 or x.shape[0] % steps:
            what = f"microbatches: {steps} steps do not divide a batch of shape {x.shape}"
            raise ShapeError(what, where=here(), fix="a batch whose first axis they divide")
        return x.reshape(steps, x.shape[0] // steps, *x.shape[1:])

    def mean(params: Any, *batch: Any) -> Any:
        check_arrays("microbatches", batch)
        parts = tree_map(cut, batch)
        like = eval_shape(f, *tree_map(shape_of, (params, *tree_map(lambda x: x[0], parts))))
        at = next(x for x in leaves(parts) if hasattr(x, "dtype"))
        zeros = tree_map(lambda t: np.zeros_like(at, t.dtype, shape=t.shape), like)

        def step(total: Any, part: Any) -> tuple[Any, None]:
            return tree_map(lambda a, b: a + b, total, f(params, *part)), None

        total, _ = scan(step, zeros, parts)
        return tree_map(lambda x: (x * (1 / steps)).astype(x.dtype), total)

    return mean


def check_count(name: str, steps: Any) -> None:
    if not isinstance(steps, int | np.integer) or steps < 1:
        what = f"{name}: steps are counted, 1 or more; got {steps!r:.60}"
        raise ArgumentError(what, where=here(), fix="steps=4")


def shape_of(x: Any) -> Any:
    return ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "dtype") else x


def loss_scale(
    optimizer: Optimizer, initial: float = 2.0**15, *, factor: float = 2.0, interval: int = 2000
) -> Optimizer:
    """An optimiser for gradients of a loss that was multiplied by `state["scale"]`, so that those of
    float16 do not vanish.

    They are divided by it. If any is infinite or NaN, parameters and states of arrays stay as they
    are (a number of steps goes on) and the scale is divided by `factor`; after `interval` steps
    without one it is multiplied by it. Micikevicius and others, 2017; numbers as in
    `torch.amp.GradScaler`.

    >>> import ge2
    >>> optimizer = loss_scale(ge2.optim.sgd(0.5))
    >>> w = np.array([2.0], np.float32)
    >>> state = optimizer.init(w)
    >>> slope = ge2.grad(lambda w: np.sum(w * w) * state["scale"])(w)
    >>> w, state = optimizer.update(slope, state, w)
    >>> w, state["scale"]
    (array([0.], dtype=float32), np.float32(32768.0))
    """

    def init(params: Any) -> Any:
        like = leaves(params)[0]
        scale = np.full_like(like, initial, np.float32, shape=())
        good = np.zeros_like(like, np.int32, shape=())
        return {"scale": scale, "good": good, "inner": optimizer.init(params)}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        scale: Any = state["scale"]
        good: Any = state["good"]
        finite = np.isfinite(global_norm(grads))
        grads = tree_map(
            lambda g: np.where(finite, wide(g) / scale, 0).astype(kept(g, None)), grads
        )
        new = optimizer.update(grads, state["inner"], params)
        params, inner = chosen(finite, new, (params, state["inner"]))
        grown = finite & (good + 1 >= interval)
        by: Any = np.where(finite, np.where(grown, factor, 1.0), 1 / factor)
        good = np.where(finite & ~grown, good + np.int32(1), np.int32(0))
        return params, {"scale": scale * by.astype(np.float32), "good": good, "inner": inner}

    return Optimizer(init, update)


def chosen(ok: Any, new: Any, old: Any) -> Any:
    """`new` where a number is true, else `old`; numbers of steps, which are integers, go on."""
    assert structure(new) == structure(old)
    return tree_map(
        lambda a, b: a if type_of(b).dtype in INTEGERS else np.where(ok, a, b), new, old
    )


class Average:
    """The moving mean of parameters that `ema` makes: `init(params)`, and `update(params, mean)`."""

    def __init__(self, decay: float, dtype: Any) -> None:
        self.decay, self.dtype = decay, dtype

    def __repr__(self) -> str:
        return f"ema({self.decay})"

    def init(self, params: Any) -> Any:
        """A copy of the parameters, float32 for half types."""
        check_arrays("ema", params)
        return tree_map(lambda p: p.astype(kept(p, self.dtype)).copy(), params)

    def update(self, params: Any, mean: Any) -> Any:
        """The mean after one more step."""
        d = self.decay
        return tree_map(
            lambda p, a: (d * wide(a) + (1 - d) * wide(p)).astype(a.dtype), params, mean
        )


def ema(decay: float = 0.999, *, dtype: Any = None) -> Average:
    """The exponential moving mean of parameters: decay mean + (1 - decay) params.

    >>> average, p = ema(0.75), np.zeros(1)
    >>> average.update(np.ones(1), average.init(p))
    array([0.25])
    """
    return Average(decay, dtype)
