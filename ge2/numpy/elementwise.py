"""Every ufunc of NumPy, as a line of the tables at the end, and the
functions that are made of them.

Each line has two callables: the operator, under which Python numbers stay weak, and the public
function, whose results are strong, as NumPy's are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.arrays import (
    BOOL,
    COMPLEX,
    FLOAT64,
    FLOATS,
    INEXACT,
    INT64,
    INTEGERS,
    PYTHON,
    SHORT,
    python_type,
)
from ge2.base.errors import (
    AS_FLOAT,
    NEGATIVE_POWER,
    ArgumentError,
    Ge2Error,
    NotAValue,
    TypeRuleError,
)
from ge2.base.source import here
from ge2.ir import ArrayType, type_of
from ge2.numpy.promotion import (
    LOGICAL,
    array,
    broadcast,
    cast,
    cast_first,
    common_dtype,
    common_shape,
    elementwise,
    fit,
    fresh,
    into,
    kind_of,
    lift,
    number,
    options,
    resolve,
    strong,
    weakly,
)
from ge2.ops import elementwise as ops
from ge2.ops.elementwise import ConvertElementType, IntegerPow

Function = Callable[..., Any]
UFUNCS: dict[np.ufunc, Function] = {}
INNER: dict[np.ufunc, Function] = {}  # the same, results of weak operands staying weak
INTEGER_POWERS = range(-16, 65)
UNBOUNDED = frozenset(  # of Python's integers: beyond int64, or an error where NumPy has a number
    (np.add, np.subtract, np.multiply, np.floor_divide, np.remainder, np.power, np.left_shift)
)


# --------------------------------------------------------------------------------- making functions


class Direct(dict[np.dtype, bool]):
    """For each dtype whether the ufunc casts no operand of it; worked out when first asked."""

    def __init__(self, ufunc: np.ufunc, op: Any) -> None:
        super().__init__()
        self.ufunc, self.op = ufunc, op

    def __missing__(self, dtype: np.dtype) -> bool:
        own = (dtype,) * self.ufunc.nin
        try:
            self[dtype] = resolve(self.ufunc, own)[: self.ufunc.nin] == own and bool(
                self.types(dtype)
            )
        except Ge2Error:
            self[dtype] = False
        return self[dtype]

    def types(self, dtype: np.dtype) -> tuple[ArrayType, ...]:
        return self.op.infer(*(ArrayType((), dtype),) * self.ufunc.nin)  # type: ignore[no-any-return]


class Beside(dict[tuple[np.dtype, type], bool]):
    """For a dtype and the type of another operand whether that is a number
    beside which the dtype stays.
    """

    def __init__(self, direct: Direct) -> None:
        super().__init__()
        self.direct = direct

    def __missing__(self, key: tuple[np.dtype, type]) -> bool:
        dtype, kind = key
        stays = kind in (int, float) and dtype in FLOATS and self.direct[dtype]
        self[key] = stays and resolve(self.direct.ufunc, key)[:2] == (dtype, dtype)
        return self[key]


def unary(ufunc: np.ufunc, op: Any, inner: Function | None = None) -> Function:
    """The public function of an operation of one operand."""
    direct = Direct(ufunc, op)
    weak_inner = inner or (lambda x, dtype=None: elementwise(ufunc, op, (x,), dtype))

    def function(x: Any, /, out: Any = None, *, where: Any = True, **more: Any) -> Any:
        if out is not None:
            return into(ufunc, (x,), {"out": out, "where": where, **more})
        if where is not True or more:
            (x,) = cast_first(ufunc, (x,), more)
            return strong(weak_inner(x, options(ufunc, (x,), where, more)))
        t = getattr(x, "type", None)
        if inner is None and t is not None and not t.weak and direct[t.dtype]:
            return op(x)
        other = None if t is not None else answering((x,))
        return strong(weak_inner(x)) if other is None else other.of_elements(function, x)

    return entered(ufunc, weak_inner, function)


def binary(ufunc: np.ufunc, op: Any, inner: Function | None = None) -> Function:
    """The public function of an operation of two operands of one dtype."""
    direct = Direct(ufunc, op)
    if ufunc in LOGICAL:  # they cast every dtype to bool
        direct.update({dtype: dtype == BOOL for dtype in SHORT})
    numbers = Beside(direct)
    if ufunc is np.power:  # numbers become parameters
        numbers.update({(dtype, kind): False for dtype in SHORT for kind in (int, float)})
    general = inner or (lambda a, b, dtype=None: elementwise(ufunc, op, (a, b), dtype))

    def operator(a: Any, b: Any) -> Any:
        ta, tb = getattr(a, "type", None), getattr(b, "type", None)
        if ta is not None and tb is not None:
            da: Any = getattr(
                ta, "dtype", None
            )  # `type` of other libraries' arrays is another thing
            same = da is getattr(tb, "dtype", None) and (
                ta.shape == tb.shape or not tb.shape or not ta.shape
            )
            if same and direct[da] and not (ta.weak and tb.weak):
                return op(a, b)
        elif ta is not None and numbers[ta.dtype, type(b)] and not ta.weak:
            return op(a, number(b, ta.dtype))
        elif tb is not None and numbers[tb.dtype, type(a)] and not tb.weak:
            return op(number(a, tb.dtype), b)
        other = None if ta is not None and tb is not None else answering((a, b))
        return general(a, b) if other is None else other.of_elements(operator, a, b)

    unbounded = ufunc in UNBOUNDED

    def function(x1: Any, x2: Any, /, out: Any = None, *, where: Any = True, **more: Any) -> Any:
        if unbounded and _is_python_int(x1) and _is_python_int(x2):
            x1 = strong(x1)  # Python's own arithmetic has no int64
        if out is not None:
            return into(ufunc, (x1, x2), {"out": out, "where": where, **more})
        if where is not True or more:
            x1, x2 = cast_first(ufunc, (x1, x2), more)
            return strong(general(x1, x2, options(ufunc, (x1, x2), where, more)))
        y = operator(x1, x2)
        t = getattr(y, "type", None)
        return y if (t is not None and not t.weak) or answering((y,)) is not None else strong(y)

    return entered(ufunc, operator, function)


def answering(xs: tuple[Any, ...]) -> Any:
    """The operand that knows itself what a function of single elements means of it, if one does."""
    return next((x for x in xs if hasattr(type(x), "of_elements")), None)


def entered(ufunc: np.ufunc, inner: Function, function: Function) -> Function:
    """The function under its NumPy name, in the tables."""
    function.__name__ = function.__qualname__ = ufunc.__name__
    summary = (ufunc.__doc__ or "").split("\n\n")
    text = " ".join(summary[1].split()) if len(summary) > 1 else ""
    function.__doc__ = (
        f"{text}\n\nAs `numpy.{ufunc.__name__}`; `where=` without `out=` is an error."
    )
    UFUNCS[ufunc], INNER[ufunc] = function, inner
    return function


# ------------------------------------------------------------------------------- rules of their own


def truth(x: Any) -> Any:
    """The value as bool: whether it is not zero."""
    x = lift(x)
    t = type_of(x)
    if t.dtype == BOOL:
        return x
    return bool(x) if type(x) in PYTHON else ConvertElementType(BOOL, t.weak)(x)


def logical(op: Any) -> Function:
    return lambda a, b, dtype=None: op(*shaped("logical", [truth(a), truth(b)]))


def shaped(name: str, xs: list[Any]) -> list[Any]:
    """Values of one dtype, broadcast for an elementwise operation."""
    shape = common_shape(name, xs)
    return [x if not type_of(x).shape else broadcast(x, shape) for x in xs]


def compare(ufunc: np.ufunc, op: Any) -> Function:
    """A comparison: exact between uint64 and int64, and with Python ints that
    the dtype does not hold.
    """

    def inner(a: Any, b: Any, dtype: Any = None) -> Any:
        a, b = lift(a), lift(b)
        try:
            x, y = _comparable(ufunc, a, b)
        except OverflowError:  # every number of the dtype compares alike with one outside
            x, y = _sides(a, b)
        return op(x, y)

    return inner


def _comparable(ufunc: np.ufunc, a: Any, b: Any) -> list[Any]:
    ta, tb = type_of(a), type_of(b)
    if ta.weak and tb.weak:
        dtype = common_dtype((a, b))
        return [weakly(a, dtype), weakly(b, dtype)]
    da, db, *_ = resolve(ufunc, (kind_of(ta), kind_of(tb)))
    shape = common_shape(ufunc.__name__, (a, b))
    if da == db:
        return [fit(a, da, shape), fit(b, db, shape)]
    zero = np.int8(0)
    return [_rank(a, b), zero] if da == INT64 else [zero, _rank(b, a)]


def _rank(signed: Any, unsigned: Any) -> Any:
    """-1, 0 or 1 as an int64 is less than, equal to or greater than an uint64."""
    signed = cast(signed, INT64)
    as_unsigned = cast(signed, np.dtype(np.uint64))
    a, u = shaped("comparison", [as_unsigned, cast(unsigned, np.dtype(np.uint64))])
    less = ops.OR(*shaped("comparison", [ops.LT(signed, np.int64(0)), ops.LT(a, u)]))
    return ops.WHERE(less, np.int8(-1), ops.WHERE(ops.EQ(a, u), np.int8(0), np.int8(1)))


def _side(n: int) -> np.int8:
    return np.int8(1 if n > 0 else -1)


def _sides(a: Any, b: Any) -> tuple[Any, Any]:
    """An integer array and a Python int outside its dtype, as two numbers
    that compare as they do.
    """
    if type(a) is int and type_of(b).dtype in INTEGERS:
        return _side(a), ConvertElementType(np.dtype(np.int8))(ops.NE(b, b))
    if type(b) is int and type_of(a).dtype in INTEGERS:
        return ConvertElementType(np.dtype(np.int8))(ops.NE(a, a)), _side(b)
    raise OverflowError("Python integer too large to convert to float")


def _power(a: Any, b: Any, dtype: Any = None) -> Any:
    """A power; a Python number as the exponent becomes a parameter where the
    dtype stays that of the base.
    """
    kind = type(b)
    if (kind is int or kind is float) and dtype is None:
        a = lift(a)
        t = type_of(a)
        if t.weak and kind is int and b < 0 and t.dtype == INT64:
            a = weakly(a, FLOAT64)
            t = type_of(a)
        if t.dtype in INEXACT and resolve(np.power, (t.dtype, kind))[-1] == t.dtype:
            found = _fixed_power(a, b)
            if found is not None:
                return found
        elif t.dtype in INTEGERS and kind is int and 0 <= b < 3:
            return _fixed_power(a, b)
    if kind is int and b < 0 and dtype is None and type_of(lift(a)).dtype.kind in "bi":
        raise ArgumentError(NEGATIVE_POWER, where=here(), fix=AS_FLOAT)
    return elementwise(np.power, ops.POW, (a, b), dtype)


def _fixed_power(a: Any, b: float) -> Any:
    if not math.isfinite(b):
        return None
    if b == 0.5:
        return ops.SQRT(a)
    if b == 2:
        return ops.SQUARE(a)
    return IntegerPow(int(b))(a) if b == int(b) and int(b) in INTEGER_POWERS else None


def _conjugate(x: Any, dtype: Any = None) -> Any:
    x = lift(x)
    d = resolve(np.conjugate, (type_of(x).dtype,), dtype)[0]
    x = x if type_of(x).dtype == d else cast(x, d)
    return ops.CONJ(x) if d in COMPLEX else fresh(x)


def _logical_not(x: Any, dtype: Any = None) -> Any:
    return ops.IS_ZERO(lift(x))


def _invert(x: Any, dtype: Any = None) -> Any:
    """Logical for bools, weak ones too: Python's own ~True is -2, and on its way out."""
    return elementwise(np.invert, ops.NOT, (x,), dtype)


