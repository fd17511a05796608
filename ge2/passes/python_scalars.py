"""Python numbers: equations on weak scalars alone are Python's own
arithmetic, done before all else.

Where Python has no answer but NumPy has one (0.0 ** -1.0, an overflow), the answer is NumPy's, so
that derivatives stay defined; a division of integers by zero is an error, as in Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import FLOATS, HALF, python_type
from ge2.ir import ArrayType, Eqn, Evaluate, GraphOp, Op
from ge2.ops.elementwise import ConvertElementType, Elementwise

WHOLE_DIVISIONS = (operator.floordiv, operator.mod)
EVALUATE = Evaluate()


def on_host(eqn: Eqn) -> bool:
    """Whether it makes one scalar from Python numbers alone."""
    op = eqn.op
    if not eqn.inputs or op.effect or op.several or isinstance(op, GraphOp):
        return False
    return all(a.type.weak for a in eqn.inputs) and not eqn.outs[0].type.shape


def compute(op: Op, out: ArrayType, *numbers: Any) -> Any:
    """The result of an equation on Python numbers: a Python number, or a 0-d
    array if it is strong.
    """
    if out.weak and isinstance(op, Elementwise) and op.python and bool not in map(type, numbers):
        y = as_python_does(op.python, numbers)
        if type(y) is python_type(out.dtype):
            return y
    if (
        isinstance(op, ConvertElementType)
        and out.dtype in FLOATS - HALF
        and type(numbers[0]) in (int, float)
    ):
        return float(numbers[0]) if out.weak else np.array(numbers[0], out.dtype)
    (y,) = EVALUATE.apply(op, numbers)
    return python_type(out.dtype)(y) if out.weak else np.asarray(y, out.dtype)


def as_python_does(f: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    try:
        return f(*numbers)
    except (ArithmeticError, ValueError, TypeError):  # `math` knows no complex numbers
        if f in WHOLE_DIVISIONS and all(type(x) is int for x in numbers):
            raise
        return None  # NumPy says
