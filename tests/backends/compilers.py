"""Compilers for tests, some of our own making, and a machine on which none is known yet."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ge2.base import compiler, detect
from ge2.base import source as log
from ge2.base.config import config

ROOT = Path(__file__).parents[2]
REAL = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(REAL is None, reason="there is no C compiler here")

SOURCE = """
int ge2_run(int n) {
    int total = 0;
#pragma omp parallel for reduction(+ : total)
    for (int i = 0; i < n; i++) total += i;
    return total + ADDED;
}
int other(void) { return 7; }
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No compiler, library or trouble is known yet, and temporary files have
    a folder of their own.
    """
    for module, name, value in (
        (detect, "_found", {}),
        (compiler, "_libraries", {}),
        (compiler, "_refused", {}),
        (log, "_said", set()),
    ):
        monkeypatch.setattr(module, name, value)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield
    assert list((tmp_path / "tmp").iterdir()) == []


def source(added=0):
    return SOURCE.replace("ADDED", str(added))


def call(lib, n=10, symbol="ge2_run"):
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lib.address(symbol))(n)


def script(tmp_path, body, version="echo fake 1.0; exit 0"):
    """A compiler of our own making. It notes each call in `calls`."""
    path = tmp_path / "fakecc"
    calls = tmp_path / "calls"
    path.write_text(
        f'#!/bin/sh\necho x >> "{calls}"\n[ "$1" = --version ] && {{ {version}; }}\n{body}\n'
    )
    path.chmod(0o700)
    return str(path)


def calls(tmp_path):
    return len((tmp_path / "calls").read_text().split())


def python(program, **environment):
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()