def _divmod(a: Any, b: Any, dtype: Any = None) -> Any:
    return INNER[np.floor_divide](a, b), INNER[np.remainder](a, b)


def divmod(x1: Any, x2: Any, /, out: Any = None, *, where: Any = True, **more: Any) -> Any:
    """`x1 // x2` and `x1 % x2`, as `numpy.divmod`."""
    x1, x2 = cast_first(np.divmod, (x1, x2), more)
    dtype = options(np.divmod, (x1, x2), where, more)
    return floor_divide(x1, x2, dtype=dtype), remainder(x1, x2, dtype=dtype)


def modf(x: Any, /, out: Any = None, *, where: Any = True, **more: Any) -> Any:
    """The fractional and the whole part, both with the sign of `x`, as `numpy.modf`."""
    (x,) = cast_first(np.modf, (x,), more)
    dtype = options(np.modf, (x,), where, more)
    x = array(x)
    x = cast(x, resolve(np.modf, (type_of(x).dtype,), dtype)[0])
    none = type_of(x).dtype.type(0)
    fraction = ops.WHERE(
        ops.IS_INF(x), ops.COPYSIGN(none, x), ops.FMOD(x, type_of(x).dtype.type(1))
    )
    return fraction, ops.TRUNC(x)


def frexp(x: Any, /, out: Any = None, *, where: Any = True, **more: Any) -> Any:
    """Mantissa in [0.5, 1) and int32 exponent, as `numpy.frexp`."""
    (x,) = cast_first(np.frexp, (x,), more)
    dtype = options(np.frexp, (x,), where, more)
    x = array(x)
    x = cast(x, resolve(np.frexp, (type_of(x).dtype,), dtype)[0])
    return ops.MANTISSA(x), ops.EXPONENT(x)


