"""Special functions under the names that `scipy.special` gives them; SciPy need not be there.

Integers are computed in float64. float16, bfloat16 and fp8 keep their dtype, where SciPy goes to
float64. Errors, in units of the last place: docs/design/special.md.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT64, FLOATS
from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.base.source import here
from ge2.ir import is_traced, type_of
from ge2.numpy import axes
from ge2.numpy import elementwise as e
from ge2.numpy.composite import where
from ge2.numpy.promotion import Axes, array, broadcast, cast, common_dtype, common_shape, lift
from ge2.ops import special as ops

__all__ = [
    "beta", "betaln", "boxcox", "boxcox1p", "cbrt", "digamma", "entr", "erf", "erfc", "erfcinv",
    "erfcx", "erfinv", "exp2", "exp10", "expit", "expm1", "exprel", "gamma", "gammaln", "gammasgn",
    "huber", "i0", "i0e", "i1", "i1e", "inv_boxcox", "inv_boxcox1p", "kl_div", "log1p", "log_expit",
    "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri", "polygamma",
    "pseudo_huber", "psi", "rel_entr", "rgamma", "softmax", "xlog1py", "xlogy", "zeta",
]  # fmt: skip


Function = Callable[..., Any]


def floating(x: Any, name: str) -> Any:
    """The argument as an array of floats."""
    x = array(x)
    dtype = type_of(x).dtype
    if dtype in COMPLEX:
        what = f"{name} of complex numbers is not among the functions that ge2 traces: {type_of(x)}"
        raise InputError(what, where=here(), fix="x.real")
    return x if dtype in FLOATS else cast(x, FLOAT64)


def no_more(name: str, more: dict[str, Any]) -> None:
    for option in more:
        what = f"scipy.special.{name}: {option}= is not supported"
        raise InputError(what, where=here(), fix="x.astype before the call, np.where after it")


def unary(name: str, op: Any, doc: str) -> Function:
    def function(x: Any, /, **more: Any) -> Any:
        no_more(name, more)
        return op(floating(x, name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}, as `scipy.special.{name}`."
    return function


def binary(name: str, op: Any, doc: str) -> Function:
    def function(x: Any, y: Any, /, **more: Any) -> Any:
        no_more(name, more)
        return op(*pair(name, x, y))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}, as `scipy.special.{name}`."
    return function


def pair(name: str, x: Any, y: Any) -> list[Any]:
    """Two arguments as arrays of floats, of one dtype and shape."""
    xs = [lift(x), lift(y)]
    dtype, shape = common_dtype(xs), common_shape(name, xs)
    return [broadcast(floating(cast(z, dtype), name), shape) for z in xs]


# fmt: off
erf      = unary("erf",      ops.ERF,      "2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x")
erfc     = unary("erfc",     ops.ERFC,     "1 - erf(x), exact where that is small")
erfcx    = unary("erfcx",    ops.ERFCX,    "exp(x^2) erfc(x)")
erfinv   = unary("erfinv",   ops.ERFINV,   "The y of erf(y) = x; NaN beyond 1")
ndtr     = unary("ndtr",     ops.NDTR,     "The probability that a normal variable is at most x")
ndtri    = unary("ndtri",    ops.NDTRI,    "The inverse of `ndtr`: normal quantiles")
log_ndtr = unary("log_ndtr", ops.LOG_NDTR, "The logarithm of `ndtr`")
expit    = unary("expit",    ops.LOGISTIC, "1 / (1 + exp(-x)), the logistic sigmoid")
logit    = unary("logit",    ops.LOGIT,    "log(x / (1 - x)), the inverse of `expit`")
gammaln  = unary("gammaln",  ops.GAMMALN,  "log|gamma(x)|")
digamma  = unary("digamma",  ops.DIGAMMA,  "The derivative of log(gamma(x)); NaN at -1, -2, ...")
i0       = unary("i0",       ops.Bessel(0), "The modified Bessel function of order 0")
i0e      = unary("i0e",      ops.Bessel(0, scaled=True), "exp(-|x|) i0(x)")
xlogy    = binary("xlogy",   ops.XLOGY,    "x log(y), and 0 where x is 0")
xlog1py  = binary("xlog1py", ops.XLOG1PY,  "x log(1 + y), and 0 where x is 0")
exp2     = unary("exp2",     e.exp2,       "2^x")
exp10    = unary("exp10",    lambda x: e.power(10.0, x), "10^x")
expm1    = unary("expm1",    e.expm1,      "exp(x) - 1, exact where that is small")
log1p    = unary("log1p",    e.log1p,      "log(1 + x), exact where that is small")
cbrt     = unary("cbrt",     e.cbrt,       "The cube root")
# fmt: on
psi = digamma


def i1(x: Any, /, **more: Any) -> Any:
    """The modified Bessel function of order 1, as `scipy.special.i1`."""
    no_more("i1", more)
    x = floating(x, "i1")
    return e.multiply(x, ops.Bessel(1)(x))


def i1e(x: Any, /, **more: Any) -> Any:
    """exp(-|x|) i1(x), as `scipy.special.i1e`."""
    no_more("i1e", more)
    x = floating(x, "i1e")
    far = e.greater(abs(x), 1e20)  # i0e is equal to the last bit, and i1e(x) / x would vanish
    y = where(far, ops.Bessel(0, scaled=True)(x), ops.Bessel(1, scaled=True)(where(far, 1.0, x)))
    return e.multiply(where(far, e.sign(x), x), y)


def erfcinv(x: Any, /, **more: Any) -> Any:
    """The y of erfc(y) = x, as `scipy.special.erfcinv`."""
    no_more("erfcinv", more)
    return e.multiply(ndtri(e.multiply(floating(x, "erfcinv"), 0.5)), -(0.5**0.5))


def log_expit(x: Any, /, **more: Any) -> Any:
    """log(1 / (1 + exp(-x))), as `scipy.special.log_expit`."""
    no_more("log_expit", more)
    return e.negative(e.logaddexp(e.negative(floating(x, "log_expit")), 0.0))


def entr(x: Any, /, **more: Any) -> Any:
    """-x log(x), 0 at 0 and -inf below, as `scipy.special.entr`."""
    no_more("entr", more)
    x = floating(x, "entr")
    below = e.less(x, 0)
    inside = where(below, 1.0, x)  # what is below has no logarithm, nor a derivative
    return where(below, -np.inf, e.negative(xlogy(inside, inside)))


def gamma(x: Any, /, **more: Any) -> Any:
    """The gamma function, as `scipy.special.gamma`: by the logarithm, whose
    size is in the error.
    """
    no_more("gamma", more)
    x = floating(x, "gamma")
    return e.multiply(gammasgn(x), e.exp(gammaln(x)))


def rgamma(x: Any, /, **more: Any) -> Any:
    """1 / gamma(x), and 0 at 0, -1, ..., as `scipy.special.rgamma`; its error is that of `gamma`."""
    no_more("rgamma", more)
    x = floating(x, "rgamma")
    return where(is_pole(x), 0.0, e.multiply(gammasgn(x), e.exp(e.negative(gammaln(x)))))


def gammasgn(x: Any, /, **more: Any) -> Any:
    """The sign of gamma(x), NaN at -1, -2, ..., as `scipy.special.gammasgn`."""
    no_more("gammasgn", more)
    x = floating(x, "gammasgn")
    below = e.less(x, 0)
    odd = e.logical_and(below, e.not_equal(e.mod(e.floor(x), 2), 0))
    undefined = e.logical_or(e.logical_and(below, is_pole(x)), e.isnan(x))
    sign = where(odd, -1.0, e.copysign(1.0, where(below, 1.0, x)))
    return where(undefined, np.nan, sign)


def is_pole(x: Any) -> Any:
    """True at 0, -1, -2, ..."""
    return e.logical_and(e.less_equal(x, 0), e.equal(x, e.floor(x)))


def multigammaln(a: Any, d: Any) -> Any:
    """The logarithm of the gamma function of dimension d, as `scipy.special.multigammaln`, of
    a > (d - 1) / 2; d is known beforehand.
    """
    x, n = floating(a, "multigammaln"), operator.index(d)
    terms = [gammaln(e.subtract(x, 0.5 * j)) for j in range(n)]
    return functools.reduce(e.add, terms, n * (n - 1) / 4 * math.log(math.pi))


def betaln(a: Any, b: Any, /, **more: Any) -> Any:
    """log|beta(a, b)|, as `scipy.special.betaln`."""
    no_more("betaln", more)
    return sign_and_log(*pair("betaln", a, b))[1]


def beta(a: Any, b: Any, /, **more: Any) -> Any:
    """gamma(a) gamma(b) / gamma(a + b), as `scipy.special.beta`: by the logarithm, whose size is
    in the error.
    """
    no_more("beta", more)
    sign, log = sign_and_log(*pair("beta", a, b))
    return e.multiply(sign, e.exp(log))


def sign_and_log(a: Any, b: Any) -> tuple[Any, Any]:
    """The sign of beta(a, b) and the logarithm of its size, as Cephes has them.

    At a pole n of one argument they are those of (-1)^m beta(1 - n - m, m) where the other, m,
    is an integer that leaves 1 - n - m > 0, and else those of infinity.
    """
    pole = e.logical_or(is_pole(a), is_pole(b))
    m, rest = where(is_pole(a), b, a), e.subtract(e.subtract(1.0, a), b)
    integer = e.logical_and(pole, e.logical_and(e.greater(rest, 0), e.equal(m, e.floor(m))))
    finite = e.logical_and(integer, e.greater(m, 0))
    x = where(finite, rest, where(pole, 1.0, a))
    y = where(finite, m, where(pole, 1.0, b))
    sign = e.multiply(e.multiply(gammasgn(x), gammasgn(y)), gammasgn(e.add(x, y)))
    odd = e.logical_and(integer, e.equal(e.mod(m, 2), 1))
    infinite = e.logical_and(pole, e.logical_not(finite))
    return where(odd, -1.0, sign), where(infinite, np.inf, log_of_beta(x, y))


def log_of_beta(a: Any, b: Any) -> Any:
    """log|beta(a, b)|: where one is much larger an asymptotic series, as the logarithms of gamma
    would cancel.
    """
    x, y = e.maximum(a, b), e.minimum(a, b)
    far = e.greater(e.multiply(x, 1e-6), e.maximum(e.abs(y), 1.0))
    near, large = where(far, 1.0, x), where(far, x, 1.0)
    v = e.multiply(y, e.subtract(1.0, y))
    third = e.subtract(e.subtract(1.0, e.multiply(y, 2.0)), e.divide(v, large))
    second = e.add(0.5, e.divide(e.divide(third, 12.0), large))
    series = e.multiply(e.divide(v, large), second)
    distant = e.add(e.subtract(gammaln(y), e.multiply(y, e.log(large))), series)
    sums = e.subtract(e.add(gammaln(near), gammaln(y)), gammaln(e.add(near, y)))
    return where(far, distant, sums)


def polygamma(n: Any, x: Any) -> Any:
    """Derivative n of `digamma`, n known beforehand and up to 14, as `scipy.special.polygamma`."""
    if is_traced(n) or np.ndim(n) or int(n) != n:
        raise InputError(
            f"polygamma: n is an integer; got {n!r}", where=here(), fix="polygamma(1, x)"
        )
    return ops.Polygamma(int(n))(floating(x, "polygamma")) if n else digamma(x)


def zeta(x: Any, q: Any = None, /, **more: Any) -> Any:
    """The sum of (k + q)^-x over k >= 0, as `scipy.special.zeta`; x is known beforehand, 2 to 15."""
    no_more("zeta", more)
    if is_traced(x) or np.ndim(x) or x not in range(2, ops.MOST + 2):
        what = f"zeta: x is a known whole number from 2 to {ops.MOST + 1}; got {x!r}"
        raise InputError(
            what, where=here(), fix="ge2.pure_callback(scipy.special.zeta, like, x, q)"
        )
    n = int(x) - 1
    return e.multiply(polygamma(n, 1.0 if q is None else q), (-1) ** (n + 1) / math.factorial(n))


def kaiser(M: int, beta: Any) -> Any:
    """Kaiser's window of M points, as `numpy.kaiser`; M is known beforehand."""
    n = operator.index(M)
    if n < 2:
        return np.ones(max(n, 0))
    at = np.linspace(-1.0, 1.0, n)
    return e.divide(i0(e.multiply(beta, np.sqrt(1.0 - at * at))), i0(beta))


