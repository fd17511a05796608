"""The extension that launches: one by one, as graphs, patched; with a driver that is the CPU's."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import DeviceError, InputError, KernelError
from ge2.targets.cuda import launch as arguments
from ge2.targets.cuda.launch import HostScalar, Launch, TensorMap, Tiles
from ge2.targets.cuda.launch import graph as native
from ge2.targets.cuda.launch.library_call import Function, LibraryCall
from tests.backends.fake_driver import (
    NUMBER,
    address,
    address_of,
    at,
    biased_product,
    fake_driver,
    launch_list,
    launches_extension,
    on_device,
    seen,
    set_,
)
from tests.threads import on_threads

HEADER = next(Path("/usr/local").glob("cuda*/include/cuda.h"), None)
N = 8
pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return fake_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def made(driver):
    """The extension, which loads its driver once a process: a copy of it, for the fake one."""
    return launches_extension()


def array(values):
    return np.full(N, values, np.float32)


def scaled(driver, x, out, add=1.0, after=()):
    """out = x * (number 0) + add"""
    function = ctypes.addressof(ctypes.c_char.in_dll(driver, "SCALED"))
    parameters = ((False, *x), (False, *out), np.float64(add).tobytes(), (True, 0, 0))
    return (
        0, function, (N, 1, 1), (1, 1, 1), 0, parameters, after,
        f"scaled\n  at   model.py:{add:.0f}", (),
    )  # fmt: skip


def product(driver, x, y, out, after=()):
    words = (N, 1, 1, (False, *x), 1, (False, *y), 1, 1, (False, *out), 1, 1, 1, 1, 1, 1, None)
    call = "fake_matmul", address_of(driver, "fake_matmul"), words, (), "status {}".format
    return 1, 0, (1, 1, 1), (1, 1, 1), 0, (call,), after, "product", ()


@pytest.fixture
def make(driver, made):
    def make(captures=True, arrays=4, sizes=(4,), nodes=None, callers=None, ready=None, told=None):
        callers = bytes(arrays) if callers is None else callers
        if nodes is None:  # y = x * k + 1; z = y * x; w = z * k + 2
            nodes = (
                scaled(driver, (0, 0), (1, 0)),
                product(driver, (1, 0), (0, 0), (2, 0), (0,)),
                scaled(driver, (2, 0), (3, 0), 2.0, (1,)),
            )
        stream = lambda: SimpleNamespace(ptr=0)  # noqa: E731
        context, lists = driver.context_of_fake(), ((0, len(nodes)),)
        return made.Run(
            driver.path, context, callers, sizes, nodes, lists, captures, ready, stream,
            native.failed, nodes, told,
        )  # fmt: skip

    set_(driver, "fail_next", 0)
    set_(driver, "fail_after", 0)
    set_(driver, "busy", 0)
    return make


def wanted(x, k):
    return (x * k + 1) * x * k + 2


def call(run, x, k, arrays=None):
    y, z, w = arrays or (array(0), array(0), array(0))
    run(on_device(x), address(y), on_device(z), address(w), np.float32(k))
    return w


@pytest.mark.parametrize("captures", [False, True])
def test_many_calls_are_right(make, captures):
    run = make(captures)
    for n in range(20):
        x = array(n)
        np.testing.assert_array_equal(call(run, x, n % 3), wanted(x, n % 3))
    calls, one_by_one, graphs, patched = run.counts
    assert calls == 20
    assert (one_by_one, graphs, patched) == ((1, 4, 15) if captures else (20, 0, 0))


def test_the_same_places_are_patched_by_nothing(make, driver):
    run, x, rest = make(), array(3), (array(0), array(0), array(0))
    for _ in range(50):
        call(run, x, 2.0, rest)
    assert run.counts == (50, 1, 1, 0)
    before = seen(driver, "captures_begun")
    x[:] = 5  # what lies there may change
    np.testing.assert_array_equal(call(run, x, 2.0, rest), wanted(x, 2.0))
    assert seen(driver, "captures_begun") == before


def test_only_what_changed_is_patched(make, driver):
    """A number that only kernels take: no library is captured again."""
    run, x, rest = make(), array(3), (array(0), array(0), array(0))
    for k in range(6):
        np.testing.assert_array_equal(call(run, x, k, rest), wanted(x, np.float32(k)))
    captured = seen(driver, "captures_begun")
    for k in range(6, 20):
        np.testing.assert_array_equal(call(run, x, k, rest), wanted(x, np.float32(k)))
    assert seen(driver, "captures_begun") == captured
    assert run.counts == (20, 1, 1, 18)  # one graph serves all numbers


def test_offsets_count_from_the_beginning(make, driver):
    nodes = (scaled(driver, (0, 4 * N), (1, 8)),)
    run = make(arrays=2, nodes=nodes)
    for n in range(5):
        x, y = np.arange(2 * N, dtype=np.float32) + n, np.zeros(N + 2, np.float32)
        run(on_device(x), address(y), np.float32(3))
        np.testing.assert_array_equal(y[2:], x[N:] * 3 + 1)
        assert not y[:2].any()


@pytest.mark.parametrize("captures", [False, True])
def test_kernels_whose_blocks_wait_for_each_other(make, driver, captures):
    """One by one, in graphs, and in those that were patched."""
    (kind, *parts, _), other = (
        scaled(driver, (0, 0), (1, 0)),
        scaled(driver, (1, 0), (2, 0), 2.0, (0,)),
    )
    run = make(captures, arrays=3, nodes=((kind, *parts, (1,)), other))
    set_(driver, "cooperative", 0)
    for n in range(20):
        x, y, z = array(n), array(0), array(0)
        run(on_device(x), address(y), address(z), np.float32(3))
        np.testing.assert_array_equal(z, (x * 3 + 1) * 3 + 2)
        assert seen(driver, "cooperative") == n + 1
    assert run.counts[3] == (15 if captures else 0)


@pytest.mark.parametrize("refused", [False, True])
def test_kernels_that_wait_by_themselves_are_launched_early_in_a_stream(driver, make, refused):
    *one, _ = scaled(driver, (0, 0), (1, 0))
    other = scaled(driver, (1, 0), (2, 0), 2.0, (0,))
    run = make(False, arrays=3, nodes=((*one, (False, True)), other))
    set_(driver, "unserialized", refused)
    for captured in (0, 1):  # in a graph of somebody else's nothing is
        set_(driver, "serialized", 0)
        set_(driver, "busy", captured)
        x, y, z = array(5), array(0), array(0)
        run(on_device(x), address(y), address(z), np.float32(3))
        np.testing.assert_array_equal(z, (x * 3 + 1) * 3 + 2)
        assert seen(driver, "serialized") == (not captured and not refused)
    set_(driver, "busy", 0)
    set_(driver, "unserialized", 0)


def test_the_time_of_a_graph_is_counted_and_told(make):
    heard = []
    run, x, rest = (
        make(told=lambda *said: heard.append(said)),
        array(3),
        (array(0), array(0), array(0)),
    )
    call(run, x, 2.0, rest)
    assert run.seconds == 0 and not heard
    for _ in range(3):
        call(run, x, 2.0, rest)
    ((count, seconds),) = heard  # one graph, launched three times
    assert count == 3 and 0 < seconds == run.seconds < 1
    call(run, array(4), 2.0)
    assert len(heard) == 2 and run.seconds == pytest.approx(seconds + heard[1][1])
    assert make(captures=False).seconds == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_fails_in_telling_fails_no_call(make, monkeypatch):
    lost = []
    monkeypatch.setattr("sys.unraisablehook", lost.append)
    run, x = make(told=lambda *said: 1 // 0), array(1)
    for k in range(3):
        np.testing.assert_array_equal(call(run, x, k), wanted(x, np.float32(k)))
    assert run.trouble is None and run.counts[2] == 2
    assert [each.exc_type for each in lost] == [ZeroDivisionError] * 2


def test_a_failure_names_the_kernel_and_the_line(make, driver):
    run, x = make(captures=False), array(1)
    set_(driver, "fail_next", 1)
    with pytest.raises(
        KernelError,
        match=r"cuLaunchKernel fails with CUDA_ERROR_FAKE \(1\) in scaled\n  at   model.py:1",
    ):
        call(run, x, 1.0)
    np.testing.assert_array_equal(call(run, x, 1.0), wanted(x, 1))


def test_no_graph_no_matter(make, driver):
    """What cannot be captured is launched one by one, and says why."""
    run, x = make(), array(1)
    call(run, x, 1.0)
    assert run.trouble is None
    before = seen(driver, "graphs"), seen(driver, "execs")
    set_(driver, "fail_next", 2)
    np.testing.assert_array_equal(call(run, x, 2.0), wanted(x, 2))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in str(run.trouble)
    for k in range(5):
        np.testing.assert_array_equal(call(run, x, k), wanted(x, np.float32(k)))
    assert run.counts[1:] == (7, 0, 0)
    assert (seen(driver, "graphs"), seen(driver, "execs")) == before


def test_a_patch_that_fails_leaves_nothing_wrong(make, driver):
    run, rest = make(), (array(0), array(0), array(0))
    kept = [array(1) for _ in range(6)]
    for k, x in enumerate(kept):
        call(run, x, k, rest)
    assert run.counts[2] == 4
    set_(driver, "fail_next", 2)
    x = array(7)
    np.testing.assert_array_equal(call(run, x, 9.0, rest), wanted(x, 9))
    assert run.trouble is not None
    np.testing.assert_array_equal(call(run, x, 8.0, rest), wanted(x, 8))


OUT_OF_MEMORY = 2


@pytest.mark.parametrize("calls", range(10))
def test_out_of_memory_anywhere_in_a_capture(make, driver, calls):
    """While a graph is made, and at its launch: launched one by one,
    then and from then on, and told.
    """
    run, x = make(), array(1)
    call(run, x, 1.0)
    gc.collect()
    before = seen(driver, "graphs"), seen(driver, "execs")
    set_(driver, "fail_after", calls)
    set_(driver, "fail_next", OUT_OF_MEMORY)
    np.testing.assert_array_equal(call(run, x, 2.0), wanted(x, 2))
    assert seen(driver, "fail_next") == 0, "nothing failed"
    said = "status 2 (2) in product" if calls == 4 else "CUDA_ERROR_OUT_OF_MEMORY (2)"
    assert said in str(run.trouble)
    np.testing.assert_array_equal(call(run, array(3), 4.0), wanted(array(3), 4))
    assert run.counts[:3] == (3, 3, 0)
    assert (seen(driver, "graphs"), seen(driver, "execs")) == before


@pytest.mark.parametrize("calls", range(7))
def test_out_of_memory_anywhere_in_a_patch(make, driver, calls):
    run, rest = make(), (array(0), array(0), array(0))
    for k in range(6):
        call(run, array(k), k, rest)
    set_(driver, "fail_after", calls)
    set_(driver, "fail_next", OUT_OF_MEMORY)
    x, others = array(7), (array(0), array(0), array(0))
    np.testing.assert_array_equal(call(run, x, 9.0, others), wanted(x, 9))
    assert seen(driver, "fail_next") == 0, "nothing failed"
    assert run.trouble is not None
    np.testing.assert_array_equal(call(run, x, 8.0, others), wanted(x, 8))


def test_a_launch_without_memory_is_an_error_of_memory(make, driver):
    run, x = make(captures=False), array(1)
    set_(driver, "fail_next", OUT_OF_MEMORY)
    with pytest.raises(
        MemoryError, match=r"cuLaunchKernel fails with CUDA_ERROR_OUT_OF_MEMORY \(2\) in scaled"
    ):
        call(run, x, 1.0)
    np.testing.assert_array_equal(call(run, x, 1.0), wanted(x, 1))


def test_a_graph_that_fails_for_another_reason_is_an_error(make, driver):
    run, x = make(), array(1)
    rest = array(0), array(0), array(0)
    for _ in range(3):
        call(run, x, 1.0, rest)
    set_(driver, "fail_next", 1)
    with pytest.raises(KernelError, match="cuGraphLaunch fails with CUDA_ERROR_FAKE"):
        call(run, x, 1.0, rest)


def test_inside_the_capture_of_another(make, driver):
    run, x = make(), array(1)
    for _ in range(3):
        call(run, x, 1.0)
    set_(driver, "busy", 1)
    before = run.counts[1]
    call(run, x, 1.0)
    assert run.counts[1] == before + 1
    set_(driver, "busy", 0)


def test_in_a_thread_without_a_context(make, driver):
    run, x = make(), array(2)
    driver.leave_context()
    np.testing.assert_array_equal(call(run, x, 1.0), wanted(x, 1))


def test_graphs_go_with_the_run(make, driver):
    gc.collect()
    before = seen(driver, "graphs"), seen(driver, "execs")
    run = make()
    kept = [array(n) for n in range(9)]
    for n, x in enumerate(kept):
        call(run, x, n)
    assert seen(driver, "execs") == before[1] + 4
    del run
    gc.collect()
    assert (seen(driver, "graphs"), seen(driver, "execs")) == before


@pytest.mark.parametrize(
    "given",
    [
        lambda y: (y, y, y, y),  # too few
        lambda y: (y, y, y, y, np.float64(1)),  # a number of another size
        lambda y: (y, "no array", y, y, np.float32(1)),
        lambda y: (y, -1, y, y, np.float32(1)),
    ],
)
def test_wrong_calls_are_errors(make, given):
    with pytest.raises((TypeError, AttributeError, OverflowError, BufferError)):
        make()(*given(address(array(0))))


def test_wrong_nodes_are_errors(make, driver):
    with pytest.raises(ValueError, match="a number that there is not"):
        make(arrays=1, nodes=(scaled(driver, (0, 0), (1, 0)),))
    with pytest.raises(ValueError, match="what comes later"):
        make(nodes=(scaled(driver, (0, 0), (1, 0), after=(0,)),))
    with pytest.raises(TypeError, match="a tuple of nine"):
        make(nodes=((1, 2),))


def test_arrays_of_callers_are_made_ready(make, driver):
    """What is not in order, or begins at no multiple of 16, is copied;
    the copy lives while it is read.
    """
    whole, copies = np.zeros(64, np.float32), []

    def ready(x):
        copies.append(on_device(x.aligned))
        return copies[-1]

    run = make(arrays=2, nodes=(scaled(driver, (0, 0), (1, 0)),), callers=b"\1\0", ready=ready)
    start = -address(whole) % 16 // 4
    for shift, ordered, copied in [(0, True, 0), (1, True, 1), (0, False, 2), (4, True, 2)]:
        x, y = whole[start + shift :][:N], np.zeros(N, np.float32)
        x[:] = np.arange(N)
        given = on_device(x)
        given._c_contiguous, given.aligned = ordered, np.arange(N, dtype=np.float32)
        run(given, address(y), np.float32(2))
        np.testing.assert_array_equal(y, np.arange(N) * 2 + 1)
        assert len(copies) == copied


def test_what_is_not_on_the_device_is_sent_there(make, driver):
    """Outside `jit`, an operation may meet NumPy's arrays beside the device's."""
    seen_, y = [], np.zeros(N, np.float32)

    def ready(x):
        seen_.append(on_device(np.array(x)))
        return seen_[-1]

    nodes = (scaled(driver, (0, 0), (1, 0)),)
    run = make(arrays=2, nodes=nodes, callers=b"\1\0", ready=ready)
    run(np.arange(N, dtype=np.float32), address(y), np.float32(3))
    np.testing.assert_array_equal(y, np.arange(N) * 3 + 1)
    assert len(seen_) == 1
    wrong = make(arrays=2, nodes=nodes, callers=b"\1\0", ready=lambda x: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        wrong(3.0, address(y), np.float32(3))


def test_a_list_of_launches_as_the_device_makes_it(made, driver, monkeypatch):
    """The whole way from a list, with what a kernel of CuPy's and a product of ours are."""
    monkeypatch.setattr(native, "LIBRARY", driver.path)
    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
    device = SimpleNamespace(context=driver.context_of_fake(), xp=SimpleNamespace(cuda=current))
    kernel = SimpleNamespace(ptr=ctypes.addressof(ctypes.c_char.in_dll(driver, "SCALED")))

    def launch(source, target, add, after=()):
        arguments = (at(*source), at(*target), np.float64(add), NUMBER)
        return Launch(kernel, (N, 1), (1,), 0, arguments, "scaled", "model.py:3", after=after)

    both = launch((0, 0), (1, 0), 1), launch((1, 0), (1, 4 * N), 2, (0,))
    work = launch_list(both, 2, (NUMBER,), [0], np.array)
    x, y = on_device(np.arange(N, dtype=np.float32)), np.zeros(2 * N, np.float32)
    x._c_contiguous = True
    for captured, patience in ((True, 5), (False, 2)):
        with config.using(capture="on"):
            run = native.run_of(made, device, replace(work, captured=captured))
        for k in range(patience):
            run(x, address(y), np.float32(k))
            np.testing.assert_array_equal(y[N:], (np.arange(N) * k + 1) * k + 2)
        assert (run.counts[2] > 0) == captured


