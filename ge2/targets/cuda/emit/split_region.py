"""A region that is more than one kernel can do, as two: what one makes
for the other becomes an array.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ge2.codegen.kernel_values import folded_axes
from ge2.ir import Eqn, Graph, Var
from ge2.ir.op import FREE
from ge2.ops.graphs.region import Region
from ge2.ops.reduce import ArgReduce, Reduce


def cut(region: Region) -> tuple[Region, Region]:
    """The rows and what is gathered over them, and what comes after; else the equations up to the
    middle one of the reductions, and those after it.
    """
    eqns = region.graph.eqns
    late = after_one(region) or after_rows(region)
    if not late:
        folds = [n for n, e in enumerate(eqns) if isinstance(e.op, Reduce | ArgReduce)]
        assert len(folds) > 1, "a region of one reduction is one kernel"
        late = list(range(folds[(len(folds) - 1) // 2] + 1, len(eqns)))
    late = [n for n in late if eqns[n].op.cost is not FREE]
    early = [n for n in range(late[0]) if eqns[n].op.cost is not FREE]
    early += [n for n in range(late[0], len(eqns)) if n not in late and eqns[n].op.cost is not FREE]
    needed = {a for n in late for a in eqns[n].inputs} | outputs(region)
    return half(region, early, needed), half(region, late, outputs(region))


def is_divisible(region: Region) -> bool:
    """True if a region can be two: it has several reductions, or few numbers
    come after all rows.
    """
    folds = [e for e in region.graph.eqns if isinstance(e.op, Reduce | ArgReduce)]
    return len(folds) > 1 or bool(after_one(region) or after_rows(region))


def after_one(region: Region) -> list[int]:
    """The equations that need the sole reduction of a region, and are more than its rounding, if all
    have fewer elements than the space: then blocks may share its rows.
    """
    eqns, behind, late = region.graph.eqns, set[Any](), list[int]()
    folds = [e for e in eqns if isinstance(e.op, Reduce | ArgReduce)]
    if len(folds) != 1:
        return []
    for n, e in enumerate(eqns):
        if e is folds[0] or not behind.isdisjoint(e.inputs):
            behind.update(e.outs)
            late += [n] if e is not folds[0] else []
    made = [eqns[n].outs[0].type.size for n in late if eqns[n].op.cost is not FREE]
    few = made and max(made) < math.prod(region.space)
    rounding = all(eqns[n].op.retypes and eqns[n].inputs[0] in folds[0].outs for n in late)
    return sorted({*late, *for_them_alone(region, late)}) if few and not rounding else []


def repeats(region: Region, long: int) -> bool:
    """True if a long reduction is the same for all rows, each of which would do it again before
    one of its own.
    """
    eqns = region.graph.eqns
    folds = [n for n, e in enumerate(eqns) if isinstance(e.op, Reduce | ArgReduce)]
    return any(
        math.prod(region.space[a] for a in folded(region, n)) >= long
        and any(
            folded(region, m) == folded(region, n) and axes_of(region, n) < axes_of(region, m)
            for m in set(folds) & behind(region, n)
        )
        for n in folds
    )


def axes_of(region: Region, n: int) -> frozenset[int]:
    """The axes of the space over which an equation works."""
    return frozenset(region.axes[n]) - {-1}


def behind(region: Region, n: int) -> set[int]:
    """The equations that need what one of them makes."""
    needed: set[Any] = set(region.graph.eqns[n].outs)
    found = set()
    for m, e in enumerate(region.graph.eqns):
        if not needed.isdisjoint(e.inputs):
            needed.update(e.outs)
            found.add(m)
    return found


def after_rows(region: Region) -> list[int]:
    """The equations that need what is gathered over all rows, where they are few numbers and fold
    nothing: then no row waits for them. Nothing where there are no such.
    """
    eqns = region.graph.eqns
    over = {
        n: folded(region, n) for n, e in enumerate(eqns) if isinstance(e.op, Reduce | ArgReduce)
    }
    for row, _ in Counter(axes for axes in over.values() if axes).most_common():
        behind: set[Any] = set()
        late = []
        for n, e in enumerate(eqns):
            if not behind.isdisjoint(e.inputs):
                late.append(n)
                behind.update(e.outs)
            elif over.get(n, row) != row:
                behind.update(e.outs)
        made = [eqns[n].outs[0].type.size for n in late if eqns[n].op.cost is not FREE]
        if made and max(made) < math.prod(region.space) and over.keys().isdisjoint(late):
            return sorted({*late, *for_them_alone(region, late)})
    return []


def for_them_alone(region: Region, late: list[int]) -> list[int]:
    """The equations that nothing but these needs, and that need no reduction."""
    eqns, found = region.graph.eqns, set(late)
    folds = [n for n, e in enumerate(eqns) if isinstance(e.op, Reduce | ArgReduce)]
    behind = {v for n in folds for v in eqns[n].outs}
    for e in eqns:
        if not behind.isdisjoint(e.inputs):
            behind.update(e.outs)
    for n in reversed(range(len(eqns))):
        (y,) = eqns[n].outs
        readers = [m for m, e in enumerate(eqns) if y in e.inputs]
        if (
            n not in found
            and y not in behind | outputs(region)
            and readers
            and found.issuperset(readers)
        ):
            found.add(n)
    return sorted(found.difference(late))


def folded(region: Region, n: int) -> frozenset[int]:
    """The axes of the space that a reduction folds."""
    return frozenset(region.axes[n][i] for i in folded_axes(region.graph.eqns[n].op)) - {-1}


def inhabited(region: Region) -> Region | None:
    """The region of the results that have elements; None if none has."""
    wanted = [v for v in region.graph.outputs if v.type.size]
    if len(wanted) == len(region.graph.outputs):
        return region
    needed: set[Any] = set(wanted)
    numbers = []
    for n in reversed(range(len(region.graph.eqns))):
        eqn = region.graph.eqns[n]
        if not needed.isdisjoint(eqn.outs):
            numbers.append(n)
            needed.update(eqn.inputs)
    numbers = [n for n in reversed(numbers) if region.graph.eqns[n].op.cost is not FREE]
    return half(region, numbers, set(wanted)) if wanted else None


def outputs(region: Region) -> set[Any]:
    return set(region.graph.outputs)


def half(region: Region, numbers: list[int], needed: set[Any]) -> Region:
    """The region of some equations and of the views that they read; its
    results are what is needed.
    """
    eqns, makers = region.graph.eqns, {e.outs[0]: n for n, e in enumerate(region.graph.eqns)}
    taken = set(numbers)
    waiting = [a for n in numbers for a in eqns[n].inputs]
    while waiting:
        n = makers.get(waiting.pop())  # type: ignore[arg-type]
        if n is not None and n not in taken and eqns[n].op.cost is FREE:
            taken.add(n)
            waiting += eqns[n].inputs
    chosen = sorted(taken)
    made = {v for n in chosen for v in eqns[n].outs}
    read = dict.fromkeys(
        a for n in chosen for a in eqns[n].inputs if isinstance(a, Var) and a not in made
    )
    wanted = through_views(region, needed, makers)
    outs = tuple(eqns[n].outs[0] for n in numbers if eqns[n].outs[0] in wanted)
    inner = Graph(tuple(read), tuple(eqns[n] for n in chosen), outs)
    return Region(kind(inner.eqns), region.space, tuple(region.axes[n] for n in chosen), inner)


def through_views(region: Region, needed: set[Any], makers: dict[Var, int]) -> set[Any]:
    """Returns what is needed, and what it is a view of."""
    found, waiting = set(needed), list(needed)
    while waiting:
        n = makers.get(waiting.pop())
        if n is not None and region.graph.eqns[n].op.cost is FREE:
            waiting += [a for a in region.graph.eqns[n].inputs if a not in found]
            found.update(region.graph.eqns[n].inputs)
    return found


def kind(eqns: tuple[Eqn, ...]) -> str:
    """Those of a half: rowwise if a reduction is read again."""
    folded = {e.outs[0] for e in eqns if isinstance(e.op, Reduce | ArgReduce)}
    read = {a for e in eqns for a in e.inputs}
    return "rowwise" if folded & read else "reduce" if folded else "pointwise"
