"""Windows: one array that is read at several places near each other, as whole packs in registers.

  x[:, j] + x[:, j + 1] + x[:, j + 2]
  ->  the packs of x at j and at j + PACK, once; element v of the shift s is `window.at[v + s]`

A thread has PACK neighbours, whose first is at a multiple of PACK. Each aligned pack of an array that
any of them needs is read once, by one access; what is needed of the outer ones may be less than a
pack. A pack is read where some element is needed of it, so it has an element that is there. Which
elements count is asked in terms of packs: `j + v < 9` is `v < 1 ? j < 12 : j < 8` for packs of four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from ge2.base.arrays import HALF
from ge2.base.record import record
from ge2.codegen.axes import Work
from ge2.codegen.kernel_values import Held, Param, Placed
from ge2.codegen.text import Text
from ge2.ops.index import Gather
from ge2.targets.cuda.emit.region import Problem, Statements
from ge2.targets.cuda.emit.words import STORED, WIDEST, Marks, Places, label, state_bytes, widened
from ge2.targets.cuda.tuning import Columns


@final
@record
class Part:
    """The elements of a read for places from `begin` on and before `end` along the lane: those of
    neighbours are `step` elements apart, and that of place 0 would be at `at`.
    """

    at: int
    begin: int
    end: int
    step: int = 1

    @property
    def fixed(self) -> bool:
        """True if all are one."""
        return self.step == 0


@final
@record
class Read:
    """A read of an array, by a work that places it or as a plain operand (`work` is None).

    Reads of one `group` differ in their parts alone: they are of one memory, by the same strides,
    at the same places along other axes. `end`: where that memory ends.
    """

    param: Param
    work: Work | None
    group: tuple[object, ...]
    parts: tuple[Part, ...]
    end: int

    @property
    def placed(self) -> Placed | None:
        return None if self.work is None or self.work.step is None else self.work.step.placed


@final
@dataclass
class Needed:
    """The elements of a pack that are needed, and for which packs of the space."""

    first: int
    last: int
    low: int
    high: int

    @property
    def piece(self) -> tuple[int, int]:
        """The first of the elements of an access that has them all, and how many it moves."""
        size = 1
        while self.first // size != self.last // size:
            size *= 2
        return self.first // size * size, size


@final
@record
class Window:
    """Packs that follow each other, by their numbers from `first` on."""

    name: str
    first: int
    packs: tuple[Needed, ...]


@final
@dataclass
class Windows:
    """The reads of a kernel that windows serve, `pack` neighbours a thread; none if `pack` is 0."""

    problem: Problem
    places: Places
    tuning: Columns
    pack: int = 0
    groups: dict[tuple[object, ...], list[Read]] = field(default_factory=dict)
    marks: Marks = field(init=False)
    names: dict[str, int] = field(default_factory=dict)
    bases: dict[tuple[object, ...], Param] = field(default_factory=dict)  # of several reads, one

    def __post_init__(self) -> None:
        lane = self.places.lane
        if (
            lane < 0
            or self.problem.strewn(lane)
            or not all(map(self.is_served, self.problem.works))
        ):
            return
        for each in self.reads(self.problem.works):
            self.groups.setdefault(each.group, []).append(each)
        alone = [group for group, reads in self.groups.items() if not is_shifted(reads)]
        apart = any(self.step(self.groups[group][0].param) > 1 for group in alone)
        for group in alone:
            del self.groups[group]
        self.pack = self.widest()
        self.marks = Marks(self.places, self.pack)
        if apart or not self.groups or not self.pays():
            self.pack = 0

    def begin_anywhere(self) -> bool:
        """True if rows of a result begin where no access of a pack may."""
        strides, lane = self.problem.axes.strides, self.places.lane
        results = [p for p in self.problem.outs if strides[p].get(lane) == 1]
        return any(self.places.wide(p) < self.pack for p in results)

    @property
    def extent(self) -> int:
        return self.problem.axes.sizes[self.places.lane]

    # -- which reads there are

    def is_served(self, w: Work) -> bool:
        """True if nothing that a work reads would be apart for a thread's neighbours."""
        if w.step is not None and w.step.eqn is not None and isinstance(w.step.eqn.op, Gather):
            return False
        strides = self.problem.axes.strides
        read = [x.leaf for x in w.xs if isinstance(x.leaf, Param)]
        lane = self.places.lane
        if w.param is not None and strides[w.param].get(lane, 0) > 1:
            return False
        return all(0 <= strides[p].get(lane, 0) <= self.tuning.apart for p in read)

    def reads(self, works: Sequence[Work]) -> Iterator[Read]:
        """The reads of elements that lie along the lane."""
        strides = self.problem.axes.strides
        for w in works:
            for x in dict.fromkeys(w.xs):
                p, placed = x.leaf, None if w.step is None else w.step.placed
                if not isinstance(p, Param) or not strides[p].get(self.places.lane):
                    continue
                if placed is None:
                    yield self.plain(p)
                elif placed.var is not None:
                    yield self.elsewhere(w, p, placed)

    def plain(self, p: Param) -> Read:
        at = self.places.operands[p.var].offset
        parts = (Part(at, 0, self.extent, self.step(p)),)
        return Read(p, None, (*self.memory(p), (), ()), parts, at + self.places.spans(p))

    def elsewhere(self, w: Work, p: Param, placed: Placed) -> Read:
        operand, lane = self.places.operands[p.var], self.places.lane
        before = sum(n * s for n, s in zip(placed.low, operand.strides, strict=True))
        at, known = operand.offset - before, dict(placed.places)
        group = (
            *self.memory(p),
            tuple((a, id(x)) for a, x in known.items() if a != lane),
            tuple(b for b in placed.bounds if b[0] != lane),
        )
        whole = sum((n - 1) * s for n, s in zip(p.var.type.shape, operand.strides, strict=True))
        if lane in known:
            parts = tuple(self.runs(at, known[lane], self.step(p)))
        else:
            ends = [(low, end) for a, low, end, _ in placed.bounds if a == lane]
            begin, end = ends[0] if ends else (0, self.extent)
            parts = (Part(at, max(begin, 0), min(end, self.extent), self.step(p)),)
        return Read(p, w, group, parts, operand.offset + whole + 1)

    def step(self, p: Param) -> int:
        """The distance of an array's elements along the lane."""
        return self.problem.axes.strides[p][self.places.lane]

    def runs(self, at: int, index: Held, apart: int) -> Iterator[Part]:
        """The parts of what is read in runs along the lane."""
        runs = next(s.runs for s in self.problem.values.steps if s.y is index)
        ends = [*(begin for begin, *_ in runs[1:]), self.extent]
        for (begin, first, step), end in zip(runs, ends, strict=True):
            yield Part(at + (first - step * begin) * apart, begin, end, step * apart)

    def memory(self, p: Param) -> tuple[object, ...]:
        return memory_of(p, self.problem, self.places)

    # -- whether it pays

    def widest(self) -> int:
        """The neighbours of a thread: as many as an access moves of the widest elements, if the rows
        of all windows begin at multiples of it.
        """
        lane, strides = self.places.lane, self.problem.axes.strides
        sizes = [p.var.type.dtype.itemsize for p in strides if strides[p].get(lane)]
        pack, reads = WIDEST // max(sizes, default=1), [r for g in self.groups.values() for r in g]
        steps = {s for r in reads for a, s in strides[r.param].items() if a != lane}
        steps |= {self.places.operands[r.param.var].loose for r in reads}
        while pack > 1 and any(s % pack for s in steps):
            pack //= 2
        return self.fewer(pack)

    def fewer(self, pack: int) -> int:
        """The elements of a pack, half as many where registers of sums, and of what all rows have in
        common, would leave a multiprocessor few threads.
        """
        over = frozenset[int]().union(*(w.over for w in self.problem.folded))
        strides, lane = self.problem.axes.strides, self.places.lane
        common = [p for p in strides if strides[p].get(lane) and over.isdisjoint(strides[p])]
        sums = sum(map(state_bytes, self.problem.folded))
        few = pack > 4 and over and (sums + 4 * len(common)) * pack > self.tuning.kept
        return pack // 2 if few else pack

    def pays(self) -> bool:
        """True if windows save enough accesses, and leave room for what is computed."""
        reads = [r for group in self.groups.values() for r in group]
        steps = [p.step for r in reads for p in r.parts]
        if self.pack < max(2, *steps) or self.extent < self.tuning.windowed * self.pack:
            return False
        if 0 in steps and any(self.step(r.param) > 1 for r in reads):
            return False
        return self.accesses() * self.tuning.gain <= self.accesses_apart() and (
            self.held() <= self.tuning.registers
        )

    def accesses(self) -> int:
        """The accesses of a thread by way of windows."""
        return sum(1 for _ in self.pieces())

    def accesses_apart(self) -> int:
        """The same if each read is by itself."""
        found = 0
        for each in (r for reads in self.groups.values() for r in reads):
            wide = 1 if each.work else min(self.places.wide(each.param), self.pack)
            found += self.pack // wide
        return found

    def held(self) -> int:
        """The bytes of a thread's windows."""
        return sum(size * p.var.type.dtype.itemsize for p, size in self.pieces())

    def shares_rows(self) -> bool:
        """True if rows that are read for a pack are read for those below it, too: of one memory
        several are, and not a few elements at the other end. Large packs are enough by themselves.
        """
        rows: dict[tuple[object, ...], set[tuple[object, int]]] = {}
        for group, reads in self.groups.items():
            seen = rows.setdefault(self.memory(reads[0].param), set())
            parts = [p for r in reads for p in r.parts if 2 * (p.end - p.begin) > self.extent]
            seen.update((group, round(p.at / (self.extent * max(p.step, 1)))) for p in parts)
        return 0 < self.pack <= self.tuning.below and any(len(seen) > 1 for seen in rows.values())

    def pieces(self) -> Iterator[tuple[Param, int]]:
        """The arrays and the elements of all accesses."""
        for reads in self.groups.values():
            for window in self.windows(reads, ""):
                yield from ((reads[0].param, pack.piece[1]) for pack in window.packs)

    # -- windows of a group

    def windows(self, reads: Sequence[Read], name: str) -> list[Window]:
        """The packs that a group's reads need, those that follow each other together."""
        needed = self.needed(p for r in reads for p in r.parts if not p.fixed)
        found = list[list[int]]()
        for number in sorted(needed):
            if found and found[-1][-1] == number - 1:
                found[-1].append(number)
            else:
                found.append([number])
        return [
            Window(self.named(name), numbers[0], tuple(needed[n] for n in numbers))
            for numbers in found
        ]

    def named(self, name: str) -> str:
        """A name that no other window of the kernel has."""
        self.names[name] = self.names.get(name, 0) + 1
        return f"{name}{self.names[name] if self.names[name] > 1 else ''}"

    def needed(self, parts: Iterator[Part]) -> dict[int, Needed]:
        found = dict[int, Needed]()
        for part in parts:
            for v in range(self.pack):
                low = self.marks.upwards(max(part.begin - v, 0))
                high = self.marks.upwards(min(part.end, self.extent) - v)
                if low < high:
                    number, element = divmod(part.at + part.step * v, self.pack)
                    had = found.setdefault(number, Needed(element, element, low, high))
                    had.first, had.last = min(had.first, element), max(had.last, element)
                    had.low, had.high = min(had.low, low), max(had.high, high)
        return found

    # -- the text

    def lines(self, works: Sequence[Work], said: Statements) -> list[Text]:
        """The reading of the windows that works need; `said` then knows where elements are."""
        if not self.pack:
            return []
        groups: dict[tuple[object, ...], list[Read]] = {}
        for each in self.reads(works):
            if each.group in self.groups:
                groups.setdefault(each.group, []).append(each)
        return [line for reads in groups.values() for line in self.group_lines(reads, said)]

    def group_lines(self, reads: Sequence[Read], said: Statements) -> list[Text]:
        base = self.bases.setdefault(self.memory(reads[0].param), reads[0].param)
        first = replace(reads[0], param=base, end=max(r.end for r in reads))
        lines = list[Text]()
        name = self.places.array(first.param)
        windows, fixed = self.windows(reads, f"{name}_window"), dict[int, str]()
        known = self.known(first, said)
        for window in windows:
            lines += self.reading(window, first, known, said)
        for part in ends_of(reads):
            fixed[part.at] = self.named(f"{name}_edge")
            lines.append(self.edge(part, fixed[part.at], first, known, said))
        for each in reads:
            text = self.element(each, windows, fixed)
            if each.work is None:
                said.packs[each.param] = text
            else:
                said.windowed[each.work] = text
        return lines

    def covers(self, w: Work, said: Statements) -> bool:
        """True of an index along the lane that windows alone are read at: they know it."""
        readers = () if w.y is None else said.readers.get(w.y, ())
        index = w.step is not None and w.step.runs and w.axes == {self.places.lane}
        return bool(index and readers) and all(r in said.windowed for r in readers)

    def known(self, read: Read, said: Statements) -> dict[int, str]:
        """The places along other axes that are values."""
        places = () if read.placed is None else read.placed.places
        return {a: said.operand(x) for a, x in places if a != self.places.lane}

    def tests(self, low: int, high: int, read: Read, said: Statements) -> str:
        """The bounds in which a pack is needed: packs of the space from `low` on and before `high`,
        where the array is along other axes.
        """
        lane, placed = self.places.lane, read.placed
        found = [] if placed is None or read.work is None else [
            text for a, text in said.bounds(read.work, placed) if a != lane
        ]  # fmt: skip
        found += [] if low <= 0 else [f"{self.places.letters[lane]} >= {self.marks.name(low)}"]
        last = self.marks.upwards(self.extent)
        found += [] if high >= last else [f"{self.places.letters[lane]} < {self.marks.name(high)}"]
        return " && ".join(found)

    def reading(
        self, window: Window, read: Read, known: dict[int, str], said: Statements
    ) -> list[Text]:
        p, places = read.param, self.places
        name, stored = window.name, STORED[p.var.type.dtype]
        by = window.first * self.pack - places.operands[p.var].offset
        place = places.element(p, "", known) + (f" + {places.size(f'{name}_by', by)}" if by else "")
        count = len(window.packs) * self.pack
        lines = [
            Text(f"const {stored} *{name}_at = {places.array(p)} + {place};"),
            Text(f"ge2_some<{stored}, {count}> {name};"),
        ]
        for n, pack in enumerate(window.packs):
            first, size = pack.piece
            at = n * self.pack + first
            test = self.tests(pack.low, pack.high, read, said)
            rest = [test] if test else []
            if read.end % size:  # the last pack of all is not whole
                left = places.size(f"{name}_end", read.end - places.operands[p.var].offset)
                rest = [test or "true", f"{left} - {at} - ({place})"]
            given = ", ".join([name, f"{name}_at + {at}", *rest])
            lines.append(Text(f"ge2_read_part<{size}, {at}>({given});"))
        return lines

    def edge(
        self, part: Part, name: str, read: Read, known: dict[int, str], said: Statements
    ) -> Text:
        """The reading of one element that many places have."""
        p, places = read.param, self.places
        at = places.size(f"{name}_at", part.at - places.operands[p.var].offset)
        value = f"{places.array(p)}[{places.element(p, '', {**known, places.lane: at})}]"
        low, high = part.begin // self.pack * self.pack, self.marks.upwards(part.end)
        test = self.tests(low, high, read, said)
        stored = STORED[p.var.type.dtype]
        return Text(
            f"const {stored} {name} = {f'{test} ? {value} : {stored}()' if test else value};"
        )

    def element(self, read: Read, windows: Sequence[Window], fixed: dict[int, str]) -> str:
        """Element v of a read."""
        found = ""
        for part in reversed(read.parts):
            text = fixed[part.at] if part.fixed else self.in_window(part, windows)
            if read.work is not None and read.param.var.type.dtype in HALF:
                text = widened(read.param.var.type.dtype, text)
            found = f"{self.marks.below(part.end) or 'true'} ? {text} : {found}" if found else text
        return f"({found})" if len(read.parts) > 1 else found

    def in_window(self, part: Part, windows: Sequence[Window]) -> str:
        numbers = self.needed(iter((part,)))
        for window in windows:
            if numbers and window.first <= min(numbers) < window.first + len(window.packs):
                by = part.at - window.first * self.pack
                v = "v" if part.step == 1 else f"{part.step} * v"
                return f"{window.name}.at[{v}{f' + {by}' if by > 0 else f' - {-by}' if by else ''}]"
        assert not numbers
        return "0"  # of no place of the space


