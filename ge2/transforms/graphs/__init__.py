"""Transforms of graphs: vjp, jvp, vmap, and the arrays and graphs that their rules read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ge2.base.arrays import INEXACT, python_type
from ge2.base.config import config
from ge2.base.errors import Ge2Error, NoRuleError, TypeRuleError, VerifyError
from ge2.base.record import collector_paused, outlines, record
from ge2.base.source import here
from ge2.ir import (
    ArrayType,
    Atom,
    Axes,
    Axis,
    Dims,
    Eqn,
    Flags,
    Graph,
    Literal,
    Op,
    Var,
    current,
    lines_of,
    rename,
    renamed,
    type_of,
)
from ge2.ir.graph import Derive, GraphOp
from ge2.ops.attention.ops import possible, recognised, targets
from ge2.ops.graphs.control import Call, Rule, inlined
from ge2.ops.shape import BroadcastInDim, Constant
from ge2.trace import Closed, Trace, Tracer, finish, is_traced, retrace, run, stage, tidy
from ge2.trace.stage import Input
from ge2.transforms.graphs.partition import obeying, partition, smooth, split

# -------- Arrays that a rule reads or makes become part of the graph: they are no inputs of any
# function.


LARGEST = 1 << 20  # bytes


def embedded(closed: Closed, what: str) -> Graph:
    """The graph, captured arrays as constants in it; NoRuleError for traced
    values and large arrays.
    """
    graph = closed.graph
    if not closed.captured:
        return graph
    eqns = []
    for var, x in zip(graph.inputs, closed.captured, strict=False):
        t = type_of(x)
        if is_traced(x):
            why = f"{what} reads a traced value ({t}) from around it, which it was not given"
            raise NoRuleError(why, where=here(), fix="pass it as an argument of the function")
        if t.nbytes > LARGEST:
            why = f"{what} reads an array of {t.nbytes >> 20} MB ({t}) that it was not given"
            raise NoRuleError(why, where=here(), fix="pass it as an argument of the function")
        same = x.size and x.tobytes() == x.ravel()[:1].tobytes() * x.size
        if same:
            eqns.append(Eqn(BroadcastInDim(t.shape, ()), (Literal.of(x.ravel()[0]),), (var,)))
        else:
            eqns.append(Eqn(Constant.of(x), (), (var,)))
    return Graph(graph.inputs[len(eqns) :], (*eqns, *graph.eqns), graph.outputs)


# -------- The transforms of graphs: each walks the equations and asks the rules of their
# operations.


# ------------------------------------------------------------------------------------- rule errors
# An error of a rule names the line of the user's program that the equation came from.


ENTRIES = {
    "vjp": "a list with a cotangent, or None for zero, for each operand",
    "jvp": "a list with a tangent, or None for zero, for each result",
    "batch": "the results, and where each has the new axis: [y], [0]",
}


class blamed:
    """A context in which the rules of an equation run."""

    __slots__ = ("eqn",)

    def __init__(self, eqn: Eqn) -> None:
        self.eqn = eqn

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        place = self.eqn.source or here()
        if isinstance(error, Ge2Error) and not isinstance(error, VerifyError) and place is not None:
            head, *rest = str(error).split("\n")
            if not any(line.startswith("  at   ") for line in rest):
                error.args = ("\n".join([head, f"  at   {place}", *rest]),)


def entries(found: Any, count: int, op: Op, rule: str) -> Any:
    """The result of a rule, if it has an entry for each of so many."""
    if isinstance(found, list | tuple) and len(found) == count:
        return found
    got = str(len(found)) if isinstance(found, list | tuple) else f"a {type(found).__name__}"
    what = f"{rule} of {op.name} is to return a list of {count}; it returned {got}"
    raise TypeRuleError(what, fix=ENTRIES[rule])


# ------------------------------------------------------------------------------------------- zeros
# Zeros of a type, and the zero that stands for the derivative by an integer.


# the dtype of the derivative by an integer: it has no bytes
float0 = np.dtype([("float0", np.void, 0)])


def zero(t: ArrayType) -> Any:
    """Zeros of the type, in the current meaning; a Python number if it is weak."""
    return python_type(t.dtype)(0) if t.weak else BroadcastInDim(t.shape, ())(t.dtype.type(0))


def empty(shape: Dims) -> Any:
    return np.zeros(shape, float0)


def is_float0(x: Any) -> bool:
    return getattr(x, "dtype", None) == float0


# --------------------------------------------------------------------------------------------- vjp
# Reverse-mode differentiation, from graph to one joint graph of values and cotangents.


@collector_paused
def vjp_graph(
    graph: Graph, wanted: Flags, derive: Derive, given: Flags | None = None, unit: bool = False
) -> Graph:
    """The graph of (inputs, cotangents of the given outputs) to (outputs,
    cotangents of the wanted inputs).

    Unless `given` says otherwise, a cotangent is given for every inexact output. With `unit` those
    given are 1, known beforehand, and no inputs.
    """
    given = tuple(a.type.dtype in INEXACT for a in graph.outputs) if given is None else given
    graph = tidy(smooth(graph))
    graph, trace = fused(graph) if derive.fuses else graph, Trace("a derivative")
    with trace:
        active = active_values(graph, wanted) & needed_values(graph, given)
        known: Known = {}
        saved = [with_residuals(trace, e, active, derive, known) for e in graph.eqns]
        trace.eqns = list(saved)
        cts = Cotangents(trace)
        seeds = [
            cts.seed(out, unit)
            for out, is_given in zip(graph.outputs, given, strict=True)
            if is_given
        ]
        for eqn in reversed(saved):
            if any(v in cts.found for v in eqn.outs):
                pull_back(trace, eqn, cts, active)
        trace.source = None
        grads = [cts.get(v).atom for v, w in zip(graph.inputs, wanted, strict=True) if w]
    inputs = (*graph.inputs, *(s for s in seeds if isinstance(s, Var)))
    closed = finish(trace, inputs, (*graph.outputs, *grads))
    graph = embedded(closed, "a derivative rule")
    return tidy(graph)


def fused(graph: Graph) -> Graph:
    """The graph with attention as one operation, whose derivative is by rule, where a GPU, or C, may
    have kernels for both. What is evaluated at once, outside of a trace, has no kernels in C.
    """
    wanted = "attention" not in config.passes_off and possible(graph)
    if not wanted:
        return graph
    later = isinstance(current(), Trace)
    return recognised(graph, targets() if later else targets() - {"c"})


Known = dict[tuple[object, ...], Op | None]  # None: what it was


def active_values(graph: Graph, wanted: Flags) -> set[Atom]:
    """The values that depend on a wanted input in a way that has a derivative."""
    active: set[Atom] = {
        v for v, w in zip(graph.inputs, wanted, strict=True) if w and v.type.dtype in INEXACT
    }
    for eqn in graph.eqns:
        if not active.isdisjoint(eqn.inputs) and eqn.op.name != "stop_gradient":
            active.update(v for v in eqn.outs if v.type.dtype in INEXACT)
    return active


def needed_values(graph: Graph, given: Flags) -> set[Atom]:
    """The values that a cotangent of a given output flows through; what it
    never reaches needs no rule.
    """
    needed: set[Atom] = {a for a, is_given in zip(graph.outputs, given, strict=True) if is_given}
    for eqn in reversed(graph.eqns):
        if eqn.op.name != "stop_gradient" and any(
            v in needed and v.type.dtype in INEXACT for v in eqn.outs
        ):
            needed.update(eqn.inputs)
    return needed


def with_residuals(trace: Trace, eqn: Eqn, active: set[Atom], derive: Derive, known: Known) -> Eqn:
    """The equation, also yielding what its derivative reads; equal ones of equal lines, as the layers
    of a network have, have that worked out once.
    """
    if not isinstance(eqn.op, GraphOp) or active.isdisjoint(eqn.outs):
        return eqn
    wanted = tuple([a in active for a in eqn.inputs])
    key = eqn.op, wanted, lines_of(eqn), tuple(map(id, uncompared(eqn.op)))
    if key not in known:
        trace.source = eqn.source
        with blamed(eqn):
            op: Op = eqn.op.saving(wanted, derive)
        known[key] = None if op is eqn.op else op
    found = known[key]
    if found is None:
        return eqn
    types = found.infer(*(a.type for a in eqn.inputs))
    more = [Var(t) for t in types[len(eqn.outs) :]]
    return Eqn(found, eqn.inputs, (*eqn.outs, *more), eqn.source)


def uncompared(op: Op) -> Iterator[object]:
    """The fields that comparison leaves out, of an operation and of those in its graphs: rules in Python."""
    if isinstance(op, GraphOp):
        yield from (getattr(op, f.name) for f in outlines(type(op)) if not f.compared)
        yield from (x for g in op.graphs() for eqn in g.eqns for x in uncompared(eqn.op))


def pull_back(trace: Trace, eqn: Eqn, cts: Cotangents, active: set[Atom]) -> None:
    """Adds to the cotangents of the inputs what those of the results give them."""
    wanted = tuple([a in active for a in eqn.inputs])
    if not any(wanted):
        return
    trace.source = eqn.source
    ys = [Tracer(trace, v) for v in eqn.outs]
    xs = [Tracer(trace, a) for a in eqn.inputs]
    given = [cts.pop(v) for v in eqn.outs]
    with blamed(eqn):
        found = entries(eqn.op.vjp(given, ys, xs, wanted), len(xs), eqn.op, "vjp")
    for atom, ct, want in zip(eqn.inputs, found, wanted, strict=True):
        if want and ct is not None:
            cts.add(atom, trace.lift(ct), eqn)


class Cotangents:
    """The sums of the cotangents found so far."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.found: dict[Any, Any] = {}

    def seed(self, out: Atom, unit: bool) -> Atom:
        """The cotangent that the derivative begins with."""
        t = out.type
        atom: Atom = (
            Literal(python_type(t.dtype)(1) if t.weak else t.dtype.type(1), t) if unit else Var(t)
        )
        self.add(out, Tracer(self.trace, atom))
        return atom

    def add(self, atom: Atom, ct: Any, eqn: Eqn | None = None) -> None:
        t = ct.type
        if t != atom.type:
            if t.shape != atom.type.shape or t.dtype != atom.type.dtype:
                raise VerifyError(
                    f"the derivative of {eqn and eqn.op} gives {t} for {atom.type}",
                    where=eqn and eqn.source,
                )
            if not atom.type.weak:  # a Python number once all is added, which a loop cannot make
                ct = ct.cast(t.dtype, False)
        if isinstance(atom, Var):
            before = self.found.get(atom)
            self.found[atom] = ct if before is None else before + ct

    def pop(self, var: Var) -> Any:
        """The cotangent of a value, to which nothing is added any more; None for zero."""
        ct = self.found.pop(var, None)
        return ct if ct is None or ct.type.weak == var.type.weak else ct.cast(ct.type.dtype, True)

    def get(self, var: Var) -> Any:
        ct = self.pop(var)
        return self.trace.lift(zero(var.type)) if ct is None else ct


