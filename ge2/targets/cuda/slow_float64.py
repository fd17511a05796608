"""Steps that compute in float64 on a GPU that has few units for it: a
sentence with the user's line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ge2.base.dtypes import COMPLEX128, FLOAT64
from ge2.ir import Eqn, GraphOp
from ge2.program.cost import computing
from ge2.program.program import Program
from ge2.targets.cuda.limits import Limits

WIDE: Final = (FLOAT64, COMPLEX128)
# times as long as float32: 2 where a GPU is made for float64, 32 or 64 where it is not
SLOW: Final = 8


def slow(eqn: Eqn, limits: Limits) -> str:
    """Returns what is said of a step that computes in float64 on such a GPU; nothing of any other."""
    found = in_double(eqn) if limits.double >= SLOW else None
    if found is None:
        return ""
    at = f" at {found.source}" if found.source is not None else ""
    return f"computes in float64{at}, which {limits.name} does at 1/{limits.double} of the rate of float32"


def in_double(eqn: Eqn) -> Eqn | None:
    """The first equation of a step that computes on elements of float64, as
    those that move them do not.
    """
    if isinstance(eqn.op, GraphOp):
        found = (in_double(e) for graph in eqn.op.graphs() for e in graph.eqns)
        return next((e for e in found if e is not None), None)
    return eqn if is_wide(eqn) and computing(eqn).operations else None


def is_wide(eqn: Eqn) -> bool:
    types = [a.type for a in (*eqn.inputs, *eqn.outs)]
    return any(t.dtype in WIDE and not t.weak for t in types)


def slow_products(program: Program, limits: Limits) -> Iterator[str]:
    """The same of matrix products, which are no kernels of ours, as sentences."""
    for step in program.steps:
        if step.kind == "matmul" and (words := slow(step.eqn, limits)):
            yield f"a matrix product {words}"
