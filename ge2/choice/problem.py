"""Problems: what a kernel is chosen for."""

from __future__ import annotations

from typing import final

from ge2.base.record import record
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Op


@final
@record
class Problem:
    """An operation on types, and where its arrays are once layouts are settled.

    `operands`: layout and alignment of each input, then of each result; none before that is known.
    `shared`: pairs (result, input) that are the same memory.
    """

    op: Op
    inputs: tuple[ArrayType, ...]
    outs: tuple[ArrayType, ...]
    target: str = "cpu"
    shared: frozenset[tuple[int, int]] = frozenset()
    operands: tuple[Operand, ...] = ()

    @property
    def settled(self) -> bool:
        """True if it is known where the arrays are."""
        return bool(self.operands) or not (self.inputs or self.outs)

    @property
    def arrays(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """The operands of the inputs and of the results."""
        n = len(self.inputs)
        return self.operands[:n], self.operands[n:]


def described(problem: Problem) -> str:
    """What a kernel computes, for the comment above it."""
    inputs, results = (", ".join(map(str, types)) for types in (problem.inputs, problem.outs))
    return f"{results} = {problem.op} of {inputs}"
