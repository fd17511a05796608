"""What a run was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Options:
    """`quick`: small sizes, few rounds.

    `only`: the names of workloads and of their parts; none means all.
    """

    quick: bool = False
    rounds: int = 0
    only: frozenset[str] = frozenset()

    def wants(self, workload: str, part: str = "") -> bool:
        return not self.only or workload in self.only or part in self.only

    def rounds_or(self, usual: int) -> int:
        return self.rounds or (3 if self.quick else usual)


USUAL = Options()