# -------- Arrays whose elements alternate: x[::2] and x[1::2] are read, or written, as x is.


@final
@record
class Strand:
    """One of the arrays that alternate: its element v is element `step * v + by` of the larger array, which
    begins with the first element of `base`.
    """

    base: Param
    step: int
    by: int


@final
class Alternating:
    """The arrays of a kernel that are every second element, or every n-th, of one larger array, and make
    it up together: a thread reads or writes its part of that array in wide accesses.
    """

    def __init__(self, problem: Problem, places: Places, tuning: Columns) -> None:
        self.places, self.lane, self.tuning = places, places.lane, tuning
        self.strands, self.pack = dict[Param, Strand](), 1
        strides = problem.axes.strides
        groups = dict[tuple[object, ...], dict[int, Param]]()
        for p in strides:
            if p not in problem.placed and p not in problem.landing and self.may(p):
                groups.setdefault(memory_of(p, problem, places), {})[self.offset(p)] = p
        for group in groups.values():
            self.strands |= self.strands_of(group)
        places.alternate = {
            p: (wide := self.wide(x.base)) // math.gcd(wide, x.step)
            for p, x in self.strands.items()
        }

    def offset(self, p: Param) -> int:
        return self.places.operands[p.var].offset

    def may(self, p: Param) -> bool:
        step = self.places.axes.strides[p].get(self.lane, 0)
        return step > 1 and step * p.var.type.dtype.itemsize <= self.tuning.alternating

    def strands_of(self, group: Mapping[int, Param]) -> dict[Param, Strand]:
        """The place of each array among those that alternate, if no element between them is missing."""
        found = dict[Param, Strand]()
        for begin, base in sorted(group.items()):
            step = self.places.axes.strides[base][self.lane]
            members = [group.get(begin + by) for by in range(step)]
            if base not in found and None not in members and self.wide(base) > 1:
                found |= {p: Strand(base, step, by) for by, p in enumerate(members) if p}
        return found

    def wide(self, base: Param) -> int:
        """The elements that one access moves of what begins with an array."""
        operand, strides = self.places.operands[base.var], self.places.axes.strides[base]
        steps = [n for a, n in strides.items() if a != self.lane]
        most = WIDEST // base.var.type.dtype.itemsize
        return math.gcd(most, operand.offset, operand.loose, *steps) if most else 1

    def drop(self) -> None:
        self.strands, self.places.alternate = {}, {}

    # -- the text

    def moved(self, base: Param, left: str) -> tuple[str, str]:
        """The number of elements that a thread moves, with how many at once; and how many are left."""
        step = self.strands[base].step
        wide = math.gcd(self.wide(base), self.pack * step)
        rest = f", ({left.removeprefix(', ')}) * {step}" if left else ""
        return f"PACK * {step}, {wide}", rest

    def element(self, p: Param) -> str:
        strand = self.strands[p]
        return f"{label(strand.base.name)}_at.at[v * {strand.step} + {strand.by}]"

    def reads(self, works: Sequence[Work], said: Statements, left: str) -> list[Text]:
        """The reading of strands that works need, each group of them by accesses of its own."""
        found = dict[Param, Text]()
        for p in said.read_in(works):
            if p in self.strands and p not in said.packs:
                base = self.strands[p].base
                how, rest = self.moved(base, left)
                at = f"{self.places.array(base)} + {self.places.element(base)}"
                code = f"const auto {label(base.name)}_at = ge2_read<{how}>({at}{rest});"
                found.setdefault(base, Text(code))
                said.packs[p] = self.element(p)
        return list(found.values())

    def writes(
        self, works: Sequence[Work], said: Statements, left: str
    ) -> Iterator[tuple[Work, Text, Text]]:
        """Of strands that works store a store, what their elements are collected in, and its writing."""
        stores = {w.param: w for w in works if w.param in self.strands}
        for base in dict.fromkeys(x.base for x in self.strands.values() if x.base in stores):
            group = [p for p, x in self.strands.items() if x.base is base]
            if not stores.keys() >= {*group}:
                continue
            how, rest = self.moved(base, left)
            name, stored = f"{label(base.name)}_at", STORED[base.var.type.dtype]
            at = f"{self.places.result(base)} + {self.places.element(base)}"
            room = Text(f"ge2_some<{stored}, PACK * {self.strands[base].step}> {name};")
            said.written |= {p: self.element(p) for p in group}
            yield stores[base], room, Text(f"ge2_write<{how}>({at}, {name}{rest});")


def memory_of(p: Param, problem: Problem, places: Places) -> tuple[object, ...]:
    """The memory in which an array lies, and how: equal of those that differ in their offsets."""
    operand = places.operands[p.var]
    strides = tuple(sorted(problem.axes.strides[p].items()))
    number = operand.index if operand.memory < 0 else operand.memory
    return operand.role, number, p.var.type.dtype, strides


def ends_of(reads: Sequence[Read]) -> list[Part]:
    """The elements that many places have, each once, where any of the reads needs it."""
    found = dict[int, Part]()
    for part in (p for r in reads for p in r.parts if p.fixed):
        had = found.setdefault(part.at, part)
        begin, end = min(had.begin, part.begin), max(had.end, part.end)
        found[part.at] = replace(had, begin=begin, end=end)
    return list(found.values())


def is_shifted(reads: Sequence[Read]) -> bool:
    """True if windows may save reads: an array is read at several places, or not where the space is."""
    return len({r.parts for r in reads}) > 1 or any(r.work is not None for r in reads)
