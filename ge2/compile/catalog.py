"""The families of kernels of each target, what runs a program made of them, and what its call needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from ge2.base.arrays import host, hush, python_type, restore
from ge2.base.config import config
from ge2.base.errors import BY_VALUES, InputError, OutOfMemoryError, locate
from ge2.base.record import mutable, record
from ge2.base.source import Printed, size_words, table
from ge2.choice import Problem, prefs
from ge2.choice.choose import Catalog, Choice, choose
from ge2.ir import ArrayType, Evaluate, Graph, Var, read
from ge2.passes.fold import compute, on_host
from ge2.program import END, Buffer, Cost, Inner, Program, bytes_behind, cost, passing
from ge2.program.assembler import Assembler
from ge2.program.timeline import Timeline
from ge2.targets import Library, Product
from ge2.targets.c.launcher import COUNT, worth_keeping
from ge2.targets.c.tuning import TUNING, Results
from ge2.trace.concrete import check_finite

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble.loops import Body
    from ge2.targets.cuda.device import Device

    class Remat(Protocol):
        """The values that a program computes again to need less memory."""

        @property
        def after(self) -> int: ...
        @property
        def repeats(self) -> Sequence[Any]: ...
        @property
        def lines(self) -> Sequence[str]: ...

    # of how many bytes there are, and how many are needed as it is
    Smaller = Callable[[int, int], Remat | None]


# -------- The families of kernels of each target, in the order of preference.


# kernels of users' for functions of theirs: whether each is preferred where nothing was measured
USER_KERNELS: dict[Any, bool] = {}
TARGETS = ("c", "cuda", "cpu")


@cache
def catalog_of(target: str) -> Catalog:
    """The families of a target, which is loaded when it is asked for; then
    NumPy's own functions.
    """
    library = (Product(), Library())
    if target == "cuda":
        from ge2.targets.cuda.families import FAMILIES as cuda

        return (*cuda, *library)
    from ge2.targets.c.families import BLOCKED, FAMILIES

    return (*(FAMILIES if target == "c" else BLOCKED), *library)


def caps_of(target: str) -> Any:
    """The limits of a target that are known before it is known which chip it is."""
    if target != "c":
        return None
    from ge2.targets.c.libraries import limits

    return limits(1)


def select(problem: Problem, catalog: Catalog | None = None) -> Choice:
    """The choice for a problem whose layouts are not settled: that of a
    family that serves its types.
    """
    target = problem.target
    return choose(
        problem, caps_of(target), prefs(), catalog_of(target) if catalog is None else catalog
    )


def family_names() -> tuple[str, ...]:
    """The names of all families of kernels, of every target."""
    from ge2.targets.c.loops import CLoop

    catalogs = (*map(catalog_of, TARGETS), joint_families())
    found = [family.name for each in catalogs for family in each]
    users = [each.name for k in USER_KERNELS for each in (k, k.gradient) if each is not None]
    return tuple(dict.fromkeys([*found, CLoop.name, *users]))


def joint_families() -> Catalog:
    """Families of several equations, which passes ask for a kernel."""
    from ge2.targets.cuda.families import CONTRACTIONS

    return CONTRACTIONS


def know_families() -> None:
    """InputError, with the nearest, for a name in the setting `prefer` that no family has."""
    for name in config.prefer:
        check_family(name.removeprefix("-").strip())


def check_family(name: str) -> None:
    """InputError, with the nearest, unless a family has the name."""
    known = family_names()
    if name not in known:
        from difflib import get_close_matches  # hardly ever needed

        nearest = get_close_matches(name, known, 1)
        fix = repr(nearest[0]) if nearest else "a name of ge2.kernels.families()"
        raise InputError(f"no family of kernels is called {name!r}", fix=fix)


# -------- Runners of a program: by the text that was written for it, by the references of its
# operations, or with a look at the results of each call.


EVALUATE = Evaluate()
ALIGNMENT = 64


class Runner(Protocol):
    """A program as a function of arrays."""

    def __call__(self, *arrays: Any) -> list[Any]: ...


@final
class Reference:
    """Op by op with the references: the oracle."""

    def __init__(self, graph: Graph, device: Device | None = None) -> None:
        self.graph, self.device = graph, device

    def __call__(self, *arrays: Any) -> list[Any]:
        found = interpret(self.graph, [*map(host, arrays)])
        results = [owned(y, a.type) for y, a in zip(found, self.graph.outputs, strict=True)]
        if self.device is None:
            return results
        from ge2.targets.cuda.device import upload

        return [
            y if a.type.weak else upload(self.device, y)
            for y, a in zip(results, self.graph.outputs, strict=True)
        ]


def interpret(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    """The results of a graph by its references; Python numbers stay Python numbers."""
    env: dict[Var, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for eqn in graph.eqns:
        xs = read(env, eqn.inputs)
        if on_host(eqn):
            env[eqn.outs[0]] = compute(eqn.op, eqn.outs[0].type, *xs)
            continue
        try:
            ys = EVALUATE.apply(eqn.op, xs)
        except BY_VALUES as error:
            locate(error, eqn.source)
            raise
        for var, y in zip(eqn.outs, ys, strict=True):
            env[var] = python_type(var.type.dtype)(y) if var.type.weak else y
    return read(env, graph.outputs)


def owned(y: Any, type_: ArrayType) -> Any:
    """A copy that the caller may keep and change; a Python number where the type is weak."""
    if type_.weak:
        return python_type(type_.dtype)(y)
    return np.array(y, type_.dtype, order="C", copy=True)


@final
class Blocked:
    """The text of a program, run.

    Each call has an arena of its own; those of past calls are used again.
    """

    __slots__ = ("arenas", "bind", "nbytes", "run")

    def __init__(self, assembler: Assembler) -> None:
        self.run: Callable[..., list[Any]] = assembler.names["run"]
        self.bind: Callable[[Any], tuple[Any, ...]] = assembler.names["bind"]
        self.nbytes = assembler.arena.nbytes
        self.arenas: list[tuple[Any, ...]] = []

    def __call__(self, *arrays: Any) -> list[Any]:
        try:
            bound = self.arenas.pop()
        except IndexError:
            bound = self.bind(aligned(self.nbytes))
        loud = hush()
        try:
            return self.run(bound, *arrays)
        finally:
            restore(loud)
            self.arenas.append(bound)


@final
@mutable
class Watched:
    """A program, each of whose calls is followed by a look at its results."""

    run: Runner
    graph: Graph
    title: str

    def __call__(self, *arrays: Any) -> list[Any]:
        results = self.run(*arrays)
        check_finite(self.graph, arrays, results, self.title)
        return results


def runner(assembler: Assembler) -> Runner:
    return assembler.built.direct or Blocked(assembler)


def inner_of(assembler: Assembler) -> Inner:
    """A program as part of another one."""
    if assembler.built.direct is not None:
        return Inner.alone(assembler.built.direct)
    return Inner(assembler.arena.nbytes, assembler.names["bind"], assembler.names["run"])


def aligned(nbytes: int) -> Any:
    """Bytes that begin at a cache line."""
    whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + nbytes]


def manner(run: Any) -> str:
    """The calls of a group of launches so far, in words."""
    if run.counts is None:
        return "launched one by one, from Python"
    calls, one_by_one, graphs, patched = run.counts
    said = [
        f"{one_by_one} of {calls} calls one by one",
        f"{graphs} captured graphs",
        f"{patched} patches",
    ]
    nodes, anew = run.choices
    if nodes:
        said += [
            f"{nodes} conditional nodes" if graphs else f"{nodes} loops and branches by the host"
        ]
    if anew:
        said += [f"{anew} graphs made anew"]
    if graphs and run.early:
        said += [f"{run.early} waits overlapped"]
    if run.whole:
        said += [f"none overlapped, for {run.whole}"]
    return ", ".join(said) + (f"; no graph, for {run.trouble}" if run.trouble else "")


# -------- The needs of a call of a program: bytes by what they are for, and work as JAX counts it.


@final
@record
class Memory(Printed):
    """Bytes of a call, besides those of library functions: a call allocates its
    outputs and nothing else.

    `arena` is scratch, allocated once for each call that runs at the same time;
    `arguments` and `outputs` count arrays and Python numbers; `donated` is that part of
    `outputs` that is in the memory of donated arguments; `kept` is the most that
    stays in past results that nobody holds, for results of later calls; `passing` the
    most that is at any time in results of branches and loops which Python runs;
    `repeated` is what is computed again instead of waiting in the arena, for the sake
    of a memory limit; `code` the machine code, each executable's as if it had it alone.
    """

    arena: int
    arguments: int
    outputs: int
    donated: int = 0
    kept: int = 0
    repeated: int = 0
    passing: int = 0
    code: int = 0

    @property
    def peak(self) -> int:
        """The bytes that a call allocates at most: scratch and results, but for those in donated
        memory.
        """
        return self.arena + self.passing + self.outputs - self.donated

    @property
    def temp_size_in_bytes(self) -> int:
        """`arena` and `passing`; this and the next four are JAX's names."""
        return self.arena + self.passing

    @property
    def argument_size_in_bytes(self) -> int:
        return self.arguments

    @property
    def output_size_in_bytes(self) -> int:
        return self.outputs

    @property
    def alias_size_in_bytes(self) -> int:
        return self.donated

    @property
    def generated_code_size_in_bytes(self) -> int:
        return self.code

    def __str__(self) -> str:
        parts = (
            "arguments",
            "outputs",
            "donated",
            "arena",
            "kept",
            *(name for name in ("passing", "repeated") if getattr(self, name)),
        )
        return ", ".join(f"{name} {size_words(getattr(self, name))}" for name in parts)