# --------------------------------------------------------------------------------------------- jvp
# Forward-mode differentiation, from graph to the graph of values and tangents.


@collector_paused
def jvp_graph(graph: Graph, active: Flags, derive: Derive) -> Graph:
    """The graph of (inputs, tangents of the active ones) to (outputs, tangents
    of the inexact outputs).
    """
    graph, trace = smooth(graph), Trace("a derivative")
    with trace:
        ts: dict[Any, Any] = {}
        seeds = []
        for v, is_active in zip(graph.inputs, active, strict=True):
            if is_active:
                seeds.append(Var(v.type))
                ts[v] = Tracer(trace, seeds[-1])
        env: dict[Var, Atom] = {}
        for eqn in graph.eqns:
            push_forward(trace, eqn, env, ts, derive)
        trace.source = None
        outputs = rename(env, graph.outputs)
        tangents = [
            tangent(trace, ts, out).atom for out in graph.outputs if out.type.dtype in INEXACT
        ]
    closed = finish(trace, (*graph.inputs, *seeds), (*outputs, *tangents))
    graph = embedded(closed, "a derivative rule")
    return tidy(graph)


def tangent(trace: Trace, ts: dict[Any, Any], out: Atom) -> Any:
    t = None if isinstance(out, Literal) else ts.get(out)
    if t is None:
        return trace.lift(zero(out.type))
    return t


