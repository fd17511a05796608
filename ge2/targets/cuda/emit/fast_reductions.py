"""Folds over a row that need less than a look at each element: one that picks an element by its
place, and extremes of half types, which are found two at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ge2.base.record import record
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.loop_nest import Work
from ge2.ir import Literal, Op
from ge2.ops.random import Draw
from ge2.ops.reduce import Reduce
from ge2.ops.shape import Iota
from ge2.targets.cuda.emit import reductions
from ge2.targets.cuda.emit.region import Statements

PAIRED = {BFLOAT16: "bf16", FLOAT16: "f16"}
EXTREMES = {"reduce_max": "max", "reduce_min": "min"}


@final
@record
class Pick:
    """A fold of `where(place == at, x, neutral)`, which is x at the place `at`. `works` make x."""

    fold: Work
    at: Held
    x: Held
    works: tuple[Work, ...]


def pick(w: Work, said: Statements, works: Sequence[Work], lane: int) -> Pick | None:
    """The fold as a pick along the axis `lane`, if it is one and x is made of
    what lies in memory.
    """
    if w.kind != "fold" or w.over != {lane} or w.xs[0].dtype != FLOAT32:
        return None
    where = made(said, w.xs[0], "where")
    if where is None or not neutral(where.xs[2], reductions.op_of(w)):
        return None
    same = made(said, where.xs[0], "eq")
    if same is None:
        return None
    places = [x for x in same.xs if isinstance(x.leaf, Iota) and x.axes == (lane,)]
    others = [x for x in same.xs if x.leaf is None and lane not in x.axes]
    if len(places) != 1 or len(others) != 1:
        return None
    needed = chain(where.xs[1], said, works, lane)
    return None if needed is None else Pick(w, others[0], where.xs[1], tuple(needed))


def made(said: Statements, x: Held, name: str) -> Work | None:
    """The work that makes a value, if its operation has that name."""
    w = said.makers.get(x)
    named = w is not None and w.kind == "compute" and w.step is not None and w.step.eqn is not None
    return w if named and w is not None and w.step.eqn.op.name == name else None  # type: ignore[union-attr]


def neutral(x: Held, op: Op) -> bool:
    """True if x is the literal that changes no state of the reduction."""
    if not isinstance(x.leaf, Literal) or not isinstance(op, Reduce):
        return False
    return bool(x.leaf.value == op.neutral)


def chain(x: Held, said: Statements, works: Sequence[Work], lane: int) -> list[Work] | None:
    """The works that make x from arrays in memory, in order; None if it needs others."""
    if x.leaf is not None or lane not in x.axes:
        return []
    w = said.makers.get(x)
    if w is None or w not in works or w.kind != "compute" or w.step is None or said.homes[x].dims:
        return None
    if w.step.eqn is not None and isinstance(w.step.eqn.op, Draw):
        return None
    found: list[Work] = []
    for each in w.xs:
        before = chain(each, said, works, lane)
        if before is None:
            return None
        found += [b for b in before if b not in found]
    return [*found, w]


def paired(w: Work, said: Statements) -> Param | None:
    """The array of a half type whose largest or least element a fold finds."""
    if (
        w.kind != "fold"
        or str(reductions.op_of(w).name) not in EXTREMES
        or w.xs[0].dtype != FLOAT32
    ):
        return None
    x = w.xs[0]
    while x.leaf is None:
        maker = said.makers.get(x)
        if maker is None or maker.kind != "compute" or maker.step is None or said.homes[x].dims:
            return None
        eqn = maker.step.eqn
        if eqn is not None and eqn.op.name != "convert_element_type":
            return None
        if eqn is not None and eqn.outs[0].type.dtype != FLOAT32:
            return None
        x = maker.xs[0]
    return x.leaf if isinstance(x.leaf, Param) and x.leaf.var.type.dtype in PAIRED else None


def largest_of(w: Work, p: Param, pack: str) -> str:
    """The fold of a pack, in CUDA."""
    return f"ge2_pair_{EXTREMES[str(reductions.op_of(w).name)]}_{PAIRED[p.var.type.dtype]}({pack})"


def without(works: Sequence[Work], gone: set[Work], said: Statements) -> list[Work]:
    """The works that are left without those that are gone; what only these read goes too."""
    while True:
        unread = [
            w
            for w in works
            if w not in gone and w.kind == "compute" and w.y is not None
            if said.readers.get(w.y) and all(r in gone for r in said.readers[w.y])
        ]
        if not unread:
            return [w for w in works if w not in gone]
        gone |= set(unread)
