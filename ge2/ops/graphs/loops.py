"""Counted loops as operations: `scan` over stacked elements, and what it becomes on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ge2.base.arrays import INEXACT
from ge2.base.errors import TypeRuleError
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
    inexact,
    types_of,
    with_axis,
    zero_like,
)

Types = tuple[ArrayType, ...]


def stacked(t: ArrayType, length: int) -> ArrayType:
    return t.with_shape((length, *t.shape))


def agree(op: Op, wanted: Sequence[ArrayType], given: Sequence[ArrayType]) -> None:
    if tuple(wanted) != tuple(given):
        want, got = (", ".join(map(str, ts)) for ts in (wanted, given))
        raise TypeRuleError(f"{op.name} takes {want}; got {got}")


def chosen(xs: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [x for x, flag in zip(xs, flags, strict=True) if flag]


@final
@record
class ScanLoop(GraphOp):
    """`length` iterations of `body`: (constants, carry, elements) -> (carry, results).

    Of the operation's inputs the elements are stacked along a first axis, and so are
    its results after the carry of the last iteration. With `reverse` the last element comes
    first, and its results are last.
    """

    body: Graph
    length: int
    consts: int
    carry: int
    reverse: bool = False
    name = "scan"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.body,)

    def parts(self, xs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Constants, carry and elements."""
        at = self.consts + self.carry
        return list(xs[: self.consts]), list(xs[self.consts : at]), list(xs[at:])

    def infer(self, *types: ArrayType) -> Types:
        consts, carry, elements = self.parts(types_of(self.body.inputs))
        agree(self, [*consts, *carry, *(stacked(t, self.length) for t in elements)], types)
        outputs = types_of(self.body.outputs)
        if [*outputs[: self.carry]] != carry:
            want, got = (", ".join(map(str, ts)) for ts in (carry, outputs[: self.carry]))
            raise TypeRuleError(f"scan carries {want}, but a round returns {got}")
        return (*carry, *(stacked(t, self.length) for t in outputs[self.carry :]))

    def reference(self, *arrays: Any) -> Any:
        return self.rounds(self.body, *arrays)

    def rounds(
        self, body: Callable[..., Sequence[Any]], *arrays: Any, empty: Callable[..., Any] = np.empty
    ) -> tuple[Any, ...]:
        """The loop in Python, whatever computes an iteration. `empty` makes the stacks."""
        consts, carry, elements = self.parts(arrays)
        types = types_of(self.body.outputs[self.carry :])
        results = [empty((self.length, *t.shape), t.dtype) for t in types]
        for t in reversed(range(self.length)) if self.reverse else range(self.length):
            found = body(*consts, *carry, *(x[t, ...] for x in elements))
            carry = list(found[: self.carry])
            for y, value in zip(results, found[self.carry :], strict=True):
                y[t] = value
        return (*carry, *results)

    def of(self, body: Graph, consts: int, carry: int, reverse: bool | None = None) -> ScanLoop:
        """Another loop over as many elements, in the same order."""
        return ScanLoop(
            body, self.length, consts, carry, self.reverse if reverse is None else reverse
        )

    # -- derivatives

    def active(self, flags: Sequence[bool]) -> Flags:
        """Flags of the body's inputs that vary, in any iteration, with the given ones of the
        operation's.
        """
        found = list(flags)
        while True:
            reached = self.reached(found)
            grown = [
                a or b for a, b in zip(found[self.consts :], reached[: self.carry], strict=False)
            ]
            if grown == found[self.consts : self.consts + self.carry]:
                return tuple(found)
            found[self.consts : self.consts + self.carry] = grown

    def reached(self, flags: Sequence[bool]) -> list[bool]:
        """Flags of the body's outputs that depend on those of its inputs, and have a derivative."""
        live = set(chosen(self.body.inputs, flags))
        for eqn in self.body.eqns:
            if not live.isdisjoint(eqn.inputs) and eqn.op.name != "stop_gradient":
                live.update(v for v in eqn.outs if v.type.dtype in INEXACT)
        return [a in live for a in self.body.outputs]

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        active = self.active(wanted)
        consts, carry, elements = self.parts([True] * len(self.body.inputs))
        there = (*consts, *(not c for c in carry), *elements)  # without being stacked for it
        made = tuple(i >= self.carry for i in range(len(self.body.outputs)))
        forward, backward, _ = derive.vjp(self.body, active, (*there, *made))
        kept = Residuals.of(self, forward, backward)
        return ScanSaving(
            kept.forward, self.length, self.consts, self.carry, self.reverse,
            kept.count, kept.fixed, kept.elements, kept.results, self.pulled(kept, active, derive), active,
        )  # fmt: skip

    def pulled(self, kept: Residuals, active: Flags, derive: Derive) -> Graph:
        """An iteration of the derivative: (fixed, cotangents and sums, residuals and
        cotangents) -> the like.
        """
        consts, carry, elements = self.parts(active)
        outputs = self.body.outputs
        real = inexact(outputs)
        types = [
            types_of(kept.fixed.outputs),
            types_of(chosen(outputs[: self.carry], carry)),
            types_of(chosen(self.body.inputs[: self.consts], consts)),
            types_of(kept.second.inputs[len(kept.fixed.outputs) : kept.total]),
            types_of(chosen(outputs[self.carry :], real[self.carry :])),
        ]

        def round(*args: Any) -> list[Any]:
            fixed, cts, sums, saved, given = apart(args, *map(len, types))
            seeds, more = iter(cts), iter(given)
            all_cts = [
                (next(seeds) if carry[i] else derive.zeros(v.type))
                if i < self.carry
                else next(more)
                for i, v in enumerate(outputs)
                if real[i]
            ]
            found = derive.run(kept.second, [*fixed, *saved, *all_cts])
            by_const, by_carry, by_element = apart(found, sum(consts), sum(carry), sum(elements))
            return [*by_carry, *(s + c for s, c in zip(sums, by_const, strict=True)), *by_element]

        return derive.trace(round, [t for group in types for t in group])

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        active = self.active(flags_of(ts))
        given = [
            zero_like(x) if t is None else t for t, x, a in zip(ts, xs, active, strict=True) if a
        ]  # a carry may vary from the second iteration on only
        return (self.pushed_apart if derive.apart else self.pushed)(derive, active, given, xs)

    def pushed(self, derive: Derive, active: Flags, ts: Values, xs: Values) -> Pushed:
        graph, n = derive.jvp(self.body, active), len(self.body.outputs)
        counts, moved = [len(p) for p in self.parts(xs)], [sum(p) for p in self.parts(active)]
        sizes = [k for pair in zip(counts, moved, strict=True) for k in pair]
        real = inexact(self.body.outputs)
        varied = [a for a, r in zip(self.parts(active)[1], real, strict=False) if r]

        def round(*args: Any) -> list[Any]:
            a, at, b, bt, c, ct = apart(args, *sizes)
            found = derive.run(graph, [*a, *b, *c, *at, *bt, *ct])
            carry, ys = found[: self.carry], found[self.carry : n]
            tangents = found[n:]
            return [*carry, *chosen(tangents[: len(varied)], varied), *ys, *tangents[len(varied) :]]

        (a, b, c), (at, bt, ct) = self.parts(xs), apart(ts, *moved)
        types = [[v.type for v in part] for part in self.parts(self.body.inputs)]
        chosen_types = [
            [t for t, f in zip(part, flags, strict=True) if f]
            for part, flags in zip(types, self.parts(active), strict=True)
        ]
        listed = [
            t for pair in zip(types, chosen_types, strict=True) for group in pair for t in group
        ]
        loop = self.of(derive.trace(round, listed), counts[0] + moved[0], counts[1] + moved[1])
        found = loop(*a, *at, *b, *bt, *c, *ct)
        carry, carry_ts, ys, ys_ts = apart(found, self.carry, moved[1], n - self.carry, None)
        return [*carry, *ys], self.scattered(active, carry_ts, ys_ts)

    def pushed_apart(self, derive: Derive, active: Flags, ts: Values, xs: Values) -> Pushed:
        forward, linear, _ = derive.linear(self.body, active)
        kept = Residuals.of(self, forward, linear)
        consts, _, elements = self.parts(xs)
        results = self.of(kept.forward, self.consts, self.carry)(*xs)
        n = len(self.body.outputs)
        moved = [sum(p) for p in self.parts(active)]
        real = inexact(self.body.outputs)
        varied = [a for a, r in zip(self.parts(active)[1], real, strict=False) if r]
        fixed, saved = len(kept.fixed.outputs), kept.total - len(kept.fixed.outputs)

        def round(*args: Any) -> list[Any]:
            f, at, bt, s, ct = apart(args, fixed, moved[0], moved[1], saved, moved[2])
            found = derive.run(kept.second, [*f, *s, *at, *bt, *ct])
            return [*chosen(found[: len(varied)], varied), *found[len(varied) :]]

        second, tangents = kept.second.inputs[: kept.total], kept.second.inputs[kept.total :]
        at, bt, ct = apart(tangents, *moved)
        body = derive.trace(round, types_of([*second[:fixed], *at, *bt, *second[fixed:], *ct]))
        known = Call(kept.fixed, "scan")(*consts) if fixed else ()
        stack = [
            *(elements[i] for i in kept.elements),
            *(results[i] for i in kept.results),
            *results[n:],
        ]
        at, bt, ct = apart(ts, *moved)
        found = self.of(body, fixed + moved[0], moved[1])(*known, *at, *bt, *stack, *ct)
        return results[:n], self.scattered(active, found[: moved[1]], found[moved[1] :])

    def scattered(self, active: Flags, carry: Values, ys: Values) -> Cotangents:
        """Tangents for the outputs that have one."""
        seeds, more = iter(carry), iter(ys)
        flags = self.parts(active)[1]
        return [
            (next(seeds) if flags[i] else None) if i < self.carry else next(more) if r else None
            for i, r in enumerate(inexact(self.body.outputs))
        ]

    # -- batches

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        at = self.consts + self.carry
        flags = [a is not None for a in axes]
        body, flags, out = batched_body(derive, self.body, flags, slice(self.consts, at), size)
        consts_and_carry = with_axis(xs[:at], axes[:at], tuple(flags[:at]), size)
        elements = [
            x if a is None else x.move_axis(a, 1) for x, a in zip(xs[at:], axes[at:], strict=True)
        ]
        found = self.of(body, self.consts, self.carry)(*consts_and_carry, *elements)
        return found, [*axes_of(out[: self.carry]), *(1 if f else None for f in out[self.carry :])]