def library_run(driver, made, monkeypatch, how, call=None):
    """A kernel, then the calls of a library: (x, bias, out, between, number)"""
    monkeypatch.setattr(native, "LIBRARY", driver.path)
    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
    device = SimpleNamespace(context=driver.context_of_fake(), xp=SimpleNamespace(cuda=current))
    kernel = SimpleNamespace(ptr=ctypes.addressof(ctypes.c_char.in_dll(driver, "SCALED")))
    descriptor = ctypes.c_void_p()
    call = call or biased_product(driver, N, ctypes.addressof(descriptor))
    call.owner = descriptor
    number = HostScalar("double", 8)
    arguments = at(0), at(3), np.float64(1), np.float32(3)
    first = Launch(kernel, (N,), (1,), 0, arguments, "scaled")
    given = at(3, 4), at(1), at(2), number
    last = Launch(call, (), (), 0, given, "biased", "model.py:9", frozenset([2]), after=(0,))
    work = launch_list((first, last)[how == "python" :], 4, (number,))
    if how == "python":
        return native.from_python(device, work)
    with config.using(capture="on" if how == "graph" else "off"):
        return native.run_of(made, device, work)


@pytest.mark.parametrize("how", ["graph", "one by one", "python"])
def test_functions_of_a_library_in_order(driver, made, monkeypatch, how):
    """Integers, floating numbers, addresses, tables of addresses and of numbers, the stream."""
    run = library_run(driver, made, monkeypatch, how)
    set_(driver, "described", 0)
    set_(driver, "ended", 0)
    for n in range(20):
        x, bias, out, between = array(n), array(n % 3), array(0), np.zeros(N + 1, np.float32)
        if how == "python":
            between[:N] = x * 3 + 1
        run(*map(address, (x, bias, out, between)), np.float64(n))
        wanted = 2 * n * between[1:] + 0.5 * bias
        np.testing.assert_array_equal(out, wanted)
    assert seen(driver, "described") == seen(driver, "ended") >= 16
    if how == "graph":
        assert run.trouble is None and run.counts == (20, 1, 4, 15)


