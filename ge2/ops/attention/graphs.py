"""Graphs of attention: by rule, of its derivative, and of the elementwise one of its scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.arrays import FLOAT32, HALF, accumulator
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Derive,
    Dims,
    Eqn,
    Flags,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    is_traced,
    read,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.attention import FEATURE, REPEATED, VIEWS, number_of, reshaped
from ge2.ops.attention.form import Chain, Form, is_scaling
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, MAX, ConvertElementType
from ge2.ops.graphs.control import whole
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.reduce import ReduceMax, ReduceSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice, Transpose

# -------- Graphs of attention by rule: with the logarithms of its sums, and its derivative by
# these.


def run(eqns: Iterable[Eqn], env: dict[Any, Any]) -> None:
    """Computes equations, each once, in the current meaning."""
    for e in eqns:
        if e.outs[0] not in env:
            ys = e.op(*read(env, e.inputs))
            env.update(zip(e.outs, ys if e.op.several else (ys,), strict=True))


def types_of(form: Form) -> list[ArrayType]:
    return [v.type for v in form.plain.inputs]


def scores_dtype(form: Form) -> np.dtype:
    """The type of scores and sums: float32, unless queries are of float64."""
    return accumulator(form.queries.base.type.dtype)


def sums_type(form: Form) -> ArrayType:
    """The type of the logarithms of the sums."""
    return ArrayType(form.sums, scores_dtype(form))


def places(form: Form, dims: Dims) -> tuple[list[int], list[int]]:
    """The axes of a value that count queries or batches; and what orders them as the sums are."""
    mine = [a for a, d in enumerate(dims) if d >= 0 and d != form.key]
    wanted = [a for a in (*form.batch, form.row) if form.product.type.shape[a] > 1]
    return mine, [[dims[a] for a in mine].index(d) for d in wanted]


def as_sums(form: Form, x: Any, dims: Dims) -> Any:
    """A value that is alike along the keys, and has no axis of them, as the sums are."""
    mine, order = places(form, dims)
    x = x.reshaped(tuple(x.shape[a] for a in mine)).reorder(tuple(order))
    return x.reshaped(form.sums)


def spread(form: Form, x: Any, shape: Dims, dims: Dims) -> Any:
    """A value that is as the sums are, repeated to a shape whose axes are these of the scores."""
    mine, order = places(form, dims)
    back = tuple(order.index(i) for i in range(len(order)))
    x = x.reshaped(tuple(n for n in form.sums if n > 1)).reorder(back)
    return x.spread(shape, tuple(mine))


def without(dims: Dims, axis: int) -> Dims:
    return tuple(d for d in dims if d != axis)


def saving(form: Form, derive: Derive) -> Graph:
    """(inputs) -> (result, logarithms of the sums), these of scores that are held in float32."""
    graph, views = scored(form, derive), [operand(c, derive) for c in form.chains]

    def forward(*xs: Any) -> Sequence[Any]:
        env: dict[Atom, Any] = dict(zip(form.plain.inputs, xs, strict=True))
        run(form.plain.eqns, env)
        pair = [derive.run(g, [env[c.base]])[0] for g, c in zip(views, form.chains, strict=True)]
        (scores,) = derive.run(
            graph, [products(form, *pair[:2]), *(env[v] for v in inputs_of(form))]
        )
        at = form.dims.index(form.key)
        high, dims = scores.fold_max((at,)), without(form.dims, form.key)
        if form.sink is not None:
            sink = sink_as_sums(form, sink_of(form, env, derive))
            high = MAX(high, spread(form, sink, high.shape, dims))
        kept = tuple(a for a in range(scores.ndim) if a != at)
        total = (scores - high.spread(scores.shape, kept)).pointwise("exp").fold_sum((at,))
        total, high = (as_sums(form, x, dims) for x in (total, high))
        if form.sink is not None:
            total = total + (sink - high).pointwise("exp")
        logs = total.pointwise("log") + high
        return env[form.plain.outputs[0]], logs

    return derive.trace(forward, types_of(form))


def sink_of(form: Form, given: Mapping[Any, Any], derive: Derive) -> Any:
    """The logit of the sink, in the type of scores: a number, or an array in its own axes."""
    assert form.sink is not None
    if form.sunk is None:
        return scores_dtype(form).type(number_of(form.sink))
    (x,) = derive.run(operand(form.sunk, derive), [given[form.sunk.base]])
    return x.cast(scores_dtype(form))


def sink_as_sums(form: Form, sink: Any) -> Any:
    """The logit of a sink, broadcast to the shape of the sums."""
    assert form.sink is not None
    if is_traced(sink):
        return as_sums(form, sink, form.sink.dims)
    return BroadcastInDim(form.sums, ())(sink)


def of_sink(
    form: Form, given: Sequence[Any], logs: Any, rows: Any, derive: Derive
) -> list[tuple[Var, Any]]:
    """The cotangent of what a sink is made of. Of its weight P, which gives nothing, that of the logit is
    -P D, where D is the sum of the result times its cotangent.
    """
    if form.sunk is None:
        return []
    env, base = dict(zip(form.plain.inputs, given, strict=True)), form.sunk.base
    x = sink_of(form, env, derive)
    assert form.sink is not None
    logs, rows = (spread(form, y, x.shape, form.sink.dims) for y in (logs, rows))
    ct = -((x - logs).pointwise("exp") * rows).cast(base.type.dtype)
    return [(base, pull(operand(form.sunk, derive), (True,), derive, env[base], ct)[0])]


def inputs_of(form: Form) -> tuple[Var, ...]:
    """The inputs that scores are made of beside the products."""
    return (*form.others, *form.scalars)


def products(form: Form, queries: Any, keys: Any) -> Any:
    """Queries times keys, in the type of scores."""
    assert isinstance(form.dot.op, DotGeneral)
    pair = (queries, keys) if form.query == 0 else (keys, queries)
    return replace(form.dot.op, out=scores_dtype(form))(*pair)


# ------------------------------------------------------------------------------------- derivative


def scored(form: Form, derive: Derive) -> Graph:
    """(products, what else scores are made of) -> scores, all of half types held in float32, as a
    kernel holds them.
    """
    others = inputs_of(form)

    def scores(product: Any, *xs: Any) -> Sequence[Any]:
        env: dict[Any, Any] = dict(zip(others, xs, strict=True))
        for c in (form.queries, form.keys):
            for e in filter(is_scaling, c.eqns):
                number = next(x for x in e.inputs if not x.type.shape)
                (x,) = read(env, [number])
                product = e.op(product, wide(x) if is_traced(x) else scores_dtype(form).type(x))
        env[form.product] = product
        for e in form.between:
            env[e.outs[0]] = widened(e, read(env, e.inputs))
        return [wide(env[form.scores])]

    product = form.product.type.with_dtype(scores_dtype(form))
    return derive.trace(scores, [product, *(v.type for v in others)])


def wide(x: Any) -> Any:
    """A value, or a number, of a half type in float32."""
    if not is_traced(x):
        return np.float32(x)
    return x.cast(FLOAT32) if x.type.dtype in HALF or x.type.weak else x


def widened(eqn: Eqn, xs: Sequence[Any]) -> Any:
    """The result of an equation, in float32 if it is of a half type."""
    op, halves = eqn.op, any(a.type.dtype in HALF for a in (*eqn.inputs, *eqn.outs))
    if not halves:
        return op(*xs)
    if isinstance(op, ConvertElementType):
        x = wide(xs[0])
        held = x.cast(FLOAT32) if is_traced(x) else np.float32(x)  # an integer, too
        return held if op.dtype in HALF else op(x)
    pairs = zip(eqn.inputs, xs, strict=True)
    return op(*(wide(x) if a.type.dtype in HALF else x for a, x in pairs))


def operand(chain: Chain, derive: Derive) -> Graph:
    """The views of an operand of a product, in the dtype of what it is made of."""

    def viewed(x: Any) -> Sequence[Any]:
        for e in chain.eqns:
            x = e.op(x) if isinstance(e.op, VIEWS) else x
        return [x]

    return derive.trace(viewed, [chain.base.type])


def ending(form: Form, derive: Derive) -> Graph:
    """The graph of what is made of the means of values, but for the division by sums."""

    def after(x: Any) -> Sequence[Any]:
        for e in form.after:
            x = e.op(x) if len(e.inputs) == 1 else x
        return [x]

    return derive.trace(after, [form.values.outs[0].type])


def pull(graph: Graph, wanted: Flags, derive: Derive, *xs: Any) -> list[Any]:
    """The cotangents of the wanted inputs, of all inputs and the cotangent of the result."""
    if not any(wanted):
        return []
    return derive.run(without_dead_code(whole(*derive.vjp(graph, wanted))), xs)


def before(graph: Graph) -> list[Any]:
    """Values that a linear graph of one input may be pulled back at: any."""
    t = graph.inputs[0].type
    return [BroadcastInDim(t.shape, ())(t.dtype.type(0))]


@record
class Slopes:
    """Cotangents within attention: of scores, in float32, and of values; and what is multiplied by
    them: queries and keys as they are, products, and what else scores are made of.
    """

    graph: Graph
    ct_scores: Any
    ct_values: Any
    queries: Any
    keys: Any
    product: Any
    more: list[Any]


def slopes(
    form: Form, derive: Derive, given: Sequence[Any], logs: Any, rows: Any, ct: Any
) -> Slopes:
    """The cotangents of scores and values; `rows`: of each query, the sum of the result times its
    cotangent.

    With weights P = exp(scores - logs), the cotangent of the scores is dS = P (dP - rows).
    """
    values, half = form.values.op, form.queries.base.type.dtype
    assert isinstance(values, DotGeneral)
    inputs, others = form.plain.inputs, inputs_of(form)
    env = dict(zip(inputs, given, strict=True))
    graph, end = scored(form, derive), ending(form, derive)
    queries, keys, read_ = (derive.run(operand(c, derive), [env[c.base]])[0] for c in form.chains)
    product, more = products(form, queries, keys), [env[v] for v in others]
    (scores,) = derive.run(graph, [product, *more])
    weights = (scores - spread(form, logs, scores.shape, form.dims)).pointwise("exp")
    shape = form.values.inputs[form.side].type.shape
    kept = dropped(form, env, arranged(weights, form.dims, shape, form.weights))
    ready = kept.cast(half)

    (ct_mean,) = pull(end, (True,), derive, *before(end), ct)
    ct_mean = ct_mean.cast(half)
    both = (ready, read_) if form.side == 0 else (read_, ready)
    letters = values.spell(*both)
    mine, theirs, result = letters[form.side], letters[1 - form.side], letters[2]
    ct_weights = values.einsum(result, theirs, mine, ct_mean, read_, scores_dtype(form))
    ct_values = values.einsum(result, mine, theirs, ct_mean, ready, half)
    ct_weights = dropped(form, env, ct_weights)
    ct_weights = arranged(ct_weights, form.weights, scores.shape, form.dims)
    ct_scores = weights * (ct_weights - spread(form, rows, scores.shape, form.dims))
    return Slopes(graph, ct_scores, ct_values, queries, keys, product, more)


def dropped(form: Form, given: Mapping[Var, Any], weights: Any) -> Any:
    """Weights, or their cotangents, in float32, after dropout: each is multiplied by a number."""
    if form.soft is None:
        return weights
    env: dict[Any, Any] = {**given, form.soft: weights}
    for e in form.dropping:
        if e.outs[0] not in env:
            env[e.outs[0]] = widened(e, read(env, e.inputs))
    return wide(env[form.values.inputs[form.side]])


def of_operands(form: Form, s: Slopes, ct_product: Any) -> list[Any]:
    """The cotangents of queries, keys and values as the products take them."""
    assert isinstance(form.dot.op, DotGeneral)
    pair = (s.queries, s.keys) if form.query == 0 else (s.keys, s.queries)
    rule, half = replace(form.dot.op, out=None), form.queries.base.type.dtype
    found = rule.vjp([ct_product.cast(half)], [s.product], pair, (True, True))
    return [found[form.query], found[1 - form.query], s.ct_values]


def of_others(form: Form, wanted: Flags) -> Flags:
    """Flags of the inputs that scores are made of beside the products and that are wanted, by the
    flags of all inputs.
    """
    return tuple(wanted[form.plain.inputs.index(v)] for v in inputs_of(form))


def along_rows(form: Form, y: Any, ct: Any) -> Any:
    """Of each query, the sum of the result times its cotangent."""
    total = (y.cast(scores_dtype(form)) * ct.cast(scores_dtype(form))).fold_sum(
        (form.result.index(FEATURE),)
    )
    return as_sums(form, total, without(form.result, FEATURE))


def gathered(
    form: Form, wanted: Flags, derive: Derive, given: Sequence[Any], cts: Any,
    rest: Iterable[tuple[Var, Any]],
) -> list[Any]:  # fmt: skip
    """The cotangents of the wanted inputs, of those of operands and of others."""
    inputs, sums = form.plain.inputs, dict[Any, Any]()
    env = dict(zip(inputs, given, strict=True))
    ends = [
        (c.base, pull(operand(c, derive), (True,), derive, env[c.base], each)[0])
        for c, each in zip(form.chains, cts, strict=True)
    ]
    for v, each in (*ends, *rest):
        sums[v] = each if v not in sums else sums[v] + each
    # masks are made of what is left: they have no derivative
    pairs = zip(inputs, wanted, strict=True)
    return [sums[v] if v in sums else derive.zeros(v.type) for v, w in pairs if w]


def backward(form: Form, wanted: Flags, derive: Derive) -> Graph:
    """(inputs, logarithms of the sums, result, its cotangent) -> cotangents of the wanted inputs."""

    def pulled(*xs: Any) -> Sequence[Any]:
        *given, logs, y, ct = xs
        rows = along_rows(form, y, ct)
        flags = of_others(form, wanted)
        some = slopes(form, derive, given, logs, rows, ct)
        ct_product, *rest = pull(
            some.graph, (True, *flags), derive, some.product, *some.more, some.ct_scores
        )
        cts = of_operands(form, some, ct_product)
        pairs = zip(inputs_of(form), flags, strict=True)
        more = [*zip((v for v, w in pairs if w), rest, strict=True)]
        more += of_sink(form, given, logs, rows, derive)
        return gathered(form, wanted, derive, given, cts, more)

    (y,) = form.plain.outputs
    return derive.trace(pulled, [*types_of(form), sums_type(form), y.type, y.type])


def arranged(x: Any, dims: Dims, shape: Dims, wanted: Dims) -> Any:
    """A value whose axes are these of the scores as one of a shape whose axes are others."""
    if len(dims) != len(wanted):
        long = tuple(n for n, d in zip(x.shape, dims, strict=True) if d != REPEATED)
        x, dims = x.reshaped(long), tuple(d for d in dims if d != REPEATED)
        wanted = tuple(d for d in wanted if d != REPEATED)
    alone = iter(a for a, d in enumerate(dims) if d == REPEATED)
    order = tuple(next(alone) if d == REPEATED else dims.index(d) for d in wanted)
    return x.reorder(order).reshaped(shape)


# -------- A logit that is joined to the scores, which a sum of weights has in it: each apart.


@final
class Apart:
    """Splits arrays in which one logit more is joined to scores along an axis: what is computed from such an
    array is computed from both of its parts.

    `joined`: the arrays of both; `parts`: of each value made of such the axis, and its parts.
    """

    def __init__(self, graph: Graph, starts: Iterable[Atom], whole: set[Atom]) -> None:
        self.eqns, self.makers = list[Eqn](), dict[Atom, Eqn]()
        self.parts: dict[Atom, tuple[int, tuple[Atom, Atom]]] = {}
        self.joined, env = set[Atom](), dict[Var, Atom]()
        scores = set(starts)  # and what is made of them but by products
        for e in graph.eqns:
            e = renamed(env, e)
            self.eqns.append(e)
            self.makers.update((v, e) for v in e.outs)
            if scores.isdisjoint(e.inputs) or isinstance(e.op, DotGeneral) or len(e.outs) != 1:
                continue
            (out,) = e.outs
            scores.add(out)
            if isinstance(e.op, Concatenate) and out not in whole:
                self.join(e, e.op.axis)
            elif isinstance(e.op, Pad) and out not in whole:
                self.pad(e, e.op)
            elif not self.parts.keys().isdisjoint(e.inputs):
                env[out] = self.made(e, out)
                scores.add(env[out])
        self.graph = Graph(graph.inputs, tuple(self.eqns), rename(env, graph.outputs), graph.consts)

    def join(self, e: Eqn, axis: int) -> None:
        sizes = [a.type.shape[axis] for a in e.inputs]
        if len(sizes) == 2 and min(sizes) == 1 < max(sizes):
            self.parts[e.outs[0]] = axis, (e.inputs[0], e.inputs[1])
            self.joined.add(e.outs[0])

    def pad(self, e: Eqn, op: Pad) -> None:
        (x,), long = (
            e.inputs,
            [a for a, n in enumerate(zip(op.low, op.high, strict=True)) if any(n)],
        )
        if len(long) != 1 or any(op.inner):
            return
        (axis,) = long
        one = e.outs[0].type.with_shape(sized(x.type.shape, axis, 1))
        if {op.low[axis], op.high[axis]} == {0, 1}:
            number = Literal.of(one.dtype.type(0))
            zero = applied(self.eqns, BroadcastInDim(one.shape, ()), number, source=e.source)
            self.parts[e.outs[0]] = axis, (zero, x) if op.low[axis] else (x, zero)
            self.joined.add(e.outs[0])

    def made(self, e: Eqn, out: Atom) -> Atom:
        """The result of an equation, or what replaces it where both parts are reduced, or one is taken."""
        op, known = e.op, [self.parts.get(a) for a in e.inputs]
        ((axis, pair), *others) = (k for k in known if k is not None)
        if any(other[0] != axis for other in others):
            return out
        if isinstance(op, Pointlike) and isinstance(op.lowering, Pointwise):
            found = [
                applied(
                    self.eqns, op, *(self.part(a, axis, pair, n) for a in e.inputs), source=e.source
                )
                for n in (0, 1)
            ]
            self.parts[out] = axis, (found[0], found[1])
        elif isinstance(op, Transpose):
            turned = [applied(self.eqns, op, a, source=e.source) for a in pair]
            self.parts[out] = op.order.index(axis), (turned[0], turned[1])
        elif isinstance(op, ReduceMax | ReduceSum) and op.axes == (axis,):
            shape, both = out.type.shape, MAX if isinstance(op, ReduceMax) else ADD
            sums = [
                applied(
                    self.eqns, Reshape(shape) if a.type.shape[axis] == 1 else op, a, source=e.source
                )
                for a in pair
            ]
            return applied(self.eqns, both, *sums, source=e.source)
        elif isinstance(op, Slice):
            first = 0
            for a in pair:
                n = a.type.shape[axis]
                whole = a.type.shape == out.type.shape and set(op.step) == {1}
                if whole and (op.start[axis], op.stop[axis]) == (first, first + n):
                    return a
                first += n
        return out

    def part(self, a: Atom, axis: int, pair: tuple[Atom, Atom], n: int) -> Atom:
        """The n-th part of an operand, in the shape of the n-th of this pair."""
        if a in self.parts or not a.type.shape:
            return self.parts[a][1][n] if a in self.parts else a
        size = pair[n].type.shape[axis]
        made, shape = self.makers.get(a), sized(a.type.shape, axis, size)
        if made is not None and isinstance(made.op, BroadcastInDim) and axis not in made.op.dims:
            op: Op = BroadcastInDim(shape, made.op.dims)
            return applied(self.eqns, op, *made.inputs, source=made.source)
        first = n * pair[0].type.shape[axis]
        start = sized((0,) * len(shape), axis, first)
        op = Slice(start, tuple(map(sum, zip(start, shape, strict=True))), (1,) * len(shape))
        return applied(self.eqns, op, a)


def sized(shape: Dims, axis: int, n: int) -> Dims:
    return (*shape[:axis], n, *shape[axis + 1 :])


def logits_apart(graph: Graph, starts: Iterable[Atom]) -> Graph:
    """The graph without arrays of scores and a logit more along an axis, where nothing needs them whole."""
    whole = set[Atom]()
    while True:
        some = Apart(graph, starts, whole)
        if not some.joined:
            return graph
        found = without_dead_code(some.graph)
        left = some.joined.intersection(v for e in found.eqns for v in e.outs)
        if not left:
            return found
        whole |= left


# -------- The derivative of scores element by element, as a kernel has it for a block at a time.


# an input of attention; the axis of the products that each of its axes is; and in how many parts of the
# batches that share it a kernel adds up what is of each query and key
Read = tuple[int, Dims, int]
Reads = tuple[Read, ...]


@final
class Elementwise:
    """A graph of scores as work on arrays that are all of the shape of the products, so that each
    input is repeated to it before anything else is done. `reads`: the inputs so repeated.
    """

    def __init__(self, form: Form, graph: Graph) -> None:
        self.form, self.graph = form, graph
        self.shape = form.product.type.shape
        self.makers: dict[Atom, Eqn] = {e.outs[0]: e for e in graph.eqns}
        self.reads: dict[tuple[Var, Dims], None] = {}

    def visited(self, a: Atom, dims: Dims, seen: set[tuple[Atom, Dims]]) -> bool:
        """Collects what a value reads whose axes are these of the products; False if a view in it
        merges or splits axes.
        """
        if not isinstance(a, Var) or (a, dims) in seen:
            return True
        seen.add((a, dims))
        eqn = self.makers.get(a)
        if eqn is None:
            if a is self.graph.inputs[0]:
                return dims == self.all_axes
            self.reads[a, dims] = None
            pairs = zip(dims, a.type.shape, strict=True)
            return all(d != REPEATED or n == 1 for d, n in pairs)
        inner = self.inner(eqn, dims)
        return inner is not None and all(
            self.visited(x, d, seen) for x, d in zip(eqn.inputs, inner, strict=True)
        )

    @property
    def all_axes(self) -> Dims:
        return tuple(REPEATED if n == 1 else a for a, n in enumerate(self.shape))

    def inner(self, eqn: Eqn, dims: Dims) -> list[Dims] | None:
        """The axes of the operands of an equation, of those of its result; None if they merge."""
        op = eqn.op
        if isinstance(op, Iota):
            return []
        if isinstance(op, Transpose):
            return [tuple(dims[op.order.index(i)] for i in range(len(dims)))]
        if isinstance(op, BroadcastInDim):
            old = eqn.inputs[0].type.shape
            pairs = zip(op.dims, old, strict=True)
            return [tuple(REPEATED if n == 1 else dims[d] for d, n in pairs)]
        if isinstance(op, Reshape):
            found = reshaped(op.shape, dims, eqn.inputs[0].type.shape)
            return None if found is None else [found]
        if len(eqn.outs) == 1 and isinstance(op, Pointlike) and isinstance(op.lowering, Pointwise):
            return [dims if x.type.shape else () for x in eqn.inputs]
        return None

    def value(self, a: Atom, dims: Dims, env: dict[tuple[Atom, Dims], Any]) -> Any:
        """A value repeated to the shape of the products."""
        if not isinstance(a, Var):
            return a.value
        if (a, dims) not in env:
            eqn = self.makers[a]
            inner = self.inner(eqn, dims)
            assert inner is not None
            if isinstance(eqn.op, Iota):
                env[a, dims] = self.counted(eqn.op, dims)
            else:
                xs = [self.value(x, d, env) for x, d in zip(eqn.inputs, inner, strict=True)]
                moves = isinstance(eqn.op, Reshape | Transpose | BroadcastInDim)
                env[a, dims] = xs[0] if moves else widened(eqn, xs)
        return env[a, dims]

    def counted(self, op: Iota, dims: Dims) -> Any:
        axis = dims[op.axis]
        if axis == REPEATED:
            return op.dtype.type(0)
        return Iota(self.shape, axis, op.dtype)()

    def scores(self, product: Any, xs: Sequence[Any]) -> Any:
        """Scores in the shape of the products, of the reads so repeated."""
        start = self.graph.inputs[0], self.all_axes
        env: dict[tuple[Atom, Dims], Any] = dict(zip(self.reads, xs, strict=True))
        env[start] = product
        (scores,) = self.graph.outputs
        return wide(self.value(scores, self.form.dims, env))
