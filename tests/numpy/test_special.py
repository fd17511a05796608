"""ge2.scipy.special:

SciPy's names and ufuncs, dtypes, derivatives of what is made of several operations.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ge2.base.errors import Ge2Error, NoRuleError
from ge2.numpy.rare.applying import SLOPES
from ge2.scipy import special as sp
from ge2.test_util import check_grads

X = np.array([0.15, 0.4, 0.7, 0.9])
OF_TWO = (
    "beta", "betaln", "boxcox", "boxcox1p", "huber", "inv_boxcox", "inv_boxcox1p", "kl_div", "pseudo_huber",
    "rel_entr", "xlogy", "xlog1py",
)  # fmt: skip
WHOLE = ("logsumexp", "softmax", "log_softmax")
ONE = sorted(set(sp.__all__) - {*OF_TWO, *WHOLE, "multigammaln", "polygamma", "zeta"})


def of_all(xp: Any, x: Any) -> list[Any]:
    """Every function of a namespace, of numbers between 0 and 1."""
    ones = [getattr(xp, name)(x) for name in (*ONE, *WHOLE)]
    return [*ones, *(getattr(xp, name)(x, x[::-1]) for name in OF_TWO)]


def test_every_name_has_its_function() -> None:
    for name in sp.__all__:
        assert len(inspect.getdoc(getattr(sp, name)) or "") > 15, name
    assert set(dir(sp)) == set(sp.__all__)


def test_values_are_scipy_s() -> None:
    theirs = pytest.importorskip("scipy.special")
    for x in (X, np.linspace(-3.7, 6.0, 23), np.array([-2.0, -0.0, 0.0, 1.0, 2.0, 30.0, np.nan])):
        with np.errstate(all="ignore"):
            for name, y, want in zip(
                (*ONE, *WHOLE, *OF_TWO), of_all(sp, x), of_all(theirs, x), strict=True
            ):
                np.testing.assert_allclose(y, want, rtol=2e-13, atol=1e-14, err_msg=name)
            np.testing.assert_allclose(
                sp.polygamma(2, x[x > 0]), theirs.polygamma(2, x[x > 0]), rtol=1e-13
            )
            np.testing.assert_allclose(
                sp.multigammaln(abs(x) + 1.5, 3), theirs.multigammaln(abs(x) + 1.5, 3), rtol=1e-13
            )


def test_beta_beside_poles_and_of_far_numbers() -> None:
    theirs = pytest.importorskip("scipy.special")
    far = [(1e8, 2.5), (1e10, 0.3), (3.0, 1e9), (2e7, 1e-3), (200.0, 100.0), (-1e7, 2.5)]
    poles = [(n, m) for n in (-3.0, -2.0, -1.0, 0.0) for m in (-2.0, -1.0, 0.5, 1.0, 2.0, 3.0)]
    a, b = np.array(far + poles + [(m, n) for n, m in poles]).T
    for f, wanted in ((sp.beta, theirs.beta), (sp.betaln, theirs.betaln)):
        for y in (f(a, b), ge2.jit(f)(a, b)):
            np.testing.assert_allclose(y, wanted(a, b), rtol=1e-12)
    np.testing.assert_allclose(ge2.grad(lambda a: sp.betaln(a, 2.5))(1e8), -2.49999998125e-08)


def test_zeta_of_a_known_order_is_scipy_s() -> None:
    theirs = pytest.importorskip("scipy.special")
    q = np.array([0.5, 1.0, 2.5, 40.0])
    for n in (2, 3.0, 15):
        y = ge2.jit(lambda q, n=n: theirs.zeta(n, q))(q)
        np.testing.assert_allclose(y, theirs.zeta(n, q), rtol=1e-14)
    # an even order: of odd ones, terms left and right of 0 cancel, in SciPy, too
    np.testing.assert_allclose(sp.zeta(2, -1.5), theirs.zeta(2, -1.5), rtol=1e-14)
    slope = ge2.grad(lambda q: theirs.zeta(3, q))(1.7)
    np.testing.assert_allclose(slope, -3 * theirs.zeta(4, 1.7), rtol=1e-13)
    assert sp.zeta(4) == pytest.approx(np.pi**4 / 90, rel=1e-15)


def test_scipy_s_ufuncs_are_taken_by_what_they_are() -> None:
    theirs = pytest.importorskip("scipy.special")
    ufuncs = [getattr(theirs, name) for name in (*ONE, *OF_TWO) if hasattr(theirs, name)]
    assert len(ufuncs) == len(ONE) + len(OF_TWO)

    def f(x: Any) -> Any:
        return sum(u(*(x,) * u.nin) for u in ufuncs)

    with np.errstate(all="ignore"):
        np.testing.assert_allclose(ge2.jit(f)(X), f(X), rtol=1e-13)
        check_grads(f, (X,), order=2)
    imposter = np.frompyfunc(lambda x: x, 1, 1)
    with pytest.raises(NoRuleError, match="numpy"):
        ge2.jit(lambda x: imposter(x))(X)


def test_what_scipy_writes_in_python_takes_traced_values_and_is_what_it_was() -> None:
    theirs = pytest.importorskip("scipy.special")
    x = np.random.default_rng(3).standard_normal((3, 4))
    weights = np.array([1.0, -2.0, 0.5, 1.5])
    calls = [
        lambda x: theirs.logsumexp(x, axis=1),
        lambda x: theirs.logsumexp(x, 0, keepdims=True),
        lambda x: theirs.logsumexp(x, axis=1, b=weights, return_sign=True),
        lambda x: theirs.softmax(x, axis=1),
        lambda x: theirs.log_softmax(x),
        lambda x: theirs.polygamma(2, x * x + 1),
        lambda x: theirs.multigammaln(x * x + 3, 2),
    ]
    names = "logsumexp", "softmax", "log_softmax", "polygamma", "multigammaln", "zeta"
    for f in calls:
        got, want = ge2.jit(f)(x), f(x)
        np.testing.assert_allclose(got, want, rtol=1e-12)
        check_grads(lambda x, f=f: np.sum(f(x)[0]), (x,), order=1)
    signature = inspect.signature(theirs.logsumexp)
    assert [*signature.parameters] == ["a", "axis", "b", "keepdims", "return_sign"]
    assert theirs.zeta(3.0, q=2.0) == pytest.approx(0.2020569031595942)
    for name in names:
        assert pickle.loads(pickle.dumps(getattr(theirs, name))) is getattr(theirs, name)


def test_dtypes() -> None:
    for dtype in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64):
        for y in of_all(sp, X.astype(dtype)):
            assert y.dtype == dtype
    assert sp.erf(1).dtype == sp.xlogy(1, np.int8(2)).dtype == FLOAT64
    assert sp.xlogy(0.5, X.astype(FLOAT32)).dtype == FLOAT32
    assert sp.xlogy(X[:, None], X[:2]).shape == (4, 2)


def test_compiled_together() -> None:
    for dtype, most in ((FLOAT64, 2e-15), (FLOAT32, 2e-6), (BFLOAT16, 2e-2)):
        x = X.astype(dtype)
        for y, want in zip(ge2.jit(lambda x: of_all(sp, x))(x), of_all(sp, x), strict=True):
            assert y.dtype == dtype
            np.testing.assert_allclose(
                y.astype(FLOAT64), want.astype(FLOAT64), rtol=most, atol=most
            )


def test_derivatives_of_what_is_made_of_several() -> None:
    x = np.array([-1.3, 0.4, 2.2])

    def f(x: Any) -> Any:
        y = sp.i1(x) * sp.i1e(x) + sp.log_expit(x) + sp.log_softmax(x) * sp.softmax(x)
        y = y + sp.gamma(x) + sp.entr(abs(x)) + sp.erfcinv(abs(x) / 3)
        return (
            y
            + sp.rgamma(x)
            + sp.beta(x, abs(x) + 0.5) * sp.betaln(1.5, x)
            + sp.multigammaln(x + 3, 2)
        )

    check_grads(f, (x,), order=2, rtol=1e-5)
    check_grads(lambda x: sp.polygamma(1, x) + sp.gammaln(x), (x,), order=2, rtol=1e-5)


def test_bessel_functions_have_every_derivative_at_0() -> None:
    f: Any = sp.i0
    for want in (1.0, 0.0, 0.5, 0.0, 0.375):
        assert f(0.0) == want
        f = ge2.grad(f)
    assert ge2.grad(sp.i1)(0.0) == 0.5
    assert ge2.grad(lambda x: sp.xlogy(x, 0.0 * x))(0.0) == -np.inf
    assert ge2.grad(lambda y: sp.xlogy(0.0, y))(0.0) == 0.0


def test_numpy_s_bessel_function_and_window() -> None:
    np.testing.assert_allclose(ge2.jit(np.i0)(X), np.i0(X), rtol=1e-14)
    for n in (0, 1, 2, 7):
        np.testing.assert_allclose(ge2.numpy.kaiser(n, 8.6), np.kaiser(n, 8.6), rtol=1e-13)
    check_grads(lambda b: ge2.numpy.kaiser(5, b), (3.0,), order=1)


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda x: sp.erf(x + 1j), "complex"),
        (lambda x: sp.erf(x, where=x > 0), "where="),
        (lambda x: sp.polygamma(x, x), "an integer"),
        (lambda x: sp.zeta(x, x), "a known whole number from 2 to 15"),
        (lambda x: sp.zeta(2.5, x), "whole number(.|\n)*pure_callback"),
        (lambda x: sp.polygamma(15, x), "order"),
    ],
)
def test_mistakes_are_named(f: Any, what: str) -> None:
    with pytest.raises(Ge2Error, match=what):
        ge2.jit(f)(X)


def test_ufuncs_that_ge2_has_no_operation_for_are_called_back() -> None:
    scipy = pytest.importorskip("scipy.special")
    for f in (
        lambda x: scipy.betainc(2.0, 3, x),
        lambda x: scipy.jv(np.arange(3)[:, None], x),
        lambda x: scipy.lambertw(x),
        lambda x: scipy.sici(x)[0],
        lambda x: scipy.gammainc(x[:2].astype(np.float32), np.float32(0.5)),
        lambda x: scipy.eval_legendre(3, x),
        lambda x: scipy.ellipk(x[0]),
    ):
        for got, want in (
            (ge2.jit(f)(X), f(X)),
            (ge2.jit(ge2.vmap(f))(np.stack([X, X / 2])), np.stack([f(X), f(X / 2)])),
        ):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
    y = ge2.jit(lambda x: ge2.lax.fori_loop(0, 3, lambda i, x: scipy.j0(x), x))(X)
    np.testing.assert_array_equal(y, scipy.j0(scipy.j0(scipy.j0(X))))
    with pytest.raises(Ge2Error, match=r"of jv has no derivative by argument 0(.|\n)*custom_vjp"):
        ge2.grad(lambda v: scipy.jv(v, X).sum())(X)
    with pytest.raises(Ge2Error, match=r"of _lambertw has no derivative: (.|\n)*custom_vjp"):
        ge2.grad(lambda x: scipy.lambertw(x).real.sum())(X)
    with pytest.raises(Ge2Error, match=r"scipy.special.jv: where= is not supported"):
        ge2.jit(lambda x: scipy.jv(0, x, where=x > 0))(X)


@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_of_what_is_called_back(name: str, rng: np.random.Generator) -> None:
    f: Any = getattr(pytest.importorskip("scipy.special"), name)
    args = [rng.uniform(0.3, 2.5, 3) for _ in range(f.nin)]
    if name in ("jn", "yn", "kn", "pdtr", "pdtrc"):  # of whole numbers
        args[0] = np.arange(3) if name == "yn" else np.arange(3.0)
    if "inv" in name or "beta" in name or name in ("stdtrit", "hyp2f1"):
        args[-1] = rng.uniform(0.1, 0.9, 3)
    args[0] = args[0] + 3 if name == "binom" else args[0]
    for i, slope in enumerate(SLOPES[name]):
        of_one = lambda x, i=i: f(*args[:i], x, *args[i + 1 :])  # noqa: E731
        if slope is None:
            continue
        check_grads(of_one, (args[i],), 2)
        found = ge2.grad(lambda x, f=of_one: f(x).sum())(args[i])
        each = [lambda x, k=k, i=i: f(*[a[k] for a in args[:i]], x, *[a[k] for a in args[i + 1 :]])
                for k in range(3)]  # fmt: skip
        for k in range(3):
            xs = np.stack([args[i][k], args[i][k]])
            found_each = ge2.vmap(ge2.grad(each[k]))(xs)
            np.testing.assert_allclose(found_each, [found[k]] * 2, rtol=1e-12)


def test_narrow_arguments_of_what_is_called_back() -> None:
    scipy = pytest.importorskip("scipy.special")
    x = X.astype(np.float32) + 2
    for f in (lambda x: scipy.jv(0.5, x), lambda x: scipy.betainc(2, 0.5, x / 6)):
        assert ge2.jit(f)(x).dtype == f(x).dtype == np.float32
        np.testing.assert_array_equal(ge2.jit(f)(x), f(x))
        assert ge2.grad(lambda x, f=f: f(x).sum())(x).dtype == np.float32


def test_ends_of_what_is_made_of_several_operations() -> None:
    scipy = pytest.importorskip("scipy.special")
    a, b = np.meshgrid(
        [-1.0, -0.0, 0.0, 1e-9, 0.5, 2.0, 800.0, np.inf, np.nan], [-2.0, 0.0, 1e-20, 0.7, np.inf]
    )
    names = (
        "huber",
        "kl_div",
        "pseudo_huber",
        "rel_entr",
        "boxcox",
        "boxcox1p",
        "inv_boxcox",
        "inv_boxcox1p",
    )
    with np.errstate(all="ignore"):
        for name in names:
            b = np.minimum(b, 9.0) if "boxcox" in name else b  # SciPy's are NaN at infinity
            want, got = getattr(scipy, name)(a, b), getattr(sp, name)(a, b)
            np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=name)
        x = np.array([-800.0, -1.0, -1e-6, 0.0, 1e-9, 2e-5, 1.0, 716.0, 718.0, np.nan])
        np.testing.assert_allclose(sp.exprel(x), scipy.exprel(x), rtol=1e-15)
    for slope in (
        (ge2.grad(ge2.grad(lambda x: sp.exprel(x)))(0.0), 1 / 3),
        (ge2.grad(lambda p: sp.boxcox(2.0, p))(0.0), np.log(2) ** 2 / 2),
    ):
        np.testing.assert_allclose(*slope, rtol=1e-12)
