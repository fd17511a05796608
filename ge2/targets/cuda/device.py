"""The device that runs CUDA kernels: its limits and arrays, and what its array module computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, Protocol, TypeVar, final

import numpy as np

from ge2.base.arrays import BFLOAT16, COMPLEX, EXTENDED, FP8, HALF, INT64, hush, restore
from ge2.base.config import config
from ge2.base.errors import Ge2Error
from ge2.base.record import hashed_record, record
from ge2.choice import Speed, speed_of
from ge2.ir import Eqn, Op
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.ops.linalg import Cholesky, Det, Linalg, Pinv, SlogDet, Solve
from ge2.ops.linalg.decompositions import Eigh, Qr, Svd
from ge2.ops.sort import ArgSort, SearchSorted, Sort, TopK
from ge2.passes.reads import FirstRanks, OrderStatistics
from ge2.targets.cuda.launch import LaunchList, Run, Straight
from ge2.targets.cuda.launch.library_call import Callee, Wanted, WantedAttention
from ge2.targets.cuda.limits import Chip, Limits
from ge2.targets.cuda.load.arena import Scratch, ran_out
from ge2.targets.cuda.load.fourier import HostTransform, WantedTransform

# -------- What runs CUDA kernels: a GPU, or the CPU in its place; and its arrays, as addresses,
# views and copies.


T = TypeVar("T")


class Module(Protocol):
    """A compiled source."""

    def get_function(self, name: str) -> Any:
        """A kernel: `kernel(grid, block, args, shared_mem=bytes)`."""


@final
@record
class Figures:
    """Of a kernel: registers a thread, bytes of shared memory a block, bytes
    spilled; and its occupancy.

    That is the share of the threads that a multiprocessor can hold which are there at once.
    """

    registers: int
    shared: int
    spills: int
    occupancy: float


class Device(Protocol):
    """`xp` is the array module of what kernels read and write: CuPy, or NumPy.

    What is said here is true of a device that is alone, and keeps no scratch.
    """

    __slots__ = ()

    @property
    def limits(self) -> Limits: ...

    @property
    def xp(self) -> ModuleType: ...

    def prepare(self, sources: list[str]) -> None:
        """Compiles sources, so that `module` finds them compiled.

        Several threads may ask at once.
        """

    def missing(self, sources: list[str]) -> int:
        """Returns how many of the sources are yet to be compiled."""

    def module(self, source: str) -> Module:
        """A source, compiled and loaded; equal sources once."""

    def product(self, wanted: Wanted) -> Callee | None:
        """A product of matrices; None if the device's library has none such."""

    def attention(self, wanted: WantedAttention) -> Callee | str:
        """Attention by the device's library; or the reason why there is none."""
        return "the device has no library of attention"

    def transform(self, wanted: WantedTransform) -> Callee:
        """Fourier transforms by the device's library; by NumPy where the memory is the CPU's."""
        return HostTransform(wanted)

    def launches(self, work: LaunchList) -> Run:
        """Launches that follow each other, as one function."""

    def stream(self) -> Any:
        """That on which launches go."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """A range of that name in the time line of a profiler; it may be
        entered again and again.
        """

    @property
    def number(self) -> int | None:
        """As CuPy counts devices; None of one that is alone."""
        return None

    @property
    def scratch(self) -> Scratch | None:
        """Returns what lends scratch to calls, and memory again that nobody uses."""
        return None

    @property
    def lost(self) -> list[bool]:
        """Not empty where `check` raises."""
        return []

    def check(self) -> None:
        """DeviceError if the device cannot be used any more."""
        return

    def here(self) -> AbstractContextManager[Any]:
        """Makes the device CuPy's current one inside a `with`."""
        return nullcontext()

    def call(self, work: Straight, otherwise: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A program as one call, if that is faster; `otherwise` is the same in Python."""
        return otherwise

    def figures(self, source: str, name: str, threads: int, shared: int) -> Figures | None:
        """Returns what a kernel takes that is launched with so many threads a block and bytes of
        shared memory; None where nobody knows.
        """
        return None


def address(x: Any) -> int:
    """Returns where the first element of an array lies."""
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr)


def view(x: Any, offset: int, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int]) -> Any:
    """Part of the memory of an array in C order: offset and strides in bytes."""
    if isinstance(x, np.ndarray):
        whole = np.frombuffer(x, np.uint8) if x.size else np.empty(0, np.uint8)
        held = np.dtype(np.uint8) if dtype in FP8 else dtype  # what `as_strided` would not know
        typed = np.ndarray((), held, whole, offset) if whole.size else np.empty((), held)
        return np.lib.stride_tricks.as_strided(typed, tuple(shape), tuple(strides)).view(dtype)
    return type(x)(tuple(shape), dtype, x.data + offset, tuple(strides))


def kept_as(device: Device, dtype: np.dtype) -> np.dtype:
    """The dtype under which arrays of another lie on a device: CuPy has no fp8, but their bytes."""
    return np.dtype(np.uint8) if dtype in FP8 and device.xp is not np else dtype


def empty(device: Device, shape: Sequence[int], dtype: np.dtype) -> Any:
    """An array of the device whose elements are not known."""
    return surely(device, lambda: device.xp.empty(tuple(shape), kept_as(device, dtype)))


def surely(device: Device, make: Callable[[], T]) -> T:
    """Returns what `make` gives; if there is no memory for it, again when what nobody
    uses was given back.
    """
    return make() if device.scratch is None else device.scratch.surely(make)


def upload(device: Device, x: Any) -> Any:
    """An array of the host on the device, in C order; a copy, so that nobody else changes it."""
    kept = kept_as(device, x.dtype)
    with device.here():  # CuPy's current device may be another
        return surely(
            device, lambda: device.xp.array(x if kept == x.dtype else x.view(kept), order="C")
        )


def put(to: Any, x: Any) -> None:
    """Copies an array of the device into another one of the same type."""
    if x.dtype in FP8:
        to, x = to.view(np.uint8), x.view(np.uint8)
    to[...] = x


def download(x: Any) -> Any:
    """An array of the device on the host; anything else as it is."""
    return x.get() if hasattr(x, "get") else x


# -------- What stands around a call on a device: which is current, arguments as kernels read them,
# the CPU's part.


Failed = Callable[[BaseException], BaseException]


def current_first(
    device: Device, run: Callable[..., list[Any]], failed: Failed | None = None
) -> Callable[..., list[Any]]:
    """Runs a program with its device CuPy's current one.

    `failed` makes the error of one without memory.
    """
    if device.number is None:
        return run
    here, number, current = device.here, device.number, device.xp.cuda.runtime.getDevice
    lost = device.lost

    def there(*arrays: Any) -> list[Any]:
        if lost:
            device.check()
        try:
            if current() == number:
                return run(*arrays)
            with here():
                return run(*arrays)
        except Exception as error:
            explain(failed, error)
            raise

    return there


def explain(failed: Failed | None, error: BaseException) -> None:
    """Raises what is to be said of an error if there was no memory, and nobody has said it yet."""
    if failed is not None and not isinstance(error, Ge2Error) and ran_out(error):
        raise failed(error) from error


def again(device: Device, trouble: Exception, *wanted: tuple[Any, ...]) -> list[Any]:
    """Arrays for which there was no memory, when all that nobody uses was given back.

    Else the trouble.
    """
    if device.scratch is None or not ran_out(trouble):
        raise trouble
    device.scratch.spare()
    return [device.xp.ndarray(*each) for each in wanted]


def anew(device: Device, nbytes: int) -> tuple[Any, list[Any]]:
    """Scratch of one call alone, where nothing is gained by keeping it; and
    where it is put after that.
    """
    return device.xp.empty(nbytes, np.uint8), []


def quietly(run: Callable[..., list[Any]], *arrays: Any) -> list[Any]:
    """Runs a program with none of NumPy's warnings."""
    loud = hush()
    try:
        return run(*arrays)
    finally:
        restore(loud)


def scalar(value: np.ndarray, dtype: np.dtype) -> np.generic:
    """A number as a kernel is handed it."""
    found: Any = value.astype(dtype)
    return found[()]  # type: ignore[no-any-return]


def narrowed(dtype: np.dtype, wanted: np.dtype, x: Any) -> Any:
    """A Python number of `dtype` as a kernel holds it."""
    value = np.asarray(x)
    return (value.astype(dtype).astype(wanted) if dtype in HALF else value.astype(wanted))[()]


def ready(device: Device, x: Any) -> Any:
    """An array of the device as kernels read it: in C order, from a place that
    wide accesses may begin at.
    """
    x = x if isinstance(x, device.xp.ndarray) else upload(device, x)
    if x.flags.c_contiguous and address(x) % 16 == 0:
        return x
    return surely(device, lambda: device.xp.array(x, order="C", copy=True))


def elsewhere(device: Device, eqn: Eqn, *xs: Any) -> Any:
    """The reference on the CPU."""
    weak = [a.type.weak for a in eqn.inputs]
    arrays = [
        np.asarray(x, a.type.dtype) if w else download(x).view(a.type.dtype)
        for x, a, w in zip(xs, eqn.inputs, weak, strict=True)
    ]
    ys = eqn.op.reference(*arrays)
    found = [
        y if v.type.weak else upload(device, np.asarray(y, v.type.dtype))
        for y, v in zip(ys if eqn.op.several else (ys,), eqn.outs, strict=True)
    ]
    return found if eqn.op.several else found[0]


# -------- What a device's own array module computes: CuPy's functions where no kernel of ours
# serves.
# An entry of the table is handed the module, the operation and its inputs as arrays of the device;
# it returns another. bfloat16 and fp8, which CuPy does not order, go by integers that are ordered
# as they are.


LAST = {BFLOAT16: 0x7F80, FP8[0]: 0x7E, FP8[1]: 0x7C}  # the greatest number's bits; beyond is NaN


def ordered(xp: ModuleType, x: Any) -> Any:
    """Numbers in the order of `x`: NaN is last, and the zeros are equal."""
    if x.dtype not in EXTENDED:
        return x
    whole = np.dtype(f"u{x.dtype.itemsize}")
    bits, half = x.view(whole), whole.type(1 << (8 * whole.itemsize - 1))
    size = bits & whole.type(half - 1)
    key = xp.where(bits >= half, half - size, half + size)
    return xp.where(size > LAST[x.dtype], whole.type(2 * int(half) - 1), key)


def argsorted(xp: ModuleType, x: Any, axis: int) -> Any:
    """Stably: CuPy's sorts are, and know no other kind."""
    if not x.size:
        return xp.empty(x.shape, INT64)
    return xp.argsort(x, axis, kind="stable") if xp is np else xp.argsort(x, axis)


def sort(xp: ModuleType, op: Any, x: Any) -> Any:
    if not x.size:
        return x.copy()
    if x.dtype in EXTENDED:
        bits = x.view(f"u{x.dtype.itemsize}")
        order = argsorted(xp, ordered(xp, x), op.axis)
        return xp.take_along_axis(bits, order, op.axis).view(x.dtype)
    return xp.sort(x, op.axis, kind="stable") if xp is np else xp.sort(x, op.axis)


def argsort(xp: ModuleType, op: Any, x: Any) -> Any:
    return argsorted(xp, ordered(xp, x), op.axis).astype(INT64, copy=False)


def selected(xp: ModuleType, op: Any, x: Any) -> Any:
    y = sort(xp, op, x)
    kept = y.view(f"u{x.dtype.itemsize}") if x.dtype in EXTENDED else y
    return xp.take(kept, xp.asarray(op.ranks), op.axis).view(x.dtype)


def top_k(xp: ModuleType, op: Any, x: Any) -> tuple[Any, Any]:
    """The end of what is sorted, backwards before and after: so the first of equals comes first."""
    axis = op.axis
    turned = (*(slice(None),) * axis, slice(None, None, -1))
    first = (*(slice(None),) * axis, slice(None, op.k))
    order = argsorted(xp, xp.ascontiguousarray(ordered(xp, x)[turned]), axis)
    at = (x.shape[axis] - 1 - order[turned])[first].astype(INT64)
    kept = x.view(f"u{x.dtype.itemsize}") if x.dtype in EXTENDED else x
    return xp.take_along_axis(kept, at, axis).view(x.dtype), at


def first_ranks(xp: ModuleType, op: Any, x: Any) -> tuple[Any, Any]:
    line = ordered(xp, x)
    if op.falling:
        # of integers NaN is the largest, which one more makes 0
        line = ~(line + line.dtype.type(1)) if x.dtype in EXTENDED else -line
    first = (*(slice(None),) * op.axis, slice(None, op.k))
    at = argsorted(xp, line, op.axis)[first].astype(INT64)
    kept = x.view(f"u{x.dtype.itemsize}") if x.dtype in EXTENDED else x
    return xp.take_along_axis(kept, at, op.axis).view(x.dtype), at


def searchsorted(xp: ModuleType, op: Any, line: Any, values: Any) -> Any:
    line, values = ordered(xp, line), ordered(xp, values)
    if not op.beside:
        return xp.asarray(xp.searchsorted(line, values, op.side)).astype(INT64, copy=False)
    shape, many, n = values.shape, math.prod(line.shape[:-1]), line.shape[-1]
    lines, sought = line.reshape(many, n), values.reshape(many, math.prod(shape[op.beside :]))
    return halved(xp, lines, sought, op.side == "right").reshape(shape)


def halved(xp: ModuleType, lines: Any, sought: Any, after: bool) -> Any:
    """The place of each value in the line of its row, all at once: the part
    where it lies is halved.
    """
    n = lines.shape[1]
    low, high = xp.zeros(sought.shape, INT64), xp.full(sought.shape, n, INT64)
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        found = xp.take_along_axis(lines, xp.minimum(middle, n - 1), 1)
        right = (low < high) & ~before(sought, found, not after)
        low, high = xp.where(right, middle + 1, low), xp.where(right | (low >= high), high, middle)
    return low


def before(a: Any, b: Any, equal: bool) -> Any:
    """True if `a` stands before `b` in the order in which NaN is last; or where it does."""
    if a.dtype.kind != "f":
        return a <= b if equal else a < b
    none_a, none_b = a != a, b != b
    return (a <= b) | none_b if equal else (a < b) | (none_b & ~none_a)


# --------------------------------------------------------------------- matrices, Fourier transforms


def transform(xp: ModuleType, op: Any, x: Any) -> Any:
    return op.by(xp, x)


def qr(xp: ModuleType, op: Any, x: Any) -> Any:
    return tuple(xp.linalg.qr(x, "complete" if op.full else "reduced"))


def eigh(xp: ModuleType, op: Any, x: Any) -> Any:
    side = "L" if op.lower else "U"
    return tuple(xp.linalg.eigh(x, side)) if op.vectors else (xp.linalg.eigvalsh(x, side),)


def svd(xp: ModuleType, op: Any, x: Any) -> Any:
    found = xp.linalg.svd(x, op.full, op.vectors)
    return tuple(found) if op.vectors else (found,)


Served = Callable[..., Any]
SERVED: Mapping[type[Op], Served] = {
    Sort: sort,
    ArgSort: argsort,
    OrderStatistics: selected,
    TopK: top_k,
    FirstRanks: first_ranks,
    SearchSorted: searchsorted,
    Fft: transform,
    Rfft: transform,
    Irfft: transform,
    Solve: lambda xp, op, a, b: op.reference(a, b) if xp is np else xp.linalg.solve(a, b),
    Pinv: lambda xp, op, x: xp.linalg.pinv(x, op.rtol),
    Det: lambda xp, op, x: xp.linalg.det(x),
    SlogDet: lambda xp, op, x: tuple(xp.linalg.slogdet(x)),
    Cholesky: lambda xp, op, x: xp.linalg.cholesky(x),
    Qr: qr,
    Eigh: eigh,
    Svd: svd,
}


def serves(eqn: Eqn) -> Served | None:
    """The function of the table for an equation; None if there is none."""
    if isinstance(eqn.op, SearchSorted) and eqn.inputs[0].type.dtype in COMPLEX:
        return None  # which CuPy compares otherwise where a part is NaN
    if isinstance(eqn.op, Linalg) and any(0 in a.type.shape for a in eqn.inputs):
        return None  # which not all of CuPy's functions take
    return SERVED.get(type(eqn.op))


def by_arrays(device: Device, eqn: Eqn, *xs: Any) -> Any:
    """The result of an equation that the table serves; numbers become arrays of the device."""
    served, xp = serves(eqn), device.xp
    assert served is not None
    given = [xp.asarray(x, a.type.dtype) for x, a in zip(xs, eqn.inputs, strict=True)]
    return surely(device, lambda: served(xp, eqn.op, *given))


# -------- Limits and libraries of a device for CUDA kernels.


@final
@hashed_record
class Caps:
    """A chip, its limits as its driver tells them, and the device whose library multiplies
    matrices; None in a pass, which knows the limits alone. `workspace`: bytes of scratch that a
    call of the library may have.
    """

    chip: Chip
    limits: Limits
    device: Device | None = None
    workspace: int = 32 << 20

    @staticmethod
    def of(device: Device) -> Caps:
        return Caps(Chip.of(device.limits), device.limits, device, config.workspace << 20)

    @staticmethod
    def before(limits: Limits) -> Caps:
        return Caps(Chip.of(limits), limits)

    def product(self, wanted: Wanted) -> Callee | None:
        """The library's product of matrices; None if it has none such."""
        return None if self.device is None else self.device.product(wanted)

    def attention(self, wanted: WantedAttention) -> Callee | str | None:
        """The library's attention, or the reason why it has none; None before the device is known."""
        return None if self.device is None else self.device.attention(wanted)

    def transform(self, wanted: WantedTransform) -> Callee:
        """The library's Fourier transforms."""
        assert self.device is not None, "kernels are written for a device"
        return self.device.transform(wanted)

    @property
    def kind(self) -> str:
        """The chip as the record of measurements names it."""
        x = self.limits
        return kind_of(x.name, x.multiprocessors, x.architecture, x.emulated)

    @property
    def usual(self) -> Speed:
        """The speed of a chip that was not probed: its memory as documented, 128 lanes of each
        multiprocessor at some 1.5 GHz, and products in the library as many times that as tensor cores
        are in float32.
        """
        x = self.limits
        return usual_of(x.multiprocessors, x.bandwidth, x.l2, x.double)

    @property
    def speed(self) -> Speed:
        return speed_of(self.kind, self.usual)

    @property
    def is_measured(self) -> bool:
        """True of the chips on which the order of the catalog was measured."""
        return self.limits.name.removeprefix("NVIDIA ").startswith(("H100", "H200"))

    @property
    def driver(self) -> str:
        """The version of the driver."""
        from ge2.targets.cuda.load import driver

        found = driver()
        return "" if found is None else str(found.version)

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        """The versions of what makes kernels."""
        from ge2.targets.cuda.load import loaded_nvrtc

        return (("nvrtc", "{}.{}".format(*loaded_nvrtc().version)),)


@cache
def kind_of(name: str, multiprocessors: int, architecture: str, emulated: bool) -> str:
    kind = f"{name.removeprefix('NVIDIA ').split()[0]} {multiprocessors} x {architecture}"
    return f"an emulator of {kind}" if emulated else kind


@cache
def usual_of(multiprocessors: int, bandwidth: float, l2: int, double: int) -> Speed:
    single = multiprocessors * 128 * 2 * 1.5e9
    return Speed(
        moved=bandwidth, cached=2 * bandwidth, cache=l2 // 2, single=single, double=single / double,
        products=single, launch=2.5e-6, functions=4,
    )  # fmt: skip
