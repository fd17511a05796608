"""Functions that write into their arguments, under what is no jit: a meaning,
or an error that says why.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.errors import InPlaceError

X = np.arange(3.0)


def scaled(a: Any, b: Any) -> Any:
    b[0] = 5.0
    b += 1
    return a * b.sum()


def shifted(a: Any, b: Any) -> Any:
    a += b
    return a.copy()


def after(f: Any, *args: Any) -> list[Any]:
    """The results and the arguments afterwards."""
    given = [np.array(x) for x in args]
    return [*ge2.tree.leaves(f(*given)), *given]


def same(found: list[Any], expected: list[Any]) -> None:
    for y, z in zip(found, expected, strict=True):
        np.testing.assert_array_equal(y, z)


def test_graphs_show_the_last_contents_after_the_results() -> None:
    graph, shape = ge2.make_jaxpr(scaled, return_shape=True)(X, X)
    assert [str(a.type) for a in graph.graph.outputs] == ["f64[3]", "f64[3]"]
    assert shape == ge2.eval_shape(scaled, X, X) == ge2.ShapeDtypeStruct((3,), np.float64)
    assert ge2.eval_shape(lambda x: x.fill(0), ge2.ShapeDtypeStruct((3,), np.float64)) is None
    same(graph(X, X), [11 * X, [6, 2, 3]])
    np.testing.assert_array_equal(X, np.arange(3.0))  # nothing was written


def test_checkpoint_writes_what_its_function_writes() -> None:
    def loss(a: Any, b: Any) -> Any:
        return (ge2.checkpoint(scaled)(a, b) * b).sum()

    expected = after(lambda a, b: (scaled(a, b) * b).sum(), X, X)
    same(after(ge2.jit(loss), X, X), expected)
    same(
        after(ge2.value_and_grad(loss), X, X),
        [expected[0], 11 * np.array([6, 2, 3]), *expected[1:]],
    )
    with pytest.raises(
        InPlaceError, match="b is an argument of loss .*which is differentiated(.|\n)*copy"
    ):
        ge2.grad(loss, 1)(X, X.copy())


@pytest.mark.parametrize("jacobian", [ge2.jacfwd, ge2.jacrev])
def test_jacobians_write_arguments_that_are_not_differentiated(jacobian: Any) -> None:
    expected = [11 * np.eye(3), X, [6, 2, 3]]
    same(after(jacobian(scaled), X, X), expected)
    same(after(lambda a, b: jacobian(scaled)(a, b=b), X, X), expected)
    same(after(ge2.jit(jacobian(scaled)), X, X), expected)
    same(
        after(lambda a, b: jacobian(lambda b, a: shifted(b, a), 1)(b, a), X, X),
        [np.eye(3), X, X + X],
    )
    with pytest.raises(InPlaceError, match="b is an argument .*which is differentiated(.|\n)*copy"):
        jacobian(scaled, 1)(X, X.copy())
    counted = jacobian(lambda a, n, mode: a**n if mode == "power" else a)  # neither is an array
    np.testing.assert_array_equal(counted(X, 2, "power"), np.diag(2 * X))


@pytest.mark.parametrize("pred", [True, False])
def test_the_branch_that_is_taken_writes(pred: bool) -> None:
    def f(p: Any, a: Any, b: Any) -> Any:
        return ge2.lax.cond(p, scaled, shifted, a, b)

    expected = after(lambda a, b: scaled(a, b) if pred else shifted(a, b), X, X)
    same(after(lambda a, b: f(pred, a, b), X, X), expected)
    same(after(lambda a, b: ge2.jit(f)(pred, a, b), X, X), expected)
    with pytest.raises(InPlaceError, match="which is differentiated"):
        ge2.grad(lambda a, p: f(p, a, X.copy()).sum())(X, pred)


def test_a_switch_writes_what_its_branch_writes() -> None:
    f = ge2.jit(lambda i, a, b: ge2.lax.switch(i, [shifted, scaled, lambda a, b: a * b], a, b))
    for i, branch in enumerate((shifted, scaled, lambda a, b: a * b)):
        same(after(lambda a, b, i=i: f(i, a, b), X, X), after(branch, X, X))


def test_operands_that_share_memory_are_refused() -> None:
    with pytest.raises(InPlaceError, match="share memory, and one of them is written"):
        ge2.jit(lambda p, a: ge2.lax.cond(p, scaled, shifted, a, a))(True, X.copy())


def test_recursion_ends_where_a_branch_that_is_known_does_not_recur() -> None:
    def factorial(n: Any) -> Any:
        return ge2.lax.cond(n == 0, lambda n: 1, lambda n: n * factorial(n - 1), n)

    def steps(n: Any) -> Any:
        return ge2.lax.switch(n, [lambda n: 0, lambda n: steps(n - 1) + 1], n) if n < 2 else 0

    assert factorial(5) == 120
    assert ge2.jit(lambda x: x * factorial(5))(2.0) == 240
    assert steps(1) == 1


def test_the_derivative_that_linearize_gives_is_a_pytree() -> None:
    def f(x: Any) -> Any:
        push = ge2.linearize(np.sin, x)[1]
        return ge2.lax.fori_loop(0, 3, lambda i, c: (c[0], c[1] + c[0](1.0)), (push, 0.0))[1]

    np.testing.assert_allclose([f(1.0), ge2.jit(f)(1.0)], 3 * np.cos(1.0))
    push = ge2.jit(lambda x: ge2.linearize(np.sin, x)[1])(1.0)
    np.testing.assert_allclose(push(2.0), 2 * np.cos(1.0))
    with pytest.raises(ge2.errors.GradientError, match="the tangent of x"):
        ge2.linearize(lambda x: x * 2, X)[1](np.ones(2))
