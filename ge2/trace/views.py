"""The functions of NumPy's that share memory with their argument, and what writing through them
means.

A view refers to the cell of its base: it is read again after the base was written, and what is
written to it is put into the base. Whether a reshape is a view or a copy hangs on strides. They are
followed where they are known (`ghost`); where they are not, using the one after writing the other
is an error, for NumPy's answer is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.arrays import on_gpu
from ge2.base.errors import InputError
from ge2.base.source import Source, here
from ge2.base.tracebacks import hides_methods
from ge2.ir import Atom, Dims, is_traced, type_of
from ge2.numpy.promotion import array, cast
from ge2.numpy.rare import grids

Read = Callable[[Any], Any]  # the view of a base
Put = Callable[[Any, Any], Any]  # (base, new contents of the view) -> new contents of the base
Ghost = np.ndarray  # an array of the right shape and strides over no memory, which is never read

NOTHING = np.empty(1, np.int8)
WORK: Final[Any] = 10_000  # candidates that a search for a common element may try


class View:
    """The way in which a cell is read from the cell of its base."""

    __slots__ = ("assumed", "base", "ghost", "key", "outer", "put", "read", "seen", "sure")
    outer: str  # the array of an outer function that it is of

    def __init__(
        self, base: Cell, read: Read, put: Put | None, ghost: Ghost | None, sure: bool
    ) -> None:
        self.base, self.read, self.put, self.ghost = base, read, put, ghost
        self.seen = base.version  # of the base, when this was read last
        self.sure = sure  # whether NumPy surely shares the memory
        self.assumed = False  # whether it is a view only if an argument is in C order
        self.key: Any = View  # the index it was read with, if it was; no index is a class
        self.outer = (
            "" if base.view is None else base.view.outer
        )  # the array of an outer function that it is of


class Argument:
    """The facts that a trace finds out about an argument that may be written."""

    __slots__ = ("index", "line", "ordered", "rebound")

    def __init__(self) -> None:
        self.line: Source | None = None  # the one that wrote it last
        self.ordered = False  # whether something that is known of it holds in C order alone
        self.index = False  # whether it indexes an array: a scalar gives a view, an array a copy
        self.rebound = False  # whether it is a NumPy scalar, and an operator in place bound it anew


class Cell:
    """The value that a traced value holds now."""

    __slots__ = ("argument", "array", "atom", "doubt", "fixed", "packed", "version", "view")

    def __init__(self, atom: Atom) -> None:
        self.atom = atom
        self.version = 0
        self.view: View | None = None
        self.fixed = ""  # whose it is, if it must not be written
        self.doubt = ""  # why its contents are not known
        self.array = False  # whether NumPy gives an array here although it has no axes
        self.packed = False  # whether its elements surely are in order, without gaps
        self.argument: Argument | None = None  # of a caller, who is to see what is written to it

    @property
    def root(self) -> Cell:
        cell = self
        while cell.view is not None:
            cell = cell.view.base
        return cell

    @property
    def is_array(self) -> bool:
        """True if NumPy has an array here, which changes in place, rather than a scalar, which does
        not.
        """
        return bool(self.atom.type.shape or self.array or self.fixed or self.view is not None)

    def ghost(self) -> Ghost | None:
        """The layout, if it is known."""
        if self.view is not None:
            return self.view.ghost
        shape = self.atom.type.shape
        known = self.packed or self.argument or sum(n != 1 for n in shape) <= 1 or 0 in shape
        return packed(shape) if known else None


def ordered(cell: Cell) -> None:
    """Notes that a view of an argument has the meaning it was given in C order alone."""
    argument = cell.root.argument
    assert argument is not None
    argument.ordered = True


def ghost(shape: Dims, strides: Dims) -> Ghost:
    return np.lib.stride_tricks.as_strided(NOTHING, shape, strides, writeable=False)


def packed(shape: Dims) -> Ghost:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return ghost(shape, tuple(reversed(strides)))


def in_order(x: Any) -> Dims:
    """The strides of an array in C order, as a traced one that is no other view of another is;
    InputError of what surely lies otherwise.
    """
    known, shape = x.cell.ghost(), x.type.shape
    if known is not None and not known.flags.c_contiguous:
        what = f"{x.label()} is a view, whose elements are not in C order in memory"
        fix = "np.ascontiguousarray(x), and its strides"
        raise InputError(what, where=here(), fix=fix)
    return tuple([s * x.type.dtype.itemsize for s in packed(shape).strides])


# ---------------------------------------------------------------- what writing through a view means


def turned(base: Any, function: Any, args: Any, more: Any) -> Put:
    """Axes in another order: the strides of a ghost say which."""
    ndim = base.type.ndim
    axes = function(ghost((1,) * ndim, tuple(range(ndim))), *args, **more).strides
    back = tuple(np.argsort(axes).tolist())
    return lambda base, value: gnp.transpose(value, back)


def reshaped(base: Any, function: Any, args: Any, more: Any) -> Put:
    return lambda base, value: gnp.reshape(value, base.type.shape)


def flipped(base: Any, function: Any, args: Any, more: Any) -> Put:
    ours = gnp.FUNCTIONS[function]
    return lambda base, value: ours(value, *args, **more)


def rotated(base: Any, function: Any, args: Any, more: Any) -> Put:
    def put(base: Any, value: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
        return gnp.rot90(value, -k, axes)

    return lambda base, value: put(base, value, *args, **more)


def real_part(base: Any, function: Any, args: Any, more: Any) -> Put:
    return lambda base, value: value + gnp.imag(base) * 1j if base.type.dtype.kind == "c" else value


def imaginary_part(base: Any, function: Any, args: Any, more: Any) -> Put | None:
    return (
        (lambda base, value: gnp.real(base) + value * 1j) if base.type.dtype.kind == "c" else None
    )


def read_only(base: Any, function: Any, args: Any, more: Any) -> None:
    return None


# fmt: off
PUTS: dict[Any, Callable[[Any, Any, Any, Any], Put | None]] = {
    np.transpose: turned, np.swapaxes: turned, np.moveaxis: turned, np.rollaxis: turned,
    np.matrix_transpose: turned, np.linalg.matrix_transpose: turned,
    np.reshape: reshaped, np.ravel: reshaped, np.squeeze: reshaped, np.expand_dims: reshaped,
    np.atleast_1d: reshaped, np.atleast_2d: reshaped, np.atleast_3d: reshaped,
    np.flip: flipped, np.fliplr: flipped, np.flipud: flipped, np.rot90: rotated,
    np.real: real_part, np.imag: imaginary_part,
    np.broadcast_to: read_only, np.diagonal: read_only, np.linalg.diagonal: read_only, np.diag: read_only,
    np.lib.stride_tricks.sliding_window_view: read_only, np.lib.stride_tricks.as_strided: read_only,
}
OURS: dict[Any, Any] = {np.lib.stride_tricks.as_strided: grids.as_strided}
PARTS: frozenset[Any] = frozenset((np.split, np.array_split, np.hsplit, np.vsplit, np.dsplit, np.unstack))
EACH: frozenset[Any] = frozenset((np.atleast_1d, np.atleast_2d, np.atleast_3d))
COPIES_IF_IT_MUST: frozenset[Any] = frozenset((np.reshape, np.ravel))
# Functions whose result is their argument itself, where it is what they would make of it.
GIVEN_BACK: frozenset[Any] = frozenset((np.astype, np.real_if_close, np.linalg.matrix_power))
# Functions that give an array of no axes where others give a scalar.
ARRAYS: frozenset[Any] = frozenset(
    (np.where, np.copy, np.zeros_like, np.ones_like, np.empty_like, np.full_like,
     np.select, np.tensordot, np.roll, np.astype)
)
# fmt: on


def settled(function: Any, args: tuple[Any, ...], more: dict[str, Any], y: Any) -> Any:
    """The result of a function, made a view of an argument, or a value of its own, as NumPy has it."""
    if function in PUTS:
        return as_view(function, args, more, y)
    if function in PARTS:
        return parts(function, args, more, y)
    if function == np.broadcast_arrays:
        if all(z is x for x, z in zip(args, y, strict=True)):
            return y  # NumPy, too, gives back what is of one shape
        pairs = zip(args, y, strict=True)
        return type(y)(
            [as_view(np.broadcast_to, (x, z.shape), {}, z) if is_traced(x) else z for x, z in pairs]
        )
    if function == np.einsum and is_traced(y) and len(args) == 2 and is_traced(args[1]):
        return y.viewing(
            args[1], lambda base: gnp.einsum(args[0], base, **more), None, None, sure=False
        )
    if function == np.nan_to_num and not more.get("copy", len(args) < 2 or args[1]):
        x = args[0] if args else more["x"]
        x._replace(y, "nan_to_num with copy=False")
        return x
    if function in GIVEN_BACK and args and y is args[0]:
        return y
    return own(y, args, more, function in ARRAYS)


def own(y: Any, args: Iterable[Any], more: dict[str, Any], array: bool) -> Any:
    """The result, which is no other name of an argument."""
    if is_traced(y):
        if any(
            y is x or (type(x) in (list, tuple) and any(y is z for z in x))
            for x in (*args, *more.values())
        ):
            y = y.__copy__()
            y.cell.array = array
        if array:
            y.cell.array = True
        return y
    if type(y) in (list, tuple):
        return type(y)([own(z, args, more, array) for z in y])
    return y


def as_view(function: Any, args: tuple[Any, ...], more: dict[str, Any], y: Any) -> Any:
    if not args:  # the array was given by its name
        name, base = next((k, v) for k, v in more.items() if is_traced(v))
        rest: tuple[Any, ...] = ()
        more = {k: v for k, v in more.items() if k != name}
    else:
        base, *rest = args  # type: ignore[assignment]
    if function in EACH and rest:
        return type(y)([as_view(function, (x,), {}, z) for x, z in zip(args, y, strict=True)])
    if not is_traced(y) or not has_memory(base) or (function == np.diag and base.type.ndim == 1):
        return own(y, (base,), {}, array=False)
    if PUTS[function] is flipped and not y.type.shape:
        return own(y, (base,), {}, array=False)  # NumPy reads it as `x[()]`
    ours = OURS.get(function) or gnp.FUNCTIONS[function]
    read: Read = lambda b: ours(b, *rest, **more)  # noqa: E731
    layout, sure = layout_of(function, base, rest, more)
    if layout is None and sure is False:
        if rests_on_order(function, base, y.type.shape):
            ordered(base.cell)
        copy = y.__copy__()
        copy.cell.packed = True
        return copy
    if y.cell is base.cell:
        if not base.usable:
            raise base.escaped()
        if sure and PUTS[function] is not read_only:
            like = packed(base.type.shape)
            if function(like, *rest, **more) is like:  # no view, which has a shape of its own
                return y
        y = y.renamed()
    y = y.viewing(base, read, PUTS[function](base, function, rest, more), layout, sure is not None)
    y.cell.view.assumed = sure is True and rests_on_order(function, base, y.type.shape)
    return y


def rests_on_order(function: Any, base: Any, shape: Dims) -> bool:
    """True if a reshape is a view, or a copy, because an argument is assumed to be in C order."""
    if function not in COPIES_IF_IT_MUST or base.cell.root.argument is None:
        return False
    known = base.cell.root.atom.type.shape
    only_ones = [n for n in shape if n != 1] == [n for n in base.type.shape if n != 1]
    return sum(n != 1 for n in known) > 1 and 0 not in known and not only_ones


def layout_of(function: Any, base: Any, rest: Any, more: Any) -> tuple[Ghost | None, bool | None]:
    """The layout of a view, if it is known, and whether it is one:

    True, False, or None for not known.
    """
    known = base.cell.ghost()
    if function == np.lib.stride_tricks.as_strided:
        in_order(base)
        return None, True
    if function not in COPIES_IF_IT_MUST:
        return (None if known is None else function(known, *rest, **more)), True
    if more.get("order", "C") != "C":
        return None, None
    target = rest[0] if rest and function == np.reshape else more.get("shape", -1)
    if known is None:
        plain = packed(base.type.shape).reshape(target).shape
        only_ones = [n for n in plain if n != 1] == [n for n in base.type.shape if n != 1]
        return None, True if function == np.reshape and only_ones else None
    if function == np.ravel and not known.flags.c_contiguous:
        return None, False
    try:
        return np.reshape(known, target, copy=False), True
    except ValueError:
        return None, False


def parts(function: Any, args: tuple[Any, ...], more: dict[str, Any], ys: Any) -> Any:
    """Several views of one array; what is written to one is put where its elements come from."""
    base = args[0] if args else next(v for v in more.values() if is_traced(v))
    if not has_memory(base) or (function == np.unstack and base.type.ndim == 1):
        return ys
    ours = gnp.FUNCTIONS[function]

    @cache
    def places() -> Any:  # as large as the array: made for those who write, who are few
        index = np.arange(base.type.size).reshape(base.type.shape)
        return function(
            *(index if x is base else x for x in args),
            **{k: index if v is base else v for k, v in more.items()},
        )

    def view(i: int) -> Any:
        def read(b: Any) -> Any:
            return ours(
                *(b if x is base else x for x in args),
                **{k: b if v is base else v for k, v in more.items()},
            )[i]

        def put(b: Any, value: Any) -> Any:
            flat = gnp.setitem(
                gnp.reshape(b, (-1,)), places()[i].reshape(-1), gnp.reshape(value, (-1,))
            )
            return gnp.reshape(flat, b.type.shape)

        y = ys[i].renamed() if ys[i].cell is base.cell else ys[i]
        return y.viewing(base, read, put, None, sure=True)

    return type(ys)([view(i) for i in range(len(ys))])


def has_memory(x: Any) -> bool:
    """True if a view of it would be one: not of a NumPy scalar, which never changes."""
    return is_traced(x) and x.cell.is_array


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


# ------------------------------------------------------------------- arrays that share memory


def repeats(x: Any) -> bool:
    """True if elements of an array may share memory: its axes do not nest."""
    end = x.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if stride < end:
            return bool(x.size)
        end += stride * (n - 1)
    return False


def may_be_writable(x: np.ndarray) -> bool:
    """True if NumPy would let the user make a read-only array writable: not a view of one, of a
    file that is mapped to be read, or of bytes.
    """
    if x.flags.owndata:
        return True
    view = x.view()
    try:
        view.flags.writeable = True
    except ValueError:
        return False
    return True


def is_view(x: Any) -> bool:
    return getattr(x, "base", None) is not None


def share(x: Any, y: Any) -> bool:
    """True if two arrays have an element in common, or that cannot be decided quickly."""
    if on_gpu(x) or on_gpu(y):
        return on_gpu(x) and on_gpu(y) and share_on_gpu(x, y)
    return isinstance(y, np.ndarray) and bool(np.may_share_memory(x, y, WORK))


def meet(x: Any, y: Any) -> bool:
    """The same of two traced values: by their layouts, if both are known."""
    if not is_traced(x) or x.cell.root is not y.cell.root or not y.cell.is_array:
        return False
    layouts = x.cell.ghost(), y.cell.ghost()
    return any(each is None for each in layouts) or share(*layouts)


def share_on_gpu(x: Any, y: Any) -> bool:
    """The same by the addresses of a device, as if they were those of a host."""
    return bool(x.size and y.size and np.may_share_memory(at_address(x), at_address(y), WORK))


def at_address(x: Any) -> np.ndarray:
    """An array that is never read, laid out in this process as another is on its device."""
    layout = {"shape": x.shape, "typestr": f"|V{x.itemsize}", "strides": x.strides}
    return np.asarray(Described({**layout, "data": (x.data.ptr, True), "version": 3}))


@final
class Described:
    """Something with an array interface alone."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface
