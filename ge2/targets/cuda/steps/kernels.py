"""A step of a program for a device as launches of kernels: their sources, and
what each is handed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ge2.base.dtypes import HALF
from ge2.choice.choose import Choice, choose
from ge2.choice.problem import Problem, prefs
from ge2.codegen.kernel_values import held
from ge2.codegen.text import Argument, Operand
from ge2.ir import Atom, Literal
from ge2.program.cost import Cost, bytes_behind, computing
from ge2.program.program import Step
from ge2.program.records import Made, place
from ge2.program.timer import Call
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.device_arrays import scalar
from ge2.targets.cuda.emit.file import Source, same_code
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels, LibraryLaunch
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.launch.arguments import Address, HostScalar, LaunchArgument, TensorMap, Tiles
from ge2.targets.cuda.launch.launches import Launch
from ge2.targets.cuda.launch.template import launch_of
from ge2.targets.cuda.load.compile_errors import written
from ge2.targets.cuda.slow_float64 import slow
from ge2.targets.cuda.steps.host import narrowing

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


def by_kernels(assembler: CudaAssembler, step: Step) -> None:
    """A step as the launches of the family that is chosen, now that it
    is known where its arrays are.
    """
    eqn = step.eqn
    types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
    ins = [assembler.kernel_operand("in", i, a) for i, a in enumerate(eqn.inputs)]
    outs = [assembler.kernel_operand("out", i, v) for i, v in enumerate(eqn.outs)]
    problem = Problem(eqn.op, *types, "cuda", step.shared, (*ins, *outs))
    choice = choose(problem, Caps.of(assembler.device), prefs(), FAMILIES)
    found: Kernels = choice.kernels()
    temps = [assembler.need(nbytes, step.number) for nbytes in found.temps]
    assembler.fresh(*eqn.outs)
    launches(assembler, step, choice, found, temps)
    if found.library is not None:
        library_launch(assembler, step, found.library, temps)


def launches(
    assembler: CudaAssembler, step: Step, choice: Choice, found: Kernels, temps: Sequence[str]
) -> None:
    """The launches of the kernels of a step, the first of which has the step's operations."""
    eqn, named, threads = step.eqn, [], assembler.device.limits.threads
    for kernel in found.kernels:
        number, first = numbered(assembler, kernel)
        name, early = f"{first.name}_{number}", kernel.fits(threads) and first.waits
        named.append((name, kernel))
        assembler.owned[name] = written(eqn.op)
        given = tuple(handed(assembler, step, a, temps) for a in kernel.given)
        full = len(named) == 1 and found.library is None
        work = moved(assembler, step, kernel, temps) + (computing(eqn) if full else Cost())
        what = Call(assembler.title, name, "CUDA", eqn, work, Source(source_name(kernel), kernel))
        assembler.launch(launch_of(kernel, number, given, name, place(eqn), early), what)
    if named:
        name = named[0][0]
        texts = partial(texts_of, [k for _, k in named])
        nbytes = partial(bytes_behind, assembler.program.layouts)
        words = "" if step.kind == "matmul" else slow(eqn, assembler.device.limits)
        assembler.made.append(
            Made(eqn, named[0][1].kind, name, name, texts, nbytes, "cuda", words, choice)
        )


def library_launch(
    assembler: CudaAssembler, step: Step, found: LibraryLaunch, temps: Sequence[str]
) -> None:
    """The launch of a library's functions, with scratch of its own."""
    eqn, call, scratch = step.eqn, found.call, None
    if call.workspace:
        scratch = Address(assembler.need(call.workspace, step.number), in_arena=True)
    arguments = *(at(assembler, step, x, d, temps) for x, d in found.operands), scratch
    written = found.written | {len(found.operands)}
    launch = Launch(call, (), (), 0, arguments, eqn.op.name, place(eqn), written)
    timed = Call(assembler.title, eqn.op.name, call.by, eqn, assembler.cost(eqn))
    assembler.launch(launch, timed)


def at(
    assembler: CudaAssembler, step: Step, x: Operand, dtype: np.dtype, temps: Sequence[str]
) -> Address:
    """The address of an operand."""
    if x.role in ("part", "temp"):
        return Address(temps[x.index], x.offset * dtype.itemsize, in_arena=True)
    atom = (step.eqn.inputs if x.role == "in" else step.eqn.outs)[x.index]
    return assembler.at(atom, x.offset * dtype.itemsize)


def moved(assembler: CudaAssembler, step: Step, kernel: CudaKernel, temps: Sequence[str]) -> Cost:
    """The bytes of the arrays that a kernel is handed."""
    own, eqn, layouts = assembler.needs, step.eqn, assembler.program.layouts
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


def define(assembler: CudaAssembler, kernel: CudaKernel) -> tuple[int, str]:
    """The number of the kernel's source, and its name in the program."""
    number, first = numbered(assembler, kernel)
    return number, f"{first.name}_{number}"


def numbered(assembler: CudaAssembler, kernel: CudaKernel) -> tuple[int, Source]:
    """The number of the kernel's source, and the first source of that code, which is compiled once."""
    source = Source(source_name(kernel), kernel)
    code = same_code(source)
    number = assembler.numbered.setdefault(code, len(assembler.numbered))
    return number, assembler.sources.setdefault(code, source)


def handed(
    assembler: CudaAssembler, step: Step, a: Argument, temps: Sequence[str]
) -> LaunchArgument:
    """An argument of a kernel, for a launch."""
    if a.kind == "size":
        return np.int64(a.value) if "int64_t" in a.declaration else np.int32(a.value)
    if a.kind == "constant":
        constant, dtype = a.value
        return scalar(np.asarray(constant), held(dtype))
    operand, dtype = a.value
    if a.kind == "value":
        atom = (step.eqn.inputs if operand.role == "in" else step.eqn.outs)[operand.index]
        return value(assembler, atom, dtype)
    if isinstance(dtype, Tiles):
        return TensorMap(at(assembler, step, operand, dtype.dtype, temps), dtype)
    return at(assembler, step, operand, dtype, temps)


def value(assembler: CudaAssembler, atom: Atom, dtype: np.dtype) -> HostScalar | np.generic:
    """A number as the kernel holds it."""
    wanted = held(dtype)
    if isinstance(atom, Literal):
        number = np.asarray(atom.value)
        return scalar(number.astype(dtype) if dtype in HALF else number, wanted)
    if atom in assembler.numbers:  # which are held so already
        return HostScalar(assembler.name(atom), wanted.itemsize)
    return HostScalar(f"{narrowing(assembler, dtype)}({assembler.name(atom)})", wanted.itemsize)


def texts_of(kernels: Sequence[CudaKernel]) -> str:
    return "\n".join(dict.fromkeys(Source(source_name(k), k).text() for k in kernels))


def source_name(kernel: CudaKernel) -> str:
    return kernel.kind.replace(" ", "_")
