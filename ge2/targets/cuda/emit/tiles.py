"""Elementwise kernels of arrays that lie across each other, by way of tiles in shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

from ge2.base.record import record
from ge2.codegen.kernel_values import Param
from ge2.codegen.text import Text
from ge2.ops.elementwise import ConvertElementType
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.views import Stage
from ge2.targets.cuda.emit.words import STORED, WIDEST
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.tuning import Tiles as Numbers

# -------- Elementwise kernels of arrays that lie across each other, by way of tiles in shared
# memory.
# A block has a square of SIDE x SIDE elements. What does not lie as the results do is read along
# its own neighbours into a tile; then each thread has packs along the results, as in other
# elementwise kernels. So all accesses to memory are of whole lines of 128 bytes, and a copy moves
# each element twice and nothing else.


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
    """The axis along which the results lie; -1 if there is none, they differ, or lie elsewhere."""
    if problem.landing:
        return -1
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
    """The view that `templates/cuda/transpose.cu.jinja` prints."""

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


# -------- Of arrays that lie across the results in several axes, some of which are short, a tile has
# parts of all of these: pixels that are shuffled lie in rows of two elements, heads of a few. A block
# reads it along the array's own neighbours and writes it along the results', both in runs of whole
# lines of 128 bytes. Where an element of a tile is follows from its number by constants.
# [64, 256, 64, 64] float16 as [64, 64, 128, 128]: of i, j, l, m, q a tile has 8 of j, 2 of l, 64 of
# m and 2 of q, which are 1024 bytes of the array one after another, and 256 of the result.


def permuted(problem: Problem, chip: Chip) -> Permuted | None:
    """The writer of the kernel, if a large array lies across the results, and one of both in short
    rows.
    """
    lane, sizes, tuning = lane_of(problem), problem.axes.sizes, chip.tuning.tiles
    if lane < 0 or math.prod(sizes.values()) < tuning.large:
        return None
    lying = [
        p
        for p, strides in problem.axes.strides.items()
        if set(strides) == set(sizes) and side_of(problem, p, lane, 2) >= 0
    ]
    if not lying:
        return None
    side = side_of(problem, lying[0], lane, 2)
    taken = [p for p in lying if side_of(problem, p, lane, 2) == side]
    if min(sizes[lane], sizes[side]) >= tuning.sides[-1]:
        return None
    each = sum(p.var.type.dtype.itemsize for p in taken)
    room = chip.static // (2 * each)  # a tile may be twice as large, and has gaps
    tile = tile_of(problem, taken[0], tuning, min(tuning.elements, room))
    found = Permuted(problem, chip, tile, lane, taken)
    return found if found.room * each <= chip.static else None


def inner_first(problem: Problem, p: Param) -> list[int]:
    """The axes along which an array has elements, that of its neighbours first."""
    strides = problem.axes.strides[p]
    return sorted(
        (a for a, n in problem.axes.sizes.items() if n > 1), key=lambda a: abs(strides[a])
    )


def tile_of(problem: Problem, p: Param, tuning: Numbers, elements: int) -> dict[int, int]:
    """The elements of a tile along each of its axes: of the array and of the results a run each."""
    sizes, tile = problem.axes.sizes, dict[int, int]()
    orders = [inner_first(problem, each) for each in (problem.outs[0], p)]
    for axes, each in zip(orders, (problem.outs[0], p), strict=True):
        run, wanted = 1, tuning.run // each.var.type.dtype.itemsize
        for a in axes:
            tile[a] = max(tile.get(a, 1), part_of(sizes[a], -(-wanted // run)))
            run *= tile[a]
            if tile[a] < sizes[a] or run >= wanted:
                break
    for a in [a for pair in zip(*orders, strict=True) for a in pair]:
        while (left := elements // math.prod(tile.values())) > 1 and tile.get(a, 1) < sizes[a]:
            tile[a] = part_of(sizes[a], tile.get(a, 1) * min(left, 2))
    return tile


def part_of(size: int, least: int) -> int:
    """How much of an axis a tile has: `least`, or up to twice as much that divides it, or all."""
    if size <= 2 * least:
        return size
    return next((n for n in range(least, 2 * least) if size % n == 0), least)


@final
@record
class Walk:
    """How a block goes through a tile, PACK neighbours at a time: number `e` is where in the tile."""

    pack: int
    turns: int
    even: bool  # whether each thread has as many
    places: tuple[Text, ...]
    inside: str  # the condition that an element is in the array; "" if all are


@final
@record
class Moving:
    """An array that is read by way of a tile, and where in it an element goes."""

    name: str
    stored: str
    element: str
    walk: Walk
    spot: tuple[Text, ...]  # the place of neighbour `w` along the axes, if not along the first
    to: str
    apart: str  # how far neighbours are apart there


@final
@record
class Blocks:
    """The view that `templates/cuda/permuted.cu.jinja` prints."""

    index: str
    block: int
    origin: tuple[Text, ...]
    taken: tuple[Moving, ...]
    elements: int
    room: int
    row: int
    pad: int
    walk: Walk
    stages: tuple[Stage, ...]
    copy: str  # where the elements of a mere copy go, whose packs are along several axes; or ""


@final
class Permuted:
    """`tile`: elements along its axes; `lane`: along which results lie; `taken`: the arrays that are
    read by way of it.
    """

    def __init__(
        self,
        problem: Problem,
        chip: Chip,
        tile: Mapping[int, int],
        lane: int,
        taken: Sequence[Param],
    ) -> None:
        self.problem, self.tile, self.lane, self.taken = problem, tile, lane, list(taken)
        self.block, sizes = chip.tuning.tiles.block, problem.axes.sizes
        largest = max(p.var.type.dtype.itemsize for p in (*taken, *problem.outs))
        self.pack = math.gcd(min(WIDEST // largest, chip.tuning.tiles.pack), tile[lane])
        self.lanes = Lanes(problem, frozenset(), chip, lane, self.pack)
        self.places = self.lanes.places
        self.places.constant = frozenset(a for a, n in tile.items() if n == sizes[a])
        self.count = {a: -(-n // tile.get(a, 1)) for a, n in sizes.items()}
        self.grid = math.prod(self.count.values())
        # where an element of the tile is kept: as the results lie, rows of the array's neighbours
        # apart by an odd number of words
        self.weights, weight = dict[int, int](), 1
        for a in self.order(problem.outs[0]):
            self.weights[a] = weight
            weight *= tile[a]
        self.elements, self.row = weight, self.weights[self.order(self.taken[0])[0]]
        size = self.taken[0].var.type.dtype.itemsize
        self.pad = max(4 // size, 1) if self.row * size % 8 == 0 else 0
        self.room = self.elements + self.elements // self.row * self.pad

    def order(self, p: Param) -> list[int]:
        """The axes of a tile, that along which an array has neighbours first."""
        return [a for a in inner_first(self.problem, p) if a in self.tile]

    def run(self) -> Kernels:
        problem, said, (out, *_) = self.problem, self.lanes.said, self.problem.outs
        copy = (
            "" if not self.copies() else f"{self.places.result(out)} + {self.places.element(out)}"
        )
        origin, walk = self.origin(), self.walk(out, self.pack_of(out) if copy else self.pack)
        taken = tuple(map(self.moving, self.taken))
        for p in self.taken:
            said.packs[p] = f"{self.places.array(p)}_at.at[{'v' if self.pack > 1 else '0'}]"
        stages = () if copy else tuple(self.lanes.inside(self.lanes.root))
        view = Blocks(
            self.places.whole, self.block, origin, taken, self.elements, self.room, self.row, self.pad, walk,
            stages, copy,
        )  # fmt: skip
        packed = self.pack > 1 and not copy
        fixed = [Fixed("PACK", self.pack, "neighbours of one access")] if packed else []
        arguments = tuple(self.places.arguments.values())
        return Kernels((
            CudaKernel(
                problem.region.kind, problem.text, arguments, (), self.block, (self.grid, 1), tuple(fixed),
                0, len(problem.region.graph.eqns), tuple(said.helpers),
                template="cuda/permuted.cu.jinja", view=view,
            ),
        ))  # fmt: skip

    def copies(self) -> bool:
        """True if the elements of an array are all that there is, as they are."""
        eqns = self.problem.region.graph.eqns
        types = {p.var.type.dtype for p in (*self.taken, *self.problem.outs)}
        plain = len(eqns) == 1 and isinstance(eqns[0].op, ConvertElementType)
        return plain and len(types) == len(self.taken) == len(self.problem.outs) == 1

    def pack_of(self, p: Param) -> int:
        """Elements of an array that follow each other in the tile and in memory, as many as one access
        moves, whichever axes these are along.
        """
        strides, operand = self.problem.axes.strides[p], self.problem.operands[p.var]
        run, inside, left = 1, list[int](), 0
        for a in self.order(p):
            if strides[a] != run:
                break
            inside.append(a)
            run *= self.tile[a]
            if self.tile[a] < (size := self.problem.axes.sizes[a]):
                left = size % self.tile[a] * strides[a]
                break
        steps = (s for a, s in strides.items() if a not in inside)
        parts = (run, left, operand.offset, operand.loose, *steps)
        pack = WIDEST // p.var.type.dtype.itemsize
        while pack > 1 and any(each % pack for each in parts):
            pack //= 2
        return max(pack, 1)

    def origin(self) -> tuple[Text, ...]:
        """Where the tile of a block begins along each axis of several tiles."""
        rest, found = "(int)blockIdx.x", list[Text]()
        axes = [a for a in sorted(self.count, reverse=True) if self.count[a] > 1]
        for n, a in enumerate(axes):
            letter, size, last = self.places.letters[a], self.tile.get(a, 1), n + 1 == len(axes)
            extent = self.places.extent(a)
            count = extent if size == 1 else f"(({extent} + {size - 1}) / {size})"
            place = rest if last else f"{rest} % {count}"
            name, times = (letter, "") if size == 1 else (f"{letter}_0", f" * {size}")
            found.append(Text(f"const {self.places.whole} {name} = ({place}){times};"))
            rest = f"({rest} / {count})"
        return (*found, *(Text(f"const int {self.places.letters[a]} = 0;") for a in self.absent()))

    def absent(self) -> list[int]:
        """The axes of one element, which no tile has."""
        return [a for a, n in self.count.items() if n == 1 and a not in self.tile]

    def walk(self, p: Param, pack: int) -> Walk:
        """Through the tile along an array's neighbours."""
        rest, places, tests = "e", list[Text](), list[str]()
        for a in self.order(p):
            letter, size, name = self.places.letters[a], self.tile[a], self.name(a)
            place = rest if a == self.order(p)[-1] else f"{rest} % {size}"
            places.append(Text(f"const int {name} = {place};"))
            if self.count[a] > 1:
                places.append(Text(f"const {self.places.whole} {letter} = {letter}_0 + {name};"))
            rest = f"{rest} / {size}"
            if self.problem.axes.sizes[a] % size:
                tests.append(f"{letter} < {self.places.extent(a)}")
        each = self.block * pack
        turns = -(-self.elements // each)
        return Walk(pack, turns, self.elements % each == 0, tuple(places), " && ".join(tests))

    def name(self, a: int) -> str:
        """What the place in the tile along an axis is called: as that in the array, where it has all."""
        letter = self.places.letters[a]
        return letter if self.count[a] == 1 else f"{letter}_1"

    def moving(self, p: Param) -> Moving:
        side, wide = self.order(p)[0], self.pack_of(p)
        names = {a: self.name(a) for a in self.order(p)}
        spot, rest = list[Text](), "(e + w)"
        for a in self.order(p) if self.tile[side] % wide else ():
            names[a] = f"{self.places.letters[a]}_w"
            place = rest if a == self.order(p)[-1] else f"{rest} % {self.tile[a]}"
            spot.append(Text(f"const int {names[a]} = {place};"))
            rest = f"{rest} / {self.tile[a]}"
        terms = [(name, self.weights[a]) for a, name in names.items()]
        to = " + ".join(name if w == 1 else f"{name} * {w}" for name, w in terms)
        walk, name = self.walk(p, wide), self.places.array(p)
        return Moving(
            name, STORED[p.var.type.dtype], self.places.element(p), walk, tuple(spot), to,
            str(self.weights[side]),
        )  # fmt: skip
