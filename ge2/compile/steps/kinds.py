"""The kind of step that an equation is on a target."""

from __future__ import annotations

from typing import Any

from ge2.choice.problem import Family, Problem
from ge2.compile.catalog import select
from ge2.ir import Eqn, Literal, Var
from ge2.ops.graphs.region import Region
from ge2.ops.shape import BroadcastInDim, Iota
from ge2.passes.scalars import on_host
from ge2.program.program import CONTROL
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
