"""Operations that act on one element at a time: a line each, in tables."""

from __future__ import annotations

import math
import operator
from typing import Any, final

import ml_dtypes
import numpy as np

from ge2.base.arrays import (
    BOOL,
    COMPLEX,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INEXACT,
    complex_of,
    real_part,
    short,
)
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Axes,
    Batched,
    Cotangents,
    Flags,
    Op,
    Value,
    Values,
)
from ge2.ir.graph import BRANCHING, DIVISION, FUNCTION, LOGARITHM, PERIODIC, POWER, ROOT, SIMPLE
from ge2.ops.pointlike import (
    Elementwise,
    Pointlike,
    Pointwise,
    binary,
    in_float32,
    kind,
    relation,
    scaled,
    sum_to,
    test,
    unary,
)


def first_wins(y: Value, a: Value, b: Value) -> Value:
    """The derivative of max or min by the first operand: 1 where it wins, 1/2 where both do."""
    won = a.same(y).select(y.ones(), y.zeros())
    return a.same(b).select(y.ones() * 0.5, won)


def second_wins(y: Value, a: Value, b: Value) -> Value:
    return first_wins(y, b, a)


def by_base(a: Value, b: Value) -> Value:
    """b a**(b - 1), and 0 for 0**0. Where b alone is 0 no guard may cut off the derivative by b."""
    both: Value = AND(a.same(0), b.same(0))
    return both.select(b.zeros(), b * POW(both.select(a.ones(), a), b - 1))


def by_exponent(y: Value, a: Value, b: Value) -> Value:
    """log(a) a**b, and 0 where a is 0.

    Where b is 1, too, its derivative by a is 1, that of `by_base` by b: second derivatives agree.
    """
    nothing = a.same(0)
    logarithm: Value = LOG(nothing.select(a.ones(), a))
    both: Value = AND(nothing, b.same(1))
    return nothing.select(b.zeros(), logarithm) * y + both.select(a, a.zeros())


def direction(y: Value, x: Value) -> Value:
    """x / y, and 0 where y, a length, is 0: as of an absolute value."""
    nothing = y.same(0)
    return nothing.select(x.zeros(), x / nothing.select(y.ones(), y))


def turn(x: Value, a: Value, b: Value) -> Value:
    """x / (a^2 + b^2) without the squares, which overflow and vanish; NaN where both are 0."""
    length: Value = HYPOT(a, b)
    return x / length / length


def below(x: Value, y: Value, other: Value, half: float) -> Value:
    """x - y for x <= y; where both are the same infinity 0, or `half` if that
    of the other operand is too.
    """
    same = other.same(x).select(y.ones() * half, y.zeros())
    return x.same(y).select(same, x - y)


def turned(y: Value, t: Value, x: Value) -> Value:
    """i y Im(t) / |x|: how the sign of a complex number turns; that of
    a real number does not change.
    """
    if x.dtype not in COMPLEX:
        return t.zeros()
    size: Value = ABS(x)
    by: Value = IMAG(t) / size.same(0.0).select(size.ones(), size)
    around: Value = COMPLEX_OF(by.zeros(), by)
    return y * around


# named by derivatives above their own line
AND: Elementwise
SQUARE: Elementwise
COS: Elementwise
COSH: Elementwise
EXPONENT: Elementwise
HYPOT: Elementwise
RECIPROCAL: Elementwise
POW: Elementwise
ABS: Elementwise
REAL_PART: Elementwise
IMAG: Elementwise
CONJ: Elementwise
COMPLEX_OF: Complex
LDEXP: Ldexp

# fmt: off
LN2, LN10 = math.log(2.0), math.log(10.0)
ALL_KINDS, NUMERIC, REAL = "bifc", "ifc", "bif"
STEP: dict[str, Any] = {"exact": True, "jumps": True}

NEG        = unary("neg", np.negative, NUMERIC, SIMPLE, "ge2_neg({0})",
                   lambda y, x: -1.0, python=operator.neg, linear=True, exact=True, dense=True)
POSITIVE   = unary("positive", np.positive, NUMERIC, SIMPLE, "{0}",
                   lambda y, x: 1.0, python=operator.pos, linear=True, exact=True)
SIGN       = unary("sign",  np.sign,    NUMERIC, SIMPLE,    "ge2_sign({0})",
                   None, **STEP, push=lambda t, y, x: turned(y, conj(y) * t, x),
                   pull=lambda ct, y, x: [turned(conj(y), y * ct, x)])
