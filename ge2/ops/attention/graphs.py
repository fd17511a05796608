"""Graphs of attention by rule: with the logarithms of its sums, and its derivative by these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ge2.base.dtypes import FLOAT32, HALF
from ge2.ir import ArrayType, Atom, Derive, Dims, Eqn, Flags, Graph, Var, read, without_dead_code
from ge2.ops.attention.facts import FEATURE, REPEATED
from ge2.ops.attention.form import VIEWS, Chain, Form, is_scaling
from ge2.ops.attention.tiling import product_axes
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.control import whole
from ge2.ops.shape import BroadcastInDim


def run(eqns: Iterable[Eqn], env: dict[Any, Any]) -> None:
    """Computes equations, each once, in the current meaning."""
    for e in eqns:
        if e.outs[0] not in env:
            ys = e.op(*read(env, e.inputs))
            env.update(zip(e.outs, ys if e.op.several else (ys,), strict=True))


def types_of(form: Form) -> list[ArrayType]:
    return [v.type for v in form.plain.inputs]


def sums_type(form: Form) -> ArrayType:
    """The type of the logarithms of the sums."""
    return ArrayType(form.sums, FLOAT32)


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
        high = scores.fold_max((at,))
        kept = tuple(a for a in range(scores.ndim) if a != at)
        total = (scores - high.spread(scores.shape, kept)).pointwise("exp").fold_sum((at,))
        logs = total.pointwise("log") + high
        return env[form.plain.outputs[0]], as_sums(form, logs, without(form.dims, form.key))

    return derive.trace(forward, types_of(form))


def inputs_of(form: Form) -> tuple[Var, ...]:
    """What scores are made of beside the products."""
    return (*form.others, *form.scalars)


def products(form: Form, queries: Any, keys: Any) -> Any:
    """Queries times keys, in float32."""
    assert isinstance(form.dot.op, DotGeneral)
    pair = (queries, keys) if form.query == 0 else (keys, queries)
    return replace(form.dot.op, out=FLOAT32)(*pair)


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
                product = e.op(product, wide(*read(env, [number])))
        env[form.product] = product
        for e in form.between:
            env[e.outs[0]] = widened(e, read(env, e.inputs))
        return [wide(env[form.scores])]

    product = form.product.type.with_dtype(FLOAT32)
    return derive.trace(scores, [product, *(v.type for v in others)])


def wide(x: Any) -> Any:
    """A value, or a number, of a half type in float32."""
    if not hasattr(x, "type"):
        return np.float32(x)
    return x.cast(FLOAT32) if x.type.dtype in HALF or x.type.weak else x


def widened(eqn: Eqn, xs: Sequence[Any]) -> Any:
    """The result of an equation, in float32 if it is of a half type."""
    op, halves = eqn.op, any(a.type.dtype in HALF for a in (*eqn.inputs, *eqn.outs))
    if not halves:
        return op(*xs)
    if isinstance(op, ConvertElementType):
        return wide(xs[0]) if op.dtype in HALF else op(wide(xs[0]))
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
    """What is made of the means of values, but for the division by sums."""

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


def cotangents(
    form: Form, wanted: Flags, derive: Derive, given: Sequence[Any], logs: Any, rows: Any, ct: Any
) -> tuple[list[Any], list[Any]]:
    """Those of queries, keys and values as the products take them, and of what scores are made of
    beside these, where wanted; `rows`: of each query, the sum of the result times its cotangent.

    With weights P = exp(scores - logs), the cotangent of the scores is dS = P (dP - rows).
    """
    dot, values, half = form.dot.op, form.values.op, form.queries.base.type.dtype
    assert isinstance(dot, DotGeneral) and isinstance(values, DotGeneral)
    inputs, others = form.plain.inputs, inputs_of(form)
    env = dict(zip(inputs, given, strict=True))
    graph, end = scored(form, derive), ending(form, derive)
    queries, keys, read_ = (derive.run(operand(c, derive), [env[c.base]])[0] for c in form.chains)
    product, more = products(form, queries, keys), [env[v] for v in others]
    (scores,) = derive.run(graph, [product, *more])
    weights = (scores - spread(form, logs, scores.shape, form.dims)).pointwise("exp")
    shape = form.values.inputs[form.side].type.shape
    ready = arranged(weights.cast(half), form.dims, shape, form.weights)

    (ct_mean,) = pull(end, (True,), derive, *before(end), ct)
    ct_mean = ct_mean.cast(half)
    both = (ready, read_) if form.side == 0 else (read_, ready)
    letters = values.spell(*both)
    mine, theirs, result = letters[form.side], letters[1 - form.side], letters[2]
    ct_weights = values.einsum(result, theirs, mine, ct_mean, read_, FLOAT32)
    ct_values = values.einsum(result, mine, theirs, ct_mean, ready, half)
    ct_weights = arranged(ct_weights, form.weights, scores.shape, form.dims)
    ct_scores = weights * (ct_weights - spread(form, rows, scores.shape, form.dims))

    ct_product, *rest = pull(graph, (True, *wanted), derive, product, *more, ct_scores)
    pair = (queries, keys) if form.query == 0 else (keys, queries)
    rule = replace(dot, out=None)
    found = rule.vjp([ct_product.cast(half)], [product], pair, (True, True))
    return [found[form.query], found[1 - form.query], ct_values], rest


def of_others(form: Form, wanted: Flags) -> Flags:
    """Which of what scores are made of beside the products is wanted, by the flags of all inputs."""
    return tuple(wanted[form.plain.inputs.index(v)] for v in inputs_of(form))


def along_rows(form: Form, y: Any, ct: Any) -> Any:
    """Of each query, the sum of the result times its cotangent."""
    total = (y.cast(FLOAT32) * ct.cast(FLOAT32)).fold_sum((form.result.index(FEATURE),))
    return as_sums(form, total, without(form.result, FEATURE))


def gathered(
    form: Form, wanted: Flags, derive: Derive, given: Sequence[Any], cts: Any, rest: Any
) -> list[Any]:
    """The cotangents of the wanted inputs, of those of operands and of others."""
    inputs, sums = form.plain.inputs, dict[Any, Any]()
    env = dict(zip(inputs, given, strict=True))
    ends = [
        (c.base, pull(operand(c, derive), (True,), derive, env[c.base], each)[0])
        for c, each in zip(form.chains, cts, strict=True)
    ]
    pairs = zip(inputs_of(form), of_others(form, wanted), strict=True)
    ends += zip((v for v, w in pairs if w), rest, strict=True)
    for v, each in ends:
        sums[v] = each if v not in sums else sums[v] + each
    return [sums[v] for v, w in zip(inputs, wanted, strict=True) if w]


def backward(form: Form, wanted: Flags, derive: Derive) -> Graph:
    """(inputs, logarithms of the sums, result, its cotangent) -> cotangents of the wanted inputs."""

    def pulled(*xs: Any) -> Sequence[Any]:
        *given, logs, y, ct = xs
        rows = along_rows(form, y, ct)
        flags = of_others(form, wanted)
        cts, rest = cotangents(form, flags, derive, given, logs, rows, ct)
        return gathered(form, wanted, derive, given, cts, rest)

    (y,) = form.plain.outputs
    return derive.trace(pulled, [*types_of(form), sums_type(form), y.type, y.type])


# What one step computes of it where a kernel serves it: batches and heads first, then rows, features.


def laid_out(form: Form) -> tuple[tuple[Dims, Dims, Dims], tuple[Dims, Dims, Dims]]:
    """The axes of the scores that those of queries, keys and values are; and, as a step has their
    cotangents, of these.
    """
    shape = form.product.type.shape
    mine = tuple(
        tuple(REPEATED if d >= 0 and shape[d] == 1 else d for d in axes)
        for axes in product_axes(form)
    )
    rows = form.row, form.key, form.key
    found = tuple((*form.batch, row, FEATURE) for row in rows)
    theirs = tuple(
        tuple(REPEATED if d >= 0 and shape[d] == 1 else d for d in axes) for axes in found
    )
    return mine, theirs  # type: ignore[return-value]


def core(form: Form, derive: Derive) -> Graph:
    """(inputs, logarithms of the sums, the sum of each query, cotangent of the result) -> cotangents
    of queries, keys and values for each batch and head.
    """

    def pulled(*xs: Any) -> Sequence[Any]:
        *given, logs, rows, ct = xs
        none = (False,) * len(inputs_of(form))
        cts, _ = cotangents(form, none, derive, given, logs, rows, ct)
        mine, theirs = laid_out(form)
        trios = zip(cts, mine, core_shapes(form), theirs, strict=True)
        return [arranged(x, a, shape, b) for x, a, shape, b in trios]

    (y,) = form.plain.outputs
    return derive.trace(pulled, [*types_of(form), sums_type(form), sums_type(form), y.type])


def core_shapes(form: Form) -> tuple[Dims, Dims, Dims]:
    """The shapes of the cotangents of queries, keys and values for each batch and head."""
    shape = form.product.type.shape
    width = form.values.inputs[1 - form.side].type.shape[product_axes(form)[2].index(FEATURE)]
    batch = tuple(shape[a] for a in form.batch)
    q, k = (*batch, shape[form.row], width), (*batch, shape[form.key], width)
    return q, k, k


def around_core(form: Form, wanted: Flags, derive: Derive) -> tuple[Graph, Graph]:
    """(result, its cotangent) -> the sum of each query; and (inputs, cotangents of queries, keys and
    values for each batch and head) -> cotangents of the wanted inputs.
    """

    def after(*xs: Any) -> Sequence[Any]:
        *given, q, k, v = xs
        mine, theirs = laid_out(form)
        types = [*(form.dot.inputs[n].type for n in (form.query, 1 - form.query))]
        types.append(form.values.inputs[1 - form.side].type)
        each = zip((q, k, v), theirs, types, mine, strict=True)
        cts = [arranged(x, a, t.shape, b) for x, a, t, b in each]
        return gathered(form, wanted, derive, given, cts, [])

    (y,) = form.plain.outputs
    half = form.queries.base.type.dtype
    cts = [ArrayType(shape, half) for shape in core_shapes(form)]
    before_ = derive.trace(lambda y, ct: [along_rows(form, y, ct)], [y.type, y.type])
    return before_, derive.trace(after, [*types_of(form), *cts])


def arranged(x: Any, dims: Dims, shape: Dims, wanted: Dims) -> Any:
    """A value whose axes are these of the scores as one of a shape whose axes are others."""
    if len(dims) != len(wanted):
        long = tuple(n for n, d in zip(x.shape, dims, strict=True) if d != REPEATED)
        x, dims = x.reshaped(long), tuple(d for d in dims if d != REPEATED)
        wanted = tuple(d for d in wanted if d != REPEATED)
    alone = iter(a for a, d in enumerate(dims) if d == REPEATED)
    order = tuple(next(alone) if d == REPEATED else dims.index(d) for d in wanted)
    return x.reorder(order).reshaped(shape)
