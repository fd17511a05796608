"""SciPy's functions that are written in Python take traced values: their values and derivatives."""

from __future__ import annotations

import inspect
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.errors import Ge2Error
from ge2.numpy.rare.of_scipy import OURS
from ge2.test_util import check_grads
from ge2.trace.protocols import PENDING, _theirs
from tests.together import together

linalg = pytest.importorskip("scipy.linalg")
import scipy.fft as sf  # noqa: E402
import scipy.integrate as si  # noqa: E402
import scipy.signal as ss  # noqa: E402
import scipy.spatial.distance as sd  # noqa: E402
import scipy.special  # noqa: E402
import scipy.stats as st  # noqa: E402

RNG = np.random.default_rng(5)
A = RNG.normal(size=(4, 4)) + 3 * np.eye(4)
S = A @ A.T + 3 * np.eye(4)
H = S + 1j * (A - A.T)
TALL, WIDE = RNG.normal(size=(5, 3)), RNG.normal(size=(3, 5))
V, W = RNG.normal(size=9), RNG.normal(size=8)
B, IMAGE = RNG.normal(size=4), RNG.normal(size=(5, 6))
POINTS = RNG.normal(size=(4, 3))
P = np.linspace(0.1, 0.9, 7)
Case = tuple[str, Callable[[Any], Any], Any]


