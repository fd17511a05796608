"""Moving elements in C: copies of views, constants, joined arrays, pads and updates of slices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.codegen.moves import (
    Moved,
    around,
    copied,
    counted,
    filled,
    inside,
    joined,
    not_a_copy,
    view_copied,
    zeros_around,
)
from ge2.codegen.text import Argument, CKernel, Operand, Text
from ge2.ir import ArrayType, Dims
from ge2.ops.index import UpdateSlice
from ge2.ops.shape import Concatenate, Constant, Iota, Pad
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.types import STORED
from ge2.targets.c.kernels.generated import Generated, Pieces, copying, unless_same
from ge2.targets.c.kernels.transposed import moving
from ge2.targets.c.tuning import TUNING


def moved(moves: Iterable[Moved], caps: Caps) -> Pieces:
    """A kernel for each."""
    return Pieces(tuple(moving(each, caps) for each in moves))


@final
class CCopy(Generated):
    """A view that has to be a copy."""

    name = "copy in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return not_a_copy(problem.op)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ((source,), (target,)), (x,), (to,) = problem.arrays, problem.inputs, problem.outs
        return moved([view_copied(problem.op, x, to, source, target)], caps)


@final
class CConstant(Generated):
    """Numbers that count along an axis."""

    name = "iota in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Iota) else f"{problem.op.name} counts nothing"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        outs = problem.arrays[1]
        (to,) = problem.outs
        assert isinstance(problem.op, Iota)
        return moved([counted(problem.op, to, outs[0])], caps)


@final
class CTable(Generated):
    """The bytes of a small array, which stand in the text."""

    name = "constant in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if not isinstance(problem.op, Constant):
            return f"{problem.op.name} is no constant"
        most = (TUNING if caps is None else caps.tuning).files.table
        large = problem.outs[0].nbytes > most
        return "the array is too large to stand in the text" if large else ""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        outs = problem.arrays[1]
        op, (to,) = problem.op, problem.outs
        assert isinstance(op, Constant)
        data = ", ".join(f"0x{op.data[i : i + 2]}" for i in range(1, len(op.data), 2))
        body = (
            Text(f"static const unsigned char data[] = {{{data}}};"),
            Text("memcpy(y, data, sizeof data);"),
        )
        y = Argument(f"{STORED[to.dtype]} *y", "result", (outs[0], to.dtype))
        return Pieces((CKernel("constant", f"{to} = constant", (y,), body if to.size else (), 1),))


@final
class CConcatenate(Generated):
    name = "concatenate in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Concatenate) else f"{problem.op.name} joins nothing"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, (target,)), op = problem.arrays, problem.op
        assert isinstance(op, Concatenate)
        there = [i for _, i in problem.shared]
        return moved(joined(op.axis, problem.inputs, ins, target, there), caps)


@final
class CPad(Generated):
    name = "pad in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Pad) else f"{problem.op.name} pads nothing"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (x,), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, Pad)
        if (0, 0) in problem.shared:  # x was made there
            return moved(zeros_around(to, outs[0], op.low, x.shape), caps)
        plain = x.size and min(*op.low, *op.high, 0) >= 0 and not any(op.inner)
        zeros = zeros_around(to, outs[0], op.low, x.shape) if plain else [filled(to, None, outs[0])]
        start, step, first, shape = inside(op, x.shape, to.shape)
        if not math.prod(shape):
            return moved(zeros, caps)
        part = ArrayType(shape, x.dtype)
        source = ins[0].part(first, (1,) * x.ndim)
        return moved([*zeros, copied(part, part, source, outs[0].part(start, step))], caps)


def copied_part(x: ArrayType, part: tuple[Dims, Dims], source: Operand, target: Operand) -> Moved:
    """A part of an array, copied to where it is in another of the same shape."""
    (start, shape), ones = part, (1,) * x.ndim
    type_ = x.with_shape(shape)
    return copied(type_, type_, source.part(start, ones), target.part(start, ones))


@final
class CUpdateSlice(Generated):
    name = "update of a slice in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, UpdateSlice) else f"{problem.op.name} updates no slice"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op, (x, u) = problem.op, problem.inputs
        assert isinstance(op, UpdateSlice)
        if (0, 1) in problem.shared and (0, 0) not in problem.shared:  # u was made there
            parts = around(op.start, u.shape, x.shape)
            return moved([copied_part(x, part, ins[0], outs[0]) for part in parts], caps)
        kernels = []
        if (0, 0) not in problem.shared:
            kernels.append(unless_same(copying(x, x, ins[0], outs[0], caps)))
        if u.size and (0, 1) not in problem.shared:
            kernels.append(copying(u, u, ins[1], outs[0].part(op.start, op.step), caps))
        return Pieces(tuple(kernels))
