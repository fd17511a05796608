"""linear_transpose: against matrices, in and under other transforms, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.errors import GradientError, TraceError
from ge2.lax import fori_loop, scan
from ge2.transforms import cond
from ge2.transforms.solves import linear_transpose
from tests.transforms.functions import close

A = np.arange(6.0).reshape(2, 3)

LINEAR = {
    "product": (lambda x: A @ x, (3,)),
    "jitted product": (ge2.jit(lambda x: A @ x), (3,)),
    "checkpoint": (ge2.checkpoint(lambda x: A @ (2.0 * x)), (3,)),
    "scaled": (lambda x: x * np.arange(3.0) / 2.0 - x[::-1], (3,)),
    "sums": (lambda x: np.cumsum(x, 0).sum(1) * 3.0, (4, 3)),
    "padded": (lambda x: np.concatenate([np.pad(x, 1), np.zeros(2)]), (3,)),
    "picked": (lambda x: x[np.array([0, 2, 2])], (3,)),
    "masked": (lambda x: np.where(np.arange(3) > 0, x, 0.0), (3,)),
    "custom": (ge2.custom_jvp(lambda x: x * 2.0), (3,)),
}
LINEAR["scan"] = lambda x: scan(lambda c, xi: (2.0 * c + xi, 3.0 * c), x[0] * 0.0, x)[1], (4,)
LINEAR["scan of matrices"] = (
    lambda x: scan(lambda c, m: (m @ c, None), x, A.reshape(1, 2, 3)[:, [0, 1, 1]])[0],
    (3,),
)
LINEAR["loop"] = lambda x: fori_loop(0, 3, lambda i, c: 2.0 * c[::-1], x), (3,)
LINEAR["custom"][0].defjvp(lambda p, t: (p[0] * 2.0, t[0] * 2.0))


@pytest.mark.parametrize("name", LINEAR)
def test_the_matrix_is_transposed(name, rng):
    f, shape = LINEAR[name]
    basis = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    matrix = np.stack([np.ravel(f(e)) for e in basis])
    ct = rng.normal(size=np.shape(f(basis[0])))
    (found,) = linear_transpose(f, ge2.ShapeDtypeStruct(shape, np.float64))(ct)
    close(found.ravel(), matrix @ ct.ravel())


def test_complex_numbers_are_transposed_without_conjugation():
    (found,) = linear_transpose(lambda x: x * 1j, np.zeros(2, complex))(np.array([1.0, 2.0j]))
    close(found, [1j, -2.0])


def test_trees_and_several_arguments():
    def f(p, y):
        return {"sum": p["a"].sum() * 2.0 - y, "b": (p["b"],)}

    primals = {"a": np.zeros(3), "b": np.zeros(2)}, np.float64(0)
    dp, dy = linear_transpose(f, *primals)({"sum": 1.0, "b": (np.array([3.0, 4.0]),)})
    close(dp["a"], [2.0, 2.0, 2.0])
    close(dp["b"], [3.0, 4.0])
    assert dy == -1.0


def test_branches():
    def back(take, first):
        f = lambda x: cond(take, first, lambda x: x * 3.0, x)  # noqa: E731
        return linear_transpose(f, np.zeros(3))(np.ones(3))[0]

    square = np.arange(9.0).reshape(3, 3)
    both = ge2.jit(lambda take: back(take, lambda x: square @ x))
    close(both(True), square.sum(0))
    close(both(False), [3.0, 3.0, 3.0])
    wrong = {
        "add puts a constant": lambda x: x + 1.0,
        "a branch returns a constant": lambda x: np.ones(3),
        "depends on where it is taken": lambda x: x * x,
    }
    for says, first in wrong.items():
        with pytest.raises(GradientError, match=says):
            ge2.jit(lambda take, first=first: back(take, first))(True)
    with pytest.raises(GradientError, match="makes bool"):
        linear_transpose(lambda x: cond(x[0] > 0, np.negative, np.positive, x), np.zeros(3))


def test_under_other_transforms():
    def back(a, ct):
        return linear_transpose(lambda x: a @ x, np.zeros(3))(ct)[0]

    ct = np.array([1.0, 2.0])
    close(ge2.jit(back)(A, ct), A.T @ ct)
    close(ge2.vmap(back, (None, 0))(A, np.eye(2)), A)
    close(ge2.grad(lambda a: (back(a, ct) ** 2).sum())(A), 2 * np.outer(ct, A.T @ ct))
    close(ge2.jvp(lambda ct: back(A, ct), (ct,), (ct,))[1], A.T @ ct)
    twice = linear_transpose(lambda ct: back(A, ct), ct)(np.arange(3.0))[0]
    close(twice, A @ np.arange(3.0))


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (lambda x: x + 1.0, "add puts a constant beside it"),
        (lambda x: np.concatenate([x, np.ones(2)]), "concatenate puts a constant"),
        (lambda x: x * x, "depends on where it is taken"),
        (lambda x: np.sin(x), "depends on where it is taken"),
        (lambda x: abs(x), "depends on where it is taken"),
        (lambda x: np.floor(x), "floor rounds it"),
        (lambda x: (x > 0) * 1.0, "makes bool"),
        (lambda x: x.astype(int), "makes i64"),
        (lambda x: (x, np.ones(2)), "is a constant that is not known to be zero"),
        (lambda x: np.sort(x), "depends on where it is taken"),
        (lambda x: scan(lambda c, xi: (c * xi, c), x[0], x)[0], "depends on where it is taken"),
        (lambda x: 1.0 / x, "depends on where it is taken"),
    ],
)
def test_what_is_not_linear(f, says):
    with pytest.raises(GradientError, match=says) as error:
        linear_transpose(f, np.zeros(3))
    assert "test_linear.py" in str(error.value)


def test_other_errors():
    with pytest.raises(GradientError, match=r"floating arguments; x is i64\[3\]"):
        linear_transpose(lambda x: x, np.arange(3))
    with pytest.raises(GradientError, match=r"f64\[2\]\) is f64\[3\]"):
        linear_transpose(lambda x: A @ x, np.zeros(3))(np.ones(3))
    with pytest.raises(TraceError, match="linear_transpose knows no value of it"):
        linear_transpose(lambda x: x if x[0] > 0 else -x, np.zeros(3))
