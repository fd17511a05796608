"""The lessons and the examples run, in new processes as a reader would run them, without a warning,
but for C that is compiled at -Og.

Examples take six to ten seconds each, so a plain run has the one that its seed draws; tests/examples
runs each of them at a small size.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ge2.base.detect import toolchain
from tests.examples.test_examples import SMALL
from tests.exhaustive import SAMPLING, place_of

ROOT = Path(__file__).parents[2]
LESSONS = sorted([*ROOT.glob("docs/lessons/*.py"), ROOT / "examples/new_layer/train.py"])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
PAGES = sorted(ROOT.glob("docs/examples/*.md"))
DIGITS = re.compile(r"[\d.,e%+-]+")


def name(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Settings under which C is compiled in half of the time; those of users under `--all`."""
    tools = toolchain()
    if tools is None or SAMPLING.every:
        return {}
    script = tmp_path_factory.mktemp("quick") / "cc"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(tools.command)} "$@" -Og\n')
    script.chmod(0o755)
    return {"GE2_CC": str(script)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_lesson(path, quick):
    run(path, quick)


def drawn_examples():
    """All under `--all`, else one of them."""
    return EXAMPLES if SAMPLING.every else [min(EXAMPLES, key=lambda path: place_of(path.stem))]


@pytest.mark.parametrize("path", drawn_examples(), ids=name)
def test_example(path, quick):
    """It runs, and prints what its page shows, but for digits."""
    shown = run(path, quick)
    page = ROOT / f"docs/examples/{path.stem}.md"
    if page.exists():
        (output,) = re.findall(r"^```\n\$ .*\n((?:.*\n)*?)```", page.read_text(), re.MULTILINE)
        assert DIGITS.sub("#", output).split() == DIGITS.sub("#", shown).split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page):
    """It is listed, has its picture, and shows lines of its program."""
    text = page.read_text()
    assert f"(examples/{page.name})" in (ROOT / "docs/examples.md").read_text()
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", text)
    assert (page.parent / picture).stat().st_size < 60_000
    links = re.findall(r"\]\((\.\./.*?)\)", text)
    assert links and all((page.parent / link).exists() for link in links)
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        assert words(block) in words((page.parent / links[0]).read_text())


def words(text):
    return " ".join(text.split())


def run(path, settings):
    """What a script prints, in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=ROOT,
        env=os.environ | settings | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout, "a script shows something"
    return found.stdout


def test_there_are_lessons_and_examples():
    assert {"01_trace", "02_grad"} <= {path.stem for path in LESSONS}
    assert {path.stem for path in EXAMPLES} == set(SMALL)
    assert len(PAGES) == 10
