"""Reading and writing rows at indices in C.

All indices are looked at before the first element is moved, so that one outside moves nothing. Threads write
to places of their own, each of them in the order of the indices: sums are the same whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import COMPLEX, HALF, accumulator
from ge2.codegen.c.axes import strides_of
from ge2.codegen.c.text import CKernel, Operand, Text, whole
from ge2.codegen.c.typed import STORED, SUFFIX, expression
from ge2.ir import ArrayType, Dims
from ge2.kernels.generated import Generated, Operands, Pieces, copying, unless_same
from ge2.kernels.kernel import Problem
from ge2.kernels.loops import GRAIN, Head, loops, merged, shared
from ge2.ops.index import Gather, Indexed, Scatter, ScatterAdd
from ge2.ops.reduce import kept
from ge2.passes.match import Index

OVER, ALONG = "ijklmopq", "uvwabcde"  # letters of loops over indices, and along the elements of a row
TILE = 64  # the elements of a row that are moved at a time where they lie apart
LANES = 64  # the elements of a row that a thread has at least


@final
class Rows:
    """The loops over indices, and along the row of an array that they name and its row in another.

    `x` has the indexed axes; `y` has those of the indices, then the others of `x`.
    """

    def __init__(self, op: Indexed, x: ArrayType, indices: Sequence[ArrayType], ins: Operands, threads: int) -> None:
        self.op, self.x, self.indices, self.ins = op, x, indices, ins
        self.head = Head(threads)
        self.shape: Dims = next((t.shape for t in indices if t.shape), ())
        self.others = kept(op.axes, x.ndim)

    def lay(self, x: Operand, y: Operand) -> None:
        """Joins the axes that x and y treat as one."""
        rank = len(self.shape)
        each = [o.strides or (0,) * rank for o in self.ins]
        self.over, (self.y_over, *self.strides) = merged(self.shape, y.strides[:rank] if not y.value else (0,) * rank, *each)
        rest = tuple(self.x.shape[a] for a in self.others)
        along = tuple(x.strides[a] for a in self.others)
        self.along, (self.x_along, self.y_along) = merged(rest, along, y.strides[rank:] if not y.value else (0,) * len(rest))
        self.x_over = tuple(x.strides[a] for a in self.op.axes)
        self.over_letters, self.along_letters = OVER[: len(self.over)], ALONG[: len(self.along)]
        self.work = math.prod(self.over) * math.prod(self.along)

    @property
    def tight(self) -> bool:
        """Whether a row ends in elements that lie side by side in both arrays."""
        return bool(self.along) and self.x_along[-1] == self.y_along[-1] == 1

    def checks(self) -> list[Text]:
        """Nothing is done if an index is outside."""
        head, found = self.head, []
        for k, (t, operand, axis) in enumerate(zip(self.indices, self.ins, self.op.axes, strict=True)):
            name = head.array(f"index{k}", operand, t.dtype)
            strides = operand.strides if t.shape else ()
            sizes, (steps,) = merged(t.shape, strides)
            letters = OVER[: len(sizes)]
            ends = [head.size(f"{name}_n_{letter}", n) for letter, n in zip(letters, sizes, strict=True)]
            place = head.place(f"{name}_all", letters[:-1], steps[:-1])
            first = f"&{name}" if operand.value else name if place == "0" else f"{name} + {place}"
            step = "1" if not steps or steps[-1] == 1 else head.size(f"{name}_step", steps[-1])
            run = f"{first}, {ends[-1] if ends else 1}, {step}, {self.extent(k)}, {head.size(f'axis{k}', axis)}"
            test = f"if (ge2_index_outside_{SUFFIX[t.dtype]}({run}, {head.services()})) return;"
            found += loops(letters[:-1], ends[:-1], [Text(test)])
        return found

    def extent(self, k: int) -> str:
        return self.head.size(f"size{k}", self.x.shape[self.op.axes[k]])

    def at(self) -> Text:
        """Where the row of `x` begins."""
        head, terms = self.head, []
        for k, (t, operand) in enumerate(zip(self.indices, self.ins, strict=True)):
            name = f"index{k}"
            read = name if operand.value else f"{name}[{head.place(name, self.over_letters, self.strides[k])}]"
            term = f"ge2_index_{SUFFIX[t.dtype]}({read}, {self.extent(k)})"
            step = self.x_over[k]
            terms.append(term if step == 1 else f"{term} * {head.size(f'x_{k}', step)}")
        return Text(f"const int64_t at = {' + '.join(terms)};")

    def place_x(self) -> str:
        return added("at", self.head.place("x", self.along_letters, self.x_along))

    def place_y(self) -> str:
        over = self.head.place("y", self.over_letters, self.y_over)
        return added(over, self.head.place("y", self.along_letters, self.y_along))


def added(a: str, b: str) -> str:
    return b if a == "0" else a if b == "0" else f"{a} + {b}"


@final
class CGather(Generated):
    name = "gather in C"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, Gather) else f"{problem.op.name} gathers nothing"

    def pieces(self, problem: Problem, ins: Operands, outs: Operands, threads: int) -> Pieces:
        op, (x, *indices) = problem.op, problem.inputs
        assert isinstance(op, Gather)
        rows = Rows(op, x, indices, ins[1:], threads)
        rows.lay(ins[0], outs[0])
        head = rows.head
        body = rows.checks()
        head.array("x", ins[0], x.dtype)
        head.array("y", outs[0], x.dtype, written=True)
        over = head.sizes(rows.over_letters, rows.over)
        along = head.sizes(rows.along_letters, rows.along)
        pragma = shared(head, max(len(over), 1), rows.work, simd=not along) if over else ""
        if rows.tight:
            letters, ends = rows.along_letters[:-1], along[:-1]
            rows.along_letters = letters
            rows.x_along, rows.y_along = rows.x_along[:-1], rows.y_along[:-1]
            move = f"memcpy(y + {rows.place_y()}, x + {rows.place_x()}, {along[-1]} * sizeof *y);"
            body += loops(rows.over_letters, over, [rows.at(), *loops(letters, ends, [Text(move)])], pragma)
        elif not along:
            move = f"y[{rows.place_y()}] = x[{rows.place_x()}];"
            body += loops(rows.over_letters, over, [rows.at(), Text(move)], pragma)
        else:
            last = rows.along_letters[-1]
            move = f"y[{rows.place_y()}] = x[{rows.place_x()}];"
            run = Text(f"for (int64_t {last} = from; {last} < to; {last}++)", body=(Text(move),))
            ends = [f"({along[-1]} + {TILE - 1}) / {TILE}", *over]
            inner = [rows.at(), *loops(rows.along_letters[:-1], along[:-1], [run])]
            bounds = f"const int64_t from = tile * {TILE}, to = ge2_least(from + {TILE}, {along[-1]});"
            pragma = shared(head, len(ends), rows.work)
            body += loops(["tile", *rows.over_letters], ends, [Text(bounds), *inner], pragma)
        return Pieces((head.kernel("gather", problem, body),))


class CWriting(Generated):
    """A copy of `x`, then the updates, one index after the other."""

    def pieces(self, problem: Problem, ins: Operands, outs: Operands, threads: int) -> Pieces:
        op, (x, updates, *indices) = problem.op, problem.inputs
        assert isinstance(op, Indexed)
        held = self.held(x.dtype)
        if held == x.dtype:
            first = unless_same(copying(x, x, ins[0], outs[0], threads))
            return Pieces((first, self.write(problem, ins, outs[0], held, threads)))
        wide, temp = x.with_dtype(held), whole("temp", 0, x.shape)
        kernels = (
            copying(x, wide, ins[0], temp, threads),
            self.write(problem, ins, temp, held, threads),
            copying(wide, x, temp, outs[0], threads),
        )
        return Pieces(kernels, (wide.nbytes,))

    def held(self, dtype: np.dtype) -> np.dtype:
        """The type in which the elements are while they are written."""
        return dtype

    def stored(self, y: str, update: str, dtype: np.dtype, held: np.dtype) -> str:
        return f"{y} = {update};"

    def write(self, problem: Problem, ins: Operands, out: Operand, held: np.dtype, threads: int) -> CKernel:
        """Threads share the columns of long rows, else the places: each goes through all indices for its own."""
        op, (x, updates, *indices) = problem.op, problem.inputs
        assert isinstance(op, Indexed)
        target = replace(out, offset=0, strides=strides_of(x.shape))
        rows = Rows(op, x, indices, ins[2:], threads)
        rows.lay(target, ins[1])
        head = rows.head
        body = rows.checks()
        head.array("updates", ins[1], updates.dtype)
        head.array("x", target, held, written=True)
        over = head.sizes(rows.over_letters, rows.over)
        along = head.sizes(rows.along_letters, rows.along)
        tiles, ranges = self.parts(rows, threads)
        span = 1 + sum((x.shape[a] - 1) * s for a, s in zip(op.axes, rows.x_over, strict=True))
        update = f"updates[{rows.place_y()}]"
        if ins[1].value:
            update = f"ge2_cast_f32_{SUFFIX[x.dtype]}(updates)" if x.dtype in HALF else "updates"
        move = Text(self.stored(f"x[{rows.place_x()}]", update, x.dtype, held))
        inner: list[Text] = [move]
        bounds = []
        if along:
            last, tile = rows.along_letters[-1], f"part % {head.size('tiles', tiles)}"
            inner = [Text(f"for (int64_t {last} = from; {last} < to; {last}++)", body=(move,), pragma=self.simd(x.dtype))]
            ends = f"from = {along[-1]} * ({tile}) / tiles, to = {along[-1]} * ({tile} + 1) / tiles"
            bounds.append(Text(f"const int64_t {ends};"))
        part = "part / tiles" if along else "part"
        of = f"{head.size('span', span)}"
        ranged = head.size("ranges", ranges)
        bounds.append(Text(f"const int64_t low = {of} * ({part}) / {ranged}, high = {of} * ({part} + 1) / {ranged};"))
        test = Text("if (at < low || at >= high) continue;")
        nest = loops(rows.over_letters, over, [rows.at(), *([test] if over else []), *loops(rows.along_letters[:-1], along[:-1], inner)])
        total = "tiles * ranges" if along else "ranges"
        if not over:
            nest = [rows.at(), Text("if (at >= low && at < high)", body=tuple(loops(rows.along_letters[:-1], along[:-1], inner)))]
        body += loops(["part"], [total], [*bounds, *nest], shared(head, 1, rows.work))
        return head.kernel(op.name, problem, body)

    def parts(self, rows: Rows, threads: int) -> tuple[int, int]:
        """Into how many ranges of columns and of places the work is cut; the results are the same for any."""
        if rows.work <= GRAIN:
            return 1, 1
        width = rows.along[-1] if rows.along else 1
        if rows.along and rows.x_along[-1] != 1:
            tiles = -(-width // TILE)
            return tiles, 1 if tiles >= threads else threads
        return (threads, 1) if width >= LANES * threads else (1, threads)

    def simd(self, dtype: np.dtype) -> str:
        return "" if dtype in COMPLEX else "#pragma omp simd"


@final
class CScatterAdd(CWriting):
    name = "scatter_add in C"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, ScatterAdd) else f"{problem.op.name} adds nothing at indices"

    def held(self, dtype: np.dtype) -> np.dtype:
        return accumulator(dtype)

    def stored(self, y: str, update: str, dtype: np.dtype, held: np.dtype) -> str:
        if dtype in HALF:
            update = f"ge2_cast_{SUFFIX[dtype]}_f32({update})"
        return f"{y} = {expression('ge2_add({0}, {1})', [y, update], held, held)};"


@final
class CScatter(CWriting):
    name = "scatter in C"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, Scatter) else f"{problem.op.name} writes nothing at indices"


@final
class CIndex(Generated):
    """Indices counted from the start of an axis, as int32."""

    name = "index in C"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, Index) else f"{problem.op.name} is no index"

    def pieces(self, problem: Problem, ins: Operands, outs: Operands, threads: int) -> Pieces:
        op, (x,) = problem.op, problem.inputs
        assert isinstance(op, Index)
        head = Head(threads)
        sizes, (steps, places) = merged(x.shape, ins[0].strides, outs[0].strides)
        letters = OVER[: len(sizes)]
        head.array("x", ins[0], x.dtype)
        head.array("y", outs[0], problem.outs[0].dtype, written=True)
        ends = head.sizes(letters, sizes)
        size, axis = head.size("size", op.size), head.size("axis", op.axis)
        suffix, inner = SUFFIX[x.dtype], [Text("")]
        place = head.place("x", letters[:-1], steps[:-1])
        run = f"x + {place}, {ends[-1] if ends else 1}, {head.size('step', steps[-1] if steps else 1)}"
        test = Text(f"if (ge2_index_outside_{suffix}({run}, {size}, {axis}, {head.services()})) return;")
        read = f"x[{head.place('x', letters, steps)}]"
        move = Text(f"y[{head.place('y', letters, places)}] = (int32_t)ge2_index_{suffix}({read}, {size});")
        inner = loops(letters, ends, [move])
        return Pieces((head.kernel("index", problem, [*loops(letters[:-1], ends[:-1], [test]), *inner]),))
