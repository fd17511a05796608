"""A program cut into C functions and what Python does between them, compiled as one library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from ge2.base.compile_times import current, finding, had, spent
from ge2.base.locks import computed
from ge2.base.toolchain.compiler import Library, library
from ge2.ir import ArrayType, Var
from ge2.program.program import Program, Step
from ge2.targets.c.caps import Caps
from ge2.targets.c.compile_price import cheaper
from ge2.targets.c.load.blas import services
from ge2.targets.c.load.launcher import Array, Input, Number, Output, make_launcher
from ge2.targets.c.loops import IN_C
from ge2.targets.c.native import Native, Need, Segment, packed

BYTES = np.dtype(np.uint8)
LOADED = "nothing compiled: the same code is loaded for other sizes"
_loaded: set[str] = set()  # keys of libraries that serve a program of this process


@final
class Linked:
    """`whole` is the one segment of a program that needs nothing of Python but its own numbers.

    With `apart` there is none: Python makes its results, and hands it its scratch. With `singly`
    each step is a function of its own.
    """

    def __init__(
        self, program: Program, caps: Caps, title: str, apart: bool = False, singly: bool = False
    ) -> None:
        self.program, self.threads, self.singly = program, caps.threads, singly
        self.native = Native(program, caps, title)
        self.title = title
        self.known = False  # whether its library was loaded already
        self.parts: list[Segment | Step] = []
        self.unseen = unseen(program)
        self.whole: Segment | None = None
        if self.is_whole() and not apart:
            self.whole = self.native.segment(self.program.steps, direct=True)
        else:
            self.cut()

    @property
    def segments(self) -> list[Segment]:
        return [part for part in self.parts if isinstance(part, Segment)]

    def is_whole(self) -> bool:
        program = self.program
        if any(step.kind not in (*IN_C, "view", "host") for step in program.steps):
            return False
        if not any(step.kind in IN_C for step in program.steps):
            return False
        given = set(program.graph.inputs)
        storage = [
            program.buffers[v].storage
            for v in program.graph.outputs
            if isinstance(v, Var) and v not in given
        ]
        return set(storage) <= {"output", "host"}

    def cut(self) -> None:
        """Runs of steps in C; what Python computes stays between them, its
        own numbers come first.
        """
        early = self.early()
        self.parts += early
        run: list[Step] = []
        for step in self.program.steps:
            if step in early:
                continue
            if step.kind in IN_C:
                run.append(step)
                if self.singly:
                    self.close(run)
            elif step.kind == "view":
                run.append(step)
                if not self.unseen.issuperset(step.eqn.outs):
                    self.close(run)
                    self.parts.append(step)
            else:
                self.close(run)
                self.parts.append(step)
        self.close(run)

    def close(self, run: list[Step]) -> None:
        if any(step.kind in IN_C for step in run):
            self.parts.append(self.native.segment(run, direct=False))
        run.clear()

    def early(self) -> list[Step]:
        """Equations on Python numbers that need no other result."""
        known = {v for v in self.program.graph.inputs if v.type.weak}
        found = []
        for step in self.program.steps:
            inputs = {a for a in step.eqn.inputs if isinstance(a, Var)}
            if step.kind == "host" and inputs <= known:
                known |= {*step.eqn.outs}
                found.append(step)
        return found

    # -- compiling

    @computed
    def source(self) -> str:
        return self.native.source()

    @computed
    def library(self) -> Library:
        symbol = next(run.name for run in self.native.runs if not run.inner)
        source, usual = self.source, () if services().whole else ("-DGE2_NO_BLAS",)
        flags = cheaper(self.title, self.native, source, usual)
        with spent("compile"), finding() as noted:
            found = library(source, self.title, flags, symbol=symbol, alone=True)
        tally = current()
        if tally is not None:
            tally.kernels.append(had(f"{self.title}, a C library", noted))
        self.known = found.key in _loaded
        _loaded.add(found.key)
        return found

    @property
    def how(self) -> str:
        if not self.native.runs:
            return "nothing compiled: it has no kernels"
        found = self.library
        if self.known:
            return LOADED
        return "found in the cache" if found.cached else f"compiled in {found.seconds:.2f} s"

    def launcher(self, segment: Segment, arena: int, offsets: Mapping[int, int]) -> Any:
        """The segment as a function of arrays."""
        sizes = [offsets[id(n)] if isinstance(n, Need) else n for n in segment.sizes]
        return make_launcher(
            self.library.address(segment.name), self.inputs(segment), self.outputs(segment), sizes=sizes,
            numbers=packed(segment.constants), arena=arena, threads=self.threads, lines=self.native.sources,
            heavy=segment.work >= self.native.tuning.files.heavy, owner=self.library,
        )  # fmt: skip

    def inputs(self, segment: Segment) -> list[Input]:
        if not segment.direct:
            return [
                *(
                    Array(BYTES, (a.nbytes,), True)
                    if isinstance(a, Need)
                    else array(a.type, i in segment.written)
                    for i, a in enumerate(segment.arrays)
                ),
                *(number(v.type) for v in segment.hosts),
            ]
        return [number(v.type) if v.type.weak else array(v.type) for v in self.given(segment)]

    def given(self, segment: Segment) -> list[Var]:
        """Returns what a whole program is called with: arguments that C reads, then
        what Python makes of others.
        """
        inputs = [v for v in self.program.graph.inputs if not v.type.weak or v in segment.hosts]
        later = [v for v in segment.hosts if v not in set(inputs)]
        return [*inputs, *self.native.computed(segment.steps), *later]

    def outputs(self, segment: Segment) -> list[Output]:
        if not segment.direct:
            return []
        buffers = self.program.buffers
        names = {buffers[v].name: i for i, v in enumerate(self.given(segment))}
        found = []
        for v in outputs(self.program):
            donor, written = buffers[v].donor, buffers[v].written
            found.append(
                Output(v.type.dtype, v.type.shape, names[donor] if donor else -1, written=written)
            )
        return found


def outputs(program: Program) -> list[Var]:
    """The results that a launcher makes, each once."""
    made = [
        v
        for v in program.graph.outputs
        if isinstance(v, Var) and program.buffers[v].storage == "output"
    ]
    return list(dict.fromkeys(made))


def unseen(program: Program) -> frozenset[Var]:
    """Views that only C reads."""
    seen = {v for v in program.graph.outputs if isinstance(v, Var)}
    for step in reversed(program.steps):
        python = step.kind not in (*IN_C, "view")
        if python or (step.kind == "view" and not seen.isdisjoint(step.eqn.outs)):
            seen |= {a for a in step.eqn.inputs if isinstance(a, Var)}
    views = {v for step in program.steps if step.kind == "view" for v in step.eqn.outs}
    there = {v for v in views if program.buffers[v].storage == "output"}  # made in that form
    return frozenset(views - seen | there)


def array(t: ArrayType, written: bool = False) -> Array:
    return Array(t.dtype, t.shape, written)


def number(t: ArrayType) -> Number:
    return Number({"b": "b", "i": "i", "u": "i", "f": "f", "c": "c"}.get(t.dtype.kind, "f"))
