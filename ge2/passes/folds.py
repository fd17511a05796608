"""Folds that are rewritten: over pairs, of which mirrored ones are one, and of exponentials beside a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from ge2.base.arrays import FLOAT32, FLOAT64, HALF
from ge2.base.record import computed, record
from ge2.base.source import Source
from ge2.ir import (
    Atom,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    renamed,
    without_dead_code,
)
from ge2.ops.elementwise import ADD, BY_NAME, MUL, NEG, SQUARE, WHERE, MultiplyAdd
from ge2.ops.graphs.region import is_repeated, readers_of
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import Reduce, ReduceDeviations, ReduceMax, ReduceSum, ReduceSumExp, kept
from ge2.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Reshape,
    joined_of,
    place_along,
    unshaped,
    unspread,
)  # fmt: skip
from ge2.passes.context import NOTHING, Context, Fusion, ShortSums

Makers = Mapping[Atom, Eqn]


# -------- Two folds over the two axes of pairs of points, of what is the same, or the negative, where
# a pair is turned around.
# The gradient of sum(f(x[:, None] - x)) adds up what each pair does to its first element, and what it
# does to its second. Either sum goes through all pairs; the second is the first, or its negative.


@final
@record
class Mirror:
    """The element at the transposed place of each element of a value: that of `value`, or its
    negative; `exact`: also in the signs of zeros.
    """

    value: Atom
    negative: bool = False
    exact: bool = True


@final
class Mirrors:
    """Values where two neighbouring axes of one length are exchanged."""

    def __init__(self, graph: Graph) -> None:
        self.eqns, self.makers = graph.eqns, makers_of(graph)
        self.known = dict[tuple[Atom, int, int], Mirror | None]()

    @computed  # hardly ever asked for
    def made(self) -> dict[tuple[Op, tuple[Atom, ...]], Var]:
        return {(e.op, e.inputs): e.outs[0] for e in self.eqns if len(e.outs) == 1}

    def of(self, x: Atom, a: int, b: int) -> Mirror | None:
        """The mirror of a value, if the graph has it."""
        if isinstance(x, Literal) or not x.type.shape:
            return Mirror(x)
        if (x, a, b) not in self.known:
            self.known[x, a, b] = self.found(x, a, b)
        return self.known[x, a, b]

    def found(self, x: Var, a: int, b: int) -> Mirror | None:
        e = self.makers.get(x)
        if e is None or len(e.outs) > 1 or e.op.effect or isinstance(e.op, Draw):
            return None
        if isinstance(e.op, BroadcastInDim):
            return self.spread(e, e.op, a, b)
        if isinstance(e.op, Reduce):
            a, b = (kept(e.op.axes, e.inputs[0].type.ndim)[n] for n in (a, b))
            inner = self.of(e.inputs[0], a, b)
            linear = isinstance(e.op, ReduceSum) or (inner is not None and inner.exact)
            return self.same(e.op, inner) if inner is not None and linear else None
        if not isinstance(e.op, Pointlike):
            return None
        found = [m for y in e.inputs if (m := self.of(y, a, b)) is not None]
        return self.computed(e, found) if len(found) == len(e.inputs) else None

    def same(self, op: Op, inner: Mirror) -> Mirror | None:
        """The same operation on the mirror of its only operand."""
        found = self.made.get((op, (inner.value,)))
        return None if found is None else replace(inner, value=found)

    def spread(self, e: Eqn, op: BroadcastInDim, a: int, b: int) -> Mirror | None:
        """A row that is repeated down, of which the mirror is the column that is repeated across."""
        if a in op.dims and b in op.dims:
            inner = self.of(e.inputs[0], op.dims.index(a), op.dims.index(b))
            return self.same(op, inner) if inner is not None else None
        turned = tuple({a: b, b: a}.get(d, d) for d in op.dims)
        found = self.made.get((replace(op, dims=turned), e.inputs))
        return None if found is None else Mirror(found)

    def computed(self, e: Eqn, xs: Sequence[Mirror]) -> Mirror | None:
        name, values = e.op.name, tuple(m.value for m in xs)
        exact, negative = all(m.exact for m in xs), [m.negative for m in xs]
        if name in ("mul", "square") and len({*e.inputs}) == 1:  # a square has no sign
            return self.either(e.op, values)
        if name in ("neg", "mul") or (name == "div" and xs[1].exact):
            # the sign of an infinite quotient is that of a zero it is divided by
            return self.either(e.op, values, sum(negative) % 2 == 1, exact)
        if name in ("add", "sub") and len({*negative}) == 1:
            found = self.either(e.op, values, negative[0], exact and not any(negative))
            if found is None and name == "sub":
                return self.either(e.op, values[::-1], not negative[0], False)
            return found
        return self.either(e.op, values) if exact and not any(negative) else None

    def either(
        self, op: Op, values: tuple[Atom, ...], negative: bool = False, exact: bool = True
    ) -> Mirror | None:
        found = self.made.get((op, values))
        if found is None and op.name in ("add", "mul", "eq", "ne"):
            found = self.made.get((op, values[::-1]))
        return None if found is None else Mirror(found, negative, exact)


def mirrored(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with one of two such folds, and with factors of a sum over pairs after it."""
    tuning = context.tuning.short_sums
    if not any(is_over_pairs(e, tuning) or is_over_all_pairs(e, tuning) for e in graph.eqns):
        return graph
    return Folds(graph, tuning).run()


