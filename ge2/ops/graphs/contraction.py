"""Regions whose root is a matrix product: their steps apart, the region that steps become, and where
regions round half types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeGuard, TypeVar, final

import numpy as np

from ge2.base.arrays import HALF
from ge2.base.record import record
from ge2.ir import Atom, Dims, Eqn, Graph, Op, Var, rename
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.region import CONTRACTION, Region, kind_of, needed, spread_out
from ge2.ops.shape import Iota

T = TypeVar("T")
NONE: Final = -1  # in place of an axis of the space, for one of size 1


@final
@record
class ProductSteps:
    """A contraction as steps: regions that make operands of its products (`prologues`), the
    products, of one left operand if they are two, and the region that goes on with them (`rest`).

    All values are those of `graph`, the one that the contraction holds.
    """

    graph: Graph
    prologues: tuple[Eqn, ...]
    products: tuple[Eqn, ...]
    rest: Eqn

    @property
    def product(self) -> Eqn:
        """The root."""
        return self.products[0]

    @property
    def dot(self) -> DotGeneral:
        """The operation of all products."""
        assert isinstance(self.product.op, DotGeneral)
        return self.product.op

    @property
    def region(self) -> Region:
        """The operation of `rest`."""
        assert isinstance(self.rest.op, Region)
        return self.rest.op

    @property
    def places(self) -> tuple[Var, ...]:
        """The products' results, which the region reads."""
        return tuple(e.outs[0] for e in self.products)

    @property
    def kept(self) -> tuple[Var, ...]:
        """Those of them that are results themselves, rounded to their type."""
        outputs = self.graph.outputs
        return tuple(
            v
            for v in self.places
            for e in self.region.graph.eqns
            if e.inputs == (v,) and e.outs[0] in outputs and e.outs[0].type == v.type
        )

    @property
    def is_bare(self) -> bool:
        """True if the region leaves elements as they are, rounded to its type."""
        eqns = self.region.graph.eqns
        return len(eqns) == 1 and isinstance(eqns[0].op, ConvertElementType)

    def around(self, known: Mapping[Var, T]) -> dict[Var, T]:
        """The facts known of the arrays that the region reads and makes, but for the products."""
        return {v: known[v] for v in (*self.region.graph.inputs, *self.rest.outs) if v in known}

    @property
    def steps(self) -> Graph:
        """The same with an equation a step."""
        return Graph(self.graph.inputs, (*self.before, self.rest), self.graph.outputs)

    @property
    def before(self) -> tuple[Eqn, ...]:
        """All but the last of them."""
        return (*self.prologues, *self.products)


def is_contraction(op: object) -> TypeGuard[Region]:
    return isinstance(op, Region) and op.kind == CONTRACTION


def opened(eqn: Eqn) -> tuple[Eqn, ...]:
    """The steps of a contraction in place of it, which read and make what it does."""
    steps = steps_of(eqn.op)
    graph, names = steps.graph, dict[Var, Atom]()
    names.update(zip((*graph.inputs, *graph.outputs), (*eqn.inputs, *eqn.outs), strict=True))  # type: ignore[arg-type]
    return tuple(
        replace(e, inputs=rename(names, e.inputs), outs=rename(names, e.outs))  # type: ignore[arg-type]
        for e in steps.steps.eqns
    )


# ------------------------------------------------------------------------------------ taken apart

MOST: Final = 256  # contractions that are remembered at once
_known: dict[int, tuple[Graph, ProductSteps]] = {}  # by the identity of their graphs


def steps_of(op: Op) -> ProductSteps:
    """The steps of a contraction; families ask for those of the last few over and over."""
    assert isinstance(op, Region) and op.kind == CONTRACTION
    found = _known.get(id(op.graph))
    if found is None or found[0] is not op.graph:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[id(op.graph)] = op.graph, apart(op)
    return found[1]


