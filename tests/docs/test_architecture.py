"""docs/architecture.md and the tree in README.md are true: paths exist, names are where they are
said to be, examples give what is shown.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.together import needs_compiler

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PROSE = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL)
AT_HOME = re.compile(r"((?:`\w+`(?:,\s|\sand\s)?)+)\s\(`(ge2/[\w/]+\.py)`\)")
HOMES = [(n, at) for names, at in AT_HOME.findall(PROSE) for n in re.findall(r"`(\w+)`", names)]
README = (ROOT / "README.md").read_text()
FOLDERS = ("benchmarks", "changelog.d", "docs", "examples", "ge2", "templates", "tests")
PATH = re.compile(r"`((?:ge2|docs|templates|tests)/[\w./]*|\w+\.(?:md|toml))`")


def test_every_path_of_the_page_exists():
    paths = PATH.findall(PROSE)
    assert len(paths) > 40
    assert not [path for path in paths if not (ROOT / path).exists()]


def tree():
    """The paths of README's tree, each below the line with less space before it."""
    (block,) = re.findall(r"^## The tree\n\n```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    top = ""
    for line in block.splitlines():
        path = line.split()[0]
        if line[0] != " ":
            top = path
        yield path if line[0] != " " else top + path


def test_the_tree_of_the_readme_is_the_tree():
    paths = list(tree())
    assert not [path for path in paths if not (ROOT / path).exists()]
    packages = {f"ge2/{path.parent.name}/" for path in ROOT.glob("ge2/*/__init__.py")}
    folders = {f"{name}/" for name in FOLDERS}
    assert packages | folders <= set(paths)


def test_every_name_is_defined_where_it_is_said_to_be():
    assert len(HOMES) > 30
    for name, path in HOMES:
        defined = rf"^(?:class |def )?{name}\b(?:[\[(:]| =)"
        assert re.search(defined, (ROOT / path).read_text(), re.MULTILINE), f"{name} in {path}"


@needs_compiler
@pytest.mark.parametrize("page", ["architecture", "io", "nn"])
def test_the_examples_give_what_is_shown(page):
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    path = str(ROOT / "docs" / f"{page}.md")
    found = doctest.testfile(path, module_relative=False, optionflags=options)
    assert found.attempted > 10
    assert not found.failed


def test_every_page_of_design_begins_with_what_it_decides():
    pages = sorted((ROOT / "docs" / "design").glob("*.md"))
    assert len(pages) > 20
    for page in pages:
        title, space, first = page.read_text().split("\n")[:3]
        assert (
            title.startswith("# ") and not space and first.replace("*", "").startswith("Decides ")
        ), page.name


def test_the_house_is_small_enough_to_know():
    """Fewer than 300 files in ge2/, of 600 lines at most, and 15 in each folder below it."""
    files = list((ROOT / "ge2").rglob("*.py"))
    assert len(files) < 300
    assert not [str(path) for path in files if len(path.read_text().splitlines()) > 600]
    folders = {path.parent for path in files} - {ROOT / "ge2"}
    parts = {folder: {p.name for p in folder.iterdir()} - {"__pycache__"} for folder in folders}
    assert not [str(folder) for folder, names in parts.items() if len(names) > 15]
