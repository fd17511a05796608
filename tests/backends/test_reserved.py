"""Arenas at reserved addresses: they grow in place and are given back; with a
driver that is the CPU's.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ge2
from ge2.base.detect import toolchain
from ge2.base.errors import DeviceError
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import arena
from ge2.targets.cuda.load import gpu as device
from ge2.targets.cuda.load.arena import STREAMS, Arenas, DriverAddresses, Scratch
from ge2.targets.cuda.load.gpu import CudaDevice
from tests.threads import on_threads

pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")
GRANULE = 64 << 10
ROOM = 64 * GRANULE


class Array:
    """As CuPy's array of bytes, with the processor's eyes."""

    def __init__(self, shape, dtype, pointer):
        (self.nbytes,), self.data = shape, pointer

    @property
    def host(self):
        return np.frombuffer((ctypes.c_char * self.nbytes).from_address(self.data.ptr), np.uint8)


def memory(base, size, owner, device):
    return SimpleNamespace(base=base, owner=owner)


def pointer(memory, offset):
    return SimpleNamespace(ptr=memory.base + offset, memory=memory)


XP = SimpleNamespace(
    ndarray=Array, cuda=SimpleNamespace(UnownedMemory=memory, MemoryPointer=pointer)
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "fake_addresses.so"
    source = Path(__file__).parent / "fake_addresses.c"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", str(source), "-o", str(path)],
        check=True,
    )
    return str(path)


@pytest.fixture
def driver(path):
    found = ctypes.CDLL(path)
    yield found
    set_(found, "supported", 1)
    set_(found, "fail_access", 0)
    assert room(found) == ROOM, "memory that nobody gave back"
    assert ctypes.c_int.in_dll(found, "ranges").value == 0, "addresses that nobody gave back"


def set_(driver, name, value):
    ctypes.c_int.in_dll(driver, name).value = value


def room(driver):
    return ctypes.c_long.in_dll(driver, "room").value


class World:
    """Scratch over a fake GPU."""

    def __init__(self, path, memory=2 * ROOM):
        self.current, self.waits, self.freed, self.plain = 0, 0, 0, []
        self.arenas = Arenas(DriverAddresses(0, path), 0, memory, XP, self.wait)
        self.scratch = Scratch(self.empty, lambda: self.current, lambda: self.arenas, self.free)

    def wait(self):
        self.waits += 1

    def free(self):
        self.freed += 1

    def empty(self, nbytes):
        self.plain.append(nbytes)
        return SimpleNamespace(nbytes=nbytes)

    def used(self, nbytes):
        found, idle = self.scratch.take(nbytes)
        assert found.nbytes >= nbytes
        found.host[:nbytes] = 7  # it is there, all of it
        idle.append(found)
        return found.data.ptr


@pytest.fixture
def world(path, driver):
    found = World(path)
    yield found
    found.scratch.close()


def test_growth_moves_nothing(world, driver):
    begin = world.used(100)
    for nbytes in (200, GRANULE, GRANULE + 1, 5 * GRANULE, 20 * GRANULE, 3):
        assert world.used(nbytes) == begin
    assert room(driver) == ROOM - 20 * GRANULE
    assert world.scratch.nbytes == 20 * GRANULE


def test_what_lies_there_stays_when_it_grows(world):
    found, idle = world.scratch.take(GRANULE)
    found.host[:] = 42
    idle.append(found)
    larger, idle = world.scratch.take(4 * GRANULE)
    assert (larger.host[:GRANULE] == 42).all()
    idle.append(larger)


def test_two_at_once_are_two_and_both_are_kept(world):
    (first, idle), (second, _) = world.scratch.take(8), world.scratch.take(8)
    begins = {first.data.ptr, second.data.ptr}
    assert len(begins) == 2
    idle += [first, second]
    assert {world.scratch.take(8)[0].data.ptr, world.scratch.take(8)[0].data.ptr} == begins


def test_streams_have_their_own(world):
    begin = world.used(8)
    world.current = 1
    other = world.used(GRANULE + 1)
    assert other != begin
    world.current = 0
    assert world.used(GRANULE + 1) == begin
    assert len(world.arenas.ranges) == 2


def test_memory_is_given_back_and_comes_back_in_place(world, driver):
    begin = world.used(6 * GRANULE)
    world.scratch.release()
    assert world.waits == 1
    assert room(driver) == ROOM
    assert world.used(9 * GRANULE) == begin


def test_what_cannot_be_waited_for_is_kept(world, driver):
    world.used(6 * GRANULE)

    def wait():
        raise RuntimeError("a stream is captured")

    world.arenas.wait = wait
    world.scratch.release()
    assert room(driver) == ROOM - 6 * GRANULE
    world.arenas.wait = world.wait


def test_what_is_taken_while_memory_is_given_back_stays(world):
    """As by a signal's handler, which the lock does not keep out."""
    begin, taken = world.used(GRANULE), []

    def wait():
        if not taken:
            taken.append(world.scratch.take(GRANULE))

    world.arenas.wait = wait
    world.scratch.release()
    ((found, idle),) = taken
    assert found.data.ptr != begin
    assert world.arenas.ranges[begin].nbytes == 0
    found.host[:] = 7  # it is there, all of it
    idle.append(found)