def push_forward(
    trace: Trace, eqn: Eqn, env: dict[Var, Atom], ts: dict[Any, Any], derive: Derive
) -> None:
    """Records the equation, then the tangents of its results."""
    inputs = rename(env, eqn.inputs)
    incoming = [ts.get(a) if isinstance(a, Var) else None for a in eqn.inputs]
    inexact = [v.type.dtype in INEXACT for v in eqn.outs]
    if all(t is None for t in incoming) or not any(inexact) or eqn.op.name == "stop_gradient":
        trace.eqns.append(
            eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
        )
        return
    trace.source = eqn.source
    xs = [Tracer(trace, a) for a in inputs]
    with blamed(eqn):
        if isinstance(eqn.op, GraphOp):
            ys, found = eqn.op.jvp_with(derive, incoming, xs)
            env.update((v, y.atom) for v, y in zip(eqn.outs, ys, strict=True))  # type: ignore[attr-defined]
        else:
            trace.eqns.append(Eqn(eqn.op, inputs, eqn.outs, eqn.source))
            found = pushed(eqn.op, incoming, [Tracer(trace, v) for v in eqn.outs], xs, derive)
    for var, t, real in zip(eqn.outs, found, inexact, strict=True):
        if t is not None and real:
            t = trace.lift(t)
            ts[var] = t if t.type == var.type else conformed(t, var, eqn)


