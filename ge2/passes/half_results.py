"""Products of mixed precision whose float32 results would be stored between kernels give low ones.

`ge2.autocast` makes products of half types with float32 results (precision "half"). What follows a
product is computed in the kernel that makes it, or reads it again: there a result in the product's
own low type is half the bytes to write, to keep for derivatives and to read. A result of the
program stays what it is.
"""

from __future__ import annotations

from dataclasses import replace

from ge2.base.dtypes import FLOAT32, HALF
from ge2.ir import Atom, Eqn, Graph, Var, renamed
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType


def half_results(graph: Graph) -> Graph:
    """The graph in which products of precision "half" give their operands' type, cast to float32."""
    returned = results(graph)
    low: dict[Atom, Var] = {}  # by the float32 value that stands for it
    env: dict[Atom, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        eqn = renamed(env, eqn)
        if is_wide(eqn) and eqn.outs[0] not in returned:
            op, (wide,) = eqn.op, eqn.outs
            assert isinstance(op, DotGeneral)
            low[wide] = Var(replace(wide.type, dtype=eqn.inputs[0].type.dtype))
            product = replace(eqn, op=replace(op, out=None), outs=(low[wide],))
            eqns += [product, Eqn(ConvertElementType(FLOAT32), (low[wide],), (wide,), eqn.source)]
        elif rounds_again(eqn, low) and eqn.outs[0] not in returned:
            env[eqn.outs[0]] = low[eqn.inputs[0]]
        else:
            eqns.append(eqn)
    return replace(graph, eqns=tuple(eqns)) if low else graph


def results(graph: Graph) -> set[Atom]:
    """The results of the program, and the values that those are views of."""
    found = set(graph.outputs)
    for eqn in reversed(graph.eqns):
        if eqn.op.is_view and not found.isdisjoint(eqn.outs):
            found.update(eqn.inputs)
    return found


def is_wide(eqn: Eqn) -> bool:
    """True of a product of half types with a float32 result that autocast made."""
    op = eqn.op
    return (
        isinstance(op, DotGeneral)
        and (op.precision, op.out) == ("half", FLOAT32)
        and all(a.type.dtype == eqn.inputs[0].type.dtype for a in eqn.inputs)
        and eqn.inputs[0].type.dtype in HALF
    )


def rounds_again(eqn: Eqn, low: dict[Atom, Var]) -> bool:
    """True of a cast of a product's result to the type that it is stored in."""
    op, (given, *_) = eqn.op, eqn.inputs or (None,)
    return (
        isinstance(op, ConvertElementType) and given in low and eqn.outs[0].type == low[given].type
    )
