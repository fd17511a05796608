"""Parts that kernels of several families in C share: strided loops, transposed copies, scores of
attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.choice import Problem, described
from ge2.codegen.layout import Moved, merged
from ge2.codegen.text import ALONE, Argument, CKernel, Operand, Parameters, Sharing, Text
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Var
from ge2.ops.attention import REPEATED, VIEWS
from ge2.ops.attention.form import Form
from ge2.ops.attention.graphs import Elementwise, inputs_of
from ge2.ops.attention.scores import narrowed
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.shape import Iota
from ge2.targets.c.emit import HELD, STORED, SUFFIX, expression, number, retyped
from ge2.targets.c.emit.region import c_kernel
from ge2.targets.c.emit.statements import ORDER
from ge2.targets.c.tuning import Caps

__all__ = ["SUFFIX", "Reads", "ScoreStatements", "batch_places", "statements"]


# -------- Loops over arrays of any strides in C, and the parameters that their sizes and strides
# become.


@final
@record
class Check:
    """A test that leaves a kernel, and the loops around it."""

    over: tuple[tuple[str, str], ...]
    test: tuple[Text, ...]


@final
class Head(Parameters):
    """The parameters of a kernel, each declared when it is first named."""

    def __init__(self, caps: Caps) -> None:
        super().__init__()
        self.alone, self.tuning = caps.threads == ALONE, caps.tuning

    def add(self, name: str, declaration: str, kind: str, value: Any = None) -> str:
        return self.add_argument(name, f"{declaration}{name}", kind, value)

    def array(self, name: str, operand: Operand, dtype: np.dtype, written: bool = False) -> str:
        """An array, or the number that stands in its place."""
        if operand.value:
            return self.add(name, f"{HELD[dtype]} ", "value", (operand, dtype))
        const = "" if written else "const "
        return self.add(
            name, f"{const}{STORED[dtype]} *", "result" if written else "array", (operand, dtype)
        )

    def size(self, name: str, value: int) -> str:
        return self.add(name, "int64_t ", "size", value)

    def team(self, work: int) -> str:
        """The test by which threads share a loop: whether there are so many elements."""
        self.add("threads", "int ", "threads")
        return f"threads > 1 && {self.size('work', work)} > {self.tuning.moves.grain}"

    def services(self) -> str:
        self.add("lib", "const ge2_services *", "services")
        self.add("equation", "int64_t ", "equation")
        return "equation, " + self.add("threads", "int ", "threads") + ", lib"

    def kernel(self, kind: str, problem: Problem, body: Sequence[Text]) -> CKernel:
        arguments = sorted(self.arguments.values(), key=lambda a: ORDER.index(a.kind))
        return CKernel(kind, described(problem), tuple(arguments), tuple(body), 1)

    def skeleton(self, kind: str, problem: Problem, template: str, view: Any) -> CKernel:
        """A kernel of a family's template."""
        bare = self.kernel(kind, problem, ())
        return replace(bare, template=f"c/{template}.c.jinja", view=view)


@final
@record
class Elements:
    """The view that `templates/c/elements.c.jinja` prints: statements for each element along some
    axes.
    """

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    statements: tuple[Text, ...]
    checks: tuple[Check, ...] = ()


def numbers(**named: int) -> tuple[Argument, ...]:
    """Integers that a kernel takes, by their names."""
    return tuple(Argument(f"int64_t {name}", "size", n) for name, n in named.items())


def shares(chunk: int, grain: int, caps: Caps) -> tuple[Argument, ...]:
    """The tasks that a thread takes at a time, and those that are worth waking other threads for."""
    return *numbers(chunk=chunk, grain=grain), Argument("int threads", "threads", caps.threads)


