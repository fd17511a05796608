"""Products of a loop's iterations that the iterations do not wait for, as one before or after the loop.

  scan over t: h = tanh(concatenate(x[t], h) @ W + b)
  ->  scan over t: h = tanh(x[t] @ W[:n] + h @ W[n:] + b)
  ->  p = x @ W[:n];  scan over t: h = tanh(p[t] + h @ W[n:] + b)

  scan over t: d = g(h); c = d @ V; y[t] = c[:, :n]; h = c[:, n:]
  ->  scan over t: d[t] = g(h); h = d[t] @ V[:, n:];  y = d @ V[:, :n]

An iteration is a chain of steps that wait for one another, each of which reads its matrix again:
one product of all rows reads it once. What is joined to be multiplied is multiplied apart, so that
the part that is known before the loop is such a product, and nothing is joined; the derivative has
the same of parts of a product of which one is read after the loop alone.

A batch of products with one matrix for all of them is such a product, too, without a loop. Behind
these: what C has of matrices and Fourier transforms, in double and by halves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, final

from ge2.base.arrays import real_part
from ge2.ir import Atom, Eqn, Graph, Op, Var, applied, makers_of, renamed, without_dead_code
from ge2.ops.dot import DotGeneral, Fft, Rfft
from ge2.ops.elementwise import ADD, CONJ, ConvertElementType
from ge2.ops.graphs.loops import ScanLoop, stacked
from ge2.ops.graphs.region import readers_of
from ge2.ops.linalg import Cholesky, Det, SlogDet, Solve
from ge2.ops.linalg.decompositions import Eigh, Svd
from ge2.ops.shape import Barrier, BroadcastInDim, Concatenate, Pad, Rev, Slice, Transpose
from ge2.passes.context import NOTHING, Context, ProductsOutside
from ge2.passes.linear_algebra import WIDER
from ge2.passes.loops import after_first

Cut = tuple[Var, int, int, int]  # a matrix, an axis of it, and from where to where

# ------------------------------------------------------------------- products of what was joined


def joined_products(graph: Graph, context: Context = NOTHING) -> Graph:
    """Products of joined arrays with a matrix that many have are sums of products of the parts."""
    least = context.tuning.products_outside.products
    uses = Counter(e.inputs[1 - side] for e, side, _ in of_joined(graph))
    many = {a for a, count in uses.items() if count >= least}
    return split_products(graph, many) if many else graph


def of_joined(graph: Graph) -> Iterator[tuple[Eqn, int, Eqn]]:
    """The products with an operand that is joined along what is summed over: which one, and the
    equation that joins it. Half types stay: the sum of a product is rounded once.
    """
    makers = makers_of(graph)
    for eqn in graph.eqns:
        if not is_product(eqn) or eqn.outs[0].type.dtype.itemsize < 4:
            continue
        for side in (0, 1):
            maker = makers.get(eqn.inputs[side])
            if maker is not None and is_joined(eqn, side, maker):
                yield eqn, side, maker
                break


def is_product(eqn: Eqn) -> bool:
    """True if it is one of two arrays, summed over one axis and none beside."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.beside != ((), ()) or len(op.contract[0]) != 1:
        return False
    return op.out is None and eqn.inputs[0] is not eqn.inputs[1]


def is_joined(eqn: Eqn, side: int, maker: Eqn) -> bool:
    op, join = eqn.op, maker.op
    return (
        isinstance(op, DotGeneral)
        and isinstance(join, Concatenate)
        and op.contract[side] == (join.axis,)
        and isinstance(eqn.inputs[1 - side], Var)
    )


