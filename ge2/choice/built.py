"""Speeds of devices, and the variants of kernels that this process has built."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.cache import content_key
from ge2.base.config import config
from ge2.base.record import holding, record
from ge2.choice.problem import Problem, Speed, is_measured, recorded_keys

if TYPE_CHECKING:
    from ge2.choice.record import ProblemClass

_known: dict[tuple[str | None, str], Speed] = {}


def speed_key(kind: str) -> str:
    return content_key("speed", kind)


def speed_of(kind: str, usual: Speed) -> Speed:
    """The probed speed of a kind of device, or else the usual one: that alone, if nothing measured
    is to decide.
    """
    if config.tune == "off":
        return usual
    place = config.cache_dir, kind
    if place not in _known:
        _known[place] = probed(kind) or usual
    return _known[place]


def probed(kind: str) -> Speed | None:
    """The probed speed of a kind of device, here or as it ships; None if nothing was probed."""
    here = speed_key(kind) in recorded_keys()
    if not here and not is_measured(kind):
        return None
    import json

    from ge2.choice.record import shipped, store, told_in

    try:
        if here:
            return Speed(*json.loads(store().get(speed_key(kind)) or b""))
        return Speed(*told_in(shipped(kind).splitlines(), "speed"))
    except (ValueError, TypeError):
        return None


def keep_speed(kind: str, speed: Speed) -> None:
    import json

    from ge2.choice.record import forget, store

    about = {"kind": "measurements", "name": "speed", "device": kind}
    store().put(speed_key(kind), json.dumps(astuple(speed)).encode(), about)
    _known.clear()
    forget()


# -------- Variants that this process has built, so that a new batch size compiles nothing.
# Predictions of two variants are often closer to each other than either is to the truth, and which
# is less changes with each extent. So a problem takes the variant that an earlier program was built
# with for a problem of its class or of a neighbouring one, unless what its prediction loses is
# worth the time to compile another kernel. Choices within one program do not depend on each other.


@final
@record
class Reuse:
    """The choice of what is built over what is predicted to be quicker."""

    near: float = 1.15  # times the least prediction: those of products are off by as much
    # seconds of a call that compiling is not worth: 0.2 s of a kernel, over as many calls as a network
    # of ten layers has in a thousand steps; but for a kernel that would take more than `far` times the
    # least prediction
    lost: float = 0.2 / 1e4
    far: float = 2.0
    kept: int = 64  # classes of one form that are kept


REUSE: Final = Reuse()

Name = tuple[str, str]  # of a family, and of its variant
Decisions = list[tuple[Problem, Any, Name]]  # a problem, the limits of what runs it, what was taken

_now: ContextVar[Decisions | None] = ContextVar("ge2_decisions", default=None)
_new: Decisions = []  # of programs that were built, whose classes nobody has asked for
_built: dict[tuple[str, str], dict[ProblemClass, set[Name]]] = {}


def deciding(found: Decisions | None) -> AbstractContextManager[Decisions | None]:
    """Inside, what no measurement decides is added to `found`, if that is a list."""
    return holding(_now, found)


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
    t = config.tuned(REUSE)
    return seconds <= t.near * least or (seconds <= t.far * least and seconds - least <= t.lost)


def names_near(problem: Problem, caps: Any) -> set[Name]:
    """Returns the families and variants that were built for problems like this one."""
    if not (_new or _built) or caps is None or not problem.settled:
        return set()
    from ge2.choice.record import class_of  # nobody pays for it in the first program

    while _new:
        other, its, name = _new.pop()
        found = class_of(other)
        kept = _built.setdefault((str(its.kind), found.form), {})
        if found in kept or len(kept) < config.tuned(REUSE).kept:
            kept.setdefault(found, set()).add(name)
    own = class_of(problem)
    kept = _built.get((str(caps.kind), own.form), {})
    return {name for other, names in kept.items() if other.is_near(own) for name in names}
