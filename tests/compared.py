"""Several arrays beside those that they are to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def all_equal(found: Iterable[Any], wanted: Iterable[Any], **how: bool) -> None:
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(y, w, **how)


def all_close(
    found: Iterable[Any], wanted: Iterable[Any], rtol: float = 1e-7, atol: float = 0.0
) -> None:
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol, atol)
