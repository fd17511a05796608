"""What a template sees: frozen records of finished decisions, with nothing left to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ge2.codegen.blocks import Tiling
from ge2.ir import Dims, Var


@final
@dataclass(frozen=True, slots=True)
class Line:
    """A line of code, and what it is for, in the margin."""

    code: str
    comment: str = ""


@final
@dataclass(frozen=True, slots=True)
class Param:
    """An array a kernel reads or writes whole: a value of the graph with its axes in the order of the space.

    `order` transposes it and `shape` then drops or adds axes of size 1; None where nothing is to be done.
    """

    name: str
    var: Var
    order: Dims | None
    shape: Dims | None
    comment: str


@final
@dataclass(frozen=True, slots=True)
class Scratch:
    """An array of the kernel's own: of a block, or of the partial results of a reduction."""

    name: str
    shape: Dims
    dtype: np.dtype
    comment: str = ""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class KernelView:
    """A region as a function of NumPy calls."""

    name: str
    kind: str
    graph: str
    tiling: Tiling
    imports: tuple[str, ...]
    constants: tuple[Line, ...]
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    scratch: tuple[Scratch, ...]  # one set a thread
    partials: tuple[Scratch, ...]  # one set a call
    before: tuple[Line, ...]  # the part of the work that no block changes
    blocks: tuple[Line, ...]  # what of each array is in the block
    body: tuple[Line, ...]
    after: tuple[Line, ...]  # partial results into results
    begin: tuple[Line, ...] = field(default=())  # at the start of each run of blocks

    @property
    def looped(self) -> bool:
        return self.tiling.blocks > 1

    @property
    def arguments(self) -> Any:
        return [p.name for p in (*self.inputs, *self.outputs)]
