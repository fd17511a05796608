"""Reading and writing rows at indices in C.

All indices are looked at before the first element is moved, so that one outside moves
nothing. Threads write to places of their own, each of them in the order of the indices:
sums are the same whatever their number, and extremes are NumPy's to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.arrays import COMPLEX, HALF, accumulator
from ge2.base.record import record
from ge2.base.source import size_words
from ge2.choice import ONLY, Problem, Variant
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import merged, windowed
from ge2.codegen.text import CKernel, Operand, Sharing, Text, guard, whole
from ge2.ir import ArrayType, Dims
from ge2.ops.index import Gather, Indexed, Scatter, ScatterMax, ScatterMin, ScatterReduce, spans
from ge2.ops.reduce import kept
from ge2.passes.take_to_mask import Index
from ge2.targets.c.emit import STORED, SUFFIX, expression, number
from ge2.targets.c.kernels import Check, Elements, Head, nest_of, shared, shared_in_vectors
from ge2.targets.c.kernels.generated import Generated, Operands, Pieces, copying, unless_same
from ge2.targets.c.tuning import Caps, Moves

# letters of loops over indices, and along the elements of a row
OVER, ALONG = "ijklmopq", "uvwabcde"


@final
class Rows:
    """The loops over indices, and along the row of an array that they name and its row in another.

    `x` has the indexed axes; `y` has those of the indices, then the others of `x`.
    """

    def __init__(
        self, op: Indexed, x: ArrayType, indices: Sequence[ArrayType], ins: Operands, caps: Caps
    ) -> None:
        self.op, self.x, self.indices, self.ins = op, x, indices, ins
        self.head = Head(caps)
        self.shape: Dims = next((t.shape for t in indices if t.shape), ())
        self.others = kept(op.axes, x.ndim)
        self.rest = tuple(n for _, n, _ in spans(op, x.shape))

    def lay(self, x: Operand, y: Operand) -> None:
        """Joins the axes that x and y treat as one."""
        rank, rest = len(self.shape), self.rest
        strides = (0,) * (rank + len(rest)) if y.value else y.strides
        each = [o.strides or (0,) * rank for o in self.ins]
        self.over, (self.y_over, *self.strides) = merged(self.shape, strides[:rank], *each)
        along = tuple(x.strides[a] for a in self.others)
        self.along, (self.x_along, self.y_along) = merged(rest, along, strides[rank:])
        self.x_over = tuple(x.strides[a] for a in self.op.axes)
        self.i, self.u = OVER[: len(self.over)], ALONG[: len(self.along)]
        self.work = math.prod(self.over) * math.prod(self.along)

    def ends(self) -> tuple[list[str], list[str]]:
        """The ends of both kinds of loops: that of a short row is a number, so that it is written out."""
        over, along = (
            self.head.sizes(self.i, self.over),
            self.head.sizes(self.u[:-1], self.along[:-1]),
        )
        if not self.along:
            return over, along
        n = self.along[-1]
        return over, [*along, str(n) if self.short else self.head.size(f"n_{self.u[-1]}", n)]

    @property
    def short(self) -> bool:
        """True if rows are so short that no thread has a part of one."""
        return bool(self.along) and 1 < self.along[-1] <= self.head.tuning.nests.short

    @property
    def tight(self) -> bool:
        """True if a row ends in elements that lie side by side in both arrays."""
        return bool(self.along) and self.x_along[-1] == self.y_along[-1] == 1

    def checks(self) -> tuple[Check, ...]:
        """Nothing is done if an index is outside."""
        head, found = self.head, list[Check]()
        for k, (t, operand, axis) in enumerate(
            zip(self.indices, self.ins, self.op.axes, strict=True)
        ):
            name = head.array(f"index{k}", operand, t.dtype)
            sizes, (steps,) = merged(t.shape, operand.strides if t.shape else ())
            letters = OVER[: len(sizes)]
            ends = [
                head.size(f"{name}_n_{letter}", n) for letter, n in zip(letters, sizes, strict=True)
            ]
            place = head.place(f"{name}_all", letters[:-1], steps[:-1])
            first = f"&{name}" if operand.value else name if place == "0" else f"{name} + {place}"
            step = "1" if not steps or steps[-1] == 1 else head.size(f"{name}_step", steps[-1])
            run = f"{first}, {ends[-1] if ends else 1}, {step}, {self.extent(k)}"
            where = f"{head.size(f'axis{k}', axis)}, {head.services()}"
            outside = f"ge2_index_outside_{SUFFIX[t.dtype]}({run}, {where})"
            found.append(Check(nest_of(letters[:-1], ends[:-1]), (guard(outside, "return;"),)))
        return tuple(found)

    def extent(self, k: int) -> str:
        return self.head.size(f"size{k}", self.x.shape[self.op.axes[k]])

    def at(self, of_block: bool = False) -> tuple[Text]:
        """Returns where the row of `x` begins, for each index or as found for a block of them."""
        if of_block:
            return (Text(f"const int64_t at = places[{self.i} - first];"),)
        head, terms = self.head, []
        for k, (t, operand) in enumerate(zip(self.indices, self.ins, strict=True)):
            read = name = f"index{k}"
            if not operand.value:
                place = head.place(name, self.i, self.strides[k])
                read = f"ge2_index_read_{SUFFIX[t.dtype]}({name if place == '0' else f'{name} + {place}'})"
            term = f"ge2_index_{SUFFIX[t.dtype]}({read}, {self.extent(k)})"
            step = self.x_over[k]
            terms.append(term if step == 1 else f"{term} * {head.size(f'x_{k}', step)}")
        return (Text(f"const int64_t at = {' + '.join(terms)};"),)

    def block(self) -> tuple[Text, ...]:
        """The same of the indices from `first` to `end`; nothing where each is worked out alone."""
        if not self.in_blocks:
            return ()
        head, found = self.head, list[Text]()
        for k, (t, operand) in enumerate(zip(self.indices, self.ins, strict=True)):
            name, (step,) = f"index{k}", self.strides[k]
            first = (
                f"&{name}" if operand.value else f"{name} + {head.place(name, ('first',), (step,))}"
            )
            apart = str(step) if step in (0, 1) else head.size(f"{name}_first", step)
            by = self.x_over[k]
            by_text = "1" if by == 1 else head.size(f"x_{k}", by)
            where = f"end - first, {apart}, {self.extent(k)}, {by_text}, {int(k > 0)}"
            found.append(Text(f"ge2_index_places_{SUFFIX[t.dtype]}(places, {first}, {where});"))
        return tuple(found)

    @property
    def in_blocks(self) -> bool:
        """True if where rows begin is found for a block of indices at a time, by vectors of 32 bits."""
        far = sum(
            (self.x.shape[a] - 1) * abs(s) for a, s in zip(self.op.axes, self.x_over, strict=True)
        )
        few = math.prod(self.along) <= self.head.tuning.nests.short
        return len(self.over) == 1 and few and far < 1 << 31

    def place_x(self) -> str:
        return added("at", self.head.place("x", self.u, self.x_along))

    def place_y(self) -> str:
        return added(
            self.head.place("y", self.i, self.y_over), self.head.place("y", self.u, self.y_along)
        )

    def inner(self) -> tuple[tuple[str, str], ...]:
        """The loops along a row but for the last."""
        return nest_of(self.u[:-1], self.head.sizes(self.u[:-1], self.along[:-1]))


@final
@record
class Gathering:
    """The view that `templates/c/gather.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    at: tuple[Text]
    along: tuple[tuple[str, str], ...]
    to: str
    source: str
    run: str
    last: str = ""
    end: str = ""
    tile: int = 0
    checks: tuple[Check, ...] = ()
    block: tuple[Text, ...] = ()


@final
@record
class Scattering:
    """The view that `templates/c/scatter.c.jinja` prints."""

    checks: tuple[Check, ...]
    sharing: Sharing | None
    over: tuple[tuple[str, str], ...]
    at: tuple[Text]
    along: tuple[tuple[str, str], ...]
    last: str
    count: str
    short: bool
    simd: bool
    store: tuple[Text]
    block: tuple[Text, ...]


@final
@record
class Summing:
    """The view that `templates/c/scatter_sums.c.jinja` prints."""

    checks: tuple[Check, ...]
    sharing: Sharing | None
    type: str
    zero: str
    i: str
    count: str
    at: tuple[Text]
    add: tuple[Text]
    kept: tuple[Text]
    merged: str


def stretch_of(places: int, tuning: Moves) -> int:
    """Updates of so many places that are added up apart from others."""
    return max(tuning.stretch, tuning.per_place // 2 * places)


def in_blocks(count: str) -> str:
    """So many iterations in blocks, as `in_blocks` of templates/c/loops.c.jinja has them."""
    return f"({count} + 255) / 256"


def added(a: str, b: str) -> str:
    return b if a == "0" else a if b == "0" else f"{a} + {b}"


@final
class CGather(Generated):
    name = "gather in C"
    ops = (Gather,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (x, *indices) = problem.op, problem.inputs
        assert isinstance(op, Gather)
        rows = Rows(op, x, indices, ins[1:], caps)
        rows.lay(ins[0], outs[0])
        checks = rows.checks()
        rows.head.array("x", ins[0], x.dtype)
        rows.head.array("y", outs[0], x.dtype, written=True)
        view = self.apart(rows) if rows.along and not rows.tight else self.rows(rows)
        view = replace(view, checks=checks)
        return Pieces((rows.head.skeleton("gather", problem, "gather", view),))

    def rows(self, rows: Rows) -> Gathering:
        """Elements, or rows whose elements lie side by side."""
        (over, along), tight = rows.ends(), rows.tight
        if tight:
            x, y = rows.x_along, rows.y_along
            rows.u, rows.x_along, rows.y_along = rows.u[:-1], x[:-1], y[:-1]
        to, source = rows.place_y(), rows.place_x()
        sharing, block = None, rows.block()
        at = rows.at(bool(block))
        if block:
            sharing = shared(rows.head, (in_blocks(over[0]),), rows.work)
        elif over and tight:
            sharing = shared(rows.head, over, rows.work)
        elif over:
            sharing = shared_in_vectors(rows.head, len(over), rows.work, lines=2)
        return Gathering(
            nest_of(rows.i, over), sharing, at, nest_of(rows.u, along[:-1]) if tight else (), to, source,
            along[-1] if tight else "", block=block,
        )  # fmt: skip

    def apart(self, rows: Rows) -> Gathering:
        """Rows whose elements lie apart: some columns of all rows, then the next."""
        (over, along), last, size = rows.ends(), rows.u[-1], rows.head.tuning.moves.tile
        to, source = rows.place_y(), rows.place_x()
        ends = [f"({along[-1]} + {size - 1}) / {size}", *over]
        sharing = shared(rows.head, ends, rows.work)
        return Gathering(
            nest_of(["tile", *rows.i], ends), sharing, rows.at(), rows.inner(), to, source, "", last,
            along[-1], size,
        )  # fmt: skip


class CWriting(Generated):
    """A copy of `x`, then the updates, one index after the other."""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        x = problem.inputs[0]
        held = self.held(x.dtype)
        if held == x.dtype:
            first = unless_same(copying(x, x, ins[0], outs[0], caps))
            return Pieces((first, self.write(problem, ins, outs[0], held, caps)))
        wide, temp = x.with_dtype(held), whole("temp", 0, x.shape)
        kernels = (
            copying(x, wide, ins[0], temp, caps),
            self.write(problem, ins, temp, held, caps),
            copying(wide, x, temp, outs[0], caps),
        )
        return Pieces(kernels, (wide.nbytes,))

    def held(self, dtype: np.dtype) -> np.dtype:
        """The type in which the elements are while they are written."""
        return dtype

    def stored(self, op: Indexed, y: str, update: str, dtype: np.dtype, held: np.dtype) -> str:
        return f"{y} = {update};"

    def write(
        self, problem: Problem, ins: Operands, out: Operand, held: np.dtype, caps: Caps
    ) -> CKernel:
        """Threads share the columns of long rows, else places: each goes
        through all indices for its own.
        """
        rows, target = self.rows_of(problem, ins, out, caps)
        op, x = rows.op, rows.x
        head, checks = rows.head, rows.checks()
        head.array("updates", ins[1], x.dtype)
        head.array("x", target, held, written=True)
        over, along = rows.ends()
        tiles, ranges = self.parts(rows, max(caps.threads, 1))
        span = 1 + sum((x.shape[a] - 1) * s for a, s in zip(op.axes, rows.x_over, strict=True))
        head.size("tiles", tiles), head.size("ranges", ranges), head.size("span", span)
        y = f"x[{rows.place_x()}]"
        store = self.stored(op, y, self.update(rows, ins[1]), x.dtype, held)
        if isinstance(op, ScatterMax | ScatterMin) and held.kind == "f" and not rows.along:
            store = f"if (__builtin_expect({y} == {y}, 1)) {store}"  # a NaN stays: seldom a choice
        last, inner = "", nest_of((), ())
        if along:
            last, inner = rows.u[-1], rows.inner()
        block = rows.block()
        at = rows.at(bool(block))
        view = Scattering(
            checks, shared(head, ("tiles * ranges",), rows.work), nest_of(rows.i, over), at, inner, last,
            along[-1] if along else "", rows.short, x.dtype not in COMPLEX, (Text(store),),
            block,
        )  # fmt: skip
        return head.skeleton(op.name, problem, "scatter", view)

    def rows_of(
        self, problem: Problem, ins: Operands, out: Operand, caps: Caps
    ) -> tuple[Rows, Operand]:
        """The loops, and the array that is written."""
        op, (x, _, *indices) = problem.op, problem.inputs
        assert isinstance(op, Indexed)
        target = windowed(op, x.shape, replace(out, strides=strides_of(x.shape)))
        rows = Rows(op, x, indices, ins[2:], caps)
        rows.lay(target, ins[1])
        return rows, target

    def update(self, rows: Rows, operand: Operand) -> str:
        """An element of the updates, as it is stored."""
        if not operand.value:
            return f"updates[{rows.place_y()}]"
        return (
            f"ge2_cast_f32_{SUFFIX[rows.x.dtype]}(updates)" if rows.x.dtype in HALF else "updates"
        )

    def parts(self, rows: Rows, threads: int) -> tuple[int, int]:
        """Into how many ranges of columns and of places the work is cut; the
        results are the same for any.
        """
        tuning = rows.head.tuning.moves
        if rows.work <= tuning.grain or (not rows.along and threads < tuning.threads):
            return 1, 1
        width = rows.along[-1] if rows.along else 1
        if rows.along and rows.x_along[-1] != 1:
            tiles = -(-width // tuning.tile)
            return tiles, 1 if tiles >= threads else threads
        return (threads, 1) if width >= tuning.lanes * threads else (1, threads)


@final
class CScatterReduce(CWriting):
    name = "scatter_reduce in C"
    ops = (ScatterReduce,)

    def held(self, dtype: np.dtype) -> np.dtype:
        return accumulator(dtype)

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        """Many updates of few places are reduced stretch by stretch, each in a table of its own; the
        plan says whether they are.
        """
        if not problem.settled:
            return ONLY
        ins, outs = problem.arrays
        rows, target = self.rows_of(problem, ins, outs[0], caps)
        why = self.refuses_tables(rows, target, self.held(rows.x.dtype))
        return Variant("a table for each stretch", True, why), Variant("place by place")

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        if not variant.plan:
            return super().kernels(problem, variant, caps)
        ins, outs = problem.arrays
        rows, target = self.rows_of(problem, ins, outs[0], caps)
        held = self.held(rows.x.dtype)
        own = max(caps.threads, 1) * rows.x.size * held.itemsize
        if held == rows.x.dtype:
            first = unless_same(copying(rows.x, rows.x, ins[0], outs[0], caps))
            return Pieces((first, self.stretches(problem, rows, target, ins, held, 0)), (own,))
        wide, temp = rows.x.with_dtype(held), whole("temp", 0, rows.x.shape)
        rows, target = self.rows_of(problem, ins, temp, caps)
        kernels = (
            copying(rows.x, wide, ins[0], temp, caps),
            self.stretches(problem, rows, target, ins, held, 1),
            copying(wide, rows.x, temp, outs[0], caps),
        )
        return Pieces(kernels, (wide.nbytes, own))

    def refuses_tables(self, rows: Rows, target: Operand, held: np.dtype) -> str:
        """The reason why stretches have no tables; "" for many updates of single elements of an
        array that fits into a cache.
        """
        x, tuning = rows.x, rows.head.tuning.moves
        if rows.along or len(rows.over) != 1 or len(rows.op.axes) != x.ndim:
            return "updates are not single elements along one axis"
        if target.strides != strides_of(x.shape):
            return "only a part of the array is written to"
        if held.kind not in "iuf":
            return f"there is no table of {held.name}"
        if (size := x.size * held.itemsize) > tuning.own:
            return f"a table has {size_words(size)}, more than {size_words(tuning.own)}"
        fewest = max(tuning.grain, tuning.per_place * x.size)
        return (
            f"{rows.work} updates of {x.size} places are no more than {fewest}"
            if rows.work <= fewest
            else ""
        )

    def stretches(
        self, problem: Problem, rows: Rows, target: Operand, ins: Operands, held: np.dtype, own: int
    ) -> CKernel:
        """Returns the lines that take in what each stretch has for a place, in the order of the stretches.

        Their length is told by the sizes alone, so the bits are the same for any number of threads.
        """
        op = rows.op
        assert isinstance(op, ScatterReduce)
        head, checks, x = rows.head, rows.checks(), rows.x
        head.array("updates", ins[1], x.dtype)
        head.array("x", target, held, written=True)
        head.array("own", whole("temp", own, (x.size,)), held, written=True)
        (n,), _ = rows.ends()
        head.size("span", x.size)
        head.size("stretch", stretch_of(x.size, head.tuning.moves))
        zero = number(op.neutral_of(held), held)
        update = self.update(rows, ins[1])
        add, kept = (self.stored(op, y, update, x.dtype, held) for y in ("mine[at]", "sum"))
        merge = expression(op.merge, ["x[k]", "mine[k]"], held, held)
        at, sharing = rows.at(), None
        if not head.alone:
            sharing = Sharing(head.team(rows.work), "for ordered schedule(static, 1)", long=True)
        view = Summing(
            checks,
            sharing,
            STORED[held],
            zero,
            rows.i[0],
            n,
            at,
            (Text(add),),
            (Text(kept),),
            merge,
        )
        return head.skeleton(rows.op.name, problem, "scatter_sums", view)

    def stored(self, op: Indexed, y: str, update: str, dtype: np.dtype, held: np.dtype) -> str:
        assert isinstance(op, ScatterReduce)
        if dtype in HALF:
            update = f"ge2_cast_{SUFFIX[dtype]}_f32({update})"
        return f"{y} = {expression(op.merge, [y, update], held, held)};"


@final
class CScatter(CWriting):
    name = "scatter in C"
    ops = (Scatter,)


@final
class CIndex(Generated):
    """Indices counted from the start of an axis, as int32."""

    name = "index in C"
    ops = (Index,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (x,) = problem.op, problem.inputs
        assert isinstance(op, Index)
        head, suffix = Head(caps), SUFFIX[x.dtype]
        sizes, (steps, places) = merged(x.shape, ins[0].strides, outs[0].strides)
        letters = OVER[: len(sizes)]
        head.array("x", ins[0], x.dtype)
        head.array("y", outs[0], problem.outs[0].dtype, written=True)
        ends = head.sizes(letters, sizes)
        size, axis = head.size("size", op.size), head.size("axis", op.axis)
        first, last = f"x + {head.place('x', letters[:-1], steps[:-1])}", ends[-1] if ends else "1"
        run = f"{first}, {last}, {head.size('step', steps[-1] if steps else 1)}, {size}, {axis}"
        test = guard(f"ge2_index_outside_{suffix}({run}, {head.services()})", "return;")
        read = f"ge2_index_read_{suffix}(x + {head.place('x', letters, steps)})"
        wrapped = f"ge2_index_{suffix}({read}, {size})"
        move = Text(f"y[{head.place('y', letters, places)}] = (int32_t){wrapped};")
        check = Check(nest_of(letters[:-1], ends[:-1]), (test,))
        view = Elements(nest_of(letters, ends), None, (move,), (check,))
        return Pieces((head.skeleton("index", problem, "elements", view),))
