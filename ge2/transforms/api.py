"""`grad`, `vjp`, `jvp` and `linearize`: functions of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from ge2.base.arrays import COMPLEX, INEXACT
from ge2.base.errors import GradientError, InputError
from ge2.base.pytree import flatten, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import Flags, Graph, type_of, without_dead_code
from ge2.trace import Closed, run
from ge2.trace.writes import Writes
from ge2.transforms.arguments import Arguments, Results, checked_type, numbered, owned
from ge2.transforms.graphs import DERIVE, empty, vjp_graph
from ge2.transforms.graphs.partition import DISPATCH, partition
from ge2.transforms.pullback import (
    Derivative,
    Memory,
    Part,
    Pullback,
    PullRule,
    Pushforward,
    PushRule,
    TangentSpace,
    memory_of,
    repeated,
    tangents_in,
    tangents_like,
)

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

    >>> import numpy as np
    >>> value_and_grad(lambda x: np.sum(x * x))(np.array([1.0, 2.0]))
    (array(5.), array([2., 4.]))
    """

    options = argnums, has_aux, holomorphic, allow_int
    memory = memory_of(fun, "value_and_grad", options)

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

    options = argnums, has_aux, holomorphic, allow_int
    memory = memory_of(fun, "grad", options)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = differentiate(fun, args, kwargs, options, has_aux, memory)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def differentiable(
    call: Arguments, leaves: Sequence[int], holomorphic: bool, allow_int: bool
) -> list[int]:
    """The leaves that are inexact; an error for the others unless they are allowed."""
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
    if issubclass(type(leaf), bool | int):
        return f"{float(leaf)} in place of {leaf}, or argnums= of another argument"
    if hasattr(leaf, "astype"):
        return f"{name}.astype(np.float64), argnums= of another argument, or allow_int=True"
    owner, dot, attribute = name.rpartition(".")
    if dot:
        kind = type(leaf).__name__
        return f"{attribute}: {kind} = dataclasses.field(metadata={{'static': True}}), or {owner} without it"
    if name.endswith("]"):
        return f"{name.rpartition('[')[0]} without it, which the function may close over instead"
    return "argnums= of an argument that holds numbers alone"


def check_scalar(call: Arguments, closed: Closed, returned: Results, holomorphic: bool) -> None:
    """Refuses results that are not one scalar with a derivative."""
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

    >>> import numpy as np
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

    def work(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return along(fun, tuple(primals), tuple(tangents), has_aux)

    memory = memory_of(fun, "jvp", (has_aux,))
    return repeated(memory, fun, work, (primals, tangents), {})


def along(
    fun: Function, primals: tuple[Any, ...], given: tuple[Any, ...], has_aux: bool
) -> tuple[Any, ...]:
    """The value and the tangent, and what is auxiliary."""
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
    """Flags of the graph's inputs that are the wanted leaves."""
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
