"""This module writes the kernels of users' own operations in CUDA: the body of a thread is the
user's, the parameters are ge2's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_int64, c_void_p, cast
from functools import partial
from typing import Any, Final, final

from ge2.base.errors import ArgumentError, CompileError
from ge2.base.record import record
from ge2.base.source import here
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.text import Operand, Text, guard
from ge2.codegen.user_kernels import OWN_FROM, Around
from ge2.ir import ArrayType
from ge2.ops.user_ops import Foreign, Own
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels, LibraryLaunch
from ge2.targets.cuda.emit.types import CUDA, helpers_of
from ge2.targets.cuda.kernels.generated import Cuda, copying
from ge2.targets.cuda.launch.library_call import STREAM, Function, LibraryCall, Passed, Table
from ge2.targets.cuda.limits import BLOCK_MOST, GRID_MOST
from ge2.targets.cuda.load.nvrtc import binary_text

BLOCK: Final = 256  # threads of a block, where the user does not say how many
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


@final
class CudaOwn(Cuda):
    name = "a kernel of your own in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if not isinstance(problem.op, Own):
            return f"{problem.op.name} is an operation of ge2"
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
            kernels: tuple[CudaKernel, ...] = (prebuilt(op, own, problem, around),)
        else:
            kernels = tuple(of_text(op, own, n, problem, around) for n in range(len(own.texts)))
        return Kernels((*around.before, *kernels, *around.after), tuple(around.temps))


def of_text(
    op: Own, own: Foreign, n: int, problem: Problem, around: Around[CudaKernel]
) -> CudaKernel:
    """Writes the kernel of a text. It is launched as the user specifies, or with one thread an
    element.
    """
    name = f"{op.name} kernel{f' {n + 1}' if len(own.texts) > 1 else ''}"
    asked = launched(op, own.launches[n])
    grid = asked or Grid((max(-(-problem.outs[0].size // BLOCK), 1),), (BLOCK,))
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


def prebuilt(op: Own, own: Foreign, problem: Problem, around: Around[CudaKernel]) -> CudaKernel:
    """Describes the kernel of a binary: it has the parameters that a text would have."""
    (said,) = own.launches
    grid = launched(op, said) or Grid((max(-(-problem.outs[0].size // BLOCK), 1),), (BLOCK,))
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
