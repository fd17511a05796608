"""An interrupt ends a call at any moment, and the next one is right."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.dispatch import cache
from ge2.targets.c import launcher
from tests.backends.compilers import needs_compiler

EXECUTORS = [pytest.param("c", marks=needs_compiler), "blocked"]
on_main = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals reach the main thread alone",
)
pytestmark = on_main


class Stop(KeyboardInterrupt):
    """Raised by our handler."""


@contextmanager
def interrupted(seconds):
    """Raises Stop, once, after so many seconds; suppress or expect it outside of this, not inside.

    It may come when the body has ended and the timer is about to be stopped.
    """

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _raised_in_a_destructor(monkeypatch):
    """Python itself drops what a handler raises there, and calls that unraisable; anything else
    that is unraisable still fails the test.
    """
    kept = sys.unraisablehook

    def hook(unraisable):
        if unraisable.exc_type is not Stop:
            kept(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)


def until(x, end):
    return lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, s[1] * 2 % 7), (0, x))[1]


def nested(x, end):
    return lax.fori_loop(0, 3, lambda i, x: until(x, end), x)


def long(x):
    """Many iterations, as many as are asked for, of work that is not little."""
    return lax.fori_loop(0, 1 << 30, lambda i, x: x * 0.5 + 1, x)


def ends(f, x):
    """Interrupts a call that never ends, twice, and then has one that does."""
    for _ in range(2):
        with pytest.raises(Stop), interrupted(0.05):
            f(x, 1 << 62)
        np.testing.assert_array_equal(f(x, 3), x)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("size", [8, 1 << 16])  # with the interpreter's lock, and without
def test_a_loop_that_never_ends_can_be_interrupted(executor, size):
    with config.using(executor=executor):
        ends(ge2.jit(until), np.ones(size))


@needs_compiler
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_so_it_can_where_ctypes_calls_it(size, monkeypatch):
    monkeypatch.setattr(launcher, "launcher", lambda natively, by_ctypes: by_ctypes())
    monkeypatch.setattr(cache, "_compiled", OrderedDict())
    with config.using(executor="c"):
        ends(ge2.jit(until), np.ones(size))


@needs_compiler
def test_loops_within_loops_and_long_ones():
    x = np.zeros(4)
    with config.using(executor="c"):
        ends(ge2.jit(nested), x)
        with pytest.raises(Stop), interrupted(0.05):
            ge2.jit(long)(x)


def test_a_loop_that_is_run_as_it_stands_can_be_interrupted():
    with pytest.raises(Stop), interrupted(0.05):
        until(np.ones(3), 1 << 62)


@needs_compiler
def test_an_argument_that_is_written_after_the_loop_is_unchanged():
    def writes(x, end):
        x[:] = until(np.sin(x), end) + 1

    f, x = ge2.jit(writes), np.arange(4.0)
    with config.using(executor="c"):
        f(np.zeros(4), 3)
        with pytest.raises(Stop), interrupted(0.05):
            f(x, 1 << 62)
    np.testing.assert_array_equal(x, np.arange(4.0))


def steps(x, y, end):
    """Writes one argument by a loop that never ends, and the other before and after it."""
    y += 1
    x[:] = lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, s[1] * 0.5 + 1), (0, x))[1]
    y *= 2


def counted(x, y, end):
    y += 1
    x[:] = lax.fori_loop(0, 1 << 30, lambda i, x: x * 0.5 + 1, x)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("f", [steps, counted])
def test_arguments_that_a_loop_writes_are_unchanged(executor, f):
    f, x, y = ge2.jit(f), np.arange(4.0), np.arange(5.0)
    with config.using(executor=executor):
        for _ in range(2):
            with pytest.raises(Stop), interrupted(0.2):
                f(x, y, 1 << 62)
            np.testing.assert_array_equal(x, np.arange(4.0))
            np.testing.assert_array_equal(y, np.arange(5.0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_arguments_change_together_or_not_at_all(executor):
    """Wherever the interrupt comes: some are written in their own memory, some are copied."""

    def swap(x, y, z):
        x[:], y[:] = y + 0, x + 0
        z += np.tanh(x) * 0 + 1

    f, chance = ge2.jit(swap), random.Random(1)
    x, y, z = np.zeros(300_000), np.ones(300_000), np.zeros(300_000)
    with config.using(executor=executor):
        f(x, y, z)
        for _ in range(30):
            before = z[0]
            with suppress(Stop), interrupted(chance.uniform(0.0001, 0.004)):
                for _ in range(4):
                    f(x, y, z)
            state = {(a.min(), a.max()) for a in (z, x + z, y - z)}
            assert all(low == high for low, high in state), state
            assert {x[0], y[0]} == {0.0, 1.0} and x[0] == z[0] % 2 and before <= z[0] <= before + 4


def test_calls_that_were_interrupted_anywhere_leave_a_usable_state():
    """While tracing, in the passes, while compiling, loading and running."""
    chance = random.Random(0)
    for n in range(12):
        f = ge2.jit(lambda x, n=n: np.tanh(x * n).sum() + np.sin(x + n))
        x = np.arange(6.0)
        with suppress(Stop), interrupted(chance.uniform(0.0005, 0.06)):
            f(x)
        if n % 4 == 3:
            np.testing.assert_allclose(f(x), np.tanh(x * n).sum() + np.sin(x + n))
    assert gc.isenabled()
