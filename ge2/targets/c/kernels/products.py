"""Matrix products in C: by NumPy's BLAS, by loops, and by panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT32, FLOAT64, FLOATS, HALF, accumulator
from ge2.base.record import record
from ge2.choice import Problem, Variant
from ge2.codegen.text import ALONE, Argument, CKernel, Operand, Text, whole
from ge2.ir import ArrayType, Dims
from ge2.ops.dot import DotGeneral
from ge2.program import volume
from ge2.targets.c.emit import HELD, STORED, SUFFIX
from ge2.targets.c.emit.file import For
from ge2.targets.c.kernels import Matrix, in_rows, leads, matrices, numbers, shares, single, turned
from ge2.targets.c.kernels.generated import Generated, Pieces, copying, shared, shared_seconds
from ge2.targets.c.tuning import Caps, Products

# -------- Matrix products by panels in C: tiles that registers hold, for types that BLAS lacks and
# shapes that it is slow with.

Sides = tuple[int, int, int, int]  # of a product: how many, rows, columns, terms
ROWS: Final = 12  # of which those of a tile are a divisor: GE2_PANEL_ROWS of panels.h
LEAST: Final = 4  # rows or columns, of which a tile's are a waste if there are fewer
LINE: Final = 128  # bytes of which those of a sliver's columns are a divisor
NARROW: Final = 64  # bytes of columns that tiles take as one vector
WIDTH: Final = 1024  # bytes of a line that a task has at most: GE2_LINE_VECTORS
DOTS: Final = 3072  # bytes of a row that are multiplied with lines at once: GE2_DOT_DEPTH
DEPTH: Final = 384  # terms of a block, at most: GE2_PANEL_DEPTH
FEW_COLUMNS: Final = 1024  # bytes of a line of a result from which on its left operand is packed


@final
@record
class Panels:
    """The view that `templates/c/product/panels.c.jinja` and `pack.c.jinja` print."""

    type: str
    given: str
    result: str
    packed: bool
    few: bool
    tile: str  # the marks of functions of panels.h: of tiles, and of packing
    packing: str
    definitions: tuple[str, ...]


def serves(dtype: np.dtype) -> bool:
    """True of types whose tiles are vectors: not of complex numbers, and `or` is no sum."""
    return dtype not in COMPLEX and dtype != BOOL


def favoured(problem: Problem, caps: Caps) -> bool:
    """True if panels were measured to be quicker than BLAS, and than loops, for such sizes."""
    dtype, sizes, tuning = product_dtype(problem), sides(problem), caps.tuning.products
    (count, m, n, k), least = sizes, least_for_panels(problem, caps)
    work = m * n * k
    if not serves(dtype) or min(m, n) < LEAST or work <= tuning.few:
        return False
    if dtype not in FLOATS or count > 1 or has_few_long_sums(sizes, tuning):
        return dtype not in FLOATS or (count > 1 and least <= work <= tuning.batched)
    short = min(n, k) <= tuning.short and m >= ROWS
    medium = m >= tuning.tall and work * dtype.itemsize <= tuning.medium
    return work >= (least or tuning.packed) and (short or medium)


def least_for_panels(problem: Problem, caps: Caps) -> int:
    """The multiplications from which on panels beat a BLAS that packs no small operands; 0 if it does."""
    (_, m, _, k), tuning = sides(problem), caps.tuning.products
    if not (caps.unpacked and problem.settled):
        return 0
    if in_rows(problem) or (m < tuning.tall and k > 4 * m):  # too few rows to pack terms for
        return caps.unpacked + 1
    return tuning.apart if m >= tuning.tall else tuning.packed


def is_better(dtype: np.dtype, sizes: Sides, tuning: Products) -> bool:
    """True if panels are quicker than a BLAS that takes twice as long, though part of a tile is none.
    Of few rows, too: a smaller batch has the same kernel, and long lines have one of theirs.
    """
    _, m, n, k = sizes
    full = filled(dtype, (1, ROWS, n, k)) >= 0.5 and not has_few_long_sums(sizes, tuning)
    return dtype in FLOATS and m >= LEAST and m * n * k > tuning.few and full


def has_few_long_sums(sizes: Sides, tuning: Products) -> bool:
    """True of few results with many terms each, which threads share where BLAS multiplies."""
    m, n, k = sizes[1:]
    return m * n < tuning.results and m * n * k >= tuning.packed and k > max(m, n) << 5


def filled(dtype: np.dtype, sizes: Sides) -> float:
    """The part of the tiles of panels that is multiplied."""
    m, n = sizes[1:3]
    width = (NARROW if n * dtype.itemsize <= NARROW else LINE) // dtype.itemsize
    return m * n / (-(-m // ROWS) * ROWS * -(-n // width) * width)


def multiplied(dtype: np.dtype) -> np.dtype:
    """The type that elements are multiplied in: integers wrap, and have 16 bits at least."""
    return np.dtype(f"u{max(2, dtype.itemsize)}") if dtype.kind in "iu" else dtype


def view_of(given: np.dtype, dtype: np.dtype, packed: bool, columns: int = LINE) -> Panels:
    """The types of operands of `given` numbers, and of their products in `dtype`."""
    wide = multiplied(dtype)
    same = wide.itemsize == dtype.itemsize
    of = wide if given == dtype and same else given
    read = f"ge2_cast_{SUFFIX[given]}_f32(x)" if given in HALF else "x"
    t, result = STORED[wide], STORED[wide if same else dtype]
    tile = packing = SUFFIX[wide]
    pack = f"GE2_PACKING({packing}, {t})"
    if of != wide:
        packing += f"_{SUFFIX[of]}"
        pack = f"GE2_PACKING_CAST({packing}, {t}, {STORED[of]}, {read})"
    line = columns * wide.itemsize
    tile += ("" if same else f"_{SUFFIX[dtype]}") + "_few" * (line <= NARROW)
    definitions = f"GE2_PANELS({tile}, {t}, {result}, {int(line <= NARROW)})", pack
    few = packed and line < FEW_COLUMNS
    return Panels(t, STORED[of], result, packed, few, tile, packing, definitions)


def by_panels(
    title: str, given: np.dtype, dtype: np.dtype, a: Matrix, b: Matrix, out: Operand,
    sizes: Sides, temps: list[int], caps: Caps,
) -> list[CKernel]:  # fmt: skip
    """The kernels of a product. A right operand that all share is packed before, into one of `temps`."""
    count, m, n, k = sizes
    packed, wide = count == 1 or b.batch == 0, multiplied(dtype)
    view, tuning, size = view_of(given, dtype, packed, n), caps.tuning.products, wide.itemsize
    slivers = -(-n * size // LINE) * LINE * k  # bytes
    high = min(tuning.high // size, -(-m // max(caps.threads, 1)))
    high = -(-high // ROWS) * ROWS
    tasks, work = -(-m // high) * count, high * n * k
    left = Argument(f"const {view.given} *a", "array", (a.operand, given))
    right = Argument(f"const {view.given} *b", "array", (b.operand, given))
    temp = whole("temp", len(temps), (slivers // size,))
    lines, inner = numbers(b_row=b.row, b_column=b.column), numbers(columns=n, inner=k)
    found = []
    if packed:
        temps.append(slivers)
        to = Argument(f"{view.type} *right", "result", (temp, wide))
        many = tuning.pack // k + 1
        found.append(CKernel(
            "pack", title, (right, to, *inner, *lines, *shares(many, many, caps)), (), 0,
            f"ge2_slivers(columns, GE2_PANEL_COLUMNS({view.type}))",
            definitions=view.definitions[1:], template="c/product/pack.c.jinja",
            view=replace(view, few=False),  # one text for both kinds of tile
        ))  # fmt: skip
        right, lines = Argument(f"const {view.type} *right", "array", (temp, wide)), ()
    else:
        lines += numbers(b_batch=b.batch)
    own = (high * min(k, DEPTH) * size + (0 if packed else slivers) + 63) // 64 * 64
    arguments = (
        left, right, Argument(f"{view.result} *c", "result", (out, dtype)), *inner,
        *numbers(rows=m, high=high, a_batch=a.batch, a_row=a.row, a_column=a.column), *lines,
        *numbers(count=count, per_thread=own),
        Argument("char *scratch", "scratch", own * max(caps.threads, 1)),
        *shares(max(1, tuning.task // work), max(1, tuning.wake // work) if tasks > 1 else 1, caps),
    )  # fmt: skip
    found.append(CKernel(
        "product", title, arguments, (), 1, "count * ((rows + high - 1) / high)",
        definitions=view.definitions, template="c/product/panels.c.jinja", view=view,
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
    work = m * width * k
    of_b = numbers(b_column=b.column) if dots else numbers(b_row=b.row)
    view, own = view_of(dtype, dtype, False), -(-m // 4) * 4 * DOTS
    scratch = *numbers(per_thread=own), Argument("char *scratch", "scratch", own * threads)
    arguments = (
        Argument(f"const {view.type} *a", "array", (a.operand, dtype)),
        Argument(f"const {view.type} *b", "array", (b.operand, dtype)),
        Argument(f"{view.type} *c", "result", (out, dtype)),
        *numbers(rows=m, columns=n, inner=k, width=width, count=count),
        *numbers(a_batch=a.batch, a_row=a.row, a_column=a.column, b_batch=b.batch),
        *of_b,
        *numbers(c_row=steps[0], c_column=steps[1]),
        *(scratch if dots else ()),
        *shares(max(1, tuning.task // work), max(1, tuning.wake // work), caps),
    )
    return CKernel(
        "product", title, arguments, (), 1, "count * ((columns + width - 1) / width)",
        template=f"c/product/{'dots' if dots else 'lines'}.c.jinja", view=view,
    )  # fmt: skip


# -------- Matrix products in C: by NumPy's BLAS, and by loops.


Writer = Callable[[str, list[Argument], Matrix, Matrix, Sides, bool], Text]
TINY = 4096  # multiplications up to which loops do for two lines, or where there is no BLAS
BRIEF, BRIEF_ROWS = 128, 512  # up to which they take less than a call of BLAS; of rows as they lie
STRANDS = 16  # terms of a row that are added in strands, not by lines of the right operand
FEW = 64  # terms of a sum; GE2_FEW of product.h
SYRK = {FLOAT32: "ssyrk", FLOAT64: "dsyrk"}
TASK = 1 << 21  # multiplications; GE2_TILE_WORK of product.h
THIN = 4  # terms of a sum; GE2_THIN of product.h

ITSELF = Variant("half by BLAS, mirrored")  # of a matrix times its transpose
BLAS, LOOPS = Variant("BLAS"), Variant("loops")  # of products; BLAS of tiny ones is loops, too
PANELS, LINES = Variant("panels"), Variant("lines")  # the text of both is ours
THIN_LOOPS, SMALL_LOOPS = Variant("loops over few terms"), Variant("loops of known sizes")


@final
class CProduct(Generated):
    """NumPy's BLAS, called from C; loops for tiny matrices and for integers."""

    name = "product in C"
    ops = (DotGeneral,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if any(t.weak for t in problem.inputs):
            return "an operand is a Python number"
        if caps is not None and not caps.blas and not is_tiny(problem):
            return "C cannot call the BLAS of this NumPy"
        return ""

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        """The likeliest first: loops over few terms, or of known sizes, or BLAS; then others. Of few
        rows that fill no tile, lines beat panels.
        """
        sizes, tuning, dtype = sides(problem), caps.tuning, product_dtype(problem)
        few = tuning.products.few if dtype in FLOATS else tuning.products.few_complex
        blas = caps.blas and dtype in FLOATS | COMPLEX
        usual = [BLAS] if blas else []
        if math.prod(sizes[1:]) <= tuning.variants.loops or not blas:
            usual.append(LOOPS)
        panels = favoured(problem, caps) or (not blas and dtype in FLOATS)
        faster = panels or (caps.narrow and is_better(dtype, sizes, tuning.products))
        if serves(dtype) and min(sizes):
            usual.insert(0 if faster else len(usual), PANELS)
        if has_lines(problem, tuning.products):
            unpacked = blas and in_rows(problem) and math.prod(sizes[1:]) <= caps.unpacked
            usual.insert(int(unpacked or (panels and min(sizes[1:3]) >= ROWS)), LINES)
        if dtype not in FLOATS | COMPLEX:
            return shared(usual, problem, caps)
        if is_thin(*sizes, tuning.products.thin):
            usual.insert(0, THIN_LOOPS)
        elif small(sizes, few):
            usual.insert(0, SMALL_LOOPS)
        elif caps.blas and is_of_itself(problem):
            usual.insert(0, ITSELF)
        return shared(usual, problem, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """By BLAS, and by panels of floats, at the rate of its products; loops compute at that of
        ours, and wait for sums unless their sizes are known.
        """
        return shared_seconds(problem, variant, caps, rate=rate_of(problem, variant, caps))

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        return Multiply(problem, variant, caps).run()


def sides(problem: Problem) -> Sides:
    """Returns how many products there are, and the rows, columns and terms of one."""
    (a, b), op = problem.inputs, problem.op
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a, b)
    return (
        volume(a.shape, op.beside[0]),
        volume(a.shape, free_a),
        volume(b.shape, free_b),
        volume(a.shape, op.contract[0]),
    )


def rate_of(problem: Problem, variant: Variant, caps: Caps) -> float:
    """The rate of a variant, beside that of elementwise work. Panels multiply whole tiles."""
    name, dtype, sizes = variant.name, product_dtype(problem), sides(problem)
    if name.startswith((LOOPS.name, THIN_LOOPS.name, SMALL_LOOPS.name)):
        return 1.0 if name.startswith(SMALL_LOOPS.name) else 0.25
    if dtype not in FLOATS | COMPLEX:
        return 2 / dtype.itemsize
    half, by_blas = name.startswith(ITSELF.name), name.startswith((BLAS.name, ITSELF.name))
    part = 1.0
    if name.startswith(PANELS.name) and min(sizes):
        part = filled(dtype, sizes) * (1 if favoured(problem, caps) else 0.9)
    rate = caps.speed.products / caps.speed.single * part * (1 + half)
    return rate / 2 if by_blas and caps.narrow else rate


def is_tiny(problem: Problem) -> bool:
    """True if loops do as well as BLAS, or there is none for the type."""
    return product_dtype(problem) not in FLOATS | COMPLEX or math.prod(sides(problem)) <= TINY


def is_of_itself(problem: Problem) -> bool:
    """True for `a @ a.T` and `a.T @ a` of a matrix that BLAS reads as it is."""
    (a, _), op, (count, m, n, k) = problem.inputs, problem.op, sides(problem)
    assert isinstance(op, DotGeneral)
    if not problem.settled or a.ndim != 2 or count != 1 or not 1 < m == n or m * n * k <= BRIEF:
        return False
    left, right, _ = problem.operands
    (i,), (j,) = op.contract
    return (
        (left.index, left.offset, left.strides[i]) == (right.index, right.offset, right.strides[j])
        and left.strides[1 - i] == right.strides[1 - j]
        and a.dtype == problem.outs[0].dtype
        and a.dtype in (FLOAT32, FLOAT64)
        and leads(left.strides[1 - i], left.strides[i], m, k)
    )


def has_lines(problem: Problem, tuning: Products) -> bool:
    """True of few rows times a matrix whose lines lie in one piece, along the result or along the
    terms, and of the same transposed, if reading those as they lie is quicker than BLAS.
    """
    (a, b), op, (_, m, n, k) = problem.inputs, problem.op, sides(problem)
    assert isinstance(op, DotGeneral)
    dtype, few, long = product_dtype(problem), *sorted((m, n))
    same = {a.dtype, b.dtype, problem.outs[0].dtype} == {dtype} or {a.dtype, b.dtype} <= HALF
    known = problem.settled and serves(dtype) and multiplied(dtype).itemsize == dtype.itemsize
    if not (same and known and 1 < few <= tuning.lines and min(long, k) >= tuning.line):
        return False
    groups = zip((a, b), problem.arrays[0], matrices(op, a, b), strict=True)
    left, right = ([single(t.shape, x.strides, axes) for axes in of] for t, x, of in groups)
    if None in (*left, *right) or (right[2] if m <= n else left[1]) == 1:
        return None not in (*left, *right)
    along = (right[1] if m <= n else left[2]) == 1 and few <= tuning.dots
    along = along and (few <= tuning.short_dots or k >= tuning.terms)
    fills = m > n and few > tuning.short_dots  # of few columns, which panels serve
    return along and not fills and long * k * dtype.itemsize >= tuning.far


def product_dtype(problem: Problem) -> np.dtype:
    """The type that is multiplied in: float32 for half types."""
    a, out = problem.inputs[0].dtype, problem.outs[0].dtype
    return np.result_type(accumulator(a), accumulator(out))


class Multiply:
    """A product as copies that make its operands matrices, the product itself, and its rounding."""

    def __init__(self, problem: Problem, variant: Variant, caps: Caps) -> None:
        assert isinstance(problem.op, DotGeneral)
        self.op, self.problem, self.variant, self.caps = problem.op, problem, variant, caps
        self.lines = variant.name.startswith(LINES.name)
        self.ours = variant.name.startswith((LINES.name, PANELS.name))
        self.title = f"{problem.op} of {', '.join(map(str, problem.inputs))}"
        self.tuning = caps.tuning.products
        self.ins, self.outs = problem.arrays
        self.dtype = product_dtype(problem)
        self.kernels: list[CKernel] = []
        self.temps: list[int] = []

    def run(self) -> Pieces:
        out = self.problem.outs[0]
        groups = matrices(self.op, *self.problem.inputs)
        left, right = self.matrix(0, groups[0]), self.matrix(1, groups[1])
        wide = ArrayType(out.shape, self.dtype)
        target = self.outs[0] if out.dtype == self.dtype else self.temp(wide)
        self.kernels += self.products(left, right, target, sides(self.problem))
        if target is not self.outs[0]:
            self.kernels.append(copying(wide, out, target, self.outs[0], self.caps))
        called = () if self.ours else ((SUFFIX[self.dtype], HELD[self.dtype]),)
        return Pieces(tuple(self.kernels), tuple(self.temps), frozenset(called))

    def temp(self, t: ArrayType) -> Operand:
        self.temps.append(t.nbytes)
        return whole("temp", len(self.temps) - 1, t.shape)

    def matrix(self, i: int, groups: tuple[Dims, Dims, Dims]) -> Matrix:
        """The operand as it is if its axes allow, else, as of a number, a copy that can be read."""
        t, operand = self.problem.inputs[i], self.ins[i]
        strides = [single(t.shape, operand.strides, axes) for axes in groups]
        blas = self.dtype in FLOATS | COMPLEX and not self.ours
        panels, across = self.ours and not self.lines, False
        if None not in strides and not operand.value:
            batch, row, column = strides
            assert batch is not None and row is not None and column is not None
            led = not blas or leads(row, column, *(volume(t.shape, axes) for axes in groups[1:]))
            if led and (panels or t.dtype == self.dtype):
                return Matrix(operand, batch, row, column)
            across = led and row == 1 != column  # it is widened as it lies
        order: Dims = sum(groups[::2] + groups[1:2] if across else groups, ())
        shape = tuple(t.shape[axis] for axis in order)
        moved = tuple(operand.strides[axis] for axis in order)
        given = Operand(operand.role, operand.index, moved, operand.offset, operand.value)
        to = ArrayType(shape, t.dtype if panels else self.dtype)
        copy = self.temp(to)
        self.kernels.append(copying(ArrayType(shape, t.dtype), to, given, copy, self.caps))
        rows, columns = (volume(t.shape, axes) for axes in groups[1:])
        return Matrix(copy, rows * columns, *((1, rows) if across else (columns, 1)))

    def products(self, a: Matrix, b: Matrix, out: Operand, sizes: Sides) -> list[CKernel]:
        if not self.ours:
            return [self.product(a, b, out, sizes)]
        given = self.title, self.problem.inputs[0].dtype, self.dtype, a, b, out, sizes
        if self.lines:
            return [by_lines(self.title, self.dtype, a, b, out, sizes, self.caps)]
        return by_panels(*given, self.temps, self.caps)

    def product(self, a: Matrix, b: Matrix, out: Operand, sizes: Sides) -> CKernel:
        ctype = STORED[self.dtype]
        arguments = [
            Argument(f"const {ctype} *a", "array", (a.operand, self.dtype)),
            Argument(f"const {ctype} *b", "array", (b.operand, self.dtype)),
            Argument(f"{ctype} *c", "result", (out, self.dtype)),
            *numbers(count=sizes[0]),
        ]
        named = self.variant.name
        if named.startswith(ITSELF.name):
            return self.with_itself(arguments[::2], a, sizes)
        write: Writer = next((f for v, f in WRITERS if named.startswith(v.name)), by_blas)
        few = write is tiny
        if write is by_blas:
            write = self.of_size(form(a, b, sizes), sizes)
        if write is by_blas and (found := self.with_lines(arguments[:3], a, b, sizes)):
            return found
        if write is thin:  # by columns, if rows fill no vector, and those are longer
            few = sizes[1] > sizes[2] and sizes[2] * self.dtype.itemsize < self.tuning.row
        line = write(SUFFIX[self.dtype], arguments, a, b, sizes, few)
        if write is by_blas:  # which counts by itself, and shares tiles
            arguments.append(Argument("int threads", "threads", self.caps.threads))
            return CKernel("product", self.title, tuple(arguments), (line,), 1)
        begin, end, total = "0", "count", ""
        if self.caps.threads != ALONE and few and math.prod(sizes) > self.tuning.many:
            begin, end, total = "from", "to", "count"
            works = self.caps.tuning.regions.task, self.tuning.many
            chunk, grain = (max(work // math.prod(sizes[1:]), 1) for work in works)
            arguments += [*numbers(chunk=chunk, grain=grain), Argument("int threads", "threads")]
        return CKernel(
            "product", self.title, tuple(arguments), (), 1, total,
            template="c/region.c.jinja", view=(For("i", begin, end, (line,)),),
        )  # fmt: skip

    def of_size(self, how: str, sizes: Sides) -> Writer:
        """The function of product.h, each compiled only where it is called: that of large ones has all."""
        if math.prod(sizes) > TASK:
            return by_blas
        if self.caps.threads == ALONE and math.prod(sizes[1:]) <= TINY:
            return tiny
        # of two lines BLAS has fewer sums side by side
        most = {(1, 1): TINY}.get(sizes[1:3], BRIEF_ROWS if how == "_rows" else BRIEF)
        brief = math.prod(sizes[1:]) <= most or not self.caps.blas
        return of_any_size if brief else small_by_blas

    def with_lines(
        self, arrays: Sequence[Argument], a: Matrix, b: Matrix, sizes: Sides
    ) -> CKernel | None:
        """A product of a large matrix and one column, or one row, if its lines lie in one piece."""
        (count, m, n, k), suffix, names = sizes, SUFFIX[self.dtype], ["a", "b"]
        if count != 1 or 1 not in (m, n) or self.dtype not in (FLOAT32, FLOAT64):
            return None
        if n != 1:  # a row times a matrix, as if turned
            a, b, m, names = turned(b), turned(a), n, ["b", "a"]
        at_once = next(n for n in (1, 4, 8) if m <= n or n == 8)
        sides = {"rows": m, "inner": k, "lead": a.row}
        if a.column == b.row == 1 and k > FEW:
            define = f"GE2_PRODUCT_WITH_LINES({suffix}, {STORED[self.dtype]}, {at_once})"
            call = f"each_line_{at_once}_{suffix}(rows, inner, {names[0]}, lead, {names[1]}"
        elif a.row == 1:
            sides |= {"lead": a.column, "step": b.row}
            define = f"GE2_PRODUCT_OF_LINES({suffix}, {STORED[self.dtype]})"
            call = f"all_lines_{suffix}(inner, rows, {names[0]}, lead, {names[1]}, step"
        else:
            return None
        arguments = (
            *arrays, *numbers(**sides),
            Argument("const ge2_services *lib", "services"),
            Argument("int threads", "threads", self.caps.threads),
        )  # fmt: skip
        line = Text(f"ge2_{call}, c, lib, threads);")
        return CKernel("product", self.title, arguments, (line,), 1, definitions=(define,))

    def with_itself(self, arrays: Sequence[Argument], a: Matrix, sizes: Sides) -> CKernel:
        """A product of a matrix and its transpose, given the matrix and the result."""
        suffix, (_, m, _, k) = SUFFIX[self.dtype], sizes
        arguments = (
            *arrays,
            *numbers(rows=m, inner=k, a_row=a.row, a_column=a.column),
            Argument("const ge2_services *lib", "services"),
            Argument("int threads", "threads", self.caps.threads),
        )
        operands = "lib, threads, rows, inner, a, a_row, a_column, c"
        call = f"ge2_product_with_itself_{suffix}({operands});"
        title = f"{self.op} of {self.problem.inputs[0]} and itself"
        define = f"GE2_PRODUCT_WITH_ITSELF({suffix}, {STORED[self.dtype]}, {SYRK[self.dtype]})"
        return CKernel("product", title, arguments, (Text(call),), 1, definitions=(define,))


def small(sizes: Sides, few: int) -> bool:
    """True if each of several products is so small that its loops are written for its sizes."""
    return sizes[0] > 1 and 0 < math.prod(sizes[1:]) <= few


def is_thin(count: int, m: int, n: int, k: int, most: int) -> bool:
    """True if each element has few terms, and a call of BLAS costs more than they do."""
    return 0 < k <= THIN and TINY < m * n * k <= most


def by_blas(
    suffix: str, arguments: list[Argument], a: Matrix, b: Matrix, sizes: Sides, few: bool
) -> Text:
    """A product by BLAS in tiles, or by loops where its sizes make them quicker."""
    called(arguments, a, b, sizes, few)
    arguments.append(Argument("const ge2_services *lib", "services"))
    left, right = (f"{name}, {name}_batch, {name}_row, {name}_column" for name in "ab")
    name = f"tiny_products{form(a, b, sizes)}" if math.prod(sizes[1:]) <= TINY else "products"
    sides = "count, rows, columns, inner"
    return Text(f"ge2_{name}_{suffix}(lib, threads, {sides}, {left}, {right}, c);")


def form(a: Matrix, b: Matrix, sizes: Sides) -> str:
    """The mark of functions of product.h for operands that lie so, which are all that is compiled."""
    if sizes[2] == 1 and sizes[3] > STRANDS and a.column == b.row == 1:
        return "_rows"
    return "_lines" if b.column == 1 or sizes[2] == 1 else ""


def calling(name: str, lib: str = "", formed: bool = False) -> Writer:
    """The writer of a call of one of the functions of product.h that all take the same."""

    def write(
        suffix: str, arguments: list[Argument], a: Matrix, b: Matrix, sizes: Sides, few: bool
    ) -> Text:
        operands = called(arguments, a, b, sizes, few)
        mark = form(a, b, sizes) if formed and not few else ""
        if lib:
            arguments.append(Argument("const ge2_services *lib", "services"))
        return Text(f"ge2_product_{name}{mark}_{suffix}({lib}{operands});")

    return write


tiny = calling("tiny", formed=True)  # loops for its sizes, if the compiler knows these
of_any_size = calling("any", formed=True)  # loops in a function for all sizes
small_by_blas = calling("alone", "lib, ")  # no work for several threads
by_loops = calling("loops")  # of a type that BLAS lacks


def called(arguments: list[Argument], a: Matrix, b: Matrix, sizes: Sides, few: bool) -> str:
    """Sizes and operands as product.h takes them; what they stand for joins the arguments."""
    sides = [*map(str, sizes[1:])]
    if not few:
        sides = ["rows", "columns", "inner"]
        arguments += numbers(**dict(zip(sides, sizes[1:], strict=True)))
    texts: list[str] = []
    for name, x in (("a", a), ("b", b)):
        given = {f"{name}_batch": x.batch, f"{name}_row": x.row, f"{name}_column": x.column}
        spelt = {f"{name}_row", f"{name}_column"} if few else set[str]()  # with the sizes
        left = {s: n for s, n in given.items() if s not in spelt}
        arguments += numbers(**left)
        batch, *rest = (str(n) if s in spelt else s for s, n in given.items())
        texts += [f"{name} + i * {batch}", *rest]
    operands = ", ".join(texts)
    return f"{', '.join(sides)}, {operands}, c + i * {sides[0]} * {sides[1]}, {sides[1]}"


def thin(
    suffix: str, arguments: list[Argument], a: Matrix, b: Matrix, sizes: Sides, columns: bool
) -> Text:
    """A product of few terms as loops, the innermost along rows of the result, or along its columns."""
    _, m, n, k = sizes
    arguments += numbers(rows=m, columns=n)

    def number(name: str, value: int) -> str:
        if value in (1, k):  # what a compiler should know
            return str(value)
        arguments.extend(numbers(**{name: value}))
        return name

    def matrix(name: str, x: Matrix, *order: str) -> str:
        strides = ", ".join(number(f"{name}_{part}", getattr(x, part)) for part in order)
        return f"{name} + i * {number(f'{name}_batch', x.batch)}, {strides}"

    if columns:
        both = f"columns, rows, {k}, {matrix('b', b, 'column', 'row')}, {matrix('a', a, 'column', 'row')}"
        return Text(f"ge2_product_terms_{suffix}({both}, c + i * rows * columns, 1, columns);")
    left, right = matrix("a", a, "row", "column"), matrix("b", b, "row", "column")
    both = f"rows, columns, {k}, {left}, {right}"
    return Text(f"ge2_product_terms_{suffix}({both}, c + i * rows * columns, columns, 1);")


# by the beginnings of the names of variants; that of loops begins others
WRITERS: Final = ((THIN_LOOPS, thin), (SMALL_LOOPS, tiny), (LOOPS, by_loops))
