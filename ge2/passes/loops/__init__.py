"""Rewrites of loops. Here scans and branches lose what nobody reads, what no iteration changes is
computed before them, and what is gathered after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.ir import (
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    anew,
    makers_of,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ir.graph import DIVISION, FREE
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import readers_of
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce, ReduceSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context, Fusion


def trim(graph: Graph, context: Context = NOTHING) -> Graph:
    if not any(isinstance(e.op, ScanLoop | Cond) for e in graph.eqns):
        return graph
    read: set[Atom] = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
    makers = makers_of(graph)
    same: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        eqn = renamed(same, eqn)
        if isinstance(eqn.op, ScanLoop) and not any(e.op.effect for e in eqn.op.body.eqns):
            eqns += Scan(eqn, read, makers, context).run()
        elif isinstance(eqn.op, Cond):
            eqns.append(without_unread(eqn, eqn.op, read, same))
        else:
            eqns.append(eqn)
    outputs = rename(same, graph.outputs)
    return without_dead_code(Graph(graph.inputs, tuple(eqns), outputs, graph.consts))


def without_unread(eqn: Eqn, op: Cond, read: set[Atom], same: dict[Var, Atom]) -> Eqn:
    """A cond without results that nobody reads, or that all branches return as another one, too;
    `same` gets those. An argument that a branch writes and returns is both of them.
    """
    returned: dict[tuple[Atom, ...], Var] = {}
    kept: list[int] = []
    for i, v in enumerate(eqn.outs):
        each = tuple(b.outputs[i] for b in op.branches)
        if v not in read:
            continue
        if each in returned:
            same[v] = returned[each]
        else:
            returned[each] = v
            kept.append(i)
    first = [eqn.inputs.index(a) - 1 for a in eqn.inputs[1:]]
    if len(kept) == len(eqn.outs) and len(set(first)) == len(first):
        return eqn
    branches = tuple(of_results(b, kept, first) for b in op.branches)
    inputs = [a for k, a in enumerate(eqn.inputs[1:]) if first[k] == k]
    outs = tuple(eqn.outs[i] for i in kept)
    return Eqn(Cond(branches), (eqn.inputs[0], *inputs), outs, eqn.source)


def of_results(branch: Graph, kept: Sequence[int], first: Sequence[int]) -> Graph:
    """A branch that returns the results in `kept`; input k is the same value as input first[k]."""
    inputs = [v for k, v in enumerate(branch.inputs) if first[k] == k]
    env: dict[Var, Atom] = {v: branch.inputs[first[k]] for k, v in enumerate(branch.inputs)}
    eqns = tuple(renamed(env, e) for e in branch.eqns)
    outputs = rename(env, [branch.outputs[i] for i in kept])
    return without_dead_code(Graph(tuple(inputs), eqns, outputs, branch.consts))


def is_view_of(a: Atom, x: Atom, op: Op, makers: Mapping[Var, Eqn]) -> bool:
    """True if a value is known to be a view of another: that equation made it, or both are one number."""
    made, of = (makers.get(v) if isinstance(v, Var) else None for v in (a, x))
    if made is None:
        return False
    if made.op == op and made.inputs[0] is x:
        return True
    numbers = [e for e in (made, of) if e and isinstance(e.op, BroadcastInDim) and not e.op.dims]
    return len(numbers) == 2 and numbers[0].inputs == numbers[1].inputs


def by_rows(eqn: Eqn) -> bool:
    """True if it is a matrix times a vector."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or [a.type.ndim for a in eqn.inputs] != [2, 1]:
        return False
    return op.contract == ((1,), (0,))


VIEWS = (Slice, Reshape, Transpose)