def exprel(x: Any, /, **more: Any) -> Any:
    """(exp(x) - 1) / x, and 1 at 0, as `scipy.special.exprel`."""
    no_more("exprel", more)
    x = floating(x, "exprel")
    near, far = e.less(abs(x), 1e-5), e.greater(x, 717.0)
    v = where(e.logical_or(near, far), 1.0, x)
    y = where(far, np.inf, e.divide(e.expm1(v), v))
    small, series = where(near, x, 0.0), 1.0  # whose series has derivatives
    for n in (5, 4, 3, 2):
        series = e.add(1.0, e.multiply(e.divide(small, n), series))
    return where(near, series, y)


def rel_entr(x: Any, y: Any, /, **more: Any) -> Any:
    """x log(x / y), 0 where x is 0 and y >= 0, and infinite elsewhere, as `scipy.special.rel_entr`."""
    no_more("rel_entr", more)
    a, b = pair("rel_entr", x, y)
    return entropies(a, b, 0)


def kl_div(x: Any, y: Any, /, **more: Any) -> Any:
    """x log(x / y) - x + y, and infinite where `rel_entr` is, as `scipy.special.kl_div`."""
    no_more("kl_div", more)
    a, b = pair("kl_div", x, y)
    return entropies(a, b, 1)


def entropies(a: Any, b: Any, less: int) -> Any:
    """a log(a / b), and (b - a) times `less`."""
    inside = e.logical_and(e.greater(a, 0), e.greater(b, 0))
    v, w = where(inside, a, 1.0), where(inside, b, 1.0)
    nothing = e.logical_and(e.equal(a, 0), e.greater_equal(b, 0))
    y = v * e.log(v / w)
    other = where(nothing, b if less else abs(a), where(e.isnan(a + b), a + b, np.inf))
    return where(inside, y - v + w if less else y, other)


