"""The parameters of a kernel, and what axes, sizes, strides and numbers are called in it; for C and
CUDA alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ge2.base.errors import VerifyError
from ge2.codegen.axes import Axes
from ge2.codegen.kernel_values import Param
from ge2.codegen.text import Argument, Operand
from ge2.ir import Literal, Var


class Parameters(ABC):
    """The parameters of a kernel, each declared when it is first named."""

    def __init__(self) -> None:
        self.arguments: dict[str, Argument] = {}

    def argue(self, name: str, declaration: str, kind: str, value: Any = None) -> str:
        new = Argument(declaration, kind, value)
        known = self.arguments.setdefault(name, new)
        if known != new:  # what one name means twice would be read as the other
            raise VerifyError(
                f"a kernel would have two arguments {name}: {known.value} and {value}"
            )
        return name

    @abstractmethod
    def size(self, name: str, value: int) -> str:
        """A size or a stride as a parameter."""

    def sizes(self, letters: Sequence[str], values: Sequence[int]) -> list[str]:
        return [self.size(f"n_{letter}", n) for letter, n in zip(letters, values, strict=True)]

    def place(self, name: str, letters: Sequence[str], strides: Sequence[int]) -> str:
        """The index of an element of an array: `i * x_i + j`."""
        terms = [
            letter if step == 1 else f"{letter} * {self.size(f'{name}_{letter}', step)}"
            for letter, step in zip(letters, strides, strict=True)
            if step
        ]
        return " + ".join(terms) or "0"


class AxesParameters(Parameters):
    """The parameters of a kernel of loops over axes, whose letters are in `letters`."""

    def __init__(
        self, axes: Axes, operands: Mapping[Var, Operand], order: Sequence[int], letters: str
    ) -> None:
        super().__init__()
        self.axes, self.operands, self.order = axes, operands, list(order)
        self.letters: dict[int, str] = {
            a: letters[n] if n < len(letters) else f"i{n}"
            for n, a in enumerate(dict.fromkeys(order))
        }
        self.constants: dict[object, str] = {}

    @abstractmethod
    def extent(self, a: int) -> str:
        """The size of an axis."""

    def passed(self, literal: Literal, dtype: np.dtype, held: str) -> str:
        """A number that is no part of the text."""
        # not the value: it may be a size, which equals another by chance
        key = (id(literal), dtype)
        if key not in self.constants:
            name = self.constants[key] = f"const{len(self.constants)}"  # k0 begins a block
            self.argue(name, f"{held} {name}", "constant", (literal.value, dtype))
        return self.constants[key]

    def stride_by(self, p: Param, a: int, within: Sequence[int], name: str) -> str:
        """A stride as the product of the sizes of the axes `within`, where the array is tight
        there; else a number of its own.
        """
        strides, sizes = self.axes.strides[p], self.axes.sizes
        within = sorted(within, key=lambda b: -strides[b])
        tight = all(
            strides[b] == math.prod(sizes[c] for c in within[i + 1 :]) for i, b in enumerate(within)
        )
        if tight and within and strides[a] == math.prod(sizes[b] for b in within):
            extents = [self.extent(b) for b in within]
            return extents[0] if len(extents) == 1 else f"({' * '.join(extents)})"
        return self.size(f"{name}_{self.letters[a]}", strides[a])  # n_i is a size
