"""Functions that bring their own derivative, and functions that are computed
again in the backward pass.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import field
from functools import partial, update_wrapper, wraps
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, final

from ge2.base.arrays import INEXACT
from ge2.base.errors import ConcretizationTypeError, GradientError, InputError, NoRuleError
from ge2.base.pytree import unflatten
from ge2.base.record import holding, mutable
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import ArrayType, Graph, Op, Var, type_of
from ge2.ops.graphs.custom import CustomJvp, CustomVjp, with_consts
from ge2.trace import Closed, Input, stage, tidy, title_of
from ge2.transforms.arguments import Arguments, Results, Static, at_top, leaves_like, parameters
from ge2.transforms.branches import common_types, conformed, retyped, widened
from ge2.transforms.graphs import empty, zero
from ge2.transforms.pullback import like

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
# how often a rule that calls its own function is unrolled: derivatives up to that order follow it
ORDERS = 4


@mutable
class Unrolling:
    """The rules that are being traced, outermost first, and what was
    made of their own calls so far.
    """

    stack: tuple[CustomRule[..., Any], ...] = ()
    made: dict[Any, tuple[Made, Any]] = field(
        default_factory=dict
    )  # with the objects whose ids are in the key


_unrolling: ContextVar[Unrolling] = ContextVar("unrolling")


@mutable
class Made:
    """An operation that holds a function and its rule, the values it captured,
    how to build its result.
    """

    op: Op
    captured: Sequence[Any]
    returned: Results
    looked: bool = False  # whether it holds for the values that tracing looked at only


class CustomRule(ABC, Generic[P, R]):
    """A function with a rule of its own; `nondiff_argnums` are passed on as
    they are, and have no derivative.

    `nondiff_argnames` names such arguments instead of counting them; their
    order is that of the parameters.

    The rule says nothing of values that the function reads from around it: a derivative by one of
    those is a GradientError, not a zero.
    """

    def __init__(
        self,
        fun: Callable[P, R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        named = numbers_of(fun, nondiff_argnames)
        self.fun: Function = fun
        self.static = Static((*Static.of(nondiff_argnums).argnums, *named))
        update_wrapper(self, fun)

    ruled = False  # until its rule is given
    fix: ClassVar[str]  # the call that gives it

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else partial(self, instance)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {title_of(self.fun)}>"

    @hides
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.applied(bound(self.fun, args, kwargs))
        return result

    def applied(self, args: tuple[Any, ...]) -> Any:
        """The result for positional arguments: computed, or recorded with the
        rule where a trace runs.
        """
        self.check()
        if at_top():
            return self.fun(*args)
        static, others, fun = self.static.split(self.fun, args)
        call = Arguments.of(fun, others, {})
        made = self.found(args, static, call)
        return made.returned.build(made.op(*made.captured, *call.values()))

    def found(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        """The outcome of a rule for an equal call before, or one made now."""
        outer = _unrolling.get(None)
        if outer is None:
            return self.make(args, static, call)
        depth = max(map(outer.stack.count, outer.stack))  # of those that call each other, too
        other = [x for i, x in enumerate(call.leaves) if i not in call.arrays]
        tree = call.structure, call.structure.order
        key = (self, depth, *tree, (*call.types(),), (*map(id, (*static, *other)),))
        known = outer.made.get(key)
        if known is not None:
            return known[0]
        made = self.make_last(call) if depth == ORDERS else self.make(args, static, call)
        if not made.captured and not made.looked:
            outer.made[key] = (made, (static, other))
        return made

    def unrolled(self) -> AbstractContextManager[Unrolling]:
        """While the rule is traced: it may call its own function, which has the same rule."""
        outer = _unrolling.get(None) or Unrolling()
        return holding(_unrolling, Unrolling((*outer.stack, self), outer.made))

    def make_last(self, call: Arguments) -> Made:
        """The function, called by its own rule so deep that a further derivative is an error."""
        returned = Results()
        closed = call.stage(call.inputs(), returned, "custom")
        return Made(last_of(closed.graph), closed.captured, returned, closed.looked)

    def check(self) -> None:
        """NoRuleError unless there is a rule."""
        if not self.ruled:
            what = f"{title_of(self.fun)} has a {type(self).__name__} without a rule"
            raise NoRuleError(what, where=here(), fix=self.fix)

    @abstractmethod
    def make(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        """The operation that holds the function and its rule."""


def last_of(graph: Graph) -> Op:
    """An operation without derivative: all that it reads counts as captured."""
    types = [v.type for v in graph.inputs if v.type.dtype in INEXACT]
    zeros = stage(
        lambda: [zero(a.type) for a in graph.outputs if a.type.dtype in INEXACT], [], "zeros"
    ).graph
    rule = Graph(
        (*graph.inputs, *map(Var, types)),
        (*graph.eqns, *zeros.eqns),
        (*graph.outputs, *zeros.outputs),
    )
    return CustomJvp(with_consts(tidy(graph), len(graph.inputs)), tidy(rule))


def numbers_of(fun: Function, names: str | Sequence[str]) -> list[int]:
    """The places of parameters that are given by name."""
    known = list(parameters(fun))
    wanted = (names,) if isinstance(names, str) else tuple(names)
    for name in wanted:
        if name not in known:
            from difflib import get_close_matches  # for errors alone

            near = get_close_matches(name, known, 1, 0.0)
            what = f"nondiff_argnames names {name!r}, but {title_of(fun)} has no such parameter"
            raise InputError(what, where=here(), fix=repr(near[0]) if near else "nondiff_argnums")
    return [known.index(name) for name in wanted]


def bound(fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, defaults filled in."""
    if not kwargs:
        return args
    given = inspect.signature(fun).bind(*args, **kwargs)
    given.apply_defaults()
    if given.kwargs:
        what = f"{title_of(fun)} has a custom rule and keyword-only arguments: {', '.join(given.kwargs)}"
        raise GradientError(what, where=here(), fix="positional arguments")
    return given.args