def huber(delta: Any, r: Any, /, **more: Any) -> Any:
    """r^2 / 2 up to delta, and from there on linear in |r|, as `scipy.special.huber`."""
    no_more("huber", more)
    d, x = pair("huber", delta, r)
    half = e.multiply(d, 0.5)
    y = where(e.less_equal(abs(x), d), e.multiply(x * x, 0.5), d * (abs(x) - half))
    return where(e.less(d, 0), np.inf, y)


def pseudo_huber(delta: Any, r: Any, /, **more: Any) -> Any:
    """delta^2 (sqrt(1 + (r / delta)^2) - 1), as `scipy.special.pseudo_huber`."""
    no_more("pseudo_huber", more)
    d, x = pair("pseudo_huber", delta, r)
    endless = e.logical_and(e.equal(x, 0), e.logical_not(e.isfinite(d)))
    nothing = e.logical_or(e.equal(d, 0), endless)
    v = x / where(nothing, 1.0, d)
    y = d * d * e.expm1(e.multiply(e.log1p(v * v), 0.5))
    return where(e.less(d, 0), np.inf, where(nothing, 0.0, y))


def boxcox(x: Any, lmbda: Any, /, **more: Any) -> Any:
    """(x^lambda - 1) / lambda, and log(x) where lambda is 0, as `scipy.special.boxcox`."""
    no_more("boxcox", more)
    a, b = pair("boxcox", x, lmbda)
    return of_logarithm(e.log(a), b)


