"""A loop that a predicate ends, as an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ge2.base.dtypes import BOOL, INEXACT
from ge2.base.errors import NoRuleError, TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Axes,
    Batched,
    Cotangents,
    Derive,
    Flags,
    Graph,
    GraphOp,
    Op,
    Pushed,
    Value,
    Values,
    Var,
)
from ge2.ops.graphs.control import Call, axes_of, flags_of, types_of, with_axis, zero_like
from ge2.ops.graphs.loops import ScanLoop, Types, agree, apart, batched_body, chosen


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