def memory(
    program: Program,
    arena: int,
    branches: Iterable[Memory] = (),
    remat: Remat | None = None,
    results: Results = TUNING.results,
) -> Memory:
    """The memory of a program whose arena, and that of what it runs, has so many bytes."""
    graph, buffers, inner = program.graph, program.buffers, list(branches)
    made = [buffers[v] for v in dict.fromkeys(graph.outputs) if isinstance(v, Var)]
    fresh = [b.type.nbytes for b in made if b.storage == "output" and not b.donor]
    return Memory(
        arena=arena,
        arguments=sum(v.type.nbytes for v in graph.inputs),
        outputs=sum(a.type.nbytes for a in graph.outputs),
        donated=sum(b.type.nbytes for b in made if b.donor),
        kept=COUNT * sum(n for n in fresh if worth_keeping(n, results))
        + sum(m.kept for m in inner),
        repeated=0 if remat is None else sum(r.nbytes for r in remat.repeats),
        passing=passing(program) + max((m.passing for m in inner), default=0),
    )


def plan_text(program: Program, offsets: Mapping[str, int], arena: int) -> str:
    """The steps in order, and the offset of each array and when it is needed: two tables."""
    steps = [("step", "how", "what", "from")]
    for step in program.steps:
        place = "" if step.eqn.source is None else str(step.eqn.source)
        steps.append((str(step.number), step.kind, step.name, place))
    lines = [("array", "type", "bytes", "where", "offset", "needed")]
    for b in program.buffers.values():
        where = f"in {b.base.name}" if b.base is not None else taking(b) if b.donor else b.storage
        begin, end = (
            "the call" if b.first < 0 else str(b.first),
            "its end" if b.last >= END else str(b.last),
        )
        at = str(offsets[b.name]) if b.name in offsets else ""
        lines.append((b.name, str(b.type), str(b.type.nbytes), where, at, f"{begin} to {end}"))
    head = f"{len(program.steps)} steps for {program.target}; arena of {size_words(arena)}"
    return "\n\n".join([head, table(steps), table(lines, right=frozenset((2, 4)))])


