"""A matrix product in CUDA, for what no library multiplies: integers, and operands that lie anyhow.

A block has a tile of the result. For each tile of rows and one of columns its threads bring both to shared
memory, then each sums what meets in its element.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, FLOATS, HALF, accumulator
from ge2.codegen.c.text import Argument, Operand, Text
from ge2.codegen.cuda.gemm import ONE, Along, Contraction
from ge2.codegen.cuda.kernel import CudaKernel, Fixed
from ge2.codegen.cuda.places import FAR, LETTERS
from ge2.codegen.cuda.typed import HELD, STORED, SUFFIX
from ge2.codegen.cuda.writer import unrolled

TILE = 16
MOST = 65535  # blocks along the second axis of a grid


def sums_in(dtype: np.dtype, out: np.dtype) -> np.dtype:
    """The dtype of sums; what it says of bool is that any holds."""
    return np.result_type(accumulator(dtype), accumulator(out))


@final
class Tiles:
    """`a`, `b`, `y`: where the operands and the result lie, and their dtypes."""

    def __init__(
        self, axes: Contraction, operands: tuple[Operand, Operand, Operand], dtype: np.dtype, out: np.dtype
    ) -> None:
        self.operands, self.dtype, self.out, self.wide = operands, dtype, out, sums_in(dtype, out)
        self.rows, self.columns = (each[0] if each else ONE for each in (axes.rows, axes.columns))
        (self.sums,) = axes.sums or (ONE,)
        self.batches = [*axes.batches, *axes.rows[1:], *axes.columns[1:]]
        self.far = any(map(self.far_off, ("a", "b", "y")))
        self.arguments: dict[str, Argument] = {}

    def far_off(self, name: str) -> bool:
        """Whether places need 64 bits."""
        every = [self.rows, self.columns, self.sums, *self.batches]
        reach = sum(abs(getattr(x, name)) * (x.size - 1) for x in every) + 1
        return bool(max(reach, *(x.size + TILE for x in every)) >= FAR)

    @property
    def whole(self) -> str:
        return "int64_t" if self.far else "int"

    @property
    def held(self) -> str:
        return HELD[self.wide]

    def size(self, name: str, value: int) -> str:
        self.arguments[name] = Argument(f"{self.whole} {name}", "size", value)
        return name

    def kernel(self) -> CudaKernel:
        count = math.prod(x.size for x in self.batches)
        tiles = -(-self.rows.size // TILE) * -(-self.columns.size // TILE)
        for role, operand, dtype in zip(
            "aby", self.operands, (self.dtype, self.dtype, self.out), strict=True
        ):
            const, kind = ("", "result") if role == "y" else ("const ", "array")
            declared = f"{const}{STORED[dtype]} *__restrict__ {role}"
            self.arguments[role] = Argument(declared, kind, (operand, dtype))
        body = self.body(count)
        text = f"{self.dtype.name}: y[row, column] = sum of a[row, k] * b[k, column] over k"
        fixed = Fixed("TILE", TILE, "rows, columns and terms that a block has at once")
        return CudaKernel(
            "product", text, tuple(self.arguments.values()), tuple(body), TILE * TILE,
            (tiles, min(count, MOST)), (fixed,), 0, 1,
        )  # fmt: skip

    def body(self, count: int) -> list[Text]:
        whole, n, m = (
            self.whole,
            self.size("n_rows", self.rows.size),
            self.size("n_columns", self.columns.size),
        )
        head = [
            f"__shared__ {self.held} left[TILE][TILE + 1], right[TILE][TILE + 1];",
            "const int x = threadIdx.x % TILE, y_ = threadIdx.x / TILE;",
            f"const {whole} across = ({m} + TILE - 1) / TILE;",
            f"const {whole} row = ({whole})blockIdx.x / across * TILE + y_;",
            f"const {whole} column = ({whole})blockIdx.x % across * TILE + x;",
        ]
        lines = [*map(Text, head)]
        if not self.batches:
            return [*lines, *self.tile({"a": "", "b": "", "y": ""}, n, m)]
        batch = self.size("n_batches", count)
        places, split = self.batch()
        loop = f"for ({whole} z = blockIdx.y; z < {batch}; z += gridDim.y)"
        return [*lines, Text(loop, body=(*split, *self.tile(places, n, m)))]

    def batch(self) -> tuple[dict[str, str], list[Text]]:
        """Where a batch begins in each array, and what tells it."""
        places, lines, rest = {"a": "", "b": "", "y": ""}, [], "z"
        for i, axis in reversed([*enumerate(self.batches)]):
            letter = f"{LETTERS[i]}_z"
            if i:
                extent = self.size(f"n_{LETTERS[i]}", axis.size)
                lines.append(Text(f"const {self.whole} {letter} = {rest} % {extent};"))
                rest = f"{rest} / {extent}" if rest == "z" else f"({rest}) / {extent}"
            else:
                lines.append(Text(f"const {self.whole} {letter} = {rest};"))
            for name in places:
                places[name] += self.term(name, axis, letter, LETTERS[i])
        return places, lines

    def term(self, name: str, axis: Along, index: str, letter: str) -> str:
        step = getattr(axis, name)
        if not step or axis.size == 1:
            return ""
        return f" + {index}" if step == 1 else f" + {index} * {self.size(f'{name}_{letter}', step)}"

    def at(self, name: str, place: str, *terms: str) -> str:
        return f"{name}[{(''.join(terms) + place).removeprefix(' + ') or '0'}]"

    def tile(self, places: dict[str, str], n: str, m: str) -> list[Text]:
        sums, whole = self.size("n_sums", self.sums.size), self.whole
        terms = {"row": self.rows, "column": self.columns, "(k + x)": self.sums, "(k + y_)": self.sums}

        def place(name: str, *indices: str) -> str:
            parts = (self.term(name, terms[i], i, i.strip("(+ xy_)")) for i in indices)
            return self.at(name, places[name], *parts)

        a, b, y = place("a", "row", "(k + x)"), place("b", "(k + y_)", "column"), place("y", "row", "column")
        zero = "{0, 0}" if self.wide in COMPLEX else "false" if self.wide == BOOL else "0"
        none = f"{self.held}{zero}" if self.wide in COMPLEX else f"({self.held}){zero}"
        inner = [
            Text(f"left[y_][x] = row < {n} && k + x < {sums} ? {self.read(a)} : {none};"),
            Text(f"right[y_][x] = k + y_ < {sums} && column < {m} ? {self.read(b)} : {none};"),
            Text("__syncthreads();"),
            Text(f"{self.held} some = {zero};"),
            unrolled("t", "TILE", [Text(f"some = {self.added('some', 'left[y_][t]', 'right[t][x]')};")]),
            Text(f"total = {self.merged('total', 'some')};"),
            Text("__syncthreads();"),
        ]
        return [
            Text(f"{self.held} total = {zero};"),
            Text(f"for ({whole} k = 0; k < {sums}; k += TILE)", body=tuple(inner)),
            Text(f"if (row < {n} && column < {m}) {y} = {self.written('total')};"),
        ]

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

    def written(self, total: str) -> str:
        if self.out in HALF:
            return f"ge2_cast_f32_{SUFFIX[self.out]}({total})"
        return total if self.out == self.wide else f"({STORED[self.out]}){total}"
