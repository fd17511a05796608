"""Products with what is done to their elements, in C: a part of one at a time, which a cache still has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, final

from ge2.base.record import record
from ge2.choice import Problem, Variant, operations, prefs
from ge2.choice.choose import Choice, choose
from ge2.codegen.layout import unspoken
from ge2.codegen.text import Argument, CKernel, Operand, Text, whole
from ge2.ops.graphs.contraction import steps_of
from ge2.ops.graphs.region import CONTRACTION, Region
from ge2.ops.linalg.decompositions import Lu, LuSolve
from ge2.targets.c.emit import HELD, STORED, SUFFIX
from ge2.targets.c.emit.file import Then
from ge2.targets.c.emit.region import c_kernel
from ge2.targets.c.emit.statements import ORDER
from ge2.targets.c.kernels import Head, matrices, numbers, shares
from ge2.targets.c.kernels.generated import CRegion, Generated, Pieces, shared, shared_seconds
from ge2.targets.c.kernels.products import (
    BLAS,
    PANELS,
    SMALL_LOOPS,
    CProduct,
    Multiply,
    Sides,
    product_dtype,
    rate_of,
    sides,
)
from ge2.targets.c.libraries import TYPES, has_loop
from ge2.targets.c.tuning import Caps, Products, Tuning

# A task multiplies some rows, or some products of a batch, in memory of its thread, and does to
# them what follows. Each half is a kernel of another family, whose part for a range of its work
# becomes a function of the file; so it is as quick as that, and follows its rules of rounding. The
# sizes alone decide which sums are added together, whatever the threads are.

PANEL: Final = "panel"  # the role of the operand that is a task's part of a product
OWN: Final = ("chunk", "grain", "threads")  # parameters by which kernels share their work
WAYS: Final = (SMALL_LOOPS, PANELS, BLAS)  # to multiply a part; as the families of products do it
MOST: Final = 4  # times as many rows as fit, that units of what follows may take
PACKING: Final = 8  # multiplications that packing an element of the right operand is worth


@final
@record
class Halves:
    """The problems of a product and of what is done to its elements, which are in an array apart."""

    product: Problem
    rest: Problem


@final
@record
class Cut:
    """How the work of a product is cut into tasks: their number in C, the range of its own work
    that a task is, the elements that those begin and end with; statements that come before. `most`:
    elements of a task, at most.
    """

    total: str
    begin: str
    end: str
    first: str
    last: str
    most: int
    lines: tuple[Text, ...] = ()
    arguments: tuple[Argument, ...] = ()


class Joint(Generated):
    """Families of one product and the region that goes on with it."""

    ops, kinds = (Region,), (CONTRACTION,)
    anywhere = True
    ranked = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = steps_of(problem.op)
        if len(op.products) > 1 or op.prologues:
            return "it takes one product, whose operands are arrays"
        both = halves_of(problem)
        if reason := unspoken(op.region.graph) or CProduct().refusal(both.product, caps):
            return reason
        return self.refuses_halves(both, caps)

    def refuses_halves(self, both: Halves, caps: Caps | None) -> str:
        return ""


@final
class CContraction(Joint):
    """The product of some rows in memory of a thread, and then the region on these."""

    name = "contraction in C"

    def refuses_halves(self, both: Halves, caps: Caps | None) -> str:
        product, (y,) = both.product, both.product.outs
        if caps is None or not product.settled:
            return ""
        if product_dtype(product) != y.dtype or not y.size:
            return "its sums are rounded to another type, or there are none"
        if y.nbytes <= caps.tuning.products.near:
            return "its product stays in a near cache as it is"
        usual = next(iter(CProduct().variants(product, caps)))
        if usual not in WAYS:
            return f"its product is quickest by {usual.name}, all at once"
        reasons = [refusal_of(both, way, caps) for way in ways_of(product, caps)]
        return reasons[0] if all(reasons) else ""

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        both = halves_of(problem)
        if not problem.settled:
            yield from WAYS
            return
        names = ways_of(both.product, caps)
        refusals = [refusal_of(both, way, caps) for way in names]
        fit = [way for way, reason in zip(names, refusals, strict=True) if not reason]
        if fit:
            yield from shared(fit, problem, caps)
        for way, reason in zip(names, refusals, strict=True):
            if reason:
                yield replace(way, refusal=reason)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The bytes of what is read and made, or the operations of both at their own rates."""
        both, way = halves_of(problem), way_of(variant)
        (y,), (_, m, n, _) = both.product.outs, sides(both.product)
        rate = rate_of(both.product, way, caps)
        if way == BLAS:
            rate /= 1 + PACKING / fitting_rows(m, n, y.dtype.itemsize, caps.tuning.products)
        functions = caps.speed.functions
        multiplied, rest = operations(both.product, 0), operations(both.rest, functions)
        joint = (multiplied + rest) / (multiplied / rate + rest)
        # how threads share it is for measurements to say
        return shared_seconds(problem, way, caps, rate=joint)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        """A way that was chosen before layouts were settled may be refused now; then it is another."""
        both = halves_of(problem)
        ways = way_of(variant), *ways_of(both.product, caps)
        found = (joined(both, way, caps) for way in ways)
        return next(pieces for pieces in found if not isinstance(pieces, str))