def boxcox1p(x: Any, lmbda: Any, /, **more: Any) -> Any:
    """`boxcox` of 1 + x, as `scipy.special.boxcox1p`."""
    no_more("boxcox1p", more)
    a, b = pair("boxcox1p", x, lmbda)
    return of_logarithm(e.log1p(a), b)


def of_logarithm(log: Any, power: Any) -> Any:
    """(exp(power log) - 1) / power, whose limit at 0 is the logarithm."""
    finite, nothing = e.isfinite(log), e.less(abs(power), 1e-19)
    v = where(finite, log, 1.0)
    p = where(e.logical_or(finite, nothing), 1.0, power)
    end = e.expm1(p * where(finite, 1.0, log)) / p
    return where(finite, v * exprel(power * v), where(nothing, log, end))


def inv_boxcox(y: Any, lmbda: Any, /, **more: Any) -> Any:
    """The x of boxcox(x, lambda) = y, as `scipy.special.inv_boxcox`."""
    no_more("inv_boxcox", more)
    return e.exp(of_power(*pair("inv_boxcox", y, lmbda)))


def inv_boxcox1p(y: Any, lmbda: Any, /, **more: Any) -> Any:
    """The x of boxcox1p(x, lambda) = y, as `scipy.special.inv_boxcox1p`."""
    no_more("inv_boxcox1p", more)
    return e.expm1(of_power(*pair("inv_boxcox1p", y, lmbda)))


