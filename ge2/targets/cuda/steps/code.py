"""A step of a program on a device as an object: what it needs, and what it launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ge2.base.dtypes import HALF
from ge2.base.memory import Lifetime
from ge2.codegen.kernel_values import held
from ge2.codegen.layout import Line
from ge2.codegen.text import Argument, Operand
from ge2.ir import Atom, Literal
from ge2.program.program import Step
from ge2.program.step_code import StepCode
from ge2.program.timer import Call
from ge2.targets.cuda.device_arrays import scalar
from ge2.targets.cuda.launch.arguments import Address, HostScalar, LaunchArgument, TensorMap, Tiles
from ge2.targets.cuda.launch.launches import Item

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


class CudaStep(StepCode["CudaAssembler"]):
    """A step as launches, and Python around them.

    The first of its `needs` are `temps` of kernels. `computed`: numbers of the host, which may have
    `uploads`; `before`: other lines that need nothing launched. `calls`: what a meter is told of
    each launch. Its `lines` come after all that was launched; `split`: why.
    """

    def __init__(self, assembler: CudaAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        self.temps: list[str] = []
        self.computed: list[Line] = []
        self.uploads = False
        self.before: list[Line] = []
        self.launches: list[Item] = []
        self.calls: list[Call] = []
        self.split = ""

    # -- memory

    def need(self, nbytes: int) -> str:
        """The name of an array of the arena that this step has for itself."""
        name = f"own{len(self.assembler.arena.needs) + len(self.needs)}"
        self.needs[name] = Lifetime(nbytes, self.step.number, self.step.number)
        return name

    def own(self, nbytes: int) -> Address:
        """The address of such an array."""
        return Address(self.need(nbytes), in_arena=True)

    def atom(self, x: Operand) -> Atom:
        """The atom that an operand is."""
        eqn = self.step.eqn
        return eqn.inputs[x.index] if x.role == "in" else eqn.outs[x.index]

    def at(self, x: Operand, dtype: np.dtype) -> Address:
        """The address of an operand."""
        if x.role in ("part", "temp"):
            return Address(self.temps[x.index], x.offset * dtype.itemsize, in_arena=True)
        assert self.atom(x) not in self.assembler.numbers.strong, (
            "a number of the host has no address"
        )
        return self.assembler.at(self.atom(x), x.offset * dtype.itemsize)

    # -- arguments

    def argument(self, a: Argument) -> LaunchArgument:
        """An argument of a kernel, for a launch."""
        if a.kind == "size":
            return np.int64(a.value) if "int64_t" in a.declaration else np.int32(a.value)
        if a.kind == "constant":
            constant, dtype = a.value
            return scalar(np.asarray(constant), held(dtype))
        operand, dtype = a.value
        if a.kind == "value":
            return self.number(self.atom(operand), dtype)
        if isinstance(dtype, Tiles):
            return TensorMap(self.at(operand, dtype.dtype), dtype)
        return self.at(operand, dtype)

    def number(self, atom: Atom, dtype: np.dtype) -> HostScalar | np.generic:
        """A number as a kernel holds it."""
        wanted, assembler = held(dtype), self.assembler
        if isinstance(atom, Literal):
            number = np.asarray(atom.value)
            return scalar(number.astype(dtype) if dtype in HALF else number, wanted)
        name = assembler.name(atom)
        if atom in assembler.numbers.strong:  # which are held so already
            return HostScalar(name, wanted.itemsize)
        return HostScalar(f"{assembler.numbers.narrowing(dtype)}({name})", wanted.itemsize)