def split_products(graph: Graph, matrices: set[Atom]) -> Graph:
    """Splits products of joined arrays by these matrices into sums; slices each matrix where it is made."""
    found = {e: (side, join) for e, side, join in of_joined(graph)}
    found = {e: each for e, each in found.items() if e.inputs[1 - each[0]] in matrices}
    cuts: dict[Cut, Var] = {}
    sums = {e: in_parts(e, side, join, cuts) for e, (side, join) in found.items()}
    made: dict[Atom, list[Eqn]] = {}
    for (matrix, axis, begin, end), part in cuts.items():
        made.setdefault(matrix, []).append(cut_of(matrix, axis, begin, end, part))
    eqns = [e for v in graph.inputs for e in made.get(v, ())]
    for eqn in graph.eqns:
        eqns += sums.get(eqn, [eqn])
        eqns += [e for v in eqn.outs for e in made.get(v, ())]
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def in_parts(eqn: Eqn, side: int, join: Eqn, cuts: dict[Cut, Var]) -> list[Eqn]:
    """The product as a sum of those of the parts; `cuts` gets the parts of its matrix."""
    op, matrix = eqn.op, eqn.inputs[1 - side]
    assert isinstance(op, DotGeneral) and isinstance(join.op, Concatenate)
    assert isinstance(matrix, Var)
    (axis,) = op.contract[1 - side]
    ends = accumulate((a.type.shape[join.op.axis] for a in join.inputs), initial=0)
    found: list[Eqn] = []
    total: Var | None = None
    for part, (begin, end) in zip(join.inputs, pairwise(ends), strict=True):
        shape = [*matrix.type.shape]
        shape[axis] = end - begin
        cut = cuts.setdefault((matrix, axis, begin, end), Var(matrix.type.with_shape((*shape,))))
        operands = (cut, part) if side else (part, cut)
        found.append(Eqn(op, operands, (Var(eqn.outs[0].type),), eqn.source))
        (product,) = found[-1].outs
        if total is not None:
            found.append(Eqn(ADD, (total, product), (Var(product.type),), eqn.source))
        (total,) = found[-1].outs
    return [*found[:-1], Eqn(found[-1].op, found[-1].inputs, eqn.outs, eqn.source)]


def cut_of(matrix: Var, axis: int, begin: int, end: int, part: Var) -> Eqn:
    shape = matrix.type.shape
    start = tuple(begin if i == axis else 0 for i in range(len(shape)))
    stop = tuple(end if i == axis else n for i, n in enumerate(shape))
    return Eqn(Slice(start, stop, (1,) * len(shape)), (matrix,), (part,))


# ------------------------------------------------------------------------------ before the loop


def products_outside(graph: Graph, context: Context = NOTHING) -> Graph:
    """Products of scans' elements and constants are one before each loop, or after it."""
    if not any(isinstance(e.op, ScanLoop) for e in graph.eqns):
        return graph
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        eqns += outside(eqn, context) if isinstance(eqn.op, ScanLoop) else [eqn]
    if len(eqns) == len(graph.eqns):
        return graph
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def outside(eqn: Eqn, context: Context) -> list[Eqn]:
    """The products of a scan that can come before it or after it, and the scan without them."""
    op = eqn.op
    assert isinstance(op, ScanLoop)
    if op.length < context.tuning.products_outside.products:
        return [eqn]
    body = with_known_parts(op)
    body = with_parts_read_after(replace(op, body=body))
    loop = Loop(replace(eqn, op=replace(op, body=body)), context)
    loop.before_it()
    loop.after_it()
    return [*loop.before, loop.made(), *loop.after] if loop.before or loop.after else [eqn]


