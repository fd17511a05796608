"""The time of launches on a GPU, between events, and the most that it does:
bytes and operations in a second.

A launch takes the host longer than many kernels take the GPU. So the GPU is kept busy while the
host puts event, launch and event into its queue: between the two events lies the kernel alone.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.record import record
from ge2.program.timer import Ceilings, Clock, HostClock, best, seconds

if TYPE_CHECKING:
    from ge2.targets.cuda.device import Device
    from ge2.targets.cuda.load.gpu import CudaDevice

HOLD: Final = """
extern "C" __global__ void hold(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""
CYCLES: Final = 200_000  # 100 us and more: event, launch and event are in the queue by then
EMPTY: Final = 21  # launches of nothing, whose median is the least that can be told

COPY: Final = """
extern "C" __global__ void __launch_bounds__(256) copy(const uint4 *__restrict__ a, uint4 *__restrict__ b) {
    const long long i = (long long)blockIdx.x * 1024 + threadIdx.x;
    uint4 held[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) held[k] = a[i + 256 * k];
    #pragma unroll
    for (int k = 0; k < 4; ++k) b[i + 256 * k] = held[k];
}
"""
COPIED: Final = 1024 * 16  # bytes that a block copies
ADD: Final = """
extern "C" __global__ void __launch_bounds__(256) multiply_add(TYPE *sums, TYPE x, TYPE y, int rounds) {
    TYPE s[8];
    #pragma unroll
    for (int k = 0; k < 8; ++k) s[k] = (TYPE)(threadIdx.x + k);
    for (int r = 0; r < rounds; ++r) {
        #pragma unroll
        for (int m = 0; m < 16; ++m) {
            #pragma unroll
            for (int k = 0; k < 8; ++k) s[k] = FMA(s[k], x, y);
        }
    }
    #pragma unroll
    for (int k = 1; k < 8; ++k) s[0] += s[k];
    sums[blockIdx.x * 256 + threadIdx.x] = s[0];
}
"""
OPERATIONS: Final = 2 * 16 * 8  # of a thread in a round
FUSED: Final = {"float": ("fmaf", np.float32), "double": ("fma", np.float64)}


@final
class EventClock:
    """Events round each launch on CuPy's current stream.

    `cold`: the L2 cache is overwritten before each.
    """

    def __init__(self, device: CudaDevice, cold: bool = False) -> None:
        self.device, self.cuda = device, device.xp.cuda
        self.hold = device.module(HOLD).get_function("hold")
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
    """How much is done to measure it: bytes that are copied, blocks that
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
    kernel = device.module(COPY).get_function("copy")
    a, b = (device.xp.zeros(load.copied, np.uint8) for _ in range(2))
    return 2 * load.copied / best(clock, lambda: kernel((load.copied // COPIED,), (256,), (a, b)))


def computed(device: Device, clock: Clock, load: Load, kind: str) -> float:
    name, dtype = FUSED[kind]
    source = f"#define TYPE {kind}\n#define FMA {name}\n{ADD}"
    kernel = device.module(source).get_function("multiply_add")
    sums = device.xp.zeros(load.blocks * 256, dtype)
    args = (sums, dtype(0.999), dtype(0.5), np.int32(load.rounds))
    done = load.blocks * 256 * load.rounds * OPERATIONS
    return done / best(clock, lambda: kernel((load.blocks,), (256,), args))
