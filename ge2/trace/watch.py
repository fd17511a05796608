"""The search for the equation that made a NaN: a graph is run again op by op, and each NaN followed
from where it first was.

Only what reaches a result counts: a NaN that `where` throws away is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.config import config
from ge2.base.dtypes import FLOATS, INEXACT, python_type
from ge2.base.errors import NonFiniteError
from ge2.base.gpu import host
from ge2.base.record import record
from ge2.ir import Eqn, Evaluate, Graph, Op, Var, interpreting, read, type_of
from ge2.ops.graphs.control import Call

EVALUATE = Evaluate()
SHOWN = 8  # elements up to which an operand is shown whole
SILENCE = (
    "ge2.debug.print of what it reads, or np.where around what it reads (not around its result)"
)


def watching() -> bool:
    return config.debug_nans or config.debug_infs


def bad(x: Any) -> Any:
    """True where an array holds what is looked for; None if it cannot."""
    x = np.asarray(x)
    if x.dtype not in INEXACT:
        return None
    nans = x != x if config.debug_nans else np.zeros(x.shape, bool)
    return nans | np.isinf(x) if config.debug_infs else nans


def is_bad(x: Any) -> bool:
    found = bad(x)
    return found is not None and bool(found.any())


@final
@record
class Maker:
    """An equation that made a NaN of operands that have none."""

    eqn: Eqn
    operands: tuple[Any, ...]
    result: Any


@final
class Watch:
    """A meaning of operations: they are computed, and it is kept who made each bad value."""

    def __init__(self) -> None:
        # by the identity of a bad value; None: it was given
        self.makers: dict[int, Maker | None] = {}
        self.kept: list[Any] = []  # those values, lest another takes their identity
        self.inner: Maker | None = None  # of a bad result of the graph that was run last

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        if isinstance(op, Call):
            return op.jaxpr(*args)
        return EVALUATE.apply(op, args)

    def walk(self, graph: Graph, args: Sequence[Any]) -> list[Any]:
        env: dict[Var, Any] = dict(zip(graph.inputs, args, strict=True))
        for eqn in graph.eqns:
            if eqn.outs or not eqn.op.effect:  # what only prints has done so
                self.equation(eqn, env)
        results = read(env, graph.outputs)
        found = [self.makers.get(id(y)) for y in results if is_bad(y)]
        self.inner = next((maker for maker in found if maker is not None), None)
        return results

    def equation(self, eqn: Eqn, env: dict[Var, Any]) -> None:
        operands = read(env, eqn.inputs)
        self.inner = None
        ys = self.apply(eqn.op, operands)
        for var, y in zip(eqn.outs, ys, strict=True):
            value = env[var] = python_type(var.type.dtype)(y) if var.type.weak else y
            if is_bad(value) and id(value) not in self.makers:
                self.keep(value, self.maker(eqn, operands, value))

    def keep(self, value: Any, maker: Maker | None) -> None:
        self.kept.append(value)
        self.makers[id(value)] = maker

    def maker(self, eqn: Eqn, operands: Sequence[Any], value: Any) -> Maker | None:
        """The maker of a bad result: that of a bad operand, an equation inside, or this one."""
        given = [x for x in operands if is_bad(x)]
        if given:
            return next((m for x in given if (m := self.makers.get(id(x))) is not None), None)
        return self.inner or Maker(eqn, tuple(operands), value)


def check_finite(graph: Graph, args: Sequence[Any], results: Sequence[Any], title: str) -> None:
    """NonFiniteError if a result holds a NaN (or what else is looked for) that an
    equation of the graph made.

    One that came with the arguments is theirs to have.
    """
    args, results = [*map(host, args)], [*map(host, results)]
    if not any(map(is_bad, results)):
        return
    watch = Watch()
    with interpreting(watch), np.errstate(all="ignore"):
        again = graph(*args)
    if watch.inner is not None:
        raise error_of(watch.inner, title)
    if not any(map(is_bad, again)):
        at = next(i for i, y in enumerate(results) if is_bad(y))
        what = f"result {at} of {title} holds {kind(results[at])}, which NumPy's own functions do not give"
        raise NonFiniteError(
            what, fix="GE2_DUMP=folder, and report the repro.py that is written there"
        )


def error_of(maker: Maker, title: str) -> NonFiniteError:
    where = bad(maker.result)
    place = tuple(int(i) for i in np.argwhere(where)[0])
    count, size = int(where.sum()), where.size
    extent = f" ({count} of {size} elements, the first at {list(place)})" if where.ndim else ""
    what = f"{maker.eqn.op.name} made {kind(maker.result)} in {title}{extent}"
    lines = [f"  of   {shown(x, where.shape, place)}" for x in maker.operands]
    return NonFiniteError("\n".join([what, *lines]), where=maker.eqn.source, fix=SILENCE)


def kind(x: Any) -> str:
    return "a NaN" if config.debug_nans and bool((np.asarray(x) != x).any()) else "an infinity"


def shown(x: Any, shape: tuple[int, ...], place: tuple[int, ...]) -> str:
    """An operand in a line: its type, its elements or their range, and
    that at the place of the NaN.
    """
    t, x = type_of(x), np.asarray(x)
    if x.size == 0:
        return str(t)
    if x.ndim == 0:
        return f"{t} {x[()]!s}"
    if x.size <= SHOWN:
        return f"{t} {np.array2string(x, separator=', ').replace(chr(10), '')}"
    there = f"; {x[place]!s} there" if x.shape == shape else ""
    span = f" from {x.min()!s} to {x.max()!s}" if x.dtype in FLOATS or x.dtype.kind in "iub" else ""
    return f"{t}{span}{there}"
