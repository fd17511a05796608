"""Functions that bring their own derivative, and functions whose values are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from typing import Any

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.errors import GradientError, NoRuleError
from ge2.base.pytree import flatten, flatten_up_to, unflatten
from ge2.base.source import here
from ge2.ir import ArrayType, Graph, Op, type_of
from ge2.ops.control import Checkpoint, CustomJvp, CustomVjp
from ge2.trace import Closed, Input, stage, tidy
from ge2.transforms.api import FLOAT0, like
from ge2.transforms.arguments import Arguments, Results, at_top

Function = Callable[..., Any]


class CustomRule:
    """A function with a rule of its own; `nondiff_argnums` are handed on as they are, and take part in no derivative."""

    def __init__(self, fun: Function, nondiff_argnums: Sequence[int] = ()) -> None:
        self.fun, self.nondiff = fun, tuple(nondiff_argnums)
        update_wrapper(self, fun)

    def split(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arguments that take no part, and the others."""
        static = {n % len(args) for n in self.nondiff} if args else set()
        return tuple(args[i] for i in sorted(static)), tuple(a for i, a in enumerate(args) if i not in static)

    def merged(self, args: tuple[Any, ...]) -> Function:
        """The function of the other arguments alone."""
        static = {n % len(args): args[n] for n in self.nondiff} if args else {}

        @wraps(self.fun)
        def fun(*others: Any) -> Any:
            rest = iter(others)
            return self.fun(*(static[i] if i in static else next(rest) for i in range(len(args))))

        return fun

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class custom_vjp(CustomRule):  # noqa: N801 a decorator, named as in JAX
    """A function whose reverse derivative is given by `defvjp(fwd, bwd)`.

    `fwd(*args)` returns (result, residuals); `bwd(residuals, cotangent)` a tuple with a cotangent, like the
    argument or None for zero, for each argument. Arguments in `nondiff_argnums` come first in `bwd`.

    >>> import numpy as np, ge2
    >>> f = custom_vjp(lambda x: np.sin(x))
    >>> f.defvjp(lambda x: (np.sin(x), x), lambda x, ct: (ct * 10.0,))
    >>> ge2.grad(f)(0.0)
    10.0
    """

    def defvjp(self, fwd: Function, bwd: Function) -> None:
        self.fwd, self.bwd = fwd, bwd

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "bwd"):
            raise NoRuleError(f"{self.fun.__name__} has a custom_vjp without rules", where=here(), fix="f.defvjp(fwd, bwd)")
        if at_top():
            return self.fun(*args, **kwargs)
        args = bound(self.fun, args, kwargs)
        static, others = self.split(args)
        call = Arguments.of(self.merged(args), others, {})
        returned, fwd_returned = Results(), Results(has_aux=True)
        primal = call.stage(call.inputs(), returned, "custom_vjp")
        forward_call = Arguments.of(self.fwd_of(args), others, {})
        forward = forward_call.stage(forward_call.inputs(), fwd_returned, "custom_vjp")
        check_same(primal, forward, returned.count, f"{self.fun.__name__} and its fwd")
        backward = self.stage_backward(call, static, forward, fwd_returned)
        op, captured = joined([primal, forward], backward, fwd_returned)
        return returned.build(op(*captured, *call.values()))

    def fwd_of(self, args: tuple[Any, ...]) -> Function:
        rule = CustomRule(self.fwd, self.nondiff)
        return rule.merged(args)

    def stage_backward(self, call: Arguments, static: tuple[Any, ...], forward: Closed, returned: Results) -> Closed:
        """(residuals, cotangents of the inexact results) -> a cotangent for each inexact array."""
        outputs = forward.graph.outputs
        main, residuals = outputs[: returned.count], outputs[returned.count :]
        given = [a.type for a in main if a.type.dtype in INEXACT]
        aux = returned.structure.children[1]

        def rule(*arrays: Any) -> list[Any]:
            seeds = iter(arrays[len(residuals) :])
            cts = [next(seeds) if a.type.dtype in INEXACT else np.zeros(a.type.shape, FLOAT0) for a in main]
            found = self.bwd(*static, unflatten(aux, arrays[: len(residuals)]), unflatten(returned.main, cts))
            return self.checked(call, found)

        inputs = [Input(a.type) for a in residuals] + [Input(t) for t in given]
        return stage(rule, inputs, f"the bwd of {self.fun.__name__}")

    def checked(self, call: Arguments, found: Any) -> list[Any]:
        """What `bwd` returned, as one cotangent for each inexact array."""
        args = call.structure.children[0].children
        if not isinstance(found, tuple | list) or len(found) != len(args):
            got = f"{len(found)} values" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
            what = f"the bwd of {self.fun.__name__} returns a tuple with a cotangent for each of its {len(args)} arguments; got {got}"
            raise GradientError(what, where=here(), fix="return (ct,) for one argument; None for a zero")
        leaves = []
        for n, (part, ct) in enumerate(zip(args, found, strict=True)):
            leaves += [None] * part.num_leaves if ct is None else flatten_up_to(part, ct, (f"argument {n}", "its cotangent"))
        types = dict(zip(call.arrays, call.types(), strict=True))
        return [
            zeros_of(t) if leaves[i] is None else like(leaves[i], t, f"the cotangent that bwd gives for {call.name(i)},")
            for i, t in types.items()
            if t.dtype in INEXACT
        ]


