"""Sums that blocks share, and what is made of them: the kernel that merges the parts goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import ge2
from ge2.base.arrays import BFLOAT16
from ge2.base.config import config
from ge2.targets.cuda.limits import H200
from tests.together import needs_compiler

# each with its shape, and how many kernels it is; parts of 70,000 rows by 20 are merged by 1024 threads
TAILS: Final[dict[str, tuple[Callable[..., Any], tuple[int, ...], int]]] = {
    "mean of columns": (lambda x: x.mean(0), (20_000, 5), 2),
    "deviation of columns": (lambda x: x.std(0, ddof=1), (70_000, 20), 4),
    "two sums of columns": (lambda x: np.sqrt((x * x).mean(0) - x.mean(0) ** 2), (40_001, 7), 2),
    "mean of long rows": (lambda x: np.exp(x.mean(1)) + 1, (3, 70_000), 2),
    "norm": (lambda x: np.sqrt((x * x).sum()), (300, 401), 2),
    "kept axes": (lambda x: 1 / (x * x).sum((0, 2), keepdims=True), (200, 3, 150), 2),
    "a maximum that is kept, too": (lambda x: (x.max(0), x.max(0) * 2 + 1), (20_000, 5), 2),
    "what all read": (lambda x: (x - x.mean(0)) / x.std(0), (20_000, 20), 5),
}
DTYPES: Final = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16]


def close(found: Any, function: Callable[..., Any], x: np.ndarray) -> None:
    """As near to NumPy's in float64 as the type allows."""
    wanted = function(x.astype(np.float64))
    digits = {"float64": 1e-12, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}[x.dtype.name]
    many = found if isinstance(found, tuple) else (found,)
    for y, z in zip(many, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        scale = np.abs(z).max()
        np.testing.assert_allclose(
            np.asarray(y, np.float64) / scale, z / scale, atol=digits, rtol=0
        )


@needs_compiler
@pytest.mark.exhaustive("dtype", table="tails of sums")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TAILS)
def test_values_are_those_of_numpy(name: str, dtype: np.dtype) -> None:
    function, shape, _ = TAILS[name]
    x = (2 + np.random.default_rng(3).normal(size=shape)).astype(dtype)
    with config.using(executor="shim", shim_watch=True):
        close(ge2.jit(function)(x), function, x)


def launches(function: Callable[..., Any], *structs: Any) -> int:
    with config.using(executor="shim", tuning=(H200,)):
        return len(re.findall("<<<", ge2.jit(function).lower(*structs).as_text("python")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TAILS)
def test_no_kernel_more_than_sums_take(name: str) -> None:
    function, shape, count = TAILS[name]
    assert launches(function, ge2.ShapeDtypeStruct(shape, np.float32)) == count


def test_what_is_made_of_other_arrays_is_a_kernel_of_its_own() -> None:
    """Updates of parameters go with others of their kind."""
    structs = [ge2.ShapeDtypeStruct(s, np.float32) for s in ((70_000, 5), (5,), (5, 5))]
    assert launches(lambda x, p, _: p - 0.1 * x.sum(0), *structs) == 3
    assert launches(lambda x, p, _: x.mean(0)[:, None] * p, *structs) == 3
    assert launches(lambda x, _, y: (x.sum(0) + x.sum() * 2, y * 2), *structs) <= 6
