"""Operations for functions that bring their own derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol, final

from ge2.base.arrays import INEXACT
from ge2.base.errors import GradientError, NoRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Axes,
    Batched,
    Cotangents,
    Derive,
    Eqn,
    Flags,
    Graph,
    GraphOp,
    Op,
    Pushed,
    Values,
    Var,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.graphs.control import (
    Alike,
    Call,
    OfGraph,
    Types,
    axes_of,
    filled,
    flags_of,
    inexact,
    inlined,
    matches,
    present,
    scattered,
    to_front,
    types_of,
    whole,
    with_axis,
    with_tangents,
)
from ge2.ops.graphs.region import zero_equation
from ge2.ops.reduce import ReduceSum
from ge2.ops.shape import BroadcastInDim


@final
@record
class CustomVjp(OfGraph):
    """A call with a reverse derivative of its own: `forward` also yields
    residuals, which `backward` reads.

    The `consts` of `jaxpr` are values that the function read from around it;
    the rule is silent of them.
    """

    jaxpr: Graph
    forward: Graph
    backward: Graph
    residuals: int
    name = "custom_vjp_call"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.forward, self.backward)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        refuse_captured(self, wanted)
        return CustomVjpSaving(self.forward, self.backward, self.residuals)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        raise NoRuleError(
            "a function with a custom_vjp has no forward derivative",
            fix="ge2.custom_jvp, which gives both modes",
        )

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        """Cotangents of inputs that are shared get the axis too; a sum takes it off again."""
        batched, results = tuple(a is not None for a in axes), len(self.jaxpr.outputs)
        every = (True,) * results
        graph, _ = derive.batch(self.jaxpr, batched, size, every)
        forward, flags = derive.batch(
            self.forward, batched, size, every + (False,) * self.residuals
        )
        given = len(self.backward.inputs) - self.residuals
        moved = flags[results:] + (True,) * given
        backward, _ = derive.batch(self.backward, moved, size, (True,) * len(self.backward.outputs))
        backward = summed(backward, batched, self.jaxpr)
        over = CustomVjp(with_consts(graph, self.jaxpr.consts), forward, backward, self.residuals)
        return over(*to_front(xs, axes)), [0] * results


def with_consts(graph: Graph, consts: int) -> Graph:
    """The graph, its first inputs marked as captured."""
    return Graph(graph.inputs, graph.eqns, graph.outputs, consts)


def refuse_captured(op: CustomVjp | CustomJvp, wanted: Flags) -> None:
    """The rule of a function is silent of what the function captured, so a
    derivative by that is unknown.
    """
    if not any(wanted[: op.jaxpr.consts]):
        return
    rule, inputs = op.name.removesuffix("_call"), op.jaxpr.inputs
    if op.jaxpr.consts == len(inputs):
        what = "a function that its own rule calls again and again has no derivative of so high an order"
        raise NoRuleError(what, fix="call the plain function in the rule")
    at = inputs[wanted.index(True)].type
    what = f"a derivative flows through a value ({at}) that a function with a {rule} reads from around it"
    raise GradientError(
        what, fix="pass it as an argument of the function, or ge2.stop_gradient of it"
    )


def summed(backward: Graph, batched: Flags, graph: Graph) -> Graph:
    """The batched backward graph, its cotangents of shared inputs summed over the batch."""
    eqns, outputs = list(backward.eqns), []
    inexact = [
        (b, v) for b, v in zip(batched, graph.inputs, strict=True) if v.type.dtype in INEXACT
    ]
    for (has_axis, v), ct in zip(inexact, backward.outputs, strict=True):
        if not has_axis:
            eqns.append(Eqn(ReduceSum((0,)), (ct,), (Var(v.type.with_shape(v.type.shape)),)))
            ct = eqns[-1].outs[0]
        outputs.append(ct)
    return Graph(backward.inputs, tuple(eqns), tuple(outputs))


@final
@record
class CustomVjpSaving(GraphOp):
    """The forward half of a custom_vjp; its cotangents are given for every inexact input."""

    forward: Graph
    backward: Graph
    residuals: int
    name = "custom_vjp_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.forward, self.backward)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.forward, types)
        return types_of(self.forward.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.forward(*arrays))

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        found = Call(self.backward, "custom_vjp")(*ys[at:], *filled(cts[:at], ys[:at]))
        return scattered(found, tuple(x.type.dtype in INEXACT for x in xs))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return Call(self.forward, "custom_vjp").saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        return Call(self.forward, "custom_vjp").jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        return Call(self.forward, "custom_vjp").batch_with(derive, xs, axes, size)


@final
@record
class CustomJvp(OfGraph):
    """A call with a derivative of its own:

    `rule` maps (inputs, tangents) to (outputs, tangents).
    """

    jaxpr: Graph
    rule: Graph
    name = "custom_jvp_call"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.rule)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        refuse_captured(self, flags_of(ts))
        tangents, outputs, rule = filled(ts, xs), self.jaxpr.outputs, self.rule
        if not derive.apart:
            return with_tangents(Call(rule, "custom_jvp")(*xs, *tangents), outputs)
        found = Call(
            without_dead_code(Graph(rule.inputs, rule.eqns, rule.outputs[len(outputs) :])),
            "custom_jvp",
        )(*xs, *tangents)
        return self(*xs), scattered(found, inexact(outputs))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        """The rule is linear in its tangents: its transpose is the reverse derivative."""
        refuse_captured(self, wanted)
        n, outputs = len(self.jaxpr.inputs), len(self.jaxpr.outputs)
        flags = iter(self.rule.inputs[n:])
        seeds = [next(flags) if v.type.dtype in INEXACT else None for v in self.jaxpr.inputs]
        chosen = tuple(t is not None and w for t, w in zip(seeds, wanted, strict=True))
        linear = (False,) * n + tuple(
            c for c, t in zip(chosen, seeds, strict=True) if t is not None
        )
        tangents = Graph(self.rule.inputs, self.rule.eqns, self.rule.outputs[outputs:])
        tangents = with_plain_calls(tangents, self.rule.inputs[n:])
        forward, backward, count = derive.vjp(tangents, linear)
        joint = whole(forward, backward, count)
        zeros = [zero_equation(v.type) for v in self.rule.inputs[n:]]
        names: dict[Var, Atom] = dict(
            zip(joint.inputs[n:], (e.outs[0] for e in zeros), strict=False)
        )
        eqns = [renamed(names, e) for e in joint.eqns]
        inputs = (*joint.inputs[:n], *joint.inputs[len(self.rule.inputs) :])
        reverse = Graph(inputs, (*zeros, *eqns), rename(names, joint.outputs))
        return CustomJvpSaving(self.jaxpr, self.rule, without_dead_code(reverse), chosen)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        batched = tuple(a is not None for a in axes)
        every = (True,) * len(self.jaxpr.outputs)
        graph, _ = derive.batch(self.jaxpr, batched, size, every)
        moved = tuple(
            b for b, v in zip(batched, self.jaxpr.inputs, strict=True) if v.type.dtype in INEXACT
        )
        rule, _ = derive.batch(
            self.rule, (*batched, *moved), size, (True,) * len(self.rule.outputs)
        )
        return CustomJvp(with_consts(graph, self.jaxpr.consts), rule)(*to_front(xs, axes)), [
            0
        ] * len(every)


def with_plain_calls(graph: Graph, tangents: Sequence[Var]) -> Graph:
    """A rule in which functions with rules of their own, applied to tangents, are plain calls.

    A rule is linear in its tangents, so such a function is linear, and its equations are transposed
    as they stand: its rule may be this one again.
    """
    graph = inlined(graph, (Call,))
    moves: set[Atom] = set(tangents)
    eqns = []
    for eqn in graph.eqns:
        if not moves.isdisjoint(eqn.inputs):
            moves.update(eqn.outs)
            if isinstance(eqn.op, CustomJvp):
                eqn = Eqn(Call(eqn.op.jaxpr, "custom_jvp"), eqn.inputs, eqn.outs, eqn.source)
        eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs)


@final
@record
class CustomJvpSaving(Alike):
    """A custom_jvp in reverse mode:

    `reverse` maps (inputs, cotangents) to cotangents of the `wanted`.
    """

    jaxpr: Graph
    rule: Graph
    reverse: Graph
    wanted: Flags
    name = "custom_jvp_saving"

    def plain(self) -> CustomJvp:
        return CustomJvp(self.jaxpr, self.rule)

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.rule, self.reverse)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        found = Call(self.reverse, "custom_jvp")(*xs, *filled(cts, ys))
        return scattered(found, self.wanted)


class Rule(Protocol):
    """A function that batches a graph: given which inputs have the axis and its size, a graph over
    it, with the inputs that need the axis there (at least those), and the results that have it.
    """

    def __call__(self, derive: Derive, batched: Flags, size: int) -> tuple[Graph, Flags, Flags]: ...


@final
@record
class CustomBatch(OfGraph):
    """A call with a batching rule of its own, which is Python and no part of the text.

    The rule computes what batching the graph would; what is read back from a text is batched by its
    equations. The rule of a derivative is the derivative of the rule.
    """

    jaxpr: Graph
    rule: Rule | None = field(default=None, compare=False, repr=False)
    name = "custom_batch_call"

    def plain(self) -> Call:
        return Call(self.jaxpr, "custom_batch")

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        if self.rule is None:
            return self.plain().saving(wanted, derive)
        return CustomBatchSaving(
            self.jaxpr, whole(*derive.vjp(self.jaxpr, wanted)), wanted, self.rule
        )

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        if self.rule is None or derive.apart:
            return self.plain().jvp_with(derive, ts, xs)
        active = flags_of(ts)
        graph = derive.jvp(self.jaxpr, active)
        pushed = CustomBatch(graph, PushedRule(graph, self.rule, active))
        return with_tangents(pushed(*xs, *present(ts)), self.jaxpr.outputs)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        if self.rule is None:
            return self.plain().batch_with(derive, xs, axes, size)
        graph, needed, has = self.rule(derive, tuple(a is not None for a in axes), size)
        return Call(graph, "custom_batch")(*with_axis(xs, axes, needed, size)), axes_of(has)


@final
@record
class CustomBatchSaving(Alike):
    """A custom_batch in reverse mode: `reverse` maps (inputs, cotangents) to
    cotangents of the `wanted`.

    Nothing is kept for it: what both halves compute is one after inlining.
    """

    jaxpr: Graph
    reverse: Graph
    wanted: Flags
    rule: Rule | None = field(default=None, compare=False, repr=False)
    name = "custom_batch_saving"

    def plain(self) -> CustomBatch:
        return CustomBatch(self.jaxpr, self.rule)

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.reverse)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        rule = self.rule and PulledRule(self.reverse, self.rule, self.wanted)
        found = CustomBatch(self.reverse, rule)(*xs, *filled(cts, ys))
        return scattered(found, self.wanted)


@final
@record
class PushedRule:
    """The rule of the forward derivative `graph`: a value has the axis if its
    tangent does, and likewise.

    Where tangents alone have it, nothing of the function is repeated.
    """

    graph: Graph
    rule: Rule
    active: Flags

    def __call__(self, derive: Derive, batched: Flags, size: int) -> tuple[Graph, Flags, Flags]:
        n = len(self.active)
        if not any(batched[:n]):
            graph, has = derive.batch(self.graph, batched, size)
            return graph, batched, has
        moved = iter(batched[n:])
        either = tuple(
            b | (next(moved) if a else False) for b, a in zip(batched[:n], self.active, strict=True)
        )
        graph, needed, has = self.rule(derive, either, size)
        tangents = tuple(b for b, a in zip(needed, self.active, strict=True) if a)
        pushed = tuple(
            h for h, a in zip(has, graph.outputs, strict=True) if a.type.dtype in INEXACT
        )
        return derive.jvp(graph, self.active), (*needed, *tangents), (*has, *pushed)


@final
@record
class PulledRule:
    """The rule of the reverse derivative `graph`: what is derived by has the
    axis, or cotangents were summed.

    Where cotangents alone have it, nothing of the function is repeated.
    """

    graph: Graph
    rule: Rule
    wanted: Flags

    def __call__(self, derive: Derive, batched: Flags, size: int) -> tuple[Graph, Flags, Flags]:
        if not any(batched[: len(self.wanted)]):
            graph, has = derive.batch(self.graph, batched, size)
            return graph, batched, has
        own = tuple(b or w for b, w in zip(batched, self.wanted, strict=False))
        graph, needed, has = self.rule(derive, own, size)
        graph = with_axes(graph, has, size)
        given = (True,) * sum(inexact(graph.outputs))
        found = (True,) * sum(self.wanted)
        return whole(*derive.vjp(graph, self.wanted)), (*needed, *given), found


def with_axes(graph: Graph, has: Flags, size: int) -> Graph:
    """The graph, its results repeated along the axis where they lack it."""
    eqns, outputs = list(graph.eqns), []
    for atom, has_axis in zip(graph.outputs, has, strict=True):
        if not has_axis:
            shape = (size, *atom.type.shape)
            op = BroadcastInDim(shape, tuple(range(1, len(shape))))
            eqns.append(Eqn(op, (atom,), (Var(atom.type.with_shape(shape)),)))
            atom = eqns[-1].outs[0]
        outputs.append(atom)
    return Graph(graph.inputs, tuple(eqns), tuple(outputs), graph.consts)


CUSTOM: tuple[type[GraphOp], ...] = (
    CustomVjp, CustomVjpSaving, CustomJvp, CustomJvpSaving, CustomBatch, CustomBatchSaving,
)  # fmt: skip