def test_what_is_idle_goes_before_memory_runs_out(world, driver):
    world.used(40 * GRANULE)
    world.current = 1
    begin = world.used(50 * GRANULE)
    assert room(driver) == ROOM - 50 * GRANULE
    assert world.freed == 1
    with pytest.raises(MemoryError):
        world.used(65 * GRANULE)
    assert world.used(60 * GRANULE) == begin  # what was there is not lost
    with pytest.raises(MemoryError, match="more than the GPU has"):
        world.used(2 * ROOM + 1)


def test_an_array_that_everybody_drops_is_used_again(world):
    """As when a program fails in the middle."""
    begin = world.used(8)
    world.scratch.take(8)
    gc.collect()
    assert world.used(8) == begin
    assert len(world.arenas.ranges) == 1


def test_what_is_out_when_the_rest_is_released_comes_back(world):
    found, idle = world.scratch.take(8)
    begin = found.data.ptr
    world.scratch.release()
    found.host[:8] = 1
    idle.append(found)
    del found, idle
    gc.collect()
    assert world.used(8) == begin


def test_many_streams_share_few_ranges(world, driver):
    for n in range(5 * STREAMS):
        world.current = n
        world.used(1)
    assert len(world.arenas.ranges) <= STREAMS
    assert len(world.scratch.idle) <= STREAMS


def test_a_capture_of_the_users_has_an_array_of_its_own(world):
    world.current = None
    found, captured = world.scratch.take(10)
    assert world.plain == [10]
    captured.append(found)
    world.current = 0
    assert world.used(10)


def test_access_that_fails_leaves_no_memory_behind(world, driver):
    begin = world.used(GRANULE)
    set_(driver, "fail_access", 1)
    with pytest.raises(DeviceError, match="cuMemSetAccess fails with CUDA_ERROR_INVALID_VALUE"):
        world.used(3 * GRANULE)
    assert room(driver) == ROOM - GRANULE
    set_(driver, "fail_access", 0)
    assert world.used(3 * GRANULE) == begin


def test_threads_never_have_the_same_at_once(world):
    held, wrong = set(), []

    def work(seed):
        for n in range(300):
            memory, idle = world.scratch.take((seed * n) % (2 * GRANULE) + 1)
            begin = memory.data.ptr
            if begin in held:
                wrong.append(begin)
            held.add(begin)
            memory.host[-1] = seed
            if n % 90 == seed:
                world.scratch.release()
            held.remove(begin)
            idle.append(memory)

    on_threads(*(partial(work, n) for n in range(1, 4)))
    assert not wrong


def test_the_end_of_the_process_gives_all_back(path, driver):
    world = World(path)
    world.used(3 * GRANULE)
    world.current = 1
    world.used(3 * GRANULE)
    world.scratch.close()
    assert not world.arenas.ranges
    assert world.used(8)  # and what comes after that has memory again
    world.scratch.close()


