"""Results that several blocks gather: each leaves its part, and a
second kernel merges them in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np

from ge2.base.dtypes import HALF
from ge2.base.record import record
from ge2.codegen.loop_nest import Work
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.emit import reductions
from ge2.targets.cuda.emit.file import content_of
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import Places
from ge2.targets.cuda.emit.region import Problem, is_rounding
from ge2.targets.cuda.emit.types import SUFFIX
from ge2.targets.cuda.launch.library_call import Callee
from ge2.targets.cuda.load.nvrtc import FLAGS
from ge2.targets.cuda.tuning import Parts


@final
@record
class LibraryLaunch:
    """Functions of a library, and their operands, some of which they write; scratch comes last."""

    call: Callee
    operands: tuple[tuple[Operand, np.dtype], ...]
    written: frozenset[int]


@final
@record
class Kernels:
    """Launches in order, the bytes of arrays that they have for themselves, and a library's
    functions after them, if there are any.
    """

    kernels: tuple[CudaKernel, ...]
    temps: tuple[int, ...] = ()
    library: LibraryLaunch | None = None

    @property
    def scratch(self) -> int:
        """The bytes that they need beside arguments and results."""
        return sum(self.temps) + (0 if self.library is None else self.library.call.workspace)

    @property
    def content(self) -> tuple[str, ...]:
        """Returns what their texts consist of, with the headers that they need, but for numbers."""
        own = (part for k in self.kernels for part in content_of(k))
        called = () if self.library is None else (type(self.library.call).__name__,)
        return (*FLAGS, *own, *called)


@final
@record
class Part:
    """A reduction whose result is stored and not read otherwise; `axes` are
    those of its result, in order.
    """

    fold: Work
    stores: tuple[Work, ...]
    axes: tuple[int, ...]


@final
@record
class Gathered:
    """The merging of a result's parts, in CUDA."""

    state: str
    type: str
    start: str
    array: str
    place: str
    some: str
    merged: str
    merge: str


@final
@record
class Finish:
    """What `templates/cuda/finish.cu.jinja` prints."""

    index: str
    count: str
    block: int
    parts: tuple[Gathered, ...]
    places: tuple[Text, ...]
    stores: tuple[Text, ...]


def part(problem: Problem, w: Work, order: Sequence[int]) -> Part | None:
    """The reduction, if another kernel may finish it: it is stored as it is, or rounded."""
    assert w.y is not None
    stores, axes = list[Work](), frozenset(w.y.axes)
    waiting = [r for r in problem.works if w.y in r.xs]
    for r in waiting:
        if r.axes != axes or not (r.kind == "store" or is_rounding(r)):
            return None
        if r.kind == "store":
            stores.append(r)
        else:
            waiting += (each for each in problem.works if r.y in each.xs)
    return Part(w, tuple(stores), tuple(a for a in order if a in axes)) if stores else None


