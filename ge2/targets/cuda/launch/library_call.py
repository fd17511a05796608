"""Functions in C that launches call: our extension, and libraries' products and attention."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from ctypes import CFUNCTYPE, POINTER, c_double, c_float, c_int, c_int64, c_uint64, cast
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from ge2.base.arrays import FLOAT32, FP8, accumulator, look_by
from ge2.base.cache import content_key
from ge2.base.command import ABI, Awaited, Waiting
from ge2.base.compiler import extension, is_known, python_headers, text_of
from ge2.base.detect import toolchain
from ge2.base.errors import CompileError, CompilerTrouble, KernelError
from ge2.base.record import holding, record
from ge2.base.source import logger, templates
from ge2.ir import Dims
from ge2.ops.attention import Band
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load.arena import loaded
from ge2.targets.cuda.load.nvrtc import ptx
from ge2.targets.cuda.products import Gemm, Matrix

if TYPE_CHECKING:
    from ge2.targets.cuda.load.arena import Gpu


# -------- Functions of a library in C as a launch like any other.
# A call is any functions in order (a product; a descriptor's attribute and then the product; what
# begins a group, its members, what ends it), each with its words: numbers, addresses, the addresses
# of tables of addresses, and the stream. The extension calls them without Python, and captures what
# they launch as part of a graph; when an address changes they are called, and captured, again. A
# descriptor that one of them changes and another reads belongs to one launch alone: two threads may
# launch two programs at once.


MOST_WORDS: Final = 24  # integers and addresses of a function, as the extension passes them
MOST_NUMBERS: Final = 8  # floating numbers of a function: more would lie on the stack


class Callee(Protocol):
    """A call of a library in place of a launch: with a stream, and the addresses of its arguments,
    the last of which is scratch of `workspace` bytes. `by` names whose it is.
    """

    @property
    def by(self) -> str: ...

    @property
    def workspace(self) -> int: ...

    def __call__(self, stream: int, *arguments: int) -> None: ...


@final
@record
class Passed:
    """Argument `number` of the launch: an address, `offset` bytes on, or a number's bytes."""

    number: int
    offset: int = 0


@final
@record
class Table:
    """The address of these integers and addresses, eight bytes each, as long as a call takes."""

    words: tuple[int | Passed, ...]


@final
@record
class Stream:
    """The stream that the launches of a program are on."""


STREAM: Final = Stream()
# an integer of any width, a double, a float (np.float32), or one of the above
Word = int | float | np.float32 | Passed | Table | Stream


@final
@record
class Function:
    """A function of a library at an address, which returns 0, or else the number of an error."""

    name: str
    address: int
    words: tuple[Word, ...]

    def __call__(self, stream: int, arguments: Sequence[int]) -> int:
        """Calls it through ctypes, where the extension does not."""
        types, values, tables = list[Any](), list[Any](), list[Any]()
        for word in self.words:
            if isinstance(word, Table):
                numbers = [masked(value_of(each, stream, arguments)) for each in word.words]
                tables.append((c_uint64 * len(numbers))(*numbers))
                types.append(POINTER(c_uint64))
                values.append(cast(tables[-1], POINTER(c_uint64)))
                continue
            types.append(type_of(word))
            values.append(value_of(word, stream, arguments))
        return int(prototype(*types)(self.address)(*values))


@final
class LibraryCall:
    """Calls of a library named `by`, in order, with `workspace` bytes of scratch as last argument.

    `owner` keeps alive what the words point to; `explained` is what the library says of an error.
    `in_python`: the functions are Python's, which take far longer than a launch.
    """

    __slots__ = ("__weakref__", "by", "explained", "functions", "in_python", "owner", "workspace")

    def __init__(
        self,
        by: str,
        functions: Sequence[Function],
        workspace: int = 0,
        owner: object = None,
        explained: Callable[[int], str] = str,
        in_python: bool = False,
    ) -> None:
        self.by, self.functions, self.workspace = by, tuple(functions), workspace
        self.owner, self.explained, self.in_python = owner, explained, in_python

    def __call__(self, stream: int, *arguments: int) -> None:
        """Calls the functions, with the addresses of the arguments. KernelError if one fails."""
        for function in self.functions:
            status = function(stream, arguments)
            if status:
                said = self.explained(status)
                raise KernelError(f"{function.name} fails with {status}: {said}")


