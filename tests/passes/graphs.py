"""Graphs as text, and what a pass makes of them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np

from ge2.compile.catalog import interpret
from ge2.ir import Graph, parse, verify, write
from ge2.passes import TABLE


def graph(text: str) -> Graph:
    return verify(parse(text, TABLE))


def after(step: Callable[[Graph], Graph], text: str) -> str:
    """The equations and results that a pass leaves, a line each."""
    found = verify(step(graph(text)))
    assert verify(parse(write(found), TABLE)) == found
    return "\n".join(line.strip() for line in write(found).splitlines()[1:])


def names(graph: Graph) -> list[str]:
    """Of its operations, in order."""
    return [e.op.name for e in graph.eqns]


def lines(text: str) -> str:
    return dedent(text).strip()


def same(a: Graph, b: Graph, *arrays: Any) -> None:
    """Both graphs give the same, bit for bit."""
    for x, y in zip(interpret(a, arrays), interpret(b, arrays), strict=True):
        np.testing.assert_array_equal(np.signbit(x), np.signbit(y))
        np.testing.assert_array_equal(x, y)
