"""Loops and branches of lists of launches: conditional nodes of graphs, and the
host where there are none.
"""

from __future__ import annotations

import ctypes
import gc
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import KernelError
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.launch import Branch, Launch, While, in_any_order, one_by_one
from ge2.targets.cuda.launch import graph as native
from ge2.targets.cuda.launch.graph import Nodes
from ge2.targets.cuda.launch.library_call import source
from ge2.targets.cuda.load import library_path
from ge2.targets.cuda.load.nvrtc import ptx
from tests.backends.fake_driver import (
    address,
    at,
    fake_driver,
    fake_product,
    launch_list,
    launches_extension,
    seen,
    set_,
)

pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")
needs_nvrtc = pytest.mark.skipif(
    not library_path("libnvrtc", "cu13", "cuda_nvrtc"), reason="no NVRTC"
)
HEADER = next(Path("/usr/local").glob("cuda*/include/cuda.h"), None)
PTXAS = next(Path("/usr/local").glob("cuda*/bin/ptxas"), None)
N = 8


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return fake_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def made(driver):
    return launches_extension()


@pytest.fixture(params=["conditional nodes", "no switches", "host"])
def how(request):
    return request.param


@pytest.fixture
def run_of(driver, made, monkeypatch):
    def run_of(items, arrays, how="conditional nodes", driver=driver, made=made):
        monkeypatch.setattr(native, "LIBRARY", driver.path)
        current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
        device = SimpleNamespace(
            context=driver.context_of_fake(),
            xp=SimpleNamespace(cuda=current),
            decider=handle(driver, "DECIDED"),
            switches=how != "no switches",
        )
        with config.using(capture="off" if how == "host" else "auto"):
            return native.run_of(made, device, launch_list(items, arrays))

    for name in ("fail_next", "fail_in", "shuffle", "busy", "rigid", "bodies_run"):
        set_(driver, name, 0)
    return run_of


def handle(driver, name):
    return ctypes.addressof(ctypes.c_char.in_dll(driver, name))


class Writer:
    """Launches of the fake driver's kernels, by the numbers of arrays."""

    def __init__(self, driver):
        self.driver = driver

    def kernel(self, name, *arguments, after=(), grid=N):
        kernel = SimpleNamespace(ptr=handle(self.driver, name))
        return Launch(kernel, (grid,), (1,), 0, arguments, name.lower(), "model.py:3", after=after)

    def scaled(self, x, out, k=1.0, add=0.0, after=()):
        return self.kernel("SCALED", at(x), at(out), np.float64(add), np.float32(k), after=after)

    def below(self, x, going, limit, after=()):
        return self.kernel("BELOW", at(x), at(going), np.float32(limit), after=after, grid=1)

    def counted(self, x, y, going, limit, after=()):
        """while x < limit: x = x + 1, through y"""
        test = (self.below(x, going, limit),)
        round_ = (
            self.scaled(x, y, add=1.0),
            self.scaled(y, x, after=(0,)),
            self.below(x, going, limit, (1,)),
        )
        return While(test, round_, at(going), "while", "model.py:7", after)


@pytest.fixture
def write(driver):
    return Writer(driver)


def floats(value=0.0):
    return np.full(N, value, np.float32)


def call(run, *arrays):
    run(*map(address, arrays))


@pytest.mark.exhaustive
@pytest.mark.parametrize("limit", [0, 1, 5, 100])
def test_loops_of_any_number_of_rounds(run_of, write, driver, how, limit):
    run = run_of((write.counted(0, 1, 2, limit), write.scaled(0, 3, after=(0,), k=2.0)), 4, how)
    for n in range(4):
        set_(driver, "bodies_run", 0)
        x, y, going, out = floats(), floats(), np.zeros(1, np.bool_), floats()
        call(run, x, y, going, out)
        np.testing.assert_array_equal(x, floats(limit))
        np.testing.assert_array_equal(out, floats(2 * limit))
        assert seen(driver, "bodies_run") == (0 if n == 0 or how == "host" else limit)
    assert run.counts[:3] == ((4, 4, 0) if how == "host" else (4, 1, 3))
    assert run.choices == (1, 0) and run.trouble is None


