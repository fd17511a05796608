"""Operands of products that are made of other arrays, element by element, as they are read."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final, final

import numpy as np

from ge2.base.arrays import BFLOAT16, BYTES, COMPLEX, HALF
from ge2.base.record import record
from ge2.base.source import pattern
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import Dims, Eqn, Var
from ge2.ir.graph import FREE, SIMPLE
from ge2.ops.elementwise import DIV
from ge2.ops.graphs.contraction import ProductSteps
from ge2.ops.graphs.region import Region
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import BroadcastInDim, Reshape, Transpose
from ge2.program import computing
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Plain, Problem
from ge2.targets.cuda.emit.words import STORED, SUFFIX
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products import Contraction

ELEMENT: Final = "element"
DECLARED: Final = pattern(r"const \w+ (\w+) =")
APART: Final = 1 << 40  # elements: strides of which none is a multiple of another
SIDES: Final = ("left", "right")
Numbers = tuple[tuple[int, Operand], ...]  # inputs, and what they are handed over as


@final
@record
class Element:
    """An element that an operand is made of: its name and stored type, which input of the region it
    is of, and the axis of that along each axis of the operand; -1 where elements repeat.
    """

    name: str
    stored: str
    dtype: np.dtype
    input: int
    axes: Dims

    def strides(self, x: Operand) -> Dims:
        """The strides of the array along the axes of the operand."""
        return tuple(x.strides[a] if a >= 0 else 0 for a in self.axes)


@final
@record
class Made:
    """An operand, by number, that is made of other arrays as its elements are read: what the function
    is called, the elements that it takes, and the type of what is made; how that is called, how it
    becomes what is summed, and the statements.
    """

    operand: int
    name: str
    elements: tuple[Element, ...]
    kept: str
    result: str
    value: str
    lines: tuple[Text, ...]

    @property
    def taken(self) -> str:
        """The parameters of the function."""
        return ", ".join(f"{x.stored} {x.name}" for x in self.elements)


@final
@record
class Prologue:
    """The text of an operand that is made, its arguments and the helpers that it calls; and
    the graph.
    """

    made: Made
    text: str
    arguments: tuple[Argument, ...]
    helpers: tuple[str, ...]


@final
@record
class Source:
    """An array that an operand is made of: where its elements are along the axes of the operand, and
    those of the product, were it the operand.
    """

    operand: Operand
    dtype: np.dtype
    axes: Contraction

    def is_whole(self, number: int) -> bool:
        """True of an array that has elements of its own for each line and term."""
        (lines,), (sums,) = (self.axes.rows, self.axes.columns)[number], self.axes.sums
        return bool(getattr(lines, "ab"[number]) and getattr(sums, "ab"[number]))


@final
@record
class Making:
    """Operand `operand` of a product as `eqn` makes it, of such arrays, which are in the order of its
    inputs, and of numbers; `main`: the array whose lines and terms tell how it lies.
    """

    operand: int
    eqn: Eqn
    sources: tuple[Source, ...]
    main: int
    numbers: Numbers = ()

    @property
    def turned(self) -> bool:
        """True if lines of most of what it is made of are closer together than terms."""
        x, n = self.sources[self.main], self.operand
        (lines,), (sums,) = (x.axes.rows, x.axes.columns)[n], x.axes.sums
        line, term = getattr(lines, "ab"[n]), getattr(sums, "ab"[n])
        return bool(abs(line) < abs(term))

    @property
    def brought(self) -> tuple[Source, ...]:
        """The arrays that have elements of their own for each line and term."""
        return tuple(x for x in self.sources if x.is_whole(self.operand))

    @property
    def read(self) -> int:
        """The bytes of all arrays that it is made of."""
        return sum(v.type.nbytes for v in self.eqn.inputs)

    @property
    def straight(self) -> bool:
        """True if no branch is in its code: compilers have all products of a warp group wait for those
        before them, where fragments come from branches and several products go on meanwhile.
        """
        region = self.eqn.op
        assert isinstance(region, Region)
        brief = self.eqn.outs[0].type.dtype == BFLOAT16  # whose divisions are the hardware's
        ops = [e.op for e in region.graph.eqns]
        return all(op.cost in (FREE, SIMPLE) or (brief and op == DIV) for op in ops)

    def prologue(self, chip: Chip) -> Prologue:
        return prologue(self.eqn, self.operand, chip, True, self.numbers)


def unmade(eqn: Eqn) -> str:
    """The reason why no product makes such an operand as it reads; "" if one may."""
    region = eqn.op
    if not isinstance(region, Region) or region.kind != "pointwise" or len(eqn.outs) != 1:
        return "an operand is made by no pointwise region of one result"
    (y,), given = region.graph.outputs, eqn.inputs
    if not given or not all(isinstance(v, Var) and not v.type.weak for v in given):
        return "an operand is made of Python numbers"
    if len({*given}) != len(given):
        return "an operand is made of an array twice"
    if any(v.type.dtype in COMPLEX for v in given):
        return "an operand is made of complex numbers"
    if y.type.dtype in BYTES:
        return "products of bytes take their operands from arrays"
    if y.type.shape != region.space or not all(map(is_plain, region.graph.eqns)):
        return "an operand is made of an array that lies otherwise"
    return ""


def is_plain(eqn: Eqn) -> bool:
    """True of elementwise work, and of views that repeat elements or lay out those that do."""
    return isinstance(eqn.op, Pointlike | BroadcastInDim | Reshape | Transpose)


def unmade_alone(eqn: Eqn) -> str:
    """The same of a small product, which reads one array of two axes."""
    if why := unmade(eqn):
        return why
    region = eqn.op
    assert isinstance(region, Region)
    (y,) = region.graph.outputs
    shapes = {v.type.shape for e in region.graph.eqns for v in (*e.outs, *eqn.inputs)}
    if len(eqn.inputs) != 1:
        return "an operand is made of several arrays"
    same = shapes == {y.type.shape} and y.type.ndim == 2
    if not same or not all(isinstance(e.op, Pointlike) for e in region.graph.eqns):
        return "an operand is made of an array that lies otherwise"
    return ""


def operations(eqn: Eqn, functions: int) -> float:
    """Operations for an element of an operand that is made."""
    done = computing(eqn)
    return (done.flops + functions * done.transcendentals) / max(eqn.outs[0].type.size, 1)


@lru_cache(64)
def elements(eqn: Eqn, numbers: Numbers = ()) -> tuple[Element, ...] | None:
    """The elements that an operand is made of, one of each array; None if one is read at several
    places, or elsewhere than at the operand's. `numbers`: inputs of the region that are no arrays.
    """
    region, problem, known = eqn.op, problem_of(eqn, numbers), {n for n, _ in numbers}
    assert isinstance(region, Region)
    found, many = list[Element](), len(region.graph.inputs) > 1
    for n, v in enumerate(region.graph.inputs):
        if n in known:
            continue
        params = [p for p in problem.axes.strides if p.var is v]
        if len(params) != 1 or params[0] in problem.placed or problem.axes.apart:
            return None
        lies = problem.axes.strides[params[0]]
        axes = [-1] * len(region.space)
        for a, step in lies.items():
            axes[a] = step - APART if step else -1
            if step and not 0 <= axes[a] < v.type.ndim:
                return None
        name = f"{ELEMENT}{n}" if many else ELEMENT
        found.append(Element(name, STORED[v.type.dtype], v.type.dtype, n, tuple(axes)))
    return tuple(found)


def problem_of(eqn: Eqn, numbers: Numbers) -> Problem:
    """The region, of arrays of which nobody takes two axes for one, and of numbers."""
    region = eqn.op
    assert isinstance(region, Region)
    (y,) = region.graph.outputs
    assert isinstance(y, Var)
    lie = {
        v: Operand("in", n, tuple(APART + a for a in range(v.type.ndim)))
        for n, v in enumerate(region.graph.inputs)
    }
    lie.update((region.graph.inputs[n], x) for n, x in numbers)
    return Problem(region, {**lie, y: Operand("out", 0, (0,) * y.type.ndim)})


@lru_cache(16)
def prologue(
    eqn: Eqn, number: int, chip: Chip, late: bool = False, numbers: Numbers = ()
) -> Prologue:
    """The making of operand `number`, which `unmade` has not refused. `late`: elements of half
    types are rounded by who calls the function.
    """
    region, problem, each = eqn.op, problem_of(eqn, numbers), elements(eqn, numbers)
    assert isinstance(region, Region) and each is not None
    (y,) = region.graph.outputs
    lanes = Lanes(problem, frozenset(), chip, lane=max(problem.axes.sizes), pack=1)
    taken = {region.graph.inputs[x.input]: x.name for x in each}
    lanes.said.packs.update((p, taken[p.var]) for p in problem.axes.strides if p.var in taken)
    (out,), late = problem.outs, late and y.type.dtype in HALF
    if late:
        # as what follows a product: last bits are nobody's
        (lanes.said.be_brief if y.type.dtype == BFLOAT16 else lanes.said.contract)()
        lanes.said.late.add(out)
        lanes.said.written[out] = f"{out.name}[0]"
    stages = lanes.inside(lanes.root)
    lines = [line for stage in stages if isinstance(stage, Plain) for line in stage.lines]
    side, arguments = SIDES[number], lanes.places.arguments
    values = (found[1] for line in lines if (found := DECLARED.match(line.code)))
    names = {name: f"{side}_{name}" for name in (out.name, *arguments, *values)}
    result = names[out.name]
    made = Made(
        number, f"{side}_made", each, "float" if late else STORED[y.type.dtype], result,
        held(f"{result}[0]", y.type.dtype), tuple(renamed(line, names) for line in lines),
    )  # fmt: skip
    more = tuple(
        replace(a, declaration=words(a.declaration, names))
        for name, a in arguments.items()
        if name != out.name
    )
    text = f"{side} is made of what is read:\n{problem.text}"
    return Prologue(made, text, more, tuple(lanes.said.helpers))


def prologues_of(op: ProductSteps, chip: Chip) -> tuple[Prologue, ...]:
    """The text of the operands that are made."""
    sides = list(op.product.inputs)
    return tuple(prologue(e, sides.index(e.outs[0]), chip) for e in op.prologues)


def held(value: str, dtype: np.dtype) -> str:
    """An element as it is summed."""
    return f"ge2_cast_{SUFFIX[dtype]}_f32({value})" if dtype in HALF else value


def renamed(line: Text, names: dict[str, str]) -> Text:
    """A statement with names that no other part of the kernel has."""
    return replace(line, code=words(line.code, names))


def words(code: str, names: dict[str, str]) -> str:
    return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), code)
