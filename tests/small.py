"""Numbers and chips by which small programs are written as large ones are: many tasks, blocks,
panels, runs, arrays off the stack; grids of few threads.

`config.using(tuning=(TINY,))` hands them in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ge2.codegen.kernel_values import Blocks, Nests
from ge2.targets.c.tuning import Draws, Moves, Regions, Scans, Sorts, Tuning
from ge2.targets.cuda.emulator import EMULATED, limits_of
from ge2.targets.cuda.limits import KB, Limits
from ge2.targets.cuda.tuning import Rule

SHARED_OUT = Tuning(regions=Regions(grain=1, task=1, tasks=3))  # whose text is the usual one
TINY = Tuning(
    blocks=Blocks(cache=300, smallest=16, largest=256),
    nests=Nests(lanes=2, panel=4, cache=64, wide=8, tile=4, few=2, short=2),
    regions=Regions(1, 1, 3, stack=8, few=2, run=4, exact_run=8, masked=4),
    moves=Moves(grain=0, tile=4, lanes=2),
    scans=Scans(chunk=3, lines=4, columns=4),
    sorts=Sorts(searches=2),
    draws=Draws(piece=64),
    shared=0,
)


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
