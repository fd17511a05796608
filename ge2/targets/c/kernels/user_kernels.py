"""The kernels that users write for operations of their own: the body is theirs,
its parameters are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.text import Argument, CKernel, Operand, Text
from ge2.codegen.user_kernels import Around
from ge2.ir import ArrayType
from ge2.ops.user_ops import Own
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
        ins, outs = problem.arrays
        op = problem.op
        assert isinstance(op, Own)
        around = Around[CKernel](
            op, (problem.inputs, problem.outs), (ins, outs), C, partial(copies, caps)
        )
        arguments = (*around.arguments, Argument("int threads", "threads"))
        texts = (*around.lines, Text("(void)threads;"), around.body(op.c))
        helpers = helpers_of(op.helpers, around.dtype)
        kernel = CKernel(op.name, described(problem), arguments, texts, 1, helpers=helpers)
        return Pieces((*around.before, kernel, *around.after), tuple(around.temps))


def copies(
    caps: Caps, t: ArrayType, to: ArrayType, source: Operand, target: Operand
) -> Sequence[CKernel]:
    return (copying(t, to, source, target, caps),)
