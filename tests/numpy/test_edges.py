"""Arguments at the edge of what NumPy takes: its answer, or an error that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.errors import ArgumentError, InPlaceError, OutOfBoundsError, ShapeError, TypeRuleError

X = np.array([1.0, 5.0, 2.0])
NUMBER = np.array(3.0)
ALONG_NOTHING = (
    "sum", "prod", "min", "max", "any", "all", "argmax", "argmin", "ptp", "nansum", "nanmax",
)  # fmt: skip


def traced(f: Callable[..., Any], *args: Any) -> Any:
    return ge2.make_jaxpr(f)(*args)(*args)[0]


@pytest.mark.parametrize("name", [*ALONG_NOTHING, "count_nonzero", "squeeze", "argsort"])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_number_is_reduced_along_its_axis_0_as_in_numpy(name: str, axis: int) -> None:
    f = getattr(np, name)
    found, wanted = traced(lambda x: f(x, axis=axis), NUMBER), np.asarray(f(NUMBER, axis=axis))
    assert (found.shape, found.dtype, found.tolist()) == (
        wanted.shape,
        wanted.dtype,
        wanted.tolist(),
    )


@pytest.mark.exhaustive("mode")
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
@pytest.mark.parametrize("width", [1, 7, (0, 4), (9, 0), (3, 8)])
def test_padding_by_point_reflections(mode: Any, width: Any) -> None:
    for x in (X, X.astype(np.uint8), X[:1], X[:2] * 1j, np.outer(X, X)):
        f = lambda x: np.pad(x, width, mode=mode, reflect_type="odd")  # noqa: E731
        np.testing.assert_allclose(traced(f, x), f(x))
        assert traced(f, x).dtype == x.dtype


def test_what_python_has_no_answer_for_numpy_has() -> None:
    np.testing.assert_allclose(ge2.jit(np.sqrt)(1j), np.sqrt(1j))
    with pytest.raises(
        TypeError, match="'<' not supported between instances of 'complex' and 'int'"
    ):
        ge2.jit(lambda x: x < 2)(1j)
    assert ge2.numpy.can_cast(np.float32, np.float64)
    assert not ge2.numpy.can_cast(np.float64, np.float32)


def assign(name: str) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        setattr(x, name, (3, 1))
        return x * 2

    return f


REFUSED: list[tuple[Callable[..., Any], Any, type[Exception], str]] = [
    (assign("shape"), X, InPlaceError, "x = x.reshape((3, 1))"),
    (assign("dtype"), X, InPlaceError, "x = x.astype(dtype)"),
    (lambda x: np.repeat(x, -1), X, ArgumentError, "np.maximum(repeats, 0)"),
    (lambda x: np.tril(x), NUMBER, ShapeError, "np.atleast_2d(x)"),
    (lambda x: np.pad(x, 1, reflect_type="odd"), X, ArgumentError, "constant_values="),
    (
        lambda x: np.size(x, 1) * x,
        X,
        OutOfBoundsError,
        "axis=-1 for the last; from -1 to 0 they count",
    ),
    (lambda x: np.triu_indices_from(x), X, ShapeError, "np.atleast_2d(x)"),
    (lambda x: -(x > 1), X, TypeRuleError, "~x, or np.logical_not(x)"),
    (lambda x: (x > 1) - (x > 2), X, TypeRuleError, "x ^ y, or x.astype(int) - y"),
    (lambda x: x & 1, X, TypeRuleError, "x.astype(np.int64)"),
]


@pytest.mark.parametrize(("f", "x", "kind", "fix"), REFUSED)
def test_what_has_no_meaning_is_refused_with_a_fix(f: Any, x: Any, kind: Any, fix: str) -> None:
    with pytest.raises(kind) as caught:
        ge2.make_jaxpr(f)(x)
    assert str(caught.value).endswith(f"\n  try  {fix}")


def described(y: Any) -> Any:
    return [(np.asarray(v).dtype, np.asarray(v).tolist()) for v in ge2.tree_util.tree_leaves(y)]


@pytest.mark.parametrize("function", [
    np.linalg.eig, np.linalg.eigvals, lambda x: np.roots(x.ravel()), np.real_if_close, np.nonzero,
    np.flatnonzero, np.unique, lambda x: x[x == 0], lambda x: np.extract(x == 0, x),
    lambda x: np.repeat(x, x.real.astype(int).ravel())])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_of_no_elements_all_that_depends_on_them_is_known(function: Any, dtype: Any) -> None:
    for shape in ((0, 0), (2, 0, 0)):
        x = np.zeros(shape, dtype)
        assert described(ge2.jit(function)(x)) == described(function(x))


def test_writing_at_one_boolean_beside_other_indices() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y[True, 1] = 7.0
        y[False] = 8.0
        y[0, :, True] += 1.0
        np.add.at(y, (True, [0, 0]), 2.0)
        part = y[True]  # a copy
        part += 9.0
        return y, ge2.numpy.at(y)[0, True].add(1.0) if y is not x else y

    x = np.arange(6.0).reshape(2, 3)
    want = [[4.0 + 1, 6.0, 7.0], [7.0, 7.0, 7.0]]
    assert ge2.jit(f)(x)[0].tolist() == want == f(x)[0].tolist()
    assert ge2.jit(f)(x)[1].tolist() == [[6.0, 7.0, 8.0], [7.0, 7.0, 7.0]]
    g = ge2.grad(lambda x: (x[True, 1] ** 2).sum() + x[False].sum())(x)
    assert g.tolist() == [[0, 0, 0], [6, 8, 10]]


@pytest.mark.parametrize("endpoint", [False, True])
@pytest.mark.parametrize("num", [0, 1, 2])
@pytest.mark.parametrize("end", [2.0, np.ones(3)])
def test_the_step_of_few_evenly_spaced_numbers(end: Any, num: int, endpoint: bool) -> None:
    f = lambda x: np.linspace(0.5, x, num, endpoint, retstep=True)  # noqa: E731
    np.testing.assert_equal(described(ge2.jit(f)(end)), described(f(end)))


@pytest.mark.parametrize("keys", [(NUMBER,), (NUMBER, np.array(2)), X[:2]])
def test_numbers_are_sorted_by_keys(keys: Any) -> None:
    assert described(ge2.jit(lambda k: np.lexsort(k))(keys)) == described(np.lexsort(keys))


def test_a_polynomial_has_the_eigenvalues_of_a_real_matrix(rng: np.random.Generator) -> None:
    for n in (1, 2, 5):
        for x in (rng.normal(size=(n, n)), np.arange(n * n).reshape(n, n)):
            np.testing.assert_allclose(ge2.jit(np.poly)(x), np.poly(x), rtol=1e-12, atol=1e-9)
            assert ge2.jit(np.poly)(x).dtype == np.poly(x).dtype
    x = np.array([[2.0, 1.0], [0.5, 3.0]])  # x**2 - trace x + det
    found = ge2.jacrev(lambda x: ge2.jit(np.poly)(x))(x)
    np.testing.assert_allclose(found[1], [[-1, 0], [0, -1]], atol=1e-12)
    np.testing.assert_allclose(found[2], [[3, -0.5], [-1, 2]], atol=1e-12)
    with pytest.raises(ShapeError, match="non-empty square"):
        ge2.jit(np.poly)(np.ones((2, 3)))
