"""A program's launches in groups as they are written, and the lines of Python between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from ge2.base.record import record
from ge2.codegen.layout import Line
from ge2.ir import Eqn
from ge2.program.program import Program
from ge2.program.records import place
from ge2.program.timer import Call
from ge2.targets.cuda.launch.template import Group

if TYPE_CHECKING:
    from ge2.targets.cuda.emit.file import Source
    from ge2.targets.cuda.steps.code import CudaStep


@final
@record
class Assembled:
    """A program that is assembled, as what calls it in C, or as a loop's body, needs to know it.

    `computed`: the lines that compute numbers. `sources`: those of its kernels.
    """

    program: Program
    parts: Sequence[Line | Group]
    computed: Sequence[Line]
    names: dict[str, Any]
    nbytes: int  # of the arena
    offsets: Mapping[str, int]  # in it
    sources: Sequence[Source]

    @property
    def groups(self) -> list[Group]:
        return [part for part in self.parts if isinstance(part, Group)]

    @property
    def numbers(self) -> bool:
        """True if it takes or returns Python numbers."""
        graph = self.program.graph
        return any(a.type.weak for a in (*graph.inputs, *graph.outputs))


@final
class Groups:
    """`timed`: the name of what times a call, if somebody wants to know: each launch is then a group.

    `apart`: whether the next launch begins a group. `splits`: after so many groups, what no graph
    holds.
    """

    def __init__(self, timed: Callable[[Call], str] | None) -> None:
        self.timed = timed
        self.parts: list[Line | Group] = []
        self.splits: list[tuple[int, str]] = []
        self.apart = False

    def __iter__(self) -> Iterator[Group]:
        return (part for part in self.parts if isinstance(part, Group))

    def current(self) -> Group:
        """That which the next launch is part of."""
        last = self.parts[-1] if self.parts else None
        alone = self.apart or (self.timed is not None and isinstance(last, Group) and last.launches)
        if isinstance(last, Group) and not alone:
            return last
        self.apart = False
        found = Group(len([*self]))
        self.parts.append(found)
        return found

    def add(self, code: CudaStep) -> None:
        """Adds the launches and lines of a step."""
        if code.computed or code.before:
            self.current().before += [*code.computed, *code.before]
        if self.timed is not None:
            for launch, call in zip(code.launches, code.calls, strict=True):
                group = self.current()
                group.launches.append(launch)
                group.through = self.timed(call)
        elif code.launches:
            self.current().launches += code.launches
        if code.split:
            self.split(code.step.eqn, code.split)
        self.parts += code.lines

    def split(self, eqn: Eqn, why: str) -> None:
        where = place(eqn)
        words = f"{eqn.op.name}, {why}" + (f", at {where}" if where else "")
        self.splits.append((sum(bool(g.launches) for g in self), words))

    def lines(self, first: int = 0) -> list[Line]:
        """The text, from a part on."""
        parts = self.parts[first:]
        return [x for p in parts for x in (p.lines() if isinstance(p, Group) else [p])]
