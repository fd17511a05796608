"""Running sums, products and extremes in C.

A line along the last axis is cut into chunks whose totals are found first, so that threads can
share it; the chunks depend on its length alone. Lines that lie side by side are run through
together. Sums and products of float32 are carried in float64.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, FLOAT32, FLOAT64, HALF, INEXACT, accumulator
from ge2.base.record import record
from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import merged
from ge2.codegen.text import Operand, Sharing, Text
from ge2.ir import Dims
from ge2.ops.scan import CumMax, CumProd, CumSum, Running, state_of
from ge2.ops.scan import Scan as Lowered
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.reductions import running
from ge2.targets.c.emit.types import GATHERED, HELD, SUFFIX, expression, number
from ge2.targets.c.kernels.generated import Generated, Pieces
from ge2.targets.c.kernels.strided_loops import Head, nest_of, shared

LETTERS = "ijklmopq"


@final
class CScan(Generated):
    name = "scan in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Running) else f"{problem.op.name} runs along no axis"

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        """By where lines lie; the plan is the method that has the kernel."""
        op, (t,) = problem.op, problem.inputs
        assert isinstance(op, Running)
        beside = math.prod(t.shape[op.axis + 1 :]) != 1
        along = "its lines lie side by side" if beside else ""
        alone = "" if beside else "its lines lie one after another"
        return (
            Variant("lines side by side", Scan.columns, alone),
            Variant("lines in chunks", Scan.in_chunks, along or unchunked(op, t.dtype)),
            Variant("line by line", Scan.by_lines, along),
        )

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (t,) = problem.op, problem.inputs
        assert isinstance(op, Running)
        x, y = (directed(o, t.shape[op.axis], op) for o in (ins[0], outs[0]))
        scan = Scan(op, t.dtype, Head(caps))
        scan.head.array("x", x, t.dtype)
        scan.head.array("y", y, t.dtype, written=True)
        view = variant.plan(scan, t.shape, x, y)
        template = "scan/columns" if isinstance(view, ColumnsView) else "scan/lines"
        return Pieces((scan.head.skeleton(op.name, problem, template, view),))


def unchunked(op: Running, dtype: np.dtype) -> str:
    """Why the total of a chunk cannot be found without what comes before."""
    overflows = isinstance(op, CumProd) and dtype in INEXACT
    return "a product of a chunk may overflow where 0 goes before it" if overflows else ""


def directed(operand: Operand, n: int, op: Running) -> Operand:
    """An array whose element 0 along the axis is the first that the scan meets."""
    if not op.reverse or not n:
        return operand
    step = operand.strides[op.axis]
    strides = (*operand.strides[: op.axis], -step, *operand.strides[op.axis + 1 :])
    return Operand(
        operand.role, operand.index, strides, operand.offset + (n - 1) * step, operand.value
    )


@final
@record
class LinesView:
    """What `templates/c/scan/lines.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    type: str
    start: str
    taken: tuple[Text]
    stored: tuple[Text]
    clause: str
    chunked: bool
    count: str
    row: str
    total: str


@final
@record
class ColumnsView:
    """What `templates/c/scan/columns.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    type: str
    start: str
    columns: int
    taken: tuple[Text]
    stored: tuple[Text]
    simd: bool


