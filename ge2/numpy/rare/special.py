"""Special functions under the names that `scipy.special` gives them; SciPy need not be there.

Integers are computed in float64. float16, bfloat16 and fp8 keep their dtype, where SciPy goes to
float64. Errors, in units of the last place: docs/design/special.md.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT64, FLOATS
from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.ir import is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy import reductions
from ge2.numpy.composite import where
from ge2.numpy.promotion import Axes, array, broadcast, cast, common_dtype, common_shape, lift
from ge2.ops import special as ops

__all__ = [
    "digamma",
    "entr", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "expit", "gamma", "gammaln", "i0", "i0e",
    "i1", "i1e", "log_expit", "log_ndtr", "log_softmax", "logit", "logsumexp", "ndtr", "ndtri",
    "polygamma", "psi", "softmax", "xlog1py", "xlogy", "zeta",
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
        xs = [lift(x), lift(y)]
        dtype, shape = common_dtype(xs), common_shape(name, xs)
        return op(*[broadcast(floating(cast(z, dtype), name), shape) for z in xs])

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}, as `scipy.special.{name}`."
    return function


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
    y = ops.Bessel(1, scaled=True)(x)
    return e.multiply(where(e.isinf(x), e.sign(x), x), y)


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
    odd = e.logical_and(e.less(x, 0), e.not_equal(e.mod(e.floor(x), 2), 0))
    pole = e.logical_and(e.less(x, 0), e.equal(x, e.floor(x)))
    size = e.copysign(e.exp(gammaln(x)), where(e.equal(x, 0), x, 1.0))
    return where(pole, np.nan, where(odd, e.negative(size), size))


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


# ------------------------------------------------------------------------------------ of whole axes


def logsumexp(
    a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """log(sum(b * exp(a))) without overflow, as `scipy.special.logsumexp`."""
    if return_sign:
        raise InputError(
            "logsumexp: return_sign= is not supported", where=here(), fix="np.exp, np.sum"
        )
    return reductions.logsumexp(a, axis, b, keepdims)


def softmax(x: Any, axis: Axes = None) -> Any:
    """exp(x) by their sum, as `scipy.special.softmax`: over all axes by default."""
    x = floating(x, "softmax")
    y = e.exp(e.subtract(x, reductions.max(x, axis, keepdims=True)))
    return e.divide(y, reductions.sum(y, axis, keepdims=True))


def log_softmax(x: Any, axis: Axes = None) -> Any:
    """The logarithm of `softmax`, as `scipy.special.log_softmax`."""
    x = floating(x, "log_softmax")
    return e.subtract(x, reductions.logsumexp(x, axis, keepdims=True))


# ---------------------------------------------------------------------------- SciPy's distributions

# of z, standardised, and of scale: scipy.stats takes real arrays alone
FORMULAS = {
    ("norm", "pdf"): "np.exp(-{z}**2 / 2) / (2 * np.pi)**0.5{by_scale}",
    ("norm", "logpdf"): "-{z}**2 / 2 - 0.9189385332046727{less_scale}",
    ("norm", "cdf"): "scipy.special.ndtr({z})",
    ("norm", "logcdf"): "scipy.special.log_ndtr({z})",
    ("norm", "sf"): "scipy.special.ndtr(-{z})",
    ("norm", "logsf"): "scipy.special.log_ndtr(-{z})",
    ("norm", "ppf"): "{loc}scipy.special.ndtri({x})",
    ("expon", "pdf"): "np.where({z} < 0, 0, np.exp(-{z}){by_scale})",
    ("expon", "logpdf"): "np.where({z} < 0, -np.inf, -{z}{less_scale})",
    ("expon", "cdf"): "-np.expm1(-np.maximum({z}, 0))",
}


def formula_of(distribution: Any, name: str, x: str, loc: str = "", scale: str = "") -> str:
    """The formula of a method of one of SciPy's distributions, as text; "" where none is known.

    >>> from types import SimpleNamespace
    >>> formula_of(SimpleNamespace(name="norm"), "cdf", "x", "m")
    'scipy.special.ndtr((x - m))'
    """
    found = FORMULAS.get((distribution.name, name), "")
    z = f"({x} - {loc})" if loc else x if x.isidentifier() else f"({x})"
    return found.format(
        x=x,
        z=f"({z} / {scale})" if scale else z,
        by_scale=f" / {scale}" if scale else "",
        less_scale=f" - np.log({scale})" if scale else "",
        loc=(f"{loc} + " if loc else "") + (f"{scale} * " if scale else ""),
    )


# ----------------------------------------------------------------------------------- SciPy's ufuncs


def is_scipys(ufunc: np.ufunc) -> bool:
    """True if it is what its name stands for in `scipy.special`, if that is imported."""
    return getattr(sys.modules.get("scipy.special"), ufunc.__name__, None) is ufunc


def full_name(ufunc: np.ufunc) -> str:
    """The name of a ufunc and of the library that it is of."""
    name = ufunc.__name__
    if is_scipys(ufunc) or is_inner(ufunc):
        # some are called by a function with the name that users write
        return f"scipy.special.{name.removeprefix('_').removeprefix('riemann_')}"
    return f"numpy.{name}"


def is_inner(ufunc: np.ufunc) -> bool:
    """True if it is one of those that functions of `scipy.special` call."""
    return getattr(sys.modules.get("scipy.special._ufuncs"), ufunc.__name__, None) is ufunc


def of_scipy(ufunc: np.ufunc) -> Function | None:
    """Our function for a ufunc of SciPy, known by being what its name stands
    for there; None for others.
    """
    name = ufunc.__name__.removeprefix("_") if is_inner(ufunc) else ufunc.__name__
    if name not in __all__ or not (is_scipys(ufunc) or is_inner(ufunc)):
        return None
    found: Function = globals()[name]
    e.UFUNCS[ufunc] = found
    return found


def __dir__() -> list[str]:
    return __all__
