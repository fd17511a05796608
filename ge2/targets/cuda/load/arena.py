"""GPU resources of programs: loaded cubins, scratch memory, and arenas that grow."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import field
from threading import RLock
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar, final
from weakref import finalize

from ge2.base.errors import DeviceError
from ge2.base.record import mutable
from ge2.base.source import size_words
from ge2.targets.cuda.load import LIBRARY, words


class Gpu(Protocol):
    """A GPU as what loads and calls libraries there knows it."""

    @property
    def xp(self) -> ModuleType: ...
    @property
    def number(self) -> int: ...
    def here(self) -> AbstractContextManager[Any]: ...


# -------- Memory that programs have for themselves while they run: the same on each call, so that
# graphs of it last.
# On one stream programs run one after another, so they may share an arena. A program has it alone
# while its launches are handed over, whichever thread does so; what comes later on the stream finds
# it free.


STREAMS: Final = 64  # whose arenas are kept
T = TypeVar("T")


@final
class Scratch:
    """The arenas of a device.

    `empty` makes an array of so many bytes; `stream` tells the current stream, and None where the
    user captures it: the graph that comes of it has its scratch for good.

    `growing` makes arenas that grow where they lie, or None where there is no such thing: then an
    arena is an array like any other, and a larger one takes its place. `free` has others let go of
    memory that they keep for later.
    """

    def __init__(
        self,
        empty: Callable[[int], Any],
        stream: Callable[[], int | None],
        growing: Callable[[], Arenas | None] = lambda: None,
        free: Callable[[], Any] = lambda: None,
    ) -> None:
        self.empty, self.stream, self.begin, self.free = empty, stream, growing, free
        self.idle: dict[int, list[Any]] = {}
        self.captured: list[Any] = []
        self.lock = RLock()  # of all that is not done at each call
        self.begun = False
        self._growing: Arenas | None = None

    @property
    def growing(self) -> Arenas | None:
        if not self.begun:
            with self.lock:
                if not self.begun:
                    self._growing, self.begun = self.begin(), True
        return self._growing

    @property
    def nbytes(self) -> int:
        """The memory of arenas that grow; others are counted by whose arrays they are."""
        return 0 if self._growing is None else self._growing.nbytes

    def take(self, nbytes: int) -> tuple[Any, list[Any]]:
        """An array of at least so many bytes, and the list that it is to be put back into.

        Nobody else takes it until then. A smaller one that was kept grows or goes, so
        each is as large as what needs most. MemoryError if there is no memory even when
        all that is idle was given back.
        """
        stream = self.stream()
        if stream is None:
            return self.surely(lambda: self.empty(nbytes)), self.captured
        idle = self.idle.get(stream)
        if idle is None:
            if len(self.idle) >= STREAMS:
                self.release()
            idle = self.idle.setdefault(stream, [])
        while idle:
            try:
                found = idle.pop()
            except IndexError:  # another thread was faster
                break
            if found.nbytes >= nbytes:
                return found, idle
            if self._growing is not None:
                return self.grown(found, nbytes, idle), idle
        return self.made(nbytes, stream), idle

    def grown(self, arena: Any, nbytes: int, idle: list[Any]) -> Any:
        growing = self._growing
        assert growing is not None
        with self.lock:
            try:
                return self.surely(lambda: growing.grown(arena, nbytes))
            except BaseException:
                idle.append(arena)
                raise

    def made(self, nbytes: int, stream: int) -> Any:
        growing = self.growing
        with self.lock:
            if growing is None:
                return self.surely(lambda: self.empty(nbytes))
            return self.surely(lambda: growing.made(nbytes, stream))

    def surely(self, make: Callable[[], T]) -> T:
        """Returns what `make` gives; again when memory was given back, if there was none."""
        try:
            return make()
        except Exception as error:
            if not ran_out(error):
                raise
        self.spare()
        return make()

    def spare(self) -> None:
        """Gives back what nobody uses, here and where others keep it.

        Inside a capture, in which the device cannot be waited for, arenas stay.
        """
        if self.stream() is not None:
            self.release()
        self.free()

    def release(self) -> None:
        """Lets go of what is idle."""
        with self.lock:
            arenas = [each for idle in [*self.idle.values()] for each in emptied(idle)]
            if len(self.idle) >= STREAMS:  # else what is out comes back to where it was
                self.idle.clear()
            if self._growing is not None:
                self._growing.release(arenas)

    def close(self) -> None:
        """Gives back all that is idle, for good."""
        with self.lock:
            self.release()
            if self._growing is not None:
                self._growing.close()


def ran_out(error: BaseException) -> bool:
    """True if it says that a device has no more memory, in CuPy's words, ours, or torch's."""
    if isinstance(error, MemoryError):
        return not type(error).__module__.startswith("numpy")  # NumPy's is of the host
    return type(error).__name__ == "OutOfMemoryError"


def emptied(idle: list[Any]) -> list[Any]:
    """Returns what was in a list that other threads take from."""
    found = []
    while idle:
        try:
            found.append(idle.pop())
        except IndexError:
            break
    return found


# -------- Arenas of a GPU at reserved addresses: they grow at their end and stay where they are,
# and so do graphs.
# The driver hands out addresses and memory apart. Of addresses there are plenty, so an arena
# reserves as many as the GPU has bytes; memory is put behind the first of them when a program needs
# it, and given back when it runs out.


SUPPORTED: Final = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
# of allocations, locations and access, by the driver's numbers
PINNED, DEVICE, READ_WRITE = 1, 1, 3
NO_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Addresses(Protocol):
    """Addresses of a GPU and memory behind them. All sizes are multiples of `granule`."""

    granule: int

    def reserve(self, nbytes: int) -> int:
        """Addresses that nobody else gets, by their beginning. DeviceError if there are none."""

    def free(self, at: int, nbytes: int) -> None:
        """Gives back all of what was reserved, with no memory behind it any more."""

    def map(self, at: int, nbytes: int) -> None:
        """Puts new memory behind addresses. MemoryError if the GPU has no more."""

    def unmap(self, at: int, nbytes: int) -> None:
        """Takes away what was put there by one `map`; nothing on the GPU may be using it."""


@final
class DriverAddresses:
    """Those of NVIDIA's driver. DeviceError if it, or the GPU, cannot do this."""

    def __init__(self, number: int, library: str = LIBRARY) -> None:
        import ctypes

        self.driver = ctypes.CDLL(library)
        found = ctypes.c_int()
        self.driver.cuDeviceGetAttribute(ctypes.byref(found), SUPPORTED, number)
        if not found.value or not hasattr(self.driver, "cuMemAddressReserve"):
            raise DeviceError(f"GPU {number} has no addresses apart from memory")
        # CUmemAllocationProp: type, kind of handle, location, what stays 0;
        # CUmemAccessDesc: location, flags
        self.wanted = (ctypes.c_int32 * 8)(PINNED, 0, DEVICE, number)
        self.access = (ctypes.c_int32 * 3)(DEVICE, number, READ_WRITE)
        granule = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(granule), self.wanted, 0)
        self.granule = granule.value

    def call(self, name: str, *given: Any) -> None:
        """Calls a function of the driver. MemoryError or DeviceError as it says."""
        status = getattr(self.driver, name)(*given)
        if status == NO_MEMORY:
            raise MemoryError(f"{name} finds no memory")
        if status:
            raise DeviceError(f"{name} fails with {words(self.driver, status)}", fix="ge2 doctor")

    def reserve(self, nbytes: int) -> int:
        from ctypes import byref, c_size_t, c_uint64

        at = c_uint64()
        self.call(
            "cuMemAddressReserve",
            byref(at),
            c_size_t(nbytes),
            c_size_t(0),
            c_uint64(0),
            c_uint64(0),
        )
        return at.value

    def free(self, at: int, nbytes: int) -> None:
        from ctypes import c_size_t, c_uint64

        self.call("cuMemAddressFree", c_uint64(at), c_size_t(nbytes))

    def map(self, at: int, nbytes: int) -> None:
        from ctypes import byref, c_size_t, c_uint64

        handle, size, none = c_uint64(), c_size_t(nbytes), c_uint64(0)
        self.call("cuMemCreate", byref(handle), size, self.wanted, none)
        try:
            self.call("cuMemMap", c_uint64(at), size, c_size_t(0), handle, none)
        finally:
            self.call("cuMemRelease", handle)  # it lives as long as it is mapped
        try:
            self.call("cuMemSetAccess", c_uint64(at), size, self.access, c_size_t(1))
        except BaseException:
            self.unmap(at, nbytes)
            raise

    def unmap(self, at: int, nbytes: int) -> None:
        from ctypes import c_size_t, c_uint64

        self.call("cuMemUnmap", c_uint64(at), c_size_t(nbytes))


