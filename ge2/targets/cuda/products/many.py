"""Many products of matrices so small that a thread has whole sums, and the work on their elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from ge2.base.record import record
from ge2.codegen.text import Operand, Text
from ge2.ir import Var
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.lane_view import Stage
from ge2.targets.cuda.emit.words import HELD
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products.small import THREADS, Lines, Small, SmallRegion

# The sizes of a matrix are in the text, so that its sums are no loops; how many there are is not.


@final
@record
class ManyView:
    """What `templates/cuda/product/many.cu.jinja` prints."""

    held: str
    index: str
    a: Lines
    b: Lines
    lifts: tuple[str, str]
    batch: tuple[Text, ...]
    row: str = "i"
    column: str = "j"
    y: str = ""
    written: str = ""
    rounded: tuple[Text, ...] = ()
    after: tuple[Stage, ...] = ()


def threads_of(rows: int, columns: int, count: int, lines: int) -> int:
    """Threads that `count` products have, of which each has `lines` rows of a column, at most."""
    return count * columns * -(-rows // min(rows, lines))


@final
class Many:
    """Products as `Small` has them, each by threads of its own."""

    def __init__(self, small: Small) -> None:
        self.small = small

    def kernel(self) -> CudaKernel:
        """The kernel of the products alone."""
        small = self.small
        small.declare()
        view, places = self.view("aby")
        y = small.term("y", small.rows, "i", "row") + small.term("y", small.columns, "j", "column")
        y = f"{places['y']}{y}".removeprefix(" + ") or "0"
        view = replace(view, y=y, written=small.written("totals[n]"))
        text = f"{small.dtype.name}: y[row, column] = sum of a[row, k] * b[k, column] over k"
        return self.made("small product", text, view)

    def view(self, roles: str) -> tuple[ManyView, dict[str, str]]:
        """How the products are summed, and where one begins in each array of these roles."""
        small = self.small
        small.size("n_batches", small.count)
        places, batch = small.batch(roles)
        a, b = small.lines("a", places, "row"), small.lines("b", places, "column")
        held = HELD[small.wide]
        return ManyView(held, small.whole, a, b, small.lifts, tuple(batch)), places

    def made(
        self,
        kind: str,
        text: str,
        view: ManyView,
        equations: int = 1,
        helpers: tuple[str, ...] = (),
    ) -> CudaKernel:
        small = self.small
        rows, columns = small.rows.size, small.columns.size
        tuning = small.chip.tuning.products
        fixed = (
            Fixed("ROWS", rows, "of a matrix"),
            Fixed("COLUMNS", columns, "of a matrix"),
            Fixed("SUMS", small.sums.size, "terms of a sum"),
            Fixed("LINES", min(rows, tuning.rows), "rows of a column that a thread has"),
        )
        grid = (-(-threads_of(rows, columns, small.count, tuning.rows) // THREADS), 1)
        return CudaKernel(
            kind, text, tuple(small.arguments.values()), (), THREADS, grid, fixed, 0, equations,
            helpers, resident=tuning.resident, template="cuda/product/many.cu.jinja", view=view,
        )  # fmt: skip


@final
class ManyRegion:
    """Products and the region that goes on with them. `product`: its value in the region; `operands`
    are those of the others.
    """

    def __init__(
        self,
        small: Small,
        region: Region,
        product: Var,
        operands: Mapping[Var, Operand],
        chip: Chip,
    ) -> None:
        self.small = small
        self.region = SmallRegion(small, region, product, operands, chip)

    def kernel(self) -> CudaKernel:
        region, small = self.region, self.small
        lanes = region.lanes
        lanes.said.packs[region.product] = "total"
        lanes.said.widened.add(region.product)  # it never was stored
        after = lanes.inside(lanes.root, 8)
        small.declare("ab")
        many = Many(small)
        view, _ = many.view("ab")
        *outer, row, column = lanes.kept
        letters = lanes.places.letters
        split = [Text(each) for each in lanes.places.split("z", outer)]
        view = replace(
            view, batch=(*view.batch, *split), row=letters[row], column=letters[column],
            rounded=tuple(region.rounded()), after=tuple(after),
        )  # fmt: skip
        small.arguments.update(lanes.places.arguments)
        equations = 1 + len(region.problem.region.graph.eqns)
        return many.made("contraction", region.text, view, equations, region.helpers)
