"""The choice of a kernel: candidates of families, and what speaks for the one that is taken.

A pin decides first, then what was measured, then what is predicted for all candidates: the least
time. Where a family has no prediction, the order of the catalog does, and within a family that of
its variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, final

from ge2.base.errors import NoRuleError
from ge2.base.record import record
from ge2.choice.measured import Measured
from ge2.choice.problem import Family, Pin, Prefs, Problem, Variant

Catalog = tuple[Family[Any, Any], ...]
NONE = Prefs()
BY: Final = {  # what may have decided a choice, in words
    "pinned": ", as pinned", "measured": ", by measurement", "predicted": ", by prediction", "order": "",
}  # fmt: skip


@final
@record
class Candidate:
    """A family and one of its variants, or why it has none; seconds of a call as they are
    `predicted`, and as they were `measured`.
    """

    family: Family[Any, Any]
    variant: Variant = Variant()
    predicted: float | None = None
    refusal: str = ""
    measured: Measured | None = None

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.family.name, self.variant.name)))

    @property
    def seconds(self) -> float | None:
        """What a call takes: as measured, or else as predicted."""
        if self.measured is not None and self.measured.believed:
            return self.measured.median
        return self.predicted

    def is_pinned(self, pin: Pin) -> bool:
        return pin.family == self.family.name and pin.variant in ("", self.variant.name)

    def __str__(self) -> str:
        if self.refusal:
            return f"not {self.title}: {self.refusal}"
        predicted = f"predicted {self.predicted * 1e6:.3g} us" if self.predicted is not None else ""
        measured = str(self.measured) if self.measured is not None else ""
        return ", ".join(filter(None, (self.title, measured, predicted)))


@final
@record
class Choice:
    """The candidate that was taken for a problem, the refusals before it, and what decided: `by` is
    "pinned", "measured", "predicted" or "order".
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
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them: the one that was taken, those that could have been as well, the likeliest
        first, and those that are refused.
        """
        if self.caps is None:
            return (self.taken, *self.refused)
        found = [*candidates(self.problem, self.caps, self.prefs, self.catalog)]
        known = {(c.title, c.refusal) for c in found}
        earlier = (c for c in self.refused if (c.title, c.refusal) not in known)
        return (self.taken, *self.others, *earlier, *(c for c in found if c.refusal))

    @property
    def others(self) -> tuple[Candidate, ...]:
        """The candidates that could have been taken as well, the likeliest first."""
        if self.caps is None:
            return ()
        found = candidates(self.problem, self.caps, self.prefs, self.catalog)
        rest = [c for c in found if not c.refusal and c.title != self.taken.title]
        if all(c.seconds is not None for c in rest):
            rest.sort(key=lambda c: c.seconds or 0.0)
        return tuple(rest)

    def kernels(self) -> Any:
        """The kernels of the candidate that was taken."""
        return self.family.kernels(self.problem, self.taken.variant, self.caps)

    def __str__(self) -> str:
        lines = [*map(str, self.refused), f"{self.taken}{BY[self.by]}"]
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
                refusal = prefs.refuses_variant(variant)
                seconds = None if refusal else family.seconds(problem, variant, caps)
                yield Candidate(family, variant, seconds, refusal)


def choose(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice:
    """The candidate to take for a problem. NoRuleError if every family refuses it."""
    refused: list[Candidate] = []
    possible: list[Candidate] = []
    pinned = None
    for candidate in candidates(problem, caps, prefs, catalog):
        if candidate.refusal:
            if not possible:
                refused.append(candidate)
            continue
        possible.append(candidate)
        if prefs.pins and any(map(candidate.is_pinned, prefs.pins)):
            pinned = candidate
            break
        if candidate.predicted is None and not prefs.pins:
            break  # the order decides, and nobody has to ask further
    if not possible and prefs.only:  # none of those serves it, and something has to
        return choose(problem, caps, replace(prefs, only=()), catalog)
    if not possible:
        where = [(c.family.name, c.refusal) for c in refused]
        raise NoRuleError(f"no kernel for {problem.op} on {problem.target}", where=where)
    predicted = all(c.predicted is not None for c in possible)
    taken = min(possible, key=lambda c: c.predicted or 0.0) if predicted else possible[0]
    by = "predicted" if predicted and len(possible) > 1 else "order"
    if pinned is not None:
        taken, by = pinned, "pinned"
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
