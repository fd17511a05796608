"""One operation on arrays, by its name: compiled as any other function, and remembered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from ge2.base.arrays import on_gpu
from ge2.base.errors import Ge2Error, InputError
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.dispatch import jit
from ge2.ir import Op, type_of
from ge2.numpy.rare.layers import FUNCTIONS as FUNCTIONS
from ge2.ops import KNOWN
from ge2.trace import is_traced

REMEMBERED: Final = 512  # operations with their attributes


@hides
def op_call(name: str | Op, *arrays: Any, **attributes: Any) -> Any:
    """The result of one operation of arrays: of a name in `ge2.kernels.names()`, or of an `Op`.

    Attributes are the operation's parameters, or further arguments of the function. The program is
    made of the kernel that is chosen for it, and remembered by its signature; inside a traced
    function it is recorded. InputError for a name that there is not, with the nearest, and for
    attributes that it does not take.

    >>> import numpy as np
    >>> op_call("softmax", np.array([[0.0, 0.0]]))
    array([[0.5, 0.5]])
    >>> op_call("reduce_sum", np.ones((2, 3)), axes=(1,))
    array([3., 3.])
    """
    named = {k: x for k, x in attributes.items() if is_value(x)}
    plain = tuple((k, frozen(x)) for k, x in sorted(attributes.items()) if k not in named)
    try:
        function = compiled(name, plain)
    except TypeError as error:
        if isinstance(error, InputError) or "unhashable" not in str(error):
            raise
        what = f"op_call({name!r}): attributes are numbers, words, sequences of them, or arrays"
        raise InputError(what, where=here()) from None
    return function(*arrays, **named)


def is_value(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic) or is_traced(x) or on_gpu(x)


def frozen(x: Any) -> Any:
    return tuple(map(frozen, x)) if isinstance(x, list | tuple) else x


@lru_cache(REMEMBERED)
def compiled(name: str | Op, attributes: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jit(function_of(name, dict(attributes)))


def function_of(name: str | Op, attributes: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of arrays that a name stands for."""
    if isinstance(name, Op):
        return applied(name)
    if name in FUNCTIONS:
        check(name, inspect.signature(FUNCTIONS[name]).parameters, attributes)
        return called(name, partial(FUNCTIONS[name], **attributes))
    return applied(op_of(name, attributes))


def op_of(name: str, attributes: Mapping[str, Any]) -> Op:
    """The operation of a name with these parameters. InputError if there is none."""
    if name not in KNOWN:
        from difflib import get_close_matches

        near = get_close_matches(str(name), [*FUNCTIONS, *KNOWN], 1, 0.0)
        raise InputError(f"there is no operation {name!r}", where=here(), fix=repr(near[0]))
    made: Any = KNOWN[name]
    parameters: list[str] = [f.name for f in fields(made)] if is_dataclass(made) else []
    check(name, parameters, attributes)
    try:
        found: Op = made(**attributes)
        return found
    except TypeError as error:
        needed = [f.name for f in fields(made) if f.default is f.default_factory is MISSING]
        if lacking := [each for each in needed if each not in attributes]:
            fix = f"{', '.join(f'{each}=...' for each in lacking)}: attributes as ge2.make_jaxpr prints them"
            what = f"{name} needs {', '.join(lacking)}"
            raise InputError(what, where=here(), fix=fix) from None
        takes = ", ".join(parameters) or "no attributes"
        raise InputError(f"{name} takes {takes}: {error}", where=here()) from None


def check(name: str, known: Any, attributes: Mapping[str, Any]) -> None:
    """InputError for an attribute that there is not."""
    for each in attributes:
        if each not in known:
            from difflib import get_close_matches

            near = get_close_matches(each, list(known), 1, 0.0)
            fix = f"{near[0]}=" if near else "no attributes"
            raise InputError(f"{name} has no attribute {each!r}", where=here(), fix=fix)


def applied(op: Op) -> Callable[..., Any]:
    """The operation as a function. InputError for parameters of another kind than it has."""

    def function(*xs: Any) -> Any:
        try:
            return op(*xs)
        except Ge2Error:
            raise
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            types = ", ".join(str(type_of(x)) for x in xs)
            what = f"{op!r:.200} is no operation of {types}: {error}"
            fix = "attributes as ge2.make_jaxpr prints them"
            raise InputError(what, where=here(), fix=fix) from error

    return called(op.name, function)


def called(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """A function under a name, by which errors and reports call it."""

    def function(*xs: Any, **more: Any) -> Any:
        return f(*xs, **more)

    function.__name__ = function.__qualname__ = name
    return function
