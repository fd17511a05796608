"""The function that makes a score of a product, and its derivative."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT16, FLOAT32, FLOATS, INT64, INTEGERS
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.attention import FEATURE, INT32, REPEATED, VIEWS, Band
from ge2.ops.attention.form import (
    FAINT,
    MILD,
    Form,
    TwoValued,
    faint,
    is_literal,
    is_scaling,
    two_valued,
    value_of,
)
from ge2.ops.attention.graphs import Read, scores_dtype
from ge2.ops.attention.ops import product_axes
from ge2.ops.elementwise import (
    ADD,
    AND,
    EQ,
    GE,
    GT,
    LE,
    LT,
    MUL,
    NE,
    NEG,
    NOT,
    SUB,
    WHERE,
    ConvertElementType,
)
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Transpose

# -------- What a score is made of its product: which keys are seen at all, and a common factor.


COMPARED: Final[Mapping[Op, Callable[[float, float], bool]]] = {
    EQ: operator.eq,
    NE: operator.ne,
    LE: operator.le,
    LT: operator.lt,
    GE: operator.ge,
    GT: operator.gt,
}


@final
@record
class Affine:
    """An index as a sum: `by` the axes of a value, and `more`."""

    by: tuple[tuple[int, int], ...]
    more: int = 0

    def plus(self, other: Affine, sign: int) -> Affine:
        total = dict(self.by)
        for a, n in other.by:
            total[a] = total.get(a, 0) + sign * n
        by = tuple(sorted((a, n) for a, n in total.items() if n))
        return Affine(by, self.more + sign * other.more)

    def moved(self, to: Mapping[int, int]) -> Affine | None:
        """It by other axes; None if one of its own is gone."""
        if any(a not in to for a, _ in self.by):
            return None
        return Affine(tuple(sorted((to[a], n) for a, n in self.by)), self.more)


class Indices:
    """Indices and comparisons of them, among the equations that make scores."""

    def __init__(self, eqns: Iterable[Eqn]) -> None:
        self.makers: dict[Atom, Eqn] = {e.outs[0]: e for e in eqns}

    def affine(self, a: Atom) -> Affine | None:
        """An index in terms of the axes of the value."""
        if isinstance(a, Literal):
            whole = a.type.dtype in INTEGERS and not a.type.shape
            return Affine((), int(a.value)) if whole else None  # type: ignore[arg-type]
        eqn = self.makers.get(a)
        if eqn is None or a.type.dtype not in INTEGERS:
            return None
        op = eqn.op
        if isinstance(op, Iota):
            return Affine(((op.axis, 1),))
        xs = [self.affine(x) for x in eqn.inputs]
        if not xs or any(x is None for x in xs):
            return None
        x, *more = (each for each in xs if each is not None)
        if op is ADD or op is SUB:
            return x.plus(more[0], 1 if op is ADD else -1)
        if op is NEG:
            return Affine(()).plus(x, -1)
        if isinstance(op, ConvertElementType):
            return x
        to = moved_axes(op, eqn.inputs[0].type.shape, a.type.shape)
        return None if to is None else x.moved(to)

    def band(self, a: Atom, row: int, key: int) -> Band | None:
        """A mask over axes `row` and `key` as a band; None if it is none."""
        eqn = self.makers.get(a)
        if eqn is None:
            return None
        op = eqn.op
        if op is AND:
            parts = [self.band(x, row, key) for x in eqn.inputs]
            return None if None in parts else parts[0].both(parts[1])  # type: ignore[union-attr,arg-type]
        if op is NOT:
            return complement(self.band(eqn.inputs[0], row, key))
        if op in COMPARED and is_literal(eqn.inputs[1]):
            return self.compared(eqn, row, key)
        if op in (LE, LT, GE, GT):
            x, y = map(self.affine, eqn.inputs)
            if x is None or y is None:
                return None
            less, more = (x, y) if op in (LE, LT) else (y, x)
            return bounded(more.plus(less, -1), op in (LT, GT), row, key)
        if isinstance(op, VIEWS):
            to = moved_axes(op, eqn.inputs[0].type.shape, a.type.shape)
            back = {} if to is None else {b: c for c, b in to.items()}
            if row in back and key in back:
                return self.band(eqn.inputs[0], back[row], back[key])
        return None

    def compared(self, eqn: Eqn, row: int, key: int) -> Band | None:
        """The band where an array of two numbers compares so with another number."""
        two = two_valued(self.makers, eqn.inputs[0])
        if two is None:
            return None
        number, f = value_of(eqn.inputs[1]), COMPARED[eqn.op]
        holds = f(two.seen, number), f(two.hidden, number)
        if holds[0] == holds[1]:
            return None
        for view in reversed(two.views):
            to = moved_axes(view.op, view.inputs[0].type.shape, view.outs[0].type.shape)
            back = {} if to is None else {b: c for c, b in to.items()}
            if row not in back or key not in back:
                return None
            row, key = back[row], back[key]
        found = self.band(two.mask, row, key)
        return found if holds[0] else complement(found)


def bounded(rest: Affine, strict: bool, row: int, key: int) -> Band | None:
    """The band where an index is at least 0, or 1 if `strict`."""
    least, by = int(strict) - rest.more, dict(rest.by)
    if by == {row: 1, key: -1}:
        return Band(low=least)
    return Band(high=-least) if by == {row: -1, key: 1} else None


def moved_axes(op: Op, old: Dims, new: Dims) -> dict[int, int] | None:
    """Returns which axis of its result each long axis of an operand of a view is; None if some are
    no axis.
    """
    if isinstance(op, Transpose):
        return {a: n for n, a in enumerate(op.order)}
    if isinstance(op, BroadcastInDim):
        return dict(enumerate(op.dims))
    if isinstance(op, Reshape):
        mine, theirs = ([a for a, n in enumerate(s) if n != 1] for s in (old, new))
        if [old[a] for a in mine] == [new[a] for a in theirs]:
            return dict(zip(mine, theirs, strict=True))
    return None


# ------------------------------------------------------------------------------------------ scores


@final
@record
class Scores:
    """Scores as `factor` times what a graph makes of products: `edge`, of any, `whole`, of those
    whose keys are all seen. Others are not visited: outside of the `band`, if there is one. `finite`:
    what is not seen there has a number for a score, which counts where nothing is seen.
    """

    edge: Graph
    whole: Graph
    factor: float
    band: Band
    finite: bool

    @property
    def is_simple(self) -> bool:
        """True if most scores are the products, which leaves few registers in use."""
        return not self.whole.eqns


def scores_of(form: Form) -> Scores:
    """Returns what is known of the scores of attention."""
    return Analysis(form).run()


@final
class Analysis:
    """The way from scores back to their product: masks, numbers they are multiplied by, the rest."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.eqns = [*scalings(form), *form.between]
        env: dict[Var, Atom] = {}
        (start,) = form.dot.outs
        if len(self.eqns) > len(form.between):
            env[start] = self.eqns[len(self.eqns) - len(form.between) - 1].outs[0]
            n = len(self.eqns) - len(form.between)
            self.eqns[n:] = [renamed(env, e) for e in self.eqns[n:]]
        self.scores: Atom = rename(env, (form.scores,))[0]
        made = Graph((), tuple(as_masks(self.eqns)), (self.scores,))
        self.eqns = [*without_dead_code(made).eqns]
        self.inputs = (start, *form.others, *form.scalars)
        self.indices = Indices(self.eqns)
        row, key = form.row, form.key
        self.row = form.dims.index(row) if row in form.dims else -1
        self.key = form.dims.index(key)

    def run(self) -> Scores:
        masks = list[tuple[Eqn, Band]]()  # of which nothing but a band is known
        others = False  # whether other masks hide keys
        way, factor, a = list[Eqn](), 1.0, self.scores
        while (eqn := self.indices.makers.get(a)) is not None:
            hidden = self.hidden(eqn)
            if hidden is not None:
                a, band = hidden
                others = others or band is None
                masks += [] if band is None else [(eqn, band)]
            elif (number := times(eqn)) is not None:
                factor *= number
                a = next(x for x in eqn.inputs if x.type.shape)
            elif isinstance(eqn.op, ConvertElementType) and eqn.op.dtype in FLOATS:
                (a,) = eqn.inputs
            else:
                break
            way.append(eqn)
        simple = a is self.form.product
        if not simple:
            factor = 1.0
        fills = [fill_of(e) for e, _ in masks]
        finite = any(np.isfinite(f) for f in fills)
        band = Band()
        for _, each in masks:
            band = band.both(each)
        if finite and (others or not simple):  # all blocks are visited, as any other mask's are
            band, finite, masks = Band(), False, []
        masked = {id(e) for e, _ in masks}
        edge = self.graph(way, factor if simple else None, set())
        whole = without_dead_code(self.graph(way, factor if simple else None, masked))
        return Scores(edge, whole, factor if simple else 1.0, band, finite)

    def hidden(self, eqn: Eqn) -> tuple[Atom, Band | None] | None:
        """The scores that a mask leaves as they are, and the band where it does."""
        if eqn.op is not WHERE or eqn.inputs[0].type.dtype != BOOL or not eqn.inputs[0].type.shape:
            return None
        mask, a, b = eqn.inputs
        band = self.indices.band(mask, self.row, self.key)
        if faint(b) is not None:
            return a, band
        if faint(a) is not None:
            return b, complement(band)
        return None

    def graph(self, way: Sequence[Eqn], factor: float | None, left_out: set[int]) -> Graph:
        """The scores, over a factor if there is one, without the masks that are left out."""
        env: dict[Var, Atom] = {}
        eqns, gone = list[Eqn](), {id(e) for e in way} if factor is not None else left_out
        eqns += [e for e in self.eqns if id(e) not in gone]
        if factor is None:
            for e in way:
                if id(e) in left_out:
                    env[e.outs[0]] = kept(e)
            eqns = [replace(e, inputs=resolved(env, e.inputs)) for e in eqns]
            return Graph(self.inputs, tuple(eqns), resolved(env, (self.scores,)))
        a: Atom = self.form.product
        before = 1.0
        for e in reversed(way):
            number = times(e)
            if number is not None:
                before *= number
            elif e.op is WHERE and id(e) not in left_out:
                fill = fill_of(e) / before
                least = -65504.0 if a.type.dtype == FLOAT16 else -1e30
                fill = fill if np.isinf(fill) else max(fill, least)
                filled = Literal.of(a.type.dtype.type(fill))
                first = faint(e.inputs[2]) is not None
                inputs = (e.inputs[0], a, filled) if first else (e.inputs[0], filled, a)
                a = applied(eqns, WHERE, *inputs, source=e.source)
        return Graph(self.inputs, tuple(eqns), (a,))


