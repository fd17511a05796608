"""jit(memory_limit=...) where the memory lies in a branch, or in the rounds of a loop."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import MemoryLimitError
from tests.runtime.test_memory_limit import allocated

pytestmark = pytest.mark.any_executor

WIDTH, BATCH, LAYERS = 32, 256, 5
W = np.eye(WIDTH) * 0.9
X = np.random.default_rng(6).normal(size=(BATCH, WIDTH))
ARRAY = X.nbytes
EXECUTORS = ("c", "blocked")


def network(w, x):
    for _ in range(LAYERS):
        x = np.tanh(x @ w)
    return np.mean(x * x)


HEAVY = ge2.grad(network)  # needs an array for each layer


def branch(w, x, p):
    return ge2.lax.cond(p > 0, HEAVY, lambda w, x: w, w, x)


def branches(w, x, p):
    """Two steps, of which the first has a result that is read late."""
    a = ge2.lax.cond(p > 0, lambda w, x: np.tanh(x @ w), lambda w, x: x, w, x)
    b = ge2.lax.switch(p.astype(int), [lambda w, x: w, HEAVY, HEAVY], w, np.sin(a))
    return np.sum(b) + np.sum(a * x)


def scanned(w, x, p):
    def body(c, t):
        g = HEAVY(w, c)
        return np.tanh(c @ (w + g * t)), np.sum(g)

    return np.sum(ge2.lax.scan(body, x * p, np.linspace(0.0, 1.0, 4))[0])


def repeated(w, x, p):
    on = lambda s: s[0] < 3  # noqa: E731
    return ge2.lax.while_loop(on, lambda s: (s[0] + 1, s[1] - HEAVY(s[1], x * p)), (0, w))[1]


def nested(w, x, p):
    """A branch in each round of a loop."""

    def body(c, t):
        return c - ge2.lax.cond(t > 0.5, HEAVY, lambda w, x: w, c, x * p), None

    return ge2.lax.scan(body, w, np.linspace(0.0, 1.0, 3))[0]


PROGRAMS = (branch, branches, scanned, repeated, nested)
ARGS = (W, X, np.float64(1.0))


def memory(f: Any) -> Any:
    return f.lower(*ARGS).memory_analysis()


def least(f: Any) -> int:
    with pytest.raises(MemoryLimitError, match="needs at least") as error:
        ge2.jit(f, memory_limit=1)(*ARGS)
    return int(re.search(r"memory_limit=(\d+)", str(error.value))[1])


@pytest.mark.exhaustive("f", "executor", table="limits inside")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("f", PROGRAMS)
def test_it_fits_and_the_values_are_equal(executor: str, f: Any):
    with config.using(executor=executor, check=True):
        plain = ge2.jit(f)
        full = memory(plain).peak
        assert full > LAYERS * ARRAY
        limit = full - 3 * ARRAY
        small = ge2.jit(f, memory_limit=limit)
        assert memory(small).peak <= limit
        np.testing.assert_array_equal(small(*ARGS), plain(*ARGS))


@pytest.mark.exhaustive("executor", table="limits inside")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("f", PROGRAMS)
def test_the_least_limit_is_kept_and_a_byte_less_is_an_error(executor: str, f: Any):
    with config.using(executor=executor):
        found = least(f)
        assert found < memory(ge2.jit(f)).peak - 3 * ARRAY
        small = ge2.jit(f, memory_limit=found)
        assert memory(small).peak == found
        np.testing.assert_allclose(small(*ARGS), f(*ARGS), rtol=1e-9)
        with pytest.raises(MemoryLimitError, match=f"memory_limit={found}"):
            ge2.jit(f, memory_limit=found - 1)(*ARGS)


@pytest.mark.parametrize("f", PROGRAMS)
def test_what_is_allocated_is_what_was_planned(f: Any):
    """Blocked NumPy allocates all of it where Python counts."""
    slack = ARRAY // 2
    with config.using(executor="blocked", threads=1):
        plain = ge2.jit(f)
        allocated(plain, *ARGS)  # and what a process allocates once
        full = memory(plain).peak
        small = ge2.jit(f, memory_limit=full - 3 * ARRAY)
        planned = memory(small).peak
        measured = allocated(small, *ARGS)
        assert planned - 2 * ARRAY < measured < planned + slack
        assert measured < full - 3 * ARRAY + slack


def test_the_report_counts_the_operations_of_all_rounds():
    def reported(f: Any) -> Any:
        full = memory(ge2.jit(f)).peak
        return ge2.jit(f, memory_limit=full - 2 * ARRAY).lower(*ARGS)

    once, often = (sum(r.operations for r in reported(f).remat.repeats) for f in (branch, scanned))
    assert once > 0 and often == 4 * once
    lowered = reported(branch)
    assert all("in network" in line for line in lowered.remat.lines)
    assert (
        lowered.memory_analysis().repeated
        == sum(r.nbytes for r in lowered.remat.repeats)
        >= 2 * ARRAY
    )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_steps_one_after_the_other_take_the_same_scratch(executor: str):
    def chained(count: int) -> Any:
        def f(w, x, p):
            for _ in range(count):
                w = w - branch(w, x, p)
            return w

        return f

    with config.using(executor=executor):
        one, three = (memory(ge2.jit(chained(n))).peak for n in (1, 3))
        assert LAYERS * ARRAY < one <= three < one + ARRAY


@pytest.mark.parametrize("executor", EXECUTORS)
def test_branches_of_one_step_take_the_same_scratch(executor: str):
    small = lambda w, x, p: ge2.lax.cond(p > 0, HEAVY, lambda w, x: w, w, x)  # noqa: E731
    both = lambda w, x, p: ge2.lax.cond(p > 0, HEAVY, lambda w, x: HEAVY(w * 2.0, x), w, x)  # noqa: E731
    with config.using(executor=executor):
        assert memory(ge2.jit(both)).peak < memory(ge2.jit(small)).peak + ARRAY


def test_results_of_branches_count_until_they_are_read():
    """In Python they are arrays outside of the arena."""
    make = lambda x, p: ge2.lax.cond(p > 0, np.sin, np.cos, x)  # noqa: E731

    def kept(w, x, p):
        a, b = make(x, p), make(x, p + 1.0)
        return np.sum(a * b)

    def passed(w, x, p):
        return np.sum(make(make(make(x, p), p), p))

    with config.using(executor="blocked", threads=1):
        assert memory(ge2.jit(kept)).passing == 2 * ARRAY
        assert memory(ge2.jit(passed)).passing == 2 * ARRAY  # what is read, and what is made
        found = least(passed)
        assert allocated(ge2.jit(passed, memory_limit=found), *ARGS) < found + ARRAY // 2


def test_a_limit_that_is_no_limit_repeats_nothing():
    for f in PROGRAMS:
        lowered = ge2.jit(f, memory_limit="1GB").lower(*ARGS)
        assert lowered.remat.repeats == ()
        assert lowered.as_text() == ge2.jit(f).lower(*ARGS).as_text()


def test_equal_rounds_are_one_loop_where_that_still_fits():
    """What is computed again lies elsewhere."""

    def f(w, big, x):
        for _ in range(24):
            x = np.tanh(x @ w)
        for _ in range(5):
            big = np.tanh(big @ w)
        return np.mean(big * big) + np.sum(x)

    args = W, np.concatenate([X] * 2), X[:4]
    plain = ge2.jit(ge2.grad(f))
    full = plain.lower(*args).memory_analysis().peak
    found = [ge2.jit(ge2.grad(f), memory_limit=full * n // 100).lower(*args) for n in (95, 79, 65)]
    assert all(lowered.remat.repeats for lowered in found)
    rolled = [lowered for lowered in found if "scan[" in lowered.as_text()]
    assert rolled and all(
        r.memory_analysis().peak == r.remat.after <= r.remat.limit for r in rolled
    )
    np.testing.assert_allclose(rolled[0].compile()(*args), plain(*args), rtol=1e-9, atol=1e-12)
