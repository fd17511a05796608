"""jit(memory_limit=...): what a call allocates stays below the limit, and its
results are what they were.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import ArgumentError, MemoryLimitError
from ge2.compile.memory import Remat, Repeat
from tests.compared import all_close, all_equal
from tests.exhaustive import sampled
from tests.transforms.functions import FUNCTIONS

pytestmark = pytest.mark.any_executor

LAYERS, WIDTH, BATCH = 6, 32, 256
IN_C = ("layers", "shapes", "softmax", "sort", "checkpoint", "cond")
ARRAY = BATCH * WIDTH * 8


def weights(layers: int = LAYERS) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH) for _ in range(layers)]


X = np.random.default_rng(6).normal(size=(BATCH, WIDTH))


def network(ws, x):
    for w in ws:
        x = np.tanh(x @ w)
    return np.mean(x * x)


def gated(ws, x):
    """Much elementwise work for each product."""
    for w in ws:
        z = x @ w
        x = x + z / (1.0 + np.exp(-1.7 * z)) * np.cos(z)
    return np.mean(np.exp(-x * x))


def memory(f: Any, *args: Any) -> Any:
    return f.lower(*args).memory_analysis()


def limited(f: Any, limit: int | str) -> Any:
    return ge2.jit(ge2.grad(f), memory_limit=limit)


def least(f: Any, *args: Any) -> int:
    """The limit that the error for too small a limit names."""
    with pytest.raises(MemoryLimitError) as error:
        limited(f, 1)(*args)
    return int(re.search(r"memory_limit=(\d+)", str(error.value))[1])


# ------------------------------------------------------------------------------------------ it fits


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "blocked"])
@pytest.mark.parametrize("f", [network, gated])
@pytest.mark.parametrize("part", [0.8, 0.5])
def test_it_fits_and_the_values_are_equal(executor: str, f: Any, part: float):
    with config.using(executor=executor):
        ws, plain = weights(), ge2.jit(ge2.grad(f))
        full = memory(plain, ws, X)
        small = limited(f, int(full.peak * part))
        assert memory(small, ws, X).peak <= full.peak * part
        all_equal(small(ws, X), plain(ws, X))


def test_a_limit_that_is_no_limit_changes_nothing():
    ws, plain = weights(), ge2.jit(ge2.grad(network))
    free = limited(network, "1GB")
    assert free.lower(ws, X).as_text() == plain.lower(ws, X).as_text()
    assert free.lower(ws, X).remat.repeats == ()
    assert "nothing is computed again" in str(free.lower(ws, X).remat)
    assert plain.lower(ws, X).remat is None


def test_the_least_limit_is_kept_and_a_byte_less_is_an_error():
    ws = weights()
    for f in (network, gated):
        found = least(f, ws, X)
        small = limited(f, found)
        assert memory(small, ws, X).peak == found
        all_close(small(ws, X), ge2.grad(f)(ws, X), rtol=1e-9, atol=1e-12)
        with pytest.raises(MemoryLimitError, match=f"memory_limit={found}"):
            limited(f, found - 1)(ws, X)


def test_cheap_work_is_repeated_before_matrix_products():
    ws, plain = weights(), ge2.jit(ge2.grad(gated))
    full = memory(plain, ws, X).peak
    some = limited(gated, full - 4 * ARRAY).lower(ws, X)
    count = lambda lowered: lowered.as_text().count("dot_general")  # noqa: E731
    assert count(some) == count(plain.lower(ws, X))
    assert sum(r.operations for r in some.remat.repeats) < 60 * LAYERS * X.size
    tight = limited(gated, least(gated, ws, X)).lower(ws, X)
    assert count(tight) > count(some)


@config.using(executor="blocked")  # which compiles nothing to plan
def test_just_enough_is_repeated():
    ws, plain = weights(12), ge2.jit(ge2.grad(network))
    full = memory(plain, ws, X).peak
    work = [
        sum(r.operations for r in limited(network, full - n * ARRAY).lower(ws, X).remat.repeats)
        for n in (0, 1, 2, 4, 6)
    ]
    assert work[0] == 0 and work[1] > 0
    assert work == sorted(work) and work[1] < work[-1]


def test_the_report_names_the_users_lines():
    ws, plain = weights(), ge2.jit(ge2.grad(network))
    full = memory(plain, ws, X).peak
    remat = limited(network, full // 2).lower(ws, X).remat
    assert all("test_memory_limit.py" in line and "in network" in line for line in remat.lines)
    assert (
        memory(limited(network, full // 2), ws, X).repeated
        == sum(r.nbytes for r in remat.repeats)
        > 0
    )
    assert memory(plain, ws, X).repeated == 0
    assert remat.before == full and remat.after <= full // 2 == remat.limit
    assert "tanh" in str(remat) and "operations" in str(remat)


def test_the_report_is_a_table():
    repeats = (Repeat(None, "tanh", 2048, 100), Repeat(None, "exp", 1024, 5000))
    assert str(Remat(4096, 9000, 4000, repeats)) == (
        "limit 4.0 KB: needs 3.9 KB, 8.8 KB without computing again\n"
        "  None  tanh, exp  3.0 KB  5.1 k operations"
    )


# ----------------------------------------------------------------------------------------- measured


def allocated(f: Any, *args: Any) -> int:
    """Bytes that a call allocates at most, the first one after all is compiled."""
    f.lower(*args).compile()
    tracemalloc.start()
    try:
        assert f(*args) is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_is_allocated_is_what_was_planned():
    """Blocked NumPy allocates its arena and results where Python counts them."""
    with config.using(executor="blocked", threads=1):
        x, ws = np.concatenate([X] * 8), weights()
        plain = ge2.jit(ge2.grad(gated))
        full = memory(plain, ws, x).peak
        small = limited(gated, full // 2)
        assert 0.95 * full < allocated(plain, ws, x) < 1.1 * full
        assert allocated(small, ws, x) < 1.1 * full / 2


# ----------------------------------------------------------------------------------------- programs


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_kinds_of_programs(name: str):
    """At the least limit: as much is computed again as may be."""
    f = lambda x: np.sum(np.sin(FUNCTIONS[name](x)) * np.cos(x[0]))  # noqa: E731
    x = np.random.default_rng(8).uniform(-1.2, 1.2, 4)
    plain = ge2.jit(ge2.grad(f))
    for executor in ("blocked", "c") if name in sampled(IN_C) else ("blocked",):
        with config.using(check=True, executor=executor):
            small = limited(f, least(f, x))
            np.testing.assert_allclose(small(x), plain(x), rtol=1e-12, atol=1e-14)


def test_random_numbers_are_the_same_again():
    def f(w, key):
        y = np.tanh(X @ w)
        for i in range(4):
            keep = ge2.random.uniform(ge2.random.fold_in(key, i), y.shape) < 0.8
            y = np.where(keep, np.tanh(y) * 1.25, 0.0)
        return np.sum(y * y)

    (w,), key = weights(1), ge2.random.key(3)
    plain = ge2.jit(ge2.grad(f))
    small = limited(f, least(f, w, key))
    np.testing.assert_array_equal(small(w, key), plain(w, key))


def test_donated_memory_counts_as_none():
    step = lambda w, x: w - 0.1 * ge2.grad(lambda w: np.sum(np.tanh(x @ w)))(w)  # noqa: E731
    (w,) = weights(1)
    f = ge2.jit(step, donate_argnums=0, memory_limit="1MB")
    found = memory(f, w, X)
    assert found.donated == w.nbytes and found.peak == found.arena
    np.testing.assert_allclose(f(w.copy(), X), step(w, X), rtol=1e-12)


def test_checkpoints_inside():
    block = ge2.checkpoint(lambda w, x: np.tanh(np.exp(-((x @ w) ** 2))))

    def f(ws, x):
        for w in ws:
            x = block(w, x) + x
        return np.mean(x)

    ws = weights()
    small = limited(f, least(f, ws, X))
    all_close(small(ws, X), ge2.grad(f)(ws, X), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------- how it is given


def test_sizes_in_words():
    ws = weights()
    assert limited(network, "0.5 MB").lower(ws, X).remat.limit == 1 << 19
    assert limited(network, "512KiB").lower(ws, X).remat.limit == 1 << 19
    assert limited(network, "2g").lower(ws, X).remat.limit == 2 << 30
    for wrong in ("200 apples", -1, 1.5, True, "MB"):
        with pytest.raises(ArgumentError, match="no number of bytes"):
            ge2.jit(network, memory_limit=wrong)


def test_as_a_decorator_and_beside_the_same_function_without():
    @ge2.jit(memory_limit="1.5GB")
    def f(x):
        return np.tanh(x)

    assert f.lower(X).remat.limit == 3 << 29
    plain = ge2.jit(ge2.grad(network))
    ws = weights()
    small = limited(network, memory(plain, ws, X).peak // 2)
    small(ws, X)
    assert memory(plain, ws, X).peak > memory(small, ws, X).peak  # equal graphs, two programs
    assert isinstance(MemoryLimitError("x"), MemoryError)


MEASURED = r"""
import re, sys
import numpy as np, ge2

