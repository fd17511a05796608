"""The report of a call has a bill: what its signature's first call spent, and
how each kernel was had.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ge2
from ge2.base.detect import toolchain
from ge2.base.source import Ge2Warning
from ge2.dispatch import cache
from tests.fake_cupy import stand_in
from tests.together import needs_compiler

ROOT = Path(__file__).parent.parent.parent
needs_c = pytest.mark.skipif(toolchain() is None, reason="no C compiler")


def deviation(x, k):
    return np.sqrt(((x - x.mean(0)) ** 2).mean(0) + k).sum()


def f32(n, scale=1.0):
    return np.random.default_rng(n).random((n, 24), np.float32) * np.float32(scale)


@needs_c
def test_the_stages_of_a_first_call_add_up():
    began = time.perf_counter()
    f = ge2.jit(deviation)
    f(f32(50), 0.375)
    took = time.perf_counter() - began
    bill = f.report().bill
    stages = dict(bill.stages)
    assert {"trace", "passes", "schedule", "render", "compile", "other"} <= set(stages)
    assert all(seconds >= 0 for seconds in stages.values())
    assert 0.2 * took < bill.total <= took
    assert {"fuse", "simplify", "inline"} <= set(dict(bill.passes))
    assert sum(dict(bill.passes).values()) <= stages["passes"] + 1e-4
    (had,) = bill.kernels
    assert had.name == "deviation, a C library"
    f(f32(50), 0.375)
    assert f.report().bill == bill and f.report().traced is False


@needs_c
def test_the_bill_says_where_code_was_found(tmp_path):
    def made(folder, n):
        f = ge2.jit(partial(deviation, k=0.4375))
        with ge2.config.using(cache_dir=str(tmp_path / folder)):
            f(f32(n))
        return f.report()

    first, other, again = made("a", 40), made("a", 41), made("b", 40)
    assert [r.bill.count("compiled") for r in (first, other, again)] == [1, 0, 0]
    assert [r.bill.count("memory") for r in (first, other, again)] == [0, 1, 0]
    assert first.bill.kernels[0].seconds > 0 and other.bill.kernels[0].seconds == 0
    assert again.bill.kernels == ()  # an equal graph was compiled before
    assert "from memory" in str(other.bill)


@pytest.mark.parametrize("executor", ["blocked", "reference"])
def test_other_executors_have_a_bill_too(executor):
    with ge2.config.using(executor=executor):
        f = ge2.jit(partial(deviation, k=0.4))
        f(f32(30))
    bill = f.report().bill
    assert bill.seconds("trace") > 0 and bill.kernels == () and "compile" not in dict(bill.stages)


@needs_compiler
def test_a_lowered_function_has_one(tmp_path):
    f = ge2.jit(partial(deviation, k=0.3))
    with ge2.config.using(executor="shim"):
        compiled = f.lower(f32(30)).compile()
        compiled(f32(30))
        bill = f.report().bill
    assert bill.seconds("trace") > 0 and bill.kernels


def test_a_function_inside_another_is_part_of_its_trace():
    inner = ge2.jit(lambda x: np.tanh(x) * 2)
    outer = ge2.jit(lambda x: inner(x).sum())
    outer(f32(20))
    inner(f32(20))
    bill = inner.report().bill
    assert bill.seconds("trace") > 0 and bill.title == inner._title
    assert outer.report().bill.seconds("trace") > 0


# ---------------------------------------------------------------------------------------- new sizes


@needs_compiler
def test_another_size_on_a_device_compiles_nothing(monkeypatch):
    """The report of the call proves it."""

    def rows(x, w):
        y = np.tanh(x @ w)
        return y / y.sum(1, keepdims=True), y.max(0)

    with stand_in(monkeypatch) as xp:
        f, w = ge2.jit(rows), xp.asarray(f32(24)[:, :7])
        f(xp.asarray(f32(64)), w)
        first = f.report()
        f(xp.asarray(f32(48)), w)
        other = f.report()
        f(xp.asarray(f32(48)), w)
        again = f.report()
        cache.forget()
    assert first.traced and len(first.bill.kernels) == len(set(first.bill.kernels)) >= 2
    assert other.traced and not other.compiled
    assert other.bill.count("memory") == len(other.bill.kernels) == len(first.bill.kernels)
    count = len(other.bill.kernels)
    words = f"traced, nothing compiled, {count} kernels for H200: 0 compiled, {count} from memory"
    assert words in str(other)
    assert "nothing traced, nothing compiled" in str(again)


# ------------------------------------------------------------------------------------- what is said

PROGRAM = """
import numpy as np
import ge2
f = ge2.jit(lambda x: np.tanh(x).sum())
f(np.ones(9))
f(np.ones(9))
"""


def said(**variables):
    given = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_log_compiles_is_printed_where_no_logging_is_set_up():
    lines = said(GE2_LOG_COMPILES="1").splitlines()
    assert (
        lines[0]
        == "ge2: <lambda>(x: f64[9]) is traced and compiled: it is called for the first time"
    )
    assert lines[1].startswith("ge2: <lambda>: ready in ")
    assert {"trace", "render"} <= {line.split()[0] for line in lines[2:]}
    assert sum("is traced" in line for line in lines) == 1


def test_by_default_nothing_is_said():
    assert said() == ""


@needs_compiler
def test_passes_of_a_gpu_alone_are_passes_like_others(tmp_path):
    """They are counted, written where the dump asks for it, and can be switched off."""
    for off in ((), ("stack_all",)):
        cache.forget()
        folder = tmp_path / str(len(off))
        with ge2.config.using(executor="shim", dump=str(folder), passes_off=off):
            f = ge2.jit(lambda x: np.cumsum(x * 2.0))
            f(f32(5))
        counted = {name for name, _ in f.report().bill.passes}
        assert {"roll", "sums_after"} <= counted
        assert ("stack_all" in counted) == (not off)
        written = {path.name.rpartition("-")[2] for path in folder.rglob("*.txt")}
        assert "sums_after.txt" in written
        assert ("stack_all.txt" in written) == (not off)


def test_a_misspelt_pass_is_told():
    told = pytest.warns(
        Ge2Warning, match="passes_off names 'resdent', which is no pass\n  try  resident"
    )
    with ge2.config.using(passes_off=("resdent", "roll")), told:
        assert ge2.jit(lambda x: x * 5)(np.ones(3)).tolist() == [5.0] * 3