@final
class CInSteps(Joint):
    """The product in an array apart, and then the region, each as it would be chosen."""

    name = "product, then region in C"
    in_steps = True

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        both = halves_of(problem)
        first = chosen(both.product, caps).taken.variant
        rest = CRegion().seconds(both.rest, Variant(), caps)
        return CProduct().seconds(both.product, first, caps) + rest

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        both = halves_of(problem)
        found: Pieces = chosen(both.product, caps).kernels()
        (y,) = both.product.outs
        temp = whole("temp", len(found.temps), y.shape)
        then = region_kernel(both.rest, caps)
        kernels = tuple(at(kernel, temp) for kernel in (*found.kernels, then))
        return replace(found, kernels=kernels, temps=(*found.temps, y.nbytes))


def chosen(product: Problem, caps: Caps) -> Choice:
    return choose(product, caps, replace(prefs(), only=()), (CProduct(),))


def ways_of(product: Problem, caps: Caps) -> list[Variant]:
    """The ways to multiply that have parts, the preferred one first."""
    return [way for way in CProduct().variants(product, caps) if way in WAYS]


def way_of(variant: Variant) -> Variant:
    """The way to multiply, without how threads share it."""
    return next(way for way in WAYS if variant.name.startswith(way.name))


@lru_cache(64)
def halves_of(problem: Problem) -> Halves:
    """The product and the rest of a contraction as problems, with the same operands, but for the
    product itself.
    """
    op = steps_of(problem.op)
    given = problem.placed(op.graph) if problem.settled else {}
    (y,) = op.places
    given[y] = whole(PANEL, 0, y.type.shape)
    found = list[Problem]()
    for eqn in (op.product, op.rest):
        types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
        of = (*eqn.inputs, *eqn.outs)
        operands = tuple(given[v] for v in of) if problem.settled else ()  # type: ignore[index]
        found.append(Problem(eqn.op, *types, problem.target, frozenset(), operands))
    return Halves(*found)


def at(kernel: CKernel, place: Operand) -> CKernel:
    """A kernel of a product, or of what reads it, where that is an array of this step's own."""
    arguments = tuple(
        replace(a, value=(place, a.value[1])) if is_panel(a) else a for a in kernel.arguments
    )
    return replace(kernel, arguments=arguments)


def is_panel(a: Argument) -> bool:
    return a.kind in ("array", "result") and a.value[0].role == PANEL


def region_kernel(rest: Problem, caps: Caps) -> CKernel:
    """The kernel of the region after a product. It is called for a few rows at a time, as the product
    makes them, so its vectors go along rows.
    """
    assert isinstance(rest.op, Region)
    along = replace(caps.tuning, nests=replace(caps.tuning.nests, rows=0))
    return c_kernel(rest.op, rest.placed(rest.op.graph), replace(caps, tuning=along))


# ----------------------------------------------------------------------------- one kernel of both


