"""A benchmark of one step in C: each candidate as a C function of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, final

from ge2.base.compiler import Library, library
from ge2.choice import Problem
from ge2.choice.bench import GUARD, Bench, Images, Prepared, Run, copied
from ge2.choice.choose import Candidate, Choice
from ge2.program import Buffer, Program, Step
from ge2.program.assembler import Clock, HostClock
from ge2.targets.c.families import FAMILIES
from ge2.targets.c.launcher import Array, make_launcher
from ge2.targets.c.libraries import services
from ge2.targets.c.linked import BYTES, number
from ge2.targets.c.loops import Segment
from ge2.targets.c.native import Native, packed
from ge2.targets.c.tuning import Caps


@final
class CBench(Bench):
    """`caps`: those of the program."""

    def __init__(self, program: Program, step: Step, caps: Caps) -> None:
        super().__init__(program, step, FAMILIES, caps)
        self.texts: dict[str, tuple[Native, Segment, Callable[[], Library]]] = {}  # by title

    @property
    def problem(self) -> Problem:
        return Native(self.program, self.caps, "tuning").problem(self.step)

    @property
    def clock(self) -> Clock:
        return HostClock()

    def put(self, memory: Any) -> Any:
        return copied(memory)

    def get(self, memory: Any) -> Any:
        return memory

    def written(self, candidate: Candidate) -> tuple[Native, Segment, Callable[[], Library]]:
        """A candidate as text, and what compiles it."""
        native = Native(self.program, self.caps, f"tuning of {candidate.title}")
        chosen = Choice(self.problem, candidate, (), self.caps, self.catalog)
        step = replace(self.step, eqn=replace(self.step.eqn, choice=chosen))
        segment = native.segment((step,), direct=False)
        options = () if services().whole else ("-DGE2_NO_BLAS",)
        made = partial(library, native.source(), native.title, options, symbol=segment.name)
        return native, segment, made

    def ahead(self, candidate: Candidate) -> Run:
        self.texts[candidate.title] = found = self.written(candidate)
        return found[2]

    def prepared(self, candidate: Candidate) -> Prepared:
        """CompilerTrouble if the compiler refuses it."""
        ahead = self.texts.pop(candidate.title, None)
        native, segment, made = ahead or self.written(candidate)
        found = made()
        code = *native.texts, *segment.calls, *segment.sizes
        return Prepared(code, partial(self.bound, native, segment, found))

    def bound(
        self, native: Native, segment: Segment, found: Any, memory: dict[int, Any], images: Images
    ) -> Run:
        """The function in memory: arrays by their buffers, scratch of its own."""
        given, inputs = list[Any](), list[Any]()
        for each in segment.arrays:
            nbytes = each.type.nbytes if isinstance(each, Buffer) else each.nbytes
            inputs.append(Array(BYTES, (nbytes,), True))
            if isinstance(each, Buffer):
                given.append(memory[id(each)][GUARD:][:nbytes])
            else:
                given.append(self.scratch(memory, nbytes))
        inputs += [number(v.type) for v in segment.hosts]
        given += [images.numbers[v] for v in segment.hosts]
        assert all(isinstance(n, int) for n in segment.sizes)
        call = make_launcher(
            found.address(segment.name), inputs, [], sizes=segment.sizes,  # type: ignore[arg-type]
            numbers=packed(segment.constants), threads=self.caps.threads, lines=native.sources,
            heavy=True, owner=found,
        )  # fmt: skip
        return partial(call, *given)
