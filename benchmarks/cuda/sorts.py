"""Sorting. Ours is CuPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work, plain
from benchmarks.options import USUAL, Options


def sorted_array(xp: Any, x: Any) -> Any:
    return xp.sort(x)


def order(xp: Any, x: Any) -> Any:
    return xp.argsort(x)


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
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("sorts", WORKS, options)
