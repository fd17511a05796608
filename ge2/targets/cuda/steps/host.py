"""Steps of a program for a device that are no kernels of ours: of Python, the
array module, the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ge2.codegen.kernel_values import held
from ge2.codegen.layout import Line
from ge2.ops.shape import Constant
from ge2.program.program import Inner, Step
from ge2.program.program import hosted as by_python
from ge2.targets.cuda.cupy_fallback import by_arrays, serves
from ge2.targets.cuda.device import empty
from ge2.targets.cuda.device_arrays import elsewhere, narrowed

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


def host(assembler: CudaAssembler, step: Step) -> None:
    """A number that Python computes; an array of the device only where something asks for one.

    It needs nothing that was launched.
    """
    (out,) = step.eqn.outs
    found = assembler.host_number(step)
    if out in assembler.numbers:
        found = f"{narrowing(assembler, out.type.dtype)}({found})"
    elif not out.type.weak:
        found, assembler.uploads = f"upload({found})", True
    line = Line(f"{assembler.name(out)} = {found}")
    assembler.computed.append(line)
    assembler.group().before.append(line)


def narrowing(assembler: CudaAssembler, dtype: np.dtype) -> str:
    """The name of what makes a number of Python's one of `dtype`, as a kernel holds it."""
    if dtype not in assembler.narrowings:
        assembler.narrowings[dtype] = assembler.bind(
            partial(narrowed, dtype, held(dtype)), "number_"
        )
    return assembler.narrowings[dtype]


def library(assembler: CudaAssembler, step: Step) -> None:
    """What the array module or the reference computes; loops and
    branches, with bodies on the device.
    """
    eqn, chosen = step.eqn, assembler.branches.get(step.number)
    if isinstance(eqn.op, Constant):  # which is there from the start
        (out,) = eqn.outs
        value = assembler.bind(assembler.upload(eqn.op.reference()), "k")
        assembler.group().before.append(Line(f"{assembler.name(out)} = {value}", "constant"))
        return
    inputs = ", ".join(map(assembler.operand, eqn.inputs))
    if chosen is not None:
        run = by_python(eqn.op, [*map(alone, chosen)], partial(empty, assembler.device))
        f = assembler.bind(partial(run, [()] * len(chosen)), f"{eqn.op.name}_")
    else:
        run = by_arrays if serves(eqn) else elsewhere
        f = assembler.bind(partial(run, assembler.device, eqn), f"{eqn.op.name}_")
    outs = ", ".join(assembler.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
    by, text = assembler.library_name if serves(eqn) else "the CPU", f"{f}({inputs})"
    if chosen is None:
        text = assembler.timed(f, inputs, eqn, by, eqn.op.name)
    assembler.split(eqn, f"which {'the host' if by == 'the CPU' else by} computes")
    assembler.emit(Line(f"{outs} = {text}" if eqn.outs else text, eqn.op.name))
    made = [assembler.name(v) for v in eqn.outs if not v.type.weak]
    assembler.emit(*(Line(f"{name} = ready({name})") for name in made))


def alone(run: Callable[..., list[Any]]) -> Inner:
    """A program that makes its own scratch."""
    return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))
