"""The choice of a kernel: candidates of families, refusals, and the reason why one is taken.

A pin decides first, then what was measured, then the least predicted time. Where a family has no
prediction, the order of the catalog does, and within a family that of its variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.errors import NoRuleError
from ge2.base.record import holding, record
from ge2.choice import (
    Family,
    Measured,
    Name,
    Pin,
    Prefs,
    Problem,
    Variant,
    is_measured,
    is_near,
    names_near,
    note,
)
from ge2.ir import Op, lines_of

if TYPE_CHECKING:
    from ge2.choice.record import Entry, ProblemClass

Catalog = tuple[Family[Any, Any], ...]
# kernels of ge2 that a user edited and pinned: by problem, what makes a family of each
SAVED: dict[str, Callable[[Catalog], Family[Any, Any]]] = {}
NONE = Prefs()
BY: Final = {  # what may have decided a choice, in words
    "pinned": ", as pinned", "measured": ", by measurement", "predicted": ", by prediction", "order": "",
    "memory": ", for want of memory", "built": ", as built for its like",
}  # fmt: skip


@final
@record
class Candidate:
    """A family and one of its variants, or why it has none; seconds of a call as they are
    `predicted`, and as they were `measured`. `other`: its family serves other operations.
    """

    family: Family[Any, Any]
    variant: Variant = Variant()
    predicted: float | None = None
    refusal: str = ""
    measured: Measured | None = None
    other: bool = False

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.family.name, self.variant.name)))

    @property
    def name(self) -> tuple[str, str]:
        """The names of its family and of its variant."""
        return self.family.name, self.variant.name

    @property
    def seconds(self) -> float | None:
        """The seconds of a call: as measured, or else as predicted."""
        if self.measured is not None and self.measured.believed:
            return self.measured.median
        return self.predicted

    def is_pinned(self, pin: Pin) -> bool:
        return pin.family == self.family.name and pin.variant in ("", self.variant.name)

    def is_of(self, row: Measured | None) -> bool:
        """True if a row is a measurement of it."""
        return row is not None and (row.family, row.variant) == self.name

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
    "pinned", "measured", "predicted" or "order"; "memory" where there was none for a better one,
    "built" where a program before has it and predictions are nearly equal.
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
        found = self.offered()
        known = {(c.title, c.refusal) for c in found}
        earlier = (c for c in self.refused if (c.title, c.refusal) not in known)
        return (self.of_taken(found), *self.others, *earlier, *(c for c in found if c.refusal))

    @property
    def timed(self) -> Candidate:
        """The candidate that was taken, with its prediction even if that did not decide."""
        return self.of_taken(self.offered((self.family,)))

    def of_taken(self, offered: list[Candidate]) -> Candidate:
        same = (c for c in offered if c.title == self.taken.title and not c.refusal)
        return next(same, self.taken)

    @property
    def others(self) -> tuple[Candidate, ...]:
        """The candidates that could have been taken as well, the likeliest first."""
        rest = [c for c in self.offered() if not c.refusal and c.title != self.taken.title]
        timed = all(c.measured is not None and c.measured.believed for c in rest)
        if timed or self.by in ("predicted", "built"):
            rest.sort(key=lambda c: c.seconds or 0.0)
        return tuple(rest)

    @property
    def fallbacks(self) -> tuple[Candidate, ...]:
        """The candidates that serve if the one that was taken turns out not to; where none of the
        families that are preferred is left, those of the others.
        """
        return self.others or replace(self, prefs=replace(self.prefs, only=())).others

    @property
    def earlier(self) -> tuple[Candidate, ...]:
        """The refusals before it. Nobody asks for them where the winner of a race is taken at once."""
        if self.refused or self.by != "measured":
            return self.refused
        taken = self.taken.title
        before = takewhile(lambda c: c.refusal or c.title != taken, self.offered())
        return tuple(c for c in before if c.refusal)

    def offered(self, families: Catalog | None = None) -> list[Candidate]:
        """The candidates of all families, or of some, or why they have none; with what was measured."""
        if self.caps is None:
            return []
        given = self.problem, self.caps, self.prefs
        found = candidates(*given, self.catalog if families is None else families)
        known = recorded(*given, self.catalog)
        return [c if known is None else known.told(c) for c in found]

    def kernels(self) -> Any:
        """The kernels of the candidate that was taken."""
        variant = self.taken.variant
        return self.family.kernels(self.problem, variant, variant.caps or self.caps)

    def __repr__(self) -> str:
        return f"<{self.taken}{BY[self.by]}>"

    def __str__(self) -> str:
        """Families that serve other operations are counted; `in_words(every=True)` names them."""
        return self.in_words()

    def in_words(self, every: bool = False) -> str:
        """The refusals before it, what was taken, and what could have been, a line each; refusals
        of `every` family, or without those that serve other operations.
        """
        earlier = self.earlier
        hidden = 0 if every else sum(c.other for c in earlier)
        lines = [str(c) for c in earlier if every or not c.other]
        if hidden:
            count = "1 family serves" if hidden == 1 else f"{hidden} families serve"
            lines.insert(0, f"{count} other operations")
        lines.append(f"{self.taken}{BY[self.by]}")
        others = self.others
        if self.by not in ("predicted", "built"):  # nobody asked for them
            others = tuple(replace(other, predicted=None) for other in others)
        return "\n".join([*lines, *(f"or {other}" for other in others)])


def saved(problem: Problem, catalog: Catalog) -> Catalog:
    """The families of kernels that a user pinned for a problem; they come before all others."""
    if not SAVED or not problem.settled:
        return ()
    from ge2.choice.saved import key_of  # hardly ever needed

    make = SAVED.get(key_of(problem))
    return () if make is None else (make(catalog),)


def candidates(
    problem: Problem,
    caps: Any,
    prefs: Prefs,
    catalog: Catalog,
    every: bool = True,
    had: bool = False,
) -> Iterator[Candidate]:
    """The candidates of each family of the target, or the reason why it has none, in the order of
    the catalog; with predictions of `every` family, or of those alone where they decide: as times
    were found to be longer, where some were measured. `had`: a program before was built with them.
    """
    for family in catalog:
        if family.target in ("", problem.target):
            yield from candidates_of(family, problem, caps, prefs, every, had)


def candidates_of(
    family: Family[Any, Any], problem: Problem, caps: Any, prefs: Prefs, every: bool, had: bool = False
) -> Iterator[Candidate]:  # fmt: skip
    """The candidates of one family, whose doubts a preference ends; or one with its refusal."""
    if not family.serves(problem.op):  # as most families
        yield Candidate(family, refusal=family.unserved(problem.op), other=True)
        return
    refusal = prefs.refuses(family.name) or family.refuses(problem, caps)
    wanted = had or family.name in prefs.only or any(p.family == family.name for p in prefs.pins)
    refusal = refusal or ("" if wanted else family.hesitates(problem, caps))
    if refusal:
        yield Candidate(family, refusal=refusal)
    elif caps is None:
        yield Candidate(family)
    else:
        predicts = every or family.is_ranked(problem, caps)
        for variant in family.variants(problem, caps):
            refusal = prefs.refuses_variant(variant) or failure(problem, family, variant)
            told = predicts and not refusal
            seconds = family.seconds(problem, variant, caps) if told else None
            if seconds is not None and prefs.tune != "off":
                seconds *= longer(caps, family)
            yield Candidate(family, variant, seconds, refusal)


def longer(caps: Any, family: Family[Any, Any]) -> float:
    """The factor by which kernels of a family took longer than predicted, where any was measured."""
    kind = measured_kind(caps)
    if not kind:
        return 1.0
    from ge2.choice.record import factor  # nobody pays for it who has measured nothing

    return factor(kind, family.name, family.kin)


# what turned out not to serve in this process, by problem, family and variant: the reason
_failed: dict[tuple[Problem, str, str], str] = {}


def fail(choice: Choice, reason: str) -> None:
    """Has the next candidate taken for a problem from now on."""
    family, variant = choice.family, choice.taken.variant
    _failed[choice.problem, family.name, variant.name] = reason
    decide_anew()


def failure(problem: Problem, family: Family[Any, Any], variant: Variant) -> str:
    """The reason why a variant does not serve a problem, as this process has found out; "" if it
    may.
    """
    return _failed.get((problem, family.name, variant.name), "") if _failed else ""


Made = dict[Problem, list[tuple[Any, str, str]]]  # limits, the candidate's title, what decided
_made: ContextVar[Made | None] = ContextVar("ge2_choices", default=None)


def made_once(made: Made) -> AbstractContextManager[Made]:
    """Inside, what was chosen for a problem stays chosen: a program that is built does not change
    its choices when its text is written again, whatever was measured since.
    """
    return holding(_made, made)


def instead(made: Made, choice: Choice, other: Candidate) -> None:
    """Has a program take another candidate, which needs less memory, when it is written again."""
    before = [e for e in made.get(choice.problem, ()) if e[:2] != (choice.caps, choice.taken.title)]
    made[choice.problem] = [(choice.caps, other.title, "memory"), *before]


def choose(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice:
    """The candidate to take for a problem. NoRuleError if every family refuses it."""
    made = _made.get()
    if made is None or caps is None or not problem.settled:
        return chosen(problem, caps, prefs, catalog)
    earlier = made.setdefault(problem, [])
    for known, title, by in earlier:
        if known == caps and (found := again(problem, caps, prefs, catalog, title, by)) is not None:
            return found
    found = chosen(problem, caps, prefs, catalog)
    earlier.append((caps, found.taken.title, found.by))
    return found


def written(choice: Choice, kept_for: object = None) -> tuple[Choice, Any]:
    """The kernels of what was taken, and the choice: another one if that was measured when its
    kernels had another text. A row of the record is believed only for what it was measured of.

    `kept_for`: what a pass chose, which stays in this program and is chosen otherwise in the next.
    """
    kernels = choice.kernels()
    row = choice.taken.measured
    if choice.by != "measured" or row is None or row.code in ("", choice.family.code):
        return choice, kernels
    from ge2.choice import record as kept

    if kept.code_of(kernels) == row.code:
        return choice, kernels
    problem, title = choice.problem, choice.taken.title
    if isinstance(kept_for, Choice):
        problem = kept_for.problem
    kept.note_stale(choice.caps.kind, kept.class_of(problem), row)
    _stale.setdefault(problem, set()).add((row.family, row.variant))
    decide_anew()
    if isinstance(kept_for, Choice):
        return choice, kernels
    made = _made.get()
    if made is not None and problem in made:
        made[problem] = [each for each in made[problem] if each[:2] != (choice.caps, title)]
    return written(choose(problem, choice.caps, choice.prefs, choice.catalog))


# what was measured of kernels that turned out to have another text: by problem, family and variant
_stale: dict[Problem, set[tuple[str, str]]] = {}


def again(
    problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog, title: str, by: str
) -> Choice | None:
    """The candidate of a title, its plan worked out anew: that of an earlier text is used up."""
    refused: list[Candidate] = []
    known = recorded(problem, caps, prefs, catalog)
    for offered in candidates(problem, caps, prefs, catalog, every=False, had=True):
        candidate = offered if known is None else known.told(offered)
        if offered.title == title and offered.refusal:
            return None  # it failed since
        if offered.title == title:
            taken = replace(candidate, refusal="")
            return Choice(problem, taken, tuple(refused), caps, catalog, prefs, by)
        if candidate.refusal:
            refused.append(candidate)
    return None


def chosen(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice:
    """The candidate to take, now."""
    before = won_before(problem, caps, prefs, catalog)
    if before is not None:
        return before
    pins = [*pinned(problem, prefs)] if prefs.pins else []
    known = None if pins else recorded(problem, caps, prefs, catalog)
    if known is not None and (won := winner(known, problem, caps, prefs, catalog)) is not None:
        known.took(won)
        found = Choice(problem, won, (), caps, catalog, prefs, "measured")
        known.keep(found)
        return found
    refused: list[Candidate] = []
    possible: list[Candidate] = []
    for offered in candidates(problem, caps, prefs, catalog, every=False):
        candidate = offered if known is None else known.told(offered)
        if candidate.refusal:
            if not possible:
                refused.append(candidate)
            continue
        possible.append(candidate)
        if any(map(candidate.is_pinned, pins)):
            return Choice(problem, candidate, tuple(refused), caps, catalog, prefs, "pinned")
        if candidate.predicted is None and not pins and known is None:
            break  # the order decides, and nobody has to ask further
    if not possible:
        return without_any(refused, known, problem, caps, prefs, catalog)
    taken, by = decided(possible, known)
    if known is not None and by == "measured":
        known.took(taken)
    elif not pins:
        taken, by = of_built(taken, by, problem, caps, prefs, catalog)
    return Choice(problem, taken, tuple(refused), caps, catalog, prefs, by)


def without_any(
    refused: list[Candidate], known: Known | None, problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog
) -> Choice:  # fmt: skip
    """The choice where all candidates are refused: without preferences, or without what is measured."""
    if prefs.only:  # none of those serves it, and something has to
        return chosen(problem, caps, replace(prefs, only=()), catalog)
    if known is not None:  # all failed when they were measured
        return chosen(problem, caps, replace(prefs, tune="off"), catalog)
    where = [(c.family.name, c.refusal) for c in refused]
    raise NoRuleError(f"no kernel for {problem.op} on {problem.target}", where=where)


def winner(
    known: Known, problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog
) -> Candidate | None:
    """The candidate that has won the race for a problem, if it serves: nobody else is asked."""
    name = known.winner[0] if known.winner is not None else ""
    for family in catalog if name else ():
        if family.name == name and family.target in ("", problem.target):
            offered = candidates_of(family, problem, caps, prefs, every=False)
            found = next((c for c in map(known.told, offered) if known.is_won_by(c)), None)
            return found if found is not None and not found.refusal else None
    return None


def won_before(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice | None:
    """Returns what this process found to have won the race for an equal problem; None if it has to
    look.
    """
    if prefs.pins or prefs.tune == "off" or not problem.settled:
        return None
    if not (kind := measured_kind(caps)):
        return None
    from ge2.choice import record as kept  # nobody pays for it who has measured nothing

    found: Choice | None = kept.snapshot(kind).won.get(problem)
    if found is None or found.catalog is not catalog or (found.prefs, found.caps) != (prefs, caps):
        return None
    op, own = problem.op, found.problem.op
    if callable(found.taken.variant.plan) and op is not own and lines_in(op) != lines_in(own):
        return None  # the comments of its kernels name lines
    return Choice(problem, found.taken, (), caps, catalog, prefs, "measured")


def lines_in(op: Op) -> list[tuple[object, ...]]:
    return [lines_of(eqn) for graph in op.graphs() for eqn in graph.eqns]


def decide_anew() -> None:
    """Has the record asked again for every problem: something does not serve that had won."""
    from ge2.choice import record as kept  # hardly ever needed

    kept.forget_winners()


def decided(possible: list[Candidate], known: Known | None) -> tuple[Candidate, str]:
    """The candidate that is taken, and by what. One without a prediction comes after those before
    it in the catalog, among which predictions decide all the same.
    """
    if known is not None and (best := known.best(possible)) is not None:
        return best, "measured"
    ranked = [*takewhile(lambda c: c.predicted is not None, possible)]
    if len(ranked) > 1:
        return min(ranked, key=lambda c: c.predicted or 0.0), "predicted"
    return possible[0], "order"


def of_built(
    best: Candidate, by: str, problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog
) -> tuple[Candidate, str]:
    """The candidate that no measurement has decided for, or one that is predicted to be nearly as
    good and was built before, and by what it is taken.
    """
    names = names_near(problem, caps) if prefs.tune != "off" else set[Name]()
    if names and best.name not in names:
        near = built_before(names, problem, caps, prefs, catalog)
        least = best.predicted
        if least is None and near is not None:
            least = next((c.predicted for c in alike(best, problem, caps, prefs)), None)
        if near is not None and least and is_near(near.predicted or 0.0, least):
            best, by = near, "built"
    if not (prefs.off or prefs.only or prefs.without):  # what is wanted once is no precedent
        note(problem, caps, best.name)
    return best, by


def built_before(
    names: Set[Name], problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog
) -> Candidate | None:
    """The candidate of the least prediction among some."""
    families = {family for family, _ in names}
    some = tuple(family for family in catalog if family.name in families)
    found = [c for c in candidates(problem, caps, prefs, some, had=True) if c.name in names]
    timed = [c for c in found if not c.refusal and c.predicted is not None]
    return min(timed, key=lambda c: c.predicted or 0.0, default=None)


def alike(best: Candidate, problem: Problem, caps: Any, prefs: Prefs) -> Iterator[Candidate]:
    """A candidate with its prediction, which did not decide."""
    found = candidates_of(best.family, problem, caps, prefs, every=True)
    return (c for c in found if c.name == best.name)


def pinned(problem: Problem, prefs: Prefs) -> Iterator[Pin]:
    """The pins that are for a problem."""
    from ge2.choice.record import class_of  # hardly ever needed

    for pin in prefs.pins:
        if not pin.problem or (problem.settled and pin.problem == class_of(problem).key):
            yield pin


# --------------------------------------------------------------------------------- what is measured


def measured_kind(caps: Any) -> str:
    """The kind of device, if anything was measured on it; else ""."""
    kind = "" if caps is None else str(caps.kind)
    return kind if kind and is_measured(kind) else ""


def recorded(problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Known | None:
    """The record's entry of a problem whose layouts are settled; None if it has none."""
    if prefs.tune == "off" or not problem.settled or not (kind := measured_kind(caps)):
        return None
    from ge2.choice import record as kept  # nobody pays for it who has measured nothing

    problem_class = kept.class_of(problem)
    entry, winner = kept.find(kind, problem_class, catalog)
    if entry is None:
        winner = kept.neighbour(kind, problem_class)
        return winner and Known(kind, problem_class, None, winner)
    if others := _stale.get(problem):
        entry = entry.told(lambda row: (row.family, row.variant) in others)
        winner = entry.winner
    return Known(kind, problem_class, entry, winner)