@final
class Scan:
    """One scan, as lists that get shorter."""

    def __init__(
        self,
        eqn: Eqn,
        read: set[Atom],
        makers: dict[Var, Eqn],
        context: Context,
        summing: bool = False,
    ) -> None:
        assert isinstance(eqn.op, ScanLoop)
        self.tuning, self.context = context.tuning.rolling, context
        self.eqn, self.op, self.read, self.makers = eqn, eqn.op, read, makers
        self.moved = (DotGeneral, ReduceSum) if summing else (DotGeneral,)  # sums that come after
        self.body = eqn.op.body
        consts, carry, elements = eqn.op.parts(list(zip(self.body.inputs, eqn.inputs, strict=True)))
        self.consts, self.elements = consts, elements
        outs = list(zip(self.body.outputs, eqn.outs, strict=True))
        self.carry = [(*pair, *out) for pair, out in zip(carry, outs, strict=False)]
        self.results = outs[eqn.op.carry :]
        self.before: list[Eqn] = []

    def run(self) -> list[Eqn]:
        self.results = [(a, v) for a, v in self.results if v in self.read]
        views = self.views_of_carries()
        self.drop_carries()
        self.unchanged()
        self.filled()
        self.hoist()
        self.turn()
        after = late(self)
        self.drop_inputs()
        return [*self.before, self.made(), *views, *after]

    def outputs(self) -> list[Atom]:
        return [*(out for _, _, out, _ in self.carry), *(a for a, _ in self.results)]

    def live(self, outputs: Sequence[Atom]) -> set[Atom]:
        """The inputs of an iteration that some of its outputs depend on."""
        graph = without_dead_code(Graph(self.body.inputs, self.body.eqns, tuple(outputs)))
        return {a for e in graph.eqns for a in e.inputs} | set(outputs)

    def views_of_carries(self) -> list[Eqn]:
        """Makes carries that are a part of another one, or that one under another shape, before all
        iterations and after each, views of it: a round need not copy them. Returns the equations of
        those that are read after the loop.
        """
        order, made, after = {e: n for n, e in enumerate(self.body.eqns)}, list[Eqn](), list[Eqn]()
        makers = makers_of(self.body)
        views = [
            (c, e)
            for c in self.carry
            if isinstance(c[2], Var) and (e := makers.get(c[2])) and isinstance(e.op, VIEWS)
        ]
        known, source = {c[2]: c for c in reversed(self.carry)}, self.eqn.source
        for carry, maker in sorted(views, key=lambda pair: -order[pair[1]]):  # views of views first
            inner, start, _, result = carry
            whole = known.get(maker.inputs[0])
            if whole is None or not is_view_of(start, whole[1], maker.op, self.makers):
                continue
            self.carry.remove(carry)
            made.insert(0, Eqn(maker.op, (whole[0],), (inner,), source))
            if result in self.read:
                self.read.add(whole[3])
                after.insert(0, Eqn(maker.op, (whole[3],), (result,), source))
        self.body = replace(self.body, eqns=(*made, *self.body.eqns)) if made else self.body
        return after

    def drop_carries(self) -> None:
        """Drops the carries that are read neither after the loop nor by what is."""
        kept = [c for c in self.carry if c[3] in self.read]
        while True:
            live = self.live([*(c[2] for c in kept), *(a for a, _ in self.results)])
            grown = [c for c in self.carry if c in kept or c[0] in live]
            if len(grown) == len(kept):
                break
            kept = grown
        self.carry = kept

    def unchanged(self) -> None:
        """A carry that no iteration changes, and that is not read after the loop, is a constant."""
        still = [c for c in self.carry if c[2] is c[0] and c[3] not in self.read]
        self.carry = [c for c in self.carry if c not in still]
        self.consts += [(c[0], c[1]) for c in still]

    def filled(self) -> None:
        """Elements that are all the same number are made of it in each iteration."""
        made: list[Eqn] = []
        for inner, outer in list(self.elements):
            maker = self.makers.get(outer) if isinstance(outer, Var) else None
            if maker is None or not isinstance(maker.op, BroadcastInDim) or maker.op.dims:
                continue
            (number,) = maker.inputs
            if isinstance(number, Literal) and not number.type.weak:
                self.elements.remove((inner, outer))
                made.append(
                    Eqn(BroadcastInDim(inner.type.shape, ()), (number,), (inner,), self.eqn.source)
                )
        if made:
            self.body = Graph(self.body.inputs, (*made, *self.body.eqns), self.body.outputs)

    def hoist(self) -> None:
        """Computes before the loop what depends on constants alone, if that is worth an array."""
        outer: dict[Var, Atom] = dict(self.consts)
        stays: list[Eqn] = []
        moved: list[Eqn] = []
        for eqn in self.body.eqns:
            known = all(isinstance(a, Literal) or a in outer for a in eqn.inputs)
            reads = any(isinstance(a, Var) for a in eqn.inputs)
            if not (known and reads) or eqn.op.effect or any(v.type.weak for v in eqn.outs):
                stays.append(eqn)
                continue
            moved.append(anew(outer, eqn))
            stays.append(eqn)
        heavy = [
            e for e in self.body.eqns if e.op.cost is not FREE and all(v in outer for v in e.outs)
        ]
        if self.context.caps:
            heavy = without_easy(heavy, self.body, self.context.tuning.fusion)
        if not heavy:
            return
        out = {v for e in heavy for v in e.outs}
        self.before = moved
        self.consts += [(v, outer[v]) for e in heavy for v in e.outs]
        self.body = Graph(
            self.body.inputs, tuple(e for e in stays if out.isdisjoint(e.outs)), self.body.outputs
        )

    def turn(self) -> None:
        """A constant matrix that multiplies a vector in each iteration is laid in columns, once, unless
        it is so large that memory bounds both.
        """
        outer, eqns = dict(self.consts), []
        for eqn in self.body.eqns:
            matrix = eqn.inputs[0] if eqn.inputs else None
            known = isinstance(matrix, Var) and matrix in outer and by_rows(eqn)
            if not isinstance(matrix, Var) or not known or matrix.type.size > self.tuning.turned:
                eqns.append(eqn)
                continue
            shape = (matrix.type.shape[1], matrix.type.shape[0])
            turned, inner = (Var(matrix.type.with_shape(shape)) for _ in range(2))
            self.before.append(Eqn(Transpose((1, 0)), (outer[matrix],), (turned,), eqn.source))
            self.consts.append((inner, turned))
            op = replace(eqn.op, contract=((0,), (0,)))  # type: ignore[type-var]
            eqns.append(Eqn(op, (inner, eqn.inputs[1]), eqn.outs, eqn.source))
        self.body = Graph(self.body.inputs, tuple(eqns), self.body.outputs)

    def drop_inputs(self) -> None:
        live = self.live(self.outputs())
        self.consts = [(inner, outer) for inner, outer in self.consts if inner in live]
        self.elements = [(inner, outer) for inner, outer in self.elements if inner in live]

    def made(self) -> Eqn:
        inner = (
            *(v for v, _ in self.consts),
            *(c[0] for c in self.carry),
            *(v for v, _ in self.elements),
        )
        given = (
            *(a for _, a in self.consts),
            *(c[1] for c in self.carry),
            *(a for _, a in self.elements),
        )
        body = without_dead_code(Graph(inner, self.body.eqns, tuple(self.outputs())))
        op = self.op.of(body, len(self.consts), len(self.carry))
        return Eqn(
            op, given, (*(c[3] for c in self.carry), *(v for _, v in self.results)), self.eqn.source
        )


