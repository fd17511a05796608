"""Explanations of a program as text, data and notebooks, and the times of the kernels in a call."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.arrays import FLOAT32
from ge2.base.config import config
from ge2.base.errors import Ge2Error
from ge2.base.record import record
from ge2.base.source import Source, count_words, counted, size_words, table
from ge2.choice.choose import BY
from ge2.compile import processor_ceilings
from ge2.compile.executable import Executable
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import Region
from ge2.program.assembler import Call, Ceilings, Clock, HostClock, Meter
from ge2.program.records import OPS, cut, names, places, sources
from ge2.targets.cuda.emit import Source as CudaSource
from ge2.targets.cuda.limits import in_double, slow

if TYPE_CHECKING:
    from ge2.dispatch.cache import Entry
    from ge2.dispatch.jitted import Jitted
    from ge2.targets.cuda.device import Device, Figures


# -------- An explanation of a program: records, and what they say as text, as data and in a
# notebook.


SCHEMA: Final = 1  # of the data; another number where a key has gone or means something else
WIDTH: Final = 100


@final
@record
class Apart:
    """A neighbour that is another kernel, and what one of both would save.

    `saves`: bytes that would be neither written nor read; `shared` names the types of the arrays.
    """

    kernel: str
    reason: str
    saves: int
    shared: tuple[str, ...]


@final
@record
class Option:
    """A candidate for a kernel.

    `verdict`: "taken", "possible", or "refused" with the reason; `other`, it serves no operation
    of this kind. Seconds of a call as predicted and as measured, None where there is no such time.
    """

    name: str
    verdict: str
    reason: str = ""
    predicted: float | None = None
    measured: float | None = None
    spread: float | None = None
    other: bool = False


@final
@record
class Usage:
    """The resources of a compiled CUDA kernel: `spills`, `stack`, `shared` in bytes, of shared
    memory the fixed ones and those asked for at launch.
    """

    function: str
    threads: int
    registers: int
    spills: int
    stack: int
    shared: int

    def __str__(self) -> str:
        stack = f", stack of {size_words(self.stack)}" if self.stack else ""
        return (
            f"{self.threads} threads a block, {counted(self.registers, 'register')}, "
            f"{size_words(self.spills)} spilled, {size_words(self.shared)} of shared memory{stack}"
        )


@final
@record
class Explained:
    """A kernel, or a step without one.

    `by`: what decided the choice. `seconds`: as it ran just now, or else as the record has it;
    None if it was never timed. `least`: seconds that the device needs for its bytes and operations;
    `share` that of `seconds`. `apart` is None where nothing is known of neighbours: inside loops.
    """

    name: str
    kind: str
    computes: tuple[str, ...]
    equations: tuple[str, ...]
    lines: tuple[str, ...]
    places: str
    results: tuple[str, ...]
    read: int
    written: int
    operations: int
    by: str
    options: tuple[Option, ...]
    usages: tuple[Usage, ...] = ()
    seconds: float | None = None
    least: float | None = None
    apart: tuple[Apart, ...] | None = None
    problem: str = ""  # the class that a pin names it by

    @property
    def share(self) -> float | None:
        return self.least / self.seconds if self.least and self.seconds else None

    def text(self, all: bool = False) -> str:
        """In words; with `all`, also the equations, and families that serve other operations."""
        found = [*self.head(), *((f"  {e}" for e in self.equations) if all else ())]
        found += [f"  problem {self.problem}"] if all and self.problem else []
        found += [f"  {line}" for line in self.options_text(all)]
        return "\n".join([*found, *(f"  {line}" for line in self.facts())])

    def head(self) -> Iterator[str]:
        computes = cut(self.computes, OPS) if self.computes else self.kind
        of = f"  of {self.places}" if self.places else ""
        yield f"{self.name}  {computes}{of}  {each_once(self.results)}"
        moved = f"reads {size_words(self.read)}, writes {size_words(self.written)}"
        yield f"  {moved}, {count_words(self.operations)} operations{self.bound()}"

    def bound(self) -> str:
        share = "" if self.share is None else f", {share_words(self.share)}"
        took = "" if self.seconds is None else f": took {time_words(self.seconds)}{share}"
        least = "" if self.least is None else f", at least {time_words(self.least)}"
        return f"{least}{took}"

    def options_text(self, all: bool) -> Iterator[str]:
        shown = [o for o in self.options if all or not o.other]
        rows = [option_row(o, self.by) for o in shown]
        yield from table(rows).split("\n") if rows else ()
        if len(shown) < len(self.options):
            yield f"not    {counted(len(self.options) - len(shown), 'kernel')} of other operations"

    def facts(self) -> Iterator[str]:
        for n, usage in enumerate(self.usages):
            yield f"{usage.function if n else 'compiled'}: {usage}"
        for each in self.apart or ():
            yield f"apart from {each.kernel}: {each.reason};"
            yield f"    one kernel would save {size_words(each.saves)}, of {each_once(each.shared)}"

    def as_data(self) -> dict[str, Any]:
        names = (
            "name", "kind", "computes", "equations", "lines", "results", "read", "written",
            "operations", "problem", "by", "seconds", "least", "share",
        )  # fmt: skip
        return {
            **{name: plain(getattr(self, name)) for name in names},
            "candidates": [fields_of(o) for o in self.options],
            "compiled": [fields_of(u) for u in self.usages],
            "apart": None if self.apart is None else [fields_of(a) for a in self.apart],
        }


@final
@record
class Explanation:
    """The kernels that a function became and why. Printed, a text."""

    title: str
    device: str
    kernels: tuple[Explained, ...]
    # functions with a kernel of the user's that was not chosen: name and place, its candidates
    unused: tuple[tuple[str, tuple[Option, ...]], ...] = ()

    def text(self, all: bool = False) -> str:
        """In words; with `all`, also equations, and families that serve other operations."""
        parts = [self.head, *(kernel.text(all) for kernel in self.kernels)]
        for name, options in self.unused:
            rows = table([option_row(o, "") for o in options]).split("\n")
            parts.append("\n  ".join([f"{name}, is computed by ge2", *rows]))
        return "\n\n".join(parts)

    @property
    def head(self) -> str:
        return f"{self.title}: {counted(len(self.kernels), 'kernel')} on {self.device}"

    def as_data(self) -> dict[str, Any]:
        """As dictionaries, lists, texts and numbers; sizes in bytes, times in seconds."""
        return {
            "schema": SCHEMA,
            "function": self.title,
            "device": self.device,
            "kernels": [kernel.as_data() for kernel in self.kernels],
            "unused": [
                {"name": name, "candidates": [fields_of(o) for o in options]}
                for name, options in self.unused
            ],
        }

    def as_json(self) -> str:
        return json.dumps(self.as_data(), indent=1)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A table, with a row to open for each kernel."""
        return "".join(
            [STYLE, f"<div class='ge2'><p>{escape(self.head)}</p>", *self.html(), "</div>"]
        )

    def html(self) -> Iterator[str]:
        for kernel in self.kernels:
            first, *rest = kernel.head()
            yield f"<details open><summary><b>{escape(first)}</b></summary>"
            yield f"<p>{escape(' '.join(rest).strip())}</p>"
            yield html_table(
                ("", "candidate", "predicted", "measured", ""),
                [option_row(o, kernel.by, False) for o in kernel.options if not o.other],
            )
            yield from (f"<p>{escape(line.strip())}</p>" for line in kernel.facts())
            inside = "\n".join(kernel.equations)
            yield f"<details><summary>equations</summary><pre>{escape(inside)}</pre></details>"
            hidden = [option_row(o, kernel.by, False) for o in kernel.options if o.other]
            if hidden:
                rows = html_table(("", "candidate", "", "", ""), hidden)
                yield f"<details><summary>of other operations</summary>{rows}</details>"
            yield "</details>"
        for name, options in self.unused:
            yield f"<p>{escape(name)}, is computed by ge2</p>"
            listed = [option_row(o, "", False) for o in options]
            yield html_table(("", "candidate", "predicted", "measured", ""), listed)


