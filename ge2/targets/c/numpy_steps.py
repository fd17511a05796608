"""Steps of a program as NumPy spells them: views, products as those of matrices, and references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.errors import BY_VALUES, locate
from ge2.ir import ArrayType, Dims, Eqn, Op
from ge2.ir.text import op_text
from ge2.ops.dot import DotGeneral
from ge2.ops.shape import BroadcastInDim, Identity, Reshape, Rev, Slice, Transpose


def note(eqn: Eqn) -> str:
    """Returns what an equation does, for people."""
    return op_text(eqn.op) if not eqn.op.graphs() else eqn.op.name


def reference_of(eqn: Eqn) -> Any:
    """The reference, given arrays where it was given Python numbers, whose errors say the line."""
    reference, types = eqn.op.reference, [a.type for a in eqn.inputs]
    weak = any(t.weak for t in types)

    def converted(*xs: Any) -> Any:
        return reference(
            *(np.asarray(x, t.dtype) if t.weak else x for x, t in zip(xs, types, strict=True))
        )

    return located(converted if weak else reference, eqn.source)


def located(work: Callable[..., Any], source: object) -> Callable[..., Any]:
    """The same work, whose errors say the user's line."""

    def call(*xs: Any) -> Any:
        try:
            return work(*xs)
        except BY_VALUES as error:
            locate(error, source)
            raise

    return call


def blocked(kernel: Callable[..., Any], region: Op) -> Callable[..., Any]:
    """A kernel in blocked NumPy, whose errors say the line of what may raise: powers of integers."""
    powers = [eqn for graph in region.graphs() for eqn in graph.eqns if eqn.op.name == "pow"]
    raising = [eqn for eqn in powers if eqn.outs[0].type.dtype.kind in "iu"]
    return located(kernel, raising[0].source) if raising else kernel


def view_text(eqn: Eqn, x: str) -> str:
    """The view as NumPy spells it."""
    op = eqn.op
    if isinstance(op, Transpose):
        return f"{x}.transpose({op.order})"
    if isinstance(op, Reshape):
        return f"{x}.reshape({op.shape})"
    if isinstance(op, Slice):
        parts = [
            f"{a}:{b}" + (f":{s}" if s != 1 else "")
            for a, b, s in zip(op.start, op.stop, op.step, strict=True)
        ]
        return f"{x}[{', '.join(parts)}]" if parts else x
    if isinstance(op, Rev):
        rank = eqn.inputs[0].type.ndim
        return (
            f"{x}[{', '.join('::-1' if a in op.axes else ':' for a in range(rank))}]" if rank else x
        )
    if isinstance(op, BroadcastInDim):
        spread = tuple(n if d in op.dims else 1 for d, n in enumerate(op.shape))
        return f"broadcast_to({x}.reshape({spread}), {op.shape})"
    assert isinstance(op, Identity)
    return x


Turn = tuple[Dims | None, Dims | None]  # an order of the axes, then a shape


def product(eqn: Eqn) -> tuple[Turn, Turn, Dims | None]:
    """Returns how the operands of a product become matrices, and the shape of their product as one."""
    op, (a, b), (out,) = eqn.op, (x.type for x in eqn.inputs), eqn.outs
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a, b)
    batch = (volume(a, op.beside[0]),) if op.beside[0] else ()
    m, n, k = volume(a, free_a), volume(b, free_b), volume(a, op.contract[0])
    left = turn(a.shape, (*op.beside[0], *free_a, *op.contract[0]), (*batch, m, k))
    right = turn(b.shape, (*op.beside[1], *op.contract[1], *free_b), (*batch, k, n))
    whole = (*batch, m, n)
    return left, right, None if out.type.shape == whole else whole


def volume(type_: ArrayType, axes: Dims) -> int:
    """Returns how many elements these axes span."""
    return math.prod(type_.shape[i] for i in axes)


def turn(shape: Dims, order: Dims, wanted: Dims) -> Turn:
    turned = tuple(shape[i] for i in order)
    return None if order == tuple(
        range(len(order))
    ) else order, None if turned == wanted else wanted
