"""`x[mask]` of a traced mask, which has no shape to give: it lives as long as
`x[mask] += v` needs it.

The elements that a traced mask chooses are as many as its values say, so no traced value can stand
for them. But what is computed of each by itself and written back to where it came from needs no
count: it is computed of all elements, and kept where the mask holds. Elsewhere it is computed of
the first chosen element, so that no NaN of an element that was not chosen reaches a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.arrays import INT64, INTEGERS, can_cast
from ge2.base.errors import (
    ConcretizationTypeError,
    InPlaceError,
    OutOfBoundsError,
    TracerIntegerConversionError,
)
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import Atom, Dims, Literal, Var, is_traced
from ge2.numpy.access import as_mask, taken_in_turn
from ge2.numpy.access.selecting import MovingSlice, harmless, in_tuple, resolved
from ge2.numpy.composite import known_elements
from ge2.numpy.elementwise import UFUNCS
from ge2.numpy.promotion import all_axes
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
    """The elements that a traced mask chooses: those of `values`, an
    array of all, where it holds; of `elements` where functions of them are computed, too.

    The axes of the mask are the first ones of both. In NumPy's array their place is taken by
    one axis, after `before` of the others: after one in `x[:, mask]`. What `np.nonzero(mask)` gives
    for an axis are the indices along that `axis` which the mask chooses.
    """

    __slots__ = ("axis", "before", "computed", "error", "mask", "values")

    def __init__(
        self, values: Any, mask: Any, error: Error, before: int = 0, axis: int | None = None
    ) -> None:
        self.values, self.mask, self.error, self.computed = values, mask, error, False
        self.before, self.axis = before, axis

    def with_elements(self, elements: Any, before: int | None = None) -> Selected:
        before = self.before if before is None else before
        new = Selected(elements, self.mask, self.error, before)
        new.computed = True
        return new

    @property
    def elements(self) -> Any:
        """The values, and where the mask does not hold the first of those that it chooses."""
        if not self.computed:
            self.values, self.computed = harmless(self.values, self.mask), True
        return self.values

    def after(self) -> int:
        """How many axes follow that of the chosen elements."""
        return int(self.values.ndim - self.mask.ndim - self.before)

    def of_elements(self, call: Callable[..., Any], *xs: Any) -> Selected:
        """The function of these elements, or of numbers, values in turn, and
        elements of the same mask.
        """
        before = max([x.before for x in xs if type(x) is Selected], default=self.before)
        return self.with_elements(call(*[self.at_each(x, before) for x in xs]), before)

    def at_each(self, x: Any, before: int) -> Any:
        """An operand as an array of the elements' shape, or what broadcasts to it, with so many
        axes before that of the chosen elements.
        """
        if type(x) is Selected:
            if not alike(x.mask, self.mask) or x.after() != self.after():
                raise x.error()
            return x.with_axes(x.elements, before)
        if np.ndim(x) <= self.after():
            return x
        y = in_front(gnp.asarray(x), before, self.after())
        left = self.with_axes(self.values, before).shape[self.mask.ndim :]
        return taken_in_turn(y, self.mask, np.broadcast_shapes(left, y.shape[1:]))

    def with_axes(self, x: Any, before: int) -> Any:
        """The elements or values, with new axes so that there are `before`."""
        n, shape = self.mask.ndim, x.shape
        return gnp.reshape(x, (*shape[:n], *(1,) * (before - self.before), *shape[n:]))

    def updated(self, call: Callable[..., Any], other: Any) -> Selected:
        """The new elements of `x[mask] += other`, in the dtype of `x`."""
        new = self.of_elements(call, self, other)
        t, old = new.elements.type, self.elements.type
        if not can_cast(t.dtype, old.dtype, "same_kind"):
            what = f"x[mask] op= y: the result {t} cannot be cast to {old}"
            raise InPlaceError(what, where=here(), fix="x = x.astype(float) first")
        return self.with_elements(new.elements.astype(old.dtype))

    def written_to(self, x: Any, mask: Any, before: int) -> Any:
        """`x`, whose first axes are those of a mask, after these elements were written where it
        holds; an error for another mask than theirs.
        """
        left = x.ndim - mask.ndim
        if not alike(mask, self.mask) or left - before != self.after() or before < self.before:
            raise self.error()
        new = self.with_axes(self.values, before)
        if np.broadcast_shapes(new.shape, x.shape) != x.shape:
            raise self.error()
        return gnp.where(whole(mask, left), new.astype(x.dtype), x)

    def astype(self, dtype: Any) -> Selected:
        return self.with_elements(self.elements.astype(dtype))

    def copy(self) -> Selected:
        return self

    def reduced(self, function: Any, axis: Any = None, dtype: Any = None, **more: Any) -> Any:
        """A reduction of the chosen elements, as of all of them with `where=mask`."""
        plain, axes = REDUCTIONS.get(function), self.axes(axis)
        if plain is None or more.keys() - {"ddof", "correction"}:
            raise self.error()
        if dtype is not None:
            more["dtype"] = dtype
        if function in EXTREME:
            return self.unless_none(plain(self.elements, axes))
        chosen = whole(self.mask, self.values.ndim - self.mask.ndim)
        if function == np.count_nonzero:
            return plain(self.values != 0, axes, where=chosen)
        # a NaN that is not chosen would reach the derivatives of others than these
        x = self.values if function in LINEAR else self.elements
        return plain(x, axes, where=chosen, **more)

    def axes(self, axis: Any) -> Dims:
        """The axes of `elements` that are meant by those of NumPy's array."""
        n, ndim = self.mask.ndim, self.before + 1 + self.after()
        meant = all_axes(axis, ndim)
        if self.before not in meant:
            raise self.error()
        rest = [n + i - (i > self.before) for i in meant if i != self.before]
        return (*range(n), *rest)

    def unless_none(self, y: Any) -> Any:
        """The value, if the mask chooses an element: else an IndexError when the program runs."""
        return gnp.take(y[None], gnp.where(gnp.any(self.mask), 0, 1), axis=0)

    def first(self, last: bool) -> Any:
        """The first or the last of what the mask chooses."""
        n = self.mask.ndim
        chosen = gnp.reshape(self.mask, (-1,))
        place = chosen.size - 1 - gnp.argmax(chosen[::-1]) if last else gnp.argmax(chosen)
        line = gnp.reshape(self.values, (chosen.size, *self.values.shape[n:]))
        return self.unless_none(gnp.take(line, place, axis=0))

    @property
    def size(self) -> Any:
        left = self.values.size // max(self.mask.size, 1)
        return (gnp.sum(self.mask) * left).cast(INT64, weak=True)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if method == "reduce" and ufunc in REDUCE and not more.keys() - {"axis", "dtype"}:
            return self.reduced(REDUCE[ufunc], **{"axis": 0, **more})
        if method != "__call__" or more or ufunc not in UFUNCS or ufunc.nout != 1:
            raise self.error()
        return self.of_elements(UFUNCS[ufunc], *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in REDUCTIONS and args and args[0] is self:
            return self.reduced(function, *args[1:], **kwargs)
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
        if type(key) is int and key in (0, -1) and not self.before and self.mask.size:
            return self.first(key == -1)
        return self.along_others(resolved(key))

    def along_others(self, key: Any) -> Selected:
        """The elements at an index of another axis than that of the chosen: `x[:, mask][order]`."""
        parts, n, ndim = in_tuple(key), self.mask.ndim, self.before + 1 + self.after()
        dots = [i for i, p in enumerate(parts) if p is Ellipsis]
        if len(parts) - len(dots) > ndim or len(dots) > 1:
            raise self.error()
        i = dots[0] if dots else len(parts)
        filling = [slice(None)] * (ndim - len(parts) + len(dots))
        parts = (*parts[:i], *filling, *parts[i + 1 :])
        rest = (*parts[: self.before], *parts[self.before + 1 :])
        kept = [1 if type(p) is slice else axes_for(p) for p in rest]
        if parts[self.before] != slice(None) or None in kept:
            raise self.error()
        if sum(type(p) is not slice for p in rest) > 1:
            raise self.error()
        values = gnp.getitem(self.values, (*[slice(None)] * n, *rest))
        new = Selected(values, self.mask, self.error, sum(kept[: self.before]))  # type: ignore[arg-type]
        new.computed = self.computed
        return new

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self.error()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.error()


def refused(self: Selected, *args: Any) -> Any:
    raise self.error()


for _name in ("matmul", "rmatmul", "divmod", "rdivmod", "float", "int", "index"):
    setattr(Selected, f"__{_name}__", refused)
HIDDEN = frozenset(("cell", "escaped", "type"))
Error = Callable[[], ConcretizationTypeError]
EXTREME = (np.max, np.min, np.amax, np.amin)
# Reductions that need not know how many elements there are.
REDUCTIONS: dict[Any, Any] = {
    **{f: gnp.FUNCTIONS[f] for f in (np.sum, np.prod, np.mean, np.var, np.std, np.any, np.all, *EXTREME)},
    np.average: gnp.mean, np.count_nonzero: gnp.sum,
}  # fmt: skip
LINEAR = (np.sum, np.mean, np.average, np.any, np.all)
REDUCE = {np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min,
          np.logical_and: np.all, np.logical_or: np.any}  # fmt: skip


def method(function: Any) -> Callable[..., Any]:
    return lambda self, *args, **more: self.reduced(function, *args, **more)


for _name in ("sum", "prod", "mean", "var", "std", "any", "all", "max", "min"):
    setattr(Selected, _name, method(getattr(np, _name)))


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


def whole(mask: Any, left: int) -> Any:
    """The mask with so many new axes at the end."""
    return mask.reshaped((*mask.shape, *(1,) * left))


def in_front(value: Any, before: int, after: int) -> Any:
    """Values in turn, of which the axis that counts them comes first."""
    ones = (1,) * (before + 1 + after - value.ndim)
    return gnp.moveaxis(gnp.reshape(value, (*ones, *value.shape)), before, 0)


def error_of(what: str, fix: str) -> Error:
    """An error of this place, where what has no known shape came from, to be raised where it is
    used.
    """
    place = here()
    return lambda: ConcretizationTypeError(what, where=place or here(), fix=fix)


def places(x: Any) -> tuple[Selected, ...]:
    """The indices of elements that are not zero, as `numpy.nonzero` has them: along each axis."""
    mask = (x if x.type.dtype == bool else x != 0).__copy__()
    what = f"the shape of nonzero(x) depends on the values of x, which is traced {x.type}"
    error = error_of(
        what, "np.where(mask, x, other) of three arguments, or a mask that is no traced value"
    )
    grid = gnp.indices(mask.shape)
    return tuple([Selected(grid[i], mask, error, 0, i) for i in range(mask.ndim)])


def axes_for(part: Any) -> int | None:
    """The number of axes that the result has in place of an indexed one: 0 for an integer, those of an
    array of integers; None if the index is neither.
    """
    if part is None or isinstance(part, Selected | MovingSlice | bool):
        return None
    x = part if is_traced(part) else np.asarray(part)
    return x.ndim if x.dtype in INTEGERS else None


def stands_for_mask(parts: tuple[Any, ...]) -> bool:
    """True if the indices are those along all axes of a mask, in turn, which it chooses."""
    chosen = [p for p in parts if type(p) is Selected]
    return [p.axis for p in chosen] == [*range(chosen[0].mask.ndim)]


def at_chosen(x: Any, key: Any) -> Selected | None:
    """`x[i[mask], j[mask]]`: what indices that a mask chooses name in another array, which is as
    many; None of a key without such indices, and of those which stand for the mask itself.
    """
    parts = in_tuple(key)
    chosen = [p for p in parts if type(p) is Selected]
    if not chosen or stands_for_mask(parts):
        return None
    at = [i for i, p in enumerate(parts) if type(p) is Selected or names_one(p)]
    first, rest = chosen[0], [p for i, p in enumerate(parts) if i not in at]
    mask, n = first.mask, first.mask.ndim
    fits = at[-1] - at[0] + 1 == len(at) and all(p is ... or type(p) is slice for p in rest)
    plain = all(
        alike(p.mask, mask) and not (p.before or p.after()) and p.values.dtype in INTEGERS
        for p in chosen
    )
    if not fits or not plain or 0 in x.shape:
        raise first.error()
    # 0 is no index outside
    inside = [gnp.where(mask, p.values, 0) if type(p) is Selected else p for p in parts]
    y = gnp.getitem(x, tuple(inside))
    before = at[0] if ... not in parts[: at[0]] else x.ndim - len(parts) + at[0]
    y = gnp.moveaxis(y, range(before, before + n), range(n)) if before else y
    return Selected(y, mask, first.error, before)


def with_masks(key: Any) -> Any:
    """The key, with a mask in place of its indices along each axis."""
    parts: tuple[Any, ...] = in_tuple(key)
    found: list[Any] = []
    if not any(type(p) is Selected for p in parts):
        return key
    i = 0
    while i < len(parts):
        p = parts[i]
        if type(p) is Selected:
            n = p.mask.ndim
            row = [
                q if type(q) is Selected and q.mask is p.mask else None for q in parts[i : i + n]
            ]
            if [q.axis if q is not None else None for q in row] != list(range(n)):
                raise p.error()
            i, p = i + n - 1, p.mask
        i, found = i + 1, [*found, p]
    return found[0] if len(found) == 1 else tuple(found)


@final
class Masked:
    """A key of which one part is a traced mask: what the others name, a view, and the mask, whose
    axes are then after `before` others.
    """

    __slots__ = ("before", "mask", "rest")

    def __init__(self, mask: Any, rest: Any = ..., before: int = 0) -> None:
        self.mask, self.rest, self.before = mask, rest, before

    def part(self, x: Any) -> Any:
        """The view, the axes of the mask first."""
        n, y = self.mask.ndim, gnp.getitem(x, self.rest)
        y = gnp.moveaxis(y, range(self.before, self.before + n), range(n)) if self.before else y
        if self.mask.shape != y.shape[:n]:
            what = f"boolean index {self.mask.type} did not match indexed array {y.type}"
            raise OutOfBoundsError(what, where=here(), fix="a mask of its shape")
        return y

    def select(self, x: Any) -> Selected:
        """The elements that the mask chooses; errors of the key itself are NumPy's."""
        y, mask = self.part(x).__copy__(), self.mask.__copy__()
        what = (
            f"x[mask] has a shape that depends on the values of mask, which is traced {mask.type}"
        )
        fix = "np.where(mask, x, other), a function with where=mask, or a mask that is no traced value"
        return Selected(y, mask, error_of(f"{what} (x is {x.type})", fix), self.before)

    def written(self, x: Any, value: Any) -> Any:
        """`x` after `x[key] = value`."""
        n, y = self.mask.ndim, self.part(x)
        if type(value) is Selected:
            new = value.written_to(y, self.mask, self.before)
        else:
            after = y.ndim - n - self.before
            turns = self.before and np.ndim(value) > after
            value = in_front(gnp.asarray(value), self.before, after) if turns else value
            new = gnp.setitem(y, self.mask, value)
        new = (
            gnp.moveaxis(new, range(n), range(self.before, self.before + n)) if self.before else new
        )
        return gnp.setitem(x, self.rest, new)


def masked(x: Any, key: Any) -> Masked | None:
    """The key, if a traced mask is in it and else what names a view; None for other keys, and
    where the elements of the mask are known.
    """
    places, key = key, with_masks(key)
    mask = mask_in(key)
    if mask is not None and key is places:
        return Masked(mask)
    key = in_tuple(key) if key is not places else key
    at = [i for i, p in enumerate(key) if is_mask(p)] if type(key) is tuple else []
    if len(at) != 1 or known_elements(key[at[0]]) is not None:
        return None
    (i,), mask = at, key[at[0]]
    first, last = key[:i], key[i + 1 :]
    numbers = [j for j, p in enumerate(key) if j != i and names_one(p)]
    views = [p is None or p is ... or type(p) in (slice, MovingSlice) for p in key]
    if sum(views) + len(numbers) + 1 != len(key):
        return None  # arrays are among them
    named = sum(p is not None and p is not ... for p in key) - 1 + mask.ndim
    before = sum(x.ndim - named if p is ... else not names_one(p) for p in first)
    ends = min(numbers, default=i), max(numbers, default=i)
    if before and any(views[min(ends[0], i) : max(ends[1], i)]):
        return None  # NumPy puts the axis of the chosen elements first
    # indices may be of a shorter array, a mask may not
    axes = [slice(None)] * mask.ndim if key is places else [slice(0, n) for n in mask.shape]
    return Masked(mask, (*first, *axes, *last), before)


def is_mask(part: Any) -> bool:
    return is_traced(part) and part.type.dtype == bool and part.type.ndim > 0


def names_one(part: Any) -> bool:
    """True of an integer, traced or not."""
    if is_traced(part):
        return not part.type.shape and part.type.dtype in INTEGERS
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


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
