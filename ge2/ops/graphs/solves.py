"""Solutions of equations: their derivative is that of the equation, not
of the steps that solved it.
"""

from __future__ import annotations

from typing import Any, final

from ge2.base.errors import NoRuleError, TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Axes,
    Batched,
    Cotangents,
    Derive,
    Eqn,
    Flags,
    Graph,
    GraphOp,
    Op,
    Pushed,
    Value,
    Values,
    without_dead_code,
)
from ge2.ops.graphs.control import (
    Alike,
    Call,
    Types,
    filled,
    matches,
    present,
    scattered,
    types_of,
    whole,
    with_axis,
)
from ge2.ops.graphs.halves import zero_equation

Graphs = tuple[Graph, ...]


@final
@record
class LinearSolve(GraphOp):
    """x of A x = b: `solve` maps (consts, b) to (x, auxiliary results),
    `matvec` (consts, x) to A x.

    `transposed` has the solution for the transpose of A, or nothing if that is unknown; A is its
    own transpose if it is `symmetric`.
    """

    solve: Graph
    matvec: Graph
    transposed: Graphs
    consts: int
    symmetric: bool = False
    name = "linear_solve"

    def graphs(self) -> Graphs:
        return (self.solve, self.matvec, *self.transposed)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.solve, types)
        wanted = types_of(self.solve.outputs)[: len(self.matvec.outputs)]
        if types_of(self.matvec.outputs) != wanted or types[self.consts :] != wanted:
            raise TypeRuleError("a linear_solve has another type on one side than on the other")
        return types_of(self.solve.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.solve(*arrays))

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        """A dx = db - dA x."""
        consts, b = xs[: self.consts], xs[self.consts :]
        ys = self(*xs)
        n, given = len(b), list(ts[self.consts :])
        if present(ts[: self.consts]):
            around = (*ts[: self.consts], *(None for _ in b))
            _, moved = Call(self.matvec, "matvec").jvp_with(derive, around, (*consts, *ys[:n]))
            given = [less(t, m) for t, m in zip(given, moved, strict=True)]
        found = self(*consts, *filled(given, b))[:n]
        return ys, (*found, *(None for _ in ys[n:]))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        if not self.transposed:
            raise NoRuleError(
                "custom_linear_solve has no reverse derivative without a transpose_solve",
                fix="transpose_solve=, or symmetric=True",
            )
        n, around = len(self.matvec.outputs), wanted[: self.consts]
        backward = (
            reverse_of(self.matvec, (*around, *(False,) * n), derive) if any(around) else None
        )
        turned = () if self.symmetric else (transpose_of(self.matvec, self.consts, derive),)
        return LinearSolveSaving(
            self.solve, self.matvec, self.transposed, self.consts, self.symmetric, turned,
            (backward,) if backward else (), wanted,
        )  # fmt: skip

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        flags = batched(axes, self.consts)
        solve, matvec, *transposed = (over(derive, g, flags, size) for g in self.graphs())
        op = LinearSolve(solve, matvec, tuple(transposed), self.consts, self.symmetric)
        ys = op(*with_axis(xs, axes, flags, size))
        return ys, [0] * len(ys)


@final
@record
class LinearSolveSaving(Alike):
    """A linear_solve in reverse mode: `turned` is its transposed product, `backward` that of the
    product by its constants: (consts, x, cotangent) to the cotangents of those `wanted`.
    """

    solve: Graph
    matvec: Graph
    transposed: Graphs
    consts: int
    symmetric: bool
    turned: Graphs
    backward: Graphs
    wanted: Flags
    name = "linear_solve_saving"

    def plain(self) -> LinearSolve:
        return LinearSolve(self.solve, self.matvec, self.transposed, self.consts, self.symmetric)

    def transpose(self) -> LinearSolve:
        """The solution for the transpose."""
        n = len(self.matvec.outputs)
        solve = without_dead_code(Graph(self.solve.inputs, self.solve.eqns, self.solve.outputs[:n]))
        matvec = self.matvec if self.symmetric else self.turned[0]
        return LinearSolve(self.transposed[0], matvec, (solve,), self.consts, self.symmetric)

    def graphs(self) -> Graphs:
        return (self.solve, self.matvec, *self.transposed, *self.turned, *self.backward)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """b has the cotangent c of A^T c = (that of x), and A has -c x."""
        n, consts = len(self.matvec.outputs), xs[: self.consts]
        found = self.transpose()(*consts, *filled(cts[:n], ys[:n]))
        around: Cotangents = [None] * self.consts
        if self.backward:
            given = Call(self.backward[0], "matvec")(*consts, *ys[:n], *(-c for c in found))
            around = scattered(given, self.wanted[: self.consts])
        return [*around, *found]


