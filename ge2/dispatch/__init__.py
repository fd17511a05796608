"""`jit`, and control over the programs behind the functions that it returns."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, overload

from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.base.source import byte_count, here
from ge2.dispatch import cache as entries
from ge2.dispatch.cache import forget_closures
from ge2.dispatch.jitted import Jitted, living
from ge2.dispatch.signature import Argnames, Argnums, Function, numbers_and_names, title

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(
    fun: Callable[P, R],
    *,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    device: Literal["cpu"] | None = None,
    max_traces: int | None = None,
    memory_limit: int | str | None = None,
    widest: str | None = None,
) -> Jitted[P, R]: ...
@overload
def jit(
    fun: None = None,
    *,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    device: Literal["cpu"] | None = None,
    max_traces: int | None = None,
    memory_limit: int | str | None = None,
    widest: str | None = None,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    fun: Function | None = None,
    *,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    device: Literal["cpu"] | None = None,
    max_traces: int | None = None,
    memory_limit: int | str | None = None,
    widest: str | None = None,
) -> Any:
    """`fun`, compiled: traced once for each signature of its arguments,
    then run as a fixed program.

    Arrays, numbers and containers of them are arguments; a changed number is no new signature.
    Strings, functions and the arguments named by `static_argnums` or `static_argnames` (hashable)
    are constants and part of the signature, as is what the function closes over: arrays there are
    inputs like arguments. Arguments named by `donate_argnums` or `donate_argnames` may be
    overwritten with results, and so may views that were taken of them before: `GE2_CHECK=1` fills
    them all with NaN. The latest 512 signatures are remembered; with `max_traces`, a call that
    would be one trace more than that is a RetraceError, which shows `cache_report()`. Results are
    new arrays, writable and contiguous. Arguments that `fun` writes (`x += 1`, `x[0] = y`, `out=x`)
    are the caller's arrays, which change when the call succeeds and not when it fails; one that is
    returned is itself the result. InPlaceError if such an argument shares memory with another,
    ReadOnlyError if it cannot be written. `memory_limit`, as 200_000_000 or "200MB" (a MB is 1024 *
    1024 bytes), bounds what a call allocates for scratch and results: values that wait for the end
    of the program are computed again instead, just enough. Within another traced function it has no
    limit of its own. `widest="float32"` (or "float16", "bfloat16") refuses every wider floating or
    complex value: arguments, arrays that the function closes over, and results of operations.
    Python numbers have no dtype of their own and are never too wide.

    Raises InputError for an argument that is none of these, ImpureError for a function that draws
    from `np.random`, MemoryLimitError for a limit that cannot be kept, WideningError with the line
    at which a value becomes wider than `widest`.

    >>> import numpy as np
    >>> f = jit(lambda x, scale: np.tanh(x) * scale)
    >>> f(np.zeros(3, np.float32), 2.0)
    array([0., 0., 0.], dtype=float32)
    """
    chosen = partial(
        jitted_function, static=(static_argnums, static_argnames), donated=(donate_argnums, donate_argnames),
        device=device, max_traces=max_traces, memory_limit=memory_limit, widest=widest,
    )  # fmt: skip
    return chosen if fun is None else chosen(fun)


def jitted_function(
    fun: Function, static: tuple[Argnums, Argnames], donated: tuple[Argnums, Argnames], device: str | None,
    max_traces: int | None, memory_limit: int | str | None, widest: str | None,
) -> Jitted[..., Any]:  # fmt: skip
    """The function that `jit` returns, once its options are checked."""
    if device not in (None, "cpu"):
        raise InputError(f"jit has no device {device!r}", where=here(), fix="device=None, or 'cpu'")
    check_function(fun)
    if max_traces is not None and (type(max_traces) is not int or max_traces < 1):
        what = f"max_traces is a number of traces, 1 or more; got {max_traces!r}"
        raise InputError(what, where=here(), fix="max_traces=None for no limit")
    constant = numbers_and_names(fun, *static, "static")
    given = numbers_and_names(fun, *donated, "donate")
    if both := (constant[0] & given[0]) or (constant[1] & given[1]):
        raise InputError(f"jit: argument {min(both)} is both static and donated", where=here())
    limit = None if memory_limit is None else byte_count(memory_limit)
    if widest is None:
        return Jitted(fun, constant, given, max_traces, limit)
    from ge2.dispatch.cache_report import widest_dtype  # seldom needed

    return Jitted(fun, constant, given, max_traces, limit, widest_dtype(widest))


def check_function(fun: Any) -> None:
    if isinstance(fun, classmethod | staticmethod):
        kind = type(fun).__name__
        raise InputError(f"jit was given a {kind}", where=here(), fix=f"@{kind} above @ge2.jit")
    if not callable(fun):
        raise InputError(
            f"jit takes a function; got {fun!r:.60} ({type(fun).__name__})",
            where=here(),
            fix="ge2.jit(f)(x), not ge2.jit(f(x))",
        )
    kinds = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
    if any(kind(fun) for kind in kinds):
        raise InputError(
            f"{title(fun)} is a generator or coroutine, which has no single result",
            where=here(),
            fix="a function that returns",
        )


def clear_caches() -> None:
    """Forgets every trace and every compiled program of this process,
    and gives scratch back to GPUs.
    """
    for jitted in list(living):
        jitted.clear_cache()
    forget_closures()
    entries.forget()
    cuda = sys.modules.get("ge2.targets.cuda.load.gpu")  # else there is none
    for device in cuda.used if cuda is not None else ():
        device.scratch.release()


# ------------------------------------------------------------------------------------------- modes
# Ways of running that help to find a mistake, each a setting and a `with`.


def disable_jit(disable: bool = True) -> AbstractContextManager[None]:
    """Inside the `with`, jitted functions run as the plain functions they were made from.

    >>> import ge2
    >>> with disable_jit():
    ...     ge2.jit(lambda x: print("plain") or x)(1)
    plain
    1
    """
    return config.using(disable_jit=disable)


def checking_leaks() -> AbstractContextManager[None]:
    """Inside the `with`, a traced value that outlives its trace is an error when the trace ends.

    Without it, the error comes when such a value is used.

    >>> import ge2
    >>> kept = []
    >>> with checking_leaks():
    ...     ge2.jit(lambda x: kept.append(x) or x)(1)
    Traceback (most recent call last):
    ge2.errors.UnexpectedTracerError: x (traced ~i64[]) outlived the trace of <lambda> ...
    """
    return config.using(check_leaks=True)


def debug_nans(enable: bool = True) -> AbstractContextManager[None]:
    """Inside the `with`, a NaN that a compiled or transformed function makes is an error.

    NonFiniteError names the first equation that made one that reaches a result, what it
    read, and its line. Results are looked at after each call; where one holds a NaN,
    the function is run again op by op.

    >>> import numpy as np, ge2
    >>> with debug_nans():
    ...     ge2.jit(lambda x: np.log(x) * 2)(-1.0)
    Traceback (most recent call last):
    ge2.errors.NonFiniteError: log made a NaN in <lambda>
      of   ~f64[] -1.0
      at   ...
    """
    return config.using(debug_nans=enable)


def debug_infs(enable: bool = True) -> AbstractContextManager[None]:
    """As `debug_nans`, for infinities."""
    return config.using(debug_infs=enable)