def checked_structure(call: Arguments, found: Any, what: str) -> list[Any]:
    """A cotangent (or None) for each leaf, from a tuple with one for each argument."""
    args = call.structure.children[0].children
    if not isinstance(found, tuple | list) or len(found) != len(args):
        got = (
            f"{len(found)} values"
            if isinstance(found, tuple | list)
            else f"a {found.__class__.__name__}"
        )
        fix = "return (ct,) for one argument; None for a zero"
        raise GradientError(
            f"{what} returns a tuple with a cotangent for each of {len(args)} arguments; got {got}",
            where=here(),
            fix=fix,
        )
    leaves: list[Any] = []
    for n, (part, ct) in enumerate(zip(args, found, strict=True)):
        leaves += (
            [None] * part.num_leaves
            if ct is None
            else leaves_like(part, ct, (f"argument {n}", "its cotangent"))
        )
    return leaves


def no_symbolic_zeros(asked: bool) -> None:
    if asked:
        what = "symbolic_zeros=True: a rule is given zeros as arrays, and dead code costs nothing"
        raise InputError(
            what, where=here(), fix="leave it out, and compute with zeros as with other values"
        )


def paired(f: Function, what: str, second: str) -> Function:
    """The function, if it returns its result and something else."""

    @wraps(f)
    def inner(*args: Any) -> Any:
        found = f(*args)
        if isinstance(found, tuple) and len(found) == 2:
            return found
        got = (
            f"{len(found)} values" if isinstance(found, tuple) else f"a {found.__class__.__name__}"
        )
        fix = f"return y, {second}"
        raise GradientError(f"{what} returns (result, {second}); got {got}", where=here(), fix=fix)

    return inner


