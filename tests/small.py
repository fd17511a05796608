"""Has small programs written as large ones are: many tasks, blocks, panels, runs, arrays off the stack."""

from __future__ import annotations

import pytest

from ge2.codegen import blocks, statements
from ge2.codegen.c import axes, folds, kernel
from ge2.kernels import draws, indexing, loops, scans, sorting
from ge2.runtime import driver

# fmt: off
TINY = (
    (blocks, "CACHE", 300), (blocks, "LEAST", 16), (blocks, "MOST", 256), (statements, "MANY", 4),
    (driver, "SHARED", 0),
    (axes, "LANES", 2), (axes, "PANEL", 4), (axes, "CACHE", 64), (axes, "WIDE", 8), (axes, "TILE", 4),
    (axes, "FEW", 2), (axes, "SHORT", 2),
    (folds, "RUN", 4), (folds, "EXACT_RUN", 8), (kernel, "STACK", 8), (kernel, "FEW", 2),
    (loops, "GRAIN", 0), (indexing, "GRAIN", 0), (indexing, "TILE", 4), (indexing, "LANES", 2),
    (scans, "CHUNK", 3), (scans, "LINES", 4), (scans, "COLUMNS", 4), (sorting, "SEARCHES", 2),
    (draws, "PIECE", 64),
)
SHARED = (  # work for several threads; the text is the same, these are arguments
    (kernel, "GRAIN", 1), (kernel, "LEAST", 1), (kernel, "TASKS", 3),
)
# fmt: on


def tiny(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in (*TINY, *SHARED):
        patch.setattr(module, name, value)


def shared_out(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in SHARED:
        patch.setattr(module, name, value)
