"""Facts about values made of scores, along the axis of keys, and masks that are bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT32, FLOAT64, FLOATS, INT64
from ge2.base.record import record
from ge2.ir import Atom, Dims, Eqn, Literal, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import (
    ADD,
    DIV,
    EQ,
    EXP,
    LOG,
    LOGADDEXP,
    MUL,
    NEG,
    RECIPROCAL,
    SUB,
    WHERE,
    ConvertElementType,
)
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.reduce import Reduce, ReduceSum
from ge2.ops.shape import BroadcastInDim, Reshape, StopGradient, Transpose

# -------- Facts about what is made of scores along the axis of keys, by abstract interpretation.
# People write softmax in many ways. So no pattern is looked for: each value that depends on a
# product `scores` has at most one fact, and each operation on values with facts has a rule. What is
# subtracted from all scores of a row, or divides all weights of it, drops out by construction,
# since a fact only remembers which rows those were. What no rule knows has no fact, and is not
# attention.


VIEWS: Final = (Reshape, Transpose, BroadcastInDim)
REPEATED: Final = -1  # an axis of size 1, or along which a value repeats
FEATURE: Final = -2  # an axis that the values v have, and scores do not

# Kinds of facts, where s are the scores and shift is alike along the keys:
#   scores      any function of single elements of the product
#   shifted     s - shift                  weights   exp(s - shift)
#   sum         of these over the keys     inverse   1 / sum
#   log_sum     log(sum)                   log_soft  s - shift - log_sum
#   soft        weights / sum              row       whatever is alike along the keys
#   part        weights times v            mean      soft times v: attention
#   empty       sum == 0                   guarded   sum, or another number where it is 0
#   log_guarded log(guarded)               dropped   soft, some set to 0, times a number: dropout
#   weight      exp(sink - shift), alike along the keys: added to a sum, it takes weight and gives nothing
Tokens = frozenset[tuple[str, Atom]]
ALIKE: Final = ("row", "weight")


@final
@record
class Sink:
    """A logit beside the scores of each query, or its exponential if it is `raised`; and the axis of
    the scores that each of its axes is.
    """

    value: Atom
    dims: Dims
    raised: bool = False


def number_of(sink: Sink) -> float:
    """The logit of a sink that is a number."""
    number = float(sink.value.value)  # type: ignore[union-attr,arg-type]
    return float(np.log(number)) if sink.raised else number


@final
@record
class Fact:
    """A value's kind, the axis of the scores that each of its axes is, and what it is made of. A row
    may be a sink less the shift; a sum, and what is made of it, may have a sink in it.
    """

    kind: str
    dims: Dims
    scores: Var | None = None
    shift: Tokens = frozenset()
    sink: Sink | None = None

    def of(self, kind: str, dims: Dims | None = None) -> Fact:
        """Another kind made of the same scores."""
        return Fact(kind, self.dims if dims is None else dims, self.scores, self.shift, self.sink)

    def over(self, kind: str, total: Fact) -> Fact:
        """The fact of a value that is divided by a sum, which may have a sink in it."""
        return Fact(kind, self.dims, self.scores, self.shift, total.sink)

    def beside(self, other: Fact) -> bool:
        """True if it is made of the same scores, less the same shift."""
        return self.scores is other.scores and self.shift == other.shift


@final
class Along:
    """The facts of what a product `dot` is made into, along its axis `key`.

    `readers`: the numbers of the equations that read each value. `eqns` has, beside the graph's own,
    equations of scores that stand in for others: weights set to 0 are scores set to -inf. `result`
    is the first value found to be attention.
    """

    def __init__(
        self, eqns: Sequence[Eqn], readers: Mapping[Atom, Sequence[int]],
        makers: Mapping[Atom, int], dot: Eqn, key: int,
    ) -> None:  # fmt: skip
        self.given, self.readers, self.makers, self.dot, self.key = eqns, readers, makers, dot, key
        (scores,) = dot.outs
        dims = tuple(REPEATED if n == 1 else a for a, n in enumerate(scores.type.shape))
        self.facts: dict[Atom, Fact] = {scores: Fact("scores", dims, scores)}
        self.roots: dict[Atom, Atom] = {}
        self.made: dict[Var, Eqn] = {}  # equations that are not the graph's
        self.products: dict[Var, Eqn] = {}  # those with v
        self.result: Var | None = None

    def run(self) -> Var | None:
        """The value that is attention, if there is one."""
        (start,) = self.dot.outs
        waiting, seen = [*self.readers.get(start, ())], set(self.readers.get(start, ()))
        waiting.sort()
        while waiting and self.result is None:
            eqn = self.given[heappop(waiting)]
            fact = self.fact(eqn)
            if fact is None:
                continue
            (out,) = eqn.outs
            self.facts[out] = fact
            if fact.kind == "mean":
                self.result = out
            for n in self.readers.get(out, ()):
                if n not in seen:
                    seen.add(n)
                    heappush(waiting, n)
        return self.result

    def fact(self, eqn: Eqn) -> Fact | None:
        """The fact that is known of the result of an equation."""
        if len(eqn.outs) != 1:
            return None
        op, known = eqn.op, [self.facts.get(a) for a in eqn.inputs]
        if isinstance(op, VIEWS):
            return self.view(eqn, op, known[0])
        if isinstance(op, Reduce):
            return self.reduced(op, known[0])
        if isinstance(op, DotGeneral):
            return self.product(eqn, op, known)
        if isinstance(op, StopGradient):  # what is alike along the keys drops out, and so does this
            return known[0] if known[0] is not None and known[0].kind in ALIKE else None
        if isinstance(op, Pointlike) and isinstance(op.lowering, Pointwise):
            return self.elementwise(eqn, op, known)
        return None

    # -- axes

    def view(self, eqn: Eqn, op: Op, x: Fact | None) -> Fact | None:
        """The same elements under other indices, which neither merge nor split axes."""
        if x is None:
            return None
        (a,), (out,) = eqn.inputs, eqn.outs
        if isinstance(op, Transpose):
            dims: Dims | None = tuple(x.dims[i] for i in op.order)
        elif isinstance(op, BroadcastInDim):
            found = [REPEATED] * len(op.shape)
            for d, axis in zip(op.dims, x.dims, strict=True):
                found[d] = axis
            dims = tuple(found)
        else:
            dims = reshaped(a.type.shape, x.dims, out.type.shape)
        if dims is None:
            return None
        self.roots[out] = self.root(a)
        if x.kind == "scores":
            return Fact("scores", dims, out)
        return x.of(x.kind, dims)

    def root(self, a: Atom) -> Atom:
        """The value of which another is a view, or that in another dtype."""
        return self.roots.get(a, a)

    @property
    def sink(self) -> Sink | None:
        """The logit of what takes weight and gives nothing, of the result."""
        assert self.result is not None
        return self.facts[self.result].sink

    def has_more_axes(self, scores: Var) -> bool:
        """True if scores have an axis that the product lacks, as x[:, None] + (k @ q)[None] has rows
        that no product makes: their sums are more than the product's rows.
        """
        dims = self.facts[scores].dims
        return any(d == REPEATED and n > 1 for d, n in zip(dims, scores.type.shape, strict=True))

    def has_keys(self, x: Fact) -> bool:
        return self.key in x.dims

    def alike(self, x: Fact, y: Fact) -> bool:
        """True if two facts are of the same elements, but that y repeats along the keys, and along
        what v alone has.
        """
        once = self.key, FEATURE
        if not y.dims:  # the number of the only query
            return all(a in (*once, REPEATED) for a in x.dims)
        pairs = zip(x.dims, y.dims, strict=True)
        return all(b == (REPEATED if a in once else a) for a, b in pairs)

    def repeats(self, x: Fact, y: Fact) -> bool:
        """True if y is alike along the keys that x has; scalars are."""
        if not y.dims:
            return True
        pairs = zip(x.dims, y.dims, strict=True)
        return all(b == REPEATED for a, b in pairs if a == self.key)

    # -- reductions and products

    def reduced(self, op: Reduce, x: Fact | None) -> Fact | None:
        if x is None:
            return None
        gone = {x.dims[a] for a in op.axes}
        dims = tuple(d for a, d in enumerate(x.dims) if a not in op.axes)
        sums = isinstance(op, ReduceSum) and x.kind == "weights"
        if sums and gone == {self.key} and len(op.axes) == 1:
            return x.of("sum", dims)
        if self.key in dims or (x.kind not in ALIKE and self.key not in gone):
            return None
        return Fact("row", dims)

    def product(self, eqn: Eqn, op: DotGeneral, known: Sequence[Fact | None]) -> Fact | None:
        """Weights times values, summed over the keys."""
        a, b = known
        if (a is None) == (b is None):
            return None
        side = 0 if a is not None else 1
        x, v = (a or b), eqn.inputs[1 - side]
        assert x is not None
        over = tuple(x.dims[i] for i in op.contract[side])
        if x.kind not in ("soft", "weights", "dropped") or over != (self.key,):
            return None
        types = tuple(i.type for i in eqn.inputs)
        free = op.free(*types)
        mine = [x.dims[i] for i in free[side]]
        theirs = [FEATURE] * len(free[1 - side])
        dims = (
            *(x.dims[i] for i in op.beside[side]),
            *(mine + theirs if not side else theirs + mine),
        )
        if len(free[1 - side]) != 1 or not isinstance(v, Var):
            return None
        self.products[eqn.outs[0]] = eqn
        return x.of("part" if x.kind == "weights" else "mean", dims)

    # -- elementwise work

    def elementwise(self, eqn: Eqn, op: Op, known: Sequence[Fact | None]) -> Fact | None:
        kinds = [None if f is None else f.kind for f in known]
        out = eqn.outs[0]
        if isinstance(op, ConvertElementType):
            return self.converted(eqn, op, known[0])
        if op is not EXP and all(k in (None, "scores") for k in kinds):
            found = [f.dims for f in known if f is not None]
            return Fact("scores", found[0], out) if len(set(found)) == 1 else None
        if (found_ := self.special(eqn, op, known, kinds)) is not None:
            return found_
        row = self.row(eqn, known)
        return None if row is None else self.of_sink(eqn, op, known, row)

    def row(self, eqn: Eqn, known: Sequence[Fact | None]) -> Fact | None:
        """The fact of a result that is equal for all keys, where all operands are; None of others."""
        out = eqn.outs[0]
        rows = (*ALIKE, "sum", "log_sum", "inverse", "empty", "guarded", "log_guarded")
        if any(f is not None and f.kind not in rows for f in known):
            return None
        facts = [f for f in known if f is not None and f.dims]
        dims = facts[0].dims if facts else ()
        outside = [a for a, f in zip(eqn.inputs, known, strict=True) if f is None and a.type.shape]
        sizes = out.type.shape
        if outside and len(dims) != len(sizes):  # a number of these beside an array of others
            return None
        if outside and any(d == REPEATED and n > 1 for d, n in zip(dims, sizes, strict=True)):
            return None
        if any(f.dims != dims for f in facts) or self.key in dims:
            return None
        return Fact("row", dims)

    def of_sink(self, eqn: Eqn, op: Op, known: Sequence[Fact | None], row: Fact) -> Fact:
        """A row, which may be a sink less a shift, or the exponential of such."""
        x, y, b = known[0], known[-1], eqn.inputs[-1]
        if op is EXP and x is not None and x.sink is not None and x.kind == "row":
            return replace(x, kind="weight")
        if y is None or y.kind != "row" or not (op is NEG or (op is SUB and x is None)):
            return row
        a = eqn.inputs[0] if op is SUB else Literal.of(b.type.dtype.type(0))
        sink = self.sink_of(a, row.dims)
        return replace(row, shift=frozenset([("-", self.root(b))]), sink=sink)

    def sink_of(self, a: Atom, dims: Dims, raised: bool = False) -> Sink | None:
        """An array, or a literal in any shape, as a sink; kernels read no other number."""
        number = a
        while (n := self.makers.get(number)) is not None and isinstance(self.given[n].op, VIEWS):
            (number,) = self.given[n].inputs
        if isinstance(number, Literal):
            return Sink(number, (), raised)
        return Sink(a, dims, raised) if a.type.shape else None

    def with_sink(self, eqn: Eqn, known: Sequence[Fact | None], raised: bool) -> Fact | None:
        """A sum of weights and the weight of a sink; or the logarithm of one and a sink."""
        kind = "sum" if raised else "log_sum"
        n = next((n for n, f in enumerate(known) if f is not None and f.kind == kind), None)
        if n is None or self.row(eqn, known) is None:
            return None
        x, y, b = known[n], known[1 - n], eqn.inputs[1 - n]
        if x is None or x.sink is not None:
            return None
        if raised and y is not None and y.kind == "weight" and y.shift == x.shift:
            return replace(x, sink=y.sink)
        if y is not None or x.shift or (raised and not self.is_positive(b)):
            return None
        sink = self.sink_of(b, x.dims, raised)
        return None if sink is None else replace(x, sink=sink)

    def is_positive(self, a: Atom) -> bool:
        """True of an exponential, or a number, that no sum of weights is less than."""
        while (n := self.makers.get(a)) is not None:
            if self.given[n].op is EXP:
                return True
            if not isinstance(self.given[n].op, VIEWS):
                return False
            (a,) = self.given[n].inputs
        return isinstance(a, Literal) and float(a.value) > 0  # type: ignore[arg-type]

    def converted(self, eqn: Eqn, op: ConvertElementType, x: Fact | None) -> Fact | None:
        (a,), (out,) = eqn.inputs, eqn.outs
        if x is None or (op.dtype not in FLOATS and x.kind != "scores"):
            return None
        if x.kind == "scores":
            return Fact("scores", x.dims, out)
        if a.type.dtype in FLOATS:
            self.roots[out] = self.root(a)
        return x

    def special(
        self, eqn: Eqn, op: Op, known: Sequence[Fact | None], kinds: Sequence[str | None]
    ) -> Fact | None:
        """The steps of softmax."""
        if op is EXP:
            return exponential(known[0])
        if op is LOG:
            logs = {"sum": "log_sum", "guarded": "log_guarded"}
            x = known[0]
            return x.of(logs[x.kind]) if x is not None and x.kind in logs else None
        if op is SUB:
            return self.less(eqn, known[0], known[1], "-")
        if op in (ADD, LOGADDEXP) and (sunk := self.with_sink(eqn, known, op is ADD)) is not None:
            return sunk
        if op is ADD:
            return self.less(eqn, known[0], known[1], "+") or self.less(
                eqn, known[1], known[0], "+", swapped=True
            )
        if op is MUL or op is DIV:
            return self.scaled(eqn, op, known)
        if op is RECIPROCAL and kinds == ["sum"] and known[0] is not None:
            return known[0].of("inverse")
        if op is EQ and "sum" in kinds and any(is_number(a, 0.0) for a in eqn.inputs):
            return next(f for f in known if f is not None).of("empty")
        if op is WHERE:
            return self.chosen(eqn, known)
        return None

    def less(
        self, eqn: Eqn, x: Fact | None, y: Fact | None, sign: str, swapped: bool = False
    ) -> Fact | None:
        """x - y, or x + y, where y is alike along the keys."""
        b = eqn.inputs[0 if swapped else 1]
        if x is None:
            return None
        if x.kind in ("log_sum", "log_guarded") and sign == "+":
            token = ("-", self.root(b))
            if token in x.shift and (y is None or not self.has_keys(y)):
                return replace(x, shift=x.shift - {token})
            return None
        if x.kind not in ("scores", "shifted"):
            return None
        if y is None:
            if b.type.shape or x.kind == "scores":
                return None
        elif y.kind not in (*ALIKE, "log_sum", "sum") or not self.repeats(x, y):
            return None
        elif y.kind == "log_sum" and sign == "-" and x.beside(y) and self.alike(x, y):
            return x.over("log_soft", y)
        token = sign, self.root(b)
        if token in x.shift:  # twice the same: what was less it once is no longer known
            return None
        return Fact("shifted", x.dims, x.scores, x.shift | {token})

    def scaled(self, eqn: Eqn, op: Op, known: Sequence[Fact | None]) -> Fact | None:
        """Weights by their sum, or by anything that is alike along the keys."""
        x, y = known
        a, b = eqn.inputs
        if op is DIV and y is not None and y.kind == "sum" and is_number(a, 1.0):
            return y.of("inverse")
        if op is MUL and (x is None or x.kind not in ("weights", "part", "soft", "dropped")):
            x, y, a, b = y, x, b, a
        if x is not None and x.kind in ("soft", "dropped"):
            return x.of("dropped") if isinstance(b, Literal) else None
        if x is None or x.kind not in ("weights", "part"):
            return None
        wanted = "sum" if op is DIV else "inverse"
        if y is not None and y.kind == wanted and x.beside(y) and self.alike(x, y):
            return x.over("soft" if x.kind == "weights" else "mean", y)
        if x.kind == "part" or (y is None and b.type.shape):
            return None
        if y is not None and (y.kind not in (*ALIKE, "sum") or not self.repeats(x, y)):
            return None
        token = "*" if op is MUL else "/", self.root(b)
        if token in x.shift:
            return None
        return Fact("weights", x.dims, x.scores, x.shift | {token})

    def chosen(self, eqn: Eqn, known: Sequence[Fact | None]) -> Fact | None:
        """Weights of 0, or scores of -inf, where a mask says so; and sums that are never 0."""
        mask, x, y = known
        where, a, b = eqn.inputs
        if mask is not None and mask.kind == "empty":
            return self.unempty(mask, (x, a), (y, b))
        (fact, kept), (other, number) = ((x, a), (y, b)) if x is not None else ((y, b), (x, a))
        if fact is None or other is not None or mask is not None or fact.scores is None:
            return None
        if fact.kind in ("soft", "dropped") and is_number(number, 0.0) and where.type.shape:
            return fact.of("dropped")
        nothing = {"weights": 0.0, "shifted": -np.inf}.get(fact.kind)
        if nothing is None or not is_number(number, nothing) or not where.type.shape:
            return None
        scores = self.masked(eqn, fact, kept is a)
        return None if scores is None else Fact(fact.kind, fact.dims, scores, fact.shift)

    def unempty(
        self, mask: Fact, x: tuple[Fact | None, Atom], y: tuple[Fact | None, Atom]
    ) -> Fact | None:
        """The fact of a sum of 0, and of its logarithm."""
        (chosen, number), (fact, _) = x, y
        if fact is None or chosen is not None or fact.scores is not mask.scores:
            return None
        if fact.kind == "sum" and isinstance(number, Literal):
            return fact.of("guarded")
        if fact.kind == "log_guarded" and is_number(number, -np.inf):
            return fact.of("log_sum")
        return None

    def masked(self, eqn: Eqn, fact: Fact, first: bool) -> Var | None:
        """Scores that are -inf where the weights of an equation are 0."""
        scores = fact.scores
        assert scores is not None
        if self.facts[scores].dims != fact.dims:
            return None
        nothing = Literal.of(scores.type.dtype.type(-np.inf))
        inputs = (eqn.inputs[0], scores, nothing) if first else (eqn.inputs[0], nothing, scores)
        found = Var(WHERE.infer(*(a.type for a in inputs))[0])
        self.made[found] = Eqn(WHERE, inputs, (found,), eqn.source)
        self.facts[found] = Fact("scores", fact.dims, found)
        return found


def exponential(x: Fact | None) -> Fact | None:
    """exp(s - shift), or of what is the logarithm of softmax."""
    if x is None or x.kind not in ("scores", "shifted", "log_soft"):
        return None
    return x.of("soft" if x.kind == "log_soft" else "weights")


def reshaped(old: Dims, dims: Dims, new: Dims) -> Dims | None:
    """The axes of what is given another shape by axes of size 1; None if axes merge or split.

    >>> reshaped((2, 1, 3), (0, -1, 2), (1, 2, 3)), reshaped((2, 3), (0, 1), (6,))
    ((-1, 0, 2), None)
    """
    kept = [(n, d) for n, d in zip(old, dims, strict=True) if n != 1]
    if [n for n, _ in kept] != [n for n in new if n != 1]:
        return None
    rest = iter(kept)
    return tuple(REPEATED if n == 1 else next(rest)[1] for n in new)


def is_number(a: Atom, value: float) -> bool:
    """True of a literal of that value."""
    if not isinstance(a, Literal) or a.type.dtype == BOOL:
        return False
    return bool(a.value == value)


# -------- Masks that are bands: which keys a query sees, by how far the one is from the other.


INT32: Final = np.dtype(np.int32)
# of each dtype, numbers below which whole ones are exact in it and in int32
WHOLE: Final = {INT32: 1 << 30, INT64: 1 << 30, FLOAT32: 1 << 24, FLOAT64: 1 << 30}


@final
@record
class Band:
    """Keys j of query i are seen where low <= i - j <= high, as far as either is known. An array of
    numbers has `seen` there, and `fill` elsewhere: 0 and another if it is added to scores, 1 and 0 if
    they are multiplied by it.
    """

    low: int | None = None
    high: int | None = None
    fill: float | None = None
    seen: float = 0.0

    def both(self, other: Band) -> Band:
        """The band where both hold."""
        lows = [x for x in (self.low, other.low) if x is not None]
        highs = [x for x in (self.high, other.high) if x is not None]
        return Band(max(lows, default=None), min(highs, default=None))


def band_of(x: np.ndarray) -> Band | None:
    """The band that a mask of two long axes is, to the last element; None if it is none.

    >>> band_of(np.tri(4, dtype=bool)), band_of(np.triu(np.full((1, 3, 3), -np.inf), 1))
    (Band(low=0, high=None, fill=None, seen=0.0), Band(low=0, high=None, fill=-inf, seen=0.0))
    >>> band_of(np.tri(4))
    Band(low=0, high=None, fill=0.0, seen=1.0)
    """
    long = tuple(n for n in x.shape if n != 1)
    if len(long) != 2 or not x.size or x.shape[-2:] != long or x.dtype not in (BOOL, *FLOATS):
        return None
    x = x.reshape(long)
    if x.size > 1 and not np.array_equal(x[1:, 1:], x[:-1, :-1]):
        return None
    along = np.concatenate([x[0, :0:-1], x[:, 0]])  # by i - j, from 1 - keys on
    number, fill = 0.0, None
    if x.dtype != BOOL:
        other = float(along[along != 0][:1].sum())
        if not np.all((along == 0) | (along == other)):
            return None
        number, fill = (1.0, 0.0) if other == 1 else (0.0, other)
        along = along == number
    seen = np.flatnonzero(along)
    if not seen.size or seen[-1] - seen[0] + 1 != seen.size or seen.size == along.size:
        return None
    first = 1 - long[1]
    low = None if seen[0] == 0 else int(seen[0]) + first
    high = None if seen[-1] == along.size - 1 else int(seen[-1]) + first
    return Band(low, high, fill, number)


@final
@record
class Distances:
    """Element (i, j) of an array of two long axes is `first + row * i + column * j`: distances of
    queries and keys, of which slopes are made.
    """

    first: int
    row: int
    column: int


def distances_of(x: np.ndarray) -> Distances | None:
    """The distances that an array of two long axes is, to the last bit; None if it is none.

    >>> distances_of(np.arange(3.0) - np.arange(2.0)[:, None]), distances_of(np.ones((2, 2)))
    (Distances(first=0, row=-1, column=1), None)
    >>> distances_of(np.ones((0, 2))), band_of(np.ones((0, 2), bool))
    (None, None)
    """
    long = tuple(n for n in x.shape if n != 1)
    if len(long) != 2 or not x.size or x.shape[-2:] != long or x.dtype not in WHOLE:
        return None
    x, most = x.reshape(long), WHOLE[x.dtype]
    corner = x[0, 0], x[1, 0], x[0, 1]
    if not all(abs(n) < most and n == int(n) for n in corner):
        return None
    first, below, beside = map(int, corner)
    row, column = below - first, beside - first
    if abs(first) + abs(row) * long[0] + abs(column) * long[1] >= most or row == column == 0:
        return None
    rows, columns = (np.arange(n, dtype=np.int64) for n in long)
    whole = (first + row * rows[:, None] + column * columns).astype(x.dtype)
    alike = np.array_equal(whole.view(np.uint8), np.ascontiguousarray(x).view(np.uint8))
    return Distances(first, row, column) if alike else None
