"""From NumPy's own function objects to the functions of this package: what a
traced value answers with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, final

import numpy as np

from ge2.base.tracebacks import hides_methods
from ge2.numpy import late
from ge2.numpy.creation import OUTSIDE
from ge2.numpy.plain import any_traced, in_trace
from ge2.numpy.promotion import array

Function = Callable[..., Any]


class Functions(dict[Function, Function]):
    """The table, which looks for what it lacks among the modules that are
    imported when asked for.
    """

    def __missing__(self, function: Function) -> Function:
        found = late.ours_of(function)
        if found is None:
            raise KeyError(function)
        self[function] = found
        return found  # type: ignore[no-any-return]


def functions(namespace: Mapping[str, Any], names: Iterable[str]) -> dict[Function, Function]:
    """NumPy's functions of those names, each with ours."""
    table: dict[Function, Function] = {}
    for name in names:
        # which would import numpy.fft
        theirs = None if name in late.PARTS else getattr(np, name, None)
        if callable(theirs) and not isinstance(theirs, np.ufunc | type):
            table[theirs] = namespace[name]
    return Functions(table)


# ------------------------------------------------------------------------------------ shared memory

# Functions whose result shares memory with what they were given; a traced value is told, so that a
# later change in place is seen by both.
SHARING = (
    "transpose", "permute_dims", "swapaxes", "moveaxis", "rollaxis", "matrix_transpose", "reshape", "ravel",
    "squeeze", "expand_dims", "atleast_1d", "atleast_2d", "atleast_3d", "flip", "fliplr", "flipud", "rot90",
    "real", "imag", "broadcast_to", "broadcast_arrays", "diagonal", "diag", "einsum",
    "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack",
)  # fmt: skip


def sharing(ours: Function, theirs: Function) -> Function:
    """The function, telling a traced argument what NumPy's function makes of its memory."""

    @wraps(ours)
    def function(*args: Any, **more: Any) -> Any:
        if args and type(args[0]) is np.ndarray:
            args = (in_trace(args[0], OUTSIDE), *args[1:])
        y = ours(*args, **more)
        for x in (*args, *more.values()):
            told = getattr(x, "shared_by", None)
            if told is not None:
                return told(theirs, args, more, y)
        return y

    return function


# -------------------------------------------------------------------------------- methods of ufuncs


def ufunc_method(ufunc: np.ufunc, method: str) -> Function:
    """Meaning of `ufunc.method` for traced values; where it has none, an error
    that says what to write.
    """
    from ge2.numpy.ufuncs import method_of  # programs that use none need not wait for it

    return method_of(ufunc, method)


@final
@hides_methods
class Method:
    """`reduce`, `accumulate`, `reduceat`, `outer` or `at` of a function that
    is a ufunc in NumPy.
    """

    __slots__ = ("name", "ufunc")

    def __init__(self, ufunc: np.ufunc, name: str) -> None:
        self.ufunc, self.name = ufunc, name

    def __call__(self, *args: Any, **more: Any) -> Any:
        args = tuple([array(x) if isinstance(x, list) and any_traced(x) else x for x in args])
        # which asks traced values by protocol
        return in_trace(getattr(self.ufunc, self.name)(*args, **more))

    def __repr__(self) -> str:
        return f"<ge2.numpy.{self.ufunc.__name__}.{self.name}>"


DESCRIBED = ("identity", "nargs", "nin", "nout", "ntypes", "signature", "types")


def as_ufuncs(table: Mapping[np.ufunc, Function]) -> None:
    """Gives the functions the methods and attributes of NumPy's ufuncs."""
    for ufunc, function in table.items():
        described = {name: getattr(ufunc, name) for name in DESCRIBED}
        vars(function).update(described, **{name: Method(ufunc, name) for name in METHODS})


METHODS = ("accumulate", "at", "outer", "reduce", "reduceat")