EXP        = unary("exp",   np.exp,     "fc",    FUNCTION,  "ge2_exp({0})",
                   lambda y, x: y, header="exp")
EXP2       = unary("exp2",  np.exp2,    "fc",    FUNCTION,  "ge2_exp2({0})",
                   lambda y, x: y * LN2, header="exp")
EXPM1      = unary("expm1", np.expm1,   "fc",    FUNCTION,  "ge2_expm1({0})",
                   lambda y, x: y + 1.0, header="exp")
LOG        = unary("log",   np.log,     "fc",    LOGARITHM, "ge2_log({0})",
                   lambda y, x: 1.0 / x, header="log")
LOG2       = unary("log2",  np.log2,    "fc",    LOGARITHM, "ge2_log2({0})",
                   lambda y, x: 1.0 / (x * LN2), header="log")
LOG10      = unary("log10", np.log10,   "fc",    LOGARITHM, "ge2_log10({0})",
                   lambda y, x: 1.0 / (x * LN10), header="log")
LOG1P      = unary("log1p", np.log1p,   "fc",    LOGARITHM, "ge2_log1p({0})",
                   lambda y, x: 1.0 / (x + 1.0), header="log")
SQRT       = unary("sqrt",  np.sqrt,    "fc",    ROOT,      "ge2_sqrt({0})",
                   lambda y, x: 0.5 / y, header="root", python=math.sqrt)
RSQRT      = unary("rsqrt", lambda x: 1 / np.sqrt(x), "fc", ROOT, "ge2_rsqrt({0})",
                   lambda y, x: y / x * -0.5, header="root",
                   numpy="sqrt({0}, out={y}); divide({one}, {y}, out={y})")
CBRT       = unary("cbrt",  np.cbrt,    "f",     FUNCTION,  "ge2_cbrt({0})",
                   lambda y, x: SQUARE(RECIPROCAL(y)) * (1 / 3), header="power")
SQUARE     = unary("square", np.square, NUMERIC, SIMPLE, "ge2_square({0})", lambda y, x: x * 2)
RECIPROCAL = unary("reciprocal", np.reciprocal, NUMERIC, DIVISION, "ge2_reciprocal({0})",
                   lambda y, x: -SQUARE(y))
SIN        = unary("sin",   np.sin,     "fc",    PERIODIC,  "ge2_sin({0})",
                   lambda y, x: COS(x), header="trig")
COS        = unary("cos",   np.cos,     "fc",    PERIODIC,  "ge2_cos({0})",
                   lambda y, x: -SIN(x), header="trig")
TAN        = unary("tan",   np.tan,     "fc",    PERIODIC,  "ge2_tan({0})",
                   lambda y, x: SQUARE(y) + 1.0, header="trig")
ASIN       = unary("asin",  np.arcsin,  "fc",    FUNCTION,  "ge2_asin({0})",
                   lambda y, x: RSQRT(1.0 - SQUARE(x)), header="trig")
ACOS       = unary("acos",  np.arccos,  "fc",    FUNCTION,  "ge2_acos({0})",
                   lambda y, x: -RSQRT(1.0 - SQUARE(x)), header="trig")
ATAN       = unary("atan",  np.arctan,  "fc",    FUNCTION,  "ge2_atan({0})",
                   lambda y, x: 1.0 / (SQUARE(x) + 1.0), header="trig")
SINH       = unary("sinh",  np.sinh,    "fc",    FUNCTION,  "ge2_sinh({0})",
                   lambda y, x: COSH(x), header="exp")
COSH       = unary("cosh",  np.cosh,    "fc",    FUNCTION,  "ge2_cosh({0})",
                   lambda y, x: SINH(x), header="exp")
TANH       = unary("tanh",  np.tanh,    "fc",    FUNCTION,  "ge2_tanh({0})",
                   lambda y, x: 1.0 - SQUARE(y), header="exp")
ASINH      = unary("asinh", np.arcsinh, "fc",    FUNCTION,  "ge2_asinh({0})",
                   lambda y, x: RSQRT(SQUARE(x) + 1.0), header="log")
ACOSH      = unary("acosh", np.arccosh, "fc",    FUNCTION,  "ge2_acosh({0})",
                   lambda y, x: RSQRT(x - 1.0) * RSQRT(x + 1.0), header="log")
