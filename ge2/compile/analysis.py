"""What a call of a program needs: bytes by what they are for, and work as JAX counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, final

from ge2.base.display import Printed
from ge2.base.formatting import size_words, table
from ge2.base.record import record
from ge2.ir import Var
from ge2.program.cost import Cost, bytes_behind, cost
from ge2.program.host_control_flow import passing
from ge2.program.program import END, Buffer, Program
from ge2.targets.c.load.outputs import COUNT, worth_keeping

if TYPE_CHECKING:
    from ge2.compile.memory_limit import Remat


@final
@record
class Memory(Printed):
    """Bytes of a call, besides those of library functions: a call allocates its
    outputs and nothing else.

    `arena` is scratch, allocated once for each call that runs at the same time;
    `arguments` and `outputs` count arrays and Python numbers; `donated` is that part of
    `outputs` that lies in the memory of donated arguments; `kept` is the most that
    stays in past results that nobody holds, for results of later calls; `passing` the
    most that lies at any time in results of branches and loops which Python runs;
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
        """What a call allocates at most: scratch and results, but for those in donated memory."""
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
    program: Program, arena: int, branches: Iterable[Memory] = (), remat: Remat | None = None
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
        kept=COUNT * sum(filter(worth_keeping, fresh)) + sum(m.kept for m in inner),
        repeated=0 if remat is None else sum(r.nbytes for r in remat.repeats),
        passing=passing(program) + max((m.passing for m in inner), default=0),
    )


def plan_text(program: Program, offsets: Mapping[str, int], arena: int) -> str:
    """The steps in order, and where each array lies and when it is needed: two tables."""
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