def joined(graphs: Sequence[Closed], backward: Closed, returned: Results) -> tuple[Op, list[Any]]:
    """One operation from graphs that captured different values: all take the captures of all.

    What `backward` captured becomes residuals.
    """
    captured = [x for c in (*graphs, backward) for x in c.captured]
    total, at, wide = len(captured), 0, []
    for closed in graphs:
        wide.append(widened(closed, captured, at))
        at += len(closed.captured)
    primal, forward = wide
    own = forward.inputs[at:total]  # what backward captured, as forward's inputs
    residuals = (*own, *forward.outputs[returned.count :])
    forward = Graph(forward.inputs, forward.eqns, (*forward.outputs[: returned.count], *residuals))
    back = backward.graph
    zeros = [zero_closed(type_of(x)) for x in captured if type_of(x).dtype in INEXACT]
    eqns = tuple(e for g in zeros for e in g.eqns)
    back = Graph(back.inputs, (*eqns, *back.eqns), (*(g.outputs[0] for g in zeros), *back.outputs))
    return CustomVjp(tidy(primal), tidy(forward), tidy(back), len(residuals)), captured


def widened(closed: Closed, captured: Sequence[Any], at: int) -> Graph:
    """The graph with inputs for all of `captured`, its own beginning at `at`."""
    graph, n = closed.graph, len(closed.captured)
    fresh = stage(lambda *xs: xs, [Input(type_of(x)) for x in captured], "captures").graph.inputs
    inputs = (*fresh[:at], *graph.inputs[:n], *fresh[at + n :], *graph.inputs[n:])
    return Graph(inputs, graph.eqns, graph.outputs)


def zero_closed(t: ArrayType) -> Graph:
    return stage(lambda: [zeros_of(t)], [], "zeros").graph


def zeros_of(t: ArrayType) -> Any:
    from ge2.ops.elementwise import ConvertElementType
    from ge2.ops.shape import BroadcastInDim

    zero = t.dtype.type(0)
    return ConvertElementType(t.dtype, weak=True)(zero) if t.weak else BroadcastInDim(t.shape, ())(zero)


def check_same(a: Closed, b: Closed, count: int, what: str) -> None:
    ours, theirs = ([x.type for x in c.graph.outputs[:count]] for c in (a, b))
    if ours != theirs:
        listed = [", ".join(map(str, ts)) or "nothing" for ts in (ours, theirs)]
        raise GradientError(f"{what} return different types: {listed[0]} and {listed[1]}", where=here())


