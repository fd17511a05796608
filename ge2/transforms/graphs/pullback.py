"""The functions that `vjp` returns: pytrees, so that they may leave a jitted function or a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from ge2.base.dtypes import BOOL, INEXACT, python_type, with_number
from ge2.base.errors import GradientError
from ge2.base.gpu import host
from ge2.base.pytrees.pytree import Structure, register_pytree_node, unflatten
from ge2.base.record import record
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import ArrayType, Graph, is_traced, type_of
from ge2.trace import run
from ge2.transforms.arguments import Results, is_array, leaves_like, owned
from ge2.transforms.graphs.rules import empty, is_float0

# an argument: a place among cotangents, or a shape, for each leaf
Part = tuple[Structure, tuple[Any, ...]]


@final
@record
class PullRule:
    """The program of a pullback on its residuals: equal for functions of equal graphs."""

    backward: Graph
    types: tuple[ArrayType, ...]
    parts: tuple[Part, ...]
    returned: Results = field(compare=False, repr=False)


@final
class Pullback:
    """The function from a cotangent of a result to a tuple of those of the arguments.

    Its leaves are the residuals.
    """

    __slots__ = ("residuals", "rule")

    def __init__(self, residuals: Sequence[Any], rule: PullRule) -> None:
        self.residuals, self.rule = residuals, rule

    def __repr__(self) -> str:
        given = ", ".join(str(t) for t in self.rule.types)
        return f"<vjp: from cotangents of {given}>"

    @hides
    def __call__(self, ct: Any) -> tuple[Any, ...]:
        rule = self.rule
        given = [*self.residuals, *cotangents(ct, rule.returned, rule.types)]
        return gradients(rule.parts, owned(run(rule.backward, given), given))


register_pytree_node(
    Pullback,
    lambda p: (tuple(p.residuals), p.rule),
    lambda rule, residuals: Pullback(residuals, rule),
)


def gradients(parts: Sequence[Part], found: Sequence[Any]) -> tuple[Any, ...]:
    """The cotangents of arguments in their structures; those of integers have no bytes."""
    return tuple(
        unflatten(s, [found[i] if type(i) is int else empty(i) for i in places])
        for s, places in parts
    )


def cotangents(ct: Any, returned: Results, types: Sequence[ArrayType]) -> list[Any]:
    """The cotangents of the inexact results; a cotangent has the structure
    and types of the result.
    """
    leaves = returned.arrays_of(leaves_like(returned.main, ct, ("the result", "the cotangent")))
    paths = returned.paths()[: returned.count]
    found = [
        like(c, t, f"the cotangent of the result{path}")
        for c, t, path in zip(leaves, types, paths, strict=True)
    ]
    return [c for c, t in zip(found, types, strict=True) if t.dtype in INEXACT]


def example(t: ArrayType) -> str:
    """Code for a tangent or a cotangent of that type."""
    if t.weak:
        return repr(python_type(t.dtype)(1))
    return f"np.ones({t.shape}, {t.dtype.name!r})"


def like(x: Any, type: ArrayType, what: str) -> Any:
    """`x` as an array of that type; GradientError if its shape or dtype is another.

    What belongs to an integer is of dtype float0, or a zero of a type that has no derivative.
    """
    if is_float0(x) and type.dtype not in INEXACT:
        return x
    if not is_array(x):
        got = "float0, which belongs to integers" if is_float0(x) else f"a {x.__class__.__name__}"
        raise GradientError(f"{what} ({type}) is {got}", where=here(), fix=example(type))
    t = type_of(x)
    if type.dtype not in INEXACT:
        if t.dtype in INEXACT:
            raise GradientError(
                f"{what} ({type}) is {t}, but integers have no derivative",
                where=here(),
                fix=f"np.zeros({type.shape}, ge2.float0)",
            )
        return x
    fits = t.dtype == type.dtype or (
        t.weak and with_number(type.dtype, python_type(t.dtype)) == type.dtype
    )
    if t.shape != type.shape or not fits or t.dtype == BOOL:
        fix = example(type)
        raise GradientError(
            f"{what} ({type}) is {t}, which is another shape or dtype", where=here(), fix=fix
        )
    if type.weak:
        if is_traced(x):
            return x if t == type else x.cast(type.dtype, weak=True)
        return python_type(type.dtype)(np.asarray(host(x)).item())
    if t.weak:
        return x.cast(type.dtype) if is_traced(x) else type.dtype.type(x)
    return x


# ------------------------------------------------------------------------------------- pushforward
# The functions that `linearize` returns: pytrees, so that they may leave a
# jitted function or a loop.


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

    def __repr__(self) -> str:
        made = ", ".join(str(t) for t in self.rule.outputs)
        return f"<linearize: to tangents of {made}>"

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
