"""Kernels of lines in C: running sums, sorting, searching."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT32, FLOAT64, HALF, INEXACT, accumulator
from ge2.base.record import record
from ge2.choice import Problem, Variant
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import merged
from ge2.codegen.text import Argument, Operand, Sharing, Text
from ge2.ir import Dims
from ge2.ops.reduce import CumMax, CumProd, CumSum, Running, kept, state_of
from ge2.ops.reduce import Scan as Lowered
from ge2.ops.sort import ArgSort, SearchSorted, Sort, TopK
from ge2.passes.reads import FirstRanks, OrderStatistics
from ge2.targets.c.emit import (
    GATHERED,
    HELD,
    STORED,
    SUFFIX,
    expression,
    number,
    running,
)
from ge2.targets.c.kernels import Elements, Head, nest_of, shared
from ge2.targets.c.kernels.generated import Generated, Pieces
from ge2.targets.c.tuning import Caps

# -------- Running sums, products and extremes in C.
# A line along the last axis is cut into chunks whose totals are found first, so that threads can
# share it; the chunks depend on its length alone. Lines that lie side by side are run through
# together. Sums and products of float32 are carried in float64.


LETTERS = "ilmopquv"  # of axes beside those that the templates name: j, k, n and t


@final
class CScan(Generated):
    name = "scan in C"
    ops = (Running,)
    anywhere = True

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
    """The reason why the total of a chunk cannot be found without what comes before."""
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
    """The view that `templates/c/scan/lines.c.jinja` prints."""

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
    totals_sharing: Sharing | None = None


@final
@record
class ColumnsView:
    """The view that `templates/c/scan/columns.c.jinja` prints."""

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
    """A state: how it begins, takes in an element, and becomes a result."""

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
            sharing = shared(head, ends, lines * n) if ends else None
            return replace(view, sharing=sharing)
        chunks = max(-(-n // self.tuning.chunk), 1) if lines < self.tuning.lines else 1
        head.size("chunks", chunks)
        totals = max(lines * chunks, 1) * self.held.itemsize
        head.add("totals", f"{view.type} *", "partial", totals)
        row = self.row(letters, over)
        head.size("step", -(-n // chunks))
        sharing = shared(head, (*ends, "chunks"), lines * n)
        if sharing is None:
            return replace(view, row=row)
        collapse = f"collapse({len(ends) + 1}) " if ends else ""
        totals_by = Sharing(sharing.test, f"for {collapse}schedule(static)", long=True)
        return replace(view, row=row, sharing=sharing, totals_sharing=totals_by)

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
            shared(head, (*ends, blocks), math.prod(shape)),
            GATHERED[self.held], self.start, block, self.taken("state[j]", place[0]),
            self.stored(place[1], "state[j]"), self.simd,
        )  # fmt: skip


def follow(place: str, step: str) -> str:
    """A place, and so far from it."""
    return (
        step if place == "0" else f"{place} - {step[1:]}" if step[0] == "-" else f"{place} + {step}"
    )


# -------- Sorting lines and searching in them, in C: threads share lines, and values that are
# sought.


LONGEST = 1 << 32  # the elements of a line whose indices are sorted
BY_NUMPY = frozenset(("f32", "f64", "i32", "i64", "u32", "u64"))  # sort_lines.h


@final
@record
class Sorting:
    """The view that `templates/c/sort.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    type: str
    by: str
    read: str
    step: str
    line: str
    pair: str
    sort: str
    to: str
    found: str


@final
@record
class Largest:
    """The view that `templates/c/top_k.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    suffix: str
    begin: str
    step: str
    order: str
    heaped: bool
    writes: tuple[Text, ...]


