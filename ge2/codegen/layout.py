"""The layout of an array within the memory of another: an offset, and a stride for each axis."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from ge2.base.record import record
from ge2.codegen.axes import strides_of
from ge2.codegen.kernel_values import Param, Tiling
from ge2.ir import Dims, Eqn, Graph
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.shape import BroadcastInDim, Identity, Reshape, Rev, Slice, Transpose


@final
@record
class Layout:
    """Counted in elements."""

    offset: int
    strides: Dims


def plain(shape: Dims) -> Layout:
    """The layout of an array in C order."""
    return Layout(0, strides_of(shape))


def viewed(eqn: Eqn, x: Layout) -> Layout | None:
    """The layout of the result of a view; None if it needs a copy."""
    op, shape = eqn.op, eqn.inputs[0].type.shape
    if isinstance(op, Identity):
        return x
    if isinstance(op, Transpose):
        return Layout(x.offset, tuple(x.strides[i] for i in op.order))
    if isinstance(op, BroadcastInDim):
        strides = [0] * len(op.shape)
        for d, n, s in zip(op.dims, shape, x.strides, strict=True):
            strides[d] = s if n != 1 or op.shape[d] == 1 else 0
        return Layout(x.offset, tuple(strides))
    if isinstance(op, Slice):
        offset = sum(a * s for a, s in zip(op.start, x.strides, strict=True))
        return Layout(
            x.offset + offset, tuple(a * s for a, s in zip(op.step, x.strides, strict=True))
        )
    if isinstance(op, Rev):
        offset = sum((shape[a] - 1) * x.strides[a] for a in op.axes if shape[a])
        return Layout(
            x.offset + offset, tuple(-s if a in op.axes else s for a, s in enumerate(x.strides))
        )
    assert isinstance(op, Reshape)
    return reshaped(x, shape, op.shape)


def reshaped(x: Layout, old: Dims, new: Dims) -> Layout | None:
    """Axes may be split anywhere, and merged where they are tight."""
    if 0 in old:
        return Layout(x.offset, strides_of(new))
    sizes = [(n, s) for n, s in zip(old, x.strides, strict=True) if n != 1]
    found: list[int] = []
    wanted = list(new)
    while wanted:
        if wanted[0] == 1 or not sizes:
            wanted.pop(0)
            found.append(1)
            continue
        n, stride = sizes.pop(0)
        take = [wanted.pop(0)]
        total = take[0]
        while total != n:
            if total < n:
                take.append(wanted.pop(0))
                total *= take[-1]
            else:
                more, inner = sizes.pop(0)
                if stride != inner * more:
                    return None
                n, stride = n * more, inner
        inner = stride
        strides = []
        for size in reversed(take):
            strides.append(inner)
            inner *= size
        found += reversed(strides)
    return Layout(x.offset, tuple(found))


# -------------------------------------------------------------------------------------------- view
# What a template sees: frozen records of finished decisions, with nothing left to compute.


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


def unspoken(graph: Graph) -> str:
    """The reason why an equation has no expression in C and CUDA; "" if each has one."""
    for op in (eqn.op for eqn in graph.eqns):
        if isinstance(op, Pointlike) and not (op.retypes or isinstance(op.lowering, Pointwise)):
            return f"{op.name} has no expression"
    return ""
