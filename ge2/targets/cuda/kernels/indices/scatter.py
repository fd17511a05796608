"""Writing rows at indices in CUDA, with the same bits each time: which thread
comes first changes nothing.

Of several updates of a place the last one is found by an atomic maximum of their
numbers; among few, each looks for a later one. Sums and extremes of whole numbers are the same
in any order, by atomics; for others see `block_sums`, `exact_sums` and `scatter_sums`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import strides_of
from ge2.codegen.moves import windowed
from ge2.codegen.text import Text
from ge2.ops.index import Indexed, Scatter, ScatterAdd, ScatterMax, ScatterMin, ScatterReduce
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.element_grid import Elements
from ge2.targets.cuda.kernels.generated import Cuda, copying
from ge2.targets.cuda.kernels.indices.block_sums import BlockSums
from ge2.targets.cuda.kernels.indices.exact_sums import ExactSums, unserved
from ge2.targets.cuda.kernels.indices.gather import Rows, nowhere
from ge2.targets.cuda.kernels.indices.scatter_sums import DIGIT, Sums
from ge2.targets.cuda.kernels.indices.updates import Later, Writes, loaded, merge, stored

ATOMIC = {  # whole numbers that one instruction takes in
    np.dtype(t): f"unsigned {'int' if np.dtype(t).itemsize == 4 else 'long long'}"
    for t in (np.int32, np.uint32, np.int64, np.uint64)
}
BLOCKS, AT_ONCE, EXACT = "in shared memory, by blocks", "as they come", "by parts that are exact"
FIRST, RANKS, DIGITS = (
    "by the first of each place",
    "in the order of their places, by ranks",
    "in the order of their places, by digits",
)
LAUNCHES = {BLOCKS: 2, AT_ONCE: 1, EXACT: 4, FIRST: 1, RANKS: 4}  # those by digits depend on them
ATOMICS = {AT_ONCE: 1, EXACT: 3}  # of global memory, for each element of an update
CALLS = {ScatterAdd: "atomicAdd", ScatterMax: "atomicMax", ScatterMin: "atomicMin"}


class CudaWriting(Cuda):
    """A copy of `x`, unless the result lies where it is, then the updates."""

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        writes = writes_of(problem, caps.chip)
        return self.ways(writes) if writes.rows.count * writes.rows.length else (NONE,)

    @abstractmethod
    def ways(self, writes: Writes) -> tuple[Variant, ...]:
        """Ways to write updates, of which there are some; the plan of each adds its kernels."""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip, x = problem.arrays, caps.chip, problem.inputs[0]
        target = replace(outs[0], strides=strides_of(x.shape))
        first = () if (0, 0) in problem.shared else copying(x, x, ins[0], target, chip).kernels
        writes = writes_of(problem, chip)
        variant.plan(writes)
        found = writes.done()
        return Kernels((*first, *found.kernels), found.temps)


NONE: Final = Variant("no updates", lambda writes: None)


def writes_of(problem: Problem, chip: Chip) -> Writes:
    """The updates, of rows of the part of the result that is written to."""
    (ins, outs), op, (x, updates, *indices) = problem.arrays, problem.op, problem.inputs
    assert isinstance(op, Indexed)
    part = windowed(op, x.shape, replace(outs[0], strides=strides_of(x.shape)))
    rows = Rows(op, x, indices, ins[2:], (part, ins[1]), chip)
    return Writes(problem, rows, updates, chip)


@final
class CudaScatter(CudaWriting):
    name = "scatter in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Scatter):
            return f"{op.name} writes nothing at indices"
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def ways(self, writes: Writes) -> tuple[Variant, ...]:
        count = writes.rows.count
        several = "" if count == 1 else f"there are {count} updates"
        many = "" if writes.few else f"{count} updates are not compared each with all others"
        return (
            Variant("the only update", lambda w: w.moved(w.rows.grid()), several),
            Variant("each that finds no later one", self.compared, many),
            Variant("the last of each place", self.found),
        )

    def compared(self, writes: Writes) -> None:
        rows, grid = writes.rows, writes.rows.grid()
        (i,) = rows.i
        count, others = grid.size(f"n_{i}", rows.count), rows.wrapped(grid, "other", ["k"])
        writes.moved(grid, Later(i, count, tuple(others), rows.alike("other")))

    def found(self, writes: Writes) -> None:
        grid, last = writes.rows.grid(), writes.last()
        grid.array("last", last, writes.number)
        writes.moved(grid, last=(writes.rows.place(grid), writes.source(grid)))


@final
class CudaScatterReduce(CudaWriting):
    name = "scatter_reduce in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, ScatterReduce):
            return f"{op.name} reduces nothing at indices"
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Its launches, the bytes of all arrays once, and atomics of global memory."""
        rows = writes_of(problem, caps.chip).rows
        turns = -(-max((rows.places - 1).bit_length(), 1) // DIGIT)
        launches = LAUNCHES.get(variant.name, 3 + 3 * turns)
        atomics = ATOMICS.get(variant.name, 0) * rows.count * rows.length
        return caps.speed.of(problem, launches=launches) + atomics / caps.chip.tuning.scatters.rate

    def ways(self, writes: Writes) -> tuple[Variant, ...]:
        free = writes.rows.count == 1 or writes.dtype in ATOMIC
        ordered = "" if free else f"{writes.dtype.name} depends on the order of updates"
        exact = "any order gives the same bits" if free else unserved(writes)
        shared = BlockSums(writes).unserved() if writes.rows.count > 1 else "there is one update"
        no_order, n, ranked = (
            exact if free else "",
            writes.rows.count,
            writes.chip.tuning.scatters.ranked,
        )
        few = "" if writes.few else f"{n} updates are not compared each with all others"
        many = f"each of {n} updates is compared with all others, more than {ranked}"
        return (
            Variant(BLOCKS, lambda w: BlockSums(w).add(), shared),
            Variant(AT_ONCE, self.at_once, ordered),
            Variant(EXACT, lambda w: ExactSums(w).add(), exact),
            Variant(FIRST, lambda w: Sums(w).by_the_first(), no_order or few),
            Variant(
                RANKS,
                lambda w: Sums(w).in_order(Sums.ranked),
                no_order or (many if n > ranked else ""),
            ),
            Variant(
                DIGITS,
                lambda w: Sums(w).in_order(Sums.by_digits),
                no_order,
            ),
        )

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
