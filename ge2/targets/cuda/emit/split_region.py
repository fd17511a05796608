"""The kinds of kernels that a region may become: plain, split in two, or by tiles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from functools import partial
from typing import Any, Final

from ge2.choice import Variant
from ge2.codegen.kernel_values import folded_axes
from ge2.codegen.text import Operand, whole
from ge2.ir import Graph, Var, makers_of
from ge2.ir.graph import FREE
from ge2.ops.graphs.region import Region, kind_of
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.row_plan import Plan, planned
from ge2.targets.cuda.emit.rows import Rows
from ge2.targets.cuda.emit.special_reductions import SECTOR, Kernels, crosses
from ge2.targets.cuda.emit.tiles import across, permuted
from ge2.targets.cuda.limits import WARP, Chip
from ge2.transforms.graphs.partition import VIEWS, cheapest, work_in_bytes

UNWISE: Final = 1 << 100  # dearer than any number of bytes

# -------- A region that is more than one kernel can do, as two: what one makes for the other
# becomes an array.


def cut(region: Region) -> tuple[Region, Region]:
    """The rows and what is gathered over them, and what comes after; else the rows, and what is
    gathered over all of what they leave, or over other axes; else what is gathered of each row, and what
    its elements need that for; else the equations up to the middle one of the reductions, and those
    after it.
    """
    eqns = region.graph.eqns
    late = after_one(region) or after_rows(region) or over_rows(region) or over_others(region)
    late = late or after_folds(region)
    if not late:
        folds = folds_of(region)
        assert len(folds) > 1, "a region of one reduction is one kernel"
        late = list(range(folds[(len(folds) - 1) // 2] + 1, len(eqns)))
    late = [n for n in late if eqns[n].op.cost is not FREE]
    early = [n for n, e in enumerate(eqns) if n not in late and e.op.cost is not FREE]
    late = sorted({*late, *made_again(region, late)})
    inside = {*made_by(region, late)}
    for e in eqns:
        inside.update(e.outs if e.op.cost is FREE and inside.issuperset(e.inputs) else ())
    read = {a for n in late for a in eqns[n].inputs if a not in inside}
    needed = read | outputs(region) - {*made_by(region, [n for n in late if n not in early])}
    early = needed_for(region, early, needed)
    return half(region, early, needed), half(
        region, late, outputs(region) - {*made_by(region, early)}
    )


def folds_of(region: Region) -> list[int]:
    return [n for n, e in enumerate(region.graph.eqns) if isinstance(e.op, Reduce | ArgReduce)]


def made_by(region: Region, numbers: Sequence[int]) -> list[Var]:
    return [v for n in numbers for v in region.graph.eqns[n].outs]


def needed_for(region: Region, numbers: Sequence[int], wanted: set[Any]) -> list[int]:
    """Those of some equations that make what is wanted, or what that is made of."""
    eqns, needed = region.graph.eqns, set(wanted)
    for e in reversed(eqns):
        if not needed.isdisjoint(e.outs):
            needed.update(e.inputs)
    return [n for n in numbers if not needed.isdisjoint(eqns[n].outs)]


def made_again(region: Region, late: Sequence[int]) -> list[int]:
    """The equations of the first half that the second does again, where memory would take longer to
    hand over what they make: a minimum cut (docs/design/partition.md), of bytes.
    """
    eqns, graph = region.graph.eqns, region.graph
    makers, given, results = makers_of(graph), set(graph.inputs), outputs(region)
    mine = {*made_by(region, late)}
    read = dict.fromkeys(
        a for n in late for a in eqns[n].inputs if isinstance(a, Var) and a not in mine
    )

    def price(v: Var) -> int:
        if v in makers and isinstance(makers[v].op, VIEWS):
            return UNWISE
        if v in given:
            return 1 + v.type.nbytes * (v not in read)
        return 1 + v.type.nbytes * (1 if v in results else 2)

    again = cheapest(read, makers, price, lambda e: work_in_bytes(e, makers)).again
    return [n for n, e in enumerate(eqns) if e in again and e.op.cost is not FREE]


def is_divisible(region: Region) -> bool:
    """True if a region can be two: it has several reductions, or few numbers
    come after all rows.
    """
    folds = [e for e in region.graph.eqns if isinstance(e.op, Reduce | ArgReduce)]
    return len(folds) > 1 or bool(after_one(region) or after_rows(region))


def after_one(region: Region) -> list[int]:
    """The equations that need the sole reduction of a region, and are more than what is done with each
    element of its result, if all have fewer elements than the space: then blocks may share its rows.
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
    kept = axes_of(region, eqns.index(folds[0])) - folded(region, eqns.index(folds[0]))
    if all(axes_of(region, n) == kept for n in late):
        return []  # who merges the parts of blocks goes on with each element
    return sorted({*late, *for_them_alone(region, late)}) if few else []


