"""Linear functions turned around: from cotangents of the result to those of the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.errors import GradientError
from ge2.base.source import here
from ge2.ir import Atom, Eqn, Flags, Graph, Literal, Op, without_dead_code
from ge2.ops.control import CALLS
from ge2.ops.elementwise import Elementwise
from ge2.ops.inline import inlined
from ge2.trace import Closed, Input, is_traced, run
from ge2.transforms.api import active_inputs, cotangents, gradient_like
from ge2.transforms.arguments import Arguments, Results, owned
from ge2.transforms.derive import DERIVE
from ge2.transforms.vjp import vjp_graph

TOGETHER = frozenset(
    ("add", "sub", "neg", "positive", "conj", "real", "imag", "complex", "where", "concatenate")
)


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a linear function: from a cotangent of its result to those of its arguments, a tuple.

    Of the primals only shapes and dtypes matter: ShapeDtypeStructs do. GradientError if an equation of `fun`
    is not linear in them; that names the line.

    >>> import numpy as np
    >>> A = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> linear_transpose(lambda x: A @ x, np.zeros(2))(np.array([1.0, 0.0]))
    (array([1., 2.]),)
    """
    call, returned = Arguments.of(fun, primals, {}), Results()
    for i, t in zip(call.arrays, call.types(), strict=True):
        if t.dtype not in INEXACT:
            what = f"linear_transpose takes floating arguments; {call.name(i)} is {t}"
            raise GradientError(what, where=here(), fix=f"a closure over {call.name(i)}")
    why = "linear_transpose knows no value of it"
    inputs = [Input(given.type, name=given.name, reason=why) for given in call.inputs()]
    closed = call.stage(inputs, returned, "linear_transpose")
    wanted = active_inputs(closed, call, call.arrays)
    graph = turned(closed.graph, wanted, call.title, zeros_of(closed))
    types = [a.type for a in closed.graph.outputs]

    def transposed(ct: Any) -> tuple[Any, ...]:
        given = (*closed.captured, *cotangents(ct, returned, types))
        found = owned(run(graph, given), given)
        grads = dict(zip(call.arrays, found, strict=True))
        return tuple(gradient_like(call, n, grads) for n in range(len(primals)))

    return transposed


def zeros_of(closed: Closed) -> set[Atom]:
    """The inputs that stand for captured arrays of zeros."""
    known = zip(closed.graph.inputs, closed.captured, strict=False)
    return {v for v, x in known if not is_traced(x) and not np.any(x)}


def turned(graph: Graph, wanted: Flags, title: str, zeros: set[Atom]) -> Graph:
    """(the other inputs, cotangents) -> cotangents of the wanted inputs, in which the graph is linear."""
    graph = inlined(graph, CALLS)
    check_linear(graph, wanted, title, zeros)
    n, joint = len(graph.outputs), vjp_graph(graph, wanted, DERIVE)
    back = without_dead_code(inlined(Graph(joint.inputs, joint.eqns, joint.outputs[n:]), CALLS))
    places = {v for v, w in zip(joint.inputs, wanted, strict=False) if w}
    read = next((e for e in back.eqns if not places.isdisjoint(e.inputs)), None)
    if read is not None or not places.isdisjoint(back.outputs):
        raise not_linear(read, title, "its derivative depends on where it is taken")
    kept = tuple(v for v in back.inputs if v not in places)
    return Graph(kept, back.eqns, back.outputs)


def check_linear(graph: Graph, wanted: Flags, title: str, known: set[Atom]) -> None:
    """GradientError for an equation that adds a constant, rounds, or compares; products are seen later.

    The inputs `known` are zeros.
    """
    moves: set[Atom] = {v for v, w in zip(graph.inputs, wanted, strict=True) if w}
    zeros = set(known)
    for eqn in graph.eqns:
        chosen = [a for a in eqn.inputs if a in moves]
        if not chosen:
            if vanishes(eqn, zeros):
                zeros.update(eqn.outs)
            continue
        why = offence(eqn, moves, zeros)
        if why:
            raise not_linear(eqn, title, why)
        moves.update(eqn.outs)
    for a in graph.outputs:
        if a not in moves and not is_zero(a, zeros):
            raise not_linear(None, title, f"a result ({a.type}) is a constant that is not known to be zero")


def offence(eqn: Eqn, moves: set[Atom], zeros: set[Atom]) -> str:
    """Why an equation is not linear in the values that move with the arguments, if one sees it at once."""
    op, out = eqn.op, eqn.outs[0].type
    if out.dtype not in INEXACT:
        return f"{op.name} makes {out} of it"
    if isinstance(op, Elementwise) and op.pull is None:
        for a, partial in zip(eqn.inputs, op.partials, strict=True):
            if a in moves and partial is None:
                return f"{op.name} rounds it"
    rest = [a for a in eqn.inputs if a not in moves and a.type.dtype in INEXACT]
    if together(op) and not all(is_zero(a, zeros) for a in rest):
        return f"{op.name} puts a constant beside it"
    return ""


def together(op: Op) -> bool:
    """Whether it is linear in all of its floating operands at once, so that none may be a constant."""
    return op.linear or op.name in TOGETHER


def is_zero(a: Atom, zeros: set[Atom]) -> bool:
    return a.value == 0 if isinstance(a, Literal) else a in zeros


def vanishes(eqn: Eqn, zeros: set[Atom]) -> bool:
    """Whether a constant is known to be zero."""
    return bool(eqn.inputs) and together(eqn.op) and all(is_zero(a, zeros) for a in eqn.inputs)


def not_linear(eqn: Eqn | None, title: str, why: str) -> GradientError:
    place = (eqn.source if eqn is not None else None) or here()
    return GradientError(f"{title} is not linear: {why}", where=place, fix="ge2.vjp, at a point")
