"""Horizontal fusion: small launches of one kernel that do not wait for each other become one launch.

The update of a model's parameters is a kernel an array, a hundred times over, of which most are a
few thousand elements: a launch each costs more than their work. So does casting their weights, and
summing the squares of their gradients.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, final

import numpy as np

from ge2.base.record import mutable
from ge2.targets.cuda.emit.bundle import OWN, axis_of, bundle_of, can_be_bundled, of
from ge2.targets.cuda.emit.file import Source
from ge2.targets.cuda.emit.kernel import bare
from ge2.targets.cuda.launch.arguments import LaunchArgument, address_of
from ge2.targets.cuda.launch.dependencies import Access
from ge2.targets.cuda.launch.launches import Item, Launch
from ge2.targets.cuda.launch.template import launch_of
from ge2.targets.cuda.limits import MORE_PARAMETERS
from ge2.targets.cuda.load.kernels import ProgramKernels
from ge2.targets.cuda.tuning import Launches

Touched = Callable[[Item], list[Access]]

WORD: Final = 8  # bytes of a parameter, at most
SPARE: Final = 96  # bytes of parameters that a bundle leaves
ROWS: Final = 65535  # blocks of a grid along another axis than x


Ranges = list[tuple[int, int]]  # of bytes, the first and the one behind the last; apart, in order
Memory = dict[str, Ranges]


@final
@mutable
class Entry:
    """A launch, or several that are to be one, and the memory that they touch, by whose it is."""

    launches: list[Item]
    touched: Memory
    written: Memory
    key: Any = None
    blocks: int = 0

    def touches(self, other: Entry) -> bool:
        """True if one must end before the other begins."""
        return meet(self.written, other.touched) or meet(other.written, self.touched)

    def take(self, other: Entry) -> None:
        self.launches += other.launches
        self.blocks += other.blocks
        for own, more in (self.touched, other.touched), (self.written, other.written):
            for base, ranges in more.items():
                own[base] = joined([*own.get(base, ()), *ranges])


def memory_of(accesses: Iterable[Access]) -> Memory:
    found: Memory = {}
    for each in accesses:
        found.setdefault(each.base, []).append((each.first, each.last))
    return {base: joined(ranges) for base, ranges in found.items()}


def joined(ranges: Ranges) -> Ranges:
    """The same bytes as ranges that are apart and in order.

    >>> joined([(4, 6), (0, 2), (1, 3)])
    [(0, 3), (4, 6)]
    """
    if len(ranges) < 2:
        return ranges
    found = Ranges()
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def meet(one: Memory, other: Memory) -> bool:
    """True if there are bytes that are in both."""
    few, many = (one, other) if len(one) < len(other) else (other, one)
    return any(base in many and overlap(few[base], many[base]) for base in few)


def overlap(one: Ranges, other: Ranges) -> bool:
    """True if two lists of ranges have bytes in common.

    >>> overlap([(0, 2), (6, 8)], [(2, 6)]), overlap([(0, 2), (6, 8)], [(7, 9)])
    (False, True)
    """
    few, many = (one, other) if len(one) < len(other) else (other, one)
    for first, last in few:
        before = bisect_left(many, (last, 0)) - 1  # the last that begins before this one ends
        if before >= 0 and many[before][1] > first:
            return True
    return False


@final
class Bundling:
    """The launches of a program, group by group; `threads`: those that a GPU has at once;
    `parameters`: the bytes that its driver takes of a kernel.

    A launch of many rounds of them gains nothing: where it begins and ends is little of it.
    """

    def __init__(
        self,
        kernels: ProgramKernels,
        tuning: Launches,
        threads: int,
        parameters: int = MORE_PARAMETERS,
    ) -> None:
        self.kernels, self.tuning, self.threads = kernels, tuning, threads
        self.words = min(tuning.parameters, parameters - SPARE) // WORD
        self.sources: list[Source] = [*kernels.sources.values()]
        self.able: dict[int, bool] = {}

    def launches(self, items: Sequence[Item], touched: Touched) -> list[Item]:
        """The launches in an order that is as good, those that can be one as one; others where they
        were. `touched`: the memory that a launch reads and writes.
        """
        worth = {id(each) for each in self.worth(items)}
        if not worth:
            return [*items]
        found = self.gathered([self.entry(item, touched) for item in items], worth)
        few = {id(x) for e in found if len(e.launches) < self.tuning.bundled for x in e.launches}
        if worth & few:
            found = self.gathered([self.entry(item, touched) for item in items], worth - few)
        return [launch for each in found for launch in self.made(each)]

    def worth(self, items: Sequence[Item]) -> list[Launch]:
        """The launches of which there are so many of a kind that they may be one."""
        keys = [self.key(item) for item in items] if len(items) >= self.tuning.bundled else []
        many = Counter(keys)
        return [
            item
            for item, key in zip(items, keys, strict=False)
            if isinstance(item, Launch) and key is not None and many[key] >= self.tuning.bundled
        ]

    def unhurried(self, groups: Sequence[Sequence[Item]]) -> tuple[set[str], set[str]]:
        """The arrays of the arena that such launches write, which may be earlier than in the program,
        and those that they read, which may be later.
        """
        early, late = set[str](), set[str]()
        for each in (launch for items in groups for launch in self.worth(items)):
            for i, a in enumerate(map(address_of, each.arguments)):
                if a is not None and a.in_arena:
                    (early if i in each.written else late).add(a.array)
        return early, late

    def gathered(self, entries: Sequence[Entry], worth: set[int]) -> list[Entry]:
        """The launches, those together of which it is worth it: again while there are fewer, since
        who stood between two may have gone to its like.
        """
        for each in entries:
            if id(each.launches[0]) not in worth:
                each.key = None
        found, count = [*entries], len(entries) + 1
        while len(found) < count:
            count, before, found = len(found), found, list[Entry]()
            for each in before:
                self.place(found, each)
        return found

    def entry(self, item: Item, touched: Touched) -> Entry:
        accesses, key = touched(item), self.key(item)
        blocks = item.grid[axis_of(item.grid)] if isinstance(item, Launch) and key else 0
        written = memory_of(each for each in accesses if each.written)
        return Entry([item], memory_of(accesses), written, key, blocks)

    def key(self, item: Item) -> Any:
        """Returns what launches that may be one have in common; None for one that stays by itself."""
        if not isinstance(item, Launch) or item.of_library or item.cooperative or item.shared:
            return None
        number, axis = item.function, axis_of(item.grid)
        threads = math.prod(item.grid) * math.prod(item.block)
        if threads > self.tuning.rounds * self.threads:
            return None
        kernel = self.sources[number].kernel
        if number not in self.able:
            self.able[number] = can_be_bundled(kernel, bare(self.sources[number].text()))
        if not self.able[number]:
            return None
        shared = (
            a
            for a, given in zip(item.arguments, kernel.given, strict=True)
            if given.kind not in OWN
        )
        across = (*item.grid[:axis], *item.grid[axis + 1 :])
        return number, item.block, axis, across, tuple((type(a), repr(a)) for a in shared)

    def place(self, found: list[Entry], new: Entry) -> None:
        """Puts a launch to others of its kernel, or after all."""
        start = max(len(found) - self.tuning.window, 0)
        alike = [
            i
            for i in range(len(found) - 1, start - 1, -1)
            if new.key is not None and found[i].key == new.key and not self.full(found[i], new)
        ]
        last = self.last_touching(found, new, alike[-1]) if alike else start
        for i in alike:
            other = found[i]
            if i > last:
                other.take(new)
                return
            if i == last:
                break  # and what is before it is not asked: the first of a chain
            if not any(each.touches(other) for each in found[i + 1 :]):
                del found[i]
                other.take(new)
                found.append(other)
                return
        found.append(new)

    def last_touching(self, found: Sequence[Entry], new: Entry, first: int) -> int:
        """The last entry from the `first` on that must end before another begins; -1 if none must."""
        numbers = range(len(found) - 1, first - 1, -1)
        return next((i for i in numbers if found[i].touches(new)), -1)

    def full(self, entry: Entry, new: Entry) -> bool:
        """True if parameters have no bytes for another launch, or a grid no blocks."""
        number, _, axis, *_ = entry.key
        blocks = entry.blocks + new.blocks
        many = len(entry.launches) + len(new.launches) > self.most(number)
        return many or (axis > 0 and blocks > ROWS)

    def most(self, number: int) -> int:
        """The launches of a kernel for whose parameters there are bytes."""
        given = self.sources[number].kernel.given
        own = sum(a.kind in OWN for a in given)
        return (self.words - (len(given) - own)) // (own + 1)

    def members(self, number: int, count: int) -> int:
        """The members of a bundle of so many launches: a power of two, if there are bytes for that. So
        its text stays the same where one launch more or less can be part of it.
        """
        return max(count, min(1 << (count - 1).bit_length(), self.most(number)))

    def made(self, entry: Entry) -> list[Item]:
        launches = [each for each in entry.launches if isinstance(each, Launch)]
        if len(launches) < max(self.tuning.bundled, 2):
            return entry.launches
        number = launches[0].function
        kernel, price = self.sources[number].kernel, self.kernels.prices.get(number)
        one = replace(kernel, grid=launches[0].grid, block=launches[0].block[0])
        ends = ends_of(launches)
        idle = self.members(number, len(launches)) - len(launches)  # without blocks
        launches, ends = launches + launches[-1:] * idle, ends + ends[-1:] * idle
        bundle = bundle_of(one, ends)
        given: dict[str, LaunchArgument] = {}
        for m, each in enumerate(launches):
            for a, x in zip(kernel.given, each.arguments, strict=True):
                given[of(m, a.name) if a.kind in OWN else a.name] = x
        arguments = tuple(
            [given[a.name] if a.name in given else np.int32(a.value) for a in bundle.given]
        )
        new, first = self.kernels.number(bundle)
        if price is not None:
            self.kernels.prices.setdefault(new, price)
        early = bundle.fits(self.threads) and first.waits
        name, where = f"{first.name}_{new}", launches[0].where
        return [launch_of(bundle, new, arguments, name, where, early)]


def ends_of(launches: Sequence[Launch]) -> list[int]:
    """The number of blocks up to the end of each launch's."""
    return [*accumulate(each.grid[axis_of(each.grid)] for each in launches)]