@pytest.mark.parametrize("how", ["graph", "one by one", "python"])
def test_what_a_library_says_of_an_error(driver, made, monkeypatch, how):
    call = biased_product(driver, N, 0)
    describe, _, end = call.functions
    wrong = replace(describe, words=(*describe.words[:3], 7))
    call.functions = end, wrong, end
    run = library_run(driver, made, monkeypatch, how, call)
    words = r"fake_describe fails with number 3 \(3\) in biased\n  at   model.py:9"
    with pytest.raises(KernelError, match=words if how != "python" else "fails with 3: number 3"):
        run(*map(address, (array(0),) * 4), np.float64(1))


def test_a_function_with_too_many_arguments(driver, made, monkeypatch):
    for words in ((0,) * 25, (1.0,) * 9):
        call = LibraryCall("fake", [Function("fake_end", address_of(driver, "fake_end"), words)])
        with pytest.raises(ValueError, match="fake_end takes more arguments"):
            library_run(driver, made, monkeypatch, "graph", call)


TILES = Tiles(np.dtype(np.float32), (3, 6), (8, 1), (2, 4), swizzle=64, promotion=256)


def tiled_run(driver, made, monkeypatch, how, tiles=TILES):
    """(x, out, number): out = x * number, x by a tensor map from its fifth element on."""
    monkeypatch.setattr(native, "LIBRARY", driver.path)
    monkeypatch.setattr(arguments, "LIBRARY", driver.path)
    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
    device = SimpleNamespace(context=driver.context_of_fake(), xp=SimpleNamespace(cuda=current))
    kernel = SimpleNamespace(ptr=ctypes.addressof(ctypes.c_char.in_dll(driver, "TILED")))
    if how == "python":
        kernel = by_python
    given = NUMBER, TensorMap(at(0, 16), tiles), at(1)
    launch = Launch(kernel, (1,), (1,), 0, given, "tiled", "model.py:3")
    work = launch_list((launch,), 2, (NUMBER,))
    if how == "python":
        return native.from_python(device, work)
    with config.using(capture="on" if how == "graph" else "off"):
        return native.run_of(made, device, work)


