"""Operands of a product that are made of other arrays, element by element, as they are read."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.dtypes import COMPLEX, HALF
from ge2.base.formatting import pattern
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import Eqn, Var
from ge2.ops.graphs.region import ProductRegion, Region
from ge2.ops.pointlike import Pointlike
from ge2.program.cost import computing
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Plain, Problem
from ge2.targets.cuda.emit.types import STORED, SUFFIX
from ge2.targets.cuda.products.small import Made

ELEMENT: Final = "element"
DECLARED: Final = pattern(r"const \w+ (\w+) =")


@final
@record
class Prologue:
    """What is printed of an operand that is made, its arguments and the helpers that it calls; the
    dtype of the array that is read, and the graph.
    """

    made: Made
    dtype: np.dtype
    text: str
    arguments: tuple[Argument, ...]
    helpers: tuple[str, ...]


def unmade(eqn: Eqn) -> str:
    """The reason why no product makes such an operand as it reads; "" if one may."""
    region = eqn.op
    if not isinstance(region, Region) or region.kind != "pointwise" or len(eqn.outs) != 1:
        return "an operand is made by no pointwise region of one result"
    (y,) = region.graph.outputs
    shapes = {v.type.shape for e in region.graph.eqns for v in e.outs}
    given = [v for v in eqn.inputs if isinstance(v, Var) and not v.type.weak]
    if len(eqn.inputs) != 1 or len(given) != 1 or shapes != {y.type.shape}:
        return "an operand is made of several arrays"
    same = given[0].type.shape == y.type.shape and y.type.ndim == 2
    if given[0].type.dtype in COMPLEX:
        return "an operand is made of complex numbers"
    if not same or not all(isinstance(e.op, Pointlike) for e in region.graph.eqns):
        return "an operand is made of an array that lies otherwise"
    return ""


def operations(op: ProductRegion, functions: int) -> float:
    """Operations for an element of the operands that are made."""
    found = 0.0
    for e in op.prologues:
        done = computing(e)
        found += (done.flops + functions * done.transcendentals) / max(e.outs[0].type.size, 1)
    return found


def prologue(eqn: Eqn, number: int, chip: Chip) -> Prologue:
    """How operand `number` is made; `unmade` has nothing against it."""
    region = eqn.op
    assert isinstance(region, Region)
    (x,), (y,) = region.graph.inputs, region.graph.outputs
    assert isinstance(y, Var)
    apart = Operand("in", 0, (2 * x.type.shape[1] + 1, 1))  # so that no axes are taken for one
    problem = Problem(region, {x: apart, y: Operand("out", 0, (0, 0))})
    lanes = Lanes(problem, frozenset(), chip, lane=1, pack=1)
    lanes.said.packs.update((p, ELEMENT) for p in problem.axes.strides if p.var is x)
    stages = lanes.inside(lanes.root)
    lines = [line for stage in stages if isinstance(stage, Plain) for line in stage.lines]
    side, arguments = ("left", "right")[number], lanes.places.arguments
    result = next(name for name, a in arguments.items() if a.kind == "result")
    values = (found[1] for line in lines if (found := DECLARED.match(line.code)))
    names = {name: f"{side}_{name}" for name in (*arguments, *values)}
    made = Made(
        number, f"{side}_made", STORED[x.type.dtype], STORED[y.type.dtype], names[result],
        held(f"{names[result]}[0]", y.type.dtype), tuple(renamed(line, names) for line in lines),
    )  # fmt: skip
    more = tuple(
        replace(a, declaration=words(a.declaration, names))
        for name, a in arguments.items()
        if name != result
    )
    text = f"{side} is made of what is read:\n{problem.text}"
    return Prologue(made, x.type.dtype, text, more, tuple(lanes.said.helpers))


def held(value: str, dtype: np.dtype) -> str:
    """An element as it is summed."""
    return f"ge2_cast_{SUFFIX[dtype]}_f32({value})" if dtype in HALF else value


def renamed(line: Text, names: dict[str, str]) -> Text:
    """A statement with names that no other part of the kernel has."""
    return replace(line, code=words(line.code, names))


def words(code: str, names: dict[str, str]) -> str:
    return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), code)