ATANH      = unary("atanh", np.arctanh, "fc",    FUNCTION,  "ge2_atanh({0})",
                   lambda y, x: 1.0 / (1.0 - SQUARE(x)), header="log")
DEGREES    = unary("degrees", np.degrees, "f", SIMPLE, "ge2_degrees({0})",
                   lambda y, x: 180.0 / math.pi)
RADIANS    = unary("radians", np.radians, "f", SIMPLE, "ge2_radians({0})",
                   lambda y, x: math.pi / 180.0)
FLOOR      = unary("floor", np.floor,   REAL,    DIVISION,  "ge2_floor({0})", None, **STEP)
CEIL       = unary("ceil",  np.ceil,    REAL,    DIVISION,  "ge2_ceil({0})",  None, **STEP)
TRUNC      = unary("trunc", np.trunc,   REAL,    DIVISION,  "ge2_trunc({0})", None, **STEP)
RINT       = unary("rint",  np.rint,    "fc",    DIVISION,  "ge2_rint({0})",  None, **STEP)
SPACING    = unary("spacing", np.spacing, "f", BRANCHING, "ge2_spacing({0})",
                   None, through_float32=False)
NOT        = unary("not",   np.invert,  "bi",    SIMPLE,    "ge2_not({0})",
                   None, python=operator.invert)
MANTISSA   = unary("frexp_mantissa", lambda x: np.frexp(x)[0], "f", BRANCHING,
                   "ge2_frexp_mantissa({0})", lambda y, x: LDEXP(x.ones(), -EXPONENT(x)),
                   numpy="copyto({y}, frexp({0})[0])")
EXPONENT   = unary("frexp_exponent", lambda x: np.frexp(x)[1], "f", BRANCHING,
                   "ge2_frexp_exponent({0})", None, result=lambda d: np.dtype(np.int32),
                   numpy="copyto({y}, frexp({0})[1])")
BIT_COUNT  = unary("population_count", np.bitwise_count, "i", BRANCHING, "ge2_popcount({0})",
                   None, result=lambda d: np.dtype(np.uint8))

IS_FINITE = test("is_finite",   np.isfinite,    ALL_KINDS, "ge2_isfinite({0})", dense=True)
IS_INF    = test("is_inf",      np.isinf,       ALL_KINDS, "ge2_isinf({0})",    dense=True)
IS_NAN    = test("is_nan",      np.isnan,       ALL_KINDS, "ge2_isnan({0})",    dense=True)
SIGN_BIT  = test("sign_bit",    np.signbit,     "f",       "ge2_signbit({0})",  dense=True)
IS_ZERO   = test("logical_not", np.logical_not, ALL_KINDS, "!ge2_truth({0})")

EQ = relation("eq", np.equal,         ALL_KINDS, "{0} == {1}",       python=operator.eq)
NE = relation("ne", np.not_equal,     ALL_KINDS, "{0} != {1}",       python=operator.ne)
LT = relation("lt", np.less,          ALL_KINDS, "ge2_lt({0}, {1})", python=operator.lt)
LE = relation("le", np.less_equal,    ALL_KINDS, "ge2_le({0}, {1})", python=operator.le)
GT = relation("gt", np.greater,       ALL_KINDS, "ge2_lt({1}, {0})", python=operator.gt)
GE = relation("ge", np.greater_equal, ALL_KINDS, "ge2_le({1}, {0})", python=operator.ge)

ADD         = binary("add", np.add, ALL_KINDS, SIMPLE, "ge2_add({0}, {1})",
                     lambda y, a, b: 1.0, lambda y, a, b: 1.0, python=operator.add, linear=True)
SUB         = binary("sub",       np.subtract,     NUMERIC, SIMPLE,    "ge2_sub({0}, {1})",
                     lambda y, a, b: 1.0, lambda y, a, b: -1.0, python=operator.sub, linear=True)
MUL         = binary("mul", np.multiply, ALL_KINDS, SIMPLE, "ge2_mul({0}, {1})",
                     lambda y, a, b: b, lambda y, a, b: a, python=operator.mul)
DIV         = binary("div",       np.divide,       "fc",    DIVISION,  "ge2_div({0}, {1})",
                     lambda y, a, b: 1.0 / b, lambda y, a, b: -y / b, python=operator.truediv)
FLOOR_DIV   = binary("floor_div", np.floor_divide, "if",    BRANCHING, "ge2_floor_div({0}, {1})",
                     None, None, python=operator.floordiv, jumps=True)
