"""Operations for functions that bring their own derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, final

from ge2.base.dtypes import INEXACT
from ge2.base.errors import GradientError, NoRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Axis,
    Batched,
    Cotangents,
    Derive,
    Eqn,
    Flags,
    Graph,
    GraphOp,
    Op,
    Pushed,
    Value,
    Var,
    rename,
    without_dead_code,
)
from ge2.ops.control import (
    Call,
    Types,
    filled,
    flags_of,
    inexact,
    matches,
    scattered,
    to_front,
    types_of,
    whole,
    with_tangents,
    zero_equation,
)
from ge2.ops.reduce import ReduceSum


@final
@record
class CustomVjp(GraphOp):
    """A call with a reverse derivative of its own: `forward` also yields residuals, which `backward` reads.

    The `consts` of `jaxpr` are values that the function read from around it; the rule is silent of them.
    """

    jaxpr: Graph
    forward: Graph
    backward: Graph
    residuals: int
    name = "custom_vjp_call"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.forward, self.backward)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        refuse_captured(self, wanted)
        return CustomVjpSaving(self.forward, self.backward, self.residuals)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        raise NoRuleError(
            "a function with a custom_vjp has no forward derivative",
            fix="ge2.custom_jvp, which gives both modes",
        )

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        """Cotangents of inputs that are shared get the axis too; a sum takes it off again."""
        batched, results = tuple(a is not None for a in axes), len(self.jaxpr.outputs)
        every = (True,) * results
        graph, _ = derive.batch(self.jaxpr, batched, size, every)
        forward, flags = derive.batch(self.forward, batched, size, every + (False,) * self.residuals)
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
    """The rule of a function is silent of what the function captured, so a derivative by that is unknown."""
    if not any(wanted[: op.jaxpr.consts]):
        return
    rule, inputs = op.name.removesuffix("_call"), op.jaxpr.inputs
    if op.jaxpr.consts == len(inputs):
        what = f"a function with a {rule} that its own rule calls has no derivative of so high an order"
        raise NoRuleError(what, fix="call the plain function in the rule")
    at = inputs[wanted.index(True)].type
    what = f"a derivative flows through a value ({at}) that a function with a {rule} reads from around it"
    raise GradientError(what, fix="pass it as an argument of the function, or ge2.stop_gradient of it")


def summed(backward: Graph, batched: Flags, graph: Graph) -> Graph:
    """The batched backward graph, its cotangents of shared inputs summed over the batch."""
    eqns, outputs = list(backward.eqns), []
    inexact = [(b, v) for b, v in zip(batched, graph.inputs, strict=True) if v.type.dtype in INEXACT]
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

    def vjp(self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        found = Call(self.backward, "custom_vjp")(*ys[at:], *filled(cts[:at], ys[:at]))
        return scattered(found, tuple(x.type.dtype in INEXACT for x in xs))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return Call(self.forward, "custom_vjp").saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        return Call(self.forward, "custom_vjp").jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return Call(self.forward, "custom_vjp").batch_with(derive, xs, axes, size)


@final
@record
class CustomJvp(GraphOp):
    """A call with a derivative of its own: `rule` maps (inputs, tangents) to (outputs, tangents)."""

    jaxpr: Graph
    rule: Graph
    name = "custom_jvp_call"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.rule)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        refuse_captured(self, flags_of(ts))
        tangents, outputs, rule = filled(ts, xs), self.jaxpr.outputs, self.rule
        if not derive.apart:
            return with_tangents(Call(rule, "custom_jvp")(*xs, *tangents), outputs)
        found = Call(
            without_dead_code(Graph(rule.inputs, rule.eqns, rule.outputs[len(outputs) :])), "custom_jvp"
        )(*xs, *tangents)
        return self(*xs), scattered(found, inexact(outputs))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        """The rule is linear in its tangents: its transpose is the reverse derivative."""
        refuse_captured(self, wanted)
        n, outputs = len(self.jaxpr.inputs), len(self.jaxpr.outputs)
        flags = iter(self.rule.inputs[n:])
        seeds = [next(flags) if v.type.dtype in INEXACT else None for v in self.jaxpr.inputs]
        chosen = tuple(t is not None and w for t, w in zip(seeds, wanted, strict=True))
        linear = (False,) * n + tuple(c for c, t in zip(chosen, seeds, strict=True) if t is not None)
        tangents = Graph(self.rule.inputs, self.rule.eqns, self.rule.outputs[outputs:])
        forward, backward, count = derive.vjp(tangents, linear)
        joint = whole(forward, backward, count)
        zeros = [zero_equation(v.type) for v in self.rule.inputs[n:]]
        names: dict[Var, Atom] = dict(zip(joint.inputs[n:], (e.outs[0] for e in zeros), strict=False))
        eqns = [Eqn(e.op, rename(names, e.inputs), e.outs, e.source) for e in joint.eqns]
        inputs = (*joint.inputs[:n], *joint.inputs[len(self.rule.inputs) :])
        reverse = Graph(inputs, (*zeros, *eqns), rename(names, joint.outputs))
        return CustomJvpSaving(self.jaxpr, self.rule, without_dead_code(reverse), chosen)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        batched = tuple(a is not None for a in axes)
        every = (True,) * len(self.jaxpr.outputs)
        graph, _ = derive.batch(self.jaxpr, batched, size, every)
        moved = tuple(b for b, v in zip(batched, self.jaxpr.inputs, strict=True) if v.type.dtype in INEXACT)
        rule, _ = derive.batch(self.rule, (*batched, *moved), size, (True,) * len(self.rule.outputs))
        return CustomJvp(with_consts(graph, self.jaxpr.consts), rule)(*to_front(xs, axes)), [0] * len(every)


@final
@record
class CustomJvpSaving(GraphOp):
    """A custom_jvp in reverse mode: `reverse` maps (inputs, cotangents) to cotangents of the `wanted`."""

    jaxpr: Graph
    rule: Graph
    reverse: Graph
    wanted: Flags
    name = "custom_jvp_saving"

    def plain(self) -> CustomJvp:
        return CustomJvp(self.jaxpr, self.rule)

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.rule, self.reverse)

    def infer(self, *types: ArrayType) -> Types:
        return self.plain().infer(*types)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))

    def vjp(self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags) -> Cotangents:
        found = Call(self.reverse, "custom_jvp")(*xs, *filled(cts, ys))
        return scattered(found, self.wanted)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return self.plain().saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        return self.plain().jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return self.plain().batch_with(derive, xs, axes, size)


Rule = Callable[[Sequence[Value], Sequence[Axis], int], Batched]


@final
@record
class CustomBatch(GraphOp):
    """A call with a batching rule of its own, which is Python and no part of the text.

    The rule computes what batching the graph would. Of a text that is read back, and where the axis lies in a
    value that the function read from around it (the `consts` of `jaxpr`), the graph itself is batched. Its
    derivatives are those of the graph.
    """

    jaxpr: Graph
    rule: Rule | None = field(default=None, compare=False, repr=False)
    name = "custom_batch_call"

    def plain(self) -> Call:
        return Call(self.jaxpr, "custom_batch")

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return self.plain().saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        return self.plain().jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        around = axes[: self.jaxpr.consts]
        if self.rule is None or any(a is not None for a in around):
            return self.plain().batch_with(derive, xs, axes, size)
        return self.rule(to_front(xs, axes), axes, size)


CUSTOM: tuple[type[GraphOp], ...] = (CustomVjp, CustomVjpSaving, CustomJvp, CustomJvpSaving, CustomBatch)