@final
@mutable
class Range:
    """Reserved addresses from `base` on, `size` of them, for programs on one stream.

    The first `nbytes` have memory, in `parts` that were added one after another.
    """

    base: int
    size: int
    stream: int
    parts: list[int] = field(default_factory=list)
    lease: finalize[..., Any] | None = None  # calls when the array of it is gone

    @property
    def nbytes(self) -> int:
        return sum(self.parts)


class Lease:
    """The contents of an array of a range."""


@final
class Arenas:
    """The arenas of a GPU with so much `memory`, as CuPy's arrays of bytes.

    `wait` ends when the GPU is idle. DeviceError if it has no addresses to reserve.

    An array that everybody drops, as one does whose program failed, is not lost: its
    range is used again on its stream.
    """

    def __init__(
        self,
        addresses: Addresses,
        number: int,
        memory: int,
        xp: ModuleType,
        wait: Callable[[], Any],
    ) -> None:
        self.addresses, self.number, self.memory = addresses, number, memory
        self.xp, self.wait = xp, wait
        self.ranges: dict[int, Range] = {}  # by their beginning
        # with no array; the first shows whether there are addresses
        self.unused = [self.reserved(0)]

    @property
    def nbytes(self) -> int:
        """Returns what all of them take of the GPU's memory."""
        return sum(each.nbytes for each in [*self.ranges.values()])

    def made(self, nbytes: int, stream: int) -> Any:
        """An array of at least so many bytes; MemoryError if there is no memory for it."""
        found = self.idle(stream) or self.reserved(stream)
        try:
            self.grow(found, nbytes)
        except BaseException:
            self.unused.append(found)
            raise
        return self.array(found)

    def grown(self, arena: Any, nbytes: int) -> Any:
        """An array in place of `arena`, which nobody uses, that begins where it does; as `made`."""
        found = self.ranges[arena.data.ptr]
        self.grow(found, nbytes)
        if found.lease is not None:
            found.lease.detach()
        return self.array(found)

    def release(self, arenas: list[Any]) -> None:
        """Gives their memory back to the driver, and that of the unused; they keep their addresses.

        Nobody else has them. They stay as they are if the GPU cannot be waited
        for, as where it is captured.
        """
        for arena in arenas:
            found = self.ranges[arena.data.ptr]
            if found.lease is not None and found.lease.detach():
                self.unused.append(found)
        idle = [self.unused.pop() for _ in range(len(self.unused))]
        # what comes meanwhile, or a signal's handler takes, may be used by what the wait is not for
        try:
            for each in idle if self.waited() else ():
                self.shrink(each)
        finally:
            self.unused += idle

    def close(self) -> None:
        """Gives back what is unused, for good."""
        self.wait()
        while self.unused:
            self.end(self.unused.pop())

    def waited(self) -> bool:
        try:
            self.wait()
        except Exception:  # noqa: BLE001 whatever it is, the next launch tells of it
            return False
        return True

    # -- ranges

    def idle(self, stream: int) -> Range | None:
        """An unused range of the stream, or one with no memory: no work on
        another stream is using that.
        """
        unused = [*self.unused]
        found = next((each for each in unused if each.stream == stream), None)
        found = found or next((each for each in unused if not each.parts), None)
        if found is not None:
            self.unused.remove(found)
            found.stream = stream
        return found

    def rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.addresses.granule) * self.addresses.granule

    def reserved(self, stream: int) -> Range:
        size = self.rounded(self.memory)
        found = Range(self.addresses.reserve(size), size, stream)
        self.ranges[found.base] = found
        return found

    def grow(self, found: Range, nbytes: int) -> None:
        more = self.rounded(nbytes) - found.nbytes
        if more <= 0:
            return
        if found.nbytes + more > found.size:
            raise MemoryError(f"an arena of {size_words(nbytes)} is more than the GPU has")
        self.addresses.map(found.base + found.nbytes, more)
        found.parts.append(more)

    def shrink(self, found: Range) -> None:
        while found.parts:
            last = found.parts.pop()
            self.addresses.unmap(found.base + found.nbytes, last)

    def end(self, found: Range) -> None:
        self.shrink(found)
        del self.ranges[found.base]
        self.addresses.free(found.base, found.size)

    def array(self, found: Range) -> Any:
        """An array that tells when it is gone."""
        lease, cuda = Lease(), self.xp.cuda
        found.lease = finalize(lease, self.unused.append, found)
        found.lease.atexit = False
        memory = cuda.UnownedMemory(found.base, found.nbytes, lease, self.number)
        return self.xp.ndarray((found.nbytes,), "uint8", cuda.MemoryPointer(memory, 0))


