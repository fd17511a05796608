"""Matrix products by panels in C: tiles that registers hold, for types that BLAS lacks and shapes
that it is slow with.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, FLOATS, HALF
from ge2.base.record import record
from ge2.codegen.text import Argument, CKernel, Operand, whole
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.types import STORED, SUFFIX
from ge2.targets.c.tuning import Products

Sides = tuple[int, int, int, int]  # of a product: how many, rows, columns, terms
ROWS: Final = 12  # of which those of a tile are a divisor: GE2_PANEL_ROWS of panels.h
LEAST: Final = 4  # rows or columns, of which a tile's are a waste if there are fewer
LINE: Final = 128  # bytes of which those of a sliver's columns are a divisor
WIDTH: Final = 1024  # bytes of a line that a task has at most: GE2_LINE_VECTORS
DOTS: Final = 3072  # bytes of a row that are multiplied with lines at once: GE2_DOT_DEPTH
DEPTH: Final = 384  # terms of a block, at most: GE2_PANEL_DEPTH


@final
@record
class Matrix:
    """An operand of a product: one stride for each of batch, rows and columns."""

    operand: Operand
    batch: int
    row: int
    column: int


@final
@record
class Panels:
    """What `templates/c/product/panels.c.jinja` and `pack.c.jinja` print."""

    type: str
    given: str
    read: str
    result: str
    packed: bool


def serves(dtype: np.dtype) -> bool:
    """True of types whose tiles are vectors: not of complex numbers, and `or` is no sum."""
    return dtype not in COMPLEX and dtype != BOOL


def favoured(dtype: np.dtype, sizes: Sides, tuning: Products) -> bool:
    """True if panels were measured to be quicker than BLAS, and than loops, for such sizes."""
    count, m, n, k = sizes
    work = m * n * k
    if not serves(dtype) or min(m, n) < LEAST or work <= tuning.few:
        return False
    if dtype not in FLOATS or count > 1:
        return dtype not in FLOATS or work <= tuning.batched
    if m * n < tuning.results and work >= tuning.packed and k > max(m, n) << 5:
        return False  # few long sums, whose terms are shared
    short = min(n, k) <= tuning.short and m >= ROWS
    medium = m >= tuning.tall and work * dtype.itemsize <= tuning.medium
    return work >= tuning.packed and (short or medium)


def multiplied(dtype: np.dtype) -> np.dtype:
    """The type that elements are multiplied in: integers wrap, and have 16 bits at least."""
    return np.dtype(f"u{max(2, dtype.itemsize)}") if dtype.kind in "iu" else dtype


def view_of(given: np.dtype, dtype: np.dtype, packed: bool) -> Panels:
    """The types of operands of `given` numbers, and of their products in `dtype`."""
    wide = multiplied(dtype)
    same = wide.itemsize == dtype.itemsize
    of = wide if given == dtype and same else given
    read = f"ge2_cast_{SUFFIX[given]}_f32(x)" if given in HALF else "x"
    return Panels(STORED[wide], STORED[of], read, STORED[wide if same else dtype], packed)


def by_panels(
    title: str, given: np.dtype, dtype: np.dtype, a: Matrix, b: Matrix, out: Operand,
    sizes: Sides, temps: list[int], caps: Caps,
) -> list[CKernel]:  # fmt: skip
    """The kernels of a product. A right operand that all products share is packed before, by all
    threads, into an array that joins `temps`.
    """
    count, m, n, k = sizes
    packed, wide = count == 1 or b.batch == 0, multiplied(dtype)
    view, tuning, size = view_of(given, dtype, packed), caps.tuning.products, wide.itemsize
    slivers = -(-n * size // LINE) * LINE * k  # bytes
    high = min(tuning.high // size, -(-m // max(caps.threads, 1)))
    high = -(-high // ROWS) * ROWS
    tasks, work = -(-m // high) * count, high * n * k
    left = Argument(f"const {view.given} *a", "array", (a.operand, given))
    right = Argument(f"const {view.given} *b", "array", (b.operand, given))
    temp = whole("temp", len(temps), (slivers // size,))
    lines = [
        Argument("int64_t b_row", "size", b.row),
        Argument("int64_t b_column", "size", b.column),
    ]
    inner = [Argument("int64_t columns", "size", n), Argument("int64_t inner", "size", k)]
    found = []
    if packed:
        temps.append(slivers)
        to = Argument(f"{view.type} *right", "result", (temp, wide))
        many = tuning.pack // k + 1
        found.append(CKernel(
            "pack", title, (right, to, *inner, *lines, *shares(many, many, caps)), (), 0,
            f"ge2_slivers(columns, GE2_PANEL_COLUMNS({view.type}))",
            template="c/product/pack.c.jinja", view=view,
        ))  # fmt: skip
        right, lines = Argument(f"const {view.type} *right", "array", (temp, wide)), []
    else:
        lines.append(Argument("int64_t b_batch", "size", b.batch))
    own = (high * min(k, DEPTH) * size + (0 if packed else slivers) + 63) // 64 * 64
    numbers = {"rows": m, "high": high, "a_batch": a.batch, "a_row": a.row, "a_column": a.column}
    arguments = (
        left, right, Argument(f"{view.result} *c", "result", (out, dtype)), *inner,
        *(Argument(f"int64_t {name}", "size", value) for name, value in numbers.items()), *lines,
        Argument("int64_t count", "size", count),
        Argument("int64_t per_thread", "size", own),
        Argument("char *scratch", "scratch", own * max(caps.threads, 1)),
        *shares(max(1, tuning.task // work), max(1, tuning.wake // work) if tasks > 1 else 1, caps),
    )  # fmt: skip
    found.append(CKernel(
        "product", title, arguments, (), 1, "count * ((rows + high - 1) / high)",
        template="c/product/panels.c.jinja", view=view,
    ))  # fmt: skip
    return found


def by_lines(
    title: str, dtype: np.dtype, a: Matrix, b: Matrix, out: Operand, sizes: Sides, caps: Caps
) -> CKernel:
    """The kernel of a product with few rows, or few columns: those are multiplied with the other
    operand's lines, along the result or along the terms, as its elements lie beside each other.
    """
    count, m, n, k = sizes
    steps = n, 1  # of the result, along the few and along the others
    if m > n:
        a, b, steps = turned(b), turned(a), (1, n)
        m, n = n, m
    size, threads, tuning = dtype.itemsize, max(caps.threads, 1), caps.tuning.products
    dots, unit = b.column != 1, LINE // size
    width = min(WIDTH // size, -(-n // (unit * threads)) * unit)
    numbers = {"rows": m, "columns": n, "inner": k, "width": width, "count": count}
    for name, x in (("a", a), ("b", b)):
        numbers |= {f"{name}_batch": x.batch, f"{name}_row": x.row, f"{name}_column": x.column}
    numbers |= {"c_row": steps[0], "c_column": steps[1]}
    del numbers["b_row" if dots else "b_column"]
    view, own = view_of(dtype, dtype, False), -(-m // 4) * 4 * DOTS
    scratch = (
        Argument("int64_t per_thread", "size", own),
        Argument("char *scratch", "scratch", own * threads),
    )
    arguments = (
        Argument(f"const {view.type} *a", "array", (a.operand, dtype)),
        Argument(f"const {view.type} *b", "array", (b.operand, dtype)),
        Argument(f"{view.type} *c", "result", (out, dtype)),
        *(Argument(f"int64_t {name}", "size", value) for name, value in numbers.items()),
        *(scratch if dots else ()),
        *shares(
            max(1, tuning.task // (m * width * k)), max(1, tuning.wake // (m * width * k)), caps
        ),
    )
    return CKernel(
        "product", title, arguments, (), 1, "count * ((columns + width - 1) / width)",
        template=f"c/product/{'dots' if dots else 'lines'}.c.jinja", view=view,
    )  # fmt: skip


def turned(x: Matrix) -> Matrix:
    """The transpose of a matrix, in its memory."""
    return Matrix(x.operand, x.batch, x.column, x.row)


def shares(chunk: int, grain: int, caps: Caps) -> tuple[Argument, ...]:
    """The tasks that a thread takes at a time, and those that are worth waking other threads for."""
    return (
        Argument("int64_t chunk", "size", chunk), Argument("int64_t grain", "size", grain),
        Argument("int threads", "threads", caps.threads),
    )  # fmt: skip
