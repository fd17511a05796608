"""Targets, none of which imports another; the reference one, NumPy's own functions, is here.

NumPy's own functions as kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ge2.base.arrays import HALF
from ge2.choice import Family, Problem, Variant
from ge2.ops.dot import DotGeneral


@final
class Product(Family[Any, Callable[..., Any]]):
    """`np.matmul` into an array that is there already."""

    name = "matmul"
    ops = (DotGeneral,)
    step_kind = "matmul"

    def refuses(self, problem: Problem, caps: object) -> str:
        a, out = problem.inputs[0].dtype, problem.outs[0].dtype
        if a in HALF or out != a:
            return f"{a.name} to {out.name} is multiplied in another type than it is stored in"
        if any(t.weak for t in problem.inputs):
            return "an operand is a Python number"
        return ""

    def kernels(self, problem: Problem, variant: Variant, caps: object) -> Callable[..., Any]:
        return np.matmul


@final
class Library(Family[Any, Callable[..., Any]]):
    """The reference of the operation."""

    name = "library"

    def kernels(self, problem: Problem, variant: Variant, caps: object) -> Callable[..., Any]:
        return problem.op.reference
