"""Writing rows at indices in CUDA, with the same bits each time: which thread
comes first changes nothing.

Of several updates of a place the last one is found by an atomic maximum of their
numbers; among few, each looks for a later one. Sums and extremes of whole numbers are the same
in any order, by atomics; for others see `exact_sums` and `scatter_sums`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import final

import numpy as np

from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import strides_of
from ge2.codegen.moves import windowed
from ge2.codegen.text import Text
from ge2.ops.index import Indexed, Scatter, ScatterAdd, ScatterMax, ScatterMin, ScatterReduce
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.element_grid import Elements
from ge2.targets.cuda.kernels.exact_sums import ExactSums, served
from ge2.targets.cuda.kernels.gather import Rows, nowhere
from ge2.targets.cuda.kernels.generated import Cuda, copying
from ge2.targets.cuda.kernels.scatter_sums import Sums
from ge2.targets.cuda.kernels.updates import Later, Writes, loaded, merge, stored

ATOMIC = {  # whole numbers that one instruction takes in
    np.dtype(t): f"unsigned {'int' if np.dtype(t).itemsize == 4 else 'long long'}"
    for t in (np.int32, np.uint32, np.int64, np.uint64)
}
CALLS = {ScatterAdd: "atomicAdd", ScatterMax: "atomicMax", ScatterMin: "atomicMin"}


class CudaWriting(Cuda):
    """A copy of `x`, unless the result lies where it is, then the updates."""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op, (x, updates, *indices) = problem.op, problem.inputs
        assert isinstance(op, Indexed)
        target = replace(outs[0], strides=strides_of(x.shape))
        first = () if (0, 0) in problem.shared else copying(x, x, ins[0], target, chip).kernels
        part = windowed(op, x.shape, target)
        rows = Rows(op, x, indices, ins[2:], (part, ins[1]), chip)
        if not rows.count * rows.length:
            return Kernels(first)
        found = self.write(Writes(problem, rows, updates, chip))
        return Kernels((*first, *found.kernels), found.temps)

    @abstractmethod
    def write(self, writes: Writes) -> Kernels:
        """The kernels that write the updates; there are some."""


@final
class CudaScatter(CudaWriting):
    name = "scatter in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Scatter):
            return f"{op.name} writes nothing at indices"
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def write(self, writes: Writes) -> Kernels:
        rows, grid = writes.rows, writes.rows.grid()
        if rows.count == 1:
            writes.moved(grid)
            return writes.done()
        if writes.few:
            (i,) = rows.i
            count, others = grid.size(f"n_{i}", rows.count), rows.wrapped(grid, "other", ["k"])
            writes.moved(grid, Later(i, count, tuple(others), rows.alike("other")))
            return writes.done()
        last = writes.last()
        grid.array("last", last, writes.number)
        writes.moved(grid, last=(rows.place(grid), writes.source(grid)))
        return writes.done()


@final
class CudaScatterReduce(CudaWriting):
    name = "scatter_reduce in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, ScatterReduce):
            return f"{op.name} reduces nothing at indices"
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def write(self, writes: Writes) -> Kernels:
        if writes.rows.count == 1 or writes.dtype in ATOMIC:
            self.at_once(writes)
        elif isinstance(writes.op, ScatterAdd) and served(writes.rows, writes.chip):
            ExactSums(writes).add()
        else:
            Sums(writes).add()
        return writes.done()

    def at_once(self, writes: Writes) -> None:
        """Each update is taken in where it belongs: there is one row of them, or
        the order changes nothing.
        """
        op, rows, grid, dtype = writes.op, writes.rows, writes.rows.grid(), writes.dtype
        assert isinstance(op, ScatterReduce)
        update = grid.element("updates", rows.of_y, dtype, rows.in_y(grid, "updates"))
        spread, indices = rows.threads(grid, 1), rows.wrapped(grid)
        grid.result("x", rows.of_x, dtype)
        to = f"x[{rows.in_x(grid)}]"
        if rows.count == 1:
            total = merge(op, loaded(to, dtype), loaded(update, dtype), dtype)
            line = f"{to} = {stored(total, dtype)};"
        else:
            # sums of signed numbers wrap as unsigned ones
            signed = dtype.kind == "i" and not isinstance(op, ScatterAdd)
            word = ATOMIC[dtype].removeprefix("unsigned ") if signed else ATOMIC[dtype]
            line = f"{CALLS[type(op)]}(({word} *)&{to}, ({word}){update});"
        view = Elements(spread, (*indices, Text(line)))
        writes.add(grid, op.name, view, rows.count * rows.length)
