"""Kernels whose threads lie along what is folded: a team has a row, in its registers where it fits.

Every chain of reductions over a row, and elementwise work between them, is one pass over memory. What is
folded over the rows as well (the column sums of a derivative) is gathered by blocks that go through many
rows, each of which leaves partial results. Rows that do not fit are read again for every stage; very long
ones, that are only folded, are shared by several blocks.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from ge2.base.dtypes import FLOAT32, HALF
from ge2.codegen.c.nest import AGAIN, Loop, Spec, Work, nest
from ge2.codegen.c.text import Text
from ge2.codegen.cuda import folds
from ge2.codegen.cuda.kernel import CudaKernel, Fixed
from ge2.codegen.cuda.partial import Kernels, Part, Partials, part
from ge2.codegen.cuda.places import Places
from ge2.codegen.cuda.typed import HELD, STORED, SUFFIX
from ge2.codegen.cuda.writer import UNROLL, Problem, Statements, power, unrolled
from ge2.codegen.values import Held, Param

ALWAYS = 1 << 30  # nothing is kept from one stage of a row to the next
BLOCK, MOST = 256, 1024
BUSY = 2048  # threads that keep a multiprocessor busy
REGISTERED, IN_SHARED, READ_AGAIN = "registers", "shared memory", "memory"
TEAM = 512  # threads of a row in shared memory
HALVES = 112 << 10  # of shared memory, of which a multiprocessor has two blocks
LARGEST = 200 << 10  # bytes of shared memory that rows may take
GRID = 65535  # blocks along the second axis of a grid
CROWDED = 24  # registers of a row that a thread of a large block has room for
WORDS = 64  # registers of a thread that the elements of a row may take
FEW, MANY = (
    16,
    32,
)  # elements of a row that a thread has at most, if that is ours to choose; where blocks go on
CROWD = 512  # threads of a multiprocessor that hide each other's waiting
REGISTERS = 65536  # of a multiprocessor
OTHERS, ADDRESS = 12, 8  # registers of a thread besides those of its row, and for each array
SHARED, ROOM = (
    224 << 10,
    96 << 10,
)  # bytes of a multiprocessor, and the most that a block takes, for rows ahead
UNROLLED = 4  # rounds of a loop over a row that is not held, whose reads are under way at once
LONG = 1 << 14  # elements from which on a row that is only folded is shared by blocks, if rows are few


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """Threads of a row and of a block; packs of a thread, 0 where a row does not fit in registers."""

    team: int
    block: int
    packs: int

    @property
    def rows(self) -> int:
        """Rows that a block has at once."""
        return self.block // self.team


def rows_kernel(make: Callable[[], Problem], whole: frozenset[int], units: int) -> Kernels | None:
    """The kernels of a region that folds the axes `whole`, and perhaps all rows besides; else None."""
    for again, where in (
        (AGAIN, REGISTERED),
        (ALWAYS, REGISTERED),
        (ALWAYS, IN_SHARED),
        (ALWAYS, READ_AGAIN),
    ):
        rows = Rows(make(), whole, units, again, where)
        if rows.fits:
            return rows.run()
    return None


@final
class Rows:
    """`where` a row is while it is computed; `again`: how costly what is made again may be."""

    def __init__(self, problem: Problem, whole: frozenset[int], units: int, again: int, where: str) -> None:
        self.problem, self.units, axes = problem, units, problem.axes
        self.resident, self.in_shared = where != READ_AGAIN, where == IN_SHARED
        resident = self.resident
        rest = [a for a in sorted(axes.sizes) if a not in whole]
        across = frozenset().union(*(w.over for w in problem.folded)) - whole  # folded over rows as well
        self.row = [a for a in sorted(axes.sizes) if a in whole]
        self.walked = [a for a in rest if a in across] if across else rest
        self.groups = [a for a in rest if a not in across] if across else []
        self.across = bool(across)
        self.places = Places(axes, problem.operands, [*self.groups, *self.walked, *self.row])
        self.places.constant = frozenset(self.row) if resident else frozenset()
        self.lane = self.places.lane = self.row[0] if len(self.row) == 1 else -1
        self.length = math.prod(axes.sizes[a] for a in self.row)
        self.count = math.prod(axes.sizes[a] for a in self.walked)
        lying = [p for p in axes.strides if self.lies(p)]
        self.pack = max(map(self.places.wide, lying), default=1)
        specs = [
            Spec(tuple(axes), role)
            for axes, role in ((self.groups, "group"), (self.walked, "rows"), (self.row, "row"))
            if axes
        ]
        self.held = {p for p in lying if resident}
        parts = [part(problem, w, self.places.order) for w in problem.folded]
        if not self.across:
            self.sink()
        self.root = nest(problem.works, specs, again)
        self.said = Statements(problem, self.places, self.root)
        self.shape = self.shaped()
        self.ahead = self.read_ahead() if self.across else []
        self.splits, self.blocks = self.spread(parts)
        gathered = [p for p in parts if p and (p.fold.over - whole or self.splits > 1)]
        self.lost = len([w for w in problem.folded if w.over - whole]) > len(
            [p for p in gathered if p.fold.over - whole]
        )
        number = self.blocks * self.shape.rows if self.across else self.splits
        self.partials = Partials(problem, self.places, gathered, number)
        self.wider = self.said.widened = self.read_wide()

    def sink(self) -> None:
        """What is alike for all rows is done in each, unless it is a result: a block has one row."""
        walked = frozenset(self.walked)
        if any(w.kind == "store" and w.axes.isdisjoint(walked) for w in self.problem.works):
            return
        for w in self.problem.works:
            w.axes |= walked

    # -- how many threads a row has

    def lies(self, p: Param) -> bool:
        """Whether the elements of a row lie side by side in an array."""
        return self.lane >= 0 and self.problem.axes.strides[p].get(self.lane) == 1

    def words(self, alive: bool = False) -> float:
        """Registers that an element of a row takes: arrays, values between stages, sums over rows; `alive`:
        at once, for values between stages are made of the arrays."""
        rows = [c for c in self.everything(self.root) if c.spec and c.spec.role == "rows"] or [self.root]
        read = self.said.read_in([w for c in rows for w in c.everything()])
        arrays = sum(p.var.type.dtype.itemsize for p in read if p in self.held)
        between = sum(h.dtype.itemsize for h in self.between())
        sums = sum(folds.state_bytes(w) for w in self.problem.folded if w.y and self.said.homes[w.y].dims)
        return ((max(arrays, between) if alive else arrays + between) + sums) / 4

    def sums(self) -> bool:
        """Whether something is gathered over the rows for each element of a row."""
        return any(w.y is not None and self.said.homes[w.y].dims for w in self.problem.folded)

    def between(self) -> list[Held]:
        return [y for y, home in self.said.homes.items() if home.dims and self.said.makers[y].kind != "fold"]

    def shaped(self) -> Shape:
        """The smallest team that holds a row, whole warps where the row is that long."""
        n, pack = max(self.length, 1), self.pack
        if self.in_shared:
            return Shape(TEAM, TEAM, -(-n // (TEAM * pack)))
        if not self.resident:
            team = min(BLOCK if self.count >= 2 * self.units else MOST, max(power(-(-n // pack)), 1))
            return Shape(team, max(team, BLOCK), 0)
        few, words = (MANY, 2 * WORDS) if self.sums() else (FEW, WORDS)
        most = max(min(few, int(words / max(self.words(), 0.5))), pack)
        team = min(max(power(-(-n // most)), min(32, power(-(-n // pack)))), MOST)
        return Shape(team, max(team, min(BLOCK, MOST)), -(-n // (team * pack)))

    def spread(self, parts: Sequence[Part | None]) -> tuple[int, int]:
        """How many blocks share a row, and how many share the rows."""
        shape, loops = self.shape, [c for c in self.everything(self.root) if c.spec and c.spec.role == "row"]
        team_blocks = -(-self.count // shape.rows)
        if self.across and not self.sums():
            return 1, min(team_blocks, GRID)  # each row leaves its own part, and waits for no other
        if self.across:
            groups = math.prod(self.problem.axes.sizes[a] for a in self.groups)
            at_once = self.at_once * self.units
            return 1, max(1, min(team_blocks, -(-at_once // max(groups, 1))))
        alone = len(loops) == 1 and all(p is not None for p in parts) and not self.resident
        if not alone or self.length < LONG:
            return 1, team_blocks
        wanted = self.units * BUSY // (shape.block * max(team_blocks, 1))
        return max(1, min(wanted, self.length // (shape.team * self.pack * 4))), team_blocks

    def read_wide(self) -> set[Param]:
        """Arrays of half types whose rows are held as floats, since several stages read them."""
        if self.across or not self.resident:
            return set()
        loops = [c for c in self.everything(self.root) if c.spec and c.spec.role == "row"]
        times = Counter(p for c in loops for p in self.said.read_in(c.works))
        return {p for p in self.held if p.var.type.dtype in HALF and self.depends(p) and times[p] > 1}

    def side_by_side(self) -> int:
        """How many blocks the compiler is to leave registers for, on a multiprocessor."""
        if self.in_shared:
            return 2 if self.shared <= HALVES else 1
        return self.at_once if self.sums() else 1

    @property
    def at_once(self) -> int:
        """How many blocks a multiprocessor is to hold, by the registers that their rows take."""
        alive = self.shape.packs * self.pack * self.words(alive=True)
        others = OTHERS + ADDRESS * len([p for p in self.held if p not in self.problem.outs])
        by_registers = REGISTERS // (self.shape.block * (int(alive) + others))
        by_shared = SHARED // max(self.shared, 1)
        return max(1, min(by_registers, by_shared, BUSY // self.shape.block))

    def read_ahead(self) -> list[Param]:
        """The arrays whose next row is read while one is computed, where few threads are at hand to wait."""
        self.ahead = []
        if self.in_shared or not self.sums():
            return []
        if self.at_once * self.shape.block > CROWD:
            return []
        if self.shape.rows > 1 or not self.resident or self.lane < 0 or self.length % self.pack:
            return []
        read = [
            p for p in self.said.read_in(list(self.root.everything())) if p in self.held and self.depends(p)
        ]
        wide = [self.places.wide(p) * p.var.type.dtype.itemsize for p in read]
        return read if read and min(wide) >= 4 and self.room(read) <= ROOM else []

    def room(self, arrays: Sequence[Param]) -> int:
        """Bytes of shared memory for two rows of each."""
        each = 2 * self.shape.packs * self.pack * self.shape.block
        return sum(each * p.var.type.dtype.itemsize for p in arrays)

    @property
    def shared(self) -> int:
        return self.rows_bytes() if self.in_shared else self.room(self.ahead)

    def rows_bytes(self) -> int:
        """Bytes of shared memory for a row of each array; 0 where it cannot be there."""
        read = [p for p in self.said.read_in(list(self.root.everything())) if p in self.held]
        wide = [self.places.wide(p) * p.var.type.dtype.itemsize for p in read]
        if not read or min(wide) < 4 or self.length % self.pack or not all(map(self.depends, read)):
            return 0
        return self.room(read) // 2

    def everything(self, loop: Loop) -> list[Loop]:
        inner = [c for c in loop.children if isinstance(c, Loop)]
        return [*inner, *(each for c in inner for each in self.everything(c))]

    @property
    def fits(self) -> bool:
        """Whether this is a kernel: what it says of registers holds, and it knows every reduction."""
        legal = (frozenset(self.row), frozenset(self.walked), frozenset(self.row) | frozenset(self.walked))
        if self.lost or any(w.over not in legal for w in self.problem.folded):
            return False
        if not self.resident:
            return not self.across and not self.between()
        if self.in_shared:
            fits = 0 < self.rows_bytes() <= LARGEST and self.shape.packs > 1
            return fits and not self.between() and not self.sums() and self.stages()
        few = self.length <= self.shape.team * self.pack * self.shape.packs
        each = self.shape.packs * self.pack * self.words()
        long = not self.across and self.length >= LONG and self.count < self.units and not self.stages()
        return (
            few
            and each <= (CROWDED if self.shape.block > 512 else 2 * WORDS)
            and self.length > 0
            and not long
        )

    def stages(self) -> bool:
        """Whether a row is gone through more than once."""
        return len([c for c in self.everything(self.root) if c.spec and c.spec.role == "row"]) > 1

    # -- the text

    def run(self) -> Kernels:
        problem, shape = self.problem, self.shape
        groups = math.prod(problem.axes.sizes[a] for a in self.groups)
        if not self.count or not groups:
            return Kernels(())
        fixed = [Fixed("TEAM", shape.team, "threads a row")]
        fixed += [Fixed("ROWS", shape.rows, "teams of a block")] if shape.rows > 1 else []
        fixed += [Fixed("PACK", self.pack, "neighbours that a thread has at once")] if self.pack > 1 else []
        fixed += [Fixed("PACKS", shape.packs, "and how often it has them")] if shape.packs else []
        body = [*self.begin(), *self.inside(self.root)]
        grid = (groups, self.blocks) if self.across else (self.blocks, self.splits)
        main = CudaKernel(
            problem.region.kind, problem.text, tuple(self.places.arguments.values()), tuple(body),
            shape.block, grid, tuple(fixed), self.shared, len(problem.region.graph.eqns),
            tuple(self.said.helpers), 0, self.side_by_side(),
        )  # fmt: skip
        return Kernels((main, *self.partials.kernels()), self.partials.temps)

    def begin(self) -> list[Text]:
        several = self.shape.rows > 1
        lines = [Text(f"const int t = threadIdx.x{' % TEAM' if several else ''};")]
        if several:
            lines.append(Text("const int team = threadIdx.x / TEAM;"))
        return [*lines, *self.held_rows(walked=False)]

    def inside(self, loop: Loop) -> list[Text]:
        lines = self.declared(loop)
        for child in loop.children:
            if isinstance(child, Work):
                lines += self.once(child, loop)
            elif child.spec is not None and child.spec.role == "group":
                split = self.places.split("blockIdx.x", self.groups)
                lines += [*map(Text, split), *self.inside(child)]
            elif child.spec is not None and child.spec.role == "rows":
                lines += self.rows(child)
            else:
                lines += self.columns(child)
        return lines

    def declared(self, loop: Loop) -> list[Text]:
        """Arrays of values that one stage makes and another reads."""
        found = [y for y in self.between() if self.said.homes[y].scope is loop]
        return [Text(f"{HELD[y.dtype]} {self.said.name(y)}[{self.each}];") for y in found]

    @property
    def each(self) -> str:
        """How many elements of a row a thread has."""
        return "PACKS" if self.pack == 1 else "PACKS * PACK"

    # -- rows

    def rows(self, loop: Loop) -> list[Text]:
        gathered = self.gathered(loop)
        r = self.places.linear(self.walked, "r")
        split = [*map(Text, self.places.split(r, self.walked))]
        inner = [*split, *self.held_rows(walked=True), *self.inside(loop)]
        if not self.across:
            return [*self.which("blockIdx.x"), *inner]
        int_, count = self.places.whole, self.total(self.walked)
        several = "" if self.shape.rows == 1 else " * ROWS"
        start, step = f"blockIdx.y{several}", f"gridDim.y{several}"
        name = r if self.shape.rows == 1 else "first"
        head = f"for ({int_} {name} = {start}; {name} < {count}; {name} += {step})"
        body = (
            [*self.which(), *inner]
            if several
            else [*self.next_row(r, step, count), *inner]
            if self.ahead
            else inner
        )
        lines = [*self.fetching(r, split), Text(f"fetch({start}, 0);")] if self.ahead else []
        lines += [line for w in gathered for line in self.started(w)]
        return [*lines, Text(head, body=tuple(body)), *(line for w in gathered for line in self.left_over(w))]

    def fetching(self, r: str, split: Sequence[Text]) -> list[Text]:
        """The function that reads a row ahead, and where it puts it: a place of each thread's own."""
        lines, offset = [Text("extern __shared__ __align__(16) unsigned char room[];")], 0
        copies = [self.place()]
        for p in self.ahead:
            name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
            at = f"room + {offset}" if offset else "room"
            ctype = f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}>"
            lines.append(Text(f"auto *const {name}_next = ({ctype} *)({at}) + threadIdx.x;"))
            slot = f"{name}_next + (slot * PACKS + k) * {self.shape.block}"
            copies.append(Text(f"ge2_ahead<{wide}>({slot}, {name} + {self.places.element(p)});"))
            offset += self.room([p])
        if self.ragged:
            letter = self.places.letters[self.lane]
            copies = [copies[0], Text(f"if ({letter} >= {self.total(self.row)}) break;"), *copies[1:]]
        body = (*split, unrolled("k", "PACKS", copies))
        head = f"const auto fetch = [&]({self.places.whole} {r}, int slot)"
        return [*lines, Text(head, body=body, end=";"), Text("int slot = 0;")]

    def next_row(self, r: str, step: str, count: str) -> list[Text]:
        """Takes the row that was read ahead, and has the next one read."""
        takes = []
        for p in self.ahead:
            name = self.places.array(p)
            takes.append(Text(f"{name}_row[k] = {name}_next[(slot * PACKS + k) * {self.shape.block}];"))
        rows = [
            Text(f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}> {self.places.array(p)}_row[PACKS];")
            for p in self.ahead
        ]
        return [
            Text("ge2_ahead_wait();"),
            *rows,
            unrolled("k", "PACKS", takes),
            Text("slot = 1 - slot;"),
            Text(f"if ({r} + {step} < {count})", body=(Text(f"fetch({r} + {step}, slot);"),)),
        ]

    def which(self, block: str = "") -> list[Text]:
        """The row of a team; those beyond the last do as it does, and store nothing."""
        int_, count, r = self.places.whole, self.total(self.walked), self.places.linear(self.walked, "r")
        if self.shape.rows == 1:
            return [Text(f"const {int_} {r} = {block};")]
        mine = f"{block} * ROWS + team" if block else "first + team"
        return [
            Text(f"const bool here = {mine} < {count};"),
            Text(f"const {int_} {r} = here ? {mine} : {count} - 1;"),
        ]

    def total(self, axes: Sequence[int]) -> str:
        return " * ".join(map(self.places.extent, axes)) or "1"

    def gathered(self, loop: Loop) -> list[Work]:
        return [w for w in loop.everything() if w.y is not None and self.said.homes[w.y].first is loop]

    def held_rows(self, walked: bool) -> list[Text]:
        """Reads the part of each array that is this thread's, of those that have the rows, or have not."""
        lines: list[Text] = []
        reads: list[Text] = []
        if self.in_shared:
            return self.filled() if walked else []
        for p in self.said.read_in(list(self.root.everything())):
            if p not in self.held or self.depends(p) != walked:
                continue
            name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
            self.said.packs[p] = f"{name}_row[k].at[{'v' if self.pack > 1 else '0'}]"
            if p in self.ahead:
                continue
            read = f"ge2_read<{self.width}, {wide}>({name} + {self.places.element(p)}{self.left})"
            if p in self.wider:
                short = SUFFIX[p.var.type.dtype]
                element = "[k * PACK + v]" if self.pack > 1 else "[k]"
                lines.append(Text(f"float {name}_row[{self.each}];"))
                one = "v" if self.pack > 1 else "0"
                each = f"{name}_row{element} = ge2_cast_{short}_f32({name}_at.at[{one}]);"
                reads.append(Text(f"const auto {name}_at = {read};"))
                reads.append(unrolled("v", "PACK", [Text(each)]) if self.pack > 1 else Text(each))
                self.said.packs[p] = f"{name}_row{element}"
                continue
            ctype = f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}>"
            lines.append(Text(f"{ctype} {name}_row[PACKS];"))
            reads.append(Text(f"{name}_row[k] = {read};"))
        return [*lines, unrolled("k", "PACKS", [self.place(), *reads])] if reads else []

    def filled(self) -> list[Text]:
        """Reads a row into shared memory, each thread what is its own: none waits for another."""
        lines, offset, copies = (
            [Text("extern __shared__ __align__(16) unsigned char room[];")],
            0,
            [self.place()],
        )
        if self.ragged:
            copies.append(Text(f"if ({self.places.letters[self.lane]} >= {self.total(self.row)}) break;"))
        for p in self.said.read_in(list(self.root.everything())):
            if p not in self.held:
                continue
            name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
            at = f"room + {offset}" if offset else "room"
            ctype = f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}>"
            lines.append(Text(f"auto *const {name}_row = ({ctype} *)({at}) + threadIdx.x;"))
            slot = f"{name}_row + k * {self.shape.block}"
            copies.append(Text(f"ge2_ahead<{wide}>({slot}, {name} + {self.places.element(p)});"))
            offset += self.room([p]) // 2
        return [*lines, unrolled("k", "PACKS", copies), Text("ge2_ahead_wait();")]

    def depends(self, p: Param) -> bool:
        """Whether an array is another for another row."""
        strides = self.problem.axes.strides[p]
        return any(strides.get(a) for a in (*self.walked, *self.groups))

    @property
    def width(self) -> str:
        return "PACK" if self.pack > 1 else "1"

    @property
    def ragged(self) -> bool:
        """Whether some thread has less of a row than others."""
        return self.length % (self.pack * (self.shape.team if self.resident else 1)) != 0

    @property
    def left(self) -> str:
        return f", {self.total(self.row)} - {self.places.letters[self.lane]}" if self.ragged else ""

    def place(self) -> Text:
        """Where the pack k of a thread begins."""
        whole = " * PACK" if self.pack > 1 else ""
        at = f"(k * TEAM + t){whole}" if whole else "k * TEAM + t"
        return Text(f"const int {self.places.letters[self.row[0]] if self.lane >= 0 else 'at'} = {at};")

    # -- a row

    def columns(self, loop: Loop) -> list[Text]:
        works = [w for w in loop.works if w not in self.partials.aside]
        if not works:
            return []
        lines = [line for w in self.gathered(loop) for line in self.started(w)]
        lines += self.prepared(works)
        striped = self.stripe(loop)
        lines += [line for w in striped for line in self.stripes(w)]
        inner = self.neighbours(works)
        self.said.striped = {}
        if self.resident:
            along = self.along()
            place = [self.place()] if along or mentions(inner, self.places.letters[self.row[0]]) else []
            head = unrolled("k", "PACKS", [*place, *along, *inner])
            head = replace(head, pragma="#pragma unroll 1") if self.in_shared else head
        else:
            head = Text(self.striding(), body=(*self.along(), *inner), pragma=f"#pragma unroll {UNROLLED}")
        lines.append(head)
        lines += [self.together(w) for w in striped]
        return [*lines, *(line for w in self.gathered(loop) for line in self.merged(w))]

    def stripe(self, loop: Loop) -> list[Work]:
        """Sums over long rows: a thread adds up each of its neighbours for itself, so that none waits for
        another, and what is rounded stays small."""
        if self.resident or self.pack == 1:
            return []
        found = [
            w for w in self.gathered(loop) if folds.op_of(w).name == "reduce_sum" and w.over <= set(self.row)
        ]
        self.said.striped = {w: f"{folds.state(w)}_of[v]" for w in found}
        return found

    def stripes(self, w: Work) -> list[Text]:
        name = f"{folds.state(w)}_of"
        first = Text(f"{name}[v] = {folds.start(w)};")
        return [Text(f"{folds.state_type(w)} {name}[PACK];"), unrolled("v", "PACK", [first])]

    def together(self, w: Work) -> Text:
        name = folds.state(w)
        return unrolled("v", "PACK", [Text(f"{name} = {folds.merged(w, name, f'{name}_of[v]')};")])

    def prepared(self, works: Sequence[Work]) -> list[Text]:
        """The numbers of a row that its elements are divided by."""
        self.said.divisors, lines = {}, []
        for w in works:
            if w.step is None or w.step.eqn is None or w.step.eqn.op.name != "div" or w.y is None:
                continue
            x, by = w.xs
            if by in self.said.divisors or w.y.dtype != FLOAT32 or not self.alike(x, by):
                continue
            name = self.said.divisors[by] = f"by{len(self.said.divisors) or ''}"
            lines.append(Text(f"const ge2_divisor {name} = ge2_divisor_f32({self.said.operand(by)});"))
        return lines

    def alike(self, x: Held, by: Held) -> bool:
        """Whether a divisor is one for all elements of a row."""
        row = set(self.row)
        return not row.isdisjoint(x.axes) and row.isdisjoint(by.axes)

    def along(self) -> list[Text]:
        """The places along the axes of a row, where it has several."""
        if self.lane >= 0:
            return []
        guard = [Text(f"if (at >= {self.total(self.row)}) break;")] if self.resident and self.ragged else []
        return [*guard, *map(Text, self.places.split("at", self.row))]

    def striding(self) -> str:
        """The loop over a row that is not held."""
        letter = self.places.letters[self.row[0]] if self.lane >= 0 else "at"
        whole = " * PACK" if self.pack > 1 else ""
        start, step, int_ = "t", "TEAM", self.places.whole
        if self.splits > 1:
            start, step = "(blockIdx.y * TEAM + t)", "gridDim.y * TEAM"
        first, by = (f"({int_}){start}{whole}" if self.places.far else f"{start}{whole}"), f"{step}{whole}"
        return f"for ({int_} {letter} = {first}; {letter} < {self.total(self.row)}; {letter} += {by})"

    def neighbours(self, works: Sequence[Work]) -> list[Text]:
        """The elements of a pack, one after another."""
        said, before, after, known = self.said, [], [], dict(self.said.packs)
        for p in self.said.read_in(works):
            if self.in_shared and p in self.held:
                name = self.places.array(p)
                before.append(Text(f"const auto {name}_at = {name}_row[k * {self.shape.block}];"))
                said.packs[p] = f"{name}_at.at[{'v' if self.pack > 1 else '0'}]"
            elif not self.resident and self.lies(p):
                name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
                read = f"ge2_read<{self.width}, {wide}>({name} + {self.places.element(p)}{self.left})"
                before.append(Text(f"const auto {name}_at = {read};"))
                said.packs[p] = f"{name}_at.at[{'v' if self.pack > 1 else '0'}]"
        for w in works:
            if w.kind == "store" and self.pack > 1 and w.param is not None and self.lies(w.param):
                name, wide = w.param.name, min(self.places.wide(w.param), self.pack)
                before.append(Text(f"ge2_some<{STORED[w.param.var.type.dtype]}, PACK> {name}_at;"))
                said.written[w.param] = f"{name}_at.at[v]"
                to = f"{self.places.result(w.param)} + {self.places.element(w.param)}"
                after += self.guarded(w, [Text(f"ge2_write<PACK, {wide}>({to}, {name}_at{self.left});")])
        said.v, said.kept_at = ("v", "k * PACK + v") if self.pack > 1 else ("", "k")
        lines = [each for w in works for each in self.element(w)]
        said.v, said.packs = "", known
        if self.pack > 1:
            if self.ragged:
                letter = self.places.letters[self.lane]
                lines = [Text(f"if ({letter} + v >= {self.total(self.row)}) break;"), *lines]
            return [*before, unrolled("v", "PACK", lines), *after]
        if self.ragged and self.lane >= 0 and self.resident:
            lines = [Text(f"if ({self.places.letters[self.lane]} >= {self.total(self.row)}) break;"), *lines]
        return [*before, *lines, *after]

    def element(self, w: Work) -> list[Text]:
        line = self.said.line(w)
        if w.kind == "store" and w.param not in self.said.written:
            return self.guarded(w, [line])
        outside = w.kind == "fold" and bool(w.over - set(self.row)) and self.shape.rows > 1
        return [Text("if (here)", body=(line,))] if outside else [line]

    def guarded(self, w: Work, lines: Sequence[Text]) -> list[Text]:
        """A store, by one of the threads that know the value."""
        several, tests = self.shape.rows > 1, []
        if w.axes.isdisjoint(self.walked):
            tests += ["team == 0"] if several else []
            tests += [f"blockIdx.{'y' if self.across else 'x'} == 0"] if self.walked else []
        else:
            tests += ["here"] if several else []
        if w.axes.isdisjoint(self.row):
            tests += ["t == 0"]
            tests += ["blockIdx.y == 0"] if self.splits > 1 else []
        mine = [self.groups, *([] if w.axes.isdisjoint(self.walked) else [self.walked])]
        mine += [] if w.axes.isdisjoint(self.row) else [self.row]
        alike = [a for axes in mine for a in axes if a not in w.axes]
        tests += [f"{self.places.letters[a]} == 0" for a in alike]
        return [Text(f"if ({' && '.join(tests)})", body=tuple(lines))] if tests else list(lines)

    def once(self, w: Work, loop: Loop) -> list[Text]:
        """What does not lie along the row."""
        if w in self.partials.aside:
            return []
        line = self.said.line(w)
        if w.kind == "store":
            return self.guarded(w, [line])
        return [Text("if (here)", body=(line,))] if w.kind == "fold" and self.shape.rows > 1 else [line]

    # -- reductions

    def started(self, w: Work) -> list[Text]:
        assert w.y is not None
        name, ctype = folds.state(w), folds.state_type(w)
        if not self.said.homes[w.y].dims:
            return [Text(f"{ctype} {name} = {folds.start(w)};")]
        first = Text(
            f"for (int e = 0; e < {self.each}; e++)",
            body=(Text(f"{name}[e] = {folds.start(w)};"),),
            pragma=UNROLL,
        )
        return [Text(f"{ctype} {name}[{self.each}];"), first]

    def merged(self, w: Work) -> list[Text]:
        """What the threads of a team have of a row becomes one, which all of them know."""
        name = folds.state(w)
        if self.shape.team > 1:
            line = Text(f"{name} = ge2_team_fold<TEAM, {self.shape.block}>({name}, {folds.merge(w)});")
        lines = [line] if self.shape.team > 1 else []
        if any(p.fold is w for p in self.partials.parts):
            place = self.places_of(self.walked)
            tests = [*(["here"] if self.shape.rows > 1 else []), "t == 0"]
            lines.append(
                Text(f"if ({' && '.join(tests)})", body=(self.partials.leave(w, "blockIdx.y", place, name),))
            )
        return lines

    def left_over(self, w: Work) -> list[Text]:
        """What a team has gathered over its rows is left for another kernel."""
        assert w.y is not None
        name, number = folds.state(w), "blockIdx.y" if self.shape.rows == 1 else "(blockIdx.y * ROWS + team)"
        group = self.places_of(self.groups)
        if self.said.homes[w.y].dims:
            row = self.places_of(self.row, group)
            place = f"{row} + v" if self.pack > 1 else row
            leave = self.partials.leave(
                w, number, place, f"{name}[{'k * PACK + v' if self.pack > 1 else 'k'}]"
            )
            letter = self.places.letters[self.row[0]] if self.lane >= 0 else "at"
            guard = (
                [Text(f"if ({letter}{' + v' if self.pack > 1 else ''} >= {self.total(self.row)}) break;")]
                if self.ragged
                else []
            )
            inner = [*guard, leave]
            inner = [unrolled("v", "PACK", inner)] if self.pack > 1 else inner
            return [unrolled("k", "PACKS", [self.place(), *self.along(), *inner])]
        lines = self.merged_all(w)
        return [*lines, Text("if (t == 0)", body=(self.partials.leave(w, number, group, name),))]

    def merged_all(self, w: Work) -> list[Text]:
        """Each thread has its own of what is folded along the row too."""
        if w.over.isdisjoint(self.row) or self.shape.team == 1:
            return []
        name = folds.state(w)
        return [Text(f"{name} = ge2_team_fold<TEAM, {self.shape.block}>({name}, {folds.merge(w)});")]

    def places_of(self, axes: Sequence[int], text: str = "") -> str:
        """Which of all elements along some axes, in C order; after those along others."""
        text = "" if text == "0" else text
        for a in axes:
            letter = self.places.letters[a]
            text = f"({text}) * {self.places.extent(a)} + {letter}" if text else letter
        return text or "0"


def mentions(lines: Sequence[Text], name: str) -> bool:
    """Whether a name stands in any of the lines."""
    return any(re.search(rf"\b{name}\b", t.code) or mentions(t.body, name) for t in lines)
