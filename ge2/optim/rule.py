"""The parts of optimisers: a rule for one array, rates, functions of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from ge2.base.arrays import FLOATS, HALF, reserve
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.pytree import (
    DictKey,
    GetAttrKey,
    KeyPath,
    SequenceKey,
    flatten,
    flatten_up_to,
    flatten_with_path,
    leaves,
    structure,
    unflatten,
)
from ge2.base.record import keystr, record
from ge2.base.source import here
from ge2.ir import type_of
from ge2.transforms.arguments import ShapeDtypeStruct, eval_shape
from ge2.transforms.branches import cond
from ge2.transforms.loops import scan
from ge2.tree import map as tree_map

# -------- Optimisers: two pure functions over containers of arrays, made of a rule for one array.


Rate = float | Callable[[Any], Any]
LEAF = structure(0)
Mask = Any  # a container of bools as that of the parameters, or a function that makes one of them


@record
class Optimizer:
    """`init(params)` gives a state, and `update(grads, state, params)` the next parameters and state.

    Both are pure, and take containers of arrays: a dict, a module of `ge2.nn`. A state is a dict: a
    number of steps, and containers like that of the parameters. Under `ge2.jit` parameters and
    state may be donated, so that they are updated in place.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]

    def __repr__(self) -> str:
        return "Optimizer(init, update)"


class Now(NamedTuple):
    """The facts of a step that a rule needs besides arrays."""

    step: Any  # 1 for the first
    rate: Any
    decay: Any  # of this array
    known: dict[str, Any]  # what rules have made of the step

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that depends on the step alone: computed, or traced, once for all arrays."""
        if name not in self.known:
            self.known[name] = make()
        return self.known[name]


Rule = Callable[..., Sequence[Any]]


def by_leaf(
    rule: Rule,
    names: tuple[str, ...],
    rate: Rate,
    decay: float = 0.0,
    mask: Mask = None,
    dtype: Any = None,
    zeros: Callable[[Any], Sequence[Any]] | None = None,
) -> Optimizer:
    """The optimiser that applies `rule(now, g, p, *states)`, which gives the next p and states, to
    each array.

    Arrays of half types are computed in float32 and rounded once. States begin with zeros, of the
    dtype given or else of the array's own, float32 for half types.
    """

    check_rate(rate)
    check_range(rate=rate, decay=decay)

    def init(params: Any) -> Any:
        found, structure = flatten(params)
        check_floats(found)
        if found and zeros is None:
            reserve(found[0], [p.size * kept(p, dtype).itemsize for p in found] * len(names))
        begin = zeros or (lambda p: [np.zeros_like(p, kept(p, dtype)) for _ in names])
        columns = zip(*map(begin, found), strict=True) if found else ((),) * len(names)
        states = (unflatten(structure, column) for column in columns)
        return {"step": 0, **dict(zip(names, states, strict=True))}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        found, structure = flatten(params)
        check_state(state, names)
        step = state["step"] + 1
        by = rate(state["step"]) if callable(rate) else rate
        rows = [flatten_up_to(structure, grads, ("params", "grads"))]
        rows += [flatten_up_to(structure, state[n], ("params", f"state[{n!r}]")) for n in names]
        flags, known = flags_of(mask, params, structure), dict[str, Any]()
        results = [
            applied(rule, Now(step, by, decay if flag else 0.0, known), g, p, states)
            for p, flag, g, *states in zip(found, flags, *rows, strict=True)
        ]
        columns = list(zip(*results, strict=True)) if results else [()] * (len(names) + 1)
        params, *states = (unflatten(structure, column) for column in columns)
        return params, {"step": step, **dict(zip(names, states, strict=True))}

    return Optimizer(init, update)


def kept(p: Any, dtype: Any) -> Any:
    """The dtype of a state of p."""
    if dtype is not None:
        return np.dtype(dtype)
    return np.dtype(np.float32) if p.dtype in HALF else p.dtype


def wide(x: Any) -> Any:
    """The values in which an array is updated: float32 for half types."""
    return x.astype(np.float32) if x.dtype in HALF else x


def applied(rule: Rule, now: Now, g: Any, p: Any, states: Sequence[Any]) -> list[Any]:
    """The results of a rule for an array and its states, in their dtypes."""
    if g.shape != p.shape:
        what = f"a gradient has the shape of its array, {p.shape}; got {g.shape}"
        raise ShapeError(what, where=here(), fix="grads as ge2.grad gives them of these params")
    found = rule(now, wide(g), wide(p), *map(wide, states))
    return [y.astype(x.dtype) for y, x in zip(found, (p, *states), strict=True)]


def check_rate(rate: Any) -> None:
    """InputError for a rate that is no number and no schedule, such as torch's first argument."""
    if not (callable(rate) or hasattr(rate, "dtype") or issubclass(type(rate), int | float)):
        what = f"a rate is a number, or a function of the number of steps; got {rate!r:.60}"
        raise InputError(
            what, where=here(), fix="1e-3; the parameters are given to init and update"
        )