@pytest.mark.exhaustive("how")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("index", [-3, 0, 1, 2, 3, 100])
def test_an_index_takes_the_nearest_branch(run_of, write, how, dtype, index):
    lists = tuple((write.scaled(0, 1, k=float(k)),) for k in (3, 5, 7))
    run = run_of((Branch(lists, at(2, 8), np.dtype(dtype), "cond"),), 3, how)
    for _ in range(3):
        x, out, numbers = floats(2), floats(), np.zeros(3, np.int64)
        place = numbers[1:].view(np.uint8)[: np.dtype(dtype).itemsize].view(dtype)
        place[...] = np.array(index).astype(dtype)
        call(run, x, out, numbers)
        taken = min(max(int(place[0]), 0), 2)
        np.testing.assert_array_equal(out, floats(2 * (3, 5, 7)[taken]))
    assert run.choices[0] == (3 if how == "no switches" else 1)


def test_a_branch_of_nothing(run_of, write, how):
    items = (
        Branch(((), (write.scaled(0, 1),)), at(2), np.dtype(bool), "cond"),
        write.scaled(1, 3, after=(0,)),
    )
    run = run_of(items, 4, how)
    for n in range(6):
        x, y, out, index = floats(2), floats(1), floats(), np.array([n % 2 == 1])
        call(run, x, y, index, out)
        np.testing.assert_array_equal(out, floats(1 + n % 2))
    assert run.trouble is None


def nest(write):
    """A loop of a branch of a loop: while a < 3: (b up to 4 | c += 1); a += 1"""
    inner = write.counted(1, 3, 4, 4)
    other = (write.scaled(2, 3, add=1.0), write.scaled(3, 2, after=(0,)))
    branch = Branch((other, (inner,)), at(5), np.dtype(np.int32), "cond")
    step = (write.scaled(0, 3, add=1.0, after=(0,)), write.scaled(3, 0, after=(1,)))
    test = write.below(0, 6, 3)
    again = write.below(0, 6, 3, (2,))
    return (
        While((test,), (branch, *step, again), at(6), "while"),
        write.scaled(0, 3, after=(0,), k=2.0),
    )


@pytest.mark.parametrize("index", [0, 1])
def test_loops_and_branches_in_each_other(run_of, write, how, index):
    run = run_of(nest(write), 7, how)
    for _ in range(4):
        a, b, c, rest = floats(), floats(), floats(), floats()
        inner, outer = np.zeros(1, np.bool_), np.zeros(1, np.bool_)
        call(run, a, b, c, rest, inner, np.array([index], np.int32), outer)
        assert (a[0], b[0], c[0], rest[0]) == (3, 4 * index, 3 * (1 - index), 6)


def test_lists_in_python_mean_the_same(write):
    """The oracle: kernels that are Python's, one by one and in any order."""

    def python(item):
        if isinstance(item, While):
            test, round_ = (tuple(map(python, each)) for each in (item.test, item.body))
            return replace(item, test=test, body=round_)
        if isinstance(item, Branch):
            return replace(item, lists=tuple(tuple(map(python, each)) for each in item.lists))
        return replace(item, function=scaled if item.name == "scaled" else below)

    def scaled(grid, block, handed, shared_mem):
        x, out, add, k = handed
        out[...] = x * k + np.float32(add)

    def below(grid, block, handed, shared_mem):
        x, going, limit = handed
        going[...] = x[0] < limit

    items = tuple(map(python, nest(write)))
    for index in (0, 1):
        for seed in range(4):
            work = launch_list(in_any_order(items, seed) if seed else items, 7)
            a, b, c, rest = floats(), floats(), floats(), floats()
            flags, chosen = (np.zeros(1, np.bool_) for _ in range(2)), np.array([index], np.int32)
            inner, outer = flags
            one_by_one(work, address)(a, b, c, rest, inner, chosen, outer)
            assert (a[0], b[0], c[0], rest[0]) == (3, 4 * index, 3 * (1 - index), 6)


