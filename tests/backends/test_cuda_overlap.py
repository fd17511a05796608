"""Kernels of a graph that are launched before those they wait for have ended:
which, and if none may be.
"""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from itertools import count, takewhile
from types import SimpleNamespace

import numpy as np
import pytest

from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.compile.catalog import manner
from ge2.targets.cuda.launch import Branch, Launch, While
from ge2.targets.cuda.launch import graph as native
from ge2.targets.cuda.launch.graph import Nodes
from tests.backends.fake_driver import (
    NUMBER,
    address,
    address_of,
    at,
    fake_driver,
    launch_list,
    launches_extension,
    on_device,
    seen,
    set_,
)

N = 8
EARLY = 1000  # what the fake driver adds to the number of a need that need not have ended
OUT_OF_MEMORY = 2
pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return fake_driver(tmp_path_factory.mktemp("driver")), launches_extension()


@pytest.fixture(scope="module")
def made_old(tmp_path_factory):
    """A driver that knows of no such edges."""
    found = fake_driver(tmp_path_factory.mktemp("driver"), "-DNO_EDGES")
    return found, launches_extension()


@pytest.fixture
def driver(made):
    for name in ("fail_next", "fail_after", "fail_in", "no_early", "early_rigid"):
        set_(made[0], name, 0)
    yield made[0]
    for name in ("no_early", "early_rigid"):
        set_(made[0], name, 0)


def scaled(driver, x, out, add, after=(), shift=0):
    """out = x * (number 0) + add"""
    function = ctypes.addressof(ctypes.c_char.in_dll(driver, "SCALED"))
    parameters = ((False, x, 0), (False, out, shift), np.float64(add).tobytes(), (True, 0, 0))
    return 0, function, (N, 1, 1), (1, 1, 1), 0, parameters, after, "scaled\n  at   model.py:1", ()


def product(driver, x, y, out, after=()):
    words = (
        N, 1, 1, (False, x, 0), 1, (False, y, 0), 1, 1, (False, out, 0), 1, 1, 1, 1, 1, 1, None,
    )  # fmt: skip
    call = "fake_matmul", address_of(driver, "fake_matmul"), words, (), "OUT_OF_MEMORY {}".format
    return 1, 0, (1, 1, 1), (1, 1, 1), 0, (call,), after, "product", ()


def run_of(made, nodes, arrays):
    driver, extension = made
    stream = lambda: SimpleNamespace(ptr=0)  # noqa: E731
    return extension.Run(
        driver.path, driver.context_of_fake(), bytes(arrays), (4,), nodes, ((0, len(nodes)),), True,
        None, stream, native.failed, nodes,
    )  # fmt: skip


def chain(made):
    """y = x * k + 1; z = y * k + 2; w = z * y; v = w * k + 3; y = z * k + 4,
    which v waits for no more.
    """
    driver = made[0]
    nodes = (
        scaled(driver, 0, 1, 1),
        scaled(driver, 1, 2, 2, (~0,)),
        product(driver, 2, 1, 3, (0, 1)),
        scaled(driver, 3, 4, 3, (2,)),
        scaled(driver, 2, 1, 4, (2, ~1)),
    )
    return run_of(made, nodes, 5)


def wanted(x, k):
    y = x * k + 1
    z = y * k + 2
    return z * y * k + 3, z * k + 4


def call(run, x, k, arrays=None):
    y, z, w, v = np.zeros((4, N), np.float32) if arrays is None else arrays
    run(on_device(x), address(y), address(z), address(w), address(v), np.float32(k))
    return v, y


def check(run, x, k, arrays=None):
    for found, right in zip(call(run, x, k, arrays), wanted(x, np.float32(k)), strict=True):
        np.testing.assert_array_equal(found, right)


def waits(driver, node):
    """What a node of the graph made last waits for."""
    return [*takewhile(lambda n: n >= 0, (driver.wait_of(node, n) for n in count()))]


