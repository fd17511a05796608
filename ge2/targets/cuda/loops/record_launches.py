"""Records launches of a step, at places that are known beforehand, into the list that is open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Literal
from ge2.program.program import Step
from ge2.program.records import place
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.kernels.generated import copying
from ge2.targets.cuda.launch.arguments import Address
from ge2.targets.cuda.launch.launches import Item
from ge2.targets.cuda.launch.template import launch_of
from ge2.targets.cuda.loops.iterate import LoopBody
from ge2.targets.cuda.loops.unroll import Placed
from ge2.targets.cuda.steps.code import CudaStep

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


@final
class Recorder(CudaStep):
    """Iterations that run with its `body`s, and places that it gives, become launches of a step."""

    def __init__(self, assembler: CudaAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        self.results = step.eqn.outs
        self._open: list[list[Item]] = [self.launches]

    @contextmanager
    def apart(self) -> Iterator[list[Item]]:
        """A list of its own for what is recorded inside the `with`."""
        found: list[Item] = []
        self._open.append(found)
        try:
            yield found
        finally:
            self._open.pop()

    def launch(self, item: Item) -> None:
        self._open[-1].append(item)

    def copy(self, x: Placed, to: Placed) -> None:
        """Launches a copy."""
        strides, n = plain(x.type.shape).strides, math.prod(x.type.shape)
        source, target = Operand("in", 0, strides, loose=n), Operand("out", 0, strides, loose=n)
        limits, ends = self.assembler.device.limits, {"array": x.at, "result": to.at}
        for kernel in copying(x.type, to.type, source, target, Chip.of(limits)).kernels:
            number, first = self.assembler.kernels.number(kernel)
            given = tuple(
                ends[a.kind] if a.kind in ends else self.argument(a) for a in kernel.given
            )
            name, early = f"{first.name}_{number}", kernel.fits(limits.threads) and first.waits
            self.launch(launch_of(kernel, number, given, name, place(self.step.eqn), early))

    def recorded(self, body: LoopBody) -> LoopBody:
        """An iteration that is recorded when it runs."""
        assert body.recorded is not None
        known = dict[int, tuple[int, str]]()

        def once(kernel: CudaKernel) -> tuple[int, str]:  # named once, not in each iteration
            if id(kernel) not in known:
                known[id(kernel)] = self.assembler.kernels.name(kernel)
            return known[id(kernel)]

        return replace(body, run=partial(body.recorded.run, self.launch, once, self.constant))

    def constant(self, value: Any) -> Address:
        """The address of an array that is there from the start."""
        names = self.assembler.names.items()
        known = next((name for name, found in names if found is value), None)
        return Address(known or self.assembler.bind(value, "k"))

    def own_place(self, type_: ArrayType) -> Placed:
        """A place in the arena."""
        return Placed(self.own(type_.nbytes), type_, self.copy)

    def placed(self, a: Atom) -> Placed:
        offset = 0 if isinstance(a, Literal) else self.assembler.program.layout(a).offset
        return Placed(self.assembler.at(a, offset * a.type.dtype.itemsize), a.type, self.copy)
