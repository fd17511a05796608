"""Rewrites that ask which kernel is chosen: attention, for which a program in C loads nothing of CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import AMPERE, accumulator
from ge2.base.config import config
from ge2.base.record import record
from ge2.choice import Problem, prefs
from ge2.choice.choose import Catalog, choose
from ge2.ir import (
    ArrayType,
    Atom,
    Derive,
    Dims,
    Eqn,
    Flags,
    Graph,
    Literal,
    Var,
    applied,
    lines_of,
    rename,
    renamed,
    without_dead_code,
)  # fmt: skip
from ge2.ops.attention import INT32, REPEATED, Band, Distances, graphs
from ge2.ops.attention.form import Form
from ge2.ops.attention.graphs import (
    Elementwise,
    Read,
    Reads,
    inputs_of,
    scores_dtype,
    wide,
)  # fmt: skip
from ge2.ops.attention.ops import (
    ATTENTION,
    Attention,
    AttentionBackward,
    AttentionSaving,
    FusedAttention,
    FusedBackward,
    form_of,
    product_axes,
    recognised,
)
from ge2.ops.attention.scores import (
    core_shapes,
    cotangent_of_read,
    folded,
    folded_type,
    in_parts,
    laid_out,
    scores_to_derive,
    way,
)
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, AND, LE, MUL, WHERE, ConvertElementType
from ge2.ops.graphs.control import Call, inlined, past_barriers, whole
from ge2.ops.graphs.region import readers_of
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Transpose
from ge2.passes.context import Context
from ge2.passes.fold import RULES, fold
from ge2.passes.simplify import CALLS, Sweep
from ge2.targets.c.kernels.attention import CApart, CAttention, CAttentionBackward
from ge2.targets.c.libraries import limits
from ge2.transforms.graphs import PLAIN

# -------- Attention where a kernel serves it: one step, in place of the user's equations of it.
# What was not differentiated is looked for here; what was, `vjp_graph` has found before. All that
# no kernel is chosen for stays, or becomes again, the graph that the user wrote (`inline`).


# what may be known of an array: a band that a mask is, distances, the number that it is everywhere
Given = Band | Distances | Literal
Made = Callable[..., Var]
# by what decides about an equation: the first such, and what became of it
Known = dict[tuple[object, ...], tuple[Eqn, tuple[Eqn, ...]]]
OTHERS: Final = tuple(kind for kind in CALLS if kind not in ATTENTION)


@final
@record
class Place:
    """A target, its limits, and the families that may serve attention there, the plain graph last."""

    target: str
    caps: Any
    catalog: Catalog

    def with_steps(self, graph: Graph, context: Context) -> Graph:
        """The graph with a kernel's step for each attention that one is chosen for."""
        given: dict[Atom, Given] = {
            graph.inputs[i]: x for i, x in context.iotas if not isinstance(x, int)
        }
        known: Known = {}
        eqns = tuple(made for e in graph.eqns for made in chosen_once(e, given, self, known))
        return Graph(graph.inputs, eqns, graph.outputs, graph.consts)

    def split_if_few_blocks(self, form: Form, read: Read) -> Read:
        """Returns how the cotangents of an input are summed: in several partial sums, if an array over
        queries and keys that many batches share would have too few blocks to fill a GPU.
        """
        if self.target != "cuda" or way(form, read) != "both":
            return read
        *batches, rows, keys = folded_type(form, read).shape
        tile, limits = self.caps.chip.tuning.attention.bias_tile, self.caps.limits
        blocks = math.prod(batches) * -(-rows // tile[0]) * -(-keys // tile[1])
        return in_parts(form, read, -(-2 * limits.multiprocessors // blocks))


def attention(graph: Graph, context: Context) -> Graph:
    """The graph with a kernel's step for each attention that one is chosen for."""
    found, where = graph, None if context.body else place(context)
    if where is not None:
        straight = Sweep(RULES).run(past_barriers(inlined(graph, OTHERS)))
        straight = with_factors(straight, context)
        found = where.with_steps(recognised(straight, frozenset((where.target,))), context)
        if any(isinstance(e.op, Attention) for e in found.eqns):  # products of parts would stay
            found = recognised(straight, frozenset((where.target,)), apart=False)
            found = where.with_steps(found, context)
    if not any(isinstance(e.op, (*ATTENTION, FusedAttention, FusedBackward)) for e in found.eqns):
        return graph
    return as_written(found)


def chosen_once(
    eqn: Eqn, given: Mapping[Atom, Given], where: Place, known: Known
) -> tuple[Eqn, ...]:
    """As `chosen`; for an equation like an earlier one, as layers of a network have, what became of that."""
    if not isinstance(eqn.op, ATTENTION):
        return (eqn,)
    places = {a: n for n, a in reversed([*enumerate(eqn.inputs)])}
    read = tuple((places[a] if isinstance(a, Var) else a, a.type) for a in eqn.inputs)
    key = eqn.op, read, tuple(map(given.get, eqn.inputs)), lines_of(eqn)
    if key not in known:
        known[key] = eqn, chosen(eqn, given, where)
        return known[key][1]
    first, found = known[key]
    env: dict[Atom, Atom] = dict(
        zip((*first.inputs, *first.outs), (*eqn.inputs, *eqn.outs), strict=True)
    )
    env.update((v, Var(v.type)) for e in found for v in e.outs if v not in env)
    return tuple(
        replace(e, inputs=rename(env, e.inputs), outs=rename(env, e.outs))  # type: ignore[arg-type]
        for e in found
    )


def place(context: Context) -> Place | None:
    """Returns the target, limits and families that serve attention in a graph; None if none do."""
    if context.caps is not None:
        return on_gpu(context.caps)
    if not context.gathers:
        return None
    caps = limits(config.thread_count())
    return Place("c", caps, (CAttention(), CAttentionBackward(), CApart()))


def on_gpu(limits: object) -> Place | None:
    # what programs in C need not load
    from ge2.targets.cuda.device import Caps
    from ge2.targets.cuda.kernels import attention as kernels
    from ge2.targets.cuda.kernels import libraries
    from ge2.targets.cuda.kernels.tensor_cores import Apart
    from ge2.targets.cuda.limits import Limits

    if not isinstance(limits, Limits) or limits.generation < AMPERE:
        return None
    families = (
        kernels.AttentionOfFew(), kernels.Attention(), libraries.CudnnAttention(),
        kernels.AttentionOfWarps(), libraries.CudnnBackwardInAnyOrder(), kernels.AttentionBackward(),
        libraries.CudnnBackward(), kernels.AttentionBackwardOfWarps(), Apart(),
    )  # fmt: skip
    return Place("cuda", Caps.before(limits), families)


def chosen(eqn: Eqn, given: Mapping[Atom, Given], where: Place) -> tuple[Eqn, ...]:
    """The step of a kernel, if one is chosen for the equation, and what is around it; `given`: values
    of which it is known what they are.
    """
    op = eqn.op
    if not isinstance(op, Attention | AttentionSaving | AttentionBackward):
        return (eqn,)
    known = known_of(op.jaxpr if isinstance(op, Attention) else op.plain, eqn.inputs, given)
    inputs = tuple(a for n, a in enumerate(eqn.inputs) if n not in known)
    if isinstance(op, AttentionBackward):
        return backward(replace(eqn, inputs=inputs), without_known(op.plain, known), known, where)
    jaxpr = without_known(op.jaxpr, known)
    plain = without_known(op.plain, known) if isinstance(op, AttentionSaving) else jaxpr
    fused = FusedAttention(jaxpr, plain, isinstance(op, AttentionSaving))
    one = with_choice(replace(eqn, op=fused, inputs=inputs), where)
    return (eqn,) if one is None else (one,)


def known_of(plain: Graph, inputs: Sequence[Atom], given: Mapping[Atom, Given]) -> dict[int, Given]:
    """Returns the known contents of the inputs of the score function, by their numbers; not those of
    queries, keys and values.
    """
    form = form_of(plain)
    mine = {*form.others, *form.scalars}
    pairs = enumerate(zip(form.plain.inputs, inputs, strict=False))
    return {n: given[a] for n, (v, a) in pairs if a in given and v in mine}


def without_known(graph: Graph, known: Mapping[int, Given]) -> Graph:
    """Returns the graph with its known inputs computed inside it, constants folded to literals."""
    found = with_known(graph, known)
    return fold(found) if any(isinstance(x, Literal) for x in known.values()) else found


def with_choice(eqn: Eqn, where: Place) -> Eqn | None:
    """The equation with the choice of its kernel; None if it has none."""
    choice = choose(Problem.of(eqn, where.target), where.caps, prefs(), where.catalog)
    return None if choice.family is where.catalog[-1] else replace(eqn, choice=choice)


def backward(eqn: Eqn, plain: Graph, known: Mapping[int, Given], where: Place) -> tuple[Eqn, ...]:
    """The step that computes cotangents, if kernels do, and what is around it; `plain`: without the
    inputs of which it is known what they are.
    """
    op = eqn.op
    assert isinstance(op, AttentionBackward)
    wanted = tuple(w for n, w in enumerate(op.wanted) if n not in known)
    form = form_of(plain)
    as_it_was = (replace(eqn, op=AttentionBackward(without_known(op.jaxpr, known), plain, wanted)),)
    if lacks_heads(form):
        plain = with_heads(form)
        form = form_of(plain)
    slopes: Graph | None = None
    reads: Reads = ()
    scores, flags = scores_to_derive(form), graphs.of_others(form, wanted)
    if scores is None and any(flags):
        return as_it_was
    if scores is not None:
        found = derivative(form, scores, flags, PLAIN)
        if found is None:
            return as_it_was
        slopes, reads = found[0], tuple(where.split_if_few_blocks(form, r) for r in found[1])
    *given, logs, y, ct = eqn.inputs
    before, after = around_core(form, wanted, PLAIN, reads)
    inner = core(form, PLAIN, slopes, reads)
    rows = Eqn(Call(before), (y, ct), (Var(before.outputs[0].type),), eqn.source)
    outs = tuple(Var(a.type) for a in inner.outputs)
    inputs = (*given, logs, rows.outs[0], ct, y)
    fused = FusedBackward(inner, plain, slopes, reads)
    one = with_choice(Eqn(fused, inputs, outs, eqn.source), where)
    if one is None:
        return as_it_was
    return rows, one, Eqn(Call(after), (*given, logs, *rows.outs, *outs), eqn.outs, eqn.source)


def as_written(graph: Graph) -> Graph:
    """The graph with the derivative of the user's equations where attention has no kernel, forward
    and backward being in it: what there would be, had nothing been recognised.
    """
    left = [e for e in graph.eqns if isinstance(e.op, AttentionSaving)]
    readers, made = readers_of(graph) if left else {}, dict[int, Eqn]()
    for e in left:
        op = e.op
        if not isinstance(op, AttentionSaving) or e.outs[1] in graph.outputs:
            continue
        backs = readers.get(e.outs[1], [])
        if not all(isinstance(b.op, AttentionBackward) for b in backs):
            continue
        forward, backward, count = PLAIN.vjp(op.plain, op.wanted)
        rest = tuple(Var(a.type) for a in forward.outputs[1:])
        made[id(e)] = Eqn(Call(forward), e.inputs, (e.outs[0], *rest), e.source)
        assert len(rest) == count
        for b in backs:
            made[id(b)] = Eqn(Call(backward), (*rest, b.inputs[-1]), b.outs, b.source)
    eqns = tuple(made.get(id(e), e) for e in graph.eqns)
    return Graph(graph.inputs, eqns, graph.outputs, graph.consts) if made else graph


# -------- The derivative of attention as one step, what is around it, and the derivative of scores.


def core(form: Form, derive: Derive, slopes: Graph | None, reads: Reads) -> Graph:
    """(inputs, logarithms of the sums, the sum of each query, cotangent of the result, that result)
    -> cotangents of queries, keys and values for each batch and head, and what is left of those of
    `reads`, which `slopes` has (graphs.py); without it scores are products times a number. The result
    is there for a library, which makes the sums of queries of it itself.
    """

    def pulled(*xs: Any) -> Sequence[Any]:
        *given, logs, rows, ct, _ = xs
        s = graphs.slopes(form, derive, given, logs, rows, ct)
        (ct_product,) = graphs.pull(
            s.graph, (True, *(False for _ in s.more)), derive, s.product, *s.more, s.ct_scores
        )
        cts = graphs.of_operands(form, s, ct_product)
        mine, theirs = laid_out(form)
        trios = zip(cts, mine, core_shapes(form), theirs, strict=True)
        found = [graphs.arranged(x, a, shape, b) for x, a, shape, b in trios]
        if slopes is None:
            return found
        t = form.product.type
        axes = tuple(REPEATED if n == 1 else a for a, n in enumerate(t.shape))
        ct_scores = graphs.arranged(s.ct_scores, form.dims, t.shape, axes)
        _, *more = derive.run(slopes, [s.product, *s.more, ct_scores])
        return [*found, *(folded(form, r, x) for r, x in zip(reads, more, strict=True))]

    (y,) = form.plain.outputs
    sums = graphs.sums_type(form)
    return derive.trace(pulled, [*graphs.types_of(form), sums, sums, y.type, y.type])


def around_core(form: Form, wanted: Flags, derive: Derive, reads: Reads) -> tuple[Graph, Graph]:
    """(result, its cotangent) -> the sum of each query; and (inputs, logarithms of the sums, the sum of
    each query, results of the core) -> cotangents of the wanted inputs.
    """
    inputs = form.plain.inputs

    def after(*xs: Any) -> Sequence[Any]:
        given, (logs, rows, q, k, v, *more) = xs[: len(inputs)], xs[len(inputs) :]
        mine, theirs = laid_out(form)
        types = [*(form.dot.inputs[n].type for n in (form.query, 1 - form.query))]
        types.append(form.values.inputs[1 - form.side].type)
        each = zip((q, k, v), theirs, types, mine, strict=True)
        cts = [graphs.arranged(x, a, t.shape, b) for x, a, t, b in each]
        rest = [
            (inputs[r[0]], cotangent_of_read(form, r, x)) for r, x in zip(reads, more, strict=True)
        ]
        rest += graphs.of_sink(form, given, logs, rows, derive)
        return graphs.gathered(form, wanted, derive, given, cts, rest)

    (y,) = form.plain.outputs
    half = form.queries.base.type.dtype
    cts = [ArrayType(shape, half) for shape in core_shapes(form)]
    cts += [folded_type(form, r) for r in reads]
    before = derive.trace(lambda y, ct: [graphs.along_rows(form, y, ct)], [y.type, y.type])
    sums = graphs.sums_type(form)
    return before, derive.trace(after, [*graphs.types_of(form), sums, sums, *cts])


def derivative(
    form: Form, graph: Graph, wanted: Flags, derive: Derive
) -> tuple[Graph, Reads] | None:
    """(products, what else scores are made of, cotangents of scores) -> cotangents of the products
    and of the inputs that are read, which are wanted, repeated to the shape of the products; and
    those reads. All is elementwise and in the type of scores. None if scores of `graph` are not.
    """
    work = Elementwise(form, graph)
    (scores,), others = graph.outputs, inputs_of(form)
    if not work.visited(scores, form.dims, set()):
        return None
    full = form.product.type.with_dtype(scores_dtype(form))
    asked = {v for v, w in zip(others, wanted, strict=True) if w}
    reads = [r for r in work.reads if r[0] in asked]
    types = [full.with_dtype(accumulator(v.type.dtype)) for v, _ in work.reads]
    scored = derive.trace(lambda product, *xs: [work.scores(product, xs)], [full, *types])
    flags = (True, *(v in asked for v, _ in work.reads))
    pulled = whole(*derive.vjp(scored, flags))

    def slopes(product: Any, *xs: Any) -> Sequence[Any]:
        env = dict(zip(others, xs, strict=False))
        some = [wide(spread_over(form, env[v], dims)) for v, dims in work.reads]
        return derive.run(pulled, [product, *some, xs[-1]])

    found = derive.trace(slopes, [full, *(v.type for v in others), full])
    numbers = form.plain.inputs
    return without_dead_code(found), tuple((numbers.index(v), dims, 1) for v, dims in reads)


def spread_over(form: Form, x: Any, dims: Dims) -> Any:
    """A value whose axes are these of the products, repeated to their shape."""
    mine = [a for a, d in enumerate(dims) if d != REPEATED]
    order = sorted(range(len(mine)), key=lambda i: dims[mine[i]])
    x = x.reshaped(tuple(x.shape[a] for a in mine)).reorder(tuple(order))
    return x.spread(form.product.type.shape, tuple(sorted(dims[a] for a in mine)))


# -------- Heads that share keys without repeating them.


def lacks_heads(form: Form) -> bool:
    """True if an operand has no axis of some heads, as keys that an einsum has heads share: what a step
    of the derivative has for each head would have to be summed.
    """
    shape, axes = form.product.type.shape, product_axes(form)
    return any(a not in each for each in axes for a in form.batch if shape[a] > 1)


def with_heads(form: Form) -> Graph:
    """The graph of attention in which keys and values are repeated for the heads that share them, in place
    of products that have these heads free, as einsums over groups write them.
    """
    _, *others = product_axes(form)
    keys, values = (tuple(a for a in form.batch if a not in axes) for axes in others)
    queries = product_axes(form)[0]
    made: dict[int, list[Eqn]] = {}
    for eqn, side, axes in (
        (form.dot, form.query, tuple(queries.index(a) for a in keys)),
        (form.values, form.side, tuple(form.weights.index(a) for a in values)),
    ):
        made[id(eqn)] = repeated(eqn, side, axes) if axes else [eqn]
    plain = form.plain
    eqns = tuple(each for e in plain.eqns for each in made.get(id(e), [e]))
    return Graph(plain.inputs, eqns, plain.outputs)


def repeated(dot: Eqn, side: int, axes: Dims) -> list[Eqn]:
    """A product whose operand on the other side is repeated along these free axes, as batches."""
    op, eqns = dot.op, list[Eqn]()
    assert isinstance(op, DotGeneral)
    mine, other = dot.inputs[side].type, dot.inputs[1 - side]
    n = len(axes)
    shape = *(mine.shape[a] for a in axes), *other.type.shape
    spread = applied(
        eqns, BroadcastInDim(shape, tuple(range(n, len(shape)))), other, source=dot.source
    )
    mine_beside, mine_over = (*op.beside[side], *axes), op.contract[side]
    beside = (*(a + n for a in op.beside[1 - side]), *range(n))
    over = tuple(a + n for a in op.contract[1 - side])
    if side:
        whole = replace(op, beside=(beside, mine_beside), contract=(over, mine_over))
        y = applied(eqns, whole, spread, dot.inputs[1], source=dot.source)
    else:
        whole = replace(op, beside=(mine_beside, beside), contract=(mine_over, over))
        y = applied(eqns, whole, dot.inputs[0], spread, source=dot.source)
    labels = [
        axis_labels(o, [x.type for x in xs], side, n if o is whole else 0)
        for o, xs in ((op, dot.inputs), (whole, eqns[-1].inputs))
    ]
    order = tuple(labels[1].index(label) for label in labels[0])
    return [*eqns[:-1], *turned(eqns[-1], y, order, dot)]


def axis_labels(
    op: DotGeneral, types: Sequence[ArrayType], side: int, added: int
) -> list[tuple[int, int]]:
    """Returns for each axis of a product's result the operand (0 or 1) and the axis of it that it comes
    from; the first `added` axes of the operand that is not on `side` are not counted.
    """
    free = op.free(*types)
    found = [(side, a) for a in op.beside[side]]
    for which in (0, 1):
        less = added if which != side else 0
        found += [(which, a - less) for a in free[which]]
    return found


def turned(product: Eqn, y: Var, order: Dims, dot: Eqn) -> list[Eqn]:
    """A product with its axes in an order, as the result of another."""
    if order == tuple(range(len(order))):
        return [replace(product, outs=dot.outs)]
    return [product, Eqn(Transpose(order), (y,), dot.outs, dot.source)]


# -------- What is known of inputs of attention, computed in it.


def equations(known: Given, t: ArrayType) -> tuple[Eqn, ...]:
    """The equations of what is known of an array of a type; the last makes it."""
    shape, eqns = t.shape[-2:], list[Eqn]()
    made = partial(applied, eqns)
    if isinstance(known, Literal):
        made(BroadcastInDim(t.shape, ()), known)
        return tuple(eqns)
    i, j = made(Iota(shape, 0, INT32)), made(Iota(shape, 1, INT32))
    y = distances(known, i, j, made) if isinstance(known, Distances) else mask(known, i, j, t, made)
    y = made(ConvertElementType(t.dtype), y) if y.type.dtype != t.dtype else y
    if t.shape != shape:
        made(Reshape(t.shape), y)
    return tuple(eqns)


def distances(known: Distances, i: Var, j: Var, made: Made) -> Var:
    row, column, first = (Literal.of(np.int32(n)) for n in (known.row, known.column, known.first))
    return made(ADD, made(ADD, made(MUL, i, row), made(MUL, j, column)), first)


def mask(band: Band, i: Var, j: Var, t: ArrayType, made: Made) -> Var:
    parts = list[Var]()
    if band.low is not None:
        parts.append(made(LE, made(ADD, j, Literal.of(np.int32(band.low))), i))
    if band.high is not None:
        parts.append(made(LE, i, made(ADD, j, Literal.of(np.int32(band.high)))))
    seen = parts[0] if len(parts) == 1 else made(AND, *parts)
    if band.fill is None:
        return seen
    number, fill = (Literal.of(t.dtype.type(n)) for n in (band.seen, band.fill))
    return made(WHERE, seen, number, fill)


def with_factors(graph: Graph, context: Context) -> Graph:
    """The graph with masks of 1 and 0 that weights may be multiplied by as equations."""
    masks = {graph.inputs[i]: x for i, x in context.iotas if isinstance(x, Band) and x.seen == 1}
    eqns, env = list[Eqn](), dict[Var, Atom]()
    for v, band in masks.items():
        eqns += equations(band, v.type)
        env[v] = eqns[-1].outs[0]
    eqns += [
        replace(e, inputs=rename(env, e.inputs))
        if e.op is MUL or isinstance(e.op, BroadcastInDim)
        else e
        for e in graph.eqns
    ]
    return replace(graph, eqns=tuple(eqns)) if masks else graph


def with_known(graph: Graph, known: Mapping[int, Given]) -> Graph:
    """The graph without the inputs of which it is known what they are, which it computes."""
    env: dict[Atom, Atom] = {}
    eqns = list[Eqn]()
    for n, given in known.items():
        made = equations(given, graph.inputs[n].type)
        eqns += made
        env[graph.inputs[n]] = made[-1].outs[0]
    eqns += [renamed(env, e) for e in graph.eqns]
    inputs = tuple(v for n, v in enumerate(graph.inputs) if n not in known)
    return Graph(inputs, tuple(eqns), tuple(env.get(a, a) for a in graph.outputs))
