"""Kernels whose threads lie along what is kept: elementwise work, and reductions over outer axes.

A thread has PACK neighbours along the lane. Where rows are folded, a block is COLUMNS
packs wide, the threads below each other share the rows, and several blocks may: then
each leaves partial results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.codegen.axes import ALWAYS, Loop, Spec, Work
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.layout import nest
from ge2.codegen.text import Text, guard
from ge2.ir import Literal
from ge2.ops.random import Draw
from ge2.targets.cuda.emit import CudaKernel, Fixed, prepared, views, words
from ge2.targets.cuda.emit.region import Plain, Problem, Statements, tested
from ge2.targets.cuda.emit.special_reductions import Kernels, Partials, crosses, narrow, part
from ge2.targets.cuda.emit.views import End, LanesView, Lying, Pack, RowLoop, Stage, single
from ge2.targets.cuda.emit.windows import Alternating, Windows
from ge2.targets.cuda.emit.words import HELD, STORED, Places, power
from ge2.targets.cuda.limits import WARP, Chip


@final
class Lanes:
    """`over`: the axes that are folded; `chip`: what is to be kept busy; `lane`, `pack`: if given."""

    def __init__(
        self, problem: Problem, over: frozenset[int], chip: Chip, lane: int = -1, pack: int = 0
    ) -> None:
        self.problem, self.chip, axes = problem, chip, problem.axes
        self.tuning = chip.tuning.columns
        self.crossed = crosses(problem, over, chip)
        # registers limit the threads of a multiprocessor: one wave is to be that many
        states = (words.op_of(w).lowering for w in problem.folded)
        self.limited = self.crossed or any(state.numbers > 1 for state in states)
        self.narrow = None if self.crossed else narrow(problem, over, chip)
        self.over = [a for a in sorted(axes.sizes) if a in over]
        kept = [a for a in sorted(axes.sizes) if a not in over]
        self.lane = lane if lane >= 0 else problem.lane_of(kept)
        self.kept = [a for a in kept if a != self.lane] + [a for a in (self.lane,) if a >= 0]
        self.places = Places(axes, problem.operands, [*self.kept, *self.over])
        self.places.lane, self.strewn = self.lane, problem.strewn(self.lane)
        self.windows = Windows(problem, self.places, chip.tuning.columns)
        self.alternating = Alternating(problem, self.places, chip.tuning.columns)
        self.places.short = self.tuning.short if self.crossed else 1
        if self.crossed:  # elements of a thread may be no neighbours
            self.windows.pack = 0
        if pack or self.crossed or self.narrow or self.windows.pack:
            self.alternating.drop()
        if pack or self.narrow or self.scarce():
            self.windows.pack, pack = 0, pack or 1
        self.pack = pack or self.packed()
        specs = [Spec(tuple(self.over))] if self.over else []
        self.alternating.pack = self.pack
        self.inner = self.pack > 1 or bool(self.alternating.strands)
        specs += [Spec((self.lane,), "inner")] if self.inner else []
        parts = [part(problem, w, self.kept) for w in problem.folded]
        around = Spec(tuple(self.kept), "block") if self.kept else None
        self.root = nest(problem.works, specs, ALWAYS, around)
        self.said = Statements(problem, self.places, self.root)
        self.said.marks = self.windows.marks if self.windows.pack else None
        self.said.in_order = len(self.over) == 1 and self.narrow is None
        # elements of a thread lie a block's columns apart, so that those of neighbours are neighbours
        self.apart = self.crossed and len(self.kept) == 1
        self.each = "v * COLUMNS" if self.apart else "v"
        self.packs = self.count()
        simple = [p for p in parts if p is not None]
        self.columns, self.block, splits = self.shape(bool(simple) and len(simple) == len(parts))
        self.packs = self.count(self.columns)
        self.turns = self.several()
        if self.windows.pack and self.columns and not self.over and self.windows.begin_anywhere():
            self.said.threads = self.tuning.block
        self.partials = Partials(
            problem, self.places, simple if splits > 1 else [], splits, chip.tuning.parts
        )

    def packed(self) -> int:
        """The elements of a thread: as many as one access moves of most arrays, if registers hold them."""
        if self.lane < 0 or self.windows.pack:
            return self.windows.pack or 1
        if self.crossed:
            return self.tuning.crossed
        strides = self.problem.axes.strides
        lying = [p for p in strides if strides[p].get(self.lane) == 1]
        lying += self.alternating.strands
        spread = [p for p in strides if strides[p].get(self.lane) and p not in lying]
        if len(spread) >= len(lying) or 2 * len(self.strewn) > len(self.problem.outs):
            return 1
        # what lies elsewhere is read element by element: of neighbouring threads those lie side by side
        if self.read_alone() > len([p for p in lying if p not in self.problem.placed]):
            return 1
        extent = self.problem.axes.sizes[self.lane]
        found = self.windows.fewer(self.places.pack(lying, self.tuning.registers))
        return extent if found == 1 < extent <= self.tuning.together and self.shares() else found

    def shares(self) -> bool:
        """True if much is computed, and folded, that is the same for all elements along the lane."""
        works = [w for w in self.problem.works if w.kind == "compute" and self.lane not in w.axes]
        return bool(self.over) and sum(w.cost for w in works) >= self.tuning.costly

    def read_alone(self) -> int:
        """Returns how many elements are read by themselves along the lane."""
        leaves = [w.xs[0].leaf for w in self.problem.works if w.step and w.step.placed]
        return sum(self.problem.axes.strides.get(p, {}).get(self.lane) == 1 for p in leaves)

    def scarce(self) -> bool:
        """True if elements are so few and so costly that a thread is to have one: else what some
        threads compute of several, one after another, is waited for while others have none.
        """
        works = [w for w in self.problem.works if w.kind == "compute"]
        if self.over or any(
            w.step and w.step.eqn and isinstance(w.step.eqn.op, Draw) for w in works
        ):
            return False
        elements = math.prod(self.problem.axes.sizes[a] for a in self.kept)
        few = elements < self.chip.multiprocessors * self.tuning.block * self.packed()
        return few and sum(w.cost for w in works) >= self.tuning.costly

    def count(self, columns: int = 1) -> int:
        """Returns how many packs there are along what is kept."""
        if self.apart:
            whole, rest = divmod(self.problem.axes.sizes[self.lane], self.pack * columns)
            return whole * columns + min(rest, columns)
        sizes = [self.problem.axes.sizes[a] for a in self.kept]
        return math.prod(sizes[:-1]) * -(-sizes[-1] // self.pack) if sizes else 1

    def shape(self, split: bool) -> tuple[int, int, int]:
        """Columns of a block, its threads, and how many blocks share the rows."""
        if not self.over or not self.packs:
            return self.columns_of_a_row(), self.tuning.block, 1
        if self.narrow is not None:
            return self.narrow.columns, self.narrow.block, 1
        rows = math.prod(self.problem.axes.sizes[a] for a in self.over)
        busy = self.chip.multiprocessors * self.threads
        columns, block = self.columns_beside(rows), self.tuning.block
        while (
            not split
            and block < self.tuning.deepest
            and self.packs * (block // columns) < busy
            and rows > self.tuning.rows * block // columns
        ):
            block *= 2
        # one wave: a few blocks more would be another
        wanted = busy // (-(-self.packs // columns) * block)
        most = rows // (block // columns * self.tuning.rows)
        return columns, block, max(1, min(wanted, most)) if split else 1

    @property
    def threads(self) -> int:
        """Threads that keep a multiprocessor busy; where they compute, or a fold's state is several
        numbers, as many as have registers for what they keep of their columns.
        """
        if not self.limited:
            return self.chip.threads
        read = self.said.read_in(list(self.root.everything()))
        kept = sum(p.var.type.dtype.itemsize for p in read if self.of_columns(p))
        kept += sum(map(words.state_bytes, self.problem.folded))
        beside = [p.var.type.dtype.itemsize // 4 for p in read if not self.of_columns(p)]
        each = kept * self.pack // 4 + sum(beside) + len(beside) * self.tuning.address
        each += self.tuning.others
        whole = self.chip.registers // (each * self.tuning.block) * self.tuning.block
        most = self.tuning.computing if self.crossed else self.chip.threads
        return max(min(whole, most), self.tuning.block)

    def of_columns(self, p: Param) -> bool:
        """True if an array has another element for another column."""
        return any(self.problem.axes.strides[p].get(a) for a in self.kept)

    def columns_beside(self, rows: int) -> int:
        """Columns of a block. Where all threads have one, or rows are few, none helps another:
        what helpers of a column have is merged by way of shared memory.
        """
        block, units = self.tuning.block, self.chip.multiprocessors
        if self.packs >= units * self.threads:
            return block
        if self.packs < units * WARP:
            return min(WARP, power(self.packs))
        helpers = max(rows // self.tuning.rows, 1)
        return max(block >> (helpers.bit_length() - 1), WARP)

    def columns_of_a_row(self) -> int:
        """Returns how many threads a block has along the lane; 0 where rows are short,
        and one block has several.
        """
        if len(self.kept) < 2 or not self.packs:
            return 0
        row = -(-self.problem.axes.sizes[self.lane] // self.pack)
        if row < self.tuning.row or row > self.tuning.block * self.tuning.blocks:
            return 0
        return -(-row // -(-row // self.tuning.block) // 32) * 32

    def several(self) -> int:
        """Returns how many packs of a row a thread has, whose reads are under way at once: where
        rows are long, there are many of them, and what is read finds registers.
        """
        row = -(-self.problem.axes.sizes[self.lane] // self.pack) if self.lane >= 0 else 0
        if self.over or not self.columns:
            return 1
        alone = self.windows.shares_rows() or (
            self.pack == 1 and self.read_alone() + len(self.strewn) > 0
        )
        whole = self.columns == self.tuning.block and not self.windows.pack
        whole = whole and row % (self.tuning.turns * self.tuning.block) == 0 and not self.ragged
        if not alone and (self.pack == 1 or not whole):
            return 1
        busy, tuning = self.chip.multiprocessors * self.chip.threads, self.tuning
        most = tuning.windows if self.windows.pack else tuning.at_once
        for turns in (tuning.turns, 2) if alone else (tuning.turns,):
            if self.held() * turns <= most and self.packs >= 4 * turns * busy:
                return turns
        return 1

    @property
    def downwards(self) -> bool:
        """True if packs of a thread are below one another: they have what is around them in common."""
        return self.pack == 1 or bool(self.windows.pack)

    def held(self) -> int:
        """Returns the bytes of what a thread reads for a pack of its own."""
        if self.windows.pack:
            return self.windows.held()
        read = self.said.read_in(list(self.root.everything()))
        alone = [w.xs[0].dtype.itemsize for w in self.problem.works if w.step and w.step.placed]
        return sum(p.var.type.dtype.itemsize for p in read if self.lies(p)) * self.pack + sum(alone)

    @property
    def grid(self) -> tuple[int, int]:
        if self.over:
            return -(-self.packs // self.columns), self.partials.count
        if not self.columns:
            return -(-self.packs // self.tuning.block), 1
        row = -(-self.problem.axes.sizes[self.lane] // self.pack)
        if self.turns > 1 and self.downwards:
            return -(-self.packs // row // self.turns), -(-row // self.columns)
        return self.packs // row, -(-row // (self.columns * self.turns))

    # -- the text

    def run(self) -> Kernels:
        problem = self.problem
        if not self.packs:
            return Kernels(())
        lying = self.lying()
        inside = tuple(self.inside(self.root))
        view = LanesView(self.places.whole, self.inner, lying, self.tuning.block, inside)
        template = "columnwise" if self.over else "pointwise"
        fixed = list[Fixed]()
        if self.inner:
            what = "columns" if self.apart else "neighbours along the lane"
            fixed.append(Fixed("PACK", self.pack, f"{what}, of a thread"))
        if self.over:
            fixed.append(Fixed("COLUMNS", self.columns, "threads side by side, of a block"))
        fixed += self.narrow.fixed if self.narrow is not None else []
        fixed += [Fixed("TURNS", self.turns, "packs of a thread")] if self.turns > 1 else []
        main = CudaKernel(
            problem.region.kind, problem.text, tuple(self.places.arguments.values()), (),
            self.block if self.over or not self.columns else self.columns, self.grid, tuple(fixed), 0,
            len(problem.region.graph.eqns), tuple(self.said.helpers), self.block,
            self.threads // self.block if self.limited else 1, template=f"cuda/{template}.cu.jinja", view=view,
        )  # fmt: skip
        return Kernels((main, *self.partials.kernels()), self.partials.temps)

    def lying(self) -> Lying:
        """Returns which pack is this thread's."""
        if not self.kept:
            return Lying("columns" if self.over else "single")
        if self.over or not self.columns:
            form, count = "columns" if self.over else "linear", self.number()
            return Lying(form, tuple(self.letters()), count)
        *outer, lane = self.kept
        letter, extent = self.places.letters[lane], self.places.extent(lane)
        if self.turns > 1 and self.downwards:
            return self.lying_down(outer, letter, extent)
        row = self.places.linear(outer, "(int)blockIdx.x")
        if len(outer) == 1:
            places = [f"const {self.places.whole} {row} = blockIdx.x;"]
        else:
            places = self.places.split("(int)blockIdx.x", outer)
        form = "turns" if self.turns > 1 else "row"
        return Lying(form, tuple(map(Text, places)), "", letter, extent, last=self.last(extent))

    def last(self, extent: str) -> str:
        """The last pack of a row, for threads that are to be there for others."""
        return f"({extent} - 1) / PACK * PACK" if self.said.threads else ""

    def lying_down(self, outer: Sequence[int], letter: str, extent: str) -> Lying:
        """Returns how a thread has an element each of rows below one another, of which what lies
        around is the same.
        """
        line = self.places.linear(outer, "r")
        rows = math.prod(self.problem.axes.sizes[a] for a in outer)
        count = " * ".join(map(self.places.extent, outer)) if rows % self.turns else ""
        places = tuple(map(Text, self.places.split(line, outer)))
        return Lying("down", places, count, letter, extent, line, self.last(extent))

    def number(self) -> str:
        """Returns how many packs there are, in CUDA."""
        *outer, lane = map(self.places.extent, self.kept)
        if self.apart:
            whole = f"{lane} / (COLUMNS * PACK) * COLUMNS"
            return f"{whole} + min({lane} % (COLUMNS * PACK), COLUMNS)" if self.ragged else whole
        return " * ".join([*outer, self.in_packs(lane, bool(outer))])

    def in_packs(self, extent: str, wrapped: bool) -> str:
        if self.pack == 1:
            return extent
        packs = f"({extent} + PACK - 1) / PACK" if self.ragged else f"{extent} / PACK"
        return f"({packs})" if wrapped else packs

    def letters(self) -> list[Text]:
        *outer, lane = self.kept
        letter, int_ = self.places.letters[lane], self.places.whole
        whole = "" if self.pack == 1 else " * PACK"
        if self.apart:
            return [Text(f"const {int_} {letter} = p / COLUMNS * (COLUMNS * PACK) + p % COLUMNS;")]
        if not outer:
            return [Text(f"const {int_} {letter} = p{whole};")]
        packs = self.in_packs(self.places.extent(lane), True)
        inner = f"const {int_} {letter} = p % {packs}{whole};"
        return [Text(inner), *map(Text, self.places.split(f"p / {packs}", outer))]

    def inside(self, loop: Loop, at: int = 4) -> list[Stage]:
        lines = self.declared(loop)
        if self.narrow is not None and loop.spec is not None and loop.spec.role == "block":
            lines += self.early()
        stages: list[Stage] = [Plain(at, tuple(lines))] if lines else []
        for child in loop.children:
            if isinstance(child, Work):
                once = tuple(self.once(child))
                stages += [Plain(at, once)] if once else []
            elif child.spec is not None and child.spec.role == "block":
                stages += self.inside(child, at)
            elif child.spec is not None and child.spec.role == "inner":
                stages += self.neighbours(child, at)
            else:
                stages += self.rows(child, at)
        return stages

    def declared(self, loop: Loop) -> list[Text]:
        """Arrays of values, one for each of the thread's elements, that loops within a loop read."""
        homes = self.said.homes
        found = [
            y
            for y, home in homes.items()
            if home.scope is loop and home.dims and self.said.makers[y].kind != "fold"
        ]
        return [Text(f"{HELD[y.dtype]} {self.said.name(y)}[PACK];") for y in found]

    def once(self, w: Work) -> list[Text]:
        """Returns what does not lie along the lane, or is the only one that does."""
        if w in self.partials.aside:
            return []
        line = self.said.line(w)
        return self.guarded(w, [line]) if w.kind == "store" else [line]

    def guarded(self, w: Work, lines: Sequence[Text]) -> list[Text]:
        """A store, by one of the threads that know the value."""
        tests = ["here"] if self.over and self.kept else []
        if self.over and w.axes.isdisjoint(self.over):
            if self.block > self.columns:
                tests.append("threadIdx.x < COLUMNS" if self.kept else "threadIdx.x == 0")
            if self.partials.count > 1:
                tests.append("blockIdx.y == 0")
        mine = [*self.kept, *([] if w.axes.isdisjoint(self.over) else self.over)]
        own = w.axes & self.problem.axes.strides[w.param].keys() if w.param else w.axes
        alike = [a for a in mine if a not in own]  # along these all have the same
        tests += [f"{self.places.letters[a]} == 0" for a in alike]
        return tested(tests, lines)

    def neighbours(self, loop: Loop, at: int) -> list[Stage]:
        """The elements of a thread, one after another."""
        works = [w for w in loop.works if w not in self.partials.aside]
        if not works:
            return []
        said, lane, known = self.said, self.lane, dict(self.said.packs)
        left = f", {self.places.extent(lane)} - {self.places.letters[lane]}" if self.ragged else ""
        before, after = [*self.windows.lines(works, said), *self.reads(works, left)], list[Text]()
        before += self.alternating.reads(works, said, left)
        for w, room, whole in self.alternating.writes(works, said, left):
            before.append(room)
            after += self.guarded(w, [whole])
        works = [w for w in works if not self.windows.covers(w, said)]
        for w in (w for w in works if w.kind == "store" and self.lies(w.param)):
            assert w.param is not None
            declared, *written = said.pack_of(w.param, self.pack, left)
            before.append(declared)
            after += self.guarded(w, written) if written else []
        before += [
            line
            for w in works
            for line in (*self.drawn(w), *said.row_read(w, "PACK", self.pack, left))
        ]
        held = self.apart and self.ragged and not any(w.kind == "store" for w in works)
        said.v = self.within() if held else self.each
        lines = [each for w in works for each in self.element(w)]
        said.v = ""
        if self.ragged and not self.windows.pack and not held:
            beyond = f"{self.places.letters[lane]} + {self.each} >= {self.places.extent(lane)}"
            lines = [guard(beyond, "break;"), *lines]
        if (
            loop.parent is not None
            and loop.parent.spec is not None
            and loop.parent.spec.axes == tuple(self.over)
        ):
            said.packs = known  # what a loop over rows reads is not known after it
        return [Pack(at, tuple(before), tuple(lines), tuple(after))]

    def within(self) -> str:
        """Returns the index of a thread's element, at most the last one; results beyond it are dropped.

        Without a branch the chains of a thread's columns can overlap. By itself that made no
        difference on an H200 (density of 200 x 50000 in float64: 68 us with the branch, 72 without).
        """
        cast = "" if self.places.whole == "int" else f"({self.places.whole})"
        last = f"{self.places.extent(self.lane)} - 1 - {self.places.letters[self.lane]}"
        return f"min({cast}({self.each}), {last})" if cast else f"min({self.each}, {last})"

    def reads(self, works: Sequence[Work], left: str) -> list[Text]:
        found = []
        for p in self.said.read_in(works):
            if p not in self.said.packs and self.lies(p):
                name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
                place = f"{name} + {self.places.element(p)}"
                found.append(Text(f"const auto {name}_at = ge2_read<PACK, {wide}>({place}{left});"))
                self.said.packs[p] = f"{name}_at.at[v]"
        return found

    def drawn(self, w: Work) -> list[Text]:
        """The random bits of all of a thread's elements, where they are whole
        blocks, or parts of one.
        """
        eqn = w.step.eqn if w.step is not None else None
        if w.y is None or eqn is None or not isinstance(eqn.op, Draw):
            return []
        axes, sizes, words, begin = sorted(w.y.axes), self.problem.axes.sizes, w.xs[:2], w.xs[2:]
        uneven = len(axes) > 1 and sizes[self.lane] % self.pack != 0
        halfway = any(isinstance(x.leaf, Literal) and x.leaf.value.real % self.pack for x in begin)
        if self.apart or axes[-1:] != [self.lane] or uneven or halfway:
            return []
        name, key = f"{self.said.name(w.y)}_at", ", ".join(map(self.said.operand, words))
        place = " + ".join([self.places.among(axes), *map(self.said.operand, begin)])
        some = f"ge2_random_some<{HELD[w.y.dtype]}, PACK>({key}, {place})"
        self.said.drawn[w.y] = f"{name}.at[v]"
        return [Text(f"const auto {name} = {some};")]

    def element(self, w: Work) -> list[Text]:
        line = self.said.line(w)
        alone = w.kind == "store" and w.param not in self.said.written
        return self.guarded(w, [line]) if alone else [line]

    def lies(self, p: Param | None) -> bool:
        """True if an array has the elements of a thread side by side."""
        if p is None or self.apart or p in self.problem.placed or p in self.strewn:
            return False
        return self.problem.axes.strides[p].get(self.lane) == 1

    @property
    def ragged(self) -> bool:
        """True if the last pack of a row has less."""
        whole = self.pack * self.columns if self.apart else self.pack
        return self.lane >= 0 and self.problem.axes.sizes[self.lane] % whole != 0

    # -- rows that are folded

    def rows(self, loop: Loop, at: int) -> list[Stage]:
        places = self.places
        gathered = [
            w for w in loop.everything() if w.y is not None and self.said.homes[w.y].first is loop
        ]
        total, height = " * ".join(map(places.extent, self.over)), self.block // self.columns
        start, step = self.first(height), str(height)
        if self.partials.count > 1:
            step = f"gridDim.y * {height}"
        r = places.linear(self.over, "r")
        self.said.divisors, divisors = self.divisors(loop)
        states = tuple(self.begin(w, f"{start}, {total}") for w in gathered)
        split = tuple(map(Text, places.split(r, self.over)))
        if self.narrow is not None:
            rooms, reads, inner = self.several_rows(loop, at + 8)
            rows = RowLoop(at, states, r, total, split, True, rooms=rooms, reads=reads)
        else:
            turns = self.at_a_time(height)
            inner = self.inside(loop, at + (8 if turns else 4))
            braces, unroll = bool(split) or not single(inner), self.unrolled(height)
            step = f"({step})" if turns and " " in step else step
            head = views.striding(r, start, total, step, loop.everything())
            rows = RowLoop(
                at, states, r, total, split, False, start, step, head, unroll, braces, turns
            )
        self.said.divisors = {}
        after = tuple(line for w in gathered for line in self.end(w))
        nested = rows.narrow or bool(rows.turns)
        before = [Plain(at, tuple(divisors))] if divisors else []
        return [*before, rows, *inner, End(at + 4 * nested, after, nested, rows.braces)]

    def divisors(self, loop: Loop) -> tuple[dict[Held, str], list[Text]]:
        """Prepares divisors that all rows of a thread share, if a thread has many rows."""
        varies = {*self.over, *((self.lane,) if self.pack > 1 else ())}
        rows = math.prod(self.problem.axes.sizes[a] for a in self.over)
        if rows < self.block // self.columns * self.partials.count * self.tuning.divided:
            return {}, []

        def alike(x: Held, by: Held) -> bool:
            return not {*self.over}.isdisjoint(x.axes) and varies.isdisjoint(by.axes)

        return prepared(loop.everything(), alike, self.said.fresh, self.said.operand)

    def unrolled(self, height: int) -> int:
        """Rows that a thread reads at once: more where it reads little of each, and they are many."""
        tuning = self.tuning
        rounds = math.prod(self.problem.axes.sizes[a] for a in self.over)
        rounds //= height * self.partials.count
        little = self.held() <= tuning.little and len(self.problem.works) <= tuning.simple
        return max(tuning.unrolled, tuning.further) if little and rounds >= 64 else tuning.unrolled

    def at_a_time(self, height: int) -> int:
        """Rows that a thread goes through without a look at the end, so that none waits for what
        the next one reads; 0 if it has no number of them.
        """
        rows = math.prod(self.problem.axes.sizes[a] for a in self.over)
        each = height * self.partials.count * self.tuning.unrolled
        return self.tuning.unrolled if self.crossed and rows % each == 0 else 0

    def first(self, height: int) -> str:
        """The first row of a thread, of those below each other."""
        start = "threadIdx.x / COLUMNS" if self.columns > 1 else "threadIdx.x"
        return f"blockIdx.y * {height} + {start}" if self.partials.count > 1 else start

    def several_rows(
        self, loop: Loop, at: int
    ) -> tuple[tuple[Text, ...], tuple[Text, ...], list[Stage]]:
        """The reading of some rows at once, of which none waits for another, and what is done
        with each of them.
        """
        said, known = self.said, dict(self.said.packs)
        read = [p for p in said.read_in(list(loop.everything())) if p not in said.packs]
        rooms, reads = [], []
        for p in read:
            name = self.places.array(p)
            rooms.append(Text(f"{STORED[p.var.type.dtype]} {name}_rows[AT_ONCE];"))
            reads.append(Text(f"{name}_rows[turn] = {name}[{self.places.element(p)}];"))
            said.packs[p] = f"{name}_rows[turn]"
        inner = self.inside(loop, at)
        said.packs = known
        return tuple(rooms), tuple(reads), inner

    def early(self) -> list[Text]:
        """Returns the lines that read what is alike for all rows before them, so that it is there when
        they are folded.
        """
        read = self.said.read_in(list(self.root.everything()))
        alike = [p for p in read if not any(self.problem.axes.strides[p].get(a) for a in self.over)]
        lines = []
        for p in alike[: self.tuning.early]:
            name, place = self.places.array(p), self.places.element(p)
            lines.append(Text(f"const {STORED[p.var.type.dtype]} {name}_at = {name}[{place}];"))
            self.said.packs[p] = f"{name}_at"
        return lines

    def begin(self, w: Work, rows: str) -> words.State:
        """The state of a fold; one that has a place begins with that of the first row, if any."""
        assert w.y is not None
        state = words.begun(w, "PACK" if self.said.homes[w.y].dims else "", "v")
        return replace(state, start=words.start_at(w, rows)) if self.said.is_next(w) else state

    def end(self, w: Work) -> list[words.Stage]:
        """Merges what the threads of a column have, and leaves it where blocks share the rows."""
        assert w.y is not None
        several = bool(self.said.homes[w.y].dims)
        mine = f"{words.state_of(w)}[v]" if several else words.state_of(w)
        if self.narrow is not None:
            return [words.merge(w, mine, f"ge2_columns_fold<COLUMNS, {self.block}>")]
        fold = words.merge(w, mine, f"ge2_column_fold<COLUMNS, {self.block}>")
        lines: list[words.Stage] = [fold]
        p = next((p for p in self.partials.parts if p.fold is w), None)
        if p is not None:
            tests = ["here"] if self.kept else []
            tests += ["threadIdx.x < COLUMNS"] if self.block > self.columns else []
            letter, extent = self.places.letters[self.lane], self.places.extent(self.lane)
            tests += [f"{letter} + {self.each} < {extent}"] if self.ragged and several else []
            # along these all have the same
            tests += [f"{self.places.letters[a]} == 0" for a in self.kept if a not in p.axes]
            leave = self.partials.leave(w, "blockIdx.y", self.linear(p.axes, several), mine)
            lines += tested(tests, [leave])
        return [words.Each("v", "PACK", tuple(lines))] if several else lines

    def linear(self, axes: Sequence[int], several: bool) -> str:
        """Returns which of all elements along some of the kept axes a thread has."""
        text = ""
        for a in axes:
            letter = self.places.letters[a]
            text = f"({text}) * {self.places.extent(a)} + {letter}" if text else letter
        return f"{text} + {self.each}" if several else text or "0"