def is_over_pairs(e: Eqn, tuning: ShortSums) -> bool:
    """True of a reduction along one axis, that is not short, of many elements."""
    if not isinstance(e.op, Reduce) or len(e.op.axes) != 1:
        return False
    x, (axis,) = e.inputs[0].type, e.op.axes
    many = x.size >= tuning.elements and x.shape[axis] > tuning.terms
    return many and x.dtype in (FLOAT32, FLOAT64)


def is_over_all_pairs(e: Eqn, tuning: ShortSums) -> bool:
    """True of a sum over two long axes, each of which a GPU has enough work along."""
    if not isinstance(e.op, ReduceSum) or len(e.op.axes) != 2:
        return False
    x, long = e.inputs[0].type, tuning.lines
    large = all(x.shape[a] >= long for a in e.op.axes) and x.size >= tuning.elements
    return large and x.dtype in (FLOAT32, FLOAT64)


@final
class Folds:
    """The folds of a graph over pairs, one after another."""

    def __init__(self, graph: Graph, tuning: ShortSums) -> None:
        self.graph, self.tuning, self.mirrors = graph, tuning, Mirrors(graph)
        self.parts = Parts(graph, tuning)
        self.done = dict[tuple[Op, Atom], Atom]()  # results, by the fold and what it folds
        # the axis that all sums over pairs go along, where they may
        self.axis = next(
            (e.op.axes[0] for e in graph.eqns if is_over_pairs(e, tuning)),  # type: ignore[attr-defined]
            None,
        )
        self.scaled = dict[tuple[Atom, float], Atom]()  # and their multiples

    def run(self) -> Graph:
        env = dict[Var, Atom]()
        eqns = self.parts.eqns
        for e in self.graph.eqns:
            e = renamed(env, e)
            whole = is_over_all_pairs(e, self.tuning)
            folds = whole or is_over_pairs(e, self.tuning)
            if folds and self.parts.is_of_small(e.inputs[0]):
                env[e.outs[0]] = self.whole(e) if whole else self.fold(e)
                continue
            eqns.append(e)
        outputs = tuple(env.get(a, a) if isinstance(a, Var) else a for a in self.graph.outputs)
        made = replace(self.graph, eqns=tuple(eqns), outputs=outputs)
        return without_dead_code(made) if env else self.graph

    def whole(self, e: Eqn) -> Atom:
        """A sum over all pairs, as one along an axis, and of what that leaves."""
        op = e.op
        assert isinstance(op, ReduceSum)
        one, other = op.axes if self.axis == op.axes[0] else op.axes[::-1]
        lines = self.fold(replace(e, op=over(op, one)))
        return self.parts.add(over(op, other - (other > one)), lines)

    def fold(self, e: Eqn) -> Atom:
        """The result of a fold, or a multiple of an earlier one's."""
        self.parts.source, op = e.source, e.op
        assert isinstance(op, Reduce)
        is_sum = isinstance(op, ReduceSum)
        x, factor = self.base(e.inputs[0]) if is_sum else (e.inputs[0], 1.0)
        (axis,), shape = op.axes, x.type.shape
        for other in (axis - 1, axis + 1):
            alike = 0 <= other < len(shape) and shape[axis] == shape[other]
            mirror = self.mirrors.of(x, min(axis, other), max(axis, other)) if alike else None
            if mirror is None or not (is_sum or (mirror.exact and not mirror.negative)):
                continue
            y, by = self.base(mirror.value) if is_sum else (mirror.value, 1.0)
            found = self.done.get((over(op, other), y))
            if found is not None:
                return self.times(found, factor * by * (-1.0 if mirror.negative else 1.0))
        result = self.done[op, x] = self.parts.add(op, x)
        return self.times(result, factor)

    def base(self, x: Atom) -> tuple[Atom, float]:
        """The value that another one is a multiple of, and the factor: a power of two, so that
        nothing is rounded otherwise, and none below 1, or a sum might overflow that does not.
        """
        factor = 1.0
        while isinstance(x, Var) and (e := self.mirrors.makers.get(x)) is not None:
            by = [a for a in e.inputs if isinstance(a, Literal)] if e.op is MUL else []
            if e.op is NEG:
                factor = -factor
            elif e.op is ADD and e.inputs[0] is e.inputs[1]:
                factor *= 2
            elif by and is_power(number(by[0])) and abs(number(by[0])) >= 1:
                factor *= number(by[0])
            else:
                break
            x = next(a for a in e.inputs if not isinstance(a, Literal))
        return x, factor

    def times(self, x: Atom, factor: float) -> Atom:
        if factor == 1:
            return x
        if (x, factor) not in self.scaled:
            by = () if factor == -1 else (Literal.of(x.type.dtype.type(factor)),)
            self.scaled[x, factor] = self.parts.add(MUL if by else NEG, x, *by)
        return self.scaled[x, factor]


