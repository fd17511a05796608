"""Kernels of matrix products: a product of arrays as products of matrices, and what they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import final

import numpy as np

from ge2.base.arrays import HALF, accumulator
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import ArrayType, Dims, Op
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.words import FAR, LETTERS, STORED, SUFFIX
from ge2.targets.cuda.limits import Chip

# -------- A product of arrays as products of matrices: which axes are rows, columns and sums, and
# where they lie.
# BLAS sees matrices column after column. An operand is taken as it lies, turned or not, where one
# of its axes has stride 1; axes that do not merge into rows or columns are told apart by batches,
# and by calls.


@final
@record
class Along:
    """Merged axes: so many places, and how many elements apart they are in operands and result."""

    size: int
    a: int = 0
    b: int = 0
    y: int = 0

    def holds(self, inner: Along) -> bool:
        """True if a place of this lies right behind all places of the other, everywhere."""
        return (self.a, self.b, self.y) == tuple(
            s * inner.size for s in (inner.a, inner.b, inner.y)
        )


ONE = Along(1)
Axes = tuple[Along, ...]


@final
@record
class Contraction:
    """`y[batch, row, column]` is the sum of `a[batch, row, sum] * b[batch, sum, column]`."""

    rows: Axes
    columns: Axes
    sums: Axes
    batches: Axes


@lru_cache(256)
def contraction(
    op: DotGeneral, a: ArrayType, b: ArrayType, strides: tuple[Dims, Dims, Dims]
) -> Contraction:
    """The axes of a product, those merged that lie together.

    `strides`: of both operands and the result.
    """
    sa, sb, sy = strides
    free_a, free_b = op.free(a, b)
    n, m = len(op.beside[0]), len(op.beside[0]) + len(free_a)
    beside, sums = (tuple(zip(*pair, strict=True)) for pair in (op.beside, op.contract))
    return Contraction(
        merged([Along(a.shape[i], sa[i], 0, sy[n + k]) for k, i in enumerate(free_a)]),
        merged([Along(b.shape[j], 0, sb[j], sy[m + k]) for k, j in enumerate(free_b)]),
        merged([Along(a.shape[i], sa[i], sb[j]) for i, j in sums]),
        merged([Along(a.shape[i], sa[i], sb[j], sy[k]) for k, (i, j) in enumerate(beside)]),
    )


def merged(axes: Sequence[Along]) -> Axes:
    found: list[Along] = []
    kept = sorted((x for x in axes if x.size != 1), key=lambda x: (-x.y, -x.a, -x.b))
    for each in kept:
        if found and found[-1].holds(each):
            found[-1] = Along(found[-1].size * each.size, each.a, each.b, each.y)
        else:
            found.append(each)
    return tuple(found)


@final
@record
class Matrix:
    """`turned`: its rows lie one after another, not its columns.

    `lead`: elements from one to the next; `step`: to the next matrix.
    """

    turned: bool
    lead: int
    step: int


@final
@record
class Gemm:
    """`count` products of m x k and k x n matrices.

    `second`: the first factor is the second operand.

    `calls`: how many elements further on the matrices of each call lie: first
    factor, second factor, result.
    """

    m: int
    n: int
    k: int
    count: int
    first: Matrix
    other: Matrix
    result: Matrix
    second: bool
    calls: tuple[tuple[int, int, int], ...]


def gemm(found: Contraction) -> Gemm | None:
    """The product by BLAS; None if a factor or the result lies as BLAS takes no matrix."""
    if len(found.sums) > 1:
        return None
    (sums,) = found.sums or (ONE,)
    fits = [
        each
        for rows, columns in product(found.rows or (ONE,), found.columns or (ONE,))
        for each in both(found, rows, columns, sums)
    ]
    return min(fits, key=lambda g: (len(g.calls), -g.m * g.n), default=None)


def both(found: Contraction, rows: Along, columns: Along, sums: Along) -> Iterator[Gemm]:
    """The product, and that of the turned matrices: whichever gives the
    result column after column.
    """
    k, m, n = sums.size, rows.size, columns.size
    rest = [x for x in (*found.rows, *found.columns) if x not in (rows, columns)]
    batches = merged([*found.batches, *rest])
    inner = max(batches, key=lambda x: x.size, default=ONE)
    if min(inner.a, inner.b, inner.y) < 0:
        return
    outer = [x for x in batches if x is not inner]
    calls = list(product(*(range(x.size) for x in outer)))
    a, b, y = (
        tuple(sum(i * getattr(x, name) for i, x in zip(at, outer, strict=True)) for at in calls)
        for name in ("a", "b", "y")
    )
    left, right = matrix(m, rows.a, k, sums.a, inner.a), matrix(k, sums.b, n, columns.b, inner.b)
    made = matrix(m, rows.y, n, columns.y, inner.y)
    if left and right and made and not made.turned:
        yield Gemm(m, n, k, inner.size, left, right, made, False, tuple(zip(a, b, y, strict=True)))
    left, right = matrix(n, columns.b, k, sums.b, inner.b), matrix(k, sums.a, m, rows.a, inner.a)
    made = matrix(n, columns.y, m, rows.y, inner.y)
    if left and right and made and not made.turned:
        yield Gemm(n, m, k, inner.size, left, right, made, True, tuple(zip(b, a, y, strict=True)))


def matrix(rows: int, down: int, columns: int, across: int, step: int) -> Matrix | None:
    """A matrix whose neighbours in a column are `down` apart, and those in a row `across`."""
    if (rows == 1 or down == 1) and (columns == 1 or across >= rows):
        return Matrix(False, across if columns > 1 else rows, step)
    if (columns == 1 or across == 1) and (rows == 1 or down >= columns):
        return Matrix(True, down if rows > 1 else columns, step)
    return None


# -------------------------------------------------------------------------------------- as they lie


def tight(shape: Dims, order: Sequence[int]) -> Dims:
    """The strides of an array whose axes lie in this order."""
    strides, at = [0] * len(shape), 1
    for i in reversed(order):
        strides[i] = at
        at *= max(shape[i], 1)
    return tuple(strides)


def arranged(
    op: DotGeneral, a: ArrayType, b: ArrayType, strides: tuple[Dims, Dims, Dims]
) -> Iterator[tuple[tuple[Dims | None, Dims | None], Contraction]]:
    """The product with neither operand copied, with one, with both: the
    strides of a copy, or None.
    """
    free_a, free_b = op.free(a, b)
    copies = (
        tight(a.shape, (*op.beside[0], *free_a, *op.contract[0])),
        tight(b.shape, (*op.beside[1], *free_b, *op.contract[1])),
    )
    for which in ((False, False), (True, False), (False, True), (True, True)):
        one, two = (copy if w else None for copy, w in zip(copies, which, strict=True))
        lies = one or strides[0], two or strides[1], strides[2]
        yield (one, two), contraction(op, a, b, lies)


def by_blas(
    op: DotGeneral, a: ArrayType, b: ArrayType, strides: tuple[Dims, Dims, Dims], call: int
) -> tuple[tuple[Dims | None, Dims | None], Gemm] | None:
    """The product by BLAS with the copies and the calls that take the least time, and the strides of
    these copies. `call`: the bytes that are moved in the time that a call takes at least.
    """
    found = [
        (copies, g) for copies, each in arranged(op, a, b, strides) if (g := gemm(each)) is not None
    ]

    def price(each: tuple[tuple[Dims | None, Dims | None], Gemm]) -> int:
        """A copy is a call as well, reads an operand, and writes what is read again."""
        copied = [t.nbytes for t, lies in zip((a, b), each[0], strict=True) if lies is not None]
        return call * (len(each[1].calls) + len(copied)) + 2 * sum(copied)

    return min(found, key=price, default=None)


# -------- What a library asks of products of fp8 and of bytes: terms are neighbours, and sizes are even.


SIZES = 16  # of which rows, columns and terms are multiples


def uneven(op: Op, a: ArrayType, b: ArrayType) -> str:
    """The reason why the library is asked for no product of such sizes of fp8 or bytes; "" if it is."""
    assert isinstance(op, DotGeneral)
    free = op.free(a, b)
    sizes = [
        math.prod(t.shape[i] for i in axes)
        for t, axes in ((a, free[0]), (b, free[1]), (a, op.contract[0]))
    ]
    if any(not n or n % SIZES for n in sizes):
        return f"rows, columns or terms of {a.dtype.name} are no multiples of {SIZES}"
    return ""


def of_terms(
    op: DotGeneral, a: ArrayType, b: ArrayType, strides: tuple[Dims, Dims, Dims]
) -> tuple[Dims | None, Dims | None]:
    """The strides of copies of factors whose terms are no neighbours, as those of fp8 and of bytes
    have to be.
    """
    axes, free = contraction(op, a, b, strides), op.free(a, b)
    one = Along(1, 1, 1) if not axes.sums else axes.sums[0] if len(axes.sums) == 1 else Along(1)
    first, second = (
        tight(t.shape, (*beside, *lines, *terms))
        for t, beside, lines, terms in zip((a, b), op.beside, free, op.contract, strict=True)
    )
    return first if one.a != 1 else None, second if one.b != 1 else None


def in_terms(g: Gemm) -> bool:
    """True if the terms of both factors are neighbours, in rows that such may have."""
    apart = g.first.lead % SIZES == g.other.lead % SIZES == 0
    return g.first.turned and not g.other.turned and apart


# -------- What kernels of matrix products have in common: where operands and result lie, and how
# batches are told.


SIDE = 16  # rows and columns of a tile


def sums_in(dtype: np.dtype, out: np.dtype) -> np.dtype:
    """The dtype of sums; what it says of bool is that any holds."""
    return np.result_type(accumulator(dtype), accumulator(out))


class Matrices(ABC):
    """`a`, `b`, `y`: where the operands and the result lie, and their dtypes."""

    @abstractmethod
    def kernel(self) -> CudaKernel:
        """The kernel of the product."""

    def __init__(
        self, axes: Contraction, operands: tuple[Operand, Operand, Operand], dtype: np.dtype, out: np.dtype, chip: Chip,
        called: tuple[str, str, str] = ("a", "b", "y"),
    ) -> None:  # fmt: skip
        self.operands, self.dtype, self.out, self.wide = operands, dtype, out, sums_in(dtype, out)
        self.chip = chip
        self.stored = (
            dtype,
            dtype,
        )  # of the factors, unless they are made of others as they are read
        self.rows, self.columns = (each[0] if each else ONE for each in (axes.rows, axes.columns))
        (self.sums,) = axes.sums or (ONE,)
        self.batches = [*axes.batches, *axes.rows[1:], *axes.columns[1:]]
        self.count = math.prod(x.size for x in self.batches)
        self.deep = min(self.count, chip.grid[1])  # blocks that go through the batches
        self.far = any(map(self.far_off, ("a", "b", "y")))
        self.arguments: dict[str, Argument] = {}
        self.called = dict(zip("aby", called, strict=True))

    def far_off(self, name: str) -> bool:
        """True if places need 64 bits."""
        every = [self.rows, self.columns, self.sums, *self.batches]
        reach = sum(abs(getattr(x, name)) * (x.size - 1) for x in every) + 1
        return bool(max(reach, *(x.size + SIDE for x in every)) >= FAR)

    @property
    def whole(self) -> str:
        """The type of places in arrays."""
        return "int64_t" if self.far else "int"

    def size(self, name: str, value: int) -> str:
        self.arguments[name] = Argument(f"{self.whole} {name}", "size", value)
        return name

    def declare(self, roles: str = "aby") -> None:
        """The arrays among the arguments."""
        for role, operand, dtype in zip(
            "aby", self.operands, (*self.stored, self.out), strict=True
        ):
            const, kind = ("", "result") if role == "y" else ("const ", "array")
            if role in roles:
                declared = f"{const}{STORED[dtype]} *__restrict__ {self.called[role]}"
                self.arguments[self.called[role]] = Argument(declared, kind, (operand, dtype))

    def batch(self, roles: str = "aby") -> tuple[dict[str, str], list[Text]]:
        """Returns where a batch begins in each array of these roles, and what tells it."""
        places, lines, rest = {"a": "", "b": "", "y": ""}, [], "z"
        for i, axis in reversed([*enumerate(self.batches)]):
            letter = f"{LETTERS[i]}_z"
            if i:
                extent = self.size(f"n_{LETTERS[i]}_z", axis.size)
                lines.append(Text(f"const {self.whole} {letter} = {rest} % {extent};"))
                rest = f"{rest} / {extent}" if rest == "z" else f"({rest}) / {extent}"
            else:
                lines.append(Text(f"const {self.whole} {letter} = {rest};"))
            for name in roles:
                places[name] += self.term(name, axis, letter, LETTERS[i])
        return places, lines

    def term(self, name: str, axis: Along, index: str, letter: str) -> str:
        step = getattr(axis, name)
        if not step or axis.size == 1:
            return ""
        return (
            f" + {index}"
            if step == 1
            else f" + {index} * {self.size(f'{self.called[name]}_{letter}', step)}"
        )

    def written(self, total: str) -> str:
        if self.out in HALF:
            return f"ge2_cast_f32_{SUFFIX[self.out]}({total})"
        return total if self.out == self.wide else f"({STORED[self.out]}){total}"
