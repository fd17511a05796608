"""Optimisers: two pure functions over containers of arrays, made of a rule for one array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from ge2.base.dtypes import FLOATS, HALF
from ge2.base.errors import InputError, ShapeError
from ge2.base.gpu import reserve
from ge2.base.pytrees.paths import keystr
from ge2.base.pytrees.pytree import (
    DictKey,
    GetAttrKey,
    KeyPath,
    SequenceKey,
    flatten,
    flatten_up_to,
    flatten_with_path,
    structure,
    unflatten,
)
from ge2.base.record import record
from ge2.base.source import here
from ge2.tree import map as tree_map

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
        flags = flags_of(mask, params, structure)
        results = [
            applied(rule, Now(step, by, decay if flag else 0.0), g, p, states)
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
    if not (callable(rate) or hasattr(rate, "dtype") or isinstance(rate, int | float)):
        what = f"a rate is a number, or a function of the number of steps; got {rate!r:.60}"
        raise InputError(
            what, where=here(), fix="1e-3; the parameters are given to init and update"
        )


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
