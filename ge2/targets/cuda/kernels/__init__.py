"""Generated CUDA: how families write launches; saved kernels, users' own, persistent ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from ctypes import CDLL, addressof, c_int64, c_void_p, cast
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, final

from ge2.base.errors import ArgumentError, CompileError
from ge2.base.record import record
from ge2.base.source import here
from ge2.choice import Family, Problem, Variant, bytes_of, described
from ge2.choice.choose import Choice
from ge2.choice.saved import Launch, SavedFamily, written
from ge2.codegen.layout import copied, counted, filled, is_copy, unspoken, view_copied
from ge2.codegen.text import Operand, Text, guard
from ge2.codegen.user_kernels import OWN_FROM, Around
from ge2.ir import ArrayType, Graph, Op, Var
from ge2.ops.graphs.region import LOOPS, Region, Resident
from ge2.ops.shape import Iota
from ge2.ops.user_ops import Foreign, Own
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.special_reductions import Kernels, LibraryLaunch
from ge2.targets.cuda.emit.split_region import (
    across_rows,
    after_one,
    inhabited,
    is_divisible,
    is_shared,
    regional,
    variants,
)
from ge2.targets.cuda.emit.words import CUDA, helpers_of
from ge2.targets.cuda.launch.library_call import STREAM, Function, LibraryCall, Passed, Table
from ge2.targets.cuda.limits import BLOCK_MOST, GRID_MOST, Chip
from ge2.targets.cuda.load.kernels import source_of
from ge2.targets.cuda.load.nvrtc import binary_text
from ge2.targets.cuda.persistent import resident_kernel
from ge2.targets.cuda.persistent.nodes import Unwritten
from ge2.targets.cuda.persistent.steps import (
    Fit,
    Steps,
    by_rows,
    in_block,
    on_all_blocks,
    quick,
    taken_in,
    together,
)

# -------- Generated CUDA: every family writes the launches of a step, given where its arrays are.


Operands = Sequence[Operand]


class Cuda(Family[Caps, Kernels]):
    """Kernels in CUDA."""

    target = "cuda"
    ranked = False

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """The bytes of all arrays once, or the operations, in one launch."""
        return caps.speed.of(problem)


NOTHING = Variant("nothing", lambda: Kernels(()))  # where there are no elements


class CudaWays(Cuda):
    """A family of several ways, each a variant whose plan writes its kernels."""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        found: Kernels = variant.plan()
        return found


def in_flight(problem: Problem, variant: Variant, kept: int, caps: Caps) -> int:
    """Bytes that a fold into so many results has requested at once."""
    tuning = caps.limits.tuning.requests
    if variant.name.startswith("rows"):
        return tuning.of_row * kept
    if kept > tuning.column * caps.limits.multiprocessors:
        return kept * tuning.of_wide * max(t.dtype.itemsize for t in problem.inputs)
    # narrow blocks have a sector of each row: of smaller elements more columns, so fewer rows at once
    size = max(problem.inputs, key=lambda t: t.size).dtype.itemsize
    return kept * tuning.of_column * size * size // 16


@lru_cache(1024)
def spread(problem: Problem) -> int:
    """The bytes that a region which may be two reads in vain because arrays lie across its rows."""
    region = problem.op
    if not isinstance(region, Region) or not problem.operands or not is_divisible(region):
        return 0
    rest = inhabited(region)
    return 0 if rest is None else across_rows(rest, problem.placed(region.graph))


@final
class CudaRegion(CudaWays):
    name = "region in CUDA"
    anywhere = True
    ops, kinds = (Region,), LOOPS

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Region)
        return unspoken(op.graph)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True if one sum is gone on with, whose rows, or columns, are few; or if arrays lie across the
        rows of a region that may be two.
        """
        return isinstance(problem.op, Region) and bool(after_one(problem.op) or spread(problem))

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """Returns the time; a fold into few results leaves most of a GPU idle, unless it is done in two:
        then what is between them is written and read.
        """
        op = problem.op
        assert isinstance(op, Region)
        speed, kept = caps.speed, max((t.size for t in problem.outs), default=1)
        tuning = caps.limits.tuning.requests
        if variant.name.startswith("pairs"):
            return speed.of(problem)
        if after_one(op):
            if variant.name == "in two":
                return speed.of(problem, launches=3)
            part = in_flight(problem, variant, kept, caps) / (speed.moved * tuning.latency)
            return speed.of(problem, passes=max(1 / max(part, 1e-6), 1.0))
        if variant.name == "in two":
            return speed.of(problem, passes=1.5, launches=2)
        if not variant.name.startswith("columns"):
            return speed.of(problem, passes=1 + spread(problem) / max(bytes_of(problem), 1))
        if is_shared(op):
            return speed.of(problem, launches=2)
        busy = min(1.0, kept * tuning.column / caps.limits.threads)
        return speed.of(problem, passes=1 / max(busy, 1e-6), rate=max(busy, 1e-6))

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        region = problem.op
        assert isinstance(region, Region)
        return variants(region, problem.placed(region.graph), caps.chip)


