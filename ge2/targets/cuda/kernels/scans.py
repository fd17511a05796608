"""Kernels of scans: running sums, products and extremes, and associative scans of several arrays."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT32, HALF, INT32
from ge2.base.record import record
from ge2.choice import Problem, Variant
from ge2.codegen.layout import merged, unspoken
from ge2.codegen.text import Text
from ge2.ir import ArrayType, Atom, Eqn, Literal, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.associative import Prefixes
from ge2.ops.pointlike import Pointwise
from ge2.ops.reduce import Running
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.region import mentions
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.views import Access, How, Scanned, ScanView
from ge2.targets.cuda.emit.words import HELD, STORED, SUFFIX, expression, number, power, retyped
from ge2.targets.cuda.kernels import NOTHING, CudaWays
from ge2.targets.cuda.limits import Chip

# -------- Running sums, products and extremes in CUDA, each element read once and written once.
# A line is scanned by a few lanes of a warp, by a block, or, where lines are few and long, by many
# blocks: each leaves the state of its tile and looks back at those before, merged by 32, again by
# 32, and then in order. So the places of elements alone decide what is merged with what, and the
# bits are the same each run. Lines that lie side by side are scanned by threads side by side. Sums
# and products of float32 are carried in float64, so each result is within a rounding of the true
# one; the powers of two of products are counted apart, so that none overflows on the way.
# For float32, of n elements: 8 n bytes of memory; for each tile of 18432 elements 16 bytes written
# and at most 1.5 KB of the cache read. A tile is in shared memory, 72 KB, so that three blocks are
# under way on a multiprocessor. A lane has 36 neighbours there, 9 accesses of 16 bytes: of each
# element 3 conversions and 3.3 additions in float64, and of the run 7 shuffles of two words. An
# H200 has the time for 9 conversions of an element.


@final
class CudaScan(CudaWays):
    """Running sums, products and extremes: whole lines, or lines that blocks share."""

    name = "scan in CUDA"
    ops = (Running,)
    anywhere = True

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        (t,), op = problem.inputs, problem.op
        if not t.size:
            return (NOTHING,)
        assert isinstance(op, Running)

        inner = math.prod(t.shape[op.axis + 1 :]) > 1
        return ways((ColumnsOfOne if inner else LinesOfOne)(problem, "xy", caps.chip))


@final
class CudaPrefixes(CudaWays):
    """Associative scans of arrays, in the same two ways."""

    name = "associative scan in CUDA"
    ops = (Prefixes,)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        assert isinstance(problem.op, Prefixes)
        return unspoken(problem.op.jaxpr)

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        op, t = problem.op, problem.inputs[0]
        if not t.size:
            return (NOTHING,)
        assert isinstance(op, Prefixes)
        names = [*(f"x{i}" for i in range(len(problem.inputs)))]
        names += [f"y{i}" for i in range(len(problem.outs))]
        inner = math.prod(t.shape[op.axis + 1 :]) > 1
        return ways((ColumnsOfSeveral if inner else LinesOfSeveral)(problem, names, caps.chip))


def ways(scan: Lines | Columns) -> tuple[Variant, ...]:
    """The variants of a scan: blocks share lines, or each line is a block's or a thread's."""
    kind, made = type(scan), (scan.problem, tuple(scan.operands), scan.chip)
    return (
        Variant("blocks share lines", lambda: kind(*made).run(True), scan.whole_lines),
        Variant("whole lines", lambda: kind(*made).run(False)),
    )


def unshared(tiles: int, few: bool) -> str:
    """The reason why blocks do not share lines of so many tiles; "" if they do."""
    if tiles == 1:
        return "a line is one tile"
    return "" if few else "there are lines enough for all multiprocessors"


# -------------------------------------------------------------------------------------------- lines


class Lines(Scanned):
    """Threads side by side along the lines."""

    template = "lines"

    def __init__(self, problem: Problem, names: Sequence[str], chip: Chip) -> None:
        super().__init__(problem, names, chip)
        axis = self.op.axis
        others = [a for a in range(len(self.shape)) if a != axis]
        every = self.shape, *(x.strides for x in problem.operands)
        self.over, self.strides = merged(*(tuple(s[a] for a in others) for s in every))
        self.lines = math.prod(self.over)
        self.wides = {name: self.wide(name, axis) for name in names}
        self.pack = self.narrowed(max(*self.wides.values(), 1))
        packs, most = -(-self.n // self.pack), self.at_most(self.tuning.packs, 2)
        self.packs = min(most, -(-packs // 32))
        self.team = min(
            32 if packs <= 32 * self.packs else self.tuning.block, power(-(-packs // self.packs))
        )
        self.tiles = -(-self.n // (self.team * self.packs * self.pack))
        few = self.lines < self.tuning.lines * chip.multiprocessors
        self.whole_lines = unshared(self.tiles, few)

    def run(self, shared: bool) -> Kernels:
        self.fix("PACK", self.pack, "neighbours of one access")
        if shared:
            return self.by_many_blocks()
        self.fix("PACKS", self.packs, "accesses of a thread at a time")
        self.fix("TEAM", self.team, "threads of a line")
        return self.by_teams()

    @abstractmethod
    def narrowed(self, pack: int) -> int:
        """Returns how many elements a pack has, if accesses are of so many at most."""

    @abstractmethod
    def view(self, accesses: Sequence[Access], places: tuple[Text, ...], several: bool) -> Any:
        """The view of the templates."""

    def accesses(self) -> list[Access]:
        return [
            Access(min(wide, self.pack), "1" if wide else self.step(k))
            for k, wide in self.wides.items()
        ]

    def by_teams(self) -> Kernels:
        height = self.tuning.block // self.team if self.team <= 32 else 1
        if height > 1:
            self.size("lines", self.lines, True)
        places = self.placed(*self.split("line", self.over), *self.pointers(self.strides))
        view = self.view(self.accesses(), places, self.tiles > 1)
        view = replace(view, height=height, kept=self.team > 32)
        grid = -(-self.lines // height)
        return Kernels(
            (
                self.kernel(
                    self.template,
                    view,
                    self.team * height,
                    grid,
                    2 if self.tiles > 1 else self.tuning.resident,
                ),
            )
        )

    @abstractmethod
    def by_many_blocks(self) -> Kernels: ...


# ------------------------------------------------------------------------------------------ columns


class Columns(Scanned):
    """Threads across lines that lie side by side, each along packs of its own."""

    template, shared = "columns", "columns_look_back"

    def __init__(self, problem: Problem, names: Sequence[str], chip: Chip) -> None:
        super().__init__(problem, names, chip)
        shape, operands = self.shape, problem.operands
        axes = [a for a in range(len(shape)) if a != self.op.axis]
        lane = max((a for a in axes if shape[a] > 1), default=-1)
        others = [a for a in axes if a != lane]
        every = shape, *(x.strides for x in operands)
        self.outer, strides = merged(*(tuple(s[a] for a in others) for s in every))
        self.width = shape[lane]
        self.strides = tuple((*s, o.strides[lane]) for s, o in zip(strides, operands, strict=True))
        self.wides = {name: self.wide(name, lane) for name in names}
        widest = max(*self.wides.values(), 1)
        self.pack = math.gcd(widest, self.width, power(max(16 // self.words, 1)))
        self.strip_of = math.prod(self.outer)
        self.in_packs = self.width // self.pack
        self.columns = min(power(self.in_packs), self.tuning.strip // self.pack)
        self.rows = self.at_most(self.tuning.rows, 2)
        height = self.tuning.block // self.columns * self.rows
        self.tiles = -(-self.n // height)
        few = self.strip_of * self.in_packs < chip.multiprocessors * self.tuning.busy
        self.whole_lines = unshared(self.tiles, few)

    @abstractmethod
    def view(self, accesses: Sequence[Access], places: tuple[Text, ...], several: bool) -> Any:
        """The view of the templates."""

    def accesses(self) -> list[Access]:
        """Returns how rows of each array are read or written."""
        aparts = [
            "1" if self.wides[name] else self.size(f"{name}_apart", strides[-1], True)
            for name, strides in zip(self.operands, self.strides, strict=True)
        ]
        wides = [min(wide, self.pack) for wide in self.wides.values()]
        parts = zip(self.operands, wides, aparts, strict=True)
        return [Access(w, self.step(k), a) for k, w, a in parts]

    def run(self, shared: bool) -> Kernels:
        self.fix("PACK", self.pack, "columns of a thread")
        return self.by_many_blocks() if shared else self.alone()

    def begun(self, number: str, accesses: Sequence[Access]) -> tuple[Text, ...]:
        """Returns where a thread's columns begin."""
        more = [" + column" if a.apart == "1" else f" + column * {a.apart}" for a in accesses]
        pointers = self.pointers([s[:-1] for s in self.strides], more)
        return self.placed(*self.split(number, self.outer), *pointers)

    def alone(self) -> Kernels:
        """A thread for all rows of its columns."""
        if self.outer:
            self.size("packs", self.in_packs, True)
        block = self.tuning.alone
        total = self.strip_of * self.in_packs
        accesses = self.accesses()
        self.size("total", total, True)
        view = self.view(accesses, self.begun("line", accesses), bool(self.outer))
        grid = -(-total // block)
        return Kernels((self.kernel(self.template, replace(view, block=block), block, grid),))

    def by_many_blocks(self) -> Kernels:
        """Blocks share the rows, each with a tile of a strip."""
        strips, block = -(-self.in_packs // self.columns), self.tuning.block
        self.fix("COLUMNS", self.columns, "threads side by side, of a strip")
        self.fix("ROWS", self.rows, "rows of a thread")
        count = self.strip_of * strips
        # other strips fill the time of waiting
        group = self.tuning.group
        group = max(min(group, power(-(-2 * group // count))), self.tuning.smallest)
        self.fix("GROUP", group, "tiles that are merged before their groups are")
        words = self.words * self.columns * self.pack * (self.tiles + -(-self.tiles // group))
        accesses = self.accesses()
        self.size("packs", self.in_packs, True)
        self.size("strips_of_line", strips, True)
        self.tickets(self.tiles, "strip", count)
        view = self.view(accesses, self.begun("line", accesses), False)
        view = replace(view, numbered=True, lined=view.numbered)
        view = self.shared_view(view, "strip", count, block)
        return self.looking_back(
            count, words, self.shared, view, block, self.tiles, self.tuning.resident
        )


# ------------------------------------------------------------------------------------ of one array


class OfOne(Scanned):
    """Running sums, products and extremes of an array x, as an array y."""

    @property
    def how(self) -> How:
        assert isinstance(self.op, Running)
        return How(self.op, self.dtypes["x"])

    @property
    def words(self) -> int:
        return self.how.words

    def pointer(self, name: str) -> str:
        return "from" if name == "x" else "to"

    def narrowed(self, pack: int) -> int:
        return pack

    def view(self, accesses: Sequence[Access], places: tuple[Text, ...], several: bool) -> ScanView:
        how, (x, y), stored = self.how, accesses, STORED[self.dtypes["x"]]
        return ScanView(
            how.name, how.functions(), stored, self.whole, self.reverse, x, y, places,
            mentions(places, "line"), several,
        )  # fmt: skip


@final
class LinesOfOne(OfOne, Lines):
    """Lines of an array along its last axis; tiles that blocks share are in shared memory."""

    def by_many_blocks(self) -> Kernels:
        run = self.odd_run()
        block = self.wide_block(run)
        self.fix("RUN", run, "accesses of a thread, side by side")
        self.fix("TEAM", block, "threads of a block")
        tiles = -(-self.n // (block * run * self.pack))
        words = self.words * (tiles + -(-tiles // 32) + -(-tiles // 1024))
        accesses = self.accesses()
        self.tickets(tiles, "line", self.lines)
        places = self.placed(*self.split("line", self.over), *self.pointers(self.strides))
        view = self.view(accesses, places, False)
        view = self.shared_view(view, "line", self.lines, block)
        room = self.room(block, run)
        light = self.words <= 2 and self.pack <= 4
        most = self.tuning.waiting if light else self.tuning.resident
        resident = max(1, min(most * self.tuning.block // block, self.chip.shared // room))
        return self.looking_back(
            self.lines, words, "lines_look_back", view, block, tiles, resident, room
        )

    def room(self, block: int, run: int) -> int:
        """Bytes of a tile."""
        return block * run * self.pack * self.itemsize

    def wide_block(self, run: int) -> int:
        """Larger tiles wait for fewer others, if they are many, and if three of them have room."""
        tiles = self.lines * self.n // (2 * self.tuning.block * run * self.pack)
        few, block = tiles < self.tuning.lines * self.chip.multiprocessors, self.tuning.block
        return block if few or 3 * self.room(2 * block, run) > self.chip.shared else 2 * block

    def odd_run(self) -> int:
        """Returns how many packs in a row a thread has: an odd number, so that lanes meet in no
        bank.
        """
        most = max(self.tuning.run // (self.pack * self.itemsize), 1)
        return most - 1 + most % 2


@final
class ColumnsOfOne(OfOne, Columns):
    """Lines of an array that lie side by side."""


# ------------------------------------------------------------------------------- of several arrays


@final
@record
class Leaf:
    """A number of an element, as the view of `templates/cuda/scan/prefixes.cu.jinja` has it."""

    name: str
    stored: str
    held: str
    taken: str


@final
@record
class Reached:
    """An array that such a scan reads or writes; `put`: a number of the state as it is stored."""

    name: str
    stored: str
    wide: int
    step: str
    apart: str
    put: str


@final
@record
class PrefixView:
    """The view of those templates."""

    leaves: tuple[Leaf, ...]
    xs: tuple[Reached, ...]
    ys: tuple[Reached, ...]
    merge: tuple[Text, ...]
    merged: tuple[str, ...]
    places: tuple[Text, ...]
    reverse: str
    index: str
    numbered: bool
    tiles: bool  # whether a line has several tiles, or there are several lines of columns
    lined: bool = False
    several: bool = False
    height: int = 1
    kept: bool = False
    of: str = ""
    tile: str = ""
    left: str = ""
    block: int = 0


class OfSeveral(Scanned):
    """Associative scans of arrays x0, x1, ...; y0, y1, ... are some of their results."""

    @property
    def prefixes(self) -> Prefixes:
        assert isinstance(self.op, Prefixes)
        return self.op

    @property
    def words(self) -> int:
        """Of a struct of all numbers and of a count."""
        held = [(f"f{i}", widened(t.dtype)) for i, t in enumerate(self.problem.inputs)]
        return -(-np.dtype([*held, ("count", INT32)], align=True).itemsize // 4)

    def at_most(self, many: int, least: int) -> int:
        """The states of a thread's packs are no wider than the packs."""
        return max(min(many, self.tuning.bytes // (self.pack * self.itemsize)), least)

    def narrowed(self, pack: int) -> int:
        """A line that is met from its end is of whole packs."""
        widest = max(t.dtype.itemsize for t in self.problem.inputs)
        pack = min(pack, max(16 // widest, 1))
        return math.gcd(pack, self.n) if self.op.reverse else pack

    def view(
        self, accesses: Sequence[Access], places: tuple[Text, ...], several: bool
    ) -> PrefixView:
        inputs, op = self.problem.inputs, self.prefixes
        leaves = [
            Leaf(f"n{i}", STORED[t.dtype], HELD[t.dtype], taken(f"x.n{i}", t.dtype))
            for i, t in enumerate(inputs)
        ]
        put = [stored(f"state.n{i}", inputs[i].dtype) for i in op.results]
        put = [""] * len(inputs) + put
        arrays = [
            Reached(name, STORED[self.dtypes[name]], a.wide, a.step, a.apart, p)
            for name, a, p in zip(self.operands, accesses, put, strict=True)
        ]
        merge, merged = combined(op)
        return PrefixView(
            tuple(leaves), tuple(arrays[: len(inputs)]), tuple(arrays[len(inputs) :]), merge, merged,
            places, self.reverse, self.whole, mentions(places, "line"), several,
        )  # fmt: skip


def widened(dtype: np.dtype) -> np.dtype:
    """The type of a number in a state."""
    return FLOAT32 if dtype in HALF else dtype


def wide(eqn: Eqn) -> Eqn:
    """A conversion as one of the numbers that states have."""
    (x,), (y,) = eqn.inputs, eqn.outs
    types = [ArrayType((), widened(v.type.dtype)) for v in (x, y)]
    return Eqn(ConvertElementType(types[1].dtype), (Var(types[0]),), (Var(types[1]),))


def taken(x: str, dtype: np.dtype) -> str:
    """Returns an element of an array as a state has it, in CUDA."""
    if dtype in HALF:
        return f"ge2_cast_{SUFFIX[dtype]}_f32({x})"
    return f"{x} != 0" if dtype == BOOL else x


def stored(x: str, dtype: np.dtype) -> str:
    """Returns a number of a state as an array has it, in CUDA."""
    return f"ge2_cast_f32_{SUFFIX[dtype]}({x})" if dtype in HALF else x


def combined(op: Prefixes) -> tuple[tuple[Text, ...], tuple[str, ...]]:
    """Returns the statements that combine the states a and b, and the texts of the numbers they make."""
    graph, n = op.jaxpr, len(op.jaxpr.outputs)
    known = dict[Atom, str]()
    for state, inputs in zip("ab", (graph.inputs[:n], graph.inputs[n:]), strict=True):
        known |= {v: f"{state}.n{i}" for i, v in enumerate(inputs)}

    def said(a: Atom) -> str:
        return number(a.value, widened(a.type.dtype)) if isinstance(a, Literal) else known[a]

    lines = list[Text]()
    for i, e in enumerate(graph.eqns):
        xs, (out,) = [said(a) for a in e.inputs], e.outs
        dtypes = [widened(v.type.dtype) for v in (e.inputs[0], out)]
        if e.op.retypes:
            code = xs[0] if dtypes[0] == dtypes[1] else retyped(xs[0], wide(e))
        else:
            assert isinstance(e.op.lowering, Pointwise)
            code = expression(e.op.lowering.expression, xs, *dtypes)
        known[out] = f"w{i}"
        lines.append(Text(f"const {HELD[out.type.dtype]} w{i} = {code};", str(e.op.name)))
    return tuple(lines), tuple(said(a) for a in graph.outputs)


@final
class LinesOfSeveral(OfSeveral, Lines):
    """Lines of several arrays along their last axis; tiles are in registers."""

    template = "prefixes_lines"

    def by_many_blocks(self) -> Kernels:
        block = self.tuning.block
        self.fix("PACKS", self.packs, "accesses of a thread at a time")
        self.fix("TEAM", block, "threads of a block")
        tiles = -(-self.n // (block * self.packs * self.pack))
        words = self.words * (tiles + -(-tiles // 32) + -(-tiles // 1024))
        accesses = self.accesses()
        self.tickets(tiles, "line", self.lines)
        places = self.placed(*self.split("line", self.over), *self.pointers(self.strides))
        view = self.shared_view(self.view(accesses, places, False), "line", self.lines, block)
        resident = self.tuning.resident
        return self.looking_back(self.lines, words, self.template, view, block, tiles, resident)


@final
class ColumnsOfSeveral(OfSeveral, Columns):
    """Lines of several arrays that lie side by side."""

    template = shared = "prefixes_columns"
