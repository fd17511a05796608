"""The choice of a kernel: candidates of families, and what speaks for the one that is taken.

What is predicted for all candidates decides by the least time; where a family has no prediction,
the order of the catalog does, and within a family that of its variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from ge2.base.errors import NoRuleError
from ge2.base.record import record
from ge2.choice.problem import Family, Prefs, Problem, Variant

Catalog = tuple[Family[Any, Any], ...]
NONE = Prefs()


@final
@record
class Candidate:
    """A family and one of its variants, or why it has none; `seconds` as predicted."""

    family: Family[Any, Any]
    variant: Variant = Variant()
    seconds: float | None = None
    refusal: str = ""

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.family.name, self.variant.name)))

    def __str__(self) -> str:
        if self.refusal:
            return f"not {self.title}: {self.refusal}"
        return self.title + (
            f", predicted {self.seconds * 1e6:.3g} us" if self.seconds is not None else ""
        )


@final
@record
class Choice:
    """The candidate that was taken for a problem, the refusals before it, and
    `by` what it was decided.
    """

    problem: Problem
    taken: Candidate
    refused: tuple[Candidate, ...]
    caps: Any = None
    catalog: Catalog = ()
    prefs: Prefs = NONE
    by: str = "order"

    @property
    def family(self) -> Family[Any, Any]:
        return self.taken.family

    @property
    def others(self) -> tuple[Candidate, ...]:
        """The candidates that could have been taken as well."""
        if self.caps is None:
            return ()
        found = candidates(self.problem, self.caps, self.prefs, self.catalog)
        return tuple(c for c in found if not c.refusal and c.title != self.taken.title)

    def kernels(self) -> Any:
        """The kernels of the candidate that was taken."""
        return self.family.kernels(self.problem, self.taken.variant, self.caps)

    def __str__(self) -> str:
        taken = str(self.taken) if self.by == "order" else f"{self.taken}, by {self.by}"
        lines = [*map(str, self.refused), taken]
        return "\n".join([*lines, *(f"or {other}" for other in self.others)])


def candidates(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Iterator[Candidate]:
    """What each family of the target offers, or why it offers nothing, in the
    order of the catalog.
    """
    for family in catalog:
        if family.target not in ("", problem.target):
            continue
        refusal = prefs.refuses(family.name) or family.refuses(problem, caps)
        if refusal:
            yield Candidate(family, refusal=refusal)
        elif caps is None:
            yield Candidate(family)
        else:
            for variant in family.variants(problem, caps):
                seconds = None if variant.refusal else family.seconds(problem, variant, caps)
                yield Candidate(family, variant, seconds, variant.refusal)


def choose(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice:
    """The candidate to take for a problem. NoRuleError if every family refuses it."""
    refused: list[Candidate] = []
    possible: list[Candidate] = []
    for candidate in candidates(problem, caps, prefs, catalog):
        if candidate.refusal:
            if not possible:
                refused.append(candidate)
            continue
        possible.append(candidate)
        if candidate.seconds is None:  # so the order decides, and nobody has to ask further
            break
    if not possible:
        where = [(c.family.name, c.refusal) for c in refused]
        raise NoRuleError(f"no kernel for {problem.op} on {problem.target}", where=where)
    predicted = all(c.seconds is not None for c in possible)
    taken = min(possible, key=lambda c: c.seconds or 0.0) if predicted else possible[0]
    by = "prediction" if predicted and len(possible) > 1 else "order"
    return Choice(problem, taken, tuple(refused), caps, catalog, prefs, by)


def settled(kept: object, problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice:
    """The choice for a problem whose layouts are known by now.

    `kept`: what a pass chose for its equation before. If that is a family of the catalog it stays;
    else the equation was part of a larger problem, whose refusals come first.
    """
    if not isinstance(kept, Choice):
        return choose(problem, caps, prefs, catalog)
    if kept.family.name in {family.name for family in catalog}:
        return replace(kept, problem=problem, caps=caps)
    found = choose(problem, caps, prefs, catalog)
    return replace(found, refused=(*kept.refused, *found.refused))
