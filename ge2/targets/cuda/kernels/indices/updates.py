"""What kernels that write at indices share: those so far, their arrays, and
elements as they are added.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ge2.base.dtypes import HALF, accumulator
from ge2.base.record import record
from ge2.choice.problem import Problem, described
from ge2.codegen.text import Operand, Text, whole
from ge2.ir import ArrayType
from ge2.ops.index import ScatterReduce
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import SUFFIX, expression
from ge2.targets.cuda.kernels.element_grid import Elements, Grid, Spread
from ge2.targets.cuda.kernels.generated import filling
from ge2.targets.cuda.kernels.indices.gather import Rows


@final
@record
class Later:
    """How an update looks for a later one of its place."""

    i: str  # the place of the update along the indices
    count: str
    others: tuple[Text, ...]  # what index `k` names
    alike: str  # whether both name one place


@final
@record
class Scattering:
    """What `templates/cuda/scatter.cu.jinja` prints."""

    spread: Spread
    indices: tuple[Text, ...]
    later: Later | None
    last: tuple[str, str] | None  # the number of the place, and of the update
    to: str
    source: str
    update: str
    packed: bool


@final
class Writes:
    """The kernels that updates are written by, and the arrays they have for themselves."""

    def __init__(self, problem: Problem, rows: Rows, updates: ArrayType, chip: Chip) -> None:
        self.problem, self.rows, self.updates, self.chip = problem, rows, updates, chip
        self.op = problem.op
        self.dtype = rows.x.dtype
        self.number = np.dtype(np.int64 if rows.far else np.int32)  # of an update, or of a place
        self.kernels: list[CudaKernel] = []
        self.temps: list[int] = []

    @property
    def few(self) -> bool:
        """True if each index may be compared with all others: they lie along
        an axis, in a cache.
        """
        return self.rows.count <= self.chip.tuning.scatters.few and len(self.rows.i) == 1

    def done(self) -> Kernels:
        return Kernels(tuple(self.kernels), tuple(self.temps))

    def temp(self, count: int, dtype: np.dtype) -> Operand:
        self.temps.append(count * dtype.itemsize)
        return whole("temp", len(self.temps) - 1, (count,))

    def add(
        self, grid: Grid, kind: str, view: Any, threads: int, what: str = "", template: str = "elements"
    ) -> None:  # fmt: skip
        graph = described(self.problem) + (f"\n{what}" if what else "")
        self.kernels.append(grid.kernel(kind, graph, view, threads, template))

    # -- one element of the result a thread

    def moved(
        self, grid: Grid, later: Later | None = None, last: tuple[str, str] | None = None
    ) -> None:
        """Each update takes its place, if it is the last of it."""
        rows = self.rows
        pack = 1 if rows.of_y.value else rows.pack
        place = rows.in_y(grid, "updates")
        update = grid.element("updates", rows.of_y, self.dtype, place)
        spread, indices = rows.threads(grid, pack), tuple(rows.wrapped(grid))
        grid.result("x", rows.of_x, self.dtype)
        to, threads = rows.in_x(grid), rows.count * rows.length // pack
        view = Scattering(spread, indices, later, last, to, place, update, pack > 1)
        self.add(grid, self.problem.op.name, view, threads, template="scatter")

    def last(self) -> Operand:
        """The number of the last update of each place, counted from 1; 0 where there is none."""
        rows, grid = self.rows, self.rows.grid()
        to = ArrayType((rows.places,), self.number)
        found = self.temp(rows.places, self.number)
        self.kernels += filling(to, None, found, self.chip).kernels
        spread, indices = grid.spread(rows.i, rows.over), rows.wrapped(grid)
        grid.result("last", found, self.number)
        line = Text(f"atomicMax(&last[{rows.place(grid)}], {self.source(grid)} + 1);")
        self.add(
            grid,
            "last update",
            Elements(spread, (*indices, line)),
            rows.count,
            "which update of each place is the last, counted from 1",
        )
        return found

    def source(self, grid: Grid) -> str:
        """The number of an update, from where it is along the axes of the indices."""
        rows, text = self.rows, ""
        for letter, n in zip(rows.i, rows.over, strict=True):
            text = f"({text}) * {grid.size(f'n_{letter}', n)} + {letter}" if text else letter
        return text or "0"


def loaded(text: str, dtype: np.dtype) -> str:
    """An element as it is merged with another."""
    return f"ge2_cast_{SUFFIX[dtype]}_f32({text})" if dtype in HALF else text


def stored(text: str, dtype: np.dtype) -> str:
    return f"ge2_cast_f32_{SUFFIX[dtype]}({text})" if dtype in HALF else text


def merge(op: ScatterReduce, a: str, b: str, dtype: np.dtype) -> str:
    """Two elements of one place as one."""
    held = accumulator(dtype)
    return expression(op.merge, [a, b], held, held)
