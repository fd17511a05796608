"""docs/mistakes.md is true: each first mistake says exactly that, in ten lines,
and what is mended works.

`pytest tests/surface/test_mistakes.py --update-golden` writes the messages anew.
"""

from __future__ import annotations

import ast
import json
import linecache
import math
import random
import re
import struct
import traceback
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ge2
from ge2.base.config import config

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
CASE = re.compile(
    r"### ([^\n]+)\n\n```python\n(.*?)```\n```\n(.*?)```\n```python\n(.*?)```\n", re.DOTALL
)
pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass")
LINES = 10  # of a traceback that Python prints


class Mistake(NamedTuple):
    title: str
    wrong: str
    message: str
    mended: str


class Table:
    """What a DataFrame is to us: no array, but it becomes one."""

    def __init__(self, values: Any) -> None:
        self.values, self.dtype, self.shape = values, values.dtype, values.shape

    def to_numpy(self) -> Any:
        return self.values


MISTAKES = [Mistake(*found) for found in CASE.findall(PAGE.read_text())]


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    X, M = np.array([1.0, 2.0, 3.0]), np.arange(6.0).reshape(2, 3)
    known = {
        "np": np,
        "ge2": ge2,
        "math": math,
        "Fraction": Fraction,
        "Table": Table,
        "X": X,
        "M": M,
    }
    return {"__name__": "__main__", "folder": str(tmp_path), **known}


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    with config.using(traceback="short", executor="reference", check=False):
        yield


def executed(text: str, names: dict[str, Any], file: str) -> Any:
    """Runs a program; the value of its last line."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    tree = ast.parse(text)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, file, "exec"), names)
    return eval(compile(ast.Expression(last.value), file, "eval"), names)


def said(mistake: Mistake, names: dict[str, Any]) -> str:
    """The error as Python prints it, from the program's line on."""
    with pytest.raises(Exception) as caught:
        executed(mistake.wrong, names, "mistake.py")
    shown = caught.value.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename != "mistake.py":
        shown = shown.tb_next  # the lines of this file
    return "".join(traceback.format_exception(caught.value.with_traceback(shown)))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.title)
def test_the_message_is_that_of_the_page(
    mistake: Mistake, names: dict[str, Any], request: Any
) -> None:
    text = said(mistake, names)
    message = (
        text[text.rindex("\nge2.errors.") + 1 :]
        if "\nge2.errors." in text
        else text.splitlines()[-1]
    )
    if request.config.getoption("--update-golden"):
        page = PAGE.read_text()
        old = f"### {mistake.title}\n\n```python\n{mistake.wrong}```\n```\n{mistake.message}```"
        PAGE.write_text(
            page.replace(old, old.replace(f"```\n```\n{mistake.message}", f"```\n```\n{message}"))
        )
        return
    assert message == mistake.message
    assert len(text.splitlines()) <= LINES, text
    assert (
        re.search(r"\n  at   mistake.py:\d+ in .+\n  try  .+\n$", text) or "UnknownSetting" in text
    )


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.title)
def test_what_is_mended_gives_what_numpy_gives(mistake: Mistake, names: dict[str, Any]) -> None:
    program, _, wanted = mistake.mended.rstrip("\n").rpartition("  # ")
    found = ge2.tree.leaves(executed(program, names, "mended.py"))
    numpys = {name: names[name] for name in ("np", "X", "M")}  # nothing of ge2
    given = eval(wanted, numpys)
    expected = [given] if len(found) == 1 else ge2.tree.leaves(given)
    for y, z in zip(found, expected, strict=True):
        z = z[0] if isinstance(z, tuple) else z  # cotangents come as a tuple
        np.testing.assert_allclose(y, z)


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ("count += x > 2", "count = count + (x > 2)"),
        ("count *= x + 1", "count = count * (x + 1)"),
        ("count **= -x", "count = count ** (-x)"),
        ("y = np.bool_(x[0] + 1)", "(x[0] + 1).astype(np.bool_)"),
        ("y = int(x[0] + 1)", "(x[0] + 1).astype(np.int64)"),
        ("y = bool(x[0] > 1)", "(x[0] > 1) != 0"),
        ("y = (x[0] > 1) in x", "np.any(x == (x[0] > 1))"),
        ("y = min(x[0], x[1], 2.0)", "np.min(np.stack([x[0], x[1], 2.0]))"),
        ("y = max(v * 2 for v in x)", "np.max(np.stack([v * 2 for v in x]))"),
        ("y = any(v > 1 for v in x)", "np.any(np.stack([v > 1 for v in x]))"),
        ("y = sorted([x[1], x[0]])", "np.sort(np.stack([x[1], x[0]]))"),
        ("y = max(x)", "np.max(x)"),
    ],
)
def test_fixes_have_the_parentheses_that_they_need(wrong: str, fix: str, names: Any) -> None:
    program = f"def f(x):\n    count = np.hamming(3)\n    {wrong}\n    return x\n\nge2.jit(f)(X)\n"
    with pytest.raises(ge2.errors.Ge2Error) as caught:
        executed(program, names, "mistake.py")
    assert f"try  {fix}" in str(caught.value)
    mended = program.replace(wrong, fix if " = " in fix else f"y = {fix}")
    executed(mended, names, "mended.py")


def test_there_are_eighty_of_them() -> None:
    assert len(MISTAKES) >= 80
    assert PAGE.read_text().count("\n### ") == len({m.title for m in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize(
    ("wrong", "kind", "fix"),
    [
        ("np.random.default_rng(seed=n)", TypeError, "ge2.random.normal"),
        ("random.Random(x)", TypeError, "ge2.random.normal"),
        ("json.dumps({'x': x})", TypeError, "ge2.debug.callback"),
        ("struct.pack('d', x)", struct.error, "ge2.pure_callback(struct.pack, like, 'd', x)"),
        ("Fraction(x[0])", TypeError, "ge2.pure_callback"),
        ("','.join(x)", TypeError, "ge2.debug.print"),
    ],
)
def test_errors_of_others_for_a_traced_value_have_its_line_and_a_fix(
    wrong: str, kind: type[Exception], fix: str, names: dict[str, Any]
) -> None:
    program = f"def f(x, n):\n    y = {wrong}\n    return x\n\nge2.jit(f)(X, 1)\n"
    with pytest.raises(kind) as caught:
        executed(program, {**names, "random": random, "json": json, "struct": struct}, "mistake.py")
    at, remedy = caught.value.__notes__[-1].split("\n")
    assert at == "  at   mistake.py:2 in f"
    assert remedy.startswith("  try  ")
    assert fix in remedy


@pytest.mark.parametrize(
    "wrong", ["int('a') + x", "g(x, 1)", "h(x)", "{}['a'] + x", "np.sum(x, a=1)"]
)
def test_errors_that_are_not_about_a_traced_value_have_no_fix(
    wrong: str, names: dict[str, Any]
) -> None:
    program = (
        "def g(x): return x\n\ndef h(x): raise ValueError(x.shape)\n\n"
        f"def f(x):\n    return {wrong}\n\nge2.jit(f)(X)\n"
    )
    with pytest.raises((TypeError, ValueError, KeyError)) as caught:
        executed(program, names, "mistake.py")
    assert "  try  ge2" not in "".join(getattr(caught.value, "__notes__", ()))