@final
@record
class Root(GraphOp):
    """x of f(x) = 0: `solve` maps (consts, guess) to (x, auxiliary results),
    `residual` (consts, x) to f(x).

    `tangent` maps (consts, x, y) to the v of f'(x) v = y.
    """

    solve: Graph
    residual: Graph
    tangent: Graph
    consts: int
    name = "root"

    def graphs(self) -> Graphs:
        return (self.solve, self.residual, self.tangent)

    def infer(self, *types: ArrayType) -> Types:
        matches(self, self.solve, types)
        return types_of(self.solve.outputs)

    def reference(self, *arrays: Any) -> Any:
        return tuple(self.solve(*arrays))

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        """f'(x) dx = -df, by the theorem of implicit functions; the guess has no influence."""
        consts, ys = xs[: self.consts], self(*xs)
        x = ys[: len(xs) - self.consts]
        if not present(ts[: self.consts]):
            return ys, [None] * len(ys)
        around = (*ts[: self.consts], *(None for _ in x))
        _, moved = Call(self.residual, "residual").jvp_with(derive, around, (*consts, *x))
        found = Call(self.tangent, "tangent_solve")(*consts, *x, *(-m for m in present(moved)))
        return ys, (*found, *(None for _ in ys[len(x) :]))

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        around = (*wanted[: self.consts], *(False,) * len(self.residual.outputs))
        if not any(around):
            return RootSaving(self.solve, self.residual, self.tangent, self.consts, (), wanted)
        turned = transpose_of(self.tangent, self.consts + len(self.residual.outputs), derive)
        backward = reverse_of(self.residual, around, derive)
        return RootSaving(
            self.solve, self.residual, self.tangent, self.consts, (turned, backward), wanted
        )

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        flags = batched(axes, self.consts)
        twice = (*flags, *flags[self.consts :])
        solve, residual = (over(derive, g, flags, size) for g in (self.solve, self.residual))
        op = Root(solve, residual, over(derive, self.tangent, twice, size), self.consts)
        ys = op(*with_axis(xs, axes, flags, size))
        return ys, [0] * len(ys)


@final
@record
class RootSaving(Alike):
    """A root in reverse mode.

    `reverse`: the transpose of `tangent`, and the cotangents of `residual` by the constants that
    are `wanted`; nothing if none is.
    """

    solve: Graph
    residual: Graph
    tangent: Graph
    consts: int
    reverse: Graphs
    wanted: Flags
    name = "root_saving"

    def plain(self) -> Root:
        return Root(self.solve, self.residual, self.tangent, self.consts)

    def graphs(self) -> Graphs:
        return (*self.plain().graphs(), *self.reverse)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """The constants have the cotangent -c df, for the c of f'(x)^T c = (that of x)."""
        if not self.reverse:
            return [None] * len(xs)
        consts, x = xs[: self.consts], ys[: len(xs) - self.consts]
        turned, backward = self.reverse
        found = Call(turned, "tangent_solve")(*consts, *x, *filled(cts[: len(x)], x))
        given = Call(backward, "residual")(*consts, *x, *(-c for c in found))
        return [*scattered(given, self.wanted[: self.consts]), *(None for _ in x)]


def less(t: Value | None, moved: Value | None) -> Value | None:
    return t if moved is None else -moved if t is None else t - moved


def reverse_of(graph: Graph, wanted: Flags, derive: Derive) -> Graph:
    """(inputs, cotangents of the results) -> those of the wanted inputs."""
    return whole(*derive.vjp(graph, wanted))


def transpose_of(graph: Graph, known: int, derive: Derive) -> Graph:
    """Of a graph that is linear in what follows its first inputs: (those,
    cotangents) -> cotangents.
    """
    n = len(graph.inputs) - known
    found = reverse_of(graph, (*(False,) * known, *(True,) * n), derive)
    at = found.inputs[known : known + n]
    # the same anywhere
    zeros = [Eqn(e.op, e.inputs, (v,)) for v in at for e in (zero_equation(v.type),)]
    found = without_dead_code(Graph(found.inputs, (*zeros, *found.eqns), found.outputs))
    return Graph((*found.inputs[:known], *found.inputs[known + n :]), found.eqns, found.outputs)


def batched(axes: Axes, consts: int) -> Flags:
    """Flags of the inputs that get the axis: constants that have it, and all of what is solved for."""
    return tuple(a is not None or i >= consts for i, a in enumerate(axes))


def over(derive: Derive, graph: Graph, flags: Flags, size: int) -> Graph:
    return derive.batch(graph, flags, size, (True,) * len(graph.outputs))[0]


SOLVES: tuple[type[GraphOp], ...] = (LinearSolve, LinearSolveSaving, Root, RootSaving)
