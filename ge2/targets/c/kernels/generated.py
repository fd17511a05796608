"""Generated C: how families write the kernels of a step; moves and random bits; users' own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import final

from ge2.base.arrays import COMPLEX64, FLOAT32, real_part
from ge2.base.compiler import include_folders
from ge2.base.detect import FLAGS
from ge2.base.record import record
from ge2.choice import ONLY, Family, Problem, Variant, described, operations
from ge2.choice.choose import Choice
from ge2.choice.saved import SavedFamily, written
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import (
    Moved,
    copied,
    copied_around,
    counted,
    filled,
    inside,
    is_copy,
    joined,
    merged,
    unspoken,
    view_copied,
    zeros_around,
)
from ge2.codegen.text import ALONE, Argument, CKernel, Operand, Text, content_of, headers_content
from ge2.codegen.user_kernels import OWN_FROM, Around
from ge2.ir import ArrayType, Dims, Op
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.ops.graphs.region import LOOPS, Region
from ge2.ops.index import UpdateSlice
from ge2.ops.linalg import Cholesky, Det, SlogDet, Solve
from ge2.ops.linalg.decompositions import Eigh, Svd
from ge2.ops.random import RandomBits, RandomFold
from ge2.ops.shape import Concatenate, Constant, Iota, Pad
from ge2.ops.user_ops import Foreign, Own
from ge2.targets.c.emit import STORED, SUFFIX, C, headers, helpers_of
from ge2.targets.c.emit.file import Named, Then, same_code
from ge2.targets.c.emit.region import c_kernel
from ge2.targets.c.kernels import Elements, Head, moving, nest_of
from ge2.targets.c.kernels import shared as shared_by
from ge2.targets.c.libraries import FAILURES, FOURIER, TYPES, has_loop
from ge2.targets.c.tuning import TUNING, Caps

# -------- Generated C: every family writes the kernels of a step, given where its arrays are.


Operands = Sequence[Operand]
PRODUCTS = "product", "vector_product", "self_product"  # the headers of matrix products


@final
@record
class Pieces:
    """Kernels that run one after another, and the bytes of arrays that they have for themselves."""

    kernels: tuple[CKernel, ...]
    temps: tuple[int, ...] = ()
    products: frozenset[tuple[str, str]] = frozenset()

    @property
    def scratch(self) -> int:
        """The bytes that they need beside arguments and results."""
        given = (a for k in self.kernels for a in k.arguments if a.kind in ("partial", "scratch"))
        return sum((*self.temps, *(int(a.value) for a in given)))

    @property
    def content(self) -> tuple[str, ...]:
        """Returns what their texts consist of, but for numbers."""
        every = [each for k in self.kernels for each in (k, *inner_kernels(k))]
        own = [part for k in every for part in content_of(same_code(k), k.template)]
        names = {"core", *headers("\n".join(own)), *(PRODUCTS if self.products else ())}
        names |= {"complex"} if any(k.helpers for k in self.kernels) else set()
        needed = headers_content(tuple(f"ge2/{n}.h" for n in sorted(names)), include_folders())
        return (needed, *FLAGS, *map(str, sorted(self.products)), *own)


def inner_kernels(kernel: CKernel) -> tuple[CKernel, ...]:
    """The kernels whose parts one calls."""
    view = kernel.view
    return (view.product, view.region) if isinstance(view, Then) else ()


class Generated(Family[Caps, Pieces]):
    """Kernels in C. By default threads share what is worth it by the numbers of tuning; variants do
    without, or share sooner.
    """

    target = "c"
    ranked = False

    def variants(self, problem: Problem, caps: Caps) -> Iterable[Variant]:
        return shared(ONLY, problem, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Bytes or operations at the speed of one thread, or of all where work is shared."""
        return shared_seconds(problem, variant, caps)