def bound(fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, defaults filled in."""
    if not kwargs:
        return args
    import inspect

    given = inspect.signature(fun).bind(*args, **kwargs)
    given.apply_defaults()
    if given.kwargs:
        raise GradientError(f"{fun.__name__} has a custom rule and keyword-only arguments", where=here(), fix="positional arguments")
    return given.args


class custom_jvp(CustomRule):  # noqa: N801 a decorator, named as in JAX
    """A function whose derivative is given by `defjvp(rule)`: `rule(primals, tangents)` returns (result, tangent).

    Both modes follow from it: the rule is linear in the tangents, and reverse mode is its transpose. `defjvps`
    takes a function `(tangent, result, *args)` for each argument instead, or None for zero.

    >>> import numpy as np, ge2
    >>> f = custom_jvp(lambda x: np.sin(x))
    >>> f.defjvps(lambda t, y, x: t * 10.0)
    >>> ge2.grad(f)(0.0)
    10.0
    """

    def defjvp(self, rule: Function) -> Function:
        self.rule = rule
        return rule

    def defjvps(self, *rules: Function | None) -> None:
        def rule(*given: Any) -> tuple[Any, Any]:
            *static, primals, tangents = given
            y = self(*static, *primals)
            terms = [r(t, y, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None]
            return y, sum(terms[1:], terms[0]) if terms else zeros_of(type_of(y))

        self.rule = rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "rule"):
            raise NoRuleError(f"{self.fun.__name__} has a custom_jvp without a rule", where=here(), fix="f.defjvp(rule)")
        if at_top():
            return self.fun(*args, **kwargs)
        args = bound(self.fun, args, kwargs)
        static, others = self.split(args)
        call = Arguments.of(self.merged(args), others, {})
        returned, rule_returned = Results(), Results(has_aux=True)
        primal = call.stage(call.inputs(), returned, "custom_jvp")
        rule = self.stage_rule(call, static, rule_returned)
        check_same(primal, rule, returned.count, f"{self.fun.__name__} and its rule")
        captured = [*primal.captured, *rule.captured]
        graph = widened(primal, captured, 0)
        wide = widened(rule, captured, len(primal.captured))
        wide = with_dead_tangents(wide, captured, len(call.arrays))
        return returned.build(CustomJvp(tidy(graph), tidy(wide))(*captured, *call.values()))

    def stage_rule(self, call: Arguments, static: tuple[Any, ...], returned: Results) -> Closed:
        types = call.types()
        inexact = [i for i, t in enumerate(types) if t.dtype in INEXACT]

        def rule(*arrays: Any) -> list[Any]:
            primals = unflatten(call.structure, placed(call, arrays[: len(types)]))[0]
            seeds = dict(zip(inexact, arrays[len(types) :], strict=True))
            ts = [seeds.get(i, np.zeros(t.shape, FLOAT0)) for i, t in enumerate(types)]
            tangents = unflatten(call.structure, placed(call, ts))[0]
            leaves = returned.flat(self.rule(*static, primals, tangents))
            return self.checked(leaves, returned)

        inputs = [*call.inputs(), *(Input(types[i]) for i in inexact)]
        return stage(rule, inputs, f"the rule of {self.fun.__name__}")

    def checked(self, leaves: list[Any], returned: Results) -> list[Any]:
        ys, ts = leaves[: returned.count], leaves[returned.count :]
        if len(ys) != len(ts):
            raise GradientError(f"the rule of {self.fun.__name__} returns (result, tangent) of one structure", where=here())
        pairs = [(y, t) for y, t in zip(ys, ts, strict=True) if type_of(y).dtype in INEXACT]
        return [*ys, *(like(t, type_of(y), "the tangent that the rule gives for") for y, t in pairs)]


def placed(call: Arguments, arrays: Sequence[Any]) -> list[Any]:
    leaves = list(call.leaves)
    for i, x in zip(call.arrays, arrays, strict=True):
        leaves[i] = x
    return leaves


def with_dead_tangents(rule: Graph, captured: Sequence[Any], arrays: int) -> Graph:
    """The rule with tangent inputs for captured values too, which it does not read."""
    unread = [Input(type_of(x)) for x in captured if type_of(x).dtype in INEXACT]
    fresh = stage(lambda *xs: xs, unread, "captures").graph.inputs
    n = len(captured) + arrays
    return Graph((*rule.inputs[:n], *fresh, *rule.inputs[n:]), rule.eqns, rule.outputs)


def checkpoint(fun: Function, *, policy: Any = None, static_argnums: Sequence[int] = ()) -> Function:
    """`fun`, whose intermediate values are not kept for the backward pass but computed again there.

    >>> import numpy as np, ge2
    >>> ge2.grad(ge2.checkpoint(lambda x: np.sin(np.sin(x))))(0.0)
    1.0
    """
    if policy is not None:
        raise NoRuleError("checkpoint does not take policies yet", where=here(), fix="checkpoint smaller functions")
    static = CustomRule(fun, static_argnums)

    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if at_top():
            return fun(*args, **kwargs)
        others = static.split(args)[1]
        merged = static.merged(args)
        call = Arguments.of(lambda *a, **k: merged(*a) if not k else fun(*args, **k), others, {} if static.nondiff else kwargs)
        returned = Results()
        closed = call.stage(call.inputs(), returned, "checkpoint")
        return returned.build(Checkpoint(tidy(closed.graph))(*closed.captured, *call.values()))

    return wrapped


remat = checkpoint
