"""A function that counts its traces."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import ge2

X = np.array([1.0, 2.0, 3.0])


class Counted:
    """A function that counts how often it runs, which is how often it is traced."""

    def __init__(self, function: Any, **options: Any) -> None:
        self.traces = 0

        @functools.wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            return function(*args, **kwargs)

        self.jitted = ge2.jit(counting, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted(*args, **kwargs)
