"""Joining, padding and updating arrays in CUDA: every part is written where it
belongs, and is copied once.

Parts that were made there already (`problem.shared`) are not written again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import final

import numpy as np

from ge2.base.record import record
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.moves import Moved, inside, joined, zeros_around
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims
from ge2.ops.index import UpdateSlice
from ge2.ops.shape import Concatenate, Pad
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.region_variants import regional
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import STORED
from ge2.targets.cuda.kernels.element_grid import OVER, Grid, Spread, added, far, lettered, packed
from ge2.targets.cuda.kernels.generated import Cuda, CudaWays, Operands, copying, filling
from ge2.targets.cuda.tuning import Joins


@final
class CudaConcatenate(CudaWays):
    name = "concatenate in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Concatenate) else f"{problem.op.name} joins nothing"

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        (ins, outs), chip = problem.arrays, caps.chip
        op, why = problem.op, self.several(problem, chip.tuning.joins)
        assert isinstance(op, Concatenate)
        axis, to, there = op.axis, outs[0], [i for _, i in problem.shared]
        one = Variant(
            "in one kernel", lambda: Kernels((joining(problem, axis, ins, to, chip),)), why
        )
        copies = partial(joined, axis, problem.inputs, ins, to, there)
        return one, Variant("a copy of each part", lambda: moved(copies(), chip))

    def several(self, problem: Problem, most: Joins) -> str:
        """Why parts are copied one by one; "" if one kernel joins them."""
        (to,), parts = problem.outs, sum(x.size > 0 for x in problem.inputs)
        if problem.shared:
            return "some parts are where they belong"
        if not 1 < parts <= most.parts:
            return f"there are {parts} parts, not 2 to {most.parts}"
        return f"there are {to.size} elements" if to.size > most.elements else ""


def moved(moves: Iterable[Moved], chip: Chip) -> Kernels:
    """The kernels of each, one after another."""
    return Kernels(tuple(kernel for each in moves for kernel in regional(*each, chip).kernels))


@final
@record
class Part:
    """One of the arrays that are joined: its name, the place of an element, where the next begins."""

    name: str
    place: str
    end: str


@final
@record
class Joining:
    """What `templates/cuda/concatenate.cu.jinja` prints; `letter`: the place along the axis."""

    spread: Spread
    letter: str
    to: str
    parts: tuple[Part, ...]


def joining(problem: Problem, axis: int, ins: Operands, target: Operand, chip: Chip) -> CudaKernel:
    """Each element of the result is read from the part that it is of."""
    (to,) = problem.outs
    axes = [a for a in range(to.ndim) if to.shape[a] != 1 or a == axis]
    parts = [(x, source) for x, source in zip(problem.inputs, ins, strict=True) if x.size]
    arrays = ((x.shape, source.strides) for x, source in parts)
    places = far((to.size,), (to.shape, target.strides), *arrays)
    grid = Grid(places, chip.tuning.elements.block)
    letters = lettered(OVER, len(axes))
    spread, joined = grid.spread(letters, [to.shape[a] for a in axes]), list[Part]()
    result = grid.place("y", letters, [target.strides[a] for a in axes])
    end = 0
    for n, (x, source) in enumerate(parts):
        name, before, end = f"x{n}", end * source.strides[axis], end + x.shape[axis]
        place = grid.place(name, letters, [source.strides[a] for a in axes])
        back = f" - {grid.size(f'back{n}', before)}" if before else ""
        last = n + 1 == len(parts)
        joined.append(Part(name, f"{place}{back}", "" if last else grid.size(f"end{n}", end)))
        grid.array(name, source, x.dtype)
    grid.result("y", target, to.dtype)
    view = Joining(spread, letters[axes.index(axis)], result, tuple(joined))
    return grid.kernel("concatenate", described(problem), view, to.size, "concatenate")


@final
class CudaPad(Cuda):
    name = "pad in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Pad) else f"{problem.op.name} pads nothing"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op, (x,), (to,), (target,) = problem.op, problem.inputs, problem.outs, outs
        assert isinstance(op, Pad)
        if not to.ndim:
            return copying(x, to, ins[0], target, chip)
        start, step, first, shape = inside(op, x.shape, to.shape)
        if not math.prod(shape):
            return filling(to, None, target, chip) if to.size else Kernels(())
        if (0, 0) in problem.shared:
            return moved(zeros_around(to, target, start, shape), chip)
        source, frame = ins[0].part(first, (1,) * x.ndim), Frame(start, step, shape)
        return Kernels((padding(problem, frame, source, target, chip),))


@final
@record
class Frame:
    """Where elements come to lie in a larger array: the first, how far apart,
    and how many, of each axis.
    """

    start: Dims
    step: Dims
    shape: Dims


@final
@record
class Side:
    """An axis of the result.

    `low`, `high`, `step`: where elements of `x` are; all along it if `bare`.
    """

    size: int
    x: int
    y: int
    low: int
    high: int
    step: int

    @property
    def bare(self) -> bool:
        return (self.low, self.high, self.step) == (0, self.size, 1)

    def joined(self, inner: Side) -> Side | None:
        """This axis and the one within it as one, if both arrays treat them so."""
        fits = (
            self.bare
            and inner.bare
            and self.x == inner.x * inner.size
            and self.y == inner.y * inner.size
        )
        if not fits:
            return None
        size = self.size * inner.size
        return Side(size, inner.x, inner.y, 0, size, 1)


def sides(to: ArrayType, frame: Frame, source: Operand, target: Operand) -> list[Side]:
    found: list[Side] = []
    each = zip(
        to.shape, source.strides, target.strides, frame.start, frame.step, frame.shape, strict=True
    )
    for n, x, y, low, step, count in each:
        side = Side(n, x, y, low, low + (count - 1) * step + 1, step if count > 1 else 1)
        if n == 1:
            continue
        whole = found[-1].joined(side) if found else None
        found = [*found[:-1], whole] if whole else [*found, side]
    return found


@final
@record
class Padding:
    """What `templates/cuda/pad.cu.jinja` prints."""

    spread: Spread
    inside: str
    to: str
    source: str
    stored: str
    packed: bool


def padding(
    problem: Problem, frame: Frame, source: Operand, target: Operand, chip: Chip
) -> CudaKernel:
    """Each element of the result is one of `x`, or zero."""
    (x,), (to,) = problem.inputs, problem.outs
    axes = sides(to, frame, source, target)
    places = far((to.size,), (x.shape, source.strides), (to.shape, target.strides))
    grid = Grid(places, chip.tuning.elements.block)
    letters = lettered(OVER, len(axes))
    pack = side_by_side(axes, x.dtype, source, target)
    spread = grid.spread(letters, [s.size for s in axes], pack)
    tests, terms = [], []
    for letter, side in zip(letters, axes, strict=True):
        at = letter if not side.low else f"({letter} - {grid.size(f'low_{letter}', side.low)})"
        if not side.bare:
            tests += [f"{letter} >= {at.split(' - ')[1][:-1]}"] if side.low else []
            tests += [f"{letter} < {grid.size(f'high_{letter}', side.high)}"]
        if side.step > 1:
            step = grid.size(f"step_{letter}", side.step)
            tests.append(f"{at} % {step} == 0")
            at = f"{at} / {step}"
        stride = "" if side.x == 1 else f" * {grid.size(f'x_{letter}', side.x)}"
        terms += [f"{at}{stride}"] if side.x else []
    grid.array("x", source, x.dtype)
    grid.result("y", target, x.dtype)
    place, stored = grid.place("y", letters, [s.y for s in axes]), STORED[x.dtype]
    inside = " && ".join(tests) or "true"
    view = Padding(spread, inside, place, added(*terms), stored, pack > 1)
    return grid.kernel("pad", described(problem), view, to.size // pack, "pad")


def side_by_side(axes: list[Side], dtype: np.dtype, source: Operand, target: Operand) -> int:
    """Returns how many neighbours are moved at once."""
    if not axes or not axes[-1].bare or axes[-1].x != 1 or axes[-1].y != 1:
        return 1
    strides = [s for side in axes[:-1] for s in (side.x, side.y)]
    return packed(dtype, axes[-1].size, *strides, source.offset, target.offset)


@final
class CudaUpdateSlice(Cuda):
    name = "update of a slice in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, UpdateSlice) else f"{problem.op.name} updates no slice"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op, (x, u) = problem.op, problem.inputs
        assert isinstance(op, UpdateSlice)
        first = () if (0, 0) in problem.shared else copying(x, x, ins[0], outs[0], chip).kernels
        then = (
            copying(u, u, ins[1], outs[0].part(op.start, op.step), chip).kernels if u.size else ()
        )
        return Kernels((*first, *then))