@final
@record
class RepeatLoop(GraphOp):
    """A scan whose elements are arrays of their own, and so are its
    results: a Python loop, rolled up.

    The inputs are the constants, the carry, then for each element the arrays of all
    iterations; the results are the carry, then for each result of an iteration those of all
    iterations. It is made after all derivatives.
    """

    body: Graph
    length: int
    consts: int
    carry: int
    name = "repeat"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.body,)

    def infer(self, *types: ArrayType) -> Types:
        inputs, outputs = types_of(self.body.inputs), types_of(self.body.outputs)
        at = self.consts + self.carry
        agree(self, (*inputs[:at], *(t for t in inputs[at:] for _ in range(self.length))), types)
        agree(self, inputs[self.consts : at], outputs[: self.carry])
        return (
            *outputs[: self.carry],
            *(t for t in outputs[self.carry :] for _ in range(self.length)),
        )

    def reference(self, *arrays: Any) -> Any:
        return self.rounds(self.body, *arrays)

    def rounds(self, body: Callable[..., Sequence[Any]], *arrays: Any) -> tuple[Any, ...]:
        """The loop in Python, whatever computes an iteration."""
        at, n = self.consts + self.carry, self.length
        consts, carry, elements = apart(arrays, self.consts, self.carry, None)
        results: list[list[Any]] = [[] for _ in self.body.outputs[self.carry :]]
        for t in range(n):
            found = body(
                *consts, *carry, *(elements[i * n + t] for i in range(len(self.body.inputs) - at))
            )
            carry = list(found[: self.carry])
            for each, y in zip(results, found[self.carry :], strict=True):
                each.append(y)
        return (*carry, *(y for each in results for y in each))


