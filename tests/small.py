"""Has small programs written as large ones are: many tasks, blocks, panels,
runs, arrays off the stack.
"""

from __future__ import annotations

import pytest

from ge2.codegen import axes
from ge2.codegen import kernel_values as blocks
from ge2.targets.c import assemble
from ge2.targets.c.blocked import numpy_calls
from ge2.targets.c.emit import reductions, region
from ge2.targets.c.kernels import gather_scatter, random, scan, sort, strided_loops

# fmt: off
TINY = (
    (blocks, "CACHE", 300), (blocks, "LEAST", 16), (blocks, "MOST", 256), (numpy_calls, "MANY", 4),
    (assemble, "SHARED", 0),
    (axes, "LANES", 2), (axes, "PANEL", 4), (axes, "CACHE", 64), (axes, "WIDE", 8), (axes, "TILE", 4),
    (axes, "FEW", 2), (axes, "SHORT", 2),
    (reductions, "RUN", 4), (reductions, "EXACT_RUN", 8), (region, "STACK", 8), (region, "FEW", 2),
    (strided_loops, "GRAIN", 0), (gather_scatter, "GRAIN", 0), (gather_scatter, "TILE", 4),
    (gather_scatter, "LANES", 2),
    (scan, "CHUNK", 3), (scan, "LINES", 4), (scan, "COLUMNS", 4), (sort, "SEARCHES", 2),
    (random, "PIECE", 64),
)
SHARED = (  # work for several threads; the text is the same, these are arguments
    (region, "GRAIN", 1), (region, "LEAST", 1), (region, "TASKS", 3),
)
# fmt: on


def tiny(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in (*TINY, *SHARED):
        patch.setattr(module, name, value)


def shared_out(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in SHARED:
        patch.setattr(module, name, value)
