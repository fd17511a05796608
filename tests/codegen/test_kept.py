"""What was rendered before is not rendered again, in another process either;
and is what rendering gives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.cache import Entry, cache
from ge2.base.config import config
from ge2.base.source import Ge2Warning, _said
from ge2.codegen import environment
from ge2.codegen.environment import cached_pages, page, spelt
from ge2.codegen.layout import Line
from ge2.codegen.text import Text
from ge2.compile import compile_graph
from ge2.ir import ArrayType, Var
from ge2.targets.cuda.assemble import LauncherText
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.together import needs_compiler

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with config.using(cache_dir=str(tmp_path / "cache"), check=False):
        yield tmp_path / "cache" / "v1"


@pytest.fixture
def rendered(monkeypatch):
    """The names of the templates that were rendered."""
    found = []
    real = environment.environment

    class Counted:
        def get_template(self, name):
            found.append(name)
            return real().get_template(name)

    monkeypatch.setattr(environment, "environment", Counted)
    return found


def graph(scale: float = 2.0, n: int = 64) -> Any:
    x = ge2.ShapeDtypeStruct((n, 40), np.dtype(np.float32))
    with config.using(executor="reference"):
        return (
            ge2.jit(lambda x: np.tanh(x * scale).sum(axis=0) + x.max(1, keepdims=True))
            .trace(x)
            .jaxpr
        )


def texts(graph: Any, target: str = "cuda") -> dict[str, str]:
    device = OfflineDevice(limits_of("sm_90a")) if target == "cuda" else None
    with config.using(executor="c" if target == "c" else "blocked"):
        return dict(compile_graph(graph, device=device).written(run=False).texts)


TARGETS = ["cuda", pytest.param("c", marks=needs_compiler)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_is_rendered_once(target, rendered):
    first = texts(graph(), target)
    assert len(rendered) >= 2
    rendered.clear()
    assert texts(graph(), target) == first and rendered == []
    with config.using(cache_dir="none"):
        assert texts(graph(), target) == first and rendered


@pytest.mark.parametrize("target", TARGETS)
def test_programs_that_look_alike_are_told_apart(target, rendered):
    """They share an entry, of which only what is the same is used."""
    with config.using(cache_dir="none"):
        wanted = [texts(graph(scale), target) for scale in (2.0, 3.0)]
    for _ in range(2):
        assert [texts(graph(scale), target) for scale in (2.0, 3.0)] == wanted
    assert wanted[0] != wanted[1]


def test_other_templates_are_other_texts(rendered, monkeypatch):
    texts(graph())
    rendered.clear()
    monkeypatch.setattr(environment, "writing", lambda users: f"another version{users}")
    texts(graph())
    assert rendered


def test_the_version_is_that_of_all_that_writes(tmp_path, monkeypatch):
    """A changed line in any module of this package, or in a template, is another version."""
    assert all((Path(environment.FOLDER) / name).exists() for name in environment.WRITERS)
    before = environment.ours.__wrapped__()
    assert before == environment.ours.__wrapped__()
    (tmp_path / "codegen").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "codegen" / name).write_text("x = 1")
    (tmp_path / "templates" / "cuda").mkdir(parents=True)
    template = tmp_path / "templates" / "cuda" / "kernel.jinja"
    template.write_text("one")
    monkeypatch.setattr(environment, "FOLDER", str(tmp_path))
    monkeypatch.setattr(environment, "templates", lambda: str(tmp_path / "templates"))
    found = [environment.ours.__wrapped__()]
    for change in (
        lambda: template.write_text("two"),
        lambda: (tmp_path / "codegen" / "b.py").write_text("x = 2"),
        lambda: (tmp_path / "codegen" / "b.py").rename(tmp_path / "codegen" / "c.py"),
    ):
        change()
        found.append(environment.ours.__wrapped__())
    assert len({before, *found}) == 5


@pytest.mark.parametrize("damage", [
    lambda data: data[: len(data) // 2],
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: b"",
])  # fmt: skip
def test_a_damaged_entry_is_made_again(folder, rendered, damage):
    first = texts(graph())
    entry = folder / entries()[0].key
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    _said.clear()
    rendered.clear()
    with pytest.warns(Ge2Warning, match="is not used, and is made again"):
        assert texts(graph()) == first
    assert rendered and entry.read_bytes() == whole
    rendered.clear()
    assert texts(graph()) == first and not rendered


def entries() -> list[Entry]:
    """Texts in the cache; what Jinja made of templates lies beside them."""
    return [e for e in cache().entries() if e.about.get("name") != "compiled templates"]


VIEW = LauncherText("a, b", 0, False, (), "", (Line("x = a"),), "x")


def test_an_entry_of_something_else_is_of_no_use(rendered):
    with cached_pages("f", "looks"):
        environment.render("numpy/launches.py.jinja", VIEW)
    (entry,) = entries()
    assert entry.about["name"] == "texts of f"
    cache().put(entry.key, b"12 34", {})
    rendered.clear()
    with cached_pages("f", "looks"):
        environment.render("numpy/launches.py.jinja", VIEW)
    assert rendered


def test_what_fails_is_not_kept():
    def fail():
        with cached_pages("f", "looks"):
            found = page("t", Text("a"))
            assert found is not None
            found[0].has["key"] = "half"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert entries() == [] and page("t", Text("a")) is None


@dataclass(frozen=True)
class Holds:
    x: Any


VALUES = [
    1, 1.0, True, "1", b"1", None, (), (1,), (1, 2), ((1,), 2), ("1", 2), frozenset({"a"}), frozenset({"b"}),
    np.dtype("f4"), np.dtype("f8"), np.float32(1), np.float64(1), Text("1"), Line("1"), Text("", "1"),
    Holds(1), Holds((1,)), Holds(Holds(1)), float("nan"), 0.0, -0.0, [1],
]  # fmt: skip


def test_values_that_differ_are_spelt_differently():
    found = []
    for value in VALUES:
        parts: list[str] = []
        assert spelt(value, parts)
        found.append(tuple(parts))
    assert len(set(found)) == len(VALUES)


@pytest.mark.parametrize("value", [
    Var(ArrayType((), np.dtype("f4"))), object(), np.ones(3), {"a": 1}, len, Holds(object()), Holds,
    (1, [np.ones(2)]), Holds(Var(ArrayType((), np.dtype("f4")))),
])  # fmt: skip
def test_what_does_not_tell_itself_is_not_kept(value):
    assert not spelt(value, [])


PROGRAM = """
import sys
import numpy as np
import ge2
f = ge2.jit(ge2.value_and_grad(lambda w, x: np.tanh(x @ w).sum()))
value, gradient = f(np.full((5, 3), 0.25), np.arange(20.0).reshape(4, 5))
print("jinja2" in sys.modules, f.report().bill.count("compiled"), float(value), float(gradient.sum()))
"""


@needs_compiler
def test_another_process_imports_no_jinja(tmp_path):
    given = {**os.environ, "PYTHONPATH": str(ROOT), "GE2_CACHE_DIR": str(tmp_path / "own")}
    run = [sys.executable, "-c", PROGRAM]
    first, second = (
        subprocess.run(run, env=given, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert first[:2] == ["True", "1"] and second[:2] == ["False", "0"] and first[2:] == second[2:]


def test_compiled_templates_lie_beside_byte_code_or_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    keep, found = environment.keep_compiled, environment.compiled_templates
    for ours, users, in_cache in (("1.0", "", 0), ("2.0", str(tmp_path), 1)):
        code = {"a": ours.encode() + b"\xff\n"}
        keep(code, ours, users)
        assert found(ours, users) == code and found("3.0", users) == {}
        assert len(cache().entries()) == in_cache
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    keep({"a": b"new"}, "4.0", "")
    assert found("4.0", "") == {"a": b"new"} and len(cache().entries()) == 2
