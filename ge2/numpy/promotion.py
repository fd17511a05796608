"""The first steps of every function: keywords checked, arguments promoted to one dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, wraps
from typing import Any, TypeGuard

import numpy as np

from ge2.base.arrays import (
    BOOL,
    FLOAT16,
    FLOAT32,
    HALF,
    NUMBERS,
    PYTHON,
    SHORT,
    can_cast,
    is_masked,
    known,
    on_gpu,
    python_type,
    short,
)
from ge2.base.errors import (
    ArgumentError,
    Ge2Error,
    InputError,
    NotAValue,
    OutOfBoundsError,
    ShapeError,
    TypeRuleError,
)
from ge2.base.source import here
from ge2.ir import ArrayType, Dims, current, is_traced, type_of
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.shape import BroadcastInDim, Concatenate, Reshape

# -------- The first steps of every function: make values of its arguments, bring them to one dtype
# and one shape.
# A value is a traced value, an array, a NumPy scalar or a Python number. The dtypes are asked of
# NumPy's own ufuncs, so NEP 50 is not written down a second time; half types that NumPy does not
# know stand in as float16.


Kind = np.dtype | type  # of an operand: its dtype, or the Python type of a weak one
Axes = int | Sequence[int] | None


# ------------------------------------------------------------------------------------------- values


def lift(x: Any) -> Any:
    """The argument as a value: lists of values are stacked, whatever
    else NumPy takes becomes an array.
    """
    kind = type(x)
    if kind in PYTHON or kind is np.ndarray or isinstance(getattr(x, "type", None), ArrayType):
        return x
    if isinstance(x, np.generic):
        return x
    if isinstance(x, list | tuple):
        return _stacked(x)
    if is_masked(x):
        raise InputError(
            "a masked array is not supported",
            where=here(),
            fix="x.filled(value), or np.where(mask, ...)",
        )
    if isinstance(x, NUMBERS):
        return next(t(x) for t in NUMBERS if isinstance(x, t))  # type: ignore[arg-type]
    if not isinstance(x, np.ndarray) and hasattr(x, "shape") and hasattr(x, "dtype"):
        return x
    if hasattr(x, "__array__"):
        return np.asarray(x)
    if is_sequence(x):
        return _stacked(x)
    fix = "np.asarray(x)" if x is not None else "`x is None` to ask whether there is a value"
    raise NotAValue(f"{kind.__name__} is neither an array nor a number", where=here(), fix=fix)


def is_sequence(x: Any) -> TypeGuard[Sequence[Any]]:
    """True for what NumPy takes apart as it does a list: a range, a deque, a sequence of a user's."""
    return isinstance(x, Sequence) and not isinstance(x, str | bytes)


def _stacked(items: Sequence[Any]) -> Any:
    values = [lift(x) for x in items]
    if not any(is_traced(x) or on_gpu(x) for x in values):
        try:
            return check_known(np.asarray(items))
        except ValueError as error:
            raise ShapeError(str(error), where=here(), fix="lists of equal lengths") from None
    values = [strong(x) for x in values]
    shapes = {type_of(x).shape for x in values}
    if len(shapes) > 1:
        raise ShapeError(
            f"a list of arrays of different shapes: {listed(values)}",
            where=here(),
            fix="np.concatenate",
        )
    dtype = common_dtype(values)
    (shape,) = shapes
    return Concatenate(0)(*(reshape(cast(x, dtype), (1, *shape)) for x in values))


def array(x: Any) -> Any:
    """The argument as a value with a dtype of its own: a number becomes strong."""
    x = strong(lift(x))
    return x if type_of(x).dtype in SHORT else check_known(x)


def no_scalar(x: Any) -> Any:
    """The argument as an array with a dtype of its own, of no axes if it is a number."""
    x = array(x)
    return np.asarray(x) if isinstance(x, np.generic) else x


def strong(x: Any) -> Any:
    """The value, with a Python number as NumPy's default dtype has it."""
    kind = type(x)
    if kind in PYTHON:
        return integer(x) if kind is int else PYTHON[kind].type(x)
    t = getattr(x, "type", None)
    return ConvertElementType(t.dtype)(x) if t is not None and t.weak else x