def apart(op: Region) -> ProductSteps:
    graph, made = op.graph, {v: n for n, e in enumerate(op.graph.eqns) for v in e.outs}
    roots = [n for n, e in enumerate(graph.eqns) if isinstance(e.op, DotGeneral)]
    products = tuple(graph.eqns[n] for n in roots)
    before, prologues = set(roots), list[tuple[int, Eqn]]()
    for e in products:
        for a, axes in zip(e.inputs, operand_axes(e), strict=True):
            if isinstance(a, Var) and made.get(a, roots[0]) not in before:
                numbers = needed(graph, [a])
                before.update(numbers)
                prologues.append((numbers[0], part(op, numbers, (a,), a.type.shape, axes)))
    late = [n for n in range(len(graph.eqns)) if n not in before]
    shape = products[0].outs[0].type.shape
    rest = part(op, late, graph.outputs, shape, tuple(range(len(shape))))
    prologues.sort(key=lambda each: each[0])
    return ProductSteps(graph, tuple(e for _, e in prologues), products, rest)


def operand_axes(product: Eqn) -> tuple[Dims, Dims]:
    """The axes of the space that those of each operand of a product are: first come the axes of the
    result, then those that are summed.
    """
    op, (a, b) = product.op, (x.type for x in product.inputs)
    assert isinstance(op, DotGeneral)
    rows, columns = op.free(a, b)
    number = iter(range(a.ndim + b.ndim))
    beside, left, right, sums = (
        [next(number) for _ in axes] for axes in (op.beside[0], rows, columns, op.contract[0])
    )
    found = list[Dims]()
    for n, (free, own) in enumerate(((rows, left), (columns, right))):
        axes = (*op.beside[n], *free, *op.contract[n])
        at = dict(zip(axes, (*beside, *own, *sums), strict=True))
        found.append(tuple(at[axis] for axis in sorted(at)))
    return found[0], found[1]


def part(op: Region, numbers: Sequence[int], outs: Iterable[Atom], space: Dims, axes: Dims) -> Eqn:
    """Some equations of a contraction as a region over a space, whose axes are those of the whole."""
    eqns = tuple(op.graph.eqns[n] for n in numbers)
    made = {v: e for e in eqns for v in e.outs}
    solid = [e for e in eqns if not e.op.is_view]
    read = tuple(dict.fromkeys(v for e in (*solid, *eqns) for v in behind_views(e, made)))
    results = tuple(v for v in outs if isinstance(v, Var))
    own = {NONE: NONE, **{axis: d for d, axis in enumerate(axes)}}
    at = tuple(tuple(own[axis] for axis in op.axes[n]) for n in numbers)
    region = Region(kind_of(eqns), space, at, Graph(read, eqns, results))
    return Eqn(region, read, results, eqns[-1].source)


def behind_views(eqn: Eqn, made: Mapping[Var, Eqn]) -> Iterator[Var]:
    """The values from outside that an equation reads, views of them among its operands."""
    for a in eqn.inputs:
        if isinstance(a, Var):
            maker = made.get(a)
            if maker is None:
                yield a
            elif maker.op.is_view:
                yield from behind_views(maker, made)


# ------------------------------------------------------------------------------------- put together


def of_steps(steps: Sequence[Eqn], inputs: Iterable[Atom] = ()) -> Eqn:
    """Regions that make operands of products, these products, and the region that goes on with them
    as one: the region of kind `contraction`. Its inputs come in the order of `inputs`, or else in
    that in which steps read them.
    """
    product, rest = next(e for e in steps if isinstance(e.op, DotGeneral)), steps[-1]
    made = {v for e in steps for v in e.outs}
    read = (a for e in steps for a in e.inputs if isinstance(a, Var) and a not in made)
    given = tuple(dict.fromkeys([*(a for a in inputs if isinstance(a, Var)), *read]))
    left, dot = product.inputs[0].type, product.op
    assert isinstance(dot, DotGeneral)
    space = (*product.outs[0].type.shape, *(left.shape[d] for d in dot.contract[0]))
    pairs = [pair for e in steps for pair in equations_of(e, product)]
    eqns, axes = (tuple(each) for each in zip(*pairs, strict=True))
    graph = Graph(given, eqns, rest.outs)
    return Eqn(Region(CONTRACTION, space, axes, graph), given, rest.outs, product.source)


