"""A GPU as a device: its limits, CuPy as its array module, sources as kernels, the time of launches."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache as once
from statistics import median
from threading import Lock, get_ident
from types import ModuleType
from typing import Any, Final, final
from weakref import WeakValueDictionary

import numpy as np

from ge2.base.errors import CompileError, DeviceError, InputError
from ge2.base.record import record
from ge2.base.source import logger, templates
from ge2.program.assembler import Ceilings, Clock, HostClock, best, seconds
from ge2.targets.cuda.device import Device, Figures
from ge2.targets.cuda.launch import LaunchList, Run, Straight
from ge2.targets.cuda.launch.graph import call, launches
from ge2.targets.cuda.launch.library_call import (
    EARLY,
    SWITCHES,
    LibraryCall,
    Range,
    Wanted,
    WantedAttention,
    begin,
    decider,
    knows,
)
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.load import broken, check_process, context, driver, resident_blocks
from ge2.targets.cuda.load.arena import Arenas, DriverAddresses, Scratch, loaded
from ge2.targets.cuda.load.fourier import WantedTransform, planned
from ge2.targets.cuda.load.libraries import Blas, Graphs, frontend, on
from ge2.targets.cuda.load.nvrtc import Binary, Order, compile, compile_all, key_of, missing

# -------- A GPU as a device: its limits, CuPy as its array module, and CUDA sources as kernels that
# are loaded on it.
# Nothing of CuPy compiles our kernels: it is handed cubins, from memory, whose checksums were
# verified.


WAITS: Final = 90  # compute capability of the first GPUs whose kernels can wait for others
PER_THREAD: Final = 2  # CU_STREAM_PER_THREAD
FIXED_SHARED, MOST_SHARED = 1, 8  # attributes of a function, by the driver's numbers
INSTALL: Final = "pip install 'ge2[cuda13]'; ge2 doctor"


@final
class CudaDevice(Device):
    """A GPU.

    What it is asked to do happens on it, whichever CuPy's current device is, but for launches.

    `limits` are those of the hardware, `xp` is CuPy. A kernel is launched with the GPU current, on
    CuPy's current stream: `with device.here(): kernel(grid, block, args, shared_mem=bytes)`.
    """

    __slots__ = (
        "_blas",
        "_cudnn",
        "_decider",
        "_lock",
        "_modules",
        "limits",
        "number",
        "scratch",
        "xp",
    )

    limits: Limits
    xp: ModuleType
    number: int
    scratch: Scratch

    def __init__(self, number: int, limits: Limits, xp: ModuleType) -> None:
        self.number, self.limits, self.xp = number, limits, xp
        self._modules: WeakValueDictionary[str, CudaModule] = WeakValueDictionary()
        self._lock = Lock()
        self._blas: Blas | None = None
        self._cudnn: Graphs | None = None
        self._decider: list[Any] = []  # once it was asked for
        self.scratch = Scratch(
            lambda nbytes: xp.empty(nbytes, "uint8"),
            lambda: stream_of(xp),
            self._arenas,
            self._free,
        )

    def _arenas(self) -> Arenas | None:
        try:
            addresses = DriverAddresses(self.number)
            found = Arenas(addresses, self.number, self.limits.memory, self.xp, self.wait)
        except (DeviceError, MemoryError, OSError) as trouble:
            logger().debug("arenas of GPU %d are arrays of CuPy's: %s", self.number, trouble)
            return None
        atexit.register(self._end)
        return found

    def _end(self) -> None:
        """At the end of the process: arenas go while the driver is there.

        A forked child has none.
        """
        if not broken:
            with suppress(Exception):
                self.scratch.close()

    def _free(self) -> None:
        """Has CuPy give back what it keeps for arrays to come."""
        with self.here():
            self.xp.get_default_memory_pool().free_all_blocks()

    def wait(self) -> None:
        """Until nothing runs on the GPU."""
        with self.here():
            self.xp.cuda.runtime.deviceSynchronize()

    def memory(self) -> tuple[int, int]:
        """The bytes that are free, and all that there are; at most those that
        CuPy's pool may give.
        """
        with self.here():
            free, total = self.xp.cuda.runtime.memGetInfo()
            pool = self.xp.get_default_memory_pool()
            limit, used = pool.get_limit(), pool.used_bytes()
        return (min(free, limit - used), min(total, limit)) if limit else (free, total)

    def here(self) -> AbstractContextManager[Any]:
        """Makes the GPU CuPy's current one inside a `with`."""
        device: AbstractContextManager[Any] = self.xp.cuda.Device(self.number)
        return device

    def stream(self) -> Any:
        """The current stream of CuPy on this GPU."""
        with self.here():
            return self.xp.cuda.get_current_stream()

    def span(self, name: str) -> Range:
        """An NVTX range. DeviceError if CuPy was built without NVTX."""
        nvtx: Any = getattr(self.xp.cuda, "nvtx", None)
        if not hasattr(nvtx, "RangePush"):
            raise DeviceError("this CuPy has no NVTX, which GE2_NVTX asks for", fix="GE2_NVTX=0")
        return Range(name, nvtx.RangePush, nvtx.RangePop)

    def product(self, wanted: Wanted) -> LibraryCall | None:
        """A product of matrices; None if cuBLASLt has none such.

        DeviceError if there is no cuBLASLt.
        """
        with self._lock:
            blas = self._blas = self._blas or Blas(self)
        return blas.product(wanted)

    def attention(self, wanted: WantedAttention) -> LibraryCall | str:
        """Attention by cuDNN; or the reason why there is none."""
        module = frontend()
        if isinstance(module, str):
            return module
        with self._lock:
            graphs = self._cudnn = self._cudnn or on(self, module)
        with self.here():
            return graphs.of(wanted)

    def transform(self, wanted: WantedTransform) -> LibraryCall:
        """Fourier transforms by cuFFT. DeviceError if there is none, KernelError if it refuses them."""
        with self.here():
            self.xp.cuda.runtime.free(0)  # which makes a context, if there is none yet
            return planned(wanted)

    lost = broken  # not empty where `check` raises

    def check(self) -> None:
        """DeviceError if the GPU cannot be used any more, after a fork."""
        check_process()

    def launches(self, work: LaunchList) -> Run:
        """Launches that follow each other, as one call, which may launch a graph of them."""
        return launches(self, work)

    def call(self, work: Straight, otherwise: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A program as one call; `otherwise` is the same in Python."""
        return call(self, work, otherwise)

    @property
    def decider(self) -> int:
        """The driver's handle of the kernel that decides conditional nodes; 0
        if there are no such nodes.
        """
        with self._lock:
            if not self._decider:
                self._decider.append(decider(self))
        (found,) = self._decider
        return found.ptr if found is not None else 0

    @property
    def switches(self) -> bool:
        """True if a conditional node may have several graphs."""
        return knows(SWITCHES)

    @property
    def early(self) -> bool:
        """True if a kernel of a graph may be launched before those that it waits for have ended."""
        return knows(EARLY) and self.limits.generation >= WAITS

    @property
    def context(self) -> int:
        """The driver's primary context on the GPU, which CuPy uses."""
        return context(self.number)

    def prepare(self, sources: list[str]) -> None:
        """Compiles sources several at once, so that `module` finds them compiled."""
        compile_all([Order(source, self.limits.architecture) for source in sources])

    def missing(self, sources: list[str]) -> int:
        """Returns how many of the sources are yet to be compiled."""
        return missing([Order(source, self.limits.architecture) for source in sources])

    def module(self, source: str) -> CudaModule:
        """A source, compiled and loaded; remembered for as long as somebody has it, by all that its
        machine code depends on: sources that differ in comments share one.

        CompileError if NVRTC refuses it, or the driver refuses what NVRTC made.
        """
        key = key_of(Order(source, self.limits.architecture))
        found = self._modules.get(key)
        if found is not None:
            return found
        binary = compile(source, self.limits.architecture)  # by several threads at once
        with self._lock:
            found = self._modules.get(key)
            if found is None:
                found = self._modules[key] = CudaModule(self, binary)
            return found

    def figures(self, source: str, name: str, threads: int, shared: int) -> Figures:
        """Returns what a kernel takes that is launched with so many threads a
        block and bytes of shared memory.
        """
        module = self.module(source)
        (usage,) = (each for each in module.binary.kernels if each.name == name)
        with self.here():
            blocks = resident_blocks(module.get_function(name).ptr, threads, shared)
        occupancy = blocks * threads / self.limits.threads_per_multiprocessor
        return Figures(usage.registers, usage.shared + shared, usage.spills, occupancy)

    def __repr__(self) -> str:
        return f"CudaDevice({self.number}, {self.limits.name})"


def stream_of(xp: ModuleType) -> int | None:
    """CuPy's current stream, as the driver knows it; None if it is captured.

    The one of each thread has one number in all threads. The legacy one, 0, is never captured.
    """
    current = xp.cuda.get_current_stream()
    found = int(current.ptr)
    if found and current.is_capturing():
        return None
    return -get_ident() if found == PER_THREAD else found


@final
class CudaModule:
    """A cubin on a GPU. `binary` tells the registers and spills of its kernels."""

    __slots__ = ("__weakref__", "_functions", "_loaded", "binary", "device")

    def __init__(self, device: CudaDevice, binary: Binary) -> None:
        self.device, self.binary = device, binary
        self._functions: dict[str, Any] = {}
        try:
            self._loaded = loaded(device, binary.cubin, binary.key)
        except device.xp.cuda.driver.CUDADriverError as error:
            what = f"the driver of {device.limits.name} refuses a cubin for {binary.arch}: {error}"
            fix = "ge2 doctor: NVRTC may be newer than the driver"
            raise CompileError(what, fix=fix) from error

    def get_function(self, name: str) -> Any:
        """A kernel by its name: CuPy's `Function`, which may ask for all shared
        memory that a block can have.

        InputError if the source has none of the name.
        """
        if name not in self._functions:
            self._functions[name] = self._found(name)
        return self._functions[name]

    def _found(self, name: str) -> Any:
        cuda = self.device.xp.cuda
        with self.device.here():
            try:
                function = self._loaded.get_function(name)
            except cuda.driver.CUDADriverError as error:
                names = ", ".join(kernel.name for kernel in self.binary.kernels)
                raise InputError(f"the source has no kernel {name}", fix=names) from error
            most = self.device.limits.shared_optin - cuda.driver.funcGetAttribute(
                FIXED_SHARED, function.ptr
            )
            cuda.driver.funcSetAttribute(function.ptr, MOST_SHARED, most)
        return function


# ---------------------------------------------------------------------------------- which there are

used: list[CudaDevice] = []  # the GPUs of this process so far


@once
def gpu(number: int) -> CudaDevice:
    """The GPU of a number, as CuPy counts them. DeviceError if there is no such one, or no CuPy."""
    check_process()
    known = driver()
    if known is None:
        raise DeviceError(
            "this machine has no NVIDIA driver, so no GPU can be used", fix="ge2 doctor"
        )
    if known.trouble:
        raise DeviceError(
            f"the NVIDIA driver gives no GPU: {known.trouble}", fix="nvidia-smi; ge2 doctor"
        )
    if not 0 <= number < len(known.gpus):
        count = len(known.gpus)
        raise DeviceError(
            f"there is no GPU {number}: this process sees {count or 'none'}", fix="ge2 doctor"
        )
    found = CudaDevice(number, known.gpus[number], cupy())
    used.append(found)
    begin()
    return found


def current_gpu() -> CudaDevice:
    """CuPy's current device. DeviceError if there is none, or no CuPy."""
    return gpu(cupy().cuda.runtime.getDevice() if driver() else 0)


def cupy() -> ModuleType:
    """CuPy. DeviceError if it is not installed or cannot be imported."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"GPUs are used through CuPy, which cannot be imported: {error}", fix=INSTALL
        ) from error
    module: ModuleType = cupy
    return module


# -------- The time of launches on a GPU, between events, and the most that it does: bytes and
# operations in a second.
# A launch takes the host longer than many kernels take the GPU. So the GPU is kept busy while the
# host puts event, launch and event into its queue: between the two events lies the kernel alone.


def probe(name: str) -> str:
    """The source of a small kernel that measures or tries a GPU."""
    with open(templates("cuda", "probes", f"{name}.cu"), encoding="ascii") as file:
        return file.read()


CYCLES: Final = 200_000  # 100 us and more: event, launch and event are in the queue by then
EMPTY: Final = 21  # launches of nothing, whose median is the least that can be told
COPIED: Final = 1024 * 16  # bytes that a block copies
OPERATIONS: Final = 2 * 16 * 8  # of a thread in a round
FUSED: Final = {"float": ("fmaf", np.float32), "double": ("fma", np.float64)}


@final
class EventClock:
    """Events round each launch on CuPy's current stream.

    `cold`: the L2 cache is overwritten before each.
    """

    def __init__(self, device: CudaDevice, cold: bool = False) -> None:
        self.device, self.cuda = device, device.xp.cuda
        self.hold = device.module(probe("hold")).get_function("hold")
        with device.here():
            self.spoiler = device.xp.empty(2 * device.limits.l2, np.uint8) if cold else None

    @property
    def words(self) -> str:
        return "by CUDA events"

    def moment(self) -> Any:
        return self.cuda.Event()

    def ready(self) -> None:
        if self.spoiler is not None:
            self.spoiler.data.memset_async(0, self.spoiler.nbytes)
        self.hold((1,), (1,), (np.int64(CYCLES),))

    def between(self, first: Any, last: Any) -> float:
        return float(self.cuda.get_elapsed_time(first, last)) * 1e-3

    def wait(self) -> None:
        self.device.stream().synchronize()

    def nothing(self) -> float:
        return median(
            seconds(self, lambda: self.hold((1,), (1,), (np.int64(0),))) for _ in range(EMPTY)
        )


# --------------------------------------------------------------------------------- the most it does


@final
@record
class Load:
    """The amount of work by which it is measured: bytes that are copied, blocks that
    compute, and rounds of each.
    """

    copied: int
    blocks: int
    rounds: int


def load_of(device: Device, clock: Clock) -> Load:
    """Many times what a GPU's caches hold; next to nothing where the CPU runs the kernels."""
    limits = device.limits
    if isinstance(clock, HostClock):
        return Load(4 * COPIED, 2, 1)
    copied = min(max(1 << 29, 8 * limits.l2), limits.memory // 16)
    return Load(copied // COPIED * COPIED, limits.threads // 256, 1024)


def ceilings(device: Device, clock: Clock, double: bool) -> Ceilings:
    """The best of a few tries. CompileError if the device's compiler refuses the kernels."""
    load = load_of(device, clock)
    rates = [
        computed(device, clock, load, kind) for kind in ("float", *(["double"] if double else []))
    ]
    return Ceilings(copied(device, clock, load), *rates)


def copied(device: Device, clock: Clock, load: Load) -> float:
    kernel = device.module(probe("copy")).get_function("copy")
    a, b = (device.xp.zeros(load.copied, np.uint8) for _ in range(2))
    return 2 * load.copied / best(clock, lambda: kernel((load.copied // COPIED,), (256,), (a, b)))


def computed(device: Device, clock: Clock, load: Load, kind: str) -> float:
    name, dtype = FUSED[kind]
    source = f"#define TYPE {kind}\n#define FMA {name}\n{probe('multiply_add')}"
    kernel = device.module(source).get_function("multiply_add")
    sums = device.xp.zeros(load.blocks * 256, dtype)
    args = (sums, dtype(0.999), dtype(0.5), np.int32(load.rounds))
    done = load.blocks * 256 * load.rounds * OPERATIONS
    return done / best(clock, lambda: kernel((load.blocks,), (256,), args))