def fresh(x: Any) -> Any:
    """The same value as an array of its own, so that writing to one leaves the other alone."""
    return copy.copy(x)


def integer(x: int) -> Any:
    """As `np.asarray` reads a Python int: int64, or uint64 where only that holds it."""
    return np.int64(x) if x < 2**63 else np.uint64(x)


def check_known(x: Any) -> Any:
    """The value, if its dtype is one that ge2 computes with."""
    dtype = type_of(x).dtype
    if not known(dtype):
        raise InputError(
            f"arrays of dtype {dtype} are not supported", where=here(), fix=_instead(dtype)
        )
    return x


def _instead(dtype: np.dtype) -> str:
    if not dtype.isnative:
        return "x.astype(x.dtype.newbyteorder('='))"
    fixes = {"O": "np.asarray(x, dtype=float)", "M": "x.astype('int64')", "m": "x.astype('int64')"}
    fixes |= {"f": "x.astype('float64')", "c": "x.astype('complex128')"}
    return fixes.get(dtype.kind, "x.astype(float)")


def listed(xs: Iterable[Any]) -> str:
    return ", ".join(str(type_of(x)) for x in xs)


# ------------------------------------------------------------------------------------------- dtypes


def cast(x: Any, dtype: np.dtype) -> Any:
    """The value in that dtype, strong."""
    if type(x) in PYTHON:
        return number(x, dtype)
    t = type_of(x)
    return x if t.dtype == dtype and not t.weak else ConvertElementType(dtype)(x)


def check_casting(x: Any, to: np.dtype, casting: str) -> None:
    """TypeRuleError if NumPy's rule `casting` does not allow the value to become of that dtype."""
    if casting not in CASTINGS:
        what = f"casting must be one of {', '.join(map(repr, CASTINGS))}; got {casting!r}"
        raise ArgumentError(what, where=here(), fix="casting='unsafe'")
    t = type_of(lift(x))
    if not (t.weak and python_type(t.dtype) is python_type(to)) and not can_cast(
        t.dtype, to, casting
    ):
        what = f"Cannot cast from {t} to {short(to)} according to the rule {casting!r}"
        raise TypeRuleError(what, where=here(), fix="casting='unsafe', or x.astype(dtype)")


def number(x: Any, dtype: np.dtype) -> Any:
    """A Python number in that dtype; too large a float becomes infinite, too
    large an int is an error.
    """
    if type(x) is not float:
        return dtype.type(x)
    with np.errstate(over="ignore"):
        return dtype.type(x)


def kind_of(t: ArrayType) -> Kind:
    """The kind of an operand in promotion; Python bools are no weaker than NumPy's."""
    return python_type(t.dtype) if t.weak and t.dtype != BOOL else t.dtype


@cache
def resolve(
    ufunc: np.ufunc,
    kinds: tuple[Kind, ...],
    dtype: np.dtype | None = None,
    casting: Any = "same_kind",
) -> tuple[np.dtype, ...]:
    """The dtypes that a ufunc casts its operands to, then those of its results; `casting` is the
    rule that `dtype`, of the results, may not ask operands to break.
    """
    given = [k for k in (*kinds, dtype) if isinstance(k, np.dtype)]
    for k in given:
        if not known(k):
            raise InputError(
                f"{ufunc.__name__} of arrays of dtype {k} is not supported",
                where=here(),
                fix=_instead(k),
            )
    halves = {k for k in given if k in HALF}
    if halves <= {FLOAT16}:
        return _resolve(ufunc, kinds, dtype, casting)
    stand_in = FLOAT16 if len(halves) == 1 else FLOAT32  # half types of two kinds meet in float32
    replaced = tuple(stand_in if k in halves else k for k in kinds)
    found = _resolve(ufunc, replaced, stand_in if dtype in halves else dtype, casting)
    half = next(iter(halves)) if len(halves) == 1 else FLOAT32
    return tuple(half if d == FLOAT16 else d for d in found)


