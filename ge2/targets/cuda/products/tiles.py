"""A matrix product in CUDA, for what no library multiplies: integers, and operands that lie anyhow.

A block has a tile of the result. For each tile of rows and one of columns its threads bring both to
shared memory, then each sums what meets in its element.
"""

from __future__ import annotations

from typing import final

from ge2.base.dtypes import BOOL, COMPLEX, FLOATS, HALF, accumulator
from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.types import HELD, SUFFIX
from ge2.targets.cuda.products.matrices import SIDE, Matrices

TILE = SIDE


@final
@record
class TilesView:
    """What `templates/cuda/product/tiles.cu.jinja` prints."""

    held: str
    index: str
    a: str
    b: str
    y: str
    zero: str
    none: str
    added: str
    merged: str
    written: str
    batch: tuple[Text, ...]


@final
class Tiles(Matrices):
    """`a`, `b`, `y`: where the operands and the result lie, and their dtypes."""

    @property
    def held(self) -> str:
        return HELD[self.wide]

    def kernel(self) -> CudaKernel:
        tiles = -(-self.rows.size // TILE) * -(-self.columns.size // TILE)
        self.declare()
        view = self.view()
        text = f"{self.dtype.name}: y[row, column] = sum of a[row, k] * b[k, column] over k"
        fixed = Fixed("TILE", TILE, "rows, columns and terms that a block has at once")
        return CudaKernel(
            "product", text, tuple(self.arguments.values()), (), TILE * TILE,
            (tiles, self.deep), (fixed,), 0, 1, template="cuda/product/tiles.cu.jinja", view=view,
        )  # fmt: skip

    def view(self) -> TilesView:
        self.size("n_rows", self.rows.size)
        self.size("n_columns", self.columns.size)
        places, split = {"a": "", "b": "", "y": ""}, list[Text]()
        if self.batches:
            self.size("n_batches", self.count)
            places, split = self.batch()
        return self.tile(places, tuple(split))

    def at(self, name: str, place: str, *terms: str) -> str:
        return f"{name}[{(''.join(terms) + place).removeprefix(' + ') or '0'}]"

    def tile(self, places: dict[str, str], batch: tuple[Text, ...]) -> TilesView:
        self.size("n_sums", self.sums.size)
        terms = {
            "row": self.rows,
            "column": self.columns,
            "(k + x)": self.sums,
            "(k + y_)": self.sums,
        }

        def place(name: str, *indices: str) -> str:
            parts = (self.term(name, terms[i], i, i.strip("(+ xy_)")) for i in indices)
            return self.at(name, places[name], *parts)

        a, b, y = (
            place("a", "row", "(k + x)"),
            place("b", "(k + y_)", "column"),
            place("y", "row", "column"),
        )
        zero = "{0, 0}" if self.wide in COMPLEX else "false" if self.wide == BOOL else "0"
        none = f"{self.held}{zero}" if self.wide in COMPLEX else f"({self.held}){zero}"
        return TilesView(
            self.held, self.whole, self.read(a), self.read(b), y, zero, none,
            self.added("some", "left[y_][t]", "right[t][x]"), self.merged("total", "some"),
            self.written("total"), batch,
        )  # fmt: skip

    # -- numbers

    def read(self, element: str) -> str:
        """An element as it is summed."""
        if self.dtype == BOOL:
            return f"{element} != 0"
        held = accumulator(self.dtype)
        value = f"ge2_cast_{SUFFIX[self.dtype]}_f32({element})" if self.dtype in HALF else element
        return value if held == self.wide else f"({self.held}){value}"

    def added(self, total: str, a: str, b: str) -> str:
        if self.wide == BOOL:
            return f"{total} || ({a} && {b})"
        if self.wide in FLOATS:
            return f"{'fma' if self.wide.itemsize == 8 else 'fmaf'}({a}, {b}, {total})"
        short = SUFFIX[self.wide]
        return f"ge2_add_{short}({total}, ge2_mul_{short}({a}, {b}))"

    def merged(self, a: str, b: str) -> str:
        if self.wide == BOOL:
            return f"{a} || {b}"
        return f"{a} + {b}" if self.wide in FLOATS else f"ge2_add_{SUFFIX[self.wide]}({a}, {b})"