def is_shared(region: Region) -> bool:
    """True if nothing but what is done with each element of their results comes after reductions, all
    over the same axes: then blocks may share the rows of a few columns.
    """
    eqns = region.graph.eqns
    folds = [n for n, e in enumerate(eqns) if isinstance(e.op, Reduce | ArgReduce)]
    left = {axes_of(region, n) - folded(region, n) for n in folds}
    late = {m for n in folds for m in behind(region, n)}
    return len(left) == 1 and all({axes_of(region, n)} == left for n in late)


def repeats(region: Region, long: int) -> bool:
    """True if a long reduction is the same for all rows, each of which would do it again before
    one of its own.
    """
    folds = folds_of(region)
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


def over_rows(region: Region) -> list[int]:
    """The reductions of what rows leave, and what needs them, where all of it is few numbers: one kernel
    then has the rows, whatever is done with their elements. Nothing where there are no such.
    """
    folds = folds_of(region)
    rows = Counter(folded(region, n) for n in folds).most_common(1)
    row = rows[0][0] if rows else frozenset[int]()
    late = {
        n for n in folds if row and folded(region, n) != row and axes_of(region, n).isdisjoint(row)
    }
    late = late.union(*(behind(region, n) for n in late))
    few = all(math.prod(region.space[a] for a in axes_of(region, n) & row) == 1 for n in late)
    return sorted(late) if late and few and not late.issuperset(folds) else []


def over_others(region: Region) -> list[int]:
    """The reductions over other axes than the first one is over, what needs them and what they alone
    need, where those over its axes need none of them: no kernel has rows along both. Nothing where
    there are no such.
    """
    folds = folds_of(region)
    late = {n for n in folds if folded(region, n) != folded(region, folds[0])}
    late = late.union(*(behind(region, n) for n in late))
    if not late or any(n in late for n in folds if folded(region, n) == folded(region, folds[0])):
        return []
    return sorted({*late, *for_them_alone(region, sorted(late))})


def after_folds(region: Region) -> list[int]:
    """The equations of whole rows that need what is folded of them, and what they alone need, where all
    folds are over the same axes and none needs another: blocks may share the rows of the folds then.
    Nothing where there are no such.
    """
    folds = folds_of(region)
    late = {m for n in folds for m in behind(region, n)}
    if len({folded(region, n) for n in folds}) != 1 or not late.isdisjoint(folds):
        return []
    kept = {axes_of(region, n) - folded(region, n) for n in folds}
    late = {n for n in late if axes_of(region, n) not in kept}
    return sorted({*late, *for_them_alone(region, sorted(late))}) if late else []


