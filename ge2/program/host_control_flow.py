"""Loops and branches that Python runs: each round is a program of its own,
within the arena of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.ir import Var
from ge2.ops.control import Cond
from ge2.ops.loops import RepeatLoop, ScanLoop
from ge2.ops.while_loop import WhileLoop
from ge2.program.program import END, Buffer, Program

CONTROL = (ScanLoop, RepeatLoop, WhileLoop, Cond)
Bound = tuple[Any, ...]


@final
@record
class Inner:
    """A program that another one runs:

    `run(bind(arena), *arrays)`, where the arena has `nbytes`.
    """

    nbytes: int
    bind: Callable[[Any], Bound]
    run: Callable[..., list[Any]]


def bound(inner: Sequence[Inner], arena: Any) -> tuple[Bound, ...]:
    """One of them runs at a time, so they share the arena."""
    return tuple(each.bind(arena) for each in inner)


def hosted(
    op: Any, inner: Sequence[Inner], empty: Callable[..., Any] = np.empty
) -> Callable[..., Sequence[Any]]:
    """The operation as a function of its programs, bound, and of arrays. `empty` makes arrays."""
    runs = [each.run for each in inner]
    if isinstance(op, ScanLoop):
        return lambda places, *xs: op.rounds(partial(runs[0], places[0]), *xs, empty=empty)
    if isinstance(op, RepeatLoop):
        return lambda places, *xs: op.rounds(partial(runs[0], places[0]), *xs)
    if isinstance(op, WhileLoop):
        return lambda places, *xs: op.rounds(*map(partial, runs, places), *xs)
    last = len(runs) - 1

    def branch(places: Sequence[Bound], index: Any, *xs: Any) -> Sequence[Any]:
        i = min(max(int(index), 0), last)
        return runs[i](places[i], *xs)

    return branch


def passes(program: Program) -> dict[Var, Buffer]:
    """The results of loops and branches which Python runs, but for those returned."""
    return {
        v: program.buffers[v]
        for step in program.steps
        if step.kind == "library" and isinstance(step.eqn.op, CONTROL)
        for v in step.eqn.outs
        if not v.type.weak and program.buffers[v].last < END
    }


def passing(program: Program) -> int:
    """The most bytes that lie in results of loops and branches which Python
    runs, but for those returned.

    The rounds of a loop make arrays of their own, and a carry is there twice
    while the next one is made.
    """
    changes: dict[int, int] = {}

    def lives(nbytes: int, first: int, last: int) -> None:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes

    for buffer in passes(program).values():
        lives(buffer.type.nbytes, buffer.first, buffer.last)
    for step in program.steps:
        if step.kind == "library" and isinstance(step.eqn.op, CONTROL):
            lives(made_by_rounds(step.eqn.op), step.number, step.number)
    most = now = 0
    for n in sorted(changes):
        now += changes[n]
        most = max(most, now)
    return most


def made_by_rounds(op: Any) -> int:
    """Bytes of a round's results, besides the carry of the last round, which
    is the loop's result.
    """
    return 0 if isinstance(op, Cond) else sum(a.type.nbytes for a in op.body.outputs)
