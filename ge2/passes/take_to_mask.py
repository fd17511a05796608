"""What would keep work apart that is one loop: an index a row, as in `z[arange(n), y]`, becomes a comparison
with column numbers, and fuses with the row; a reshape moves to the ends of work.

gather z rows y           ->  reduce_max(where(columns == y, z, -inf))
scatter_add 0 ct rows y   ->  where(columns == y, ct, 0.0), or row_sums ct y of several y of a row
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import FLOATS, FP8, INTEGERS, accumulator
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var, applied, without_dead_code
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, BY_NAME, WHERE
from ge2.ops.index import RowSums, UpdateSlice, within
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import Reduce, ReduceMax, kept
from ge2.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Iota,
    Pad,
    Reshape,
    Transpose,
    blocks,
    counts_along,
    factors,
    inverse,
)  # fmt: skip
from ge2.passes.context import NOTHING, Context
from ge2.passes.fold import RULES as FOLDS
from ge2.passes.fusion_group import leader
from ge2.passes.simplify import Rules, Sweep, number, turned_product

INT32 = np.dtype(np.int32)
ADDED = FLOATS.difference(FP8)
Along = dict[int, int]  # of axes of an array those of its indices


@final
@record
class Index(Op):
    """Indices counted from the start of an axis of `size` elements; IndexError if one is outside."""

    size: int
    axis: int
    name = "index"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype not in INTEGERS:
            raise TypeRuleError(f"index takes integers; got {x}")
        return (ArrayType(x.shape, INT32),)

    def reference(self, *arrays: Any) -> Any:
        return within(np.asarray(arrays[0]), self.size, self.axis).astype(INT32)


def match(graph: Graph, context: Context = NOTHING) -> Graph:
    products = {v for eqn in graph.eqns if isinstance(eqn.op, DotGeneral) for v in eqn.outs}
    if not any(
        eqn.op.name in INDEXING or (isinstance(eqn.op, Transpose) and eqn.inputs[0] in products)
        for eqn in graph.eqns
    ):
        return graph
    # a region may read the element itself, which is cheaper than any comparison
    tuning = replace(context.tuning, columns=0) if context.gathers else context.tuning
    if context.caps is None:  # updates are added one after another, in no order that takes time
        tuning = replace(tuning, row_sums=(0, 0, 0))
    sweep = Sweep(RULES, tuning=tuning)
    sweep.uses.update(a for eqn in graph.eqns for a in eqn.inputs if isinstance(a, Var))
    sweep.uses.update(a for a in graph.outputs if isinstance(a, Var))
    sweep.folded.update(e.inputs[0] for e in graph.eqns if folds_rows(e))
    return sweep.run(graph)


def folds_rows(eqn: Eqn) -> bool:
    return isinstance(eqn.op, Reduce) and eqn.inputs[0].type.ndim - 1 in eqn.op.axes


def pick(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """The element of each row that an index names: the largest of it and nothing."""
    x, *indices = inputs
    least = lowest(x.type.dtype)
    if least is None or not one_a_row(sweep, op.axes, x.type.shape, indices):
        return None
    if x.type.shape[-1] > sweep.tuning.columns and not passing(sweep, x):
        return None  # reading elements of rows that are there is cheaper than comparing all
    chosen = sweep.make(WHERE, (columns(sweep, x.type.shape, indices[-1]), x, least))
    rows = sweep.make(ReduceMax((x.type.ndim - 1,)), (chosen,))
    return sweep.make(Reshape(out.shape), (rows,), out)


def lowest(dtype: np.dtype) -> Literal | None:
    """The number below all others; None for what has none."""
    if dtype in INTEGERS:
        return Literal.of(dtype.type(np.iinfo(dtype).min))
    return Literal.of(dtype.type(-np.inf)) if dtype in FLOATS and dtype not in FP8 else None


def passing(sweep: Sweep, x: Atom) -> bool:
    """True if all of a row is at hand anyway: it is folded elsewhere, or made element by element."""
    if x in sweep.folded:
        return True
    made = sweep.maker.get(x) if isinstance(x, Var) else None
    return made is not None and isinstance(made.op, Pointlike)


def put(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Zeros, but for one element of each row; or the sums of several, each row by itself."""
    zeros, updates, *indices = inputs
    made = sweep.made_by(zeros, "broadcast_in_dim")
    if made is None or number(made.inputs[0]) != 0:
        return None
    if not one_a_row(sweep, op.axes, out.shape, indices):
        return put_several(sweep, op, inputs, out)
    zero = Literal.of(out.dtype.type(0))
    rows = sweep.make(Reshape(out.shape[:-1]), (updates,))
    rows = sweep.make(BY_NAME["add"], (rows, zero))  # 0.0 + -0.0 is 0.0
    spread = sweep.make(BroadcastInDim(out.shape, tuple(range(len(out.shape) - 1))), (rows,))
    return sweep.make(WHERE, (columns(sweep, out.shape, indices[-1]), spread, zero), out)


