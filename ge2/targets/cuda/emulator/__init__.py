"""Devices without a GPU: an emulator, a fiber a thread, and one that only compiles sources."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from ctypes import Array, addressof, byref, c_void_p, memmove
from ctypes import create_string_buffer as buffer
from dataclasses import replace
from threading import Lock
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn, final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ge2.base.compiler import Library
from ge2.base.config import config
from ge2.base.errors import DeviceError, InputError, KernelError
from ge2.base.record import after_fork, record
from ge2.program import CompilePrice
from ge2.targets.cuda.device import Device, address
from ge2.targets.cuda.emulator.shim import (
    Entry,
    Kernel,
    Launch,
    Module,
    Place,
    Report,
    Span,
    compiled,
    entries,
    is_compiled,
    launcher,
    lines,
)
from ge2.targets.cuda.launch import (
    MOST_AXES,
    NBYTES,
    SWIZZLES,
    Address,
    LaunchList,
    Run,
    TensorMap,
    in_any_order,
    one_by_one,
)
from ge2.targets.cuda.launch.library_call import HostProduct, Range, Wanted, recorded
from ge2.targets.cuda.limits import (
    BLOCK_MOST,
    H200,
    KB,
    KNOWN,
    MB,
    Limits,
    double_ratio,
    multiprocessor,
)
from ge2.targets.cuda.load.nvrtc import Binary, Order, compile, compile_all, missing

# -------- Tensor maps as the emulator reads them: a driver's own are its secret.


class EmulatedMap(ctypes.Structure):
    """`ge2_shim_tiles` of hopper.cuh: the innermost axis first."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("itemsize", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("sizes", ctypes.c_uint64 * MOST_AXES),
        ("strides", ctypes.c_uint64 * (MOST_AXES - 1)),
        ("box", ctypes.c_uint32 * MOST_AXES),
    )


def encoded(given: TensorMap, address: int) -> Any:
    """The parameter for an address. InputError if a driver would take none such."""
    e, size = given.tiles.encoding(), given.tiles.dtype.itemsize
    swizzle = next(n for n, mode in SWIZZLES.items() if mode == e.swizzle)
    found = EmulatedMap(address, size, e.rank, swizzle, 0, e.sizes, e.strides, e.box)
    memory = np.zeros(NBYTES, np.uint8)
    memory[: ctypes.sizeof(found)] = np.frombuffer(bytes(found), np.uint8)
    return memory.view(f"V{NBYTES}").reshape(())


# -------- A device that is the CPU: it runs CUDA sources, a fiber a thread, and tells of what means
# nothing on a GPU.
# It is for machines without a GPU and for the sanitizers, not for speed. Threads of a block, and
# blocks, run in the order of their numbers, or by a seed in any other; what is right runs alike in
# each.


ALIGNMENT: Final = 64  # bytes, of a tensor map; no type of a parameter has more
WAIT: Final = "ge2_await_kernels();"
WORDS: Final = {
    "p": "an array or its address as np.uint64",
    "i": "a signed integer",
    "u": "an unsigned integer",
    "f": "a floating number",
    "b": "a bool",
    "s": "a struct",
}

# whose blocks wait for each other sooner, and whose kernels a C++ compiler makes
EMULATED: Final = replace(
    H200, emulated=4, tuning=replace(H200.tuning, compile_price=CompilePrice(kernel_seconds=0.4))
)
_running = Lock()  # the runtime runs one kernel at a time


@after_fork
def _after_fork() -> None:
    """Whoever held the lock does not exist in the child."""
    global _running
    _running = Lock()


@final
@record
class ShimStream:
    """A stream where a launch returns when its kernel has ended."""

    ptr: int = 0

    def synchronize(self) -> None:
        """Waits for nothing."""


