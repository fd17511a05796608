"""Contractions: their steps as one region, and apart again; values stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.compile.pipeline import rewritten
from ge2.ir import Eqn, Graph, parse, verify, write
from ge2.ops.graphs.contraction import is_contraction, of_steps, opened, steps_of
from ge2.ops.graphs.region import is_loop
from ge2.passes import TABLE

RNG = np.random.default_rng(11)
A, B, C = (RNG.standard_normal(shape) for shape in ((2, 5, 3), (2, 3, 4), (2, 3, 4)))
BIAS, ROWS = RNG.standard_normal(4), RNG.standard_normal((2, 5, 1))
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "an epilogue": (lambda a, b, v: np.tanh(a @ b + v), A, B, BIAS),
    "its sums": (lambda a, b: (y := np.maximum(a @ b, 0), y.sum((0, 1))), A, B),
    "a left operand": (lambda a, b, r: np.exp(np.tanh(a * r) @ b), A, B, ROWS),
    "both operands": (lambda a, b, v: (np.tanh(a) @ np.tanh(b * v)) * 2, A, B, BIAS),
    "two products": (lambda a, b, c: (a @ b) * np.tanh(a @ c), A, B, C),
    "a turned operand": (lambda a, b: np.tanh(np.einsum("bki,bkj->bij", np.sin(a), b)), C, B),
    "sums of two axes": (lambda a, b: np.einsum("bik,bkj->ij", np.cos(a), b) + 1, A, B),
}


def joined(name: str) -> tuple[Graph, Eqn, list[Any]]:
    """The steps of a program, regions among them, and all of them as one."""
    f, *xs = PROGRAMS[name]
    graph = rewritten(ge2.make_jaxpr(f)(*xs).graph, "reference")
    steps = [e for e in graph.eqns if not e.op.is_view]
    assert len(steps) == len(graph.eqns)
    return graph, of_steps(steps, graph.inputs), xs


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_stay_what_they_are(name: str) -> None:
    graph, whole, xs = joined(name)
    found = verify(Graph(graph.inputs, (whole,), graph.outputs))
    for y, w in zip(found(*xs), graph(*xs), strict=True):
        np.testing.assert_array_equal(y, w)


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_found_again(name: str) -> None:
    """The same regions, of the same axes, in the same order."""
    graph, whole, _ = joined(name)
    steps = steps_of(whole.op)
    assert is_contraction(whole.op) and not is_loop(whole.op)
    assert Graph(graph.inputs, opened(whole), graph.outputs) == graph
    assert len(steps.products) == (2 if name == "two products" else 1)
    assert [e.op.kind for e in steps.prologues] == ["pointwise"] * len(steps.prologues)  # type: ignore[attr-defined]
    assert whole.op.root is steps.product  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_space_has_the_terms_behind_the_result(name: str) -> None:
    _, whole, _ = joined(name)
    op: Any = whole.op
    y = steps_of(op).places[0].type.shape
    assert op.space[: len(y)] == y and len(op.axes) == len(op.graph.eqns)
    for e, axes in zip(op.graph.eqns, op.axes, strict=True):
        read = e.inputs[0].type.shape if e.op.name.startswith("reduce") else e.outs[0].type.shape
        assert [op.space[a] for a in axes if a >= 0] == [
            n for n, a in zip(read, axes, strict=True) if a >= 0
        ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_read_again(name: str) -> None:
    graph, whole, _ = joined(name)
    found = Graph(graph.inputs, (whole,), graph.outputs)
    assert parse(write(found), TABLE) == found