def check_range(below: float = math.inf, **numbers: Any) -> None:
    """ArgumentError for a number that is negative, NaN, or not below a bound; arrays are taken as
    they are.
    """
    for name, x in numbers.items():
        if issubclass(type(x), int | float) and not 0 <= x < below:
            bounds = "0 or more" if below == math.inf else f"in [0, {below:g})"
            raise ArgumentError(f"{name} is {bounds}; got {x!r}", where=here(), fix=f"{name}=0.1")


def check_state(state: Any, names: Sequence[str]) -> None:
    """InputError for what is not the state of this optimiser."""
    if not isinstance(state, dict) or not {"step", *names} <= state.keys():
        got = (
            f"a dict of {', '.join(map(repr, state))}"
            if isinstance(state, dict)
            else f"{state!r:.60}"
        )
        what = f"this state is a dict of {', '.join(map(repr, ('step', *names)))}; got {got}"
        fix = "update(grads, state, params), of a state that init of the same optimiser made"
        raise InputError(what, where=here(), fix=fix)


def check_arrays(name: str, tree: Any) -> None:
    """InputError for a container that holds numbers or words, which are no parameters."""
    for path, x in flatten_with_path(tree)[0]:
        if not hasattr(x, "dtype"):
            what = f"{name} takes arrays; got {x!r:.60} ({type(x).__name__}) at {keystr(path) or 'the top'}"
            raise InputError(
                what, where=here(), fix="np.asarray(x), or ge2.nn.static for what is no parameter"
            )


def check_floats(found: Sequence[Any]) -> None:
    for x in found:
        if getattr(x, "dtype", None) not in FLOATS:
            got = getattr(x, "dtype", type(x).__name__)
            what = f"an optimiser takes arrays of floats; got {got}"
            fix = "ge2.nn.static for what is no parameter, or ge2.optim.split"
            raise InputError(what, where=here(), fix=fix)


def flags_of(mask: Mask, params: Any, structure: Any) -> list[Any]:
    """A bool for each array; without a mask True for all but the state of modules."""
    if mask is None:
        return [not is_state(path, params) for path, _ in flatten_with_path(params)[0]]
    found = mask(params) if is_function(mask) else mask
    return flatten_up_to(structure, found, ("params", "mask"))


def is_function(mask: Mask) -> bool:
    """False for a container of bools, which a module is, though it can be called."""
    return callable(mask) and flatten(mask)[1] == LEAF


def is_state(path: KeyPath, tree: Any) -> bool:
    """True of an array in a field of a dataclass that `ge2.nn.state` made: it is no parameter."""
    for key in path:
        match key:
            case GetAttrKey(name) if is_dataclass(tree):
                if any(f.name == name and f.metadata.get("state") for f in fields(tree)):
                    return True
                tree = getattr(tree, name)
            case DictKey(name) | SequenceKey(name) if isinstance(tree, dict | list | tuple):
                tree = tree[name]
            case _:
                return False
    return False


def matrices(params: Any) -> Any:
    """True for each array of two axes or more, which weights are, and biases and norms are not: a
    mask for weight decay.

    >>> matrices({"weight": np.ones((2, 2)), "bias": np.ones(2)})
    {'weight': True, 'bias': False}
    """
    check_arrays("matrices", params)
    return tree_map(lambda p: p.ndim > 1, params)