def isnat(x: Any, /, out: Any = None, *, where: Any = True, **more: Any) -> Any:
    """Always an error, as for every array that is not of datetimes."""
    raise TypeRuleError(
        "ufunc 'isnat' is only defined for np.datetime64 and np.timedelta64.",
        where=here(),
        fix="np.isnan",
    )


UFUNCS[np.divmod], INNER[np.divmod] = divmod, _divmod
UFUNCS[np.modf], UFUNCS[np.frexp], UFUNCS[np.isnat] = modf, frexp, isnat

# fmt: off
negative      = unary(np.negative,      ops.NEG)
positive      = unary(np.positive,      ops.POSITIVE)
absolute      = unary(np.absolute,      ops.ABS)
fabs          = unary(np.fabs,          ops.ABS)
sign          = unary(np.sign,          ops.SIGN)
exp           = unary(np.exp,           ops.EXP)
exp2          = unary(np.exp2,          ops.EXP2)
expm1         = unary(np.expm1,         ops.EXPM1)
log           = unary(np.log,           ops.LOG)
log2          = unary(np.log2,          ops.LOG2)
log10         = unary(np.log10,         ops.LOG10)
log1p         = unary(np.log1p,         ops.LOG1P)
sqrt          = unary(np.sqrt,          ops.SQRT)
cbrt          = unary(np.cbrt,          ops.CBRT)
square        = unary(np.square,        ops.SQUARE)
reciprocal    = unary(np.reciprocal,    ops.RECIPROCAL)
sin           = unary(np.sin,           ops.SIN)
cos           = unary(np.cos,           ops.COS)
tan           = unary(np.tan,           ops.TAN)
arcsin        = unary(np.arcsin,        ops.ASIN)
arccos        = unary(np.arccos,        ops.ACOS)
arctan        = unary(np.arctan,        ops.ATAN)
sinh          = unary(np.sinh,          ops.SINH)
cosh          = unary(np.cosh,          ops.COSH)
tanh          = unary(np.tanh,          ops.TANH)
arcsinh       = unary(np.arcsinh,       ops.ASINH)
arccosh       = unary(np.arccosh,       ops.ACOSH)
arctanh       = unary(np.arctanh,       ops.ATANH)
degrees       = unary(np.degrees,       ops.DEGREES)
radians       = unary(np.radians,       ops.RADIANS)
rad2deg       = unary(np.rad2deg,       ops.DEGREES)
deg2rad       = unary(np.deg2rad,       ops.RADIANS)
floor         = unary(np.floor,         ops.FLOOR)
ceil          = unary(np.ceil,          ops.CEIL)
trunc         = unary(np.trunc,         ops.TRUNC)
rint          = unary(np.rint,          ops.RINT)
spacing       = unary(np.spacing,       ops.SPACING)
isfinite      = unary(np.isfinite,      ops.IS_FINITE)
isinf         = unary(np.isinf,         ops.IS_INF)
isnan         = unary(np.isnan,         ops.IS_NAN)
signbit       = unary(np.signbit,       ops.SIGN_BIT)
bitwise_count = unary(np.bitwise_count, ops.BIT_COUNT)
logical_not   = unary(np.logical_not,   ops.IS_ZERO, _logical_not)
invert        = unary(np.invert,        ops.NOT, _invert)
conjugate     = unary(np.conjugate,     ops.CONJ, _conjugate)

