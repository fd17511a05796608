"""The derivative of attention as one step has it where kernels serve it: batches and heads first, then
rows, then features; and what is around that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge2.ir import ArrayType, Derive, Dims, Flags, Graph
from ge2.ops.attention import graphs
from ge2.ops.attention.facts import FEATURE, REPEATED
from ge2.ops.attention.form import Form
from ge2.ops.attention.slopes import Reads, folded, folded_type, settled
from ge2.ops.attention.tiling import product_axes


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


def core(form: Form, derive: Derive, slopes: Graph | None, reads: Reads) -> Graph:
    """(inputs, logarithms of the sums, the sum of each query, cotangent of the result, that result)
    -> cotangents of queries, keys and values for each batch and head, and what is left of those of
    `reads`, which `slopes` has (slopes.py); without it scores are products times a number. The result
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


def core_shapes(form: Form) -> tuple[Dims, Dims, Dims]:
    """The shapes of the cotangents of queries, keys and values for each batch and head."""
    shape = form.product.type.shape
    width = form.values.inputs[1 - form.side].type.shape[product_axes(form)[2].index(FEATURE)]
    batch = tuple(shape[a] for a in form.batch)
    q, k = (*batch, shape[form.row], width), (*batch, shape[form.key], width)
    return q, k, k


def around_core(form: Form, wanted: Flags, derive: Derive, reads: Reads) -> tuple[Graph, Graph]:
    """(result, its cotangent) -> the sum of each query; and (inputs, results of the core) -> cotangents
    of the wanted inputs.
    """
    inputs = form.plain.inputs

    def after(*xs: Any) -> Sequence[Any]:
        given, (q, k, v, *more) = xs[: len(inputs)], xs[len(inputs) :]
        mine, theirs = laid_out(form)
        types = [*(form.dot.inputs[n].type for n in (form.query, 1 - form.query))]
        types.append(form.values.inputs[1 - form.side].type)
        each = zip((q, k, v), theirs, types, mine, strict=True)
        cts = [graphs.arranged(x, a, t.shape, b) for x, a, t, b in each]
        rest = [(inputs[r[0]], settled(form, r, x)) for r, x in zip(reads, more, strict=True)]
        return graphs.gathered(form, wanted, derive, given, cts, rest)

    (y,) = form.plain.outputs
    half = form.queries.base.type.dtype
    cts = [ArrayType(shape, half) for shape in core_shapes(form)]
    cts += [folded_type(form, r) for r in reads]
    before = derive.trace(lambda y, ct: [graphs.along_rows(form, y, ct)], [y.type, y.type])
    return before, derive.trace(after, [*graphs.types_of(form), *cts])