def as_masks(eqns: Sequence[Eqn]) -> list[Eqn]:
    """The equations with a mask where an array of 0 and a number so low is added, or one of 0 and a
    number as high is taken away; what is 0 where that hides it is as it was.
    """
    makers: dict[Atom, Eqn] = {e.outs[0]: e for e in eqns}
    found = list[Eqn]()
    for e in eqns:
        floats = e.outs[0].type.dtype in FLOATS
        for n in (0, 1) if e.op is ADD and floats else (1,) if e.op is SUB and floats else ():
            two = two_valued(makers, e.inputs[n])
            if two is None or two.seen != 0:
                continue
            low = two.hidden if e.op is ADD else -two.hidden
            if low > FAINT:
                continue
            mask: Atom = two.mask
            for view in two.views:
                mask = applied(found, view.op, mask, source=view.source)
            number = Literal.of(e.outs[0].type.dtype.type(low if np.isinf(low) else max(low, MILD)))
            kept = unmasked(makers, e.inputs[1 - n], two)
            e = Eqn(WHERE, (mask, kept, number), e.outs, e.source)
            break
        found.append(e)
    return found


def unmasked(makers: Mapping[Atom, Eqn], a: Atom, hidden: TwoValued) -> Atom:
    """Scores that are multiplied by 1 where they are seen, and by 0 where a mask hides them, without
    that.
    """
    made = makers.get(a)
    if made is None or made.op is not MUL:
        return a
    for n in (0, 1):
        two = two_valued(makers, made.inputs[n])
        if two is None or (two.seen, two.hidden) != (1, 0):
            continue
        if same_band(makers, two.mask, hidden.mask) and same_views(two.views, hidden.views):
            return made.inputs[1 - n]
    return a