REM         = binary("rem",       np.remainder,    "if",    BRANCHING, "ge2_rem({0}, {1})",
                     lambda y, a, b: 1.0, lambda y, a, b: -FLOOR_DIV(a, b), python=operator.mod,
                     jumps=True)
FMOD        = binary("fmod",      np.fmod,         "if",    BRANCHING, "ge2_fmod({0}, {1})",
                     lambda y, a, b: 1.0, lambda y, a, b: -TRUNC(a / b), jumps=True)
POW         = binary("pow",       np.power,        NUMERIC, POWER,     "ge2_pow({0}, {1})",
                     lambda y, a, b: by_base(a, b), lambda y, a, b: by_exponent(y, a, b),
                     header="power", python=operator.pow)
MAX         = binary("max", np.maximum, ALL_KINDS, SIMPLE, "ge2_max({0}, {1})",
                     first_wins, second_wins, exact=True)
MIN         = binary("min", np.minimum, ALL_KINDS, SIMPLE, "ge2_min({0}, {1})",
                     first_wins, second_wins, exact=True)
FMAX        = binary("fmax", np.fmax, ALL_KINDS, SIMPLE, "ge2_fmax({0}, {1})",
                     first_wins, second_wins, exact=True)
FMIN        = binary("fmin", np.fmin, ALL_KINDS, SIMPLE, "ge2_fmin({0}, {1})",
                     first_wins, second_wins, exact=True)
ATAN2       = binary("atan2",     np.arctan2,      "f",     FUNCTION,  "ge2_atan2({0}, {1})",
                     lambda y, a, b: turn(b, a, b), lambda y, a, b: -turn(a, a, b), header="trig")
HYPOT       = binary("hypot",     np.hypot,        "f",     FUNCTION,  "ge2_hypot({0}, {1})",
                     lambda y, a, b: direction(y, a), lambda y, a, b: direction(y, b), header="power")
LOGADDEXP   = binary("logaddexp", np.logaddexp,    "f",     FUNCTION,  "ge2_logaddexp({0}, {1})",
                     lambda y, a, b: EXP(below(a, y, b, -LN2)),
                     lambda y, a, b: EXP(below(b, y, a, -LN2)), header="exp")
LOGADDEXP2  = binary("logaddexp2", np.logaddexp2, "f", FUNCTION, "ge2_logaddexp2({0}, {1})",
                     lambda y, a, b: EXP2(below(a, y, b, -1.0)),
                     lambda y, a, b: EXP2(below(b, y, a, -1.0)), header="exp")
COPYSIGN    = binary("copysign",  np.copysign,     "f",     SIMPLE,    "ge2_copysign({0}, {1})",
                     lambda y, a, b: SIGN_BIT(a).same(SIGN_BIT(b)).select(y.ones(), -y.ones()),
                     None, exact=True)
NEXTAFTER   = binary("nextafter", np.nextafter,    "f",     BRANCHING, "ge2_nextafter({0}, {1})",
                     lambda y, a, b: 1.0, None, through_float32=False)
HEAVISIDE   = binary("heaviside", np.heaviside,    "f",     BRANCHING, "ge2_heaviside({0}, {1})",
                     None, lambda y, a, b: a.same(0.0).select(b.ones(), b.zeros()))
GCD         = binary("gcd",       np.gcd,          "i",     BRANCHING, "ge2_gcd({0}, {1})",
                     None, None)
LCM         = binary("lcm",       np.lcm,          "i",     BRANCHING, "ge2_lcm({0}, {1})",
                     None, None)
AND         = binary("and",       np.bitwise_and,  "bi",    SIMPLE,    "{0} & {1}",
                     None, None, python=operator.and_)
OR          = binary("or",        np.bitwise_or,   "bi",    SIMPLE,    "{0} | {1}",
                     None, None, python=operator.or_)
XOR         = binary("xor",       np.bitwise_xor,  "bi",    SIMPLE,    "{0} ^ {1}",
                     None, None, python=operator.xor)
SHIFT_LEFT  = binary("shift_left", np.left_shift, "i", BRANCHING, "ge2_shift_left({0}, {1})",
                     None, None, python=operator.lshift)
SHIFT_RIGHT = binary("shift_right", np.right_shift, "i", BRANCHING, "ge2_shift_right({0}, {1})",
                     None, None, python=operator.rshift)

