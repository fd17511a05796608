"""The work of a region, and the axes over which it is done: what the writers of C and of CUDA begin
with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ge2.codegen.axes import Axes
from ge2.codegen.kernel_values import Param, Values
from ge2.codegen.loop_nest import Work
from ge2.codegen.text import Operand
from ge2.ir import Names, Var
from ge2.ops.graphs.region import Region
from ge2.ops.reduce import ArgReduce, Reduce


def works_of(
    values: Values, region: Region, names: Names, label: Callable[[str], str]
) -> tuple[list[Work], list[Param]]:
    """Each equation as a work, each result as one more that stores it;
    and the results as parameters.
    """
    works: list[Work] = []
    outs: list[Param] = []
    for step in values.steps:
        y, op = step.y, None if step.eqn is None else step.eqn.op
        folds = isinstance(op, Reduce | ArgReduce) and bool(step.over)
        axes, over = frozenset({*y.axes, *step.over} if folds else y.axes), frozenset(step.over)
        works.append(
            Work("fold" if folds else "compute", len(works), y, list(step.xs), step, axes, over)
        )
        if y.var is not None and y.var in region.graph.outputs:
            at = values.where[y.var]
            param = Param(f"{label(names[y.var])}_out", y.var, at, None, None)
            outs.append(param)
            # all of its own, where the value only repeats
            axes = frozenset(a for a in at if a >= 0)
            works.append(Work("store", len(works), None, [y], None, axes, param=param))
    return works, outs


def axes_of(
    values: Values,
    region: Region,
    works: list[Work],
    outs: list[Param],
    operands: Mapping[Var, Operand],
) -> Axes:
    """The axes that anything has, joined where they can be; the works then speak of these."""
    lying = [(p, var, at) for (var, at), p in (*values.params.items(), *values.tables.items())]
    lying += [(p, p.var, p.axes) for p in outs]
    placed = [(s.xs[0].leaf, s.placed) for s in values.steps if s.placed is not None]
    lying += [(p, each.var, each.at) for p, each in placed if each.var is not None]
    strides = {
        p: {}
        if operands[var].value
        else {a: s for a, s in zip(at, operands[var].strides, strict=True) if a >= 0}
        for p, var, at in lying
    }
    steps = values.steps
    helds = list({id(x): x for s in steps for x in (s.y, *s.xs)}.values())
    used = {a for x in helds for a in x.axes} | {a for s in steps for a in s.over}
    used.update(*strides.values())
    axes = Axes({a: n for a, n in enumerate(region.space) if a in used}, steps, helds, strides)
    axes.apart = frozenset().union(*(each.apart for _, each in placed))
    axes.merge()
    for w in works:  # their axes may have been joined
        w.axes, w.over = (
            frozenset(a for a in each if a in axes.sizes) for each in (w.axes, w.over)
        )
    return axes