def same_band(makers: Mapping[Atom, Eqn], a: Atom, b: Atom) -> bool:
    if a is b:
        return True
    indices = Indices(makers.values())
    found = [indices.band(x, 0, 1) for x in (a, b)]
    return found[0] is not None and found[0] == found[1]


def same_views(a: Sequence[Eqn], b: Sequence[Eqn]) -> bool:
    return [(e.op, e.outs[0].type.shape) for e in a] == [(e.op, e.outs[0].type.shape) for e in b]


def scalings(form: Form) -> list[Eqn]:
    """Returns what queries and keys are multiplied by, as equations of the product."""
    found = list[Eqn]()
    a: Atom = form.product
    for c in (form.queries, form.keys):
        for e in c.eqns:
            if is_scaling(e):
                (number,) = (x for x in e.inputs if not x.type.shape)
                if isinstance(number, Literal):
                    number = Literal.of(a.type.dtype.type(number.value))
                elif number.type.dtype != a.type.dtype or number.type.weak:
                    op = ConvertElementType(a.type.dtype)
                    found.append(Eqn(op, (number,), (Var(*op.infer(number.type)),), e.source))
                    number = found[-1].outs[0]
                found.append(Eqn(e.op, (a, number), (Var(a.type),), e.source))
                a = found[-1].outs[0]
    return found


