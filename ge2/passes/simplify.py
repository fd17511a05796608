"""Algebra that is exact in floating point, common subexpressions, dead code and dead writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import Any

from ge2.base.arrays import BOOL, COMPLEX, FLOATS, can_cast
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
from ge2.ops.elementwise import BY_NAME, ConvertElementType
from ge2.ops.graphs.control import CALLS as PLAIN
from ge2.ops.graphs.control import inlined, parted
from ge2.ops.graphs.custom import CUSTOM
from ge2.ops.graphs.region import readers_of
from ge2.ops.graphs.while_loop import SOLVES
from ge2.ops.index import Scatter, UpdateSlice, spans
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import Barrier, BroadcastInDim, Concatenate, Reshape, Slice, Transpose
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
    return Sweep(RULES).run(graph)


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


def reshaped(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    return None if inner is None else sweep.make(Reshape(op.shape), inner.inputs, out)


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


def unpadded(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    return None if any((*op.low, *op.high, *op.inner)) else inputs[0]


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
    "convert_element_type": (converted, narrowed_first),
    "broadcast_in_dim": (broadcast,),
    "transpose": (transposed,),
    "reshape": (reshaped,),
    "slice": (same,),
    "pad": (unpadded,),
    "rev": (over_nothing,),
    # over no axes not reduce_sum: NumPy adds 0.0, which makes 0.0 of -0.0
    "reduce_sum": (of_nothing,), "reduce_prod": (over_nothing, of_nothing),
    "reduce_max": (over_nothing,), "reduce_min": (over_nothing,),
    "reduce_or": (over_nothing, of_nothing), "reduce_and": (over_nothing, of_nothing),
    "concatenate": (alone,),
    "update_slice": (written_in_part,),
}
# fmt: on


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


# -------- Reads of what was written take what was written: store-to-load forwarding.
# y = update_slice x u at 3; a = y[3:4] -> a = u        (what is read lies within what was written)
# y = update_slice x u at 3; b = y[5:6] -> b = x[5:6]   (it lies apart from it)
# A program that keeps its state in the rows of an array writes a row and reads it, over and over. On
# a GPU each write is a copy of all rows, for what is read later lies behind it. Where nothing reads
# an array between two writes of the same part, the first is dead; where writes make up most of an
# array, it is joined of them.
#
# In C a write changes the array where it is, and reads behind a write would have the array copied
# for them. So there all writes of a program go, or all stay: those that are its arguments' or a
# loop's do, and those of few elements.


FEW = 64  # elements of a write that costs no more than a call


def forward_writes(graph: Graph, context: Context) -> Graph:
    """The graph in which slices of what was written read what was written."""
    writes = [e for e in graph.eqns if type(e.op) is UpdateSlice]
    in_place = context.caps is None
    if not writes or (in_place and (context.written or context.body)):
        return graph
    if in_place and any(e.inputs[1].type.size < FEW for e in writes):
        return graph
    found = with_last_writes(with_reads_of_writes(graph))
    stay = in_place and any(type(e.op) is UpdateSlice for e in found.eqns)
    return graph if stay else found


def with_reads_of_writes(graph: Graph) -> Graph:
    makers, env, eqns = dict[Atom, Eqn](), dict[Atom, Atom](), list[Eqn]()
    for given in graph.eqns:
        inputs = tuple([env.get(a, a) for a in given.inputs])
        eqn = Eqn(given.op, inputs, given.outs, given.source)
        if type(eqn.op) is Slice:
            x, op = written_at(eqn.inputs[0], eqn.op, makers)
            if x is not eqn.inputs[0] and x.type.shape == eqn.outs[0].type.shape:
                env[eqn.outs[0]] = x
                continue
            eqn = Eqn(op, (x,), eqn.outs, eqn.source)
        eqns.append(eqn)
        makers.update(dict.fromkeys(eqn.outs, eqn))
    outputs = tuple([env.get(a, a) for a in graph.outputs])
    return without_dead_code(Graph(graph.inputs, tuple(eqns), outputs, graph.consts))


def written_at(x: Atom, op: Slice, makers: dict[Atom, Eqn]) -> tuple[Atom, Slice]:
    """The array that holds the elements which a slice of `x` reads, and the slice of that array."""
    while (maker := makers.get(x)) is not None and type(maker.op) is UpdateSlice:
        base, u = maker.inputs
        read, write = of_slice(op), of_write(maker.op, u)
        if all(map(within, read, write)):
            x, op = u, slice_of(read, write)
        elif any(map(apart, read, write)):
            x = base
        else:
            break
    return x, op


Span = tuple[int, int, int]  # along one axis: the first element, the step, how many


def of_slice(op: Slice) -> list[Span]:
    bounds = zip(op.start, op.stop, op.step, strict=True)
    return [(a, s, -(-(b - a) // s)) for a, b, s in bounds]


def of_write(op: UpdateSlice, u: Atom) -> list[Span]:
    return list(zip(op.start, op.step, u.type.shape, strict=True))


def last_of(span: Span) -> int:
    first, step, n = span
    return first + step * (n - 1)


def within(read: Span, write: Span) -> bool:
    """True if along this axis all that is read is written."""
    (a, s, n), (b, t, m) = read, write
    inside = b <= a and last_of(read) <= last_of(write)
    return n > 0 < m and inside and (a - b) % t == 0 and (n == 1 or s % t == 0)


def apart(read: Span, write: Span) -> bool:
    """True if along this axis nothing that is read is written."""
    (a, s, n), (b, t, m) = read, write
    common = gcd(s if n > 1 else 0, t if m > 1 else 0)
    outside = n == 0 or m == 0 or last_of(read) < b or last_of(write) < a
    return outside or (common > 0 and (a - b) % common != 0)


def slice_of(read: Sequence[Span], write: Sequence[Span]) -> Slice:
    """The slice of what was written that lies where the other lies in the whole."""
    start = tuple([(a - b) // t for (a, _, _), (b, t, _) in zip(read, write, strict=True)])
    step = tuple([max(s // t, 1) for (_, s, _), (_, t, _) in zip(read, write, strict=True)])
    ends = zip(start, step, read, strict=True)
    return Slice(start, tuple([a + s * (n - 1) + 1 for a, s, (_, _, n) in ends]), step)


def with_last_writes(graph: Graph) -> Graph:
    """The graph without writes that another one hides before anything is read, and with the rest
    joined, where they are several and most of an array.
    """
    hidden, joined = dict[Atom, Atom](), dict[Atom, list[Eqn]]()
    for base, chain in chains_of_writes(graph):
        kept, parts = list[Eqn](), set[Any]()
        for e in chain:
            part = e.op, e.inputs[1].type.shape
            if part in parts:
                hidden[e.outs[0]] = e.inputs[0]
            else:
                kept.append(e)
            parts.add(part)
        if len(kept) > 1:
            joined[kept[0].outs[0]] = joined_writes(base, kept)
    if not hidden and not any(joined.values()):
        return graph

    def final(a: Atom) -> Atom:
        while a in hidden:
            a = hidden[a]
        return a

    eqns = list[Eqn]()
    for e in graph.eqns:
        if hidden.keys().isdisjoint(e.outs):
            found = next((joined[y] for y in e.outs if joined.get(y)), [e])
            eqns += [Eqn(o.op, tuple(map(final, o.inputs)), o.outs, o.source) for o in found]
    outputs = tuple(map(final, graph.outputs))
    return without_dead_code(Graph(graph.inputs, tuple(eqns), outputs, graph.consts))


def chains_of_writes(graph: Graph) -> Iterator[tuple[Atom, list[Eqn]]]:
    """Each array that is written, with its writes, the last first, between which nothing reads it."""
    makers, readers, returned = makers_of(graph), readers_of(graph), {*graph.outputs}

    def goes_on(y: Var) -> bool:
        """True if a write's result is only written to again."""
        found: Sequence[Eqn] = readers.get(y, ())
        more = len(found) == 1 and type(found[0].op) is UpdateSlice and y not in returned
        return more and found[0].inputs[0] is y and found[0].inputs[1] is not y

    for end in graph.eqns:
        if type(end.op) is not UpdateSlice or goes_on(end.outs[0]):
            continue
        chain = [end]
        while (e := makers.get(chain[-1].inputs[0])) is not None:
            if type(e.op) is not UpdateSlice or not goes_on(e.outs[0]):
                break
            chain.append(e)
        yield chain[-1].inputs[0], chain


