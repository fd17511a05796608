"""Attention as an operation, its derivative, and what they become where a kernel serves them."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from ge2.base.config import config
from ge2.base.dtypes import FLOAT64, HALF
from ge2.base.gpu import has_tensor_cores
from ge2.base.record import record
from ge2.base.toolchain.detect import toolchain
from ge2.ir import (
    Axes,
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
    Values,
    Var,
    rename,
)
from ge2.ops.attention import graphs
from ge2.ops.attention.form import Finder, Form
from ge2.ops.attention.slopes import Reads
from ge2.ops.attention.tiling import refusal
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import EXP
from ge2.ops.graphs.control import Call, OfGraph, filled, scattered
from ge2.ops.shape import Reshape


class Plain(OfGraph):
    """An operation that every transform takes as the graph it holds."""

    __slots__ = ()
    jaxpr: Graph

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)

    def call(self) -> Call:
        return Call(self.jaxpr, "attention")

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return self.call().saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        return self.call().jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        return self.call().batch_with(derive, xs, axes, size)


@final
@record
class Attention(Plain):
    """softmax(f(q k)) v, whose meaning is the user's graph of it."""

    jaxpr: Graph
    name = "attention"

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        form = form_of(self.jaxpr)
        forward = graphs.saving(form, derive)
        return AttentionSaving(forward, self.jaxpr, graphs.backward(form, wanted, derive), wanted)


@final
@record
class AttentionSaving(Plain):
    """Attention and the logarithms of its sums, which its derivative reads; `jaxpr` computes both."""

    jaxpr: Graph
    plain: Graph
    backward: Graph
    wanted: Flags
    name = "attention_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.plain, self.backward)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        y, logs = ys
        (ct,) = filled(cts[:1], ys[:1])
        found = AttentionBackward(self.backward, self.plain, self.wanted)(*xs, logs, y, ct)
        return scattered(found, self.wanted)


@final
@record
class AttentionBackward(Plain):
    """The cotangents of the wanted inputs of attention, of its inputs, the logarithms of its sums,
    its result and the cotangent of that.
    """

    jaxpr: Graph
    plain: Graph
    wanted: Flags
    name = "attention_backward"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr, self.plain)


@final
@record
class FusedAttention(OfGraph):
    """Attention that is one kernel; `logs`: the logarithms of its sums are a result too.

    It is made after all derivatives, of what is already chosen for a GPU.
    """

    jaxpr: Graph
    plain: Graph
    logs: bool = False
    name = "fused_attention"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)


@final
@record
class FusedBackward(OfGraph):
    """The cotangents of queries, keys and values for each batch and head, in kernels: of the inputs of
    attention, the logarithms of its sums, the sum of each query, the result's cotangent, and the result.

    `slopes`: the derivative of scores, if they are more than products times a number, and `reads`,
    what else has cotangents (slopes.py).
    """

    jaxpr: Graph
    plain: Graph
    slopes: Graph | None = None
    reads: Reads = ()
    name = "fused_attention_backward"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.jaxpr,)


ATTENTION: tuple[type[Plain], ...] = (Attention, AttentionSaving, AttentionBackward)


@lru_cache(256)
def form_of(plain: Graph) -> Form:
    """The form of a graph that is attention."""
    forms = (form for form, *_ in Finder(plain).forms())
    return next(form for form in forms if form.plain.outputs == plain.outputs)


def targets() -> frozenset[str]:
    """The targets with kernels of attention that arrays of this process may be for."""
    found = {"cuda"} if has_tensor_cores() else set()
    native = config.executor == "c" and toolchain() is not None
    return frozenset(found | {"c"} if native else found)


def possible(graph: Graph) -> bool:
    """True of a graph that may have attention in it."""
    ops = [e.op for e in graph.eqns]
    return EXP in ops and sum(isinstance(op, DotGeneral) for op in ops) > 1


def has_attention(graph: Graph, calls: tuple[type[GraphOp], ...] = ()) -> bool:
    """True of a graph that has attention in it, found or not, or within calls of these kinds."""
    return possible(graph) or any(
        isinstance(e.op, ATTENTION)
        or (isinstance(e.op, calls) and has_attention(e.op.graphs()[0], calls))
        for e in graph.eqns
    )


def recognised(graph: Graph, wanted: frozenset[str]) -> Graph:
    """The graph with each attention in it as one equation, where the last of it was, if one of the
    targets may have a kernel of it.
    """
    if not possible(graph):
        return graph
    given, graph = graph, with_rows(graph)
    gone: set[int] = set()
    made: dict[Var, Eqn] = {}
    for form, numbers, inputs in Finder(graph).forms():
        if not form.plain.effect and fits(form, wanted):
            gone |= numbers
            (y,) = form.plain.outputs
            assert isinstance(y, Var)
            # the op's graph has names of its own
            made[y] = Eqn(Attention(renamed(form.plain)), inputs, (y,), form.dot.source)
    if not made:
        return given
    eqns = list[Eqn]()
    for n, e in enumerate(graph.eqns):
        if n not in gone:
            eqns.append(e)
        elif e.outs[0] in made:
            eqns.append(made[e.outs[0]])
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def with_rows(graph: Graph) -> Graph:
    """The graph in which queries that no axis counts, as a decoder has them, are rows of 1: products
    that scores may be made of have an axis for them, and lose it again after.
    """
    starts = Finder(graph).starts()
    if all(not e.outs or e.outs[0] not in starts or all(free_of(e)) for e in graph.eqns):
        return graph
    eqns = list[Eqn]()
    for e in graph.eqns:
        free = free_of(e) if e.outs and e.outs[0] in starts else ()
        eqns += [e] if all(free) or not any(free) else counted(e, free.index(()))
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def free_of(dot: Eqn) -> tuple[Dims, Dims]:
    assert isinstance(dot.op, DotGeneral)
    return dot.op.free(*(a.type for a in dot.inputs))


def counted(dot: Eqn, side: int) -> tuple[Eqn, ...]:
    """A product whose operand on one side has no free axis, by way of one in which that has 1 row."""
    inputs = list(dot.inputs)
    t = inputs[side].type
    row = Var(t.with_shape((*t.shape, 1)))
    inputs[side] = row
    product = Var(dot.op.infer(*(a.type for a in inputs))[0])
    return (
        Eqn(Reshape(row.type.shape), (dot.inputs[side],), (row,), dot.source),
        Eqn(dot.op, tuple(inputs), (product,), dot.source),
        Eqn(Reshape(dot.outs[0].type.shape), (product,), dot.outs, dot.source),
    )


def renamed(graph: Graph) -> Graph:
    """The graph with values of its own."""
    env = {v: Var(v.type) for v in graph.inputs}
    eqns = list[Eqn]()
    for e in graph.eqns:
        outs = tuple(Var(v.type) for v in e.outs)
        eqns.append(Eqn(e.op, rename(env, e.inputs), outs, e.source))
        env.update(zip(e.outs, outs, strict=True))
    return Graph(tuple(env[v] for v in graph.inputs), tuple(eqns), rename(env, graph.outputs))


def fits(form: Form, wanted: frozenset[str]) -> bool:
    """True of what a kernel of a target may serve, as far as types tell: half types on a GPU, float64
    in C, float32 on both, and features that a tile of rows holds.
    """
    dtype = form.queries.base.type.dtype
    served = {"c"} if dtype == FLOAT64 else {"cuda"} if dtype in HALF else {"c", "cuda"}
    return not wanted.isdisjoint(served) and not refusal(form)
