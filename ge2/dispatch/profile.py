"""The times within a call: each launch of a program timed while it runs, beside what bounds it.

The program is written again with a clock around each of its calls, and run in turns with
the one that users run. So every step is timed with the arrays, and after the steps,
that it has in a real call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from statistics import median
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.config import config
from ge2.base.dtypes import FLOAT32
from ge2.base.errors import Ge2Error
from ge2.base.record import record
from ge2.base.source import Source
from ge2.compile.executable import Executable
from ge2.compile.probe import processor_ceilings
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.program.records import names, places, sources
from ge2.program.timer import Call, Ceilings, Clock, HostClock, Meter
from ge2.targets.cuda.emit.file import Source as CudaSource
from ge2.targets.cuda.slow_float64 import in_double, slow

if TYPE_CHECKING:
    from ge2.dispatch.cache import Entry
    from ge2.dispatch.jitted import Jitted
    from ge2.targets.cuda.device import Device, Figures


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
        from ge2.targets.cuda.load.timing import EventClock

        return EventClock(device, cold)
    return HostClock(SPOILED if cold else 0)


def ceilings_of(device: Device | None, clock: Clock, double: bool) -> Ceilings:
    if device is None:
        return processor_ceilings(clock, double)
    from ge2.targets.cuda.load.timing import ceilings

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
    if eqn is not None and isinstance(eqn.op, ProductRegion):
        eqn = eqn.op.product
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
