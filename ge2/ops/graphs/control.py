"""Operations that hold graphs: calls, branches, and checkpoints with what they may keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from typing import Any, final

from ge2.base.arrays import BOOL, INEXACT, INTEGERS
from ge2.base.errors import InputError, TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Axes,
    Axis,
    Batched,
    Cotangents,
    Derive,
    Dims,
    Eqn,
    Flags,
    Graph,
    GraphOp,
    Op,
    Pushed,
    Reversing,
    Value,
    Values,
    Var,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import WHERE
from ge2.ops.graphs.region import joined_halves, shielded
from ge2.ops.shape import Barrier, Name

# -------- The rule that says which values a checkpoint may keep, which graphs can hold and print.
# A rule is a tuple: its name, then labels or further rules. `Policy` is what users hold of it; like
# a policy in JAX it can be called with an operation, the types of its inputs and its parameters.


Rule = tuple[Any, ...]
Labels = Collection[str]


def no_batch_dims(op: Any) -> bool:
    return isinstance(op, DotGeneral) and not op.beside[0]


# fmt: off
RULES: dict[str, Callable[[Any, Labels, Rule], bool]] = {
    "everything_saveable":                lambda op, labels, given: True,
    "nothing_saveable":                   lambda op, labels, given: False,
    "dots_saveable":                      lambda op, labels, given: isinstance(op, DotGeneral),
    "dots_with_no_batch_dims_saveable":   lambda op, labels, given: no_batch_dims(op),
    "save_only_these_names":              lambda op, labels, given: not set(given).isdisjoint(labels),
    "save_any_names_but_these":           lambda op, labels, given: any(n not in given for n in labels),
    "save_anything_except_these_names":   lambda op, labels, given: set(given).isdisjoint(labels),
    "save_from_both_policies":            lambda op, labels, given: any(saves(r, op, labels) for r in given),
}
# fmt: on
NOTHING: Rule = ("nothing_saveable",)


def saves(rule: Rule, op: Any, labels: Labels = ()) -> bool:
    """True if a result of an operation, which `checkpoint_name` gave these labels, may be kept."""
    return RULES[rule[0]](op, labels, rule[1:])


def check(rule: Rule) -> None:
    """InputError unless it is a rule."""
    name, *given = rule or ("",)
    if name not in RULES:
        raise InputError(
            f"{rule!r} is no rule of what to save", fix="one of ge2.checkpoint_policies"
        )
    for r in given if name == "save_from_both_policies" else ():
        check(r)


@final
@record
class Policy:
    """The argument of `ge2.checkpoint(policy=...)`: which values may be kept for the backward pass."""

    rule: Rule

    def __call__(self, op: Any, *types: Any, **params: Any) -> bool:
        """True if results of `op` may be kept; its label, if it is one that marks, counts as one."""
        return saves(self.rule, op, (op.label,) if isinstance(op, Name) else ())

    def __repr__(self) -> str:
        return words(self.rule)


def words(rule: Rule) -> str:
    name, *given = rule
    inner = ", ".join(words(g) if isinstance(g, tuple) else repr(g) for g in given)
    return f"ge2.checkpoint_policies.{name}{f'({inner})' if given else ''}"


# ------------------------------------------------------------------------------------------ inline
# Operations that hold graphs, replaced by what they compute.


Kinds = tuple[type[GraphOp], ...]


def inlined(graph: Graph, kinds: Kinds) -> Graph:
    """The graph with the equations of the first graph of each operation of
    these kinds in its place.
    """
    some = (*kinds, Reversing)
    if not any(isinstance(eqn.op, some) for eqn in graph.eqns):
        return graph
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    splice(graph.eqns, env, eqns, kinds, fresh=False)
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs), graph.consts)


def past_barriers(graph: Graph) -> Graph:
    """The graph whose captured arrays and numbers pass barriers: they are there in any case, and what
    is known of them, as of a mask that is a band, holds behind a barrier as before it.
    """
    captured, env, eqns = frozenset(graph.inputs[: graph.consts]), dict[Var, Atom](), list[Eqn]()
    for eqn in graph.eqns:
        kept: Eqn | None = renamed(env, eqn)
        if isinstance(eqn.op, Barrier) and kept is not None:
            passing, kept = parted(kept, captured)
            env.update(passing)
        eqns += () if kept is None else (kept,)
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs), graph.consts)


def parted(barrier: Eqn, captured: Set[Var]) -> tuple[dict[Var, Atom], Eqn | None]:
    """The values that pass a barrier, by the name behind it, and the barrier of the others, if any."""
    pairs = [*zip(barrier.inputs, barrier.outs, strict=True)]
    passing = {v: a for a, v in pairs if type(a) is not Var or a.type.weak or a in captured}
    held = [(a, v) for a, v in pairs if v not in passing]
    if not held:
        return passing, None
    inputs, outs = zip(*held, strict=True)
    return passing, replace(barrier, inputs=inputs, outs=outs)


def splice(
    body: Sequence[Eqn], env: dict[Var, Atom], eqns: list[Eqn], kinds: Kinds, fresh: bool
) -> None:
    """Appends the equations of `body`; `fresh`: under new names, for a graph
    may be called twice.
    """
    for eqn in body:
        inputs = rename(env, eqn.inputs)
        if isinstance(eqn.op, kinds):
            assert isinstance(eqn.op, GraphOp)
            inner = eqn.op.graphs()[0]
            names: dict[Var, Atom] = dict(zip(inner.inputs, inputs, strict=True))
            splice(inner.eqns, names, eqns, kinds, fresh=True)
            env.update(zip(eqn.outs, rename(names, inner.outputs), strict=True))
            continue
        # its derivative is done
        op: Op = eqn.op.plain() if isinstance(eqn.op, Reversing) else eqn.op
        outs = tuple(Var(v.type) for v in eqn.outs) if fresh else eqn.outs
        if fresh:
            env.update(zip(eqn.outs, outs, strict=True))
        eqns.append(Eqn(op, inputs, outs, eqn.source))


# -------- Operations that hold graphs: calls, checkpoints and branches.


Types = tuple[ArrayType, ...]
Executor = Callable[["Call", Sequence[Any]], Sequence[Any]]
# how the runtime evaluates a call outside any trace; op by op without one
EXECUTOR: list[Executor] = []


def types_of(atoms: Sequence[Atom]) -> Types:
    return tuple(a.type for a in atoms)


def matches(op: Op, graph: Graph, types: Sequence[ArrayType]) -> None:
    if types_of(graph.inputs) != tuple(types):
        want, got = (", ".join(map(str, ts)) for ts in (types_of(graph.inputs), types))
        raise TypeRuleError(f"{op.name} takes {want}; got {got}")


def filled(cts: Sequence[Value | None], ys: Values) -> list[Value]:
    """The cotangents (or tangents) of the inexact values, zeros made."""
    return [
        zero_like(y) if ct is None else ct
        for ct, y in zip(cts, ys, strict=False)
        if y.type.dtype in INEXACT
    ]


def zero_like(y: Value) -> Value:
    return y.zeros().cast(y.dtype, weak=True) if y.type.weak else y.zeros()


def scattered(found: Values, wanted: Flags) -> Cotangents:
    """One cotangent for each input: those of the wanted ones are given."""
    rest = iter(found)
    return [next(rest) if w else None for w in wanted]


def flags_of(ts: Cotangents) -> Flags:
    return tuple(t is not None for t in ts)


def present(ts: Cotangents) -> list[Value]:
    return [t for t in ts if t is not None]


def inexact(atoms: Sequence[Atom]) -> Flags:
    return tuple(a.type.dtype in INEXACT for a in atoms)


def with_tangents(results: Values, outputs: Sequence[Atom]) -> Pushed:
    """The results and tangents of a graph of (outputs, tangents of the inexact outputs)."""
    rest = iter(results[len(outputs) :])
    return results[: len(outputs)], [
        next(rest) if a.type.dtype in INEXACT else None for a in outputs
    ]


def to_front(xs: Values, axes: Axes) -> list[Value]:
    return [x if a is None else x.move_axis(a, 0) for x, a in zip(xs, axes, strict=True)]


def with_axis(xs: Values, axes: Axes, flags: Flags, size: int) -> list[Value]:
    """The values, with the axis in front where it should be."""
    fronted = zip(to_front(xs, axes), axes, flags, strict=True)
    return [
        x.spread((size, *x.shape), tuple(range(1, x.ndim + 1))) if a is None and flag else x
        for x, a, flag in fronted
    ]


def axes_of(flags: Flags) -> list[Axis]:
    return [0 if f else None for f in flags]


class OfGraph(GraphOp):
    """An operation that computes a graph, whatever other rules it has."""

    __slots__ = ()
    jaxpr: Graph

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.jaxpr(*arrays))


class Alike(Reversing):
    """An operation in reverse mode that computes what it did."""

    __slots__ = ()

    def infer(self, *types: ArrayType) -> Types:
        return self.plain().infer(*types)

    def reference(self, *arrays: Any) -> Any:
        return self.plain().reference(*arrays)


@final
@record
class Call(OfGraph):
    """A jitted function called from a traced one."""

    jaxpr: Graph
    title: str = "f"
    name = "jit"

    def params(self) -> dict[str, Any]:
        return {"jaxpr": self.jaxpr, "title": self.title}

    def reference(self, *arrays: Any) -> Any:
        return tuple(EXECUTOR[0](self, arrays) if EXECUTOR else self.jaxpr(*arrays))

    def of(self, graph: Graph) -> Call:
        return Call(graph, self.title)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        forward, backward, count = derive.vjp(self.jaxpr, wanted)
        return CallSaving(forward, backward, count, self.title)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        active, given, outputs = flags_of(ts), present(ts), self.jaxpr.outputs
        if not derive.apart:
            return with_tangents(
                Call(derive.jvp(self.jaxpr, active), self.title)(*xs, *given), outputs
            )
        forward, linear, _ = derive.linear(self.jaxpr, active)
        results = Call(forward, self.title)(*xs)
        found = Call(linear, self.title)(*results[len(outputs) :], *given)
        return results[: len(outputs)], scattered(found, inexact(outputs))

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        graph, flags = derive.batch(self.jaxpr, tuple(a is not None for a in axes), size)
        return Call(graph, self.title)(*to_front(xs, axes)), axes_of(flags)


def residuals_of(graph: Graph, count: int, ys: Values, xs: Values) -> list[Value]:
    """The last results of a graph; those that are inputs, or other results,
    are taken from there.
    """
    at = len(ys) - count
    known: dict[Atom, Value] = dict(zip(graph.outputs[:at], ys, strict=False))
    known.update(zip(graph.inputs, xs, strict=True))
    return [known.get(a, y) for a, y in zip(graph.outputs[at:], ys[at:], strict=True)]


@final
@record
class CallSaving(Reversing):
    """A call whose last results are residuals, read by `backward` with the
    cotangents of the others.
    """

    jaxpr: Graph
    backward: Graph
    residuals: int
    title: str = "f"
    name = "jit_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.backward)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.jaxpr, types)
        return types_of(self.jaxpr.outputs)

    def reference(self, *arrays: Any) -> Any:
        """Residuals that are inputs or results are not made once more."""
        graph, at = self.jaxpr, len(self.jaxpr.outputs) - self.residuals
        ends = {*graph.inputs, *graph.outputs[:at]}
        rest = [a for a in dict.fromkeys(graph.outputs[at:]) if a not in ends]
        short = Graph(graph.inputs, graph.eqns, (*graph.outputs[:at], *rest))
        found = Call(short, self.title).reference(*arrays)
        known: dict[Atom, Any] = dict(zip(short.outputs, found, strict=True))
        known.update(zip(graph.inputs, arrays, strict=True))
        return (*found[:at], *(known[a] for a in graph.outputs[at:]))

    def plain(self) -> Call:
        return Call(self.jaxpr, self.title)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        kept = residuals_of(self.jaxpr, self.residuals, ys, xs)
        found = Call(self.backward, self.title)(*kept, *filled(cts[:at], ys[:at]))
        return scattered(found, wanted)


@final
@record
class Checkpoint(OfGraph):
    """A call whose values are computed again for the derivative, but
    for those that the policy saves.
    """

    jaxpr: Graph
    policy: Rule = NOTHING
    prevent_cse: bool = True
    name = "checkpoint"

    def __post_init__(self) -> None:
        check(self.policy)

    def of(self, graph: Graph) -> Checkpoint:
        return Checkpoint(graph, self.policy, self.prevent_cse)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        forward, backward, count = derive.again(self.jaxpr, wanted, self.policy)
        return CheckpointSaving(forward, backward, count, self.policy, self.prevent_cse)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        graph, given, outputs = (
            derive.jvp(self.jaxpr, flags_of(ts)),
            present(ts),
            self.jaxpr.outputs,
        )
        if not derive.apart:
            return with_tangents(self.of(graph)(*xs, *given), outputs)
        again = without_dead_code(Graph(graph.inputs, graph.eqns, graph.outputs[len(outputs) :]))
        return self(*xs), scattered(
            Call(again, "checkpoint")(*Barrier()(*xs, *given)), inexact(outputs)
        )

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        graph, flags = derive.batch(self.jaxpr, tuple(a is not None for a in axes), size)
        return self.of(graph)(*to_front(xs, axes)), axes_of(flags)


def whole(forward: Graph, backward: Graph, residuals: int) -> Graph:
    """Forward and backward as one graph of (inputs, cotangents) to cotangents."""
    kept = forward.outputs[len(forward.outputs) - residuals :]
    names = dict(zip(backward.inputs, kept, strict=False))
    eqns = [renamed(names, e) for e in backward.eqns]
    made = {v for e in forward.eqns for v in e.outs}
    eqns = [e for e in eqns if made.isdisjoint(e.outs)]  # constants that both halves make
    outputs = rename(names, backward.outputs)
    return Graph((*forward.inputs, *backward.inputs[residuals:]), (*forward.eqns, *eqns), outputs)


@final
@record
class CheckpointSaving(Alike):
    """A checkpoint under differentiation: its last results are what is saved,
    and `backward` reads them.
    """

    jaxpr: Graph
    backward: Graph
    residuals: int
    policy: Rule = NOTHING
    prevent_cse: bool = True
    name = "checkpoint_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.backward)

    def plain(self) -> Checkpoint:
        return Checkpoint(self.jaxpr, self.policy, self.prevent_cse)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        read = [*residuals_of(self.jaxpr, self.residuals, ys, xs), *filled(cts[:at], ys[:at])]
        if self.prevent_cse:
            # tied to the cotangents: no pass merges this with the first computation
            read = Barrier()(*read)
        return scattered(Call(self.backward, "checkpoint")(*read), wanted)


@final
@record
class Cond(GraphOp):
    """One of several graphs of the same types, chosen by a scalar: False or 0 takes the first."""

    branches: tuple[Graph, ...]
    name = "cond"
    may_alias = False

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
        forward, backward, count, again = joined_halves(halves, len(self.branches[0].outputs))
        return CondSaving(forward, backward, count, again)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        active, given, outputs = flags_of(ts[1:]), present(ts[1:]), self.branches[0].outputs
        if not derive.apart:
            return with_tangents(
                Cond(tuple(derive.jvp(b, active) for b in self.branches))(*xs, *given), outputs
            )
        halves = [derive.linear(b, active) for b in self.branches]
        forward, linear, _, again = joined_halves(halves, len(outputs))
        results = Cond(forward)(*xs)
        ends = [*xs[1:], *results]
        read = [ends[i] for i in again]
        found = Cond(linear)(xs[0], *read, *results[len(outputs) :], *given)
        return results[: len(outputs)], scattered(found, inexact(outputs))

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        batched, operands = tuple(a is not None for a in axes[1:]), to_front(xs, axes)
        if axes[0] is not None:
            return self.selected(derive, operands, batched, size)
        found = [derive.batch(b, batched, size) for b in self.branches]
        some = tuple(map(any, zip(*(flags for _, flags in found), strict=True)))
        branches = tuple(
            g if flags == some else derive.batch(b, batched, size, some)[0]
            for b, (g, flags) in zip(self.branches, found, strict=True)
        )
        return Cond(branches)(*operands), axes_of(some)

    def selected(self, derive: Derive, operands: Values, batched: Flags, size: int) -> Batched:
        """The results of the branch that each element of the index
        names: all branches are computed.
        """
        index, rest = operands[0], operands[1:]
        outputs = self.branches[0].outputs
        same = passed_on(self.branches, batched)
        ys: list[Value] = []
        for branch, taken in zip(self.branches, masks(index, len(self.branches)), strict=True):
            shield, _ = shielded(branch, batched, (Call, Checkpoint))
            graph, _ = derive.batch(shield, (True, False, *batched), size, (True,) * len(outputs))
            found = derive.run(graph, [taken, taken.fold_or((0,)), *rest])
            pairs = zip(found, ys or found, strict=True)
            ys = [WHERE(taken.spread(y.shape, (0,)), y, before) if ys else y for y, before in pairs]
        ys = [y if k is None else rest[k] for y, k in zip(ys, same, strict=True)]
        return ys, axes_of(tuple(k is None for k in same))


def passed_on(branches: Sequence[Graph], batched: Flags) -> list[int | None]:
    """For each result the operand that every branch returns for it, if all elements share that."""
    places = [{v: i for i, v in enumerate(b.inputs) if not batched[i]} for b in branches]
    found = []
    for outputs in zip(*(b.outputs for b in branches), strict=True):
        each = {
            at.get(a) if isinstance(a, Var) else None for at, a in zip(places, outputs, strict=True)
        }
        found.append(each.pop() if len(each) == 1 else None)
    return found


def masks(index: Value, count: int) -> list[Value]:
    """Masks of where each branch is taken; an index outside is that of the nearest branch."""
    if count == 1:
        return [index.same(index)]
    if index.dtype == BOOL:
        return [index.same(False), index]
    return [index < 1, *(index.same(i) for i in range(1, count - 1)), index >= count - 1]


@final
@record
class CondSaving(Alike):
    """A cond whose last results are residuals.

    `backward` reads those numbered in `again` among operands and results, the
    residuals, and cotangents.
    """

    branches: tuple[Graph, ...]
    backward: tuple[Graph, ...]
    residuals: int
    again: Dims = ()
    name = "cond_saving"
    may_alias = False

    def graphs(self) -> tuple[Graph, ...]:
        return (*self.branches, *self.backward)

    def plain(self) -> Cond:
        return Cond(self.branches)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        at = len(ys) - self.residuals
        ends = [*xs[1:], *ys]
        read = [ends[i] for i in self.again]
        found = Cond(self.backward)(xs[0], *read, *ys[at:], *filled(cts[:at], ys[:at]))
        return [None, *scattered(found, wanted[1:])]


CALLS = (Call, CallSaving, Checkpoint, CheckpointSaving)  # their first graph is what they compute
CONTROL: tuple[type[GraphOp], ...] = (
    Call,
    CallSaving,
    Checkpoint,
    CheckpointSaving,
    Cond,
    CondSaving,
)