def square(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What no sign or phase of a vector changes."""
    return lambda x: [abs(y) for y in f(x)]


def of_parameters(name: str, method: str, *given: float) -> Callable[[Any], Any]:
    return lambda x: getattr(getattr(st, name), method)(x, *given)


# fmt: off
MATRICES: list[Case] = [
    ("inv", linalg.inv, A), ("inv of a triangle", lambda a: linalg.inv(a, assume_a="pos"), np.triu(S)),
    ("det", linalg.det, A), ("solve", lambda a: linalg.solve(a, B), A),
    ("solve, a positive one", lambda a: linalg.solve(a, A, assume_a="pos", lower=True), np.tril(S)),
    ("solve, transposed", lambda a: linalg.solve(a, B, transposed=True), A),
    ("solve, overwriting", lambda a: linalg.solve(a, B, overwrite_a=True, check_finite=False), A),
    ("cholesky", linalg.cholesky, S), ("cholesky, lower", lambda a: linalg.cholesky(a, lower=True), S),
    ("cholesky, complex", lambda a: linalg.cholesky(a + 0j), S),
    ("cho_solve", lambda a: linalg.cho_solve(linalg.cho_factor(a), B), S),
    ("cho_solve, lower", lambda a: linalg.cho_solve((linalg.cholesky(a, True), True), B), S),
    ("triangular", lambda a: linalg.solve_triangular(a, B), S),
    ("triangular, lower", lambda a: linalg.solve_triangular(a, B, trans="T", lower=True, unit_diagonal=True), S),
    ("eigvalsh", linalg.eigvalsh, S), ("eigvalsh, one triangle", lambda a: linalg.eigvalsh(a, lower=False), A),
    ("eigh", square(linalg.eigh), S), ("eigh of two", lambda a: linalg.eigh(a, S, eigvals_only=True), A + A.T),
    ("svdvals", linalg.svdvals, TALL), ("svd", square(partial(linalg.svd, full_matrices=False)), TALL),
    ("qr", square(linalg.qr), A), ("qr of a wide one", square(linalg.qr), WIDE),
    ("qr, economic", square(partial(linalg.qr, mode="economic")), TALL),
    ("r of qr", lambda a: abs(linalg.qr(a, mode="r")[0]), WIDE), ("polar", linalg.polar, TALL),
    ("polar, left", lambda a: linalg.polar(a, side="left"), WIDE),
    ("pinv", linalg.pinv, TALL), ("pinvh", linalg.pinvh, S), ("norm", linalg.norm, TALL),
    ("norm of rows", lambda a: linalg.norm(a, 1, axis=1), TALL),
    ("lstsq", lambda a: linalg.lstsq(a, TALL[:, 0])[:2], TALL + 1),
    ("expm", linalg.expm, A), ("expm of a large one", lambda a: linalg.expm(9 * a), -S),
    ("expm of several", lambda a: linalg.expm(np.stack([a, -a])), A), ("expm of 0", linalg.expm, np.zeros((3, 3))),
    ("block_diag", lambda a: linalg.block_diag(a, 2.0, a[0], a.T), WIDE), ("toeplitz", linalg.toeplitz, V),
    ("toeplitz of two", lambda v: linalg.toeplitz(v, W), V), ("circulant", linalg.circulant, V),
    ("hankel", linalg.hankel, V), ("hankel of two", lambda v: linalg.hankel(v, W), V),
    ("sylvester", lambda a: linalg.solve_sylvester(a, TALL.T @ TALL, WIDE.T[:4, :3]), S),
    ("lyapunov", lambda a: linalg.solve_continuous_lyapunov(a, A), S),
    ("lyapunov, discrete", lambda a: linalg.solve_discrete_lyapunov(a, A), A / 4),
]
SIGNALS: list[Case] = [
    ("trapezoid", lambda v: si.trapezoid(v, dx=0.5), V),
    ("cumulative", lambda x: si.cumulative_trapezoid(x, axis=0, initial=0), TALL),
    ("cumulative, uneven", lambda x: si.cumulative_trapezoid(x, np.cumsum(np.exp(V[:5])), axis=0), TALL),
    ("simpson", si.simpson, V),
    ("simpson, even", si.simpson, W),
    ("simpson, along an axis", lambda x: si.simpson(x, axis=0), IMAGE),
    ("simpson, uneven", lambda v: si.simpson(V, np.cumsum(np.exp(v))), V),
    ("simpson, uneven and even", lambda v: si.simpson(W, np.cumsum(np.exp(v))), W),
    ("fft", lambda v: abs(sf.fft(v, 12, norm="ortho", workers=1)), V), ("fft2", lambda x: abs(sf.fft2(x)), IMAGE),
    ("ifftn", lambda x: abs(sf.ifftn(x, axes=(0,))), IMAGE), ("irfft", lambda v: sf.irfft(sf.rfft(v), 9), V),
    ("convolve", lambda v: ss.convolve(v, W), V),
    ("convolve, same", lambda x: ss.convolve(x, WIDE[:, :2], "same"), IMAGE),
    ("convolve, valid", lambda x: ss.convolve(x, IMAGE, "valid"), WIDE[:2]),
    ("convolve2d", lambda x: ss.convolve2d(x, WIDE, boundary="wrap"), IMAGE),
    ("convolve2d, symmetric", lambda x: ss.convolve2d(x, WIDE[:2, :3], "same", "symm"), IMAGE),
    ("correlate", lambda v: ss.correlate(v, W, "same"), V),
    ("correlate, valid", lambda x: ss.correlate(x, WIDE, "valid"), IMAGE),
    ("fftconvolve", lambda x: ss.fftconvolve(x, WIDE[:, :2], "same"), IMAGE),
    ("fftconvolve, valid", lambda x: ss.fftconvolve(x, WIDE[:2], "valid"), IMAGE),
    *((f"{name} {type} {norm} {axis}", partial(getattr(sf, name), type=type, axis=axis, norm=norm), IMAGE)
      for name in ("dct", "idct", "dst", "idst") for type, axis in ((2, 0), (3, 1), (2, -1))
      for norm in (None, "ortho", "forward")),
    *((metric, partial(sd.cdist, XB=1.7 * POINTS[:3] + 0.4, metric=metric), POINTS)
      for metric in ("euclidean", "sqeuclidean", "cityblock", "chebyshev", "cosine")),
    ("minkowski", lambda x: sd.cdist(x, x + 1, "minkowski", p=3), POINTS), ("pdist", sd.pdist, POINTS),
    ("squareform", lambda x: sd.squareform(sd.pdist(x)), POINTS),
    ("back", lambda x: sd.squareform(sd.cdist(x, x, "cityblock")), POINTS),
    ("one distance", lambda v: sd.cosine(v, W) + sd.euclidean(v, W), W + 0.1),
]
CALLED_BACK = (
    ("gamma", (2.5,)), ("invgamma", (2.5,)), ("chi2", (3,)), ("beta", (2.0, 3.5)), ("t", (4.0,)),
)
DENSITIES: list[Case] = [
    *((f"{name}.{method}", partial(getattr(getattr(st, name), method), loc=-0.1, scale=1.3), P)
      for name in ("norm", "expon", "uniform", "laplace", "logistic", "cauchy", "gumbel_r", "rayleigh", "halfnorm")
      for method in ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf")),
    *((f"{name}.{method}", of_parameters(name, method, *given), P)
      for name, given in (("lognorm", (0.7,)), ("gamma", (2.5,)), ("invgamma", (2.5,)), ("chi2", (3,)),
                          ("beta", (2.0, 3.5)),
                      ("t", (4.0,)), ("pareto", (1.5, -0.95)),
                          ("weibull_min", (1.7,)))
      for method in ("pdf", "logpdf", "ppf", "isf")),
    *((f"{name}.{method}", of_parameters(name, method, *given), P) for name, given in CALLED_BACK
      for method in ("cdf", "sf", "logcdf", "logsf")),
    *((f"{name} of its parameter", partial(getattr(st, name).logpmf, k), P)
      for name, k in (("poisson", 2), ("bernoulli", 1), ("geom", 3))),
    ("binom", lambda p: st.binom.logpmf(np.arange(7), 6, p), P), ("nbinom", lambda p: st.nbinom.logpmf(3, 2.5, p), P),
    ("gamma of its parameter", lambda a: st.gamma.logpdf(2.0, a), P),
    ("sf", lambda x: st.norm.sf(x) + st.norm.logsf(-x), P),
    ("quantiles", lambda p: st.norm.ppf(p, 1.0, 2.0) + st.expon.ppf(p), P),
    ("frozen", lambda x: st.norm(0.3, 2.0).logpdf(x), P),
    ("normals", lambda x: st.multivariate_normal.logpdf(x, B, S), A),
    ("one normal", lambda x: st.multivariate_normal.pdf(x, B, S), B + 1),
    ("normals of a covariance", lambda a: st.multivariate_normal.logpdf(A, B, a @ a.T + np.eye(4)), A),
    ("of a number", lambda v: st.multivariate_normal.logpdf(v, 0.5, 2.0), V),
    ("singular", lambda x: st.multivariate_normal.logpdf(x * [1, 1, 0], [1, 2, 0], np.diag([1.0, 2, 0]), True), POINTS),
    ("none", lambda x: st.multivariate_normal.pdf(x, B[:3], np.diag([1.0, 2.0, 0.0]), True), POINTS),
]
# fmt: on


def near(got: Any, want: Any, name: str) -> None:
    assert isinstance(got, tuple | list) == isinstance(want, tuple | list), name
    for y, w in zip(got, want, strict=True) if isinstance(want, tuple | list) else [(got, want)]:
        assert np.asarray(y).dtype == np.asarray(w).dtype, name
        np.testing.assert_allclose(y, w, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("cases", [MATRICES, SIGNALS, DENSITIES])
@pytest.mark.any_executor
def test_values_are_scipy_s(cases: list[Case]) -> None:
    """Of several functions together, which compile quicker than each."""
    for first in range(0, len(cases), 16):
        some = cases[first : first + 16]
        xs, fs = [x for _, _, x in some], [f for _, f, _ in some]
        with np.errstate(all="ignore"):
            found = ge2.jit(lambda xs, fs=fs: [f(x) for f, x in zip(fs, xs, strict=True)])(xs)
            for (name, f, x), y in zip(some, found, strict=True):
                near(y, f(x), name)


@pytest.mark.parametrize("cases", [MATRICES, SIGNALS, DENSITIES])
@pytest.mark.any_executor
def test_derivatives_are_those_of_differences(cases: list[Case]) -> None:
    def total(y: Any) -> Any:
        return (
            sum(total(each) for each in y)
            if isinstance(y, tuple | list)
            else np.sum(np.sin(y.real))
        )

    for name, f, x in cases:
        if "expm of a large" in name:  # which is far from linear
            continue
        square = cases is MATRICES and x.shape == x.T.shape

        def of(x: Any, f: Any = f, square: bool = square) -> Any:
            return total(f((x + x.T) / 2 if square else x))  # of one triangle it is that of both

        try:
            check_grads(of, (x,), order=1)
        except AssertionError as error:
            raise AssertionError(name) from error


def test_batches() -> None:
    xs = np.stack([S, S + np.eye(4)])
    for f in (linalg.cholesky, linalg.expm, lambda a: linalg.solve_triangular(a, B)):
        np.testing.assert_allclose(ge2.vmap(f)(xs), np.stack([f(x) for x in xs]), rtol=1e-10)


def test_beyond_the_support_and_wrong_parameters() -> None:
    x = np.array([-np.inf, -1.0, 0.0, 0.5, 1.0, 2.5, np.inf, np.nan])
    methods = ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf")
    for d in (st.norm, st.expon, st.uniform, st.rayleigh, st.halfnorm):
        for scale in (2.0, -1.0):
            with np.errstate(all="ignore"):
                got = ge2.jit(lambda x, d=d, s=scale: [getattr(d, m)(x, 0, s) for m in methods])(x)
                for method, y in zip(methods, got, strict=True):
                    near(y, getattr(d, method)(x, 0, scale), f"{d.name}.{method} by {scale}")
    methods, q = ("cdf", "logcdf", "sf", "logsf"), np.array([-0.1, 0.0, 0.3, 1.0, 1.1, np.nan])
    called = list[tuple[str, Any, Any, Any]]()
    with np.errstate(all="ignore"), together():
        for name, given in CALLED_BACK:
            d = getattr(st, name)
            for method, at in (*((m, x) for m in methods), ("ppf", q)):
                f = lambda x, d=d, m=method, given=given: getattr(d, m)(x, *given, 0.1, 2.0)  # noqa: E731
                called.append((f"{name}.{method}", ge2.jit(f).lower(at).compile(), f, at))
        for name, compiled, f, at in called:
            near(compiled(at), f(at), name)
    k = np.array([-1, 0, 1, 1.5, 7])
    for f in (lambda k: st.poisson.pmf(k, 2.0), lambda k: st.binom.logpmf(k, 3, 1.5),
              lambda k: st.bernoulli.pmf(k, 0.3), lambda k: st.beta.logpdf(k, 1.0, 1.0)):  # fmt: skip
        near(ge2.jit(f)(k), f(k), "")


def test_a_norm_s_derivative_of_equal_points_counts_as_0() -> None:
    slope = ge2.grad(lambda x: sd.pdist(x).sum() + sd.cdist(x, x).sum())(np.ones((3, 2)))
    np.testing.assert_array_equal(slope, np.zeros((3, 2)))


def test_whoever_holds_one_has_it_too_and_real_arrays_get_scipy_s() -> None:
    held = {"f": linalg.cholesky, "g": linalg.block_diag}
    ge2.jit(lambda x: x)(1.0)
    near(ge2.jit(lambda a: held["f"](a) + held["g"]([[1.0, a[0, 1]], [2.0, 3.0]], a[:2, :2]))(S),
         linalg.cholesky(S) + linalg.block_diag([[1.0, S[0, 1]], [2.0, 3.0]], S[:2, :2]), "")  # fmt: skip
    for f in (linalg.cholesky, linalg.expm, si.simpson, ss.convolve, sd.cdist):
        assert pickle.loads(pickle.dumps(f)) is f
        assert not inspect.signature(f).parameters.keys() <= {"args", "kwargs"}
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        linalg.cholesky(-S)
    with pytest.raises(ValueError, match="infs or NaNs"):
        linalg.inv(np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match="Mode argument"):
        linalg.qr(A, mode="bogus")
    assert linalg.svd(A, lapack_driver="gesvd")[0].shape == (4, 4)


def test_what_ours_lacks_says_what_scipy_s_function_asked_for() -> None:
    for f in (lambda a: linalg.qr(a, pivoting=True), lambda a: linalg.eigh(a, subset_by_index=[0, 1]),
              lambda a: linalg.eig(a, left=True), lambda a: sf.dct(a, type=1), lambda a: st.nct.cdf(a, 2.0, 0.1),
              lambda a: sd.cdist(a, a, "correlation"), lambda a: linalg.solve(a, B, assume_a="banded")):  # fmt: skip
        with pytest.raises(Ge2Error, match=r"asked for the elements(.|\n)*pure_callback"):
            ge2.jit(f)(S)


def test_the_table_is_that_of_the_modules_and_is_taken_once() -> None:
    ge2.jit(lambda x: x)(1.0)
    assert not PENDING
    assert {key.partition(":")[0] for key in _theirs} == OURS.keys()
    before = dict(_theirs)
    threads = [threading.Thread(target=lambda: ge2.make_jaxpr(np.sin)(1.0)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _theirs == before


@pytest.mark.any_executor
def test_densities_at_the_ends_of_their_support_are_scipy_s() -> None:
    """Those of `lognorm` and `invgamma` were NaN at 0, the difference of two infinities."""
    given = {
        "expon": (), "uniform": (), "rayleigh": (), "halfnorm": (), "lognorm": (0.7,), "gamma": (2.5,),
        "invgamma": (2.5,), "chi2": (3,), "beta": (2.0, 3.5), "pareto": (1.5,), "weibull_min": (1.7,),
    }  # fmt: skip
    ends = np.array([-1.0, 0.0, 1.0, 2.0])
    fs = [
        of_parameters(name, method, *parameters)
        for name, parameters in given.items()
        for method in ("pdf", "logpdf", "cdf", "sf")
    ]
    with np.errstate(all="ignore"):
        for each, y in zip(fs, ge2.jit(lambda x: [f(x) for f in fs])(ends), strict=True):
            near(y, each(ends), str(each))
    slope = ge2.vmap(ge2.grad(lambda x: st.lognorm.pdf(x, 0.7) + st.invgamma.pdf(x, 2.5)))(ends)
    assert np.isfinite(slope).all() and not slope[:2].any()


def test_bessel_functions_of_numbers_beyond_those_whose_powers_vanish() -> None:
    x = np.array([1e19, 1e21, 1e200, -1e300])
    np.testing.assert_allclose(ge2.jit(scipy.special.i1e)(x), scipy.special.i1e(x), rtol=1e-14)
