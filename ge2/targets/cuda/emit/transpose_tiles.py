"""Elementwise kernels of arrays that lie across each other, by way of tiles in shared memory.

A block has a square of SIDE x SIDE elements. What does not lie as the results do is
read along its own neighbours into a tile; then each thread has packs along the results,
as in other elementwise kernels. So all accesses to memory are of whole lines of 128
bytes, and a copy moves each element twice and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from ge2.base.record import record
from ge2.codegen.kernel_values import Param
from ge2.codegen.text import Text
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.columnwise import Lanes, Stage
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import WIDEST
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import STORED


def across(problem: Problem, chip: Chip) -> Across | None:
    """The writer of the kernel, if arrays lie across the results, and in one direction."""
    lane, strides, tuning = lane_of(problem), problem.axes.strides, chip.tuning.tiles
    if lane < 0 or problem.axes.sizes[lane] < tuning.few:
        return None
    lying = [(p, side) for p in strides if (side := side_of(problem, p, lane, tuning.few)) >= 0]
    if not lying:
        return None
    largest, side = max(
        lying, key=lambda each: math.prod(problem.axes.sizes[a] for a in strides[each[0]])
    )
    taken = [p for p, other in lying if other == side]
    for n in tuning.sides:
        if (
            largest in taken
            and sum(n * n * p.var.type.dtype.itemsize for p in taken) <= chip.static
        ):
            return Across(problem, chip, lane, side, taken, n)
    return None


def lane_of(problem: Problem) -> int:
    """The axis along which the results lie; -1 if there is none, or they differ."""
    found = {
        next((a for a, s in problem.axes.strides[p].items() if s == 1), -1) for p in problem.outs
    }
    whole = all(set(problem.axes.strides[p]) == set(problem.axes.sizes) for p in problem.outs)
    return found.pop() if len(found) == 1 and whole else -1


def side_of(problem: Problem, p: Param, lane: int, few: int) -> int:
    """The other axis along which an input's neighbours lie; -1 if it lies as
    the results do, repeats, or has `few` elements there.
    """
    strides = problem.axes.strides[p]
    if (
        p in problem.outs
        or p in problem.placed
        or problem.operands[p.var].value
        or strides.get(lane, 1) in (0, 1)
    ):
        return -1
    return next((a for a, s in strides.items() if s == 1 and problem.axes.sizes[a] >= few), -1)


@final
@record
class Side:
    """An axis of a tile; `ragged`: no whole number of packs lies along it."""

    letter: str
    extent: str
    ragged: bool


@final
@record
class Taken:
    """An array that is read by way of a tile; `wide`: elements of one access."""

    name: str
    stored: str
    wide: int
    element: str


@final
@record
class Tiles:
    """What `templates/cuda/transpose.cu.jinja` prints."""

    row: Side
    along: Side
    index: str
    outer: tuple[Text, ...]
    taken: tuple[Taken, ...]
    packs: int
    block: int
    stages: tuple[Stage, ...]


@final
class Across:
    """`lane`: along which results lie, `side`: along which those of `taken` do."""

    def __init__(
        self, problem: Problem, chip: Chip, lane: int, side: int, taken: Sequence[Param], width: int
    ) -> None:
        self.problem, self.taken, self.width, self.side = problem, list(taken), width, side
        largest = max(p.var.type.dtype.itemsize for p in (*taken, *problem.outs))
        self.pack = min(WIDEST // largest, chip.tuning.tiles.pack)
        self.lanes = Lanes(problem, frozenset(), chip, lane, self.pack)
        self.places, self.lane = self.lanes.places, lane
        self.block = min(chip.tuning.tiles.block, width * width // self.pack)
        self.turns = width * width // self.pack // self.block
        sizes = problem.axes.sizes
        self.outer = [a for a in self.lanes.kept if a not in (lane, side)]
        self.grid = math.prod(-(-sizes[a] // (width if a in (lane, side) else 1)) for a in sizes)

    def run(self) -> Kernels:
        if not self.grid:
            return Kernels(())
        problem, said = self.problem, self.lanes.said
        row, along = map(self.side_at, (self.lane, self.side))
        outer = self.where()
        taken = tuple(map(self.tile, self.taken))
        for p in self.taken:
            said.packs[p] = f"{self.places.array(p)}_at.at[{'v' if self.pack > 1 else '0'}]"
        stages = tuple(self.lanes.inside(self.lanes.root))
        view = Tiles(row, along, self.places.whole, outer, taken, self.turns, self.block, stages)
        fixed = (
            Fixed("PACK", self.pack, "neighbours of one access"),
            Fixed("SIDE", self.width, "elements along each side of a tile"),
        )
        arguments = tuple(self.places.arguments.values())
        return Kernels((
            CudaKernel(
                problem.region.kind, problem.text, arguments, (), self.block, (self.grid, 1), fixed,
                0, len(problem.region.graph.eqns), tuple(said.helpers),
                template="cuda/transpose.cu.jinja", view=view,
            ),
        ))  # fmt: skip

    def side_at(self, a: int) -> Side:
        ragged = self.problem.axes.sizes[a] % self.pack != 0
        return Side(self.places.letters[a], self.places.extent(a), ragged)

    def where(self) -> tuple[Text, ...]:
        """Returns where a tile lies along the axes that are not its own."""
        if len(self.outer) == 1:
            letter = self.places.letters[self.outer[0]]
            return (Text(f"const {self.places.whole} {letter} = rest1;"),)
        return tuple(map(Text, self.places.split("rest1", self.outer)))

    def tile(self, p: Param) -> Taken:
        stored, name = STORED[p.var.type.dtype], self.places.array(p)
        return Taken(name, stored, self.wide(p), self.places.element(p))

    def wide(self, p: Param) -> int:
        """Returns how many elements along the side one access may move."""
        self.places.lane = self.side
        found = min(self.places.wide(p), self.pack)
        self.places.lane = self.lane
        return found
