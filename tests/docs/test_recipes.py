"""CONTRIBUTING.md's recipes, executed in a copy of the tree from the page's own blocks.

A block is a file (its first line is a comment with the path), a diff (of the file that its line
`+++` names), commands, or examples as of doctest. They are applied and run in the page's order:
files and diffs of all recipes, commands and examples, which take seconds, of those that are drawn.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler

ROOT = Path(__file__).parents[2]
COPIED = ("ge2", "templates", "tests", "docs", "conftest.py", "pyproject.toml", "README.md")
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"(?:#|/\*|\{#) (\S+/\S+\.\w+).*\n")
OURS = ("GE2_", "PYTEST_")  # settings of this run, of which the copy's have defaults

# what the output of a recipe's commands must have, beside that they succeed
SHOWN = {
    "an operation": (
        r"test_operations_in_c\[cosm1\] PASSED",
        r"test_derivatives_in_c\[cosm1\] PASSED",
        r"test_operations_in_cuda\[cosm1\] PASSED",
        r"test_derivatives_in_cuda\[cosm1\] PASSED",
        r"test_kernels_are_compiled\[cosm1\] PASSED",
        r"test_vjp_is_the_transpose_of_the_differences\[cosm1\] PASSED",
    ),
    "a pass": (r"3 passed",),
    "a kernel family": (r"test_counting_sort.py \.",),
    "a template block": (r"1 kernel for sm_90a",),
    "a target": (
        r"test_an_operation\[tanh-logged\] PASSED",
        r"test_its_derivative\[tanh-logged\] PASSED",
        r"test_the_executors_are_all_of_them PASSED",
    ),
}


def recipes() -> dict[str, list[tuple[str, str]]]:
    """The blocks of each recipe, in order: a language and a text."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    sections = re.split(r"^## Add ", page, flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: [(b[2], dedent(b[3])) for b in BLOCK.finditer(section)]
        for section in sections
    }


RECIPES = recipes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each copy stands, so that bytecode of what a recipe leaves as it is serves the next."""
    return tmp_path_factory.mktemp("copy") / "ge2"


@pytest.fixture
def copy(place: Path) -> Path:
    """A new copy of the tree."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, place / name, ignore=shutil.ignore_patterns("golden", "__pycache__")
            )
        else:
            shutil.copy2(ROOT / name, place / name)
    return place


@pytest.mark.parametrize("name", SHOWN)
def test_its_files_and_diffs_fit_the_tree(name: str, tmp_path: Path) -> None:
    blocks = [block for block in RECIPES[name] if not is_run(*block)]
    for found in re.findall(r"^\+\+\+ (.*)$", "\n".join(text for _, text in blocks), re.MULTILINE):
        (tmp_path / found).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / found, tmp_path / found)
    for path in [written(tmp_path, *block) for block in blocks]:
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")


@needs_compiler
@needs_nvrtc
@pytest.mark.exhaustive  # each takes seconds of new processes, and its files are applied above
@pytest.mark.parametrize("name", SHOWN)
def test_a_recipe_is_true(name: str, copy: Path) -> None:
    shown = "".join(follow(copy, *block) for block in RECIPES[name])
    for pattern in SHOWN[name]:
        assert re.search(pattern, shown), f"no {pattern} in\n{shown}"


def follow(copy: Path, language: str, text: str) -> str:
    """Applies a block, or runs it; what it shows."""
    if language == "sh":
        return "".join(run(copy, *shlex.split(line)) for line in text.splitlines())
    if is_run(language, text):
        (copy / "example.txt").write_text(text)
        run(copy, "doctest", "-o", "NORMALIZE_WHITESPACE", "-o", "ELLIPSIS", "example.txt")
    else:
        written(copy, language, text)
    return ""


def is_run(language: str, text: str) -> bool:
    """True for commands and examples, False for what becomes of files."""
    return language == "sh" or text.startswith(">>>")


def written(copy: Path, language: str, text: str) -> Path:
    """The file that a block has made or changed."""
    if language == "diff":
        return change(copy, text)
    path = FILE.match(text)
    assert path, f"neither a file nor an example:\n{text}"
    (copy / path[1]).parent.mkdir(parents=True, exist_ok=True)
    (copy / path[1]).write_text(text[path.end() :])
    return copy / path[1]


def run(copy: Path, module: str, *arguments: str) -> str:
    """The output of a module of Python's, with the copy as its ge2; settings may come first."""
    settings = {}
    while "=" in module:
        name, _, settings[name] = module.partition("=")
        module, *arguments = arguments
    kept = {n: v for n, v in os.environ.items() if not n.startswith(OURS) or n == "GE2_CACHE_DIR"}
    environment = kept | settings | {"PYTHONPATH": str(copy), "GE2_CHECK": "1"}
    found: Any = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    return str(found.stdout)


def change(copy: Path, diff: str) -> Path:
    """Applies a diff without line numbers: the lines of each hunk stand at one place alone."""
    first, _, rest = diff.partition("\n")
    path = copy / first.removeprefix("+++ ")
    text = path.read_text()
    for hunk in re.split(r"^@@.*\n", rest, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
        new = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
        assert text.count(old) == 1, f"in {path.name} {text.count(old)} times:\n{old}"
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_each_recipe_is_executed() -> None:
    assert set(SHOWN) == set(RECIPES)


def test_the_copy_is_what_runs(copy: Path) -> None:
    (copy / "where.py").write_text("import ge2\nprint(ge2.__file__)\n")
    assert Path(run(copy, "where").strip()) == copy / "ge2" / "__init__.py"