def by_python(grid, block, handed, shared_mem):
    """What CuPy's function is handed, as the kernel reads it."""
    k, tensor_map, out = handed
    assert tensor_map.nbytes == 128 and tensor_map.shape == ()
    place = int(np.frombuffer(tensor_map.tobytes()[:8], np.uint64)[0])
    x = np.frombuffer((ctypes.c_char * 88).from_address(place), np.float32)
    rows = np.lib.stride_tricks.as_strided(x, (3, 6), (32, 4))
    to = np.frombuffer((ctypes.c_char * 72).from_address(int(out)), np.float32).reshape(3, 6)
    to[...] = rows * k


@pytest.mark.parametrize("how", ["graph", "one by one", "python"])
def test_tensor_maps_are_made_again_where_an_address_changes(driver, made, monkeypatch, how):
    run, kept = tiled_run(driver, made, monkeypatch, how), []
    set_(driver, "encoded", 0)
    for n in range(24):
        if n % 3 == 0:
            x = np.random.default_rng(n).standard_normal(40).astype(np.float32)
            kept.append((x, np.zeros((3, 6), np.float32)))
        x, out = kept[-1]
        out[...] = 0
        run(address(x), address(out), np.float32(n))
        rows = np.lib.stride_tricks.as_strided(x[4:], (3, 6), (32, 4))
        np.testing.assert_array_equal(out, rows * np.float32(n))
    assert seen(driver, "encoded") == (24 if how == "python" else 8)
    if how == "graph":
        assert run.trouble is None and run.counts[:3] == (24, 1, 4)