def split(mask: Mask, first: Optimizer, second: Optimizer) -> Optimizer:
    """`first` for the arrays where `mask` is True, `second` for the others.

    >>> from ge2 import optim
    >>> optimizer = split(matrices, optim.sgd(0.1), optim.adam(0.01))
    >>> sorted(optimizer.init({"weight": np.ones((2, 2)), "bias": np.ones(2)}))
    ['first', 'second']
    """

    def parts(tree: Any, flags: list[Any], structure: Any, role: str) -> tuple[Any, Any]:
        found = flatten_up_to(structure, tree, ("params", role))
        sides = (
            [x if flag == side else None for x, flag in zip(found, flags, strict=True)]
            for side in (True, False)
        )
        yes, no = (unflatten(structure, side) for side in sides)
        return yes, no

    def init(params: Any) -> Any:
        structure = flatten(params)[1]
        yes, no = parts(params, flags_of(mask, params, structure), structure, "params")
        return {"first": first.init(yes), "second": second.init(no)}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        structure = flatten(params)[1]
        flags = flags_of(mask, params, structure)
        p, g = (parts(x, flags, structure, n) for x, n in ((params, "params"), (grads, "grads")))
        yes, state_yes = first.update(g[0], state["first"], p[0])
        no, state_no = second.update(g[1], state["second"], p[1])
        found = [iter(flatten(yes)[0]), iter(flatten(no)[0])]
        merged = unflatten(structure, [next(found[0 if flag else 1]) for flag in flags])
        return merged, {"first": state_yes, "second": state_no}

    return Optimizer(init, update)


# -------- Rates as functions of the number of steps taken, 0 at the first: a `rate` of any
# optimiser.
# They are computed in float32, of a traced number as of Python's.


Schedule = Callable[[Any], Any]


def part(step: Any, steps: float) -> Any:
    """The part of so many steps that is done, in [0, 1]."""
    return np.clip(np.float32(1 / max(steps, 1)) * step, 0.0, 1.0)


def constant(rate: float) -> Schedule:
    """The same rate at each step.

    >>> constant(0.1)(7)
    0.1
    """
    return lambda step: rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` along a line of so many steps, then `end`.

    >>> [float(linear(1.0, 0.0, 4)(step)) for step in (0, 1, 4, 5)]
    [1.0, 0.75, 0.0, 0.0]
    """
    return lambda step: start + (end - start) * part(step, steps)


def cosine(peak: float, warmup: int, steps: int, end: float = 0.0) -> Schedule:
    """From 0 to `peak` along a line of `warmup` steps, then to `end` along half a cosine until step
    `steps`. Loshchilov and Hutter, "SGDR", 2016.

    >>> [round(float(cosine(1.0, 2, 6)(step)), 3) for step in (0, 1, 2, 4, 6, 9)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    def rate(step: Any) -> Any:
        fall = 0.5 * (1.0 + np.cos(math.pi * part(step - warmup, steps - warmup)))
        return (end + (peak - end) * fall) * (part(step, warmup) if warmup else 1.0)

    return rate


def exponential(start: float, factor: float, steps: int = 1) -> Schedule:
    """`start` times `factor` for each `steps` steps, in between as well.

    >>> [round(float(exponential(1.0, 0.25, 2)(step)), 3) for step in (0, 1, 2)]
    [1.0, 0.5, 0.25]
    """
    check_count("exponential", steps)
    return lambda step: start * np.float32(factor) ** (np.float32(1 / steps) * step)


def step_decay(start: float, factor: float, steps: int) -> Schedule:
    """`start` times `factor` after each `steps` steps.

    >>> [round(float(step_decay(1.0, 0.1, 2)(step)), 3) for step in (0, 1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    check_count("step_decay", steps)
    return lambda step: start * np.float32(factor) ** (np.float32(1) * (step // steps))


# -------- Functions of gradients on their way to an optimiser, and of parameters after it.


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
    check_range(limit=limit)
    return tree_map(lambda g: np.clip(g, -limit, limit), grads)


def clip_by_global_norm(grads: Any, limit: float) -> Any:
    """The gradients, scaled to the length `limit` if all together are longer. Pascanu and others,
    2012.

    >>> clip_by_global_norm(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    """
    check_range(limit=limit)
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
        return {"calls": beside(params, 0, np.int32), "sum": zeros, "inner": optimizer.init(params)}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        total = tree_map(lambda s, g: s + wide(g), state["sum"], grads)
        calls = state["calls"] + np.int32(1)

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
        scale, good = beside(params, initial, np.float32), beside(params, 0, np.int32)
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


def beside(params: Any, value: float, dtype: Any) -> Any:
    """A number as an array of no axes, where the parameters are."""
    like = next(iter(leaves(params)), np.zeros(()))
    return np.full_like(like, value, dtype, shape=())


def chosen(ok: Any, new: Any, old: Any) -> Any:
    """`new` where a number is true, else `old`; Python's integers, which count steps, go on."""
    assert structure(new) == structure(old)
    return tree_map(lambda a, b: a if type_of(b).weak else np.where(ok, a, b), new, old)


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
    check_range(decay=decay, below=1)
    return Average(decay, dtype)
