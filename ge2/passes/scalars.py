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
from ge2.ir import ArrayType, Eqn, Evaluate, Graph, GraphOp, Op, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.pointlike import Elementwise, Pointlike

WHOLE_DIVISIONS = (operator.floordiv, operator.mod)
EVALUATE = Evaluate()


def on_host(eqn: Eqn) -> bool:
    """True if it makes one scalar from Python numbers alone."""
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


# --------------------------------------------------------------------------------- scalar prologue
# Scalars that depend on scalar arguments alone, such as what a step's count makes of rates.
#
# Fused into whichever region reads them first, they would have all others that read them wait for the
# whole of it, and be computed for each of its elements. So those that are costly, and what belongs to
# them, stay apart where several regions read them, and can be computed before all else.


def early(graph: Graph, takes: Callable[[Eqn], bool], easy: int) -> set[int]:
    """The numbers of the equations that make costly scalars, those they are made of, and those made
    of them; of those that a region takes. So many instructions are `easy`.
    """
    known = {v for v in graph.inputs if not v.type.shape}
    costly: set[Var] = set()
    found, chosen = list[int](), set[int]()
    for index, eqn in enumerate(graph.eqns):
        read = [a for a in eqn.inputs if isinstance(a, Var)]
        if not known.issuperset(read) or any(v.type.shape for v in eqn.outs):
            continue
        if on_host(eqn):
            known.update(eqn.outs)
        elif isinstance(eqn.op, Pointlike) and takes(eqn):
            known.update(eqn.outs)
            found.append(index)
            if eqn.op.cost.instructions > easy or not costly.isdisjoint(read):
                costly.update(eqn.outs)
                chosen.add(index)
    needed = {a for i in chosen for a in graph.eqns[i].inputs}
    for index in reversed(found):
        if not needed.isdisjoint(graph.eqns[index].outs):
            chosen.add(index)
            needed.update(graph.eqns[index].inputs)
    return chosen
