"""Writes launches of a step down, at places that are known beforehand, into
the list that is open.
"""

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
from ge2.targets.cuda.launch.launches import Item, Launch
from ge2.targets.cuda.launch.template import launch_of
from ge2.targets.cuda.loops.iterate import Turn
from ge2.targets.cuda.loops.unroll import Placed
from ge2.targets.cuda.steps.kernels import define, handed, numbered

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


@final
class Writer:
    """Rounds that run with its `turn`s, and places that it gives, become
    launches of the assembler's program.
    """

    __slots__ = ("_open", "assembler", "step")

    def __init__(self, assembler: CudaAssembler, step: Step) -> None:
        self.assembler, self.step = assembler, step
        self._open: list[list[Item]] = [assembler.group().launches]

    @contextmanager
    def apart(self) -> Iterator[list[Item]]:
        """A list of its own for what is written inside the `with`."""
        found: list[Item] = []
        self._open.append(found)
        try:
            yield found
        finally:
            self._open.pop()

    def launch(self, item: Item) -> None:
        self._open[-1].append(item)

    def copy(self, x: Placed, to: Placed) -> None:
        for each in copied(self.assembler, self.step, x, to):
            self.launch(each)

    def turn(self, turn: Turn) -> Turn:
        """A round that is written down when it runs."""
        assert turn.round is not None
        constants, known = partial(constant, self.assembler), dict[int, tuple[int, str]]()

        def once(kernel: CudaKernel) -> tuple[int, str]:  # written once, not in each round
            if id(kernel) not in known:
                known[id(kernel)] = define(self.assembler, kernel)
            return known[id(kernel)]

        return replace(turn, run=partial(turn.round.run, self.launch, once, constants))

    def own(self, type_: ArrayType) -> Placed:
        """A place in the arena."""
        return Placed(
            Address(self.assembler.need(type_.nbytes, self.step.number), in_arena=True),
            type_,
            self.copy,
        )

    def placed(self, a: Atom) -> Placed:
        offset = (
            0 if isinstance(a, Literal) else self.assembler.layout(a).offset * a.type.dtype.itemsize
        )
        return Placed(self.assembler.at(a, offset), a.type, self.copy)


def is_plain(assembler: CudaAssembler, a: Atom) -> bool:
    """True if an array lies in C order, and wide accesses may begin where it does, or there are
    none, as of a number.
    """
    if a.type.weak:
        return False
    if isinstance(a, Literal):
        return True
    layout, loose = (
        assembler.layout(a),
        assembler.loose.get(assembler.holder(assembler.buffer(a)), 0),
    )
    begins = a.type.size == 1 or all(
        n * a.type.dtype.itemsize % 16 == 0 for n in (layout.offset, loose)
    )
    return begins and layout.strides == plain(a.type.shape).strides


def constant(assembler: CudaAssembler, value: Any) -> Address:
    """A place for an array that is there from the start."""
    known = next((name for name, found in assembler.names.items() if found is value), None)
    return Address(known or assembler.bind(value, "k"))


def copied(assembler: CudaAssembler, step: Step, x: Placed, to: Placed) -> list[Launch]:
    """The launches of a copy."""
    strides, n = plain(x.type.shape).strides, math.prod(x.type.shape)
    source, target = Operand("in", 0, strides, loose=n), Operand("out", 0, strides, loose=n)
    limits, found = assembler.device.limits, []
    for kernel in copying(x.type, to.type, source, target, Chip.of(limits)).kernels:
        number, first = numbered(assembler, kernel)
        ends = {"array": x.at, "result": to.at}
        given = tuple(
            ends[a.kind] if a.kind in ends else handed(assembler, step, a, ()) for a in kernel.given
        )
        name, early = f"{first.name}_{number}", kernel.fits(limits.threads) and first.waits
        found.append(launch_of(kernel, number, given, name, place(step.eqn), early))
    return found
