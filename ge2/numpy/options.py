"""Keywords that NumPy's functions take, each honoured or refused: none is read past."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, can_cast, known
from ge2.base.errors import ArgumentError, InputError, TypeRuleError
from ge2.base.source import here
from ge2.ir import current, is_traced, type_of
from ge2.numpy.promotion import Kind, array, as_dtype, cast, kind_of, lift, resolve

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
    """What a ufunc asks about its operands: their dtypes, or which number of Python's they are."""
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
