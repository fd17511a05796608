"""Places along axes, as kernels compare them with those of a thread's elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from ge2.targets.cuda.emit.words import Places


@final
@dataclass
class Marks:
    """Names of places along axes. Along the lane a thread has `pack` neighbours, whose first is at a
    multiple of that, so one comparison does for many of them.
    """

    places: Places
    pack: int
    names: dict[int, dict[int, str]] = field(default_factory=dict)

    def name(self, n: int, axis: int = -1) -> str:
        """The name of a place along an axis, or along the lane: equal ones have one, so that what is
        asked of them is asked once.
        """
        a = axis if axis >= 0 else self.places.lane
        names = self.names.setdefault(a, {})
        name = names.setdefault(n, f"{self.places.letters[a]}_at{len(names)}")
        return self.places.size(name, n)

    def upwards(self, n: int) -> int:
        """The first multiple of a pack that is not less."""
        return -(-n // self.pack) * self.pack

    @property
    def end(self) -> int:
        """The place after the last pack."""
        return self.upwards(self.places.axes.sizes[self.places.lane])

    def below(self, end: int) -> str:
        """True of the elements whose place is before one; "" if all are."""
        return self.compared(end, "<", lambda n: n >= self.end)

    def at_least(self, begin: int) -> str:
        """True of the elements whose place is not before one; "" if none is."""
        return self.compared(begin, ">=", lambda n: n <= 0)

    def compared(self, n: int, sign: str, holds: Callable[[int], bool]) -> str:
        """How all elements of a pack compare, those before the n-th of a pack and those from it on."""
        packs, rest = divmod(n, self.pack)
        ends = (packs + 1) * self.pack, packs * self.pack
        before, after = (self.pack_test(end, sign, holds(end)) for end in ends)
        if not rest or before == after:
            return "" if after == "true" else after
        near, far = (before, after) if sign == "<" else (after, before)
        first = f"v {sign} {rest}"
        if near == "true":
            return first if far == "false" else f"({first} || {far})"
        return f"({first} && {near})" if far == "false" else f"({first} ? {near} : {far})"

    def pack_test(self, n: int, sign: str, holds: bool) -> str:
        fails = n <= 0 if sign == "<" else n >= self.end
        letter = self.places.letters[self.places.lane]
        return "true" if holds else "false" if fails else f"{letter} {sign} {self.name(n)}"
