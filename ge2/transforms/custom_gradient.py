"""Two shorter ways to a rule of one's own: `custom_gradient` and `sequential_vmap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar, final

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.errors import InputError, PytreeError, TypeRuleError
from ge2.base.pytrees.pytree import (
    broadcast_prefix,
    flatten,
    mismatch,
    register_pytree_node,
    unflatten,
)
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import Derive, Flags, Graph, Var, type_of
from ge2.ops.graphs.custom import CustomBatch, with_consts
from ge2.trace import Input, is_traced, run, stage, tidy, title_of
from ge2.transforms.arguments import Arguments, Results, is_array
from ge2.transforms.control.branches import conformed
from ge2.transforms.control.loops import map as loop_map
from ge2.transforms.custom import CustomRule, Made, custom_vjp, filled, paired
from ge2.transforms.graphs.constants import embedded
from ge2.tree import map as tree_map

R = TypeVar("R")


@final
class Rule:
    """A function from a cotangent, and the arrays that it reads beside it, which are its leaves."""

    __slots__ = ("function", "residuals")

    def __init__(self, function: Callable[..., Any], residuals: Sequence[Any]) -> None:
        self.function, self.residuals = function, residuals


register_pytree_node(Rule, lambda r: (tuple(r.residuals), r.function), Rule)


def custom_gradient(fun: Callable[..., tuple[R, Callable[[Any], Any]]]) -> Callable[..., R]:
    """A function from one that returns its result and a function from a
    cotangent to those of the arguments.

    That function returns a tuple with a cotangent for each argument, or a cotangent if
    there is one argument; what it reads from `fun` is kept for it. GradientError if
    `fun` returns something else.

    >>> import numpy as np, ge2
    >>> f = custom_gradient(lambda x: (np.sin(x), lambda ct: ct * x * 10.0))
    >>> ge2.grad(f)(2.0)
    20.0
    """
    both = paired(fun, "a function with custom_gradient", "rule")

    def forward(*args: Any) -> tuple[Any, Any]:
        y, rule = both(*args)
        return y, (y, Rule(*closure_convert(rule, y)))

    def backward(kept: Any, ct: Any) -> Any:
        rule = kept[1]
        found = rule.function(ct, *rule.residuals)
        return found if isinstance(found, tuple | list) else (found,)

    made = custom_vjp(wraps(fun)(lambda *args: both(*args)[0]))
    made.defvjp(forward, backward)
    return made


def sequential_vmap(fun: Callable[..., R]) -> Callable[..., R]:
    """The function, whose batch is a loop over its elements, one after the other: for what vmap
    would make too large, or cannot batch.

    >>> import numpy as np, ge2
    >>> ge2.vmap(sequential_vmap(lambda x, y: x * y), (0, None))(np.array([1.0, 2.0]), 3.0)
    array([3., 6.])
    """
    made = custom_batch(fun)

    def rule(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(args)
        flags = flatten(batched)[0]

        def one(elements: Any) -> Any:
            rest = iter(elements)
            given = [next(rest) if b else x for x, b in zip(leaves, flags, strict=True)]
            return fun(*unflatten(structure, given))

        ys = loop_map(one, [x for x, b in zip(leaves, flags, strict=True) if b])
        return ys, tree_map(lambda _: True, ys)

    made.def_vmap(rule)
    return made


# ----------------------------------------------------------------------------------------- closure
# What a function reads from around it, as arguments: `closure_convert`.


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """`fun` as a function of `(*args, *consts)`, and the consts: traced floats
    that it reads from around it.

    A `custom_vjp` or `custom_jvp` whose function closes over values that a derivative flows through
    is an error; with these as arguments its rule can speak of them. Arguments of other shapes or
    dtypes than `example_args` are an InputError.

    >>> import ge2
    >>> def outer(w):
    ...     f, consts = closure_convert(lambda x: x * w, 1.0)
    ...     return f(3.0, *consts)
    >>> ge2.grad(outer)(2.0)
    3.0
    """
    call, returned = Arguments.of(fun, example_args, {}), Results()
    closed = call.stage(call.inputs(), returned, "closure_convert")
    free = [
        i for i, x in enumerate(closed.captured) if is_traced(x) and type_of(x).dtype in INEXACT
    ]

    @wraps(fun)
    @hides
    def converted(*args: Any) -> Any:
        others = args[len(example_args) :]
        given = Arguments.of(fun, args[: len(example_args)], {})
        if (
            len(others) != len(free)
            or given.structure != call.structure
            or given.types() != call.types()
        ):
            what = f"{call.title} was converted for other arguments"
            raise InputError(
                what, where=here(), fix="f(*args, *consts), the args like example_args"
            )
        around = list(closed.captured)
        for i, x in zip(free, others, strict=True):
            around[i] = x
        return returned.build(run(closed.graph, (*around, *given.values())))

    return converted, [closed.captured[i] for i in free]


# ---------------------------------------------------------------------------------------- batching
# Functions that bring their own batch: `custom_batch`.


Function = Callable[..., Any]
P = ParamSpec("P")
DEEP = 3  # how far arrays are sought in the functions that a rule calls


@final
class custom_batch(CustomRule[P, R]):
    """A function whose batch is given by `def_vmap(rule)`, in place of one made of its equations.

    `rule(axis_size, in_batched, *args)` returns (result, out_batched). `in_batched` has for each
    argument the argument's tree with a bool for each leaf: whether it has the new axis, which is
    then the first; `out_batched` says the same of the result. The rule computes what a loop over
    the axis would: what it is free in is how. Derivatives are those of the function, and the rule
    of a derivative is made of the rule's.

    NoRuleError without a rule, TypeRuleError for a result that is no batch of the function's.

    >>> import numpy as np, ge2
    >>> total = custom_batch(lambda x: x.sum())
    >>> _ = total.def_vmap(lambda size, batched, x: (np.ones(x.shape[1]) @ x.T, True))
    >>> ge2.vmap(total)(np.eye(2))
    array([1., 1.])
    """

    fix = "f.def_vmap(rule)"

    def def_vmap(self, rule: Function) -> Function:
        self.rule, self.ruled = rule, True
        return rule

    def make(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        returned = Results()
        closed = call.stage(call.inputs(), returned, "custom_batch")
        around = around_of(self.rule)
        extra = tuple(Var(type_of(x)) for x in around)
        inputs = (*extra, *closed.graph.inputs)
        graph = tidy(Graph(inputs, closed.graph.eqns, closed.graph.outputs))
        captured = [*around, *closed.captured]
        rule = Batching(
            self, static, call, returned, with_consts(graph, len(captured)), len(around)
        )
        return Made(CustomBatch(rule.graph, rule), captured, returned, closed.looked)


@final
class Batching:
    """The rule of one call: of flat arrays, the values from around the rule first."""

    def __init__(
        self,
        function: custom_batch[..., Any],
        static: tuple[Any, ...],
        call: Arguments,
        returned: Results,
        graph: Graph,
        around: int,
    ) -> None:
        self.rule, self.static, self.returned = function.rule, static, returned
        # it outlives them
        leaves = [None if i in call.arrays else x for i, x in enumerate(call.leaves)]
        self.call, self.graph, self.around = replace(call, leaves=leaves), graph, around
        self.title = f"the rule {title_of(function.rule)}"

    def __call__(self, derive: Derive, batched: Flags, size: int) -> tuple[Graph, Flags, Flags]:
        """The rule's graph; where a value from around the function has the axis, of which the rule
        knows nothing, that of the function.
        """
        consts = self.graph.consts
        if any(batched[:consts]):
            graph, has = derive.batch(self.graph, batched, size)
            return graph, batched, has
        sources = around_of(self.rule)[: self.around]
        types = [
            v.type.with_shape((size, *v.type.shape)) if b else v.type
            for v, b in zip(self.graph.inputs, batched, strict=True)
        ]
        inputs = [Input(t, source=s) for t, s in zip(types, sources, strict=False)]
        inputs += [Input(t) for t in types[len(sources) :]]
        flags: list[bool] = []

        def work(*arrays: Any) -> list[Any]:
            in_batched = filled(self.call, batched[consts:])
            found = self.rule(*self.static, size, in_batched, *filled(self.call, arrays[consts:]))
            return self.checked(found, size, flags)

        graph = embedded(stage(work, inputs, self.title, "custom_batch"), self.title)
        return graph, batched, tuple(flags)

    def checked(self, found: Any, size: int, flags: list[bool]) -> list[Any]:
        """The result of the rule, as arrays; `flags` learns which have the axis."""
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeRuleError(
                f"{self.title} returns (result, out_batched); got a {type(found).__name__}"
            )
        leaves, structure = flatten(found[0])
        if structure != self.returned.structure:
            what = mismatch(self.returned.structure, structure, "the function", self.title)
            raise TypeRuleError(what, fix="return one structure from both")
        try:
            flags += map(bool, broadcast_prefix(found[1], found[0]))
        except PytreeError as error:
            raise TypeRuleError(
                f"{self.title} returns an out_batched that does not fit: {error}"
            ) from None
        return [
            self.fitted(y, a.type, flag, size)
            for y, a, flag in zip(leaves, self.graph.outputs, flags, strict=True)
        ]

    def fitted(self, y: Any, t: Any, flag: bool, size: int) -> Any:
        want = t.with_shape((size, *t.shape)) if flag else t
        got = type_of(y)
        if got.shape != want.shape or (got.dtype != want.dtype and not got.weak):
            what = f"{self.title} returns {got} for {want}" + (
                ", a batch of the result" if flag else ""
            )
            raise TypeRuleError(
                what, fix="a result with the new axis first, and True for it in out_batched"
            )
        return conformed(y, want)


def around_of(rule: Any) -> list[Any]:
    """The arrays that a function reads from around it: by its closure, defaults and globals, and by
    those of functions there. Each once.
    """
    found: dict[int, Any] = {}
    for value in reached(rule, DEEP):
        for leaf in flatten(value)[0]:
            if is_traced(leaf) or (is_array(leaf) and np.ndim(leaf)):
                found.setdefault(id(leaf), leaf)
    return list(found.values())


def reached(function: Any, deep: int) -> Iterator[Any]:
    """The values that a function names."""
    function = getattr(function, "__func__", getattr(function, "fun", function))
    if not isinstance(function, FunctionType) or not deep:
        return
    cells = [c.cell_contents for c in function.__closure__ or () if not is_empty(c)]
    named = [
        function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__
    ]
    for value in (*cells, *(function.__defaults__ or ()), *named):
        if callable(value):
            yield from reached(value, deep - 1)
        elif not isinstance(value, ModuleType):
            yield value


def is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
