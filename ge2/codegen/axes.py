"""The axes of a region as loops: which are one, which is innermost, in what
order they are nested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import final

from ge2.base.record import mutable
from ge2.codegen.kernel_values import Held, Param, Step
from ge2.codegen.loop_nest import Spec, Work, is_state
from ge2.codegen.tuning import Nests
from ge2.ir import Dims
from ge2.ir.op import BRANCHING

Strides = Mapping[int, int]  # of an array along each axis of the space, in elements
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
            x.axes = tuple(each for each in x.axes if each != a)
        for s in self.steps:
            s.over = tuple(each for each in s.over if each != a)

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
        if (
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
            self.blocks[self.lane] = tuning.lanes if whole else tuning.panel
            tail = [Spec((a,)) for a in inner] + [Spec((self.lane,), "inner")]
            if not whole:  # a long sum over rows: columns first
                tail = [Spec((a,)) for a in outer] + [Spec((self.lane,), "inner")]
                outer = []
            head = [Spec((a,)) for a in outer] + [Spec((self.lane,), "block")]
            self.specs = [*head, *tail]
        elif not whole | folded and (across := self.across(tuning.few)) is not None:
            self.blocks = {across: tuning.tile, self.lane: tuning.tile}
            others = self.by_stride([a for a in rest if a != across], outs)
            tiles = [Spec((a,), role) for role in ("block", "inner") for a in (across, self.lane)]
            self.specs = [*(Spec((a,)) for a in others), *tiles]
        else:
            by_stride = self.by_stride(outer if self.lane in whole else rest, outs)
            ordered = [*by_stride, *inner] if self.lane in whole else by_stride
            self.specs = [Spec((a,)) for a in [*ordered, self.lane]]
        if self.specs[0].axes[0] not in whole:
            self.tasks(works, folded)

    def longer(self, tuning: Nests, folds: bool) -> int | None:
        """The axis that vectors go along in place of the lane, where that is so short that its elements
        are written out within: not all arrays have them in one piece, or it is a word of bytes.
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
        return longer if (largest <= tuning.element or folds) and (words or not whole) else None

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
        costly = any(
            w.cost >= BRANCHING.instructions and not w.axes.isdisjoint(whole) for w in works
        )
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
        kept = self.lane not in folded
        return kept and outermost in folded and self.sizes[self.lane] >= wide

    def whole(self, works: Sequence[Work]) -> frozenset[int]:
        """The axes over which a reduction is complete before something reads it."""
        read = {id(x) for w in works if w.kind != "store" for x in w.xs}
        found: set[int] = set()
        for w in works:
            if w.kind == "fold" and (id(w.y) in read or is_state(w.step)):
                found |= w.over
        return frozenset(found)

    def along(self, a: int) -> int:
        """The number of arrays whose elements are side by side along an axis, less those that are
        apart.
        """
        total = 0
        for strides in self.strides.values():
            if a in strides:
                size = math.prod(self.sizes[b] for b in strides)
                total += size if strides[a] == 1 else -size
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
        """The outermost loop is the one that threads share: two loops
        as one where that is possible.
        """
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
    """The strides of an array in C order, in elements.

    >>> strides_of((4, 3))
    (3, 1)
    """
    found = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        found[i] = found[i + 1] * max(shape[i + 1], 1)
    return tuple(found)


def merged(shape: Dims, *strides: Dims) -> tuple[Dims, tuple[Dims, ...]]:
    """Sizes and strides with the axes joined that all arrays treat as one;
    those of one element are left out.

    >>> merged((2, 3, 4), (12, 4, 1), (0, 0, 1))
    ((6, 4), ((4, 1), (0, 1)))
    >>> merged((2, 3, 1), (3, 1, 1), (6, 2, 9))
    ((6,), ((1,), (2,)))
    """
    axes: list[tuple[int, ...]] = []
    for n, *steps in zip(shape, *strides, strict=True):
        if n == 1:
            continue
        if axes and all(
            outer == inner * n for outer, inner in zip(axes[-1][1:], steps, strict=True)
        ):
            axes[-1] = (axes[-1][0] * n, *steps)
        else:
            axes.append((n, *steps))
    sizes, *joined = zip(*axes, strict=True) if axes else [()] * (1 + len(strides))
    return sizes, tuple(joined)