def test_python_reads_what_decides_from_the_gpu():
    """Where there is no extension: through CuPy, after all that was launched."""
    seen = []

    def copy(to, place, nbytes, kind, stream):
        seen.append((kind, stream))
        ctypes.memmove(to, place, nbytes)

    stream = SimpleNamespace(
        ptr=7, is_capturing=lambda: captured, synchronize=lambda: seen.append("waited")
    )
    runtime = SimpleNamespace(memcpyDeviceToHost=2, memcpyAsync=copy)
    cuda = SimpleNamespace(get_current_stream=lambda: stream, runtime=runtime)
    device, index = SimpleNamespace(xp=SimpleNamespace(cuda=cuda)), np.array([5, -9], np.int16)
    item = Branch(((), ()), at(0, 2), index.dtype, "cond", "model.py:9")
    captured = False
    assert native.downloaded(device, item, address(index) + 2) == -9
    assert seen == [(2, 7), "waited"]
    captured = True
    with pytest.raises(
        KernelError, match=r"cond goes on by a number on the GPU.*\n  at   model.py:9"
    ):
        native.downloaded(device, item, address(index))


def loop_calls(run, times):
    """Calls whose pointers are others each time, all of which stay alive."""
    kept = []
    for n in range(times):
        x, y, going, out = floats(n), floats(), np.zeros(1, np.bool_), floats()
        call(run, x, y, going, out)
        kept.append((x, y, going, out))
        np.testing.assert_array_equal(x, floats(max(n, 9)))
        np.testing.assert_array_equal(out, floats(2 * max(n, 9)))


@pytest.mark.parametrize("rigid", [0, 1])
def test_pointers_that_change_are_patched_or_the_graph_is_made_anew(run_of, write, driver, rigid):
    run = run_of((write.counted(0, 1, 2, 9), write.scaled(0, 3, after=(0,), k=2.0)), 4)
    set_(driver, "rigid", rigid)
    loop_calls(run, 20)
    assert run.counts == (20, 1, 4, 0 if rigid else 15)
    assert run.choices == (1, 15 if rigid else 0) and run.trouble is None