def nest_of(letters: Sequence[str], ends: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The loops of a nest, as a template prints them."""
    return tuple(zip(letters, ends, strict=True))


def shared(head: Head, ends: Sequence[str], work: int) -> Sharing | None:
    """Returns how threads share nested loops with these ends; not at all where one thread has little
    to do.
    """
    if head.alone:
        return None
    factors = (f"({end})" if " " in end and len(ends) > 1 else end for end in ends)
    return Sharing(head.team(work), total=" * ".join(factors))


def shared_in_vectors(head: Head, depth: int, work: int, lines: int) -> Sharing | None:
    """The same of so many nested loops around some lines, whose iterations are done side by side."""
    if head.alone:
        return None
    collapse = f"collapse({depth}) " if depth > 1 else ""
    long = depth + lines > head.tuning.regions.lines
    return Sharing(head.team(work), f"for simd {collapse}schedule(static)", long, simd=not collapse)


def single(shape: Dims, strides: Dims, axes: Dims) -> int | None:
    """The stride of several axes taken as one, if they have one."""
    real = [a for a in axes if shape[a] != 1]
    if not real or 0 in (shape[a] for a in real):
        return 1 if not real else 0
    for outer, inner in pairwise(real):
        if strides[outer] != strides[inner] * shape[inner]:
            return None
    return strides[real[-1]]


@final
@record
class Matrix:
    """An operand of a product: one stride for each of batch, rows and columns."""

    operand: Operand
    batch: int
    row: int
    column: int


def turned(x: Matrix) -> Matrix:
    """The transpose of a matrix, in its memory."""
    return Matrix(x.operand, x.batch, x.column, x.row)


def matrices(op: DotGeneral, a: ArrayType, b: ArrayType) -> tuple[tuple[Dims, Dims, Dims], ...]:
    """The axes of each operand that are those of products, of rows and of columns."""
    left, right = op.free(a, b)
    return (op.beside[0], left, op.contract[0]), (op.beside[1], op.contract[1], right)


def in_rows(problem: Problem) -> bool:
    """True if neighbours in a row of the right operand of a product are neighbours in memory."""
    (a, b), op = problem.inputs, problem.op
    assert isinstance(op, DotGeneral)
    return single(b.shape, problem.arrays[0][1].strides, matrices(op, a, b)[1][2]) == 1


def leads(row: int, column: int, rows: int, columns: int) -> bool:
    """True if BLAS can read a matrix with these strides."""
    if columns == 1 or column == 1:
        return rows == 1 or row >= max(columns, 1)
    return (rows == 1 or row == 1) and column >= rows


# -------- Copies of arrays in C: those whose rows are columns of the other array go by tiles
# through a buffer.


LETTERS = "ijklmopqrstuvw"
LINE = 64  # bytes of a cache line, and of a row of a tile of transpose.h
BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}  # of elements by their bytes, as it names them


def moving(region_and_places: Moved, caps: Caps) -> CKernel:
    """The kernel of a copy: by tiles where the arrays are across each other, or else by loops."""
    region, placed = of_bits(region_and_places)
    return transposing((region, placed), caps) or c_kernel(region, placed, caps)


def of_bits(given: Moved) -> Moved:
    """The same copy, of a half type's bits: no number is made a float32 and rounded again."""
    region, placed = given
    graph = region.graph
    copies = len(graph.inputs) == len(graph.eqns) == 1
    if not copies or not isinstance(graph.eqns[0].op, ConvertElementType):
        return given
    (a,), (b,) = graph.inputs, graph.eqns[0].outs
    if a.type.dtype != b.type.dtype or a.type.dtype not in HALF or placed[a].value:
        return given
    bits = np.dtype(f"u{a.type.dtype.itemsize}")
    x, y = Var(a.type.with_dtype(bits)), Var(b.type.with_dtype(bits))
    copy = Graph((x,), (Eqn(ConvertElementType(bits), (x,), (y,)),), (y,))
    return replace(region, graph=copy), {x: placed[a], y: placed[b]}


def transposing(given: Moved, caps: Caps) -> CKernel | None:
    """A copy by tiles, if each array has an axis of neighbours that is no short one."""
    region, placed = given
    graph = region.graph
    if len(graph.inputs) != 1 or len(graph.eqns) != 1:
        return None
    (a,), (eqn,), (b,) = graph.inputs, graph.eqns, graph.eqns[0].outs
    x, y, size = placed[a], placed[b], a.type.dtype.itemsize
    if not isinstance(eqn.op, ConvertElementType) or a.type.dtype != b.type.dtype or x.value:
        return None
    shape, (x_steps, y_steps) = merged(b.type.shape, x.strides, y.strides)
    if size not in BITS or 1 not in x_steps or 1 not in y_steps:
        return None
    s, d = x_steps.index(1), y_steps.index(1)
    least = caps.tuning.nests.few
    if s == d or min(shape[s], shape[d]) <= least or min(x_steps[d], y_steps[s]) <= least:
        return None
    head = Head(caps)
    head.array("x", x, a.type.dtype)
    head.array("y", y, b.type.dtype, written=True)
    others = [axis for axis in range(len(shape)) if axis not in (s, d)]
    letters, tile = LETTERS[: len(others)], LINE // size
    ends = head.sizes(letters, [shape[axis] for axis in others])
    n_s, n_d = head.size("n_s", shape[s]), head.size("n_d", shape[d])
    places = [
        head.place(name, (*letters, "first"), (*(steps[axis] for axis in others), steps[s]))
        for name, steps in (("x", x_steps), ("y", y_steps))
    ]
    steps = head.size("x_d", x_steps[d]), head.size("y_s", y_steps[s])
    width = f"ge2_least({tile}, {n_s} - first)"
    each = (
        Text(f"const int64_t first = block * {tile};"),
        Text(
            f"ge2_transpose_{BITS[size]}("
            f"x + {places[0]}, {steps[0]}, y + {places[1]}, {steps[1]}, {n_d}, {width});"
        ),
    )
    names = [*letters, "block"]
    ends = [*ends, f"({n_s} + {tile - 1}) / {tile}"]
    sharing = shared(head, ends, math.prod(shape))
    arguments = sorted(head.arguments.values(), key=lambda a: ORDER.index(a.kind))
    about = f"{b.type} = {a.type} across"
    view = Elements(nest_of(names, ends), sharing, each)
    bare = CKernel("transpose", about, tuple(arguments), (), 1)
    return replace(bare, template="c/elements.c.jinja", view=view)


# -------- Statements of scores of attention, and of their derivative, for one pair of a query and a
# key.


REASON: Final = "scores are not elementwise work on the products"


@final
@record
class ScoreStatements:
    """Statements by where they are: before the loops over queries (`first`), for a query, for a key of
    it. `results`: the values that they make.
    """

    first: tuple[Text, ...]
    row: tuple[Text, ...]
    key: tuple[Text, ...]
    results: tuple[str, ...]


@final
@record
class Reads:
    """The operands of what scores are made of, and where a kernel declares how they are reached."""

    form: Form
    operands: Mapping[Var, Operand]
    head: Head


def statements(
    graph: Graph, reads: Reads, names: Sequence[str], dims: Dims, mark: str
) -> ScoreStatements | str:
    """The statements of a graph (products, what else scores are made of, ...) whose results have these
    axes of the products; or the reason why there are none. `names`: of its first input and of those
    after the others; `mark`: the beginning of the names that they declare.
    """
    return Writer(narrowed(graph), reads, names, mark).run(dims)


@final
class Writer:
    def __init__(self, graph: Graph, reads: Reads, names: Sequence[str], mark: str) -> None:
        self.form, self.reads, self.mark, self.graph = reads.form, reads, mark, graph
        self.work = Elementwise(reads.form, graph)
        self.full, given = self.work.all_axes, graph.inputs
        count = 1 + len(inputs_of(reads.form))
        self.known: dict[tuple[Atom, Dims], str] = {(given[0], self.full): names[0]}
        self.known |= {(v, self.full): n for v, n in zip(given[count:], names[1:], strict=True)}
        self.inputs = dict(zip(given[1:count], inputs_of(reads.form), strict=True))
        self.first, self.row, self.key = list[Text](), list[Text](), list[Text]()

    def run(self, dims: Dims) -> ScoreStatements | str:
        every = [v for e in self.graph.eqns for v in (*e.inputs, *e.outs)]
        if any(a.type.dtype in HALF for a in every) or any(map(is_special, self.graph.eqns)):
            return "scores are of a half type, or by a function that has no statement"
        seen = set(self.known)
        if not all(self.work.visited(a, dims, seen) for a in self.graph.outputs):
            return REASON
        results = tuple(self.value(a, dims) for a in self.graph.outputs)
        return ScoreStatements(tuple(self.first), tuple(self.row), tuple(self.key), results)

    def value(self, a: Atom, dims: Dims) -> str:
        """The name of a value whose axes are these of the products."""
        if isinstance(a, Literal):
            return number(a.value, a.type.dtype)
        if (a, dims) not in self.known:
            self.known[a, dims] = self.made(a, dims)
        return self.known[a, dims]

    def made(self, a: Atom, dims: Dims) -> str:
        eqn = self.work.makers.get(a)
        if eqn is None:
            return self.read(self.inputs[a], dims)  # type: ignore[index]
        op, inner = eqn.op, self.work.inner(eqn, dims)
        assert inner is not None
        if isinstance(op, Iota):
            return f"({HELD[op.dtype]}){self.place(dims[op.axis])}"
        xs = [self.value(x, d) for x, d in zip(eqn.inputs, inner, strict=True)]
        if isinstance(op, VIEWS):
            return xs[0]
        dtype, out = eqn.inputs[0].type.dtype, eqn.outs[0].type.dtype
        if op.retypes:
            code = retyped(xs[0], eqn)
        else:
            code = expression(op.lowering.expression, xs, dtype, out)  # type: ignore[union-attr]
        return self.declared(HELD[out], code, dims, str(op.name))

    def declared(self, ctype: str, code: str, dims: Dims, comment: str = "") -> str:
        """The name of a value, which is computed where its axes are known."""
        form = self.form
        where = self.key if form.key in dims else self.row if form.row in dims else self.first
        name = f"{self.mark}{len(self.first) + len(self.row) + len(self.key)}"
        where.append(Text(f"const {ctype} {name} = {code};", comment))
        return name

    def place(self, axis: int) -> str:
        """The index along an axis of the products."""
        if axis == REPEATED:
            return "0"
        form = self.form
        return "key" if axis == form.key else "row" if axis == form.row else f"at{axis}"

    def read(self, v: Var, dims: Dims) -> str:
        """An element of an array: where it is along keys is added in the innermost loop alone."""
        head, operand, dtype = self.reads.head, self.reads.operands[v], v.type.dtype
        n = self.form.plain.inputs.index(v)
        base = head.array(f"x{n}", operand, dtype)
        if operand.value:
            return base
        pairs = zip(dims, operand.strides, strict=True)
        steps = [(d, s) for d, s in pairs if d != REPEATED and s]
        terms = [
            self.place(d) if s == 1 else f"{self.place(d)} * {head.size(f'x{n}_{d}', s)}"
            for d, s in sorted(steps, reverse=True)
        ]
        held = f"{base}[{' + '.join(terms) or '0'}]"
        return self.declared(HELD[dtype], held, dims)


def is_special(eqn: Eqn) -> bool:
    """True of a function of a user's, or one that may fail."""
    op = eqn.op
    power = op.name == "pow" and eqn.inputs[0].type.dtype not in (FLOAT32, FLOAT64)
    return power or bool(getattr(op, "edition", 0)) or any(v.type.weak for v in eqn.outs)


def batch_places(form: Form, head: Head) -> tuple[Text, ...]:
    """The statements of the index along each axis of batches, by that of the head."""
    shape, inner, found = form.product.type.shape, "", list[Text]()
    long = [a for a in form.batch if shape[a] > 1]
    for a in reversed(long):
        size = head.size(f"n_at{a}", shape[a])
        code = f"head{f' / ({inner})' if inner else ''}"
        found.append(Text(f"const int64_t at{a} = {code}{f' % {size}' if a != long[0] else ''};"))
        inner = f"{inner} * {size}" if inner else size
    return tuple(found)
