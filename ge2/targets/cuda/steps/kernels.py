"""A step of a program for a device as launches of kernels: their sources, and what each is handed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ge2.base.dtypes import HALF
from ge2.choice.choose import select
from ge2.choice.family import Family, Problem
from ge2.codegen.kernel_values import held
from ge2.codegen.text import Argument
from ge2.ir import Atom, Literal
from ge2.program.cost import Cost, bytes_behind, computing
from ge2.program.program import Step
from ge2.program.records import Made, place
from ge2.program.timer import Call
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.device_arrays import scalar
from ge2.targets.cuda.emit.file import Source, same_code
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.launch.template import Asked, At, pending
from ge2.targets.cuda.load.compile_errors import written
from ge2.targets.cuda.slow_float64 import slow
from ge2.targets.cuda.steps.host import narrowing

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import GpuDriver


def by_kernels(driver: GpuDriver, step: Step, family: Family | None = None) -> None:
    """A step that a family of kernels serves: the one that is chosen, or the one that is asked for."""
    eqn = step.eqn
    types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
    problem = Problem(eqn.op, *types, "cuda", step.shared)
    family = family or select(problem, FAMILIES).family
    assert isinstance(family, Cuda), f"{eqn.op} was taken for CUDA"
    ins = [driver.operand("in", i, a) for i, a in enumerate(eqn.inputs)]
    outs = [driver.operand("out", i, v) for i, v in enumerate(eqn.outs)]
    found = family.kernels(problem, ins, outs, Chip.of(driver.device.limits))
    temps = [driver.need(nbytes, step.number) for nbytes in found.temps]
    driver.fresh(*eqn.outs)
    launches(driver, step, found, temps, "" if step.kind == "matmul" else slow(eqn, driver.device.limits))


def launches(
    driver: GpuDriver, step: Step, found: Kernels, temps: Sequence[str], words: str = "", whole: bool = True
) -> None:
    """The launches of a step; of a product by BLAS, which is no `whole` step, what comes before it."""
    eqn, named = step.eqn, []
    for kernel in found.kernels:
        number, name = define(driver, kernel)
        named.append((name, kernel))
        driver.owned[name] = written(eqn.op)
        given = tuple(handed(driver, step, a, temps) for a in kernel.given)
        work = moved(driver, step, kernel, temps) + (computing(eqn) if len(named) == 1 and whole else Cost())
        what = Call(driver.title, name, "CUDA", eqn, work, Source(source_name(kernel), kernel))
        driver.launch(pending(kernel, number, given, name, place(eqn)), what)
    if named:
        name = named[0][0]
        texts = partial(texts_of, [k for _, k in named])
        nbytes = partial(bytes_behind, driver.program.layouts)
        driver.made.append(Made(eqn, named[0][1].kind, name, name, texts, nbytes, "cuda", words))


def moved(driver: GpuDriver, step: Step, kernel: CudaKernel, temps: Sequence[str]) -> Cost:
    """The bytes of the arrays that a kernel is handed."""
    own, eqn, layouts = dict(driver.needs), step.eqn, driver.program.layouts
    found: dict[str, dict[Any, int]] = {"array": {}, "result": {}}
    for a in kernel.given:
        if a.kind not in found:
            continue
        operand, _ = a.value
        at = operand.role, operand.index
        if operand.role in ("part", "temp"):
            found[a.kind][at] = own[temps[operand.index]].nbytes
        else:
            atoms: Sequence[Atom] = eqn.inputs if operand.role == "in" else eqn.outs
            found[a.kind][at] = bytes_behind(layouts, atoms[operand.index])
    return Cost(read=sum(found["array"].values()), written=sum(found["result"].values()))


def define(driver: GpuDriver, kernel: CudaKernel) -> tuple[int, str]:
    """The number of the kernel's source, and its name in the program; equal code is compiled once."""
    source = Source(source_name(kernel), kernel)
    code = same_code(source)
    number = driver.numbered.setdefault(code, len(driver.numbered))
    driver.sources.setdefault(code, source)
    return number, f"{source.name}_{number}"


def handed(driver: GpuDriver, step: Step, a: Argument, temps: Sequence[str]) -> At | Asked | np.generic:
    """An argument of a kernel, for a launch."""
    if a.kind == "size":
        return np.int64(a.value) if "int64_t" in a.declaration else np.int32(a.value)
    if a.kind == "constant":
        constant, dtype = a.value
        return scalar(np.asarray(constant), held(dtype))
    operand, dtype = a.value
    if operand.role in ("part", "temp"):
        return At(temps[operand.index], operand.offset * dtype.itemsize, own=True)
    atom = (step.eqn.inputs if operand.role == "in" else step.eqn.outs)[operand.index]
    if a.kind == "value":
        return value(driver, atom, dtype)
    return driver.at(atom, operand.offset * dtype.itemsize)


def value(driver: GpuDriver, atom: Atom, dtype: np.dtype) -> Asked | np.generic:
    """A number as the kernel holds it."""
    wanted = held(dtype)
    if isinstance(atom, Literal):
        number = np.asarray(atom.value)
        return scalar(number.astype(dtype) if dtype in HALF else number, wanted)
    if atom in driver.numbers:  # which are held so already
        return Asked(driver.name(atom), wanted.itemsize)
    return Asked(f"{narrowing(driver, dtype)}({driver.name(atom)})", wanted.itemsize)


def texts_of(kernels: Sequence[CudaKernel]) -> str:
    return "\n".join(dict.fromkeys(Source(source_name(k), k).text() for k in kernels))


def source_name(kernel: CudaKernel) -> str:
    return kernel.kind.replace(" ", "_")
