"""The methods of ufuncs: `reduce`, `accumulate`, `reduceat`, `outer` and `at`, for traced values.

Sums, products and extremes have operations of their own; any other associative function is taken in
steps of doubling distance, and the rest element after element, where there are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from functools import reduce as of_all
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, INEXACT
from ge2.base.errors import InPlaceError, NoRuleError, OutOfBoundsError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import axes as reductions
from ge2.numpy import elementwise as e
from ge2.numpy.access import getitem
from ge2.numpy.access.at import ASSOCIATIVE, INVERSE, LOGICAL, combined, segmented
from ge2.numpy.access.selecting import write
from ge2.numpy.axes import UNSET, finish, is_set, scans, wide
from ge2.numpy.composite import all_of, choose_by, concatenate, known_elements, stack, where
from ge2.numpy.creation import zeros
from ge2.numpy.elementwise import UFUNCS
from ge2.numpy.promotion import (
    Axes,
    all_axes,
    array,
    as_dtype,
    broadcast,
    cast,
    one_axis,
    reshape,
    resolve,
)  # fmt: skip
from ge2.numpy.shapes import moveaxis

Function = Callable[..., Any]
REDUCED = frozenset((np.add, np.multiply, np.maximum, np.minimum))
FEW = 64  # elements up to which a function that is not associative is applied one after another


# ------------------------------------------------------------------------------------------- reduce


def by_function(f: Function) -> Function:
    """`ufunc.reduce` of a ufunc whose reduction is a function of NumPy's."""

    def reduce(
        a: Any, axis: Axes = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
        initial: Any = UNSET, where: Any = True,
    ) -> Any:  # fmt: skip
        x = array(a) if dtype is None else cast(array(a), as_dtype(dtype))
        more = {"initial": initial} if initial is not UNSET else {}
        return f(x, own_axes(axis, x), out=out, keepdims=keepdims, where=where, **more)

    return reduce


def with_dtype(f: Function) -> Function:
    """The same, where the function takes the dtype itself."""

    def reduce(
        a: Any, axis: Axes = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
        initial: Any = UNSET, where: Any = True,
    ) -> Any:  # fmt: skip
        x = array(a)
        return f(x, own_axes(axis, x), dtype, out, keepdims, initial, where)

    return reduce


def of_truth(f: Function, ufunc: np.ufunc) -> Function:
    """`logical_and.reduce` and its like: a bool, whatever the dtype."""

    def reduce(
        a: Any, axis: Axes = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
        initial: Any = UNSET, where: Any = True,
    ) -> Any:  # fmt: skip
        only_bool(ufunc, dtype)
        x = array(a)
        y = f(x, own_axes(axis, x), out=out, keepdims=keepdims, where=where)
        return UFUNCS[ufunc](y, initial) if is_set(initial) else y

    return reduce


def only_bool(ufunc: np.ufunc, dtype: Any) -> None:
    if dtype is not None and as_dtype(dtype) != BOOL:
        raise TypeRuleError(
            f"{ufunc.__name__} gives bools, not {as_dtype(dtype)}", where=here(), fix="dtype=bool"
        )


def own_axes(axis: Axes, x: Any) -> Axes:
    """The axes; a scalar has the axes 0 and -1 too, as in NumPy."""
    return None if not type_of(x).ndim and axis in (0, -1) else axis


def of_any(ufunc: np.ufunc) -> Function:
    """`ufunc.reduce` of any other ufunc."""

    def reduce(
        a: Any, axis: Axes = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
        initial: Any = UNSET, where: Any = True,
    ) -> Any:  # fmt: skip
        no_out(f"{ufunc.__name__}.reduce", out)
        x = in_loop(ufunc, array(a), dtype)
        t = type_of(x)
        axes = all_axes(own_axes(axis, x), t.ndim, x)
        if len(axes) > 1 and ufunc not in ASSOCIATIVE:
            what = f"reduction operation '{ufunc.__name__}' is not reorderable"
            what += ", so at most one axis may be specified"
            raise ShapeError(what, where=here(), fix="one axis")
        x = only_where(ufunc, x, where, initial)
        rest = tuple([i for i in range(t.ndim) if i not in axes])
        line = reshape(moveaxis(x, axes, tuple(range(len(axes)))) if axes else x,
                       (math.prod([t.shape[i] for i in axes]), *[t.shape[i] for i in rest]))  # fmt: skip
        return finish(
            first_to_last(ufunc, with_initial(ufunc, line, initial)), t.shape, axes, keepdims
        )

    return reduce


