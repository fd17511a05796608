"""Has small programs written as large ones are: many tasks, blocks, panels,
runs, arrays off the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ge2.codegen import axes
from ge2.codegen import kernel_values as blocks
from ge2.targets.c import assemble
from ge2.targets.c.blocked import numpy_calls
from ge2.targets.c.emit import reductions, region
from ge2.targets.c.kernels import gather_scatter, random, scan, sort, strided_loops
from ge2.targets.cuda.emulator.device import EMULATED
from ge2.targets.cuda.limits import KB, Limits
from ge2.targets.cuda.load.offline import limits_of
from ge2.targets.cuda.tuning import Rule

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


def planned_by(chip: Limits, family: str, **numbers: Any) -> Limits:
    """A chip with other numbers for a family of kernels."""
    changed = replace(getattr(chip.tuning, family), **numbers)
    return replace(chip, tuning=replace(chip.tuning, **{family: changed}))


def with_small_grids(chip: Limits) -> Limits:
    """The chip where no loop is for a block alone, a grid has 32 threads a block, and values of few
    elements are shared by all of them.
    """
    chip = planned_by(chip, "persistent", block=Rule(False, 0, -1, -1), alone=1 << 60)
    return planned_by(chip, "grid", threads=32, narrow=6, few=24)


SMALL_GRIDS = with_small_grids(EMULATED)
SMALL_CHIP = replace(
    limits_of("sm_86"),
    name="small",
    multiprocessors=40,
    shared_optin=99 * KB,
    shared_per_multiprocessor=100 * KB,
)


def name_of(test: Callable[[], None]) -> str:
    """A name for a test with its parameters."""
    if isinstance(test, partial):
        return f"{test.func.__name__}-{'-'.join(map(str, test.keywords.values()))}"
    return test.__name__


def tiny(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in (*TINY, *SHARED):
        patch.setattr(module, name, value)


def shared_out(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in SHARED:
        patch.setattr(module, name, value)
