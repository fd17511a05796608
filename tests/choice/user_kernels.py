"""What tests of users' kernels share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.choice import record

needs_compiler = pytest.mark.skipif(toolchain() is None, reason="no C compiler")


@pytest.fixture(autouse=True)
def none_registered(tmp_path: Path) -> Iterator[None]:
    """Nothing was registered, checked or measured before; imported by name, it is for all tests."""
    with config.using(cache_dir=str(tmp_path / "cache")):
        record.forget()
        yield
        for name in kernels.registered():
            kernels.unregister(name)
    record.forget()


def change(folder: Path, old: str, new: str, name: str = "kernel.toml") -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def shown(f: Any, *args: Any) -> list[str]:
    return [k.computes for k in ge2.explain(f)(*args).kernels]


def build_library(folder: Path, text: str, name: str) -> None:
    """A library of the user's own in the folder of a kernel."""
    (folder / "lib.c").write_text(text)
    command = (*toolchain().command, "-shared", "-fPIC", "-O1", "lib.c", "-o", name, "-lm")
    subprocess.run(command, cwd=folder, check=True)
