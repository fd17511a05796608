"""Results that several blocks gather: each leaves its part, and a second kernel merges them in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np

from ge2.base.dtypes import HALF
from ge2.base.record import record
from ge2.codegen.c.nest import Work
from ge2.codegen.c.text import Argument, Operand, Text
from ge2.codegen.cuda import folds
from ge2.codegen.cuda.kernel import CudaKernel, Fixed
from ge2.codegen.cuda.places import Places
from ge2.codegen.cuda.typed import SUFFIX
from ge2.codegen.cuda.writer import Problem

BLOCK = 256


@final
@record
class Kernels:
    """Launches in order, and the bytes of arrays that they have for themselves."""

    kernels: tuple[CudaKernel, ...]
    temps: tuple[int, ...] = ()


@final
@record
class Part:
    """A reduction whose result is stored and not read otherwise; `axes` are those of its result, in order."""

    fold: Work
    stores: tuple[Work, ...]
    axes: tuple[int, ...]


def part(problem: Problem, w: Work, order: Sequence[int]) -> Part | None:
    """The reduction, if another kernel may finish it."""
    assert w.y is not None
    readers = [r for r in problem.works if w.y in r.xs]
    axes = frozenset(w.y.axes)
    if not readers or any(r.kind != "store" or r.axes != axes for r in readers):
        return None
    return Part(w, tuple(readers), tuple(a for a in order if a in axes))


@final
class Partials:
    """The scratch of some reductions, `count` parts of each, and the kernels that merge them."""

    def __init__(self, problem: Problem, places: Places, parts: Sequence[Part], count: int) -> None:
        self.problem, self.places, self.parts, self.count = problem, places, parts, count
        self.aside = {w for p in parts for w in p.stores}

    def total(self, p: Part) -> int:
        return math.prod(self.problem.axes.sizes[a] for a in p.axes)

    @property
    def temps(self) -> tuple[int, ...]:
        return tuple(self.count * self.total(p) * folds.state_bytes(p.fold) for p in self.parts)

    def array(self, p: Part, const: bool) -> tuple[str, Argument]:
        name = f"{folds.state(p.fold)}_parts"
        head = f"{'const ' if const else ''}{folds.state_type(p.fold)} *__restrict__ {name}"
        operand = Operand("part", list(self.parts).index(p), (1,))
        return name, Argument(head, "array" if const else "result", (operand, np.dtype(np.uint8)))

    def leave(self, w: Work, number: str, place: str, value: str) -> Text:
        """The statement that leaves part `number` of a result; `place` is which element of it."""
        p = next(p for p in self.parts if p.fold is w)
        name, argument = self.array(p, const=False)
        self.places.argue(name, argument.declaration, argument.kind, argument.value)
        size = " * ".join([number, *map(self.places.extent, p.axes)])
        at = " + ".join(each for each in (size if p.axes else number, place) if each != "0")
        return Text(f"{name}[{at or '0'}] = {value};")

    def kernels(self) -> list[CudaKernel]:
        return [self.kernel(p) for p in self.parts]

    def kernel(self, p: Part) -> CudaKernel:
        """One column of parts an element, whose rows the threads of a block share."""
        places = Places(self.problem.axes, self.problem.operands, p.axes)
        name, argument = self.array(p, const=True)
        places.argue(name, argument.declaration, argument.kind, argument.value)
        total, state, w = self.total(p), folds.state(p.fold), p.fold
        columns = min(32, 1 << (total - 1).bit_length()) if total else 1
        extent = " * ".join(map(places.extent, p.axes)) or "1"
        count = places.size("parts", self.count)
        body = [
            Text(f"const {places.whole} p = ({places.whole})blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;"),
            Text(f"{folds.state_type(w)} {state} = {folds.start(w)};"),
            Text(f"if (p < {extent})", body=(self.gather(w, name, extent, count, state),)),
            Text(f"{state} = ge2_column_fold<COLUMNS, {BLOCK}>({state}, {folds.merge(w)});"),
            Text(f"if (p >= {extent} || threadIdx.x >= COLUMNS) return;"),
            *map(Text, places.split("p", p.axes)),
        ]
        for store in p.stores:
            assert store.param is not None
            value, dtype = folds.read(w, state), store.param.var.type.dtype
            if dtype in HALF:
                value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
            body.append(Text(f"{places.result(store.param)}[{places.element(store.param)}] = {value};"))
        what = f"merges the parts of {self.problem.names[w.y.var]}" if w.y and w.y.var else "merges parts"
        fixed = (Fixed("COLUMNS", columns, "elements side by side in a block"),)
        arguments = tuple(places.arguments.values())
        return CudaKernel("finish", what, arguments, tuple(body), BLOCK, (-(-total // columns), 1), fixed)

    def gather(self, w: Work, name: str, extent: str, count: str, state: str) -> Text:
        rows = f"for (int part = threadIdx.x / COLUMNS; part < {count}; part += {BLOCK} / COLUMNS)"
        place = f"{name}[part * {extent} + p]" if extent != "1" else f"{name}[part + p]"
        return Text(
            rows, body=(Text(f"{state} = {folds.merged(w, state, place)};"),), pragma="#pragma unroll 4"
        )
