"""Algebra that is exact in floating point, common subexpressions and dead code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT64, FLOATS, INT32, INT64, can_cast
from ge2.base.source import Source
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    without_dead_code,
)
from ge2.ops.attention.ops import ATTENTION
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import BY_NAME, EQ, WHERE, ConvertElementType
from ge2.ops.graphs import Span
from ge2.ops.graphs.control import CALLS as PLAIN
from ge2.ops.graphs.control import inlined, parted
from ge2.ops.graphs.custom import CUSTOM
from ge2.ops.graphs.region import readers_of
from ge2.ops.graphs.while_loop import SOLVES
from ge2.ops.index import Scatter, spans
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import (
    Barrier,
    BroadcastInDim,
    Concatenate,
    Iota,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from ge2.passes.context import TUNING, Context, Tuning
from ge2.trace.stage import strong as on_arrays

# ------------------------------------------------------------------------------------------- sweep
# One walk over a graph that rewrites it: each equation is simplified, found
# among earlier ones, or kept.


Rule = Callable[["Sweep", Any, Sequence[Atom], ArrayType], Atom | None]
Rules = Mapping[str, Sequence[Rule]]  # by the name of the operation


class Sweep:
    """The equations so far, what each value of the old graph is called
    now, and who made each new one.
    """

    def __init__(self, rules: Rules, merging: bool = True, tuning: Tuning = TUNING) -> None:
        self.rules, self.tuning = rules, tuning
        self.merging = merging  # whether equal equations become one
        self.env: dict[Var, Atom] = {}
        self.eqns: list[Eqn] = []
        self.maker: dict[Atom, Eqn] = {}
        self.seen: dict[tuple[Op, tuple[object, ...]], Var] = {}
        # how often values of the old graph are read, if a rule asks
        self.uses: Counter[Atom] = Counter()
        self.folded: set[Atom] = set()  # values of which it folds the last axis, if a rule asks
        self.source: Source | None = None
        self.captured: frozenset[Var] = frozenset()

    def run(self, graph: Graph) -> Graph:
        env = self.env
        self.captured = frozenset(graph.inputs[: graph.consts])
        for eqn in graph.eqns:
            self.source = eqn.source
            inputs = tuple([env.get(a, a) if type(a) is Var else a for a in eqn.inputs])
            if isinstance(eqn.op, Barrier):
                self.barrier(eqn, inputs)
                continue
            if eqn.op.several or eqn.op.effect or len(eqn.outs) != 1:
                self.eqns.append(
                    eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
                )
                continue
            out = eqn.outs[0]
            found = self.found(eqn.op, inputs, out.type)
            if found is None:
                kept = eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
                self.eqns.append(kept)
                self.maker[out] = kept
                if self.merging:
                    self.seen[eqn.op, inputs] = out
            else:
                env[out] = found
        outputs = tuple([env.get(a, a) if type(a) is Var else a for a in graph.outputs])
        return without_dead_code(Graph(graph.inputs, tuple(self.eqns), outputs, graph.consts))

    def barrier(self, eqn: Eqn, inputs: Sequence[Atom]) -> None:
        """Numbers and captured arrays pass a barrier: they are there in any case."""
        passing, held = parted(Eqn(eqn.op, tuple(inputs), eqn.outs, eqn.source), self.captured)
        self.env.update(passing)
        if held is not None:
            self.eqns.append(held)

    def make(
        self, op: Op, inputs: Sequence[Atom], type_: ArrayType | None = None, out: Var | None = None
    ) -> Atom:
        """The value of `op inputs`: by a rule, or known already, or made by a new equation."""
        if type_ is None:
            (type_,) = op.infer(*(a.type for a in inputs))
        found = self.found(op, inputs, type_)
        if found is None:
            found = self.record(op, inputs, type_, out)
            if self.merging:
                self.seen[op, tuple(inputs)] = found
        return found

    def found(self, op: Op, inputs: Sequence[Atom], type_: ArrayType) -> Atom | None:
        """The value of `op inputs` by a rule, or the earlier equal equation's result."""
        for rule in self.rules.get(op.name, ()):
            found = rule(self, op, inputs, type_)
            if found is not None:
                return found
        return self.seen.get((op, tuple(inputs))) if self.merging else None

    def record(self, op: Op, inputs: Sequence[Atom], type_: ArrayType, out: Var | None) -> Var:
        var = Var(type_) if out is None else out
        eqn = Eqn(op, tuple(inputs), (var,), self.source)
        self.eqns.append(eqn)
        self.maker[var] = eqn
        return var

    def made_by(self, atom: Atom, name: str) -> Eqn | None:
        """The equation that made a value, if it is of that operation."""
        eqn = self.maker.get(atom) if type(atom) is Var else None
        return eqn if eqn is not None and eqn.op.name == name else None


