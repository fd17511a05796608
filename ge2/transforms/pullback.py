"""The functions that `vjp` returns, `checkpoint`, and a cache of derivatives for eager calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, replace
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, final
from weakref import WeakSet

import numpy as np

from ge2.base.arrays import BOOL, INEXACT, PYTHON, host, python_type, with_number
from ge2.base.config import config
from ge2.base.errors import Ge2Error, GradientError, InputError
from ge2.base.pytree import Structure, flatten, register_pytree_node, unflatten
from ge2.base.record import mutable, record
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import ArrayType, Atom, Eqn, Graph, Var, is_traced, rename, type_of
from ge2.ops.graphs.control import NOTHING, Call, Checkpoint, Cond, Policy, Rule, inlined
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.shape import Name
from ge2.trace import run, tidy
from ge2.transforms.arguments import (
    Arguments,
    Results,
    Static,
    at_top,
    is_array,
    leaves_like,
    owned,
)
from ge2.transforms.graphs import empty, is_float0
from ge2.tree import map as tree_map

if TYPE_CHECKING:
    from ge2.transforms.surroundings import Surroundings


# -------- The functions that `vjp` returns, and `checkpoint`, by which they compute values again.


# -------- The functions that `vjp` returns: pytrees, so that they may leave a jitted function or a
# loop.


# an argument: a place among cotangents, or a shape, for each leaf
Part = tuple[Structure, tuple[Any, ...]]


@final
@record
class PullRule:
    """The program of a pullback on its residuals: equal for functions of equal graphs."""

    backward: Graph
    types: tuple[ArrayType, ...]
    parts: tuple[Part, ...]
    returned: Results = field(compare=False, repr=False)


@final
class Pullback:
    """The function from a cotangent of a result to a tuple of those of the arguments.

    Its leaves are the residuals.
    """

    __slots__ = ("residuals", "rule")

    def __init__(self, residuals: Sequence[Any], rule: PullRule) -> None:
        self.residuals, self.rule = residuals, rule

    def __repr__(self) -> str:
        given = ", ".join(str(t) for t in self.rule.types)
        return f"<vjp: from cotangents of {given}>"

    @hides
    def __call__(self, ct: Any) -> tuple[Any, ...]:
        rule = self.rule
        given = [*self.residuals, *cotangents(ct, rule.returned, rule.types)]
        return gradients(rule.parts, owned(run(rule.backward, given), given))


register_pytree_node(
    Pullback,
    lambda p: (tuple(p.residuals), p.rule),
    lambda rule, residuals: Pullback(residuals, rule),
)


def gradients(parts: Sequence[Part], found: Sequence[Any]) -> tuple[Any, ...]:
    """The cotangents of arguments in their structures; those of integers have no bytes."""
    return tuple(
        unflatten(s, [found[i] if type(i) is int else empty(i) for i in places])
        for s, places in parts
    )


def cotangents(ct: Any, returned: Results, types: Sequence[ArrayType]) -> list[Any]:
    """The cotangents of the inexact results; a cotangent has the structure
    and types of the result.
    """
    leaves = returned.arrays_of(leaves_like(returned.main, ct, ("the result", "the cotangent")))
    paths = returned.paths()[: returned.count]
    found = [
        like(c, t, f"the cotangent of the result{path}")
        for c, t, path in zip(leaves, types, paths, strict=True)
    ]
    return [c for c, t in zip(found, types, strict=True) if t.dtype in INEXACT]


def example(t: ArrayType) -> str:
    """Code for a tangent or a cotangent of that type."""
    if t.weak:
        return repr(python_type(t.dtype)(1))
    return f"np.ones({t.shape}, {t.dtype.name!r})"


def like(x: Any, type: ArrayType, what: str) -> Any:
    """`x` as an array of that type; GradientError if its shape or dtype is another.

    What belongs to an integer is of dtype float0, or a zero of a type that has no derivative.
    """
    if is_float0(x) and type.dtype not in INEXACT:
        return x
    if not is_array(x):
        got = "float0, which belongs to integers" if is_float0(x) else f"a {x.__class__.__name__}"
        raise GradientError(f"{what} ({type}) is {got}", where=here(), fix=example(type))
    t = type_of(x)
    if type.dtype not in INEXACT:
        if t.dtype in INEXACT:
            raise GradientError(
                f"{what} ({type}) is {t}, but integers have no derivative",
                where=here(),
                fix=f"np.zeros({type.shape}, ge2.float0)",
            )
        return x
    fits = t.dtype == type.dtype or (
        t.weak and with_number(type.dtype, python_type(t.dtype)) == type.dtype
    )
    if t.shape != type.shape or not fits or t.dtype == BOOL:
        fix = example(type)
        raise GradientError(
            f"{what} ({type}) is {t}, which is another shape or dtype", where=here(), fix=fix
        )
    if type.weak:
        if is_traced(x):
            return x if t == type else x.cast(type.dtype, weak=True)
        return python_type(type.dtype)(np.asarray(host(x)).item())
    if t.weak:
        return x.cast(type.dtype) if is_traced(x) else type.dtype.type(x)
    return x


# ------------------------------------------------------------------------------------- pushforward
# The functions that `linearize` returns: pytrees, so that they may leave a
# jitted function or a loop.


@final
@record
class TangentSpace:
    """The structure of tangents, and for each leaf its type (None: no array), its name, and whether
    a derivative flows from it.
    """

    structure: Structure
    types: tuple[ArrayType | None, ...]
    names: tuple[str, ...]
    active: tuple[bool, ...]


@final
@record
class PushRule:
    """The program of a pushforward on its residuals: equal for functions of equal graphs."""

    linear: Graph
    space: TangentSpace
    outputs: tuple[ArrayType, ...]
    returned: Results = field(compare=False, repr=False)


@final
class Pushforward:
    """The function from tangents of the arguments to those of the result.

    Its leaves are the residuals.
    """

    __slots__ = ("residuals", "rule")

    def __init__(self, residuals: Sequence[Any], rule: PushRule) -> None:
        self.residuals, self.rule = residuals, rule

    def __repr__(self) -> str:
        made = ", ".join(str(t) for t in self.rule.outputs)
        return f"<linearize: to tangents of {made}>"

    @hides
    def __call__(self, *tangents: Any) -> Any:
        rule = self.rule
        given = [*self.residuals, *tangents_in(rule.space, tangents)]
        return tangents_like(rule.outputs, rule.returned, owned(run(rule.linear, given), given))


register_pytree_node(
    Pushforward,
    lambda p: (tuple(p.residuals), p.rule),
    lambda rule, residuals: Pushforward(residuals, rule),
)


def tangents_in(space: TangentSpace, given: tuple[Any, ...]) -> list[Any]:
    """The tangents from which a derivative flows; GradientError if one is not like its primal."""
    leaves = leaves_like(space.structure, given, ("the primals", "the tangents"))
    each = zip(leaves, space.types, space.names, space.active, strict=True)
    checked = [
        (like(x, t, f"the tangent of {name}"), on) for x, t, name, on in each if t is not None
    ]
    return [x for x, on in checked if on]


def tangents_like(outputs: Sequence[ArrayType], returned: Results, ts: Sequence[Any]) -> Any:
    """The tangents in the structure of the result; integers have one of no bytes."""
    rest = iter(ts)
    leaves = [next(rest) if t.dtype in INEXACT else empty(t.shape) for t in outputs]
    return returned.build_main(leaves[: returned.count])


# -------- `checkpoint`: values of the forward pass are computed again in the backward pass instead
# of being kept.


P = ParamSpec("P")
R = TypeVar("R")
CHOSEN = "chosen by a policy"  # the label of what a function of the user's saves


def checkpoint(
    fun: Callable[P, R],
    *,
    prevent_cse: bool = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[P, R]:
    """`fun`, whose intermediate values are not kept for the backward pass but computed again there.

    `policy` says what is kept nevertheless: one of `ge2.checkpoint_policies`, or a function of an
    operation, the types of its inputs and its parameters. What it saves is never computed again,
    but where it costs nothing; a value that it does not save is never kept, but for the arguments.
    Without `prevent_cse` the compiler may find that both computations are the same, and do one.

    InputError for a policy that is no function.

    >>> import numpy as np, ge2
    >>> ge2.grad(ge2.checkpoint(lambda x: np.sin(np.sin(x))))(0.0)
    1.0
    """
    check_policy(policy)
    static = Static.of(static_argnums)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if at_top():
            return fun(*args, **kwargs)
        _, others, merged = static.split(fun, args)
        call, returned = Arguments.of(merged, others, kwargs), Results()
        closed, writes = call.stage_writing(
            call.inputs(), returned, "checkpoint", [True] * len(call.arrays)
        )
        call.check(writes)
        graph, rule = marked(tidy(closed.graph), policy)
        found = Checkpoint(graph, rule, prevent_cse)(*closed.captured, *call.values())
        call.carry(writes, found)
        return returned.build(found)

    return wrapped


def check_policy(policy: Any) -> None:
    if policy is not None and not callable(policy):
        what = (
            f"the policy of checkpoint is a function; got {policy!r:.60} ({type(policy).__name__})"
        )
        raise InputError(what, where=here(), fix="one of ge2.checkpoint_policies")


def marked(graph: Graph, policy: Callable[..., bool] | None) -> tuple[Graph, Rule]:
    """A policy as a rule: what a function of the user's saves gets a
    label, by which graphs know it.
    """
    if policy is None:
        return graph, NOTHING
    if isinstance(policy, Policy):
        return graph, policy.rule
    return chosen(inlined(graph, (Call,)), policy), ("save_only_these_names", CHOSEN)


def chosen(graph: Graph, policy: Callable[..., bool]) -> Graph:
    """The graph with a label for what a function of the user's saves, inside of
    loops and branches, too.
    """
    env: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        op, inputs = eqn.op, rename(env, eqn.inputs)
        if isinstance(op, ScanLoop):
            op = replace(op, body=chosen(inlined(op.body, (Call,)), policy))
        elif isinstance(op, Cond):
            op = Cond(tuple(chosen(inlined(b, (Call,)), policy) for b in op.branches))
        eqns.append(Eqn(op, inputs, eqn.outs, eqn.source))
        if policy(eqn.op, *(a.type for a in eqn.inputs), **eqn.op.params()):
            for v in eqn.outs:
                named = Var(v.type)
                env[v] = named
                eqns.append(Eqn(Name(CHOSEN), (v,), (named,), eqn.source))
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs))


def checkpoint_name(x: Any, name: Any) -> Any:
    """`x` (an array or a container of arrays), marked with a label that
    policies of `checkpoint` can name.

    >>> checkpoint_name(2.0, "scale")
    2.0
    """
    if not isinstance(name, str):
        raise InputError(f"a label is a string; got {name!r:.60}", where=here())
    return x if at_top() else tree_map(Name(name), x)


remat = checkpoint


# -------- Derivatives that eager calls repeat: of functions whose surroundings can be seen, by
# argument types.


SIGNATURES: Final = 32  # that one function remembers; the oldest is forgotten first
CAPTURED: Final = 1 << 20  # bytes of constants beyond which a trace is not kept
LONGEST: Final = 4096  # equations that are written as Python
FUNCTIONS: Final = 32  # that are transformed again and again, as by `grad(f)(x)` in a loop
TIRES: Final = 4  # changes of its surroundings after which a function is traced at each call


_once: WeakSet[FunctionType] = WeakSet()  # functions that were transformed before
_never: WeakSet[FunctionType] = WeakSet()  # whose surroundings change, or are not seen
_often: dict[FunctionType, dict[Hashable, Memory]] = {}  # the last used is the last


def memory_of(fun: Any, kind: str, options: tuple[Any, ...]) -> Memory:
    """The memory of a transformed function: one for all its equal transforms, from the second on.

    A function that is transformed but once is not held here, nor one whose surroundings are not
    seen, which may hold much.
    """
    if type(fun) is not FunctionType or fun in _never:
        return Memory()
    if fun not in _once:
        _once.add(fun)
        return Memory()
    try:
        key = kind, *(tuple(each) if isinstance(each, list) else each for each in options)
        found = _often.pop(fun, None) or {}
        memory = found.setdefault(key, Memory())
    except TypeError:  # options that have no hash are an error of the call
        return Memory()
    if memory.changes < TIRES:
        _often[fun] = found
    else:
        _never.add(fun)
    while len(_often) > FUNCTIONS:
        _often.pop(next(iter(_often), fun), None)
    return memory


@final
@mutable
class Derivative:
    """A joint graph, the arrays it captured, and what its results become.

    The value is built of the first `count` results by `returned`, or not at all; then the gradient,
    a tuple if by `several` arguments.
    """

    graph: Graph
    captured: Sequence[Any]
    returned: Results | None
    count: int
    parts: Sequence[Part]
    several: bool
    run: Callable[..., Sequence[Any]] | None = None

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        """The results of the graph for the arrays among the arguments."""
        values = (*self.captured, *leaves)
        return owned(run(self.graph, values) if self.run is None else self.run(*values), values)

    def build(self, found: Sequence[Any]) -> tuple[Any, Any]:
        """The value and the gradient."""
        value = self.returned.build(found[: self.count]) if self.returned is not None else None
        found = gradients(self.parts, found)
        return value, found if self.several else found[0]

    def small(self) -> bool:
        return sum(getattr(x, "nbytes", 0) for x in self.captured) <= CAPTURED


@final
class Memory:
    """Memory of one transformed function: for each signature a derivative,
    from its second call on.
    """

    __slots__ = ("changes", "known")
    decides_nothing = True  # of what a function that holds it computes

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[Derivative, Surroundings, Any] | None] = {}
        self.changes = 0

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        """A copy, in this process or another, begins anew."""
        return Memory, ()

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
        """The signature of an eager call; None for one that is traced each time."""
        if kwargs or self.changes >= TIRES or not at_top():
            return None
        if config.check or config.check_leaks or config.debug_nans or config.debug_infs:
            return None
        leaves, structure = flatten(args)
        types: list[Any] = []
        for x in leaves:
            kind = type(x)
            if kind is np.ndarray:
                types.append((x.shape, x.dtype))
            elif kind in PYTHON or isinstance(x, np.generic):
                types.append(kind)
            else:
                return None
        return structure, structure.order, *types

    def find(self, key: Hashable) -> Derivative | None:
        """The derivative known for a signature, if nothing around the
        function has changed since.
        """
        found = self.known.get(key)
        if found is None:
            return None
        derivative, around, settings = found
        if settings is config.key and around.unchanged():
            return derivative
        self.known.pop(key, None)
        self.changes += 1
        return None

    def around(self, key: Hashable, fun: Any, args: tuple[Any, ...]) -> Surroundings | None:
        """The values the function reads, before it is traced for a signature
        that came once before.
        """
        if key not in self.known:
            self.known[key] = None
            if len(self.known) > SIGNATURES:
                self.known.pop(next(iter(self.known)), None)
            return None
        # not needed for a first call
        from ge2.transforms.surroundings import Surroundings, is_built_in

        try:
            return Surroundings(fun) if is_built_in(args) else None
        except LookupError:
            self.changes = TIRES
            return None

    def keep(self, key: Hashable, around: Surroundings, derivative: Derivative) -> None:
        """Remembers a trace that neither had an effect nor changed what it reads."""
        if derivative.graph.effect or not derivative.small() or not around.unchanged():
            self.changes += 1
            return
        if len(derivative.graph.eqns) <= LONGEST:
            from ge2.transforms.surroundings import straight  # as above

            derivative.run = straight(derivative.graph)
        self.known[key] = derivative, around, config.key


# --------------------------------------------------------------------------------------- whole calls
# Transforms that trace several times, or make several graphs, in a call: the call itself is traced.


def remembering(
    fun: Any, kind: str, options: tuple[Any, ...], work: Callable[..., Any]
) -> Callable[..., Any]:
    """The transform `work` of a function, whose eager calls are remembered by their signatures."""
    memory = memory_of(fun, kind, options)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return repeated(memory, fun, work, args, kwargs)

    return wrapped


def repeated(
    memory: Memory,
    fun: Any,
    work: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of `work`, a transform of `fun`, by its graph if that is known."""
    key = memory.key(args, kwargs)
    known = None if key is None else memory.find(key)
    if known is not None:
        return known.build(known.results(flatten(args)[0]))[0]
    around = None if key is None else memory.around(key, fun, args)
    if key is None or around is None:
        return work(*args, **kwargs)
    call, returned = Arguments.of(work, args, {}), Results()
    try:
        closed, writes = call.stage_writing(
            call.inputs(), returned, "an eager call", [False] * len(call.arrays)
        )
    except (
        Ge2Error
    ):  # it may do what a trace around it may not, or is wrong, and then says so again
        memory.changes = TIRES
        return work(*args, **kwargs)
    graph, count = tidy(closed.graph), len(closed.graph.outputs)
    derivative = Derivative(graph, closed.captured, returned, count, (), True)
    if not (closed.looked or writes):
        memory.keep(key, around, derivative)
    results = derivative.results(call.values())
    call.carry(writes, results)
    return derivative.build(results)[0]
