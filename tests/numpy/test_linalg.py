"""numpy.linalg beside NumPy: values, named results, errors when a program runs,
derivatives in every mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from ge2 import lax
from ge2.base.arrays import FLOAT32, FLOAT64, real_part
from ge2.base.errors import Ge2Error, NoRuleError, ShapeError, TypeRuleError
from ge2.test_util import check_grads
from tests.laws.linalg_samples import LAPACK, definite, gaussian, regular
from tests.numpy.agreement import agree

L = np.linalg
Rng = np.random.Generator
ORDERS = (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)


def matrix(rng: Rng, dtype: Any, *shape: int) -> Any:
    return regular(rng, shape, np.dtype(dtype))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", LAPACK, ids=str)
def test_equations_and_inverses(dtype: np.dtype, rng: Rng) -> None:
    a, stack, tall = (matrix(rng, dtype, *s) for s in ((3, 3), (2, 3, 3), (4, 2)))
    b, v = gaussian(rng, (3, 2), dtype).astype(dtype), gaussian(rng, (3,), dtype).astype(dtype)
    for x in (b, v):
        agree(L.solve, a, x)
        agree(L.solve, stack, x)
    for f in (L.inv, L.det, L.slogdet):
        agree(f, a), agree(f, stack), agree(f, a[:0, :0])
    for x in (a, tall, tall.T, stack):
        agree(L.pinv, x), agree(L.matrix_rank, x)
    (
        agree(L.pinv, tall, 0.7),
        agree(L.pinv, stack, rtol=None),
        agree(L.pinv, a + a.conj().T, hermitian=True),
    )
    agree(L.matrix_rank, stack, 1.5), agree(L.matrix_rank, stack, rtol=0.6), agree(L.matrix_rank, v)
    for n in (-2, -1, 0, 3, 5):
        agree(L.matrix_power, stack, n)
    agree(L.lstsq, tall, gaussian(rng, (4, 2), dtype).astype(dtype))
    agree(L.lstsq, tall.T, b[:2, 0]), agree(L.lstsq, tall, gaussian(rng, (4,), dtype).astype(dtype))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", LAPACK, ids=str)
def test_factors(dtype: np.dtype, rng: Rng) -> None:
    a, stack, tall = (matrix(rng, dtype, *s) for s in ((3, 3), (2, 3, 3), (4, 2)))
    s = definite(rng, (3, 3), dtype)
    for upper in (False, True):
        agree(L.cholesky, s.conj().T.copy() if upper else s, upper=upper)
    for x in (a, stack, tall, tall.T.copy(), a[:, :0]):
        for mode in ("reduced", "complete", "r"):
            agree(L.qr, x, mode)
        agree(L.svd, x), agree(L.svd, x, False), agree(L.svdvals, x)
    for side in ("L", "U", "u"):
        agree(L.eigh, a, side), agree(L.eigvalsh, a, side)
    agree(L.eigvalsh, stack), agree(L.svd, s, hermitian=True, compute_uv=False)
    h = np.tril(s) + np.tril(s, -1).conj().T - 2 * np.eye(3, dtype=dtype)
    np.testing.assert_allclose(product(gnp.linalg.svd(h, hermitian=True)), h, atol=1e-5)


def product(found: Any) -> Any:
    u, s, vh = found
    return (u * s) @ vh


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", LAPACK, ids=str)
def test_norms_of_singular_values_and_conditions(dtype: np.dtype, rng: Rng) -> None:
    a, stack = matrix(rng, dtype, 3, 2), matrix(rng, dtype, 2, 3, 3)
    for order in ORDERS:
        agree(L.norm, a, order), agree(L.norm, stack, order, (2, 0), keepdims=True)
        agree(L.cond, stack, 2 if order == "nuc" else order)
    agree(L.cond, np.zeros((2, 2), dtype)), agree(L.cond, np.ones((2, 2), dtype), 1)
    agree(L.cond, np.array([[np.nan, 1], [1, 1]], dtype), "fro")


def test_tensors_and_products(rng: Rng) -> None:
    a = matrix(rng, FLOAT64, 6, 6)
    agree(L.tensorsolve, a.reshape(2, 3, 3, 2), a[0].reshape(2, 3))
    agree(L.tensorsolve, np.moveaxis(a.reshape(6, 2, 3), 0, 1), a[0], axes=(0, 2))
    agree(L.tensorinv, a.reshape(2, 3, 6), 2), agree(L.tensorinv, a.reshape(6, 3, 2), ind=1)
    b, c, v = matrix(rng, FLOAT64, 6, 2), matrix(rng, FLOAT64, 2, 5), a[1]
    for chain in ([a, b, c], [v, a, b, c], [b.T, a, a, v], [v, a, v], [a, a]):
        agree(L.multi_dot, chain, trace=False)


def test_multi_dot_takes_the_cheapest_order() -> None:
    xs = [np.ones(s) for s in ((50, 2), (2, 60), (60, 3))]
    text = str(ge2.make_jaxpr(lambda *xs: np.linalg.multi_dot(xs))(*xs))
    assert "[2,3]" in text and "[50,60]" not in text  # the last two first


@pytest.mark.parametrize("f", [L.eig, L.eigvals])
def test_eigenvalues_are_complex_whatever_they_are(f: Any, rng: Rng) -> None:
    for x in (
        np.diag([3.0, 1.0, 2.0]),
        gaussian(rng, (2, 3, 3), FLOAT64),
        np.eye(2, dtype=FLOAT32),
    ):
        got, want = ge2.vmap(f)(x[None]) if x.ndim == 2 else ge2.jit(f)(x), f(x)
        for g, w in zip(got, want, strict=True) if f is L.eig else [(got, want)]:
            assert g.dtype == (np.complex64 if x.dtype == FLOAT32 else np.complex128)
            np.testing.assert_allclose(g[0] if x.ndim == 2 else g, w, atol=1e-12)


def test_results_have_names(rng: Rng) -> None:
    a = regular(rng, (3, 3), FLOAT64)
    for f in (L.qr, L.eigh, L.eig, L.svd, L.slogdet):
        want, got = f(a), ge2.jit(f)(a)
        assert (type(got).__name__, got._fields) == (type(want).__name__, want._fields)


@pytest.mark.parametrize("executor", ["c", "blocked", "reference"])
def test_what_lapack_refuses_is_refused_when_the_program_runs(executor: str) -> None:
    singular = np.ones((2, 2))
    with ge2.config.using(executor=executor):
        for f in (L.inv, lambda x: L.solve(x, x), lambda x: L.cholesky(x - 3.0)):
            with pytest.raises(L.LinAlgError):
                ge2.jit(f)(singular)
        assert ge2.jit(L.det)(singular) == 0


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda x: L.solve(x, x[0]), "square"),
        (lambda x: L.solve(x @ x.T, x[:1]), "rows"),
        (lambda x: L.inv(x[0]), "two-dimensional"),
        (lambda x: L.qr(x, "raw"), "raw"),
        (lambda x: L.eigh(x @ x.T, "X"), "UPLO"),
        (lambda x: L.det(x.astype(np.float16)), "square"),
        (lambda x: L.svd(x.astype(np.float16)), "float32, float64 and complex"),
        (lambda x: L.pinv(x, x), "known beforehand"),
        (lambda x: L.cond(x[:, :0]), "empty"),
    ],
)
def test_mistakes_are_named(f: Any, what: str) -> None:
    with pytest.raises(Ge2Error, match=what):
        ge2.jit(f)(np.ones((2, 3)))
    assert issubclass(ShapeError, ValueError) and issubclass(TypeRuleError, TypeError)


# -------------------------------------------------------------------------------------- derivatives


def positive(x: Any) -> Any:
    return x @ x.T + 2.0 * np.eye(len(x))


SMOOTH: dict[str, Callable[..., Any]] = {
    "solve": lambda x: L.solve(x, x[0]) @ x[1],
    "inverse": lambda x: L.inv(x)[0] @ L.matrix_power(x, -2)[1],
    "determinants": lambda x: L.det(x) * L.slogdet(x)[1],
    "cholesky": lambda x: (
        L.cholesky(positive(x))[2].sum() + L.cholesky(positive(x), upper=True)[0].sum()
    ),
    "qr": lambda x: L.qr(x)[0][0, 1] + L.qr(x[:2])[1][0, 2] + L.qr(x[:, :2], "r")[1, 1],
    "eigh": lambda x: L.eigh(x + x.T, "U")[0][1] * L.eigh(x + x.T)[1][0, 1] ** 2,
    "eig": lambda x: L.eigvals(positive(x)).real.max() + abs(L.eig(positive(x))[1][0, 0]) ** 2,
    "svd": lambda x: product(L.svd(x[:, :2], full_matrices=False))[0, 1] + L.svdvals(x)[2],
    "vectors": lambda x: L.svd(x[:2], False)[2][0] ** 2 @ x[2] + (L.svd(x)[0] ** 2)[0, 1],
    "pinv": lambda x: L.pinv(x[:, :2])[0] @ x[0] + L.lstsq(x[:, :2], x[2])[0][1],
    "norms": lambda x: L.norm(x, 2) + L.norm(x, "nuc") + L.cond(x),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_in_both_modes(name: str, rng: Rng) -> None:
    x = regular(rng, (3, 3), FLOAT64) + 0.1 * rng.standard_normal((3, 3))
    check_grads(SMOOTH[name], (x,), order=1, modes=("fwd", "rev"))


def expanded(a: Any) -> Any:
    """The determinant by its definition, a polynomial."""
    orders = itertools.permutations(range(len(a)))
    return sum(L.det(np.eye(len(a))[list(o)]) * np.prod(a[np.arange(len(a)), o]) for o in orders)


SINGULAR = {
    "rank 2, rounded": np.arange(9.0).reshape(3, 3),
    "rank 2, exact": np.diag([1e9, 1e-9, 0.0]),
    "rank 1": np.ones((3, 3), FLOAT32),
    "rank 0": np.zeros((3, 3)),
    "complex": np.array([[1, 1j, 2], [1j, -1, 2j], [0, 1j, 3]]),
    "of several sizes": np.diag([1e3, 1.0, 1e-3]) + np.tri(3, k=-1),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SINGULAR)
def test_derivatives_of_determinants_are_those_of_a_polynomial(name: str) -> None:
    def orders(f: Any, a: Any) -> list[Any]:
        """Derivatives of first to third order, the last along one direction."""
        real = (lambda x: f(x).real) if a.dtype.kind == "c" else f
        first = ge2.grad(real)

        def along(x: Any) -> Any:
            return (first(x) * np.arange(9.0).reshape(3, 3)).sum().real

        return [first(a), ge2.grad(along)(a), ge2.jvp(ge2.grad(along), (a,), (a + 1,))[1]]

    a = SINGULAR[name]
    for got, want in zip(orders(L.det, a), orders(expanded, a), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12 * (1 + abs(want).max()))
    both = ge2.vmap(ge2.grad(lambda x: L.det(x).real))(np.stack([a, a + np.eye(3, dtype=a.dtype)]))
    np.testing.assert_allclose(both[0], orders(expanded, a)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "f", [lambda x: L.slogdet(x)[1].sum(), lambda x: abs(L.qr(x)[1]).sum()], ids=["slogdet", "qr"]
)
def test_a_singular_matrix_without_a_derivative_spoils_no_other(f: Any) -> None:
    # not of ones: which processor it is decides whether the last number of their triangle is 0
    a = np.stack([np.diag([1.0, 0.0]), np.eye(2), np.zeros((2, 2))])
    _, gradient = ge2.value_and_grad(f)(a)
    assert np.isnan(gradient[[0, 2]]).any((1, 2)).all()
    np.testing.assert_array_equal(gradient[1], np.eye(2))


def test_derivatives_where_eigenvalues_are_equal_or_elements_0() -> None:
    pinv = lambda x: L.pinv(x, hermitian=True)  # noqa: E731
    np.testing.assert_allclose(ge2.jacfwd(pinv)(np.eye(2))[0, 0], [[-1, 0], [0, 0]], atol=1e-14)
    both = L.pinv(np.array([[2.0, 9], [1, 3]]), hermitian=True)
    np.testing.assert_allclose(ge2.jit(pinv)(np.array([[2.0, 7], [1, 3]])), both)
    for ord in (-1, -2, -0.5):  # as the size of the element that is 0
        x = np.array([0.0, 1.0, 2.0])
        np.testing.assert_array_equal(ge2.grad(lambda x, p=ord: L.norm(x, p))(x), 0 * x)


def test_gradients_by_symmetric_matrices_are_symmetric(rng: Rng) -> None:
    """As JAX, torch and autograd have them, though only one triangle is read."""
    a = positive(rng.standard_normal((3, 3)))
    for f in (
        lambda x: 2 * np.log(np.diagonal(L.cholesky(x))).sum(),
        lambda x: np.log(L.eigvalsh(x)).sum(),
    ):
        np.testing.assert_allclose(ge2.grad(f)(a), np.linalg.inv(a), rtol=1e-12)
    upper = np.where(np.tri(3, k=-1).T > 0, np.nan, a)  # which nobody reads
    np.testing.assert_array_equal(ge2.jit(L.cholesky)(upper), L.cholesky(a))


@pytest.mark.parametrize("f", ["eigh", "svd", "eig"])
def test_complex_vectors_where_no_phase_matters(f: str, rng: Rng) -> None:
    """A function of the matrix made of its factors again has the derivative of the identity."""

    def again(x: Any) -> Any:
        if f == "svd":
            return product(L.svd(x, full_matrices=False))
        if f == "eigh":
            w, v = L.eigh(x + x.conj().T)
            return (v * w) @ v.conj().T
        w, v = L.eig(x)
        return (v * w) @ L.inv(v)

    x, t, ct = (gaussian(rng, (3, 3), np.dtype(complex)) for _ in range(3))
    y, tangent = ge2.jvp(again, (x,), (t,))
    sums = (lambda z: z + z.conj().T) if f == "eigh" else lambda z: z
    np.testing.assert_allclose(y, sums(x), atol=1e-12)
    np.testing.assert_allclose(tangent, sums(t), atol=1e-10)
    (back,) = ge2.vjp(again, x)[1](ct)
    np.testing.assert_allclose(np.sum(back * t).real, np.sum(ct * sums(t)).real, rtol=1e-10)


def test_what_has_no_derivative_says_so() -> None:
    x = np.arange(6.0).reshape(3, 2)
    for f, fix in (
        (lambda x: L.svd(x)[0].sum(), "full_matrices=False"),
        (lambda x: L.qr(x, "complete")[0].sum(), "qr"),
    ):
        with pytest.raises(NoRuleError, match=fix):
            ge2.grad(f)(x)
    assert np.isfinite(ge2.grad(lambda x: L.svd(x)[1].sum())(x)).all()


def test_inside_loops_branches_and_batches(rng: Rng) -> None:
    a, v = regular(rng, (2, 3, 3), FLOAT64), rng.standard_normal(3)

    def f(a: Any, v: Any) -> Any:
        v = lax.fori_loop(0, 3, lambda i, v: L.solve(a, v), v)
        w = lax.cond(v[0] > 0, lambda v: np.fft.fft(v).real, lambda v: L.inv(a) @ v, v)
        return lax.scan(lambda c, x: (c + L.det(a) * x, L.norm(a, 2) * c), w, v)[1]

    def plain(a: Any, v: Any) -> Any:
        for _ in range(3):
            v = L.solve(a, v)
        w = np.fft.fft(v).real if v[0] > 0 else L.inv(a) @ v
        return np.stack([L.norm(a, 2) * (w + L.det(a) * s) for s in np.cumsum(v) - v])

    want = np.stack([plain(x, v) for x in a])
    np.testing.assert_allclose(ge2.jit(ge2.vmap(f, (0, None)))(a, v), want, rtol=1e-9)
    assert real_part(want.dtype) == FLOAT64


def test_narrow_integers_become_float64() -> None:
    agree(L.inv, np.array([[2, 1], [1, 1]], "i1")), agree(L.det, np.eye(2, dtype=bool))


@pytest.mark.any_executor
@pytest.mark.parametrize("transform", [ge2.jit, ge2.grad, lambda f: ge2.jit(ge2.grad(f))])
@pytest.mark.parametrize("f", [np.linalg.inv, np.linalg.cholesky])
def test_an_error_of_numpys_says_the_users_line(transform, f):
    def of_matrix(a):
        return f(a).sum()

    with pytest.raises(np.linalg.LinAlgError) as caught:
        transform(of_matrix)(np.zeros((3, 3)))
    at, remedy = caught.value.__notes__[0].split("\n")
    assert at.startswith("  at   test_linalg.py:")
    assert at.endswith(" in of_matrix")
    assert remedy.startswith("  try  a + 1e-8 * np.eye(len(a))")