def without_easy(heavy: Sequence[Eqn], body: Graph, tuning: Fusion) -> list[Eqn]:
    """These equations of an iteration, which know its constants alone, without easy elementwise work
    on large arrays: its kernels would read what that makes in place of as many bytes or fewer.
    """
    known = {e.outs[0]: e for e in heavy}
    readers, inside = readers_of(body), {*body.eqns} - {*heavy}

    def fused(v: Var) -> bool:
        """True if iterations read it in elementwise work and reductions, and are all that do."""
        read = [e for e in readers.get(v, ()) if e in inside]
        views = [e for e in read if isinstance(e.op, BroadcastInDim)]
        rest = all(isinstance(e.op, Pointlike | Reduce) for e in read if e not in views)
        return (
            bool(read) and rest and v not in body.outputs and all(fused(e.outs[0]) for e in views)
        )

    for v, eqn in reversed(known.items()):
        if v.type.nbytes < tuning.recomputed or eqn in inside or not fused(v):
            continue
        cone, leaves = easy_cone(v, known)
        read = sum(a.type.nbytes for a in leaves)
        if sum(e.op.cost.instructions for e in cone) <= tuning.easy and read <= v.type.nbytes:
            inside |= cone
    return [e for e in heavy if e not in inside]


def easy_cone(v: Var, known: Mapping[Var, Eqn]) -> tuple[set[Eqn], set[Var]]:
    """The elementwise equations of no more than a division each that make a value, and the arrays
    that those read.
    """
    cone, leaves, waiting = set[Eqn](), set[Var](), [v]
    while waiting:
        a = waiting.pop()
        eqn = known.get(a)
        easy = eqn is not None and eqn.op.cost.instructions <= DIVISION.instructions
        if eqn is None or not easy or not isinstance(eqn.op, Pointlike):
            leaves.add(a)
        elif eqn not in cone:
            cone.add(eqn)
            waiting += [x for x in eqn.inputs if isinstance(x, Var)]
    return cone, leaves