@final
class CSort(Generated):
    """Each thread sorts a line: elements of 32 and 64 bits, or numbers of their keys and indices, by
    NumPy's sort, which uses vectors; shorter types as pairs of a key and an index, by bytes.
    """

    name = "sort in C"
    ops = (Sort, ArgSort)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Sort | ArgSort)
        (t,) = problem.inputs
        if t.dtype in COMPLEX:
            return "complex numbers are sorted by NumPy"
        return "" if t.shape[op.axis] < LONGEST else "the line is too long for its indices"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (t,) = problem.op, problem.inputs
        assert isinstance(op, Sort | ArgSort)
        (x,), (y,), head, suffix = ins, outs, Head(caps), SUFFIX[t.dtype]
        others, n = kept((op.axis,), t.ndim), t.shape[op.axis]
        parts = [tuple(s[a] for a in others) for s in (t.shape, x.strides, y.strides)]
        over, (x_over, y_over) = merged(*parts)
        letters = LETTERS[: len(over)]
        by_numpy, indices = suffix in BY_NUMPY, isinstance(op, ArgSort)
        if by_numpy:
            head.add("lib", "const ge2_services *", "services")
        head.array("x", x, t.dtype)
        head.array("y", y, problem.outs[0].dtype, written=True)
        ends = head.sizes(letters, over)
        head.size("n", n)
        read, step = head.place("x", letters, x_over), x.strides[op.axis]
        by = "1" if step == 1 else head.size("x_t", step)
        along = "" if step == 1 else f" * {by}"
        inside = y.strides[op.axis]
        here = by_numpy and not indices and inside == 1
        line = f"y + {head.place('y', letters, y_over)}" if here else ""
        write = "" if here else f"y[{head.place('y', (*letters, 't'), (*y_over, inside))}]"
        work = caps.tuning.sorts.cost * t.size
        sharing = shared(head, ends, work) if ends else None
        if not here:
            own = -(-n * room(t.dtype, by_numpy, indices) // 64) * 64
            head.size("per_thread", own)
            head.arguments["scratch"] = Argument(
                "char *scratch", "scratch", max(own, 64) * max(caps.threads, 1)
            )
        pair = f"ge2_pair_{suffix}"
        if by_numpy:
            kind, name = ("ge2_any_word", "indices") if indices else (STORED[t.dtype], "values")
            function = f"ge2_lines_{name}_{suffix}"
            found = "(int64_t)line[t]" if indices else "line[t]"
        else:
            kind, function = pair, ""
            found = "line[t].index" if indices else f"x[{read} + (int64_t)line[t].index{along}]"
        key = f"({pair}){{ge2_sort_key_{suffix}(x[{read} + t{along}]), (uint32_t)t}}"
        view = Sorting(
            nest_of(letters, ends), sharing, kind, function, read, by, line, key,
            f"ge2_sort_{suffix}", write, found,
        )  # fmt: skip
        return Pieces((head.skeleton(op.name, problem, "sort", view),))


def room(dtype: np.dtype, by_numpy: bool, indices: bool) -> int:
    """The bytes of scratch for an element of a line that is sorted there."""
    if not by_numpy:
        return 2 * 2 * max(dtype.itemsize, 4)
    if not indices:
        return dtype.itemsize
    return 8 if dtype.itemsize == 4 else 32  # keys of 64 bits may have to be sorted as pairs


@final
@record
class Selecting:
    """The view that `templates/c/order_statistics.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    key: str
    suffix: str
    read: str
    ranks: tuple[str, ...]
    to: str
    few: bool  # keys of a line, of which each counts those before it


@final
class CSelect(Generated):
    """Each thread selects, among the keys of a line, those of some ranks."""

    name = "order statistics in C"
    ops = (OrderStatistics,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ((x,), (y,)), op, (t,) = problem.arrays, problem.op, problem.inputs
        assert isinstance(op, OrderStatistics)
        head, suffix, n = Head(caps), SUFFIX[t.dtype], t.shape[op.axis]
        others = kept((op.axis,), t.ndim)
        over, (x_over, y_over) = merged(
            *(tuple(s[a] for a in others) for s in (t.shape, x.strides, y.strides))
        )
        letters = LETTERS[: len(over)]
        head.array("x", x, t.dtype)
        head.array("y", y, t.dtype, written=True)
        ends = head.sizes(letters, over)
        head.size("n", n)
        head.size("per_thread", own := -(-2 * n * max(t.dtype.itemsize, 4) // 64) * 64)
        place, step = head.place("x", letters, x_over), x.strides[op.axis]
        along = "" if step == 1 else f" * {head.size('x_t', step)}"
        write = f"y[{head.place('y', (*letters, 't'), (*y_over, y.strides[op.axis]))}]"
        ranks = tuple(head.size(f"rank{i}", rank) for i, rank in enumerate(op.ranks))
        work = caps.tuning.sorts.selecting * t.size
        sharing = shared(head, ends, work) if ends else None
        head.arguments["scratch"] = Argument(
            "char *scratch", "scratch", max(own, 64) * max(caps.threads, 1)
        )
        key = key_type(t.dtype)
        read = f"x[{place} + t{along}]"
        few = n <= caps.tuning.sorts.few
        view = Selecting(nest_of(letters, ends), sharing, key, suffix, read, ranks, write, few)
        return Pieces((head.skeleton(op.name, problem, "order_statistics", view),))


def key_type(dtype: np.dtype) -> str:
    """The C type of the keys of a line: unsigned; half types are ordered as float32."""
    return "uint32_t" if dtype in HALF else f"uint{8 * dtype.itemsize}_t"


@final
class CTop(Generated):
    """Each thread keeps the largest elements of a line in a heap; where they
    are many, it sorts the line.
    """

    name = "top_k in C"
    ops = (TopK, FirstRanks)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, TopK | FirstRanks)
        return (
            ""
            if problem.inputs[0].shape[op.axis] < LONGEST
            else "the line is too long for its indices"
        )

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        """By the share of a line that is wanted; the plan says whether there is a heap."""
        op, share = problem.op, caps.tuning.sorts.heap
        assert isinstance(op, TopK | FirstRanks)
        n = problem.inputs[0].shape[op.axis]
        many = f"{op.k} of {n} elements are more than one in {share}" if op.k * share > n else ""
        return Variant("a heap for each line", True, many), Variant("sorted lines", False)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (t,) = problem.op, problem.inputs
        assert isinstance(op, TopK | FirstRanks)
        (x,), head, suffix = ins, Head(caps), SUFFIX[t.dtype]
        others, n = kept((op.axis,), t.ndim), t.shape[op.axis]
        if not problem.outs[0].size:
            return Pieces((head.kernel(op.name, problem, []),))
        parts = [
            tuple(s[a] for a in others) for s in (t.shape, x.strides, *(o.strides for o in outs))
        ]
        over, (x_over, *to_over) = merged(*parts)
        letters = LETTERS[: len(over)]
        head.array("x", x, t.dtype)
        ends = head.sizes(letters, over)
        head.size("n", n)
        head.size("k", op.k)
        place, step = head.place("x", letters, x_over), head.size("x_t", x.strides[op.axis])
        read, writes = f"x[{place} + (int64_t)line[t].index * {step}]", []
        for name, operand, out, value, strides in zip(
            ("y", "index"), outs, problem.outs, (read, "line[t].index"), to_over, strict=True
        ):
            head.array(name, operand, out.dtype, written=True)
            at = head.place(name, (*letters, "t"), (*strides, operand.strides[op.axis]))
            writes.append(Text(f"{name}[{at}] = {value};"))
        heaped: bool = variant.plan
        pairs = op.k if heaped else 2 * n
        own = -(-pairs * 2 * max(t.dtype.itemsize, 4) // 64) * 64
        head.size("per_thread", own)
        cost = 2 if heaped else caps.tuning.sorts.cost
        sharing = shared(head, ends, cost * t.size) if ends else None
        head.arguments["scratch"] = Argument(
            "char *scratch", "scratch", max(own, 64) * max(caps.threads, 1)
        )
        view = Largest(
            nest_of(letters, ends),
            sharing,
            suffix,
            place,
            step,
            order_of(op),
            heaped,
            tuple(writes),
        )
        return Pieces((head.skeleton(op.name, problem, "top_k", view),))


def order_of(op: TopK | FirstRanks) -> str:
    """The order of sort.h in which some elements are the first."""
    if isinstance(op, TopK):
        return "GE2_LARGEST"
    return "GE2_FALLING" if op.falling else "GE2_RISING"


@final
class CSearch(Generated):
    name = "search in C"
    ops = (SearchSorted,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "complex numbers are compared by NumPy" if problem.inputs[0].dtype in COMPLEX else ""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, outs), searches = problem.arrays, caps.tuning.sorts.searches
        op, (line, values) = problem.op, problem.inputs
        assert isinstance(op, SearchSorted)
        head, suffix, beside = Head(caps), SUFFIX[line.dtype], op.beside
        sought = (0,) * values.ndim if ins[1].value else ins[1].strides
        own = (*ins[0].strides[:-1], *(0,) * (values.ndim - beside))
        over, (l_over, v_over, y_over) = merged(values.shape, own, sought, strides_of(values.shape))
        letters = LETTERS[: len(over)]
        head.array("line", ins[0], line.dtype)
        head.array("values", ins[1], values.dtype)
        head.array("y", outs[0], problem.outs[0].dtype, written=True)
        ends = head.sizes(letters, over)
        step = "1" if ins[0].strides[-1] == 1 else head.size("line_step", ins[0].strides[-1])
        alone = not over or l_over[-1] != 0  # each value has a line of its own
        stride = "1" if alone or v_over[-1] == 1 else head.size("values_step", v_over[-1])
        places = [*letters] if alone else [*letters[:-1], "first"]
        a, v, y = (
            head.place(name, places, s)
            for name, s in (("line", l_over), ("values", v_over), ("y", y_over))
        )
        if not alone:
            a = head.place("line", letters[:-1], l_over[:-1])
        count = "1" if alone else f"ge2_least({searches}, {ends[-1]} - first)"
        given, each = "&values" if ins[1].value else f"values + {v}", tuple[Text, ...]()
        if ins[1].value and values.dtype in HALF:  # a number is held as a float, and lines are not
            stored = f"ge2_cast_f32_{SUFFIX[values.dtype]}(values)"
            given, each = "&sought", (Text(f"const {STORED[values.dtype]} sought = {stored};"),)
        where = f"line + {a}, {head.size('n', line.shape[-1])}, {step}"
        side = f"{int(op.side == 'right')}, y + {y}"
        call = Text(f"ge2_search_{suffix}({where}, {given}, {stride}, {count}, {side});")
        names, each = [*letters], (*each, call)
        if not alone:
            each = (Text(f"const int64_t first = block * {searches};"), *each)
            names, ends = (
                [*letters[:-1], "block"],
                [*ends[:-1], f"({ends[-1]} + {searches - 1}) / {searches}"],
            )
        work = caps.tuning.sorts.cost * math.prod(values.shape)
        sharing = shared(head, ends, work) if ends else None
        view = Elements(nest_of(names, ends), sharing, each)
        return Pieces((head.skeleton(op.name, problem, "elements", view),))
