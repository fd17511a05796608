"""Tuning: kernels of a function, or of all that is built inside a `with`, are raced and recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ge2.base.config import config
from ge2.base.errors import ArgumentError
from ge2.base.source import here
from ge2.compile.race import Tuned, lasting, on_stderr, tune

if TYPE_CHECKING:
    from ge2.dispatch.jitted import Jitted


@contextmanager
def tuning(budget: float = 30.0) -> Iterator[None]:
    """Inside the `with`, the kernels of each program that is built are measured first, for `budget`
    seconds in all; what wins is recorded, and taken from then on.

    Programs that were built before stay as they are. Progress goes to stderr. ArgumentError for a
    budget that is no number of seconds.

    >>> import numpy as np, ge2
    >>> with ge2.tuning(budget=0.0), ge2.config.using(progress="off"):
    ...     ge2.jit(np.tanh)(np.zeros(3))
    array([0., 0., 0.])
    """
    with lasting(time.monotonic() + checked(budget)), config.using(tune="on"):
        yield


def tuned(
    function: Jitted[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: float,
    again: bool,
) -> Tuned:
    """The races for the kernels that a call runs. If one has another winner than was taken, calls
    from then on build their programs anew.
    """
    with config.using(tune="cached" if config.tune == "on" else config.tune):
        executable = function.entry_of(args, kwargs).ready()
    found = tune(executable, checked(budget), on_stderr, again)
    if found.changed:
        config.renew()
    return found


def checked(budget: Any) -> float:
    if isinstance(budget, int | float) and budget >= 0:
        return budget
    what = f"a budget is a number of seconds, 0 or more; got {budget!r}"
    raise ArgumentError(what, where=here(), fix="budget=30")
