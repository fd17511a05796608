"""Where each value of a kernel lies: in the array of its result, over a
finished operand, or in scratch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import final

import numpy as np

from ge2.base.record import mutable
from ge2.codegen.kernel_values import Held, Step, Values, form
from ge2.ir import Dims, Var
from ge2.targets.c.blocked.numpy_calls import may_overwrite, wants_temp

FOREVER = 1 << 60


@final
@mutable
class Cell:
    """An array that holds one value after another.

    That of a result may hold others until step `due`, which makes the result, but none before step
    `since`, while an input still lies there.
    """

    name: str
    axes: Dims
    dtype: np.dtype
    due: int = FOREVER
    since: int = -1
    last: int = -1  # the last step that reads the value in it


@final
@mutable
class Cells:
    values: Values
    own: dict[Var, Cell]  # of results
    masked: int  # elements from which on a `where` has a mask of integers
    of: dict[Held, Cell] = field(default_factory=dict)
    scratch: list[Cell] = field(default_factory=list)
    temps: dict[Step, Cell] = field(default_factory=dict)
    # stored at the end, since an input lies in their place
    late: list[Held] = field(default_factory=list)

    def run(self) -> Cells:
        for n, step in enumerate(self.values.steps):
            self.place(n, step)
        return self

    def place(self, n: int, step: Step) -> None:
        y = step.y
        if set(step.over) & set(self.values.tiling.cut):
            return  # partial results have a place of their own
        own = None if y.var is None or self.kept(y) else self.own.get(y.var)
        if (
            own is not None
            and fits(own, y)
            and (own.since < n or (own.since == n and self.over_inputs(step)))
        ):
            own.last = FOREVER
            self.of[y] = own
            self.lend(n, step)
            return
        late = own is not None and own.since >= n
        if late:
            self.late.append(y)
        last = FOREVER if late or self.kept(y) else y.last
        cell = next(
            (
                c
                for c in self.candidates(n, step)
                if c.due == FOREVER
                or last < c.due
                or (last == c.due and self.replaceable(c.due, y))
            ),
            None,
        )
        if cell is None:
            cell = Cell(f"s_{len(self.scratch)}", y.axes, y.dtype)
            self.scratch.append(cell)
        cell.last = last
        self.of[y] = cell
        self.lend(n, step)

    def lend(self, n: int, step: Step) -> None:
        """An array for the use of one step alone."""
        tiling, (x, *_) = self.values.tiling, step.xs
        size = math.prod(form(step.y.axes, [tiling.extent(a) for a in range(self.values.rank)]))
        dtype = None if step.eqn is None else wants_temp(step.eqn, size, self.masked)
        if dtype is None:
            return
        # a result that nobody reads may lie on one
        used = [self.of.get(v) for v in (step.y, *step.xs)]
        free = (
            c
            for c in self.scratch
            if c.last < n and (c.axes, c.dtype) == (x.axes, dtype) and c not in used
        )
        cell = next(free, None) or Cell(f"s_{len(self.scratch)}", x.axes, dtype)
        if cell not in self.scratch:
            self.scratch.append(cell)
        cell.last = FOREVER if self.kept(step.y) else n
        self.temps[step] = cell

    def candidates(self, n: int, step: Step) -> Sequence[Cell]:
        """Cells of the right form that are free once the operands are read,
        those of operands first.
        """
        mine = [
            self.of[x]
            for x in step.xs
            if x in self.of and self.of[x].last == n and may_replace(step, self.of, self.of[x])
        ]
        shared = (
            [] if self.kept(step.y) else self.own.values()
        )  # before the loop, each thread works by itself
        others = [c for c in (*shared, *self.scratch) if c.last < n and c.since < n < c.due]
        return [c for c in (*mine, *others) if fits(c, step.y)]

    def kept(self, y: Held) -> bool:
        """True if a value is made before the loop and read in every block."""
        tiling = self.values.tiling
        return tiling.blocks > 1 and not set(y.axes) & set(tiling.cut)

    def over_inputs(self, step: Step) -> bool:
        return step.eqn is not None and all(
            may_overwrite(step.eqn.op, i) for i in range(len(step.xs))
        )

    def replaceable(self, n: int, y: Held) -> bool:
        """True if step `n` may write its result over `y`, which it reads."""
        step = self.values.steps[n]
        return step.eqn is not None and all(
            may_overwrite(step.eqn.op, i) for i, x in enumerate(step.xs) if x is y
        )


def fits(cell: Cell, y: Held) -> bool:
    return cell.axes == y.axes and cell.dtype == y.dtype


def may_replace(step: Step, of: dict[Held, Cell], cell: Cell) -> bool:
    """True if the result may be written to a cell that holds an operand."""
    if step.eqn is None:
        return False
    return all(may_overwrite(step.eqn.op, i) for i, x in enumerate(step.xs) if of.get(x) is cell)
