"""Ways of running that help to find a mistake, each a setting and a `with`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ge2.base.config import config


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
