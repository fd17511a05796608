"""Products of a loop's elements and constants come before it, those of joined arrays in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax, make_jaxpr
from ge2.base.config import config
from ge2.ir import Eqn, Graph
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.loops import ScanLoop
from ge2.passes.loops.products_outside import joined_products, products_outside, repeated_operands
from tests.passes.graphs import alike

STEPS, BATCH, WIDE, HIDDEN = 6, 3, 9, 8


def arrays(*shapes: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(0.5 * rng.standard_normal(s)).astype(dtype) for s in shapes]


def of_scan(step: Any) -> Any:
    return lambda h, x, *rest: lax.scan(lambda h, x: step(h, x, *rest), h, x)


def rows(h: Any, x: Any, w: Any, u: Any) -> Any:
    h = np.tanh(x @ w + h @ u)
    return h, h


def joined(h: Any, x: Any, w: Any) -> Any:
    h = np.tanh(np.concatenate([x, h], 1) @ w)
    return h, h


def columns(h: Any, x: Any, w: Any, u: Any) -> Any:
    h = np.tanh(w @ x + u @ h)
    return h, h


CASES = {
    "rows": (rows, [(BATCH, HIDDEN), (STEPS, BATCH, WIDE), (WIDE, HIDDEN), (HIDDEN, HIDDEN)]),
    "a vector": (rows, [(HIDDEN,), (STEPS, WIDE), (WIDE, HIDDEN), (HIDDEN, HIDDEN)]),
    "joined": (joined, [(BATCH, HIDDEN), (STEPS, BATCH, WIDE), (WIDE + HIDDEN, HIDDEN)]),
    "columns": (columns, [(HIDDEN, 3), (STEPS, WIDE, 3), (HIDDEN, WIDE), (HIDDEN, HIDDEN)]),
    "a column": (columns, [(HIDDEN,), (STEPS, WIDE), (HIDDEN, WIDE), (HIDDEN, HIDDEN)]),
}


def products(eqns: tuple[Eqn, ...]) -> int:
    return sum(isinstance(e.op, DotGeneral) for e in eqns)


def the_loop(graph: Graph) -> Graph:
    (found,) = [e.op for e in graph.eqns if isinstance(e.op, ScanLoop)]
    return found.body


def same(a: Any, b: Any) -> None:
    for x, y in zip(ge2.tree.leaves(a), ge2.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_product_of_an_element_leaves_the_loop(name: str) -> None:
    step, shapes = CASES[name]
    args = arrays(*shapes)
    before = make_jaxpr(of_scan(step))(*args).graph
    after = products_outside(before)
    assert products(the_loop(after).eqns) == 1
    assert products(after.eqns) == 1
    same(after(*args), before(*args))


@pytest.mark.parametrize("reverse", [False, True])
def test_the_direction_of_the_loop_stays(reverse: bool) -> None:
    h, x, w = arrays(*CASES["joined"][1])
    loop = make_jaxpr(lambda h, x, w: lax.scan(lambda h, x: joined(h, x, w), h, x, reverse=reverse))
    before = loop(h, x, w).graph
    after = products_outside(before)
    assert products(after.eqns) == 1
    same(after(h, x, w), before(h, x, w))


def test_both_sides_may_be_joined_and_constants_among_parts() -> None:
    def step(h: Any, x: Any, w: Any, c: Any) -> Any:
        h = np.tanh(w @ np.concatenate([x, c, h, x]))
        return h, h

    args = arrays((HIDDEN,), (STEPS, WIDE), (HIDDEN, 2 * WIDE + 4 + HIDDEN), (4,))
    before = make_jaxpr(of_scan(step))(*args).graph
    after = products_outside(before)
    assert products(the_loop(after).eqns) == 2  # of `h`, and of the constant, which `trim` moves
    same(after(*args), before(*args))


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ([(2, 5), (STEPS, 2, 7), (7, 5), (5, 5)], "few terms"),
        ([(2, 200), (STEPS, 2, 9), (9, 200), (200, 200)], "many times as large"),
        ([(2, 5), (3, 2, 9), (9, 5), (5, 5)], "few iterations"),
    ],
)
def test_a_product_that_is_not_worth_it_stays(shapes: Any, reason: str) -> None:
    graph = make_jaxpr(of_scan(rows))(*arrays(*shapes)).graph
    assert products_outside(graph) is graph, reason


def unrolled(h: Any, x: Any, w: Any) -> Any:
    for t in range(x.shape[0]):
        h = np.tanh(np.concatenate([x[t], h], 1) @ w)
    return h


def test_straight_code_that_repeats_a_matrix_is_parted() -> None:
    args = arrays(*CASES["joined"][1])
    before = make_jaxpr(unrolled)(*args).graph
    after = joined_products(before)
    assert products(after.eqns) == 2 * STEPS
    assert sum(e.op.name == "concatenate" for e in after.eqns) == 0
    assert sum(e.op.name == "slice" and e.inputs[0] in before.inputs[2:] for e in after.eqns) == 2
    same(after(*args), before(*args))


@pytest.mark.parametrize(("steps", "dtype"), [(3, "float32"), (STEPS, "float16")])
def test_few_products_stay_and_those_of_half_types(steps: int, dtype: str) -> None:
    h, x, w = arrays(*CASES["joined"][1], dtype=dtype)
    graph = make_jaxpr(unrolled)(h, x[:steps], w).graph
    assert joined_products(graph) is graph


@pytest.mark.parametrize("executor", ["c", "shim"])
def test_a_network_and_its_derivative_are_the_same_without(executor: str) -> None:
    args = arrays(*CASES["joined"][1])

    def loss(*args: Any) -> Any:
        return (unrolled(*args) ** 2).sum()

    def slopes() -> Any:
        return ge2.jit(ge2.grad(lambda *args: loss(*args), argnums=(0, 1, 2)))(*args)

    with config.using(executor=executor):
        got = slopes()
        with config.using(passes_off=("joined_products", "products_outside")):
            want = slopes()
    same(got, want)


def reading_back(h: Any, d: Any, w: Any) -> Any:
    both = np.tanh(h + d) @ w
    return both[:, WIDE:], both[:, :WIDE]


def test_the_part_of_a_product_that_only_results_are_is_one_product_after_the_loop() -> None:
    args = arrays((BATCH, HIDDEN), (STEPS, BATCH, HIDDEN), (HIDDEN, WIDE + HIDDEN))
    before = make_jaxpr(of_scan(reading_back))(*args).graph
    after = products_outside(before)
    assert products(the_loop(after).eqns) == 1
    *_, last = [e for e in after.eqns if isinstance(e.op, DotGeneral)]
    assert last.outs[0] is after.outputs[1]
    same(after(*args), before(*args))


def test_a_part_that_is_read_in_the_loop_too_stays_in_it() -> None:
    def step(h: Any, d: Any, w: Any) -> Any:
        both = np.tanh(h + d) @ w
        return both[:, WIDE:] + both[:, :HIDDEN], both[:, :WIDE]

    args = arrays((BATCH, HIDDEN), (STEPS, BATCH, HIDDEN), (HIDDEN, WIDE + HIDDEN))
    graph = make_jaxpr(of_scan(step))(*args).graph
    after = products_outside(graph)
    assert products(the_loop(after).eqns) == 2  # of the other parts
    same(after(*args), graph(*args))


@pytest.mark.parametrize("shapes", [
    ((6, 5, 1, 7), (5, 7, 8)), ((6, 5, 3, 7), (5, 7, 8)), ((2, 6, 1, 7), (7, 3)),
    ((5, 1, 7), (6, 5, 7, 1)), ((5, 2, 70), (6, 5, 70, 4)), ((2, 1, 3, 14), (2, 9, 14, 5)),
    ((3, 1, 1, 2, 17), (4, 1, 17, 5)), ((1, 5, 2, 70), (6, 1, 70, 4)),
])  # fmt: skip
def test_batches_along_which_an_operand_repeats_are_rows(shapes: Any) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape) for shape in shapes)
    found = alike(repeated_operands, lambda a, b: np.matmul(a, b) * 2, a, b, rtol=1e-12, atol=1e-12)
    (product,) = (e for e in found.eqns if e.op.name == "dot_general")
    assert [x.type.size for x in product.inputs] == [a.size, b.size]


def test_large_results_are_not_turned_for_a_small_operand() -> None:
    def f(a: Any, b: Any) -> Any:
        return a @ b

    closed = make_jaxpr(f)(np.ones((6, 5, 30, 7)), np.ones((5, 7, 80)))
    assert repeated_operands(closed.graph) is closed.graph
