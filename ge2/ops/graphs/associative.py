"""Associative scans as operations, and their derivatives, which are such scans too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.ir import (
    ArrayType,
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
    Value,
    Values,
    Var,
    applied,
    rename,
    without_dead_code,
)
from ge2.ops.elementwise import ADD, MUL
from ge2.ops.graphs.control import Alike, OfGraph, filled, inexact, scattered, types_of, with_axis
from ge2.ops.graphs.loops import ScanLoop, agree
from ge2.ops.reduce import part
from ge2.ops.shape import BroadcastInDim

Types = tuple[ArrayType, ...]
Tracing = Callable[[Callable[..., list[Any]], Sequence[ArrayType]], Graph]
TRACING: list[Tracing] = []  # how the graph of a function of scalars is learnt; the trace's


@final
@record
class AssociativeScan(GraphOp):
    """All elements up to each one of arrays of one shape, along an axis, combined by an associative
    function. `pair` computes it of scalars: of the earlier element's, then of the later's.

    The derivative of every element is a linear recurrence, so it is such a scan, too.
    """

    pair: Graph
    axis: int
    reverse: bool = False
    name = "associative_scan"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.pair,)

    def infer(self, *types: ArrayType) -> Types:
        scalars = types_of(self.pair.inputs[: len(self.pair.outputs)])
        agree(self, tuple(s.with_shape(types[0].shape) for s in scalars), types)
        return types

    def reference(self, *arrays: Any) -> Any:
        """By halves (W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986)."""
        turn = slice(None, None, -1 if self.reverse else 1)
        xs, step = [np.moveaxis(x, self.axis, 0)[turn] for x in arrays], 1
        while step < len(xs[0]):
            found = self.pair(*(x[:-step] for x in xs), *(x[step:] for x in xs))
            xs = [
                np.concatenate([x[:step], np.broadcast_to(y, x[step:].shape)])
                for x, y in zip(xs, found, strict=True)
            ]
            step *= 2
        return tuple(np.moveaxis(x[turn], 0, self.axis) for x in xs)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        over = AssociativeScan(self.pair, self.axis + 1, self.reverse)
        return over(*with_axis(xs, axes, (True,) * len(xs), size)), [0] * len(xs)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        slopes = Slopes.of(self.pair, derive)
        owns = [own_of(self.pair, i, derive) for i in differentiable(self.pair)]
        return AssociativeScanSaving(
            self.pair, self.axis, self.reverse, slopes.across, slopes.cells,
            tuple(own for own, _ in owns), tuple(into for _, into in owns),
        )  # fmt: skip

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        """The tangents t[i] = A[i] t[i - 1] + B[i] dx[i], A and B the derivatives of `pair`."""
        ys, flags, given = self(*xs), inexact(self.pair.outputs), filled(ts, xs)
        if xs[0].shape[self.axis] < 2 or not given:
            return ys, scattered(given, flags)
        slopes, n = Slopes.of(self.pair, derive), len(xs)
        pushed = derive.jvp(self.pair, (*(False,) * n, *flags))
        around = *map(self.before, ys), *map(self.after, xs)
        own = pushed(*around, *map(self.after, given))[n:]
        own = [
            self.joined(self.first(t), self.spread(x, t)) for t, x in zip(given, own, strict=True)
        ]
        across = [self.spread(x, given[0]) for x in slopes.across(*around)]
        across = [self.joined(self.first(x).zeros(), x) for x in across]
        return ys, scattered(recurred(slopes.cells, across, own, self.axis, self.reverse), flags)

    # -- parts of arrays, in the direction of the scan

    def part(self, x: Value, start: int, stop: int) -> Value:
        n = x.shape[self.axis]
        return part(x, self.axis, *((n - stop, n - start) if self.reverse else (start, stop)))

    def before(self, x: Value) -> Value:
        """All but the last element."""
        return self.part(x, 0, x.shape[self.axis] - 1)

    def after(self, x: Value) -> Value:
        """All but the first element."""
        return self.part(x, 1, x.shape[self.axis])

    def first(self, x: Value) -> Value:
        return self.part(x, 0, 1)

    def joined(self, x: Value, y: Value) -> Value:
        """The elements of x, and then those of y."""
        return y.joined([x], self.axis) if self.reverse else x.joined([y], self.axis)

    def spread(self, x: Value, like: Value) -> Value:
        """A result of `pair` over all elements but the first as an array: it may be one number."""
        return x if x.ndim else x.spread(self.after(like).shape, ())


# ---------------------------------------------------------------------------------- the derivative


Cells = tuple[tuple[int, int], ...]


def differentiable(pair: Graph) -> list[int]:
    """Returns the numbers of the results of `pair` that are floats or complex: those with a derivative."""
    return [i for i, flag in enumerate(inexact(pair.outputs)) if flag]


@final
@record
class Slopes:
    """The derivative of `pair` by the element before: `across` computes, of both elements, the
    `cells` of a matrix, (result, element) among those that have a derivative; the others are zero,
    here and in all products of such matrices.
    """

    across: Graph
    cells: Cells

    @staticmethod
    def of(pair: Graph, derive: Derive) -> Slopes:
        """Returns it by forward derivatives along one number of the element before after the other."""
        n, known = len(pair.outputs), dict[tuple[int, int], tuple[Graph, int]]()
        for k, leaf in enumerate(differentiable(pair)):
            column = derive.jvp(pair, tuple(i == leaf for i in range(2 * n)))
            for i, out in enumerate(column.outputs[n:]):
                if depends(column, out, column.inputs[-1]):
                    known[i, k] = column, n + i
        cells, leaves = closed(known), differentiable(pair)

        def across(*xs: Any) -> list[Any]:
            like, found = xs[leaves[0]], list[Any]()
            for cell in cells:
                column, at = known.get(cell, (None, 0))
                pushed = column and derive.run(column, (*xs, like.ones()))
                found.append(pushed[at] if pushed else like.zeros())
            return found

        return Slopes(derive.trace(across, types_of(pair.inputs)), cells)


def depends(graph: Graph, out: Atom, on: Var) -> bool:
    """True if a value of the graph is made of another."""
    reached: set[Atom] = {on}
    for eqn in graph.eqns:
        if not reached.isdisjoint(eqn.inputs):
            reached.update(eqn.outs)
    return out in reached


def closed(cells: Iterable[tuple[int, int]]) -> Cells:
    """The cells that are not zero in any product of matrices that have these."""
    found = set(cells)
    while more := {(i, k) for i, j in found for m, k in found if j == m} - found:
        found |= more
    return tuple(sorted(found))


def own_of(pair: Graph, result: int, derive: Derive) -> tuple[Graph, Dims]:
    """(both elements, a result's cotangent) -> the cotangents of the own element, and of which of its
    numbers they are.
    """
    n, (out,) = len(pair.outputs), pair.outputs[result : result + 1]
    alone = Graph(pair.inputs, pair.eqns, (out,))
    into = tuple(i for i in differentiable(pair) if depends(pair, out, pair.inputs[n + i]))
    wanted = (*(False,) * n, *(i in into for i in range(n)))
    forward, backward, _ = derive.vjp(alone, wanted)

    def own(*xs: Any) -> list[Any]:
        return derive.run(backward, (*derive.run(forward, xs[:-1])[1:], xs[-1])) if into else []

    return derive.trace(own, (*types_of(pair.inputs), out.type)), into


def recurrence(cells: Cells, dtype: np.dtype) -> Graph:
    """The pair (Q P, Q p + q) of (P, p) and (Q, q), whose matrices have these cells, the others being
    zero.
    """
    eqns, t = list[Eqn](), ArrayType((), dtype)

    def made(op: Op, *xs: Var) -> Var:
        eqns.append(Eqn(op, xs, (Var(t),)))
        return eqns[-1].outs[0]

    def summed(i: int, column: Mapping[int, Var], more: Sequence[Var] = ()) -> Var:
        terms = [made(MUL, later[j, k], column[k]) for j, k in cells if j == i and k in column]
        return reduce(partial(made, ADD), (*terms, *more))

    rows = sorted({i for cell in cells for i in cell})
    earlier, later = ({c: Var(t) for c in cells} for _ in range(2))
    p, q = ({i: Var(t) for i in rows} for _ in range(2))
    columns = {k: {i: earlier[i, k] for i in rows if (i, k) in earlier} for k in rows}
    products = [summed(i, columns[k]) for i, k in cells]
    sums = [summed(i, p, (q[i],)) for i in rows]
    inputs = (*earlier.values(), *p.values(), *later.values(), *q.values())
    return Graph(inputs, tuple(eqns), (*products, *sums))


def recurred(
    cells: Cells, across: Values, own: Sequence[Value], axis: int, reverse: bool
) -> list[Value]:
    """The solution of v[i] = matrix[i] v[i - 1] + own[i], the matrices of these `cells`, whose values
    are `across`. What no cell is of is its own solution.
    """
    found, rows = list(own), sorted({i for cell in cells for i in cell})
    if rows:
        scan = AssociativeScan(recurrence(cells, own[0].dtype), axis, reverse)
        for i, v in zip(rows, scan(*across, *(own[i] for i in rows))[len(cells) :], strict=True):
            found[i] = v
    return found


def solved(a: Value, b: Value, axis: int, reverse: bool = False) -> Value:
    """The solution of s[i] = b[i] + a[i - 1] s[i - 1], s[0] = b[0]; `a` is shorter by one.

    With `reverse` of s[i] = b[i] + a[i] s[i + 1], the last being that of b.
    """
    scan = AssociativeScan(recurrence(((0, 0),), b.dtype), axis, reverse)
    if b.shape[axis] < 2:
        return b
    _, found = scan(scan.joined(scan.first(b).zeros(), a), b)
    return found  # type: ignore[no-any-return]


def prefixes(f: Callable[..., list[Any]], *xs: Value) -> Sequence[Value]:
    """All elements up to each one of arrays along their first axis, combined by a function of scalars:
    of the earlier element's, then of the later's.
    """
    types = [x.type.with_shape(()) for x in xs]
    return AssociativeScan(TRACING[0](f, (*types, *types)), 0)(*xs)  # type: ignore[no-any-return]


@final
@record
class AssociativeScanSaving(Alike):
    """An associative scan whose cotangents are to be asked: `across` and `cells` are those of
    `Slopes`; `owns` compute the cotangents of the elements `into`, of that of each result.
    """

    pair: Graph
    axis: int
    reverse: bool
    across: Graph
    cells: Cells
    owns: tuple[Graph, ...]
    into: tuple[Dims, ...]
    name = "associative_scan_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.pair, self.across, *self.owns)

    def plain(self) -> AssociativeScan:
        return AssociativeScan(self.pair, self.axis, self.reverse)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """v[i] = ct[i] + A[i + 1]' v[i + 1]; the cotangents of elements are B[i]' v[i]."""
        plain, leaves = self.plain(), differentiable(self.pair)
        given = {k: ct for k, i in enumerate(leaves) if (ct := cts[i]) is not None}
        if xs[0].shape[self.axis] < 2 or not given:
            return list(cts)
        around = *map(plain.before, ys), *map(plain.after, xs)
        sums = self.summed(plain, given, around)
        found = list[Value | None]([None] * len(xs))
        for k, v in sums.items():
            own = self.owns[k](*around, plain.after(v))
            for i, x in zip(self.into[k], own, strict=True):
                known, x = found[i], plain.spread(x, v)
                found[i] = x if known is None else known + x
        # the first element is its own result
        firsts = {i: plain.first(sums[k]) for k, i in enumerate(leaves) if k in sums}
        for i, x in enumerate(found):
            if i in firsts or x is not None:
                rest = plain.after(xs[i]).zeros() if x is None else x
                first = firsts[i] if i in firsts else plain.first(xs[i]).zeros()
                found[i] = plain.joined(first, rest)
        return found

    def summed(
        self, plain: AssociativeScan, given: Mapping[int, Value], around: Values
    ) -> dict[int, Value]:
        """Returns the sums v by the number of their result; results whose sums are zero have none."""
        rows = set(given)
        while more := {k for i, k in self.cells if i in rows} - rows:
            rows |= more
        like = next(iter(given.values()))
        matrix = {
            (k, i): plain.spread(x, like)
            for (i, k), x in zip(self.cells, self.across(*around), strict=True)
            if i in rows
        }
        turned = tuple(sorted(matrix))
        across = [plain.joined(matrix[c], plain.first(matrix[c]).zeros()) for c in turned]
        own = [given.get(k, like.zeros()) for k in range(len(self.owns))]
        found = recurred(turned, across, own, self.axis, not self.reverse)
        return {k: found[k] for k in sorted(rows)}


# -------------------------------------------------------------------------------- what targets run


@final
@record
class Prefixes(OfGraph):
    """An associative scan as a kernel computes it: of its results, those that are read (`results`)."""

    jaxpr: Graph
    axis: int
    reverse: bool
    results: Dims
    name = "prefixes"

    def infer(self, *types: ArrayType) -> Types:
        every = AssociativeScan(self.jaxpr, self.axis, self.reverse).infer(*types)
        return tuple(every[i] for i in self.results)

    def reference(self, *arrays: Any) -> Any:
        every = AssociativeScan(self.jaxpr, self.axis, self.reverse).reference(*arrays)
        return tuple(every[i] for i in self.results)


def as_kernels(graph: Graph) -> Graph:
    """The graph with each associative scan as a kernel that stores only results that are read."""
    used: set[Atom] = {*graph.outputs, *(a for e in graph.eqns for a in e.inputs)}
    eqns = list[Eqn]()
    for e in graph.eqns:
        op = e.op.plain() if isinstance(e.op, AssociativeScanSaving) else e.op
        if not isinstance(op, AssociativeScan):
            eqns.append(e)
            continue
        results = [i for i, v in enumerate(e.outs) if v in used]
        pair, leaves = without_others(op.pair, results)
        inputs, outs = tuple(e.inputs[i] for i in leaves), tuple(e.outs[i] for i in results)
        kernel = Prefixes(pair, op.axis, op.reverse, tuple(map(leaves.index, results)))
        eqns += [Eqn(kernel, inputs, outs, e.source)] if results else []
    return replace(graph, eqns=tuple(eqns))


def needed(pair: Graph, results: Iterable[int], sides: Dims = (0, 1)) -> list[int]:
    """The numbers of the arrays that results are computed from; with `sides` (0,), by earlier elements."""
    n, found = len(pair.outputs), set(results)
    while more := [i for i in range(n) if i not in found and is_read(pair, i, found, sides)]:
        found.update(more)
    return sorted(found)


def is_read(pair: Graph, i: int, results: Iterable[int], sides: Dims) -> bool:
    """True if any of the results is made of element i of the one before (side 0), or of its own (1)."""
    n = len(pair.outputs)
    given = [pair.inputs[side * n + i] for side in sides]
    return any(depends(pair, pair.outputs[k], v) for k in results for v in given)


def without_others(pair: Graph, results: Sequence[int]) -> tuple[Graph, list[int]]:
    """`pair` without arrays that the results do not depend on, and the numbers of the others."""
    n, leaves = len(pair.outputs), needed(pair, results)
    inputs = tuple(pair.inputs[at + i] for at in (0, n) for i in leaves)
    outputs = tuple(pair.outputs[i] for i in leaves)
    return without_dead_code(Graph(inputs, pair.eqns, outputs)), leaves


def in_turn(op: Prefixes, *xs: Value) -> list[Value]:
    """The results of a scan by a loop along the first axis, whose carry is the element before."""
    shape, count = xs[0].shape, len(xs)
    scan = AssociativeScan(op.jaxpr, 0, op.reverse)
    carried = needed(op.jaxpr, op.results, sides=(0,))
    firsts = {i: scan.first(xs[i]) for i in carried}
    body = of_arrays(op.jaxpr, shape[1:])
    outputs = tuple(body.outputs[i] for i in (*carried, *op.results))
    inputs = (*(body.inputs[i] for i in carried), *body.inputs[count:])
    body = without_dead_code(replace(body, inputs=inputs, outputs=outputs))
    loop = ScanLoop(body, shape[0] - 1, 0, len(carried), op.reverse)
    found = loop(*(x.reshaped(shape[1:]) for x in firsts.values()), *map(scan.after, xs))
    return [
        scan.joined(firsts[i], y) for i, y in zip(op.results, found[len(carried) :], strict=True)
    ]


def of_arrays(pair: Graph, shape: Dims) -> Graph:
    """A graph of scalars as one of arrays of a shape."""
    eqns, env = list[Eqn](), dict[Var, Atom]()
    env.update((v, Var(v.type.with_shape(shape))) for v in pair.inputs)
    for e in pair.eqns:
        env[e.outs[0]] = applied(eqns, e.op, *rename(env, e.inputs), source=e.source)
    outputs = [
        a if a.type.shape == shape else applied(eqns, BroadcastInDim(shape, ()), a)
        for a in rename(env, pair.outputs)
    ]
    inputs = tuple(v for v in rename(env, pair.inputs) if isinstance(v, Var))
    return Graph(inputs, tuple(eqns), tuple(outputs))