@pytest.mark.parametrize("switches", ["conditional nodes", "no switches"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_nodes_wait_for_all_that_they_need(run_of, write, driver, switches, seed):
    """The graph in any order that it allows."""
    around = (write.scaled(0, 3, k=3.0), write.scaled(7, 8, add=2.0))
    loop, last = nest(write)
    loop, last = replace(loop, after=(0,)), replace(last, after=(2,))
    run = run_of((*around, loop, last, write.scaled(8, 7, k=2.0, after=(1,))), 9, switches)
    set_(driver, "shuffle", seed)
    for n in range(8):
        a, b, c, rest, apart, more = (floats() for _ in range(6))
        index = np.array([n % 2], np.int32)
        call(run, a, b, c, rest, np.zeros(1, np.bool_), index, np.zeros(1, np.bool_), apart, more)
        assert (a[0], b[0], c[0], rest[0]) == (3, 4 * (n % 2), 3 * (1 - n % 2), 6)
        assert (apart[0], more[0]) == (4, 2)
    assert run.counts[1] == 1


def test_a_thousand_replays_are_what_the_host_does(run_of, write):
    graph, host = (run_of(nest(write), 7, how) for how in ("conditional nodes", "host"))
    rng, kept = np.random.default_rng(0), []
    for n in range(1000):
        a, b, c = rng.integers(0, 6, 3)
        both = []
        for run in (graph, host):
            arrays = [floats(a), floats(b), floats(c), floats()]
            rest = np.zeros(1, np.bool_), np.array([n % 3 - 1], np.int32), np.zeros(1, np.bool_)
            call(run, *arrays, *rest)
            both.append(arrays)
            kept = [*kept[-20:], (arrays, rest)]
        for x, y in zip(*both, strict=True):
            np.testing.assert_array_equal(x, y)
    assert graph.counts[1] == 1 and host.counts[1] == 1000


def test_products_in_a_round(run_of, write, driver, how):
    """What a library launches is captured, and a graph within that of the list."""
    product = Launch(fake_product(driver, N), (), (), 0, (at(0), at(1), at(2)), "product")
    test, back = write.below(0, 3, 100), write.scaled(2, 0, after=(0,))
    items = (While((test,), (product, back, write.below(0, 3, 100, (1,))), at(3), "while"),)
    run = run_of(items, 4, how)
    kept = []
    for n in range(12):
        x, y, z, going = floats(2 + n), floats(3), floats(), np.zeros(1, np.bool_)
        kept.append((x, y, z, going))
        call(run, x, y, z, going)
        wanted = 2.0 + n
        while wanted < 100:
            wanted *= 3
        np.testing.assert_array_equal(x, floats(wanted))
    assert run.trouble is None


def test_a_driver_without_such_nodes(run_of, tmp_path):
    old = fake_driver(tmp_path, "-DOLD")
    made = launches_extension()
    write = Writer(old)
    items = (write.counted(0, 1, 2, 9), write.scaled(0, 3, after=(0,), k=2.0))
    run = run_of(items, 4, driver=old, made=made)
    loop_calls(run, 8)
    assert run.counts == (8, 8, 0, 0)
    assert "a conditional node fails with" in str(run.trouble) and "(801)" in str(run.trouble)
    assert "model.py:7" in str(run.trouble)


def test_a_decision_waits_for_all_of_its_test(write):
    """Of a loop whose test is two launches that know nothing of each other."""
    test = write.below(0, 2, 9), write.scaled(1, 3)
    nodes = Nodes(launch_list((), 9), 0, True)
    nodes.add_lists((write.scaled(1, 3), While(test, test, at(2), "while", after=(0,))))
    assert nodes.lists == [(0, 5), (5, 3)]
    assert [node[6] for node in nodes.nodes] == [(), (0,), (0,), (1, 2), (3,), (), (), (5, 6)]


def test_nodes_of_a_list_follow_each_other(write):
    nodes = Nodes(launch_list((), 9), 0, True)
    nodes.add_lists((write.counted(0, 1, 2, 9),))
    assert nodes.lists == [(0, 3), (3, 4)]
    assert [node[0] for node in nodes.nodes] == [0, 2, 3, 0, 0, 0, 2]
    assert [node[6] for node in nodes.nodes] == [(), (0,), (1,), (), (3,), (4,), (5,)]


@pytest.mark.parametrize("fails", range(1, 11))
def test_a_graph_that_cannot_be_made_is_given_up(run_of, write, driver, fails):
    """Whichever call of the driver fails: handles, nodes, those of lists."""
    gc.collect()
    before = seen(driver, "graphs"), seen(driver, "execs")
    run = run_of((write.counted(0, 1, 2, 9), write.scaled(0, 3, after=(0,), k=2.0)), 4)
    loop_calls(run, 1)
    set_(driver, "fail_in", fails)
    loop_calls(run, 3)
    set_(driver, "fail_in", 0)
    assert run.counts == (4, 4, 0, 0) and run.trouble is not None
    assert (seen(driver, "graphs"), seen(driver, "execs")) == before


def test_graphs_and_their_lists_go_with_the_run(run_of, write, driver):
    gc.collect()
    before = seen(driver, "graphs"), seen(driver, "execs")
    run = run_of(nest(write), 7)
    for n in range(6):
        a, b, c, rest = floats(), floats(), floats(), floats()
        call(
            run, a, b, c, rest, np.zeros(1, np.bool_), np.array([n % 2], np.int32),
            np.zeros(1, np.bool_),
        )  # fmt: skip
    assert seen(driver, "execs") > before[1]
    del run
    gc.collect()
    assert (seen(driver, "graphs"), seen(driver, "execs")) == before


def test_the_users_capture_is_told_of(run_of, write, driver):
    run = run_of((write.counted(0, 1, 2, 9), write.scaled(0, 3, after=(0,), k=2.0)), 4)
    said = r"while goes on by a number on the GPU, .* captured\n  at   model.py:7\n  try  call it outside"
    for _ in range(2):
        set_(driver, "busy", 1)
        with pytest.raises(KernelError, match=said):
            loop_calls(run, 1)
        set_(driver, "busy", 0)
        loop_calls(run, 3)


def test_a_read_that_fails_names_the_loop(run_of, write, driver):
    run = run_of((write.counted(0, 1, 2, 9),), 3, "host")
    set_(driver, "fail_in", 2)
    with pytest.raises(
        KernelError, match=r"reading what decides fails with .* in while\n  at   model.py:7"
    ):
        call(run, floats(), floats(), np.zeros(1, np.bool_))
    set_(driver, "fail_in", 0)


class Interrupted(Exception):
    """What a signal raises."""


def test_an_endless_loop_of_the_hosts_can_be_interrupted(run_of, write):
    def interrupt(*_):
        raise Interrupted

    run = run_of((write.counted(0, 1, 2, np.inf),), 3, "host")
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Interrupted):
        call(run, floats(), floats(), np.zeros(1, np.bool_))
    signal.signal(signal.SIGALRM, before)
    assert run.counts[:2] == (1, 0)


def test_a_handler_that_calls_the_program_again_is_told(run_of, write):
    run = run_of((write.counted(0, 1, 2, 1e9),), 3, "host")
    arrays = floats(), floats(), np.zeros(1, np.bool_)
    before = signal.signal(signal.SIGALRM, lambda *_: call(run, *arrays))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(
        RuntimeError, match="a program was called while the same thread was launching it"
    ):
        call(run, *arrays)
    signal.signal(signal.SIGALRM, before)
    x, y, going = floats(1e9), floats(), np.zeros(1, np.bool_)
    call(run, x, y, going)  # nobody has it any more
    assert not going[0]


@pytest.mark.parametrize(
    ("about", "lists", "said"),
    [
        ((0, 1, 0, 1), ((0, 1),), "lists that there are not"),  # its own list
        ((0, 1, 1, 1), ((0, 1),), "lists that there are not"),
        ((5, 1, 1, 1), ((0, 1), (1, 0)), "lists that there are not"),
        ((0, 1, 1, 1), ((0, 1), (0, 1)), "do not come later"),
        ((0, 1, 1, 1), ((0, 1), (1, 7)), "launches that there are not"),
        ((0, 1, 1, 1), (), "no list of launches"),
    ],
)
def test_wrong_choices_are_errors(made, driver, about, lists, said):
    node = (3, 0, (1, 1, 1), (1, 1, 1), 0, (), (), "while", about)
    context = driver.context_of_fake()
    with pytest.raises(ValueError, match=said):
        made.Run(driver.path, context, b"", (), (node,), lists, True, None, None, native.failed, ())


# ---------------------------------------------------------------------------------- CUDA's own word


FIELDS = {
    "node": "type",
    "handle": "conditional.handle",
    "type": "conditional.type",
    "size": "conditional.size",
    "bodies": "conditional.phGraph_out",
    "context": "conditional.ctx",
}
KERNEL_FIELDS = {
    "function": "func",
    "shared": "sharedMemBytes",
    "params": "kernelParams",
    "context": "ctx",
}
NUMBERS = {
    "IF": "CU_GRAPH_COND_TYPE_IF",
    "WHILE": "CU_GRAPH_COND_TYPE_WHILE",
    "SWITCH": "CU_GRAPH_COND_TYPE_SWITCH",
    "CONDITIONAL": "CU_GRAPH_NODE_TYPE_CONDITIONAL",
    "UNSUPPORTED": "CUDA_ERROR_NOT_SUPPORTED",
    "IN_CAPTURE": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "APART": "CU_STREAM_NON_BLOCKING",
    "RELAXED": "CU_STREAM_CAPTURE_MODE_RELAXED",
}


@pytest.mark.skipif(HEADER is None, reason="no cuda.h")
def test_layouts_are_those_of_the_real_header(tmp_path):
    own = Path(native.__file__).parents[4] / "templates" / "cuda" / "launch" / "driver.h"
    same = [
        *(
            f"offsetof(ConditionalParams, {a}) == offsetof(CUgraphNodeParams, {b})"
            for a, b in FIELDS.items()
        ),
        *(
            f"offsetof(KernelParams, {a}) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, {b})"
            for a, b in KERNEL_FIELDS.items()
        ),
        *(f"(int){a} == (int){b}" for a, b in NUMBERS.items()),
        "sizeof(ConditionalParams) == sizeof(CUgraphNodeParams)",
        "sizeof(CUgraphConditionalHandle) == 8",
    ]
    checks = "\n".join(f'_Static_assert({each}, "");' for each in same)
    text = own.read_text()
    names = sorted(set(re.findall(r"\b(cu[A-Z]\w+)", text)))
    renamed = "\n".join(f"#define {name} own_{name}" for name in names)
    path = tmp_path / "layouts.c"
    path.write_text(f"#include <cuda.h>\n{undefined(names)}\n{renamed}\n{text}\n{checks}\n")
    subprocess.run(
        ["cc", "-std=gnu11", f"-I{HEADER.parent}", "-fsyntax-only", str(path)], check=True
    )


def undefined(names):
    return "\n".join(f"#undef {name}" for name in names)


@needs_nvrtc
def test_the_kernel_that_decides_is_ptx_of_an_old_version():
    """So that a driver older than NVRTC takes it, and finds the function that it calls."""
    text = ptx(source(), "decide")
    assert text.endswith(b"\0") and b".version 7.0\n" in text and b".target sm_80" in text
    assert b".extern .func cudaGraphSetConditional" in text and b".entry ge2_decide" in text


@needs_nvrtc
@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
def test_the_kernel_that_decides_assembles(tmp_path):
    path = tmp_path / "decide.ptx"
    path.write_bytes(ptx(source(), "decide").rstrip(b"\0"))
    for arch in ("sm_80", "sm_90a", "sm_100"):
        subprocess.run(
            [PTXAS, "-c", f"--gpu-name={arch}", str(path), "-o", str(tmp_path / "out")], check=True
        )


def test_the_kernel_that_decides_clamps_every_integer():
    """It in the shim, with a function of the driver's that writes to where the handle says."""
    declared = "void cudaGraphSetConditional(unsigned long long handle, unsigned value);"
    assert declared in source()
    text = source().replace(declared, declared[:-1] + " { *(unsigned *)handle = value; }")
    decide = ShimDevice().module(text).get_function("ge2_decide")
    found = np.zeros(1, np.uint32)
    for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        t = np.dtype(dtype)
        ends = [0, 1] if dtype == "bool" else [np.iinfo(t).min, np.iinfo(t).max, 0, 1, 2, 3, 5]
        for number in ends:
            x = np.array([number], t)
            nbytes = np.int32(-t.itemsize if t.kind == "i" else t.itemsize)
            for most, which in [(1, -1), (3, -1), (3, 0), (3, 2), (3, 3)]:
                value = min(max(int(x[0]), 0), most)
                decide(
                    (1,),
                    (1,),
                    (np.uint64(address(found)), x, nbytes, np.int32(most), np.int32(which)),
                )
                assert found[0] == (value if which < 0 else value == which), (
                    dtype,
                    number,
                    most,
                    which,
                )
