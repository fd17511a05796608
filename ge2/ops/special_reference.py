"""Special functions in NumPy's float64, in the steps of special_functions.h: what
kernels are judged against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import factorial, pi, sqrt
from typing import Any

import numpy as np

from ge2.base.arrays import FLOAT64

# ---------------------------------------------------------------------------------- special tables
# Coefficients of the special functions, the constant first: what
# special_series.h has in hex.
#
# ERF to BESSEL_1 interpolate at Chebyshev's points, in 60 digits; NORMAL_* are those of M. Wichura,
# Algorithm AS 241: The percentage points of the normal distribution (1988).


# fmt: off
ERF = (
    1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
    0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05,
    1.6461000484121368e-06, -1.6350312701054695e-07, 1.4659775274047436e-08,
    -1.1372848856791674e-09, 5.957176147748911e-11,
)
ERFCX = (
    1.2329951186255526, -0.1396211168405625, 0.01537965210261959, 0.0680970542546913,
    -0.1010390660362999, 0.0937328349984105, -0.06633036581219905, 0.03716751553632399,
    -0.01619773405968329, 0.0050319699895242515, -0.000757773262030915, -0.00019925676026410458,
    0.00015062149237837335, -2.43989944557621e-05, -1.1221292615314274e-05, 5.709314113532492e-06,
    2.9198219084548256e-07, -8.25078338681245e-07, 7.74606863568198e-08, 1.1025271999000152e-07,
    -2.05545313698593e-08, -1.4806988146925795e-08, 3.1672611119361695e-09, 1.825695118953907e-09,
    -2.655726616312575e-10, -1.4311318470928162e-10,
)
LGAMMA = (
    0.42278433509846713, 0.3224670334241132, -0.06735230105319814, 0.02058080842778457,
    -0.0073855510286681535, 0.002890510330738737, -0.0011927539120010226, 0.0005096695248853096,
    -0.00022315475074520367, 9.945750909889392e-05, -4.4926351103833334e-05, 2.050726741605779e-05,
    -9.438458716242811e-06, 4.374374916915131e-06, -2.0449201467015115e-06, 9.578663334114758e-07,
    -4.303558760359961e-07, 2.0304806751615227e-07, -1.3412819758517287e-07, 6.379047507619774e-08,
)
STIRLING = (
    0.08333333333333333, -0.002777777777773988, 0.0007936507897524059, -0.0005952365845057049,
    0.0008414700852503147, -0.001890382993887715, 0.005065905360156132,
)
DIGAMMA = (
    0.9510558760318328, -0.4236274212814606, 0.24054248424078697, -0.14840492305388092,
    0.09498872445289039, -0.06192213327548831, 0.040760833940846085, -0.026975796659787055,
    0.017907248317313294, -0.011908220105959716, 0.007927021796868154, -0.005279937255532708,
    0.003518106563802472, -0.0023454947397380833, 0.0015633696313653504, -0.0010364584817312839,
    0.0006909255761282986, -0.00048595039220036254, 0.00032395945401345196, -0.00014480643368061614,
    9.653646261410062e-05, -0.0001782188548855923, 0.00011881232908510335,
)
DIGAMMA_FAR = (
    0.08333333333333333, -0.008333333333331664, 0.003968253965999701, -0.004166665501516725,
    0.007575459920369176, -0.02105106090804774, 0.08002337465397756, -0.299425370626735,
)
BESSEL_0 = (
    0.4021765094450081, 0.0033605519836678844, 0.00013621607439240856, 1.1143033788559087e-05,
    1.4838475391383468e-06, 2.9735993216471474e-07, 8.872278303607728e-08, 3.9324793517123454e-08,
    2.1541699603632043e-08, 7.563107589679047e-09, -6.7023325619894366e-09, -1.3450608319883882e-08,
    -5.6022211783247e-09, 7.687473295440412e-09, 8.006764881281122e-09, -3.799241020140616e-09,
    -7.1046429701883025e-09, 1.9518431205146255e-09, 5.2159872385826355e-09, -9.961827005971165e-10,
    -3.0791787996480336e-09, 4.1991218209463363e-10, 1.3291938884143105e-09,
    -1.1746991110551324e-10, -3.6353603909526465e-10, 1.556423962829591e-11, 4.655655751294525e-11,
)
BESSEL_1 = (
    0.38939845902587233, -0.009749577193235758, -0.00021923576383438729, -1.5038547198351201e-05,
    -1.8349101048965518e-06, -3.483856445811428e-07, -1.000134929730233e-07, -4.312819645562664e-08,
    -2.336697227282623e-08, -8.435630024967513e-09, 6.687257309165881e-09, 1.4073201407347145e-08,
    6.180080050252965e-09, -7.768471997806944e-09, -8.488549054437278e-09, 3.7003762012994875e-09,
    7.441519822394391e-09, -1.842354234931444e-09, -5.438072168110142e-09, 9.265252428334351e-10,
    3.2055586346236238e-09, -3.8986710944632543e-10, -1.3834389708637022e-09,
    1.0940884042721056e-10, 3.784510012514866e-10, -1.4553819054184817e-11, -4.848238653363404e-11,
)
NORMAL_A = (
    3.3871328727963665, 133.14166789178438, 1971.5909503065513, 13731.69376550946,
    45921.95393154987, 67265.7709270087, 33430.57558358813, 2509.0809287301227,
)
NORMAL_B = (
    1.0, 42.31333070160091, 687.1870074920579, 5394.196021424751, 21213.794301586597,
    39307.89580009271, 28729.085735721943, 5226.495278852854,
)
NORMAL_C = (
    1.4234371107496835, 4.630337846156546, 5.769497221460691, 3.6478483247632045,
    1.2704582524523684, 0.2417807251774506, 0.022723844989269184, 0.0007745450142783414,
)
NORMAL_D = (
    1.0, 2.053191626637759, 1.6763848301838038, 0.6897673349851, 0.14810397642748008,
    0.015198666563616457, 0.0005475938084995345, 1.0507500716444169e-09,
)
NORMAL_E = (
    6.657904643501103, 5.463784911164114, 1.7848265399172913, 0.29656057182850487,
    0.026532189526576124, 0.0012426609473880784, 2.7115555687434876e-05, 2.0103343992922881e-07,
)
NORMAL_F = (
    1.0, 0.599832206555888, 0.1369298809227358, 0.014875361290850615, 0.0007868691311456133,
    1.8463183175100548e-05, 1.421511758316446e-07, 2.0442631033899397e-15,
)
DIGAMMA_ROOT = (0.03836785503163766, 1.6445603550442201e-18)  # 3/2 less the root, in two parts
# fmt: on


# ------------------------------------------------------------------------------- special reference


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
    return x * polynomial(ERF, x * x)


def erfcx_positive(a: Any) -> Any:
    y = polynomial(ERFCX, (a - 4.0) / (a + 4.0)) / (1.0 + 2.0 * a)
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
    return polynomial(NORMAL_A, u) / polynomial(NORMAL_B, u)


def quantile_far(rest: Any) -> Any:
    r = np.sqrt(-np.log(rest))
    far = polynomial(NORMAL_C, r - 1.6) / polynomial(NORMAL_D, r - 1.6)
    farther = polynomial(NORMAL_E, r - 5.0) / polynomial(NORMAL_F, r - 5.0)
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
    near = (w - k) * polynomial(LGAMMA, w - k) + np.where(k > 1.5, step, -step)
    tail = polynomial(STIRLING, 1.0 / (z * z)) / z
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
    near = ((s + DIGAMMA_ROOT[0]) + DIGAMMA_ROOT[1]) * polynomial(DIGAMMA, s) + step
    u = 1.0 / (z * z)
    return np.where(z < 8.0, near, np.log(z) - 0.5 / z - u * polynomial(DIGAMMA_FAR, u))


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
    lower, y = polynomial(BESSEL_0, u), polynomial(BESSEL_1, u)
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
