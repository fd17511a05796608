"""The assembler of a program: what all targets share to write its Python text and to time it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, final

import numpy as np

from ge2.base.compile_times import Had
from ge2.base.record import mutable, record
from ge2.codegen.layout import Line
from ge2.ir import Atom, Eqn, Literal, Var
from ge2.passes.fold import compute
from ge2.program import Buffer, Cost, Program, Step, bytes_behind, cost
from ge2.program.records import Made
from ge2.program.timeline import Arena, Lifetime

# -------- A step of a program as an object: what it needs, and what it becomes in the text of a
# target.


A = TypeVar("A")  # the assembler of the target


class StepCode(Generic[A]):
    """The code of a step. It asks the assembler for names; the assembler adds it to the program
    when it is complete.

    `needs`: arrays of the arena for this step alone. `results`: for which the caller's arrays are
    made before. `lines`: Python. `made`: kernels, for people; `choice`: of what the step becomes.
    """

    def __init__(self, assembler: A, step: Step) -> None:
        self.assembler, self.step = assembler, step
        self.needs: dict[str, Lifetime] = {}
        self.results: tuple[Var, ...] = ()
        self.lines: list[Line] = []
        self.made: list[Made] = []
        self.choice: Any = None


# -------- The timer of the steps of a program while it runs: its text calls each through a function
# made here.


# ------------------------------------------------------------------------------------------ timing
# How long a device takes: moments on it, and the time between two; here on a
# processor, by its own clock.


TRIES: Final = 7


@final
@record
class Ceilings:
    """The peaks of a device in a second: bytes read and written, and operations, of a multiply-add
    two.

    `double` is 0 where it was not measured.
    """

    moved: float
    single: float
    double: float = 0.0


class Clock(Protocol):
    """A clock for the steps of a program."""

    @property
    def words(self) -> str:
        """The way of timing, for people."""

    def moment(self) -> Any: ...

    def ready(self) -> None:
        """Called before each step that is timed, outside of its time."""

    def between(self, first: Any, last: Any) -> float:
        """Seconds from one moment to another, once both are past."""

    def wait(self) -> None:
        """Until all that the device was asked to do is done."""

    def nothing(self) -> float:
        """Seconds that a step which does nothing seems to take."""


@final
class HostMoment:
    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()


@final
class HostClock:
    """The processor's clock.

    With `cold` bytes, so many are written before each step, to empty the caches.
    """

    def __init__(self, cold: int = 0) -> None:
        self.spoiler = np.ones(cold, np.uint8) if cold else None

    @property
    def words(self) -> str:
        return "by the host's clock"

    def moment(self) -> HostMoment:
        return HostMoment()

    def ready(self) -> None:
        if self.spoiler is not None:
            self.spoiler += 1

    def between(self, first: HostMoment, last: HostMoment) -> float:
        return last.at - first.at

    def wait(self) -> None:
        """Waits until what it times has ended."""

    def nothing(self) -> float:
        first, last = self.moment(), self.moment()
        first.record()
        last.record()
        return self.between(first, last)


def seconds(clock: Clock, work: Callable[[], Any]) -> float:
    """The seconds that a device takes at least."""
    first, last = clock.moment(), clock.moment()
    clock.ready()
    first.record()
    work()
    last.record()
    clock.wait()
    return clock.between(first, last)


def best(clock: Clock, work: Callable[[], Any]) -> float:
    """The least that it takes, of a few tries."""
    work()
    return min(seconds(clock, work) for _ in range(TRIES))


# ------------------------------------------------------------------------------------------- timer


class KernelText(Protocol):
    """A kernel that can be written out."""

    def text(self) -> str: ...


@final
@record
class Call:
    """A call in the text of a program: its name there, what computes it, its
    part of a step, what that costs.

    `kernel` is the CUDA of a launch.
    """

    program: str
    name: str
    by: str
    eqn: Eqn | None
    cost: Cost
    kernel: KernelText | None = None


@final
class Meter:
    """Times the calls of a program, and of those that it runs, while it is `on`."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.on = clock, False
        self.calls: list[Call] = []
        self._met: list[tuple[int, Any, Any]] = []

    def timed(self, call: Call) -> Callable[..., Any]:
        """A function that calls another with its arguments, and times it."""
        self.calls.append(call)
        return partial(self._run, len(self.calls) - 1)

    def _run(self, number: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not self.on:
            return function(*args, **kwargs)
        first, last = self.clock.moment(), self.clock.moment()
        self.clock.ready()
        first.record()
        result = function(*args, **kwargs)
        last.record()
        self._met.append((number, first, last))
        return result

    def round(self) -> list[list[float]]:
        """Of each call, the seconds of each time that it was made since this was asked last."""
        self.clock.wait()
        found: list[list[float]] = [[] for _ in self.calls]
        for number, first, last in self._met:
            found[number].append(self.clock.between(first, last))
        self._met.clear()
        return found


# -------- The assembler of a program: what all targets share of writing the Python text that each
# call runs, and of collecting what the names in that text stand for.


@final
@mutable
class Built:
    """The parts that a program runs by, once its text is compiled.

    `direct`: the program, where no arena is bound. `code`: bytes of what was compiled; `how` the
    code of one library was had, in words. On a GPU: what launches each group (`launched`), what the
    host does after so many groups (`splits`), how the code of each kernel was `had`, and the
    program as an iteration of a loop around it (`loop_body`).
    """

    direct: Callable[..., list[Any]] | None = None
    code: int = 0
    how: str = ""
    launched: list[Any] = field(default_factory=list)
    splits: list[tuple[int, str]] = field(default_factory=list)
    had: list[Had] = field(default_factory=list)
    loop_body: Any = None


class Assembler(ABC):
    """Writes a program's text; a target says what its steps are.

    `run`: whether the program is to run; else it is written for people, and nothing is compiled.
    `meter` times each step, if somebody wants to know: each is then called by itself.
    """

    def __init__(
        self, program: Program, title: str, run: bool = True, meter: Meter | None = None
    ) -> None:
        self.program, self.title, self.run, self.meter = program, title, run, meter
        self.names: dict[str, Any] = {}  # what the names of the text stand for
        self.made: list[Made] = []  # the kernels, for people
        self.choices = dict(program.choices)  # by step, what was chosen for it
        self.arena = Arena()
        self.begun: set[str] = set()  # results that have an array
        self.texts: dict[str, str] = {}  # by language: what each call runs
        self.built = Built()

    @property
    def source(self) -> str:
        return "\n".join(self.texts.values())

    # -- names

    def buffer(self, var: Var) -> Buffer:
        return self.program.buffers[var]

    @abstractmethod
    def name(self, var: Var) -> str:
        """The name of a value in the text."""

    def bind(self, value: Any, prefix: str) -> str:
        """A name for an object that is made beforehand."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    @abstractmethod
    def operand(self, atom: Atom) -> str:
        """An atom as an array of the target, or a Python number."""

    def constant(self, atom: Literal) -> str:
        """The name of a literal: a Python number, or an array."""
        value = atom.value if atom.type.weak else np.asarray(atom.value, atom.type.dtype)
        return self.bind(value if atom.type.weak else self.upload(value), "k")

    def upload(self, value: Any) -> Any:
        """A NumPy array as one of the target's."""
        return value

    def result_to_make(self, var: Var) -> Buffer | None:
        """The buffer of a result, or of what is returned in another form, for which the caller's
        array is yet to be made: now, and only once.
        """
        buffer = self.buffer(var)
        viewed = buffer.storage == "view" and var not in self.program.graph.outputs
        if viewed and buffer.base is not None:
            buffer = buffer.base
        if buffer.storage != "output" or buffer.name in self.begun:
            return None
        self.begun.add(buffer.name)
        return buffer

    # -- steps

    def add(self, code: StepCode[Any]) -> None:
        """Adds what a step became to the program."""
        self.arena.needs |= code.needs
        self.made += code.made
        if code.choice is not None:
            self.choices[code.step.number] = code.choice
        self.write_step(code)

    @abstractmethod
    def write_step(self, code: Any) -> None:
        """Adds the text of a step."""

    def cost(self, eqn: Eqn) -> Cost:
        return cost(eqn, partial(bytes_behind, self.program.layouts))

    def timed(
        self,
        f: str,
        arguments: str,
        eqn: Eqn | None,
        by: str,
        name: str,
        work: Cost | None = None,
    ) -> str:
        """The text of a call, through the meter if there is one."""
        if self.meter is None:
            return f"{f}({arguments})"
        if work is None:
            assert eqn is not None, "a call of no equation says what it costs"
            work = self.cost(eqn)
        return f"{self.timing(Call(self.title, name, by, eqn, work))}({f}, {arguments})"

    def timing(self, call: Call) -> str:
        """The name of what times a call."""
        assert self.meter is not None
        return self.bind(self.meter.timed(call), "timed_")

    def host_number(self, step: Step) -> str:
        """The text of a number that Python computes."""
        (out,) = step.eqn.outs
        f = self.bind(partial(compute, step.eqn.op, out.type), "host_")
        return f"{f}({', '.join(map(self.operand, step.eqn.inputs))})"

    def results(self) -> str:
        """The texts of what the program returns."""
        return ", ".join(self.result(a, i) for i, a in enumerate(self.program.graph.outputs))

    def result(self, atom: Atom, i: int) -> str:
        """Result `i`: a Python number, or an array that nobody else has."""
        if isinstance(atom, Literal):
            text = self.operand(atom)
            return text if atom.type.weak else f"array({text})"
        if atom.type.weak:
            return self.name(atom)
        again = atom in self.program.graph.outputs[:i]
        if self.buffer(atom).storage == "output" and not again:
            return self.name(atom)
        return self.copy_of_result(atom, again)

    @abstractmethod
    def copy_of_result(self, var: Var, again: bool) -> str:
        """The text of a copy of a value that is returned; `again`: it was returned already."""