def over(op: Reduce, axis: int) -> Reduce:
    """The same fold over another axis."""
    return replace(op, axes=(axis,))  # type: ignore[type-var]


def number(x: Literal) -> float:
    return float(x.value)  # type: ignore[arg-type]


def is_power(x: float) -> bool:
    """True of powers of two, and their negatives.

    >>> is_power(-0.5), is_power(3.0), is_power(0.0)
    (True, False, False)
    """
    return math.isfinite(x) and abs(math.frexp(x)[0]) == 0.5


# -------- Sums of a few terms each, over many more elements than the arrays have that they are made of.
# sum((x[:, None] - c) ** 2, -1) is over 2^20 x 64 x 8 elements, made of 2^20 x 8 and 64 x 8: a kernel
# that folds them, and goes on with another fold, would leave the 2^26 sums in memory between.
# And folds of a few columns each, which have what is large in common: forces of three coordinates, or
# lines of weights, across which a thread for each column would read.


def short_sums(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with the terms of such sums written out, each made of its own part of the arrays."""
    tuning = context.tuning.short_sums
    parts, eqns = Parts(graph, tuning), list[Eqn]()
    for e in graph.eqns:
        if parts.is_joined(e) or (has_short_sums(e, tuning) and parts.is_made(e)):
            eqns += parts.summed(e)
        elif (axis := parts.short_axis(e)) >= 0 and parts.shares(e.inputs[0], axis):
            eqns += parts.folded(e, axis)
        else:
            eqns.append(e)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def has_few_terms(eqn: Eqn, tuning: ShortSums) -> bool:
    if not isinstance(eqn.op, ReduceSum) or len(eqn.op.axes) != 1:
        return False
    x, (axis,) = eqn.inputs[0].type, eqn.op.axes
    return 1 < x.shape[axis] <= tuning.terms and x.dtype in (FLOAT32, FLOAT64)


def has_short_sums(eqn: Eqn, tuning: ShortSums) -> bool:
    return has_few_terms(eqn, tuning) and eqn.inputs[0].type.size >= tuning.elements


@final
class Parts:
    """Values at a place along an axis, which they do not have; `eqns`: what makes them."""

    def __init__(self, graph: Graph, tuning: ShortSums) -> None:
        self.makers, self.readers, self.tuning = makers_of(graph), readers_of(graph), tuning
        self.source: Source | None = None
        self.eqns, self.made = list[Eqn](), dict[tuple[Var, int, int], Atom]()
        self.sizes = dict[Atom, int]()  # of the largest arrays that values are made of

    def summed(self, e: Eqn) -> list[Eqn]:
        """A sum over a few terms, as sums of two."""
        (x,), (axis,) = e.inputs, e.op.axes  # type: ignore[attr-defined]
        self.eqns, self.source = [], e.source
        product, count = self.product(x), x.type.shape[axis]
        total = self.term(x, axis, 0)
        for k in range(1, count):
            terms = [self.term(y, axis, k) for y in product or (x,)]
            inputs = (*terms, total) if product else (total, *terms)
            total = self.add(MultiplyAdd() if product else ADD, *inputs)
        return self.given(e)

    def product(self, x: Atom) -> tuple[Atom, Atom] | None:
        """The factors of what is added up, if it is a product or a square."""
        e = self.within(x) if isinstance(x, Var) else None
        if e is None or e.op not in (MUL, SQUARE):
            return None
        return e.inputs[0], e.inputs[-1]

    def folded(self, e: Eqn, axis: int) -> list[Eqn]:
        """A fold of a few columns, as a fold for each."""
        (x,), op = e.inputs, e.op
        assert isinstance(op, Reduce)
        self.eqns, self.source, found = [], e.source, list[Atom]()
        shape = e.outs[0].type.shape
        for k in range(x.type.shape[axis]):
            one = self.add(over(op, *op.axes), self.term(x, axis, k))
            found.append(self.add(Reshape((*shape[:-1], 1)), one))
        self.add(Concatenate(len(shape) - 1), *found)
        return self.given(e)

    def given(self, e: Eqn) -> list[Eqn]:
        """The equations, of which the last makes the result of another."""
        *before, last = self.eqns
        return [*before, replace(last, outs=e.outs)]

    # -- what is worth it

    def is_made(self, e: Eqn) -> bool:
        """True if few equations make a sum's terms, and nothing that is nearly as large is read."""
        (x,), (axis,) = e.inputs, e.op.axes  # type: ignore[attr-defined]
        made, read = self.behind(x, self.within)
        few = 0 < len(made) * x.type.shape[axis] <= self.tuning.equations
        return few and all(a.type.size * self.tuning.times <= x.type.size for a in read)

    def is_joined(self, e: Eqn) -> bool:
        """True of a sum of few terms that are made of single elements side by side: nothing joins them."""
        if not has_few_terms(e, self.tuning):
            return False
        (x,), (axis,) = e.inputs, e.op.axes  # type: ignore[attr-defined]
        made, read = self.behind(x, self.within)
        joins = [v.type.shape == x.type.shape and joined_of(self.makers, v, axis) for v in read]
        few = len(made) * x.type.shape[axis] <= self.tuning.equations
        return few and bool(joins) and all(joins)

    def is_of_small(self, x: Atom) -> bool:
        """The same of a value of which sums of few terms may be a part."""
        made = isinstance(x, Var) and x.type.shape and self.short(x) is not None
        return bool(made) and self.largest(x) * self.tuning.times <= x.type.size

    def largest(self, x: Atom) -> int:
        """The elements of the largest array of which a value is made, as far as `short` tells; kept,
        since a loop written out asks for a chain that grows.
        """
        waiting = [x]
        while waiting:
            v = waiting[-1]
            if v in self.sizes or isinstance(v, Literal) or not v.type.shape:
                waiting.pop()
                continue
            e = self.short(v)
            inputs = [a for a in e.inputs if isinstance(a, Var) and a.type.shape] if e else []
            if missing := [a for a in inputs if a not in self.sizes]:
                waiting += missing
                continue
            found = (self.sizes[a] for a in inputs)
            self.sizes[v] = max(found, default=0) if e else v.type.size
        return self.sizes.get(x, 0)

    def short_axis(self, e: Eqn) -> int:
        """The last axis of what is folded, if each of its few columns is to be a fold of its own; else -1."""
        if not is_over_pairs(e, self.tuning):
            return -1
        (x,), (axis,), tuning = e.inputs, e.op.axes, self.tuning  # type: ignore[attr-defined]
        last, n, length = x.type.ndim - 1, x.type.shape[-1], x.type.shape[axis]
        narrow = isinstance(e.op, ReduceSum) and axis == last - 1 and n <= tuning.narrow
        read = self.behind(x, self.within)[1] if narrow and length >= tuning.line else []
        lines = [self.makers.get(v) for v in read if v.type.size == x.type.size]
        # rows at indices would be an array if they were cut
        whole = lines and not any(m is not None and isinstance(m.op, Gather) for m in lines)
        short = axis != last > 1 < n <= tuning.terms
        return last if short and (whole or self.is_of_small(x)) else -1

    def shares(self, x: Atom, axis: int) -> bool:
        """True if columns are made of what they have in common."""
        made, read = self.behind(x, partial(self.across, axis))
        large = x.type.size // x.type.shape[axis]
        lines = [self.makers[v] for v in read if self.is_common(self.within(v), axis)]
        common = any(e.inputs[0].type.size == large for e in lines)
        return common and len(made) * x.type.shape[axis] <= self.tuning.equations

    def behind(self, x: Atom, maker: Callable[[Var], Eqn | None]) -> tuple[list[Eqn], list[Var]]:
        """The equations that make a value, as far as a function tells them, and what these read."""
        seen, waiting, made, read = set[Var](), [x], list[Eqn](), list[Var]()
        while waiting:
            v = waiting.pop()
            if isinstance(v, Literal) or v in seen or not v.type.shape:
                continue
            seen.add(v)
            if (e := maker(v)) is None:
                read.append(v)
                continue
            made.append(e)
            waiting += e.inputs
        return made, read

    def within(self, v: Var) -> Eqn | None:
        """The elementwise equation, or the broadcast, that makes a value."""
        e = self.makers.get(v)
        if e is None or len(e.outs) > 1 or e.op.effect or isinstance(e.op, Draw):
            return None
        return e if isinstance(e.op, Pointlike | BroadcastInDim) else None

    def short(self, v: Var) -> Eqn | None:
        """The same, and a sum of few terms."""
        e = self.makers.get(v)
        return e if e is not None and has_short_sums(e, self.tuning) else self.within(v)

    def across(self, axis: int, v: Var) -> Eqn | None:
        """The same as `within`, of values of which each column is made for itself."""
        e = self.within(v)
        return None if e is not None and self.is_common(e, axis) else e

    def is_common(self, e: Eqn | None, axis: int) -> bool:
        """True of a broadcast along an axis: all columns are alike."""
        return e is not None and isinstance(e.op, BroadcastInDim) and axis not in e.op.dims

    # -- their terms

    def add(self, op: Op, *inputs: Atom) -> Var:
        return applied(self.eqns, op, *inputs, source=self.source)

    def term(self, x: Atom, axis: int, k: int, stored: bool = False) -> Atom:
        """The elements of x at a place along an axis, which they do not have; `stored`: read from x."""
        if isinstance(x, Literal) or not x.type.shape:
            return x
        if (x, axis, k) not in self.made:
            self.made[x, axis, k] = self.at(x, axis, k, None if stored else self.within(x))
        return self.made[x, axis, k]

    def at(self, x: Var, axis: int, k: int, e: Eqn | None) -> Atom:
        shape = x.type.shape
        rest = (*shape[:axis], *shape[axis + 1 :])
        if e is None and (parts := joined_of(self.makers, x, axis)):
            return self.add(Reshape(rest), parts[k])
        if e is None:
            return self.add(Reshape(rest), self.add(place_along(shape, axis, k), x))
        if not isinstance(e.op, BroadcastInDim):
            return self.add(e.op, *(self.term(a, axis, k) for a in e.inputs))
        (y,), dims = e.inputs, [d - (d > axis) for d in e.op.dims if d != axis]
        if axis in e.op.dims:
            n = e.op.dims.index(axis)
            y = self.term(y, n, k if y.type.shape[n] > 1 else 0, is_repeated(y, self.readers))
        if tuple(dims) == tuple(range(len(rest))):
            return y
        return self.add(BroadcastInDim(rest, tuple(dims)), y)


# -------- Sums of exponentials beside the maximum of long rows, and of squares beside the mean:
# m = reduce_max x; s = reduce_sum (exp (x - m)) -> m = reduce_max x; s = reduce_sum_exp x
# m = reduce_sum x / n; s = reduce_sum (square (x - m)) -> m = ...; s = reduce_deviations x
# A row that is too long to stay where it was read would be read once for its maximum, or its mean,
# and again for the sum. Both are folds of x, done at once. The sum of exponentials is kept relative
# to an element that is not much less than the largest so far, and is turned to a larger one where
# it comes to be (M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018);
# that of squares is kept about the mean so far.


EXP, SUB, FINITE, DIV = (BY_NAME[name] for name in ("exp", "sub", "is_finite", "div"))


def online_sums(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with such sums over long rows as folds of x alone."""
    fusion, makers = context.tuning.fusion, makers_of(graph)
    found, beside = set[Var](), dict[Var, list[Eqn]]()
    for e in graph.eqns:
        if not isinstance(e.op, ReduceSum):
            continue
        made = summed_exps(e, makers) if folded(e) > fusion.row else None
        if made := made or summed_squares(e, makers, fusion):
            found.add(e.outs[0])
            beside.setdefault(made[0], []).extend(made[1])
    if not found:
        return graph
    eqns = list[Eqn]()
    for e in graph.eqns:
        if not e.outs or e.outs[0] not in found:
            eqns.append(e)
            eqns += beside.get(e.outs[0], ()) if e.outs else ()
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def folded(eqn: Eqn) -> int:
    """The elements that a reduction makes one of."""
    return math.prod(eqn.inputs[0].type.shape[a] for a in eqn.op.axes)  # type: ignore[attr-defined]


def summed_exps(eqn: Eqn, makers: Makers) -> tuple[Var, list[Eqn]] | None:
    """The maximum, and the equations beside it, where an equation sums exp(x - max x). Where 0
    stood for a maximum that is not finite, the sum is exp(m).
    """
    apart = operands(makers, eqn.inputs[0], EXP)
    if not apart or (parts := shifted(eqn, makers, apart[0])) is None:
        return None
    x, m = parts
    plain = finite_or_zero(makers, m)
    most = makers.get(m if plain is None else plain)
    if most is None or most.op != ReduceMax(eqn.op.axes) or most.inputs[0] is not x:  # type: ignore[attr-defined]
        return None
    op, (m,) = ReduceSumExp(eqn.op.axes), most.outs  # type: ignore[attr-defined]
    if plain is None:
        return m, [replace(eqn, op=op, inputs=(x,))]
    made = [Eqn(op, (x,), (Var(eqn.outs[0].type),), eqn.source)]
    for other, inputs in ((FINITE, (m,)), (EXP, (m,))):
        made.append(Eqn(other, inputs, tuple(map(Var, other.infer(m.type))), eqn.source))
    s, test, exp = (each.outs[0] for each in made)
    return m, [*made, replace(eqn, op=WHERE, inputs=(test, s, exp))]


def summed_squares(eqn: Eqn, makers: Makers, fusion: Fusion) -> tuple[Var, list[Eqn]] | None:
    """The sum of x, and the equation beside it, where an equation sums (x - mean x)^2 over long rows
    or columns.
    """
    x = eqn.inputs[0].type
    columns = x.ndim - 1 not in eqn.op.axes  # type: ignore[attr-defined]
    if (x.nbytes <= fusion.columns_again) if columns else (folded(eqn) <= fusion.row_again):
        return None
    factors = operands(makers, eqn.inputs[0], SQUARE) or operands(makers, eqn.inputs[0], MUL)
    if not factors or factors[0] is not factors[-1] or eqn.outs[0].type.dtype in HALF:
        return None
    parts = shifted(eqn, makers, factors[0]) or shifted(eqn, makers, factors[0], turned=True)
    if parts is None:
        return None
    sum_of = total_of_mean(makers, parts[1], folded(eqn))
    total = None if sum_of is None else makers.get(sum_of)
    if total is None or total.op != eqn.op or total.inputs[0] is not parts[0]:
        return None
    op = ReduceDeviations(eqn.op.axes)  # type: ignore[attr-defined]
    return total.outs[0], [replace(eqn, op=op, inputs=total.inputs)]


def shifted(
    eqn: Eqn, makers: Makers, apart: Atom, turned: bool = False
) -> tuple[Atom, Atom] | None:
    """x and m, of x - m, or m - x if `turned`, where m is repeated along the axes that are folded."""
    pair = operands(makers, apart, SUB)
    pair = pair[::-1] if turned else pair
    if not pair or (seen := unspread(makers, *pair)) is None:
        return None
    m, dims = seen
    rest = kept(eqn.op.axes, pair[0].type.ndim)  # type: ignore[attr-defined]
    return (pair[0], m) if dims == rest else None


def total_of_mean(makers: Makers, m: Atom, count: int) -> Atom | None:
    """The sum of so many elements that a mean is of, which may have had axes of one element."""
    mean = unshaped(makers, m)
    of_products = operands(makers, mean, MUL)
    ways = (
        (operands(makers, mean, DIV), count),
        (of_products, 1 / count),
        (of_products[::-1], 1 / count),
    )
    for pair, by in ways:
        if pair and isinstance(pair[1], Literal) and pair[1].value == m.type.dtype.type(by):
            total = unshaped(makers, pair[0])
            return total if total.type.shape == m.type.shape else None
    return None


def operands(makers: Makers, a: Atom, op: Any) -> tuple[Atom, ...]:
    """The operands of the equation that makes a value, if it is of this operation."""
    eqn = makers.get(a)
    return eqn.inputs if eqn is not None and eqn.op == op else ()


def finite_or_zero(makers: Makers, a: Atom) -> Atom | None:
    """m, of a value that is where(isfinite(m), m, 0)."""
    where = operands(makers, a, WHERE)
    if len(where) != 3 or not (isinstance(where[2], Literal) and where[2].value == 0):
        return None
    return where[1] if operands(makers, where[0], FINITE) == (where[1],) else None
