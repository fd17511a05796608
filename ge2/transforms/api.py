"""`grad`, `vjp`, `jvp`, `linearize` and `vmap`: functions of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import index
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import numpy as np

from ge2.base.dtypes import COMPLEX, INEXACT
from ge2.base.errors import GradientError, InPlaceError, InputError, PytreeError
from ge2.base.pytrees.pytree import broadcast_prefix, flatten, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import ArrayType, Flags, Graph, type_of, without_dead_code
from ge2.trace import Closed, Input, run
from ge2.trace.writes import Writes
from ge2.transforms.arguments import Arguments, Results, checked_type, numbered, owned
from ge2.transforms.graphs.derive import DERIVE
from ge2.transforms.graphs.partition import DISPATCH, partition
from ge2.transforms.graphs.pullback import (
    Part,
    Pullback,
    PullRule,
    Pushforward,
    PushRule,
    TangentSpace,
    tangents_in,
    tangents_like,
)
from ge2.transforms.graphs.rules import empty, vjp_graph, vmap_graph
from ge2.transforms.remembered import Derivative, Memory

Function = Callable[..., Any]
Argnums = int | Sequence[int]
P = ParamSpec("P")
R = TypeVar("R")
X = TypeVar("X")  # of the first argument, whose structure its gradient has
Aux = TypeVar("Aux")


@overload
def value_and_grad(
    fun: Callable[Concatenate[X, P], tuple[R, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], tuple[tuple[R, Aux], X]]: ...
@overload
def value_and_grad(
    fun: Callable[Concatenate[X, P], R],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], tuple[R, X]]: ...
@overload
def value_and_grad(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[Any, Any]]: ...
def value_and_grad(
    fun: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The function's value and its gradient.

    `fun` returns a real scalar (with `has_aux`, a pair of that and anything else). The gradient has
    the structure, shapes and dtypes of argument `argnums`; with several argnums it is a tuple. By a
    complex argument a + bi it is df/da - i df/db; with `holomorphic` it is the complex derivative.
    GradientError if the argument holds integers (unless `allow_int`) or the result is no scalar.

    >>> value_and_grad(lambda x: np.sum(x * x))(np.array([1.0, 2.0]))
    (array(5.), array([2., 4.]))
    """

    memory, options = Memory(), (argnums, has_aux, holomorphic, allow_int)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return differentiate(fun, args, kwargs, options, True, memory)

    return wrapped