def no_out(name: str, out: Any) -> None:
    if out is not None and out != (None,):
        raise InPlaceError(f"{name}: out= is not supported here", where=here(), fix="y = f(x)")


def in_loop(ufunc: np.ufunc, x: Any, dtype: Any) -> Any:
    """The array in the dtype in which the ufunc folds it, which its result has, too."""
    own = type_of(x).dtype if dtype is None else as_dtype(dtype)
    if ufunc in LOGICAL:
        only_bool(ufunc, dtype)
        return cast(x, BOOL)
    *inputs, made = resolve(ufunc, (own, own))
    made = made if dtype is None else own
    if made != inputs[0] or ufunc.nin != 2 or ufunc.nout != 1:
        what = f"{ufunc.__name__} of {own} gives {resolve(ufunc, (own, own))[-1]}, which it cannot fold"
        raise TypeRuleError(what, where=here(), fix="x.astype(bool) for comparisons")
    return cast(x, made)


def only_where(ufunc: np.ufunc, x: Any, where: Any, initial: Any) -> Any:
    """The array, with what makes no difference where the mask does not hold."""
    if where is True or where is UNSET:
        return x
    if ufunc.identity is None or ufunc not in ASSOCIATIVE:
        what = f"reduction operation '{ufunc.__name__}' does not have an identity"
        raise ShapeError(
            f"{what}, so a where mask is not supported", where=here(), fix="np.where(mask, x, 0)"
        )
    mask = broadcast(cast(array(where), BOOL), type_of(x).shape)
    return choose_by(mask, x, type_of(x).dtype.type(ufunc.identity))


def with_initial(ufunc: np.ufunc, line: Any, initial: Any) -> Any:
    """The elements with what NumPy begins with before them."""
    t = type_of(line)
    if not is_set(initial):
        if t.shape[0]:
            return line
        if ufunc.identity is None:
            what = f"zero-size array to reduction operation {ufunc.__name__} which has no identity: {t}"
            raise ShapeError(what, where=here(), fix="initial=")
        initial = ufunc.identity
    first = broadcast(cast(array(initial), t.dtype), (1, *t.shape[1:]))
    return concatenate([first, line])


def first_to_last(ufunc: np.ufunc, line: Any) -> Any:
    """The function of all rows, the first with the second, that with the third."""
    n = type_of(line).shape[0]
    if n == 1:
        return getitem(line, 0)
    if ufunc in INVERSE:
        return UFUNCS[ufunc](
            getitem(line, 0), first_to_last(INVERSE[ufunc], getitem(line, slice(1, None)))
        )
    if ufunc in (np.add, np.multiply):
        return (reductions.sum if ufunc == np.add else reductions.prod)(
            line, 0, type_of(line).dtype
        )
    if ufunc in ASSOCIATIVE:
        return in_halves(ufunc, line)
    return of_all(partial(stepped, ufunc), few(ufunc, line))


def in_halves(ufunc: np.ufunc, line: Any) -> Any:
    while (n := type_of(line).shape[0]) > 1:
        half, odd = n // 2, getitem(line, slice(n - n % 2, None))
        folded = stepped(ufunc, getitem(line, slice(half)), getitem(line, slice(half, 2 * half)))
        line = concatenate([folded, odd]) if n % 2 else folded
    return getitem(line, 0)


def stepped(ufunc: np.ufunc, a: Any, b: Any) -> Any:
    return cast(UFUNCS[ufunc](a, b), type_of(b).dtype)


def few(ufunc: np.ufunc, line: Any) -> list[Any]:
    """The rows, if there are few."""
    n = type_of(line).shape[0]
    if n > FEW:
        what = (
            f"{ufunc.__name__} is not associative: {n} elements in turn would be as many equations"
        )
        raise NoRuleError(what, where=here(), fix="ge2.lax.scan, or ge2.lax.fori_loop")
    return [getitem(line, i) for i in range(n)]


# --------------------------------------------------------------------------------------- accumulate