def _resolve(
    ufunc: np.ufunc, kinds: tuple[Kind, ...], dtype: np.dtype | None, casting: Any
) -> tuple[np.dtype, ...]:
    asked: dict[str, Any] = (
        {} if dtype is None else {"signature": (*(None,) * ufunc.nin, *(dtype,) * ufunc.nout)}
    )
    try:
        return ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), casting=casting, **asked)
    except TypeError as error:
        names = ", ".join(
            k.name if isinstance(k, np.dtype) else f"Python {k.__name__}" for k in kinds
        )
        what = f"{ufunc.__name__} of {names}: {error}"
        fix = accepted(ufunc)
        if dtype is not None:  # if no cast helps, there is no loop
            fix = "another dtype=, or none" if casting == "unsafe" else f"x.astype('{dtype}')"
        raise TypeRuleError(what, where=here(), fix=fix) from None


def accepted(ufunc: np.ufunc) -> str:
    """The fix for operands of dtypes that a ufunc does not take."""
    if ufunc == np.negative:
        return "~x, or np.logical_not(x)"
    if ufunc == np.subtract:
        return "x ^ y, or x.astype(int) - y"
    whole = (
        "bitwise" in ufunc.__name__
        or "shift" in ufunc.__name__
        or ufunc in (np.invert, np.gcd, np.lcm)
    )
    return "x.astype(np.int64)" if whole else "x.astype(np.float64)"


@cache
def result_of(kinds: tuple[Kind, ...]) -> np.dtype:
    """The dtype that holds operands of those kinds, as `np.result_type`."""
    halves = {k for k in kinds if isinstance(k, np.dtype) and k in HALF}
    stand_in = FLOAT16 if len(halves) == 1 else FLOAT32
    operands: list[Any] = [
        stand_in if k in halves else k(0) if isinstance(k, type) else k for k in kinds
    ]
    found = np.dtype(np.result_type(*operands))
    return next(iter(halves)) if found == FLOAT16 else found


def common_dtype(xs: Iterable[Any]) -> np.dtype:
    """The dtype that holds all of the values; weak ones yield."""
    return result_of(tuple(kind_of(type_of(check_known(x))) for x in xs))


def as_dtype(dtype: Any) -> np.dtype:
    """A dtype from whatever NumPy takes for one, if ge2 computes with it.

    >>> as_dtype(float)
    dtype('float64')
    """
    try:
        found: np.dtype = np.dtype(dtype)
    except TypeError as error:
        raise InputError(f"{error}", where=here(), fix="np.float32, or its name") from None
    if not known(found):
        raise InputError(
            f"dtype {found} is not supported", where=here(), fix=" or ".join(map(short, SHORT))
        )
    return found


# ------------------------------------------------------------------------------------------- shapes


@lru_cache(maxsize=4096)
def _broadcast_shapes(shapes: tuple[Dims, ...]) -> Dims | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def common_shape(name: str, xs: Sequence[Any]) -> Dims:
    """The shape that the values broadcast to."""
    shapes = tuple([type_of(x).shape for x in xs])
    shape = _broadcast_shapes(shapes)
    if shape is None:
        fix = "x.reshape, or x[..., None] for a new axis of size 1: sizes are compared from the last axis on"
        raise ShapeError(
            f"{name}: {listed(xs)} do not broadcast to one shape", where=here(), fix=fix
        )
    return shape


def integers_in(x: Any) -> Sequence[Any]:
    """The integers of a shape or of axes: one, or those of a sequence or an array, traced or not."""
    if is_sequence(x):
        return x
    if is_traced(x):
        return [*x] if x.type.ndim else [x]
    return np.atleast_1d(x).tolist() if type(x) is np.ndarray else [x]


def reshape(x: Any, shape: Dims) -> Any:
    return x if type_of(x).shape == shape else Reshape(shape)(x)


def broadcast(x: Any, shape: Dims) -> Any:
    """The strong value, repeated along axes of size 1 and new leading axes."""
    own = type_of(x).shape
    if own == shape:
        return x
    new = len(shape) - len(own)
    kept = [i for i, n in enumerate(own) if n == shape[new + i]]
    x = reshape(x, tuple([own[i] for i in kept]))
    return BroadcastInDim(shape, tuple([new + i for i in kept]))(x)