# -------------------------------------------------------------------------------------------- sink
# What a scan's iterations only gather is computed after the loop, from what they stack anyway.
#
# A carry to which each iteration adds a product of stacked values, as the derivative by a weight
# is, becomes one product over all iterations. A carry that is stacked before and after each
# iteration is stacked once, and shifted. Neither needs memory that the loop did not.


def late(scan: Scan) -> list[Eqn]:
    """The equations after the loop; `scan` loses carries and results that they give."""
    sums = summed(scan)  # which may read a stack that is shifted
    return [*shifted(scan), *sums]


# ------------------------------------------------------------------------ a carry, before and after


def shifted(scan: Scan) -> list[Eqn]:
    found = list[Eqn]()
    for old, result in list(scan.results):
        carry = next((c for c in scan.carry if c[0] is old), None)
        if carry is None or not scan.op.length:
            continue
        _, start, new, _ = carry
        stack = next((v for a, v in scan.results if a is new and new is not old), None)
        if stack is not None:
            scan.results.remove((old, result))
            made = moved_on(start, stack, result, scan.op.reverse, scan.eqn)
            # a stack that is itself shifted later comes before what is made of it
            found = [*made, *found]
    return found


def moved_on(start: Atom, stack: Var, result: Var, reverse: bool, loop: Eqn) -> list[Eqn]:
    """The values before each iteration, of the first one and of those after each."""
    shape, source = stack.type.shape, loop.source
    first, rest = (
        Var(stack.type.with_shape((1, *shape[1:]))),
        Var(stack.type.with_shape((shape[0] - 1, *shape[1:]))),
    )
    begin, end = (1, shape[0]) if reverse else (0, shape[0] - 1)
    zeros = (0,) * (len(shape) - 1)
    part = Slice((begin, *zeros), (end, *shape[1:]), (1,) * len(shape))
    parts = (rest, first) if reverse else (first, rest)
    return [
        Eqn(Reshape(first.type.shape), (start,), (first,), source),
        Eqn(part, (stack,), (rest,), source),
        Eqn(Concatenate(0), parts, (result,), source),
    ]


# --------------------------------------------------------------------------------- sums of products


def summed(scan: Scan) -> list[Eqn]:
    found = list[Eqn]()
    for carry in list(scan.carry):
        chain = product_of(scan, carry)
        if chain:
            scan.carry.remove(carry)
            found += at_once(scan, carry, chain)
    return found


