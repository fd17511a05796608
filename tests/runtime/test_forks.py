"""Children of a process whose other threads trace and compile at the moment of the fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ge2
from ge2.base import record as gc_pause
from ge2.base.config import config
from ge2.codegen import environment

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

PROGRAM = """
import itertools, os, signal, threading, time
import numpy as np
import ge2

numbers, stop = itertools.count(), threading.Event()

def compiles():
    while not stop.is_set():
        c = next(numbers)
        ge2.jit(lambda x: np.tanh(x * c) + np.sin(x + c).sum())(np.arange(5.0 + c % 50))

def child(k):
    signal.alarm(30)
    x = np.arange(7.0 + k)
    right = np.allclose(ge2.jit(lambda x: np.cos(x) * k + 1000)(x), np.cos(x) * k + 1000)
    os._exit(0 if right else 3)

threads = [threading.Thread(target=compiles) for _ in range(2)]
for each in threads:
    each.start()
children = []
for k in range(10):
    time.sleep(0.05)
    children.append(os.fork())
    if not children[-1]:
        child(k)
    if k % 4 == 3:
        stop.wait(0.2)
print(*(os.waitpid(each, 0)[1] for each in children))
stop.set()
for each in threads:
    each.join()
"""


def test_children_of_a_process_that_compiles_in_other_threads(tmp_path):
    given = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GE2_CACHE_DIR": str(tmp_path),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM],
        env=given,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.split() == ["0"] * 10, done.stderr


def in_a_child(work):
    """True if a forked child has done the work; it has ten seconds."""
    pid = os.fork()
    if not pid:
        import signal

        signal.alarm(10)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def test_no_lock_of_another_thread_is_held_in_the_child():
    from threading import Event, Thread

    from ge2.base import config as settings
    from ge2.base import source as python_source
    from ge2.dispatch import cache

    taken, done = Event(), Event()

    def hold():
        with settings._lock, python_source._lock, cache._guard:
            taken.set()
            done.wait()

    def traces_and_runs():
        with config.using(executor="blocked"):
            return ge2.jit(lambda x: x * 3 + 1)(np.ones(5)).tolist() == [4.0] * 5

    thread = Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        assert in_a_child(traces_and_runs)
    finally:
        done.set()
        thread.join()


def test_the_collector_runs_in_a_child_of_a_process_that_had_it_rest():
    assert in_a_child(gc.isenabled)
    paused = gc_pause.collector_paused(lambda: in_a_child(gc.isenabled) and not gc.isenabled())
    assert paused()
    assert gc.isenabled()


def test_texts_are_rendered_in_a_child_that_was_forked_meanwhile():
    with environment._rendering:
        assert in_a_child(lambda: environment._rendering.acquire(timeout=1))


def test_no_thread_is_looking_for_a_folder_when_another_forks(monkeypatch, tmp_path):
    """`tempfile` does so once, under a lock of its own."""
    import tempfile
    from threading import Event, Thread

    from ge2.base.command import workplace

    looks, default = Event(), tempfile._get_default_tempdir

    def slowly():
        looks.set()
        stop.wait(1)
        return default()

    stop = Event()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", slowly)

    def make():
        with workplace() as folder:
            return os.path.isdir(folder)

    other = Thread(target=make)
    other.start()
    assert looks.wait(10)
    assert in_a_child(make)
    other.join()
