"""What users name stands in generated text as a comment, and nothing more."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.codegen.environment import comment, one_line
from tests.together import needs_compiler

HOSTILE = (
    "a*/b", "*/ int system(const char *); /*", "x\n#include <nope.h>\n", "a\\\n/ int y;", "??/\n",
    '"""', "'''", "caf\xe9 \u2202 \U0001f600", '#line 9 "x"', "{{ 7*7 }}", "%s%n", "\0\r\f", "//",
    "*\\\n/ error", "/*", "/*/",
)  # fmt: skip


@pytest.mark.parametrize("name", [*HOSTILE, "".join(HOSTILE), "*" * 5 + "/" * 5])
def test_a_comment_ends_where_it_should(name: str) -> None:
    for text in (comment(name), one_line(name)):
        assert text.isascii() and "*/" not in text and "/*" not in text and "??" not in text
        assert '"""' not in text and re.fullmatch(r"(?:[^\\]|\\.)*", text, re.DOTALL)
        assert all(c.isprintable() or c == "\n" for c in text)
    assert "\n" not in one_line(name)
    assert comment("f(x) a_b 1.5") == "f(x) a_b 1.5"


def named(name: str) -> Any:
    """A function, a scope and a printed format of that name."""

    def f(x: Any) -> Any:
        with ge2.named_scope(name.replace("/", "|")):
            y = np.tanh(x) * 2
        ge2.debug.print(name.replace("{", "").replace("}", "") + "{}", y.sum(), ordered=False)
        return y / y.sum(-1, keepdims=True), x @ x.T

    f.__name__ = f.__qualname__ = name
    return f


@pytest.mark.exhaustive("executor")
@needs_compiler
@pytest.mark.parametrize("executor", ["c", "blocked", "shim"])
@pytest.mark.parametrize("name", ["a*/b", "".join(HOSTILE)])
def test_hostile_names_compile(name: str, executor: str, capsys: Any) -> None:
    f, x = named(name), np.ones((3, 4), np.float32)
    with config.using(executor=executor):
        found = ge2.jit(f)(x)
    for y, z in zip(found, f(x), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-5)
    assert name[:4] in capsys.readouterr().out
