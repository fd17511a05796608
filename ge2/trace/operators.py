"""Operators, methods and attributes of arrays, on traced values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from inspect import isclass
from operator import index
from typing import Any, NoReturn

import numpy

from ge2 import numpy as gnp
from ge2.base.arrays import COMPLEX, INTEGERS, can_cast, python_type
from ge2.base.errors import ArgumentError, InPlaceError, NotAValue, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import Dims, current
from ge2.numpy.access.selecting import MovingSlice, in_tuple, resolved
from ge2.numpy.promotion import as_dtype, check_casting, checked_order
from ge2.numpy.rare import view as bits_as
from ge2.ops import ArrayMethods
from ge2.trace.selected import (
    Selected,
    alike,
    at_chosen,
    masked,
    moving_slice,
    names_one,
    places,
    stands_for_mask,
)
from ge2.trace.views import Flat, in_order

# its functions come back through `__array_function__`, of which its stubs know nothing
np: Any = numpy
OP: dict[str, Any] = {**gnp.operators, "matmul": gnp.matmul}


def times(x: Any, y: Any, self: Any) -> Any:
    """The product; but `[0] * n`, of a Python number n, is a longer list."""
    other = y if self is x else x
    if self.type.weak and isinstance(other, list | tuple | str | deque):
        return other * index(self)
    return OP["mul"](x, y)


def equality(name: str, x: Any, other: Any) -> Any:
    """`x == other`, elementwise: no element equals None, a string or another object that knows no
    numbers.
    """
    try:
        return OP[name](x, other)
    except NotAValue:
        equals: Any = type(other).__eq__
        number = x.dtype.type()
        if isinstance(other, list | tuple) or equals(other, number) is not NotImplemented:
            raise
        return name == "ne" if x.type.weak else gnp.full(x.shape, name == "ne")


@hides_methods
class Operators(ArrayMethods):
    """The meaning of `x + y`, `x.sum()`, `x.T`, `x[i]` and `x += y`."""

    __slots__ = ()
    cell: Any
    owner: Any

    # fmt: off
    def __neg__(self) -> Any: return OP["neg"](self)
    def __pos__(self) -> Any: return OP["pos"](self)
    def __abs__(self) -> Any: return OP["abs"](self)
    def __invert__(self) -> Any: return OP["invert"](self)
    def __add__(self, other: Any) -> Any: return OP["add"](self, other)
    def __radd__(self, other: Any) -> Any: return OP["add"](other, self)
    def __sub__(self, other: Any) -> Any: return OP["sub"](self, other)
    def __rsub__(self, other: Any) -> Any: return OP["sub"](other, self)
    def __mul__(self, other: Any) -> Any: return times(self, other, self)
    def __rmul__(self, other: Any) -> Any: return times(other, self, self)
    def __truediv__(self, other: Any) -> Any: return OP["truediv"](self, other)
    def __rtruediv__(self, other: Any) -> Any: return OP["truediv"](other, self)
    def __floordiv__(self, other: Any) -> Any: return OP["floordiv"](self, other)
    def __rfloordiv__(self, other: Any) -> Any: return OP["floordiv"](other, self)
    def __mod__(self, other: Any) -> Any: return OP["mod"](self, other)
    def __rmod__(self, other: Any) -> Any: return OP["mod"](other, self)
    def __divmod__(self, other: Any) -> Any: return OP["divmod"](self, other)
    def __rdivmod__(self, other: Any) -> Any: return OP["divmod"](other, self)
    def __pow__(self, other: Any) -> Any: return OP["pow"](self, other)
    def __rpow__(self, other: Any) -> Any: return OP["pow"](other, self)
    def __matmul__(self, other: Any) -> Any: return OP["matmul"](self, other)
    def __rmatmul__(self, other: Any) -> Any: return OP["matmul"](other, self)
    def __and__(self, other: Any) -> Any: return OP["and"](self, other)
    def __rand__(self, other: Any) -> Any: return OP["and"](other, self)
    def __or__(self, other: Any) -> Any: return OP["or"](self, other)
    def __ror__(self, other: Any) -> Any: return OP["or"](other, self)
    def __xor__(self, other: Any) -> Any: return OP["xor"](self, other)
    def __rxor__(self, other: Any) -> Any: return OP["xor"](other, self)
    def __lshift__(self, other: Any) -> Any: return OP["lshift"](self, other)
    def __rlshift__(self, other: Any) -> Any: return OP["lshift"](other, self)
    def __rshift__(self, other: Any) -> Any: return OP["rshift"](self, other)
    def __rrshift__(self, other: Any) -> Any: return OP["rshift"](other, self)
    def __lt__(self, other: Any) -> Any: return OP["lt"](self, other)
    def __le__(self, other: Any) -> Any: return OP["le"](self, other)
    def __gt__(self, other: Any) -> Any: return OP["gt"](self, other)
    def __ge__(self, other: Any) -> Any: return OP["ge"](self, other)
    def __eq__(self, other: Any) -> Any: return equality("eq", self, other)
    def __ne__(self, other: Any) -> Any: return equality("ne", self, other)

    def __iadd__(self, other: Any) -> Any: return self._in_place("add", "+=", other)
    def __isub__(self, other: Any) -> Any: return self._in_place("sub", "-=", other)
    def __imul__(self, other: Any) -> Any: return self._in_place("mul", "*=", other)
    def __itruediv__(self, other: Any) -> Any: return self._in_place("truediv", "/=", other)
    def __ifloordiv__(self, other: Any) -> Any: return self._in_place("floordiv", "//=", other)
    def __imod__(self, other: Any) -> Any: return self._in_place("mod", "%=", other)
    def __ipow__(self, other: Any) -> Any: return self._in_place("pow", "**=", other)
    def __iand__(self, other: Any) -> Any: return self._in_place("and", "&=", other)
    def __ior__(self, other: Any) -> Any: return self._in_place("or", "|=", other)
    def __ixor__(self, other: Any) -> Any: return self._in_place("xor", "^=", other)
    def __ilshift__(self, other: Any) -> Any: return self._in_place("lshift", "<<=", other)
    def __irshift__(self, other: Any) -> Any: return self._in_place("rshift", ">>=", other)
    def __imatmul__(self, other: Any) -> Any: return self._in_place("matmul", "@=", other)

    @property
    def shape(self) -> Dims: return self.type.shape
    @shape.setter
    def shape(self, value: Any) -> None: self._reshape(value)
    @property
    def ndim(self) -> int: return self.type.ndim
    @property
    def dtype(self) -> numpy.dtype: return self.type.dtype
    @dtype.setter
    def dtype(self, value: Any) -> None: self._fixed("dtype", "x = x.astype(dtype)")
    @property
    def size(self) -> int: return self.type.size
    @property
    def nbytes(self) -> int: return self.type.nbytes
    @property
    def itemsize(self) -> int: return self.type.dtype.itemsize
    @property
    def strides(self) -> Dims: return in_order(self)
    @property
    def T(self) -> Any: return np.transpose(self)
    @property
    def mT(self) -> Any: return np.matrix_transpose(self)
    @property
    def real(self) -> Any: return np.real(self) if not self.type.weak else part(self, gnp.real, True)
    @real.setter
    def real(self, value: Any) -> None: self.real[...] = value
    @property
    def imag(self) -> Any: return np.imag(self) if not self.type.weak else part(self, gnp.imag, False)
    @imag.setter
    def imag(self, value: Any) -> None: self.imag[...] = value
    @property
    def flags(self) -> Any: return numpy.empty([min(n, 2) for n in self.shape]).flags
    @property
    def at(self) -> Any: return gnp.at(self)
    @property
    def flat(self) -> Any: return Flat(self)
    @flat.setter
    def flat(self, value: Any) -> None: self.flat[:] = value

    # fmt: on

    def _reshape(self, value: Any) -> None:
        """Gives this array itself another shape: under its names it is, from now on, a view of what it
        was. NumPy does so where nothing is copied, and a caller's array would have it, too.
        """
        cell, fix = self.cell, f"x = x.reshape({value!r:.40})"
        theirs = cell.argument is not None or cell.fixed or self.owner is not current()
        if theirs or not cell.is_array:
            self._fixed("shape", fix)
        y = np.reshape(self, value)
        if y.cell is cell:
            return
        if y.cell.view is None:
            what = f"x.shape = value would have to copy {self.label()}, whose elements are in another order"  # type: ignore[attr-defined]
            raise InPlaceError(what, where=here(), fix=fix)
        y.cell.view.sure = True
        self.cell = y.cell

    def _fixed(self, name: str, fix: str) -> NoReturn:
        what = f"x.{name} = value changes an array itself; {self.label()} keeps its {name}"  # type: ignore[attr-defined]
        raise InPlaceError(what, where=here(), fix=fix)

    # their arguments are those of the functions, in the same order
    # fmt: off
    def sum(self, *args: Any, **more: Any) -> Any: return np.sum(self, *args, **more)
    def prod(self, *args: Any, **more: Any) -> Any: return np.prod(self, *args, **more)
    def max(self, *args: Any, **more: Any) -> Any: return np.max(self, *args, **more)
    def min(self, *args: Any, **more: Any) -> Any: return np.min(self, *args, **more)
    def mean(self, *args: Any, **more: Any) -> Any: return np.mean(self, *args, **more)
    def var(self, *args: Any, **more: Any) -> Any: return np.var(self, *args, **more)
    def std(self, *args: Any, **more: Any) -> Any: return np.std(self, *args, **more)
    def any(self, *args: Any, **more: Any) -> Any: return np.any(self, *args, **more)
    def all(self, *args: Any, **more: Any) -> Any: return np.all(self, *args, **more)
    # fmt: on

    def argmax(self, axis: Any = None, out: Any = None, **more: Any) -> Any:
        return np.argmax(self, axis, out=out, **more)

    def argmin(self, axis: Any = None, out: Any = None, **more: Any) -> Any:
        return np.argmin(self, axis, out=out, **more)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np.cumsum(self, axis, dtype, out=out)

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np.cumprod(self, axis, dtype, out=out)

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        return np.clip(self, min, max, out=out)

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return np.round(self, decimals, out=out)

    def dot(self, other: Any, *more: Any, **params: Any) -> Any:
        return (
            ArrayMethods.dot(self, other, *more, **params)
            if more or params
            else np.dot(self, other)
        )

    def squeeze(self, axis: Any = None) -> Any:
        return np.squeeze(self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        return np.swapaxes(self, axis1, axis2)

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        return np.repeat(self, repeats, axis)

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
        return np.take(self, indices, axis, out=out, mode=mode)

    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
    ) -> Any:
        return np.trace(self, offset, axis1, axis2, dtype, out=out)

    def choose(self, choices: Any, out: Any = None, mode: Any = "raise") -> Any:
        return np.choose(self, choices, out=out, mode=mode)

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        np.put(self, indices, values, mode)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return np.diagonal(self, offset, axis1, axis2)

    def ravel(self, order: str = "C") -> Any:
        return np.ravel(self, order)

    def flatten(self, order: str = "C") -> Any:
        return gathered(gnp.ravel(self, order), "C")

    def argsort(
        self, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None
    ) -> Any:
        return np.argsort(self, axis, kind, order, stable=stable)

    def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Any:
        return np.searchsorted(self, v, side, sorter)

    def conjugate(self) -> Any:
        return part(self, gnp.conjugate, keeps=True) if self.type.weak else self.conj()

    def copy(self, order: str = "C") -> Any:
        return gathered(self, order)

    def nonzero_places(self) -> Any:
        return places(self)

    def nonzero(self) -> Any:
        return np.nonzero(self)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return np.compress(condition, self, axis, out=out)

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: str = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        check_casting(self, as_dtype(dtype), casting)
        checked_order(order)
        return gnp.astype(self, dtype, copy=copy)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes: Any) -> Any:
        return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    def sort(
        self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None
    ) -> None:
        """In place, as in NumPy; `np.sort(x)` gives a new array."""
        self._replace(np.sort(self, axis, kind, order, stable=stable), ".sort()")

    def partition(
        self, kth: Any, axis: int = -1, kind: str = "introselect", order: Any = None
    ) -> None:
        """In place, as in NumPy; `np.partition(x, k)` gives a new array."""
        self._replace(np.partition(self, kth, axis, kind, order), ".partition()")

    def argpartition(
        self, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None
    ) -> Any:
        return np.argpartition(self, kth, axis, kind, order)

    def fill(self, value: Any) -> None:
        self[...] = value

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        """The same bytes as another dtype; a write to it changes this array too, as in NumPy."""
        for given in (dtype, type):
            if isclass(given) and issubclass(given, np.ndarray) and given is not np.ndarray:
                what = f"x.view({given.__name__}): a traced value has no subclasses"
                raise ArgumentError(what, where=here(), fix="x.view(dtype)")
        old = self.type.dtype
        new = old if dtype is None or dtype is np.ndarray else dtype
        y = bits_as(self, new)
        if not self.cell.is_array:
            return y
        y = y.renamed() if y.cell is self.cell else y
        return y.viewing(
            self, lambda x: bits_as(x, new), lambda _, v: bits_as(v, old), None, sure=True
        )

    # --------------------------------------------------------------------------- items and in place

    def __len__(self) -> int:
        if not self.type.shape:
            raise TypeError("len() of unsized object")
        return self.type.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.type.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def moving_slice(self, part: slice) -> Any:
        """A slice that has this value as a bound, as what indexes an array."""
        return moving_slice(part)

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __getitem__(self, key: Any) -> Any:
        key = resolved(key)
        chosen = at_chosen(self, key)
        if chosen is not None:
            return chosen
        part = masked(self, key)
        if part is not None:
            return part.select(self)
        y = gnp.getitem(self, key)
        for part in in_tuple(key):
            if getattr(getattr(part, "cell", None), "argument", None) is not None:
                part.cell.argument.index = True
        if is_basic(key) and (y.type.shape or has_dots(key)) and self.cell.is_array:
            return self._as_view(y, key)
        return y

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.type.weak:
            raise TypeError(
                f"'{python_type(self.type.dtype).__name__}' object does not support item assignment"
            )
        key = resolved(key)
        new = put_at_chosen(self, key, (value,), gnp.setitem)
        part = masked(self, key) if new is None else None
        if new is not None:
            self._replace(new, "x[i[mask]] = value")
        elif part is not None:
            self._replace(part.written(self, value), "x[mask] = value")
        elif type(value) is Selected:
            raise value.error()
        elif not self._holds(value, key):
            self._replace(gnp.setitem(self, key, value), "x[...] = value")

    def _holds(self, value: Any, key: Any) -> bool:
        """True if the value is this very part:

        `x[key] += 1` writes through the view, then assigns it.
        """
        view = value.cell.view if type(value) is type(self) else None
        if view is None or view.base is not self.cell or view.key != parts_of(key):
            return False
        return bool(view.seen == view.base.version)

    def _as_view(self, y: Any, key: Any) -> Any:
        """A slice, which shares this array's memory."""
        y = y.renamed() if y.cell is self.cell else y
        layout = self.cell.ghost() if self.type.size else None
        read = lambda base: gnp.getitem(base, key)  # noqa: E731
        put = lambda base, value: gnp.setitem(base, key, value)  # noqa: E731
        y.viewing(self, read, put, None if layout is None else layout[at_first(key)], sure=True)
        y.cell.view.key = parts_of(key)
        return y

    def _in_place(self, name: str, sign: str, other: Any) -> Any:
        y = OP[name](self, other)
        if y is NotImplemented or not self.cell.is_array:
            if self.cell.argument is not None:
                self.cell.argument.rebound = True
            return y  # numbers, and what NumPy's functions give for them, are bound anew by `+=`
        if y.type.shape != self.type.shape:
            raise ShapeError(
                f"x {sign} y: the result {y.type} does not fit into {self.type}",
                where=here(),
                fix=f"x = x {sign[:-1]} y",
            )
        if not can_cast(y.type.dtype, self.type.dtype, "same_kind"):
            raise InPlaceError(
                f"x {sign} y: the result {y.type} cannot be cast to {self.type}",
                where=here(),
                fix=f"x = x {sign[:-1]} y",
            )
        self._replace(y, f"x {sign} y")
        return self

    def _replace(self, value: Any, what: str) -> None:
        if not self.cell.is_array:
            what = f"{what}: in NumPy this {self.type} is a scalar, which never changes"
            raise InPlaceError(
                what, where=here(), fix="x = value, or np.copy(x) for an array of no axes"
            )
        self.write(value, what)  # type: ignore[attr-defined]