@final
@record
class Known:
    """Measurements of a problem: the entry of its class, and the family and the variant that won,
    or that this program has for a neighbouring class.
    """

    kind: str
    problem: ProblemClass
    entry: Entry | None
    winner: tuple[str, str] | None

    def told(self, candidate: Candidate) -> Candidate:
        """A candidate with its measurement; what failed then is refused."""
        if self.entry is None or candidate.refusal:
            return candidate
        row = self.entry.row(candidate.family.name, candidate.variant.name)
        if row is None:
            return candidate
        failure = "" if row.stale else row.failure
        family, variant, predicted = candidate.family, candidate.variant, candidate.predicted
        return Candidate(family, variant, predicted, failure, row)

    def is_won_by(self, candidate: Candidate) -> bool:
        """True if nobody has to ask further."""
        return self.winner == candidate.name

    def best(self, possible: list[Candidate]) -> Candidate | None:
        """The candidate that measurements decide for, if they do: all were measured, or raced. The
        winner of a race is not among them, or it would have been taken before.
        """
        if self.entry is None:
            return None
        rows = [c for c in possible if c.measured is not None and c.measured.believed]
        left = [c for c in possible if c.measured is None or c.measured.stale]
        best = next((c for c in rows if c.is_of(self.entry.best)), None)
        found = best or min(rows, key=lambda c: c.seconds or 0.0, default=None)
        return found if not left or self.winner is not None else None

    def keep(self, choice: Choice) -> None:
        """Keeps what has won for equal problems, unless its plan writes other kernels each time."""
        plan = choice.taken.variant.plan
        if self.entry is not None and (not callable(plan) or hasattr(plan, "cache_info")):
            from ge2.choice import record as kept

            kept.keep_winner(self.kind, choice.problem, choice)

    def took(self, candidate: Candidate) -> None:
        from ge2.choice import record as kept

        kept.remember(self.kind, self.problem, candidate.family.name, candidate.variant.name)


def settled(kept: object, problem: Problem, caps: Any, prefs: Prefs, catalog: Catalog) -> Choice:
    """The choice for a problem whose layouts are known by now.

    `kept`: what a pass chose for its equation before. If that is a family of the catalog it stays,
    unless it refuses what is known now; else the equation was part of a larger problem, whose
    refusals come first.
    """
    mine = saved(problem, catalog)
    if isinstance(kept, Choice) and kept.caps == caps and kept.problem == problem:
        return kept  # the candidate of a race
    if mine:
        first = replace(prefs, pins=(*(Pin(family.name) for family in mine), *prefs.pins))
        return choose(problem, caps, first, (*mine, *catalog))
    if not isinstance(kept, Choice):
        return choose(problem, caps, prefs, catalog)
    offered = kept.family.name in {family.name for family in catalog}
    if offered and not kept.family.refusal(problem, caps):
        return replace(kept, problem=problem, caps=caps)
    found = choose(problem, caps, prefs, catalog)
    earlier = () if offered else kept.refused
    return replace(found, refused=(*earlier, *found.refused))
