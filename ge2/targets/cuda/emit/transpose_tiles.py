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

from ge2.codegen.kernel_values import Param
from ge2.codegen.text import Text
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import WIDEST
from ge2.targets.cuda.emit.region import Problem, unrolled
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
    if p in problem.outs or problem.operands[p.var].value or strides.get(lane, 1) in (0, 1):
        return -1
    return next((a for a, s in strides.items() if s == 1 and problem.axes.sizes[a] >= few), -1)


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
        body = [
            *self.where(),
            *map(self.room, self.taken),
            self.read_in(),
            Text("__syncthreads();"),
        ]
        for p in self.taken:
            said.packs[p] = f"{self.places.array(p)}_at.at[{'v' if self.pack > 1 else '0'}]"
        body.append(self.turned("below", self.results()))
        fixed = (
            Fixed("PACK", self.pack, "neighbours of one access"),
            Fixed("SIDE", self.width, "elements along each side of a tile"),
        )
        arguments = tuple(self.places.arguments.values())
        return Kernels((
            CudaKernel(
                problem.region.kind, problem.text, arguments, tuple(body), self.block, (self.grid, 1), fixed,
                0, len(problem.region.graph.eqns), tuple(said.helpers),
            ),
        ))  # fmt: skip

    def where(self) -> list[Text]:
        """Which tile is the block's."""
        lines, rest, int_ = [], "blockIdx.x", self.places.whole
        for n, a in enumerate((self.lane, self.side)):
            letter, tiles = self.places.letters[a], f"(({self.places.extent(a)} + SIDE - 1) / SIDE)"
            last = n == 1 and not self.outer
            of = rest if last else f"{rest} % {tiles}"
            lines.append(Text(f"const {int_} {letter}_0 = ({int_})({of}) * SIDE;"))
            if not last:
                lines.append(Text(f"const {int_} rest{n} = ({int_}){rest} / {tiles};"))
                rest = f"rest{n}"
        if len(self.outer) == 1:
            return [*lines, Text(f"const {int_} {self.places.letters[self.outer[0]]} = {rest};")]
        return [*lines, *map(Text, self.places.split(rest, self.outer))]

    def room(self, p: Param) -> Text:
        return Text(
            f"__shared__ ge2_tile<{STORED[p.var.type.dtype]}, PACK, SIDE> {self.places.array(p)}_tile;"
        )

    def read_in(self) -> Text:
        """What lies across, as packs along its own neighbours."""
        letter, lines = self.places.letters[self.side], []
        left = f", {self.places.extent(self.side)} - {letter}" if self.ragged else ""
        for p in self.taken:
            name, wide = self.places.array(p), self.wide(p)
            read = f"ge2_read<PACK, {wide}>({name} + {self.places.element(p)}{left})"
            lines.append(Text(f"ge2_tile_put({name}_tile, at, {read});"))
        return self.turned("along", lines)

    def results(self) -> list[Text]:
        """The statements on a pack along the results."""
        taken = [
            Text(
                f"const auto {self.places.array(p)}_at = ge2_tile_take({self.places.array(p)}_tile, at);"
            )
            for p in self.taken
        ]
        return [*taken, *self.lanes.inside(self.lanes.root)]

    def turned(self, how: str, lines: Sequence[Text]) -> Text:
        """A thread's turns over a tile, a pack each.

        It reads beyond no array, and writes nothing there.
        """
        turn = f"turn * {self.block} + (int)threadIdx.x" if self.turns > 1 else "(int)threadIdx.x"
        (row, rows), (along, ends) = (
            (self.places.letters[a], self.places.extent(a)) for a in (self.lane, self.side)
        )
        places = f"{row}_0 + at.row", f"{along}_0 + at.along"
        if how == "along":
            places = (
                f"min({places[0]}, {rows} - 1)",
                f"min({places[1]}, {ends} - {1 if self.ragged else 'PACK'})",
            )
        else:
            lines = [Text(f"if ({row} < {rows} && {along} < {ends})", body=tuple(lines))]
        body = (
            Text(f"const ge2_spot at = ge2_tile_{how}<PACK, SIDE>({turn});"),
            Text(f"const {self.places.whole} {row} = {places[0]}, {along} = {places[1]};"),
            *lines,
        )
        return unrolled("turn", str(self.turns), body) if self.turns > 1 else Text("", body=body)

    @property
    def ragged(self) -> bool:
        return self.problem.axes.sizes[self.side] % self.pack != 0

    def wide(self, p: Param) -> int:
        """How many elements along the side one access may move."""
        self.places.lane = self.side
        found = min(self.places.wide(p), self.pack)
        self.places.lane = self.lane
        return found