def put_at_chosen(x: Any, key: Any, values: tuple[Any, ...], put: Callable[..., Any]) -> Any:
    """`x` after `x[i[mask], j[mask]] = values`, or `ufunc.at` of it; None of a key without indices
    that a mask chooses. Those that it does not choose name a further row, which is dropped then.
    """
    parts = in_tuple(key)
    first = next((p for p in parts if type(p) is Selected), None)
    if first is None or stands_for_mask(parts):
        return None
    mask, left, n = first.mask, x.ndim - len(parts), len(x)
    chosen = [(p, 0) for p in parts if not names_one(p)]
    chosen += [(v, left) for v in values if type(v) is Selected]
    fits = parts[0] is first and all(
        type(p) is Selected and alike(p.mask, mask) and not p.before and p.after() == after
        for p, after in chosen
    )
    if not fits or not n or any(type(v) is not Selected and np.ndim(v) > left for v in values):
        raise first.error()
    i = parts[0].values.astype(np.int64)
    i = gnp.where(i < 0, i + n, gnp.where(i < n, i, i + 1))  # an index outside stays outside
    others = [gnp.where(mask, p.values, 0) if type(p) is Selected else p for p in parts[1:]]
    at = (gnp.where(mask, i, n), *others)
    longer = gnp.concatenate([x, x[:1]])
    given = [v.elements if type(v) is Selected else v for v in values]
    return put(longer, at, *given)[:n]


