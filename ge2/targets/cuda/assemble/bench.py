"""A benchmark of one step on a GPU: the launches of each candidate by themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ge2.base.record import computed
from ge2.choice import Problem
from ge2.choice.bench import GUARD, NOTHING, Bench, Images, Prepared, Run, copied
from ge2.choice.choose import Candidate, Choice
from ge2.ir import Var
from ge2.program import Program, Step
from ge2.program.assembler import Clock, HostClock
from ge2.targets.cuda.assemble import CudaAssembler
from ge2.targets.cuda.assemble.steps import KernelStep
from ge2.targets.cuda.device import Caps, Device, download
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.launch import Address, itself
from ge2.targets.cuda.launch.template import Group, rebound


class CudaBench(Bench):
    """On a GPU, or on the CPU that runs kernels in its place."""

    def __init__(self, program: Program, step: Step, device: Device) -> None:
        super().__init__(program, step, FAMILIES, Caps.of(device))
        self.device = device
        self.texts: dict[str, tuple[CudaAssembler, KernelStep]] = {}  # written ahead, by title
        self.uploaded: dict[int, Any] = {}  # what memory holds before a run, by the buffer
        self.uploaded_of: Images | None = None

    def assembler(self) -> CudaAssembler:
        found = CudaAssembler(self.program, "tuning", self.device, {})
        found.begin()
        return found

    @computed
    def problem(self) -> Problem:
        return self.assembler().problem(self.step)

    @computed
    def clock(self) -> Clock:
        return clock_of(self.device, False)

    @computed
    def colds(self) -> tuple[Clock, ...]:
        return (clock_of(self.device, True),) if self.device.xp is not np else ()

    def put(self, memory: Any) -> Any:
        if self.device.xp is not np:
            return self.device.xp.array(memory)
        return copied(memory)

    def blank(self, nbytes: int) -> Any:
        if self.device.xp is np:
            return super().blank(nbytes)
        return self.device.xp.full(nbytes + 2 * GUARD, NOTHING, np.uint8)

    def get(self, memory: Any) -> Any:
        return download(memory)

    def before(self, images: Images) -> dict[int, Any]:
        """The memory before a run, on the device: candidates are given copies, and compared there."""
        if self.uploaded_of is not images:
            self.uploaded.clear()
            self.uploaded = {n: self.put(memory) for n, memory in images.bytes.items()}
            self.uploaded_of = images
        return self.uploaded

    def memory(self, images: Images) -> dict[int, Any]:
        return {n: self.put(memory) for n, memory in self.before(images).items()}

    def is_same(self, images: Images, memory: dict[int, Any], n: int) -> bool:
        return bool((memory[n] == self.before(images)[n]).all())

    def here(self) -> AbstractContextManager[Any]:
        return self.device.here()

    def written(self, candidate: Candidate) -> tuple[CudaAssembler, KernelStep]:
        """A candidate as text."""
        assembler = self.assembler()
        chosen = Choice(self.problem, candidate, (), self.caps, self.catalog)
        step = replace(self.step, eqn=replace(self.step.eqn, choice=chosen))
        code = KernelStep(assembler, step)
        assembler.kernels.write()
        return assembler, code

    def ahead(self, candidate: Candidate) -> Run:
        self.texts[candidate.title] = found = self.written(candidate)
        return partial(self.device.prepare, found[0].kernels.texts)

    def prepared(self, candidate: Candidate) -> Prepared:
        """CompileError if the compiler refuses it."""
        ahead = self.texts.pop(candidate.title, None)
        assembler, code = ahead or self.written(candidate)
        texts, kernels = assembler.kernels.texts, assembler.kernels.load(self.device)
        of_library = any(getattr(each, "of_library", False) for each in code.launches)
        launches = *texts, *map(str, code.launches), candidate.title if of_library else ""
        return Prepared(launches, partial(self.bound, assembler, code, kernels))

    def bound(
        self,
        assembler: CudaAssembler,
        code: KernelStep,
        kernels: list[Any],
        memory: dict[int, Any],
        images: Images,
    ) -> Run:
        """The launches in memory: what lies in the arena of the program is an array by itself."""

        def apart(a: Any) -> Any:
            return replace(a, in_arena=False) if isinstance(a, Address) else a

        group = Group(0, launches=[rebound(each, apart, itself) for each in code.launches])
        run = group.run(self.device, kernels, {}, (frozenset(), itself), {})
        names = {assembler.holder(b): memory[n][GUARD:] for n, b in images.buffers.items()}
        names |= {name: self.scratch(memory, life.nbytes) for name, life in code.needs.items()}
        known = assembler.names | numbers_of(assembler, images)
        given = [names[name] if name in names else known[name] for name in group.bases]
        return partial(run, *given, *(eval(each.text, known) for each in group.numbers))


def numbers_of(assembler: CudaAssembler, images: Images) -> dict[str, Any]:
    """The numbers that a step reads, by name: Python's, and those of a type that the host computes."""
    found = {assembler.name(a): x for a, x in images.numbers.items() if isinstance(a, Var)}
    for a, x in zip(images.eqn.inputs, images.inputs, strict=True):
        if isinstance(a, Var) and x is not None and x.buffer.storage == "host":
            found[assembler.name(a)] = x.of(images.bytes[id(x.buffer)])[()]
    return found


def clock_of(device: Device, cold: bool) -> Clock:
    """Returns what times launches: events on a GPU, with its L2 cache overwritten before if `cold`."""
    if device.xp is np:
        return HostClock()
    from ge2.targets.cuda.load.gpu import EventClock

    return EventClock(device, cold)  # type: ignore[arg-type]
