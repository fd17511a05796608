"""Plans of row kernels: where the elements of a row are kept, and the parts of the kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from ge2.base.arrays import HALF
from ge2.codegen.axes import ALWAYS, Loop, Spec, Work
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.layout import nest
from ge2.targets.cuda.emit import words as reductions
from ge2.targets.cuda.emit.region import Problem, Statements
from ge2.targets.cuda.emit.special_reductions import Part, Partials, Pick, part, pick
from ge2.targets.cuda.emit.words import WIDEST, Places, power
from ge2.targets.cuda.limits import WARP, Chip
from ge2.targets.cuda.tuning import Rowwise

# -------- Where a row is while a team of threads computes it, how many threads that is, and how
# many blocks.


REGISTERED, IN_SHARED, READ_AGAIN = "registers", "shared memory", "memory"


def few(problem: Problem, whole: frozenset[int], tuning: Rowwise) -> bool:
    """True if a block might have all rows of a region that folds over them too."""
    rows = math.prod(n for a, n in problem.axes.sizes.items() if a not in whole)
    again = any(w.over - whole for w in problem.folded)
    return again and rows <= tuning.alone * tuning.rounds_again


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """Threads of a row and of a block; packs of a thread, 0 where a row does
    not fit in registers.
    """

    team: int
    block: int
    packs: int

    @property
    def rows(self) -> int:
        """Rows that a block has at once."""
        return self.block // self.team


@final
class Plan:
    """`where` a row is while it is computed; `again`: how costly what is made again may be;
    `alone`: one block has all rows, and knows what is folded over them; `packed`: a thread may have
    neighbours along the last axis of several.
    """

    def __init__(
        self,
        problem: Problem,
        whole: frozenset[int],
        chip: Chip,
        again: int,
        where: str,
        alone: bool = False,
        packed: bool = True,
    ) -> None:
        self.problem, self.chip, self.alone, axes = problem, chip, alone, problem.axes
        self.tuning = chip.tuning.rowwise
        self.resident, self.in_shared = where != READ_AGAIN, where == IN_SHARED
        resident = self.resident
        rest = [a for a in sorted(axes.sizes) if a not in whole]
        # folded over rows as well
        across = frozenset().union(*(w.over for w in problem.folded)) - whole
        self.row = [a for a in sorted(axes.sizes) if a in whole]
        self.walked = [a for a in rest if a in across] if across else rest
        self.groups = [a for a in rest if a not in across] if across else []
        self.across = bool(across)
        self.places = Places(axes, problem.operands, [*self.groups, *self.walked, *self.row])
        self.places.constant = frozenset(self.row) if resident else frozenset()
        # of several axes packs lie along the last
        lane = self.row[-1] if self.row and (packed or len(self.row) == 1) else -1
        self.lane = self.places.lane = lane
        self.length = math.prod(axes.sizes[a] for a in self.row)
        self.count = math.prod(axes.sizes[a] for a in self.walked)
        lying = [p for p in axes.strides if self.lies(p)]
        self.lead = self.neighbours(lying)
        roles = ((self.walked, "rows"), (self.row, "row"))
        specs = [Spec(tuple(axes), role) for axes, role in roles if axes]
        # A block has one group: what is alike in all groups is made in each, where it is read.
        group = Spec(tuple(self.groups), "group") if self.groups else None
        held = [p for p in lying if resident and self.lies(p)]
        self.held = {p for p in held if self.depends(p) or not self.lead}
        self.common = set[Param]()
        parts = [part(problem, w, self.places.order) for w in problem.folded]
        if not self.across:
            self.sink()
        self.root = nest(problem.works, specs, again, group)
        self.said = Statements(problem, self.places, self.root)
        self.common = self.shared_by_rows()
        self.held |= self.common
        self.shape = self.shaped()
        self.ahead = self.read_ahead() if self.across else []
        self.splits, self.blocks = self.spread(parts)
        self.partials = self.merged([p for p in parts if p and not alone])
        self.wider = self.said.widened = self.read_wide()
        self.late = self.read_late()

    def neighbours(self, lying: Sequence[Param]) -> int:
        """Decides how many elements of a row side by side a thread has, and returns of how many a row
        that begins anywhere begins behind a multiple; 0 of others.
        """
        axes, tables = self.problem.axes, self.problem.values.tables.values()
        # so do rows at indices, which are read where they are asked for
        rows = [p for p in tables if axes.strides[p].get(self.lane) == 1]
        room = 4 * self.chip.thread_registers
        self.pack = 1 if self.alone else self.places.pack([*lying, *rows], room)
        lead = 0 if self.alone or self.across or self.in_shared else self.led(lying)
        if lead:
            self.pack = self.places.multiple = lead
            self.places.alike = frozenset(p for p in lying if self.depends(p))
        # of a row and what is before it, down to the multiple that a pack begins at
        self.span = self.length + max(lead - 1, 0)
        if len(self.row) > 1 and (self.pack == 1 or axes.sizes[self.lane] % self.pack):
            self.lane, self.places.lane, self.pack = -1, -1, 1
        return lead

    def merged(self, parts: Sequence[Part]) -> Partials:
        """The partial results of reductions that several blocks gather; `lost`: one has none."""
        whole, folded = frozenset(self.row), self.problem.folded
        gathered = [p for p in parts if p.fold.over - whole or self.splits > 1]
        across = [w for w in folded if w.over - whole]
        self.lost = not self.alone and len(across) > sum(
            bool(p.fold.over - whole) for p in gathered
        )
        # one part is the result
        alone = self.blocks * self.left == 1 and not (self.lost or self.alone)
        self.single = bool(self.groups) and alone
        number = self.blocks * self.left if self.across else self.splits
        gathered = [] if self.single else gathered
        tuning = self.chip.tuning.parts
        return Partials(self.problem, self.places, gathered, number, tuning, self.most_parts())

    def sink(self) -> None:
        """What is alike for all rows is done in each, unless it is a result:
        a block has one row.
        """
        walked = frozenset(self.walked)
        if any(w.kind == "store" and w.axes.isdisjoint(walked) for w in self.problem.works):
            return
        for w in self.problem.works:
            w.axes |= walked

    def led(self, lying: Sequence[Param]) -> int:
        """Elements of a pack, of long rows that begin anywhere, but in all arrays as far behind a
        multiple of these: packs then begin at that multiple, the first before the row. 0 of others.
        """
        moving = [p for p in lying if self.depends(p)]
        sizes = [p.var.type.dtype.itemsize for p in moving]
        if len(self.row) != 1 or not moving:
            return 0
        pack = min(WIDEST // min(sizes), 2 * WIDEST // max(sizes))
        if self.pack >= pack or self.length < self.tuning.led * pack:
            return 0
        begins = {
            tuple(self.problem.axes.strides[p].get(a, 0) % pack for a in self.walked)
            for p in moving
        }
        operands = [self.problem.operands[p.var] for p in moving]
        at_multiples = not any(x.offset % pack or x.loose % pack for x in operands)
        return pack if len(begins) == 1 and at_multiples else 0

    # -- how many threads a row has

    def lies(self, p: Param) -> bool:
        """True if the elements of a row lie side by side in an array."""
        side_by_side = self.problem.axes.strides[p].get(self.lane) == 1
        apart = p in self.problem.placed or p in self.problem.strewn(self.lane)
        return self.lane >= 0 and side_by_side and not apart

    def depends(self, p: Param) -> bool:
        """True if an array is another for another row."""
        strides = self.problem.axes.strides[p]
        return any(strides.get(a) for a in (*self.walked, *self.groups))

    def shared_by_rows(self) -> set[Param]:
        """The arrays of which all rows that a block walks to read the same elements, not side by side:
        those are read once, as columns of points are, where registers hold them.
        """
        if not self.across or not self.resident or self.in_shared or self.alone or self.lane < 0:
            return set()
        strides, problem = self.problem.axes.strides, self.problem
        found = {
            p
            for p in strides
            if strides[p].get(self.lane, 0) > 1
            and p not in problem.outs
            and p not in problem.placed
            and not self.depends(p)
            and p.var.type.dtype.itemsize == 4
        }
        room = 2 * self.tuning.words / self.tuning.summed
        return found if self.sums() and self.words() + len(found) <= room else set()

    def words(self, alive: bool = False) -> float:
        """Registers that an element of a row takes: arrays, values between stages, sums over rows;
        `alive`: at once, for values between stages are made of the arrays.
        """
        rows = [c for c in self.everything(self.root) if c.spec and c.spec.role == "rows"] or [
            self.root
        ]
        read = self.said.read_in([w for c in rows for w in c.everything()])
        arrays = sum(p.var.type.dtype.itemsize for p in read if p in self.held)
        between = sum(h.dtype.itemsize for h in self.between())
        sums = sum(
            reductions.state_bytes(w)
            for w in self.problem.folded
            if w.y and self.said.homes[w.y].dims
        )
        return ((max(arrays, between) if alive else arrays + between) + sums) / 4

    def sums(self) -> bool:
        """True if something is gathered over the rows for each element of a row."""
        return any(w.y is not None and self.said.homes[w.y].dims for w in self.problem.folded)

    def between(self) -> list[Held]:
        return [
            y
            for y, home in self.said.homes.items()
            if home.dims and self.said.makers[y].kind != "fold"
        ]

    def shaped(self) -> Shape:
        """The smallest team that holds a row, whole warps where the row is that long."""
        n, pack = max(self.span, 1), self.pack
        if self.in_shared:
            team = self.tuning.in_shared
            return Shape(team, team, -(-n // (team * pack)))
        if not self.resident:
            many = self.count >= 2 * self.chip.multiprocessors
            long = n >= self.rounds_long() * self.tuning.long_block * pack
            block = self.tuning.long_block if long else self.tuning.block
            shared = not self.stages()  # by several blocks, if it is costly
            few = self.tuning.block if shared and self.costly() else self.tuning.largest
            widest = block if many else few
            widest = WARP if self.in_passing() else widest
            team = min(widest, max(power(-(-n // pack)), 1))
            return Shape(team, max(team, self.tuning.block), 0)
        if self.alone:
            team = min(power(-(-n // self.tuning.some)), WARP)
            return Shape(team, self.tuning.alone, -(-n // team))
        if self.outer():
            return Shape(1, self.tuning.block, -(-n // pack))
        few, words = self.tuning.held, self.tuning.words
        if self.sums():
            few, words = self.tuning.summed // (2 if self.common else 1), 2 * words
        most = max(min(few, int(words / max(self.words(), 0.5))), pack)
        team = min(max(power(-(-n // most)), min(32, power(-(-n // pack)))), self.tuning.largest)
        if n <= min(most, self.tuning.brief) and self.plenty():
            team = 1
        if self.groups:  # a block has the rows of one group, which may be few: no lane is idle
            team = max(team, min(WARP // power(self.count), power(-(-n // pack))))
        self.pack = pack = self.pack if self.lead else self.fitting(team)
        block = min(self.tuning.block, self.tuning.largest)
        if self.sums() and team > WARP:
            # a block a row: its next row may be read ahead, and more of them are at once
            block = team
        if self.groups:
            block = min(block, max(power(self.count) * team, WARP))
        return Shape(team, max(team, block), -(-n // (team * pack)))

    def rounds_long(self) -> int:
        """Times that many threads of a row read it at least: fewer where the rows that small blocks
        are at would not be in the cache when they are read again.
        """
        read = [p for p in self.said.read_in(list(self.root.everything())) if self.depends(p)]
        each = self.length * sum(p.var.type.dtype.itemsize for p in read)
        blocks = self.chip.multiprocessors * (self.chip.threads // self.tuning.block)
        again = self.stages() and min(blocks, self.count) * each > self.chip.l2
        return self.tuning.rounds_again_long if again else self.tuning.rounds_long

    def fitting(self, team: int) -> int:
        """Elements of a pack: half as many where fewer threads are then without any."""
        half = self.pack // 2

        def each(pack: int) -> int:
            return -(-self.length // (team * pack)) * pack

        return half if half >= 4 and each(half) < each(self.pack) else self.pack

    def written_out(self, works: Sequence[Work]) -> int:
        """The unrolling of a loop over a row that is read again: so often that as many bytes
        are on their way where a thread reads single elements as where it reads packs, unless much is
        done with each, or a thread has no registers for as many.
        """
        few, most = self.tuning.unrolled, self.tuning.unrolled_works
        arrays = self.said.read_in(works)
        read = [p for p in arrays if self.depends(p)]
        wide = [min(self.places.wide(p), self.pack) * p.var.type.dtype.itemsize for p in read]
        times = WIDEST // max(wide, default=WIDEST) if wide else 1
        while times > 1 and (few * times * len(works) * self.pack > most):
            times //= 2
        stored = [w.param for w in works if w.param is not None]
        held = sum(p.var.type.dtype.itemsize for p in (*arrays, *stored))
        registers = self.chip.registers // self.shape.block
        while few > 1 and few * times * self.pack * held > 4 * registers:
            few //= 2
        return few * max(times, 1)

    def unrolling(self, works: Sequence[Work]) -> str:
        """How often a loop over the elements that a thread has is written out: "" for each of them,
        which is where something of it is kept in a register of its own.
        """
        if self.in_shared:
            return str(self.tuning.in_turn)
        if self.outer():
            return str(self.tuning.unrolled)
        kept = self.held or self.between() or self.sums()
        return "" if kept else str(self.written_out(works))

    def outer(self) -> bool:
        """True if no array has an element for each of each row, nothing is kept of one, and rows are
        many: a thread has one, and reads what all rows share in the instruction of its neighbours.
        """
        strides = self.problem.axes.strides
        whole = any(self.depends(p) and any(strides[p].get(a) for a in self.row) for p in strides)
        kept = self.sums() or self.between() or self.groups or not self.resident or self.in_shared
        return not (whole or kept) and self.plenty()

    def in_passing(self) -> bool:
        """True if a row is gone through once, for an index: threads that become one compare a value
        and an index of two words, so that few are to have many elements each, if rows are many.
        """
        many = self.count * WARP >= self.chip.multiprocessors * self.chip.threads
        return many and not self.stages() and any(map(reductions.indexed, self.problem.folded))

    def plenty(self) -> bool:
        """True if the chip has work if each thread takes a row: then none does what another of its
        team does for the same row, and none waits for another.
        """
        rows = self.count * math.prod(self.problem.axes.sizes[a] for a in self.groups)
        return rows >= self.chip.multiprocessors * self.chip.threads

    @property
    def left(self) -> int:
        """Parts that a block leaves of what is gathered over rows: that of each row it has at once,
        or one, if its threads have few elements for which to wait for each other. Of many groups the
        parts would be more than all that the rows are made of.
        """
        few = self.shape.packs * self.pack <= self.tuning.met or self.shape.team == 1
        one = bool(self.groups) and not self.sums()
        return 1 if (few or one) and not self.alone else self.shape.rows

    def spread(self, parts: Sequence[Part | None]) -> tuple[int, int]:
        """Returns how many blocks share a row, and how many share the rows."""
        shape, loops = self.shape, self.inner_loops()
        team_blocks = -(-self.count // shape.rows)
        if self.alone:
            return 1, 1
        if self.across and not self.sums():
            return 1, min(
                team_blocks, self.chip.grid[1]
            )  # each row leaves its own part, and waits for no other
        if self.across:
            groups = math.prod(self.problem.axes.sizes[a] for a in self.groups)
            at_once = self.at_once * self.chip.multiprocessors
            if any(p is not None and not set(self.row).isdisjoint(p.axes) for p in parts):
                # each block leaves rows of sums, to be written and read once more
                few = self.count * groups // (self.tuning.parted * self.left)
                at_once = min(at_once, max(few, self.busy()))
            return 1, max(1, min(team_blocks, -(-at_once // max(groups, 1))))
        alone = len(loops) == 1 and all(p is not None for p in parts) and not self.resident
        if not alone or self.length < self.tuning.long:
            return 1, team_blocks
        wanted = (
            self.chip.multiprocessors * self.chip.threads // (shape.block * max(team_blocks, 1))
        )
        packs = 1 if self.costly() else self.tuning.packs  # of each thread, at least
        return max(1, min(wanted, self.length // (shape.team * self.pack * packs))), team_blocks

    def costly(self) -> bool:
        """True if elements take so long that few threads would keep the others waiting."""
        return sum(w.cost for w in self.problem.works) >= self.tuning.costly

    def busy(self) -> int:
        """Returns how many blocks have as much under way as keeps memory busy."""
        read = sum(p.var.type.dtype.itemsize for p in self.held if self.depends(p))
        each = max(read * self.length * self.shape.rows, 1) * self.chip.multiprocessors
        return -(-self.tuning.under_way // each) * self.chip.multiprocessors

    def most_parts(self) -> int:
        """Returns how many parts of a result there may be, however many rows there are."""
        if not self.across:
            return 0
        blocks = self.at_once * self.chip.multiprocessors if self.sums() else self.chip.grid[1]
        return blocks * self.left

    def read_wide(self) -> set[Param]:
        """Arrays of half types whose rows are held as floats, since several stages read them."""
        if self.across or not self.resident or self.in_shared:
            return set()
        loops = self.inner_loops()
        times = Counter(p for c in loops for p in self.said.read_in(c.works))
        return {
            p for p in self.held if p.var.type.dtype in HALF and self.depends(p) and times[p] > 1
        }

    def read_late(self) -> set[Param]:
        """Arrays that all rows have in common, as weights are, and that only a later stage reads:
        they are in the cache by then, and take no registers before.
        """
        if self.across or not self.resident or self.in_shared:
            return set()
        stages = [set(self.said.read_in(loop.works)) for loop in self.inner_loops()]
        times = Counter(p for stage in stages for p in stage)
        later = {p for stage in stages[1:] for p in stage}
        return {p for p in self.held & later if times[p] == 1 and not self.depends(p)}

    def inner_loops(self) -> list[Loop]:
        """The stages that a row is gone through."""
        return [c for c in self.everything(self.root) if c.spec and c.spec.role == "row"]

    def inner_folds(self) -> list[Work]:
        """Returns what is folded over a row, for which its threads meet."""
        row = set(self.row)
        return [
            w
            for loop in self.inner_loops()
            for w in loop.works
            if w.kind == "fold" and w.over <= row
        ]

    def picked(self) -> dict[Work, Pick]:
        """The folds that pick an element.

        All wait for another fold of the same stage, so that no result is written over an element
        that is still to be read.
        """
        found: dict[Work, Pick] = {}
        for loop in self.inner_loops() if len(self.row) == 1 else []:
            inner = [w for w in loop.works if w.kind == "fold" and w.over == set(self.row)]
            picks = [p for w in inner if (p := pick(w, self.said, loop.works, self.lane))]
            if len(picks) < len(inner) and self.shape.team > 1:
                found |= {p.fold: p for p in picks}
        return found

    def side_by_side(self) -> int:
        """Returns how many blocks the compiler is to leave registers for, on a multiprocessor."""
        if self.in_shared:
            return 2 if self.shared <= self.chip.shared // 2 else 1
        return self.at_once if self.sums() and not self.alone else 1

    @property
    def at_once(self) -> int:
        """Returns how many blocks a multiprocessor is to hold, by the registers that their rows
        take.
        """
        alive = self.shape.packs * self.pack * self.words(alive=True)
        others = self.tuning.others + self.tuning.address * len(
            [p for p in self.held if p not in self.problem.outs]
        )
        by_registers = self.chip.registers // (self.shape.block * (int(alive) + others))
        by_shared = self.chip.shared // max(self.shared, 1)
        return max(1, min(by_registers, by_shared, self.chip.threads // self.shape.block))

    def read_ahead(self) -> list[Param]:
        """The arrays whose next row is read while one is computed, where few
        threads are at hand to wait.
        """
        self.ahead = []
        if self.alone or self.in_shared or not self.sums():
            return []
        if self.at_once * self.shape.block > self.tuning.crowd:
            return []
        if self.shape.rows > 1 or not self.resident or self.lane < 0 or self.length % self.pack:
            return []
        read = [
            p
            for p in self.said.read_in(list(self.root.everything()))
            if p in self.held and self.depends(p)
        ]
        wide = [self.places.wide(p) * p.var.type.dtype.itemsize for p in read]
        return (
            read
            if read
            and min(wide) >= 4
            and self.room(read) <= self.chip.shared // 2 - self.tuning.apart
            else []
        )

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
        """True if this is a kernel: what it says of registers holds, and it
        knows every reduction.
        """
        legal = (
            frozenset(self.row),
            frozenset(self.walked),
            frozenset(self.row) | frozenset(self.walked),
        )
        if self.lost or any(w.over not in legal for w in self.problem.folded):
            return False
        if not self.resident:
            return not self.across and not self.between()
        if self.in_shared:
            fits = 0 < self.rows_bytes() <= self.chip.most and self.shape.packs > 1
            return fits and not self.between() and not self.sums() and self.stages()
        if self.alone and not self.complete():
            return False
        few = self.span <= self.shape.team * self.pack * self.shape.packs
        each = self.shape.packs * self.pack * self.words()
        long = (
            not self.across
            and self.length >= self.tuning.long
            and self.count < self.chip.multiprocessors
            and not self.stages()
        )
        passing = not self.across and self.shape.team > WARP and self.in_passing()
        return few and each <= self.most_words and self.length > 0 and not (long or passing)

    @property
    def most_words(self) -> int:
        """Registers of a thread that the elements of its rows may take."""
        if self.alone:
            return self.tuning.words_alone
        return self.tuning.crowded if self.shape.block > 512 else 2 * self.tuning.words

    def complete(self) -> bool:
        """True if one block is enough for all rows, and goes through them once."""
        loops = [
            c
            for c in self.root.children
            if isinstance(c, Loop) and c.spec and c.spec.role == "rows"
        ]
        if not self.across or self.groups or len(loops) != 1 or self.shape.team > WARP:
            return False
        if any(d in loops for home in self.said.homes.values() for d in home.dims):
            return False
        gathered = [w for w in self.problem.folded if w.over - set(self.row)]
        if sum(map(self.met, gathered)) > self.chip.static - self.tuning.meeting:
            return False
        read = {x for w in self.problem.works if w.kind != "store" for x in w.xs}
        again = any(w.y in read for w in gathered)
        rounds = self.tuning.rounds_again if again else self.tuning.rounds
        return self.count <= self.shape.rows * rounds

    def met(self, w: Work) -> int:
        """Bytes of shared memory in which the warps of the only block merge what they have."""
        assert w.y is not None
        states = self.shape.team * (self.shape.packs if self.said.homes[w.y].dims else 1)
        return self.shape.block // WARP * states * reductions.state_bytes(w)

    def stages(self) -> bool:
        """True if a row is gone through more than once."""
        return len(self.inner_loops()) > 1


PLACES = ((ALWAYS, REGISTERED), (ALWAYS, IN_SHARED), (ALWAYS, READ_AGAIN))


def planned(make: Callable[[], Problem], whole: frozenset[int], chip: Chip) -> Plan | None:
    """The plan of a kernel that reduces the axes `whole`, and perhaps all rows
    besides; None if none fits.
    """
    first, tuning = make(), chip.tuning.rowwise
    # what is made again rather than kept, where a row is, whether one block has all, and whether
    # neighbours are read at once: of rows along several axes that fit nowhere else none are
    each = (tuning.again, REGISTERED)
    plans = [(*how, False, True) for how in (each, *PLACES)]
    if few(first, whole, tuning):
        plans.insert(0, (*each, True, True))
    plans += [(*each, False, False)] * (len(whole) > 1)
    for n, (again, where, alone, packed) in enumerate(plans):
        plan = Plan(make() if n else first, whole, chip, again, where, alone, packed)
        if plan.fits:
            return plan
    return None