def refusal_of(both: Halves, way: Variant, caps: Caps) -> str:
    found = joined(both, way, caps)
    return found if isinstance(found, str) else ""


@lru_cache(64)
def joined(both: Halves, way: Variant, caps: Caps) -> Pieces | str:
    """The kernels of both halves, or the reason why they are not one."""
    threads = max(caps.threads, 1)  # also a program of one thread has them in parts
    sizes, dtype = sides(both.product), both.product.outs[0].dtype
    usual = replace(caps, threads=threads)
    own = replace(usual, tuning=lower(caps.tuning, sizes, dtype.itemsize, way))
    if way == BLAS and sizes[0] != 1:
        return "BLAS multiplies one part after the other of a single product"
    if way == BLAS:
        found = rows_by_blas(both.product, own)
    else:
        found = CProduct().kernels(both.product, way, own)
    *before, product = found.kernels
    if not product.total:
        return "its products are no work for several threads"
    then = region_kernel(both.rest, usual)  # of all ways the same
    if not then.unit or any(a.kind in ("services", "equation") for a in then.arguments):
        return "what follows does not go by rows, or may fail"
    cut = cut_of(sizes, way, then.unit, product, own.tuning.products, dtype.itemsize)
    if cut is None:
        return "what follows takes more rows at once than a cache has"
    kernel = both_in_one(product, then, cut, both, sizes, way, replace(own, threads=caps.threads))
    return replace(found, kernels=(*before, kernel))


