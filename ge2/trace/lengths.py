"""The difference of two traced integers, where it is the same number whatever their values are.

Each is written as a sum of multiples of values that are not looked
into: `(i + 1) * 8` is `8 i + 8`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from ge2.base.dtypes import INTEGERS
from ge2.base.errors import TracerIntegerConversionError
from ge2.base.source import here
from ge2.ir import Atom, Literal, Var
from ge2.numpy.moving_slices import MovingSlice
from ge2.trace.concrete import fix_of, is_traced, knowable

Sum = Mapping[Hashable, int]  # how often each value is in it; None stands for 1
DEPTH: Final = 12  # equations that one value may rest on, looked into
ONE: Final = None
# bytes of an integer; those of fewer wrap around within the sizes that arrays have
NARROW: Final = 4


def moving_slice(part: slice) -> Any:
    """A slice with traced bounds: of numbers if they are known, of a known length, or an error."""
    bounds = (part.start, part.stop, part.step)
    if all(map(knowable, bounds)):
        return slice(*[int(b) if is_traced(b) else b for b in bounds])
    if part.step in (None, 1) and is_integer(part.start) and is_integer(part.stop):
        size = difference(part.stop, part.start)
        if size is not None and size >= 0:
            return MovingSlice(part.start, size)
    b = next(b for b in bounds if is_traced(b) and not knowable(b))
    what = f"the length of a slice must be known, and it depends on {b.label()}"
    raise TracerIntegerConversionError(what, where=here(), fix=fix_of(b, "int"))


def is_integer(x: Any) -> bool:
    return is_traced(x) and not x.type.shape and x.type.dtype in INTEGERS


def difference(a: Any, b: Any) -> int | None:
    """`a - b`, if that is a number."""
    rest = plus(sum_of(a), sum_of(b), -1)
    return None if any(key is not ONE for key in rest) else rest.get(ONE, 0)


def plus(a: Sum, b: Sum, times: int = 1) -> Sum:
    found = dict(a)
    for key, n in b.items():
        found[key] = found.get(key, 0) + times * n
        if not found[key]:
            del found[key]
    return found


def sum_of(x: Any, depth: int = DEPTH) -> Sum:
    """A traced integer, or a number, as a sum."""
    return of_atom(x.owner, x.atom, depth) if is_traced(x) else {ONE: int(x)}


def of_atom(trace: Any, atom: Atom, depth: int) -> Sum:
    if isinstance(atom, Literal):
        return {ONE: int(atom.value.real)} if atom.value else {}
    eqn = trace.known.maker(trace, atom) if depth else None
    if eqn is None:
        outer = origin(trace, atom)
        return {atom: 1} if outer is None or not depth else sum_of(outer, depth - 1)
    if eqn.op.effect is None and is_wide(atom) and all(map(is_wide, eqn.inputs)):
        parts = [of_atom(trace, a, depth - 1) for a in eqn.inputs]
        found = of_operation(eqn.op.name, parts)
        return {(eqn.op, eqn.outs.index(atom), *map(frozen, parts)): 1} if found is None else found
    return {atom: 1}


def of_operation(name: str, parts: list[Sum]) -> Sum | None:
    """The sum that an operation makes of sums; None if it makes something else."""
    if name == "add":
        return plus(parts[0], parts[1])
    if name == "sub":
        return plus(parts[0], parts[1], -1)
    if name == "neg":
        return plus({}, parts[0], -1)
    if name == "convert_element_type":
        return parts[0]
    if name == "mul":
        by, of = parts if parts[0].keys() <= {ONE} else parts[::-1]
        return plus({}, of, by.get(ONE, 0)) if by.keys() <= {ONE} else None
    return None


def frozen(part: Sum) -> Hashable:
    return frozenset(part.items())


def is_wide(atom: Atom) -> bool:
    return (
        atom.type.dtype in INTEGERS and atom.type.dtype.itemsize >= NARROW and not atom.type.shape
    )


def origin(trace: Any, var: Var) -> Any:
    """The traced value outside that an input stands for, if there is one."""
    given = trace.arguments.get(var)
    if given is None:
        given = next((c.value for c in trace.captures if c.var is var), None)
    return given if is_traced(given) else None
