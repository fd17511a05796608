"""What a scan's rounds only gather is computed after the loop, from what they stack anyway.

A carry to which each round adds a product of stacked values, as the derivative by a weight is,
becomes one product over all rounds. A carry that is stacked before and after each round is stacked
once, and shifted. Neither needs memory that the loop did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ge2.ir import Atom, Dims, Eqn, Literal, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD
from ge2.ops.shape import BroadcastInDim, Concatenate, Reshape, Slice, Transpose

if TYPE_CHECKING:
    from ge2.passes.loops.hoist import Scan


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
    """The values before each round, of the first one and of those after each."""
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
    """The product that each round adds to a carry, the views of it, and the sum;
    nothing if it is another.
    """
    makers = {v: e for e in scan.body.eqns for v in e.outs}
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
        if isinstance(maker.op, DotGeneral):
            return chain if all(stack_of(scan, a, makers) is not None for a in maker.inputs) else []
        if not isinstance(maker.op, Transpose | Reshape):
            return []
        (value,) = maker.inputs
    return []


def stack_of(scan: Scan, a: Atom, makers: Mapping[Var, Eqn]) -> tuple[Atom, list[Eqn]] | None:
    """A round's value with those of all others: what is stacked, and the
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
    """The sum of all rounds' products as one, which is summed over the rounds too."""
    product, *views, _ = chain
    op = product.op
    assert isinstance(op, DotGeneral)
    (left, right), (one, other) = op.contract, op.beside
    whole = replace(
        op,
        contract=((0, *after_first(left)), (0, *after_first(right))),
        beside=(after_first(one), after_first(other)),
    )
    makers, found, stacks = (
        {v: e for e in scan.body.eqns for v in e.outs},
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
    if not begins_with_nothing(scan, start):
        return [*found, Eqn(ADD, (start, value), (result,), chain[-1].source)]
    return [*found[:-1], Eqn(found[-1].op, found[-1].inputs, (result,), found[-1].source)]


def begins_with_nothing(scan: Scan, start: Atom) -> bool:
    """Whether what is added to it stays what it is."""
    maker = scan.makers.get(start) if isinstance(start, Var) else None
    if maker is None or not isinstance(maker.op, BroadcastInDim):
        return False
    return maker.inputs[0] == Literal.of(nothing_of(start.type.dtype))


def nothing_of(dtype: np.dtype) -> np.generic:
    """The number to which any x may be added and is x, -0.0 too."""
    zero = dtype.type(0)
    return zero if dtype.kind in "bui" else -zero  # type: ignore[no-any-return]


def after_first(axes: Dims) -> Dims:
    """The axes where one more comes first."""
    return tuple(i + 1 for i in axes)