@final
class Scan:
    """How a state begins, takes in an element, and becomes a result."""

    def __init__(self, op: Running, dtype: np.dtype, head: Head) -> None:
        self.op, self.dtype, self.head = op, dtype, head
        self.tuning = head.tuning.scans
        self.held = state_of(op, dtype)
        self.simd = dtype not in COMPLEX

    @property
    def lowering(self) -> Lowered:
        found = self.op.lowering
        assert isinstance(found, Lowered)
        return found

    @property
    def start(self) -> str:
        text = self.lowering.start
        return (
            expression(text, [], self.held, self.held)
            if "(" in text
            else number(int(text), self.held)
        )

    def loaded(self, place: str) -> str:
        value = f"x[{place}]"
        if self.dtype in HALF:
            value = f"ge2_cast_{SUFFIX[self.dtype]}_f32({value})"
        return value if self.held == accumulator(self.dtype) else f"({HELD[self.held]}){value}"

    def taken(self, state: str, place: str) -> tuple[Text]:
        value = self.loaded(place)
        if self.held in (FLOAT32, FLOAT64) and isinstance(self.op, CumSum):
            return (Text(f"{state} += {value};"),)
        return (Text(f"{state} = {self.merged(state, value)};"),)

    def merged(self, state: str, value: str) -> str:
        merge = running(self.lowering.merge, self.held)
        return expression(merge, [state, value], self.held, self.held)

    def stored(self, place: str, state: str) -> tuple[Text]:
        if self.dtype in HALF:
            state = f"ge2_cast_{SUFFIX[self.held]}_{SUFFIX[self.dtype]}({state})"
        elif self.held != self.dtype:
            state = f"({HELD[self.dtype]}){state}"
        return (Text(f"y[{place}] = {state};"),)

    # -- one line after the other

    def in_chunks(self, shape: Dims, x: Operand, y: Operand) -> LinesView:
        return self.line(True, shape, x, y)

    def by_lines(self, shape: Dims, x: Operand, y: Operand) -> LinesView:
        return self.line(False, shape, x, y)

    def line(self, chunked: bool, shape: Dims, x: Operand, y: Operand) -> LinesView:
        head, axis = self.head, self.op.axis
        over, (x_over, y_over) = merged(shape[:axis], x.strides[:axis], y.strides[:axis])
        letters, lines, n = LETTERS[: len(over)], math.prod(over), shape[axis]
        ends = head.sizes(letters, over)
        size = head.size("n", n)
        x_step, y_step = self.along(x.strides[axis], y.strides[axis])
        reads = follow(head.place("x", letters, x_over), x_step)
        writes = follow(head.place("y", letters, y_over), y_step)
        view = LinesView(
            nest_of(letters, ends), None, GATHERED[self.held], self.start, self.taken("state", reads),
            self.stored(writes, "state"), self.clause if self.simd and chunked else "", chunked,
            size, "", self.merged("state", "total"),
        )  # fmt: skip
        if not chunked:
            sharing = shared(head, len(ends), lines * n, lines=4) if ends else None
            return replace(view, sharing=sharing)
        chunks = max(-(-n // self.tuning.chunk), 1) if lines < self.tuning.lines else 1
        head.size("chunks", chunks)
        totals = max(lines * chunks, 1) * self.held.itemsize
        head.add("totals", f"{view.type} *", "partial", totals)
        row = self.row(letters, over)
        head.size("step", -(-n // chunks))
        return replace(view, row=row, sharing=shared(head, len(ends) + 1, lines * n, lines=6))

    def row(self, letters: str, over: Dims) -> str:
        """Returns where the totals of a line begin."""
        sizes = [math.prod(over[i + 1 :]) for i in range(len(over))]
        return f" + ({self.head.place('row', letters, sizes)}) * chunks" if letters else ""

    def along(self, *steps: int) -> list[str]:
        """Returns how far element `t` is from the first, in x and in y."""
        return [
            "t" if s == 1 else "-t" if s == -1 else f"t * {self.head.size(f'{name}_step', s)}"
            for name, s in zip("xy", steps, strict=True)
        ]

    @property
    def clause(self) -> str:
        if isinstance(self.op, CumSum):
            return "+"
        if self.dtype == BOOL:
            return "|" if isinstance(self.op, CumMax) else "&"
        return (
            "*" if isinstance(self.op, CumProd) else f"ge2_{self.op.name[3:]}_{SUFFIX[self.held]}"
        )

    # -- lines side by side

    def columns(self, shape: Dims, x: Operand, y: Operand) -> ColumnsView:
        head, axis = self.head, self.op.axis
        over, (x_over, y_over) = merged(shape[:axis], x.strides[:axis], y.strides[:axis])
        along, (x_along, y_along) = merged(
            shape[axis + 1 :], x.strides[axis + 1 :], y.strides[axis + 1 :]
        )
        outer = (*over, *along[:-1])
        letters = LETTERS[: len(outer)]
        ends = head.sizes(letters, outer)
        head.size("n", shape[axis])
        width = head.size("width", along[-1])
        place = [
            head.place(
                name, (*letters, "t", "j0", "j"), (*o, *a[:-1], s.strides[axis], a[-1], a[-1])
            )
            for name, o, a, s in (("x", x_over, x_along, x), ("y", y_over, y_along, y))
        ]
        block = self.tuning.columns
        blocks = f"({width} + {block - 1}) / {block}"
        return ColumnsView(
            nest_of((*letters, "block"), (*ends, blocks)),
            shared(head, len(ends) + 1, math.prod(shape), lines=8),
            GATHERED[self.held], self.start, block, self.taken("state[j]", place[0]),
            self.stored(place[1], "state[j]"), self.simd,
        )  # fmt: skip


def follow(place: str, step: str) -> str:
    """A place, and so far from it."""
    return (
        step if place == "0" else f"{place} - {step[1:]}" if step[0] == "-" else f"{place} + {step}"
    )
