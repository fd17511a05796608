"""Rates as functions of the number of steps taken, 0 at the first: a `rate` of any optimiser.

They are computed in float32, of a traced number as of Python's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Schedule = Callable[[Any], Any]


def part(step: Any, steps: float) -> Any:
    """The part of so many steps that is done, in [0, 1]."""
    return np.clip(np.float32(1 / max(steps, 1)) * step, 0.0, 1.0)


def constant(rate: float) -> Schedule:
    """The same rate at each step.

    >>> constant(0.1)(7)
    0.1
    """
    return lambda step: rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` along a line of so many steps, then `end`.

    >>> [float(linear(1.0, 0.0, 4)(step)) for step in (0, 1, 4, 5)]
    [1.0, 0.75, 0.0, 0.0]
    """
    return lambda step: start + (end - start) * part(step, steps)


def cosine(peak: float, warmup: int, steps: int, end: float = 0.0) -> Schedule:
    """From 0 to `peak` along a line of `warmup` steps, then to `end` along half a cosine until step
    `steps`. Loshchilov and Hutter, "SGDR", 2016.

    >>> [round(float(cosine(1.0, 2, 6)(step)), 3) for step in (0, 1, 2, 4, 6, 9)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    def rate(step: Any) -> Any:
        fall = 0.5 * (1.0 + np.cos(math.pi * part(step - warmup, steps - warmup)))
        return (end + (peak - end) * fall) * (part(step, warmup) if warmup else 1.0)

    return rate


def exponential(start: float, factor: float, steps: int = 1) -> Schedule:
    """`start` times `factor` for each `steps` steps, in between as well.

    >>> [round(float(exponential(1.0, 0.25, 2)(step)), 3) for step in (0, 1, 2)]
    [1.0, 0.5, 0.25]
    """
    return lambda step: start * np.float32(factor) ** (np.float32(1 / steps) * step)


def step_decay(start: float, factor: float, steps: int) -> Schedule:
    """`start` times `factor` after each `steps` steps.

    >>> [round(float(step_decay(1.0, 0.1, 2)(step)), 3) for step in (0, 1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    return lambda step: start * np.float32(factor) ** (np.float32(1) * (step // steps))
