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
from ge2.passes.scalars import compute
from ge2.program.program import Inner, Step
from ge2.program.program import hosted as by_python
from ge2.program.timer import Call
from ge2.targets.cuda.cupy_fallback import by_arrays, serves
from ge2.targets.cuda.device import empty
from ge2.targets.cuda.device_arrays import elsewhere, narrowed

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import GpuDriver


def host(driver: GpuDriver, step: Step) -> None:
    """A number that Python computes; an array of the device only where something asks for one.

    It needs nothing that was launched.
    """
    (out,) = step.eqn.outs
    f = driver.given(partial(compute, step.eqn.op, out.type), "host_")
    found = f"{f}({', '.join(driver.array(a) for a in step.eqn.inputs)})"
    if out in driver.numbers:
        found = f"{narrowing(driver, out.type.dtype)}({found})"
    elif not out.type.weak:
        found, driver.uploads = f"upload({found})", True
    line = Line(f"{driver.name(out)} = {found}")
    driver.computed.append(line)
    driver.group().before.append(line)


def narrowing(driver: GpuDriver, dtype: np.dtype) -> str:
    """The name of what makes a number of Python's one of `dtype`, as a kernel holds it."""
    if dtype not in driver.narrowings:
        driver.narrowings[dtype] = driver.given(partial(narrowed, dtype, held(dtype)), "number_")
    return driver.narrowings[dtype]


def library(driver: GpuDriver, step: Step) -> None:
    """What the array module or the reference computes; loops and
    branches, with bodies on the device.
    """
    eqn, chosen = step.eqn, driver.branches.get(step.number)
    if isinstance(eqn.op, Constant):  # which is there from the start
        (out,) = eqn.outs
        value = driver.given(driver.sent(eqn.op.reference()), "k")
        driver.group().before.append(Line(f"{driver.name(out)} = {value}", "constant"))
        return
    inputs = ", ".join(map(driver.array, eqn.inputs))
    if chosen is not None:
        run = by_python(eqn.op, [*map(alone, chosen)], partial(empty, driver.device))
        f = driver.given(partial(run, [()] * len(chosen)), f"{eqn.op.name}_")
    else:
        run = by_arrays if serves(eqn) else elsewhere
        f = driver.given(partial(run, driver.device, eqn), f"{eqn.op.name}_")
    outs = ", ".join(driver.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
    by, text = driver.library_name if serves(eqn) else "the CPU", f"{f}({inputs})"
    if chosen is None:
        text = driver.call(f, inputs, Call(driver.title, eqn.op.name, by, eqn, driver.cost(step)))
    driver.split(eqn, f"which {'the host' if by == 'the CPU' else by} computes")
    driver.emit(Line(f"{outs} = {text}" if eqn.outs else text, eqn.op.name))
    made = [driver.name(v) for v in eqn.outs if not v.type.weak]
    driver.emit(*(Line(f"{name} = ready({name})") for name in made))


def alone(run: Callable[..., list[Any]]) -> Inner:
    """A program that makes its own scratch."""
    return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))