def fitting_rows(m: int, n: int, size: int, tuning: Products) -> int:
    """The rows of a product that stay in a second cache; so few that several threads have some."""
    return max(16, min(tuning.panel // (n * size), -(-m // 4)) // 16 * 16)


def lower(tuning: Tuning, sizes: Sides, size: int, way: Variant) -> Tuning:
    """The numbers by which tasks of panels have no more rows than a second cache."""
    if way != PANELS:
        return tuning
    products, n = tuning.products, sizes[2]
    high = min(products.high, max(products.panel // n, size))
    return replace(tuning, products=replace(products, high=high))


def rows_by_blas(product: Problem, caps: Caps) -> Pieces:
    """Some rows of a product by a call of BLAS, as a kernel without what its threads need."""
    work, (_, m, n, k) = Multiply(product, BLAS, caps), sides(product)
    groups = matrices(work.op, *product.inputs)
    a, b = work.matrix(0, groups[0]), work.matrix(1, groups[1])
    dtype, suffix = work.dtype, SUFFIX[work.dtype]
    arguments = (
        Argument("const ge2_services *lib", "services"),
        Argument(f"const {STORED[dtype]} *a", "array", (a.operand, dtype)),
        Argument(f"const {STORED[dtype]} *b", "array", (b.operand, dtype)),
        Argument(f"{STORED[dtype]} *c", "result", (work.outs[0], dtype)),
        *numbers(rows=m, columns=n, inner=k, a_row=a.row, a_column=a.column),
        *numbers(b_row=b.row, b_column=b.column),
        *shares(1, 1, caps),
    )
    left = "a + from * a_row, a_row, a_column, b, b_row, b_column"
    part = "to - from, columns, inner", "c + from * columns, columns"
    call = f"ge2_product_by_blas_{suffix}(lib, {part[0]}, {left}, {part[1]});"
    kernel = CKernel("product", str(work.op), arguments, (Text(call),), 1, "rows")
    called = frozenset(((suffix, HELD[dtype]),))
    return Pieces((*work.kernels, kernel), tuple(work.temps), called)


def cut_of(
    sizes: Sides, way: Variant, unit: int, product: CKernel, tuning: Products, size: int
) -> Cut | None:
    """How a product is cut, so that a task is whole units of what follows; None if it cannot be."""
    count, m, n, _ = sizes
    if way == PANELS:
        high = next(a.value for a in product.arguments if a.name == "high")
        return cut_in_panels(m, n, high, unit)
    if way == SMALL_LOOPS:
        return cut_in_ranges("product_count", count, m * n, tuning.first // (m * n * size), unit)
    rows = fitting_rows(m, n, size, tuning)
    return cut_in_ranges("product_rows", m, n, rows, unit)


def cut_in_panels(m: int, n: int, high: int, unit: int) -> Cut | None:
    """Tasks that are those of panels: some rows of one product."""
    own = high * n if high < m else m * n
    if own % unit or m * n % unit:
        return None
    tiles = "(product_rows + product_high - 1) / product_high"
    lines = (
        Text(f"const int64_t tiles = {tiles}, top = task % tiles * product_high;"),
        Text("const int64_t row = task / tiles * product_rows + top;"),
        Text("const int64_t size = ge2_least(product_high, product_rows - top);"),
    )
    ends = "row * product_columns", "(row + size) * product_columns"
    return Cut(f"product_count * ({tiles})", "task", "task + 1", *ends, own, lines)


def cut_in_ranges(name: str, count: int, each: int, fit: int, unit: int) -> Cut | None:
    """Tasks that are some of `count` rows or products, `fit` of them or more, of `each` elements."""
    whole_units = math.lcm(each, unit) // each
    step = -(-max(1, fit) // whole_units) * whole_units
    if step > MOST * max(1, fit):
        return None
    arguments = numbers(step=step, each=each)
    bounds = Text(f"const int64_t begin = task * step, end = ge2_least(begin + step, {name});")
    total, most = f"({name} + step - 1) / step", min(step, count) * each
    return Cut(total, "begin", "end", "begin * each", "end * each", most, (bounds,), arguments)


def both_in_one(
    product: CKernel, then: CKernel, cut: Cut, both: Halves, sizes: Sides, way: Variant, caps: Caps
) -> CKernel:
    """The kernel whose tasks are a range of a product, and what follows for its elements."""
    dtype, tuning = both.product.outs[0].dtype, caps.tuning.products
    panel = -(-cut.most * dtype.itemsize // 64) * 64
    work = cut.most * (sizes[3] + then.equations)
    first = [renamed(a, f"product_{a.name}") for a in product.of_part if not is_panel(a)]
    second = [a for a in then.of_part if not is_panel(a)]
    sharing = shares(max(1, tuning.task // work), max(1, tuning.wake // work), caps)
    arguments = [
        *first, *second, *cut.arguments, *numbers(unit=then.unit, panel_bytes=panel),
        Argument("char *panels", "scratch", panel * max(caps.threads, 1)), *sharing,
    ]  # fmt: skip
    arguments.sort(key=lambda a: ORDER.index(a.kind))
    calls = (
        given(product, "product_", cut.begin, cut.end),
        given(then, "", "first / unit", "last / unit"),
    )
    view = Then(
        STORED[dtype],
        bare(product),
        bare(then),
        *calls,
        cut.lines,
        cut.first,
        cut.last,
        way == BLAS,
    )
    equations = product.equations + then.equations
    return CKernel(
        CONTRACTION, then.graph, tuple(arguments), (), equations, cut.total, then.helpers,
        product.definitions, template="c/product/then.c.jinja", view=view,
    )  # fmt: skip


def renamed(a: Argument, name: str) -> Argument:
    return replace(a, declaration=a.declaration.removesuffix(a.name) + name)


def given(kernel: CKernel, mark: str, begin: str, end: str) -> str:
    """The arguments of a call of a kernel's part."""
    names = ["y" if is_panel(a) else mark + a.name for a in kernel.of_part]
    return ", ".join([*names, begin, end])


def bare(kernel: CKernel) -> CKernel:
    """A kernel without where its arrays are: its text has their names alone."""
    arguments: Sequence[Argument] = [replace(a, value=None) for a in kernel.arguments]
    return replace(kernel, arguments=tuple(arguments), graph="")


# -------- Factors of a matrix, and systems solved by them, by LAPACK's functions, which C calls.


@final
class CFactors(Generated):
    """The factors of a matrix, and systems solved by them, by LAPACK."""

    name = "LAPACK, called by C"
    ops = (Lu, LuSolve)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        name, x = "getrf" if isinstance(problem.op, Lu) else "getrs", problem.inputs[0]
        if not all(t.size for t in problem.outs):
            return "an array is empty"
        return "" if has_loop(name, x.dtype) else f"LAPACK's {name} was not found"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        return Pieces(
            (factors(problem, caps) if isinstance(problem.op, Lu) else solved(problem, caps),)
        )


def factors(problem: Problem, caps: Caps) -> CKernel:
    ((a,), (lu, swaps)), (t,), head = problem.arrays, problem.inputs, Head(caps)
    head.add("lib", "const ge2_services *", "services")
    equation = head.add("equation", "int64_t ", "equation")
    head.array("a", a, t.dtype)
    head.array("lu", lu, t.dtype, written=True)
    head.array("swaps", swaps, problem.outs[1].dtype, written=True)
    n, read = head.size("n", t.shape[0]), head.place("a", "ij", a.strides)
    inner = Text(
        f"for (int64_t i = 0; i < {n}; i++)", body=(Text(f"lu[j * {n} + i] = a[{read}];"),)
    )
    body = (
        Text(f"for (int64_t j = 0; j < {n}; j++)", body=(inner,)),
        Text(f"ge2_numpy_lu(lib, {TYPES.index(t.dtype.type)}, lu, swaps, {n}, 1, {equation});"),
    )
    return head.kernel("lu", problem, body)


def solved(problem: Problem, caps: Caps) -> CKernel:
    """The right sides by columns, in the result if there is one and else in scratch, where factors
    that lie by other strides are copied, too.
    """
    op = problem.op
    assert isinstance(op, LuSolve)
    ((lu, swaps, b), (x,)), (t, of_swaps, _), head = problem.arrays, problem.inputs, Head(caps)
    head.add("lib", "const ge2_services *", "services")
    for name, operand, dtype in (
        ("lu", lu, t.dtype),
        ("swaps", swaps, of_swaps.dtype),
        ("b", b, t.dtype),
    ):
        head.array(name, operand, dtype)
    head.array("x", x, t.dtype, written=True)
    (rows, columns), single = problem.outs[0].shape, problem.outs[0].shape[1] == 1
    n, k, to = head.size("n", rows), head.size("k", columns), "x" if single else "columns"
    stored, ordered = STORED[t.dtype], tuple(lu.strides) == (rows, 1)
    nbytes = rows * (columns * (not single) + rows * (not ordered)) * t.dtype.itemsize
    if nbytes:
        head.arguments["scratch"] = Argument("char *scratch", "scratch", nbytes)

    def all_of(statement: str, count: str = k) -> Text:
        inner = Text(f"for (int64_t j = 0; j < {count}; j++)", body=(Text(statement),))
        return Text(f"for (int64_t i = 0; i < {n}; i++)", body=(inner,))

    mode, factors = "T" if op.transposed else "N", "lu" if ordered else "factors"
    body = [] if single else [Text(f"{stored} *const columns = ({stored} *)scratch;")]
    if not ordered:
        after = "" if single else f" + {k} * {n}"
        body.append(Text(f"{stored} *const factors = ({stored} *)scratch{after};"))
        body.append(all_of(f"factors[i * {n} + j] = lu[{head.place('lu', 'ij', lu.strides)}];", n))
    if op.triangular:
        equation = head.add("equation", "int64_t ", "equation")
        fails = f"if ({factors}[i * {n} + i] == 0) ge2_matrix_fails(lib, 1, {equation});"
        body.append(Text(f"for (int64_t i = 0; i < {n}; i++)", body=(Text(fails),)))
    call = f'lib, {TYPES.index(t.dtype.type)}, "{mode}", {factors}, swaps, {to}, {n}, {k}'
    body.append(all_of(f"{to}[j * {n} + i] = b[{head.place('b', 'ij', b.strides)}];"))
    body.append(Text(f"ge2_numpy_lu_solve({call});"))
    if not single:
        body.append(all_of(f"x[i * {k} + j] = columns[j * {n} + i];"))
    return head.kernel("lu_solve", problem, body)
