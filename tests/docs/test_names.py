"""Files that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ge2", "tests", "benchmarks", "examples", "docs")
NAMED = re.compile(r"`([\w/]+\.py)`")
OF_USERS = {"repro.py"}  # which ge2 writes for them
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FILES = [p.relative_to(ROOT).as_posix() for f in FOLDERS for p in (ROOT / f).rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = set(NAMED.findall(page.read_text())) - OF_USERS
    assert not {n for n in named if not any(f == n or f.endswith(f"/{n}") for f in FILES)}