def product_of(scan: Scan, carry: tuple[Var, Atom, Atom, Var]) -> list[Eqn]:
    """The product, or the sum, that each iteration adds to a carry, the views of it, and the sum;
    nothing if it is another.
    """
    makers = makers_of(scan.body)
    uses = Counter(a for e in scan.body.eqns for a in e.inputs if isinstance(a, Var))
    uses.update(a for a in scan.outputs() if isinstance(a, Var))
    old, _, new, _ = carry
    if not isinstance(new, Var):
        return []
    total = makers.get(new)
    if (
        total is None
        or total.op != ADD
        or uses[new] != 1
        or uses[old] != 1
        or old not in total.inputs
    ):
        return []
    chain, value = [total], next((a for a in total.inputs if a is not old), old)
    while isinstance(value, Var) and uses[value] == 1 and (maker := makers.get(value)) is not None:
        chain.insert(0, maker)
        if isinstance(maker.op, scan.moved):
            return chain if all(stack_of(scan, a, makers) is not None for a in maker.inputs) else []
        if not isinstance(maker.op, Transpose | Reshape):
            return []
        (value,) = maker.inputs
    return []


def stack_of(scan: Scan, a: Atom, makers: Mapping[Var, Eqn]) -> tuple[Atom, list[Eqn]] | None:
    """An iteration's value with those of all others: what is stacked, and the
    transpositions that make it so.
    """
    for inner, outer in (*scan.elements, *scan.results):
        if inner is a:
            return outer, []
    maker = makers.get(a) if isinstance(a, Var) else None
    if maker is None or not isinstance(maker.op, Transpose):
        return None
    found = stack_of(scan, maker.inputs[0], makers)
    if found is None:
        return None
    stack, made = found
    turned = Var(a.type.with_shape((scan.op.length, *a.type.shape)))
    turn = Eqn(Transpose((0, *after_first(maker.op.order))), (stack,), (turned,), maker.source)
    return turned, [*made, turn]


def at_once(scan: Scan, carry: tuple[Var, Atom, Atom, Var], chain: Sequence[Eqn]) -> list[Eqn]:
    """The sum of all iterations' products as one, which is summed over the iterations too."""
    product, *views, _ = chain
    whole = over_iterations(product.op)
    makers, found, stacks = (
        makers_of(scan.body),
        list[Eqn](),
        list[Atom](),
    )
    for a in product.inputs:
        stack, made = stack_of(scan, a, makers) or (a, [])
        stacks.append(stack)
        found += made
    value = Var(product.outs[0].type)
    found.append(Eqn(whole, tuple(stacks), (value,), product.source))
    for view in views:
        found.append(Eqn(view.op, (value,), (Var(view.outs[0].type),), view.source))
        (value,) = found[-1].outs
    _, start, _, result = carry
    begin = number_of(scan, start)
    if begin != Literal.of(nothing_of(start.type.dtype)):
        return [*found, Eqn(ADD, (begin or start, value), (result,), chain[-1].source)]
    return [*found[:-1], Eqn(found[-1].op, found[-1].inputs, (result,), found[-1].source)]


def over_iterations(op: Op) -> Op:
    """A product or a sum that goes over the iterations, the first axis, too."""
    if isinstance(op, ReduceSum):
        return replace(op, axes=(0, *after_first(op.axes)))
    assert isinstance(op, DotGeneral)
    (left, right), (one, other) = op.contract, op.beside
    contract = ((0, *after_first(left)), (0, *after_first(right)))
    return replace(op, contract=contract, beside=(after_first(one), after_first(other)))


def number_of(scan: Scan, start: Atom) -> Literal | None:
    """The number that all elements of a carry begin with; None if they are not known to be one."""
    maker = scan.makers.get(start) if isinstance(start, Var) else None
    if maker is None or not isinstance(maker.op, BroadcastInDim):
        return None
    (number,) = maker.inputs
    return number if isinstance(number, Literal) and not number.type.weak else None


def nothing_of(dtype: np.dtype) -> np.generic:
    """The number to which any x may be added and is x, -0.0 too."""
    zero = dtype.type(0)
    return zero if dtype.kind in "bui" else -zero  # type: ignore[no-any-return]