def batched_body(
    derive: Derive, body: Graph, flags: Sequence[bool], carry: slice, size: int
) -> tuple[Graph, list[bool], Flags]:
    """A body over one more axis, which the carry has if it gets it in any
    iteration; its flags, in and out.
    """
    flags = list(flags)
    count = carry.stop - carry.start
    while True:
        graph, out = derive.batch(body, tuple(flags), size)
        grown = [a or b for a, b in zip(flags[carry], out, strict=False)]
        if grown == flags[carry]:
            break
        flags[carry] = grown
    forced = (*grown, *out[count:])
    if forced != out:
        graph, out = derive.batch(body, tuple(flags), size, forced)
    return graph, flags, out


def apart(xs: Sequence[Any], *counts: int | None) -> list[list[Any]]:
    """The values in groups of so many; None takes the rest."""
    groups, at = [], 0
    for n in counts:
        end = len(xs) if n is None else at + n
        groups.append(list(xs[at:end]))
        at = end
    return groups


@record
class Residuals:
    """The values of an earlier loop's iterations that a later loop reads, by how they are kept.

    What depends on constants alone is made once, by `fixed`; elements, and results that are stacked
    anyway, are read again; only the last `count` are stacked for it. `second` takes them in this
    order, then what else it reads.
    """

    forward: Graph
    fixed: Graph
    elements: tuple[int, ...]
    results: tuple[int, ...]
    count: int
    second: Graph

    @property
    def total(self) -> int:
        return len(self.fixed.outputs) + len(self.elements) + len(self.results) + self.count

    @staticmethod
    def of(loop: ScanLoop, forward: Graph, second: Graph) -> Residuals:
        n = len(loop.body.outputs)
        made, saved = forward.outputs[n:], second.inputs[: len(forward.outputs) - n]
        consts, _, elements = loop.parts(forward.inputs)
        still = set(consts)
        for eqn in forward.eqns:
            known = all(a in still for a in eqn.inputs if isinstance(a, Var))
            if known and not eqn.op.effect:
                still.update(eqn.outs)
        given = {v: i for i, v in enumerate(elements)}
        there = {a: i for i, a in enumerate(forward.outputs[:n]) if i >= loop.carry}
        pairs = list(zip(made, saved, strict=True))
        fixed = [(a, v) for a, v in pairs if not isinstance(a, Var) or a in still]
        rest = [(a, v) for a, v in pairs if isinstance(a, Var) and a not in still]
        again = [(a, v) for a, v in rest if a in given]
        results = [(a, v) for a, v in rest if a not in given and a in there]
        kept = [(a, v) for a, v in rest if a not in given and a not in there]
        return Residuals(
            without_dead_code(
                Graph(forward.inputs, forward.eqns, (*forward.outputs[:n], *(a for a, _ in kept)))
            ),
            without_dead_code(
                Graph(
                    tuple(consts),
                    tuple(e for e in forward.eqns if e.outs and still.issuperset(e.outs)),
                    tuple(a for a, _ in fixed),
                )
            ),
            tuple(given[a] for a, _ in again),
            tuple(there[a] for a, _ in results),
            len(kept),
            Graph(
                (*(v for _, v in (*fixed, *again, *results, *kept)), *second.inputs[len(pairs) :]),
                second.eqns,
                second.outputs,
            ),
        )


