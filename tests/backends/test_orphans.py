"""A process that is killed, or interrupted, leaves no compiler behind, and no files for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from ge2.base import command as workplace
from ge2.base.cache import PRUNED, cache
from ge2.base.compiler import library
from ge2.base.config import config
from tests.backends.compilers import ROOT, calls, needs_compiler, python, script, source
from tests.backends.compilers import fresh as fresh
from tests.backends.test_misbehaving_compilers import nothing_runs_in, processes_of

HANGS = "(sleep 60) & sleep 60"  # a compiler with a helper of its own
COMPILES = """
from ge2.base.compiler import library
library("int ge2_run(void) { return 1; }", "f")
"""
COMPILES_MANY = """
import os
from itertools import count
from ge2.base.compiler import library
print("begins", flush=True)
for i in count():
    library(f"int ge2_run(void) {{ return {i} + {os.getpid()}; }}", "f")
"""
KILLS = int(os.environ.get("GE2_TEST_KILLS", "5"))
needs_processes = pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="there is no /proc here"
)


@pytest.fixture
def compiling(tmp_path):
    """A process of ours in the middle of a compilation that never ends."""
    environment = {"PYTHONPATH": str(ROOT), "GE2_CC": script(tmp_path, HANGS)}
    folders = {"TMPDIR": str(tmp_path / "tmp"), "GE2_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILES],
        env=os.environ | environment | folders,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: len(processes_of(tmp_path / "tmp")) >= 3)
    yield process
    process.kill()
    process.wait()


@needs_processes
@needs_compiler
def test_kills_at_any_moment_leave_no_compiler_no_damage_and_few_files(tmp_path, rng):
    environment = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}
    environment |= {"GE2_CACHE_DIR": str(tmp_path / "cache")}
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", COMPILES_MANY],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
        )
        with process:
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
            process.kill()
        assert nothing_runs_in(tmp_path / "tmp")
        assert len(os.listdir(tmp_path / "tmp")) <= 1
    python(COMPILES_MANY.replace("count()", "range(1)"), **environment)
    assert os.listdir(tmp_path / "tmp") == []
    entries = cache().entries(verify=True)
    assert entries and not any(entry.trouble for entry in entries)
    unfinished = set(os.listdir(tmp_path / "cache")) - {entry.key for entry in entries} - {PRUNED}
    assert len(unfinished) <= KILLS  # which go when they are stale


def until(done):
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@needs_processes
def test_a_killed_process_leaves_no_compiler_and_the_next_removes_its_files(
    compiling, tmp_path, monkeypatch
):
    compiling.kill()
    compiling.wait()
    assert nothing_runs_in(tmp_path / "tmp")
    (left,) = (tmp_path / "tmp").iterdir()
    assert left.name.startswith(workplace.PREFIX)
    monkeypatch.setattr(workplace, "_swept", set())
    with workplace.workplace() as folder:
        assert os.listdir(tmp_path / "tmp") == [os.path.basename(folder)]


@needs_processes
def test_an_interrupted_process_leaves_neither(compiling, tmp_path):
    compiling.send_signal(signal.SIGINT)
    assert compiling.wait(10) != 0
    assert nothing_runs_in(tmp_path / "tmp")
    assert os.listdir(tmp_path / "tmp") == []


def test_files_that_are_in_use_stay(monkeypatch):
    with workplace.workplace() as folder:
        monkeypatch.setattr(workplace, "_swept", set())
        with workplace.workplace() as other:
            assert os.path.isdir(folder) and folder != other


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(monkeypatch):
    made = []

    def swept(prefix, mkdtemp=tempfile.mkdtemp):
        made.append(mkdtemp(prefix=prefix))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with workplace.workplace() as folder:
        assert folder == made[1]


class Stop(Exception):
    """Raised by the handler of a signal, as KeyboardInterrupt is."""


def test_a_signal_ends_the_compiler_and_the_same_source_is_compiled_again(tmp_path):
    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with config.using(cc=script(tmp_path, HANGS)):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Stop):
                library(source(), "f")
            begun = calls(tmp_path)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Stop):
                library(source(), "f")
            assert calls(tmp_path) == begun + 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert nothing_runs_in(tmp_path)
