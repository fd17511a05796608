"""What a user installs: three dependencies, a light import, a wheel that holds
all it needs and no more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PROGRAM = """
import numpy as np
import ge2
import ge2.cli
from pathlib import Path
from ge2.cli.demo import example

assert Path(example("gpt2.characters").__file__).is_relative_to({folder!r})
assert Path(ge2.__file__).is_relative_to({folder!r}), ge2.__file__
x = np.arange(6, dtype=np.float32).reshape(2, 3)
f = lambda x: np.tanh(x).sum(axis=1)
np.testing.assert_allclose(ge2.jit(f)(x), f(x), rtol=1e-6)
"""


def python(program: str, **environment: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    found = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    return Path(next(iter(builder.build(directory=str(tmp_path_factory.mktemp("wheel"))))))


def test_core_dependencies():
    names = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in PROJECT["dependencies"]}
    assert names == {"numpy", "ml_dtypes", "jinja2"}


def test_importing_ge2_imports_none_of_the_heavy_packages():
    loaded = set(python("import sys, ge2; print(*sys.modules)", PYTHONPATH=str(ROOT)).split())
    heavy = {
        "jinja2", "cupy", "cuda", "nvidia", "nvmath", "torch", "jax", "sklearn", "scipy", "pytest",
        "hypothesis", "importlib.metadata",
    }  # fmt: skip
    assert not loaded & heavy


def test_the_wheel_holds_the_package_and_its_templates(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"ge2", f"ge2-{PROJECT['version']}.dist-info"}
    assert {"ge2/py.typed", "ge2/templates/README.md"} <= set(names)
    templates = {str(p.relative_to(ROOT)) for p in (ROOT / "templates").rglob("*") if p.is_file()}
    assert {f"ge2/{name}" for name in templates} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_runs_far_from_the_checkout(wheel, tmp_path, monkeypatch):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    python(PROGRAM.format(folder=str(tmp_path)), PYTHONPATH=str(tmp_path))


def test_the_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert 'pip install ".[demo]" && ge2 demo' in text
    assert 'pip install ".[test]" && pytest' in text


def test_ci_installs_by_the_readmes_command():
    assert (
        'pip install --quiet --disable-pip-version-check ".[test]"'
        in (ROOT / ".ci/run").read_text()
    )
