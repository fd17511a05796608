"""NumPy's own functions as kernels."""

from __future__ import annotations

from typing import final

from ge2.base.dtypes import HALF
from ge2.choice.family import Family, Launch, Problem
from ge2.ops.dot import DotGeneral


@final
class Product(Family):
    """`np.matmul` into an array that is there already."""

    name = "matmul"

    def refuses(self, problem: Problem) -> str:
        if not isinstance(problem.op, DotGeneral):
            return f"{problem.op.name} is not a matrix product"
        a, out = problem.inputs[0].dtype, problem.outs[0].dtype
        if a in HALF or out != a:
            return f"{a.name} to {out.name} is multiplied in another type than it is stored in"
        if any(t.weak for t in problem.inputs):
            return "an operand is a Python number"
        return ""

    def launch(self, problem: Problem) -> Launch:
        return Launch(self.name, problem.op)


@final
class Library(Family):
    """The reference of the operation."""

    name = "library"

    def refuses(self, problem: Problem) -> str:
        return ""

    def launch(self, problem: Problem) -> Launch:
        return Launch(self.name, problem.op)
