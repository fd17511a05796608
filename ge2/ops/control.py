"""Operations that hold graphs: calls, checkpoints and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ge2.base.dtypes import BOOL, INEXACT, INTEGERS
from ge2.base.errors import TypeRuleError
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
    Literal,
    Op,
    Pushed,
    Value,
    Var,
    rename,
    without_dead_code,
)
from ge2.ops.elementwise import WHERE, ConvertElementType
from ge2.ops.shape import Barrier, BroadcastInDim

Types = tuple[ArrayType, ...]
Executor = Callable[["Call", Sequence[Any]], Sequence[Any]]
EXECUTOR: list[Executor] = []  # how the runtime evaluates a call outside any trace; op by op without one


def types_of(atoms: Sequence[Atom]) -> Types:
    return tuple(a.type for a in atoms)


def matches(op: Op, graph: Graph, types: Sequence[ArrayType]) -> None:
    if types_of(graph.inputs) != tuple(types):
        want, got = (", ".join(map(str, ts)) for ts in (types_of(graph.inputs), types))
        raise TypeRuleError(f"{op.name} takes {want}; got {got}")


def filled(cts: Sequence[Value | None], ys: Sequence[Value]) -> list[Value]:
    """The cotangents (or tangents) of the inexact values, zeros made."""
    return [
        zero_like(y) if ct is None else ct for ct, y in zip(cts, ys, strict=False) if y.type.dtype in INEXACT
    ]


def zero_like(y: Value) -> Value:
    return y.zeros().cast(y.dtype, weak=True) if y.type.weak else y.zeros()


def scattered(found: Sequence[Value], wanted: Flags) -> Cotangents:
    """One cotangent for each input: those of the wanted ones are given."""
    rest = iter(found)
    return [next(rest) if w else None for w in wanted]


def flags_of(ts: Cotangents) -> Flags:
    return tuple(t is not None for t in ts)


def present(ts: Cotangents) -> list[Value]:
    return [t for t in ts if t is not None]


def inexact(atoms: Sequence[Atom]) -> Flags:
    return tuple(a.type.dtype in INEXACT for a in atoms)


def with_tangents(results: Sequence[Value], outputs: Sequence[Atom]) -> Pushed:
    """What a graph of (outputs, tangents of the inexact outputs) gave, taken apart."""
    rest = iter(results[len(outputs) :])
    return results[: len(outputs)], [next(rest) if a.type.dtype in INEXACT else None for a in outputs]


def to_front(xs: Sequence[Value], axes: Sequence[Axis]) -> list[Value]:
    return [x if a is None else x.move_axis(a, 0) for x, a in zip(xs, axes, strict=True)]


def axes_of(flags: Flags) -> list[Axis]:
    return [0 if f else None for f in flags]


@final
@record
class Call(GraphOp):
    """A jitted function called from a traced one."""

    jaxpr: Graph
    title: str = "f"
    name = "jit"

    def params(self) -> dict[str, Any]:
        return {"jaxpr": self.jaxpr, "title": self.title}

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(EXECUTOR[0](self, arrays) if EXECUTOR else self.jaxpr(*arrays))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        forward, backward, count = derive.vjp(self.jaxpr, wanted)
        return CallSaving(forward, backward, count, self.title)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        active, given, outputs = flags_of(ts), present(ts), self.jaxpr.outputs
        if not derive.apart:
            return with_tangents(Call(derive.jvp(self.jaxpr, active), self.title)(*xs, *given), outputs)
        forward, linear, _ = derive.linear(self.jaxpr, active)
        results = Call(forward, self.title)(*xs)
        found = Call(linear, self.title)(*results[len(outputs) :], *given)
        return results[: len(outputs)], scattered(found, inexact(outputs))

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        graph, flags = derive.batch(self.jaxpr, tuple(a is not None for a in axes), size)
        return Call(graph, self.title)(*to_front(xs, axes)), axes_of(flags)


class Saving(GraphOp):
    """A call whose last results are residuals, read by `backward` with the cotangents of the others."""

    __slots__ = ()
    jaxpr: Graph
    backward: Graph
    residuals: int
    title: str

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.backward)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return self.plain().reference(*arrays)

    def plain(self) -> Call:
        return Call(self.jaxpr, self.title)

    def vjp(self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        found = Call(self.backward, self.title)(*ys[at:], *filled(cts[:at], ys[:at]))
        return scattered(found, wanted)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return self.plain().saving(wanted, derive)  # a derivative of the whole, residuals included

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        return self.plain().jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return self.plain().batch_with(derive, xs, axes, size)


@final
@record
class CallSaving(Saving):
    jaxpr: Graph
    backward: Graph
    residuals: int
    title: str = "f"
    name = "jit_saving"


@final
@record
class Checkpoint(GraphOp):
    """A call whose values are computed again when the derivative needs them, instead of being kept."""

    jaxpr: Graph
    name = "checkpoint"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        forward, backward, count = derive.vjp(self.jaxpr, wanted)
        return CheckpointSaving(self.jaxpr, whole(forward, backward, count))

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        graph, given, outputs = derive.jvp(self.jaxpr, flags_of(ts)), present(ts), self.jaxpr.outputs
        if not derive.apart:
            return with_tangents(Checkpoint(graph)(*xs, *given), outputs)
        again = without_dead_code(Graph(graph.inputs, graph.eqns, graph.outputs[len(outputs) :]))
        return self(*xs), scattered(Call(again, "checkpoint")(*Barrier()(*xs, *given)), inexact(outputs))

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        graph, flags = derive.batch(self.jaxpr, tuple(a is not None for a in axes), size)
        return Checkpoint(graph)(*to_front(xs, axes)), axes_of(flags)


def whole(forward: Graph, backward: Graph, residuals: int) -> Graph:
    """Forward and backward as one graph of (inputs, cotangents) to cotangents."""
    kept = forward.outputs[len(forward.outputs) - residuals :]
    renamed = dict(zip(backward.inputs, kept, strict=False))
    eqns = [Eqn(e.op, rename(renamed, e.inputs), e.outs, e.source) for e in backward.eqns]
    made = {v for e in forward.eqns for v in e.outs}
    eqns = [e for e in eqns if made.isdisjoint(e.outs)]  # constants that both halves make
    outputs = rename(renamed, backward.outputs)
    return Graph((*forward.inputs, *backward.inputs[residuals:]), (*forward.eqns, *eqns), outputs)


@final
@record
class CheckpointSaving(GraphOp):
    """A checkpoint under differentiation: `backward` maps (inputs, cotangents) to those of the inputs."""

    jaxpr: Graph
    backward: Graph
    name = "checkpoint_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.backward)

    def infer(self, *types: ArrayType) -> Types:
        return Checkpoint(self.jaxpr).infer(*types)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))

    def vjp(self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags) -> Cotangents:
        tied = Barrier()(*xs, *filled(cts, ys))  # so that no pass merges this with the first computation
        return scattered(Call(self.backward, "checkpoint")(*tied), wanted)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return Checkpoint(self.jaxpr).saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        return Checkpoint(self.jaxpr).jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return Checkpoint(self.jaxpr).batch_with(derive, xs, axes, size)


@final
@record
class Cond(GraphOp):
    """One of several graphs of the same types, chosen by a scalar: False or 0 takes the first."""

    branches: tuple[Graph, ...]
    name = "cond"

    def graphs(self) -> tuple[Graph, ...]:
        return self.branches

    def infer(self, *types: ArrayType) -> Types:
        if types[0].shape or types[0].dtype not in (BOOL, *INTEGERS):
            raise TypeRuleError(f"cond is decided by a bool or integer scalar; got {types[0]}")
        for branch in self.branches:
            matches(self, branch, types[1:])
        outputs = [types_of(b.outputs) for b in self.branches]
        if any(o != outputs[0] for o in outputs):
            listed = " and ".join(f"({', '.join(map(str, o))})" for o in outputs)
            raise TypeRuleError(f"the branches of a cond return different types: {listed}")
        return outputs[0]

    def reference(self, *arrays: Any) -> Any:
        index = min(max(int(arrays[0]), 0), len(self.branches) - 1)
        return tuple(self.branches[index](*arrays[1:]))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        halves = [derive.vjp(b, wanted[1:]) for b in self.branches]
        forward, backward, count = joined_halves(halves, len(self.branches[0].outputs))
        return CondSaving(forward, backward, count)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        active, given, outputs = flags_of(ts[1:]), present(ts[1:]), self.branches[0].outputs
        if not derive.apart:
            return with_tangents(
                Cond(tuple(derive.jvp(b, active) for b in self.branches))(*xs, *given), outputs
            )
        forward, linear, _ = joined_halves([derive.linear(b, active) for b in self.branches], len(outputs))
        results = Cond(forward)(*xs)
        found = Cond(linear)(xs[0], *results[len(outputs) :], *given)
        return results[: len(outputs)], scattered(found, inexact(outputs))

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        batched, operands = tuple(a is not None for a in axes[1:]), to_front(xs, axes)
        found = [derive.batch(b, batched, size) for b in self.branches]
        some = tuple(any(f) or axes[0] is not None for f in zip(*(flags for _, flags in found), strict=True))
        branches = tuple(
            g if flags == some else derive.batch(b, batched, size, some)[0]
            for b, (g, flags) in zip(self.branches, found, strict=True)
        )
        if axes[0] is None:
            return Cond(branches)(*operands), axes_of(some)
        return chosen(operands[0], [Call(b, "branch")(*operands[1:]) for b in branches]), axes_of(some)


def chosen(index: Value, results: Sequence[Sequence[Value]]) -> list[Value]:
    """The results of the branch that `index`, batched, names: all branches are computed."""
    ys = list(results[0])
    for i, others in enumerate(results[1:], 1):
        last = i == len(results) - 1
        at = index if index.dtype == BOOL else index >= i if last else index.same(i)
        ys = [WHERE(at.spread(y.shape, (0,)), o, y) for y, o in zip(ys, others, strict=True)]
    return ys


def joined_halves(
    halves: Sequence[tuple[Graph, Graph, int]], outputs: int
) -> tuple[tuple[Graph, ...], tuple[Graph, ...], int]:
    """The forward graphs, each yielding the residuals of all (zeros for the others'), and backward graphs."""
    kinds = [types_of(b.inputs[:n]) for _, b, n in halves]
    forward, backward = [], []
    for i, (f, b, n) in enumerate(halves):
        zeros = [[zero_equation(t) for t in kind] for kind in kinds]
        kept = [
            f.outputs[outputs:] if j == i else tuple(e.outs[0] for e in eqns) for j, eqns in enumerate(zeros)
        ]
        made = [e for j, eqns in enumerate(zeros) if j != i for e in eqns]
        forward.append(
            Graph(f.inputs, (*f.eqns, *made), (*f.outputs[:outputs], *(a for group in kept for a in group)))
        )
        unread = [b.inputs[:n] if j == i else tuple(Var(t) for t in kind) for j, kind in enumerate(kinds)]
        backward.append(Graph((*(v for group in unread for v in group), *b.inputs[n:]), b.eqns, b.outputs))
    return tuple(forward), tuple(backward), sum(n for _, _, n in halves)


def zero_equation(type: ArrayType) -> Eqn:
    zero = (Literal.of(type.dtype.type(0)),)
    op: Op = ConvertElementType(type.dtype, weak=True) if type.weak else BroadcastInDim(type.shape, ())
    return Eqn(op, zero, (Var(type),))


@final
@record
class CondSaving(GraphOp):
    """A cond whose last results are the residuals of all its branches."""

    branches: tuple[Graph, ...]
    backward: tuple[Graph, ...]
    residuals: int
    name = "cond_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (*self.branches, *self.backward)

    def plain(self) -> Cond:
        return Cond(self.branches)

    def infer(self, *types: ArrayType) -> Types:
        return Cond(self.branches).infer(*types)

    def reference(self, *arrays: Any) -> Any:
        return Cond(self.branches).reference(*arrays)

    def vjp(self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        found = Cond(self.backward)(xs[0], *ys[at:], *filled(cts[:at], ys[:at]))
        return [None, *scattered(found, wanted[1:])]

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return Cond(self.branches).saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Sequence[Value]) -> Pushed:
        return Cond(self.branches).jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return Cond(self.branches).batch_with(derive, xs, axes, size)


CALLS = (Call, CallSaving, Checkpoint, CheckpointSaving)  # their first graph is what they compute
CONTROL: tuple[type[GraphOp], ...] = (Call, CallSaving, Checkpoint, CheckpointSaving, Cond, CondSaving)
