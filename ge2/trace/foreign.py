"""Functions of other packages, SciPy's among them, that are called with traced values."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, TracebackType
from typing import Any

from ge2.base.source import Expression, Source, expression_at, is_library, is_package
from ge2.base.tracebacks import CALLS, is_raise
from ge2.ir import is_traced
from ge2.numpy.rare import special
from ge2.trace.hints import hint
from ge2.trace.tracer import Tracer

__all__ = ["explain"]


# -------- Notes on errors that functions of others raise for a traced value, of which they know
# nothing.


def explain(error: Exception) -> None:
    """Adds the user's line and a fix, if that line passed a traced value to a function that is
    neither the user's nor ours.
    """
    at = users_last(error)
    if at is None or any(words in str(error) for words in CALLS):
        return
    found = expression_at(at.tb_frame, at.tb_lasti)
    first = next(passed(found), None) if found is not None else None
    if first is None or is_raise(at.tb_frame.f_code, at.tb_lasti):
        return
    name = first.owner.names.get(first.atom, "") if first.owner.kind == "jit" else ""
    place = Source(at.tb_frame.f_code, at.tb_lasti)
    error.add_note(f"  at   {place}\n  try  {hint('array', name, found)}")


def users_last(error: Exception) -> TracebackType | None:
    """The innermost line of the user's; None if it led into ge2."""
    at, found = error.__traceback__, None
    while at is not None:
        code = at.tb_frame.f_code
        if not is_library(code):
            found = at
        elif is_package(code) and found is not None:
            return None
        at = at.tb_next
    return found


def passed(found: Expression) -> Iterator[Tracer]:
    """The traced values that are named in the arguments of a call, or in an index."""
    match found.node:
        case ast.Call(args=args, keywords=keywords):
            parts: list[ast.AST] = [*args, *keywords]
        case ast.Subscript(slice=index):
            parts = [index]
        case _:
            parts = []
    for part in parts:
        for node in ast.walk(part):
            value = found.value(node)
            if is_traced(value):
                yield value


# -------- SciPy's special functions that are written in Python, given traced values.
# NumPy hands its own functions and ufuncs to an argument's class, so a traced value answers for
# itself. What SciPy writes in Python, as `logsumexp`, asks for an array of the elements first,
# which nobody has while a function is traced. So once a program that has imported `scipy.special`
# traces a function, these look at their arguments, and hand traced ones to `ge2.scipy.special`. For
# all others they do what they did; nobody's `from scipy.special import logsumexp` has to change.


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
        from ge2.trace.foreign import called

        return called("NAME", args, kwargs)

    code = of_ge2_too.__code__
    known = tuple([name if each == "NAME" else each for each in code.co_consts])
    return FunctionType(code.replace(co_name=name, co_consts=known), {})


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """SciPy's function of real arrays, and ours if any argument is traced."""
    traced = any(map(is_traced, args)) or any(map(is_traced, kwargs.values()))
    return (getattr(special, name) if traced else _theirs[name])(*args, **kwargs)
