"""Elementwise kernels that begin where the launch before has ended: what that had last is in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.limits import H200
from tests.together import needs_compiler

BACK = "gridDim.x - 1 - blockIdx.x"
# arrays of more than 4096 bytes are no longer in its cache when they have been read
SMALL_CACHE = replace(H200, l2=1 << 13)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "columns": lambda x: (x - x.mean(0)) / x.std(0),
    "rows": lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    "lines": lambda x: np.tanh(np.sort(x, 1)),
    "of a transpose": lambda x: np.cumsum(x.T, 1) * 2 + x.T,
    "narrow": lambda x: np.cumsum(x[:, :3], 0) + 1,
}


@pytest.fixture(autouse=True)
def small_cache() -> Iterator[None]:
    with config.using(executor="shim", tuning=(SMALL_CACHE,)):
        yield


def texts(g: Any, *xs: Any) -> list[str]:
    return [k.source for k in g.lower(*xs).kernels]


@needs_compiler
@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("shape", [(70, 64), (1000, 33), (41, 2049), (6000, 5)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_results_are_the_same(
    name: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    g = ge2.jit(lambda x: FUNCTIONS[name](x))
    np.testing.assert_allclose(g(x), FUNCTIONS[name](x.astype(np.float64)), rtol=2e-4, atol=2e-5)


def test_every_other_launch_goes_back() -> None:
    def chain(x: Any) -> Any:
        for _ in range(3):
            x = np.cumsum(x, 1) * 2 + x
        return x

    backwards = [BACK in text for text in texts(ge2.jit(chain), np.ones((64, 256), np.float32))]
    assert backwards == [False, True] * 3


def test_what_the_cache_holds_is_gone_through_forwards() -> None:
    f = FUNCTIONS["lines"]
    for rows, back in ((4, False), (64, True)):
        x = np.ones((rows, 256), np.float32)
        assert any(BACK in text for text in texts(ge2.jit(lambda x: f(x)), x)) == back


def test_other_arrays_are_gone_through_forwards() -> None:
    def two(x: Any, y: Any) -> Any:
        return np.sort(x, 1), np.tanh(y)

    x = np.ones((64, 256), np.float32)
    assert not any(BACK in text for text in texts(ge2.jit(two), x, x.copy()))