def number(atom: Atom) -> Any:
    """The value of a literal; None for any other value."""
    return atom.value if isinstance(atom, Literal) else None


# ---------------------------------------------------------------------------------------- simplify


ADD, SUB = BY_NAME["add"], BY_NAME["sub"]


def simplify(graph: Graph) -> Graph:
    return Sweep(RULES).run(with_interleaved(graph))


# --------------------------------------------------------------------------------- neutral elements


def neutral(value: float, side: str, minus: bool = False, floats: bool = True) -> Rule:
    """`x op value = x` (side "right"), or `value op x = x` too ("either");
    `minus`: -value for floats.
    """

    def rule(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
        a, b = inputs
        if is_number(b, value, minus, floats) and a.type == out:
            return a
        if side == "either" and is_number(a, value, minus, floats) and b.type == out:
            return b
        return None

    return rule


def is_number(atom: Atom, value: float, minus: bool, floats: bool) -> bool:
    x = number(atom)
    if x is None or x != value or atom.type.dtype in COMPLEX:  # (inf + 0j) * (1 + 0j) has a NaN
        return False
    if atom.type.dtype not in FLOATS:
        return True
    return floats and (value != 0 or (math.copysign(1.0, float(x)) < 0) == minus)


# ----------------------------------------------------------------------------------- the same again


def same(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Operations that pass their input on."""
    return inputs[0] if inputs[0].type == out else None


def double(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Operations that undo themselves: --x, ~~x, conj conj x."""
    inner = sweep.made_by(inputs[0], op.name)
    return None if inner is None else inner.inputs[0]


def plus_minus(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """x + -y = x - y, and -y + x = x - y."""
    a, b = inputs
    for x, other in ((a, b), (b, a)):
        negated = sweep.made_by(other, "neg")
        if negated is not None:
            return sweep.make(SUB, (x, negated.inputs[0]), out)
    return None


def minus_minus(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """x - -y = x + y."""
    negated = sweep.made_by(inputs[1], "neg")
    return None if negated is None else sweep.make(ADD, (inputs[0], negated.inputs[0]), out)


def either_way(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """where(mask, x, x) = x, and a mask known beforehand."""
    mask, a, b = inputs
    if a == b:
        return a if a.type == out else None
    held = number(mask)
    chosen = mask if held is None else a if held else b
    return chosen if held is not None and chosen.type == out else None


def first_power(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    return inputs[0] if op.y == 1 else None


def converted(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A conversion of a lossless conversion between floats is one conversion."""
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    if inner is None or out.dtype not in FLOATS or x.type.dtype not in FLOATS or out.weak:
        return None
    (source,) = inner.inputs
    exact = source.type.dtype in FLOATS or source.type.dtype == BOOL
    if not exact or source.type.weak or not can_cast(source.type.dtype, x.type.dtype, "safe"):
        return None
    return sweep.make(ConvertElementType(out.dtype), (source,), out)


def chosen_converted(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A conversion of a choice between two numbers is a choice between converted ones."""
    made = sweep.made_by(inputs[0], "where")
    if made is None or out.weak:
        return None
    if inputs[0].type.dtype.kind in "fcV" and out.dtype.kind in "iu":
        return None
    which, *numbers = made.inputs
    if not all(isinstance(x, Literal) for x in numbers):
        return None
    values = (x.type.dtype.type(number(x)).astype(out.dtype) for x in numbers)
    return sweep.make(WHERE, (which, *map(Literal.of, values)), out)


def narrowed_first(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Rounds a computed value before its reshape, so that the kernel that makes it rounds it."""
    seen = sweep.made_by(inputs[0], "reshape")
    x = None if seen is None else seen.inputs[0]
    made = sweep.maker.get(x) if isinstance(x, Var) else None
    if made is None or not isinstance(made.op, Pointlike) or out.weak:
        return None
    if out.dtype.itemsize >= made.outs[0].type.dtype.itemsize:
        return None
    assert seen is not None
    return sweep.make(seen.op, (sweep.make(op, seen.inputs),), out)


# -------------------------------------------------------------------------------------------- views


def broadcast(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    if inner is None:
        return None
    made: Any = inner.op
    return sweep.make(
        BroadcastInDim(op.shape, tuple(op.dims[d] for d in made.dims)), inner.inputs, out
    )


def transposed(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    if op.order == tuple(range(len(op.order))):
        return inputs[0]
    inner = sweep.made_by(inputs[0], op.name)
    if inner is None:
        return None
    made: Any = inner.op
    return sweep.make(Transpose(tuple(made.order[i] for i in op.order)), inner.inputs, out)


def turned_product(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """The transpose of a product is the product of its operands in the other order."""
    made = sweep.made_by(inputs[0], "dot_general")
    if made is None or sweep.uses[inputs[0]] != 1:
        return None
    product, (a, b) = made.op, made.inputs
    assert isinstance(product, DotGeneral)
    free_a, free_b = (len(free) for free in product.free(a.type, b.type))
    batch = len(product.beside[0])
    end = batch + free_a
    if op.order != (*range(batch), *range(end, end + free_b), *range(batch, end)):
        return None
    other = replace(product, contract=product.contract[::-1], beside=product.beside[::-1])
    return sweep.make(other, (b, a), out)


def reshaped(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    return None if inner is None else sweep.make(Reshape(op.shape), inner.inputs, out)


def diagonal(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A line that is padded between its elements and seen as rows, in each of which one element is one
    place further on, as the derivative of a diagonal is: an element where row and column are those.
    """
    pad = sweep.made_by(inputs[0], "pad")
    if pad is None or len(out.shape) != len(inputs[0].type.shape) + 1 or not out.size:
        return None
    (x,), how, (*outer, rows, columns) = pad.inputs, cast(Any, pad.op), out.shape
    several = any((*how.low[:-1], *how.high[:-1], *how.inner[:-1])) or x.type.shape[:-1] != (
        *outer,
    )
    if several or how.inner[-1] != columns or min(how.low[-1], how.high[-1]) < 0 or out.weak:
        return None
    (row, column), n = divmod(how.low[-1], columns), x.type.shape[-1]
    if n == 0 or row + n > rows or column + n > columns:
        return None
    nothing = (0,) * len(outer)
    line = Pad((*nothing, row), (*nothing, rows - row - n), (*nothing, 0))
    i, j = (Iota(out.shape, len(outer) + k, INT64) for k in (0, 1))
    by = Literal.of(INT64.type(column - row))
    here = sweep.make(EQ, (sweep.make(j, ()), sweep.make(ADD, (sweep.make(i, ()), by))))
    values = BroadcastInDim(out.shape, tuple(range(len(outer) + 1)))
    zero = Literal.of(out.dtype.type(0))
    return sweep.make(WHERE, (here, sweep.make(values, (sweep.make(line, (x,)),)), zero), out)


# the largest absolute value of narrow whole numbers
NARROW: dict[np.dtype, int] = {
    BOOL: 1, np.dtype("i1"): 1 << 7, np.dtype("u1"): 1 << 8, np.dtype("i2"): 1 << 15, np.dtype("u2"): 1 << 16,
}  # fmt: skip
WIDE = (INT64, np.dtype("u8"))
MOST_NARROW = 1 << 31


def summed_narrow(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A sum of narrow whole numbers that are made wide first, as a count is, is made wide after."""
    wide = sweep.made_by(inputs[0], "convert_element_type")
    if wide is None or out.weak or out.dtype not in WIDE:
        return None
    (x,), terms = wide.inputs, inputs[0].type.size // max(out.size, 1)
    if x.type.dtype not in NARROW or terms * NARROW[x.type.dtype] >= MOST_NARROW:
        return None
    narrow = sweep.make(ConvertElementType(INT32), (x,))
    return sweep.make(ConvertElementType(out.dtype), (sweep.make(op, (narrow,)),), out)


def over_nothing(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A reduction or reversal over no axes."""
    return inputs[0] if not op.axes and inputs[0].type == out else None


def of_nothing(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A fold of no elements is the number that it begins with."""
    if inputs[0].type.size or not out.size:
        return None
    nothing = Literal.of(out.dtype.type(op.neutral_of(out.dtype)))
    return sweep.make(BroadcastInDim(out.shape, ()), (nothing,), out) if out.shape else nothing


def alone(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """The one operand of an equation that joins, and here does not, but for those of no elements."""
    some = [a for a in inputs if a.type.size]
    if len(some) < len(inputs) and some:
        return some[0] if len(some) == 1 else sweep.make(op, tuple(some), out)
    return inputs[0] if len(inputs) == 1 and inputs[0].type == out else None


def fold_of_join(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """max over axis 0 of [a[None], b[None]] = max a b; sums of narrow floats are held in wider ones."""
    join, word = sweep.made_by(inputs[0], "concatenate"), op.name.removeprefix("reduce_")
    if join is None or len(join.inputs) > 32:  # of more a kernel reads one array
        return None
    if op.axes != (join.op.axis,) or any(x.type.shape[op.axes[0]] != 1 for x in join.inputs):  # type: ignore[attr-defined]
        return None
    held = word in ("sum", "prod") and out.dtype in FLOATS and out.dtype != FLOAT64
    if held or out.dtype in COMPLEX:
        return None
    parts = [sweep.make(Reshape(out.shape), (x,), out) for x in join.inputs]
    whole = Literal.of(out.dtype.type(0)) if word == "sum" else parts.pop(0)
    for part in parts:
        whole = sweep.make(BY_NAME[MERGES.get(word, word)], (whole, part), out)
    return whole


def part_of_join(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A slice of joined arrays that lies within one of them is a slice of that one."""
    join = sweep.made_by(inputs[0], "concatenate")
    if join is None or not out.size:
        return None
    axis, begin = join.op.axis, 0  # type: ignore[attr-defined]
    for x in join.inputs:
        end = begin + x.type.shape[axis]
        if begin <= op.start[axis] < end:
            last = op.start[axis] + op.step[axis] * (out.shape[axis] - 1)
            if last >= end:
                return None
            start, stop = [*op.start], [*op.stop]
            start[axis], stop[axis] = op.start[axis] - begin, last + 1 - begin
            return sweep.make(Slice(tuple(start), tuple(stop), op.step), (x,), out)
        begin = end
    return None


def unpadded(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A pad by nothing, and one of what is padded already."""
    if not any((*op.low, *op.high, *op.inner)):
        return inputs[0]
    before = sweep.made_by(inputs[0], "pad")
    made: Any = before and before.op
    if before is None or any(op.inner) or min(*op.low, *op.high, *made.low, *made.high) < 0:
        return None
    low, high = (zip(*n, strict=True) for n in ((op.low, made.low), (op.high, made.high)))
    both = Pad(tuple(map(sum, low)), tuple(map(sum, high)), made.inner)
    return sweep.make(both, before.inputs, out)


def written_in_part(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A part that is written at indices and put back: the whole is written
    there, and nowhere else.
    """
    put = sweep.made_by(inputs[1], "scatter")
    cut = None if put is None else sweep.made_by(put.inputs[0], "slice")
    if put is None or cut is None or cut.inputs[0] != inputs[0] or cut.op.start != op.start:  # type: ignore[attr-defined]
        return None
    (part,), scatter, rest = [a.type.shape for a in cut.outs], put.op, list[tuple[int, int, int]]()
    if cut.op.step != op.step or any(part[a] != out.shape[a] for a in scatter.axes):  # type: ignore[attr-defined]
        return None
    others = [a for a in range(len(part)) if a not in scatter.axes]  # type: ignore[attr-defined]
    for a, (start, n, step) in zip(others, spans(scatter, part), strict=True):  # type: ignore[arg-type]
        rest.append((op.start[a] + start * op.step[a], n, step * op.step[a]))
    write = Scatter(scatter.axes, tuple(rest), scatter.unique)  # type: ignore[attr-defined]
    return sweep.make(write, (inputs[0], *put.inputs[1:]), out)


# fmt: off
RULES: Rules = {
    # x + 0.0 is not exact for -0.0, x + -0.0 is
    "add": (neutral(0, "either", minus=True), plus_minus),
    "sub": (neutral(0, "right"), minus_minus),
    "mul": (neutral(1, "either"),),
    "div": (neutral(1, "right"),),
    "floor_div": (neutral(1, "right", floats=False),),
    "or":  (neutral(0, "either"),),
    "xor": (neutral(0, "either"),),
    "shift_left":  (neutral(0, "right"),),
    "shift_right": (neutral(0, "right"),),
    "neg": (double,),
    "not": (double,),
    "conj": (double,),
    "positive": (same,),
    "stop_gradient": (same,),
    "name": (same,),
    "where": (either_way,),
    "integer_pow": (first_power,),
    "convert_element_type": (converted, chosen_converted, narrowed_first),
    "broadcast_in_dim": (broadcast,),
    "transpose": (transposed,),
    "reshape": (reshaped, diagonal),
    "slice": (same, part_of_join),
    "pad": (unpadded,),
    "rev": (over_nothing,),
    # over no axes not reduce_sum: NumPy adds 0.0, which makes 0.0 of -0.0
    "reduce_sum": (of_nothing, fold_of_join, summed_narrow),
    "reduce_prod": (over_nothing, of_nothing, fold_of_join),
    "reduce_max": (over_nothing, fold_of_join), "reduce_min": (over_nothing, fold_of_join),
    **dict.fromkeys(("reduce_or", "reduce_and"), (over_nothing, of_nothing, fold_of_join)),
    "concatenate": (alone,),
    "update_slice": (written_in_part,),
}
# fmt: on


MERGES = {"sum": "add", "prod": "mul"}
VIEWS: Rules = {"slice": (same, part_of_join), "reshape": (reshaped,)}  # the rules of views alone


# -------- Sums of arrays that are padded between their elements, each where the others have zeros, are
# those arrays side by side:
# y = add (pad[inner=1] a) (pad[low=1 inner=1] b) -> y = reshape (concatenate a[:, None] b[:, None])
# So are derivatives of x[0::2] and x[1::2]. Adding zero makes 0.0 of -0.0, before as after.


def fill_each_other(spans: Sequence[Span], size: int) -> bool:
    """True if strided spans, sorted by their first elements, interleave to cover an axis of that size."""
    count = len(spans)
    turns = all(span == (n, count, size // count) for n, span in enumerate(spans))
    return count > 1 and size % count == 0 and turns


def interleaved(parts: Sequence[Atom], axis: int, out: Var, source: Source | None) -> list[Eqn]:
    """Equations that make an array by interleaving parts along an axis: y[n::count] = parts[n]."""
    eqns, shape = list[Eqn](), parts[0].type.shape
    columns = Reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    found = [applied(eqns, columns, x, source=source) for x in parts]
    whole = applied(eqns, Concatenate(axis + 1), *found, source=source)
    return [*eqns, Eqn(Reshape(out.type.shape), (whole,), (out,), source)]


def with_interleaved(graph: Graph) -> Graph:
    """The graph with a join in place of each sum of padded arrays that interleave along an axis."""
    if not any(isinstance(e.op, Pad) and any(e.op.inner) for e in graph.eqns):
        return graph
    makers, readers, returned = makers_of(graph), readers_of(graph), {*graph.outputs}
    padded = sums_of_pads(graph)
    sums = [e for e in graph.eqns if e.op == ADD and e.outs[0] in padded]
    inner = {x for e in sums for x in e.inputs if len(readers[x]) == 1 and x not in returned}
    ends = {e.outs[0] for e in sums} - inner
    eqns = list[Eqn]()
    for e in graph.eqns:
        eqns += joined_pads(terms(e, makers, inner), e) if ends & {*e.outs} else [e]
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def sums_of_pads(graph: Graph) -> set[Atom]:
    """Padded arrays, and sums of nothing else."""
    found: set[Atom] = set()
    for e in graph.eqns:
        if isinstance(e.op, Pad) or (found and found.issuperset(e.inputs) and e.op == ADD):
            found.update(e.outs)
    return found


def terms(eqn: Eqn, makers: Mapping[Atom, Eqn], inner: Set[Atom]) -> list[Eqn]:
    """The equations that make the terms of a sum of padded arrays, through the sums of `inner`."""
    made = [(makers[x], x in inner) for x in eqn.inputs]
    nested = [terms(e, makers, inner) if e.op == ADD and once else [e] for e, once in made]
    return [e for each in nested for e in each]


def joined_pads(pads: Sequence[Eqn], total: Eqn) -> list[Eqn]:
    """Equations in place of a sum of pads; the sum itself where they do not interleave."""
    (out,), spans = total.outs, list[tuple[Span, Atom]]()
    axes = set[int]()
    for e in pads:
        if not isinstance(e.op, Pad) or min(*e.op.low, *e.op.high) < 0:
            return [total]
        (x,), op = e.inputs, e.op
        axes |= {a for a, n in enumerate(op.inner) if n}
        bare = all(x.type.shape[a] == n for a, n in enumerate(out.type.shape) if a not in axes)
        if len(axes) != 1 or not bare or out.type.weak:
            return [total]
        (axis,) = axes
        spans.append(((op.low[axis], op.inner[axis] + 1, x.type.shape[axis]), x))
    (axis,) = axes
    spans.sort(key=lambda part: part[0])
    if not fill_each_other([span for span, _ in spans], out.type.shape[axis]):
        return [total]
    eqns, parts = list[Eqn](), [x for _, x in spans]
    if out.type.dtype in FLOATS or out.type.dtype in COMPLEX:
        zero = Literal.of(out.type.dtype.type(0))
        parts = [applied(eqns, ADD, x, zero, source=total.source) for x in parts]
    return [*eqns, *interleaved(parts, axis, out, total.source)]


# ------------------------------------------------------------------------------------------ inline
# Calls are replaced by what they call.


# Operations whose first graph is what they compute; their other graphs served
# derivatives, which are done.
CALLS = (*PLAIN, *CUSTOM, *SOLVES, *ATTENTION)


def inline(graph: Graph) -> Graph:
    return inlined(graph, CALLS)


# ------------------------------------------------------------------------------------------ strong
# The first rewrite of a loop's body or of a branch: arrays in place of Python numbers.


def strong(graph: Graph, context: Context) -> Graph:
    """The graph on arrays alone, if it is a body: code that calls it again
    and again passes arrays.
    """
    return on_arrays(graph) if context.body else graph