@final
class custom_vjp(CustomRule[P, R]):
    """A function whose reverse derivative is given by `defvjp(fwd, bwd)`.

    `fwd(*args)` returns (result, residuals); `bwd(residuals, cotangent)` a tuple with a cotangent,
    like the argument or None for zero, for each argument. Arguments in `nondiff_argnums` come first
    in `bwd`. A second derivative is that of `fwd` and `bwd`; forward mode is a NoRuleError.

    >>> import numpy as np, ge2
    >>> f = custom_vjp(lambda x: np.sin(x))
    >>> f.defvjp(lambda x: (np.sin(x), x), lambda x, ct: (ct * 10.0,))
    >>> ge2.grad(f)(0.0)
    10.0
    """

    fix = "f.defvjp(fwd, bwd)"

    def defvjp(self, fwd: Function, bwd: Function, symbolic_zeros: bool = False) -> None:
        no_symbolic_zeros(symbolic_zeros)
        self.fwd, self.bwd, self.ruled = fwd, bwd, True

    def make(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        _, others, fwd = self.static.split(self.fwd, args)
        forward_call = Arguments.of(
            paired(fwd, f"fwd {title_of(self.fwd)}", "residuals"), others, {}
        )
        returned, forward_returned = Results(), Results(has_aux=True)
        primal = call.stage(call.inputs(), returned, "custom_vjp")
        with self.unrolled():
            forward = forward_call.stage(forward_call.inputs(), forward_returned, "custom_vjp")
        closeds = (primal, forward)
        outputs = [[a.type for a in c.graph.outputs] for c in closeds]
        names = (f"the function {title_of(self.fun)}", f"its fwd {title_of(self.fwd)}")
        types = common_types(
            GradientError, "custom_vjp", names, (returned, forward_returned), outputs
        )
        with self.unrolled():
            backward = self.stage_backward(call, static, types, forward, forward_returned)
        op, captured = joined_rule(closeds, backward, types)
        return Made(op, captured, returned, primal.looked or forward.looked or backward.looked)

    def stage_backward(
        self,
        call: Arguments,
        static: tuple[Any, ...],
        main: Sequence[ArrayType],
        forward: Closed,
        returned: Results,
    ) -> Closed:
        """(residuals, cotangents of the inexact results) -> a cotangent for each inexact array.

        Where `bwd` asks for the value of a residual, it is traced with that value, if it is known.
        """
        given = [t for t in main if t.dtype in INEXACT]
        residuals = [a.type for a in forward.graph.outputs[len(main) :]]

        def rule(*arrays: Any) -> list[Any]:
            seeds = iter(arrays[len(residuals) :])
            ct = returned.build_main(
                [next(seeds) if t.dtype in INEXACT else empty(t.shape) for t in main]
            )
            kept = returned.build((*main, *arrays[: len(residuals)]))[1]
            return self.checked(call, self.bwd(*static, kept, ct))

        title, seeds = f"bwd {title_of(self.bwd)}", [Input(t) for t in given]
        try:
            return stage(rule, [*map(Input, residuals), *seeds], title)
        except ConcretizationTypeError:
            values = forward(*call.values())[len(main) :]
            known = [Input(t, x, "a residual") for t, x in zip(residuals, values, strict=True)]
            return stage(rule, [*known, *seeds], title)

    def checked(self, call: Arguments, found: Any) -> list[Any]:
        """The result of `bwd`, as one cotangent for each inexact array."""
        what = f"bwd {title_of(self.bwd)}"
        leaves = checked_structure(call, found, what)
        return [
            zero(t)
            if leaves[i] is None
            else like(leaves[i], t, f"the cotangent that {what} returns for {call.name(i)}")
            for i, t in zip(call.arrays, call.types(), strict=True)
            if t.dtype in INEXACT
        ]


def joined_rule(
    closeds: Sequence[Closed], backward: Closed, types: Sequence[ArrayType]
) -> tuple[Op, list[Any]]:
    """The operation, and the values from around the function that it reads.

    What `backward` captured becomes residuals; of what the others captured the rule is silent.
    """
    (primal, forward, _), captured = widened((*closeds, backward))
    silent = sum(len(c.captured) for c in closeds)
    own = forward.inputs[silent : len(captured)]
    residuals = (*own, *forward.outputs[len(types) :])
    forward = Graph(forward.inputs, forward.eqns, (*forward.outputs[: len(types)], *residuals))
    back = with_zeros(backward.graph, [type_of(x) for x in captured if type_of(x).dtype in INEXACT])
    op = CustomVjp(
        with_consts(retyped(primal, types), silent),
        retyped(forward, types),
        tidy(back),
        len(residuals),
    )
    return op, captured


def with_zeros(backward: Graph, types: Sequence[ArrayType]) -> Graph:
    """The graph that returns zeros of those types first."""
    zeros = stage(lambda: [zero(t) for t in types], [], "zeros").graph
    return Graph(
        backward.inputs, (*zeros.eqns, *backward.eqns), (*zeros.outputs, *backward.outputs)
    )


@final
class custom_jvp(CustomRule[P, R]):
    """A function whose derivative `defjvp(rule)` gives: `rule(primals, tangents)`
    returns (result, tangent).

    Both modes follow from it: the rule is linear in the tangents, and reverse mode is its
    transpose. `defjvps` takes a function `(tangent, result, *args)` for each argument instead, or
    None for zero. Arguments in `nondiff_argnums` come first in the rule.

    >>> import numpy as np, ge2
    >>> f = custom_jvp(lambda x: np.sin(x))
    >>> f.defjvps(lambda t, y, x: t * 10.0)
    >>> ge2.grad(f)(0.0)
    10.0
    """

    fix = "f.defjvp(rule)"

    def defjvp(self, rule: Function, symbolic_zeros: bool = False) -> Function:
        no_symbolic_zeros(symbolic_zeros)
        self.rule, self.ruled = rule, True
        return rule

    def defjvps(self, *rules: Function | None) -> None:
        def rule(*given: Any) -> tuple[Any, Any]:
            *static, primals, tangents = given
            y: Any = self.applied(bound(self.fun, (*static, *primals), {}))
            terms = [
                r(t, y, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None
            ]
            return y, sum(terms[1:], terms[0]) if terms else zero(type_of(y))

        self.rule, self.ruled = rule, True

    def make(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        returned, rule_returned = Results(), Results(has_aux=True)
        primal = call.stage(call.inputs(), returned, "custom_jvp")
        outputs = [a.type for a in primal.graph.outputs]
        with self.unrolled():
            rule = self.stage_rule(call, static, returned, rule_returned, outputs)
        (graph, wide), captured = widened((primal, rule))
        unread = [type_of(x) for x in captured if type_of(x).dtype in INEXACT]
        wide = with_unread(wide, unread, len(captured) + len(call.arrays))
        op = CustomJvp(with_consts(tidy(graph), len(primal.captured)), tidy(wide))
        return Made(op, captured, returned, primal.looked or rule.looked)

    def stage_rule(
        self,
        call: Arguments,
        static: tuple[Any, ...],
        primal: Results,
        returned: Results,
        outputs: Sequence[ArrayType],
    ) -> Closed:
        """(arrays, tangents of the inexact ones) -> (results, tangents of the inexact ones)."""
        types = call.types()
        inexact = [k for k, t in enumerate(types) if t.dtype in INEXACT]

        def rule(*arrays: Any) -> list[Any]:
            seeds = dict(zip(inexact, arrays[len(types) :], strict=True))
            ts = [seeds[k] if k in seeds else empty(t.shape) for k, t in enumerate(types)]
            primals, tangents = (filled(call, xs) for xs in (arrays[: len(types)], ts))
            both = paired(self.rule, f"its rule {title_of(self.rule)}", "tangent")
            return self.checked(both(*static, primals, tangents), primal, returned, outputs)

        inputs = [*call.inputs(), *(Input(types[k]) for k in inexact)]
        return stage(rule, inputs, f"rule {title_of(self.rule)}")

    def checked(
        self, found: Any, primal: Results, returned: Results, outputs: Sequence[ArrayType]
    ) -> list[Any]:
        """The result of the rule, in the types of the function's results."""
        names = (f"the function {title_of(self.fun)}", f"its rule {title_of(self.rule)}")
        ys = returned.flat(found)[: returned.count]
        common_types(
            GradientError,
            "custom_jvp",
            names,
            (primal, returned),
            (outputs, [type_of(y) for y in ys]),
        )
        leaves = leaves_like(primal.main, found[1], ("the result", "its tangent"))
        pairs = [
            (t, x)
            for t, x in zip(outputs, primal.arrays_of(leaves), strict=True)
            if t.dtype in INEXACT
        ]
        ts = [like(x, t, f"the tangent that {names[1]} returns") for t, x in pairs]
        return [*(conformed(y, t) for y, t in zip(ys, outputs, strict=True)), *ts]


def filled(call: Arguments, arrays: Sequence[Any]) -> Any:
    """The positional arguments, with these arrays in their places."""
    leaves = list(call.leaves)
    for i, x in zip(call.arrays, arrays, strict=True):
        leaves[i] = x
    return unflatten(call.structure, leaves)[0]


def with_unread(rule: Graph, types: Sequence[ArrayType], at: int) -> Graph:
    """The rule with further inputs at that place, which it does not read:
    tangents of captured values.
    """
    return Graph((*rule.inputs[:at], *map(Var, types), *rule.inputs[at:]), rule.eqns, rule.outputs)