@final
class Loop:
    """A scan whose products leave it."""

    def __init__(self, eqn: Eqn, context: Context) -> None:
        assert isinstance(eqn.op, ScanLoop)
        self.eqn, self.op, self.tuning = eqn, eqn.op, context.tuning.products_outside
        outer = dict(zip(eqn.op.body.inputs, eqn.inputs, strict=True))
        consts, _, elements = eqn.op.parts(eqn.op.body.inputs)
        self.known = {v: outer[v] for v in consts}  # and what is cut of them
        self.elements = {v: outer[v] for v in elements}
        self.cuts: dict[Var, Atom] = {}
        self.moved: dict[Var, Var] = {}
        self.before: list[Eqn] = []
        self.after: list[Eqn] = []
        outs = zip(eqn.op.body.outputs, eqn.outs, strict=True)
        self.results = list(outs)[eqn.op.carry :]

    def before_it(self) -> None:
        """Products of elements and constants."""
        cuts = list[Eqn]()
        for e in self.op.body.eqns:
            if is_cut(e, self.known):
                cuts.append(Eqn(e.op, (self.known[e.inputs[0]],), (Var(e.outs[0].type),), e.source))
                self.known[e.outs[0]] = self.cuts[e.outs[0]] = cuts[-1].outs[0]
            side = side_of(e, self.known, self.elements)
            if side is not None and worth(e, side, e.outs[0], e.inputs[side], self.tuning):
                self.before += self.at_once(e, side, self.elements)
                self.moved[e.outs[0]] = self.before[-1].outs[0]
        if cuts:
            self.before = [*cuts, *self.before]

    def after_it(self) -> None:
        """Products by constants that only results are."""
        makers = makers_of(self.op.body)
        reads = Counter(a for e in self.op.body.eqns for a in e.inputs)
        reads.update(self.op.body.outputs)
        for a, out in list(self.results):
            maker = makers.get(a)
            if maker is None or reads[a] != 1 or not is_product(maker):
                continue
            side = next((i for i in (0, 1) if maker.inputs[1 - i] in self.known), None)
            if (
                side is None
                or maker.inputs[side] not in makers
                or not worth(maker, side, maker.inputs[side], a, self.tuning)
            ):
                continue
            self.results.remove((a, out))
            *made, last = self.at_once(
                maker, side, {maker.inputs[side]: self.stack(maker.inputs[side])}
            )
            self.after += [*made, replace(last, outs=(out,))]

    def stack(self, a: Atom) -> Var:
        """The stack of a value of the iterations, which they make if they do not."""
        found = next((out for v, out in self.results if v is a), None)
        if found is None:
            found = Var(stacked(a.type, self.op.length))
            self.results.append((a, found))
        return found

    def at_once(self, eqn: Eqn, side: int, stacks: Mapping[Atom, Atom]) -> list[Eqn]:
        """The product of all iterations, and its transposition where it needs one."""
        op, (element, matrix) = eqn.op, (eqn.inputs[side], eqn.inputs[1 - side])
        assert isinstance(op, DotGeneral) and isinstance(matrix, Var)
        contract = (after_first(op.contract[side]), op.contract[1 - side])
        rows, columns = element.type.ndim - 1, matrix.type.ndim - 1
        shape = [n for i, n in enumerate(element.type.shape) if i not in op.contract[side]]
        shape += [n for i, n in enumerate(matrix.type.shape) if i not in op.contract[1 - side]]
        product = Var(eqn.outs[0].type.with_shape((self.op.length, *shape)))
        inputs = (stacks[element], self.known[matrix])
        made = [Eqn(replace(op, contract=contract), inputs, (product,), eqn.source)]
        if side and rows and columns:
            order = (0, *range(rows + 1, rows + columns + 1), *range(1, rows + 1))
            turned = Var(stacked(eqn.outs[0].type, self.op.length))
            made.append(Eqn(Transpose(order), (product,), (turned,), eqn.source))
        return made

    def made(self) -> Eqn:
        """The scan, without constants and elements that its iterations no longer read."""
        op, body = self.op, self.op.body
        gone = self.moved.keys() | self.cuts.keys()
        consts, carry, elements = op.parts(list(zip(body.inputs, self.eqn.inputs, strict=True)))
        consts, elements = [*consts, *self.cuts.items()], [*elements, *self.moved.items()]
        outputs = (*body.outputs[: op.carry], *(a for a, _ in self.results))
        eqns = tuple(e for e in body.eqns if gone.isdisjoint(e.outs))
        inner = Graph(tuple(v for v, _ in (*consts, *carry, *elements)), eqns, outputs)
        inner = without_dead_code(inner)
        read: set[Atom] = {a for e in inner.eqns for a in e.inputs} | {*outputs}
        consts, elements = ([p for p in ps if p[0] in read] for ps in (consts, elements))
        given = (*consts, *carry, *elements)
        body = Graph(tuple(v for v, _ in given), inner.eqns, outputs)
        outs = (*self.eqn.outs[: op.carry], *(v for _, v in self.results))
        made = op.of(body, len(consts), op.carry)
        return Eqn(made, tuple(a for _, a in given), outs, self.eqn.source)


def with_known_parts(op: ScanLoop) -> Graph:
    """The body, in which products of joined arrays are parted where a part is an element."""
    consts, _, elements = op.parts(op.body.inputs)
    found = of_joined(op.body)
    matrices = {e.inputs[1 - side] for e, side, join in found if {*elements} & {*join.inputs}}
    matrices &= {*consts}
    return split_products(op.body, matrices) if matrices else op.body


