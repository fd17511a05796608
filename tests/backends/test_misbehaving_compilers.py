"""Whatever a compiler does instead of compiling is an error, soon, and leaves nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
import time

import pytest

from ge2.base import compiler, detect
from ge2.base.command import KEPT, TookTooLong, run
from ge2.base.compiler import excuse, library
from ge2.base.config import config
from ge2.base.detect import FLAGS
from ge2.base.errors import CompileError, CompilerTrouble
from ge2.base.program import Program
from ge2.base.source import Ge2Warning
from tests.backends.compilers import REAL, call, calls, needs_compiler, script, source
from tests.backends.compilers import fresh as fresh

FLOOD = "head -c 10000000 /dev/zero | tr '\\0' 'x'"
OUTPUT = 'while [ "$1" != -o ]; do shift; done; '
MISBEHAVIOUR = {
    "hangs": "sleep 30",
    "hangs in a child that holds its output": "(sleep 30) & sleep 30",
    "closes its output and hangs": "exec >/dev/null 2>&1; sleep 30",
    "kills itself": "kill -9 $$",
    "leaves a child behind": "sleep 30 & exit 1",
    "leaves a silent child behind": "sleep 30 >/dev/null 2>&1 & exit 1",
    "prints 10 MB": f"{FLOOD}; exit 0",
    "prints 10 MB and fails": f"{FLOOD}; exit 1",
    "writes junk": f'{OUTPUT} echo junk > "$2"',
    "writes half a library": f'{OUTPUT} head -c 3000 "$(command -v python3 || echo /bin/sh)" > "$2"',
    "writes a folder": f'{OUTPUT} mkdir "$2"',
    "writes nothing": "exit 0",
    "writes an empty file": f'{OUTPUT} : > "$2"',
    "says an error": "echo 'f.c:3: error: no' >&2; exit 1",
}


@pytest.fixture
def hasty(monkeypatch):
    """A time limit for those who cannot wait for a second. Returns it."""
    for module in (detect, compiler):
        monkeypatch.setattr(module, "time_limit", lambda: 0.4)
    return 0.4


def test_the_time_limit_is_that_of_the_setting(tmp_path):
    with config.using(cc=script(tmp_path, "sleep 30"), compile_timeout=1):
        began = time.monotonic()
        with pytest.raises(CompilerTrouble, match="longer than 1 s"):
            library(source(), "f")
        assert 1 < time.monotonic() - began < 2


@pytest.mark.parametrize("body", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_it_is_trouble_and_soon_over(body, tmp_path, hasty):
    with config.using(cc=script(tmp_path, body)):
        began = time.monotonic()
        with pytest.raises(CompilerTrouble) as trouble:
            library(source(), "f")
        assert time.monotonic() - began < hasty + 1
        assert isinstance(trouble.value, CompileError)
        assert len(str(trouble.value)) < 5000
        before = calls(tmp_path)
        with pytest.raises(CompilerTrouble):  # at once, and without asking again
            library(source(), "f")
        assert calls(tmp_path) == before
        assert detect.toolchain() is None  # it cannot even compile a trial
    assert not zombies()
    assert nothing_runs_in(tmp_path)


@pytest.mark.parametrize("body", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_so_it_is_where_it_does_not_even_say_its_version(body, tmp_path, hasty, monkeypatch):
    if "$1" in body:
        body = "exit 1"  # it writes files, and has none to write
    if "head" in body:
        monkeypatch.setattr(detect, "time_limit", lambda: 20)  # it is slow, and ends
    with config.using(cc=script(tmp_path, body, version=body)):
        began = time.monotonic()
        if "head" in body and "exit 0" in body:
            assert detect.toolchain().version == "x" * 200
        else:
            with pytest.warns(Ge2Warning, match="NumPy runs instead"):
                assert detect.toolchain() is None
            assert time.monotonic() - began < hasty + 1 or "head" in body
    assert not zombies()
    assert nothing_runs_in(tmp_path)


def zombies():
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def nothing_runs_in(folder):
    """What was killed may need a moment to die."""
    end = time.monotonic() + 1
    while processes_of(folder) and time.monotonic() < end:
        time.sleep(0.01)
    return not processes_of(folder)


def processes_of(folder):
    """The processes that our scripts have left."""
    if not os.path.isdir("/proc/self"):
        return []
    found = []
    for each in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if str(folder) in os.readlink(f"/proc/{each}/cwd"):
                found.append(each)
        except OSError:
            continue
    return found


@needs_compiler
def test_an_error_of_one_source_is_told_and_stops_no_other():
    wrong = "int ge2_run(int n) { return unknown_name; }\n"
    with pytest.raises(CompilerTrouble, match="unknown_name"):
        library(wrong, "f of model.py")
    assert call(library(source(), "f")) == 45


@needs_compiler
def test_a_source_without_the_function_is_refused():
    with pytest.raises(CompilerTrouble, match="ge2_run"):
        library("int other(void) { return 1; }", "f")


@needs_compiler
@pytest.mark.full_options
@pytest.mark.parametrize(
    "missing", [("-fopenmp",), ("-march=native",), ("-fopenmp", "-march=native")]
)
def test_options_that_it_does_not_know_are_left_out(tmp_path, missing):
    tests = " || ".join(f'[ "$a" = {flag} ]' for flag in missing)
    path = script(tmp_path, f'for a; do if {tests}; then exit 1; fi; done; exec {REAL} "$@"')
    with config.using(cc=path):
        assert call(library(source(), "f")) == 45
        assert set(FLAGS) - set(detect.toolchain().flags) == set(missing)
        before = calls(tmp_path)
        for known in (detect._found, compiler._libraries, compiler._refused):
            known.clear()  # as in another process
        assert library(source(), "f").cached
        assert calls(tmp_path) == before


def test_no_room_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with (
        config.using(cc=script(tmp_path, "exit 0")),
        pytest.raises(CompilerTrouble, match="TMPDIR"),
    ):
        library(source(), "f")


def test_the_excuse_is_made_once():
    with pytest.warns(Ge2Warning, match="NumPy runs instead: it hangs") as said:
        [excuse(CompilerTrouble("it hangs")) for _ in range(3)]
    assert len(said) == 1


def test_a_program_is_heard_to_a_bound(tmp_path):
    outcome = run(("/bin/sh", "-c", f"{FLOOD}; exit 3"), str(tmp_path), 20)
    assert (outcome.status, outcome.output) == (3, "x" * KEPT)
    with pytest.raises(TookTooLong):
        run(("/bin/sh", "-c", "while :; do echo more; done"), str(tmp_path), 0.2)


def test_an_interrupt_as_it_starts_leaves_no_program(tmp_path, monkeypatch):
    """It comes when the program runs and its constructor has not returned: it is ended, waited for,
    and nothing warns of one that runs still.
    """
    started = []

    def interrupted(self, *args, **options):
        start(self, *args, **options)
        started.append(self.pid)
        raise KeyboardInterrupt

    start = subprocess.Popen.__init__
    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "30"], str(tmp_path), 60)
    gc.collect()
    with pytest.raises(ProcessLookupError):  # not even as one whose status nobody has asked for
        os.kill(started[0], 0)


def test_a_program_that_an_interrupt_kept_from_starting_leaves_no_pipe_open():
    reader, writer = os.pipe()
    program = Program.__new__(Program)
    program._child_created = False
    program.stdout = os.fdopen(reader, "rb")
    program.end()
    assert program.stdout.closed
    os.close(writer)
