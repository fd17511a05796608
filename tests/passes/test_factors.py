"""Systems of equations with one matrix share its factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.pipeline import rewritten
from ge2.ir import ArrayType, Eqn, Var
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.linalg.decompositions import Lu, LuSolve
from ge2.passes.linear_algebra import factors
from ge2.targets.c.libraries import by_lapack, lapack
from tests.together import needs_compiler

RNG = np.random.default_rng(0)
needs_lapack = pytest.mark.skipif(lapack() is None, reason="NumPy's LAPACK is not found")


def matrices(n: int, k: int, dtype: Any) -> Any:
    both = (RNG.normal(size=s) + 1j * RNG.normal(size=s) for s in ((n, n), (n, k)))
    a, b = (x.astype(dtype) if np.dtype(dtype).kind == "c" else x.real.astype(dtype) for x in both)
    return a + n * np.eye(n, dtype=dtype)[::-1], b  # whose rows have to be swapped


def names(f: Any, *xs: Any) -> list[str]:
    graph = factors(ge2.make_jaxpr(f)(*xs).graph)
    return [e.op.name for e in graph.eqns if "solve" in e.op.name or e.op.name == "lu"]


@needs_lapack
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(("n", "k"), [(0, 1), (1, 1), (5, 0), (5, 1), (7, 3)])
def test_lapack_and_the_reference_give_the_same(
    n: int, k: int, dtype: str, transposed: bool
) -> None:
    a, b = matrices(n, k, dtype)
    x = Var(ArrayType(a.shape, a.dtype))
    lu, swaps = (Var(t) for t in Lu().infer(x.type))
    y = Var(ArrayType(b.shape, b.dtype))
    first = by_lapack(Eqn(Lu(), (x,), (lu, swaps)))
    second = by_lapack(Eqn(LuSolve(transposed), (lu, swaps, y), (y,)))
    assert first is not None and second is not None
    tolerance = 1e-4 if dtype in ("f4", "c8") else 1e-11
    for found, wanted in zip(first(a), Lu().reference(a), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)
    wanted = np.linalg.solve(a.T if transposed else a, b)
    given = Lu().reference(a)
    for solved in (second(*given, b), LuSolve(transposed).reference(*given, b)):
        assert solved.dtype == b.dtype and solved.shape == b.shape
        np.testing.assert_allclose(solved, wanted, tolerance, tolerance)


def test_which_systems_share_factors() -> None:
    a, b = matrices(4, 2, "f8")
    solve = np.linalg.solve
    assert names(lambda a, b: solve(a, b), a, b) == ["solve"]
    assert names(lambda a, b: solve(a, solve(a, b)), a, b) == ["lu", "lu_solve", "lu_solve"]
    assert names(lambda a, b: solve(a.T, solve(a, b)), a, b) == ["lu", "lu_solve", "lu_solve"]
    assert names(lambda a, b: solve(a + 1, solve(a, b)), a, b) == ["solve", "solve"]
    stack = np.stack([a, a])
    assert names(lambda a, b: solve(a, solve(a, b)), stack, b) == ["solve", "solve"]
    graph = ge2.make_jaxpr(lambda a, b: solve(a.T.T.T, solve(a, b)))(a, b).graph
    assert [e.op.transposed for e in factors(graph).eqns if isinstance(e.op, LuSolve)] == [0, 1]


TRIANGLES = {
    "tril": np.tril, "triu": np.triu, "tril.T": lambda a: np.tril(a).T, "triu.T": lambda a: np.triu(a).T,
    "unit triangle": lambda a: np.where(ge2.numpy.eye(len(a), dtype=bool), 1, np.triu(a)),
    "cholesky": lambda a: np.linalg.cholesky(a @ a.T), "negative": lambda a: -np.linalg.cholesky(a @ a.T).T,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_a_triangular_matrix_is_its_own_factor(dtype: str, shape: tuple[int, ...]) -> None:
    """Which triangle it is, is seen through transposes; it is not factored, and results are right."""
    a, b = matrices(5, 3, dtype)[0][::-1].copy(), RNG.normal(size=(5, *shape)).astype(dtype)
    triangles = [f for name, f in TRIANGLES.items() if dtype != "c16" or "tri" in name]

    def solved(a: Any, b: Any) -> list[Any]:
        return [np.linalg.solve(f(a), b) for f in triangles]

    assert names(lambda a, b: np.linalg.solve(np.tril(a, 1), b), a, b) == ["solve"]
    graph = rewritten(ge2.make_jaxpr(solved)(a, b).graph, "c")
    if lapack() is not None:
        found = [e.op for e in graph.eqns if e.op.name in ("lu", "lu_solve", "solve")]
        assert len(found) == len(triangles) and all(op.triangular for op in found)
    for executor in ("c", "blocked", "reference"):
        with config.using(executor=executor):
            for y, w in zip(ge2.jit(solved)(a, b), solved(a, b), strict=True):
                assert y.dtype == w.dtype
                np.testing.assert_allclose(
                    y, w, *((1e-4, 1e-4) if dtype == "f4" else (1e-9, 1e-11))
                )


def test_a_triangle_with_a_zero_on_its_diagonal_is_singular() -> None:
    for executor in ("c", "blocked", "reference"):
        with (
            config.using(executor=executor),
            pytest.raises(np.linalg.LinAlgError, match="Singular"),
        ):
            ge2.jit(lambda a, b: np.linalg.solve(np.triu(a), b))(
                np.diag([1.0, 0.0, 2.0]), np.ones(3)
            )


def test_derivatives_of_triangular_systems_in_a_loop() -> None:
    a, b = matrices(4, 1, "f8")
    a = a[::-1].copy()

    def loss(a: Any, b: Any) -> Any:
        def body(x: Any, k: Any) -> Any:
            root = np.linalg.cholesky(a @ a.T + k * np.eye(4))
            return np.linalg.solve(root.T, np.linalg.solve(np.tril(a), np.sin(x) + b)), None

        return (ge2.lax.scan(body, b, np.arange(3.0))[0] ** 2).sum()

    with config.using(executor="reference"):
        wanted = ge2.value_and_grad(loss, (0, 1))(a, b)
    for y, w in zip(
        ge2.tree.leaves(ge2.jit(ge2.value_and_grad(loss, (0, 1)))(a, b)),
        ge2.tree.leaves(wanted),
        strict=True,
    ):
        np.testing.assert_allclose(y, w, rtol=1e-9, atol=1e-10)


def iterations(a: Any, b: Any, count: int = 5) -> Any:
    x, _ = ge2.lax.scan(lambda x, _: (np.linalg.solve(a.T, np.tanh(x) + b), None), b, None, count)
    return x


def test_a_loop_solves_by_factors_made_before_it() -> None:
    a, b = matrices(4, 1, "f8")
    graph = factors(rewritten(ge2.make_jaxpr(iterations)(a, b).graph, "reference"))
    assert [e.op.name for e in graph.eqns if e.op.name in ("lu", "scan")] == ["lu", "scan"]
    (loop,) = (e.op for e in graph.eqns if isinstance(e.op, ScanLoop))
    assert "solve" not in {e.op.name for e in loop.body.eqns}
    once = ge2.make_jaxpr(lambda a, b: iterations(a, b, 1))(a, b).graph
    assert factors(once) is once

    def moving(a: Any, b: Any) -> Any:
        return ge2.lax.scan(lambda a, _: (a + np.linalg.solve(a, b), None), a, None, 5)[0]

    graph = ge2.make_jaxpr(moving)(a, a).graph
    assert str(factors(graph)) == str(graph)


@needs_compiler
@pytest.mark.parametrize("shape", [(4,), (4, 3)], ids=str)
def test_values_and_derivatives(shape: tuple[int, ...]) -> None:
    a, b = matrices(4, 3, "f8")[0], RNG.normal(size=shape)

    def loss(a: Any, b: Any) -> Any:
        y = np.sin(np.linalg.solve(a, b))
        for _ in range(6):
            y = np.linalg.solve(a.T, np.tanh(y) + b) * 2
        return (y * y).sum() + iterations(a, b).sum()

    with config.using(executor="reference"):
        wanted = ge2.value_and_grad(loss, (0, 1))(a, b)
    with config.using(executor="c"):
        found = ge2.jit(ge2.value_and_grad(loss, (0, 1)))(a, b)
    for y, w in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-9, atol=1e-10)


@needs_compiler
def test_a_singular_matrix_is_an_error_of_the_line_that_solves() -> None:
    def f(a: Any, b: Any) -> Any:
        return np.linalg.solve(a, np.linalg.solve(a, b))

    with (
        config.using(executor="c"),
        pytest.raises(np.linalg.LinAlgError, match="Singular") as found,
    ):
        ge2.jit(f)(np.ones((3, 3)), np.ones(3))
    assert "test_factors.py" in str(found.value.__notes__)
