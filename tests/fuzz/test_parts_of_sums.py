"""Random programs of sums over several axes beside values of elements, of few long rows: blocks share
rows, and leave parts of sums in scratch. Watched, no access is outside of its array or races.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.emulator import EMULATED
from tests.small import planned_by
from tests.together import needs_compiler

# on which rows of 64 elements are long, and few of them are at hand
CHIP = planned_by(EMULATED, "rowwise", long=64, met=16)
# and of whose elements few threads each merge the parts
MANY = planned_by(CHIP, "parts", threads=64)
PAIRS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a * b,
    lambda a, b: a - b,
    lambda a, b: np.tanh(a + b),
    lambda a, b: a / (2 + b * b),
]


def drawn(rng: np.random.Generator) -> tuple[Callable[..., Any], list[Any]]:
    """A function of three arrays, of which one lacks some axes, and the arrays. Sums have the length of
    what they sum to the axis, so that values that are added have one shape or another of them.
    """
    rank = int(rng.integers(2, 5))
    shape = [int(rng.choice([1, 2, 3, 5])) for _ in range(rank - 2)]
    shape += [int(rng.choice([3, 17, 64, 130])), int(rng.choice([40, 64, 128, 257]))]
    narrow = [1 if rng.random() < 0.5 else n for n in shape]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, shape, narrow)]
    plan = [int(n) for n in rng.integers(0, 1 << 30, 24)]

    def f(*xs: Any) -> Any:
        values, found = list(xs), []
        for at in range(0, len(plan), 4):
            kind, first, second, axes = plan[at : at + 4]
            a, b = values[first % len(values)], values[second % len(values)]
            over = tuple(n for n in range(rank) if axes >> n & 1) or (rank - 1,)
            made = (
                PAIRS[kind // 5 % len(PAIRS)](a, b)
                if kind % 5 < 2
                else np.max(a * b, over, keepdims=True)
                if kind % 5 == 2
                else (np.mean if kind % 5 == 3 else np.sum)(a * b, over, keepdims=True)
            )
            values.append(made)
            if axes >> 5 & 1:
                found.append(made if axes >> 6 & 1 else np.sum(made * 0.5, over))
        return *found, values[-1], np.sum(values[-1] * values[0], tuple(range(rank - 1)))

    return f, arrays


def agrees(seed: int) -> None:
    f, arrays = drawn(np.random.default_rng(seed))
    wanted = f(*(x.astype(np.float64) for x in arrays))
    plain = f(*arrays)
    with config.using(
        executor="shim", shim_watch=True, shim_seed=seed, tuning=(MANY if seed % 2 else CHIP,)
    ):
        found = ge2.jit(f)(*arrays)
    for y, w, p in zip(found, wanted, plain, strict=True):
        near = 1e-5 * (1 + np.abs(w).max()) + 16 * np.abs(p - w).max()
        assert np.abs(y - w).max() <= near, f"seed {seed}: {np.abs(y - w).max()}, not {near}"


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_parts_of_sums_over_several_axes(seed: int) -> None:
    agrees(seed)