def values(seed):
    return np.arange(N, dtype=np.float32) + seed


def test_edges_between_kernels_that_wait_are_early_and_no_others(made, driver):
    run = chain(made)
    for n in range(12):
        check(run, values(n), n % 3)
    assert [waits(driver, n) for n in range(5)] == [[], [EARLY], [0, 1], [2], [2, EARLY + 1]]
    assert run.early == 2 and run.whole is None and run.trouble is None
    assert "2 waits overlapped" in manner(run)


def test_such_graphs_are_patched(made, driver):
    run, rest = chain(made), np.zeros((4, N), np.float32)
    x = values(1)
    for k in range(9):
        check(run, x, k, rest)
    assert run.counts == (9, 1, 1, 7)
    for n, x in enumerate([values(n) for n in range(9)]):  # other places
        check(run, x, n)
    assert run.counts[2] == 4 and run.whole is None


@pytest.mark.parametrize("how", [1, 2])
def test_where_the_driver_refuses_every_launch_waits(made, driver, how):
    """The edge, or the graph: another is made, and the report says why."""
    gc.collect()
    before = seen(driver, "graphs"), seen(driver, "execs")
    set_(driver, "no_early", how)
    run, rest = chain(made), np.zeros((4, N), np.float32)
    for k in range(6):
        check(run, values(3), k, rest)
    assert run.trouble is None and run.counts[2] >= 1
    what = "cuGraphAddDependencies fails with" if how == 1 else "cuGraphInstantiate fails with"
    assert what in str(run.whole) and run.early == 0
    assert waits(driver, 1) == [0] and waits(driver, 4) == [2, 1]
    assert "none overlapped, for cuGraph" in manner(run) and run.whole.__traceback__ is None
    del run
    gc.collect()
    assert (seen(driver, "graphs"), seen(driver, "execs")) == before


def test_with_an_old_driver_every_launch_waits(made_old):
    run = chain(made_old)
    for n, x in enumerate([values(n) for n in range(6)]):
        check(run, x, n)
    assert "cuGraphAddDependencies" in str(run.whole) and run.trouble is None
    assert run.counts[2] == 4 and waits(made_old[0], 1) == [0]


def test_where_the_driver_refuses_a_patch_the_graph_is_made_anew(made, driver):
    set_(driver, "early_rigid", 1)
    run, x, rest = chain(made), values(2), np.zeros((4, N), np.float32)
    for k in range(8):
        check(run, x, k, rest)
    assert run.trouble is None and "a parameter's change fails" in str(run.whole)
    assert run.counts[1:3] == (1, 1) and run.choices[1] == 1  # once; from then on it is patched
    assert waits(driver, 1) == [0]


@pytest.mark.parametrize("calls", range(12))
def test_out_of_memory_is_not_held_against_them(made, driver, calls):
    """It is launched one by one from then on, as any other."""
    run = chain(made)
    check(run, values(0), 1)
    set_(driver, "fail_after", calls)
    set_(driver, "fail_next", OUT_OF_MEMORY)
    check(run, values(1), 2)
    assert seen(driver, "fail_next") == 0, "nothing failed"
    assert run.whole is None and "OUT_OF_MEMORY" in str(run.trouble)


def test_what_fails_whole_too_is_launched_one_by_one(made, driver):
    run = chain(made)
    check(run, values(0), 1)
    set_(driver, "no_early", 1)
    # the first kernel of the second graph, after four calls for the first
    set_(driver, "fail_in", 6)
    check(run, values(1), 2)
    check(run, values(2), 3)
    assert "cuGraphAddDependencies" in str(run.whole) and "cuGraphAddKernelNode" in str(run.trouble)
    assert run.counts[:3] == (3, 3, 0)


