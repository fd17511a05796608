"""Systems of equations with one matrix, or with its transpose, share its factors.

solve a b, solve a c      ->  lu a, lu_solve lu b, lu_solve lu c
a scan that solves by a   ->  lu a, a scan of lu_solve
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from ge2.base.arrays import INT64
from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import ArrayType, Atom, Eqn, Graph, Var, makers_of
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.linalg import Linalg, Solve
from ge2.ops.shape import Transpose
from ge2.passes.context import NOTHING, Context


@final
@record
class Lu(Linalg):
    """The factors of a[n, n] as LAPACK's getrf leaves them in memory, by columns: both triangles
    in one, transposed, and the row that each was swapped with, counted from 1.

    LinAlgError for a singular matrix.
    """

    name = "lu"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0])
        return a.with_shape(a.shape), ArrayType(a.shape[:1], INT64)

    def reference(self, *arrays: Any) -> Any:
        lu, n = np.array(arrays[0]), len(arrays[0])
        swaps = np.arange(1, n + 1)
        for i in range(n):
            k = i + int(np.argmax(np.abs(lu[i:, i])))
            lu[[i, k]], swaps[i] = lu[[k, i]], k + 1
            if lu[i, i] == 0:
                raise np.linalg.LinAlgError("Singular matrix")
            lu[i + 1 :, i] /= lu[i, i]
            lu[i + 1 :, i + 1 :] -= np.outer(lu[i + 1 :, i], lu[i, i + 1 :])
        return np.ascontiguousarray(lu.T), swaps


@final
@record
class LuSolve(Linalg):
    """The x of a @ x = b, or of a.T @ x = b, by the factors of a: b[n, k] -> [n, k]."""

    transposed: bool = False
    name = "lu_solve"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        b = self.matrix(types[2], square=False)
        return (b.with_shape(b.shape),)

    def reference(self, *arrays: Any) -> Any:
        lu, swaps, b = arrays[0].T, arrays[1], arrays[2]
        lower, upper = np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)
        order = np.arange(len(lu))
        for i, k in enumerate(swaps - 1):
            order[[i, k]] = order[[k, i]]
        if not self.transposed:
            return np.linalg.solve(upper, np.linalg.solve(lower, b[order]))
        x = np.empty_like(b)
        x[order] = np.linalg.solve(lower.T, np.linalg.solve(upper.T, b))
        return x


def factors(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose systems of one matrix share its factors."""
    return Sharing(graph).run() if any(map(solves, graph.eqns)) else graph


def solves(eqn: Eqn) -> bool:
    """True of a system of equations, and of a loop with one in its iterations."""
    if isinstance(eqn.op, ScanLoop):
        return eqn.op.length > 1 and any(system(each) for each in eqn.op.body.eqns)
    return system(eqn)


def system(eqn: Eqn) -> bool:
    return isinstance(eqn.op, Solve) and not eqn.op.quiet and eqn.inputs[0].type.ndim == 2


Makers = Mapping[Atom, Eqn]
Matrix = tuple[Atom, bool]  # and whether it is its transpose that is meant


def matrix_of(a: Atom, makers: Makers) -> Matrix:
    """The matrix of which `a` is a transpose, or which it is."""
    turned = False
    while (maker := makers.get(a)) is not None and isinstance(maker.op, Transpose):
        a, turned = maker.inputs[0], turned != (maker.op.order == (1, 0))
    return a, turned


@final
class Sharing:
    """The equations so far, and the factors of each matrix of several systems."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.makers = graph, makers_of(graph)
        self.eqns: list[Eqn] = []
        self.factors: dict[Atom, tuple[Var, Var]] = {}
        self.count = Counter[Atom]()
        for eqn in graph.eqns:
            if isinstance(eqn.op, ScanLoop):
                found = constant_matrices(eqn) if solves(eqn) else {}
                self.count.update(2 * [self.matrix(a)[0] for a, _ in found.values()])
            elif system(eqn):
                self.count[self.matrix(eqn.inputs[0])[0]] += 1

    def matrix(self, a: Atom) -> Matrix:
        return matrix_of(a, self.makers)

    def run(self) -> Graph:
        for eqn in self.graph.eqns:
            if isinstance(eqn.op, ScanLoop) and solves(eqn):
                self.eqns.append(self.loop(eqn, eqn.op))
            elif system(eqn) and self.count[self.matrix(eqn.inputs[0])[0]] > 1:
                a, turned = self.matrix(eqn.inputs[0])
                given = (*self.of(a, eqn.source), eqn.inputs[1])
                self.eqns.append(Eqn(LuSolve(turned), given, eqn.outs, eqn.source))
            else:
                self.eqns.append(eqn)
        graph = self.graph
        return Graph(graph.inputs, tuple(self.eqns), graph.outputs, graph.consts)

    def of(self, a: Atom, source: Source | None) -> tuple[Var, Var]:
        """The factors of a matrix, made here if nobody has asked for them."""
        if a not in self.factors:
            lu, swaps = (Var(t) for t in Lu().infer(a.type))
            self.eqns.append(Eqn(Lu(), (a,), (lu, swaps), source))
            self.factors[a] = lu, swaps
        return self.factors[a]

    def loop(self, eqn: Eqn, loop: ScanLoop) -> Eqn:
        """The loop, whose systems with a constant matrix are given its factors."""
        found = constant_matrices(eqn)
        inner: dict[Atom, tuple[Var, Var]] = {}
        given, body = list[Atom](), list[Eqn]()
        for each in loop.body.eqns:
            if each.outs[0] not in found:
                body.append(each)
                continue
            outer, turned = found[each.outs[0]]
            a, again = self.matrix(outer)
            if a not in inner:
                pair = self.of(a, each.source)
                given += pair
                inner[a] = Var(pair[0].type), Var(pair[1].type)
            solve = LuSolve(turned != again)
            body.append(Eqn(solve, (*inner[a], each.inputs[1]), each.outs, each.source))
        new = [v for pair in inner.values() for v in pair]
        n, old = loop.consts, loop.body
        inputs = (*old.inputs[:n], *new, *old.inputs[n:])
        op = loop.of(Graph(inputs, tuple(body), old.outputs, old.consts), n + len(new), loop.carry)
        return Eqn(op, (*eqn.inputs[:n], *given, *eqn.inputs[n:]), eqn.outs, eqn.source)


def constant_matrices(eqn: Eqn) -> dict[Var, Matrix]:
    """For the result of each system in a loop whose matrix no iteration changes, that matrix."""
    assert isinstance(eqn.op, ScanLoop)
    body, n = eqn.op.body, eqn.op.consts
    makers, outer = makers_of(body), dict(zip(body.inputs[:n], eqn.inputs[:n], strict=True))
    found = dict[Var, Matrix]()
    for each in filter(system, body.eqns):
        a, turned = matrix_of(each.inputs[0], makers)
        if isinstance(a, Var) and a in outer:
            found[each.outs[0]] = outer[a], turned
    return found