def conformed(t: Any, var: Var, eqn: Eqn) -> Any:
    """A tangent as its value's type, from which it may differ in being a Python number."""
    if t.type.shape != var.type.shape or t.type.dtype != var.type.dtype:
        raise VerifyError(
            f"the forward derivative of {eqn.op} gives {t.type} for {var.type}", where=eqn.source
        )
    return t.cast(var.type.dtype, var.type.weak)


def pushed(
    op: Op, ts: Sequence[Any], ys: Sequence[Any], xs: Sequence[Any], derive: Derive
) -> Sequence[Any]:
    """The tangents of the results: by the rule, by linearity, or by
    transposing the reverse rule.
    """
    if type(op).jvp is not Op.jvp:
        found: Sequence[Any] = entries(op.jvp(ts, ys, xs), len(ys), op, "jvp")
        return found
    if op.linear:
        out = op(*(tangent_or_zero(t, x) for t, x in zip(ts, xs, strict=True)))
        return out if op.several else (out,)
    return transposed(op, ts, ys, xs, derive)


def tangent_or_zero(t: Any, x: Any) -> Any:
    """The operand of a linear operation; its integers (indices, masks) stay as they are."""
    if t is not None:
        return t
    return zero(x.type) if x.type.dtype in INEXACT else x


def transposed(
    op: Op, ts: Sequence[Any], ys: Sequence[Any], xs: Sequence[Any], derive: Derive
) -> Sequence[Any]:
    """The reverse rule maps cotangents linearly to cotangents; its transpose
    maps tangents to tangents.
    """
    wanted = tuple(t is not None for t in ts)
    inexact = [y.type.dtype in INEXACT for y in ys]

    def reverse(*args: Any) -> list[Any]:
        n, m = len(xs), len(ys)
        given = iter(args[n + m :])
        cts = [next(given) if real else None for real in inexact]
        found = entries(op.vjp(cts, args[n : n + m], args[:n], wanted), n, op, "vjp")
        return [
            zero(args[i].type) if ct is None else ct
            for i, (ct, w) in enumerate(zip(found, wanted, strict=True))
            if w
        ]

    real_ys = [y for y, real in zip(ys, inexact, strict=True) if real]
    types = [v.type for v in (*xs, *ys, *real_ys)]
    title = f"the derivative of {op.name}"
    graph = embedded(stage(reverse, [Input(t) for t in types], title), title)
    linear_in = (False,) * (len(xs) + len(ys)) + (True,) * len(real_ys)
    joint = vjp_graph(graph, linear_in, derive)
    results = run(
        joint, [*xs, *ys, *(zero(y.type) for y in real_ys), *(t for t in ts if t is not None)]
    )
    found = iter(results[len(graph.outputs) :])
    return [next(found) if real else None for real in inexact]


# -------------------------------------------------------------------------------------------- vmap
# Vectorization, from graph to graph.


