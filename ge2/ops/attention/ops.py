"""Attention as an operation, its derivative, and the layouts of their operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, final

from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF, has_tensor_cores
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.record import record
from ge2.ir import (
    Atom,
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
    anew,
    rename,
)
from ge2.ops.attention import FEATURE, graphs
from ge2.ops.attention.form import Chain, Finder, Form, made_of, masks_chosen, starts_of
from ge2.ops.attention.graphs import Reads
from ge2.ops.dot import DotGeneral, products_of_parts
from ge2.ops.elementwise import EXP
from ge2.ops.graphs.control import Call, OfGraph, filled, scattered
from ge2.ops.shape import BroadcastInDim, Reshape, Transpose

# -------- The layouts of the operands of attention: along batches, queries, keys and features, each
# with its stride.


Factors = list[tuple[int, int]]  # sizes and strides that make up an axis, the outermost first
WIDEST: Final = 256  # features of a head that kernels have tiles for
TYPES: Final = frozenset((BFLOAT16, FLOAT16, FLOAT32, FLOAT64))  # that kernels multiply
SUMS: Final = (4, 5)  # among the operands, those that are as the sums: they have no features
SEVERAL_WIDTHS: Final = "queries and keys are of another width than values"
MAPPED: Final = 3  # axes of batches, beside those of rows and features: a tensor map has five
Strides = Sequence[Dims]


@final
@record
class Batch:
    """An axis of batches: its size, and the stride of queries, keys, values, result, of what has the
    shape of the sums, of cotangents, and of what else is as the result along it.
    """

    size: int
    strides: Dims


@final
@record
class Tiling:
    """`rows`: the strides of queries, keys, values, result and sums from row to row. `width`: the features
    of a head, the most if queries and keys have others than values and the result: then `widths` has both.
    """

    queries: int
    keys: int
    width: int
    batches: tuple[Batch, ...]
    rows: Dims
    widths: tuple[int, int] | None = None

    def width_of(self, n: int) -> int:
        """The features of operand n: those of queries and keys, and their cotangents, come first of three."""
        return self.width if self.widths is None else self.widths[n not in (0, 1, 6, 7)]

    @property
    def columns(self) -> int:
        """The features that are multiplied, the last of which may be zeros."""
        return -(-self.width // 16) * 16

    @property
    def planes(self) -> int:
        """Tiles of 64 features side by side."""
        return -(-self.width // 64)

    @property
    def heads(self) -> int:
        """Batches and heads, all together."""
        return math.prod(b.size for b in self.batches)

    def unaligned(self, bytes_: int, size: int) -> str:
        """The reason why rows of elements of a size are no multiples of so many bytes; "" if they are."""
        some = max(1, bytes_ // size)
        if any(w % some for w in self.widths or (self.width,)):
            return f"heads are not a multiple of {some} features wide"
        apart = (*self.rows, *(s for b in self.batches for s in b.strides))
        lines = len(self.rows)
        if any(s % some for n, s in enumerate(apart) if n % lines not in SUMS):
            return f"rows are no multiples of {bytes_} bytes apart"
        return ""


def c_order(shape: Dims) -> Dims:
    """The strides of an array in C order."""
    return tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))


def refusal(form: Form) -> str:
    """The reason why no kernel serves attention of these types; "" if one may."""
    dtypes = {c.base.type.dtype for c in form.chains}
    y = form.plain.outputs[0].type
    if len(dtypes) != 1 or not dtypes <= TYPES or y.dtype not in dtypes:
        return "queries, keys, values and result are not of one half type, of float32 or of float64"
    strides = (*(c_order(c.base.type.shape) for c in form.chains), c_order(y.shape))
    found = tiling(form, strides)
    if isinstance(found, str):
        return found
    if found.widths is not None and y.dtype not in HALF:
        return SEVERAL_WIDTHS
    return found.unaligned(4, y.dtype.itemsize)


def tiling(
    form: Form,
    strides: Strides,
    sums: Strides = (),
    cotangents: Strides = (),
    results: Strides = (),
    sink: Dims | None = None,
) -> Tiling | str:
    """The layouts of operands that have these strides; or the reason why no kernel reads them so.
    `sums`: of further arrays, which have the shape of the sums; `cotangents`: of those of queries, keys and
    values for each batch and head; `results`: of more arrays that are as the result, which come last;
    `sink`: of what a sink is made of, the last of what is as the sums.
    """
    dot, values, shape = form.dot.op, form.values.op, form.product.type.shape
    assert isinstance(dot, DotGeneral) and isinstance(values, DotGeneral)
    parts = [factors(c, s) for c, s in zip(form.chains, strides, strict=False)]
    axes = product_axes(form)
    y_shape = form.plain.outputs[0].type.shape
    ys = [split(y_shape, s) for s in (strides[3], *results)]
    pairs = zip((*axes, *(form.result for _ in ys)), (*parts, *ys), strict=True)
    found = [dict(zip(a, p, strict=True)) for a, p in pairs]
    batch, row, key = form.batch, form.row, form.key
    lines = [dict(zip((*batch, row), split(form.sums, s), strict=True)) for s in sums]
    if sink is not None and form.sink is not None and form.sunk is not None:
        lines.append(dict(zip(form.sink.dims, factors(form.sunk, sink), strict=True)))
    order = row, key, key, row
    backs = []
    for line, s in zip(order, cotangents, strict=False):
        their = (*batch, line)
        back = split(tuple(shape[a] for a in their), s[:-1])
        backs.append(dict(zip(their, back, strict=True)))
    if any(len(p) > 1 for f in (*found, *lines) for a, p in f.items() if a in (*order, FEATURE)):
        return "its rows or features are several axes"
    widths = [f.get(FEATURE, []) for f in found]
    if any(len(w) != 1 or w[0][1] != 1 for w in widths):
        return "features are not side by side"
    own, others = (tuple({w[0][0] for w in some}) for some in (widths[:2], widths[2:]))
    if len(own) > 1 or len(others) > 1 or (width := max(own + others)) > WIDEST:
        return f"heads are more than {WIDEST} features wide, or of several widths"
    everything = (*found[:4], *lines, *backs, *found[4:])
    batches = merged(
        [b for a in batch for b in refined(shape[a], [f.get(a, []) for f in everything])]
    )
    if key in found[0] or row in found[1]:
        return "queries depend on keys"
    rows = tuple(step(f.get(a, [])) for f, a in zip(found[:4], order, strict=True))
    if any(s < 0 for s in (*rows, *(s for b in batches for s in b.strides[:4]))):
        return "an operand has no strides along axes that others have"
    rows += tuple(step(f.get(row, [])) for f in lines)
    rows += tuple(step(f.get(a, [])) for f, a in zip(backs, order, strict=False))
    rows += tuple(step(f.get(row, [])) for f in found[4:])
    both = None if own == others else (own[0], others[0])
    return Tiling(shape[row], shape[key], width, tuple(batches), rows, both)


def split(shape: Dims, strides: Dims) -> list[Factors]:
    """The axes of an array as factors."""
    return [[(n, s)] if n > 1 else [] for n, s in zip(shape, strides, strict=True)]


def step(part: Factors) -> int:
    return part[0][1] if part else 0


def product_axes(form: Form) -> tuple[Dims, Dims, Dims]:
    """The axis of the scores that each axis of queries, keys and values is, or FEATURE."""
    dot, values = form.dot.op, form.values.op
    assert isinstance(dot, DotGeneral) and isinstance(values, DotGeneral)
    types = [a.type for a in form.dot.inputs]
    free, beside = dot.free(*types), len(dot.beside[0])
    found = []
    for side in (form.query, 1 - form.query):
        axes = [FEATURE] * types[side].ndim
        for n, a in enumerate(dot.beside[side]):
            axes[a] = n
        first = beside + (len(free[0]) if side else 0)
        for n, a in enumerate(free[side]):
            axes[a] = first + n
        found.append(tuple(axes))
    other = 1 - form.side
    axes = [FEATURE] * form.values.inputs[other].type.ndim
    pairs = (*zip(values.contract[other], values.contract[form.side], strict=True),)
    pairs += (*zip(values.beside[other], values.beside[form.side], strict=True),)
    for mine, theirs in pairs:
        axes[mine] = form.weights[theirs]
    return found[0], found[1], tuple(axes)


def factors(chain: Chain, strides: Dims) -> list[Factors]:
    """The axes of an operand, in terms of the array that it is made of."""
    parts = split(chain.base.type.shape, strides)
    for e in chain.eqns:
        op = e.op
        if isinstance(op, Transpose):
            parts = [parts[a] for a in op.order]
        elif isinstance(op, BroadcastInDim):
            new: list[Factors] = [[(n, 0)] if n > 1 else [] for n in op.shape]
            for d, part in zip(op.dims, parts, strict=True):
                new[d] = part
            parts = new
        elif isinstance(op, Reshape):
            parts = regrouped([f for part in parts for f in part], op.shape)
    return [joined(part) for part in parts]


def joined(part: Factors) -> Factors:
    """Factors of one axis, where those that lie one after another are one.

    >>> joined([(4, 0), (32, 2), (2, 1)])
    [(4, 0), (64, 1)]
    """
    found = Factors()
    for n, stride in part:
        if found and found[-1][1] == n * stride:
            found[-1] = (found[-1][0] * n, stride)
        else:
            found.append((n, stride))
    return found


def regrouped(flat: Factors, shape: Dims) -> list[Factors]:
    """Factors in C order as those of the axes of another shape.

    >>> regrouped([(2, 12), (3, 0), (4, 1)], (6, 2, 2))
    [[(2, 12), (3, 0)], [(2, 2)], [(2, 1)]]
    """
    rest, found = list(flat), list[Factors]()
    for n in shape:
        part, left = Factors(), n
        while left > 1:
            size, stride = rest.pop(0)
            take = math.gcd(size, left)
            if take != size:
                rest.insert(0, (size // take, stride))
            part.append((take, stride * (size // take)))
            if take == 1:  # axes that share no factor: no strides tell where elements are
                return [[(n, -1), (1, -1)] for n in shape]
            left //= take
        found.append(part)
    return found


def refined(size: int, parts: Sequence[Factors]) -> list[Batch]:
    """One axis of several operands, each in factors of its own, in factors that all have."""
    rest = [list(p) or [(size, 0)] for p in parts]
    found, left = list[Batch](), size
    while left > 1:
        # the innermost first
        take = math.gcd(*(p[-1][0] for p in rest))
        if take == 1:
            take = left
            found.append(Batch(take, tuple(-1 for _ in rest)))
            break
        found.append(Batch(take, tuple(p[-1][1] for p in rest)))
        for p in rest:
            n, stride = p.pop()
            if n > take:
                p.append((n // take, stride * take))
        left //= take
    return found[::-1]


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """Axes that all operands treat as one, as one."""
    found: list[Batch] = []
    for b in batches:
        if found and all(
            o == i * b.size for o, i in zip(found[-1].strides, b.strides, strict=True)
        ):
            found[-1] = Batch(found[-1].size * b.size, b.strides)
        else:
            found.append(b)
    return found


# -------- Attention as an operation, its derivative, and what they become where a kernel serves
# them.


class Plain(OfGraph):
    """An operation that every transform takes as the graph it holds."""

    __slots__ = ()
    jaxpr: Graph

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


@final
@record
class FusedBackward(OfGraph):
    """The cotangents of queries, keys and values for each batch and head, in kernels: of the inputs of
    attention, the logarithms of its sums, the sum of each query, the result's cotangent, and the result.

    `slopes`: the derivative of scores, if they are more than products times a number, and `reads`,
    what else has cotangents (graphs.py).
    """

    jaxpr: Graph
    plain: Graph
    slopes: Graph | None = None
    reads: Reads = ()
    name = "fused_attention_backward"


def with_features(op: FusedAttention | FusedBackward) -> tuple[int, ...]:
    """The operands of queries, keys and values; and of a derivative the result and its cotangent."""
    form = form_of(op.plain)
    inputs = form.plain.inputs
    bases = tuple(inputs.index(c.base) for c in form.chains)
    return bases if isinstance(op, FusedAttention) else (*bases, len(inputs) + 2, len(inputs) + 3)


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


def recognised(graph: Graph, wanted: frozenset[str], apart: bool = True) -> Graph:
    """The graph with each attention in it as one equation, where the last of it was, if one of the
    targets may have a kernel of it. `apart`: weights may be sums and parts of those of several.
    """
    if not possible(graph):
        return graph
    given, starts = graph, starts_of(graph)
    graph = graphs.logits_apart(graph, starts)
    graph = masks_chosen(graph, made_of(graph, starts))
    weights, whole = made_of(graph, starts), set[Var]()
    while True:  # without parts of which some are no attention
        some, parts = products_of_parts(graph, weights if apart else set(), whole)
        eqns, made, gone = parts_recognised(with_rows(some), wanted)
        if not made:
            return given
        found = {v for n in gone for v in eqns[n].outs}
        if not (left := {y for y, leaves in parts.items() if not found.issuperset(leaves)}):
            break
        whole |= left
    kept = (made.get(e.outs[0]) if n in gone else e for n, e in enumerate(eqns))
    eqns = tuple(e for e in kept if e is not None)
    return Graph(graph.inputs, eqns, graph.outputs, graph.consts)


def parts_recognised(
    graph: Graph, wanted: frozenset[str]
) -> tuple[tuple[Eqn, ...], dict[Var, Eqn], set[int]]:
    """The equations of a graph, those that each attention is, by its result, and the numbers of all in them."""
    gone: set[int] = set()
    made: dict[Var, Eqn] = {}
    for form, numbers, inputs in Finder(graph).forms():
        if not form.plain.effect and fits(form, wanted):
            gone |= numbers
            (y,) = form.plain.outputs
            assert isinstance(y, Var)
            # the op's graph has names of its own
            made[y] = Eqn(Attention(renamed(form.plain)), inputs, (y,), form.dot.source)
    return graph.eqns, made, gone


def with_rows(graph: Graph) -> Graph:
    """The graph in which queries that no axis counts, as a decoder has them, are rows of 1: products
    that scores may be made of have an axis for them, and lose it again after.
    """
    starts = starts_of(graph)
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
    inputs = tuple(Var(v.type) for v in graph.inputs)
    env: dict[Var, Atom] = dict(zip(graph.inputs, inputs, strict=True))
    eqns = tuple([anew(env, e) for e in graph.eqns])
    return Graph(inputs, eqns, rename(env, graph.outputs))


def fits(form: Form, wanted: frozenset[str]) -> bool:
    """True of what a kernel of a target may serve, as far as types tell: half types on a GPU, float64
    in C, float32 on both, and features that a tile of rows holds.
    """
    dtype = form.queries.base.type.dtype
    served = {"c"} if dtype == FLOAT64 else {"cuda"} if dtype in HALF else {"c", "cuda"}
    return not wanted.isdisjoint(served) and not refusal(form)
