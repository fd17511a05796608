"""Regions that only move elements, with where their arrays are: copies, fills, counts."""

from __future__ import annotations

from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims, Eqn, Graph, Literal, Op, Var
from ge2.ops.elementwise import ConvertElementType, Pointlike, Pointwise
from ge2.ops.index import Indexed, spans
from ge2.ops.reduce import kept
from ge2.ops.region import Region
from ge2.ops.shape import BroadcastInDim, Iota, Pad

Moved = tuple[Region, dict[Var, Operand]]


def copied(x: ArrayType, to: ArrayType, source: Operand, target: Operand) -> Moved:
    """A copy from one array, or part of one, to another of the same shape."""
    a, b = Var(x), Var(to)
    eqn = Eqn(ConvertElementType(to.dtype), (a,), (b,))
    region = Region("pointwise", to.shape, (tuple(range(to.ndim)),), Graph((a,), (eqn,), (b,)))
    return region, {a: source, b: target}


def filled(to: ArrayType, source: Operand | None, target: Operand) -> Moved:
    """One number, or zero, in every element of an array."""
    number = Var(ArrayType((), to.dtype))
    a = number if source is not None else Literal.of(to.dtype.type(0))
    b, c, at = Var(to), Var(to), tuple(range(to.ndim))
    eqns = (
        Eqn(BroadcastInDim(to.shape, ()), (a,), (b,)),
        Eqn(ConvertElementType(to.dtype), (b,), (c,)),
    )
    inputs, given = ((), {}) if source is None else ((number,), {number: source})
    return Region("pointwise", to.shape, (at, at), Graph(inputs, eqns, (c,))), {**given, c: target}


def counted(op: Iota, to: ArrayType, target: Operand) -> Moved:
    """Numbers that count along an axis."""
    a, b, at = Var(to), Var(to), tuple(range(to.ndim))
    eqns = (Eqn(op, (), (a,)), Eqn(ConvertElementType(to.dtype), (a,), (b,)))
    return Region("pointwise", to.shape, (at, at), Graph((), eqns, (b,))), {b: target}


def not_a_copy(op: Op) -> str:
    """The reason why an operation is no copy of its one input under other
    indices; "" if it is one.
    """
    return "" if op.is_view and not op.several else f"{op.name} is not a copy"


def unspoken(eqn: Eqn) -> str:
    """The reason why an equation has no expression in C and CUDA; "" if it has one."""
    op = eqn.op
    if isinstance(op, Pointlike) and not isinstance(op.lowering, Pointwise):
        return f"{op.name} has no expression"
    return ""


def inside(op: Pad, shape: Dims, out: Dims) -> tuple[Dims, Dims, Dims, Dims]:
    """Where elements of `x` come to lie: start and step in the result, the
    first of `x`, and how many.
    """
    found = []
    for n, low, gap, size in zip(shape, op.low, op.inner, out, strict=True):
        step = gap + 1
        first = -(low // step) if low < 0 else 0  # the first that is not cut off
        start = low + first * step
        last = min(n - 1, (size - 1 - low) // step)
        found.append((start, step, first, max(last - first + 1, 0)))
    starts, steps, firsts, counts = zip(*found, strict=True) if found else ((), (), (), ())
    return starts, steps, firsts, counts


def windowed(op: Indexed, shape: Dims, x: Operand) -> Operand:
    """The part of an array that is written to, as an array of its own."""
    start, step = [0] * len(shape), [1] * len(shape)
    for axis, (first, _, each) in zip(kept(op.axes, len(shape)), spans(op, shape), strict=True):
        start[axis], step[axis] = first, each
    return x.part(tuple(start), tuple(step))
