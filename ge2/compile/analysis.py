"""The needs of a call of a program: bytes by what they are for, and work as JAX counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.errors import OutOfMemoryError
from ge2.base.formatting import Printed, size_words, table
from ge2.base.record import record
from ge2.ir import Var
from ge2.program.cost import Cost, bytes_behind, cost
from ge2.program.program import END, Buffer, Program, passing
from ge2.program.timeline import Timeline
from ge2.targets.c.load.outputs import COUNT, worth_keeping
from ge2.targets.c.tuning import TUNING, Results

if TYPE_CHECKING:
    from ge2.compile.executable import Executable
    from ge2.compile.memory.limit import Remat, Smaller


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
    branches: Mapping[int, Sequence[Executable]]
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
