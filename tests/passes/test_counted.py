"""Captured arrays that count are written as counts, where they index; one index
a row fuses with its row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import expecting
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.ir import Literal, write
from ge2.passes.context import Context
from ge2.passes.fold import counted, counting, iotas, repeated
from ge2.trace.tracer import SNAPSHOT
from tests.kernels.programs import needs_compiler
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


def test_counts_of_any_size_are_equations_for_a_gpu_which_has_a_copy_of_each() -> None:
    long = graph(PICKED.replace("[3]", f"[{SNAPSHOT}]").replace("[3,4]", f"[{SNAPSHOT},4]"))
    given = np.arange(SNAPSHOT), np.arange(SNAPSHOT)[::-1].copy()
    assert iotas(long, given) == ()
    with expecting("sm_90a"):
        assert iotas(long, given) == ((0, 0),)


@pytest.mark.parametrize(
    ("array", "axis"),
    [
        (np.arange(5), 0), (np.arange(5, dtype=np.uint8)[:, None], 0), (np.arange(5)[None, :], 1),
        (np.arange(1, 5), None), (np.arange(4).reshape(2, 2), None), (np.arange(5.0), None),
        (np.arange(5) % 4, None), (np.array(0), None), (np.arange(SNAPSHOT), 0), (np.arange(0), 0),
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


JOINED = """{ lambda a:f32[1] b:f32[1] c:f32[3] d:i64[1] ; e:f32[3]. let
    f:f32[4] = concatenate[axis=0] a e
    g:f32[3] = add e c
    h:f32[1] = gather[axes=(0,)] e d
    i:f32[4] = concatenate[axis=0] e b
  in (f, g, h, i, c) }"""


def test_numbers_that_an_array_repeats_are_literals() -> None:
    """Those of joined parts too, each an array of its own in a loop that is unrolled."""
    inf, zero = np.full(1, np.inf, np.float32), np.full(3, -0.0, np.float32)
    old = graph(JOINED)
    known = iotas(old, (inf, inf.copy(), zero, np.zeros(1, int)))
    assert known == ((0, Literal.of(inf[0])), (1, Literal.of(inf[0])), (2, Literal.of(zero[0])))
    new = counted(old, Context(iotas=known))
    assert [e.op.name for e in new.eqns[:3]] == ["broadcast_in_dim"] * 3
    same(old, new, inf, inf, zero, np.zeros(1, int), np.arange(3, dtype=np.float32))


def test_of_products_and_of_other_arrays_the_elements_are_read() -> None:
    text = """{ lambda a:f32[3] b:f32[3] ; c:f32[3]. let
        d:f32[] = dot_general[contract=((0,), (0,)) beside=((), ()) precision=None out=None] a c
        e:f32[3] = mul b c
      in (d, e) }"""
    ones = np.ones(3, np.float32)
    assert iotas(graph(text), (ones, np.arange(3, dtype=np.float32))) == ()
    assert iotas(graph(text), (ones, ones)) == ((1, Literal.of(ones[0])),)


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (np.ones((2, 3)), 1.0), (np.zeros(3, bool), False), (np.full(2, 1j), 1j), (np.array(1.0), 1.0),
        (np.zeros(0), None), (np.array([0.0, -0.0]), None), (np.array([1, 2, 1]), None),
        (np.ones((4, 4))[::2, 1:], 1.0),
    ],
)  # fmt: skip
def test_what_repeats(array: Any, value: Any) -> None:
    found = repeated(array)
    assert (found if found is None else found.value) == value


@needs_compiler
def test_a_loop_over_neighbours_is_one_kernel(rng: np.random.Generator) -> None:
    def seams(image: Any) -> Any:
        cost = image[0]
        for i in range(1, len(image)):
            left = np.concatenate([[np.inf], cost[:-1]])
            right = np.concatenate([cost[1:], [np.inf]])
            cost = image[i] + np.minimum(np.minimum(left, cost), right)
        return cost

    image = rng.uniform(size=(40, 30))
    with config.using(executor="shim"):
        low = ge2.jit(seams).lower(image)
        assert len(low.kernels) == 1
        np.testing.assert_array_equal(ge2.jit(seams)(image), seams(image))
