"""This module writes the kernels of users' own operations in C: the body is the user's, the
parameters are ge2's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.text import Argument, CKernel, Operand, Text
from ge2.codegen.user_kernels import OWN_FROM, Around
from ge2.ir import ArrayType
from ge2.ops.user_ops import Foreign, Own
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.types import C, helpers_of
from ge2.targets.c.kernels.generated import Generated, Pieces, copying


@final
class COwn(Generated):
    name = "a kernel of your own in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if not isinstance(problem.op, Own):
            return f"{problem.op.name} is an operation of ge2"
        return "" if problem.op.c else f"{problem.op.name} has no C"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        op, types, copy = problem.op, (problem.inputs, problem.outs), partial(copies, caps)
        assert isinstance(op, Own)
        own = op.kernel_in("c")
        if own.stock is not None:
            return by_template(op, own, problem, caps)
        around = Around[CKernel](op, types, problem.arrays, C, copy)
        around.room(own.workspace)
        arguments = (*around.arguments, Argument("int threads", "threads"))
        lines, helpers = (
            (*around.lines, Text("(void)threads;")),
            helpers_of(own.helpers, around.dtype),
        )
        kernels = tuple(
            CKernel(op.name, described(problem), arguments, (*lines, around.body(text)), 1, helpers=helpers)
            for text in own.texts
        )  # fmt: skip
        return Pieces((*around.before, *kernels, *around.after), tuple(around.temps))


def by_template(op: Own, own: Foreign, problem: Problem, caps: Caps) -> Pieces:
    """Writes the kernels of ge2 with a template of the user's, for operands in C order."""
    types, copy = (problem.inputs, problem.outs), partial(copies, caps)
    around = Around[CKernel](op, types, problem.arrays, C, copy, wide=False, first=OWN_FROM)
    found: Pieces = around.by_template(own, problem, caps, helpers_of)
    return found


def copies(
    caps: Caps, t: ArrayType, to: ArrayType, source: Operand, target: Operand
) -> Sequence[CKernel]:
    return (copying(t, to, source, target, caps),)
