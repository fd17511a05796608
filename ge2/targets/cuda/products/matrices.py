"""What kernels of matrix products have in common: where operands and result
lie, and how batches are told.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from ge2.base.dtypes import HALF, accumulator
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.kernel_parameters import FAR, LETTERS
from ge2.targets.cuda.emit.types import STORED, SUFFIX
from ge2.targets.cuda.products.gemm import ONE, Along, Contraction

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

    def batch(self) -> tuple[dict[str, str], list[Text]]:
        """Returns where a batch begins in each array, and what tells it."""
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

    def written(self, total: str) -> str:
        if self.out in HALF:
            return f"ge2_cast_f32_{SUFFIX[self.out]}({total})"
        return total if self.out == self.wide else f"({STORED[self.out]}){total}"