@pytest.mark.parametrize("how", ["graph", "one by one"])
def test_a_tensor_map_that_the_driver_refuses(driver, made, monkeypatch, how):
    run = tiled_run(driver, made, monkeypatch, how)
    x, out = np.zeros(41, np.float32), np.zeros((3, 6), np.float32)
    with pytest.raises(KernelError, match=r"cuTensorMapEncodeTiled fails with CUDA_ERROR_FAKE"):
        run(address(x) + 4, address(out), np.float32(1))
    x[...] = 2
    for _ in range(4):
        run(address(x), address(out), np.float32(3))
        np.testing.assert_array_equal(out, np.full((3, 6), 6, np.float32))


def test_a_driver_without_tensor_maps(tmp_path, monkeypatch):
    old, made = fake_driver(tmp_path, "-DOLD"), launches_extension()
    run = tiled_run(old, made, monkeypatch, "one by one")
    x, out = np.zeros(40, np.float32), np.zeros((3, 6), np.float32)
    with pytest.raises(
        KernelError, match=r"cuTensorMapEncodeTiled fails with \w+ \(801\) in tiled"
    ):
        run(address(x), address(out), np.float32(1))
    with pytest.raises(DeviceError, match="CUDA 12 or newer"):
        tiled_run(old, None, monkeypatch, "python")(address(x), address(out), np.float32(1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strides": (6, 1)}, "multiples of 16 bytes apart"),
        ({"strides": (8, 2)}, "multiples of 16 bytes apart"),
        ({"strides": (-8, 1)}, "follow each other"),
        ({"box": (2, 3)}, "its rows multiples of 16 bytes"),
        ({"box": (257, 4)}, "at most 256 elements"),
        ({"box": (2, 32)}, "longer than the pattern"),
        ({"box": (4,)}, "1 to 5 axes"),
    ],
)
def test_tiles_that_no_driver_takes(change, words):
    with pytest.raises(InputError, match=words):
        replace(TILES, **change).encoding()