def shared_seconds(problem: Problem, variant: Variant, caps: Caps, rate: float = 1.0) -> float:
    """The time of a kernel that computes at a part of the `rate`."""
    given = variant.caps or caps
    alone = replace(caps, threads=1).speed
    grain = given.tuning.regions.grain
    if given.threads <= 1 or operations(problem, alone.functions) < grain:
        return alone.of(problem, rate=rate)
    return caps.speed.of(problem, rate=rate)


def shared(usual: Iterable[Variant], problem: Problem, caps: Caps) -> Iterator[Variant]:
    """Variants, and beside them those that share work among threads otherwise."""
    yield from usual
    work = max((t.size for t in (*problem.inputs, *problem.outs)), default=0)
    if caps.threads <= 1 or work < caps.tuning.variants.least:
        return
    (first, *_) = usual
    for name, other in (
        ("one thread", replace(caps, threads=ALONE)),
        ("threads sooner", sooner(caps)),
    ):
        title = ", ".join(filter(None, (first.name, name)))
        yield replace(first, name=title, caps=other)


def sooner(caps: Caps) -> Caps:
    """Limits by which threads share less work than usual."""
    tuning, by = caps.tuning, caps.tuning.variants.sooner
    regions = replace(
        tuning.regions, grain=tuning.regions.grain // by, task=tuning.regions.task // by
    )
    moves = replace(tuning.moves, grain=tuning.moves.grain // by)
    return replace(caps, tuning=replace(tuning, regions=regions, moves=moves))


@final
class CRegion(Generated):
    name = "region in C"
    anywhere = True
    ops, kinds = (Region,), LOOPS

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        """Tiles of other sizes where arrays lie across each other, panels where rows are reduced."""
        yield from shared(ONLY, problem, caps)
        op = problem.op
        assert isinstance(op, Region)
        across = any(x.strides and x.strides[-1] not in (0, 1) for x in problem.operands)
        if math.prod(op.space) < caps.tuning.variants.least or not (across or op.kind == "reduce"):
            return
        nests, by = caps.tuning.nests, caps.tuning.variants.tiles
        for n in by:
            nest = replace(nests, tile=n, panel=nests.panel * n // nests.tile)
            other = replace(caps, tuning=replace(caps.tuning, nests=nest))
            yield Variant(f"tiles of {n}", caps=other)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Region)
        return unspoken(op.graph)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        op = problem.op
        assert isinstance(op, Region)
        return Pieces((c_kernel(op, problem.placed(op.graph), caps),))


def copying(x: ArrayType, to: ArrayType, source: Operand, target: Operand, caps: Caps) -> CKernel:
    """A copy from one array, or part of one, to another of the same shape."""
    return moving(copied(x, to, source, target), caps)


def unless_same(kernel: CKernel) -> CKernel:
    """A copy that is not made where a donated input lends its memory to the result."""
    return replace(kernel, unless_same=True)


# -------- Kernels in C in a file, and with the text that a user made of it.


@final
class CSaved(SavedFamily):
    target = "c"

    def source(self, kernel: CKernel) -> str:
        return Named(kernel.kind, kernel).text()

    def edited(self, kernel: CKernel, text: str, launch: None) -> CKernel:
        return replace(kernel, text=text)


def file_of(choice: Choice, kernels: Sequence[CKernel]) -> str:
    """The text of a file with the kernels of a choice."""
    return written(choice, [(k.kind, Named(k.kind, k).text(), None) for k in kernels])


# -------- This module writes the kernels of users' own operations in C: the body is the user's, the
# parameters are ge2's.


@final
class COwn(Generated):
    name = "a kernel of your own in C"
    ops = (Own,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        assert isinstance(problem.op, Own)
        return "" if problem.op.c else f"{problem.op.name} has no C"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        op, types, copy = problem.op, (problem.inputs, problem.outs), partial(copies, caps)
        assert isinstance(op, Own)
        own = op.kernel_in("c")
        if own.stock is not None:
            return by_template(op, own, problem, caps)
        around = Around[CKernel](op, types, problem.arrays, C, copy)
        around.room(own.workspace)
        arguments = (*around.arguments, Argument("int threads", "threads"))
        lines, helpers = (
            (*around.lines, Text("(void)threads;")),
            helpers_of(own.helpers, around.dtype),
        )
        kernels = tuple(
            CKernel(op.name, described(problem), arguments, (*lines, around.body(text)), 1, helpers=helpers)
            for text in own.texts
        )  # fmt: skip
        return Pieces((*around.before, *kernels, *around.after), tuple(around.temps))


def by_template(op: Own, own: Foreign, problem: Problem, caps: Caps) -> Pieces:
    """Writes the kernels of ge2 with a template of the user's, for operands in C order."""
    types, copy = (problem.inputs, problem.outs), partial(copies, caps)
    around = Around[CKernel](op, types, problem.arrays, C, copy, wide=False, first=OWN_FROM)
    found: Pieces = around.by_template(own, problem, caps, helpers_of)
    return found


def copies(
    caps: Caps, t: ArrayType, to: ArrayType, source: Operand, target: Operand
) -> Sequence[CKernel]:
    return (copying(t, to, source, target, caps),)


# -------- Moving elements in C: copies of views, constants, joined arrays, pads and updates of
# slices.


def moved(moves: Iterable[Moved], caps: Caps) -> Pieces:
    """A kernel for each."""
    return Pieces(tuple(moving(each, caps) for each in moves))


@final
class CCopy(Generated):
    """A view that has to be a copy."""

    name = "copy in C"
    anywhere = True

    def serves(self, op: Op) -> bool:
        return is_copy(op)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ((source,), (target,)), (x,), (to,) = problem.arrays, problem.inputs, problem.outs
        return moved([view_copied(problem.op, x, to, source, target)], caps)


@final
class CConstant(Generated):
    """Numbers that count along an axis."""

    name = "iota in C"
    ops = (Iota,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        outs = problem.arrays[1]
        (to,) = problem.outs
        assert isinstance(problem.op, Iota)
        return moved([counted(problem.op, to, outs[0])], caps)


@final
class CTable(Generated):
    """The bytes of a small array, which stand in the text."""

    name = "constant in C"
    ops = (Constant,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        most = (TUNING if caps is None else caps.tuning).files.table
        large = problem.outs[0].nbytes > most
        return "the array is too large to stand in the text" if large else ""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        outs = problem.arrays[1]
        op, (to,) = problem.op, problem.outs
        assert isinstance(op, Constant)
        data = ", ".join(f"0x{op.data[i : i + 2]}" for i in range(1, len(op.data), 2))
        body = (
            Text(f"static const unsigned char data[] = {{{data}}};"),
            Text("memcpy(y, data, sizeof data);"),
        )
        y = Argument(f"{STORED[to.dtype]} *y", "result", (outs[0], to.dtype))
        return Pieces((CKernel("constant", f"{to} = constant", (y,), body if to.size else (), 1),))


@final
class CConcatenate(Generated):
    name = "concatenate in C"
    ops = (Concatenate,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, (target,)), op = problem.arrays, problem.op
        assert isinstance(op, Concatenate)
        there = [i for _, i in problem.shared]
        return moved(joined(op.axis, problem.inputs, ins, target, there), caps)


@final
class CPad(Generated):
    name = "pad in C"
    ops = (Pad,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (x,), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, Pad)
        if (0, 0) in problem.shared:  # x was made there
            return moved(zeros_around(to, outs[0], op.low, x.shape), caps)
        plain = x.size and min(*op.low, *op.high, 0) >= 0 and not any(op.inner)
        zeros = zeros_around(to, outs[0], op.low, x.shape) if plain else [filled(to, None, outs[0])]
        start, step, first, shape = inside(op, x.shape, to.shape)
        if not math.prod(shape):
            return moved(zeros, caps)
        part = ArrayType(shape, x.dtype)
        source = ins[0].part(first, (1,) * x.ndim)
        return moved([*zeros, copied(part, part, source, outs[0].part(start, step))], caps)


@final
class CUpdateSlice(Generated):
    name = "update of a slice in C"
    ops = (UpdateSlice,)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (x, u) = problem.op, problem.inputs
        assert isinstance(op, UpdateSlice)
        if (0, 1) in problem.shared and (0, 0) not in problem.shared:  # u was made there
            around = copied_around(x, op.start, u.shape, op.step, ins[0], outs[0])
            rest = moved(around, caps)
            return replace(rest, kernels=tuple(map(unless_same, rest.kernels)))
        kernels = []
        if (0, 0) not in problem.shared:
            kernels.append(unless_same(copying(x, x, ins[0], outs[0], caps)))
        if u.size and (0, 1) not in problem.shared:
            kernels.append(copying(u, u, ins[1], outs[0].part(op.start, op.step), caps))
        return Pieces(tuple(kernels))


# -------- Random bits and new keys in C: any part of a stream is made anywhere, alike.


STREAM_LETTERS = "ijklmopq"


@final
class CBits(Generated):
    name = "random bits in C"
    ops = (RandomBits,)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, outs), tuning = problem.arrays, caps.tuning.draws
        op, (key,) = problem.op, problem.inputs
        assert isinstance(op, RandomBits)
        head, n = Head(caps), math.prod(op.shape)
        lines = key.shape[:-1]
        over, (x_over, y_over) = merged(
            lines, ins[0].strides[:-1], tuple(s * n for s in strides_of(lines))
        )
        letters = STREAM_LETTERS[: len(over)]
        head.array("key", ins[0], key.dtype)
        head.array("y", outs[0], op.dtype, written=True)
        ends, count = head.sizes(letters, over), head.size("n", n)
        first, second = words(head, "key", letters, x_over, ins[0].strides[-1])
        to = head.place("y", (*letters, "from"), (*y_over, 1))
        part = "(uint64_t)from, (uint64_t)size"
        each = (
            Text(
                f"const int64_t from = piece * {tuning.piece}, size = ge2_least({tuning.piece}, {count} - from);"
            ),
            Text(f"ge2_random_fill_{SUFFIX[op.dtype]}({first}, {second}, {part}, y + {to});"),
        )
        pieces = f"({count} + {tuning.piece - 1}) / {tuning.piece}"
        sharing = shared_by(head, (*ends, pieces), tuning.cost * math.prod(lines) * n)
        view = Elements(nest_of((*letters, "piece"), (*ends, pieces)), sharing, each)
        return Pieces((head.skeleton(op.name, problem, "elements", view),))


@final
class CFold(Generated):
    name = "random fold in C"
    ops = (RandomFold,)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, outs), cost = problem.arrays, caps.tuning.draws.cost
        op, (key, data) = problem.op, problem.inputs
        assert isinstance(op, RandomFold)
        head = Head(caps)
        own = (*ins[0].strides[:-1], *(0,) * (data.ndim - key.ndim + 1))
        data_strides = (0,) * data.ndim if ins[1].value else ins[1].strides
        over, (x_over, d_over, y_over) = merged(data.shape, own, data_strides, outs[0].strides[:-1])
        letters = STREAM_LETTERS[: len(over)]
        head.array("key", ins[0], key.dtype)
        number = head.array("data", ins[1], data.dtype)
        head.array("y", outs[0], key.dtype, written=True)
        ends = head.sizes(letters, over)
        first, second = words(head, "key", letters, x_over, ins[0].strides[-1])
        if not ins[1].value:
            number = f"data[{head.place('data', letters, d_over)}]"
        place, purpose = head.place("y", letters, y_over), head.size("purpose", op.purpose)
        each = (
            Text(
                f"const uint64_t made = ge2_random_fold({first}, {second}, {number}, (uint32_t){purpose});"
            ),
            Text(f"y[{place}] = (uint32_t)made;"),
            Text(f"y[{place} + 1] = (uint32_t)(made >> 32);"),
        )
        sharing = shared_by(head, ends, cost * data.size) if ends else None
        view = Elements(nest_of(letters, ends), sharing, each)
        return Pieces((head.skeleton(op.name, problem, "elements", view),))


def words(
    head: Head, name: str, letters: str, strides: tuple[int, ...], step: int
) -> tuple[str, str]:
    """Both words of a key."""
    place = head.place(name, letters, strides)
    return f"{name}[{place}]", f"{name}[{place} + {'1' if step == 1 else head.size('word', step)}]"


# -------- Matrices and Fourier transforms in C, by the loops that NumPy's own functions have: a call
# of one takes a third of a microsecond, one of NumPy's function ten times as long.


@final
@record
class Called:
    """A loop of NumPy's over a stack: the sizes of its matrices or lines, and the axes that they have
    in each operand, of which `inputs` come first. `failure` is what it says of a matrix, if that is
    an error.
    """

    loop: str
    sizes: Dims
    operands: tuple[Operand, ...]
    types: tuple[ArrayType, ...]
    inner: tuple[Dims, ...]
    inputs: int = 1
    failure: str = ""

    @property
    def cost(self) -> int:
        """The elements that are moved in the time of one call for one matrix or line."""
        n = max(self.sizes)
        return 200 + (4 * n * n.bit_length() if self.loop in FOURIER else n**3)


def loop_of(op: Op, x: ArrayType) -> tuple[str, str]:
    """The name of the loop of an operation, and what it says of a matrix, if that is an error."""
    if isinstance(op, Fft):
        return "ifft" if op.inverse else "fft", ""
    if isinstance(op, Rfft):
        return "rfft_n_odd" if x.shape[op.axis] % 2 else "rfft_n_even", ""
    if isinstance(op, Eigh):
        name = f"{'eigh' if op.vectors else 'eigvalsh'}_{'lo' if op.lower else 'up'}"
        return name, FAILURES[3]
    if isinstance(op, Svd):
        return ("svd_f" if op.full else "svd_s") if op.vectors else "svd", FAILURES[4]
    if isinstance(op, Solve):
        return "solve", "" if op.quiet else FAILURES[1]
    return ("cholesky_lo", FAILURES[2]) if isinstance(op, Cholesky) else (op.name, "")


@final
class CNumpyLoop(Generated):
    """Threads share the matrices, or lines, of a stack."""

    name = "NumPy's loop, called by C"
    ops = (Solve, Det, SlogDet, Cholesky, Eigh, Svd, Fft, Rfft, Irfft)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op, x = problem.op, problem.inputs[0]
        if not all(t.size for t in (*problem.inputs, *problem.outs)):
            return "an array is empty"
        if isinstance(op, Fft) and not op.axes:
            return "no axis is transformed"
        inverse = isinstance(op, Irfft) or (isinstance(op, Fft) and op.inverse)
        if x.dtype in (FLOAT32, COMPLEX64) and not inverse:
            return "single precision is computed in double: the pass `in_double` casts it"
        name, _ = loop_of(op, x)
        return "" if has_loop(name, x.dtype) else f"NumPy's loop of {name} was not found"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        calls = (
            fourier(problem) if isinstance(problem.op, Fft | Rfft | Irfft) else of_matrices(problem)
        )
        return Pieces(tuple(called(call, problem, caps) for call in calls))


def fourier(problem: Problem) -> Iterator[Called]:
    """The last axis first, as NumPy has it; the others where the result is."""
    op, (x,), (y,), (source,), (target,) = (
        problem.op, problem.inputs, problem.outs, *problem.arrays
    )  # fmt: skip
    assert isinstance(op, Fft | Rfft | Irfft)
    name, _ = loop_of(op, x)
    for axis in reversed(op.axes) if isinstance(op, Fft) else (op.axis,):
        sizes, inner = (x.shape[axis], y.shape[axis]), ((axis,), (axis,))
        yield Called(name, sizes, (source, target), (x, y), inner)
        x, source = y, target


def of_matrices(problem: Problem) -> Iterator[Called]:
    op, x = problem.op, problem.inputs[0]
    name, failure = loop_of(op, x)
    types, ndim = (*problem.inputs, *problem.outs), x.ndim
    inner = tuple([tuple(range(ndim - 2, t.ndim)) for t in types])
    sizes = x.shape[-1:]
    if isinstance(op, Svd):
        sizes = (*x.shape[-2:], min(x.shape[-2:]))
    elif isinstance(op, Solve):
        sizes = problem.inputs[1].shape[-2:]
    yield Called(name, sizes, problem.operands, types, inner, len(problem.inputs), failure)


def called(call: Called, problem: Problem, caps: Caps) -> CKernel:
    """A loop around pieces of the stack's longest run of equal steps, and those of its other axes."""
    head, n, first = Head(caps), call.inputs, call.types[0].dtype
    head.add("lib", "const ge2_services *", "services")
    equation = head.add("equation", "int64_t ", "equation") if call.failure else "0"
    each = tuple(zip(call.operands, call.types, call.inner, strict=True))
    stack = (tuple(s for a, s in enumerate(x.strides) if a not in at) for x, _, at in each)
    shape = (m for a, m in enumerate(call.types[0].shape) if a not in call.inner[0])
    over, steps = merged(tuple(shape), *stack)
    letters = (*STREAM_LETTERS[: len(over) - 1], "from")[: len(over)]
    places, strides = list[str](), list[int]()
    for i, ((x, t, _), by) in enumerate(zip(each, steps, strict=True)):
        name = head.array(f"{'x' if i < n else 'y'}{i}", x, t.dtype, written=i >= n)
        places.append(f"(char *)({name} + {head.place(name, letters, by)})")
        strides.append(by[-1] * t.dtype.itemsize if by else 0)
    strides += [x.strides[a] * t.dtype.itemsize for x, t, at in each for a in at]
    lines = []
    if call.loop in FOURIER:  # which also takes a number that it multiplies by
        lines = [Text(f"const {STORED[real_part(first)]} one = 1;")]
        places.insert(1, "(char *)&one")
        strides.insert(1, 0)
    ends = head.sizes((*letters[:-1], "n")[: len(over)], over)
    run = f"ge2_least(size, {ends[-1]} - from)" if over else "1"
    sizes = [run, *(head.size(f"size{i}", m) for i, m in enumerate(call.sizes))]
    by_bytes = [head.size(f"step{i}", s) if s else "0" for i, s in enumerate(strides)]
    loop = f"GE2_{call.loop.upper()}, {TYPES.index(first.type)}, operands, sizes, steps"
    lines += [
        Text(f"char *const operands[] = {{{', '.join(places)}}};"),
        Text(f"const intptr_t sizes[] = {{{', '.join(sizes)}}};"),
        Text(f"const intptr_t steps[] = {{{', '.join(by_bytes)}}};"),
        Text(f"ge2_numpy_call(lib, {loop}, {FAILURES.index(call.failure)}, {equation});"),
    ]
    nest: tuple[tuple[str, str], ...] = ()
    sharing = None
    if over:
        each_call = min(caps.tuning.moves.lines, -(-over[-1] // 8)) if call.loop in FOURIER else 1
        size = head.size("piece_of", max(each_call, caps.tuning.moves.grain // (8 * call.cost)))
        lines.insert(0, Text(f"const int64_t size = {size}, from = piece * size;"))
        pieces = f"({ends[-1]} + {size} - 1) / {size}"
        nest = nest_of((*letters[:-1], "piece"), (*ends[:-1], pieces))
        # larger matrices are worth threads of LAPACK's own
        if call.loop in FOURIER or max(call.sizes) <= caps.tuning.moves.matrix:
            sharing = shared_by(head, (*ends[:-1], pieces), math.prod(over) * call.cost)
    view = Elements(nest, sharing, tuple(lines))
    return head.skeleton(problem.op.name, problem, "elements", view)
