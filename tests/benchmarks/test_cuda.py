"""The GPU's works, without a GPU: each computes what NumPy does, and what goes wrong is told."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import ge2
from benchmarks import table
from benchmarks.__main__ import SUITES, main
from benchmarks.cuda import (
    demo,
    draws,
    first,
    grid,
    kernels,
    machine,
    measure,
    moves,
    nvrtc,
    peaks,
    products,
    programs,
    scans,
    small,
    small_products,
    sorts,
)
from benchmarks.cuda.exchange import back, leaves
from benchmarks.cuda.machine import CPU
from benchmarks.cuda.work import BF16, Draw, Work, parted, plain
from benchmarks.options import Options
from benchmarks.record import AtMost, Failure, Row
from ge2.base.detect import toolchain
from ge2.base.errors import DeviceError
from tests.fake_cupy import stand_in
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler

FAMILIES = (kernels, small, moves, scans, draws, products, sorts)
WORKS = {name: work for family in FAMILIES for name, work in family.WORKS.items()}
QUICK = Options(quick=True, rounds=1)
TWICE = Work(
    "twice", plain(lambda xp, x: 2 * x), lambda draw: (draw.normal(8),), lambda torch, x: 2 * x
)


@pytest.fixture
def alone(monkeypatch):
    """Neither a GPU nor peers."""
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    monkeypatch.setattr("benchmarks.cuda.machine.driver", lambda: None)


def wide(x):
    """Half types are compared with the computation in float32."""
    return x.astype(np.float32) if x.dtype == BF16 else x


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WORKS)
def test_each_work_is_numpys(name):
    work = WORKS[name]
    numbers, arrays = parted(work.arguments(Draw(quick=True)))
    before = [x.copy() for x in arrays]
    found = leaves(measure.of_ge2(work, numbers, arrays)())
    by_numpy = work.numpy or (lambda *xs: work.function(ge2, np, *xs))
    wanted = leaves(by_numpy(*numbers, *map(wide, arrays)))
    measure.agree(work, "ge2", [wide(y) for y in found], [np.asarray(y) for y in wanted])
    for x, y in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture
def cupy(monkeypatch):
    with stand_in(monkeypatch) as module:
        yield module


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("name", WORKS)
def test_each_work_is_the_same_by_the_kernels_of_a_gpu(name, cupy, monkeypatch):
    """The host shim runs them, on arrays as strict as CuPy's."""
    monkeypatch.setattr("benchmarks.cuda.work.SMALL", 64)
    monkeypatch.setattr("benchmarks.cuda.work.SHORT", 512)
    work = WORKS[name]
    numbers, arrays = parted(work.arguments(Draw(quick=True)))
    wanted = [wide(y) for y in leaves(measure.of_ge2(work, numbers, arrays)())]
    found = leaves(measure.of_ge2(work, numbers, tuple(map(cupy.asarray, arrays)))())
    assert all(isinstance(y, cupy.ndarray) for y in found)
    measure.agree(work, "ge2", [wide(y.get()) for y in found], wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_command_knows_every_line_of_a_family(family):
    assert {*family.WORKS} == {*SUITES["cuda"][family.__name__.removeprefix("benchmarks.")]}


def test_small_products_are_compared_with_numpy(alone, capsys):
    assert {*small_products.SHAPES} == {*SUITES["cuda"]["cuda.small_products"]}
    rows = [*small_products.run(QUICK)]
    assert len(rows) == len(small_products.SHAPES)
    assert all(row.ours > 0 and row.others["library"] > 0 for row in rows)
    assert "thin-last-back: ge2" in capsys.readouterr().err


def test_a_work_that_fails_is_told_and_the_next_goes_on(alone, capsys):
    def broken(xp, x):
        raise ValueError("no such thing")

    works = {"broken": Work("broken", plain(broken), TWICE.arguments, None), "twice": TWICE}
    failure, row = measure.lines("family", works, QUICK)
    assert failure == Failure("broken", "ValueError: no such thing")
    assert row.work == "twice (sizes cut)"
    assert row.ours > 0
    assert "no such thing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: 2.001 * x, "differs by"),
        (lambda x: x.astype(np.float64) * 2, "returns float64"),
        (lambda x: (2 * x, x), "2 results"),
        (lambda x: x * np.float32(np.nan), "differs by nan"),
    ],
)
def test_a_peer_that_computes_something_else_is_not_timed(call, what, monkeypatch, capsys):
    monkeypatch.setattr(measure, "installed", lambda names: [*names])
    monkeypatch.setattr(
        measure, "PEERS", {"jax": lambda work, numbers, arrays: lambda: call(*arrays)}
    )
    row = measure.measure(TWICE, QUICK, CPU)
    assert row.others == {}
    assert row.notes["jax"].startswith("left out, AssertionError: twice: jax")
    assert what in row.notes["jax"]
    assert "AssertionError" in capsys.readouterr().err


def test_a_peer_that_agrees_is_timed(monkeypatch):
    monkeypatch.setattr(
        measure, "PEERS", {"jax": lambda work, numbers, arrays: lambda: arrays[0] * 2}
    )
    row = measure.measure(TWICE, QUICK, CPU)
    assert row.others["jax"] > 0
    assert "jax" not in row.notes


def test_random_numbers_agree_by_mean_and_spread():
    work, rng = WORKS["normal"], np.random.default_rng(0)
    x, y = (rng.standard_normal(10_000, np.float32) for _ in range(2))
    measure.agree(work, "jax", [x], [y])
    for other in (x + np.float32(0.2), 2 * x):
        with pytest.raises(AssertionError, match="jax differs"):
            measure.agree(work, "jax", [other], [y])


