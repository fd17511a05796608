"""Variants that this process has built, so that a new batch size compiles nothing.

Predictions of two variants are often closer to each other than either is to the truth, and which is
less changes with each extent. So a problem takes the variant that an earlier program was built with
for a problem of its class or of a neighbouring one, unless what its prediction loses is worth the time
to compile another kernel.
Choices within one program do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ge2.choice.problem import Problem

if TYPE_CHECKING:
    from ge2.choice.record import ProblemClass

NEAR: Final = 1.15  # times the least prediction: those of products are off by as much
# seconds of a call that compiling is not worth: 0.2 s of a kernel, over as many calls as a network of
# ten layers has in a thousand steps; but for a kernel that would take more than FAR times the least
LOST: Final = 0.2 / 1e4
FAR: Final = 2.0
KEPT: Final = 64  # classes of one form that are kept

Name = tuple[str, str]  # of a family, and of its variant
Decisions = list[tuple[Problem, Any, Name]]  # a problem, the limits of what runs it, what was taken

_now: ContextVar[Decisions | None] = ContextVar("ge2_decisions", default=None)
_new: Decisions = []  # of programs that were built, whose classes nobody has asked for
_built: dict[tuple[str, str], dict[ProblemClass, set[Name]]] = {}


@contextmanager
def deciding(found: Decisions | None) -> Iterator[None]:
    """Inside, what no measurement decides is added to `found`, if that is a list."""
    token = _now.set(found)
    try:
        yield
    finally:
        _now.reset(token)


def note(problem: Problem, caps: Any, name: Name) -> None:
    """Notes what was decided, for the program that is being made, if one is."""
    found = _now.get()
    if found is not None and caps is not None and problem.settled:
        found.append((problem, caps, name))


def keep(found: Decisions) -> None:
    """Keeps the decisions of a program that was built, for those after it."""
    _new.extend(found)
    found.clear()


def forget() -> None:
    """Forgets what was built."""
    _new.clear()
    _built.clear()


def is_near(seconds: float, least: float) -> bool:
    """True if a kernel that takes so long by prediction is not worth compiling another one.

    >>> is_near(11e-5, 10e-5), is_near(3e-5, 2e-5), is_near(5e-6, 2e-6)
    (True, True, False)
    """
    return seconds <= NEAR * least or (seconds <= FAR * least and seconds - least <= LOST)


def names_near(problem: Problem, caps: Any) -> set[Name]:
    """Returns the families and variants that were built for problems like this one."""
    if not (_new or _built) or caps is None or not problem.settled:
        return set()
    from ge2.choice.record import class_of  # nobody pays for it in the first program

    while _new:
        other, its, name = _new.pop()
        found = class_of(other)
        kept = _built.setdefault((str(its.kind), found.form), {})
        if found in kept or len(kept) < KEPT:
            kept.setdefault(found, set()).add(name)
    own = class_of(problem)
    kept = _built.get((str(caps.kind), own.form), {})
    return {name for other, names in kept.items() if other.is_near(own) for name in names}
