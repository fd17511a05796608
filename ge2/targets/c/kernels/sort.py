"""Sorting lines and searching in them, in C: threads share lines, and values that are sought."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from ge2.base.dtypes import COMPLEX, HALF
from ge2.base.record import record
from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import merged, strides_of
from ge2.codegen.text import Argument, Sharing, Text
from ge2.ops.reduce import kept
from ge2.ops.sort import ArgSort, SearchSorted, Sort, TopK
from ge2.passes.order_statistics import OrderStatistics
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.types import STORED, SUFFIX
from ge2.targets.c.kernels.generated import Generated, Pieces
from ge2.targets.c.kernels.strided_loops import Elements, Head, nest_of, shared

LETTERS = "ijklmopq"
LONGEST = 1 << 32  # the elements of a line whose indices are sorted
BY_NUMPY = frozenset(("f32", "f64", "i32", "i64", "u32", "u64"))  # sort_lines.h


@final
@record
class Sorting:
    """What `templates/c/sort.c.jinja` prints."""

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
    """What `templates/c/top_k.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    suffix: str
    begin: str
    step: str
    heaped: bool
    writes: tuple[Text, ...]


@final
class CSort(Generated):
    """Each thread sorts a line: elements of 32 and 64 bits, or numbers of their keys and indices, by
    NumPy's sort, which uses vectors; shorter types as pairs of a key and an index, by bytes.
    """

    name = "sort in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Sort | ArgSort):
            return f"{op.name} sorts nothing"
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
        sharing = shared(head, len(ends), work, lines=3 if here else 6) if ends else None
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
    """What `templates/c/order_statistics.c.jinja` prints."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    key: str
    suffix: str
    read: str
    ranks: tuple[str, ...]
    to: str


@final
class CSelect(Generated):
    """Each thread selects, among the keys of a line, those of some ranks."""

    name = "order statistics in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        is_it = isinstance(problem.op, OrderStatistics)
        return "" if is_it else f"{problem.op.name} selects no elements by rank"

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
        sharing = shared(head, len(ends), work, lines=6) if ends else None
        head.arguments["scratch"] = Argument(
            "char *scratch", "scratch", max(own, 64) * max(caps.threads, 1)
        )
        key = key_type(t.dtype)
        read = f"x[{place} + t{along}]"
        view = Selecting(nest_of(letters, ends), sharing, key, suffix, read, ranks, write)
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

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, TopK):
            return f"{op.name} finds no largest elements"
        return (
            ""
            if problem.inputs[0].shape[op.axis] < LONGEST
            else "the line is too long for its indices"
        )

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        """By the share of a line that is wanted; the plan says whether there is a heap."""
        op, share = problem.op, caps.tuning.sorts.heap
        assert isinstance(op, TopK)
        n = problem.inputs[0].shape[op.axis]
        many = f"{op.k} of {n} elements are more than one in {share}" if op.k * share > n else ""
        return Variant("a heap for each line", True, many), Variant("sorted lines", False)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (t,) = problem.op, problem.inputs
        assert isinstance(op, TopK)
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
        lines = 3 + len(writes) + 2 * (not heaped)
        sharing = shared(head, len(ends), cost * t.size, lines=lines) if ends else None
        head.arguments["scratch"] = Argument(
            "char *scratch", "scratch", max(own, 64) * max(caps.threads, 1)
        )
        view = Largest(nest_of(letters, ends), sharing, suffix, place, step, heaped, tuple(writes))
        return Pieces((head.skeleton(op.name, problem, "top_k", view),))


@final
class CSearch(Generated):
    name = "search in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if not isinstance(problem.op, SearchSorted):
            return f"{problem.op.name} seeks nothing"
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
        given = "&values" if ins[1].value else f"values + {v}"
        where = f"line + {a}, {head.size('n', line.shape[-1])}, {step}"
        side = f"{int(op.side == 'right')}, y + {y}"
        call = Text(f"ge2_search_{suffix}({where}, {given}, {stride}, {count}, {side});")
        names, each = [*letters], tuple[Text, ...]((call,))
        if not alone:
            each = (Text(f"const int64_t first = block * {searches};"), *each)
            names, ends = (
                [*letters[:-1], "block"],
                [*ends[:-1], f"({ends[-1]} + {searches - 1}) / {searches}"],
            )
        work = caps.tuning.sorts.cost * math.prod(values.shape)
        sharing = shared(head, len(ends), work, lines=len(each)) if ends else None
        view = Elements(nest_of(names, ends), sharing, each)
        return Pieces((head.skeleton(op.name, problem, "elements", view),))