def value_of(word: Any, stream: int, arguments: Sequence[int]) -> Any:
    if isinstance(word, Passed):
        found = arguments[word.number]
        return bits(found) if isinstance(found, np.generic) else found + word.offset
    return stream if isinstance(word, Stream) else word


def type_of(word: Any) -> Any:
    if isinstance(word, np.generic):
        return c_float if word.dtype == FLOAT32 else c_double
    if isinstance(word, float):
        return c_double
    return c_int64 if isinstance(word, int) and word < 0 else c_uint64


def masked(word: int) -> int:
    """An integer as the eight bytes that it has in memory."""
    return int(word) & (2**64 - 1)


def is_floating(word: Any) -> bool:
    return isinstance(word, float | np.floating)


def register(number: Any) -> bytes:
    """The bytes that a floating argument has in a register of eight."""
    found = number.tobytes() if isinstance(number, np.generic) else np.float64(number).tobytes()
    return found.ljust(8, b"\0")


def bits(number: np.generic) -> int:
    """The bytes of a number as an integer."""
    return int.from_bytes(number.tobytes(), "little")


@cache
def prototype(*types: Any) -> Any:
    return CFUNCTYPE(c_int, *types)


# -------- A product of matrices as a device is asked for it, and on the CPU, at the same addresses.


@final
@record
class LibraryEpilogue:
    """The epilogue of a library's product, by the name in cublasLt.h. It may have further
    arrays, in this order behind the result: a `vector` of an element for each row (a bias, or the
    gradient of one) and a `matrix` of values before an activation, whose columns are `lead` elements
    apart; or, if it is "SCALED", the scales of both factors. Of their addresses it is known that they
    are multiples of so many bytes; 0 if it has none.
    """

    kind: str
    vector: int = 0
    matrix: int = 0
    lead: int = 0


@final
@record
class Wanted:
    """A product of matrices of `dtype`, or the second one of `other`, whose result is of `out`.

    `precision`: None is IEEE; "tf32" and "bf16" let float32 be multiplied so. `aligned`: bytes of
    which the places of the first factor, the other one and the result are multiples. `algorithm`:
    the number of one among those that the library thinks best; `workspace`: the most bytes of
    scratch that it may ask for. `epilogue`: what becomes of sums before they are stored.
    """

    gemm: Gemm
    dtype: np.dtype
    out: np.dtype
    precision: str | None = None
    aligned: tuple[int, int, int] = (16, 16, 16)
    algorithm: int = 0
    workspace: int = 32 << 20
    epilogue: LibraryEpilogue | None = None
    other: np.dtype | None = None

    @property
    def dtypes(self) -> tuple[np.dtype, np.dtype]:
        """Of the first and of the second factor."""
        return self.dtype, self.other or self.dtype


@final
@record
class HostProduct:
    """By NumPy: a device that is the CPU has memory that it can read."""

    wanted: Wanted
    by = "NumPy"
    workspace = 0

    def __call__(self, stream: int, *arguments: int) -> None:
        first, other, result, *more = arguments
        g, (dtype, second), out = self.wanted.gemm, self.wanted.dtypes, self.wanted.out
        wide = np.result_type(accumulator(dtype), accumulator(out))
        for a, b, y in g.calls:
            left = lying(first + a * dtype.itemsize, dtype, (g.count, g.m, g.k), g.first)
            right = lying(other + b * dtype.itemsize, second, (g.count, g.k, g.n), g.other)
            made = lying(result + y * out.itemsize, out, (g.count, g.m, g.n), g.result)
            made[...] = self.finished(np.matmul(left.astype(wide), right.astype(wide)), more)

    def finished(self, sums: Any, more: list[int]) -> Any:
        """The sums of the only product as an epilogue leaves them; the addresses of its arrays."""
        e, out, (_, m, n) = self.wanted.epilogue, self.wanted.out, sums.shape
        if e is None:
            return sums
        if e.kind == "SCALED":
            one = Matrix(False, 1, 0)
            scales = more[: 1 + bool(e.matrix)]
            return math.prod((lying(at, FLOAT32, (1, 1, 1), one) for at in scales), start=sums)
        vector = lying(more[0], out, (1, m, 1), Matrix(False, m, 0)) if e.vector else None
        columns = Matrix(False, e.lead, 0)
        matrix = lying(more[bool(e.vector)], out, (1, m, n), columns) if e.matrix else None
        if e.kind.startswith("DGELU"):
            assert matrix is not None
            made = sums * gelu_slope(matrix.astype(sums.dtype))
            if vector is not None:
                vector[...] = made.sum(axis=2, keepdims=True)
            return made
        found = sums if vector is None else sums + vector.astype(sums.dtype)
        if matrix is not None:
            matrix[...] = found
        if e.kind.startswith("RELU"):
            return np.maximum(found, 0)
        return gelu(found) if e.kind.startswith("GELU") else found


