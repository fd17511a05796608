"""The loops that a region becomes: its axes, their order, and where equations find their loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import final

from ge2.base.record import mutable, record
from ge2.codegen.kernel_values import NONE, Held, Nests, Param, Step
from ge2.ir import Op
from ge2.ir.graph import BRANCHING, FUNCTION
from ge2.ops.index import Gather
from ge2.ops.reduce import ArgReduce, ReduceSum
from ge2.ops.shape import Iota

# -------- The loops that a region becomes.


@final
@record
class Spec:
    """A loop over `axes`.

    Threads share a `task` or a `panel` (of blocks); others are `whole`, go over the blocks of an
    axis (`block`), or are `inner`, within a block.
    """

    axes: tuple[int, ...]
    role: str = "whole"
    split: bool = False  # what does not run along the loops within has an instance of its own


@final
@mutable
class Work:
    """One equation, or the storing of a result, to be done for each element of `axes`."""

    kind: str  # compute, fold, store
    order: int
    y: Held | None
    xs: list[Held]
    step: Step | None
    axes: frozenset[int]
    over: frozenset[int] = frozenset()
    param: Param | None = None  # where a store goes
    home: Loop | None = None
    converting: int = 0  # operations of a conversion that the target has no instruction for

    @property
    def op(self) -> Op | None:
        """The operation of its equation, if it is one."""
        return None if self.step is None or self.step.eqn is None else self.step.eqn.op

    @property
    def cost(self) -> int:
        """The number of simple operations that it costs."""
        own = 1 if self.op is None or self.kind != "compute" else self.op.cost.instructions
        return own + self.converting

    @property
    def is_function(self) -> bool:
        """True if it computes a transcendental function, of several operations."""
        computes = self.op is not None and self.kind == "compute" and self.op.cost.transcendental
        return computes and self.cost >= FUNCTION.instructions


@final
@mutable
class Loop:
    """One instance of a loop; the outermost, without a spec, is the kernel itself."""

    spec: Spec | None
    parent: Loop | None
    children: list[Work | Loop] = field(default_factory=list)

    @property
    def path(self) -> list[Loop]:
        """The loops around it and itself, outermost first."""
        return [*([] if self.parent is None else self.parent.path), self]

    @property
    def innermost(self) -> bool:
        return all(isinstance(child, Work) for child in self.children)

    @property
    def works(self) -> list[Work]:
        return [child for child in self.children if isinstance(child, Work)]

    def everything(self) -> Iterable[Work]:
        for child in self.children:
            yield from (child,) if isinstance(child, Work) else child.everything()


# -------- The axes of a region as loops: which are one, and in what order they are nested.


Strides = Mapping[int, int]  # of an array along each axis of the space, in elements
NO_AXES = frozenset[int]()
NEAR = 2  # elements from one to the next of what is read with those between
ALWAYS = 1 << 30  # operations that are done again: nothing is kept from one stage to the next


@final
@mutable
class Axes:
    """The space of a kernel. `strides` of each array, by the axes that are left."""

    sizes: dict[int, int]
    steps: Sequence[Step]
    helds: Sequence[Held]
    strides: dict[Param, dict[int, int]]
    lane: int = -1
    blocks: dict[int, int] = field(default_factory=dict)  # of axes that are cut
    constant: frozenset[int] = frozenset()
    again: int = 0  # the most operations that are done again rather than kept
    specs: list[Spec] = field(default_factory=list)
    apart: frozenset[int] = frozenset()  # axes along which an array lies elsewhere than the space
    gathers: bool = False  # vectors go along an axis along which elements are apart
    joined: dict[int, int] = field(default_factory=dict)  # of these, those joined with the next

    # -- axes that are one

    def merge(self) -> None:
        """Joins neighbours that every array and every equation treats as one."""
        for a in sorted(self.sizes, reverse=True):
            later = [b for b in sorted(self.sizes) if b > a]
            if later and self.joinable(a, later[0]):
                self.join(a, later[0])

    def joinable(self, a: int, b: int) -> bool:
        if a in self.apart or b in self.apart:
            return False
        alike = all((a in x.axes) == (b in x.axes) for x in self.helds)
        alike = alike and all((a in s.over) == (b in s.over) for s in self.steps)
        return alike and all(
            (a in s) == (b in s) and (a not in s or s[a] == s[b] * self.sizes[b])
            for s in self.strides.values()
        )

    def join(self, a: int, b: int) -> None:
        self.sizes[b] *= self.sizes.pop(a)
        for strides in self.strides.values():
            strides.pop(a, None)
        for x in self.helds:
            x.axes = tuple(sorted({b if each == a else each for each in x.axes}))
        for s in self.steps:
            s.over = tuple(each for each in s.over if each != a)

    def join_apart(self, short: int) -> None:
        """Joins the last axis, if it is short, with the one before, along which arrays are moved."""
        a, b = [NONE, NONE, *sorted(self.sizes)][-2:]
        apart = a in self.apart and b not in self.apart
        if apart and self.sizes[b] <= short and self.is_one_apart(a, b):
            for s in self.steps:
                s.scale(a, b, self.sizes[b])
            self.join(a, b)
            self.joined[a] = b

    def is_one_apart(self, a: int, b: int) -> bool:
        """True if what depends on the place along an axis, or the next, can be told from the place
        along both.
        """
        counts = any(not {a, b}.isdisjoint(x.axes) for x in self.helds if isinstance(x.leaf, Iota))
        again = any(not {a, b}.isdisjoint(s.repeated) for s in self.steps)
        folds = any((a in s.over) != (b in s.over) for s in self.steps)
        runs = [run for s in self.steps if s.y.axes == (a,) for run in s.runs]
        still = any(not step or i * self.sizes[b] >= 1 << 30 for _, i, step in runs)
        return not (counts or again or folds or still) and all(
            (a in s) == (b in s) and (a not in s or s[a] == s[b] * self.sizes[b])
            for s in self.strides.values()
        )

    # -- the order of the loops

    def order(self, works: Sequence[Work], outs: Sequence[Param], tuning: Nests) -> None:
        """Settles the innermost axis and the order of the others."""
        self.again = tuning.again
        whole = self.whole(works)
        folded = frozenset().union(*(w.over for w in works)) if works else frozenset()
        axes = sorted(self.sizes)
        if not axes:
            return
        self.lane = max(axes, key=lambda a: (self.along(a), a))
        free = [a for a in axes if a not in whole]
        rest = [a for a in axes if a != self.lane]
        outer = [a for a in rest if a in free]
        inner = [a for a in rest if a in whole]
        self.constant = frozenset(a for a in axes if self.sizes[a] <= tuning.short and a != axes[0])
        few = whole and math.prod(self.sizes[a] for a in whole) <= tuning.short
        few = few and whole <= self.constant
        if (rows := self.rows(whole, folded, works, tuning)) is not None:
            self.by_rows(rows, (whole | folded | {self.lane}) - {rows}, outs, tuning.lanes)
        elif (
            not whole
            and folded <= {self.lane}
            and (longer := self.longer(tuning, bool(folded))) is not None
        ):
            short, self.lane = self.lane, longer
            outer = self.by_stride([a for a in axes if a not in (short, longer)], outs)
            self.specs = [Spec((a,)) for a in (*outer, longer, short)]
        elif self.lane in free and few:  # the rows are written out within the innermost loop
            self.specs = [Spec((a,)) for a in (*self.by_stride(outer, outs), self.lane, *inner)]
        elif self.lane in free and whole and not outer and self.streams(whole, works, tuning):
            self.again = ALWAYS
            self.specs = [*(Spec((a,)) for a in inner), Spec((self.lane,))]
            self.specs[0] = Spec(self.specs[0].axes, "task")
            return
        elif self.lane in free and self.panels(whole, folded, tuning.wide):
            short, self.lane = self.lane, self.longer_panel(outer, tuning) if whole else self.lane
            outer, last = [a for a in outer if a != self.lane], {short} - {self.lane}
            self.blocks[self.lane] = tuning.lanes if whole else tuning.panel
            tail = [*(Spec((a,)) for a in inner), Spec((self.lane,), "inner")]
            tail += [Spec((a,)) for a in last]
            if not whole:  # a long sum over rows: columns first
                tail, outer = [*(Spec((a,)) for a in outer), Spec((self.lane,), "inner")], []
            self.specs = [*(Spec((a,)) for a in outer), Spec((self.lane,), "block"), *tail]
        elif not whole | folded and (across := self.across(tuning.few)) is not None:
            self.blocks = {across: tuning.tile, self.lane: tuning.tile}
            others = self.by_stride([a for a in rest if a != across], outs)
            tiles = [Spec((a,), role) for role in ("block", "inner") for a in (across, self.lane)]
            self.specs = [*(Spec((a,)) for a in others), *tiles]
        else:
            by_stride = self.by_stride(outer if self.lane in whole else rest, outs)
            ordered = [*by_stride, *inner] if self.lane in whole else by_stride
            self.specs = [Spec((a,)) for a in [*ordered, self.lane]]
            if self.lane in whole | folded:
                self.lane = self.around_short(tuning)
        self.in_blocks(whole | folded, works, tuning)
        if self.specs[0].axes[0] not in whole:
            self.tasks(works, folded)

    def in_blocks(self, folded: frozenset[int], works: Sequence[Work], tuning: Nests) -> None:
        """Cuts a loop around one of few elements into blocks, where much is done around that, for
        which vectors go along the block: it is no part of the loop that has the elements.
        """
        if len(self.specs) < 2 or any(spec.role != "whole" for spec in self.specs):
            return
        (a,), (b,) = (spec.axes for spec in self.specs[-2:])
        alone = [w for w in works if w.kind == "compute" and a in w.axes and b not in w.axes]
        made = {id(w.y) for w in alone}
        kept = {id(x) for w in works if b in w.axes for x in w.xs} & made
        costly = sum(w.cost for w in alone) >= tuning.alone[0] + tuning.alone[1] * len(kept)
        # without a place, the loop around has vectors already
        places = any(isinstance(w.op, Gather) for w in works)
        if a in folded or not costly or (self.lane != b and not places):
            return
        some = a == min(self.sizes) or self.sizes[a] >= tuning.lanes  # a batch may have any rows
        if not some or self.sizes[b] > tuning.lanes:
            return
        self.lane, self.blocks[a] = (
            b,
            tuning.block if self.sizes[b] <= tuning.short else tuning.lanes,
        )
        self.specs[-2:] = [Spec((a,), "block"), Spec((a,), "inner", True), Spec((b,))]

    def by_rows(self, rows: int, within: frozenset[int], outs: Sequence[Param], lanes: int) -> None:
        """Orders the loops so that vectors go along an axis of rows, a few rows at a time."""
        before = [a for a in sorted(self.sizes) if a < rows and a not in within]
        outer = self.by_stride(before, outs)
        inner = [a for a in sorted(self.sizes) if a != rows and a not in outer]
        self.constant -= frozenset(inner)
        self.lane, self.blocks[rows], self.gathers = rows, lanes, True
        block, last = Spec((rows,), "block"), Spec((rows,), "inner")
        self.specs = [*(Spec((a,)) for a in outer), block, *(Spec((a,)) for a in inner), last]

    def longer(self, tuning: Nests, folds: bool) -> int | None:
        """The axis that vectors go along in place of the lane, where that is so short that its elements
        are written out within: some array lacks them or has them apart, or they are very few.
        """
        short, size = self.lane, self.sizes[self.lane]
        found = [a for a in self.sizes if a != short and self.sizes[a] >= tuning.lanes]
        if short not in self.constant or size > tuning.few or not found:
            return None
        longer = max(found, key=lambda a: (self.along(a), a))
        both = {p: s for p, s in self.strides.items() if longer in s and short in s}
        largest = max((p.var.type.dtype.itemsize for p in both), default=0)
        if any(abs(s.get(longer, 0)) > tuning.few for s in self.strides.values()):
            return None
        whole = all((s[longer], s[short]) == (size, 1) for s in both.values())
        words = (largest == 1 or folds) and size in (2, 4, 8)
        others = {s.get(longer, 0) for p, s in self.strides.items() if p not in both}
        if whole and not words:  # gcc makes vectors of few such arrays by itself
            return longer if size <= tuning.brief and others <= {0, 1} else None
        return longer if largest <= tuning.element or folds else None

    def longer_panel(self, outer: Sequence[int], tuning: Nests) -> int:
        """The axis that is cut into panels: not a lane of few elements, where another is longer."""
        far = {a for s in self.strides.values() for a, n in s.items() if abs(n) > tuning.few}
        found = [a for a in outer if self.sizes[a] >= tuning.lanes and a not in far]
        long = self.lane not in self.constant or self.sizes[self.lane] > tuning.few or not found
        return self.lane if long else max(found, key=lambda a: (self.along(a), a))

    def rows(
        self, whole: frozenset[int], folded: frozenset[int], works: Sequence[Work], tuning: Nests
    ) -> int | None:
        """The axis that vectors go along in place of the lane, element after element of a few rows,
        where rows are too short for vectors of their own and what is done with elements is costly.
        """
        short, size = self.lane, self.sizes[self.lane]
        itemsize = max((p.var.type.dtype.itemsize for p in self.strides), default=1)
        length, reduced = size * itemsize, short in whole | folded
        if not tuning.rows or self.fills_vectors(size, length, works, tuning):
            return None
        first = min(self.sizes)  # the text of a kernel does not know how many rows a batch has
        long = {a for a, n in self.sizes.items() if a == first or 2 * n >= tuning.lanes}
        rows = max((a for a in long - {short} - whole if self.is_near(a, tuning)), default=NONE)
        functions = [w.axes for w in works if w.is_function]
        along = any(short in axes for axes in functions)  # for each element
        once = any(rows in axes and short not in axes for axes in functions)  # for each row
        few = length < tuning.rows if reduced else 1 < size < tuning.few
        some = tuning.brief < size and length < 2 * tuning.vector
        apart = (few and along) or (some and once and (along or reduced))
        around = rows == NONE or self.is_around(rows, whole | folded, tuning)
        return rows if apart and not around else None

    def fills_vectors(self, size: int, length: int, works: Sequence[Work], tuning: Nests) -> bool:
        """True if rows are whole vectors, or one that is summed where several would be gathered."""
        if length % tuning.vector or size >= tuning.lanes or length > tuning.vector:
            return length % tuning.vector == 0
        gathered = sum(self.lane in s and len(s) > 1 for s in self.strides.values())
        sums = all(isinstance(w.op, ReduceSum) for w in works if self.lane in w.over)
        each = all(self.lane in w.axes for w in works if w.is_function)
        return gathered > 1 and each and sums

    def is_near(self, a: int, tuning: Nests) -> bool:
        """True if a few elements along an axis are in the nearest cache with all between them."""
        return all(
            abs(s.get(a, 0)) * p.var.type.dtype.itemsize * tuning.lanes <= tuning.nearest
            for p, s in self.strides.items()
        )

    def is_around(self, a: int, folded: frozenset[int], tuning: Nests) -> bool:
        """True if rows along an axis are so short that they are written out within its loop."""
        inside = math.prod(n for b, n in self.sizes.items() if b > a or (b in folded and b != a))
        near = all(abs(s.get(a, 0)) <= tuning.few for s in self.strides.values())
        return self.lane in folded and inside <= tuning.around and near

    def around_short(self, tuning: Nests) -> int:
        """The axis that vectors go along: the lane, or, where that is so short that a vector would not
        be full and its elements are written out, the one around it.
        """
        order = [spec.axes[0] for spec in self.specs]
        longer = next((a for a in reversed(order) if a not in self.constant), self.lane)
        inside = math.prod(self.sizes[a] for a in order[order.index(longer) + 1 :])
        near = all(abs(s.get(longer, 0)) <= tuning.few for s in self.strides.values())
        full = self.sizes[longer] >= tuning.lanes
        return longer if full and near and inside <= tuning.around else self.lane

    def writes_out(self, loop: Loop) -> bool:
        """True if all loops within have so few iterations that the compiler writes them out."""
        inner = [child for child in loop.children if isinstance(child, Loop)]
        return all(c.spec and c.spec.axes[0] in self.constant and self.writes_out(c) for c in inner)

    def streams(self, whole: frozenset[int], works: Sequence[Work], tuning: Nests) -> bool:
        """True if all rows are gone through once for each stage: only one stage reads them, or a panel
        of them would not stay in cache.

        Nothing is kept between the stages, so what is costly to make again speaks against it.
        """
        if self.sizes[self.lane] >= tuning.wide:
            return False
        if not self.read_again(whole, works):
            return True
        panel = math.prod(self.sizes[a] for a in whole) * tuning.lanes * 4
        costly = any(w.cost >= BRANCHING.instructions and w.axes & whole for w in works)
        return panel > tuning.cache and not costly

    def read_again(self, whole: frozenset[int], works: Sequence[Work]) -> bool:
        """True if something along the axes of a reduction waits for its result."""
        late = set[int]()
        for w in works:
            waits = any(id(x) in late for x in w.xs)
            if waits and not w.axes.isdisjoint(whole):
                return True
            if waits or (w.kind == "fold" and w.over & whole):
                late.add(id(w.y))
        return False

    def panels(self, whole: frozenset[int], folded: frozenset[int], wide: int) -> bool:
        """True if the innermost axis is cut into panels, each of which goes through all rows."""
        if whole:
            return math.prod(self.sizes[a] for a in whole) > 1
        outermost = next((a for a in sorted(self.sizes) if a != self.lane), None)
        return self.lane not in folded and outermost in folded and self.sizes[self.lane] >= wide

    def whole(self, works: Sequence[Work]) -> frozenset[int]:
        """The axes over which a reduction is complete before something reads it.

        Single numbers, such as the division of a mean, come after all loops: they need nothing there.
        """
        late: dict[int, frozenset[int]] = {}  # of a value, the axes over which it was reduced
        found: set[int] = set()
        for w in works:
            waits = NO_AXES.union(*(late.get(id(x), NO_AXES) for x in w.xs))
            folded = w.over if w.kind == "fold" else NO_AXES
            found |= waits if w.axes and w.kind != "store" else NO_AXES
            found |= folded if isinstance(w.op, ArgReduce) else NO_AXES
            late[id(w.y)] = waits | folded
        return frozenset(found)

    def along(self, a: int) -> int:
        """The arrays whose elements are side by side along an axis, less those that are apart."""
        total = 0
        for strides in self.strides.values():
            if a in strides:
                size = math.prod(self.sizes[b] for b in strides)
                # every second element is read with those between; what is further apart is a column
                near = abs(strides[a]) <= NEAR and 1 not in strides.values()
                total += size if strides[a] == 1 else 0 if near else -size
        return total

    def across(self, few: int) -> int | None:
        """The axis along which elements are side by side in arrays in which
        they do not along the lane; None where they are fewer than `few`.
        """
        found = [
            a
            for s in self.strides.values()
            if self.lane in s and abs(s[self.lane]) > 1
            for a, step in s.items()
            if step == 1 and self.sizes[a] >= few
        ]
        return found[0] if found and self.sizes[self.lane] >= few else None

    def by_stride(self, axes: Sequence[int], outs: Sequence[Param]) -> list[int]:
        """In the order in which the largest result is in memory."""
        if not outs:
            return list(axes)
        largest = self.strides[
            max(outs, key=lambda p: math.prod(self.sizes[a] for a in self.strides[p]))
        ]
        return sorted(axes, key=lambda a: (-abs(largest.get(a, 0)), a))  # what is folded comes last

    def tasks(self, works: Sequence[Work], folded: frozenset[int]) -> None:
        """The outermost loop is the one that threads share: two as one where that is possible."""
        if not self.specs:
            return
        first, *rest = self.specs
        if first.role == "block":
            self.specs = [Spec(first.axes, "panel"), *rest]
            return
        if rest and rest[0].role == "whole" and self.lane not in (*first.axes, *rest[0].axes):
            a, b = first.axes[0], rest[0].axes[0]
            if not {a, b} & folded and all((a in w.axes) == (b in w.axes) for w in works):
                self.specs = [Spec((a, b), "task"), *rest[1:]]
                return
        self.specs = [Spec(first.axes, "task"), *rest]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array in C order, in elements: 3 and 1 of one of 4 x 3."""
    return tuple(math.prod(max(n, 1) for n in shape[i:]) for i in range(1, len(shape) + 1))