def part(x: Any, of: Any, keeps: bool) -> Any:
    """A part of a Python number, which is one too; a real number has it whole
    (`keeps`), or none of it.
    """
    if x.type.dtype not in COMPLEX:
        return +x if keeps else +python_type(x.type.dtype)(0)
    y = of(x)
    return y.cast(y.type.dtype, weak=True)


def gathered(x: Any, order: str) -> Any:
    """A copy whose elements are in order."""
    checked_order(order)
    y = x.__copy__()
    y.cell.packed = order == "C"
    return y


def is_basic(key: Any) -> bool:
    """True if NumPy gives a view for this index: no arrays, lists or masks in it."""
    return all(
        p is None
        or p is Ellipsis
        or isinstance(p, slice | MovingSlice | numpy.integer)
        or (issubclass(type(p), int) and not isinstance(p, bool))
        or is_place(p)
        for p in in_tuple(key)
    )


def is_place(part: Any) -> bool:
    """True for a traced integer that is a scalar in NumPy: an array of no axes is an index array."""
    cell = getattr(part, "cell", None)
    return cell is not None and not cell.is_array and part.type.dtype in INTEGERS


def parts_of(key: Any) -> tuple[Any, ...]:
    """The parts of a key, of traced ones their values, so that keys can be compared."""
    return tuple([getattr(p, "atom", p) for p in in_tuple(key)])


def at_first(key: Any) -> tuple[Any, ...]:
    """The key with traced places at 0: what it reads has the same strides."""
    parts = [slice(0, p.size) if type(p) is MovingSlice else p for p in in_tuple(key)]
    return tuple([0 if is_place(p) else p for p in parts])


def has_dots(key: Any) -> bool:
    """True if a key has dots, so that NumPy gives an array even where no axis is left."""
    return any(p is Ellipsis for p in (key if isinstance(key, tuple) else (key,)))


Operators.__hash__ = object.__hash__  # type: ignore[method-assign] # __eq__ is elementwise, identity is the hash