def test_the_device_closes_its_arenas_but_not_in_a_child(monkeypatch):
    closed = []
    scratch = SimpleNamespace(close=lambda: closed.append(1) or 1 // 0)  # the driver may be gone
    monkeypatch.setattr(device, "broken", [True])
    CudaDevice._end(SimpleNamespace(scratch=scratch))
    assert not closed
    monkeypatch.setattr(device, "broken", [])
    CudaDevice._end(SimpleNamespace(scratch=scratch))
    assert closed


class Here:
    """As CuPy's device in a `with`."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def cupy_of(limit=0):
    """What a device asks of CuPy for its memory, and what it did."""
    did = []
    pool = SimpleNamespace(
        free_all_blocks=lambda: did.append("free"), get_limit=lambda: limit, used_bytes=lambda: 30
    )
    runtime = SimpleNamespace(
        deviceSynchronize=lambda: did.append("wait"), memGetInfo=lambda: (60, 100)
    )
    stream = SimpleNamespace(ptr=5, is_capturing=lambda: False)
    cuda = SimpleNamespace(
        **vars(XP.cuda), Device=Here, runtime=runtime, get_current_stream=lambda: stream
    )
    xp = SimpleNamespace(ndarray=Array, cuda=cuda, get_default_memory_pool=lambda: pool)
    return xp, did


def test_a_device_with_its_arenas(path, driver, monkeypatch):
    ended = []
    monkeypatch.setattr(device, "DriverAddresses", lambda number: DriverAddresses(number, path))
    monkeypatch.setattr(device.atexit, "register", ended.append)
    xp, did = cupy_of()
    gpu = CudaDevice(0, replace(H200, memory=ROOM), xp)
    found, idle = gpu.scratch.take(40 * GRANULE)
    found.host[:] = 1
    begin = found.data.ptr
    idle.append(found)
    del found
    with pytest.raises(MemoryError):
        gpu.scratch.take(ROOM + 1)
    assert did == ["wait", "free"]
    found, idle = gpu.scratch.take(50 * GRANULE)
    assert found.data.ptr == begin
    idle.append(found)
    del found, idle
    (end,) = ended
    end()
    assert room(driver) == ROOM


def test_a_device_that_has_no_such_addresses(path, driver, monkeypatch):
    set_(driver, "supported", 0)
    monkeypatch.setattr(device, "DriverAddresses", lambda number: DriverAddresses(number, path))
    xp, _ = cupy_of()
    xp.empty = lambda nbytes, dtype: Array((nbytes,), dtype, SimpleNamespace(ptr=64))
    gpu = CudaDevice(0, H200, xp)
    found, idle = gpu.scratch.take(100)
    idle.append(found)
    assert gpu.scratch.take(50)[0] is found
    assert gpu.scratch.nbytes == 0


@pytest.mark.parametrize(("limit", "memory"), [(0, (60, 100)), (50, (20, 50)), (500, (60, 100))])
def test_what_a_device_has_free(limit, memory):
    assert CudaDevice(0, H200, cupy_of(limit)[0]).memory() == memory


def test_clear_caches_gives_scratch_back(world, driver, monkeypatch):
    monkeypatch.setattr(device, "used", [SimpleNamespace(scratch=world.scratch)])
    world.used(3 * GRANULE)
    assert room(driver) < ROOM
    ge2.clear_caches()
    assert room(driver) == ROOM


def test_a_gpu_that_cannot_do_it(path, driver):
    set_(driver, "supported", 0)
    with pytest.raises(DeviceError, match="no addresses apart from memory"):
        DriverAddresses(0, path)


def test_the_words_for_the_driver_are_as_it_has_them(path, driver):
    """The bindings know how its structures lie."""
    cuda = pytest.importorskip("cuda.bindings.driver")
    found = DriverAddresses(0, path)
    prop, access = cuda.CUmemAllocationProp(), cuda.CUmemAccessDesc()
    prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    for each in (prop, access):
        each.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert ctypes.string_at(prop.getPtr(), 32) == bytes(found.wanted)
    assert ctypes.string_at(access.getPtr(), 12) == bytes(found.access)
    number = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    assert int(number) == arena.SUPPORTED