def with_parts_read_after(op: ScanLoop) -> Graph:
    """The body, in which a product by a constant of which each reader has a part, and of one part is
    the only reader a result, is a product for each.
    """
    consts, body = {*op.parts(op.body.inputs)[0]}, op.body
    readers = readers_of(body)
    after = {*body.outputs[op.carry :]}
    eqns: list[Eqn] = []
    parts: dict[Eqn, list[Eqn]] = {}
    for e in body.eqns:
        side = (
            next((i for i in (0, 1) if e.inputs[1 - i] in consts), None) if is_product(e) else None
        )
        users = readers.get(e.outs[0], []) if side is not None else []
        some = any(u.outs[0] in after and u.outs[0] not in readers for u in users)
        if side is not None and some and e.outs[0] not in body.outputs:
            made = [of_columns(e, side, u) for u in users]
            parts.update((u, m) for u, m in zip(users, made, strict=True) if all(made) and m)
        eqns += parts.get(e, [e])
    return without_dead_code(replace(body, eqns=tuple(eqns))) if parts else body


def of_columns(eqn: Eqn, side: int, part: Eqn) -> list[Eqn]:
    """The part of a product as one by a part of its matrix; nothing if it is no such part."""
    op, cut, (y,) = eqn.op, part.op, eqn.outs
    matrix = eqn.inputs[1 - side]
    assert isinstance(op, DotGeneral)
    if not isinstance(cut, Slice) or not isinstance(matrix, Var) or matrix.type.ndim != 2:
        return []
    axis = 0 if side else y.type.ndim - 1  # of the result, that is the matrix's
    whole = all(
        cut.step[i] == 1 and (i == axis or (cut.start[i], cut.stop[i]) == (0, n))
        for i, n in enumerate(y.type.shape)
    )
    if not whole:
        return []
    free = 1 - op.contract[1 - side][0]
    shape = [*matrix.type.shape]
    shape[free] = cut.stop[axis] - cut.start[axis]
    columns = Var(matrix.type.with_shape(tuple(shape)))
    inputs = (columns, eqn.inputs[side]) if side else (eqn.inputs[side], columns)
    return [
        cut_of(matrix, free, cut.start[axis], cut.stop[axis], columns),
        Eqn(op, inputs, part.outs, part.source),
    ]


def is_cut(eqn: Eqn, known: Mapping[Var, Atom]) -> bool:
    return isinstance(eqn.op, Slice) and eqn.inputs[0] in known


def side_of(eqn: Eqn, known: Mapping[Var, Atom], elements: Mapping[Var, Atom]) -> int | None:
    """The operand of a product that is an element where the other one is known before the loop."""
    if not is_product(eqn):
        return None
    a, b = eqn.inputs
    if a in elements and b in known:
        return 0
    return 1 if b in elements and a in known else None


def worth(eqn: Eqn, side: int, made: Atom, instead: Atom, tuning: ProductsOutside) -> bool:
    """True if a product takes more work than it is large, and what is stacked for it, `made`, is not
    many times as large as what is not stacked, or read, any more.
    """
    assert isinstance(eqn.op, DotGeneral)
    terms = eqn.inputs[side].type.shape[eqn.op.contract[side][0]]
    return terms >= tuning.terms and made.type.nbytes <= tuning.growth * instead.type.nbytes


# ------------------------------------------------------- batches along which an operand is repeated


def repeated_operands(graph: Graph) -> Graph:
    """Products of a batch along which one operand only repeats are products of more rows of the other:
    nothing is repeated in memory, and the matrix is read once for all of them.

    a[i,j,m,k] @ broadcast(b[j,k,n])[i,j,k,n] -> transpose((a[i,j,m,k] @ b[j,k,n])[j,i,m,n])
    """
    makers = makers_of(graph)
    eqns = tuple(new for eqn in graph.eqns for new in with_rows_of_batch(eqn, makers))
    return graph if eqns == graph.eqns else without_dead_code(replace(graph, eqns=eqns))


def with_rows_of_batch(eqn: Eqn, makers: Mapping[Var, Eqn]) -> list[Eqn]:
    """A product as one of more rows and what it needs, or as it is."""
    if not isinstance(eqn.op, DotGeneral):
        return [eqn]
    for side, x in enumerate(eqn.inputs):
        made = makers.get(x) if isinstance(x, Var) else None
        if made is None or not isinstance(made.op, BroadcastInDim):
            continue
        dims, axes = made.op.dims, eqn.op.beside[side]
        gone = [n for n, axis in enumerate(axes) if axis not in dims and x.type.shape[axis] > 1]
        if gone and (eqns := of_more_rows(eqn, side, made, gone, makers)):
            return eqns
    return [eqn]


