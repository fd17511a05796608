"""Arrays that no trace has met: given to NumPy's own functions, then values of
the trace that runs now.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ge2.base.dtypes import known
from ge2.ir import current

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
    return hold(y) if hasattr(y, "type") or (type(y) is np.ndarray and known(y.dtype)) else y


def any_traced(x: Any) -> bool:
    """True if the value, or one in a list, tuple or dict of values, is traced."""
    if isinstance(x, list | tuple):
        return any(map(any_traced, x))
    if isinstance(x, dict):
        return any(map(any_traced, x.values()))
    return hasattr(x, "cell")


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
