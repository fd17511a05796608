"""What a template sees: frozen records of finished decisions, with nothing left to compute."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from ge2.base.record import record
from ge2.codegen.blocks import Tiling
from ge2.codegen.kernel_values import Param
from ge2.ir import Dims


@final
@record
class Line:
    """A line of code, and what it is for, in the margin."""

    code: str
    comment: str = ""


@final
@record
class Scratch:
    """An array of the kernel's own: of a block, or of the partial results of a reduction."""

    name: str
    shape: Dims
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@final
@record
class KernelView:
    """A region as a function of NumPy calls."""

    name: str
    kind: str
    graph: str
    tiling: Tiling
    imports: tuple[str, ...]
    extended: tuple[str, ...]  # dtypes from ml_dtypes
    constants: tuple[Line, ...]
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    scratch: tuple[Scratch, ...]  # one set a thread
    partials: tuple[Scratch, ...]  # one set a call
    before: tuple[Line, ...]  # what no block changes
    begin: tuple[Line, ...]  # at the start of each run of blocks
    blocks: tuple[Line, ...]  # the part of each array that is in the block
    body: tuple[Line, ...]
    after: tuple[Line, ...]  # partial results into results
    halves: bool  # whether it sums blocks by adding their halves

    @property
    def looped(self) -> bool:
        return self.tiling.blocks > 1

    @property
    def parameters(self) -> str:
        names = [a.name for a in (*self.inputs, *self.outputs)] + [
            a.name for a in (*self.partials, *self.scratch)
        ]
        return ", ".join([*(["parts"] if self.looped else []), *names])

    @property
    def finished(self) -> str:
        return ", ".join([a.name for a in self.outputs] + [a.name for a in self.partials])