def bare(product: Eqn) -> tuple[Eqn, Eqn]:
    """A product as steps: itself, and a region that leaves its elements as they are."""
    (y,), v, out = product.outs, Var(product.outs[0].type), Var(product.outs[0].type)
    graph = Graph((v,), (Eqn(ConvertElementType(y.type.dtype), (v,), (out,)),), (out,))
    region = Region("pointwise", y.type.shape, (tuple(range(y.type.ndim)),), graph)
    inner = Var(y.type)
    return replace(product, outs=(inner,)), Eqn(region, (inner,), (y,), product.source)


def equations_of(step: Eqn, product: Eqn) -> Iterator[tuple[Eqn, Dims]]:
    """The equations of a step, each with the axes of its result in the space of the contraction."""
    op, whole = step.op, tuple(range(len(product.outs[0].type.shape)))
    if not isinstance(op, Region):
        yield step, whole
        return
    of = dict(zip(product.inputs, operand_axes(product), strict=True))
    to = {NONE: NONE, **dict(enumerate(of.get(step.outs[0], whole)))}
    for e, at in zip(spread_out(step, op.graph), op.axes, strict=True):
        yield e, tuple(to[axis] for axis in at)


# ------------------------------------------------------------------------------------ round halves
# Half types inside a region, rounded where the program leaves them: a cast or a test is a store.
#
# A region holds equations of half types in float32 and rounds what it stores. Between equations of
# one type that is nearer to the truth; a cast to another type, a comparison, `isinf` or an argmax
# would show numbers that the type does not have. There the value is rounded first, once for all of
# its readers of that kind.


def round_halves(
    graph: Graph, axes: tuple[Dims, ...], inexact: Iterable[Var] = ()
) -> tuple[Graph, tuple[Dims, ...]]:
    """The graph of a region with its roundings, and the axes of each equation.

    `inexact`: inputs that are held in float32 and not rounded yet, such as the sums of a product.
    """
    if not any(v.type.dtype in HALF for e in graph.eqns for v in e.outs) and not inexact:
        return graph, axes
    rounding = Rounding(inexact)
    for eqn, at in zip(graph.eqns, axes, strict=True):
        rounding.take(eqn, at)
    if len(rounding.eqns) == len(graph.eqns):
        return graph, axes
    return Graph(graph.inputs, tuple(rounding.eqns), graph.outputs, graph.consts), tuple(
        rounding.axes
    )


class Rounding:
    """The equations so far, and which of their values are no numbers of their type yet."""

    def __init__(self, inexact: Iterable[Var]) -> None:
        self.eqns: list[Eqn] = []
        self.axes: list[Dims] = []
        self.inexact = set(inexact)
        self.rounded: dict[Var, Var] = {}

    def take(self, eqn: Eqn, at: Dims) -> None:
        dtypes = {v.type.dtype for v in eqn.outs}
        first = eqn.op.jumps
        inputs = tuple(self.operand(a, at) if first or leaves(a, dtypes) else a for a in eqn.inputs)
        eqn = eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
        self.add(eqn, at)
        if dtypes & HALF and not self.keeps(eqn):
            self.inexact.update(eqn.outs)

    def add(self, eqn: Eqn, at: Dims) -> None:
        self.eqns.append(eqn)
        self.axes.append(at)

    def keeps(self, eqn: Eqn) -> bool:
        """True if the results are numbers of their type."""
        if eqn.op.retypes or isinstance(eqn.op, Iota):
            return True
        return (eqn.op.exact or eqn.op.is_view) and self.inexact.isdisjoint(eqn.inputs)

    def operand(self, x: Atom, at: Dims) -> Atom:
        """The value as its type has it."""
        if not isinstance(x, Var) or x not in self.inexact:
            return x
        if x not in self.rounded:
            op = ConvertElementType(x.type.dtype)
            y = self.rounded[x] = Var(*op.infer(x.type))
            self.add(Eqn(op, (x,), (y,)), at if x.type.ndim == len(at) else ())
        return self.rounded[x]


def leaves(x: Atom, dtypes: set[np.dtype]) -> bool:
    """True if an operand of a half type is read by an equation of another."""
    return x.type.dtype in HALF and x.type.dtype not in dtypes