# ---------------------------------------------------------------------------------- moving elements


def copying(x: ArrayType, to: ArrayType, source: Operand, target: Operand, chip: Chip) -> Kernels:
    """A copy from one array, or part of one, to another of the same shape."""
    return regional(*copied(x, to, source, target), chip)


def filling(
    to: ArrayType, source: Operand | None, target: Operand, chip: Chip, known: int = 0
) -> Kernels:
    """One number in every element of an array: that of a source, or one that is known."""
    return regional(*filled(to, source, target, known), chip)


@final
class CudaCopy(Cuda):
    """A view that has to be a copy."""

    name = "copy in CUDA"
    anywhere = True

    def serves(self, op: Op) -> bool:
        return is_copy(op)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ((source,), (target,)), (x,), (to,) = problem.arrays, problem.inputs, problem.outs
        return regional(*view_copied(problem.op, x, to, source, target), caps.chip)


@final
class CudaConstant(Cuda):
    """Numbers that count along an axis."""

    name = "iota in CUDA"
    ops = (Iota,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        outs, chip = problem.arrays[1], caps.chip
        (to,) = problem.outs
        assert isinstance(problem.op, Iota)
        return regional(*counted(problem.op, to, outs[0]), chip)


# -------- Kernels of a GPU in a file, and with the text that a user made of it.


@final
class CudaSaved(SavedFamily):
    target = "cuda"

    def source(self, kernel: CudaKernel) -> str:
        return source_of(kernel).text()

    def edited(self, kernel: CudaKernel, text: str, launch: Launch) -> CudaKernel:
        blocks, threads, shared = launch
        return replace(
            kernel, text=text, file=self.saved.path, grid=blocks, block=math.prod(threads),
            sides=threads, shared=shared,
        )  # fmt: skip


def file_of(choice: Choice, kernels: Sequence[CudaKernel]) -> str:
    """The text of a file with the kernels of a choice."""
    return written(
        choice,
        [(source_of(k).name, source_of(k).text(), (k.grid, k.shape, k.shared)) for k in kernels],
    )


# -------- This module writes the kernels of users' own operations in CUDA: the body of a thread is
# the user's, the parameters are ge2's.


# of blocks and of threads, along x, y and z
AXES: Final = "xyz"
FIX: Final = "return -(-x.size // 256), 256"
IN_FILE: Final = 'launch = { blocks = "cdiv(n, 256)", threads = 256 }'  # of kernel.toml


@final
@record
class Grid:
    """The launch of a kernel: blocks and their threads along one to three axes, and bytes of shared
    memory.
    """

    blocks: tuple[int, ...]
    threads: tuple[int, ...]
    shared: int = 0


def an_element_a_thread(problem: Problem, caps: Caps) -> Grid:
    """The launch of a kernel for which the user specifies none."""
    block = caps.limits.tuning.elements.block
    return Grid((max(-(-problem.outs[0].size // block), 1),), (block,))


@final
class CudaOwn(Cuda):
    name = "a kernel of your own in CUDA"
    ops = (Own,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        assert isinstance(problem.op, Own)
        return "" if problem.op.cuda else f"{problem.op.name} has no CUDA"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op = problem.op
        assert isinstance(op, Own)
        if not any(t.size for t in problem.outs):
            return Kernels(())
        own = op.kernel_in("cuda", *problem.inputs)
        if own.stock is not None:
            return by_template(op, own, problem, caps)
        types, copy = (problem.inputs, problem.outs), partial(copies, caps.chip)
        wide = not own.function
        around = Around[CudaKernel](op, types, problem.arrays, CUDA, copy, "__restrict__ ", wide)
        if own.library:
            return launched_by(op, own, problem, around)
        around.room(own.workspace)
        if own.binary:
            kernels: tuple[CudaKernel, ...] = (prebuilt(op, own, problem, around, caps),)
        else:
            kernels = tuple(
                of_text(op, own, n, problem, around, caps) for n in range(len(own.texts))
            )
        return Kernels((*around.before, *kernels, *around.after), tuple(around.temps))


def of_text(
    op: Own, own: Foreign, n: int, problem: Problem, around: Around[CudaKernel], caps: Caps
) -> CudaKernel:
    """Writes the kernel of a text. It is launched as the user specifies, or with one thread an
    element.
    """
    name = f"{op.name} kernel{f' {n + 1}' if len(own.texts) > 1 else ''}"
    asked = launched(op, own.launches[n])
    grid = asked or an_element_a_thread(problem, caps)
    numbers = [Text(line) for line in numbered(grid)]
    if asked is None:
        numbers.append(guard(f"thread >= {around.results[0]}_size", "return;"))
    body = (*around.lines, *numbers, around.body(own.texts[n]))
    return CudaKernel(
        name, described(problem), tuple(around.arguments), body, math.prod(grid.threads), grid.blocks,
        (), grid.shared, 1, helpers_of(own.helpers, around.dtype), sides=grid.threads,
        foreign=True,
    )  # fmt: skip


def by_template(op: Own, own: Foreign, problem: Problem, caps: Caps) -> Kernels:
    """Writes the kernels of ge2 with a template of the user's, for operands in C order."""
    types, copy = (problem.inputs, problem.outs), partial(copies, caps.chip)
    around = Around[CudaKernel](op, types, problem.arrays, CUDA, copy, wide=False, first=OWN_FROM)
    found: Kernels = around.by_template(own, problem, caps, helpers_of)
    return found


def prebuilt(
    op: Own, own: Foreign, problem: Problem, around: Around[CudaKernel], caps: Caps
) -> CudaKernel:
    """Describes the kernel of a binary: it has the parameters that a text would have."""
    (said,) = own.launches
    grid = launched(op, said) or an_element_a_thread(problem, caps)
    return CudaKernel(
        own.function, described(problem), tuple(around.arguments), (), math.prod(grid.threads),
        grid.blocks, (), grid.shared, 1, sides=grid.threads, foreign=True, text=binary_text(own.binary),
    )  # fmt: skip


def launched_by(op: Own, own: Foreign, problem: Problem, around: Around[CudaKernel]) -> Kernels:
    """Writes the call of a library function of the user's that launches kernels: `int f(void *const
    *operands, void *const *results, const int64_t *const *shapes, void *workspace, cudaStream_t
    stream)`.
    """
    try:
        library = CDLL(own.library)
        address = cast(library[own.function], c_void_p).value or 0
    except (OSError, AttributeError) as error:
        raise CompileError(f"the library of {op.name} cannot be loaded: {error}") from None
    count, places = len(problem.inputs), around.places
    shapes = [(c_int64 * max(t.ndim, 1))(*t.shape) for t in (*problem.inputs, *problem.outs)]
    given = [Passed(n) for n in range(len(places))]
    words = (
        Table(tuple(given[:count])), Table(tuple(given[count:])), Table(tuple(map(addressof, shapes))),
        Passed(len(given)) if own.workspace else 0, STREAM,
    )  # fmt: skip
    function = Function(own.function, address, words)
    call = LibraryCall(op.name, (function,), own.workspace, (library, shapes))
    written = frozenset(range(count, len(places)))
    return Kernels(
        tuple(around.before), tuple(around.temps), LibraryLaunch(call, tuple(places), written)
    )


def copies(
    chip: Chip, t: ArrayType, to: ArrayType, source: Operand, target: Operand
) -> Sequence[CudaKernel]:
    return copying(t, to, source, target, chip).kernels


def numbered(grid: Grid) -> list[str]:
    """Returns the expressions for the number of the thread, and for the number of threads."""
    block, thread = (
        flat("blockIdx", "gridDim", len(grid.blocks)),
        flat("threadIdx", "blockDim", len(grid.threads)),
    )
    own = product("blockDim", len(grid.threads))
    each = f"({own})" if "*" in own else own
    return [
        f"const int64_t thread = (int64_t){block} * {each} + {thread};",
        f"const int64_t threads = (int64_t){product('gridDim', len(grid.blocks))} * {own};",
        "(void)thread, (void)threads;",
    ]


def flat(index: str, size: str, count: int) -> str:
    """Writes an index along some axes as one number.

    >>> flat("blockIdx", "gridDim", 2)
    '(blockIdx.y * (int64_t)gridDim.x + blockIdx.x)'
    """
    text = f"{index}.{AXES[count - 1]}"
    for axis in reversed(AXES[: count - 1]):
        text = f"({text} * (int64_t){size}.{axis} + {index}.{axis})"
    return text


def product(size: str, count: int) -> str:
    return " * ".join(f"{size}.{axis}" for axis in AXES[:count])


# --------------------------------------------------------------------------------------- the launch


def launched(op: Own, found: Any) -> Grid | None:
    """Reads the user's launch parameters; returns None if there are none.

    ArgumentError for what no GPU launches.
    """
    if found is None:
        return None
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise refused(
            op, found, "it is to return blocks and threads, and bytes of shared memory if any"
        )
    blocks, threads = (sides(op, found, each) for each in found[:2])
    shared = found[2] if len(found) == 3 else 0
    limits = GRID_MOST, BLOCK_MOST
    for given, most, what in zip((blocks, threads), limits, ("blocks", "threads"), strict=True):
        if any(not 1 <= n <= top for n, top in zip(given, most, strict=False)):
            raise refused(op, found, f"a GPU takes at least 1 and at most {most} {what}")
    if math.prod(threads) > BLOCK_MOST[0]:
        raise refused(op, found, f"a block has at most {BLOCK_MOST[0]} threads in all")
    if type(shared) is not int or shared < 0:
        raise refused(op, found, "bytes of shared memory are a whole number")
    return Grid(blocks, threads, shared)


def sides(op: Own, found: Any, given: Any) -> tuple[int, ...]:
    """Reads a number along each axis; a single number is along the first."""
    each = given if isinstance(given, tuple) else (given,)
    if not 1 <= len(each) <= 3 or not all(type(n) is int for n in each):
        raise refused(op, found, "each is a whole number, or up to three")
    return each


def refused(op: Own, found: Any, why: str) -> ArgumentError:
    if op.foreign:
        return ArgumentError(f"the launch of {op.name} is {found!r}: {why}", fix=IN_FILE)
    return ArgumentError(f"launch of {op.name} returned {found!r}: {why}", where=here(), fix=FIX)


# -------- Loops and branches, and small steps around them, as one kernel.


@final
class CudaResident(Cuda):
    """Steps of a program in one kernel. Where a pass asks, with what it knows of `steps`, they are
    those of the graph, and the plan of a variant is what they are without regions.
    """

    name = "persistent kernel in CUDA"
    ops = (Resident,)

    def __init__(self, steps: Steps | None = None) -> None:
        self.steps = steps
        # of one pass, which asks again for its explanations: equal steps are others' results
        self.tried = dict[int, tuple[Resident, Variant]]()

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        op = problem.op
        assert isinstance(op, Resident)
        if id(op) in self.tried:
            return (self.tried[id(op)][1],)
        found = self.variant(op, caps.chip)
        if self.steps is not None:
            self.tried[id(op)] = op, found
        return (found,)

    def variant(self, op: Resident, chip: Chip) -> Variant:
        rows = f"blocks share {op.rows} rows" if op.rows else "one block"
        name = "all blocks together" if op.grid else rows
        if self.steps is None:  # it was found to fit
            return Variant(name)
        try:
            return Variant(name, fit(op, chip, self.steps))
        except Unwritten as why:
            return Variant(name, refusal=str(why))

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return self.steps is not None

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        fit, op = variant.plan, problem.op
        if not isinstance(fit, Fit) or not isinstance(op, Resident):
            return None
        return together(op, fit, caps.chip)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), op, fit = problem.arrays, problem.op, variant.plan
        assert isinstance(op, Resident)
        return resident_kernel(op, ins, outs, caps.chip, fit.trial if fit else None)


def fit(op: Resident, chip: Chip, steps: Steps) -> Fit:
    """The steps of a graph as one kernel. Unwritten, with the reason, if they cannot be."""
    graph, tuning = op.graph, chip.tuning.persistent
    if not graph.outputs:
        raise Unwritten("nothing reads its results")
    if any(a.type.weak for a in graph.outputs):
        raise Unwritten("a Python number comes out of it")
    if op.rows:
        quick(graph.eqns[0], tuning.alone)
    flat = [each for e in graph.eqns for each in steps.flat(e, tuning.depth)]
    made = {v for e in flat for v in e.outs}
    given = [a for e in flat for a in e.inputs if isinstance(a, Var) and a not in made]
    body = Graph(tuple(dict.fromkeys(given)), tuple(flat), graph.outputs)
    if op.rows:
        return by_rows(body, op.rows, chip)
    for e in graph.eqns:
        taken_in(e, steps.flat(e, tuning.depth), tuning.grid if op.grid else tuning.block)
    return on_all_blocks(body, chip) if op.grid else in_block(body, chip)
