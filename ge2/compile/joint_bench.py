"""Steps that a pass has made one kernel on a bench: that kernel, and a program of the steps apart."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, final

import numpy as np

from ge2.base.config import config
from ge2.base.locks import computed
from ge2.choice.bench import Images, Prepared, Run
from ge2.choice.choose import Candidate, Choice
from ge2.choice.problem import Problem
from ge2.choice.record import code_of
from ge2.compile.executable import Executable
from ge2.program.program import Program, Step
from ge2.targets.cuda.bench import CudaBench
from ge2.targets.cuda.device import Device, download, upload
from ge2.targets.cuda.kernels.apart import Apart, OneByOne


@final
class JointBench(CudaBench):
    """The problem is that for which the pass chose: what the record has of it decides there."""

    def __init__(self, program: Program, step: Step, device: Device, choice: Choice) -> None:
        super().__init__(program, step, device)
        self.choice, self.catalog = choice, choice.catalog

    @property
    def problem(self) -> Problem:
        return self.choice.problem

    def chosen(self, candidate: Candidate) -> Candidate:
        """The kernel as the program has it: worked out for its own values."""
        own = self.choice.taken
        return own if own.title == candidate.title else candidate

    def code(self, candidate: Candidate) -> str:
        variant, settled = self.chosen(candidate).variant, self.assembler().problem(self.step)
        family = candidate.family
        return family.code or code_of(family.kernels(settled, variant, self.caps))

    def settings(self) -> AbstractContextManager[Any]:
        """The settings of the steps apart."""
        joining = [pass_ for f in self.catalog if isinstance(f, Apart) for pass_ in f.joining]
        off, tune = (*config.passes_off, *joining), "off" if config.tune == "off" else "cached"
        if isinstance(self.catalog[-1], OneByOne):  # of which each may be a kernel with more
            without = (f"-{family.name}" for family in self.catalog[:-1])
            return config.using(prefer=(*config.prefer, *without), tune=tune)
        return config.using(passes_off=off, tune=tune)

    @computed
    def apart(self) -> Executable:
        """The program of the steps."""
        from ge2.compile.compile import compile_graph

        op: Any = self.step.eqn.op
        with self.settings():
            return compile_graph(op.graph, name="apart", device=self.device)

    def ahead(self, candidate: Candidate) -> Run:
        if not isinstance(candidate.family, Apart):
            return super().ahead(self.chosen(candidate))
        with self.settings():
            text: Any = self.apart.unbuilt()
        return partial(self.device.prepare, text.kernels.texts)

    def prepared(self, candidate: Candidate) -> Prepared:
        if not isinstance(candidate.family, Apart):
            return super().prepared(self.chosen(candidate))
        with self.settings():
            self.apart.build()
        return Prepared(("apart",), partial(self.bound_apart, self.apart))

    def bound_apart(self, executable: Executable, memory: dict[int, Any], images: Images) -> Run:
        """A call of the program; the first writes its results to where the kernel has them."""
        given = [upload(self.device, x) if isinstance(x, np.ndarray) else x for x in images.given()]
        seen: list[bool] = []

        def run() -> None:
            results = executable(*given)
            if seen:
                return
            seen.append(True)
            hosts = {id(x.buffer): images.bytes[id(x.buffer)].copy() for x in images.outs}
            for x, y in zip(images.outs, results, strict=True):
                x.of(hosts[id(x.buffer)])[...] = download(y).view(x.type.dtype)
            for n, host in hosts.items():
                memory[n][...] = self.put(host)

        return run


def joint(program: Program, step: Step, device: Device) -> JointBench | None:
    """The bench of a step that a pass has made of several; None of any other."""
    choice = step.eqn.choice
    if not isinstance(choice, Choice) or not any(isinstance(f, Apart) for f in choice.catalog):
        return None
    return None if isinstance(choice.family, Apart) else JointBench(program, step, device, choice)