def of_more_rows(
    eqn: Eqn, side: int, made: Eqn, gone: list[int], makers: Mapping[Var, Eqn]
) -> list[Eqn]:
    """A product without some axes of its batch, along which `made` repeats the operand of that side;
    nothing where the result is in another order, and too large to be copied for that.
    """
    op, (x,), (y,), other = eqn.op, made.inputs, eqn.outs, 1 - side
    assert isinstance(op, DotGeneral) and isinstance(made.op, BroadcastInDim)
    left = [a for a in range(len(made.op.shape)) if a not in {op.beside[side][n] for n in gone}]
    spread = BroadcastInDim(
        tuple(made.op.shape[a] for a in left), tuple(left.index(d) for d in made.op.dims)
    )
    one = Var(x.type.with_shape(spread.shape))
    eqns = [] if one.type == x.type else [Eqn(spread, (x,), (one,), eqn.source)]
    batch = [n for n in range(len(op.beside[0])) if n not in gone]
    contract, beside = [*op.contract], [op.beside[0], op.beside[1]]
    contract[side] = tuple(left.index(a) for a in op.contract[side])
    beside[side] = tuple(left.index(op.beside[side][n]) for n in batch)
    beside[other] = tuple(op.beside[other][n] for n in batch)
    product = replace(op, contract=(contract[0], contract[1]), beside=(beside[0], beside[1]))
    inputs = [*eqn.inputs]
    inputs[side] = x if one.type == x.type else one
    (found,) = product.infer(*(a.type for a in inputs))
    before, after = named(op, eqn.inputs, other), named(product, inputs, other, side, left)
    order = tuple(after.index(axis) for axis in before)
    same = order == tuple(range(len(order)))
    if not same and 2 * found.nbytes > made.outs[0].type.nbytes:
        return []
    rows = y if same else Var(found)
    eqns += with_rows_of_batch(Eqn(product, tuple(inputs), (rows,), eqn.source), makers)
    return eqns if same else [*eqns, Eqn(Transpose(order), (rows,), (y,), eqn.source)]


