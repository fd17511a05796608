"""The functions that `linearize` returns: pytrees, so that they may leave a
jitted function or a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

from ge2.base.dtypes import INEXACT
from ge2.base.pytree import Structure, register_pytree_node
from ge2.base.record import record
from ge2.base.tracebacks import hides
from ge2.ir import ArrayType, Graph
from ge2.trace import run
from ge2.transforms.arguments import Results, leaves_like, owned
from ge2.transforms.pullback import like
from ge2.transforms.zeros import empty


@final
@record
class TangentSpace:
    """The structure of tangents, and for each leaf its type (None: no array), its name, and whether
    a derivative flows from it.
    """

    structure: Structure
    types: tuple[ArrayType | None, ...]
    names: tuple[str, ...]
    active: tuple[bool, ...]


@final
@record
class PushRule:
    """The program of a pushforward on its residuals: equal for functions of equal graphs."""

    linear: Graph
    space: TangentSpace
    outputs: tuple[ArrayType, ...]
    returned: Results = field(compare=False, repr=False)


@final
class Pushforward:
    """The function from tangents of the arguments to those of the result.

    Its leaves are the residuals.
    """

    __slots__ = ("residuals", "rule")

    def __init__(self, residuals: Sequence[Any], rule: PushRule) -> None:
        self.residuals, self.rule = residuals, rule

    @hides
    def __call__(self, *tangents: Any) -> Any:
        rule = self.rule
        given = [*self.residuals, *tangents_in(rule.space, tangents)]
        return tangents_like(rule.outputs, rule.returned, owned(run(rule.linear, given), given))


register_pytree_node(
    Pushforward,
    lambda p: (tuple(p.residuals), p.rule),
    lambda rule, residuals: Pushforward(residuals, rule),
)


def tangents_in(space: TangentSpace, given: tuple[Any, ...]) -> list[Any]:
    """The tangents from which a derivative flows; GradientError if one is not like its primal."""
    leaves = leaves_like(space.structure, given, ("the primals", "the tangents"))
    each = zip(leaves, space.types, space.names, space.active, strict=True)
    checked = [
        (like(x, t, f"the tangent of {name}"), on) for x, t, name, on in each if t is not None
    ]
    return [x for x, on in checked if on]


def tangents_like(outputs: Sequence[ArrayType], returned: Results, ts: Sequence[Any]) -> Any:
    """The tangents in the structure of the result; integers have one of no bytes."""
    rest = iter(ts)
    leaves = [next(rest) if t.dtype in INEXACT else empty(t.shape) for t in outputs]
    return returned.build_main(leaves[: returned.count])