def taking(b: Buffer) -> str:
    """Whose memory a result takes, in words."""
    return f"argument {b.donor}, written" if b.written else f"donated {b.donor}"


def cost_analysis(program: Program) -> dict[str, float]:
    """The operations and bytes of a call, under the names that JAX gives them."""
    read = partial(bytes_behind, program.layouts)
    found = sum(
        (cost(step.eqn, read) for step in program.steps if step.kind not in ("view", "host")),
        Cost(),
    )
    return {
        "flops": float(found.flops),
        "transcendentals": float(found.transcendentals),
        "bytes accessed": float(found.read + found.written),
    }


# ----------------------------------------------------------------------------------- out of memory
# The error of a program for which its GPU has no memory: what is largest,
# where, and what would help.


SHOWN: Final = 8  # arrays that the error lists
MARGIN: Final = 0.95  # of what is free, which may be in pieces


@final
@record
class Shortage:
    """The facts of a program for an error, should its `device` run out of memory.

    `smaller` says what it would compute again to fit into so many bytes, given its peak; it is None
    itself for a program with a limit.
    """

    title: str
    program: Program
    device: Any
    branches: Mapping[int, Sequence[Body]]
    smaller: Smaller | None

    def error(self, trouble: BaseException) -> OutOfMemoryError:
        """The error of a call that failed. What it had, and what is idle, is given back."""
        clear_frames(trouble.__traceback__)  # where its results and its scratch are held
        self.device.scratch.spare()
        free, total = self.device.memory()
        needed, timeline = self.planned()
        name = getattr(self.device.limits, "name", "the GPU")
        said = f"a call takes {size_words(needed.peak)} for scratch and results"
        has = f"{name} has {size_words(free)} free of {size_words(total)}"
        parts = [
            f"{self.title} finds no memory: {said}; {has}",
            f"  {trouble}".rstrip(),
            *largest(timeline),
        ]
        return OutOfMemoryError("\n".join([*parts, f"  {needed}"]), fix=self.remedy(needed, free))

    def planned(self) -> tuple[Memory, Timeline]:
        from ge2.targets.cuda.assemble import CudaAssembler  # which knows this module

        text = CudaAssembler(
            self.program, self.title, self.device, self.branches, run=False
        ).build()
        arena = text.arena
        return memory(self.program, arena.nbytes), Timeline(
            self.program, arena.rooms(), arena.nbytes
        )

    def remedy(self, needed: Memory, free: int) -> str:
        if needed.peak <= free * MARGIN:
            return "the call again: memory was given back since"
        limit = int(free * MARGIN)
        found = None if self.smaller is None else self.smaller(limit, needed.peak)
        if found is not None and found.repeats:
            again = (
                f"computes {', '.join(found.lines[:3])} again, as ge2.checkpoint around that would"
            )
            return f"memory_limit={size_words(limit)!r} in jit: about {size_words(found.after)} do if it {again}"
        less = (
            "smaller arrays"
            if self.smaller is not None
            else "a smaller memory_limit or smaller arrays"
        )
        return f"{less}, or donate_argnums for arguments that are not used again{spare_arguments(self.program)}"