def test_what_is_no_parameter_is_refused(make, driver):
    kind, function, *sizes, parameters, after, name, about = scaled(driver, (0, 0), (1, 0))
    for wrong in ((True, 0, 0, bytes(136)), (False, 0, 0, bytes(135)), (False, 9, 0, bytes(136))):
        given = (*parameters[:3], wrong)
        with pytest.raises(ValueError, match=r"a tensor map of|that there is not"):
            make(nodes=((kind, function, *sizes, given, after, name, about),))
    call = "fake_end", address_of(driver, "fake_end"), ((False, 0, 0, bytes(136)),), (), str
    with pytest.raises(ValueError, match="a tensor map of a number|more than eight bytes"):
        make(nodes=((1, 0, (1, 1, 1), (1, 1, 1), 0, (call,), (), "call", ()),))


@pytest.mark.skipif(HEADER is None, reason="no cuda.h")
def test_numbers_of_tensor_maps_are_those_of_the_real_header(tmp_path):
    names = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "uint8": 0, "int64": 5}
    assert {t.name: n for t, n in arguments.TYPES.items()}.items() >= names.items()
    checks = [f"CU_TENSOR_MAP_DATA_TYPE_{name.upper()} == {n}" for name, n in names.items()]
    checks += [f"CU_TENSOR_MAP_SWIZZLE_{n}B == {v}" for n, v in arguments.SWIZZLES.items() if n]
    checks += [
        f"CU_TENSOR_MAP_L2_PROMOTION_L2_{n}B == {v}" for n, v in arguments.PROMOTIONS.items() if n
    ]
    checks += [f"sizeof(CUtensorMap) == {arguments.NBYTES}"]
    text = "".join(f'_Static_assert({each}, "");\n' for each in checks)
    path = tmp_path / "numbers.c"
    path.write_text(f"#include <cuda.h>\n{text}")
    subprocess.run(
        ["cc", "-std=gnu11", f"-I{HEADER.parent}", "-fsyntax-only", str(path)], check=True
    )


