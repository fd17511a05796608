"""Printing, looking and computing in Python from inside traced functions."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, final

import numpy as np

from ge2.base.errors import ArgumentError, InputError, PytreeError
from ge2.base.pytrees.pytree import Structure, flatten
from ge2.base.pytrees.treedef import LEAF
from ge2.base.record import record
from ge2.base.source import here, original
from ge2.ir import ArrayType, type_of
from ge2.ops.graphs.effects import (
    HOLE,
    METHODS,
    DebugCallback,
    DebugPrint,
    Host,
    PureCallback,
    host,
)
from ge2.trace import is_traced, title_of
from ge2.transforms.arguments import is_array

TRACED: Final = re.compile(r"<(\w+, |a )traced ~?[a-z0-9]+\[[\d,]*\]>")


@final
@record
class Printer:
    """Prints what it is called with; two of one format are equal."""

    fmt: str
    __name__ = "print"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        sys.stdout.write(f"{self.fmt.format(*args, **kwargs)}\n")


def debug_print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Prints `fmt.format(*args, **kwargs)` when the program runs, with the
    values that traced ones then have.

    Prints come in the order of the program, whatever `ordered` says. Under `vmap` there is one for
    each element, if an argument is mapped; under `grad` one, in the forward pass. ArgumentError for
    a format that does not fit the arguments.

    >>> import ge2
    >>> f = ge2.jit(lambda x: debug_print("x is {}, twice that {y}", x, y=2 * x))
    >>> f(1.5)
    x is 1.5, twice that 3.0
    """
    check_format(fmt, args, kwargs)
    leaves, structure = flatten((args, kwargs))
    each = [s is LEAF for group in structure.children for s in group.children]
    if all(each) and all(map(is_array, leaves)):
        DebugPrint(fmt, tuple(sorted(kwargs)))(*leaves)
        return
    called, arrays = host_of(Printer(fmt), leaves, structure)
    DebugCallback(called)(*arrays)


def debug_callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any
) -> None:
    """Calls `callback(*args, **kwargs)` when the program runs, with the values
    that traced ones then have.

    It is called for its effect; what it returns is dropped. The arrays it gets are its own. Calls
    come in the order of the program, whatever `ordered` says; under `vmap` there is one for each
    element, if an argument is mapped. An exception in it ends the call of the program. InputError
    if the callback closes over a traced value.

    >>> import numpy as np, ge2
    >>> seen = []
    >>> f = ge2.jit(lambda x: debug_callback(seen.append, x) or np.sin(x))
    >>> f(0.0), seen
    (array(0.), [array(0.)])
    """
    leaves, structure = flatten((args, kwargs))
    called, arrays = host_of(checked_callback("debug.callback", callback), leaves, structure)
    DebugCallback(called)(*arrays)


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """`callback(*args, **kwargs)`, computed in Python when the program runs.

    The callback takes and returns NumPy arrays, and depends on its arguments alone: it may be
    called once, twice, or not at all if its result is not used. `result_shape_dtypes` is what it
    returns with `ShapeDtypeStruct`s (or anything with a shape and a dtype) for arrays.
    `vmap_method` says how a batch is computed: "sequential", a call an element; "expand_dims", one
    call, all arrays with one more first axis, of size 1 for those that are not mapped;
    "broadcast_all", likewise, but of the size of the batch; "legacy_vectorized", one call, only
    mapped arrays with the axis. It has no derivative.

    >>> import numpy as np, ge2
    >>> def f(x):
    ...     return pure_callback(lambda x: np.sort(x), x, x)
    >>> ge2.jit(f)(np.array([3.0, 1.0, 2.0]))
    array([1., 2., 3.])
    """
    if vmap_method is not None and vmap_method not in METHODS:
        known = ", ".join(map(repr, METHODS))
        raise ArgumentError(
            f"pure_callback has no vmap_method {vmap_method!r}", where=here(), fix=known
        )
    wanted, results = flatten(result_shape_dtypes)
    types = tuple(map(result_type, wanted))
    leaves, structure = flatten((args, kwargs))
    called, arrays = host_of(
        checked_callback("pure_callback", callback), leaves, structure, results
    )
    ys = PureCallback(called, types, vmap_method)(*arrays)
    return results.unflatten(list(ys))


