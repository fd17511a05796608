"""Kernels of a thread an element: where it is along axes of any strides, and
the parameters it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.dtypes import HALF
from ge2.base.record import record
from ge2.codegen.parameters import Parameters
from ge2.codegen.text import Operand, Text
from ge2.ir import Dims
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import FAR, WIDEST
from ge2.targets.cuda.emit.types import HELD, STORED, SUFFIX

ROOM = 1 << 12  # elements beyond the last that a place may come to before it is found to be there
OVER, ALONG = "ijlmoq", "uzabcdefgh"  # letters of axes of indices, and of those along a row


def lettered(letters: str, count: int) -> list[str]:
    """A name for each of so many axes.

    >>> lettered("ij", 3)
    ['i', 'j', 'i2']
    """
    return [letters[n] if n < len(letters) else f"{letters[0]}{n}" for n in range(count)]


def far(counts: Iterable[int], *arrays: tuple[Dims, Dims]) -> bool:
    """True if places need 64 bits: for so many elements, or arrays of such (shape, strides)."""
    spans = (
        1 + sum(abs(s) * (n - 1) for n, s in zip(shape, strides, strict=True))
        for shape, strides in arrays
        if 0 not in shape
    )
    return max(*counts, *spans, 0) + ROOM >= FAR


def packed(dtype: np.dtype, *multiples: int) -> int:
    """Neighbouring elements that one access moves, where those numbers of
    elements are multiples of theirs.

    >>> packed(np.dtype("f4"), 12, 0), packed(np.dtype("f2"), 12, 2), packed(np.dtype("f8"), 3)
    (4, 2, 1)
    """
    found = max(WIDEST // dtype.itemsize, 1)
    while found > 1 and any(each % found for each in multiples):
        found //= 2
    return found


@final
@record
class Spread:
    """Which element a thread has: its number among so many, and its place along each axis."""

    index: str
    block: int
    number: str = ""
    count: str = ""  # empty if there is but one element
    places: tuple[Text, ...] = ()


@final
@record
class Elements:
    """The view of a kernel that does some statements for each element."""

    spread: Spread
    statements: tuple[Text, ...]


@final
class Grid(Parameters):
    """The parameters of a kernel, each declared when it is first named.

    `far`: places have 64 bits; `block`: threads of a block.
    """

    def __init__(self, far: bool, block: int) -> None:
        super().__init__()
        self.whole, self.block = "int64_t" if far else "int", block
        self.fixed: list[Fixed] = []

    # -- parameters

    def add(self, name: str, declaration: str, kind: str, value: Any) -> str:
        return self.argue(name, f"{declaration}{name}", kind, value)

    def array(self, name: str, operand: Operand, dtype: np.dtype, stored: str = "") -> str:
        """An array that is read, or the number that stands in its place."""
        if operand.value:
            return self.add(name, f"{HELD[dtype]} ", "value", (operand, dtype))
        return self.add(
            name, f"const {stored or STORED[dtype]} *__restrict__ ", "array", (operand, dtype)
        )

    def result(self, name: str, operand: Operand, dtype: np.dtype, stored: str = "") -> str:
        return self.add(
            name, f"{stored or STORED[dtype]} *__restrict__ ", "result", (operand, dtype)
        )

    def size(self, name: str, value: int) -> str:
        return self.add(name, f"{self.whole} ", "size", value)

    # -- places

    def element(self, name: str, operand: Operand, dtype: np.dtype, place: str) -> str:
        """An element of an array as it is stored; a number, where that stands in its place."""
        self.array(name, operand, dtype)
        if not operand.value:
            return f"{name}[{place}]"
        return f"ge2_cast_f32_{SUFFIX[dtype]}({name})" if dtype in HALF else name

    def spread(self, letters: Sequence[str], sizes: Sequence[int], pack: int = 1) -> Spread:
        """A thread for each element along some axes, or each PACK along the last: where it is."""
        if not letters:
            return Spread(self.whole, self.block)
        extents, whole = self.sizes(letters, sizes), ""
        if pack > 1:
            self.fixed.append(Fixed("PACK", pack, "neighbours that a thread moves at once"))
            extents[-1] = f"({extents[-1]} / PACK)" if len(letters) > 1 else f"{extents[-1]} / PACK"
            whole = " * PACK"
        linear = letters[0] if len(letters) == 1 and not whole else "p"
        places = self.split("p", letters, extents, whole) if linear == "p" else ()
        return Spread(self.whole, self.block, linear, product(extents), tuple(places))

    def split(
        self, linear: str, letters: Sequence[str], extents: Sequence[str], whole: str = ""
    ) -> list[Text]:
        """The place along each axis, from that among all; `whole`: what the
        last is to be multiplied by.
        """
        found, rest, last = [], linear, len(letters) - 1
        for n, (letter, extent) in enumerate(reversed(list(zip(letters, extents, strict=True)))):
            place = rest if n == last else f"{rest} % {extent}"
            found.append(Text(f"const {self.whole} {letter} = {place}{'' if n else whole};"))
            rest = f"{rest} / {extent}" if " " not in rest else f"({rest}) / {extent}"
        return found

    def kernel(
        self, kind: str, graph: str, view: Any, threads: int, template: str = "elements"
    ) -> CudaKernel:
        """A kernel of so many threads: of a family's template, or of statements alone."""
        if isinstance(view, tuple):
            return replace(self.kernel(kind, graph, None, threads, "kernel"), body=view)
        arguments, fixed = tuple(self.arguments.values()), tuple(self.fixed)
        return CudaKernel(
            kind, graph, arguments, (), self.block, (-(-threads // self.block), 1), fixed,
            template=f"cuda/{template}.cu.jinja", view=view,
        )  # fmt: skip


def product(terms: Sequence[str]) -> str:
    return " * ".join(terms) or "1"


def added(*terms: str) -> str:
    """A sum without what is nothing.

    >>> added("at", "0", "i")
    'at + i'
    """
    return " + ".join(t for t in terms if t != "0") or "0"