@final
class Partials:
    """The scratch of some reductions, `count` parts of each, and the kernels that merge them.

    `most`: how many parts there would be of more rows, so that these have the same kernel. `first`:
    the number of the first scratch array.
    """

    def __init__(
        self,
        problem: Problem,
        places: Places,
        parts: Sequence[Part],
        count: int,
        tuning: Parts,
        most: int = 0,
        first: int = 0,
    ) -> None:
        self.problem, self.places, self.parts, self.count = problem, places, parts, count
        self.most, self.tuning, self.first = max(count, most), tuning, first
        self.aside = {w for p in parts for w in p.stores}

    def total(self, p: Part) -> int:
        return math.prod(self.problem.axes.sizes[a] for a in p.axes)

    @property
    def temps(self) -> tuple[int, ...]:
        return tuple(
            self.count * self.total(p) * reductions.state_bytes(p.fold) for p in self.parts
        )

    def array(self, p: Part, const: bool) -> tuple[str, Argument]:
        name = f"{reductions.state(p.fold)}_parts"
        head = f"{'const ' if const else ''}{reductions.state_type(p.fold)} *__restrict__ {name}"
        operand = Operand("part", self.first + list(self.parts).index(p), (1,))
        return name, Argument(head, "array" if const else "result", (operand, np.dtype(np.uint8)))

    def part(self, w: Work) -> Part:
        """The parts of a fold."""
        return next(p for p in self.parts if p.fold is w)

    def leave(self, w: Work, number: str, place: str, value: str) -> Text:
        """The statement that leaves part `number` of a result; `place` is which element of it."""
        p = self.part(w)
        name, argument = self.array(p, const=False)
        self.places.argue(name, argument.declaration, argument.kind, argument.value)
        size = " * ".join([number, *map(self.places.extent, p.axes)])
        at = " + ".join(each for each in (size if p.axes else number, place) if each != "0")
        return Text(f"{name}[{at or '0'}] = {value};")

    def kernels(self) -> list[CudaKernel]:
        """One for all results that have the same axes."""
        alike: dict[tuple[int, ...], list[Part]] = {}
        for p in self.parts:
            alike.setdefault(p.axes, []).append(p)
        return [self.kernel(parts) for parts in alike.values()]

    def kernel(self, parts: Sequence[Part]) -> CudaKernel:
        """One column of parts an element, whose rows the threads of a block share."""
        axes, total = parts[0].axes, self.total(parts[0])
        places = Places(self.problem.axes, self.problem.operands, axes)
        columns, block, at_once = self.shape(total, parts)
        extent = " * ".join(map(places.extent, axes)) or "1"
        gathered = tuple(self.gathered(each, places, extent) for each in parts)
        split = tuple(map(Text, places.split("p", axes)))
        stores = tuple(self.stored(each, store, places) for each in parts for store in each.stores)
        view = Finish(places.whole, extent, block, gathered, split, stores)
        names = [self.problem.names[p.fold.y.var] for p in parts if p.fold.y and p.fold.y.var]
        what = f"merges the parts of {', '.join(names)}" if names else "merges parts"
        fixed = (
            Fixed("COLUMNS", columns, "elements side by side in a block"),
            Fixed(
                "ROWS", block // columns, "threads below each other, which share the parts of one"
            ),
            Fixed("AT_ONCE", at_once, "parts that a thread reads at once"),
        )
        arguments = tuple(places.arguments.values())
        return CudaKernel(
            "finish", what, arguments, (), block, (-(-total // columns), 1), fixed,
            template="cuda/finish.cu.jinja", view=view,
        )  # fmt: skip

    def shape(self, total: int, parts: Sequence[Part]) -> tuple[int, int, int]:
        """Elements side by side and threads of a block, and the parts that a thread reads at once.

        No more threads share an element's parts than give the chip enough of them, since they meet
        when each has its sum; and a thread has registers for so many parts of all results.
        """
        columns, block = self.columns(total), self.tuning.block
        sizes = [reductions.state_bytes(p.fold) for p in parts]
        at_once = self.tuning.at_once // max(sizes)
        if self.most * columns > at_once * block:
            block = self.tuning.largest
        enough = 1 << (-(-self.tuning.threads // max(total, 1)) - 1).bit_length()
        if enough * columns < block:
            block = self.tuning.block
            columns = max(columns, block // enough)
        each = -(-self.most * columns // block)  # of a thread
        fitting = min(at_once, self.tuning.held // sum(sizes), 1 << (each - 1).bit_length())
        return columns, block, max(fitting, 2)

    def columns(self, total: int) -> int:
        """Elements side by side in a block: few where blocks would be too few for the chip."""
        columns = min(32, 1 << (total - 1).bit_length()) if total else 1
        while columns > self.tuning.narrow and -(-total // columns) < self.tuning.blocks:
            columns //= 2
        return columns

    def gathered(self, p: Part, places: Places, extent: str) -> Gathered:
        """Returns how an element's parts become one."""
        name, argument = self.array(p, const=True)
        places.argue(name, argument.declaration, argument.kind, argument.value)
        places.size("parts", self.count)
        w, state, part = p.fold, reductions.state(p.fold), "part + u * ROWS"
        place = f"({part}) * {extent} + p" if extent != "1" else f"{part} + p"
        some = f"{state}_some"
        merged = reductions.merged(w, state, f"{some}[u]")
        return Gathered(
            state, reductions.state_type(w), reductions.start(w), name, place, some, merged, reductions.merge_of(w)
        )  # fmt: skip

    def stored(self, p: Part, store: Work, places: Places) -> Text:
        assert store.param is not None
        value, dtype = reductions.read(p.fold, reductions.state(p.fold)), store.param.var.type.dtype
        if dtype in HALF:
            value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
        return Text(f"{places.result(store.param)}[{places.element(store.param)}] = {value};")
