"""The error of a program for which its GPU has no memory: what is largest,
where, and what would help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.errors import OutOfMemoryError
from ge2.base.formatting import size_words, table
from ge2.base.record import record
from ge2.compile.analysis import Memory, memory
from ge2.ir import Var
from ge2.program.program import Program
from ge2.program.timeline import Timeline

if TYPE_CHECKING:
    from ge2.compile.executable import Executable
    from ge2.compile.memory_limit import Smaller

SHOWN: Final = 8  # arrays that the error lists
MARGIN: Final = 0.95  # of what is free, which may lie in pieces


@final
@record
class Shortage:
    """What is known of a program, should its `device` run out of memory.

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
        from ge2.targets.cuda.assemble import GpuDriver  # which knows this module

        text = GpuDriver(self.program, self.device, self.title, self.branches, run=False).build()
        return memory(self.program, text.nbytes), Timeline(self.program, text.rooms(), text.nbytes)

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
