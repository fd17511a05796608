"""Products that are stored along the rows which their readers have last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.rewrites.products import rows_last
from ge2.ir import verify
from tests.passes.graphs import names

MIXED = "bhqk,hg->bgqk"
SHAPES = {
    "heads": (MIXED, (2, 4, 40, 40), (4, 3)),
    "heads of each batch": ("bhqk,bhg->bgqk", (2, 4, 40, 40), (2, 4, 3)),
    "channels": ("bchw,co->bohw", (2, 5, 8, 16), (5, 6)),
    "rows before": ("hqk,gh->qgk", (4, 40, 9), (3, 4)),
}
LEFT = {
    "two axes": ("hq,hg->gq", (4, 40), (4, 3)),
    "as it is": ("bhqk,hg->bqkg", (2, 4, 9, 9), (4, 3)),
    "more columns": ("bhqk,hg->bgqk", (2, 4, 9, 9), (4, 30)),
    "another axis": ("bhqk,hg->bgkq", (2, 4, 9, 9), (4, 3)),
}


def mixed(letters: str, x: Any, w: Any) -> Any:
    y = np.einsum(letters, x, w)
    return np.exp(y - y.max(-1, keepdims=True))


def drawn(shapes: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("name", [*SHAPES, *LEFT])
def test_the_factors_are_the_other_way_round(name: str) -> None:
    letters, *shapes = {**SHAPES, **LEFT}[name]
    xs = drawn(shapes)
    graph = ge2.make_jaxpr(lambda *xs: mixed(letters, *xs))(*xs).graph
    found = verify(rows_last(graph))
    assert (found is graph) == (name in LEFT)
    (y,), (wanted,) = found(*xs), graph(*xs)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    assert sorted(names(found)) == sorted(names(graph))
    if name in SHAPES:
        (dot,) = (e for e in found.eqns if e.op.name == "dot_general")
        (before,) = (e for e in graph.eqns if e.op.name == "dot_general")
        assert dot.inputs == before.inputs[::-1]


def test_what_is_returned_too_stays() -> None:
    xs = drawn([(2, 4, 40, 40), (4, 3)])

    def both(x: Any, w: Any) -> Any:
        y = np.einsum("bhqk,hg->bqkg", x, w)
        return y, np.exp(np.moveaxis(y, -1, 1))

    graph = ge2.make_jaxpr(both)(*xs).graph
    assert rows_last(graph) is graph


def test_heads_are_mixed_along_their_rows() -> None:
    """Before a softmax and after it, forward and backward."""

    def loss(q: Any, before: Any, after: Any) -> Any:
        s = np.einsum(MIXED, q @ q.swapaxes(-1, -2), before)
        e = np.exp(s - s.max(-1, keepdims=True))
        return (np.einsum(MIXED, e / e.sum(-1, keepdims=True), after) @ q).sum()

    xs, slopes = drawn([(2, 4, 12, 5), (4, 4), (4, 4)]), ge2.grad(loss, (0, 1, 2))
    with config.using(executor="reference"):
        wanted = slopes(*(x.astype(np.float64) for x in xs))
    with config.using(executor="emulator"):
        found = ge2.jit(slopes)(*xs)
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol=2e-4, atol=2e-5)
