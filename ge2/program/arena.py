"""The arena of a program while its text is written: what is in it, and then where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ge2.base.memory import Lifetime, Plan, Room
from ge2.program.program import Buffer


@final
class Arena:
    """Arrays by their names, with their lifetimes; `plan` has their offsets once all are known."""

    __slots__ = ("needs", "plan")

    def __init__(self) -> None:
        self.needs: dict[str, Lifetime] = {}
        self.plan: Plan | None = None

    def claim(self, buffers: Iterable[Buffer]) -> list[str]:
        """Claims room for arrays of a program; their names."""
        found = [b for b in buffers if b.storage == "arena"]
        self.needs |= {b.name: Lifetime(b.type.nbytes, b.first, b.last) for b in found}
        return [b.name for b in found]

    @property
    def nbytes(self) -> int:
        return 0 if self.plan is None else self.plan.nbytes

    def offsets(self) -> dict[str, int]:
        """The offset of each array, by its name."""
        assert self.plan is not None
        return dict(zip(self.needs, self.plan.offsets, strict=True))

    def rooms(self) -> list[Room]:
        """The arrays with their lifetimes and offsets."""
        offsets = self.offsets()
        return [Room(name, life, offsets[name]) for name, life in self.needs.items()]