def named(
    op: DotGeneral, inputs: Sequence[Atom], other: int, side: int = -1, left: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """The axes of a product by its operand and the axis there; those of the batch by the `other`
    operand, and those of one that lacks some by the axes that are `left`.
    """
    free = op.free(*(a.type for a in inputs))
    found = [(other, a) for a in op.beside[other]]
    for n in (0, 1):
        found += [(n, left[a] if n == side else a) for a in free[n]]
    return found


# -------- A Fourier transform of real numbers is half of one of complex numbers: the other half
# mirrors it.
# fft[axes=(1,)] (convert_element_type x) -> r = rfft[axis=1] x; concatenate r (conj (rev r[:, 1:]))
# Where no more than that half is read, it is all. Else both are joined before anything is done to
# them: gcc makes no vectors of complex numbers that are read backwards.


SHORTEST: Final = 64  # numbers of a line: to join two halves takes as long as a shorter transform


def real_transforms(graph: Graph) -> Graph:
    """The graph with half of a transform, and its mirror image, where real numbers are transformed."""
    makers = makers_of(graph)
    if not any(is_real(e, makers) for e in graph.eqns):
        return graph
    readers, eqns, halves = readers_of(graph), list[Eqn](), dict[Atom, Atom]()
    for eqn in graph.eqns:
        if not is_real(eqn, makers):
            eqns.append(renamed(halves, eqn))
            continue
        y = half(eqn, makers, eqns)
        if reads_half(eqn, readers.get(eqn.outs[0], ()), graph):
            halves[eqn.outs[0]] = y
        else:
            mirrored(eqn, y, eqns)
    return without_dead_code(replace(graph, eqns=tuple(eqns)))


def fitted(a: Atom, makers: Mapping[Atom, Eqn]) -> tuple[Atom, list[Op]]:
    """The array that another is, fitted to the length of a transform, and how it is fitted."""
    moves = list[Op]()
    while (maker := makers.get(a)) is not None and isinstance(maker.op, Pad | Slice):
        moves.append(maker.op)
        (a,) = maker.inputs
    return a, moves[::-1]


def is_real(eqn: Eqn, makers: Mapping[Atom, Eqn]) -> bool:
    """True of a transform of numbers that are complex by a cast. Inverses have a quicker loop."""
    if not isinstance(eqn.op, Fft) or eqn.op.inverse or not eqn.op.axes:
        return False
    maker, n = makers.get(fitted(eqn.inputs[0], makers)[0]), eqn.outs[0].type.shape[eqn.op.axes[-1]]
    cast = maker is not None and isinstance(maker.op, ConvertElementType)
    return cast and maker.inputs[0].type.dtype.kind != "c" and n >= SHORTEST  # type: ignore[union-attr]


def reads_half(eqn: Eqn, readers: Sequence[Eqn], graph: Graph) -> bool:
    """True if nothing reads more of a transform than what `rfft` gives."""
    assert isinstance(eqn.op, Fft)
    (y,), last = eqn.outs, eqn.op.axes[-1]
    middle = y.type.shape[last] // 2 + 1
    near = all(isinstance(e.op, Slice) and e.op.stop[last] <= middle for e in readers)
    return near and y not in graph.outputs


def half(eqn: Eqn, makers: Mapping[Atom, Eqn], eqns: list[Eqn]) -> Var:
    """Along the last axis the transform of real numbers, along the others that of its results."""
    assert isinstance(eqn.op, Fft)
    add, (*others, last) = partial(applied, eqns, source=eqn.source), eqn.op.axes
    a, moves = fitted(eqn.inputs[0], makers)
    dtype, (x,) = real_part(a.type.dtype), makers[a].inputs
    if x.type.dtype != dtype:
        x = add(ConvertElementType(dtype), x)
    for move in moves:
        x = add(move, x)
    y = add(Rfft(last), x)
    return add(Fft(tuple(others)), y) if others else y


def mirrored(eqn: Eqn, y: Var, eqns: list[Eqn]) -> None:
    """Adds what joins both halves. What is behind the middle is the conjugate of what is as far
    before the end, along all of the axes.
    """
    assert isinstance(eqn.op, Fft)
    add, (*others, last) = partial(applied, eqns, source=eqn.source), eqn.op.axes
    shape = eqn.outs[0].type.shape
    mirror = add(CONJ, add(Rev((last,)), part(add, y, last, 1, (shape[last] + 1) // 2)))
    for axis in others:
        first, rest = part(add, mirror, axis, 0, 1), part(add, mirror, axis, 1, shape[axis])
        mirror = add(Concatenate(axis), first, add(Rev((axis,)), rest))
    eqns.append(Eqn(Barrier(), (add(Concatenate(last), y, mirror),), eqn.outs, eqn.source))


def part(add: Callable[..., Var], x: Atom, axis: int, start: int, stop: int) -> Var:
    """The elements `start` to `stop` along an axis."""
    shape = x.type.shape
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else n for i, n in enumerate(shape))
    return add(Slice(starts, stops, (1,) * len(shape)), x)


# -------- Matrices of single precision are computed in double, as NumPy's functions have it, and
# transforms that are no inverses, so that C can call NumPy's loops; the casts are part of what is
# around them. Inverse transforms have loops of single precision, which NumPy takes for them.


IN_DOUBLE = (Solve, Det, SlogDet, Cholesky, Eigh, Svd, Fft, Rfft)


def in_double(graph: Graph) -> Graph:
    """The graph with such an operation in double, and its results rounded."""
    if not any(is_single(eqn) for eqn in graph.eqns):
        return graph
    eqns = list[Eqn]()
    for eqn in graph.eqns:
        if not is_single(eqn):
            eqns.append(eqn)
            continue
        add = partial(applied, eqns, source=eqn.source)
        wide = {a: add(ConvertElementType(WIDER[a.type.dtype]), a) for a in eqn.inputs}
        given = tuple([wide[a] for a in eqn.inputs])
        made = tuple([Var(t) for t in eqn.op.infer(*(a.type for a in given))])
        eqns.append(Eqn(eqn.op, given, made, eqn.source))
        for wider, out in zip(made, eqn.outs, strict=True):
            eqns.append(Eqn(ConvertElementType(out.type.dtype), (wider,), (out,), eqn.source))
    return replace(graph, eqns=tuple(eqns))


def is_single(eqn: Eqn) -> bool:
    inverse = isinstance(eqn.op, Fft) and eqn.op.inverse
    return isinstance(eqn.op, IN_DOUBLE) and not inverse and eqn.inputs[0].type.dtype in WIDER