def largest(timeline: Timeline) -> list[str]:
    """The largest arrays at the fullest step, as lines."""
    if timeline.fullest < 0:
        return []
    rows = timeline.at(timeline.fullest)
    head = f"  the largest arrays at {timeline.step(timeline.fullest)}, where most is in use:"
    lines = [(f"    {r.title}", size_words(r.nbytes), r.kind, r.line) for r in rows[:SHOWN]]
    rest = rows[SHOWN:]
    if rest:
        lines.append((f"    {len(rest)} more", size_words(sum(r.nbytes for r in rest)), "", ""))
    return [head, *table(lines, frozenset((1,))).split("\n")]


def spare_arguments(program: Program) -> str:
    """Arguments that are not donated but could be: of the type of a
    result that has memory of its own.
    """
    buffers = program.buffers
    made = [buffers[v] for v in dict.fromkeys(program.graph.outputs) if isinstance(v, Var)]
    donors = {b.donor for b in made}
    wanted = {(b.type.shape, b.type.dtype) for b in made if b.storage == "output" and not b.donor}
    inputs = [buffers[v] for v in program.graph.inputs if not v.type.weak]
    found = [b for b in inputs if b.name not in donors and (b.type.shape, b.type.dtype) in wanted]
    return f", as {', '.join(f'{b.name}:{b.type}' for b in found[:3])}" if found else ""
