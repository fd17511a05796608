"""Regions that only move elements, with where their arrays are: copies, fills, counts."""

from __future__ import annotations

from ge2.codegen.c.text import Operand
from ge2.ir import ArrayType, Eqn, Graph, Literal, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.region import Region
from ge2.ops.shape import BroadcastInDim, Iota

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
    eqns = (Eqn(BroadcastInDim(to.shape, ()), (a,), (b,)), Eqn(ConvertElementType(to.dtype), (b,), (c,)))
    inputs, given = ((), {}) if source is None else ((number,), {number: source})
    return Region("pointwise", to.shape, (at, at), Graph(inputs, eqns, (c,))), {**given, c: target}


def counted(op: Iota, to: ArrayType, target: Operand) -> Moved:
    """Numbers that count along an axis."""
    a, b, at = Var(to), Var(to), tuple(range(to.ndim))
    eqns = (Eqn(op, (), (a,)), Eqn(ConvertElementType(to.dtype), (a,), (b,)))
    return Region("pointwise", to.shape, (at, at), Graph((), eqns, (b,))), {b: target}
