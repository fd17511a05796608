"""SciPy's special functions that are written in Python, given traced values.

NumPy hands its own functions and ufuncs to an argument's class, so a traced value answers for
itself. What SciPy writes in Python, as `logsumexp`, asks for an array of the elements first, which
nobody has while a function is traced. So once a program that has imported `scipy.special` traces a
function, these look at their arguments, and hand traced ones to `ge2.scipy.special`. For all others
they do what they did; nobody's `from scipy.special import logsumexp` has to change.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ge2.ir import is_traced
from ge2.numpy.rare import special

_theirs: dict[str, Callable[..., Any]] = {}  # SciPy's own, by name


def take_over(module: str = "scipy.special") -> None:
    """Has SciPy's functions that are in Python take traced values, if a program has imported it."""
    scipy = sys.modules.get(module)
    if _theirs or scipy is None:
        return
    for name in special.__all__:
        function = getattr(scipy, name, None)
        if isinstance(function, FunctionType) and not function.__closure__:
            _theirs[name] = own(function)
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
            function.__code__ = stand_in(name).__code__
            function.__defaults__ = function.__kwdefaults__ = None


def own(function: FunctionType) -> FunctionType:
    """Another function of the same code."""
    found = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def stand_in(name: str) -> FunctionType:
    """A function whose code needs nothing of the module that it is put into, but the name."""

    def of_ge2_too(*args: Any, **kwargs: Any) -> Any:
        from ge2.trace.scipy_functions import called

        return called("NAME", args, kwargs)

    code = of_ge2_too.__code__
    known = tuple([name if each == "NAME" else each for each in code.co_consts])
    return FunctionType(code.replace(co_name=name, co_consts=known), {})


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """SciPy's function of real arrays, and ours if any argument is traced."""
    traced = any(map(is_traced, args)) or any(map(is_traced, kwargs.values()))
    return (getattr(special, name) if traced else _theirs[name])(*args, **kwargs)
