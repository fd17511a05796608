"""Special functions in NumPy's float64, in the steps of special.h: what
kernels are judged against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import factorial, pi, sqrt
from typing import Any

import numpy as np

from ge2.base.dtypes import FLOAT64
from ge2.ops import special_tables as t

Function = Callable[..., Any]
ROOT_HALF = sqrt(0.5)
BERNOULLI = (  # B(2 k) / (2 k)!
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000,
)  # fmt: skip


def in_float64(f: Function) -> Function:
    """The function of arrays of any float dtype, computed in float64, rounded once."""

    @wraps(f)
    def reference(*xs: Any, **params: Any) -> Any:
        dtype = np.asarray(xs[0]).dtype
        with np.errstate(all="ignore"):
            y = f(*(np.asarray(x).astype(FLOAT64) for x in xs), **params)
        return np.asarray(y).astype(dtype)[()]

    return reference


def polynomial(table: Sequence[float], x: Any) -> Any:
    y = np.full_like(x, table[-1])
    for c in reversed(table[:-1]):
        y = y * x + c
    return y


def square(x: Any) -> tuple[Any, Any]:
    """x * x in two parts."""
    high = np.float64(134217729.0) * x
    high = high - (high - x)
    low = x - high
    whole = x * x
    return whole, ((high * high - whole) + 2.0 * high * low) + low * low


# ------------------------------------------------------------------------------------------- errors


def erf_small(x: Any) -> Any:
    return x * polynomial(t.ERF, x * x)


def erfcx_positive(a: Any) -> Any:
    y = polynomial(t.ERFCX, (a - 4.0) / (a + 4.0)) / (1.0 + 2.0 * a)
    return np.where(a > 2.0**60, 1 / (sqrt(pi) * a), y)


def erfc_by(a: Any, whole: Any, low: Any) -> Any:
    power = np.exp(-whole)
    return (power - power * low) * erfcx_positive(a)


def erfc_far(size: Any) -> Any:
    a = np.minimum(size, 40.0)
    return erfc_by(a, *square(a))


def erf(x: Any) -> Any:
    a = abs(x)
    return np.copysign(np.where(a < 1.0, erf_small(a), 1.0 - erfc_far(a)), x)


def erfc(x: Any) -> Any:
    a = abs(x)
    y = np.where(a < 0.5, 1.0 - erf_small(a), erfc_far(a))
    return np.where(x < 0, 2.0 - y, y)


def erfcx(x: Any) -> Any:
    b = np.where(x < -30.0, 30.0, abs(x))
    whole, low = square(np.minimum(b, 30.0))
    power = 2.0 * np.exp(whole)
    left = np.where(np.isinf(power), power, (power + power * low) - erfcx_positive(b))
    return np.where(x < 0, left, erfcx_positive(b))


def ndtr(x: Any) -> Any:
    a = np.minimum(abs(x), 60.0)
    whole, low = square(a)
    beyond = 0.5 * erfc_by(a * ROOT_HALF, 0.5 * whole, 0.5 * low)
    near = 0.5 + 0.5 * erf_small(x * ROOT_HALF)
    return np.where(abs(x) < 0.7, near, np.where(x < 0, beyond, 1.0 - beyond))


def log_ndtr(x: Any) -> Any:
    low = np.log(0.5 * erfcx_positive(abs(x) * ROOT_HALF)) - 0.5 * x * x
    return np.where(x < -1.0, low, np.log1p(-ndtr(-x)))


def quantile_near(q: Any) -> Any:
    u = 0.180625 - q * q
    return polynomial(t.NORMAL_A, u) / polynomial(t.NORMAL_B, u)


def quantile_far(rest: Any) -> Any:
    r = np.sqrt(-np.log(rest))
    far = polynomial(t.NORMAL_C, r - 1.6) / polynomial(t.NORMAL_D, r - 1.6)
    farther = polynomial(t.NORMAL_E, r - 5.0) / polynomial(t.NORMAL_F, r - 5.0)
    return np.where(rest == 0, np.inf, np.where(r > 5.0, farther, far))


def ndtri(p: Any) -> Any:
    q = p - 0.5
    far = np.copysign(quantile_far(np.where(p < 0.5, p, 1.0 - p)), q)
    return np.where(abs(q) <= 0.425, q * quantile_near(q), far)


def erfinv(x: Any) -> Any:
    q = 0.5 * x
    far = np.copysign(ROOT_HALF * quantile_far(0.5 * (1.0 - abs(x))), x)
    return np.where(abs(q) <= 0.425, x * (quantile_near(q) * (0.5 * ROOT_HALF)), far)


# ------------------------------------------------------------------------------ odds and logarithms


def logistic(x: Any) -> Any:
    power = np.exp(-abs(x))
    return np.where(x < 0, power, 1.0) / (1.0 + power)


def logit(p: Any) -> Any:
    s = 2.0 * p - 1.0
    return np.where(abs(s) < 0.5, 2.0 * np.arctanh(s), np.log(p / (1.0 - p)))


def xlogy(x: Any, y: Any) -> Any:
    return np.where((x == 0) & (y == y), 0.0, x * np.log(y))


def xlog1py(x: Any, y: Any) -> Any:
    return np.where((x == 0) & (y == y), 0.0, x * np.log1p(y))


# -------------------------------------------------------------------------------------------- gamma


def gammaln_right(z: Any) -> Any:
    w = np.where(z < 8.0, z, 2.0)
    k = np.rint(w)
    factor = np.where(k > 1.5, 1.0, np.where(k > 0.5, w, w * (w + 1.0)))
    for i in range(1, 7):
        factor = np.where(k - 2.0 >= i, factor * (w - i), factor)
    step = np.log(abs(factor))
    near = (w - k) * polynomial(t.LGAMMA, w - k) + np.where(k > 1.5, step, -step)
    tail = polynomial(t.STIRLING, 1.0 / (z * z)) / z
    far = (z - 0.5) * (np.log(z) - 1.0) + (0.41893853320467274178 + tail)
    return np.where(z < 8.0, near, far)


def gammaln(x: Any) -> Any:
    a = abs(x)
    right = gammaln_right(np.where(x < -0.5, a, x))
    turn = abs(np.sin(pi * (a - np.rint(a))))
    left = np.where(turn == 0, np.inf, np.log(pi / (a * turn)) - right)
    return np.where(np.isinf(x), x, np.where(x < -0.5, left, right))


def digamma_right(z: Any) -> Any:
    w = np.where(z < 8.0, z, 1.5)
    n = np.where(w < 1.0, 0.0, np.floor(w) - 1.0)
    s, step = np.where(w < 1.0, w - 0.5, w - n - 1.5), np.where(w < 1.0, -1.0 / w, 0.0)
    for i in range(1, 7):
        step = np.where(n >= i, step + 1.0 / (w - i), step)
    near = ((s + t.DIGAMMA_ROOT[0]) + t.DIGAMMA_ROOT[1]) * polynomial(t.DIGAMMA, s) + step
    u = 1.0 / (z * z)
    return np.where(z < 8.0, near, np.log(z) - 0.5 / z - u * polynomial(t.DIGAMMA_FAR, u))


def digamma(x: Any) -> Any:
    f = x - np.rint(x)
    right = digamma_right(np.where(x < 0, 1.0 - x, x))
    left = np.where(f == 0, np.nan, right - pi / np.tan(pi * f))
    return np.where(x == 0, -1.0 / x, np.where(x < 0, left, right))


def polygamma(x: Any, n: int) -> Any:
    right = polygamma_right(np.where(x < 0, 1.0 - x, x), n)
    c = 1.0 / np.tan(pi * (x - np.rint(x)))
    left = -right - pi * polynomial(cotangents(n), c)
    return np.where(x < 0, left, right if n % 2 else -right)


def polygamma_right(z: Any, n: int) -> Any:
    """The sum of n! / (z + k)^(n + 1): by Euler and Maclaurin from where z + k is large."""
    total, y, enough = np.zeros_like(z), z, 16 + 2 * n
    for _ in range(enough):
        near = y < enough
        total = total + np.where(near, y ** (-n - 1.0), 0.0)
        y = np.where(near, y + 1.0, y)
    rest = factorial(n - 1) + 0.5 * factorial(n) / y
    for k, b in enumerate(BERNOULLI, 1):
        rest = rest + b * factorial(2 * k + n - 1) / y ** (2.0 * k)
    return factorial(n) * total + rest / y ** float(n)


def cotangents(n: int) -> list[float]:
    """Derivative n of cot(pi x) as a polynomial in cot(pi x)."""
    p = [0.0, 1.0]
    for _ in range(n):
        slope = [i * c for i, c in enumerate(p)][1:]
        squared = [0.0, 0.0, *slope]
        p = [-pi * (a + b) for a, b in zip([*slope, 0.0, 0.0], squared, strict=True)]
    return p


# ------------------------------------------------------------------------------------------- Bessel


def bessel_near(a: Any, n: int) -> Any:
    y = np.ones_like(a)
    for k in range(26, 0, -1):
        y = 1.0 + y * (0.25 * a * a) / (k * (k + n))
    return y / (2.0**n * factorial(n))


def bessel_far(a: Any, n: int) -> Any:
    """Times exp(-a)."""
    u = 16.0 / a - 1.0
    lower, y = polynomial(t.BESSEL_0, u), polynomial(t.BESSEL_1, u)
    for k in range(1, n):
        lower, y = y, lower - 2.0 * k / a * y
    return (y if n else lower) / (np.sqrt(a) * a**n)


def bessel(x: Any, n: int, scaled: bool) -> Any:
    a = abs(x) if scaled else np.minimum(abs(x), 2000.0)
    near, far = bessel_near(np.minimum(a, 8.0), n), bessel_far(np.maximum(a, 8.0), n)
    if scaled:
        return np.where(a < 8.0, near * np.exp(-a), far)
    half = np.exp(0.5 * a)
    return np.where(a < 8.0, near, far * half * half)
