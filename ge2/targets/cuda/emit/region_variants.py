"""The kinds of kernels that a region may become, and the kernels of each.

Threads lie along what is reduced (rows) or along what is kept (columns); arrays that
lie across the results go through tiles; and a region of several reductions may be two
kernels, with an array between them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache as once
from functools import partial

from ge2.choice.problem import Variant
from ge2.codegen.loop_nest import is_state
from ge2.codegen.text import Operand, whole
from ge2.ir import Var
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.rows.kernel import Rows
from ge2.targets.cuda.emit.rows.plan import Plan, planned
from ge2.targets.cuda.emit.split_region import cut, inhabited, is_divisible, repeats
from ge2.targets.cuda.emit.transpose_tiles import across
from ge2.targets.cuda.emit.two_stage_reduce import Kernels

Operands = Mapping[Var, Operand]


def variants(region: Region, operands: Operands, chip: Chip) -> Iterator[Variant]:
    """Ways to do a region on such a chip, the preferred one first; the
    plan of each gives its kernels, the same ones each time: names are taken while text is written.
    """
    rest = inhabited(region)
    if rest is None:
        yield Variant("nothing", lambda: Kernels(()))
        return
    two = (
        [Variant("in two", once(partial(in_two, rest, operands, chip)))]
        if is_divisible(rest)
        else []
    )
    early = two if repeats(rest, chip.tuning.rowwise.long) else []
    yield from early
    yield from single(rest, operands, chip)
    yield from [] if early else two


def single(region: Region, operands: Operands, chip: Chip) -> Iterator[Variant]:
    """Ways to do a region as one kernel, and those that finish what its blocks gather."""

    def make() -> Problem:
        return Problem(region, operands)

    problem = make()
    over = list(dict.fromkeys(w.over for w in problem.folded))
    if not over:
        if (tiles := across(problem, chip)) is not None:
            yield Variant("transposed tiles", once(tiles.run))
            problem = make()
        yield Variant("elementwise", once(Lanes(problem, frozenset(), chip).run))
        return
    lane = problem.lane
    for axes in sorted(over, key=lambda axes: (-rank(problem, axes), sorted(axes))):
        if lane in axes and (plan := planned(make, axes, chip)) is not None:
            yield Variant(f"rows along {named(axes)}", once(partial(by_rows, plan)))
    if len(over) == 1:
        name, columns = f"columns over {named(over[0])}", chip.tuning.columns
        yield Variant(name, once(Lanes(problem, over[0], chip).run))
        if math.prod(region.space) >= columns.many:
            deep = replace(chip.tuning, columns=replace(columns, unrolled=columns.deep))
            further = Lanes(make(), over[0], replace(chip, tuning=deep))
            yield Variant(f"{name}, {columns.deep} rows at once", once(further.run))


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
    for half in filter(None, map(inhabited, cut(region))):
        for var in half.graph.outputs:
            assert isinstance(var, Var)
            if var not in operands:
                operands[var] = whole("temp", len(temps), var.type.shape)
                temps.append(var.type.nbytes)
        one = next(single(half, operands, chip), None)
        if one is None:
            kernels += of_halves(half, operands, chip, temps)
            continue
        found: Kernels = one.plan()
        kernels += [k.shifted(len(temps)) for k in found.kernels]
        temps += found.temps
    return kernels


def rank(problem: Problem, axes: frozenset[int]) -> int:
    """Returns what speaks for axes as those of a row: what is read inside must be
    complete; then the most used.
    """
    read = {x for w in problem.works if w.kind != "store" for x in w.xs}
    full = any(w.over == axes and (w.y in read or is_state(w.step)) for w in problem.folded)
    return 1000 * full + Counter(w.over for w in problem.folded)[axes]
