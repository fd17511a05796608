"""The choice of a kernel: the first family that serves a problem, with the refusals of those before it."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from ge2.base.errors import NoRuleError
from ge2.base.record import record
from ge2.choice.family import Family, Launch, Problem


@final
@record
class Choice:
    """The kernel, and why the families before it do not serve."""

    family: Family
    refused: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "\n".join([*(f"not {name}: {why}" for name, why in self.refused), f"{self.family.name}"])


def select(problem: Problem, catalog: tuple[Family, ...]) -> Choice:
    """The first family of the catalog that serves the problem."""
    refused: list[tuple[str, str]] = []
    for family in catalog:
        if family.target not in ("", problem.target):
            continue
        why = family.refuses(problem)
        if not why:
            return Choice(family, tuple(refused))
        refused.append((family.name, why))
    raise NoRuleError(f"no kernel for {problem.op} on {problem.target}", where=refused)


@lru_cache(maxsize=256)
def launch(problem: Problem, catalog: tuple[Family, ...]) -> Launch:
    """The chosen kernel, written once for equal problems."""
    return select(problem, catalog).family.launch(problem)
