"""Signatures survive `jit`, `grad` and the others: pyright reads
`typed_programs.py`, as mypy does in CI.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_pyright_accepts_what_is_right_and_refuses_each_mistake():
    pytest.importorskip("basedpyright", reason="the extra `test` brings it")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert "0 errors, 0 warnings" in found.stdout
