"""Special functions, each on one element at a time: of the normal
distribution, of gamma, of Bessel.

SciPy names them; none is needed to run them. `polygamma` and `bessel` are families whose members
are one another's derivatives, so that derivatives of any order are as exact as the functions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any, final

import ml_dtypes

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Cotangents, Flags, Value, Values
from ge2.ir.graph import FUNCTION
from ge2.ops.elementwise import AND, ELEMENTWISE, EXP, GT, LOG, LOG1P, RECIPROCAL, SIGN, SQUARE
from ge2.ops.pointlike import Elementwise, Pointlike, Pointwise, binary, kind, scaled, unary

LARGE, TERMS = 16.0, 8  # from where on a series of so many terms is erfcx's derivative
MOST = 14  # the highest derivative of digamma that the headers have
ERFCX: Elementwise
DIGAMMA: Elementwise


def computed(name: str) -> Callable[..., Any]:
    """A function of `special_reference`, which is imported when one is called."""

    def reference(*xs: Any, **params: Any) -> Any:
        from ge2.ops import special_reference as ref

        return ref.in_float64(getattr(ref, name))(*xs, **params)

    return reference


def density(x: Value) -> Value:
    """Of the normal distribution."""
    return EXP(SQUARE(x) * -0.5) * (1 / sqrt(2 * pi))  # type: ignore[no-any-return]


def slope_of_erfcx(y: Value, x: Value) -> Value:
    """2 x y - 2 / sqrt(pi), whose terms cancel where x is large: there its asymptotic series."""
    large: Value = GT(x, x.ones() * LARGE)
    far = large.select(x, x.ones() * LARGE)
    u: Value = RECIPROCAL(SQUARE(far))
    series = u.ones()
    for k in range(TERMS, 0, -1):
        series = 1.0 - u * series * (k + 0.5)
    return large.select(u * series * (-1 / sqrt(pi)), x * y * 2.0 - 2 / sqrt(pi))


def hazard(y: Value, x: Value) -> Value:
    """density(x) / ndtr(x), by y, the logarithm of ndtr(x), where that is near 0."""
    right: Value = GT(x, x.zeros())
    left: Value = sqrt(2 / pi) / ERFCX(right.select(x.zeros(), x) * -sqrt(0.5))
    return right.select(EXP(SQUARE(x) * -0.5 - y) * (1 / sqrt(2 * pi)), left)


def quotient(a: Value, b: Value) -> Value:
    """a / b, and 0 where both are 0. Where a alone is 0 no guard may cut off the derivative by a."""
    nothing: Value = AND(a.same(0), b.same(0))
    least = float(ml_dtypes.finfo(b.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    return a / nothing.select(b.ones() * least, b)


# fmt: off
ERF      = unary("erf",      computed("erf"),      "f", FUNCTION, "ge2_erf({0})",
                 lambda y, x: EXP(-SQUARE(x)) * (2 / sqrt(pi)), header="erf")
ERFC     = unary("erfc",     computed("erfc"),     "f", FUNCTION, "ge2_erfc({0})",
                 lambda y, x: EXP(-SQUARE(x)) * (-2 / sqrt(pi)), header="erf")
ERFCX    = unary("erfcx",    computed("erfcx"),    "f", FUNCTION, "ge2_erfcx({0})",
                 lambda y, x: slope_of_erfcx(y, x), header="special")
ERFINV   = unary("erfinv",   computed("erfinv"),   "f", FUNCTION, "ge2_erfinv({0})",
                 lambda y, x: EXP(SQUARE(y)) * (sqrt(pi) / 2), header="special")
NDTR     = unary("ndtr",     computed("ndtr"),     "f", FUNCTION, "ge2_ndtr({0})",
                 lambda y, x: density(x), header="special")
NDTRI    = unary("ndtri",    computed("ndtri"),    "f", FUNCTION, "ge2_ndtri({0})",
                 lambda y, x: EXP(SQUARE(y) * 0.5) * sqrt(2 * pi), header="special")
LOG_NDTR = unary("log_ndtr", computed("log_ndtr"), "f", FUNCTION, "ge2_log_ndtr({0})",
                 lambda y, x: hazard(y, x), header="special")
LOGISTIC = unary("logistic", computed("logistic"), "f", FUNCTION, "ge2_logistic({0})",
                 lambda y, x: y * (1.0 - y), header="special")
LOGIT    = unary("logit",    computed("logit"),    "f", FUNCTION, "ge2_logit({0})",
                 lambda y, x: 1.0 / x + 1.0 / (1.0 - x), header="special")
GAMMALN  = unary("gammaln",  computed("gammaln"),  "f", FUNCTION, "ge2_gammaln({0})",
                 lambda y, x: DIGAMMA(x), header="special")
DIGAMMA  = unary("digamma",  computed("digamma"),  "f", FUNCTION, "ge2_digamma({0})",
                 lambda y, x: Polygamma(1)(x), header="special")
XLOGY   = binary("xlogy",   computed("xlogy"),   "f", FUNCTION, "ge2_xlogy({0}, {1})",
                 lambda y, a, b: LOG(b), lambda y, a, b: quotient(a, b), header="special")
XLOG1PY = binary("xlog1py", computed("xlog1py"), "f", FUNCTION, "ge2_xlog1py({0}, {1})",
                 lambda y, a, b: LOG1P(b), lambda y, a, b: quotient(a, b + 1.0), header="special")
# fmt: on


class Family(Pointlike):
    """A function of one real number with a parameter, of which
    derivatives are others of its family.
    """

    __slots__ = ()
    cost = FUNCTION

    @abstractmethod
    def slope(self, y: Value, x: Value) -> Value:
        """dy/dx."""

    def float_type(self, types: Sequence[ArrayType]) -> tuple[ArrayType, ...]:
        (x,) = types
        if kind(x.dtype) != "f":
            raise TypeRuleError(f"{self.name} takes float arrays; got {x}", fix="x.astype(float)")
        return (x,)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [scaled(cts[0], self.slope(ys[0], xs[0]))]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        return [scaled(ts[0], self.slope(ys[0], xs[0]))]


@final
@record
class Polygamma(Family):
    """Derivative n of digamma, n from 1 to 14."""

    n: int
    name = "polygamma"

    @property
    def lowering(self) -> Pointwise:  # type: ignore[override]
        return Pointwise(f"ge2_polygamma<{self.n}>({{0}})", header="special")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if not 1 <= self.n <= MOST:
            what = f"polygamma of order {self.n}"
            raise TypeRuleError(what, fix=f"an order from 1 to {MOST}, or digamma")
        return self.float_type(types)

    def reference(self, *arrays: Any) -> Any:
        return computed("polygamma")(*arrays, n=self.n)

    def slope(self, y: Value, x: Value) -> Value:
        return Polygamma(self.n + 1)(x)  # type: ignore[no-any-return]


@final
@record
class Bessel(Family):
    """I(n, x) / x^n, of the modified Bessel function, times exp(-|x|) if
    `scaled`: an even function.

    Its derivative is x times that of n + 1, so there is none that must be guarded at 0.
    """

    n: int
    scaled: bool = False
    name = "bessel"

    @property
    def lowering(self) -> Pointwise:  # type: ignore[override]
        name = "ge2_bessel_scaled" if self.scaled else "ge2_bessel"
        return Pointwise(f"{name}<{self.n}>({{0}})", header="special")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.float_type(types)

    def reference(self, *arrays: Any) -> Any:
        return computed("bessel")(*arrays, n=self.n, scaled=self.scaled)

    def slope(self, y: Value, x: Value) -> Value:
        rise: Value = x * Bessel(self.n + 1, self.scaled)(x)
        if not self.scaled:
            return rise
        sign: Value = SIGN(x)
        return rise - y * sign


SPECIAL = tuple(
    op for op in list(globals().values()) if isinstance(op, Elementwise) and op not in ELEMENTWISE
)
