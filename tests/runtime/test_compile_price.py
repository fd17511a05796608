"""A Python loop that cannot be rolled is announced before it is compiled, and computes the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ge2
from ge2.base.compiler import library
from ge2.base.errors import TooLong
from ge2.base.source import Ge2Warning, Source
from ge2.compile import compile_graph
from ge2.ops.graphs.region import Region
from ge2.ops.index import Gather
from ge2.passes.loops.roll import compile_seconds
from ge2.program import CompilePrice, Planning, announce, is_too_long
from ge2.targets.c import linked, native
from ge2.targets.c.tuning import Files, Tuning
from ge2.targets.cuda import emulator
from ge2.targets.cuda.emulator import ShimDevice
from tests.backends.compilers import needs_compiler
from tests.nvrtc import needs_nvrtc

FUNCTIONS = (np.sin, np.exp, np.arctan, np.tanh, np.abs)
X = np.linspace(0.1, 1, 7)


def unlike(x):
    for i in range(12):
        x = (
            x / FUNCTIONS[i % 5](x * (i % 7 + 1.5)).sum()
            if i % 2
            else x + FUNCTIONS[i % 3](x[::-1])
        )
        x = np.cumsum(x)
    return x


@pytest.fixture
def flags(monkeypatch):
    """The options of each compilation."""
    seen = []

    def compiled(source, title, flags, symbol, alone):
        seen.append(flags)
        return library(source, title, flags, symbol=symbol, alone=alone)

    monkeypatch.setattr(linked, "library", compiled)
    return seen


def of_kernels(seconds):
    """Inside, a kernel is said to be compiled in so many seconds."""
    return ge2.config.using(tuning=(Tuning(files=Files(price=CompilePrice(seconds))),))


@pytest.mark.parametrize(
    ("kernel", "way"), [(0.7, "compiled with fewer optimisations"), (9.0, "run as blocked NumPy")]
)
def test_a_loop_that_compiles_too_long_is_announced_and_runs_in_another_way(
    kernel, way, flags, monkeypatch
):
    before = []  # how many compilations each warning follows
    monkeypatch.setattr(native, "is_known", lambda source, flags: False)
    monkeypatch.setattr(native, "announce", lambda *a: before.append(len(flags)) or announce(*a))
    # of sizes that nobody compiled
    compiled, x = ge2.jit(unlike), np.linspace(0.1, 1, int(10 * kernel))
    words = f"(?s): some 12 iterations.*kernels.*{way}.*at .*in unlike.*fori_loop"
    with pytest.warns(Ge2Warning, match=words) as seen, of_kernels(kernel):
        found = compiled(x)
    assert len(seen) == 1 and seen[0].filename == __file__ and before == [0]
    assert [("-O1" in each) for each in flags] == ([] if "blocked" in way else [True])
    np.testing.assert_allclose(found, unlike(x), rtol=1e-12)


def test_a_loop_that_takes_long_to_plan_is_announced_before_that():
    """Its iterations differ in offsets alone, so a compiler would need no time."""

    def smoothing(x):
        y = x.copy()
        for i in range(1, 60):
            y[i] = 0.9 * y[i - 1] + 0.1 * x[i]
        return y

    x = np.linspace(0, 1, 61)
    with ge2.config.using(tuning=(Planning(equation=1.0),)):
        with pytest.warns(Ge2Warning, match="(?s): some 59 iterations.*all the same.*fori_loop"):
            np.testing.assert_allclose(ge2.jit(smoothing)(x), smoothing(x), rtol=1e-12)
        with ge2.config.using(compile_patience=0):
            ge2.jit(lambda x: smoothing(x))(x)


def test_who_has_patience_is_not_warned(flags):
    with of_kernels(9.0), ge2.config.using(compile_patience=0):
        np.testing.assert_allclose(ge2.jit(lambda x: unlike(x))(X), unlike(X), rtol=1e-12)
    assert not any("-O1" in each for each in flags)


def test_many_kernels_of_lines_of_their_own_are_no_loop(monkeypatch):
    monkeypatch.setattr(native, "is_known", lambda source, flags: False)
    f = ge2.jit(lambda x: np.cumsum(np.cumsum(x) * x.sum()))
    with of_kernels(99.0):
        np.testing.assert_allclose(f(X), np.cumsum(np.cumsum(X) * X.sum()))


def test_a_short_loop_in_a_long_program_has_its_own_price():
    def is_long(loop, others):
        one, other = three.__code__, unlike.__code__
        lines = [Source(one, 0)] * loop + [Source(other, n) for n in range(others)]
        return is_too_long(len(lines) * 0.2, lines, CompilePrice(0.2))

    with ge2.config.using(compile_patience=5):
        assert not is_long(10, 20) and not is_long(20, 6) and is_long(30, 6)


def test_steps_of_one_call_are_no_iterations():
    code = three.__code__
    lines = [Source(code, n) for _ in range(12) for n in (0, 1, 1, 1)] + [Source(code, 2)] * 3
    with pytest.warns(Ge2Warning, match=": some 12 iterations became 51 kernels"):
        announce("f", lines, 51, 60.0, CompilePrice(1.0), "it waits")


def three(x):
    for f in FUNCTIONS[:3]:
        x = np.cumsum(f(x))
    return x


def slow_to_compile(limits):
    """A chip whose kernels are said to take a minute each, and a line of three to be a loop."""
    price = CompilePrice(60.0, line=3)
    return replace(limits, tuning=replace(limits.tuning, compile_price=price))


WORDS = "(?s): some 3 iterations became .* kernels.*compiled once.*at .*in three.*fori_loop"


def test_a_loop_for_the_emulator_is_announced(monkeypatch):
    graph, device = ge2.make_jaxpr(three)(X).graph, ShimDevice(slow_to_compile(ShimDevice().limits))
    monkeypatch.setattr(ShimDevice, "missing", lambda self, sources: len(sources))
    with pytest.warns(Ge2Warning, match=WORDS) as seen:
        (found,) = compile_graph(graph, device=device)(X)
    assert len(seen) == 1
    np.testing.assert_allclose(found, three(X), rtol=1e-12)
    monkeypatch.undo()  # what is in the cache by now needs no patience
    compile_graph(graph, device=ShimDevice(slow_to_compile(ShimDevice().limits)))(X)


@needs_nvrtc
def test_a_loop_for_a_gpu_is_announced_before_nvrtc_begins(monkeypatch):
    graph, began = ge2.make_jaxpr(three)(X).graph, []
    device = emulator.OfflineDevice(slow_to_compile(emulator.limits_of("sm_90a")))
    monkeypatch.setattr(emulator, "missing", len)
    compile_all = emulator.compile_all
    monkeypatch.setattr(
        emulator, "compile_all", lambda x: began.append(len(seen)) or compile_all(x)
    )
    with pytest.warns(Ge2Warning, match=WORDS) as seen:
        compile_graph(graph, device=device).build()
    assert len(seen) == 1 and set(began) == {1}
    monkeypatch.undo()
    compile_graph(graph, device=device).build()


def test_long_functions_cost_more_than_sums():
    graph = ge2.make_jaxpr(lambda x: np.sin(x) + x)(X).graph
    sine, total = (compile_seconds([eqn]) for eqn in graph.eqns)
    assert sine > 10 * total > 0


@needs_compiler
def test_regions_that_only_c_has_are_made_otherwise_without_a_compiler(monkeypatch):
    def read(x, i):
        return np.exp(x)[(i * 3 + 1) % 7] * 2 + np.cumsum(x)[i]

    def fails(title, *rest):
        raise TooLong(title)

    graph, i = ge2.make_jaxpr(read)(X, np.arange(5)).graph, np.arange(5)
    with ge2.config.using(executor="c"):
        executable = compile_graph(graph)
        inside = [e.op for s in executable.program.steps for e in equations_of(s.eqn.op)]
        assert any(isinstance(op, Gather) for op in inside)
        monkeypatch.setattr(linked, "cheaper", fails)
        (found,) = executable(X, i)
    np.testing.assert_allclose(found, read(X, i), rtol=1e-12)


def equations_of(op):
    return op.graph.eqns if isinstance(op, Region) else ()