def put_several(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """The sums of the updates of each row, which lies along any axis: the others are indexed by their
    own numbers, as the derivative of `take_along_axis` has it.
    """
    _, updates, *indices = inputs
    shape, (room, rows, few) = updates.type.shape, sweep.tuning.row_sums
    counted = by_rows(sweep, op.axes, out.shape, indices) or {}
    at = next((a for a in range(len(out.shape)) if a not in counted), 0)
    if not counted or indices[at].type.shape != shape or out.dtype not in ADDED:
        return None
    beside = [a for a in range(len(out.shape)) if a != at]
    along = [counted[a] for a in beside]
    more = [d for d in range(len(shape)) if d not in along]
    terms, sizes = math.prod(shape[d] for d in more), tuple(out.shape[a] for a in beside)
    sums = out.shape[at] * accumulator(out.dtype).itemsize
    beyond = sums * 32 if math.prod(out.shape[at + 1 :]) > 1 else sums + 4 * out.shape[at]
    if beyond > room or not terms or (math.prod(sizes) < rows and terms > few):
        return None
    given: Sequence[Atom] = (updates, indices[at])
    if more == [at] and along == beside:
        return sweep.make(RowSums(out.shape, at), given, out)
    turn, flat = Transpose((*along, *more)), Reshape((*sizes, terms))
    given = [sweep.make(flat, (sweep.make(turn, (a,)),)) for a in given]
    summed = sweep.make(RowSums((*sizes, out.shape[at]), len(sizes)), given)
    return sweep.make(Transpose(inverse((*beside, at))), (summed,), out)


def columns(sweep: Sweep, shape: Dims, index: Atom) -> Atom:
    """True where the number of the column is the index of the row."""
    last = len(shape) - 1
    wrapped = sweep.make(Index(shape[-1], last), (index,))
    rows = sweep.make(Reshape(shape[:-1]), (wrapped,))
    spread = sweep.make(BroadcastInDim(shape, tuple(range(last))), (rows,))
    return sweep.make(BY_NAME["eq"], (sweep.make(Iota(shape, last, INT32), ()), spread))


def one_a_row(sweep: Sweep, axes: Dims, shape: Dims, indices: Sequence[Atom]) -> bool:
    """True if each row along the last axis is read once."""
    last, rows = indices[-1].type, shape[:-1]
    if last.shape not in (rows, (*rows, 1)) or last.weak:
        return False
    return by_rows(sweep, axes, shape, indices) == {k: k for k in range(len(rows))}


def by_rows(sweep: Sweep, axes: Dims, shape: Dims, indices: Sequence[Atom]) -> Along | None:
    """For all axes but one, indexed by their own numbers, the axes along which those count."""
    counted = {}
    for a, index in enumerate(indices):
        along = counts_along(sweep.maker, index)
        if along is not None and index.type.shape[along] == shape[a]:
            counted[a] = along
    if len(counted) == len(shape):  # a diagonal
        counted.popitem()
    once = len({*counted.values()}) == len(counted) == len(shape) - 1
    return counted if counted and once and len(axes) == len(shape) and 0 not in shape else None


INDEXING: Rules = {"gather": (pick,), "scatter_add": (put,)}
RULES: Rules = {**FOLDS, **INDEXING, "transpose": (*FOLDS["transpose"], turned_product)}


# ----------------------------------------------------------------------------- pads to concatenate
# A sum of arrays that are zero but for parts of their own is those parts side by side.
#
# So it is where each of many parts of an array is read on its own, as a Python loop over
# `xs[t]` does: each has a derivative as large as the whole, and their sum took time that
# grows with the square of their number.
#
# add (pad a) (pad b) ...  ->  concatenate a b ...


@final
@record
class Part:
    """A part from `start` on along `axis`, among zeros."""

    value: Atom
    axis: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.value.type.shape[self.axis]


def join(graph: Graph, context: Context = NOTHING) -> Graph:
    fewest = context.tuning.joined
    pads = [e for e in graph.eqns if isinstance(e.op, Pad)]
    if len(pads) < 2:
        return graph
    sums = [e for e in graph.eqns if e.op == ADD]
    makers = {e.outs[0]: e for e in (*pads, *sums)}
    uses = Counter([a for e in graph.eqns for a in e.inputs if type(a) is Var])
    uses.update(a for a in graph.outputs if type(a) is Var)
    inner = {a for e in sums for a in e.inputs if type(a) is Var and uses[a] == 1}
    roots = [e for e in sums if e.outs[0] not in inner]
    found = {e.outs[0]: made for e in roots if (made := joined(e, makers, uses, fewest))}
    if not found:
        return graph
    eqns = tuple(
        each for e in graph.eqns for each in (found.get(e.outs[0], [e]) if e.outs else [e])
    )
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def joined(
    eqn: Eqn, makers: Mapping[Var, Eqn], uses: Counter[Var], fewest: int
) -> list[Eqn] | None:
    """The equations that make the sum of its parts; None if it is no such sum."""
    parts, others = list[Part](), list[Atom]()
    for leaf in leaves(eqn, makers, uses):
        part = part_of(leaf, makers)
        if part is None:
            others.append(leaf)
        else:
            parts.append(part)
    if len(parts) < (fewest if others else 2) or len(others) > 1:
        return None
    parts.sort(key=lambda part: part.start)
    if len(parts) < fewest and not are_all(parts, eqn.outs[0].type.shape):
        return None
    if any(a.axis != b.axis or a.end > b.start for a, b in pairwise(parts)):
        return None
    return side_by_side(eqn, parts, others)


def are_all(parts: list[Part], shape: Dims) -> bool:
    """True if parts, of which none lies on another, leave nothing between them."""
    return sum(part.value.type.size for part in parts) == math.prod(shape)


def leaves(eqn: Eqn, makers: Mapping[Var, Eqn], uses: Counter[Var]) -> list[Atom]:
    """The terms that a tree of sums adds, where nobody else reads a sum within it."""
    found, waiting = list[Atom](), list(eqn.inputs)
    while waiting:
        a = waiting.pop()
        maker = makers.get(a) if isinstance(a, Var) and uses[a] == 1 else None
        if maker is not None and maker.op == ADD:
            waiting += maker.inputs
        else:
            found.append(a)
    return found


def part_of(a: Atom, makers: Mapping[Var, Eqn]) -> Part | None:
    maker = makers.get(a) if isinstance(a, Var) else None
    if (
        maker is None
        or not isinstance(op := maker.op, Pad)
        or any(op.inner)
        or min(*op.low, *op.high) < 0
    ):
        return None
    axes = [i for i, (low, high) in enumerate(zip(op.low, op.high, strict=True)) if low or high]
    return Part(maker.inputs[0], axes[0], op.low[axes[0]]) if len(axes) == 1 else None


def side_by_side(eqn: Eqn, parts: list[Part], others: list[Atom]) -> list[Eqn]:
    """The parts, zeros between them, and what is added to all of it."""
    (result,), axis, at = eqn.outs, parts[0].axis, 0
    made, pieces = list[Eqn](), list[Atom]()
    for part in [*parts, None]:
        start = result.type.shape[axis] if part is None else part.start
        if start > at:
            shape = list(result.type.shape)
            shape[axis] = start - at
            zeros = Var(result.type.with_shape(tuple(shape)))
            zero = Literal.of(result.type.dtype.type(0))
            made.append(Eqn(BroadcastInDim(zeros.type.shape, ()), (zero,), (zeros,), eqn.source))
            pieces.append(zeros)
        if part is not None:
            pieces.append(part.value)
            at = part.end
    whole = result if not others else Var(result.type)
    made.append(Eqn(Concatenate(axis), tuple(pieces), (whole,), eqn.source))
    return made if not others else [*made, Eqn(ADD, (whole, *others), (result,), eqn.source)]


# -------- Elementwise work and reductions on both sides of a reshape have the axes of both.
# y = reshape[8, 32, 65536] (f x); m = reduce_sum[axes=2] y; z = reshape[8, 512, 4096] (y - m) * w
# ->  y = f reshape[8, 32, 16, 4096] x; m = reduce_sum[axes=(2, 3)] y; z = (y - m) * w
# A region has one space, so a reshape in the middle of a layer is an array that one kernel writes and
# the next one reads, though nothing is moved: groups of channels, heads, patches. With the axes of both
# sides everywhere it is one loop, and the reshapes are at its ends, where they are free. Where the axes
# of one side are cut so are those of the other, and all that are linked to them, axis by axis.


LINKED: Final = (BroadcastInDim, Transpose, Reduce, Pointlike)
Linking = tuple[Atom, int, int]  # an array that is read, an axis of it, and which axis that is


def same_axes(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph without reshapes between elementwise work and reductions."""
    if not any(map(is_reshaped, graph.eqns)):
        return graph
    linked = Linked(graph)
    return Recut(linked).graph() if linked.wanted else graph


def is_reshaped(eqn: Eqn) -> bool:
    return isinstance(eqn.op, Reshape) and is_cut(eqn)


def is_cut(eqn: Eqn) -> bool:
    """True of a reshape that does more than to add and to drop axes of size 1."""
    x, y = eqn.inputs[0].type, eqn.outs[0].type
    return [n for n in x.shape if n != 1] != [n for n in y.shape if n != 1]


def by_elements(eqn: Eqn) -> bool:
    """True of what is done element by element, and of reductions."""
    linked = isinstance(eqn.op, LINKED) and not isinstance(eqn.op, Draw) and not eqn.op.effect
    return linked and all(a.type.size for a in (*eqn.outs, *eqn.inputs))


def links(eqn: Eqn) -> list[Linking]:
    """The axes of its operands among those of its result, or, of a reduction, of what it reads."""
    op, arrays = eqn.op, [a for a in eqn.inputs if a.type.shape]
    if isinstance(op, BroadcastInDim):
        return [(x, a, d) for x in arrays for a, d in enumerate(op.dims)]
    if isinstance(op, Transpose):
        return [(x, a, d) for x in arrays for d, a in enumerate(op.order)]
    return [(x, d, d) for x in arrays for d in range(x.type.ndim)]


def is_moved(eqn: Eqn) -> bool:
    """True of arrays that are put side by side, or into others, but of no stack: its parts take turns."""
    op = eqn.op
    stack = isinstance(op, Concatenate) and any(a.type.shape[op.axis] == 1 for a in eqn.inputs)
    return isinstance(op, Concatenate | Pad | UpdateSlice) and not stack


def after_products(graph: Graph) -> set[Atom]:
    """The results of products, and of elementwise work on them, which is done by the same kernel."""
    found, reduced = set[Atom](), set[Atom]()
    for e in graph.eqns:
        if isinstance(e.op, Reduce) or not reduced.isdisjoint(e.inputs):
            reduced.update(e.outs)
        elif isinstance(e.op, DotGeneral) or (
            isinstance(e.op, Pointlike) and not found.isdisjoint(e.inputs)
        ):
            found.update(e.outs)
    return found


@final
class Linked:
    """The axes that are alike throughout a graph, and where they are cut; `wanted`: values that are
    linked by a reshape between one piece of work and another.
    """

    def __init__(self, graph: Graph) -> None:
        self.given = graph
        self.parents: dict[Hashable, Hashable] = {}
        self.cuts: dict[Hashable, set[int]] = {}
        self.inside: set[Atom] = set()  # what work makes, and views of that
        self.reshapes: list[Eqn] = []
        self.outside: list[tuple[Linking, Eqn]] = []  # what is read of what comes from elsewhere
        self.whole: set[Hashable] = set()  # axes of what is joined: read where its parts are
        late, seen = after_products(graph), {e.inputs[0] for e in graph.eqns if is_reshaped(e)}
        self.moves = {e.outs[0] for e in graph.eqns if is_moved(e) and e.outs[0] in seen - late}
        self.inside.update(self.moves)
        work = [e for e in graph.eqns if late.isdisjoint(e.outs) and self.takes(e)]
        self.wanted = self.between()
        if not self.wanted:
            return
        for eqn in work:
            self.link(eqn)
        moved = {y for e in graph.eqns if isinstance(e.op, Concatenate | Pad) for y in e.outs}
        for (x, a, d), eqn in self.outside:  # one loop reads it with the same axes everywhere
            self.join((x, self.first(eqn.outs[0]), a), (node := (eqn.outs[0], within_of(eqn), d)))
            if x in moved:
                self.whole.add(node)
        self.whole.update((x, "of", d) for x in self.moves for d in range(x.type.ndim))
        self.whole = {*map(self.first, self.whole)}
        while self.spread():
            pass
        self.wanted = self.between()

    def first(self, x: Hashable) -> Hashable:
        return leader(self.parents, x)

    def join(self, a: Hashable, b: Hashable) -> None:
        a, b = self.first(a), self.first(b)
        if a != b:
            self.parents[a] = b

    def takes(self, eqn: Eqn) -> bool:
        """True of work, and of views of what work has made."""
        within = not self.inside.isdisjoint(eqn.inputs)
        if isinstance(eqn.op, Reshape) and within:
            self.reshapes.append(eqn)
        elif not by_elements(eqn) or (eqn.op.is_view and not within):
            return False
        self.inside.update(eqn.outs)
        return True

    def link(self, eqn: Eqn) -> None:
        """Links what an equation makes to what it reads, if work has made that."""
        (y,) = eqn.outs
        if isinstance(eqn.op, Reshape):
            self.join(eqn.inputs[0], y)
        elif isinstance(eqn.op, Reduce):
            for d, a in enumerate(kept(eqn.op.axes, eqn.inputs[0].type.ndim)):
                self.join((y, "of", d), (y, "in", a))
        for x, a, d in links(eqn) if by_elements(eqn) else ():
            if x.type.shape[a] == 1:
                continue
            if x in self.inside:
                self.join(x, y)
                self.join((x, "of", a), (y, within_of(eqn), d))
            else:
                self.outside.append(((x, a, d), eqn))

    def spread(self) -> bool:
        """Cuts both sides of each reshape where one is cut and it can be; True of new places."""
        before = sum(map(len, self.cuts.values()))
        self.reshapes = [e for e in self.reshapes if self.carried(e)]
        return sum(map(len, self.cuts.values())) > before

    def carried(self, eqn: Eqn) -> bool:
        """False if both sides of a reshape cannot be cut into the same axes."""
        values, found = (eqn.inputs[0], eqn.outs[0]), dict[Hashable, set[int]]()
        for block in blocks(*(v.type.shape for v in values)):
            each = [self.places(v, axes) for v, axes in zip(values, block, strict=True)]
            all_of_it = set[int]().union(*(places for side in each for _, _, _, places in side))
            for node, n, behind, _ in (axis for side in each for axis in side):
                inner = {p // behind for p in all_of_it if behind < p < behind * n}
                exact = all(p % behind == 0 for p in all_of_it if behind < p < behind * n)
                new = found.setdefault(node, {*self.cuts.get(node, ())})
                new |= inner
                exact = exact and not (new and node in self.whole)
                if not exact or any(a % b for a, b in pairwise([n, *sorted(new, reverse=True)])):
                    return False
        self.cuts.update(found)
        return True

    def places(self, v: Atom, axes: Dims) -> list[tuple[Hashable, int, int, set[int]]]:
        """Adjacent axes of a value: node, size, elements behind it, behind its end and its cuts."""
        found, behind = list[tuple[Hashable, int, int, set[int]]](), 1
        for a in reversed(axes):
            n, node = v.type.shape[a], self.first((v, "of", a))
            cuts = {behind * c for c in self.cuts.get(node, ())}
            found.append((node, n, behind, {behind, *cuts}))
            behind *= n
        return found

    def between(self) -> set[Hashable]:
        """The linked values of which some are made by work, reshaped, and read by work."""
        read: set[Atom] = set()
        for eqn in reversed(self.given.eqns):
            made = self.inside.intersection(eqn.outs) - self.moves
            if made and (not eqn.op.is_view or made & read):
                read.update(eqn.inputs)
        return {self.first(e.outs[0]) for e in self.reshapes if is_cut(e) and e.outs[0] in read}

    def cut(self, v: Atom, which: str, shape: Dims) -> list[Dims]:
        """The sizes of each axis of a value of a shape, or of what it reduces."""
        nodes = [self.first((v, which, d)) for d in range(len(shape))]
        pairs = zip(shape, nodes, strict=True)
        return [factors(n, self.cuts.get(node, ())) if n != 1 else (1,) for n, node in pairs]


def within_of(eqn: Eqn) -> str:
    """Which axes an equation works over: those of its result, or those of what it reduces."""
    return "in" if isinstance(eqn.op, Reduce) else "of"


@final
class Recut:
    """The equations so far, with the values that are wanted so in the axes that they are cut into."""

    def __init__(self, linked: Linked) -> None:
        self.linked, self.given = linked, linked.given
        self.eqns: list[Eqn] = []
        self.new: dict[Atom, Var] = {}  # the value of other axes that stands for one
        self.seen: dict[tuple[Atom, Dims], Atom] = {}

    def graph(self) -> Graph:
        for eqn in self.given.eqns:
            moved = not self.linked.moves.isdisjoint(eqn.outs)
            if not moved and any(self.linked.first(v) in self.linked.wanted for v in eqn.outs):
                self.take(eqn)
            elif self.new.keys().isdisjoint(eqn.inputs):
                self.eqns.append(eqn)
            else:
                self.eqns.append(replace(eqn, inputs=tuple(map(self.plain, eqn.inputs))))
        outputs = tuple(map(self.plain, self.given.outputs))
        return replace(self.given, eqns=tuple(self.eqns), outputs=outputs)

    def plain(self, v: Atom) -> Atom:
        return self.in_shape(self.new[v], v.type.shape) if v in self.new else v

    def in_shape(self, x: Atom, shape: Dims) -> Atom:
        if x.type.shape == shape:
            return x
        if (x, shape) not in self.seen:
            self.seen[x, shape] = applied(self.eqns, Reshape(shape), x)
        return self.seen[x, shape]

    def take(self, eqn: Eqn) -> None:
        (y,) = eqn.outs
        shape = flat(self.linked.cut(y, "of", y.type.shape))
        if isinstance(eqn.op, Reshape):
            x = eqn.inputs[0]
            out = self.in_shape(self.new.get(x, x), shape)
            if isinstance(out, Var):
                self.new[y] = out
            return
        inputs, op = tuple(self.operands(eqn)), self.op(eqn, shape)
        out = y if shape == y.type.shape else Var(*op.infer(*(a.type for a in inputs)))
        self.eqns.append(replace(eqn, op=op, inputs=inputs, outs=(out,)))
        self.new[y] = out

    def domain(self, eqn: Eqn) -> list[Dims]:
        """The sizes of each axis that an equation works over."""
        over = eqn.inputs[0] if isinstance(eqn.op, Reduce) else eqn.outs[0]
        return self.linked.cut(eqn.outs[0], within_of(eqn), over.type.shape)

    def operands(self, eqn: Eqn) -> Iterator[Atom]:
        sizes, found = self.domain(eqn), dict[Atom, dict[int, Dims]]()
        for x, a, d in links(eqn):
            found.setdefault(x, {})[a] = sizes[d] if x.type.shape[a] != 1 else (1,)
        for x in eqn.inputs:
            cut = found.get(x)
            here = self.new.get(x, x)
            yield here if cut is None else self.in_shape(here, flat(cut[a] for a in sorted(cut)))

    def op(self, eqn: Eqn, shape: Dims) -> Op:
        """The operation over the axes that those of an equation are cut into."""
        op, sizes = eqn.op, self.domain(eqn)
        into = spans(sizes)
        if isinstance(op, Reduce):
            return replace(op, axes=flat(into[a] for a in op.axes))  # type: ignore[type-var]
        if isinstance(op, BroadcastInDim):
            pairs = zip(eqn.inputs[0].type.shape, op.dims, strict=True)
            return BroadcastInDim(shape, flat(into[d] if n != 1 else into[d][:1] for n, d in pairs))
        if isinstance(op, Transpose):
            read = spans([sizes[op.order.index(a)] for a in range(len(sizes))])
            return Transpose(flat(read[a] for a in op.order))
        return eqn.op


def spans(sizes: Sequence[Dims]) -> list[Dims]:
    """The axes that each axis is cut into, one after another."""
    return [tuple(range(a, b)) for a, b in pairwise([0, *accumulate(map(len, sizes))])]


def flat(parts: Iterable[Dims]) -> Dims:
    return tuple(chain.from_iterable(parts))
