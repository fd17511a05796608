"""Kernels whose threads run along the reduced axis: a thread group has a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.codegen.axes import Loop, Work
from ge2.codegen.kernel_values import Held
from ge2.codegen.text import Text, guard
from ge2.targets.cuda.emit import CudaKernel, Fixed, prepared, words
from ge2.targets.cuda.emit.region import Plain, mentions, tested, unrolled
from ge2.targets.cuda.emit.row_plan import Plan
from ge2.targets.cuda.emit.special_reductions import Kernels, Pick, largest_of, paired, without
from ge2.targets.cuda.emit.views import (
    Fetch,
    GroupEnd,
    GroupLoop,
    Load,
    Pass,
    PassLoop,
    RowStage,
    RowsView,
    striding,
)
from ge2.targets.cuda.emit.words import HELD, OF_PACK, STORED, Each, Merge, State, widened
from ge2.targets.cuda.emit.words import Stage as Reduction

# what many elements are divided by, prepared: of these types


@final
class Rows:
    """The text of a kernel that is planned."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.problem, self.places, self.said = plan, plan.problem, plan.places, plan.said
        self.shape, self.partials, self.root = plan.shape, plan.partials, plan.root
        self.pack, self.row, self.walked = plan.pack, plan.row, plan.walked
        self.groups, self.lane = plan.groups, plan.lane
        self.picks = plan.picked()
        self.gone: set[Work] = set()  # works that shorter ways have made needless
        self.waits = False  # whether a row is still on its way into shared memory

    def run(self) -> Kernels:
        problem, shape = self.problem, self.shape
        groups = math.prod(problem.axes.sizes[a] for a in self.groups)
        if not self.plan.count or not groups:
            return Kernels(())
        fixed = [Fixed("TEAM", shape.team, "threads a row")]
        fixed += [Fixed("ROWS", shape.rows, "teams of a block")] if shape.rows > 1 else []
        if self.pack > 1:
            fixed.append(Fixed("PACK", self.pack, "neighbours that a thread has at once"))
        fixed += [Fixed("PACKS", shape.packs, "and how often it has them")] if shape.packs else []
        stages = [*self.read_rows(False, 4), *self.inside(self.root, 4)]
        view = RowsView(
            self.places.whole,
            shape.rows,
            self.pack > 1,
            tuple(s for s in stages if not isinstance(s, Plain) or s.lines),
        )
        grid = (
            (groups, self.plan.blocks) if self.plan.across else (self.plan.blocks, self.plan.splits)
        )
        main = CudaKernel(
            problem.region.kind, problem.text, tuple(self.places.arguments.values()), (),
            shape.block, grid, tuple(fixed), self.plan.shared, len(problem.region.graph.eqns),
            tuple(self.said.helpers), 0, self.plan.side_by_side(),
            template="cuda/rowwise.cu.jinja", view=view,
        )  # fmt: skip
        return Kernels((main, *self.partials.kernels()), self.partials.temps)

    def inside(self, loop: Loop, at: int) -> list[RowStage]:
        stages: list[RowStage] = [Plain(at, tuple(self.declared(loop)))]
        for child in loop.children:
            if isinstance(child, Work):
                stages.append(Plain(at, tuple(self.once(child, loop))))
            elif child.spec is not None and child.spec.role == "group":
                split = tuple(map(Text, self.places.split("blockIdx.x", self.groups)))
                stages += [Plain(at, split), *self.inside(child, at)]
            elif child.spec is not None and child.spec.role == "rows":
                stages += self.rows(child, at)
            else:
                stages += self.columns(child, at)
        return stages

    def declared(self, loop: Loop) -> list[Text]:
        """Arrays of values that one stage makes and another reads."""
        found = [y for y in self.plan.between() if self.said.homes[y].scope is loop]
        return [Text(f"{HELD[y.dtype]} {self.said.name(y)}[{self.each}];") for y in found]

    @property
    def each(self) -> str:
        """Returns how many elements of a row a thread has."""
        return "PACKS" if self.pack == 1 else "PACKS * PACK"

    # -- rows

    def rows(self, loop: Loop, at: int) -> list[RowStage]:
        gathered, within = self.gathered(loop), at + 4 * self.plan.across
        known = dict(self.said.packs)
        r = self.places.linear(self.walked, "r")
        split = tuple(map(Text, self.places.split(r, self.walked)))
        inner = [
            Plain(within, (*split, *self.led())),
            *self.read_rows(True, within),
            *self.inside(loop, within),
        ]
        count = self.total(self.walked)
        if not self.plan.across:
            return [GroupLoop(at, "one", r, count), *inner]
        fetch = self.fetching(split) if self.plan.ahead and not self.plan.alone else None
        states = tuple(map(self.started, gathered))
        finish = self.completed if self.plan.alone else self.left_over
        after = tuple(line for w in gathered for line in finish(w))
        self.said.packs = known  # what a loop over rows reads is not known after it
        form = "all" if self.plan.alone else "walk"
        return [GroupLoop(at, form, r, count, states, fetch), *inner, GroupEnd(at, after)]

    def led(self) -> list[Text]:
        """The distance at which a row begins behind a multiple of a pack."""
        if not self.plan.lead:
            return []
        p = min(self.places.alike, key=lambda p: p.name)
        begin = self.places.element(p, "", {self.lane: "0"}).removesuffix(" + 0")
        return [Text(f"const int lead = (int)(({begin}) & (PACK - 1));")]

    def completed(self, w: Work) -> list[Reduction]:
        """Returns the lines by which the states of the only block become one, which all know."""
        assert w.y is not None
        name, sizes = words.state_of(w), f"TEAM, {self.shape.block}"
        if self.said.homes[w.y].dims:
            return [words.merge(w, name, f"ge2_columns_merge<{sizes}>", in_place=True)]
        return [*self.merged_all(w), words.merge(w, name, f"ge2_columns_fold<{sizes}>")]

    def fetching(self, split: tuple[Text, ...]) -> Fetch:
        """Returns how a row is read ahead: into a place of each thread's own, from which it is
        taken.
        """
        rows, takes = list[Text](), list[Text]()
        lines, offset = list[Text](), 0
        copies = self.placed()
        for p in self.plan.ahead:
            name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
            at = f"room + {offset}" if offset else "room"
            ctype = f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}>"
            lines.append(Text(f"auto *const {name}_next = ({ctype} *)({at}) + threadIdx.x;"))
            slot = f"(slot * PACKS + k) * {self.shape.block}"
            place = f"{name}_next + {slot}, {name} + {self.places.element(p)}"
            copies.append(Text(f"ge2_ahead<{wide}>({place});"))
            rows.append(Text(f"{ctype} {name}_row[PACKS];"))
            takes.append(Text(f"{name}_row[k] = {name}_next[{slot}];"))
            offset += self.plan.room([p])
        return Fetch(tuple(lines), split, tuple(copies), tuple(rows), tuple(takes))

    def placed(self) -> list[Text]:
        """The place of pack k of a thread, and the end of its packs where it has less than others."""
        if len(self.row) > 1:
            return [self.place(), *self.along()]
        return [self.place(), *([self.past(self.letter)] if self.ragged else [])]

    def past(self, at: str) -> Text:
        """The end of a loop at a place behind the last of a row."""
        return guard(f"{at} >= {self.total(self.row)}", "break;")

    def total(self, axes: Sequence[int]) -> str:
        return " * ".join(map(self.places.extent, axes)) or "1"

    def gathered(self, loop: Loop) -> list[Work]:
        return [
            w for w in loop.everything() if w.y is not None and self.said.homes[w.y].first is loop
        ]

    def read_rows(self, walked: bool, at: int) -> list[RowStage]:
        """Reads the part of each array that is this thread's, of those that
        have the rows, or have not.
        """
        lines: list[Text] = []
        reads: list[Text] = []
        if self.plan.in_shared:
            return [self.filled(at)] if walked else []
        for p in self.said.read_in(list(self.root.everything())):
            if p not in self.plan.held or self.plan.depends(p) != walked or p in self.plan.late:
                continue
            name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
            self.said.packs[p] = f"{name}_row[k].at[{'v' if self.pack > 1 else '0'}]"
            if p in self.plan.ahead:
                continue
            if p in self.plan.common:
                self.said.packs[p] = f"{name}_row{self.in_pack}"
                lines.append(Text(f"{STORED[p.var.type.dtype]} {name}_row[{self.each}];"))
                one = f"{name}[{self.places.element(p, 'v' if self.pack > 1 else '')}]"
                line = Text(f"{name}_row{self.in_pack} = {one};")
                reads.append(unrolled("v", "PACK", [line]) if self.pack > 1 else line)
                continue
            read = f"ge2_read<{self.width}, {wide}>({name} + {self.places.element(p)}{self.left})"
            if p in self.plan.wider:
                element = self.in_pack
                lines.append(Text(f"float {name}_row[{self.each}];"))
                one = "v" if self.pack > 1 else "0"
                each = f"{name}_row{element} = {widened(p.var.type.dtype, f'{name}_at.at[{one}]')};"
                reads.append(Text(f"const auto {name}_at = {read};"))
                reads.append(unrolled("v", "PACK", [Text(each)]) if self.pack > 1 else Text(each))
                self.said.packs[p] = f"{name}_row{element}"
                continue
            ctype = f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}>"
            lines.append(Text(f"{ctype} {name}_row[PACKS];"))
            reads.append(Text(f"{name}_row[k] = {read};"))
        split = self.places.split("at", self.row) if len(self.row) > 1 else []
        return [Load(at, tuple(lines), (self.place(), *map(Text, split), *reads))] if reads else []

    def filled(self, at: int) -> Load:
        """Reads a row into shared memory, each thread what is its own: none waits for another."""
        lines, offset = list[Text](), 0
        copies = self.placed()
        for p in self.said.read_in(list(self.root.everything())):
            if p not in self.plan.held:
                continue
            name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
            begin = f"room + {offset}" if offset else "room"
            ctype = f"ge2_some<{STORED[p.var.type.dtype]}, {self.width}>"
            lines.append(Text(f"auto *const {name}_row = ({ctype} *)({begin}) + threadIdx.x;"))
            slot = f"{name}_row + k * {self.shape.block}"
            copies.append(Text(f"ge2_ahead<{wide}>({slot}, {name} + {self.places.element(p)});"))
            offset += self.plan.room([p]) // 2
        self.waits = True
        return Load(at, tuple(lines), tuple(copies), shared=True)

    @property
    def letter(self) -> str:
        """The name of the place along a row."""
        return self.places.letters[self.row[0]] if len(self.row) == 1 else "at"

    @property
    def in_pack(self) -> str:
        return "[k * PACK + v]" if self.pack > 1 else "[k]"

    @property
    def width(self) -> str:
        return "PACK" if self.pack > 1 else "1"

    @property
    def ragged(self) -> bool:
        """True if some thread has less of a row than others."""
        return (
            self.plan.lead > 0
            or self.plan.length % (self.pack * (self.shape.team if self.plan.resident else 1)) != 0
        )

    @property
    def left(self) -> str:
        if self.lane < 0 or not self.ragged:
            return ""
        letter = self.letter
        return f", {self.total(self.row)} - {letter}{f', {letter}' if self.plan.lead else ''}"

    def place(self) -> Text:
        """Returns where the pack k of a thread begins."""
        whole = " * PACK" if self.pack > 1 else ""
        whole += " - lead" if self.plan.lead else ""
        at = f"(k * TEAM + t){whole}" if whole else "k * TEAM + t"
        return Text(f"const int {self.letter} = {at};")

    # -- a row

    def columns(self, loop: Loop, at: int) -> list[RowStage]:
        works = [w for w in loop.works if w not in self.partials.aside]
        if not works:
            return []
        states = tuple(map(self.started, self.gathered(loop)))
        picks = [self.picks[w] for w in works if w in self.picks]
        at_once = tuple(line for each in picks for line in self.at_once(each))
        waits, self.waits = self.waits, False
        self.gone |= {each.fold for each in picks}
        works = without(works, self.gone, self.said)
        striped, packed = self.stripe(loop), self.packed(loop)
        prepared: list[Reduction] = [*self.prepared(works), *map(self.stripes, striped)]
        prepared += [words.neighbours(w, self.said.packed[w]) for w in packed]
        loops, near = self.looped(works)
        self.said.striped, self.said.packed = {}, {}
        folds: list[Reduction] = [self.together(w) for w in striped]
        folds += [line for w in self.gathered(loop) for line in self.merged(w)]
        return [Pass(at, states, at_once, waits, tuple(prepared), loops, near, tuple(folds))]

    def looped(self, works: Sequence[Work]) -> tuple[tuple[PassLoop, ...], str]:
        """The loop over a row.

        Where blocks go on from row to row, and their threads are few, it is there twice if it
        divides: divisors near to 1 take an instruction less.
        """
        divisors = dict.fromkeys(self.said.divisors.values())
        read = {x for w in works if w.axes & set(self.row) for x in w.xs} & set(self.said.divisors)
        if not read or not self.plan.sums():
            return (self.loop(works),), ""
        tests = [f"ge2_divisor_near({name})" for name in divisors]
        self.said.near = "_near"
        near = self.loop(works)
        self.said.near = ""
        return (near, self.loop(works)), " && ".join(tests)

    def loop(self, works: Sequence[Work]) -> PassLoop:
        inner = self.neighbours(works)
        taken = [words.taken_together(*each) for each in self.said.packed.items()]
        inner = replace(inner, writes=(*inner.writes, *taken))
        if not self.plan.resident:
            head, places = self.striding(works), self.along()
            unroll = str(self.plan.written_out(works))
        else:
            head = "int k = 0; k < PACKS; k++"
            unroll = self.plan.unrolling(works)
            named = [*inner.reads, *inner.elements, *inner.apart, *inner.writes, Text(inner.test)]
            ends = self.end_of_packs()
            places = self.along(named)
            letter = self.places.letters[self.row[0]]
            begin = [self.place()] if places or mentions([*ends, *named], letter) else []
            places = [*begin, *places, *ends]
        lines = [*places, *inner.reads, *inner.elements, *inner.writes]
        loop = self.pack > 1 and inner.elements
        several = len(lines) > 1 or bool(loop) or any(t.pragma or t.body for t in lines)
        return replace(inner, head=head, unroll=unroll, places=tuple(places), braces=several)

    def at_once(self, each: Pick) -> list[Text]:
        """Every thread reads the element that is picked."""
        said, known, wider = self.said, self.said.packs, self.said.widened
        said.packs, said.widened = {}, set()
        at, letter = said.operand(each.at), self.places.letters[self.lane]
        state = words.state_of(each.fold)
        body = [
            Text(f"const int {letter} = (int){at};"),
            *(said.line(w) for w in each.works),
            Text(f"{state} = {words.merged_text(each.fold, state, said.operand(each.x))};"),
        ]
        said.packs, said.widened = known, wider
        return [guard(f"{at} >= 0 && {at} < {self.total(self.row)}", body)]

    def stripe(self, loop: Loop) -> list[Work]:
        """Sums over long rows: a thread adds up each of its neighbours for itself, so that none
        waits for another, and what is rounded stays small.
        """
        if self.plan.resident or self.pack == 1:
            return []
        found = [
            w
            for w in self.gathered(loop)
            if words.op_of(w).name == "reduce_sum" and w.over <= set(self.row)
        ]
        self.said.striped = {w: f"{words.state_of(w)}_of[v]" for w in found}
        return found

    def packed(self, loop: Loop) -> list[Work]:
        """Folds over long rows that take in all neighbours of a thread at once."""
        if not (self.plan.resident or self.pack == 1 or self.ragged):
            found = [w for w in self.gathered(loop) if words.takes_several(w, self.row)]
            self.said.packed = {w: f"{words.state_of(w)}_of" for w in found}
        return list(self.said.packed)

    def stripes(self, w: Work) -> State:
        found = words.begun(w, "PACK", "v")
        return replace(found, name=f"{found.name}_of")

    def together(self, w: Work) -> Each:
        name = words.state_of(w)
        merged = Text(f"{name} = {words.merged_text(w, name, f'{name}_of[v]')};")
        return Each("v", "PACK", (merged,))

    def prepared(self, works: Sequence[Work]) -> list[Text]:
        """The numbers of a row that its elements are divided by."""
        said = self.said
        said.divisors, lines = prepared(works, self.alike, said.fresh, said.operand)
        return lines

    def alike(self, x: Held, by: Held) -> bool:
        """True if a divisor is one for all elements of a row."""
        row = set(self.row)
        return not row.isdisjoint(x.axes) and row.isdisjoint(by.axes)

    def along(self, named: Sequence[Text] | None = None) -> list[Text]:
        """The places along the axes of a row, where it has several; `named`: those that it mentions."""
        if len(self.row) == 1:
            return []
        guard = [self.past("at")] if self.plan.resident and self.ragged else []
        letters = [self.places.letters[a] for a in reversed(self.row)]
        split = zip(letters, map(Text, self.places.split("at", self.row)), strict=True)
        return [*guard, *(line for a, line in split if named is None or mentions(named, a))]

    def end_of_packs(self) -> list[Text]:
        """Returns the end of a loop where a thread has fewer packs than others, all of them whole."""
        if not self.ragged or not self.whole_packs or len(self.row) > 1:
            return []
        return [self.past(self.letter)]

    @property
    def whole_packs(self) -> bool:
        whole = self.plan.length % self.pack == 0 and not self.plan.lead
        return self.plan.resident and self.lane >= 0 and whole

    def striding(self, works: Sequence[Work]) -> str:
        """The loop over a row that is not held."""
        letter = self.letter
        whole = " * PACK" if self.pack > 1 else ""
        start, step, int_ = "t", "TEAM", self.places.whole
        if self.plan.splits > 1:
            start, step = "(blockIdx.y * TEAM + t)", "gridDim.y * TEAM"
        cast = f"({int_})" if self.places.far else ""
        first, by = f"{cast}{start}{whole}{' - lead' if self.plan.lead else ''}", f"{step}{whole}"
        return f"{int_} {striding(letter, first, self.total(self.row), by, works)}"

    def neighbours(self, works: Sequence[Work]) -> PassLoop:
        """The elements of a pack, one after another."""
        said, before, after, known = self.said, [], [], dict(self.said.packs)
        left = "" if self.whole_packs else self.left
        for p in self.said.read_in(works):
            if self.plan.in_shared and p in self.plan.held:
                name = self.places.array(p)
                before.append(Text(f"const auto {name}_at = {name}_row[k * {self.shape.block}];"))
                said.packs[p] = f"{name}_at.at[{'v' if self.pack > 1 else '0'}]"
            elif (p not in self.plan.held or p in self.plan.late) and self.plan.lies(p):
                name, wide = self.places.array(p), min(self.places.wide(p), self.pack)
                read = f"ge2_read<{self.width}, {wide}>({name} + {self.places.element(p)}{left})"
                before.append(Text(f"const auto {name}_at = {read};"))
                said.packs[p] = f"{name}_at.at[{'v' if self.pack > 1 else '0'}]"
        for w in works:
            if (
                w.kind == "store"
                and self.pack > 1
                and w.param is not None
                and self.plan.lies(w.param)
            ):
                declared, written = said.pack_of(w.param, self.pack, left)
                before.append(declared)
                after += self.guarded(w, [written])
        before += [line for w in works for line in said.row_read(w, self.width, self.pack, left)]
        whole, works = self.of_packs(works)
        before += whole
        said.v, said.kept_at = ("v", "k * PACK + v") if self.pack > 1 else ("", "k")
        elements, apart, test = self.each_element(works)
        said.v, said.packs = "", known
        return PassLoop(tuple(before), tuple(elements), tuple(apart), test, tuple(after))

    def each_element(self, works: Sequence[Work]) -> tuple[list[Text], list[Text], str]:
        """The works for the elements of a pack; once more where none is at a place looked for, or none
        is before a row or behind it.
        """
        if self.plan.lead and not self.plan.resident:
            at = self.places.letters[self.lane]
            ends = f"{at} < 0 || {at} + PACK > {self.total(self.row)}"
            return self.in_a_pack(works), [each for w in works for each in self.element(w)], ends
        tests = list(dict.fromkeys(away for w in works if (away := self.said.away(w))))
        if not tests or self.pack == 1 or self.plan.length < self.plan.tuning.seldom * self.pack:
            return self.in_a_pack(works), [], ""
        here = self.in_a_pack(works)
        self.said.apart = True
        apart = self.in_a_pack(works)
        self.said.apart = False
        return here, apart, " || ".join(f"{away} < PACK" for away in tests)

    def in_a_pack(self, works: Sequence[Work]) -> list[Text]:
        lines = [each for w in works for each in self.element(w)]
        if self.pack > 1 and lines and self.ragged and not self.whole_packs:
            at = f"{self.places.letters[self.lane]} + v"
            before = [guard(f"{at} < 0", "continue;")] if self.plan.lead else []
            return [*before, self.past(at), *lines]
        return lines

    def of_packs(self, works: Sequence[Work]) -> tuple[list[Text], list[Work]]:
        """The folds that take in a pack as a whole, and the works left for its elements."""
        lines = []
        for w in works:
            p = paired(w, self.said) if w.over == set(self.row) else None
            pack = self.said.packs.get(p, "") if p is not None else ""
            if p is None or not pack.endswith(OF_PACK) or self.plan.length % self.pack:
                continue
            state = self.said.state(w)
            found = words.merged_text(w, state, largest_of(w, p, pack.removesuffix(OF_PACK)))
            lines.append(
                Text(f"{state} = {found};", self.said.note(w.step.eqn if w.step else None))
            )
            self.gone.add(w)
        return lines, without(works, self.gone, self.said)

    def element(self, w: Work) -> list[Text]:
        line = self.said.line(w)
        if w.kind == "store" and w.param not in self.said.written:
            return self.guarded(w, [line])
        outside = w.kind == "fold" and bool(w.over - set(self.row)) and self.shape.rows > 1
        return [guard("here", [line])] if outside else [line]

    def guarded(self, w: Work, lines: Sequence[Text]) -> list[Text]:
        """A store, by one of the threads that know the value."""
        several, tests = self.shape.rows > 1, []
        if w.axes.isdisjoint(self.walked):
            tests += ["team == 0"] if several else []
            tests += [f"blockIdx.{'y' if self.plan.across else 'x'} == 0"] if self.walked else []
        else:
            tests += ["here"] if several else []
        if w.axes.isdisjoint(self.row):
            tests += ["t == 0"]
            tests += ["blockIdx.y == 0"] if self.plan.splits > 1 else []
        mine = [self.groups, *([] if w.axes.isdisjoint(self.walked) else [self.walked])]
        mine += [] if w.axes.isdisjoint(self.row) else [self.row]
        own = w.axes & self.problem.axes.strides[w.param].keys() if w.param else w.axes
        alike = [a for axes in mine for a in axes if a not in own]
        tests += [f"{self.places.letters[a]} == 0" for a in alike]
        return tested(tests, lines)

    def once(self, w: Work, loop: Loop) -> list[Text]:
        """Returns what does not lie along the row."""
        if w in self.partials.aside:
            return []
        line = self.said.line(w)
        if w.kind == "store":
            return self.guarded(w, [line])
        return [guard("here", [line])] if w.kind == "fold" and self.shape.rows > 1 else [line]

    # -- reductions

    def started(self, w: Work) -> State:
        assert w.y is not None
        return words.begun(w, self.each if self.said.homes[w.y].dims else "")

    def merged(self, w: Work) -> list[Reduction]:
        """Returns the lines by which the states of a team become one, which all its threads know."""
        name = words.state_of(w)
        lines: list[Reduction] = []
        if self.shape.team > 1 and w not in self.picks:
            lines.append(self.together_with_others(w))
        if any(p.fold is w for p in self.partials.parts):
            place, once = self.part_place(w, self.walked)
            tests = [*(["here"] if self.shape.rows > 1 else []), "t == 0", *once]
            lines += tested(tests, [self.partials.leave(w, "blockIdx.y", place, name)])
        return lines

    def left_over(self, w: Work) -> list[Reduction]:
        """Returns the line that leaves what a team, or a block, has gathered for another kernel."""
        assert w.y is not None
        name, meets = words.state_of(w), self.plan.left < self.shape.rows
        number = "blockIdx.y" if self.plan.left == 1 else "(blockIdx.y * ROWS + team)"
        if self.plan.single:
            return self.met(w)
        group, once = self.part_place(w, self.groups)
        if self.said.homes[w.y].dims:
            leaves = self.leaves_along(w, number, group)
            return [*self.met(w), *tested([*(["team == 0"] if meets else []), *once], [leaves])]
        first = "threadIdx.x == 0" if meets else "t == 0"
        leave = self.partials.leave(w, number, group, name)
        return [*self.met(w), *tested([first, *once], [leave])]

    def part_place(self, w: Work, axes: Sequence[int], before: str = "") -> tuple[str, list[str]]:
        """The element of a result that a thread has a part of, and the tests that let one thread
        leave it: along axes that the result does not have, all have the same part.
        """
        p = self.partials.part(w)
        tests = [f"{self.places.letters[a]} == 0" for a in axes if a not in p.axes]
        return self.places.among([a for a in axes if a in p.axes], before=before), tests

    def met(self, w: Work) -> list[Reduction]:
        """Returns the lines by which the states of threads and teams of a block become one."""
        assert w.y is not None
        name, meets = words.state_of(w), self.plan.left < self.shape.rows
        if not self.said.homes[w.y].dims:
            return self.merged_all(w) + ([self.over_teams(w, name)] if meets else [])
        if not meets:
            return []
        return [Each("e", self.each, (self.over_teams(w, f"{name}[e]"),))]

    def leaves_along(self, w: Work, number: str, group: str) -> Text:
        """Returns the lines that leave what elements of a row have; of axes it lacks, the first's."""
        row, once = self.part_place(w, self.row, group)
        packed = self.pack > 1 and self.row[-1] in self.partials.part(w).axes
        once += ["v == 0"] if self.pack > 1 and not packed else []
        place = f"{row} + v" if packed else row
        value = f"{words.state_of(w)}[{'k * PACK + v' if self.pack > 1 else 'k'}]"
        leave = tested(once, [self.partials.leave(w, number, place, value)])
        letter = self.letter
        at = f"{letter} + v" if self.pack > 1 else letter
        inner = [self.past(at), *leave] if self.ragged else leave
        inner = [unrolled("v", "PACK", inner)] if self.pack > 1 else inner
        return unrolled("k", "PACKS", [self.place(), *self.along(), *inner])

    def over_teams(self, w: Work, value: str) -> Merge:
        """Returns the lines by which the states of a block's teams become one."""
        return words.merge(w, value, f"ge2_column_fold<TEAM, {self.shape.block}>")

    def merged_all(self, w: Work) -> list[Reduction]:
        """Each thread has its own of what is folded along the row too."""
        if w.over.isdisjoint(self.row) or self.shape.team == 1:
            return []
        return [self.together_with_others(w)]

    def together_with_others(self, w: Work) -> Merge:
        """Returns the lines by which the states of a team become one.

        A loop over rows that has a single such place comes back to it with no other between.
        """
        meetings = [each for each in self.plan.inner_folds() if each not in self.picks]
        again = self.plan.across and w.over <= set(self.row) and len(meetings) == 1
        sizes = f"TEAM, {self.shape.block}{'' if again else ', false'}"
        return words.merge(w, words.state_of(w), f"ge2_team_fold<{sizes}>")
