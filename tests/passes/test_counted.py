"""Captured arrays that count are written as counts, where they index; one index
a row fuses with its row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.toolchain.detect import toolchain
from ge2.ir import write
from ge2.passes.context import Context
from ge2.passes.fold import counted, counting, iotas
from ge2.trace.tracer import SNAPSHOT
from tests.passes.graphs import graph, lines, same

PICKED = """{ lambda a:i64[3] b:i64[3] ; c:f32[3,4] d:i64[3]. let
    e:f32[3] = gather[axes=(0, 1)] c a d
    f:f32[3] = gather[axes=(0, 1)] c b d
    g:i64[3] = add a b
  in (e, f, g) }"""


def test_counts_are_equations_where_they_index() -> None:
    old = graph(PICKED)
    known = iotas(old, (np.arange(3), np.array([0, 2, 1])))
    assert known == ((0, 0),)
    new = counted(old, Context(iotas=known))
    assert "\n".join(line.strip() for line in write(new).splitlines()[1:]) == lines("""
        e:i64[3] = iota[axis=0 dtype=i64 shape=(3,)]
        f:f32[3] = gather[axes=(0, 1)] c e d
        g:f32[3] = gather[axes=(0, 1)] c b d
        h:i64[3] = add e b
        in (f, g, h) }""")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    same(old, new, np.arange(3), np.array([0, 2, 1]), x, np.array([3, -1, 0]))


def test_a_graph_without_counts_is_itself() -> None:
    old = graph(PICKED)
    assert iotas(old, (np.array([0, 1, 3]), np.array([1, 2, 3]))) == ()
    assert counted(old, Context()) is old


@pytest.mark.parametrize(
    ("array", "axis"),
    [
        (np.arange(5), 0), (np.arange(5, dtype=np.uint8)[:, None], 0), (np.arange(5)[None, :], 1),
        (np.arange(1, 5), None), (np.arange(4).reshape(2, 2), None), (np.arange(5.0), None),
        (np.arange(5) % 4, None), (np.array(0), None), (np.arange(SNAPSHOT), None),
    ],
)  # fmt: skip
def test_what_counts(array: Any, axis: int | None) -> None:
    assert counting(array) == axis


def cross_entropy(z: Any, y: Any) -> Any:
    m = z.max(1, keepdims=True)
    total = np.log(np.exp(z - m).sum(1)) + m[:, 0]
    return (total - z[np.arange(len(z)), y]).mean()


@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_cross_entropy_and_its_gradient_are_one_kernel_of_rows(
    executor: str, rng: np.random.Generator
) -> None:
    z, y = rng.standard_normal((6, 5)), np.array([0, 4, -1, 2, 2, 3])
    with config.using(executor=executor):
        f = ge2.jit(ge2.value_and_grad(cross_entropy))
        loss, gradient = f(z, y)
        if executor == "c" and toolchain() is not None:
            names = [k.kind for k in f.lower(z, y).executable.kernels]
            assert names.count("rowwise") == 1
            assert not {"gather", "scatter_add"} & set(names)
        e = np.exp(z - z.max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(loss, -np.log(p[np.arange(6), y]).mean())
        p[np.arange(6), y] -= 1
        np.testing.assert_allclose(gradient, p / 6, atol=1e-15)
        with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1 with size 5"):
            f(z, np.array([0, 5, 0, 0, 0, 0]))
