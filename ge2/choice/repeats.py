"""Inputs of large products whose lines repeat, so that their reference takes no time.

NumPy takes a minute for a product of 600 Gflop, and a library on the device is a candidate itself,
which proves nothing of its own errors. So rows of the left operand and columns of the right one repeat
after a prime number of lines: the product repeats as they do, and is computed of the lines that differ
and of all terms. A prime is no multiple of a tile, so that what is in the place of another element
differs from it, but for one that is a multiple of 251 lines away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ge2.ir import Dims, Eqn, Evaluate, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.program.cost import computing

LARGE: Final = 1 << 33  # operations, from which on a reference takes a second
PERIOD: Final = 251  # lines along the last axis of an operand's lines,
FEW: Final = 7  # and along the others

Repeats = dict[int, Dims]  # the extents of what repeats, by the number of the input


def repeats_of(eqn: Eqn) -> Repeats:
    """Returns how inputs of a step repeat: operands of its products, if those are large."""
    found: Repeats = {}
    if computing(eqn).operations < LARGE:
        return found
    for op, numbers in products_of(eqn):
        if numbers[0] == numbers[1]:
            return {}  # its lines are terms, too
        a, b = (eqn.inputs[n].type for n in numbers)
        for n, t, free in zip(numbers, (a, b), op.free(a, b), strict=True):
            most = {axis: PERIOD if axis == free[-1] else FEW for axis in free}
            small = tuple(min(size, most.get(axis, size)) for axis, size in enumerate(t.shape))
            if found.setdefault(n, small) != small:
                return {}
    return found


def products_of(eqn: Eqn) -> Iterator[tuple[DotGeneral, tuple[int, int]]]:
    """The products of a step of arrays that it reads, each with the numbers of its operands."""
    if isinstance(eqn.op, DotGeneral):
        yield eqn.op, (0, 1)
    if isinstance(eqn.op, ProductRegion):
        for each in eqn.op.products:
            a, b = (eqn.op.graph.inputs.index(x) for x in each.inputs if isinstance(x, Var))
            assert isinstance(each.op, DotGeneral)
            yield each.op, (a, b)


def lines_once(x: Any, small: Dims) -> Any:
    """The part of an array that repeats."""
    return x[tuple(map(slice, small))]


def repeated(x: Any, shape: Dims) -> Any:
    """An array of a shape that is another one, over and over, along each axis that is longer.

    >>> repeated(np.array([[1, 2]]), (2, 5)).tolist()
    [[1, 2, 1, 2, 1], [1, 2, 1, 2, 1]]
    """
    for axis, size in enumerate(shape):
        if (has := x.shape[axis]) != size:
            before, after = x.shape[:axis], x.shape[axis + 1 :]
            many = np.broadcast_to(
                x[(slice(None),) * axis + (None,)], (*before, -(-size // has), *x.shape[axis:])
            )
            x = many.reshape(*before, -1, *after)[(slice(None),) * axis + (slice(size),)]
    return x


def reference(eqn: Eqn, given: Sequence[Any], repeats: Repeats) -> Sequence[Any]:
    """The results of a step on arrays whose lines repeat so."""
    found = [
        product(op, [lines_once(given[n], repeats[n]) for n in numbers], of)
        for (op, numbers), of in zip(products_of(eqn), outs_of(eqn), strict=True)
    ]
    if not isinstance(eqn.op, ProductRegion):
        return found
    known = dict(zip(eqn.op.graph.inputs, given, strict=True))
    known.update((e.outs[0], y) for e, y in zip(eqn.op.products, found, strict=True))
    rest = eqn.op.rest
    results = Evaluate().apply(rest.op, [known[x] for x in rest.inputs if isinstance(x, Var)])
    known.update(zip(rest.outs, results, strict=True))
    return [known[y] for y in eqn.op.graph.outputs if isinstance(y, Var)]


def outs_of(eqn: Eqn) -> list[Dims]:
    """The shapes of the products of a step."""
    products = eqn.op.products if isinstance(eqn.op, ProductRegion) else (eqn,)
    return [e.outs[0].type.shape for e in products]


def product(op: DotGeneral, operands: Sequence[Any], shape: Dims) -> Any:
    """A product of a shape, of the lines of its operands that differ."""
    (y,) = Evaluate().apply(op, operands)
    return repeated(y, shape)