@overload
def grad(
    fun: Callable[Concatenate[X, P], tuple[Any, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], tuple[X, Aux]]: ...
@overload
def grad(
    fun: Callable[Concatenate[X, P], Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], X]: ...
@overload
def grad(
    fun: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]: ...
def grad(
    fun: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The gradient of `fun`, as `value_and_grad` without the value; with
    `has_aux`, (gradient, aux).

    >>> grad(lambda x: x**3)(2.0)
    12.0
    """

    memory, options = Memory(), (argnums, has_aux, holomorphic, allow_int)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = differentiate(fun, args, kwargs, options, has_aux, memory)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def differentiable(
    call: Arguments, leaves: Sequence[int], holomorphic: bool, allow_int: bool
) -> list[int]:
    """Those leaves that are inexact; an error for the others unless they are allowed."""
    wanted = []
    for i in leaves:
        dtype = checked_type(call, i).dtype if i in call.arrays else None
        if dtype in INEXACT:
            wanted.append(i)
            if holomorphic and dtype not in COMPLEX:
                raise GradientError(
                    f"holomorphic=True takes complex arguments; {call.name(i)} is {type_of(call.leaves[i])}",
                    where=here(),
                )
        elif not allow_int:
            leaf = call.leaves[i]
            kind = type_of(leaf) if dtype is not None else type(leaf).__name__
            raise GradientError(
                f"{call.title}: the derivative by {call.name(i)}, {kind}, is not defined",
                where=here(),
                fix=as_float(leaf, call.name(i)),
            )
    return wanted


def as_float(leaf: Any, name: str) -> str:
    """The fix for an argument that has no derivative."""
    if isinstance(leaf, bool | int):
        return f"{float(leaf)} in place of {leaf}, or argnums= of another argument"
    if hasattr(leaf, "astype"):
        return f"{name}.astype(np.float64), argnums= of another argument, or allow_int=True"
    return "argnums= of an argument that holds numbers"


def check_scalar(call: Arguments, closed: Closed, returned: Results, holomorphic: bool) -> None:
    """That there is one result, a scalar that has a derivative."""
    if returned.count != 1 or closed.graph.outputs[0].type.shape:
        got = ", ".join(str(a.type) for a in closed.graph.outputs[: returned.count]) or "nothing"
        fix = "np.sum or np.mean of the result, or ge2.jacrev; (result, aux) needs has_aux=True"
        raise GradientError(
            f"grad takes a function with one scalar result; {call.title} returned {got}",
            where=here(),
            fix=fix,
        )
    type = closed.graph.outputs[0].type
    if type.dtype not in INEXACT or (type.dtype in COMPLEX) != holomorphic:
        fix = (
            "np.real or np.abs of the result, or holomorphic=True"
            if type.dtype in COMPLEX
            else "np.tanh(x) or np.maximum(x, 0) in place of what compares, rounds or counts"
        )
        kind = "complex" if holomorphic else "real"
        raise GradientError(
            f"grad takes a function with a {kind} result; {call.title} returned {type}",
            where=here(),
            fix=fix,
        )


def differentiate(
    fun: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: tuple[Argnums, bool, bool, bool],
    with_value: bool,
    memory: Memory,
) -> tuple[Any, Any]:
    """The value (None if not asked for) and the gradient."""
    key = memory.key(args, kwargs)
    known = None if key is None else memory.find(key)
    if known is not None:
        return known.build(known.results(flatten(args)[0]))
    argnums, has_aux, holomorphic, allow_int = options
    call = Arguments.of(fun, args, kwargs)
    numbers = numbered(argnums)
    leaves = sorted({i for n in numbers for i in call.of_argument(n)})
    wanted = differentiable(call, leaves, holomorphic, allow_int)
    returned = Results(has_aux)
    around = None if key is None else memory.around(key, fun, args)
    closed, writes = staged(call, wanted, returned, "grad")
    check_scalar(call, closed, returned, holomorphic)
    joint, count = joint_graph(closed, call, wanted), len(closed.graph.outputs)
    written = len(writes.each) if writes else 0
    if not with_value:
        outputs, count = joint.outputs[count - written :], written
        joint = without_dead_code(Graph(joint.inputs, joint.eqns, outputs, joint.consts))
    places = dict(zip(wanted, range(count, len(joint.outputs)), strict=True))
    parts = [part_of(call, n, places) for n in numbers]
    several, shown = isinstance(argnums, Sequence), returned if with_value else None
    derivative = Derivative(joint, closed.captured, shown, count, parts, several)
    if key is not None and around is not None and not (closed.looked or writes):
        memory.keep(key, around, derivative)
    results = derivative.results(call.values())
    call.carry(writes, results[:count])
    return derivative.build(results)


def part_of(call: Arguments, argnum: int, places: dict[int, int]) -> Part:
    """The structure of one argument, and for each leaf the place of its
    cotangent, or an integer's shape.
    """
    types = dict(zip(call.arrays, call.types(), strict=True))
    leaves = call.of_argument(argnum)
    found = (places[i] if i in places else types[i].shape if i in types else () for i in leaves)
    return call.structure_of(argnum), tuple(found)


def staged(
    call: Arguments, wanted: Sequence[int], returned: Results, kind: str
) -> tuple[Closed, Writes | None]:
    """The graph of a function that may write the arguments from which no derivative flows."""
    active = set(wanted)
    free = [i not in active for i in call.arrays]
    closed, writes = call.stage_writing(call.inputs(wanted), returned, kind, free)
    call.check(writes)
    return closed, writes


def joint_graph(closed: Closed, call: Arguments, wanted: Sequence[int]) -> Graph:
    """The derivative of the first output, by the wanted leaves."""
    given = (True,) + (False,) * (len(closed.graph.outputs) - 1)
    return vjp_graph(closed.graph, active_inputs(closed, call, wanted), DERIVE, given, unit=True)


def gradient_like(call: Arguments, argnum: int, grads: dict[int, Any]) -> Any:
    """The cotangents of one argument, in its structure; those of integers have no bytes."""
    types = dict(zip(call.arrays, call.types(), strict=True))
    leaves = call.of_argument(argnum)
    found = [
        grads[i] if i in grads else empty(types[i].shape if i in types else ()) for i in leaves
    ]
    return unflatten(call.structure_of(argnum), found)


@overload
def vjp(
    fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[[Any], tuple[Any, ...]], Aux]: ...
@overload
def vjp(
    fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False
) -> tuple[R, Callable[[Any], tuple[Any, ...]]]: ...
@overload
def vjp(fun: Function, *primals: Any, has_aux: bool) -> Any: ...
def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The result of `fun(*primals)`, and the function from its cotangent to a
    tuple of those of the primals.

    >>> y, pull = vjp(np.sin, 0.0)
    >>> pull(2.0)
    (2.0,)
    """
    call = Arguments.of(fun, primals, {})
    return pulled(call, call.inexact(), range(len(primals)), has_aux)


def pulled(call: Arguments, wanted: Sequence[int], chosen: Iterable[int], has_aux: bool) -> Any:
    """As `vjp`, by the wanted leaves, which belong to the chosen arguments."""
    returned = Results(has_aux)
    closed, writes = staged(call, wanted, returned, "vjp")
    outputs = closed.graph.outputs
    given = tuple(i < returned.count and a.type.dtype in INEXACT for i, a in enumerate(outputs))
    joint = vjp_graph(closed.graph, active_inputs(closed, call, wanted), DERIVE, given)
    forward, backward, _ = partition(
        joint, len(closed.graph.inputs), len(outputs), dispatch=DISPATCH
    )
    args = (*closed.captured, *call.values())
    results = owned(run(forward, args), args)
    types = tuple(a.type for a in outputs[: returned.count])
    places = {i: k for k, i in enumerate(wanted)}
    parts = tuple(part_of(call, n, places) for n in chosen)
    pull = Pullback(results[len(outputs) :], PullRule(backward, types, parts, returned))
    value = returned.build(results[: len(outputs)])
    call.carry(writes, results[: len(outputs)])
    return (value[0], pull, value[1]) if has_aux else (value, pull)


@overload
def jvp(
    fun: Callable[..., tuple[R, Aux]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    has_aux: Literal[True],
) -> tuple[R, R, Aux]: ...
@overload
def jvp(
    fun: Callable[..., R],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: Literal[False] = False,
) -> tuple[R, R]: ...
@overload
def jvp(fun: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool) -> Any: ...
def jvp(
    fun: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """The result of `fun(*primals)` and its derivative along
    `tangents`, which are like the primals.

    >>> jvp(lambda x: x * x, (3.0,), (1.0,))
    (9.0, 6.0)
    """
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise InputError(
            "jvp takes a tuple of primals and one of tangents",
            where=here(),
            fix="jvp(f, (x,), (t,))",
        )
    primals, given = tuple(primals), tuple(tangents)
    call = Arguments.of(fun, primals, {})
    wanted, returned = call.inexact(), Results(has_aux)
    ts = tangents_in(tangent_space(call, range(len(primals)), wanted), given)
    closed, writes = staged(call, wanted, returned, "jvp")
    graph = DERIVE.jvp(closed.graph, active_inputs(closed, call, wanted))
    args = (*closed.captured, *call.values(), *ts)
    results = owned(run(graph, args), args)
    n = len(closed.graph.outputs)
    value = returned.build(results[:n])
    call.carry(writes, results[:n])
    tangent = tangents_like([a.type for a in closed.graph.outputs], returned, results[n:])
    return (value[0], tangent, value[1]) if has_aux else (value, tangent)


def active_inputs(closed: Closed, call: Arguments, wanted: Sequence[int]) -> Flags:
    """Which inputs of the graph are the wanted leaves."""
    chosen = set(wanted)
    return (False,) * len(closed.captured) + tuple(i in chosen for i in call.arrays)


@overload
def linearize(
    fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[..., R], Aux]: ...
@overload
def linearize(
    fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False
) -> tuple[R, Callable[..., R]]: ...
@overload
def linearize(fun: Function, *primals: Any, has_aux: bool) -> Any: ...
def linearize(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The result of `fun(*primals)`, and its derivative there as a function of tangents alone.

    >>> y, push = linearize(lambda x: x * x, 3.0)
    >>> push(1.0), push(2.0)
    (6.0, 12.0)
    """
    call = Arguments.of(fun, primals, {})
    return pushed(call, call.inexact(), range(len(primals)), has_aux)


def pushed(call: Arguments, wanted: Sequence[int], chosen: Iterable[int], has_aux: bool) -> Any:
    """As `linearize`, by the wanted leaves, which belong to the chosen arguments."""
    returned = Results(has_aux)
    closed, writes = staged(call, wanted, returned, "linearize")
    outputs = len(closed.graph.outputs)
    forward, linear, _ = DERIVE.linear(closed.graph, active_inputs(closed, call, wanted))
    args = (*closed.captured, *call.values())
    results = owned(run(forward, args), args)
    space, types = tangent_space(call, chosen, wanted), tuple(a.type for a in closed.graph.outputs)
    push = Pushforward(results[outputs:], PushRule(linear, space, types, returned))
    value = returned.build(results[:outputs])
    call.carry(writes, results[:outputs])
    return (value[0], push, value[1]) if has_aux else (value, push)


def tangent_space(call: Arguments, chosen: Iterable[int], wanted: Sequence[int]) -> TangentSpace:
    """The structure and types that tangents of the chosen arguments have."""
    args = unflatten(call.structure, call.leaves)[0]
    numbers = list(chosen)
    leaves = [i for n in numbers for i in call.of_argument(n)]
    types = dict(zip(call.arrays, call.types(), strict=True))
    active = set(wanted)
    return TangentSpace(
        flatten(tuple([args[n] for n in numbers]))[1],
        tuple([types.get(i) for i in leaves]),
        tuple([call.name(i) for i in leaves]),
        tuple([i in active for i in leaves]),
    )


def vmap(
    fun: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
) -> Callable[P, R]:
    """`fun` over one more axis of its arguments: `in_axes` says which, None for
    an argument shared by all.

    `in_axes` is an int, None, or a tuple with an entry (or a pytree of entries) for
    each positional argument; keyword arguments are mapped over axis 0. `out_axes`
    places the axis in the results likewise.

    >>> vmap(lambda x, y: np.dot(x, y), in_axes=(0, None))(np.eye(2), np.array([3.0, 4.0]))
    array([3., 4.])
    """
    if axis_name is not None:
        what = f"vmap(axis_name={axis_name!r}): ge2 has no collectives that could name the axis"
        raise InputError(what, where=here(), fix="np.sum over the axis of what vmap returns")

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = Arguments.of(fun, args, kwargs)
        axes = leaf_axes(call, args, kwargs, in_axes)
        size = common_size(call, axes, axis_size)
        types = [dropped(t, a) for t, a in zip(call.types(), axes, strict=True)]
        inputs = [hidden(given, a) for given, a in zip(call.inputs(types=types), axes, strict=True)]
        returned = Results()
        closed, writes = call.stage_writing(inputs, returned, "vmap", [a is None for a in axes])
        call.check(writes)
        out = out_axes_of(call, returned, out_axes)
        count = len(out)
        force = (*(a is not None for a in out), *(False,) * (len(closed.graph.outputs) - count))
        graph, has = vmap_graph(
            closed.graph, (*(None for _ in closed.captured), *axes), size, DERIVE, force
        )
        refuse_batched(writes, has[count:])
        values = (*closed.captured, *call.values())
        found = run(graph, values)
        results = owned(moved(found[:count], has[:count], out, call, returned), values)
        call.carry(writes, found)
        return returned.build(results, over=size)

    return wrapped


def leaf_axes(
    call: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any
) -> list[int | None]:
    """The mapped axis of each array leaf, counted from the front."""
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise InputError(
            f"vmap: in_axes has {len(in_axes)} entries, but {call.title} was given {len(args)} arguments",
            where=here(),
            fix=f"in_axes=({', '.join(['0'] * len(args))}), None where an argument is shared by all",
        )
    spec = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
    flat = spread_axes("in_axes", call, (spec, 0), (args, kwargs))
    return [normal_axis(call, i, flat[i]) for i in call.arrays]


def spread_axes(what: str, call: Arguments, prefix: Any, tree: Any) -> list[Any]:
    """One axis for each leaf of the tree."""
    try:
        return broadcast_prefix(prefix, tree, is_leaf=lambda x: x is None)
    except PytreeError as error:
        raise InputError(
            f"vmap: {what} of {call.title} does not fit: {error}",
            where=here(),
            fix="an int, None, or a tree of them",
        ) from None


def is_axis(axis: Any) -> bool:
    """True for an integer; True and False are no axes."""
    return hasattr(axis, "__index__") and not isinstance(axis, bool | np.bool_)


def normal_axis(call: Arguments, i: int, axis: Any) -> int | None:
    if axis is None:
        return None
    t = type_of(call.leaves[i])
    if not is_axis(axis) or not -t.ndim <= index(axis) < t.ndim:
        fix = "in_axes=None for an argument that all share"
        raise InputError(
            f"vmap: {call.name(i)}, {t}, has no axis {axis!r} to map over", where=here(), fix=fix
        )
    return index(axis) % t.ndim


def common_size(call: Arguments, axes: Sequence[int | None], given: int | None) -> int:
    """The size of the mapped axes, which all have the same."""
    sizes = {
        i: type_of(call.leaves[i]).shape[a]
        for i, a in zip(call.arrays, axes, strict=True)
        if a is not None
    }
    found = set(sizes.values()) | ({given} if given is not None else set())
    if len(found) > 1:
        listed = ", ".join(f"{call.name(i)} has {size}" for i, size in sizes.items())
        asked = "" if given is None else f", axis_size is {given}"
        raise InputError(
            f"vmap: the mapped axes differ in size: {listed}{asked}",
            where=here(),
            fix="in_axes=(0, None), None where all share it",
        )
    if not found:
        raise InputError(
            "vmap: no argument is mapped",
            where=here(),
            fix="axis_size=n, or an in_axes that is not None",
        )
    return found.pop()


def dropped(t: ArrayType, axis: int | None) -> ArrayType:
    return t if axis is None else t.with_shape((*t.shape[:axis], *t.shape[axis + 1 :]))


def hidden(given: Input, axis: int | None) -> Input:
    """A mapped argument has a value for each place of the axis, so none that could be looked at."""
    if axis is None:
        return given
    return Input(
        given.type,
        name=given.name,
        reason=f"{given.name} is mapped by vmap: it has a value for each place of the axis",
    )


def out_axes_of(call: Arguments, returned: Results, out_axes: Any) -> list[int | None]:
    tree = unflatten(returned.structure, [0] * returned.structure.num_leaves)
    return returned.arrays_of(spread_axes("out_axes", call, out_axes, tree))


def refuse_batched(writes: Writes | None, has: Sequence[bool]) -> None:
    """InPlaceError if what is written to an argument differs along the mapped
    axis, which it lacks.
    """
    for w, has_axis in zip(writes.each if writes else (), has, strict=True):
        if has_axis and writes is not None:
            name = writes.names[w.input]
            what = (
                f"vmap: {writes.title} would write into {name} what differs along the mapped axis"
            )
            raise InPlaceError(what, where=w.line, fix=f"y = {name}.copy(), and return y")


def moved(
    results: Sequence[Any],
    has: Sequence[bool],
    out: Sequence[Any],
    call: Arguments,
    returned: Results,
) -> list[Any]:
    """The results with their mapped axis where `out` says."""
    ys = []
    for y, has_axis, axis, path in zip(results, has, out, returned.paths(), strict=True):
        name = f"the result{path} of {call.title}"
        if axis is None and has_axis:
            raise InputError(
                f"vmap: out_axes=None, but {name} differs along the mapped axis",
                where=here(),
                fix="out_axes=0",
            )
        if axis is not None and (not is_axis(axis) or not -y.ndim <= index(axis) < y.ndim):
            raise InputError(
                f"vmap: out_axes={axis!r}, but {name} has {y.ndim} axes, the mapped one included",
                where=here(),
                fix=f"out_axes={y.ndim - 1}",
            )
        ys.append(np.moveaxis(y, 0, axis) if axis else y)
    return ys