def after_first(axes: Dims) -> Dims:
    """The axes where one more comes first."""
    return tuple(i + 1 for i in axes)


# -------------------------------------------------------------------------------------- sums after
# Sums of products that a scan carries become one product after it, at the price of stacks.
#
# `late.py` does so where both factors are stacked anyway. On a GPU the product of all iterations is
# many times as fast as one an iteration, and without it the rows of an iteration know nothing of
# each other; so here a factor is stacked for it, as long as a loop's stacks no more than double.
# Sums over rows, as the derivative by a bias is, come after likewise.


def sums_after(graph: Graph, context: Context = NOTHING) -> Graph:
    if not any(isinstance(e.op, ScanLoop) for e in graph.eqns):
        return graph
    read = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
    makers = makers_of(graph)
    eqns: list[Eqn] = []
    changed = False
    for eqn in graph.eqns:
        more = factors(eqn) if isinstance(eqn.op, ScanLoop) and not eqn.op.body.effect else None
        if more is None:
            eqns.append(eqn)
            continue
        wide, stacks = stacking(eqn, more)
        eqns += Scan(wide, read | set(stacks), makers, context, summing=True).run()
        changed = True
    found = Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)
    return trim(found, context) if changed else graph


def stacking(eqn: Eqn, more: list[Var]) -> tuple[Eqn, list[Var]]:
    """The scan with further values stacked, and their stacks."""
    op = eqn.op
    assert isinstance(op, ScanLoop)
    body = Graph(op.body.inputs, op.body.eqns, (*op.body.outputs, *more), op.body.consts)
    stacks = [Var(v.type.with_shape((op.length, *v.type.shape))) for v in more]
    return Eqn(replace(op, body=body), eqn.inputs, (*eqn.outs, *stacks), eqn.source), stacks


def factors(eqn: Eqn) -> list[Var] | None:
    """The values to stack so that each sum may be taken; None if they are too many, or none is."""
    op = eqn.op
    assert isinstance(op, ScanLoop)
    inputs = op.body.inputs
    consts, elements = set(inputs[: op.consts]), set(inputs[op.consts + op.carry :])
    known = elements | {a for a in op.body.outputs[op.carry :] if isinstance(a, Var)}
    found: list[Var] = []
    summed = False
    for old, new in zip(inputs[op.consts :], op.body.outputs[: op.carry], strict=False):
        both = multiplied(op.body, old, new) if isinstance(new, Var) else []
        if both and consts.isdisjoint(both):
            summed = True
            found += [v for v in both if v not in known and v not in found]
    there = sum(v.type.nbytes for v in known)
    return found if summed and sum(v.type.nbytes for v in found) <= there else None


def multiplied(body: Graph, old: Var, new: Var) -> list[Var]:
    """The factors of the product that an iteration adds to a carry and that nothing else reads, or
    what is summed for it.
    """
    makers = makers_of(body)
    reads = [a for e in body.eqns for a in e.inputs] + list(body.outputs)
    total = makers.get(new)
    if total is None or total.op != ADD or reads.count(new) != 1 or reads.count(old) != 1:
        return []
    if old not in total.inputs:
        return []
    value = next((a for a in total.inputs if a is not old), old)
    while isinstance(value, Var) and reads.count(value) == 1 and value in makers:
        maker = makers[value]
        if isinstance(maker.op, DotGeneral | ReduceSum):
            return [untransposed(a, makers) for a in maker.inputs if isinstance(a, Var)]
        if not isinstance(maker.op, Transpose | Reshape):
            break
        (value,) = maker.inputs
    return []


def untransposed(v: Var, makers: dict[Var, Eqn]) -> Var:
    """A value, or what it is a transposition of."""
    while v in makers and isinstance(makers[v].op, Transpose):
        (x,) = makers[v].inputs
        if not isinstance(x, Var):
            break
        v = x
    return v
