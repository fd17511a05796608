"""Python numbers: equations on weak scalars alone are Python's own arithmetic, done before all else.

Where Python has no answer but NumPy has one (0.0 ** -1.0, an overflow), the answer is NumPy's, so that
derivatives stay defined; a division of integers by zero is an error, as in Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import FLOATS, HALF, python_type
from ge2.ir import ArrayType, Eqn, Evaluate, GraphOp, Op

# fmt: off
PYTHON_OPERATORS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "positive": operator.pos, "abs": operator.abs, "not": operator.invert,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "sqrt": math.sqrt, "floor_div": operator.floordiv, "rem": operator.mod, "pow": operator.pow,
    "shift_left": operator.lshift, "shift_right": operator.rshift,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
}
# fmt: on
WHOLE_DIVISIONS = ("floor_div", "rem")
EVALUATE = Evaluate()


def on_host(eqn: Eqn) -> bool:
    """Whether it makes one scalar from Python numbers alone."""
    op = eqn.op
    if not eqn.inputs or op.effect or op.several or isinstance(op, GraphOp):
        return False
    return all(a.type.weak for a in eqn.inputs) and not eqn.outs[0].type.shape


def compute(op: Op, out: ArrayType, *numbers: Any) -> Any:
    """The result of an equation on Python numbers: a Python number, or a 0-d array if it is strong."""
    if out.weak and op.name in PYTHON_OPERATORS and bool not in map(type, numbers):
        y = as_python_does(op.name, numbers)
        if type(y) is python_type(out.dtype):
            return y
    if op.name == "convert_element_type" and out.dtype in FLOATS - HALF and type(numbers[0]) in (int, float):
        return float(numbers[0]) if out.weak else np.array(numbers[0], out.dtype)
    (y,) = EVALUATE.apply(op, numbers)
    return python_type(out.dtype)(y) if out.weak else np.asarray(y, out.dtype)


def as_python_does(name: str, numbers: Sequence[Any]) -> Any:
    try:
        return PYTHON_OPERATORS[name](*numbers)
    except (ArithmeticError, ValueError, TypeError):  # `math` knows no complex numbers
        if name in WHOLE_DIVISIONS and all(type(x) is int for x in numbers):
            raise
        return None  # NumPy says
