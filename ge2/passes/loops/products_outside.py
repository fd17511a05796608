"""Products of a loop's iterations that the iterations do not wait for, as one product before the loop.

  scan over t: h = tanh(concatenate(x[t], h) @ W + b)
  ->  scan over t: h = tanh(x[t] @ W[:n] + h @ W[n:] + b)
  ->  p = x @ W[:n];  scan over t: h = tanh(p[t] + h @ W[n:] + b)

An iteration is a chain of steps that wait for one another, each of which reads its matrix again:
one product of all rows reads it once. What is joined to be multiplied is multiplied apart, so that
the part that is known before the loop is such a product, and nothing is joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ge2.ir import Atom, Eqn, Graph, Var, makers_of, without_dead_code
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD
from ge2.ops.graphs.loops import ScanLoop, stacked
from ge2.ops.shape import Concatenate, Slice, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.loops import after_first

Cut = tuple[Var, int, int, int]  # a matrix, an axis of it, and from where to where

# ------------------------------------------------------------------- products of what was joined


def joined_products(graph: Graph, context: Context = NOTHING) -> Graph:
    """Products of joined arrays with a matrix that many have are sums of products of the parts."""
    least = context.tuning.products_outside.products
    uses = Counter(e.inputs[1 - side] for e, side, _ in of_joined(graph))
    many = {a for a, count in uses.items() if count >= least}
    return parted(graph, many) if many else graph


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


def parted(graph: Graph, matrices: set[Atom]) -> Graph:
    """The graph with the products by these matrices parted; each matrix is cut where it is made."""
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
    """Products of scans' elements and constants are one before each loop."""
    if not any(isinstance(e.op, ScanLoop) for e in graph.eqns):
        return graph
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        eqns += outside(eqn, context) if isinstance(eqn.op, ScanLoop) else [eqn]
    if len(eqns) == len(graph.eqns):
        return graph
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def outside(eqn: Eqn, context: Context) -> list[Eqn]:
    """The products of a scan that can come before it, and the scan without them."""
    op = eqn.op
    assert isinstance(op, ScanLoop)
    body = with_known_parts(op)
    inner, _, xs = op.parts(body.inputs)
    consts, elements = ({v: eqn.inputs[body.inputs.index(v)] for v in vs} for vs in (inner, xs))
    before: list[Eqn] = []
    moved: dict[Var, Var] = {}
    known = {**consts}
    for e in body.eqns:
        if is_cut(e, known):  # of a matrix that such a product may have
            known[e.outs[0]] = cut_before(e, known, before)
        side = side_of(e, known, elements)
        if side is not None and worth(e, side, op.length, context):
            moved[e.outs[0]] = at_once(e, side, known, elements, op.length, before)
    if not moved:
        return [eqn]
    rest = tuple(e for e in body.eqns if moved.keys().isdisjoint(e.outs))
    fewer = Graph((*body.inputs, *moved), rest, body.outputs, body.consts)
    inputs = (*eqn.inputs, *moved.values())
    return [*before, without_unread(Eqn(replace(op, body=fewer), inputs, eqn.outs, eqn.source))]


def with_known_parts(op: ScanLoop) -> Graph:
    """The body, in which products of joined arrays are parted where a part is an element."""
    consts, _, elements = op.parts(op.body.inputs)
    found = of_joined(op.body)
    matrices = {e.inputs[1 - side] for e, side, join in found if {*elements} & {*join.inputs}}
    matrices &= {*consts}
    return parted(op.body, matrices) if matrices else op.body


def is_cut(eqn: Eqn, known: Mapping[Var, Atom]) -> bool:
    return isinstance(eqn.op, Slice) and eqn.inputs[0] in known


def cut_before(eqn: Eqn, known: Mapping[Var, Atom], before: list[Eqn]) -> Var:
    (matrix,) = eqn.inputs
    assert isinstance(matrix, Var)
    before.append(Eqn(eqn.op, (known[matrix],), (Var(eqn.outs[0].type),), eqn.source))
    return before[-1].outs[0]


def side_of(eqn: Eqn, known: Mapping[Var, Atom], elements: Mapping[Var, Atom]) -> int | None:
    """The operand of a product that is an element where the other one is known before the loop."""
    if not is_product(eqn):
        return None
    a, b = eqn.inputs
    if a in elements and b in known:
        return 0
    return 1 if b in elements and a in known else None


def worth(eqn: Eqn, side: int, length: int, context: Context) -> bool:
    """True if it takes more work than its result is large, and memory is not many times as much."""
    tuning = context.tuning.products_outside
    assert isinstance(eqn.op, DotGeneral)
    element = eqn.inputs[side].type
    terms = element.shape[eqn.op.contract[side][0]]
    grown = eqn.outs[0].type.nbytes / max(element.nbytes, 1)
    return length >= tuning.products and terms >= tuning.terms and grown <= tuning.growth


def at_once(
    eqn: Eqn,
    side: int,
    known: Mapping[Var, Atom],
    elements: Mapping[Var, Atom],
    length: int,
    before: list[Eqn],
) -> Var:
    """The stack of the products, whose equations `before` gets."""
    op, (element, matrix) = eqn.op, (eqn.inputs[side], eqn.inputs[1 - side])
    assert isinstance(op, DotGeneral) and isinstance(element, Var) and isinstance(matrix, Var)
    contract = (after_first(op.contract[side]), op.contract[1 - side])
    rows, columns = element.type.ndim - 1, matrix.type.ndim - 1
    shape = [n for i, n in enumerate(element.type.shape) if i not in op.contract[side]]
    shape += [n for i, n in enumerate(matrix.type.shape) if i not in op.contract[1 - side]]
    product = Var(eqn.outs[0].type.with_shape((length, *shape)))
    inputs = (elements[element], known[matrix])
    before.append(Eqn(replace(op, contract=contract), inputs, (product,), eqn.source))
    if side == 0 or not rows or not columns:
        return product
    order = (0, *range(rows + 1, rows + columns + 1), *range(1, rows + 1))
    turned = Var(stacked(eqn.outs[0].type, length))
    before.append(Eqn(Transpose(order), (product,), (turned,), eqn.source))
    return turned


def without_unread(eqn: Eqn) -> Eqn:
    """The scan without constants and elements that its iterations do not read."""
    op = eqn.op
    assert isinstance(op, ScanLoop)
    body = without_dead_code(op.body)
    read: set[Atom] = {a for e in body.eqns for a in e.inputs} | {*body.outputs}
    last = op.consts + op.carry
    kept = [i for i, v in enumerate(op.body.inputs) if v in read or op.consts <= i < last]
    fewer = Graph(tuple(body.inputs[i] for i in kept), body.eqns, body.outputs, body.consts)
    consts = sum(i < op.consts for i in kept)
    inputs: Sequence[Atom] = [eqn.inputs[i] for i in kept]
    return Eqn(op.of(fewer, consts, op.carry), (*inputs,), eqn.outs, eqn.source)
