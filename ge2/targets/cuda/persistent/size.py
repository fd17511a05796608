"""How large a resident kernel is: its threads, which arrays have no gaps, and which are stacks."""

from __future__ import annotations

import math
from typing import Any

from ge2.ir import Atom, Dims, Eqn, Graph
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.shape import Transpose
from ge2.targets.cuda.persistent.index_text import strides
from ge2.targets.cuda.tuning import Persistent


def dense(steps: Dims, shape: Dims) -> Dims | None:
    """The axes of an array that has no gaps, the slowest first, as they are if
    that is C order; or None.

    >>> dense((12, 4, 1), (2, 3, 4)), dense((4, 8, 1), (2, 3, 4)), dense((24, 8, 1), (2, 3, 4))
    ((0, 1, 2), (1, 0, 2), None)
    """
    axes = tuple(range(len(shape)))
    for order in (axes, tuple(sorted(axes, key=lambda i: -steps[i]))):
        plain = strides(tuple(shape[i] for i in order))
        if all(shape[i] == 1 or steps[i] == step for i, step in zip(order, plain, strict=True)):
            return order
    return None


def stacks(graph: Graph) -> dict[Atom, int]:
    """The arrays of which loops read or write an element each round, with the
    axis that counts rounds.
    """
    found: dict[Atom, int] = {}
    for eqn in graph.eqns:
        if isinstance(eqn.op, ScanLoop):
            _, start, elements = eqn.op.parts(eqn.inputs)
            found.update(dict.fromkeys((*elements, *eqn.outs[len(start) :]), 0))
    for eqn in reversed(graph.eqns):
        if isinstance(eqn.op, Transpose) and eqn.outs[0] in found:
            found.setdefault(eqn.inputs[0], eqn.op.order[found[eqn.outs[0]]])
    return found


def threads(graph: Graph, tuning: Persistent) -> int:
    """As many threads as the widest step has work for; a view is read, and no
    step unless it is a result.
    """
    eqns = everything(graph)
    ends = {a for eqn in eqns for g in eqn.op.graphs() for a in g.outputs}
    ends.update(graph.outputs)
    steps = [eqn for eqn in eqns if not eqn.op.is_view or not ends.isdisjoint(eqn.outs)]
    wanted = max([tuning.narrowest, *map(wide, steps)])
    return min(tuning.widest, 1 << (wanted - 1).bit_length())


def wide(eqn: Eqn) -> int:
    """Returns how many threads an equation keeps busy."""
    op: Any = eqn.op
    if not eqn.outs or op.name in ("scan", "while", "cond", "iota"):
        return 1  # what reads the elements of an iota is as wide as they are, or reads one a round
    size = eqn.outs[0].type.size
    if isinstance(op, DotGeneral):
        folded = math.prod(eqn.inputs[0].type.shape[i] for i in op.contract[0])
        return size * min(max(folded // 4, 1), 32)
    return max(size, eqn.inputs[0].type.size // 4) if eqn.inputs else size


def everything(graph: Graph) -> list[Eqn]:
    """The equations of a graph, and of the graphs in it."""
    inner = [e for eqn in graph.eqns for g in eqn.op.graphs() for e in everything(g)]
    return [*graph.eqns, *inner]