def one_axis(axis: Any, ndim: int, what: Any = None) -> int:
    """The axis, counted from the first; `what` is the value whose axis it is."""
    try:
        found = axis.__index__()
    except (AttributeError, TypeError) as error:
        if isinstance(error, Ge2Error):  # of a traced number
            raise
        raise InputError(
            f"an axis is an integer; got {axis!r:.60}", where=here(), fix="axis=0"
        ) from None
    if not -ndim <= found < ndim:
        of = f" of {type_of(what)}" if what is not None else ""
        fix = (
            f"axis=-1 for the last; from {-ndim} to {ndim - 1} they count" if ndim else "axis=None"
        )
        what = f"axis {found} is out of bounds for array of dimension {ndim}{of}"
        raise OutOfBoundsError(what, where=here(), fix=fix)
    return int(found % ndim)


def reduced_axes(axis: Axes, ndim: int, what: Any = None) -> Dims:
    """As `all_axes`; but NumPy's ufuncs reduce a number along axis 0, too,
    which changes nothing.
    """
    return () if not ndim and type(axis) is int and axis in (0, -1) else all_axes(axis, ndim, what)


def all_axes(axis: Axes, ndim: int, what: Any = None) -> Dims:
    """The axes in rising order; None stands for all."""
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, tuple | list):
        return (one_axis(axis, ndim, what),)
    found = sorted(one_axis(a, ndim, what) for a in axis)
    if len(set(found)) < len(found):
        raise ShapeError(f"duplicate value in 'axis': {tuple(axis)}", where=here())
    return tuple(found)


# ---------------------------------------------------------------------------------------- functions


def fit(x: Any, dtype: np.dtype, shape: Dims) -> Any:
    """An operand of an elementwise operation: of that dtype, and of that shape or a scalar."""
    if type(x) in PYTHON:
        return number(x, dtype)
    t = type_of(x)
    if t.dtype != dtype:
        x = ConvertElementType(dtype)(x)
    return x if t.shape == shape or not t.shape else broadcast(x, shape)


def weakly(x: Any, dtype: np.dtype) -> Any:
    """A weak operand in another of the dtypes that Python numbers have."""
    if type(x) in PYTHON:
        return python_type(dtype)(x)
    return x if x.type.dtype == dtype else ConvertElementType(dtype, weak=True)(x)


def elementwise(
    ufunc: np.ufunc, op: Callable[..., Any], xs: Sequence[Any], dtype: np.dtype | None = None
) -> Any:
    """The operation on operands promoted as the ufunc does; weak if all of them are."""
    xs = [lift(x) for x in xs]
    types = [type_of(x) for x in xs]
    dtypes = resolve(ufunc, tuple([kind_of(t) for t in types]), dtype)
    if all(t.weak for t in types) and all(d in WEAK for d in dtypes):
        return op(*[weakly(x, d) for x, d in zip(xs, dtypes, strict=False)])
    shape = common_shape(ufunc.__name__, xs)
    return op(*[fit(x, d, shape) for x, d in zip(xs, dtypes, strict=False)])


WEAK = frozenset(PYTHON.values())


# -------- Keywords that NumPy's functions take, each honoured or refused: none is read past.


CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
LOGICAL = (np.logical_and, np.logical_or, np.logical_xor, np.logical_not)  # they cast nothing


def options(
    ufunc: np.ufunc, xs: tuple[Any, ...], where: Any, more: dict[str, Any]
) -> np.dtype | None:
    """The dtype that a call of a ufunc asks for; what is not supported is an error that says so."""
    name = ufunc.__name__
    if where is not True:
        what = f"{name}: where= leaves the other elements undefined"
        raise InputError(what, where=here(), fix="np.where(mask, f(x), other)")
    dtype = more.pop("dtype", None)
    for option in more:
        if option not in ("casting", "order", "subok"):
            what = f"{name}: {option}= is not supported"
            raise InputError(what, where=here(), fix="x.astype(dtype) before the call")
    checked_order(more.get("order"))
    asked = None if dtype is None else as_dtype(dtype)
    # `in` would compare with None, which NumPy takes for float64
    if asked is not None and asked != BOOL and all(t[-1] in "?O" for t in ufunc.types):
        what = f"No loop matching the specified signature and casting was found for ufunc {name}"
        raise TypeRuleError(f"{what}: dtype={asked}", where=here(), fix="dtype=bool, or none")
    if asked is not None or "casting" in more:
        checked_casting(ufunc, xs, asked, more.get("casting", "same_kind"))
    return asked


