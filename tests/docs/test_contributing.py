"""CONTRIBUTING.md speaks of files and names that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ge2.base.config import FIELDS, variable

ROOT = Path(__file__).parents[2]
TEXTS = ("CONTRIBUTING.md", "README.md", "templates/README.md", "changelog.d/README.md")
TOPS = ("ge2/", "tests/", "templates/", "docs/", "examples/", "benchmarks/", "changelog.d/")


def quoted(name: str) -> list[str]:
    return re.findall(
        r"`([^`\n]+)`", re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
    )


@pytest.mark.parametrize("name", TEXTS)
def test_every_path_exists(name):
    paths = [word for word in quoted(name) if word.startswith(TOPS)]
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_there_are_the_five_recipes():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for what in ("an operation", "a pass", "a kernel family", "a template block", "a target"):
        assert f"\n## Add {what}\n" in text


def test_every_name_in_a_recipe_is_in_the_code():
    paths = [path for top in ("ge2", "tests") for path in (ROOT / top).rglob("*.py")]
    code = "\n".join(path.read_text() for path in paths)
    names = {
        word for word in quoted("CONTRIBUTING.md") if re.fullmatch(r"[A-Z][A-Za-z_]{3,}", word)
    }
    assert {"PIPELINES", "FAMILIES", "CLASSES", "CKernel"} <= names
    assert not [name for name in names if not re.search(rf"\b{name}\b", code)]


def test_every_variable_is_a_setting():
    texts = [
        re.sub(r"```(?:diff|jinja|python).*?```", "", (ROOT / n).read_text(), flags=re.DOTALL)
        for n in TEXTS
    ]
    words = {word for text in texts for word in re.findall(r"GE2_(?!TEST_)[A-Z_]+", text)}
    assert words <= {variable(name) for name in FIELDS}
