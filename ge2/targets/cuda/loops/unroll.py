"""Iterations of a loop as launches of the program around it, at places that are known beforehand.

The iterations are run once with arrays that only know where they lie (`iterate.py` says what an
iteration is); what they would have launched is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.dtypes import FP8
from ge2.ir import ArrayType
from ge2.targets.cuda.emit.file import Source
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.launch.arguments import Address
from ge2.targets.cuda.launch.launches import Item, Launch
from ge2.targets.cuda.launch.template import count, rebound


@final
class Placed:
    """An array that only knows where it lies, in C order. Elements are told to copy by `copy`."""

    __slots__ = ("at", "copy", "type")

    def __init__(
        self, at: Address, type_: ArrayType, copy: Callable[[Placed, Placed], None]
    ) -> None:
        self.at, self.type, self.copy = at, type_, copy

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    def __getitem__(self, key: tuple[int, Any]) -> Placed:
        """An element of a stack."""
        found = ArrayType(self.type.shape[1:], self.dtype)
        step = math.prod(found.shape) * self.dtype.itemsize
        return Placed(self.at + key[0] * step, found, self.copy)

    def __setitem__(self, _: Any, x: Placed) -> None:
        self.copy(x, self)

    def view(self, dtype: Any) -> Placed:
        """It as bytes, which it is one of already."""
        assert self.dtype in FP8
        return Placed(self.at, ArrayType(self.type.shape, np.dtype(dtype)), self.copy)


@final
class RecordedBody:
    """A program of nothing but launches, to be written down for arrays
    that are known by their places.

    `parameters` are its names for what it is run with, places of results first; `results` says for
    each what it is: one of those names, or a place with a type.
    """

    __slots__ = ("constants", "launches", "offsets", "parameters", "results", "sources")

    def __init__(
        self,
        parameters: Sequence[str],
        launches: Sequence[Item],
        sources: Sequence[Source],
        offsets: dict[str, int],
        results: Sequence[str | tuple[Address, ArrayType]],
        constants: dict[str, Any],
    ) -> None:
        self.parameters, self.launches, self.sources = parameters, launches, sources
        self.offsets, self.results, self.constants = offsets, results, constants

    @property
    def count(self) -> int:
        """Returns how many launches it is."""
        return count(self.launches)

    def run(
        self, launch: Callable[[Item], None], define: Callable[[CudaKernel], tuple[int, str]],
        constant: Callable[[Any], Address], memory: Placed, *given: Placed,
    ) -> list[Placed]:  # fmt: skip
        """Hands each launch to `launch`, kernels to `define`, constant arrays to
        `constant`; the results.
        """
        names = dict(zip(self.parameters, given, strict=True))

        def settled(a: Any) -> Any:
            if not isinstance(a, Address):
                return a
            if a.in_arena:
                return memory.at + self.offsets[a.array] + a.offset
            if a.array in names:
                return names[a.array].at + a.offset
            return constant(self.constants[a.array]) + a.offset

        def defined(each: Launch) -> Launch:
            if each.of_library:
                return each
            number, name = define(self.sources[each.function].kernel)
            return replace(each, function=number, name=name)

        for each in self.launches:
            launch(rebound(each, settled, defined))
        return [
            names[y] if isinstance(y, str) else Placed(settled(y[0]), y[1], memory.copy)
            for y in self.results
        ]