def running(ufunc: np.ufunc) -> Function:
    """`ufunc.accumulate` of any ufunc."""

    def accumulate(array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        no_out(f"{ufunc.__name__}.accumulate", out)
        x = in_loop(ufunc, as_line(array), dtype)
        at = one_axis(axis, type_of(x).ndim, x)
        return moveaxis(so_far(ufunc, moveaxis(x, at, 0)), 0, at)

    return accumulate


def as_line(x: Any) -> Any:
    x = array(x)
    if not type_of(x).ndim:
        raise ShapeError("cannot accumulate on a scalar", where=here(), fix="x[None]")
    return x


def so_far(ufunc: np.ufunc, line: Any) -> Any:
    n = type_of(line).shape[0]
    if n < 2:
        return line
    if ufunc in INVERSE:
        first, total = (
            getitem(line, slice(1)),
            scans.cumsum if ufunc == np.subtract else scans.cumprod,
        )
        rest = total(getitem(line, slice(1, None)), 0, type_of(line).dtype)
        return concatenate([first, UFUNCS[ufunc](first, rest)])
    if ufunc in ASSOCIATIVE:
        return segmented(ufunc, line)
    rows = few(ufunc, line)
    for i in range(1, n):
        rows[i] = stepped(ufunc, rows[i - 1], rows[i])
    return stack(rows)


def accumulating(f: Function) -> Function:
    """`ufunc.accumulate` of a ufunc whose running value is a function of ours."""

    def accumulate(array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return f(as_line(array), axis, dtype, out)

    return accumulate


# ------------------------------------------------------------------------------ reduceat, outer, at


def of_slices(ufunc: np.ufunc) -> Function:
    """`ufunc.reduceat`: of each slice between two indices."""

    def reduceat(
        array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None
    ) -> Any:
        name = f"{ufunc.__name__}.reduceat"
        no_out(name, out)
        x = as_line(array)
        if dtype is not None or ufunc not in (np.add, np.multiply):
            x = in_loop(ufunc, x, dtype)
        else:
            x = cast(x, wide(type_of(x).dtype))
        at = one_axis(axis, type_of(x).ndim, x)
        starts, n = known_elements(indices), type_of(x).shape[at]
        line = moveaxis(x, at, 0)
        if starts is None:
            return moveaxis(of_traced_slices(ufunc, line, indices), 0, at)
        starts = np.asarray(starts, np.intp)
        if starts.size and not 0 <= starts.min() <= starts.max() < n:
            raise OutOfBoundsError(
                f"index {starts.max()} out-of-bounds in {name} [0, {n})", where=here()
            )
        y = of_equal_slices(ufunc, line, starts)
        return moveaxis(of_known_slices(ufunc, line, starts) if y is None else y, 0, at)

    return reduceat


def of_equal_slices(ufunc: np.ufunc, line: Any, starts: np.ndarray) -> Any:
    """Of slices of one length along the first axis, but for the last: rows that are reduced. None for
    others, and for what is reduced by no operation.
    """
    n, *rest = type_of(line).shape
    steps = np.diff(starts) if len(starts) > 1 else n - starts
    if ufunc not in REDUCED or not len(starts) or steps[0] < 1 or (steps != steps[0]).any():
        return None
    reduce, first, length = method_of(ufunc, "reduce"), int(starts[0]), int(steps[0])
    count = len(starts) - int(n - starts[-1] != length)
    rows = getitem(line, slice(first, first + count * length))
    y = reduce(reshape(rows, (count, length, *rest)), axis=1)
    if count == len(starts):
        return y
    last = reduce(getitem(line, slice(int(starts[-1]), n)), axis=0)
    return concatenate([y, reshape(last, (1, *rest))])


def of_known_slices(ufunc: np.ufunc, line: Any, starts: np.ndarray) -> Any:
    """Of any slices along the first axis. Where each begins before the next, every element from the
    first slice on is taken as it lies; those that begin one, which are there already, go to a
    further place that is dropped.
    """
    n, m = type_of(line).shape[0], len(starts)
    ends, y = np.append(starts, n)[1:], getitem(line, starts)
    if (ends - starts <= 1).all():
        return y
    if (ends > starts).all():
        segment = np.repeat(np.arange(m), ends - starts)
        segment[starts - starts[0]] = m
        longer = concatenate([y, getitem(line, slice(0, 1))])
        rest = getitem(line, slice(int(starts[0]), n))
        return getitem(combined(ufunc, longer, segment, rest), slice(0, m))
    segment = np.repeat(np.arange(m), np.maximum(ends - starts - 1, 0))
    places = [np.arange(a + 1, b) for a, b in zip(starts, ends, strict=True)]
    return combined(ufunc, y, segment, getitem(line, np.concatenate(places)))


def of_traced_slices(ufunc: np.ufunc, line: Any, indices: Any) -> Any:
    """Of slices along the first axis whose indices are traced, and rise: of others it is an
    IndexError when the program runs, on the CPU, and no number elsewhere.

    An element is of the last slice that has begun; those that begin one are there already, and
    they and those before the first slice are put into a further one, which is dropped.
    """
    starts = array(indices)
    t, m = type_of(line), type_of(starts).size
    n = t.shape[0]
    if not m or not n:
        return getitem(line, starts)
    rises = all_of(e.less_equal(getitem(starts, slice(0, m - 1)), getitem(starts, slice(1, m))))
    inside = e.logical_and(rises, e.greater_equal(starts, 0))
    y = getitem(line, where(inside, starts, n))
    if t.dtype in INEXACT:
        y = where(rises, y, np.array(np.nan, t.dtype))
    begun = combined(np.add, zeros(n, np.int64), starts, 1)
    segment = e.subtract(scans.cumsum(begun), 1)
    apart = e.logical_or(e.greater(begun, 0), e.less(segment, 0))
    segment = where(apart, m, segment)
    longer = concatenate([y, getitem(line, slice(0, 1))])
    return getitem(combined(ufunc, longer, segment, line), slice(0, m))


def outer(ufunc: np.ufunc) -> Function:
    """`ufunc.outer`: of all pairs."""

    def of_all_pairs(A: Any, B: Any, /, **more: Any) -> Any:
        a, b = array(A), array(B)
        apart = reshape(a, (*type_of(a).shape, *(1,) * type_of(b).ndim))
        return UFUNCS[ufunc](apart, b, **more)

    return of_all_pairs


def at(ufunc: np.ufunc) -> Function:
    """`ufunc.at`: in place, indices that meet all counted."""

    def in_place(a: Any, indices: Any, *b: Any) -> None:
        if len(b) != ufunc.nin - 1:
            what = f"{ufunc.__name__}.at takes {ufunc.nin - 1} array of values; got {len(b)}"
            raise TypeRuleError(what, where=here(), fix="np.add.at(x, i, y)")
        write(a, combined(ufunc, a, indices, *b), f"{ufunc.__name__}.at")

    return in_place


# fmt: off
METHODS: dict[tuple[np.ufunc, str], Function] = {
    (np.add, "reduce"): with_dtype(reductions.sum),
    (np.multiply, "reduce"): with_dtype(reductions.prod),
    (np.maximum, "reduce"): by_function(reductions.max),
    (np.minimum, "reduce"): by_function(reductions.min),
    (np.logical_and, "reduce"): of_truth(reductions.all, np.logical_and),
    (np.logical_or, "reduce"): of_truth(reductions.any, np.logical_or),
    (np.add, "accumulate"): accumulating(scans.cumsum),
    (np.multiply, "accumulate"): accumulating(scans.cumprod),
    (np.maximum, "accumulate"): accumulating(scans.cummax),
    (np.minimum, "accumulate"): accumulating(scans.cummin),
}
OF_ANY = {"reduce": of_any, "accumulate": running, "reduceat": of_slices, "outer": outer, "at": at}
# fmt: on


def method_of(ufunc: np.ufunc, method: str) -> Function:
    """`ufunc.method` for traced values; NoRuleError where it means nothing in NumPy either."""
    found = METHODS.get((ufunc, method))
    if found is not None:
        return found
    two = ufunc.nin == 2 and ufunc.nout == 1
    if (
        ufunc.signature is not None
        or not (two or method == "at")
        or (method == "at" and ufunc.nout != 1)
    ):
        what = (
            f"{method} only supported for binary functions of one result; {ufunc.__name__} is none"
        )
        raise TypeRuleError(what, where=here(), fix="the function itself")
    return OF_ANY[method](ufunc)
