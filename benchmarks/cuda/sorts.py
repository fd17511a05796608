"""Sorting: one long line, which is CuPy's, and many short ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work, at_most, plain
from benchmarks.options import USUAL, Options


def sorted_array(xp: Any, x: Any) -> Any:
    return xp.sort(x)


def order(xp: Any, x: Any) -> Any:
    return xp.argsort(x)


def sorted_rows(xp: Any, x: Any) -> Any:
    return xp.sort(x, 1)


def middle(xp: Any, x: Any) -> Any:
    return xp.sort(x, 1)[:, 16]


def rows(n: int, size: int) -> Any:
    return lambda draw: (draw.normal(n, size),)


def distinct(draw: Draw) -> tuple[Any, ...]:
    """float32 holds each of them, and none twice, so that there is one order."""
    return (draw.distinct(1 << 24, np.float32),)


# fmt: off
WORKS = {
    "sort": Work(
        "sort f32 2^24", plain(sorted_array), distinct, lambda torch, x: torch.sort(x).values,
        tolerance=0, eager=True, notes={"ge2": "CuPy's", "torch": "finds the order as well"}),
    "argsort": Work(
        "argsort f32 2^24, int64", plain(order), distinct, lambda torch, x: torch.argsort(x),
        tolerance=0, eager=True, notes={"ge2": "CuPy's"}),
    "sort-rows": Work(
        "sort of rows, f32 2^20x32", plain(sorted_rows), rows(1 << 20, 32),
        lambda torch, x: torch.sort(x, 1).values, tolerance=0, targets=at_most(0.3)),
    "middle-of-rows": Work(
        "the middle of sorted rows, f32 2^20x32", plain(middle), rows(1 << 20, 32),
        lambda torch, x: torch.sort(x, 1).values[:, 16], tolerance=0, targets=at_most(0.2)),
    "sort-longer-rows": Work(
        "sort of rows, f32 2^17x256", plain(sorted_rows), rows(1 << 17, 256),
        lambda torch, x: torch.sort(x, 1).values, tolerance=0),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("sorts", WORKS, options)