# Not holomorphic: JAX's convention, in which the cotangent of z = a + bi is da - i db.
ABS       = unary("abs",  np.absolute,  ALL_KINDS, SIMPLE, "ge2_abs({0})",
                  lambda y, x: SIGN(x), result=real_part, python=operator.abs, exact=True,
                  push=lambda t, y, x: real(t * conj(SIGN(x))),
                  pull=lambda ct, y, x: [ct.cast(x.dtype) * conj(SIGN(x))])
REAL_PART = unary("real", np.real,      "c",       SIMPLE, "ge2_real({0})",
                  None, result=real_part, numpy="copyto({y}, {0}.real)", linear=True,
                  push=lambda t, y, x: REAL_PART(t), pull=lambda ct, y, x: [ct.cast(x.dtype)])
IMAG      = unary("imag", np.imag,      "c",       SIMPLE, "ge2_imag({0})",
                  None, result=real_part, numpy="copyto({y}, {0}.imag)", linear=True,
                  push=lambda t, y, x: IMAG(t), pull=lambda ct, y, x: [COMPLEX_OF(ct.zeros(), -ct)])
CONJ      = unary("conj", np.conjugate, "c",       SIMPLE, "ge2_conj({0})",
                  None, linear=True, push=lambda t, y, x: CONJ(t), pull=lambda ct, y, x: [CONJ(ct)])
# fmt: on


def _complex(a: Any, b: Any) -> Any:
    y = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), complex_of(np.asarray(a).dtype))
    y.real, y.imag = a, b
    return y


@final
@record
class Complex(Pointlike):
    """The complex number with those real and imaginary parts, float32 or float64."""

    name = "complex"
    cost = SIMPLE
    linear = True
    lowering = Pointwise("ge2_complex({0}, {1})", numpy="{y}.real = {0}; {y}.imag = {1}")
    reference = staticmethod(_complex)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if (
            len(types) != 2
            or types[0].dtype != types[1].dtype
            or short(types[0].dtype) not in ("f32", "f64")
        ):
            listed = ", ".join(map(str, types))
            raise TypeRuleError(f"complex takes two arrays of float32 or float64; got {listed}")
        return (
            ArrayType(self.shape_of(types), complex_of(types[0].dtype), all(t.weak for t in types)),
        )

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,) = cts
        return [sum_to(REAL_PART(ct), xs[0].shape), sum_to(-IMAG(ct), xs[1].shape)]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        y = ys[0]
        zero = REAL_PART(y).zeros()
        a, b = (zero if t is None else t.spread(y.shape, ()) if t.ndim < y.ndim else t for t in ts)
        return [COMPLEX_OF(a, b)]


COMPLEX_OF = Complex()


def real(x: Value) -> Value:
    return REAL_PART(x) if x.dtype in COMPLEX else x


def conj(x: Value) -> Value:
    return CONJ(x) if x.dtype in COMPLEX else x


@final
@record
class Where(Pointlike):
    """Elements of the second where the mask holds, of the third elsewhere."""

    name = "where"
    cost = SIMPLE
    linear = exact = True
    lowering = Pointwise("{0} ? {1} : {2}")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if len(types) != 3 or types[0].dtype != BOOL or types[1].dtype != types[2].dtype:
            what = f"where takes a bool mask and two arrays of one dtype; got {', '.join(map(str, types))}"
            raise TypeRuleError(what, fix="np.where, which promotes")
        return (ArrayType(self.shape_of(types), types[1].dtype, all(t.weak for t in types)),)

    def reference(self, *arrays: Any) -> Any:
        return np.where(*arrays)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (mask, a, b) = cts, xs
        assert ct is not None
        zero = ct.zeros()
        ct_a = sum_to(mask.select(ct, zero), a.shape) if wanted[1] else None
        return [None, ct_a, sum_to(mask.select(zero, ct), b.shape) if wanted[2] else None]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        y = ys[0]
        a, b = (
            y.zeros() if t is None else t.spread(y.shape, ()) if t.ndim < y.ndim else t
            for t in ts[1:]
        )
        return [xs[0].select(a, b)]


WHERE = Where()