class OnHost(Device):
    """A device whose arrays are NumPy's."""

    __slots__ = ()

    @property
    def xp(self) -> ModuleType:
        return np

    def product(self, wanted: Wanted) -> HostProduct | None:
        """A product of matrices, by NumPy, which has one algorithm."""
        return None if wanted.algorithm else HostProduct(wanted)

    def span(self, name: str) -> Range:
        """A range that `recording` tells of, and nobody else."""
        return recorded(name)


@final
@record
class ShimDevice(OnHost):
    """Runs CUDA sources on the CPU. `seed`: of the order of threads and blocks.

    `watch`: each access to memory is looked at, which takes time; those that no barrier sets apart,
    and those outside of arrays, are errors. None for either: as the settings say.

    >>> source = '''
    ... extern "C" __global__ void twice(const float *a, float *b, int n) {
    ...     int i = blockIdx.x * blockDim.x + threadIdx.x;
    ...     if (i < n) b[i] = 2 * a[i];
    ... }'''
    >>> a, b = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    >>> ShimDevice().module(source).get_function("twice")((2,), (4,), (a, b, np.int32(5)))
    >>> b.tolist()
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """

    limits: Limits = EMULATED
    seed: int | None = None
    watch: bool | None = None

    @property
    def watched(self) -> bool:
        """True if accesses are looked at."""
        return config.shim_watch if self.watch is None else self.watch

    def prepare(self, sources: list[str]) -> None:
        """Compiles sources, so that `module` finds them compiled."""
        for source in sources:
            compiled(source, self.watched)

    def missing(self, sources: list[str]) -> int:
        """Returns how many of the sources are yet to be compiled."""
        return sum(not is_compiled(source, self.watched) for source in sources)

    def module(self, source: str) -> ShimModule:
        """A source, compiled. CompileError if it is no C++, or has no kernel."""
        watched = self.watched
        return ShimModule(self, compiled(source, watched), watched, WAIT in source, entries(source))

    def launches(self, work: LaunchList) -> Run:
        """Launches, one by one; by a seed in any order in which a graph may have them."""
        seed = config.shim_seed if self.seed is None else self.seed
        if seed:
            work = replace(work, launches=in_any_order(work.launches, seed))
        return one_by_one(work, address, encode=encoded, place=Part.of)

    def stream(self) -> ShimStream:
        """The one stream."""
        return ShimStream()


@final
class Part(NamedTuple):
    """An address, and the bytes of the array that it is in."""

    at: int
    begin: int
    end: int

    @staticmethod
    def of(at: int, a: Address, x: Any) -> Part | np.uint64:
        """An address of a launch: in an array `x`, or in an arena that begins there or is one."""
        if isinstance(x, np.ndarray):
            return Part(at, *byte_bounds(x))
        begin = at - a.offset
        return Part(at, *(begin + n for n in a.within)) if a.within else np.uint64(at)


@final
@record
class ShimModule:
    """The kernels of a compiled source.

    `waits`: each of their threads is to wait first, as it can.
    """

    device: ShimDevice
    library: Library
    watched: bool
    waits: bool
    entries: tuple[Entry, ...]

    def get_function(self, name: str) -> ShimKernel:
        """A kernel by its name. InputError if the source has none of it."""
        for entry in self.entries:
            if entry.name == name:
                return ShimKernel(self, entry)
        raise InputError(
            f"the source has no kernel {name}", fix=", ".join(each.name for each in self.entries)
        )


