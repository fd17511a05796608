"""The lessons and the examples run, in new processes as a reader would run
them, without a warning.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    [
        *ROOT.glob("docs/lessons/*.py"),
        *ROOT.glob("examples/*.py"),
        *ROOT.glob("examples/*/train.py"),
    ]
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_script(path):
    found = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout, "a script shows something"


def test_there_are_lessons_and_examples():
    assert {"01_trace", "02_grad"} <= {path.stem for path in SCRIPTS}
    assert any(path.parent.name == "examples" for path in SCRIPTS)
