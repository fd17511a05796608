"""The reasons why a function runs as it does: for each kernel what it covers, what else could have
run, and why its neighbours are kernels of their own.

All of it is worked out when somebody asks: candidates are offered once more, regions formed once
more, CUDA kernels compiled if they were not. A call pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final, final

from ge2.base.arrays import HALF, expecting
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble, InputError
from ge2.base.record import record
from ge2.choice.choose import Candidate, Choice
from ge2.compile import compile_graph, how_to_make
from ge2.compile.catalog import USER_KERNELS
from ge2.compile.executable import Executable
from ge2.dispatch import jit
from ge2.dispatch.cache import Entry
from ge2.dispatch.explanation import (
    Apart,
    Explained,
    Explanation,
    Option,
    Usage,
    device_name,
    profile,
)
from ge2.ir import Eqn, Graph, GraphOp, Var, makers_of
from ge2.ops.graphs.region import is_loop
from ge2.ops.pointlike import Pointlike
from ge2.ops.user_ops import Own
from ge2.passes.context import NOTHING, Context
from ge2.passes.fold import on_host
from ge2.passes.fuse import BETWEEN, gathered
from ge2.passes.fusion_group import Group, fusible, joint, merged, too_large
from ge2.program import Program, Step
from ge2.program.assembler import HostClock
from ge2.program.records import KernelRecord, Made, kernels, places
from ge2.targets.cuda.emit import Source
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.load.nvrtc import Order, compile_all

UNSEEN: Final = ("host", "view")  # steps that launch nothing
MOST: Final = 3  # neighbours that a kernel's text names: those that would save most


def explain(
    function: Callable[..., Any], *, arch: str = "", time: bool = False
) -> Callable[..., Explanation]:
    """A function of the same arguments that says what the function becomes for them, and why.

    Arguments may be arrays, or `ShapeDtypeStruct`s; nothing is run unless `time` asks for it, which
    needs arrays. `arch`, such as "sm_90a": as CUDA for a GPU that need not be at hand; without it,
    as the function would run here. Printed, the explanation is a text; `as_data()` and `as_json()`
    give it to programs, and a notebook shows a table.

    InputError for `time` with `arch`, and where the function runs op by op.

    >>> import numpy as np
    >>> import ge2
    >>> def scaled(x):
    ...     return np.sort(np.tanh(x), 0) * 2.0
    >>> found = ge2.explain(scaled)(np.ones(100, np.float32))
    >>> [(kernel.name, kernel.computes) for kernel in found.kernels]
    [('pointwise_0', ('tanh',)), ('sort_1', ('sort',)), ('pointwise_2', ('mul',))]
    >>> found.kernels[2].apart[0].reason
    'sort is a kernel of its own: regions hold elementwise work, views and reductions'
    """
    if time and arch:
        raise InputError(f"nothing is timed for {arch}, of which no GPU is used", fix="time=False")
    jitted: Any = function if hasattr(function, "lower") else jit(function)

    def of(*args: Any, **kwargs: Any) -> Explanation:
        if config.executor == "reference" and not arch:
            raise InputError("it runs op by op, so no kernel is chosen", fix="GE2_EXECUTOR=c")
        with config.using(executor="c" if arch else config.executor), expecting(arch):
            entry = jitted.trace(*args, **kwargs).entry
            executable = compiled_for(entry, arch) if arch else entry.another()
        times = timed(jitted, args, kwargs) if time else {}
        device = executable.device
        with nullcontext() if device is None else device.here():
            kernels = explained(entry, executable, times)
            return Explanation(entry.title, on(executable), kernels, unused(entry, executable))

    return of


def compiled_for(entry: Entry, arch: str) -> Executable:
    """The program of a signature for a GPU that is not at hand."""
    return compile_graph(
        entry.graph, donated=entry.donated or (), name=entry.title, limit=entry.limit,
        device=OfflineDevice(limits_of(arch)), writes=entry.writes, iotas=entry.iotas(),
    )  # fmt: skip


def on(executable: Executable) -> str:
    device = executable.device
    if isinstance(device, OfflineDevice):
        return f"{device.limits.name}, {device.limits.architecture}, which is not at hand"
    if device is None or device.limits.emulated:
        return device_name(executable, HostClock())
    return f"{device.limits.name}, {device.limits.architecture}"


def unused(entry: Entry, executable: Executable) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """The functions that have a kernel of the user's, which was not chosen."""
    if not USER_KERNELS or executable.program.target not in ("c", "cuda"):
        return ()
    from ge2.compile.user_kernels import left  # nobody else has one

    how = how_to_make(entry.title, executable.device)
    found = left(entry.graph, USER_KERNELS, how.context)
    return tuple((name, options_of(choice)) for name, choice in found)


