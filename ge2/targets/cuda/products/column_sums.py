"""Sums over all rows of what a region makes of a product's elements, such as gradients of biases.

A kernel of products adds up those of its tiles in float32, as they are before they are rounded, and
leaves a row of parts for each warp of each tile. A second kernel adds up the parts in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from ge2.base.dtypes import FLOAT32, HALF
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand
from ge2.ir import ArrayType, Dims, Eqn, Graph, Op, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.region import Region
from ge2.ops.reduce import ArgReduce, Reduce, ReduceSum
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.kernel_parameters import Places
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.two_stage_reduce import Partials, part
from ge2.targets.cuda.products.gemm import tight

FOLDS: Final = Reduce | ArgReduce


@final
@record
class ColumnSum:
    """A sum of columns. `name`: of what is summed, of whose neighbours a thread has `value`; `type` and
    `out`: the types of that and of the result; `operand`: where the result is.

    It holds no equation: texts are kept by all that they are printed of, which variables are not.
    """

    name: str
    value: str
    op: Op
    type: ArrayType
    out: ArrayType
    operand: Operand

    @property
    def parts(self) -> str:
        """The array of parts."""
        return f"{self.name}_parts"

    def argument(self, temp: int) -> Argument:
        """That array as scratch of some number."""
        return Argument(
            f"float *__restrict__ {self.parts}", "result", (Operand("temp", temp, (1,)), FLOAT32)
        )

    def finish(self, count: int, temp: int, chip: Chip) -> tuple[CudaKernel, int]:
        """The kernel that adds up so many parts of each column, and their bytes."""
        shape, v, y = self.type.shape, Var(self.type), Var(self.out)
        axes = tuple(range(len(shape)))
        region = Region("reduce", shape, (axes,), Graph((v,), (Eqn(self.op, (v,), (y,)),), (y,)))
        operands = {v: Operand("in", 0, tight(shape, axes)), y: self.operand}
        problem = Problem(region, operands)
        (fold,) = problem.folded
        assert fold.y is not None
        order = sorted(fold.y.axes)
        found = part(problem, fold, order)
        assert found is not None, "its result is stored and not read"
        places = Places(problem.axes, operands, order)
        partials = Partials(problem, places, [found], count, chip.tuning.parts, first=temp)
        (kernel,), (nbytes,) = partials.kernels(), partials.temps
        return kernel, nbytes


def column_sums(region: Region, columns: int) -> tuple[Eqn, ...] | None:
    """The reductions of a region, if each is a sum over all axes but the last `columns`, of float32
    or half types, that only leaves the region; else None.
    """
    graph, rows = region.graph, tuple(range(len(region.space) - columns))
    found = tuple(e for e in graph.eqns if isinstance(e.op, FOLDS))
    read = {a for e in graph.eqns for a in e.inputs}
    for e in found:
        (x,), (y,) = e.inputs, e.outs
        whole = isinstance(e.op, ReduceSum) and e.op.axes == rows and x.type.shape == region.space
        kept = y in graph.outputs and y not in read
        if not (whole and kept and isinstance(x, Var) and x.type.dtype in (*HALF, FLOAT32)):
            return None
    return found


def without_sums(
    region: Region, sums: tuple[Eqn, ...]
) -> tuple[Region, Mapping[Var, Eqn]]:  # fmt: skip
    """The region with, in place of its sums, what is summed as further results in float32."""
    graph, whole = region.graph, tuple(range(len(region.space)))
    pairs = [(e, at) for e, at in zip(graph.eqns, region.axes, strict=True) if e not in sums]
    outputs = [v for v in graph.outputs if not any(v in e.outs for e in sums)]
    summed = dict[Var, Eqn]()
    for e in sums:
        op = ConvertElementType(FLOAT32)
        v = Var(*op.infer(e.inputs[0].type))
        pairs.append((Eqn(op, e.inputs, (v,)), whole))
        summed[v] = e
    eqns, axes = zip(*pairs, strict=True)
    inner = Graph(graph.inputs, eqns, (*outputs, *summed), graph.consts)
    return Region("pointwise", region.space, axes, inner), summed


def in_place(shape: Dims) -> Operand:
    """A place that nothing is stored at."""
    return Operand("temp", 0, tight(shape, range(len(shape))))