def joined_writes(base: Atom, chain: Sequence[Eqn]) -> list[Eqn]:
    """Equations that join an array of the parts that a chain of writes, the last first, gives it,
    and of what is left of `base`; none if they are not most of it, or overlap, or are not parts
    along one axis.
    """
    out, shape = chain[0].outs[0], base.type.shape
    spans = [of_write(e.op, e.inputs[1]) for e in chain]  # type: ignore[arg-type]
    axes = {a for each in spans for a, span in enumerate(each) if span[2] != shape[a]}
    if len(axes) != 1:
        return []
    (axis,) = axes
    written = [(each[axis], e.inputs[1]) for each, e in zip(spans, chain, strict=True)]
    written.sort(key=lambda part: part[0][0])
    ends = [(0, 0), *[(a, last_of((a, s, n)) + 1) for (a, s, n), _ in written]]
    ends.append((shape[axis],) * 2)
    plain = all((s == 1 or n == 1) and n for (_, s, n), _ in written)
    if not plain or any(b > a for (_, b), (a, _) in pairwise(ends)):
        return []
    if 2 * sum(n for (_, _, n), _ in written) < shape[axis]:
        return []
    eqns, parts = list[Eqn](), list[Atom]()
    for k, ((_, here), (there, _)) in enumerate(pairwise(ends)):
        if here < there:  # a part that is not written
            start = tuple([here if a == axis else 0 for a in range(len(shape))])
            stop = tuple([there if a == axis else n for a, n in enumerate(shape)])
            cut = Slice(start, stop, (1,) * len(shape))
            parts.append(applied(eqns, cut, base, source=chain[0].source))
        if k < len(written):
            parts.append(written[k][1])
    return [*eqns, Eqn(Concatenate(axis), tuple(parts), (out,), chain[0].source)]
