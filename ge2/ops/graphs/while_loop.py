"""Loops that a predicate ends, and solutions of equations, whose derivatives follow no steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ge2.base.arrays import BOOL, INEXACT
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
    Var,
    without_dead_code,
)
from ge2.ops.graphs.control import (
    Alike,
    Call,
    axes_of,
    filled,
    flags_of,
    matches,
    present,
    scattered,
    types_of,
    whole,
    with_axis,
    zero_like,
)
from ge2.ops.graphs.control import Types as GraphTypes
from ge2.ops.graphs.loops import ScanLoop, Types, agree, apart, batched_body, chosen
from ge2.ops.graphs.region import zero_equation

# -------- A loop that a predicate ends, as an operation.


@final
@record
class WhileLoop(GraphOp):
    """Iterations of `body`: (constants, carry) -> carry, as long as `cond` of (its
    constants, carry) holds.

    The inputs are the constants of `cond`, those of `body`, the carry.
    """

    cond: Graph
    body: Graph
    cond_consts: int
    body_consts: int
    name = "while"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.cond, self.body)

    def parts(self, xs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The constants of both, and the carry."""
        groups = apart(xs, self.cond_consts, self.body_consts, None)
        return groups[0], groups[1], groups[2]

    def infer(self, *types: ArrayType) -> Types:
        by_cond, by_body, carry = self.parts(types)
        agree(self, types_of(self.cond.inputs), (*by_cond, *carry))
        agree(self, types_of(self.body.inputs), (*by_body, *carry))
        decided = types_of(self.cond.outputs)
        if decided != (ArrayType((), BOOL),):
            raise TypeRuleError(
                f"while is decided by a bool scalar; got {', '.join(map(str, decided))}"
            )
        if [*types_of(self.body.outputs)] != carry:
            want, got = (", ".join(map(str, ts)) for ts in (carry, types_of(self.body.outputs)))
            raise TypeRuleError(f"while carries {want}, but a round returns {got}")
        return tuple(carry)

    def reference(self, *arrays: Any) -> Any:
        return self.rounds(self.cond, self.body, *arrays)

    def rounds(
        self, cond: Callable[..., Sequence[Any]], body: Callable[..., Sequence[Any]], *arrays: Any
    ) -> tuple[Any, ...]:
        """The loop in Python, whatever computes an iteration."""
        by_cond, by_body, carry = self.parts(arrays)
        while cond(*by_cond, *carry)[0]:
            carry = list(body(*by_body, *carry))
        return tuple(carry)

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        raise self.unkept()

    def unkept(self) -> NoRuleError:
        return NoRuleError(
            "a while loop has no reverse derivative: how many rounds there are to be kept is not known",
            fix="fori_loop with Python ints as bounds, scan over a fixed length, custom_root, or jacfwd",
        )

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        by_cond, by_body, carry = self.parts(xs)
        at = self.cond_consts
        body = ScanLoop(self.body, 1, self.body_consts, len(carry))
        active = body.active(flags_of(ts)[at:])
        moved = [sum(p) for p in body.parts(active)[:2]]
        graph, n = derive.jvp(self.body, active), len(carry)
        varied = [
            f for f, x in zip(body.parts(active)[1], carry, strict=True) if x.type.dtype in INEXACT
        ]

        def round(*args: Any) -> list[Any]:
            a, a_ts, b, b_ts = apart(args, self.body_consts, moved[0], n, moved[1])
            found = derive.run(graph, [*a, *b, *a_ts, *b_ts])
            return [*found[:n], *chosen(found[n:], varied)]

        given = [
            zero_like(x) if t is None else t
            for t, x, f in zip(ts[at:], xs[at:], active, strict=True)
            if f
        ]
        a_ts, b_ts = apart(given, *moved)
        args = [*by_body, *a_ts, *carry, *b_ts]
        loop = WhileLoop(
            with_unread(self.cond, [t.type for t in b_ts]),
            derive.trace(round, [v.type for v in args]),
            self.cond_consts,
            self.body_consts + moved[0],
        )
        found = loop(*by_cond, *args)
        rest = iter(found[n:])
        values = self(*xs) if derive.apart else found[:n]  # which wait for no tangents then
        return values, [next(rest) if f else None for f in body.parts(active)[1]]

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        self.parts(xs)[2]
        flags = [a is not None for a in axes]
        at = self.cond_consts + self.body_consts
        body, found, _ = batched_body(
            derive,
            self.body,
            flags[self.cond_consts :],
            slice(self.body_consts, len(xs) - self.cond_consts),
            size,
        )
        flags[at:] = found[self.body_consts :]
        cond, (decided,) = derive.batch(self.cond, (*flags[: self.cond_consts], *flags[at:]), size)
        if not decided:
            given = with_axis(xs, axes, tuple(flags), size)
            return WhileLoop(cond, body, self.cond_consts, self.body_consts)(*given), axes_of(
                tuple(flags[at:])
            )
        outputs, passed = self.body.outputs, self.body.inputs[self.body_consts :]
        grows = [f or a is not v for f, a, v in zip(flags[at:], outputs, passed, strict=True)]
        flags[at:] = grows  # but for what every iteration returns as it is
        body = derive.batch(self.body, tuple(flags[self.cond_consts :]), size, tuple(grows))[0]
        cond = derive.batch(self.cond, (*flags[: self.cond_consts], *flags[at:]), size, (True,))[0]
        given = with_axis(xs, axes, tuple(flags), size)
        return self.each(derive, cond, body, given, grows), axes_of(tuple(grows))

    def each(
        self, derive: Derive, cond: Graph, body: Graph, xs: Values, grows: Sequence[bool]
    ) -> list[Value]:
        """Every element goes on for as long as its own predicate holds, and
        then waits for the others.

        Whether any, and which, still go on is part of the carry.
        """
        by_cond, by_body, carry = self.parts(xs)
        consts, n = len(by_cond) + len(by_body), len(carry)

        def round(*args: Any) -> list[Any]:
            a, b, (_, on), c = apart(args, len(by_cond), len(by_body), 2, n)
            new = derive.run(body, [*b, *c])
            kept = [
                on.spread(y.shape, (0,)).select(y, x) if g else y
                for y, x, g in zip(new, c, grows, strict=True)
            ]
            still = on & derive.run(cond, [*a, *kept])[0]
            return [still.fold_or((0,)), still, *kept]

        (on,) = Call(cond, "while")(*by_cond, *carry)
        some = on.fold_or((0,))
        values = [*by_cond, *by_body, some, on, *carry]
        types = [v.type for v in values]
        decided = derive.trace(lambda any_on, *_: [any_on], types[consts:])
        loop = WhileLoop(decided, derive.trace(round, types), 0, consts)
        return list(loop(*values)[2:])


def with_unread(graph: Graph, types: Sequence[ArrayType]) -> Graph:
    """The graph with further inputs, which it does not read."""
    return Graph((*graph.inputs, *map(Var, types)), graph.eqns, graph.outputs)


# -------- Solutions of equations: their derivative is that of the equation, not of the steps that
# solved it.


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

    def infer(self, *types: ArrayType) -> GraphTypes:
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

    def infer(self, *types: ArrayType) -> GraphTypes:
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
