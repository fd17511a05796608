"""Finds out whether a function drew random numbers while traced: every call would get the same."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, final

import numpy as np

from ge2.base.config import config
from ge2.base.errors import ImpureError
from ge2.base.optional_modules import loaded
from ge2.base.source import LIBRARIES, Source
from ge2.dispatch.closures.bytecode import ATTRIBUTES, reads_of, steps_of
from ge2.dispatch.closures.capture import random_types

FIX = "key = ge2.random.key(0) as an argument, and ge2.random.normal(key, shape), which is pure"
Generators = Sequence[Any]


def shared() -> list[Any]:
    """The generators behind `np.random.normal` and `random.random`, as far as
    anybody has asked for them.

    Another thread may be importing them at this moment, so that their
    modules are there without them.
    """
    pythons = [draw.__self__ for draw in loaded("random", "random")]
    return [*pythons, *loaded("numpy.random.mtrand", "_rand")]


def state(generator: Any) -> Any:
    if hasattr(generator, "getstate"):
        return None if is_stateless(generator) else generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _comparable(generator.get_state(legacy=False))
    return _comparable(generator.bit_generator.state)


def is_stateless(generator: Any) -> bool:
    return isinstance(generator, loaded("random", "SystemRandom"))


def _comparable(found: Any) -> Any:
    if isinstance(found, dict):
        return tuple((k, _comparable(v)) for k, v in sorted(found.items()))
    return found.tobytes() if isinstance(found, np.ndarray) else found


@final
class Purity:
    """The states of all generators that a function may draw from, before it is traced."""

    def __init__(self, generators: Generators, codes: Iterable[CodeType]) -> None:
        self.generators = [*generators, *shared()]
        self.before = [state(g) for g in self.generators]
        self.unseeded = frozenset(line for code in codes for line in reads_of(code).unseeded)

    def check(self, again: Callable[[], object]) -> None:
        """ImpureError if a state changed, and does so at a line of the user's
        when the work is done again.

        Another thread that draws at the same time is no reason: then
        the line must name a generator.
        """
        self.look_at_late_ones(again)
        if self.unchanged() and not self.unseeded:
            return
        place = Watcher(self.generators, self.unseeded).line_of(again)
        if place is not None:
            what = "the function drew random numbers while it was traced: every call would get the same ones"
            raise ImpureError(what, where=place, fix=FIX)

    def look_at_late_ones(self, again: Callable[[], object]) -> None:
        """Does the work again if generators were imported meanwhile, of which
        nobody knows how they began.
        """
        late = [g for g in shared() if not any(g is known for known in self.generators)]
        if late:
            self.generators += late
            self.before = [state(g) for g in self.generators]
            again()

    def unchanged(self) -> bool:
        return all(state(g) == s for g, s in zip(self.generators, self.before, strict=True))


@final
class Watcher:
    """Runs a function line by line, and tells after which line a generator had changed."""

    def __init__(self, generators: Generators, unseeded: frozenset[tuple[CodeType, int]]) -> None:
        self.generators, self.unseeded = generators, unseeded
        mine = threading.current_thread()
        self.alone = all(t is mine or t.name.startswith("ge2-") for t in threading.enumerate())
        self.last: tuple[FrameType, int] | None = None
        self.states: list[Any] = []
        self.found: Source | None = None

    def line_of(self, again: Callable[[], object]) -> Source | None:
        self.states = [state(g) for g in self.generators]
        outer = sys.gettrace()
        sys.settrace(self.enter)
        try:
            with config.using(check_leaks=False):  # the frames that are kept hold traced values
                again()
        finally:
            sys.settrace(outer)
        self.compare()
        return self.found

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.compare()
        if self.found is not None or is_library(frame):
            return None
        self.last = (frame, frame.f_lasti)
        return self.line

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.compare()
        if event == "line":
            self.last = (frame, frame.f_lasti)
            if (frame.f_code, frame.f_lineno) in self.unseeded and names_any(
                frame, frame.f_lasti, makes_generator
            ):
                self.found = Source(frame.f_code, frame.f_lasti)
        return self.line if self.found is None else None

    def compare(self) -> None:
        """Blames the line before, if a state changed since."""
        if self.found is not None:
            return
        now = [state(g) for g in self.generators]
        if now != self.states and self.last is not None:
            frame, lasti = self.last
            if self.alone or names_any(frame, lasti, draws):
                self.found = Source(frame.f_code, lasti)
        self.states = now


def is_library(frame: FrameType) -> bool:
    inside = frame.f_code.co_filename.startswith((*LIBRARIES, "<frozen"))
    return inside or frame.f_globals.get("__name__") == "random"


def names_any(frame: FrameType, lasti: int, wanted: Callable[[Any], bool]) -> bool:
    """Whether the line has a name for something of that kind."""
    return any(
        wanted(resolve(frame, chain))
        for chain in chains_of(frame.f_code, Source(frame.f_code, lasti).line)
    )


@functools.lru_cache(maxsize=256)
def chains_of(code: CodeType, line: int) -> tuple[tuple[str, ...], ...]:
    """The dotted names that a line of code reads."""
    chains: list[list[str]] = []
    grows, at = False, 0
    for i in steps_of(code):
        at = i.positions.lineno if i.positions and i.positions.lineno else at
        if i.opname in ATTRIBUTES:
            if grows:
                chains[-1].append(i.argval)
        else:
            grows = (
                at == line
                and i.opname.startswith("LOAD_")
                and i.opname != "LOAD_CONST"
                and isinstance(i.argval, str)
            )
            if grows:
                chains.append([i.argval])
    return tuple(map(tuple, chains))


def resolve(frame: FrameType, chain: Sequence[str]) -> Any:
    root = chain[0]
    value = frame.f_locals.get(root, frame.f_globals.get(root))
    for name in chain[1:]:
        value = attribute(value, name)
    return value


def attribute(value: Any, name: str) -> Any:
    """An attribute, or None if it cannot be had: a value of a trace that is
    over refuses to be used.
    """
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 whatever a property of the user's raises, a generator it is not
        return None


def draws(value: Any) -> bool:
    """Whether calling it draws from one of NumPy's generators."""
    return isinstance(getattr(value, "__self__", None), random_types())


def makes_generator(value: Any) -> bool:
    numpys = loaded("numpy.random", "default_rng", "RandomState")
    return any(value is each for each in (*numpys, *loaded("random", "Random", "SystemRandom")))