add           = binary(np.add,           ops.ADD)
subtract      = binary(np.subtract,      ops.SUB)
multiply      = binary(np.multiply,      ops.MUL)
divide        = binary(np.divide,        ops.DIV)
floor_divide  = binary(np.floor_divide,  ops.FLOOR_DIV)
remainder     = binary(np.remainder,     ops.REM)
fmod          = binary(np.fmod,          ops.FMOD)
maximum       = binary(np.maximum,       ops.MAX)
minimum       = binary(np.minimum,       ops.MIN)
fmax          = binary(np.fmax,          ops.FMAX)
fmin          = binary(np.fmin,          ops.FMIN)
arctan2       = binary(np.arctan2,       ops.ATAN2)
hypot         = binary(np.hypot,         ops.HYPOT)
logaddexp     = binary(np.logaddexp,     ops.LOGADDEXP)
logaddexp2    = binary(np.logaddexp2,    ops.LOGADDEXP2)
copysign      = binary(np.copysign,      ops.COPYSIGN)
nextafter     = binary(np.nextafter,     ops.NEXTAFTER)
heaviside     = binary(np.heaviside,     ops.HEAVISIDE)
gcd           = binary(np.gcd,           ops.GCD)
lcm           = binary(np.lcm,           ops.LCM)
bitwise_and   = binary(np.bitwise_and,   ops.AND)
bitwise_or    = binary(np.bitwise_or,    ops.OR)
bitwise_xor   = binary(np.bitwise_xor,   ops.XOR)
left_shift    = binary(np.left_shift,    ops.SHIFT_LEFT)
right_shift   = binary(np.right_shift,   ops.SHIFT_RIGHT)
equal         = binary(np.equal,         ops.EQ, compare(np.equal, ops.EQ))
not_equal     = binary(np.not_equal,     ops.NE, compare(np.not_equal, ops.NE))
less          = binary(np.less,          ops.LT, compare(np.less, ops.LT))
less_equal    = binary(np.less_equal,    ops.LE, compare(np.less_equal, ops.LE))
greater       = binary(np.greater,       ops.GT, compare(np.greater, ops.GT))
greater_equal = binary(np.greater_equal, ops.GE, compare(np.greater_equal, ops.GE))
power         = binary(np.power,         ops.POW, _power)
float_power   = binary(np.float_power,   ops.POW)
ldexp         = binary(np.ldexp,         ops.LDEXP)  # int32 and int64 exponents give the same
logical_and   = binary(np.logical_and,   ops.AND, logical(ops.AND))
logical_or    = binary(np.logical_or,    ops.OR,  logical(ops.OR))
logical_xor   = binary(np.logical_xor,   ops.XOR, logical(ops.XOR))