def times(eqn: Eqn) -> float | None:
    """The positive number that scores are multiplied by."""
    if not is_scaling(eqn):
        return None
    (number,) = (x for x in eqn.inputs if not x.type.shape)
    if not isinstance(number, Literal) or not 1e-6 < float(number.value) < 1e6:  # type: ignore[arg-type]
        return None
    value = float(number.value)  # type: ignore[arg-type]
    return value if eqn.op is MUL else 1 / value


def fill_of(eqn: Eqn) -> float:
    """The number that a mask puts in place of scores."""
    return next(n for n in map(faint, eqn.inputs[1:]) if n is not None)


def kept(eqn: Eqn) -> Atom:
    """The scores that a mask leaves."""
    return eqn.inputs[2] if faint(eqn.inputs[2]) is None else eqn.inputs[1]


def complement(band: Band | None) -> Band | None:
    """The band where another does not hold, if that is one."""
    if band is None or (band.low is None) == (band.high is None):
        return None
    return Band(high=band.low - 1) if band.low is not None else Band(low=band.high + 1)  # type: ignore[operator]


def resolved(env: Mapping[Var, Atom], atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """The atoms under the names that the last of several renamings gives them."""
    found = []
    for a in atoms:
        while isinstance(a, Var) and a in env:
            a = env[a]
        found.append(a)
    return tuple(found)


def sees_none(scores: Scores, queries: int, keys: int) -> bool:
    """True if some query sees no key, and has weights all the same."""
    band = scores.band
    unseen = (band.low or 0) > 0 or (band.high is not None and queries - 1 - band.high > keys - 1)
    return scores.finite and unseen


def without_band(scores: Scores, queries: int, keys: int) -> Scores:
    """Scores of which all blocks are visited, if a query that sees no key has weights all the same."""
    if not sees_none(scores, queries, keys):
        return scores
    return replace(scores, band=Band(), whole=scores.edge)


def scores_to_derive(form: Form) -> Graph | None:
    """Scores of which a kernel has the derivative; None if that is a number. Masks are left out, where
    what is not seen has a weight of 0.
    """
    scores, shape = scores_of(form), form.product.type.shape
    if sees_none(scores, shape[form.row], shape[form.key]):
        return scores.edge
    return None if scores.is_simple and form.soft is None else scores.whole


def narrowed(graph: Graph) -> Graph:
    """The graph with indices, and what is added to them, as 32 bits: they are no larger."""
    env: dict[Atom, Var] = {}
    eqns = list[Eqn]()
    for e in without_dead_code(graph).eqns:
        op, (out,) = e.op, e.outs
        if isinstance(op, Iota) and op.dtype == INT64:
            env[out] = Var(out.type.with_dtype(INT32))
            eqns.append(Eqn(Iota(op.shape, op.axis, INT32), (), (env[out],), e.source))
            continue
        inputs = [env.get(a) or short_literal(a) for a in e.inputs]
        fits = None not in inputs and any(a in env for a in e.inputs)
        if fits and (op in (ADD, SUB, NEG, LE, LT, GE, GT, EQ, NE) or isinstance(op, VIEWS)):
            env[out] = applied(eqns, op, *inputs, source=e.source)  # type: ignore[arg-type]
            continue
        for a in e.inputs:
            if a in env and a.type.dtype == INT64:  # as it was
                eqns.append(Eqn(ConvertElementType(INT64), (env[a],), (Var(a.type),), e.source))
                env[a] = eqns[-1].outs[0]
        eqns.append(renamed(env, e))
    outputs = tuple(env.get(a, a) for a in graph.outputs)
    return Graph(graph.inputs, tuple(eqns), outputs)


def short_literal(a: Atom) -> Literal | None:
    """An integer as one of 32 bits, if sums with indices stay in these."""
    if not isinstance(a, Literal) or a.type.dtype != INT64 or abs(int(a.value)) >= 1 << 29:  # type: ignore[arg-type]
        return None
    return Literal.of(np.int32(int(a.value)))  # type: ignore[arg-type]


# -------- The derivative of attention as one step has it where kernels serve it: batches and heads
# first, then rows, then features; and what is around that step.


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


def core_shapes(form: Form) -> tuple[Dims, Dims, Dims]:
    """The shapes of the cotangents of queries, keys and values for each batch and head."""
    shape = form.product.type.shape
    axes = product_axes(form)
    types = form.dot.inputs[1 - form.query].type, form.values.inputs[1 - form.side].type
    own, width = (t.shape[a.index(FEATURE)] for t, a in zip(types, axes[1:], strict=True))
    batch = tuple(shape[a] for a in form.batch)
    q, k = (*batch, shape[form.row], own), (*batch, shape[form.key], own)
    return q, k, (*batch, shape[form.key], width)


# ------------------------------------------------------------------------- what a kernel adds up
# The cotangents of a read over the axes that it lacks: over all keys, or all queries, and what is of
# each query and key over batches.


def way(form: Form, read: Read) -> str:
    """Along what the cotangents of a read are left by a kernel: "rows", "keys" or "both"."""
    _, dims, _ = read
    if form.key not in dims:
        return "rows"
    return "both" if form.row in dims else "keys"


def in_parts(form: Form, read: Read, wanted: int) -> Read:
    """A read of each query and key, added up in about so many parts of the batches that share it; their
    outermost axis is cut into equal ones, or not at all.
    """
    n, dims, _ = read
    size = form.product.type.shape[shared] if (shared := outermost(form, read)) is not None else 1
    wanted = min(wanted, size)
    found = next(p for p in range(wanted, size + 1) if size % p == 0)
    return n, dims, found if found <= 4 * wanted else 1


def outermost(form: Form, read: Read) -> int | None:
    """The first long axis of the products' batches that a read lacks."""
    shape = form.product.type.shape
    return next((a for a in form.batch if a not in read[1] and shape[a] > 1), None)


def folded_type(form: Form, read: Read) -> ArrayType:
    """The type of what a kernel leaves of the cotangents of a read: parts, batches, then the others."""
    shape, (n, dims, parts) = form.product.type.shape, read
    how = way(form, read)
    if how == "both":
        batch = (shape[a] if a in dims else 1 for a in form.batch)
        whole = *batch, shape[form.row], shape[form.key]
        dtype = form.plain.inputs[n].type.dtype
        return ArrayType(whole, dtype) if parts == 1 else ArrayType((parts, *whole), FLOAT32)
    last = form.row if how == "rows" else form.key
    return ArrayType((*(shape[a] for a in form.batch), shape[last]), scores_dtype(form))


def folded(form: Form, read: Read, ct: Any) -> Any:
    """The part of cotangents, which have the shape of the products, that a kernel leaves."""
    how, (_, dims, parts) = way(form, read), read
    kept = {"rows": (form.row,), "keys": (form.key,), "both": (form.row, form.key)}[how]
    batch = form.batch if how != "both" else tuple(a for a in form.batch if a in dims)
    left, rank = (*batch, *kept), form.rank
    if parts > 1:
        cut, shape = outermost(form, read), form.product.type.shape
        assert cut is not None
        ct = ct.reshaped((*shape[:cut], parts, shape[cut] // parts, *shape[cut + 1 :]))
        left, rank = (cut, *(a + (a > cut) for a in left)), rank + 1
    over = tuple(a for a in range(rank) if a not in left)
    return moved(ct, over, left, rank, folded_type(form, read))


def moved(x: Any, over: Dims, wanted: Dims, rank: int, to: ArrayType) -> Any:
    """A value of which some axes are summed, with the others in an order, as a type has it."""
    x = x.fold_sum(over) if over else x
    left = [a for a in range(rank) if a not in over]
    return x.reorder(tuple(left.index(a) for a in wanted)).reshaped(to.shape).cast(to.dtype)


def cotangent_of_read(form: Form, read: Read, x: Any) -> Any:
    """The cotangent of an input: the partial sums of a kernel, added up and in the shape of the input."""
    how, (n, dims, parts) = way(form, read), read
    t = form.plain.inputs[n].type
    kept = {"rows": (form.row,), "keys": (form.key,), "both": (form.row, form.key)}[how]
    axes = (*form.batch, *kept)
    over = tuple(i for i, a in enumerate(axes) if a not in dims)
    mine = tuple(axes.index(d) for d in dims if d != REPEATED)
    return moved(x.fold_sum((0,)) if parts > 1 else x, over, mine, len(axes), t)
