"""Linear functions turned around: from cotangents of the result to those of the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.errors import GradientError
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import Atom, Eqn, Flags, Graph, GraphOp, Literal, Var, without_dead_code
from ge2.ops.graphs.control import CALLS, Cond
from ge2.ops.graphs.custom import CUSTOM
from ge2.ops.graphs.halves import zero_equation
from ge2.ops.graphs.policy import inlined
from ge2.ops.pointlike import Elementwise
from ge2.trace import Closed, Input, is_traced, run
from ge2.transforms.api import active_inputs, gradient_like
from ge2.transforms.arguments import Arguments, Results, owned
from ge2.transforms.graphs.derive import DERIVE
from ge2.transforms.graphs.pullback import cotangents
from ge2.transforms.graphs.rules import vjp_graph

PRODUCTS = frozenset(("mul", "dot_general"))


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a linear function: from a cotangent of its result to
    those of its arguments, a tuple.

    Of the primals only shapes and dtypes matter: ShapeDtypeStructs do. GradientError if an equation
    of `fun` is not linear in them; that names the line.

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

    @hides
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
    """(the other inputs, cotangents) -> cotangents of the wanted inputs, in
    which the graph is linear.
    """
    graph = without_dead_code(inlined(graph, CALLS))  # what no result reads may be anything
    proof = Proof(title)
    proof.of_function(graph, wanted, zeros)
    n, joint = len(graph.outputs), vjp_graph(graph, wanted, DERIVE)
    back = without_dead_code(inlined(Graph(joint.inputs, joint.eqns, joint.outputs[n:]), CALLS))
    places = [v for v, w in zip(joint.inputs, wanted, strict=False) if w]
    read = next((e for e in back.eqns if not set(places).isdisjoint(e.inputs)), None)
    if not proof.complete and (read is not None or not set(places).isdisjoint(back.outputs)):
        raise proof.fails(read, "its derivative depends on where it is taken")
    kept = tuple(v for v in back.inputs if v not in set(places))
    # the same anywhere: at 0
    return Graph(kept, (*(zeros_at(v) for v in places), *back.eqns), back.outputs)


def zeros_at(v: Var) -> Eqn:
    made = zero_equation(v.type)
    return Eqn(made.op, made.inputs, (v,))


def check_linear(closed: Closed, known: int, title: str) -> None:
    """GradientError unless a function is linear in what follows its first `known`
    inputs and the captured.
    """
    before = len(closed.captured) + known
    wanted = tuple(i >= before for i in range(len(closed.graph.inputs)))
    turned(closed.graph, wanted, title, zeros_of(closed))


class Proof:
    """A proof that a graph is linear: `moves` are the values that depend on the arguments, linearly
    so far; `zeros` the constants known to be zero. What is not linear raises; what is not known
    leaves it incomplete.
    """

    def __init__(self, title: str) -> None:
        self.title, self.complete = title, True

    def of_function(self, graph: Graph, wanted: Flags, known: set[Atom]) -> None:
        moves: set[Atom] = {v for v, w in zip(graph.inputs, wanted, strict=True) if w}
        zeros = set(known)
        self.walk(graph, moves, zeros)
        for a in graph.outputs:
            if a not in moves and not is_zero(a, zeros):
                why = f"a result ({a.type}) is a constant that is not known to be zero"
                raise self.fails(None, why)

    def walk(self, graph: Graph, moves: set[Atom], zeros: set[Atom]) -> None:
        for eqn in graph.eqns:
            chosen = [a for a in eqn.inputs if a in moves]
            if (
                not chosen
                and eqn.op.linear
                and eqn.inputs
                and all(is_zero(a, zeros) for a in eqn.inputs)
            ):
                zeros.update(eqn.outs)
            elif chosen and isinstance(eqn.op, GraphOp):
                self.of_graphs(eqn, moves, zeros)
            elif chosen:
                self.of_equation(eqn, moves, zeros)
                moves.update(eqn.outs)

    def of_equation(self, eqn: Eqn, moves: set[Atom], zeros: set[Atom]) -> None:
        op, out = eqn.op, eqn.outs[0].type
        if out.dtype not in INEXACT:
            raise self.fails(eqn, f"{op.name} makes {out} of it")
        if isinstance(op, Elementwise) and op.pull is None:
            for a, partial in zip(eqn.inputs, op.partials, strict=True):
                if a in moves and partial is None:
                    raise self.fails(eqn, f"{op.name} rounds it")
        if op.linear:
            rest = [a for a in eqn.inputs if a not in moves and a.type.dtype in INEXACT]
            if not all(is_zero(a, zeros) for a in rest):
                raise self.fails(eqn, f"{op.name} puts a constant beside it")
            return
        among = [a in moves for a in eqn.inputs]
        product = (op.name in PRODUCTS and sum(among) == 1) or (
            op.name == "div" and among == [True, False]
        )
        self.complete &= product

    def of_graphs(self, eqn: Eqn, moves: set[Atom], zeros: set[Atom]) -> None:
        """A function with rules of its own, or branches: linear if each graph is."""
        op = eqn.op
        graphs = (
            op.branches
            if isinstance(op, Cond)
            else (op.graphs()[0],)
            if isinstance(op, CUSTOM)
            else ()
        )
        if not graphs or (isinstance(op, Cond) and eqn.inputs[0] in moves):
            self.complete = False
            moves.update(v for v in eqn.outs if v.type.dtype in INEXACT)
            return
        fixed: set[Atom] = set()
        for graph in graphs:
            pairs = list(zip(graph.inputs, eqn.inputs[-len(graph.inputs) :], strict=True))
            inner: set[Atom] = {v for v, a in pairs if a in moves}
            none: set[Atom] = {v for v, a in pairs if is_zero(a, zeros)}
            self.walk(graph, inner, none)
            results = list(zip(eqn.outs, graph.outputs, strict=True))
            moves.update(v for v, a in results if a in inner)
            fixed.update(v for v, a in results if not (a in inner or is_zero(a, none)))
        if not moves.isdisjoint(fixed):
            raise self.fails(eqn, "a branch returns a constant")

    def fails(self, eqn: Eqn | None, why: str) -> GradientError:
        place = (eqn.source if eqn is not None else None) or here()
        return GradientError(
            f"{self.title} is not linear: {why}", where=place, fix="ge2.vjp, at a point"
        )


def is_zero(a: Atom, zeros: set[Atom]) -> bool:
    return a.value == 0 if isinstance(a, Literal) else a in zeros
