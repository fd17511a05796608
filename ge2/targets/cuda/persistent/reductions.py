"""Folds and products as text: what a thread gathers, and what the threads of a team merge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from ge2.base.dtypes import BOOL, FLOATS, accumulator
from ge2.base.record import record
from ge2.codegen.kernel_values import held as widened
from ge2.codegen.text import Text
from ge2.ir import Eqn
from ge2.ops.reduce import ArgReduce
from ge2.targets.cuda.emit.reductions import Gather, Merge, State, start_of
from ge2.targets.cuda.emit.reductions import Stage as Reduction
from ge2.targets.cuda.emit.types import HELD, SUFFIX, expression, number
from ge2.targets.cuda.persistent.index_text import Index
from ge2.targets.cuda.persistent.nodes import E, Parts, Statement, Unwritten
from ge2.targets.cuda.persistent.reads import multiplied, taken
from ge2.targets.cuda.persistent.values import Reader, Value

Merging = Callable[[str, str], str]


@final
@record
class Folds:
    """`reader` says how elements are read."""

    reader: Reader

    def fold(self, s: Statement, eqn: Eqn, team: int, comment: str) -> list[Reduction]:
        """The lines of a fold, each element by a team of so many threads; or
        of one of its stages.
        """
        op: Any = eqn.op
        t = HELD[widened(s.y.type.dtype)]
        dtype, name = widened(eqn.inputs[0].type.dtype), f"{s.y.name}_state"
        indexed = isinstance(op, ArgReduce)
        held_as = f"ge2_indexed_{SUFFIX[dtype]}" if indexed else HELD[dtype]
        merge, p, chunk = merging(op, dtype), s.parts, s.key is not None and s.key.stage == "chunk"
        count = eqn.inputs[0].type.size // eqn.outs[0].type.size
        before = list[Reduction]()
        if p is None:
            value = self.lifted(eqn, s.xs[0], taken(eqn, E, "k"), "k")
        elif chunk:
            name, before = state_name(p), chunked(p)
            value = self.lifted(eqn, s.xs[0], taken(eqn, "spot", "k"), "k")
        else:
            place = "k" if p.size == 1 else f"k * {p.size} + {E}"
            value, count = f"{p.name}[{p.start} + {place}]", p.count
        added = f"{name} = {merge(name, value)};"
        begin, end = ("", str(count)) if not chunk or p is None else bounds(p, count)
        state = gathered(name, held_as, start_of(op, dtype), end, team, Text(added, comment), begin)
        if chunk:
            return [*before, *state, *together(name, held_as, merge, team)]
        found = merged(name, held_as, merge, team)
        out = f"({t}){found}" if dtype != widened(s.y.type.dtype) else found
        result = f"{found}.index" if indexed else out
        return [*state, Text(f"const {t} {s.y.name} = {result};")]

    def lifted(self, eqn: Eqn, x: Value, at: Index, place: str) -> str:
        """An element as a fold takes it in; `place` is its number among those that become one."""
        op: Any = eqn.op
        value, dtype = self.reader.element(x, at), widened(x.type.dtype)
        if isinstance(eqn.op, ArgReduce):
            return expression(op.lowering.lift, [value, place], dtype, dtype)
        return value

    def product(self, s: Statement, eqn: Eqn, team: int, comment: str) -> list[Reduction]:
        """The lines of a product, likewise."""
        a, b = s.xs
        op: Any = eqn.op
        t = HELD[widened(s.y.type.dtype)]
        wide = np.result_type(accumulator(a.type.dtype), accumulator(s.y.type.dtype))
        at_a, at_b = multiplied(eqn, E, "k")
        x, y = self.reader.element(a, at_a), self.reader.element(b, at_b)
        if widened(a.type.dtype) != wide:
            raise Unwritten("a product that is wider than its operands")
        short, name = SUFFIX[wide], f"{s.y.name}_state"
        count = math.prod(a.type.shape[i] for i in op.contract[0])
        if wide == BOOL:
            added = f"{name} = {name} || ({x} && {y});"
        elif wide in FLOATS:
            added = f"{name} = ge2_fma_{short}({x}, {y}, {name});"
        else:
            added = f"{name} = ge2_add_{short}({name}, ge2_mul_{short}({x}, {y}));"
        zero = number(0, wide)
        state = gathered(name, HELD[wide], zero, count, team, Text(added, comment))

        def merge(mine: str, other: str) -> str:
            return f"{mine} || {other}" if wide == BOOL else f"ge2_add_{short}({mine}, {other})"

        found = merged(name, HELD[wide], merge, team)
        out = widened(s.y.type.dtype)
        return [
            *state,
            Text(f"const {t} {s.y.name} = {found if out == wide else f'({t}){found}'};"),
        ]


def merging(op: Any, dtype: np.dtype) -> Merging:
    """Returns how two states of a reduction become one."""
    return lambda mine, other: expression(op.lowering.merge, [mine, other], dtype, dtype)


def gathered(
    name: str, held_as: str, start: str, count: int | str, team: int, added: Text, begin: str = ""
) -> list[Reduction]:
    """Returns what a thread gathers of `count` elements k, or those from `begin` on."""
    first = " + ".join(filter(None, [begin, "lane" if team > 1 else ""])) or "0"
    return [State(held_as, name, start), Gather(first, str(count), team, (added,))]


def together(name: str, held_as: str, merge: Merging, team: int) -> list[Reduction]:
    """Returns the lines by which what the threads of a team gathered becomes one state."""
    function = f"ge2_team_fold<{team}, THREADS>"
    return [Merge(name, function, held_as, merge("mine", "other"))] if team > 1 else []


def merged(name: str, held_as: str, merge: Merging, team: int) -> str:
    """Returns what the threads of a team gathered, as one state."""
    if team == 1:
        return name
    of_two = f"[]({held_as} mine, {held_as} other) {{ return {merge('mine', 'other')}; }}"
    return f"ge2_team_fold<{team}, THREADS>({name}, {of_two})"


def state_name(p: Parts) -> str:
    return f"{p.name}_state"


def chunked(p: Parts) -> list[Reduction]:
    """Returns which result a part is of, and which part of it."""
    if p.size == 1:
        return [Text(f"const int spot = 0, chunk = {E};")]
    return [Text(f"const int spot = {E} % {p.size}, chunk = {E} / {p.size};")]


def bounds(p: Parts, count: int) -> tuple[str, str]:
    """Returns where a part begins and ends."""
    each = -(-count // p.count)
    end = f"(chunk + 1) * {each}"
    exact = count % p.count == 0
    return f"chunk * {each}", end if exact else f"({end} < {count} ? {end} : {count})"