def for_them_alone(region: Region, late: list[int]) -> list[int]:
    """The equations that nothing but these needs, and that need no reduction."""
    eqns, found = region.graph.eqns, set(late)
    behind = {v for n in folds_of(region) for v in eqns[n].outs}
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
    """The region of some equations and of the views that they read, over the axes that these have;
    its results are what is needed.
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
    axes = [region.axes[n] for n in chosen]
    used = sorted({a for each in axes for a in each if a >= 0})
    places = {a: i for i, a in enumerate(used)}
    return Region(
        kind_of(inner.eqns),
        tuple(region.space[a] for a in used),
        tuple(tuple(places.get(a, a) for a in each) for each in axes),
        inner,
    )


def through_views(region: Region, needed: set[Any], makers: dict[Var, int]) -> set[Any]:
    """Returns what is needed, and what it is a view of."""
    found, waiting = set(needed), list(needed)
    while waiting:
        n = makers.get(waiting.pop())
        if n is not None and region.graph.eqns[n].op.cost is FREE:
            waiting += [a for a in region.graph.eqns[n].inputs if a not in found]
            found.update(region.graph.eqns[n].inputs)
    return found


# -------- The kinds of kernels that a region may become, and the kernels of each.
# Threads lie along what is reduced (rows) or along what is kept (columns); arrays that lie across
# the results go through tiles; and a region of several reductions may be two kernels, with an array
# between them.


Operands = Mapping[Var, Operand]


def variants(region: Region, operands: Operands, chip: Chip) -> Iterator[Variant]:
    """Ways to do a region on such a chip, the preferred one first; the
    plan of each gives its kernels, the same ones each time: names are taken while text is written.
    """
    rest = inhabited(region)
    if rest is None:
        yield Variant("nothing", lambda: Kernels(()))
        return
    problem = Problem(rest, operands)
    starved, halves = has_few_rows(problem, chip), once(partial(in_two, rest, operands, chip))
    two = [Variant("in two", halves)] if starved or is_divisible(rest) else []
    first = starved or repeats(rest, chip.tuning.rowwise.long) or has_pairs(problem, chip)
    early = two if two and (first or has_idle(problem, chip)) else []
    yield from early
    yield from single(problem, chip)
    yield from [] if early else two


def has_pairs(problem: Problem, chip: Chip) -> bool:
    """True if some folds of a region are over pairs, and what they leave is folded again."""
    over = {w.over for w in problem.folded}
    return len(over) > 1 and any(crosses(problem, each, chip) for each in over)


def has_few_rows(problem: Problem, chip: Chip) -> bool:
    """True if each of a few long rows would have one block for costly work, before it is folded and after,
    and most of a GPU none: 64 rows of 65,536, with ten functions of an element, take an H200 64 us by a
    block each and 39 in two. Cheaper work is sooner done than a second kernel begins.
    """
    over, sizes, tuning = {w.over for w in problem.folded}, problem.axes.sizes, chip.tuning.rowwise
    if len(over) != 1 or not after_folds(problem.region):
        return False
    (row,) = over
    length = math.prod(sizes[a] for a in row)
    rows = math.prod(n for a, n in sizes.items() if a not in row)
    costly = sum(w.cost for w in problem.works) >= tuning.costly
    long = length >= tuning.divided and rows * length >= tuning.many_divided
    return costly and long and 2 * rows <= chip.multiprocessors


def has_idle(problem: Problem, chip: Chip) -> bool:
    """True if a block would have few elements, those that are folded together by one fold after
    another, as 3 x 2 of each of millions of triangles: blocks come and go, and most of a warp is idle.
    """
    over, sizes = {w.over for w in problem.folded}, problem.axes.sizes
    if len(over) < 2:
        return False
    together = frozenset[int]().union(*over)
    groups = math.prod(n for a, n in sizes.items() if a not in together)
    few = math.prod(n for a, n in sizes.items() if a in together) <= 2 * WARP
    return few and groups > chip.multiprocessors * chip.threads


def across_rows(region: Region, operands: Operands) -> int:
    """The bytes beyond their elements that caches hand over for arrays of the whole space which lie
    across the rows: neighbouring threads read them in sectors of their own.
    """
    problem, found = Problem(region, operands), 0
    sizes = problem.axes.sizes
    rows = frozenset[int]().union(*(w.over for w in problem.folded if problem.lane in w.over))
    for p, strides in problem.axes.strides.items():
        beside = any(strides.get(a) == 1 for a, n in sizes.items() if a not in rows and n > 1)
        if rows and beside and all(strides.get(a) for a in sizes):
            found += math.prod(sizes.values()) * max(SECTOR - p.var.type.dtype.itemsize, 0)
    return found


def single(problem: Problem, chip: Chip) -> Iterator[Variant]:
    """Ways to do a region as one kernel, and those that finish what its blocks gather: the first that
    is taken has the problem itself, the others one each.
    """
    region, operands = problem.region, problem.operands
    over = list(dict.fromkeys(w.over for w in problem.folded))
    if not over:
        if (blocks := permuted(problem, chip)) is not None:
            yield Variant("tiles of several axes", once(blocks.run))
            problem = Problem(region, operands)
        if (tiles := across(problem, chip)) is not None:
            yield Variant("transposed tiles", once(tiles.run))
            problem = Problem(region, operands)
        yield Variant("elementwise", once(partial(by_lanes, problem, frozenset(), chip)))
        return
    lane = problem.lane
    if len(over) == 1 and crosses(problem, over[0], chip):
        yield Variant(
            f"pairs over {named(over[0])}", once(partial(by_lanes, problem, over[0], chip))
        )
        problem = Problem(region, operands)
    at_hand = [problem]  # it was looked at, and no name of it is taken

    def make() -> Problem:
        return at_hand.pop() if at_hand else Problem(region, operands)

    for axes in sorted(over, key=lambda axes: (-rank(problem, axes), sorted(axes))):
        if lane in axes and (plan := planned(make, axes, chip)) is not None:
            yield Variant(f"rows along {named(axes)}", once(partial(by_rows, plan)))
    if len(over) == 1:
        name, columns = f"columns over {named(over[0])}", chip.tuning.columns
        yield Variant(name, once(partial(by_lanes, make(), over[0], chip)))
        if math.prod(region.space) >= columns.many:
            deep = replace(chip.tuning, columns=replace(columns, unrolled=columns.deep))
            further = partial(by_lanes, make(), over[0], replace(chip, tuning=deep))
            yield Variant(f"{name}, {columns.deep} rows at once", once(further))


def by_lanes(problem: Problem, axes: frozenset[int], chip: Chip) -> Kernels:
    return Lanes(problem, axes, chip).run()


def by_rows(plan: Plan) -> Kernels:
    return Rows(plan).run()


def named(axes: frozenset[int]) -> str:
    """Axes of the iteration space in words.

    >>> named(frozenset({2, 0}))
    'axes 0, 2'
    """
    return f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, sorted(axes)))}"


def regional(region: Region, operands: Operands, chip: Chip) -> Kernels:
    """The kernels of the preferred variant."""
    found: Kernels = next(variants(region, operands, chip)).plan()
    return found


def in_two(region: Region, operands: Operands, chip: Chip) -> Kernels:
    """The kernels of both halves, and the arrays that the first makes for the second."""
    temps: list[int] = []
    kernels = of_halves(region, dict(operands), chip, temps)
    return Kernels(tuple(kernels), tuple(temps))


def of_halves(
    region: Region, operands: dict[Var, Operand], chip: Chip, temps: list[int]
) -> list[CudaKernel]:
    """The kernels of both halves; arrays between them are added to `temps`, and to `operands`."""
    kernels: list[CudaKernel] = []
    for part in cut(region):
        for var in part.graph.outputs:  # those of no elements too, which the other half may read
            assert isinstance(var, Var)
            if var not in operands:
                operands[var] = whole("temp", len(temps), var.type.shape)
                temps.append(var.type.nbytes)
        half = inhabited(part)
        if half is None:
            continue
        problem = Problem(half, operands)
        again = is_divisible(half) and has_idle(problem, chip)
        again = again or has_few_rows(problem, chip)
        one = None if again else next(single(problem, chip), None)
        if one is None:
            kernels += of_halves(half, operands, chip, temps)
            continue
        found: Kernels = one.plan()
        kernels += [k.shifted(len(temps)) for k in found.kernels]
        temps += found.temps
    return kernels


def is_read_later(region: Region, x: Any, out: Any) -> bool:
    """True if a region may be divided so that a kernel reads an array after another has written a result,
    which may not be written over that array then.
    """
    if not folds_of(region) or not (is_divisible(region) or after_folds(region)):
        return False
    halves = cut(region)
    readers = [n for n, part in enumerate(halves) if x in part.graph.inputs]
    for n, part in enumerate(halves):
        if out in part.graph.outputs:
            smaller = len(part.graph.eqns) < len(region.graph.eqns)
            return max(readers, default=n) > n or (smaller and is_read_later(part, x, out))
    return False


def rank(problem: Problem, axes: frozenset[int]) -> int:
    """Returns what speaks for axes as those of a row: what is read inside must be
    complete; then the most used.
    """
    read = {x for w in problem.works if w.kind != "store" for x in w.xs}
    folded = [w for w in problem.folded if w.over == axes]
    full = any(w.y in read or isinstance(w.op, ArgReduce) for w in folded)
    return 1000 * full + len(folded)