def result_type(wanted: Any) -> ArrayType:
    """The type of a promised result."""
    if hasattr(wanted, "shape") and hasattr(wanted, "dtype"):
        return ArrayType(tuple(wanted.shape), np.dtype(wanted.dtype))
    if is_array(wanted):
        t = type_of(wanted)
        return ArrayType(t.shape, t.dtype)
    what = f"result_shape_dtypes of pure_callback holds {wanted!r:.60} ({type(wanted).__name__})"
    raise InputError(
        what, where=here(), fix="ge2.ShapeDtypeStruct(shape, dtype), or an array like the result"
    )


# -------------------------------------------------------------------------------------------- hosts


def host_of(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    structure: Structure,
    results: Structure | None = None,
) -> tuple[Host, list[Any]]:
    """The function with what is no array filled in, and the arrays."""
    holes = [HOLE if is_array(leaf) else leaf for leaf in leaves]
    return host(function, holes, structure, results), [leaf for leaf in leaves if is_array(leaf)]


def checked_callback(what: str, callback: Any) -> Any:
    """The user's own function, which must not close over traced values: they
    are gone when it runs.
    """
    if not callable(callback):
        words = f"{what} takes a function; got a {type(callback).__name__}"
        raise InputError(words, where=here(), fix=f"ge2.{what}(f, x), not ge2.{what}(f(x))")
    found = original(callback)
    name = traced_name(found)
    if name:
        words = (
            f"{what}: {title_of(callback)} reads {name}, a traced value, which is gone when it runs"
        )
        raise InputError(
            words, where=here(), fix=f"pass it as an argument: ge2.{what}(f, ..., {name})"
        )
    return found


def traced_name(function: Any) -> str:
    """The variable of a function, or of one inside, that holds a traced value."""
    if isinstance(function, MethodType):
        return traced_name(function.__func__)
    if isinstance(function, partial):
        given = [*function.args, *function.keywords.values()]
        return (
            "an argument of the partial"
            if any(map(is_traced, given))
            else traced_name(function.func)
        )
    if not isinstance(function, FunctionType):
        return ""
    code, defaults = function.__code__, function.__defaults__ or ()
    last = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    given = [*zip(last, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]
    return next((name for name, value in [*bound(function), *given] if holds_traced(value)), "")


def bound(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of functions around it, and what they are bound to."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield name, cell.cell_contents


def holds_traced(value: Any) -> bool:
    try:
        return any(map(is_traced, flatten(value)[0]))
    except PytreeError:  # it contains itself
        return False


# ------------------------------------------------------------------------------------------ formats


def check_format(fmt: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """ArgumentError if the format has fields for which there are no arguments, or lacks some."""
    if not isinstance(fmt, str):
        what = f"debug.print takes a format string first; got a {type(fmt).__name__}"
        raise InputError(what, where=here(), fix="ge2.debug.print('x = {}', x)")
    found = TRACED.search(fmt)
    if found:
        what = f"the format of debug.print was made of a traced value: it holds {found[0]}"
        raise ArgumentError(
            what, where=here(), fix="ge2.debug.print('x = {}', x), without the f before '"
        )
    try:
        Fields().vformat(fmt, args, kwargs)
        if (
            len(
                {
                    name.isdigit()
                    for name in map(leading, string.Formatter().parse(fmt))
                    if name is not None
                }
            )
            > 1
        ):
            raise ValueError("it has both {} and {0}")
    except (LookupError, ValueError, AttributeError) as error:
        what = (
            f"the format {fmt!r} of debug.print does not fit its arguments: {Fields.words(error)}"
        )
        fix = "a {} for each argument, in order, or {name} for name=; {{ and }} for braces"
        raise ArgumentError(what, where=here(), fix=fix) from None


def leading(part: tuple[str, str | None, str | None, str | None]) -> str | None:
    """A field's number, nothing for the next, None for a name or plain text."""
    name = None if part[1] is None else re.split(r"[.\[]", part[1])[0]
    return name if name is not None and (not name or name.isdigit()) else None


@final
class Fields(string.Formatter):
    """Looks up every field, and formats none."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def check_unused_args(
        self, used_args: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        places = [f"argument {i}" for i in range(len(args)) if i not in used_args]
        unused = [*places, *(name for name in kwargs if name not in used_args)]
        if unused:
            raise ValueError(f"{', '.join(unused)} has no place in it")

    @staticmethod
    def words(error: Exception) -> str:
        if isinstance(error, KeyError):
            return f"{error} is not among them"
        return "there are too few of them" if isinstance(error, IndexError) else str(error)