def test_a_peers_launches_are_waited_for():
    events = []

    class Array:
        def block_until_ready(self):
            events.append("its own")

    measure.finish((Array(), 1.0), lambda: events.append("all"))
    assert events == ["its own", "all"]


def test_what_is_worked_off_a_second():
    a, b = np.zeros((3, 5), np.float32), np.zeros((3, 7), np.float32)
    product = WORKS["product-at"]
    assert measure.rate(product, (a, b), [np.zeros((5, 7))], 210e-12) == "1 TFLOP/s"
    moved = "GB/s of arguments and results"
    assert measure.rate(TWICE, (a,), [a], 120e-9) == f"1 {moved}"


def test_a_draw_repeats_what_it_drew():
    draw = Draw(quick=False)
    x = draw.normal(2, 1 << 22)
    np.testing.assert_array_equal(x[0], x[1])
    assert x.std() == pytest.approx(1, rel=1e-2)
    assert np.unique(draw.distinct(1000, np.float32)).size == 1000
    assert (
        Draw(quick=True).normal(1 << 28).shape == Draw(quick=True).normal(1 << 24).shape == (4096,)
    )


def test_arrays_come_back_as_they_are():
    x = np.arange(3, dtype=np.int64)
    assert back(np, x) is x
    assert leaves((x, [x, (x,)])) == [x, x, x]


def test_without_a_gpu_only_a_quick_run_goes(alone):
    assert machine.machine(quick=True) is CPU
    assert machine.device() == {}
    with pytest.raises(DeviceError, match="need a GPU"):
        machine.machine(quick=False)


def test_what_was_measured_is_kept_with_what_failed(alone, tmp_path, monkeypatch, capsys):
    def interrupted(suite, asked):
        yield Row("one", "seconds", 1e-3)
        yield Failure("two", "ValueError: no")
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.__main__.measured", interrupted)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "cuda", "--keep", str(tmp_path / "results")])
    assert main() == 1
    shown = capsys.readouterr().out
    assert "FAILED two: ValueError: no" in shown
    (file,) = (tmp_path / "results").glob("cuda-*.json")
    kept = json.loads(file.read_text())
    assert [row["work"] for row in kept["rows"]] == ["one"]
    assert [failure["work"] for failure in kept["failures"]] == ["two", "all further lines"]
    assert kept["device"] == {}


def test_some_lines_alone(alone, monkeypatch, capsys):
    words = ["cuda", "--quick", "--rounds", "1", "--only", "gather-int32", "sorts"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    starts = ("2^20 rows of f32[2^20,64] by int32", "sort f32", "argsort f32")
    assert [start for start in starts if any(line.startswith(start) for line in lines)] == [*starts]


@pytest.mark.slow
def test_the_demos_step(alone):
    rows = [*demo.run(QUICK)]
    assert [row.work for row in rows] == [
        "the demo's step, waited for",
        "the demo's step, one of 12 in a row",
    ]
    assert all(row.ours > 0 and row.others["numpy"] > 0 for row in rows)
    assert "test accuracy 0." in rows[0].notes["ge2"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SUITES["cuda"]["cuda.programs"])
def test_whole_programs(name, alone, capsys):
    """Every line runs, and none fails: a failure would be a line of its own."""
    rows = [*programs.run(Options(quick=True, rounds=1, only=frozenset([name])))]
    assert all(isinstance(row, Row) and row.ours > 0 for row in rows)
    assert len(rows) == (2 if name == "replay" else 1)
    assert [row.others.keys() for row in rows if row.others] == [{"numpy"}] * (name == "call")


@pytest.mark.slow
def test_loops_of_the_whole_gpu(alone):
    rows = [*grid.run(QUICK)]
    assert len(rows) == len(SUITES["cuda"]["cuda.grid"]) and all(row.ours > 0 for row in rows)


def test_the_peak_is_that_of_the_pool_and_of_arenas(monkeypatch):
    """Looked at after each allocation and each step; on a stand-in, whose arenas are arrays."""
    used = iter([100, 700, 300, *[5] * 1000])
    hook = type("Hook", (), {"__enter__": lambda self: self, "__exit__": lambda self, *_: None})
    monkeypatch.setattr(programs, "WIDTHS", (8, 16, 10))
    with stand_in(monkeypatch) as xp:
        xp.get_default_memory_pool = lambda: SimpleNamespace(used_bytes=lambda: next(used))
        xp.cuda.MemoryHook = hook
        assert peaks.of_ge2() == (700, "of these 0.0 MB are arenas")


def test_bytes_in_the_table():
    assert table.value(27_000_000, "bytes") == "25.7 MB"
    row = Row("peak", "bytes", 100.0, {"jax": 90.0}, (AtMost(90.0),))
    assert row.missed and "<= 90 B" in table.show([row])


@pytest.mark.slow
@needs_nvrtc
def test_nvrtc_compiles_the_demos_step_with_nothing_cached(alone):
    (row,) = nvrtc.run(QUICK)
    assert row.sizes["kernels"] >= 4
    assert row.others == {}
    assert row.targets[0].bound == 1.5
    assert f"{row.sizes['kernels']} kernels for sm_" in row.notes["ge2"]


@pytest.mark.slow
def test_first_calls_in_processes_of_their_own():
    """Here on the CPU, of whose C one library is compiled, for all batches."""
    rows = [*first.run(QUICK)]
    assert [row.unit for row in rows] == ["seconds"] * 3 + ["kernels"]
    assert all(row.ours > 0 for row in rows[:3]) and rows[3].ours == 0
    cold, warm, other = (row.notes["ge2"] for row in rows[:3])
    if toolchain() is not None:
        assert "kernels: 1 compiled;" in cold and "kernels: 1 disk;" in warm
        assert other.startswith("0 of 1 kernels compiled")
    assert "trace" in cold and "render" in warm and "trace" in other