def loss(w, x):
    for _ in range(6):
        z = x @ w
        x = x + z / (1.0 + np.exp(-1.7 * z)) * np.cos(z)
    return np.mean(np.exp(-x * x))

def now(name):
    return int(re.search(name + r":\s+(\d+) kB", open("/proc/self/status").read())[1]) * 1024

limit = int(sys.argv[1]) or None
f = ge2.jit(ge2.grad(loss), memory_limit=limit)
w, x = np.eye(64, dtype=np.float32), np.ones((8192, 64), np.float32)
planned = f.lower(w, x).memory_analysis().peak
f.lower(w, x).compile()
open("/proc/self/clear_refs", "w").write("5")  # the highest mark begins here
before = now("VmRSS")
f(w, x)
print(planned, now("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory a process had")
def test_the_process_needs_what_was_planned():
    """Compiled C, in a process of its own: with half the memory, and without a limit."""

    def measured(limit: int) -> tuple[int, int]:
        command = [sys.executable, "-c", MEASURED, str(limit)]
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "GE2_THREADS": "1",
            "GE2_CHECK": "0",  # it has memory of its own
        }
        found = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout
        planned, grown = map(int, found.split())
        return planned, grown

    planned, grown = measured(0)
    assert planned > 60e6 and 0.9 * planned < grown < planned + 20e6
    half, less = measured(planned // 2)
    assert half <= planned // 2 and less < half + 20e6
