"""The kind of step that an equation is on a target, and whether its result may take an input's
memory.
"""

from __future__ import annotations

from typing import Any

from ge2.choice.problem import Family, Problem
from ge2.codegen.tuning import Blocks
from ge2.compile.catalog import select
from ge2.ir import Eqn, Literal, Var
from ge2.ops.graphs.region import ProductRegion, Region
from ge2.ops.index import Gather
from ge2.ops.shape import (
    BroadcastInDim,
    Iota,
)
from ge2.passes.scalars import on_host
from ge2.program.program import (
    CONTROL,
    WRITES,
)
from ge2.targets.c.blocked.region import tile
from ge2.targets.reference.library import Library

NATIVE = ("c", "cuda")  # targets whose kernels take arrays by their layouts


def kind_of(eqn: Eqn, target: str) -> str:
    if on_host(eqn):
        return "host"
    if isinstance(eqn.op, Region):
        return "kernel" if served(eqn, target) else "library"
    if target == "cuda" and isinstance(eqn.op, CONTROL) and not weakly(eqn):
        return "hosted"
    constant = isinstance(eqn.op, Iota) or (
        isinstance(eqn.op, BroadcastInDim) and isinstance(eqn.inputs[0], Literal)
    )
    if constant:
        return "kernel" if target in NATIVE else "view"
    if eqn.op.is_view:
        return (
            "view" if all(isinstance(a, Var) and not a.type.weak for a in eqn.inputs) else "library"
        )
    family = served(eqn, target)
    return "library" if family is None else family.step_kind


def weakly(eqn: Eqn) -> bool:
    """True if Python numbers go in or come out."""
    return any(a.type.weak for a in (*eqn.inputs, *eqn.outs))


def served(eqn: Eqn, target: str) -> Family[Any, Any] | None:
    """The family of kernels of ours that serves the equation, if one does."""
    if len(eqn.outs) == 1 and eqn.outs[0].type.weak:
        return None
    family = select(Problem.of(eqn, target)).family
    return None if isinstance(family, Library) else family


def in_place(eqn: Eqn, i: int, x: Var, target: str, tuning: Blocks) -> bool:
    """True if result `i` of a step may be written over input `x` element by element."""
    op = eqn.op
    if isinstance(op, WRITES):
        return target in NATIVE and x is eqn.inputs[0] and eqn.inputs.count(x) == 1
    if isinstance(op, ProductRegion):  # whose threads read what they go on with at their own places
        rest, out = op.rest, op.graph.outputs[i]
        x = op.graph.inputs[eqn.inputs.index(x)]
        apart = eqn.inputs.count(x) == 1 and x not in op.product.inputs
        return apart and in_place(rest, rest.outs.index(out), x, target, tuning)
    if not isinstance(op, Region):
        return False
    if target in NATIVE and op.kind == "rowwise":
        return False  # a row is read again after its first elements are written
    inner, out = op.graph.inputs[eqn.inputs.index(x)], op.graph.outputs[i]
    if eqn.inputs.count(x) != 1:
        return False
    orientation = None
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        if out in e.outs:
            if len(at) != len(e.outs[0].type.shape):
                return False  # a reduction
            orientation = at
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        if inner in e.inputs and (e.op.is_view or isinstance(e.op, Gather) or at != orientation):
            return False
    if target in NATIVE:  # the loops of any other axis may read it again
        return {a for a, n in enumerate(op.space) if n > 1} <= set(orientation or ())
    blocks = tile(op, tuning)
    return blocks.blocks == 1 or bool(set(orientation or ()) & set(blocks.cut))