abs, pow, mod, true_divide, conj = absolute, power, remainder, divide, conjugate
asin, acos, atan, atan2, asinh, acosh, atanh = arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh
bitwise_not = bitwise_invert = invert
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
# fmt: on


# ---------------------------------------------------------------------------------------- operators


def _of_numbers(name: str, inner: Function) -> Function:
    """An operator of Python's: two Python bools count as ints; foreign
    classes may answer themselves.
    """
    reflected = f"__r{name}__"

    def operator(a: Any, b: Any) -> Any:
        try:
            if _is_weak_bool(a) and _is_weak_bool(b):
                return inner(weakly(a, INT64), weakly(b, INT64))
            return inner(a, b)
        except NotAValue:
            if hasattr(type(b), reflected):
                return NotImplemented
            raise

    return operator


def _of_order(sign: str, inner: Function) -> Function:
    """A comparison of Python's, which knows no order of complex numbers; NumPy's function does."""

    def operator(a: Any, b: Any) -> Any:
        if (
            _is_number(a)
            and _is_number(b)
            and COMPLEX.intersection((type_of(a).dtype, type_of(b).dtype))
        ):
            names = [f"'{python_type(type_of(x).dtype).__name__}'" for x in (a, b)]
            what = f"'{sign}' not supported between instances of {' and '.join(names)}"
            raise TypeRuleError(what, where=here(), fix=f"x.real {sign} y, or abs(x) {sign} y")
        return inner(a, b)

    return operator


def _is_number(x: Any) -> bool:
    t = getattr(x, "type", None)
    return bool(t.weak) if t is not None else type(x) in PYTHON


def _is_python_int(x: Any) -> bool:
    """True of a weak integer or bool, traced or not."""
    t = getattr(x, "type", None)
    if isinstance(t, ArrayType):
        return t.weak and t.dtype in (INT64, BOOL)
    return type(x) in (int, bool)


def _of_number(inner: Function) -> Function:
    return lambda x: inner(weakly(x, INT64) if _is_weak_bool(x) else x)


def _is_weak_bool(x: Any) -> bool:
    t = getattr(x, "type", None)
    return t.weak and t.dtype == BOOL if t is not None else type(x) is bool


_ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "divmod": np.divmod, "lshift": np.left_shift,
    "rshift": np.right_shift,
}  # fmt: skip
_OTHER = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "invert": np.invert,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
operators: dict[str, Function] = {
    **{name: _of_numbers(name, INNER[f]) for name, f in _ARITHMETIC.items()},
    **{
        name: _of_number(INNER[f])
        for name, f in (("neg", np.negative), ("pos", np.positive), ("abs", np.absolute))
    },
    **{name: INNER[f] for name, f in _OTHER.items()},
    **{name: _of_order(sign, INNER[_OTHER[name]]) for name, sign in _ORDER.items()},
}
_raised = operators["pow"]


def _pow(a: Any, b: Any) -> Any:
    """The operator, which is NumPy's function but for `bools ** 2`: that is
    their square, of int8.
    """
    t = getattr(a, "type", None)
    if t is not None and t.dtype == BOOL and not t.weak and type(b) is int and b == 2:
        return cast(a, np.dtype(np.int8))
    return _raised(a, b)


operators["pow"] = _pow
