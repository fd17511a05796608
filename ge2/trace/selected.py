"""`x[mask]` of a traced mask, which has no shape to give: it lives as long as
`x[mask] += v` needs it.

The elements that a traced mask chooses are as many as its values say, so no traced value can stand
for them. But what is computed of each by itself and written back to where it came from needs no
count: it is computed of all elements, and kept where the mask holds. Elsewhere it is computed of
the first chosen element, so that no NaN of an element that was not chosen reaches a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final, final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.arrays import INTEGERS, can_cast
from ge2.base.errors import (
    ConcretizationTypeError,
    InPlaceError,
    OutOfBoundsError,
    TracerIntegerConversionError,
)
from ge2.base.source import Source, here
from ge2.base.tracebacks import hides_methods
from ge2.ir import Atom, Literal, Var, is_traced, type_of
from ge2.numpy.access import as_mask, taken_in_turn
from ge2.numpy.access.selecting import MovingSlice, harmless
from ge2.numpy.composite import known_elements
from ge2.numpy.elementwise import UFUNCS
from ge2.numpy.promotion import array, cast
from ge2.trace.concrete import fix_of, knowable

BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
# Functions besides ufuncs that are computed of each element by itself.
POINTWISE = frozenset((np.where, np.clip, np.nan_to_num, np.round, np.real, np.sinc))
UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}


@final
@hides_methods
class Selected:
    """The elements that a traced mask chooses: those of `elements`, an
    array of all, where it holds.
    """

    __slots__ = ("elements", "mask", "of", "place")

    def __init__(self, elements: Any, mask: Any, of: str, place: Source | None) -> None:
        self.elements, self.mask, self.of, self.place = elements, mask, of, place

    def with_elements(self, elements: Any) -> Selected:
        return Selected(elements, self.mask, self.of, self.place)

    def of_elements(self, call: Callable[..., Any], *xs: Any) -> Selected:
        """The function of these elements, or of numbers, values in turn, and
        elements of the same mask.
        """
        return self.with_elements(call(*[self.at_each(x) for x in xs]))

    def at_each(self, x: Any) -> Any:
        """An operand as an array of the elements' shape, or what broadcasts to it."""
        if type(x) is Selected:
            if not alike(x.mask, self.mask):
                raise x.error()
            return x.elements
        left = self.elements.shape[self.mask.ndim :]
        return taken_in_turn(gnp.asarray(x), self.mask, left) if np.ndim(x) > len(left) else x

    def updated(self, call: Callable[..., Any], other: Any) -> Selected:
        """The new elements of `x[mask] += other`, in the dtype of `x`."""
        new = self.of_elements(call, self, other)
        t, old = new.elements.type, self.elements.type
        if not can_cast(t.dtype, old.dtype, "same_kind"):
            what = f"x[mask] op= y: the result {t} cannot be cast to {old}"
            raise InPlaceError(what, where=here(), fix="x = x.astype(float) first")
        return self.with_elements(new.elements.astype(old.dtype))

    def written_to(self, x: Any, key: Any) -> Any:
        """`x` after `x[mask] = self`; an error for another mask than the one of these elements."""
        mask = mask_in(key)
        if mask is None or not alike(mask, self.mask) or self.elements.shape != x.shape:
            raise self.error()
        whole = mask.reshaped((*mask.shape, *(1,) * (x.ndim - mask.ndim)))
        return gnp.where(whole, self.elements.astype(x.dtype), x)

    def error(self) -> ConcretizationTypeError:
        what = f"x[mask] has a shape that depends on the values of mask, which is traced {self.mask.type}"
        fix = "np.where(mask, x, other), a function with where=mask, or a mask that is no traced value"
        return ConcretizationTypeError(
            f"{what} (x is {self.of})", where=self.place or here(), fix=fix
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if method != "__call__" or more or ufunc not in UFUNCS or ufunc.nout != 1:
            raise self.error()
        return self.of_elements(UFUNCS[ufunc], *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in POINTWISE or kwargs.get("out") is not None:
            raise self.error()
        return gnp.FUNCTIONS[function](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in HIDDEN:
            raise AttributeError(name)
        raise self.error()

    def __len__(self) -> int:
        raise self.error()

    def __iter__(self) -> Any:
        raise self.error()

    def __bool__(self) -> bool:
        raise self.error()

    def __getitem__(self, key: Any) -> Any:
        raise self.error()

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self.error()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.error()


def refused(self: Selected, *args: Any) -> Any:
    raise self.error()


for _name in ("matmul", "rmatmul", "divmod", "rdivmod", "float", "int", "index"):
    setattr(Selected, f"__{_name}__", refused)
HIDDEN = frozenset(("cell", "escaped", "type"))


def operators(name: str, ufunc: np.ufunc) -> None:
    """Gives the class the three forms of an operator."""
    call = UFUNCS[ufunc]
    setattr(Selected, f"__{name}__", lambda self, other: self.of_elements(call, self, other))
    setattr(Selected, f"__r{name}__", lambda self, other: self.of_elements(call, other, self))
    setattr(Selected, f"__i{name}__", lambda self, other: self.updated(call, other))


def unary(name: str, ufunc: np.ufunc) -> None:
    setattr(Selected, f"__{name}__", lambda self: self.of_elements(UFUNCS[ufunc], self))


for _name, _ufunc in COMPARISONS.items():
    setattr(
        Selected, f"__{_name}__", lambda self, x, f=_ufunc: self.of_elements(UFUNCS[f], self, x)
    )
for _name in BINARY:
    operators(_name, BINARY[_name])
for _name in UNARY:
    unary(_name, UNARY[_name])


def select(x: Any, mask: Any) -> Selected:
    """The elements that a traced mask chooses; errors of the key itself are NumPy's."""
    own, t = mask.type, x.type
    if own.shape != t.shape[: own.ndim]:
        what = f"boolean index {own} did not match indexed array {t}"
        raise OutOfBoundsError(what, where=here(), fix="a mask of its shape")
    return Selected(harmless(x.__copy__(), mask), mask.__copy__(), str(t), here())


def alike(a: Any, b: Any) -> bool:
    """True if two masks are the same value, or computed alike of the same ones: `x > 0`, twice."""
    return a.owner is b.owner and equal(a.owner, a.atom, b.atom, DEPTH)


def equal(trace: Any, a: Atom, b: Atom, depth: int) -> bool:
    if isinstance(a, Literal) or isinstance(b, Literal):
        return a == b
    if a is b or not depth:
        return a is b
    one, other = trace.known.maker(trace, a), trace.known.maker(trace, b)
    if one is None or other is None or one.op.effect is not None or one.op != other.op:
        return False
    same = one.outs.index(a) == other.outs.index(b)
    return same and all(
        equal(trace, x, y, depth - 1) for x, y in zip(one.inputs, other.inputs, strict=True)
    )


def mask_in(key: Any) -> Any:
    """The traced mask that a key consists of, unless its elements are known; else None."""
    mask = as_mask(key)
    return mask if mask is not None and known_elements(mask) is None else None


# -------------------------------------------------------------------------------------------- flat
# `x.flat`: the elements of a traced array in a row, to read, write and go through.


@final
@hides_methods
class Flat:
    """The elements of `base`, as `numpy.flatiter`:

    `x.flat[i]` is a copy, `x.flat[i] = v` writes to `x`.
    """

    __slots__ = ("at", "base")

    def __init__(self, base: Any) -> None:
        self.base, self.at = base, 0

    def line(self) -> Any:
        return gnp.reshape(self.base, (self.base.type.size,)).__copy__()

    def __getitem__(self, key: Any) -> Any:
        y = gnp.getitem(self.line(), key)
        return y.__copy__() if hasattr(y, "cell") else y

    def __setitem__(self, key: Any, value: Any) -> None:
        line = self.line()
        n = (
            gnp.getitem(np.empty(line.type.shape, np.int8), key).size
            if known(key)
            else type_of(array(key)).size
        )
        new = gnp.setitem(line, key, repeated(cast(array(value), line.type.dtype), n))
        self.base[...] = gnp.reshape(new, self.base.type.shape)

    def __len__(self) -> int:
        return int(self.base.type.size)

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at >= len(self):
            raise StopIteration
        self.at += 1
        return self[self.at - 1]

    def copy(self) -> Any:
        return self.line()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.line(), dtype)

    def __repr__(self) -> str:
        return f"<{self.base.label()}.flat>"


def known(key: Any) -> bool:
    return not hasattr(key, "type")


def repeated(value: Any, n: int) -> Any:
    """The elements of a value, over again until there are `n`."""
    line = gnp.reshape(value, (type_of(value).size,))
    size = type_of(line).size
    if size == 1 or not n:
        return gnp.getitem(line, slice(0, 1)) if size else line
    return gnp.getitem(line, np.arange(n) % size)


# ----------------------------------------------------------------------------------------- lengths
# The difference of two traced integers, where it is the same number whatever their values are.
#
# Each is written as a sum of multiples of values that are not looked
# into: `(i + 1) * 8` is `8 i + 8`.


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
    steps = not is_traced(part.step) and part.step in (None, 1)
    if steps and is_integer(part.start) and is_integer(part.stop):
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
