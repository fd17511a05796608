"""What kernels of products on tensor cores have in common: which products they are for, how batches
are told, and the names of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel_parameters import FAR
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.tensor_epilogue import Epilogue
from ge2.targets.cuda.tuning import MmaTile, Wgmma, WgmmaTile

# the operands as PTX names them, and as the emulator does
TYPES: Final = {BFLOAT16: "bf16", FLOAT16: "f16", FLOAT32: "tf32"}


def unmatched(axes: Contraction) -> str:
    """The reason why a product is not one of matrices, in rows of C order; "" if it is."""
    if {len(axes.rows), len(axes.columns), len(axes.sums)} != {1}:
        return "its rows, columns or sums are none, or several axes that do not merge"
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    lines = [*axes.batches, rows]
    if columns.y != 1 or any(a.y != b.y * b.size for a, b in pairwise(lines)):
        return "the result lies in another order"
    if max(x.size for x in (rows, columns, sums, *axes.batches)) >= FAR:
        return "it has too many rows, columns or terms"
    return ""


def tiles_of(rows: int, columns: int, tile: MmaTile | WgmmaTile) -> int:
    """Returns how many tiles a result of so many rows and columns has."""
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def tiles_down(axes: Contraction, tile: MmaTile | WgmmaTile) -> int:
    """Returns how many tiles below each other the results of all batches have."""
    (rows,) = axes.rows
    return math.prod(x.size for x in axes.batches) * -(-rows.size // tile.rows)


def waves_of(axes: Contraction, tile: MmaTile | WgmmaTile, multiprocessors: int) -> int:
    """Returns how many tiles a multiprocessor has one after another."""
    (rows,), (columns,) = axes.rows, axes.columns
    batches = math.prod(x.size for x in axes.batches)
    return -(-batches * tiles_of(rows.size, columns.size, tile) // multiprocessors)


def is_astray(axes: Contraction, dtype: np.dtype, tuning: Wgmma) -> bool:
    """True if rows of a factor begin within a sector of memory."""
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    apart = math.gcd(max(rows.a, sums.a), max(columns.b, sums.b))
    return apart * dtype.itemsize % tuning.sector > 0


def least_waste(
    axes: Contraction, multiprocessors: int, tuning: Wgmma, tiles: Sequence[WgmmaTile] = ()
) -> float:
    """Returns how many times as long as its products alone the waves of a product take, in the best
    of the tiles, or of all for one product.
    """
    (sums,) = axes.sums
    elements = math.prod(x.size for x in (*axes.batches, *axes.rows, *axes.columns))
    sizes = (
        waves_of(axes, t, multiprocessors) * t.rows * t.columns * tuning.cost_of(t, sums.size)
        for t in tiles or tuning.tiles
    )
    return min(sizes) * multiprocessors / elements


class TensorCores:
    """A product that `unmatched` has nothing against, or two of one left factor, whose right factors
    lie alike. `after`: what is done with the sums; `dtype`: that of all operands.
    """

    def __init__(
        self, axes: Contraction, factors: tuple[Operand, ...], dtype: np.dtype, chip: Chip,
        after: Epilogue,
    ) -> None:  # fmt: skip
        self.factors, self.dtype, self.chip, self.after = factors, dtype, chip, after
        (self.rows,), (self.columns,), (self.sums,) = axes.rows, axes.columns, axes.sums
        self.batches = axes.batches
        self.count = math.prod(x.size for x in self.batches)
        self.arguments: dict[str, Argument] = {}

    @property
    def kind(self) -> str:
        return "product region" if self.after.text else "product"

    @property
    def text(self) -> str:
        """Returns what the kernel computes, for the comment above it."""
        name = self.after.product
        product = f"{name}[row, column] = sum of left[row, k] * right[k, column] over k"
        if second := self.after.second:
            product += f",\n{second}[row, column] = that of left[row, k] * right2[k, column]"
        after = self.after.text
        if sums := ", ".join(x.name for x in self.after.sums):
            after = f"{after}\nand parts of the sum of each column of {sums}"
        return f"{product}, and\n{after}" if after else f"{self.dtype.name}: {product}"

    def size(self, name: str, value: int, type_: str = "int") -> str:
        self.arguments[name] = Argument(f"{type_} {name}", "size", value)
        return name

    def batch(self, whole: str = "place.batch") -> tuple[list[str], list[Text]]:
        """Returns what the place along each axis of batches is called, and what tells it."""
        if len(self.batches) < 2:
            return [whole] * len(self.batches), []
        names, lines, rest = list[str](), list[Text](), whole
        for n, axis in reversed([*enumerate(self.batches)]):
            names.insert(0, f"batch{n}")
            if n:
                extent = self.size(f"n_batch{n}", axis.size)
                lines.append(Text(f"const int batch{n} = {rest} % {extent};"))
                rest = f"({rest}) / {extent}" if " " in rest else f"{rest} / {extent}"
            else:
                lines.append(Text(f"const int batch{n} = {rest};"))
        return names, lines
