"""Arrays joined to one, and one taken to parts."""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy.options import CASTINGS
from ge2.numpy.promotion import (
    array,
    as_dtype,
    cast,
    check_casting,
    common_dtype,
    fresh,
    listed,
    one_axis,
)
from ge2.numpy.promotion import reshape as reshaped
from ge2.numpy.shapes import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    between,
    moveaxis,
    part,
    ravel,
    transpose,
)
from ge2.ops.shape import Concatenate


def concatenate(
    arrays: Any,
    /,
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    """Arrays one after another along an existing axis, as `numpy.concatenate`."""
    if out is not None:
        raise InputError(
            "concatenate: out= is not supported", where=here(), fix="y = np.concatenate(xs)"
        )
    xs = [array(x) for x in arrays]
    if not xs:
        raise ShapeError("need at least one array to concatenate", where=here())
    if axis is None:
        xs, axis = [ravel(x) for x in xs], 0
    types = [type_of(x) for x in xs]
    if types[0].ndim == 0:
        raise ShapeError(
            "zero-dimensional arrays cannot be concatenated", where=here(), fix="np.stack"
        )
    at = one_axis(axis, types[0].ndim, xs[0])
    others = {t.shape[:at] + t.shape[at + 1 :] for t in types}
    if len(others) > 1 or len({t.ndim for t in types}) > 1:
        what = f"all the input array dimensions except for the concatenation axis {at} must match exactly"
        what += f"; got {listed(xs)}"
        raise ShapeError(what, where=here(), fix="np.stack for a new axis, or x.reshape")
    return Concatenate(at)(*in_common(xs, dtype, casting))


concat = concatenate


def in_common(xs: Sequence[Any], dtype: Any, casting: str) -> list[Any]:
    """The arrays in the dtype that holds them all, or in the one asked for."""
    if casting not in CASTINGS:
        what = f"casting must be one of {', '.join(map(repr, CASTINGS))} (got {casting!r})"
        raise ArgumentError(what, where=here(), fix="casting='same_kind'")
    if dtype is None:
        common = common_dtype(xs)
        return [cast(x, common) for x in xs]
    target = as_dtype(dtype)
    for x in xs:
        check_casting(x, target, casting)
    return [cast(x, target) for x in xs]


def stack(
    arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Arrays of one shape along a new axis, as `numpy.stack`."""
    xs = [array(x) for x in arrays]
    if not xs:
        raise ShapeError("need at least one array to stack", where=here())
    shape = type_of(xs[0]).shape
    if builtins.any(type_of(x).shape != shape for x in xs):
        raise ShapeError(
            f"all input arrays must have the same shape; got {listed(xs)}",
            where=here(),
            fix="np.stack(np.broadcast_arrays(x, y))",
        )
    at = one_axis(axis, len(shape) + 1)
    return concatenate(
        [reshaped(x, (*shape[:at], 1, *shape[at:])) for x in xs],
        at,
        out,
        dtype=dtype,
        casting=casting,
    )


def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Rows below one another, as `numpy.vstack`."""
    return concatenate([atleast_2d(x) for x in tup], 0, dtype=dtype, casting=casting)


def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Columns beside one another, as `numpy.hstack`."""
    xs = [atleast_1d(x) for x in tup]
    return concatenate(
        xs, 0 if xs and type_of(xs[0]).ndim == 1 else 1, dtype=dtype, casting=casting
    )


def dstack(tup: Any) -> Any:
    """Along the third axis, as `numpy.dstack`."""
    return concatenate([atleast_3d(x) for x in tup], 2)


def column_stack(tup: Any) -> Any:
    """Rows as columns beside one another, as `numpy.column_stack`."""
    columns = [array(x) for x in tup]
    return concatenate([x if type_of(x).ndim > 1 else transpose(atleast_2d(x)) for x in columns], 1)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` after `arr`, both flattened if no axis is given, as `numpy.append`."""
    return concatenate((arr, values), axis)


def block(arrays: Any) -> Any:
    """A matrix of blocks from nested lists, the innermost joined along
    the last axis, as `numpy.block`.
    """
    depth, ndim = _nesting(arrays), _most_axes(arrays)
    ndim = builtins.max(depth, ndim)

    def join(item: Any, level: int) -> Any:
        if not isinstance(item, list):
            x = array(item)
            return reshaped(x, (1,) * (ndim - type_of(x).ndim) + type_of(x).shape)
        return concatenate([join(i, level - 1) for i in item], axis=-level)

    return fresh(join(arrays, depth)) if depth == 0 else join(arrays, depth)


def _nesting(item: Any) -> int:
    return 1 + builtins.max(map(_nesting, item)) if isinstance(item, list) else 0


def _most_axes(item: Any) -> int:
    return (
        builtins.max(map(_most_axes, item)) if isinstance(item, list) else type_of(array(item)).ndim
    )


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Parts along an axis, as many as asked, or between the given indices, as
    `numpy.array_split`.
    """
    x = array(ary)
    axis = one_axis(axis, type_of(x).ndim, x)
    size = type_of(x).shape[axis]
    if is_number(indices_or_sections):
        sections = operator.index(indices_or_sections)
        if sections <= 0:
            raise ShapeError("number sections must be larger than 0.", where=here())
        each, extra = builtins.divmod(size, sections)
        cuts = [i * each + builtins.min(i, extra) for i in range(sections + 1)]
    else:
        cuts = [0, *map(operator.index, indices_or_sections), size]
    return [part(x, axis, *between(a, b, size)) for a, b in itertools.pairwise(cuts)]


def is_number(x: Any) -> bool:
    return isinstance(x, int | np.integer) or getattr(x, "shape", None) == ()


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Equal parts along an axis, or the parts between the given indices, as `numpy.split`."""
    x = array(ary)
    size = type_of(x).shape[one_axis(axis, type_of(x).ndim, x)]
    if is_number(indices_or_sections) and size % operator.index(indices_or_sections):
        what = "array split does not result in an equal division"
        what += f": axis {axis} of {type_of(x)} into {indices_or_sections}"
        raise ShapeError(what, where=here(), fix="np.array_split")
    return array_split(x, indices_or_sections, axis)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 1, or axis 0 of a row."""
    return split(ary, indices_or_sections, 1 if type_of(array(ary)).ndim > 1 else 0)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 0."""
    return split(ary, indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 2."""
    return split(ary, indices_or_sections, 2)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts along an axis, without it, as `numpy.unstack`."""
    x = moveaxis(x, axis, 0)
    n, *rest = type_of(x).shape
    return tuple([reshaped(part(x, 0, i, i + 1), tuple(rest)) for i in range(n)])
