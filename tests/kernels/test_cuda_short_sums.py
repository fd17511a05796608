"""Sums of a few terms over many more elements than they are made of, and large values that two
kernels make rather than leave in memory: in the emulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.limits import H200
from tests.together import needs_compiler


def nearest(x: Any, c: Any) -> Any:
    d = ((x[:, None] - c) ** 2).sum(-1)
    return d.argmin(1), np.sqrt(d.min(1)).sum()


def energy(p: Any, q: Any) -> Any:
    d = p[:, None] - q
    return (1 / np.sqrt((d * d).sum(-1) + 1e-2)).sum()


def pulls(p: Any, q: Any) -> Any:
    return ge2.grad(energy, (0, 1))(p, q)


def pulls_by_hand(p: np.ndarray, q: np.ndarray) -> Any:
    d = p[:, None] - q
    each = -d / ((d * d).sum(-1, keepdims=True) + 1e-2) ** 1.5
    return each.sum(1), -each.sum(0)


def first_axis(x: Any, c: Any) -> Any:
    """The terms lie along the first axis, and one array is turned."""
    return np.abs(x.T[:, :, None] - c.T[:, None]).sum(0).max(1)


def masked(x: Any, c: Any) -> Any:
    """Of comparisons, constants and a row that all share."""
    return (
        (np.where(x[:, None] > c, x[:, None] * 2, c - 1) * np.arange(3.0)[None, None]).sum(2).min(0)
    )


Case = tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...], int]
# a function, what NumPy has for it, shapes, and how many kernels there are
CASES: Final[dict[str, Case]] = {
    "nearest": (nearest, nearest, ((6000, 6), (24, 6)), 2),
    "pulls": (pulls, pulls_by_hand, ((700, 3), (600, 3)), 4),
    "first axis": (first_axis, first_axis, ((2500, 5), (30, 5)), 1),
    "masked": (masked, masked, ((900, 3), (130, 3)), 2),
}


@needs_compiler
@pytest.mark.exhaustive("dtype", table="short sums")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str, dtype: str) -> None:
    function, exact, shapes, _ = CASES[name]
    rng = np.random.default_rng(5)
    xs = [rng.normal(size=s).astype(dtype) for s in shapes]
    with config.using(executor="shim", tuning=(H200,), shim_watch=True):
        found = ge2.jit(function)(*xs)
    wanted = exact(*(x.astype("f8") for x in xs))
    for y, w in zip(np_tuple(found), np_tuple(wanted), strict=True):
        scale = max(np.abs(w).max(), 1)
        np.testing.assert_allclose(
            y / scale, w / scale, rtol=0, atol=2e-5 if dtype == "f4" else 1e-12
        )


def np_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_nothing_large_is_left_in_memory(name: str) -> None:
    function, _, shapes, count = CASES[name]
    structs = [ge2.ShapeDtypeStruct(s, np.float32) for s in shapes]
    with config.using(executor="shim", tuning=(H200,)):
        text = ge2.jit(function).lower(*structs).as_text("python")
    assert len(re.findall("<<<", text)) == count


def test_sums_of_arrays_that_are_there_stay_sums() -> None:
    """Their elements are read once, side by side."""
    x = ge2.ShapeDtypeStruct((70_000, 8), np.float32)
    with config.using(executor="shim", tuning=(H200,)):
        low = ge2.jit(lambda x: (x * x).sum(1)).lower(x)
    assert [k.name for k in low.kernels] == ["rowwise_0"] or len(low.kernels) == 1