def test_a_call_made_before_its_launches_are_told_of_the_extension(monkeypatch):
    """Both wait for the extension, and the thread that tells them takes its time."""
    from ge2.targets.cuda.launch import Straight
    from ge2.targets.cuda.launch.graph import call_of

    launched = native.Meanwhile(None, launch_list((), 0))
    given = []
    extension = SimpleNamespace(Call=lambda *parts: given.append(parts[-1]))
    current = SimpleNamespace(get_current_stream=None, runtime=SimpleNamespace(getDevice=None))
    device = SimpleNamespace(number=0, lost=[], xp=SimpleNamespace(cuda=current))
    work = Straight(0, (), (), 0, (), None, 0, (), (), None, None, None, launched)
    told = []
    call_of(extension, device, work, None)
    monkeypatch.setattr(native, "run_of", lambda *_: SimpleNamespace(counts=(0, 0, 0, 0)))
    launched.settle(extension)
    launched.run = told.append
    given[0](1)
    assert told == [1]
    launched.run = SimpleNamespace(counts=(0, 0, 0, 0))
    call_of(extension, device, work, None)
    assert given[1] is launched.run  # with nothing between, once it is there


def test_threads_meet_in_no_list(make, driver):
    """Getting arguments ready is Python, in which other threads may call the same list."""
    nodes = (scaled(driver, (0, 0), (1, 0)), scaled(driver, (2, 0), (3, 0)))

    def ready(x):
        time.sleep(0.005)
        return on_device(np.array(x))

    run, wrong = make(captures=False, nodes=nodes, callers=b"\1\0\1\0", ready=ready), []

    def work(seed):
        for _ in range(10):
            a, b, y, z = array(seed), array(seed + 0.5), array(0), array(0)
            given = on_device(a)
            given._c_contiguous = True
            run(given, address(y), b, address(z), np.float32(2))
            if (y != a * 2 + 1).any() or (z != b * 2 + 1).any():
                wrong.append(seed)
            time.sleep(0.001 * seed)

    on_threads(*(partial(work, n) for n in (1, 2, 3)))
    assert not wrong


def test_streams_go_with_the_run(make, driver):
    gc.collect()
    before = seen(driver, "streams")
    run = make()
    for n in range(4):
        call(run, array(n), n)
    assert seen(driver, "streams") == before + 1
    del run
    gc.collect()
    assert seen(driver, "streams") == before


def test_what_went_wrong_keeps_no_frames(make, driver):
    run = make()
    call(run, array(1), 1.0)
    set_(driver, "fail_next", 2)
    call(run, array(1), 1.0)
    assert run.trouble is not None
    assert run.trouble.__traceback__ is None
