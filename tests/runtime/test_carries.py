"""Loops in loops, and branches, write into one array where it lies: no pass
over it, no copy of a carry.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.compile import compile_graph
from ge2.ops.index import Scatter, ScatterAdd, UpdateSlice
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.launch import Launch
from tests.together import needs_compiler

N, M = 12, 16
A = np.arange(float(N * M)).reshape(N, M)
B = np.arange(float(M))


def nested(a):
    def row(i, a):
        def element(j, a):
            a[i, j] = a[i - 1, j] + a[i, j - 1]
            return a

        return lax.fori_loop(1, M, element, a)

    return lax.fori_loop(1, N, row, a)


def triangle(a):
    """The inner loop is a while loop; the outer body writes once more."""

    def row(i, a):
        def element(j, a):
            a[i, j] = a[i, j] - a[j, i]
            return a

        a = lax.fori_loop(0, i, element, a)
        a[i] = a[i] * 0.5
        return a

    return lax.fori_loop(0, N, row, a)


def while_in_scan(a):
    def step(a, i):
        def body(pair):
            j, a = pair
            a[i, j] = a[i, j] + 1.0
            return j + 1, a

        return lax.while_loop(lambda pair: pair[0] < i, body, (0, a))[1], None

    return lax.scan(step, a, np.arange(N))[0]


def loop_in_while(a):
    def body(pair):
        i, a = pair

        def element(j, a):
            a[j, i] += 1.0
            return a

        return i + 1, lax.fori_loop(0, N, element, a)

    return lax.while_loop(lambda pair: pair[0] < M - 3, body, (0, a))[1]


def branch(a):
    def written(i, a):
        a = a.copy()
        a[i, 3] = -1.0
        return a

    def row(i, a):
        return lax.cond(a[i, 0] > 80, written, lambda _, a: a, i, a)

    return lax.fori_loop(0, N, row, a)


def loop_in_branch(a):
    def zeroed(i, a):
        def element(j, a):
            a[i, j] = 0.0
            return a

        return lax.fori_loop(0, M, element, a)

    return lax.fori_loop(0, N, lambda i, a: lax.cond(i % 2 == 0, zeroed, lambda _, a: a, i, a), a)


def several_writes(a):
    def row(i, a):
        a[i, 0] = a[i, 1]
        a[i, 1] = a[i, 0] + a[i, 2]
        a[i] = a[i] + B
        a[0, i] = 7.0
        return a

    return lax.fori_loop(0, N, row, a)


def two_carries(a):
    def row(i, pair):
        a, b = pair

        def element(j, pair):
            a, b = pair
            a[i, j], b[j] = a[i, j] + b[j], a[i, j]
            return a, b

        return lax.fori_loop(0, M, element, (a, b))

    return lax.fori_loop(0, N, row, (a, B.copy()))


def beside_slices(a):
    """Writes at a traced place beside slices and integers; through views too."""

    def row(i, a):
        a[i, 1:-1] = B[1:-1] * i
        a[i, 3] = 5.0
        a[1:-1, i] += 1.0
        a[::2, i] = a[1::2, i]
        a[i, 12:2:-3] = a[i, :4]
        b = a[2:8, 3:]
        b[:, i] = a[i, :6]
        a[i][2:5] = 0.5
        return a

    return lax.fori_loop(0, N, row, a)


PROGRAMS = (
    *(beside_slices, nested, triangle, while_in_scan, loop_in_while),
    *(branch, loop_in_branch, several_writes, two_carries),
)


def every(a):
    return [program(a) for program in PROGRAMS]


def inner_programs(program):
    for each in program.inner.values():
        for one in each:
            yield one
            yield from inner_programs(one)


def passes(program):
    """What writes a large array without lying where one is: of all bodies of loops and branches."""
    writes = UpdateSlice, Scatter, ScatterAdd
    return [
        f"{step.name} {v.type}"
        for inner in inner_programs(program)
        for step in inner.steps
        for i, v in enumerate(step.eqn.outs)
        if v.type.size >= A.size and step.kind != "view"
        if not any(i == result for result, _ in step.shared)
        or (step.kind == "kernel" and not isinstance(step.eqn.op, writes))
    ]


@needs_compiler
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_no_body_makes_a_pass_over_what_it_writes_into(program):
    planned = compile_graph(ge2.make_jaxpr(program)(A).graph).program
    assert any(inner_programs(planned))
    assert not passes(planned)


def on_gpu(program, *arrays):
    """The program as launches, no loop of it being one kernel."""
    with ge2.config.using(passes_off=("resident",)):
        graph = ge2.make_jaxpr(program)(*arrays).graph
        return compile_graph(graph, device=OfflineDevice(limits_of("sm_90a")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_no_body_on_a_gpu_does(program):
    found = on_gpu(program, A)
    assert any(inner_programs(found.program))
    assert not passes(found.program)
    assert not found.unbuilt().groups.splits  # the host launches no iteration


def launched(items):
    """The launches of a list, those of loops and branches in it too."""
    for each in items:
        if isinstance(each, Launch):
            yield each
        for inner in getattr(each, "lists", ()):
            yield from launched(inner)


def test_what_is_launched_is_as_large_as_what_is_written():
    """A carry of 2 MB is copied once, before the first iteration."""
    large = np.zeros((1024, 512), np.float32)
    for program in (nested, beside_rows, while_in_scan, branch, loop_in_branch):
        groups = on_gpu(program, large).unbuilt().groups
        threads = [math.prod((*p.grid, *p.block)) for g in groups for p in launched(g.launches)]
        assert len(threads) >= N
        assert sum(n > 1024 for n in threads) == 1, program.__name__


def test_a_body_that_reads_the_old_value_later_keeps_it():
    def body(i, a):
        before = a.copy()
        a[i] = 0.0
        return a + before

    planned = compile_graph(ge2.make_jaxpr(lambda a: lax.fori_loop(0, N, body, a))(A).graph).program
    assert passes(planned)
    np.testing.assert_array_equal(ge2.jit(lambda a: lax.fori_loop(0, 3, body, a))(A)[1], A[1] * 4)


@pytest.mark.parametrize(
    ("program", "shape", "passes"),
    [
        *((program, (75, M), 2) for program in PROGRAMS if program is not beside_slices),
        *((program, (200, 300), 4) for program in (nested, while_in_scan, branch, two_carries)),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_a_persistent_kernel_passes_over_what_it_writes_into_before_and_after(
    program, shape, passes
):
    """A block does so in one loop each, a grid in two: it reads, then writes."""
    graph = ge2.make_jaxpr(program)(np.zeros(shape)).graph
    found = compile_graph(graph, device=OfflineDevice(limits_of("sm_90a"))).unbuilt()
    (text,) = found.kernels.texts
    assert ("grid_kernel(" in text) == (passes == 4)
    size = math.prod(shape)
    over = [line for line in text.splitlines() if f"e < {size}" in line]
    assert len(over) == passes, over
    first, last = text.index(over[passes // 2 - 1]), text.rindex(over[passes // 2])
    loops = [m.start() for m in re.finditer(r"for \((int round|;;)", text)]
    assert loops and all(first < at < last for at in loops)


@pytest.fixture(scope="module")
def expected():
    with ge2.config.using(executor="reference"):
        return ge2.tree.leaves(ge2.jit(lambda a: every(a))(A))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("executor", "off"), [("c", ()), ("blocked", ()), ("shim", ()), ("shim", ("resident",))]
)
def test_their_results_are_the_references(executor, off, expected):
    with ge2.config.using(executor=executor, passes_off=off):
        found = ge2.tree.leaves(ge2.jit(every)(A))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(A, np.arange(float(N * M)).reshape(N, M))


def functions(text):
    """The functions of a C file."""
    return re.findall(r"^(?:GE2_FN|static|int) .*?^}", text, re.MULTILINE | re.DOTALL)


@needs_compiler
def test_bodies_over_single_elements_call_no_openmp():
    large = np.zeros((200, 300))
    text = ge2.jit(beside_rows).lower(large).as_text("c")
    inner = [f for f in functions(text) if f.startswith("GE2_FN")]
    assert [f for f in inner if "scan_0(" in f or "void gather" in f], text
    assert not any("omp parallel" in f for f in inner)
    gathered = ge2.jit(lambda a, i: a[i]).lower(large, np.zeros(40, int)).as_text("c")
    (kernel,) = (f for f in functions(gathered) if "void gather_0(" in f)
    assert "if (threads > 1 && work > 65536)\n        ge2_share(" in kernel


def beside_rows(a):
    def row(i, a):
        a[i, 1:-1] = a[i - 1, 2:] + a[i, 3]
        return a

    return lax.fori_loop(0, 200, row, a)
