"""A step of a program for a device as launches of the kernels of a family, or of a library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from ge2.choice.choose import Choice, settled, written
from ge2.choice.problem import prefs
from ge2.ir import lines_of
from ge2.program.compile_price import kernel_seconds
from ge2.program.cost import Cost, bytes_behind, computing
from ge2.program.program import Step
from ge2.program.records import Made, place
from ge2.program.timer import Call
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels, LibraryLaunch
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.kernels.saved import file_of
from ge2.targets.cuda.launch.launches import Launch
from ge2.targets.cuda.launch.template import launch_of
from ge2.targets.cuda.load.compile_errors import written as written_by
from ge2.targets.cuda.load.kernels import source_of
from ge2.targets.cuda.slow_float64 import slow
from ge2.targets.cuda.steps.code import CudaStep

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


@final
class KernelStep(CudaStep):
    """The launches of the family that is chosen, now that it is known where arrays are."""

    def __init__(self, assembler: CudaAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        choice, found = chosen(assembler, step)
        self.choice = choice
        self.temps = [self.need(nbytes) for nbytes in found.temps]
        self.results, self.of_library = step.eqn.outs, found.library is not None
        for kernel in found.kernels:
            self.add_kernel(kernel, not self.launches and found.library is None)
        if found.kernels:
            self.made.append(self.record(choice, found.kernels))
        if found.library is not None:
            self.add_library(found.library)

    def add_kernel(self, kernel: CudaKernel, full: bool) -> None:
        """The launch of a kernel; `full`: the operations of the step are counted as its own."""
        eqn, assembler = self.step.eqn, self.assembler
        number, first = assembler.kernels.number(kernel)
        name = f"{first.name}_{number}"
        assembler.kernels.owned[name] = written_by(eqn.op, kernel)
        price = assembler.device.limits.tuning.compile_price
        assembler.kernels.prices.setdefault(number, kernel_seconds(eqn, price))
        early = kernel.fits(assembler.device.limits.threads) and first.waits
        given = tuple(map(self.argument, kernel.given))
        self.launches.append(launch_of(kernel, number, given, name, place(eqn), early))
        work = self.moved(kernel) + (computing(eqn) if full else Cost())
        self.calls.append(Call(assembler.title, name, "CUDA", eqn, work, source_of(kernel)))

    def record(self, choice: Choice, kernels: Sequence[CudaKernel]) -> Made:
        """The kernels as one, for people, by the name of the first."""
        eqn, assembler, name = self.step.eqn, self.assembler, self.launches[0].name
        texts, nbytes = partial(texts_of, kernels), partial(bytes_behind, assembler.program.layouts)
        words = "" if self.step.kind == "matmul" else slow(eqn, assembler.device.limits)
        known = choice.family.name in {family.name for family in FAMILIES}
        file = partial(file_of, choice, kernels) if known and not self.of_library else None
        return Made(eqn, kernels[0].kind, name, name, texts, nbytes, "cuda", words, choice, file)

    def add_library(self, found: LibraryLaunch) -> None:
        """The launch of a library's functions, with scratch of its own."""
        eqn, call, title = self.step.eqn, found.call, self.assembler.title
        scratch = self.own(call.workspace) if call.workspace else None
        arguments = *(self.at(x, dtype) for x, dtype in found.operands), scratch
        written = found.written | {len(found.operands)}
        self.launches.append(Launch(call, (), (), 0, arguments, eqn.op.name, place(eqn), written))
        self.calls.append(Call(title, eqn.op.name, call.by, eqn, self.assembler.cost(eqn)))

    def moved(self, kernel: CudaKernel) -> Cost:
        """The bytes of the arrays that a kernel is handed."""
        layouts = self.assembler.program.layouts
        found: dict[str, dict[Any, int]] = {"array": {}, "result": {}}
        for a in kernel.given:
            if a.kind not in found:
                continue
            x, _ = a.value
            temporary = x.role in ("part", "temp")
            found[a.kind][x.role, x.index] = (
                self.needs[self.temps[x.index]].nbytes
                if temporary
                else bytes_behind(layouts, self.atom(x))
            )
        return Cost(read=sum(found["array"].values()), written=sum(found["result"].values()))


def chosen(assembler: CudaAssembler, step: Step) -> tuple[Choice, Kernels]:
    """The choice for a step and its kernels: written once for equal steps of equal lines, as the
    layers of a network have.
    """
    problem, kept = assembler.problem(step), step.eqn.choice
    before = (kept.problem, kept.taken.title, kept.by) if isinstance(kept, Choice) else ()
    key = problem, before, lines_of(step.eqn)
    found = assembler.written.get(key)
    if found is None:
        caps = Caps.of(assembler.device)
        found = written(settled(kept, problem, caps, prefs(), FAMILIES), kept)
        assembler.written[key] = found
    return found


def texts_of(kernels: Sequence[CudaKernel]) -> str:
    return "\n".join(dict.fromkeys(source_of(k).text() for k in kernels))
