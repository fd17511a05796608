"""Graphs as text, and what a pass makes of them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np

from ge2 import make_jaxpr
from ge2.compile.catalog import interpret
from ge2.ir import Graph, parse, verify, write
from ge2.passes import TABLE
from ge2.tree import leaves


def graph(text: str) -> Graph:
    return verify(parse(text, TABLE))


def after(step: Callable[[Graph], Graph], text: str) -> str:
    """The equations and results that a pass leaves, a line each."""
    found = verify(step(graph(text)))
    assert verify(parse(write(found), TABLE)) == found
    return "\n".join(line.strip() for line in write(found).splitlines()[1:])


def alike(
    step: Callable[[Graph], Graph],
    f: Callable[..., Any],
    *args: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> Graph:
    """The graph of a function after a pass, which is valid, and gives what it gave."""
    closed = make_jaxpr(f)(*args)
    found, given = verify(step(closed.graph)), [*closed.captured, *leaves(args)]
    for y, w in zip(found(*given), closed.graph(*given), strict=True):
        np.testing.assert_allclose(y, w, rtol=rtol, atol=atol)
    return found


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