def test_wrong_waits_are_errors(made, driver):
    with pytest.raises(ValueError, match="only a kernel is launched early, by its last waits"):
        run_of(made, (scaled(driver, 0, 1, 1), product(driver, 0, 1, 2, (~0,))), 3)
    first = scaled(driver, 0, 1, 1)
    with pytest.raises(ValueError, match="by its last waits"):
        run_of(made, (first, first, scaled(driver, 0, 1, 1, (~0, 1))), 2)
    with pytest.raises(ValueError, match="what comes later"):
        run_of(made, (scaled(driver, 0, 1, 1, (~0,)),), 2)


# ----------------------------------------------------------------------------------- lists as nodes

KERNEL = SimpleNamespace(ptr=1)


def kernel(*after, waits=True, lets=True):
    return Launch(
        KERNEL, (1,), (32,), 0, (at(0),), "kernel", after=after, pdl_wait=waits, pdl_trigger=lets
    )


def needs(items, early=True):
    nodes = Nodes(launch_list((), 1), 1, True, early)
    nodes.add_lists(items)
    return [node[6] for node in nodes.nodes]


def test_the_second_waits_by_itself_and_the_first_lets_it():
    foreign, large = partial(kernel, waits=False, lets=False), partial(kernel, waits=False)
    items = (
        kernel(), kernel(0), foreign(1), kernel(2), kernel(1, 3), kernel(0, 2, 4), foreign(4, 5),
    )  # fmt: skip
    assert needs(items) == [(), (~0,), (1,), (2,), (~1, ~3), (2, ~0, ~4), (4, 5)]
    assert needs(items, early=False) == [(), (0,), (1,), (2,), (1, 3), (0, 2, 4), (4, 5)]
    assert needs((kernel(), large(0), kernel(1), large(1, 2))) == [(), (0,), (~1,), (1, 2)]


def test_decisions_and_choices_wait_for_all():
    inner = (kernel(), kernel(0))
    branch = Branch((inner, inner), at(0), np.dtype(np.int32), "cond", after=(0,))
    loop = While((kernel(),), inner, at(0), "while_loop", after=(1,))
    found = needs((kernel(), branch, loop, kernel(0, 1, 2)))
    # kernel, decision, choice, the test of the loop, decision, choice, the last
    # kernel, and what is in lists
    assert found[:7] == [(), (0,), (1,), (2,), (3,), (4,), (2, 5, ~0)]
    assert found[7:] == [(), (~7,), (), (~9,), (), (~11,), (12,)]  # a round ends with a decision


@pytest.mark.parametrize(
    ("overlap", "able", "captured", "early"),
    [(True, True, True, 1), (False, True, True, 0), (True, False, True, 0), (True, True, False, 0)],
)
def test_the_setting_the_device_and_the_list_decide(
    made, driver, monkeypatch, overlap, able, captured, early
):
    monkeypatch.setattr(native, "LIBRARY", driver.path)
    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
    xp = SimpleNamespace(cuda=current)
    device = SimpleNamespace(context=driver.context_of_fake(), xp=xp, early=able)
    function = SimpleNamespace(ptr=ctypes.addressof(ctypes.c_char.in_dll(driver, "SCALED")))

    def launch(source, target, add, after=()):
        arguments = (at(source), at(target), np.float64(add), NUMBER)
        return Launch(
            function,
            (N, 1),
            (1,),
            0,
            arguments,
            "scaled",
            "model.py:3",
            after=after,
            pdl_wait=True,
            pdl_trigger=True,
        )

    both = launch(0, 1, 1), launch(1, 2, 2, (0,))
    work = launch_list(both, 3, (NUMBER,), ready=np.array, captured=captured)
    with config.using(capture="on", overlap=overlap):
        run = native.run_of(made[1], device, work)
    x, y, z = values(0), np.zeros(N, np.float32), np.zeros(N, np.float32)
    for k in range(4):
        run(on_device(x), address(y), address(z), np.float32(k))
        np.testing.assert_array_equal(z, (x * k + 1) * k + 2)
    assert run.early == early