def cast_first(ufunc: np.ufunc, xs: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, ...]:
    """The operands of a call with `casting="unsafe"`, which casts them to what `dtype=` asks for
    before it computes; those of other calls as they are.
    """
    if more.get("dtype") is None or more.get("casting") != "unsafe":
        return xs
    targets = resolve(ufunc, kinds_of(xs), as_dtype(more["dtype"]), "unsafe")
    return tuple([cast(lift(x), d) for x, d in zip(xs, targets, strict=False)])


def kinds_of(xs: tuple[Any, ...]) -> tuple[Kind, ...]:
    """The kinds of operands by which a ufunc chooses its types: dtypes, or types of Python's numbers."""
    return tuple([kind_of(type_of(lift(x))) for x in xs])


def checked_casting(
    ufunc: np.ufunc, xs: tuple[Any, ...], dtype: np.dtype | None, casting: Any
) -> None:
    """An error for a rule that NumPy does not know, or that forbids the casts of a call."""
    if casting not in CASTINGS:
        what = f"casting must be one of {', '.join(map(repr, CASTINGS))} (got {casting!r})"
        raise ArgumentError(what, where=here(), fix="casting='same_kind'")
    if ufunc in LOGICAL:
        return
    kinds = kinds_of(xs)
    for kind, target in zip(kinds, resolve(ufunc, kinds, dtype, "unsafe"), strict=False):
        if isinstance(kind, np.dtype) and not can_cast(kind, target, casting):
            what = f"Cannot cast ufunc '{ufunc.__name__}' input from {kind} to {target}"
            what += f" with casting rule '{casting}'"
            raise TypeRuleError(what, where=here(), fix=f"x.astype('{target}')")


def checked_order(order: Any, allowed: str = "CFAK") -> None:
    """ArgumentError for an order that NumPy does not know; whichever it is, no element differs."""
    if order is not None and order not in tuple(allowed):
        what = f"order must be one of {', '.join(map(repr, allowed))} (got {order!r})"
        raise ArgumentError(what, where=here(), fix="order='C'")


# ------------------------------------------------------------------------------------------- plain
# Arrays that no trace has met: given to NumPy's own functions, then values of
# the trace that runs now.


Function = Callable[..., Any]


def in_trace(y: Any, fixed: str = "") -> Any:
    """An array as a value of the trace that runs now, or itself where there is none.

    A traced value can be indexed by traced numbers and written with traced values.
    `fixed` says whose array it is, if it must not be written; lists and tuples item by
    item, all else stays what it is.
    """
    hold = getattr(current(), "hold", None)
    return y if hold is None else _each(y, lambda x: hold(x, fixed))


def _each(y: Any, hold: Function) -> Any:
    if type(y) in (list, tuple):
        return type(y)([_each(x, hold) for x in y])
    return hold(y) if is_traced(y) or (type(y) is np.ndarray and known(y.dtype)) else y


def any_traced(x: Any) -> bool:
    """True if the value, or one in a list, tuple or dict of values, is traced."""
    if isinstance(x, list | tuple):
        return any(map(any_traced, x))
    if isinstance(x, dict):
        return any(map(any_traced, x.values()))
    return is_traced(x)


def into(theirs: Function, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
    """NumPy's own function, which asks the traced values among its arguments by protocol."""
    args = tuple([array(x) if isinstance(x, list) and any_traced(x) else x for x in args])
    return theirs(*args, **more)


def plainly(theirs: Function) -> Callable[[Function], Function]:
    """Makes a function that is NumPy's own where no argument is traced."""

    def decorate(ours: Function) -> Function:
        @wraps(ours)
        def function(*args: Any, **more: Any) -> Any:
            if any_traced(args) or any_traced(more):
                return ours(*args, **more)
            return in_trace(theirs(*args, **more))

        return function

    return decorate
