"""Folds scalars and constants, counts captured indices, and forwards writes to the reads behind them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from ge2.base.arrays import FLOATS, HALF, INTEGERS, PYTHON, has_tensor_cores, python_type
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Evaluate,
    Graph,
    GraphOp,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    renamed,
    without_dead_code,
)
from ge2.ops.attention import Band, Distances, band_of, distances_of
from ge2.ops.attention.ops import ATTENTION, has_attention, targets
from ge2.ops.elementwise import BY_NAME, ConvertElementType
from ge2.ops.graphs import Span, apart, last_of, of_slice, of_write, slice_of, within
from ge2.ops.graphs.region import readers_of
from ge2.ops.index import Indexed, Tiles, UpdateSlice, tiled
from ge2.ops.pointlike import Elementwise, Pointlike
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice
from ge2.passes.context import Context, Iotas
from ge2.passes.simplify import CALLS, Rules, Sweep, fill_each_other, interleaved, simplify
from ge2.trace.tracer import SNAPSHOT

# -------- Python numbers: equations on weak scalars alone are Python's own arithmetic, done before
# all else.
# Where Python has no answer but NumPy has one (0.0 ** -1.0, an overflow), the answer is NumPy's, so
# that derivatives stay defined; a division of integers by zero is an error, as in Python.


WHOLE_DIVISIONS = (operator.floordiv, operator.mod)
EVALUATE = Evaluate()


def on_host(eqn: Eqn) -> bool:
    """True if it makes one scalar from Python numbers alone."""
    for a in eqn.inputs:  # the first of most is an array
        if not a.type.weak:
            return False
    op = eqn.op
    if not eqn.inputs or op.effect or op.several or isinstance(op, GraphOp):
        return False
    return not eqn.outs[0].type.shape


def compute(op: Op, out: ArrayType, *numbers: Any) -> Any:
    """The result of an equation on Python numbers: such a one, or a 0-d array if it is strong."""
    if out.weak and isinstance(op, Elementwise) and op.python and bool not in map(type, numbers):
        y = as_python_does(op.python, numbers)
        if type(y) is python_type(out.dtype):
            return y
    plain = out.dtype in FLOATS - HALF and type(numbers[0]) in (int, float)
    if isinstance(op, ConvertElementType) and plain:
        return float(numbers[0]) if out.weak else np.array(numbers[0], out.dtype)
    (y,) = EVALUATE.apply(op, numbers)
    return python_type(out.dtype)(y) if out.weak else np.asarray(y, out.dtype)


def as_python_does(f: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    try:
        return f(*numbers)
    except (ArithmeticError, ValueError, TypeError):  # `math` knows no complex numbers
        if f in WHOLE_DIVISIONS and all(type(x) is int for x in numbers):
            raise
        return None  # NumPy says


# --------------------------------------------------------------------------------- scalar prologue
# Scalars that depend on scalar arguments alone, such as what a step's count makes of rates.
#
# Fused into whichever region reads them first, they would have all others that read them wait for the
# whole of it, and be computed for each of its elements. So those that are costly, and what belongs to
# them, stay apart where several regions read them, and can be computed before all else.


def early(graph: Graph, takes: Callable[[Eqn], bool], easy: int) -> set[int]:
    """The numbers of the equations that make costly scalars, those they are made of, and those made
    of them; of those that a region takes. So many instructions are `easy`.
    """
    known = {v for v in graph.inputs if not v.type.shape}
    costly: set[Var] = set()
    found, chosen = list[int](), set[int]()
    for index, eqn in enumerate(graph.eqns):
        read = [a for a in eqn.inputs if isinstance(a, Var)]
        if not known.issuperset(read) or any(v.type.shape for v in eqn.outs):
            continue
        if on_host(eqn):
            known.update(eqn.outs)
        elif isinstance(eqn.op, Pointlike) and takes(eqn):
            known.update(eqn.outs)
            found.append(index)
            if eqn.op.cost.instructions > easy or not costly.isdisjoint(read):
                costly.update(eqn.outs)
                chosen.add(index)
    needed = {a for i in chosen for a in graph.eqns[i].inputs}
    for index in reversed(found):
        if not needed.isdisjoint(graph.eqns[index].outs):
            chosen.add(index)
            needed.update(graph.eqns[index].inputs)
    return chosen


# -------- Scalars known beforehand are computed beforehand; a broadcast scalar stays a scalar in
# elementwise work.


def fold(graph: Graph) -> Graph:
    return Sweep(RULES, merging=False).run(graph)


def known(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """An equation on literals is a literal."""
    for a in inputs:
        if type(a) is not Literal:
            return None
    if out.shape:
        return None
    try:
        y = compute(op, out, *(held(a) for a in inputs))
    except ArithmeticError:
        return None  # to be raised when it runs
    if out.weak:
        return Literal(y, out) if PYTHON.get(type(y)) == out.dtype else None
    return Literal(out.dtype.type(np.asarray(y)[()]), out)


def held(atom: Atom) -> Any:
    """A literal as a Python number or a 0-d array."""
    assert isinstance(atom, Literal)
    return atom.value if atom.type.weak else np.asarray(atom.value, atom.type.dtype)


def scalar_operands(sweep: Sweep, op: Op, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """f(broadcast s, x) = f(s, x), and f(broadcast s, broadcast t) = broadcast f(s, t)."""
    if not out.shape:
        return None
    plain = [unbroadcast(sweep, a) for a in inputs]
    if plain == [*inputs]:
        return None
    if any(a.type.shape for a in plain):
        return sweep.make(op, plain, out)
    return sweep.make(BroadcastInDim(out.shape, ()), (sweep.make(op, plain),), out)


def of_scalar(sweep: Sweep, op: Op, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A view of a broadcast scalar is a broadcast scalar."""
    scalar = unbroadcast(sweep, inputs[0])
    if scalar is inputs[0]:
        return None
    if not out.shape:
        return scalar if scalar.type == out else None
    return sweep.make(BroadcastInDim(out.shape, ()), (scalar,), out)