def bent(x: Any) -> Any:
    return np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu(x: Any) -> Any:
    """The form with tanh, as cuBLASLt has it."""
    return 0.5 * x * (1 + bent(x))


def gelu_slope(x: Any) -> Any:
    steep = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + bent(x)) + 0.5 * x * (1 - bent(x) ** 2) * steep


def lying(place: int, dtype: np.dtype, shape: tuple[int, int, int], matrix: Matrix) -> Any:
    """The matrices at an address."""
    apart = (matrix.lead, 1) if matrix.turned else (1, matrix.lead)
    return at_address(place, dtype, shape, (matrix.step, *apart))


def at_address(place: int, dtype: np.dtype, shape: Dims, steps: Dims) -> Any:
    """The array at an address, whose elements lie so many steps of an element apart."""
    from ctypes import c_char

    memory: Any = (c_char * dtype.itemsize).from_address(place)
    held = np.dtype(np.uint8) if dtype in FP8 else dtype  # what `as_strided` would not know
    one = np.ndarray((1,), held, memory)
    strides = tuple(n * dtype.itemsize for n in steps)
    return np.lib.stride_tricks.as_strided(one, shape, strides).view(dtype)


# -------- Attention as a library is asked for it.


Steps = tuple[int, int, int]  # from batch to batch, head to head and row to row, in elements


@final
@record
class WantedAttention:
    """softmax(factor q k) v of `batches` and `heads`, of which `key_heads` have keys and values of
    their own, side by side; `band`: which keys a query sees.

    `steps`: of queries, keys, values, result and, if they are wanted, the logarithms of its sums; of
    what is `backward` of queries, keys, values, result, its cotangent, the logarithms, and the
    cotangents of queries, keys and values. Features are side by side. `ordered`: sums are to have a
    fixed order. `workspace`: the most bytes of scratch.
    """

    dtype: np.dtype
    batches: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    factor: float
    band: Band
    steps: tuple[Steps, ...]
    backward: bool = False
    ordered: bool = True
    workspace: int = 32 << 20

    @property
    def flops(self) -> float:
        """Of the products of queries and keys, and of weights and values, where keys are seen."""
        return 4.0 * self.batches * self.heads * self.width * self.seen

    @property
    def seen(self) -> int:
        """Pairs of a query and a key that it sees."""
        rows = np.arange(self.queries, dtype=np.int64)
        last = self.keys - 1 if self.band.low is None else rows - self.band.low
        first = 0 if self.band.high is None else rows - self.band.high
        count = np.minimum(last, self.keys - 1) - np.maximum(first, 0) + 1
        return int(np.broadcast_to(np.maximum(count, 0), rows.shape).sum())


# -------- The extension in C that launches (`templates/cuda/launch/launches.c`) and calls: how it
# is had.
# It is compiled once a machine; what asks for it before it is there is told when it is.


NAME: Final = "ge2_launches"
HEADERS: Final = ("driver.h", "arrays.h", "graphs.h", "reading.h", "calls.h")


def extension_or(waiting: Waiting) -> Any:
    """The extension; None if it cannot be made; what is to wait for it while it is compiled."""
    if EXTENSION.ready() or not EXTENSION.tell(waiting):
        return EXTENSION.now()
    return waiting


def begin() -> None:
    """Has another thread compile the extension, if that was never done, while this one plans the
    first program: until it is there Python launches, some 60 us for each kernel.
    """
    EXTENSION.begin()


