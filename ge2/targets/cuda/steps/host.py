"""Steps of a program for a device that are no kernels of ours: of Python, the
array module, the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, final

from ge2.codegen.layout import Line
from ge2.ops.shape import Constant
from ge2.program.program import Inner, Step
from ge2.program.program import hosted as by_python
from ge2.targets.cuda.cupy_fallback import by_arrays, serves
from ge2.targets.cuda.device import empty
from ge2.targets.cuda.device_arrays import elsewhere
from ge2.targets.cuda.steps.code import CudaStep

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


@final
class HostStep(CudaStep):
    """A number that Python computes; an array of the device only where something asks for one.

    It needs nothing that was launched.
    """

    def __init__(self, assembler: CudaAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        (out,) = step.eqn.outs
        found = assembler.host_number(step)
        if out in assembler.numbers.strong:
            found = f"{assembler.numbers.narrowing(out.type.dtype)}({found})"
        elif not out.type.weak:
            found, self.uploads = f"upload({found})", True
        self.computed.append(Line(f"{assembler.name(out)} = {found}"))


@final
class LibraryStep(CudaStep):
    """What the array module or the reference computes; loops and branches, with bodies on the
    device; constants, which are there from the start.
    """

    def __init__(self, assembler: CudaAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        eqn = step.eqn
        outs = ", ".join(assembler.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        if isinstance(eqn.op, Constant):
            value = assembler.bind(assembler.upload(eqn.op.reference()), "k")
            self.before.append(Line(f"{outs} = {value}", "constant"))
            return
        by = assembler.library_name if serves(eqn) else "the CPU"
        self.split = f"which {'the host' if by == 'the CPU' else by} computes"
        text = self.call(by)
        made = [assembler.name(v) for v in eqn.outs if not v.type.weak]
        self.lines.append(Line(f"{outs} = {text}" if eqn.outs else text, eqn.op.name))
        self.lines += [Line(f"{name} = ready({name})") for name in made]

    def call(self, by: str) -> str:
        assembler, eqn = self.assembler, self.step.eqn
        chosen = assembler.branches.get(self.step.number)
        inputs, name = ", ".join(map(assembler.operand, eqn.inputs)), f"{eqn.op.name}_"
        if chosen is not None:
            run = by_python(eqn.op, [*map(alone, chosen)], partial(empty, assembler.device))
            return f"{assembler.bind(partial(run, [()] * len(chosen)), name)}({inputs})"
        work = by_arrays if serves(eqn) else elsewhere
        f = assembler.bind(partial(work, assembler.device, eqn), name)
        return assembler.timed(f, inputs, eqn, by, eqn.op.name)


def alone(run: Callable[..., list[Any]]) -> Inner:
    """A program that makes its own scratch."""
    return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))