STYLE: Final = (
    "<style>.ge2 {font-size:90%} .ge2 p {margin:.2em 1em} .ge2 table {margin:.3em 1em; "
    "border-collapse:collapse} .ge2 td, .ge2 th {text-align:left; padding:.1em .8em .1em 0} "
    ".ge2 details details {margin-left:1em} .ge2 summary {cursor:pointer}</style>"
)
WORDS: Final = {"taken": "taken", "possible": "or", "refused": "not"}


def each_once(words: Sequence[str]) -> str:
    """Words, and how often each is there.

    >>> each_once(["f32[3]", "f32[3]", "i64[]"])
    'f32[3] x2 i64[]'
    """
    return " ".join(w if n == 1 else f"{w} x{n}" for w, n in Counter(words).items())


def option_row(option: Option, by: str, words: bool = True) -> tuple[str, ...]:
    """A row: verdict, name, times, reason. With `words` a time says what it is."""
    times = [
        "" if seconds is None else f"{f'{word} ' if words else ''}{time_words(seconds)}"
        for word, seconds in (("predicted", option.predicted), ("measured", option.measured))
    ]
    if option.measured is not None and option.spread:
        times[1] += f" \N{PLUS-MINUS SIGN} {option.spread:.0%}"
    reason = BY.get(by, "").lstrip(", ") if option.verdict == "taken" else option.reason
    more = [", ".join(filter(None, (*times, reason)))] if words else [*times, reason]
    return (WORDS[option.verdict], option.name, *more)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = ("".join(f"<td>{escape(each)}</td>" for each in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def time_words(seconds: float) -> str:
    """
    >>> time_words(1.234e-6), time_words(0.0456)
    ('1.23 us', '45.6 ms')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def share_words(share: float) -> str:
    """
    >>> share_words(0.694), share_words(1.5)
    ('69% of the roofline', 'above the roofline: its arrays are in a cache')
    """
    above = "above the roofline: its arrays are in a cache"
    return above if share > 1.1 else f"{share:.0%} of the roofline"


def fields_of(each: Any) -> dict[str, Any]:
    return {name: plain(getattr(each, name)) for name in each.__dataclass_fields__}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# -------- The times within a call: each launch of a program timed while it runs, beside what bounds
# it.
# The program is written again with a clock around each of its calls, and run in turns with the one
# that users run. So every step is timed with the arrays, and after the steps, that it has in a real
# call.


# ----------------------------------------------------------------------------------------- profile


ROUNDS, LEAST, SECONDS = 20, 3, 20.0
ROUGH: Final = 3  # times what nothing takes: what takes less is timed roughly
SPOILED: Final = 1 << 28  # bytes that no cache of a processor holds


@final
@record
class Row:
    """A call in the program: seconds, bytes and operations are those of all its
    launches in one run of it.

    `seconds` is the median of the rounds; `rough`: of the size of what the clock can tell. `share`
    is what the device needs at least, by its ceilings, of that time; None where none of them bounds
    it. `figures` are a CUDA kernel's on a GPU.
    """

    name: str
    by: str
    launches: int
    seconds: float
    rough: bool
    read: int
    written: int
    operations: int
    share: float | None
    figures: Figures | None
    sources: tuple[Source, ...]
    slow: str = ""

    @property
    def places(self) -> list[str]:
        return places(self.sources)


@final
@record
class Profile:
    """The findings of a profile.

    `whole` is a call by the host's clock, none of its steps timed, in seconds.
    """

    title: str
    device: str
    how: str
    rounds: int
    nothing: float
    ceilings: Ceilings
    rows: tuple[Row, ...]
    whole: float
    cold: bool

    @property
    def total(self) -> float:
        return sum(row.seconds for row in self.rows)


def profile(
    function: Jitted[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rounds: int = ROUNDS,
    cold: bool = False,
) -> Profile:
    """Times the program of a call, in so many rounds, or fewer if they take long.

    `cold` empties caches.

    Ge2Error where it runs op by op.
    """
    if config.disable_jit or config.executor == "reference":
        fix = "unset GE2_DISABLE_JIT and GE2_EXECUTOR"
        raise Ge2Error("the function runs op by op here, so there are no kernels to time", fix=fix)
    entry, arrays = function.prepared(args, kwargs)
    plain, measured = entry.ready(), entry.another()
    device = plain.device
    with nullcontext() if device is None else device.here():
        clock = clock_of(device, cold)
        meter = Meter(clock)
        attach(measured, meter)
        again = Arguments(arrays, spent_by(entry))
        for program in (plain, measured):
            program(*again.fresh())
        clock.wait()
        wholes, found = timed(plain, measured, meter, again, rounds)
        nothing = clock.nothing()
        wide = any(call.eqn is not None and in_double(call.eqn) for call in meter.calls)
        most = ceilings_of(device, clock, wide)
        rows = rows_of(meter.calls, found, nothing, most, plain)
    return Profile(
        entry.title,
        device_name(plain, clock),
        clock.words,
        len(wholes),
        nothing,
        most,
        tuple(rows),
        median(wholes),
        cold,
    )


@final
class Arguments:
    """The arrays of each call; those that a call may overwrite are copied before it."""

    def __init__(self, arrays: Sequence[Any], donated: Sequence[bool]) -> None:
        self.arrays, self.donated = arrays, donated or [False] * len(arrays)

    def fresh(self) -> list[Any]:
        pairs = zip(self.arrays, self.donated, strict=True)
        return [x.copy() if donated else x for x, donated in pairs]


def spent_by(entry: Entry) -> list[bool]:
    """Flags of the arrays that a call may overwrite: those that were donated, or that it writes."""
    count = len(entry.graph.inputs)
    written = entry.writes.inputs if entry.writes else ()
    donated = entry.donated or (False,) * count
    return [given or i in written for i, given in enumerate(donated)]


def attach(executable: Executable, meter: Meter) -> None:
    """Has a program that is not built yet, and those in it, timed."""
    executable.meter = meter
    for branches in executable.branches.values():
        for branch in branches:
            attach(branch, meter)


def timed(
    plain: Executable, measured: Executable, meter: Meter, arguments: Arguments, rounds: int
) -> tuple[list[float], list[list[list[float]]]]:
    """Both programs in turns: seconds of the one, and of each call in the other."""
    wholes: list[float] = []
    found: list[list[list[float]]] = []
    end = time.perf_counter() + SECONDS
    while len(wholes) < rounds and (len(wholes) < LEAST or time.perf_counter() < end):
        arrays = arguments.fresh()
        meter.clock.wait()
        began = time.perf_counter()
        plain(*arrays)
        meter.clock.wait()
        wholes.append(time.perf_counter() - began)
        arrays = arguments.fresh()
        meter.on = True
        try:
            measured(*arrays)
        finally:
            meter.on = False
        found.append(meter.round())
    return wholes, found


def clock_of(device: Device | None, cold: bool) -> Clock:
    from ge2.targets.cuda.load.gpu import CudaDevice

    if isinstance(device, CudaDevice):
        from ge2.targets.cuda.load.gpu import EventClock

        return EventClock(device, cold)
    return HostClock(SPOILED if cold else 0)


def ceilings_of(device: Device | None, clock: Clock, double: bool) -> Ceilings:
    if device is None:
        return processor_ceilings(clock, double)
    from ge2.targets.cuda.load.gpu import ceilings

    return ceilings(device, clock, double)


def device_name(executable: Executable, clock: Clock) -> str:
    device, threads = executable.device, executable.threads
    if device is not None:
        instead = "the CPU in place of " if isinstance(clock, HostClock) else ""
        return f"{instead}{device.limits.name}, {device.limits.architecture}"
    how = "C" if executable.program.target == "c" else "blocked NumPy"
    return f"this processor, {threads} thread{'' if threads == 1 else 's'}, {how}"


# ----------------------------------------------------------------------------------------- the rows


def rows_of(
    calls: Sequence[Call],
    rounds: Sequence[list[list[float]]],
    nothing: float,
    most: Ceilings,
    whole: Executable,
) -> Iterator[Row]:
    """A row for each call that is made in a run of the program, in order."""
    for n, (call, name) in enumerate(
        zip(calls, names(named(c, whole.name) for c in calls), strict=True)
    ):
        launches = round(median(len(each[n]) for each in rounds))
        if not launches:
            continue
        seconds = median(sum(each[n]) for each in rounds)
        cost = call.cost * launches
        found = sources(call.eqn) if call.eqn is not None else []
        yield Row(
            name, call.by, launches, seconds, seconds < ROUGH * nothing * launches, cost.read, cost.written,
            cost.operations, share(call, seconds / launches, most), figures(call, whole.device),
            tuple(found), slow_words(call, whole.device),
        )  # fmt: skip


def slow_words(call: Call, device: Device | None) -> str:
    if device is None or call.eqn is None or not call.cost.operations:
        return ""
    return slow(call.eqn, device.limits)


def named(call: Call, whole: str) -> str:
    """A call's name, with that of the loop or the branch that it is in."""
    inner = call.program.removeprefix(whole).lstrip("_")
    return f"{inner}/{call.name}" if inner else call.name


def share(call: Call, seconds: float, most: Ceilings) -> float | None:
    """The least that the device needs by its ceilings, as a share of what it took."""
    if call.by == "the CPU" or other_units(call):
        return None
    double = call.eqn is not None and in_double(call.eqn) is not None
    rate = most.double if double else most.single
    least = max((call.cost.read + call.cost.written) / most.moved, call.cost.operations / rate)
    return least / seconds if least and seconds else None


def other_units(call: Call) -> bool:
    """True if it is a product by units that were not measured: tensor cores, or a processor's fused
    ones.
    """
    eqn = call.eqn
    if eqn is not None and isinstance(eqn.op, Region):
        eqn = eqn.op.root
    if eqn is None or not isinstance(eqn.op, DotGeneral):
        return False
    plain = all(a.type.dtype == FLOAT32 for a in eqn.inputs) and eqn.op.precision not in (
        "tf32",
        "bf16",
    )
    return not plain or call.by not in ("CUDA", "cuBLASLt")


def figures(call: Call, device: Device | None) -> Figures | None:
    """Registers, shared memory and occupancy of a kernel, if it is on a GPU."""
    if device is None or call.kernel is None:
        return None
    assert isinstance(call.kernel, CudaSource)
    kernel = call.kernel.kernel
    return device.figures(call.kernel.text(), call.kernel.name, kernel.block, kernel.shared)