def filled(sweep: Sweep, op: Op, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A literal in another shape is that literal, repeated once."""
    if type(inputs[0]) is not Literal or not out.shape:
        return None
    return sweep.make(BroadcastInDim(out.shape, ()), inputs, out)


def at_known_places(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A gather at numbers is a view."""
    (x, *indices), start, stop = inputs, [0] * inputs[0].type.ndim, [*inputs[0].type.shape]
    for axis, index in zip(op.axes, indices, strict=True):
        if not isinstance(index, Literal) or index.type.shape:
            return None
        n, place = stop[axis], int(np.asarray(index.value))
        if not -n <= place < n:
            return None
        start[axis] = place % n
        stop[axis] = start[axis] + 1
    part = sweep.make(Slice(tuple(start), tuple(stop), (1,) * len(stop)), (x,))
    return sweep.make(Reshape(out.shape), (part,), out)


def unbroadcast(sweep: Sweep, atom: Atom) -> Atom:
    """The scalar that a value repeats, or the value."""
    made = sweep.maker.get(atom) if type(atom) is Var and atom.type.shape else None
    spread = made is not None and made.op.name == "broadcast_in_dim"
    return made.inputs[0] if made and spread and not made.inputs[0].type.shape else atom


ELEMENTWISE = (*BY_NAME, "convert_element_type", "integer_pow")
RULES: Rules = {
    **dict.fromkeys(ELEMENTWISE, (known, scalar_operands)),
    **dict.fromkeys(("transpose", "rev", "slice", "broadcast_in_dim"), (known, of_scalar)),
    "reshape": (known, of_scalar, filled),
    "gather": (at_known_places,),
}


# ----------------------------------------------------------------------------------- captured iota
# Captured arrays that only count, as in `z[np.arange(n), y]`, or repeat a number, as in
# `np.concatenate([[np.inf], x])`, become equations, which passes can read.

# what reads a number as well as an array of it
FILLED = (Pointlike, BroadcastInDim, Reshape, Concatenate, *ATTENTION)


def iotas(graph: Graph, captured: Sequence[Any]) -> Iotas:
    """The captured arrays of which no element need be read: the number of each input, and the axis
    along which an index counts 0, 1, 2, ..., the number that it is, or that elementwise work reads
    everywhere, or the band that a mask is, or the distances that slopes are of, where there is
    attention.
    """
    readers = dict[Atom, list[Eqn]]()
    for e in graph.eqns:
        for a in e.inputs:
            readers.setdefault(a, []).append(e)
    found = list[tuple[int, int | Literal | Band | Distances]]()
    attends = bool(targets()) and has_attention(graph, CALLS)
    for i, (var, x) in enumerate(zip(graph.inputs, captured, strict=False)):
        # a GPU has a copy of each captured array, from when it was first needed; the CPU of small ones
        copied = has_tensor_cores() or getattr(x, "nbytes", 0) <= SNAPSHOT
        if type(x) is not np.ndarray or not copied or var not in readers:
            continue
        if attends and (two := band_of(x) or distances_of(x)) is not None:
            found.append((i, two))
            continue
        indexes = is_index(var, readers)
        fuses = attends or x.nbytes <= SNAPSHOT
        fuses = not x.ndim or (fuses and all(isinstance(e.op, FILLED) for e in readers[var]))
        known = counting(x) if indexes and x.ndim else repeated(x) if fuses else None
        if known is not None:
            found.append((i, known))
    return tuple(found)


def is_index(x: Var, readers: Mapping[Atom, Sequence[Eqn]]) -> bool:
    """True if elements are read or written at it, or at a view of it."""
    return any(
        x in e.inputs[1:]
        if isinstance(e.op, Indexed)
        else isinstance(e.op, Reshape | BroadcastInDim) and is_index(e.outs[0], readers)
        for e in readers.get(x, ())
    )


def counted(graph: Graph, context: Context) -> Graph:
    """The graph with equations in place of the inputs that are known to count, or to repeat."""
    made: dict[Var, Eqn] = {}
    for i, known in context.iotas:
        var = graph.inputs[i]
        if isinstance(known, Band | Distances):
            continue
        if isinstance(known, Literal):
            made[var] = Eqn(BroadcastInDim(var.type.shape, ()), (known,), (Var(var.type),))
        else:
            made[var] = Eqn(Iota(var.type.shape, known, var.type.dtype), (), (Var(var.type),))
    if not made:
        return graph
    env: dict[Atom, Atom] = {var: eqn.outs[0] for var, eqn in made.items()}
    eqns = [renamed(env, e) for e in graph.eqns]
    return Graph(graph.inputs, (*made.values(), *eqns), graph.outputs, graph.consts)


def repeated(x: np.ndarray) -> Literal | None:
    """The number that an array has everywhere, to the bit.

    >>> print(repeated(np.full(3, np.inf)).value, repeated(np.array([0.0, -0.0])))
    inf None
    """
    if not x.size:
        return None
    flat = x.ravel()
    first = flat[:1].view(np.uint8)
    if flat[-1:].tobytes() != first.tobytes():
        return None
    alike = (flat.view(np.uint8).reshape(x.size, -1) == first).all()
    return Literal.of(flat[0]) if alike else None


def counting(x: np.ndarray) -> int | None:
    """The only axis of an array, if its elements count along it.

    >>> counting(np.arange(3)[:, None]), counting(np.array([0, 2]))
    (0, None)
    """
    axes = [a for a, n in enumerate(x.shape) if n != 1]
    if x.dtype not in INTEGERS or len(axes) != 1:
        return None
    counts = not x.size or (x.flat[0] == 0 and x.flat[-1] == x.size - 1)
    return axes[0] if counts and np.array_equal(x.ravel(), np.arange(x.size)) else None


# -------- Reads of what was written take what was written: store-to-load forwarding.
# y = update_slice x u at 3; a = y[3:4] -> a = u        (what is read lies within what was written)
# y = update_slice x u at 3; b = y[5:6] -> b = x[5:6]   (it lies apart from it)
# A program that keeps its state in the rows of an array writes a row and reads it, over and over. On
# a GPU each write is a copy of all rows, for what is read later lies behind it. Where nothing reads
# an array between two writes of the same part, the first is dead; where writes make up most of an
# array, it is joined of them; one write into zeros is a pad, with zeros between its elements, too.
# There a row of elements that were written one by one is those elements joined, and a triangle of a
# small matrix the matrix, so that a batch of them is numbers of a thread for each.
#
# In C a write changes the array where it is, and reads behind a write would have the array copied for
# them. So there all writes of a program go, or all stay: those that are its arguments' or a loop's do,
# and those of few elements; once loops are found, an array that such slices alone read goes, too.


FEW = 64  # elements of a write that costs no more than a call; parts of a small matrix
ROW = 16  # writes side by side that a slice reads, at most
MOST = 512  # writes whose readers may become kernels unlike each other, which have to be compiled


def forward_writes(graph: Graph, context: Context) -> Graph:
    """The graph in which slices of what was written read what was written."""
    writes = [e for e in graph.eqns if type(e.op) is UpdateSlice]
    in_place = context.caps is None
    if not writes or (in_place and (context.written or context.body)):
        return graph
    if in_place and any(e.inputs[1].type.size < FEW for e in writes):
        return graph
    reads = with_reads_of_writes(graph, several=not in_place)
    found = with_last_writes(reads, pads=not in_place)
    if in_place:
        return graph if any(type(e.op) is UpdateSlice for e in found.eqns) else found
    return found if found is graph else simplify(found)


def unread_writes(graph: Graph, context: Context) -> Graph:
    """The graph without arrays that slices alone read which know who wrote them: the derivative of
    writes element by element, which no loop was found in, would keep a version for each.
    """
    if not 0 < sum(type(e.op) is UpdateSlice for e in graph.eqns) <= MOST:
        return graph
    found = with_reads_of_writes(graph)
    left = {e.outs[0] for e in found.eqns if type(e.op) is UpdateSlice}
    roots = dict[Atom, Atom]()  # of each write's result that of the first
    for e in (e for e in graph.eqns if type(e.op) is UpdateSlice):
        roots[e.outs[0]] = roots.get(e.inputs[0], e.outs[0])
    stay = {root for y, root in roots.items() if y in left}
    if stay.issuperset(roots.values()):
        return graph
    gone = {y for y, root in roots.items() if root not in stay}
    return simplify(with_reads_of_writes(graph, gone))


def with_reads_of_writes(
    graph: Graph, written: Container[Atom] | None = None, several: bool = False
) -> Graph:
    """The graph in which slices read what was written; of `written` arrays alone; or `several` writes."""
    makers, env, eqns = dict[Atom, Eqn](), dict[Atom, Atom](), list[Eqn]()
    tiles = dict[Atom, tuple[Tiles, int]]()
    for given in graph.eqns:
        inputs = tuple([env.get(a, a) for a in given.inputs])
        eqn = Eqn(given.op, inputs, given.outs, given.source)
        if type(eqn.op) is Slice and (written is None or eqn.inputs[0] in written):
            x, op = written_at(eqn.inputs[0], eqn.op, makers, tiles)
            if x is not eqn.inputs[0] and x.type.shape == eqn.outs[0].type.shape:
                env[eqn.outs[0]] = x
                continue
            eqn = Eqn(op, (x,), eqn.outs, eqn.source)
            if several and (parts := parts_of_tiles(x, op, tiles)):
                joined = Concatenate(parts[0][0])
                eqn = Eqn(joined, tuple(u for _, u in parts), eqn.outs, eqn.source)
        eqns.append(eqn)
        makers.update(dict.fromkeys(eqn.outs, eqn))
        if type(eqn.op) is UpdateSlice:
            tiles[eqn.outs[0]] = tiled(eqn, tiles)
    outputs = tuple([env.get(a, a) for a in graph.outputs])
    return without_dead_code(Graph(graph.inputs, tuple(eqns), outputs, graph.consts))


def written_at(
    x: Atom, op: Slice, makers: dict[Atom, Eqn], tiles: dict[Atom, tuple[Tiles, int]]
) -> tuple[Atom, Slice]:
    """The array that holds the elements which a slice of `x` reads, and the slice of that array."""
    while (maker := makers.get(x)) is not None and type(maker.op) is UpdateSlice:
        base, u = maker.inputs
        read, write = of_slice(op), of_write(maker.op, u)
        known, count = tiles[x]
        if count and known.takes(op.start, op.step, tuple([n for _, _, n in read])):
            part = known.last(op.start, count)
            if part is not None:
                return part, slice_of(read, [(a, 1, n) for a, _, n in read])
            x = known.root
        elif all(map(within, read, write)):
            x, op = u, slice_of(read, write)
        elif any(map(apart, read, write)):
            x = base
        else:
            break
    return x, op


def parts_of_tiles(
    x: Atom, op: Slice, tiles: Mapping[Atom, tuple[Tiles, int]]
) -> list[tuple[int, Atom]]:
    """The parts of a row that a slice reads, all of which were written, and the axis along which they
    are side by side; none if it reads others.
    """
    known, count = tiles.get(x, (None, 0))
    if known is None or not 0 < count <= FEW or not all(known.shape):
        return []
    read, found = of_slice(op), list[tuple[int, Atom]]()
    whole = all(
        s == 1 and a % n == 0 == m % n for (a, s, m), n in zip(read, known.shape, strict=True)
    )
    axes = [d for d, ((_, _, m), n) in enumerate(zip(read, known.shape, strict=True)) if m != n]
    if not whole or len(axes) != 1 or read[axes[0]][2] > ROW * known.shape[axes[0]]:
        return []
    (axis,) = axes
    for at in range(read[axis][0], op.stop[axis], known.shape[axis]):
        part = known.last((*op.start[:axis], at, *op.start[axis + 1 :]), count)
        if part is None:
            return []
        found.append((axis, part))
    return found


def with_last_writes(graph: Graph, pads: bool) -> Graph:
    """The graph without writes that another one hides before anything is read, and with the rest
    joined, where they are several and most of an array; `pads`: one of zeros is a pad.
    """
    hidden, joined, makers = dict[Atom, Atom](), dict[Atom, list[Eqn]](), makers_of(graph)
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
            spread = joined_grid(kept, base if is_zeros(base, makers) else None) if pads else []
            joined[kept[0].outs[0]] = spread or joined_writes(base, kept)
        elif pads and kept[0].inputs[1].type.size and is_zeros(base, makers):
            joined[kept[0].outs[0]] = [pad_of(kept[0])]
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


def is_zeros(x: Atom, makers: Mapping[Atom, Eqn]) -> bool:
    """True of zeros, all bits of which are zero, whatever they were converted from."""
    while (eqn := makers.get(x)) and isinstance(eqn.op, BroadcastInDim | ConvertElementType):
        (x,) = eqn.inputs
    return isinstance(x, Literal) and not np.asarray(x.value).tobytes().strip(b"\0")


def pad_of(write: Eqn) -> Eqn:
    """A write of elements into zeros as those elements with zeros around and between them."""
    u, (out,) = write.inputs[1], write.outs
    spans = of_write(write.op, u)
    high = tuple(n - last_of(span) - 1 for n, span in zip(out.type.shape, spans, strict=True))
    low, steps, _ = zip(*spans, strict=True)
    return Eqn(Pad(low, high, tuple(s - 1 for s in steps)), (u,), (out,), write.source)


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


def joined_grid(chain: Sequence[Eqn], zeros: Atom | None = None) -> list[Eqn]:
    """The equations that join the parts of a grid which writes fill, as the colours of a mosaic; or none."""
    (out,), source, eqns = chain[0].outs, chain[0].source, list[Eqn]()

    def joined(parts: Sequence[tuple[list[Span], Atom]], shape: Dims) -> Atom | None:
        if len(parts) == 1:
            ((spans, u),) = parts
            return u if spans == [(0, 1, n) for n in shape] else None
        for axis, size in enumerate(shape):
            groups = dict[Span, list[tuple[list[Span], Atom]]]()
            for spans, u in parts:
                span, inside = spans[axis], [*spans[:axis], (0, 1, spans[axis][2])]
                groups.setdefault(span, []).append(([*inside, *spans[axis + 1 :]], u))
            # one element has any step
            turns = sorted((a, s if n > 1 else len(groups), n) for a, s, n in groups)
            if not fill_each_other(turns, size):
                continue
            inner = (*shape[:axis], size // len(groups), *shape[axis + 1 :])
            found = [joined(groups[span], inner) for span in sorted(groups)]
            rows = [x for x in found if x is not None]
            y = Var(replace(out.type, shape=shape))
            eqns.extend(interleaved(rows, axis, y, source) if len(rows) == len(found) else ())
            return y if len(rows) == len(found) else None
        return None

    spans = [(of_write(e.op, e.inputs[1]), e.inputs[1]) for e in chain]
    if zeros is not None:
        spans += unwritten(spans, out.type, eqns)
    if len(chain) > MOST or joined(spans, out.type.shape) is None:
        return []
    return [*eqns[:-1], replace(eqns[-1], outs=(out,))]


def unwritten(
    written: Sequence[tuple[list[Span], Atom]], out: ArrayType, eqns: list[Eqn]
) -> list[tuple[list[Span], Atom]]:
    """The parts of a grid of zeros between those that were written, if these are alike and half of it."""
    shapes = {u.type.shape for _, u in written}
    (shape, *others) = shapes
    if others or not all(shape) or any(n % m for n, m in zip(out.shape, shape, strict=True)):
        return []
    there = {tuple(a for a, _, _ in spans) for spans, _ in written}
    grid = list(product(*(range(0, n, m) for n, m in zip(out.shape, shape, strict=True))))
    if len(grid) > FEW or not there.issubset(grid) or 2 * len(there) < len(grid):
        return []
    zero = applied(eqns, BroadcastInDim(shape, ()), Literal(out.dtype.type(0), out.with_shape(())))
    return [
        ([(a, 1, n) for a, n in zip(at, shape, strict=True)], zero)
        for at in grid
        if at not in there
    ]


def joined_writes(base: Atom, chain: Sequence[Eqn]) -> list[Eqn]:
    """Equations that join an array of the parts that a chain of writes, the last first, gives it,
    and of what is left of `base`; none if they are not most of it, or overlap, or are not parts
    along one axis.
    """
    out, shape = chain[0].outs[0], base.type.shape
    spans = [of_write(e.op, e.inputs[1]) for e in chain]
    axes = {a for each in spans for a, span in enumerate(each) if span[2] != shape[a]}
    if len(axes) != 1:
        return []
    (axis,) = axes
    written = [(each[axis], e.inputs[1]) for each, e in zip(spans, chain, strict=True)]
    written.sort(key=lambda part: part[0][0])
    ends = [(0, 0), *[(a, last_of((a, s, n)) + 1) for (a, s, n), _ in written]]
    ends.append((shape[axis],) * 2)
    if fill_each_other([span for span, _ in written], shape[axis]):
        return interleaved([u for _, u in written], axis, out, chain[0].source)
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