@final
class ShimKernel:
    """A kernel that can be launched: `kernel(grid, block, args, shared_mem=bytes)`."""

    __slots__ = ("_at", "_entry", "_module", "_of", "_parameters", "max_dynamic_shared_size_bytes")

    def __init__(self, module: ShimModule, entry: Entry) -> None:
        kernel = Kernel.from_address(module.library.address(f"ge2_shim_kernel_{entry.name}"))
        self._of, self._entry, self._at = module, entry, addressof(kernel)
        self._module = module.library.address("ge2_shim_module_of")
        self._parameters = tuple((chr(p.kind), p.size) for p in kernel.parameters[: kernel.count])
        self.max_dynamic_shared_size_bytes = module.device.limits.shared_optin

    @property
    def name(self) -> str:
        return self._entry.name

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        enable_cooperative_groups: bool = False,
    ) -> None:
        """Runs all blocks to their end; those of a cooperative launch may wait for each other.

        InputError for a launch or arguments that the kernel does not take; KernelError
        for threads that wait for what cannot come, lanes that read what no lane gives,
        and writes beyond shared memory.
        """
        launch = self._checked(grid, block, shared_mem)
        blocks, most = math.prod(grid), self._of.device.limits.together
        if enable_cooperative_groups and blocks > most:
            raise InputError(
                f"{self.name} has {blocks} blocks that wait for each other; the most is {most}"
            )
        values = self._values(args)
        pointers = (c_void_p * max(len(values), 1))(*map(_aligned, values))
        spans = _spans(args, self._parameters) if self._of.watched else None
        if spans is not None:
            launch.spans, launch.span_count, launch.watched = spans, len(spans), 1
            launch.closed = all(isinstance(x, np.ndarray | Part) for x in self._pointers(args))
        launch.waits = self._of.waits
        report = Report()
        with _running:
            launcher()(self._module, self._at, pointers, byref(launch), byref(report))
        if report.code:
            raise KernelError(
                f"{self.name}: {report.text.decode()}", where=_where(report, self._of)
            )

    def _pointers(self, args: Sequence[Any]) -> list[Any]:
        """The arguments that are memory."""
        return [
            x
            for x, (kind, _) in zip(args, self._parameters, strict=True)
            if kind == "p" and x is not None
        ]

    def _checked(self, grid: Sequence[int], block: Sequence[int], shared: int) -> Launch:
        """The launch's sizes as the runtime takes them."""
        sizes = [(*map(int, each), 1, 1, 1)[:3] for each in (grid, block)]
        tops = self._of.device.limits.grid, BLOCK_MOST
        for size, most, word in zip(sizes, tops, ("grid", "block"), strict=True):
            if any(not 1 <= n <= top for n, top in zip(size, most, strict=True)):
                raise InputError(
                    f"{self.name} is launched with a {word} of {size}; the most is {most}, the least 1"
                )
        threads = sizes[1][0] * sizes[1][1] * sizes[1][2]
        most_threads = min(
            self._of.device.limits.threads_per_block, self._entry.most_threads or threads
        )
        if threads > most_threads:
            raise InputError(
                f"{self.name} is launched with {threads} threads a block; it takes {most_threads}"
            )
        fixed = _static(self._module)
        if (
            fixed > self._of.device.limits.shared_static
            or fixed + shared > self._of.device.limits.shared_optin
        ):
            raise InputError(
                f"{self.name} asks for {fixed} + {shared} bytes of shared memory, more than there is"
            )
        seed = config.shim_seed if self._of.device.seed is None else self._of.device.seed
        return Launch(Place(*sizes[0]), Place(*sizes[1]), shared, seed)

    def _values(self, args: Sequence[Any]) -> list[Array[Any]]:
        if len(args) != len(self._parameters):
            raise InputError(
                f"{self.name} takes {len(self._parameters)} arguments; got {len(args)}"
            )
        return [
            _parameter(_bytes(value, kind, size, f"argument {n} of {self.name}"))
            for n, (value, (kind, size)) in enumerate(zip(args, self._parameters, strict=True))
        ]


def _static(module: int) -> int:
    """Bytes of shared memory in the source; 0 where a sanitizer has made them more."""
    found = Module.from_address(module)
    return 0 if found.fenced else (found.shared_end or 0) - (found.shared or 0)


def _parameter(value: bytes) -> Array[Any]:
    """Memory that holds a parameter at its first aligned address."""
    made = buffer(len(value) + ALIGNMENT)
    memmove(_aligned(made), value, len(value))
    return made


