"""Several traced functions as graphs that one operation can hold: the same
inputs, the same result types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, PYTHON, python_type, with_number
from ge2.base.errors import Ge2Error
from ge2.base.pytree import mismatch
from ge2.base.source import here
from ge2.ir import ArrayType, Graph, Var, type_of
from ge2.trace import Closed, Input, is_traced, run, stage, tidy
from ge2.transforms.arguments import Results

Types = Sequence[ArrayType]


def widened(closeds: Sequence[Closed]) -> tuple[list[Graph], list[Any]]:
    """Graphs that take what all of them captured before their own inputs, and
    those values in that order.
    """
    captured = [x for c in closeds for x in c.captured]
    graphs, at = [], 0
    for closed in closeds:
        n = len(closed.captured)
        fresh = tuple(Var(type_of(x)) for x in captured)
        own, rest = closed.graph.inputs[:n], closed.graph.inputs[n:]
        inputs = (*fresh[:at], *own, *fresh[at + n :], *rest)
        graphs.append(Graph(inputs, closed.graph.eqns, closed.graph.outputs))
        at += n
    return graphs, captured


def common_types(
    kind: type[Ge2Error],
    what: str,
    names: tuple[str, str],
    results: Sequence[Results],
    types: Sequence[Types],
) -> list[ArrayType]:
    """The types of both functions' results; an error names the first place where they differ.

    A Python number takes the dtype of the array it stands beside, as NumPy has it.
    """
    (ra, rb), (ta, tb) = results, types
    if ra.main != rb.main:
        raise kind(
            f"{what}: {mismatch(ra.main, rb.main, *names)}",
            where=here(),
            fix="return one structure from both",
        )
    found = []
    for a, b, path in zip(ta[: ra.count], tb[: rb.count], ra.paths(), strict=False):
        t = common(a, b)
        if t is None:
            says = f"{what}: at {path}, " if path else f"{what}: "
            fix = f'x.astype("{b.dtype}")' if a.shape == b.shape else "np.broadcast_to(x, shape)"
            raise kind(
                f"{says}{names[0]} returns {a}, {names[1]} returns {b}", where=here(), fix=fix
            )
        found.append(t)
    return found


def common(a: ArrayType, b: ArrayType) -> ArrayType | None:
    """The type that holds both, if neither changes but by being a Python number."""
    if a.shape != b.shape:
        return None
    if a.weak and b.weak:
        if (a.dtype == BOOL) != (b.dtype == BOOL):
            return None
        wide = np.promote_types(a.dtype, b.dtype)
        return ArrayType((), wide, weak=True) if wide in PYTHON.values() else None
    if a.weak or b.weak:
        strong, number = (b, a) if a.weak else (a, b)
        if number.dtype == BOOL and strong.dtype != BOOL:
            return None  # a truth value is no number: `lambda x: x < 3` in place of a new x
        return (
            strong if with_number(strong.dtype, python_type(number.dtype)) == strong.dtype else None
        )
    return a if a.dtype == b.dtype else None


def conformed(x: Any, t: ArrayType) -> Any:
    """The value as that type, which differs from its own at most in being a Python number."""
    if type_of(x) == t:
        return x
    if is_traced(x):
        return x.cast(t.dtype, t.weak)
    return python_type(t.dtype)(x) if t.weak else t.dtype.type(x)


def retyped(graph: Graph, types: Types) -> Graph:
    """The graph with its first results converted to these types; tidy."""
    ours = [a.type for a in graph.outputs[: len(types)]]
    if ours == list(types):
        return tidy(graph)

    def outputs(*xs: Any) -> list[Any]:
        ys = run(graph, xs)
        return [
            *(y.cast(t.dtype, t.weak) for y, t in zip(ys, types, strict=False)),
            *ys[len(types) :],
        ]

    return tidy(stage(outputs, [Input(v.type) for v in graph.inputs], "a branch").graph)