@final
@record
class ConvertElementType(Pointlike):
    """The same numbers in another dtype; a weak result is a Python number."""

    dtype: np.dtype
    weak: bool = False
    name = "convert_element_type"
    cost = SIMPLE
    lowering = Pointwise("ge2_cast({0})")
    linear = retypes = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if self.weak and x.shape:
            raise TypeRuleError(f"only a scalar can become a Python number; got {x}")
        return (ArrayType(x.shape, self.dtype, self.weak),)

    def reference(self, *arrays: Any) -> Any:
        x = np.asarray(arrays[0]) if not hasattr(arrays[0], "dtype") else arrays[0]
        if x.dtype in COMPLEX and self.dtype not in COMPLEX and self.dtype != BOOL:
            x = x.real
        y = x.astype(self.dtype)
        return y.item() if self.weak else y

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (x,) = cts, xs
        assert ct is not None
        if x.dtype not in INEXACT or self.dtype not in INEXACT:
            return [None]
        return [(ct if x.dtype in COMPLEX else real(ct)).cast(x.dtype, x.type.weak)]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        return [
            None
            if self.dtype not in INEXACT or ts[0] is None
            else ts[0].cast(self.dtype, self.weak)
        ]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return (xs[0].cast(self.dtype),), axes  # a batch of Python numbers is an array


def multiplied(x: Any, n: int) -> Any:
    """x**n by squaring."""
    if n < 0:
        return np.reciprocal(multiplied(x, -n))
    y = None
    while n:
        if n % 2:
            y = x if y is None else y * x
        n //= 2
        x = x * x if n else x
    return np.ones_like(x) if y is None else y


@final
@record
class IntegerPow(Pointlike):
    """A power with an exponent known beforehand, by repeated multiplication."""

    y: int
    name = "integer_pow"
    cost = DIVISION

    @property
    def lowering(self) -> Pointwise:  # type: ignore[override]
        return Pointwise(f"ge2_integer_pow<{self.y}>({{0}})")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if kind(x.dtype) not in ("fc" if self.y < 0 else NUMERIC):
            raise TypeRuleError(f"integer_pow[y={self.y}] of {x}", fix="np.power, which promotes")
        return (x,)

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        if getattr(x, "dtype", None) == FLOAT16:  # rounded once, as NumPy does
            return multiplied(x.astype(FLOAT32), self.y).astype(FLOAT16)
        return in_float32(lambda x: multiplied(x, self.y))(x)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return self.jvp(cts, ys, xs)

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        (t,), (x,) = ts, xs
        if self.y == 0:
            return [None]
        return [
            scaled(
                t,
                1 if self.y == 1 else x * 2 if self.y == 2 else IntegerPow(self.y - 1)(x) * self.y,
            )
        ]


@final
@record
class Ldexp(Pointlike):
    """x * 2**n for integer n."""

    name = "ldexp"
    lowering = Pointwise("ge2_ldexp({0}, {1})", numpy="ldexp({0}, {1}, out={y})")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if len(types) != 2 or kind(types[0].dtype) != "f" or kind(types[1].dtype) != "i":
            raise TypeRuleError(
                f"ldexp takes a float and an integer array; got {', '.join(map(str, types))}"
            )
        return (ArrayType(self.shape_of(types), types[0].dtype, all(t.weak for t in types)),)

    def reference(self, *arrays: Any) -> Any:
        x, n = arrays
        return in_float32(lambda x: np.ldexp(x, n))(x)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [sum_to(LDEXP(cts[0], xs[1]), xs[0].shape), None]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        return [None if ts[0] is None else LDEXP(ts[0], xs[1])]


LDEXP = Ldexp()


@final
@record
class MultiplyAdd(Pointlike):
    """a * b + c, rounded once: as a sum takes in a product."""

    name = "multiply_add"
    cost = SIMPLE
    lowering = Pointwise("ge2_fma({0}, {1}, {2})")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if len({t.dtype for t in types}) != 1 or types[0].dtype not in (FLOAT32, FLOAT64):
            raise TypeRuleError(f"multiply_add of {', '.join(map(str, types))}")
        return (types[0].with_shape(self.shape_of(types)),)

    def reference(self, *arrays: Any) -> Any:
        a, b, c = (np.asarray(x, np.longdouble) for x in arrays)
        return (a * b + c).astype(arrays[0].dtype)


ELEMENTWISE = tuple(op for op in list(globals().values()) if isinstance(op, Elementwise))
BY_NAME: dict[str, Op] = {op.name: op for op in (*ELEMENTWISE, COMPLEX_OF, WHERE, LDEXP)}
_ = ml_dtypes  # registers the casts of half types with NumPy
