"""The most that a processor does of what ge2's own code asks of it: by
programs that do nothing else.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ge2.base.config import config
from ge2.base.dtypes import FLOAT32, FLOAT64
from ge2.compile.compile import compile_graph
from ge2.program.timing import Ceilings, Clock, best
from ge2.transforms.inspect import ShapeDtypeStruct, make_jaxpr

COPIED: Final = 1 << 26  # elements of float32: what no cache holds
ELEMENTS: Final = 1 << 20
CHAINS, STEPS = 8, 16  # sums beside each other, and multiply-adds of each


def processor_ceilings(clock: Clock, double: bool, scale: int = 1) -> Ceilings:
    """As programs reach them under the settings of now. With `scale`, of arrays so much smaller."""
    moved = best_of(negated, FLOAT32, COPIED // scale, clock)
    dtypes = [FLOAT32, *([FLOAT64] if double else [])]
    times = [best_of(multiplied, dtype, ELEMENTS // scale, clock) for dtype in dtypes]
    rates = [2 * CHAINS * STEPS * (ELEMENTS // scale) / each for each in times]
    return Ceilings(2 * FLOAT32.itemsize * (COPIED // scale) / moved, *rates)


def best_of(f: Any, dtype: np.dtype, size: int, clock: Clock) -> float:
    """The seconds of a function of one array.

    Loops in it stay unrolled, so that sums stay in registers.
    """
    graph = make_jaxpr(f)(ShapeDtypeStruct((size,), dtype)).graph
    with config.using(passes_off=(*config.passes_off, "roll"), debug_nans=False, debug_infs=False):
        program = compile_graph(graph, name=f.__name__)
        program.build()
    x = np.full(size, 0.5, dtype)
    return best(clock, lambda: program(x))


def negated(x: Any) -> Any:
    return -x


def multiplied(x: Any) -> Any:
    """Sums that do not wait for each other: a product and an addition, which ge2 rounds apart."""
    sums = [x + i / CHAINS for i in range(CHAINS)]
    for _ in range(STEPS):
        sums = [s * x + x for s in sums]
    return sum(sums[1:], sums[0])
