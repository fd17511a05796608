"""The instructions of later Pythons are read as those of 3.11."""

from __future__ import annotations

import dis
from typing import Any

import pytest

from ge2.dispatch.closures import halves, reads_of

HELD: dict[Any, Any] = {}


def counted(x: Any, k: Any) -> Any:
    HELD[k] = x
    HELD[k] += 1
    return x


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LOAD_FAST_BORROW", "x", [("LOAD_FAST", "x")]),
        ("LOAD_FAST_CHECK", "x", [("LOAD_FAST", "x")]),
        ("LOAD_SMALL_INT", 3, [("LOAD_CONST", 3)]),
        ("LOAD_SUPER_ATTR", "f", [("LOAD_ATTR", "f")]),
        ("LOAD_FAST_LOAD_FAST", ("x", "y"), [("LOAD_FAST", "x"), ("LOAD_FAST", "y")]),
        ("STORE_FAST_LOAD_FAST", ("x", "y"), [("STORE_FAST", "x"), ("LOAD_FAST", "y")]),
        ("LOAD_FAST_BORROW_LOAD_FAST_BORROW", ("x", "y"), [("LOAD_FAST", "x"), ("LOAD_FAST", "y")]),
        ("LOAD_GLOBAL", "g", [("LOAD_GLOBAL", "g")]),
    ],
)
def test_an_instruction_on_two_variables_is_two(name: str, value: Any, expected: Any) -> None:
    step = next(dis.get_instructions(counted))._replace(opname=name, argval=value)
    assert [(i.opname, i.argval) for i in halves(step)] == expected


def test_what_is_only_written_is_not_read() -> None:
    assert "HELD" not in reads_of(counted.__code__).globals