@collector_paused
def vmap_graph(
    graph: Graph, axes: Axes, size: int, derive: Derive, out: Flags | None = None
) -> tuple[Graph, Flags]:
    """The graph over one more axis, which is at `axes` in the inputs and
    first in the outputs that have it.

    The second result says which outputs those are; `out` forces the axis on some.
    """
    trace = Trace("a batch")
    with trace:
        inputs = [Var(grown(v, a, size)) for v, a in zip(graph.inputs, axes, strict=True)]
        env: dict[Var, tuple[Any, int]] = {}
        names: dict[Var, Atom] = {}
        for old, new, axis in zip(graph.inputs, inputs, axes, strict=True):
            names[old] = new
            if axis is not None:
                env[old] = (Tracer(trace, new), axis)
        for eqn in graph.eqns:
            batch_equation(trace, eqn, env, names, size, derive)
        trace.source = None
        has_axis = tuple(a in env or bool(out and out[i]) for i, a in enumerate(graph.outputs))
        results = [
            to_front(trace, env, names, a, size) if has else rename(names, (a,))[0]
            for a, has in zip(graph.outputs, has_axis, strict=True)
        ]
    closed = finish(trace, inputs, results)
    graph = embedded(closed, "a batching rule")
    return tidy(graph), has_axis


def grown(v: Var, axis: Axis, size: int) -> Any:
    return (
        v.type
        if axis is None
        else v.type.with_shape((*v.type.shape[:axis], size, *v.type.shape[axis:]))
    )


def batch_equation(
    trace: Trace,
    eqn: Eqn,
    env: dict[Var, tuple[Any, int]],
    names: dict[Var, Atom],
    size: int,
    derive: Derive,
) -> None:
    if not any(a in env for a in eqn.inputs):
        trace.eqns.append(renamed(names, eqn))
        return
    trace.source = eqn.source
    xs: list[Any] = []
    axes: list[Axis] = []
    for old, new in zip(eqn.inputs, rename(names, eqn.inputs), strict=True):
        x, axis = env[old] if type(old) is Var and old in env else (Tracer(trace, new), None)
        xs.append(x)
        axes.append(axis)
    op = eqn.op
    with blamed(eqn):
        ys, found = entries(
            op.batch_with(derive, xs, axes, size) if isinstance(op, GraphOp) else op.batch(xs, axes, size),
            2, op, "batch",
        )  # fmt: skip
        for each in (ys, found):
            entries(each, len(eqn.outs), op, "batch")
    for var, y, axis in zip(eqn.outs, ys, found, strict=True):
        if axis is None:
            names[var] = trace.atom(y)
        else:
            env[var] = (trace.lift(y), axis)


def to_front(
    trace: Trace, env: dict[Var, tuple[Any, int]], names: dict[Var, Atom], atom: Atom, size: int
) -> Atom:
    if isinstance(atom, Var) and atom in env:
        y, axis = env[atom]
        return y.move_axis(axis, 0).atom  # type: ignore[no-any-return]
    y = Tracer(trace, rename(names, (atom,))[0])
    return y.spread((size, *y.shape), tuple(range(1, y.ndim + 1))).atom  # type: ignore[no-any-return]


# -------- Derivatives and batches of graphs, as the rules of operations that hold graphs are given
# them.


@record
class Deriving:
    """The `Derive` of `ir.op`. `fuses`: attention is found, and has a derivative by rule."""

    apart: bool = False
    fuses: bool = True

    def vjp(
        self, graph: Graph, wanted: Flags, held: Flags | None = None
    ) -> tuple[Graph, Graph, int]:
        return partition(
            vjp_graph(graph, wanted, self), len(graph.inputs), len(graph.outputs), held
        )

    def again(self, graph: Graph, wanted: Flags, rule: Rule) -> tuple[Graph, Graph, int]:
        joint = inlined(vjp_graph(inlined(graph, (Call,)), wanted, self), (Call,))
        return obeying(joint, len(graph.inputs), len(graph.outputs), rule)

    def jvp(self, graph: Graph, active: Flags) -> Graph:
        return jvp_graph(graph, active, self)

    def linear(self, graph: Graph, active: Flags) -> tuple[Graph, Graph, int]:
        return split(jvp_graph(graph, active, APART), len(graph.inputs), len(graph.outputs))

    def batch(
        self, graph: Graph, batched: Flags, size: int, out: Flags | None = None
    ) -> tuple[Graph, Flags]:
        return vmap_graph(graph, tuple(0 if b else None for b in batched), size, self, out)

    def trace(self, f: Callable[..., Sequence[Any]], types: Sequence[ArrayType]) -> Graph:
        return retrace(f, types)

    def run(self, graph: Graph, args: Sequence[Any]) -> list[Any]:
        return run(graph, args)

    def zeros(self, t: ArrayType) -> Any:
        return zero(t)


DERIVE, APART, PLAIN = Deriving(), Deriving(apart=True), Deriving(fuses=False)
