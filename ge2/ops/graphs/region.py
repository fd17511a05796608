"""A Region: an operation that holds a graph, which becomes one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Dims,
    Eqn,
    Evaluate,
    Graph,
    GraphOp,
    Op,
    Var,
    read,
    rename,
    renamed,
)  # fmt: skip

Runs = tuple[tuple[int, int, int], ...]
KINDS = ("pointwise", "rowwise", "reduce")
EVALUATE = Evaluate()


class Fused(GraphOp):
    """A graph whose equations are one kernel: made after all derivatives, of no rule but the
    meaning of its equations.
    """

    __slots__ = ()
    graph: Graph

    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != tuple(v.type for v in self.graph.inputs):
            what = f"a {self.name.replace('_', ' ')} of {len(self.graph.inputs)} inputs was given"
            raise TypeRuleError(f"{what} {', '.join(map(str, types))}")
        return tuple(a.type for a in self.graph.outputs)

    def reference(self, *arrays: Any) -> Any:
        return evaluated(self.graph, arrays)


@final
@record
class Region(Fused):
    """A graph whose equations run over one iteration space, so that a block of
    it at a time stays in cache.

    `axes` says for each equation which axis of `space` each axis of its result is (for a reduction:
    of its input), -1 for an axis of size 1. Views in the graph are index expressions. A reduction
    whose result is read inside has its axes whole in a block.
    """

    kind: str
    space: Dims
    axes: tuple[Dims, ...]
    graph: Graph
    name = "region"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if self.kind not in KINDS:
            raise TypeRuleError(f"a region is {', '.join(KINDS)}; got {self.kind}")
        return Fused.infer(self, *types)


@final
@record
class InRuns(Op):
    """An array of which each axis is gone through in runs: along one, from a place of the result on,
    elements from an index on are read one after another (step 1), or one again and again (0).

    `axes` has for each axis of the array the axis of the result, and its runs (place, index, step); of
    the axes that the result has not, the one element that is read. It stands in regions alone, and is
    made after all derivatives.
    """

    shape: Dims
    axes: tuple[tuple[int, Runs], ...]
    name = "in_runs"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        read = [axis for axis, _ in self.axes if axis >= 0]
        if len(self.axes) != x.ndim or read != list(range(len(self.shape))):
            raise TypeRuleError(f"in_runs of shape {self.shape} does not go through {x}")
        return (x.with_shape(self.shape),)

    def reference(self, *arrays: Any) -> Any:
        (y,) = arrays
        for d, (axis, runs) in reversed([*enumerate(self.axes)]):
            n = self.shape[axis] if axis >= 0 else 1
            y = np.take(y, indices(runs, n) if axis >= 0 else runs[0][1], d)
        return y


def indices(runs: Runs, n: int) -> np.ndarray:
    """The index at each of `n` places.

    >>> indices(((0, 7, 1), (2, 0, 1), (5, 9, 0)), 7)
    array([7, 8, 0, 1, 2, 9, 9])
    """
    ends = [begin for begin, *_ in runs[1:]] + [n]
    each = [i + step * np.arange(end - at) for (at, i, step), end in zip(runs, ends, strict=True)]
    return np.concatenate(each)


def evaluated(graph: Graph, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a graph by the references of its operations."""
    env: dict[Var, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for eqn in graph.eqns:
        env.update(zip(eqn.outs, EVALUATE.apply(eqn.op, read(env, eqn.inputs)), strict=True))
    return tuple(read(env, graph.outputs))


# ---------------------------------------------------------------------------------- product region
# Matrix products and the elementwise work on their results, which become one kernel.


@final
@record
class ProductRegion(Fused):
    """A graph of two equations: a `dot_general`, and a pointwise region that alone reads its result,
    and may give it as well; or of three, where the region reads two products of one left operand,
    such as the factors of a gated unit. Before them may be pointwise regions that make operands of the
    product, of which nobody else reads.

    It is made after all derivatives, of steps that are already chosen for a GPU.
    """

    graph: Graph
    name = "product_region"

    @property
    def product(self) -> Eqn:
        return self.products[0]

    @property
    def products(self) -> tuple[Eqn, ...]:
        return tuple(e for e in self.graph.eqns[:-1] if not isinstance(e.op, Region))

    @property
    def prologues(self) -> tuple[Eqn, ...]:
        """The regions that make operands of the product."""
        return tuple(e for e in self.graph.eqns[:-1] if isinstance(e.op, Region))

    @property
    def rest(self) -> Eqn:
        """The region."""
        return self.graph.eqns[-1]

    @property
    def region(self) -> Region:
        assert isinstance(self.rest.op, Region)
        return self.rest.op

    @property
    def place(self) -> Var:
        """The variable of the product in the region's graph."""
        return self.places[0]

    @property
    def places(self) -> tuple[Var, ...]:
        """Those of all products."""
        inner, rest = self.region.graph, self.rest
        return tuple(inner.inputs[rest.inputs.index(e.outs[0])] for e in self.products)

    @property
    def kept(self) -> tuple[Var, ...]:
        """The places of the products that are results themselves, rounded to their type."""
        inner = self.region.graph
        return tuple(
            v
            for v in self.places
            for e in inner.eqns
            if e.inputs == (v,) and e.outs[0] in inner.outputs and e.outs[0].type == v.type
        )

    @property
    def flat(self) -> Graph:
        """The products and the equations of the regions, for people."""
        eqns, outs = list[Eqn](), dict[Var, Any]()
        for each in self.graph.eqns:
            if not isinstance(each.op, Region):
                eqns.append(renamed(outs, each))
                continue
            inner = each.op.graph
            env = dict(zip(inner.inputs, rename(outs, each.inputs), strict=True))
            eqns += [renamed(env, e) for e in inner.eqns]
            outs.update(zip(each.outs, inner.outputs, strict=True))
        return Graph(self.graph.inputs, tuple(eqns), rename(outs, self.graph.outputs))


# -------------------------------------------------------------------------------------- persistent
# Steps that are one kernel together, loops and branches among them: small
# enough to stay in a block.


@final
@record
class Resident(Fused):
    """A graph, loops and branches and what is around them, whose values live in
    a block's shared memory.

    `grid`: all blocks of a GPU do it together, and what is wide is in their registers and in its
    L2 cache. `rows` is 0, or the size of an axis along which no element knows of another: blocks
    then share its rows. How many rows and iterations there are is passed to the kernel. It is made
    after all derivatives, of steps that are already chosen for a GPU.
    """

    graph: Graph
    rows: int = 0
    grid: bool = False
    name = "resident"