@final
@record
class ScanSaving(Alike):
    """A scan whose last `residuals` results are what its derivative reads of each iteration.

    `fixed` makes of the constants what no iteration changes; `elements` and `results` number the
    inputs and the stacked results that it reads again; `backward` is an iteration of the
    derivative; `active` says which inputs of the body that is by.
    """

    body: Graph
    length: int
    consts: int
    carry: int
    reverse: bool
    residuals: int
    fixed: Graph
    elements: tuple[int, ...]
    results: tuple[int, ...]
    backward: Graph
    active: Flags
    name = "scan_saving"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.body, self.fixed, self.backward)

    def plain(self) -> ScanLoop:
        return ScanLoop(self.body, self.length, self.consts, self.carry, self.reverse)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        loop, at = self.plain(), len(ys) - self.residuals
        consts, _, elements = loop.parts(xs)
        by_const, by_carry, by_element = loop.parts(self.active)
        carried = [
            zero_like(y) if ct is None else ct
            for ct, y, f in zip(cts[: self.carry], ys[: self.carry], by_carry, strict=True)
            if f
        ]
        given = filled(cts[self.carry : at], ys[self.carry : at])
        fixed = Call(self.fixed, "scan")(*consts) if self.fixed.outputs else ()
        sums = [x.zeros() for x, f in zip(consts, by_const, strict=True) if f]
        saved = [*(elements[i] for i in self.elements), *(ys[i] for i in self.results), *ys[at:]]
        back = loop.of(self.backward, len(fixed), len(carried) + len(sums), not self.reverse)
        found = back(*fixed, *carried, *sums, *saved, *given)
        ct_carry, ct_const, ct_elements = apart(found, len(carried), len(sums), sum(by_element))
        rests = iter(ct_const), iter(ct_carry), iter(ct_elements)
        flags = (by_const, by_carry, by_element)
        every = [
            next(rest) if f else None for rest, part in zip(rests, flags, strict=True) for f in part
        ]
        return [ct if w else None for ct, w in zip(every, wanted, strict=True)]