# -------- Cubins on a GPU: from memory, or, by a CuPy that loads none so, by
# `cupy.RawModule(path=...)`.
# From memory the bytes that are loaded are those of the cache whose checksum was verified, nothing
# is written, and a module goes when nobody has its kernels. CuPy keeps what a RawModule loads as
# long as the process lives, and finds it by its path: so a path is never used twice.
# docs/design/cache.md has the reasons.


_by_path: dict[tuple[int, str], Any] = {}  # by the GPU's number and the cubin's key


def loaded(device: Gpu, image: bytes, key: str) -> Any:
    """A cubin, or PTX, as CuPy's `Module`, whose functions have handles; the driver's error if it
    refuses the image. Equal keys are equal images.
    """
    cuda = device.xp.cuda
    with device.here():
        if not hasattr(cuda, "Module"):
            return by_path(device, image, key)
        found = cuda.Module()
        found.load(image)
        return found


def by_path(device: Gpu, image: bytes, key: str) -> Any:
    """The same image as a file, in a folder that this user alone may read, for as long as CuPy
    reads it.
    """
    from tempfile import TemporaryDirectory

    if (device.number, key) not in _by_path:
        with TemporaryDirectory(prefix="ge2-cubin-") as folder:
            path = os.path.join(folder, f"{key}.cubin")
            with open(path, "wb") as file:
                file.write(image)
            _by_path[device.number, key] = device.xp.RawModule(path=path).module
    return _by_path[device.number, key]
