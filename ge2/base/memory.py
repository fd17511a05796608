"""Offsets of arrays in memory that several share: a pure function of sizes and lifetimes."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, final

from ge2.base.record import record

ALIGNMENT = 64  # a cache line, and the widest vector
LARGE: Final = 1 << 26  # bytes of an arena for which it is worth to look for a better plan
MANY: Final = 1024  # arrays, of which each is compared with each: 80 ms
SLACK: Final = 1 / 128  # of an arena, that nobody misses


@final
@record
class Lifetime:
    """An array of `nbytes` that is needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """True if both are needed at some step."""
        return self.first <= other.last and other.first <= self.last


@final
@record
class Room:
    """A place in the arena by the name of what is there: an array, or what
    a step needs besides.
    """

    name: str
    life: Lifetime
    offset: int


@final
@record
class Plan:
    """The offset of each array, and the size of the arena that holds them all."""

    offsets: tuple[int, ...]
    nbytes: int


def plan(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> Plan:
    """The arrays in the order in which they are needed, each in the smallest gap that holds it; the
    largest first, each at the lowest place, if they take much memory, and less in that way.

    Offsets are multiples of `alignment`.

    >>> plan([Lifetime(100, 0, 1), Lifetime(50, 1, 2), Lifetime(100, 2, 3)])
    Plan(offsets=(0, 128, 0), nbytes=192)
    """
    found = first_come(lifetimes, alignment)
    large = found.nbytes >= LARGE and len(lifetimes) <= MANY
    if not large or found.nbytes <= (1 + SLACK) * most_at_once(lifetimes):
        return found
    order = sorted(
        range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i)
    )
    other = lowest(lifetimes, order, lambda i, j: lifetimes[i].meets(lifetimes[j]), alignment)
    return min(found, other, key=lambda each: each.nbytes)


def most_at_once(lifetimes: Sequence[Lifetime]) -> int:
    """The bytes of the arrays that are needed at the fullest step: no plan takes less."""
    changes = Counter[int]()
    for each in lifetimes:
        changes[each.first] += each.nbytes
        changes[each.last + 1] -= each.nbytes
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


def first_come(lifetimes: Sequence[Lifetime], alignment: int) -> Plan:
    """The arrays in the order in which they are needed, each in the smallest gap that holds it."""
    gaps: list[tuple[int, int]] = []  # (size, offset), by size
    live: list[tuple[int, int, int]] = []  # (last, offset, size), by last
    offsets, top = [0] * len(lifetimes), 0
    for i in in_time(lifetimes):
        need = lifetimes[i]
        while live and live[0][0] < need.first:
            _, offset, size = live.pop(0)
            top = give_back(gaps, offset, size, top)
        size = sized(need, alignment)
        at = next((g for g, (room, _) in enumerate(gaps) if room >= size), None)
        if at is None:
            offset, top = top, top + size
        else:
            room, offset = gaps.pop(at)
            if room > size:
                insort(gaps, (room - size, offset + size))
        offsets[i] = offset
        insort(live, (need.last, offset, size))
    high = max(
        (o + sized(n, alignment) for o, n in zip(offsets, lifetimes, strict=True)), default=0
    )
    return Plan(tuple(offsets), high)


def lowest(
    lives: Sequence[Lifetime],
    order: Iterable[int],
    apart: Callable[[int, int], bool],
    alignment: int,
) -> Plan:
    """Each array, in that order of their numbers, at the lowest place where
    those that are `apart` are not.

    >>> lives = [Lifetime(32, 0, 1), Lifetime(16, 1, 2), Lifetime(32, 2, 3)]
    >>> lowest(lives, range(3), lambda i, j: lives[i].meets(lives[j]), 16)
    Plan(offsets=(0, 32, 0), nbytes=48)
    """
    offsets, done = (
        [0] * len(lives),
        list[tuple[int, int, int]](),
    )  # (offset, number, end), by offset
    for i in order:
        size, at = sized(lives[i], alignment), 0
        for offset, j, end in done:
            if offset >= at + size:
                break  # and so are all after it
            if end > at and apart(i, j):
                at = end
        offsets[i] = at
        insort(done, (at, i, at + size))
    return Plan(tuple(offsets), max((end for _, _, end in done), default=0))


def in_time(lives: Sequence[Lifetime]) -> list[int]:
    """The numbers of arrays, the ones that are needed first before the others,
    the largest of them first.
    """
    return sorted(range(len(lives)), key=lambda i: (lives[i].first, -lives[i].nbytes, i))


def sized(need: Lifetime, alignment: int = ALIGNMENT) -> int:
    """The bytes that an array takes of the arena."""
    return -(-max(need.nbytes, 1) // alignment) * alignment


def give_back(gaps: list[tuple[int, int]], offset: int, size: int, top: int) -> int:
    """Joins a freed place with its neighbours; the new top of what is in use."""
    for gap in [g for g in gaps if g[1] + g[0] == offset or offset + size == g[1]]:
        gaps.remove(gap)
        offset, size = min(offset, gap[1]), size + gap[0]
    if offset + size == top:
        return offset
    insort(gaps, (size, offset))
    return top