def of_power(y: Any, power: Any) -> Any:
    """log(1 + power y) / power, and y where power is 0."""
    nothing = e.equal(power, 0)
    v = where(nothing, 1.0, power)
    finite = where(e.isfinite(y), y, 0.0)
    near = e.multiply(power * finite * finite, -0.5)  # 0, with a derivative
    return where(nothing, y + near, e.log1p(v * y) / v)


# ------------------------------------------------------------------------------------ of whole axes


def logsumexp(
    a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """log(sum(b * exp(a))) without overflow, as `scipy.special.logsumexp`."""
    return axes.logsumexp(a, axis, b, keepdims, return_sign)


def softmax(x: Any, axis: Axes = None) -> Any:
    """exp(x) by their sum, as `scipy.special.softmax`: over all axes by default."""
    x = floating(x, "softmax")
    y = e.exp(e.subtract(x, axes.max(x, axis, keepdims=True)))
    return e.divide(y, axes.sum(y, axis, keepdims=True))


def log_softmax(x: Any, axis: Axes = None) -> Any:
    """The logarithm of `softmax`, as `scipy.special.log_softmax`."""
    x = floating(x, "log_softmax")
    return e.subtract(x, axes.logsumexp(x, axis, keepdims=True))


# ---------------------------------------------------------------------------- SciPy's distributions


@record
class Distribution:
    """A distribution of `scipy.stats` in its standard form: the logarithm of the density, or of the
    probability where it is `discrete`, between `low` and `high`, which may be functions of the
    parameters.
    """

    log: Function
    low: Any = -np.inf
    high: Any = np.inf
    cdf: Function | None = None
    sf: Function | None = None
    ppf: Function | None = None
    isf: Function | None = None
    logcdf: Function | None = None
    logsf: Function | None = None
    discrete: bool = False
    open: bool = False  # where it ends the formula has no value, and the density is 0
    valid: Function | None = None  # of the parameters; positive, if not given


def theirs(name: str, *xs: Any) -> Any:
    """A ufunc of SciPy's that is called back, or taken; SciPy is imported if its distributions are."""
    return getattr(sys.modules["scipy.special"], name)(*xs)


def is_fraction(p: Any) -> Any:
    return e.logical_and(e.greater_equal(p, 0), e.less_equal(p, 1))


def log_of_binomial(k: Any, n: Any, p: Any) -> Any:
    ways = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return ways + xlogy(k, p) + xlog1py(n - k, -p)


def log_of_student(z: Any, df: Any) -> Any:
    rest = gammaln((df + 1.0) / 2) - gammaln(df / 2.0) - e.log(df * math.pi) / 2
    return rest - (df + 1.0) / 2 * e.log1p(z * z / df)


def laplace(z: Any) -> Any:
    return where(e.greater(z, 0), 1 - e.exp(-abs(z)) / 2, e.exp(-abs(z)) / 2)


def quantile_of_laplace(q: Any) -> Any:
    return where(e.greater(q, 0.5), -e.log((1 - q) * 2), e.log(q * 2))


HALF_LOG: float = math.log(2 * math.pi) / 2
# fmt: off
DISTRIBUTIONS = {
    "norm": Distribution(
        lambda z: -z * z / 2 - HALF_LOG, cdf=ndtr, sf=lambda z: ndtr(-z), ppf=ndtri,
        isf=lambda q: -ndtri(q), logcdf=log_ndtr, logsf=lambda z: log_ndtr(-z)),
    "expon": Distribution(
        lambda z: -z, 0, cdf=lambda z: -e.expm1(-z), sf=lambda z: e.exp(-z), ppf=lambda q: -e.log1p(-q),
        isf=lambda q: -e.log(q)),
    "uniform": Distribution(
        lambda z: z * 0.0, 0, 1, cdf=lambda z: z, sf=lambda z: 1 - z, ppf=lambda q: q, isf=lambda q: 1 - q),
    "laplace": Distribution(
        lambda z: -abs(z) - math.log(2),
        cdf=lambda z: laplace(z), sf=lambda z: laplace(-z), ppf=lambda q: quantile_of_laplace(q),
        isf=lambda q: -quantile_of_laplace(q)),
    "logistic": Distribution(
        lambda z: -abs(z) - 2 * e.log1p(e.exp(-abs(z))),
        cdf=expit, sf=lambda z: expit(-z), ppf=logit, isf=lambda q: -logit(q),
        logcdf=log_expit, logsf=lambda z: log_expit(-z)),
    "cauchy": Distribution(
        lambda z: -e.log1p(z * z) - math.log(math.pi), cdf=lambda z: e.arctan2(1.0, -z) / math.pi,
        sf=lambda z: e.arctan2(1.0, z) / math.pi, ppf=lambda q: -1 / e.tan(q * math.pi),
        isf=lambda q: 1 / e.tan(q * math.pi)),
    "gumbel_r": Distribution(
        lambda z: -z - e.exp(-z), cdf=lambda z: e.exp(-e.exp(-z)), sf=lambda z: -e.expm1(-e.exp(-z)),
        ppf=lambda q: -e.log(-e.log(q)), isf=lambda q: -e.log(-e.log1p(-q)), logcdf=lambda z: -e.exp(-z)),
    "rayleigh": Distribution(
        lambda z: e.log(z) - z * z / 2, 0,
        cdf=lambda z: -e.expm1(-z * z / 2), sf=lambda z: e.exp(-z * z / 2),
        ppf=lambda q: e.sqrt(e.log1p(-q) * -2), isf=lambda q: e.sqrt(e.log(q) * -2)),
    "halfnorm": Distribution(
        lambda z: math.log(2 / math.pi) / 2 - z * z / 2, 0,
        cdf=lambda z: erf(z / math.sqrt(2)), sf=lambda z: erfc(z / math.sqrt(2)),
        ppf=lambda q: erfinv(q) * math.sqrt(2), isf=lambda q: -ndtri(q / 2)),
    "lognorm": Distribution(
        lambda z, s: -((e.log(z) / s) ** 2) / 2 - e.log(s * z) - HALF_LOG, 0,
        cdf=lambda z, s: ndtr(e.log(z) / s), sf=lambda z, s: ndtr(-e.log(z) / s),
        ppf=lambda q, s: e.exp(s * ndtri(q)), isf=lambda q, s: e.exp(-s * ndtri(q)), open=True),
    "gamma": Distribution(
        lambda z, a: xlogy(a - 1.0, z) - z - gammaln(a), 0, cdf=lambda z, a: theirs("gammainc", a, z),
        sf=lambda z, a: theirs("gammaincc", a, z), ppf=lambda q, a: theirs("gammaincinv", a, q),
        isf=lambda q, a: theirs("gammainccinv", a, q)),
    "invgamma": Distribution(
        lambda z, a: -(a + 1.0) * e.log(z) - gammaln(a) - 1.0 / z, 0,
        cdf=lambda z, a: theirs("gammaincc", a, 1 / z), sf=lambda z, a: theirs("gammainc", a, 1 / z),
        ppf=lambda q, a: 1 / theirs("gammainccinv", a, q), isf=lambda q, a: 1 / theirs("gammaincinv", a, q),
        open=True),
    "chi2": Distribution(
        lambda z, df: xlogy(df / 2.0 - 1, z) - z / 2 - gammaln(df / 2.0) - math.log(2) / 2 * df, 0,
        cdf=lambda z, df: theirs("chdtr", df, z), sf=lambda z, df: theirs("chdtrc", df, z),
        ppf=lambda q, df: theirs("gammaincinv", df / 2.0, q) * 2,
        isf=lambda q, df: theirs("gammainccinv", df / 2.0, q) * 2),
    "beta": Distribution(
        lambda z, a, b: xlog1py(b - 1.0, -z) + xlogy(a - 1.0, z) - betaln(a, b), 0, 1,
        cdf=lambda z, a, b: theirs("betainc", a, b, z), sf=lambda z, a, b: theirs("betainc", b, a, 1 - z),
        ppf=lambda q, a, b: theirs("betaincinv", a, b, q), isf=lambda q, a, b: 1 - theirs("betaincinv", b, a, q)),
    "t": Distribution(
        log_of_student, cdf=lambda z, df: theirs("stdtr", df, z), sf=lambda z, df: theirs("stdtr", df, -z),
        ppf=lambda q, df: theirs("stdtrit", df, q), isf=lambda q, df: -theirs("stdtrit", df, q)),
    "pareto": Distribution(
        lambda z, b: e.log(b) - xlogy(b + 1.0, z), 1,
        cdf=lambda z, b: 1 - e.power(z, -b), sf=lambda z, b: e.power(z, -b),
        ppf=lambda q, b: e.power(1 - q, -1 / b), isf=lambda q, b: e.power(q, -1 / b)),
    "weibull_min": Distribution(
        lambda z, c: e.log(c) + xlogy(c - 1.0, z) - e.power(z, c), 0,
        cdf=lambda z, c: -e.expm1(-e.power(z, c)), sf=lambda z, c: e.exp(-e.power(z, c)),
        ppf=lambda q, c: e.power(-e.log1p(-q), 1 / c), isf=lambda q, c: e.power(-e.log(q), 1 / c)),
    "poisson": Distribution(
        lambda k, mu: xlogy(k, mu) - gammaln(k + 1.0) - mu, 0, discrete=True,
        valid=lambda mu: e.greater_equal(mu, 0)),
    "bernoulli": Distribution(
        lambda k, p: xlogy(k, p) + xlog1py(1.0 - k, -p), 0, 1, discrete=True, valid=is_fraction),
    "binom": Distribution(
        log_of_binomial, 0, lambda n, p: n, discrete=True, valid=lambda n, p: is_fraction(p)),
    "geom": Distribution(
        lambda k, p: xlog1py(k - 1.0, -p) + e.log(p), 1, discrete=True, valid=is_fraction),
    "nbinom": Distribution(
        lambda k, n, p: gammaln(n + k) - gammaln(k + 1.0) - gammaln(n) + xlogy(n, p) + xlog1py(k, -p),
        0, discrete=True, valid=lambda n, p: is_fraction(p)),
}
# fmt: on


def of_distribution(method: str) -> Function:
    """A method of `scipy.stats`' distributions, of a distribution, values and its parameters."""

    def called(distribution: Any, x: Any, *args: Any, **more: Any) -> Any:
        found = DISTRIBUTIONS.get(distribution.name)
        if found is None or not type(distribution).__module__.startswith("scipy.stats."):
            return NotImplemented
        given, loc, scale = distribution._parse_args(*args, **more)
        given = tuple([lift(p) for p in given])
        valid = functools.reduce(
            e.logical_and, [e.greater(p, 0) for p in given], e.greater(scale, 0)
        )
        if found.valid is not None:
            valid = e.logical_and(e.greater(scale, 0), found.valid(*given))
        if method in ("ppf", "isf"):
            return quantiles(method, found, cast(array(x), FLOAT64), given, loc, scale, valid)
        z = (cast(array(x), FLOAT64) - loc) / scale
        return at_values(method.replace("pmf", "pdf"), found, z, given, scale, valid)

    return called


def quantiles(
    method: str, found: Distribution, q: Any, given: Any, loc: Any, scale: Any, valid: Any
) -> Any:
    known = found.ppf if method == "ppf" else found.isf
    if known is None:
        return NotImplemented
    low, high = (end(*given) if callable(end) else end for end in (found.low, found.high))
    inside = e.logical_and(e.greater(q, 0), e.less(q, 1))
    ends = where(e.less(q, 0.5), low, high) if method == "ppf" else where(e.less(q, 0.5), high, low)
    y = where(inside, known(where(inside, q, 0.5), *given), ends) * scale + loc
    return where(e.logical_and(valid, is_fraction(q)), y, np.nan)


def at_values(method: str, found: Distribution, z: Any, given: Any, scale: Any, valid: Any) -> Any:
    """A method of standard values, beyond the support what it is there; it is asked for inside."""
    low, high = (end(*given) if callable(end) else end for end in (found.low, found.high))
    above = e.greater(z, low) if found.open else e.greater_equal(z, low)
    inside = e.logical_and(e.logical_and(above, e.less_equal(z, high)), e.isfinite(z))
    if found.discrete:
        inside = e.logical_and(inside, e.equal(z, e.floor(z)))
    middle = (
        0.5 if found.high is not np.inf and not found.discrete else low if found.discrete else 1.0
    )
    known = of_standard(method, found, where(inside, z, middle), given)
    if known is None:
        return NotImplemented
    if method.endswith("pdf"):
        known = (
            known if found.discrete else known / scale if method == "pdf" else known - e.log(scale)
        )
        outside: Any = -np.inf if method == "logpdf" else 0.0
    else:
        nothing, whole = (-np.inf, 0.0) if method.startswith("log") else (0.0, 1.0)
        none = e.less_equal(z, low) if method.endswith("cdf") else e.greater_equal(z, high)
        outside = where(none, nothing, whole)
    return where(e.logical_and(valid, e.equal(z, z)), where(inside, known, outside), np.nan)


def of_standard(method: str, found: Distribution, z: Any, given: Any) -> Any:
    """A method of values within the support; None where it is not known."""
    if method.endswith("pdf"):
        y = found.log(z, *given)
        return y if method == "logpdf" else e.exp(y)
    exact = {"logcdf": found.logcdf, "logsf": found.logsf}.get(method)
    if exact is not None:
        return exact(z, *given)
    known = found.cdf if method.endswith("cdf") else found.sf
    if known is None:
        return None
    y = known(z, *given)
    return e.log(y) if method.startswith("log") else y


def __dir__() -> list[str]:
    return __all__