def is_at_hand() -> bool:
    """True if nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts())
    except OSError:
        return True


def made_now() -> Any:
    """The extension, made now if it was not before; None if it cannot be."""
    return EXTENSION.now()


def compiled() -> Any:
    """The extension, told of the classes whose arrays it looks at; None if it cannot be made."""
    made: Any = None
    try:
        source, flags, key = parts()
        made = extension(source, NAME, flags, key, {"name": "launches"})
        look_by(made)
        learn(made)
    except (CompilerTrouble, OSError, ImportError, AttributeError) as trouble:
        logger().debug("launches go one by one from Python: %s", trouble)
    return made


def learn(made: Any) -> None:
    """Shows the extension arrays of CuPy's, from which it learns how they
    lie; else it asks Python.
    """
    cupy: Any = sys.modules.get("cupy")
    if not hasattr(cupy, "_core"):  # a stand-in
        return
    try:
        learned = made.learn(examples(cupy))
    except (TypeError, ValueError, AttributeError, RuntimeError) as trouble:
        learned = trouble
    if learned is not True:
        logger().debug("arrays of this CuPy are looked at through Python: %s", learned)


def examples(cupy: Any) -> list[tuple[Any, ...]]:
    """Arrays over memory that nobody reads, and what is known of them."""
    shapes: list[tuple[int, ...]] = [(), (7,), (3, 5), (5, 3), (2, 3, 4), (1, 9, 2, 8)]
    cases = list(zip(shapes, ("f4", "f8", "i4", "i8", "f4", "f2"), strict=True))
    found = []
    for n, (shape, dtype) in enumerate(cases * 2):
        memory = cupy.cuda.UnownedMemory(4096 * (n + 1), 1 << 16, None, n % 5)
        pointer = cupy.cuda.MemoryPointer(memory, 16 * n)
        x = cupy.ndarray(shape, dtype, pointer, order="CF"[n // len(cases)])
        known = x.data.ptr, x.data.device_id, x.data.mem
        found.append((x, x.shape, x.dtype, x.data, bool(x._c_contiguous), *known))
    return found


def parts() -> tuple[str, tuple[str, ...], str]:
    """The extension's source, the options that it needs, and what else it depends on.

    OSError if a header is missing.
    """
    headers = python_headers()
    os.stat(os.path.join(headers, "Python.h"))
    folder = templates("cuda", "launch")
    source, *others = (text_of(os.path.join(folder, name)) for name in ("launches.c", *HEADERS))
    flags = ("-O2", "-fno-openmp", "-ldl", "-isystem", headers, "-I", folder)
    return source, flags, content_key(ABI, *others)


EXTENSION: Final = Awaited("ge2-launches", is_at_hand, compiled)


# -------- The kernel that decides conditional nodes of graphs (`templates/cuda/launch/decide.cu`),
# loaded on a GPU.
# It calls a device function that no library has but the driver itself, which links it when it loads
# PTX.


LOOPS: Final = (12, 4)  # the CUDA of the oldest driver with loops, and branches of one list
SWITCHES: Final = (12, 8)
EARLY: Final = (12, 4)  # with waits before whose end a kernel is launched


def knows(cuda: tuple[int, int]) -> bool:
    """True if the driver is one of that CUDA, or newer."""
    known = driver()
    return known is not None and known.cuda >= cuda


def decider(device: Gpu) -> Any:
    """CuPy's `Function` of the kernel; None where the driver has no conditional nodes."""
    if not knows(LOOPS):
        return None
    try:
        module = loaded(device, ptx(source(), "decide"), "decide")
        with device.here():
            return module.get_function("ge2_decide")
    except (CompileError, OSError, device.xp.cuda.driver.CUDADriverError) as trouble:
        logger().debug("the host decides loops and branches: %s", trouble)
        return None


def source() -> str:
    with open(templates("cuda", "launch", "decide.cu"), encoding="utf-8") as file:
        return file.read()


# -------- Ranges with names, in which a profiler's time line shows what is launched; for tests, a
# list of them.


_events: ContextVar[list[str] | None] = ContextVar("ge2_ranges", default=None)
END: Final = "end"


@final
class Range:
    """A range of the program: `with range_:` begins it, and ends it whatever happens inside."""

    __slots__ = ("begin", "end", "name")

    def __init__(self, name: str, begin: Callable[[str], Any], end: Callable[[], Any]) -> None:
        self.name, self.begin, self.end = name, begin, end

    def __enter__(self) -> None:
        self.begin(self.name)

    def __exit__(self, *_: object) -> None:
        self.end()


def recording() -> AbstractContextManager[list[str]]:
    """Returns what begins and ends inside, in order, on a device that is no GPU: names, and "end".

    >>> with recording() as events, recorded("a"), recorded("b"):
    ...     pass
    >>> events
    ['a', 'b', 'end', 'end']
    """
    return holding(_events, list[str]())


def recorded(name: str) -> Range:
    """A range that `recording` tells of, and nobody else."""
    return Range(name, _write, _close)


def _write(word: str) -> None:
    events = _events.get()
    if events is not None:
        events.append(word)


def _close() -> None:
    _write(END)