Times = dict[str, tuple[float, float | None]]


def timed(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Times:
    """By kernel: the seconds of its launches, and the least that the device needs for them."""
    found = profile(jitted, args, kwargs)
    return {
        row.name: (row.seconds, None if row.share is None else row.share * row.seconds)
        for row in found.rows
    }


# ------------------------------------------------------------------------------------------- parts


@final
@record
class Part:
    """A kernel that is explained, or a step without one. `number`: its step's in the program;
    `step` is None of what is inside of a loop or a branch.
    """

    number: int
    name: str
    eqn: Eqn
    kernel: KernelRecord
    choice: object
    step: Step | None


def explained(entry: Entry, executable: Executable, times: Times) -> tuple[Explained, ...]:
    parts = parts_of(executable)
    usages = usages_of(executable)
    apart = neighbours(entry, executable, parts)
    return tuple(one(part, executable, usages, apart, times) for part in parts)


def parts_of(executable: Executable) -> list[Part]:
    """The kernels of a program, of loops and branches in it too, and its other steps, in order."""
    made = executable.made(executable.unbuilt())
    program = executable.program
    steps = {id(step.eqn): step for step in program.steps}
    found, number = [], 0
    for each, known in zip(made, kernels(made), strict=True):
        step = steps.get(id(each.eqn)) if "/" not in each.name else None
        number = step.number if step is not None else holder(executable, each, number)
        found.append(Part(number, known.name, each.eqn, known, each.choice, step))
    covered = {part.number for part in found if part.step is not None}
    choices = executable.unbuilt().choices
    for step in program.steps:
        if step.kind not in UNSEEN and step.number not in covered:
            name = f"{step.name}_{step.number}"
            (known,) = kernels([Made(step.eqn, step.kind, name, "", str)])
            choice = choices.get(step.number)
            found.append(Part(step.number, name, step.eqn, known, choice, step))
    return sorted(found, key=lambda part: (part.number, part.step is None))


def holder(executable: Executable, made: Made, last: int) -> int:
    """The step of a loop or a branch that a kernel is in; the `last` one if no step says so."""
    for n, name, _ in executable.inside():
        if made.name.startswith(f"{name}/"):
            return n
    for n, programs in executable.program.inner.items():
        if any(holds(program, made.eqn) for program in programs):
            return n
    return last


def holds(program: Program, eqn: Eqn) -> bool:
    """True if an equation is a step of a program, or of one in it."""
    inner = (each for programs in program.inner.values() for each in programs)
    return any(step.eqn is eqn for step in program.steps) or any(holds(p, eqn) for p in inner)


def one(
    part: Part, executable: Executable, usages: dict[str, list[Usage]],
    apart: dict[int, tuple[Apart, ...]] | None, times: Times,
) -> Explained:  # fmt: skip
    known, choice = part.kernel, part.choice
    seconds, least = times.get(part.name, (None, None))
    by, options = (choice.by, options_of(choice)) if isinstance(choice, Choice) else ("", ())
    if isinstance(part.eqn.op, Own) and isinstance(part.eqn.choice, Choice):
        # a user's kernel was chosen for a function, and how it is run is no further choice
        by, outer = part.eqn.choice.by, options_of(part.eqn.choice)
        options = (*outer, *(o for o in options if o.verdict == "refused"))
    if seconds is None and options:
        seconds = options[0].measured
    return Explained(
        part.name, known.kind, known.computes, known.equations, known.lines,
        ", ".join(places(known.sources)), tuple(str(v.type) for v in part.eqn.outs), known.read,
        known.written, known.operations, by, options,
        tuple(usages.get(known.function, ())), seconds, least or least_of(known, executable),
        None if part.step is None or apart is None else apart[part.number],
        problem_of(choice),
    )  # fmt: skip


def problem_of(choice: object) -> str:
    """The class of a problem whose layouts are settled."""
    from ge2.choice.record import class_of  # for people alone

    settled = isinstance(choice, Choice) and choice.problem.settled
    return class_of(choice.problem).key if settled else ""  # type: ignore[attr-defined]


def least_of(kernel: KernelRecord, executable: Executable) -> float | None:
    """The seconds that a GPU's memory needs for the bytes of a kernel."""
    device = executable.device
    if device is None or device.limits.emulated or not kernel.nbytes:
        return None
    return kernel.nbytes / device.limits.bandwidth


def options_of(choice: Choice) -> tuple[Option, ...]:
    """The candidates of a choice: the one that was taken, others, and those that are refused."""
    found = dict.fromkeys(option(c, c.title == choice.taken.title) for c in choice.candidates)
    return tuple(found)


def option(candidate: Candidate, taken: bool) -> Option:
    refusal, measured = candidate.refusal, candidate.measured
    taken = taken and not refusal
    verdict = "taken" if taken else "refused" if refusal else "possible"
    believed = measured if measured is not None and measured.believed else None
    if measured is not None and believed is None and not refusal:
        refusal = str(measured)
    return Option(
        candidate.title, verdict, refusal, candidate.predicted,
        believed and believed.median, believed and believed.spread, candidate.other,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- usage


def usages_of(executable: Executable) -> dict[str, list[Usage]]:
    """The resources that NVRTC gave each CUDA kernel, by its function: of a step that is several,
    all; {} on a processor, and without NVRTC.
    """
    device = executable.device
    if device is None:
        return {}
    named = [(name, source) for name, source in cuda_sources(executable)]
    try:
        arch = device.limits.architecture
        binaries = compile_all([Order(source.text(), arch) for _, source in named])
    except CompilerTrouble:
        return {}
    known = {each.function for each in executable.made(executable.unbuilt())}
    found: dict[str, list[Usage]] = {}
    last = ""
    for (name, source), binary in zip(named, binaries, strict=True):
        last = name if name in known else last  # a second kernel of a step stands behind the first
        kernel = source.kernel
        found.setdefault(last, []).extend(
            Usage(name, kernel.block, u.registers, u.spills, u.stack, u.shared + kernel.shared)
            for u in binary.kernels
        )
    return found


def cuda_sources(executable: Executable, before: str = "") -> Iterator[tuple[str, Source]]:
    """The CUDA of a program and of those in it, by the names of functions."""
    assembler: Any = executable.unbuilt()
    for n, source in enumerate(assembler.kernels.sources.values()):
        yield f"{before}{source.name}_{n}", source
    for _, inside, branch in executable.inside():
        yield from cuda_sources(branch, f"{before}{inside}/")


# -------------------------------------------------------------------------------------- neighbours


def neighbours(
    entry: Entry, executable: Executable, parts: Sequence[Part]
) -> dict[int, tuple[Apart, ...]] | None:
    """By the step's number: the steps before that are kernels of their own although it reads what
    they make, or what they read; None where that is not known, of a program in limited memory.
    """
    program = executable.program
    why = reasons(entry, executable)
    if why is None:
        return None
    names = {part.number: part.name for part in parts if part.step is not None}
    made, pairs = Flows(program), shared_reads(program)
    for pair, arrays in made.between.items():
        pairs.setdefault(pair, []).extend(arrays)
    found: dict[int, list[Apart]] = {number: [] for number in names}
    for (first, second), arrays in pairs.items():
        if first in names and second in names:
            reason = why(program.steps[first].eqn, program.steps[second].eqn)
            saves = sum(made.saved(v, first, second) for v in arrays)
            types = tuple(str(v.type) for v in arrays)
            found[second].append(Apart(names[first], reason, saves, types))
    return {
        number: tuple(sorted(each, key=lambda a: -a.saves)[:MOST]) for number, each in found.items()
    }


Pair = tuple[int, int]


@final
class Flows:
    """The arrays that one step makes and another reads, perhaps by a view, by both steps."""

    def __init__(self, program: Program) -> None:
        self.between: dict[Pair, list[Var]] = {}
        self.returned = set(program.graph.outputs)
        self.makers: dict[Var, int] = {}
        for step, read in base_reads(program):
            for v in read:
                if v in self.makers:
                    self.between.setdefault((self.makers[v], step.number), []).append(v)
            self.makers.update(dict.fromkeys(step.eqn.outs, step.number))

    def saved(self, v: Var, first: int, second: int) -> int:
        """The bytes of an array that one kernel in place of two need not read, or write either."""
        readers = [b for (_, b), arrays in self.between.items() if v in arrays]
        kept = self.makers.get(v) != first or readers != [second] or v in self.returned
        return v.type.nbytes * (1 if kept else 2)


def base_reads(program: Program) -> Iterator[tuple[Step, list[Var]]]:
    """Each step that is no view, and the arrays that it reads, whatever view of them."""
    bases: dict[Var, Var] = {}
    for step in program.steps:
        found = dict.fromkeys(bases.get(a, a) for a in step.eqn.inputs if isinstance(a, Var))
        if step.kind == "view" and found:
            bases.update(dict.fromkeys(step.eqn.outs, next(iter(found))))
        else:
            yield step, [v for v in found if not v.type.weak]


def shared_reads(program: Program) -> dict[Pair, list[Var]]:
    """The arrays that two regions read, one after the other, by both."""
    last: dict[Var, int] = {}
    found: dict[Pair, list[Var]] = {}
    for step, read in base_reads(program):
        for v in read if is_loop(step.eqn.op) else ():
            if v in last and v.type.size > 1:
                found.setdefault((last[v], step.number), []).append(v)
            last[v] = step.number
    return found


def reasons(entry: Entry, executable: Executable) -> Callable[[Eqn, Eqn], str] | None:
    """A function that gives the reason why two equations of a program are two, in words: regions
    are formed once more.
    """
    device = executable.device
    how = how_to_make(entry.title, device, executable.donated, entry.writes, entry.iotas())
    graph, known = entry.graph, None
    for name, after in how.stages(entry.graph):
        if name == "fuse":
            known = Reasons(graph, how.context)
        graph = after
    if graph != executable.graph:
        return None
    pairs = zip(executable.graph.eqns, graph.eqns, strict=True)
    same = {v: w for one, other in pairs for v, w in zip(one.outs, other.outs, strict=True)}

    def why(first: Eqn, second: Eqn) -> str:
        if isinstance(second.choice, Choice):  # of a product and a region as one kernel
            for refused in second.choice.refused:
                if not refused.other:
                    return refused.refusal
        if known is None:
            return "fuse is switched off"
        return known.between(*([same[v] for v in eqn.outs] for eqn in (first, second))) or PARTED

    return why


PARTED: Final = "a region was parted here, after it was formed"


# -------- The reasons why two steps of a program are two: what the fusion pass has against one
# region of both.
# Nobody pays for it who does not ask: the groups are formed once more.


HELD = "regions hold elementwise work, views and reductions"
ORDER = "regions are formed in the program's order, and did not fit when these were"


@final
class Reasons:
    """The reasons why a graph's values are not part of one region; the graph is that before regions
    are formed.

    >>> import numpy as np
    >>> from ge2 import make_jaxpr
    >>> graph = make_jaxpr(lambda x: np.tanh(np.sort(x)))(np.ones(9)).graph
    >>> first, second = (eqn.outs for eqn in graph.eqns)
    >>> Reasons(graph).between(first, second)
    'sort is a kernel of its own: regions hold elementwise work, views and reductions'
    """

    def __init__(self, graph: Graph, context: Context = NOTHING) -> None:
        self.fusion = gathered(graph, context)
        self.makers = makers_of(graph)

    def between(self, first: Iterable[Var], second: Iterable[Var]) -> str:
        """The reason why the steps that make these values are two; "" if nothing is known of it."""
        a, b = self.groups(second), self.groups(first)
        lone = [v for v in (*first, *second) if v in self.makers and self.fusion.group(v) is None]
        if lone:
            return single(self.makers[lone[0]])
        pairs = [(one, other) for one in a for other in b if one is not other]
        return next((self.of_groups(*pair) for pair in pairs), "")

    def between_them(self, a: Group, b: Group) -> Iterator[Eqn]:
        """Equations of no group that read from `b` and are read by `a`."""
        for eqn in self.makers.values():
            alone = self.fusion.group(eqn.outs[0]) is None
            read = alone and not a.embed.keys().isdisjoint(eqn.outs)
            if read and not b.made.isdisjoint(self.fusion.bases(eqn)):
                yield eqn

    def groups(self, values: Iterable[Var]) -> list[Group]:
        found = (self.fusion.group(v) for v in values)
        return list(dict.fromkeys(g for g in found if g is not None))

    def of_groups(self, a: Group, b: Group) -> str:
        """The reason that keeps `a`, which runs later, from taking in `b`."""
        found = self.fusion.apart(a, b)
        if found:
            inside = next(self.between_them(a, b), None) if found == BETWEEN else None
            return found if inside is None else f"between them, {single(inside)}"
        names = merged(a, b)
        if names is None:
            return f"{over(b)} and {over(a)} are not one loop"
        axes, _, whole = joint(a, b, names)
        if too_large(axes, whole, self.fusion.tuning):
            return f"{over(b)} would be held whole, which is too long: a sum over it is read inside"
        return ORDER


def over(group: Group) -> str:
    """The space of a group in words."""
    return f"a loop over {'x'.join(map(str, group.axes.values())) or 'one element'}"


def single(eqn: Eqn) -> str:
    """The reason why an equation is in no region."""
    name, op = eqn.op.name, eqn.op
    if op.effect:
        return f"{name} has an effect, whose order is kept"
    if on_host(eqn):
        return f"{name} is computed of Python numbers, by the host"
    if isinstance(op, GraphOp):
        return f"{name} holds a program of its own"
    if isinstance(op, Pointlike) and eqn.outs[0].type.dtype in HALF:
        return f"{name} of {eqn.outs[0].type} is not computed in float32"
    if op.is_view:
        return f"{name} moves elements in a way that axes of a region do not tell"
    if fusible(eqn):
        return f"{name} stands alone here"
    return f"{name} is a kernel of its own: {HELD}"
