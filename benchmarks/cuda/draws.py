"""Random numbers.

Each library has a generator of its own, so only their mean and spread can agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work
from benchmarks.options import USUAL, Options

COUNT = 1 << 27
GENERATORS = {"ge2": "Philox4x32-10", "jax": "Threefry-2x32, its default", "torch": "Philox4x32-10"}


def uniform(lib: Any, xp: Any, n: int, key: Any) -> Any:
    return lib.random.uniform(key, (n,), np.float32)


def normal(lib: Any, xp: Any, n: int, key: Any) -> Any:
    return lib.random.normal(key, (n,), np.float32)


def count_and_key(draw: Draw) -> tuple[Any, ...]:
    return draw.size(COUNT), draw.key()


# fmt: off
WORKS = {
    "uniform": Work(
        "uniform f32 2^27", uniform, count_and_key,
        lambda torch, n, key: torch.rand(n, device=key.device, dtype=torch.float32),
        lambda n, key: np.random.default_rng(1).random(n, np.float32),
        eager=True, random=True, notes=GENERATORS),
    "normal": Work(
        "normal f32 2^27", normal, count_and_key,
        lambda torch, n, key: torch.randn(n, device=key.device, dtype=torch.float32),
        lambda n, key: np.random.default_rng(1).standard_normal(n, np.float32),
        eager=True, random=True, notes=GENERATORS),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("draws", WORKS, options)
