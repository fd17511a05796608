"""Running sums, products and maxima along rows and columns, and a recurrence
by `associative_scan`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work, plain
from benchmarks.options import USUAL, Options

LONG = 1 << 27
SHAPE = 16384, 8192
NO_CUMMAX = {"torch": "left out: its cummax also writes where each maximum is"}
NO_SCAN = {"torch": "left out: it has no public associative_scan"}


def running_sum(axis: int, xp: Any, x: Any) -> Any:
    return xp.cumsum(x, axis=axis)


def running_product(xp: Any, x: Any) -> Any:
    return xp.cumprod(x, axis=-1)


def running_maximum(lib: Any, xp: Any, x: Any) -> Any:
    return lib.lax.cummax(x, 1) if lib.__name__ == "jax" else lib.numpy.cummax(x, -1)


def recurrence(lib: Any, xp: Any, a: Any, b: Any) -> Any:
    """h[t] = a[t] * h[t-1] + b[t]."""

    def after(first: Any, second: Any) -> Any:
        (a0, b0), (a1, b1) = first, second
        return a0 * a1, a1 * b0 + b1

    return lib.lax.associative_scan(after, (a, b))[1]


def recurrence_by_hand(a: Any, b: Any) -> Any:
    h, found = 0.0, np.empty_like(b)
    for t in range(len(b)):
        h = float(a[t]) * h + float(b[t])
        found[t] = h
    return found


def matrix(draw: Draw) -> tuple[Any, ...]:
    return (draw.normal(*SHAPE),)


def near_one(draw: Draw) -> tuple[Any, ...]:
    return (1 + draw.normal(*SHAPE) * np.float32(0.01),)


def coefficients(draw: Draw) -> tuple[Any, ...]:
    n = 1 << 24
    return np.tanh(draw.normal(n)), draw.normal(n)


# fmt: off
WORKS = {
    "cumsum-rows": Work(
        "cumsum f32 16384x8192, axis 1", plain(partial(running_sum, 1)), matrix,
        lambda torch, x: torch.cumsum(x, 1), tolerance=1e-3, eager=True),
    "cumsum-columns": Work(
        "cumsum f32 16384x8192, axis 0", plain(partial(running_sum, 0)), matrix,
        lambda torch, x: torch.cumsum(x, 0), tolerance=1e-3, eager=True),
    "cumsum-f64": Work(
        "cumsum f64 2^27", plain(partial(running_sum, 0)),
        lambda draw: (draw.normal(LONG, dtype=np.float64),),
        lambda torch, x: torch.cumsum(x, 0), tolerance=1e-9, eager=True),
    "cumprod": Work(
        "cumprod f32 16384x8192, axis 1", plain(running_product), near_one,
        lambda torch, x: torch.cumprod(x, 1), tolerance=1e-3, eager=True),
    "cummax": Work(
        "running maximum f32 16384x8192, axis 1", running_maximum, matrix, None,
        lambda x: np.maximum.accumulate(x, axis=1), tolerance=0, notes=NO_CUMMAX),
    "recurrence": Work(
        "associative_scan of h = a*h + b, f32 2^24", recurrence, coefficients, None, recurrence_by_hand,
        tolerance=1e-3, notes=NO_SCAN),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("scans", WORKS, options)
