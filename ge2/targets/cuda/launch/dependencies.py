"""Which launches must end before another begins: those that touch the same
memory, one of them writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import reduce
from operator import or_
from typing import final

from ge2.base.record import mutable, record
from ge2.targets.cuda.tuning import Launches

LAUNCHES = Launches()


@final
@record
class Access:
    """Bytes `first` to `last`, that one excluded, of what begins at `base`;
    whether they are `written`.
    """

    base: str
    first: int
    last: int
    written: bool


@final
@mutable
class Touched:
    """Who wrote some bytes last, and who read them since."""

    first: int
    last: int
    writer: int
    readers: list[int] = field(default_factory=list)


def waits(
    launches: Sequence[Sequence[Access]], few: int = LAUNCHES.direct
) -> list[tuple[int, ...]]:
    """For each launch those before it that it waits for; not those that
    one of them waits for itself. Of `few` those are left out alone for which another waits directly.

    >>> a, b = Access("arena", 0, 64, True), Access("arena", 64, 128, True)
    >>> read = [Access(x.base, x.first, x.last, False) for x in (a, b)]
    >>> waits([[a], [b], [read[0]], read, [a]])
    [(), (), (0,), (0, 1), (2, 3)]
    """
    known: dict[str, list[Touched]] = {}
    found: list[tuple[int, ...]] = []
    before: list[int] = []  # of each launch those that it waits for, itself or by others, as bits
    for i, accesses in enumerate(launches):
        needs: set[int] = set()
        for each in accesses:
            for other in known.get(each.base, ()):
                if other.first < each.last and each.first < other.last:
                    needs.add(other.writer)
                    needs.update(other.readers if each.written else ())
        needs.discard(-1)
        found.append(tuple(sorted(latest(needs, found, before, few))))
        before.append(reduce(or_, (before[n] | 1 << n for n in found[i]), 0))
        for each in sorted(accesses, key=lambda a: a.written):  # who reads and writes has written
            note(known.setdefault(each.base, []), each, i)
    return found


def latest(
    needs: set[int], found: Sequence[Sequence[int]], before: Sequence[int], few: int
) -> set[int]:
    """Those of the launches that none of the others waits for; where they are few, not directly."""
    if len(needs) <= few:
        return {n for n in needs if not any(n in found[m] for m in needs)}
    passed = reduce(or_, (before[n] for n in needs))
    return {n for n in needs if not passed >> n & 1}


def note(known: list[Touched], access: Access, i: int) -> None:
    """Remembers an access. What is written whole is forgotten."""
    if access.written:
        known[:] = [t for t in known if not (access.first <= t.first and t.last <= access.last)]
        known.append(Touched(access.first, access.last, i))
        return
    same = next((t for t in known if (t.first, t.last) == (access.first, access.last)), None)
    if same is None:
        known.append(Touched(access.first, access.last, -1, [i]))
    elif same.readers[-1:] != [i]:
        same.readers.append(i)
