"""The lessons and the examples run, in new processes as a reader would run them, without a warning.

Examples take as long as they do; tests/examples runs each of them at a small size.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_examples import SMALL

ROOT = Path(__file__).parents[2]
LESSONS = sorted([*ROOT.glob("docs/lessons/*.py"), ROOT / "examples/new_layer/train.py"])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


def name(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_lesson(path):
    run(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_example(path):
    run(path)


def run(path):
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
    assert {"01_trace", "02_grad"} <= {path.stem for path in LESSONS}
    assert {path.stem for path in EXAMPLES} == set(SMALL)