def _aligned(memory: Array[Any]) -> int:
    """The first address of some memory that a parameter of any type may have."""
    return -(-addressof(memory) // ALIGNMENT) * ALIGNMENT


def _bytes(value: Any, kind: str, size: int, word: str) -> bytes:
    """An argument as the kernel reads it."""
    if kind == "p":
        return _address(value, word).to_bytes(8, "little")
    if isinstance(value, np.ndarray) and value.shape != ():
        raise InputError(f"{word} is {WORDS[kind]} of {size} bytes; got an array")
    number = np.asarray(value)
    fits = number.dtype.itemsize == size and (
        kind == "s" or number.dtype.kind in ("iu" if kind in "iu" else kind)
    )
    if not fits:
        raise InputError(f"{word} is {WORDS[kind]} of {size} bytes; got {number.dtype}")
    return number.tobytes()


def _address(value: Any, word: str) -> int:
    if value is None:
        return 0
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, np.uint64 | Part):
        return int(value.at if isinstance(value, Part) else value)
    raise InputError(f"{word} is {WORDS['p']}; got {type(value).__name__}")


def _spans(args: Sequence[Any], parameters: Sequence[tuple[str, int]]) -> Array[Span]:
    """The bytes of each array, of a view those from its first to its last."""
    found = [
        Span(*(x[1:] if isinstance(x, Part) else byte_bounds(x)), n)
        for n, (x, (kind, _)) in enumerate(zip(args, parameters, strict=True))
        if kind == "p" and (isinstance(x, Part) or (isinstance(x, np.ndarray) and x.size))
    ]
    return (Span * len(found))(*found)


def _where(report: Report, module: ShimModule) -> str:
    block, thread = ((p.x, p.y, p.z) for p in (report.block, report.thread))
    places = [os.path.basename(report.site.decode())] if report.site else []
    places += lines(module.library, [at - 1 for at in report.code_at if at])
    of_thread = [f"thread {thread}"] if report.has_thread else []
    return ", ".join(
        (" and ".join(dict.fromkeys(places)) or "an unknown line", f"block {block}", *of_thread)
    )


# -------- A GPU that is not at hand: sources are compiled for it, and nothing can be launched.


@final
@record
class OfflineDevice(OnHost):
    """Keeps the contract of a device but for launches. Its arrays are NumPy's.

    >>> OfflineDevice(limits_of("sm_90a")).limits.name
    'H100'
    """

    limits: Limits

    def prepare(self, sources: list[str]) -> None:
        """Compiles sources, so that `module` finds them compiled."""
        compile_all([Order(source, self.limits.architecture) for source in sources])

    def missing(self, sources: list[str]) -> int:
        """Returns how many of the sources are yet to be compiled."""
        return missing([Order(source, self.limits.architecture) for source in sources])

    def module(self, source: str) -> OfflineModule:
        """A source, compiled. CompileError if NVRTC refuses it."""
        return OfflineModule(compile(source, self.limits.architecture))

    def launches(self, work: LaunchList) -> Run:
        """Launches, each of which is an error."""
        return one_by_one(work, address)

    def stream(self) -> None:
        """There is none."""


@final
@record
class OfflineModule:
    """A cubin, and what the compiler said of it."""

    binary: Binary

    def get_function(self, name: str) -> Callable[..., NoReturn]:
        def launch(*_: object, **__: object) -> NoReturn:
            raise DeviceError(
                f"{name} was compiled for {self.binary.arch}, with no GPU at hand to run it"
            )

        return launch


def limits_of(arch: str) -> Limits:
    """Returns what a GPU of an architecture has; of one that we do not know,
    what the least of its time have.
    """
    for known in KNOWN:
        if known.architecture.rstrip("a") == arch.rstrip("af"):
            return replace(known, architecture=arch)
    threads, most, shared = multiprocessor(arch)
    return Limits(
        arch,
        arch,
        46,
        threads_per_multiprocessor=threads,
        shared_optin=most * KB,
        shared_per_multiprocessor=shared * KB,
        l2=4 * MB,
        double=double_ratio(arch),
    )
