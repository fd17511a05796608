"""Products of arrays: one operation, `dot_general`, or an elementwise product
where nothing is summed.

`precision` says how float32 may be multiplied: None and "highest" are IEEE, "tf32" and "bf16" allow
a target to use such units, and "fp8" lets arrays that are cast from fp8 be multiplied by units of that,
which keep some 14 bits of a sum. Half types are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.ir import Dims, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.axes import sum as total
from ge2.numpy.composite import concatenate, no_out
from ge2.numpy.elementwise import UFUNCS
from ge2.numpy.promotion import (
    array,
    as_dtype,
    broadcast,
    cast,
    cast_first,
    check_casting,
    checked_order,
    common_dtype,
    common_shape,
    fresh,
    integers_in,
    kind_of,
    one_axis,
    options,
    reshape,
    resolve,
)
from ge2.numpy.shapes import diagonal, moveaxis, ordered, part, ravel
from ge2.ops.dot import DotGeneral

Letters = tuple[frozenset[str], ...]  # of each operand


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: str | None = None,
    preferred_element_type: Any = None,
) -> Any:
    """The product over `((lhs contracting, rhs contracting), (lhs batch, rhs
    batch))`, the numbers of axes.

    The result has the batch axes, the free axes of `lhs`, then those of `rhs`.
    `preferred_element_type` is the dtype of the result: float32 to keep what half types were
    accumulated in. Arguments as in `jax.lax`.
    """
    a, b = array(lhs), array(rhs)
    dtype = common_dtype((a, b))
    (lc, rc), (lb, rb) = dimension_numbers
    out = None if preferred_element_type is None else as_dtype(preferred_element_type)
    pairs = (places(a, lc), places(b, rc)), (places(a, lb), places(b, rb))
    return DotGeneral(*pairs, precision, None if out == dtype else out)(
        cast(a, dtype), cast(b, dtype)
    )


def places(x: Any, axes: Sequence[int]) -> Dims:
    return tuple([one_axis(i, type_of(x).ndim, x) for i in axes])


def contract(
    a: Any,
    b: Any,
    axes: tuple[Dims, Dims],
    beside: tuple[Dims, Dims] = ((), ()),
    precision: str | None = None,
) -> Any:
    """`DotGeneral` on arrays of one dtype, its sizes checked with an error in the user's words."""
    left, right = ([type_of(x).shape[i] for i in own] for x, own in ((a, axes[0]), (b, axes[1])))
    if left != right:
        what = f"shapes {type_of(a)} and {type_of(b)} not aligned"
        what += f": {left} along axes {axes[0]}, {right} along axes {axes[1]}"
        raise ShapeError(
            what,
            where=here(),
            fix="x @ y.T or x.T @ y: the last axis of x meets the last but one of y",
        )
    return DotGeneral(axes, beside, precision)(a, b)


def in_one_dtype(ufunc: np.ufunc | None, a: Any, b: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Both as arrays of the dtype in which a product of them is made."""
    a, b = array(a), array(b)
    if dtype is not None and ufunc is None:
        common = as_dtype(dtype)
    elif ufunc is None:
        common = common_dtype((a, b))
    else:
        common = resolve(ufunc, (kind_of(type_of(a)), kind_of(type_of(b))), dtype)[0]
    return cast(a, common), cast(b, common)


def no_scalars(name: str, a: Any, b: Any, least: tuple[int, int]) -> None:
    for i, (x, n) in enumerate(zip((a, b), least, strict=True)):
        if type_of(x).ndim < n:
            what = f"{name}: Input operand {i} does not have enough dimensions"
            what += f" (has {type_of(x).ndim}, needs {n}): {type_of(x)}"
            raise ShapeError(
                what,
                where=here(),
                fix="x * y for a product with a number" if not type_of(x).ndim else "x[None]",
            )


# ---------------------------------------------------------------------------------- matrix products


def matmul(
    x1: Any, x2: Any, /, out: Any = None, *, precision: str | None = None, **more: Any
) -> Any:
    """The matrix product, over the last two axes, as `numpy.matmul`; axes before them broadcast.

    >>> matmul([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    x1, x2 = cast_first(np.matmul, (x1, x2), more)
    a, b = in_one_dtype(np.matmul, x1, x2, options(np.matmul, (x1, x2), True, more))
    no_scalars("matmul", a, b, (1, 1))
    rank_a, rank_b = type_of(a).ndim, type_of(b).ndim
    if rank_a <= 2 or rank_b <= 2:
        inner = max(rank_b - 2, 0)
        y = contract(a, b, ((rank_a - 1,), (inner,)), precision=precision)
        if rank_a == 2 and rank_b > 2:  # the rows of a come first; they belong before the last axis
            return moveaxis(y, 0, -2)
        return y
    return _stacks(a, b, precision)


def _stacks(a: Any, b: Any, precision: str | None) -> Any:
    """Products of matrices side by side."""
    own, other = type_of(a).shape, type_of(b).shape
    stacks = common_stack("matmul", a, b, own[:-2], other[:-2])
    n = len(stacks)
    a, b = broadcast(a, (*stacks, *own[-2:])), broadcast(b, (*stacks, *other[-2:]))
    axes = tuple(range(n))
    return contract(a, b, ((n + 1,), (n,)), (axes, axes), precision)


def common_stack(name: str, a: Any, b: Any, own: Dims, other: Dims) -> Dims:
    try:
        return np.broadcast_shapes(own, other)
    except ValueError:
        what = f"{name}: the stacks of {type_of(a)} and {type_of(b)} do not broadcast"
        raise ShapeError(what, where=here(), fix="reshape, or x[None]") from None


def conjugated(x: Any) -> Any:
    return e.conjugate(x) if type_of(x).dtype in COMPLEX else x


def vecdot(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    axis: int = -1,
    precision: str | None = None,
    **more: Any,
) -> Any:
    """The products of vectors along an axis, `x1` conjugated, as `numpy.vecdot`."""
    x1, x2 = cast_first(np.vecdot, (x1, x2), more)
    a, b = in_one_dtype(np.vecdot, x1, x2, options(np.vecdot, (x1, x2), True, more))
    no_scalars("vecdot", a, b, (1, 1))
    a, b = conjugated(moveaxis(a, axis, -1)), moveaxis(b, axis, -1)
    if type_of(a).shape[-1] != type_of(b).shape[-1]:
        return contract(a, b, ((type_of(a).ndim - 1,), (type_of(b).ndim - 1,)))
    shape = common_shape("vecdot", (a, b))
    axes, last = tuple(range(len(shape) - 1)), len(shape) - 1
    return contract(
        broadcast(a, shape), broadcast(b, shape), ((last,), (last,)), (axes, axes), precision
    )


def matvec(
    x1: Any, x2: Any, /, out: Any = None, *, precision: str | None = None, **more: Any
) -> Any:
    """Matrices times vectors, axes before them broadcast, as `numpy.matvec`."""
    x1, x2 = cast_first(np.matmul, (x1, x2), more)
    a, b = in_one_dtype(np.matmul, x1, x2, options(np.matmul, (x1, x2), True, more))
    no_scalars("matvec", a, b, (2, 1))
    y = matmul(a, reshape(b, (*type_of(b).shape, 1)), precision=precision)
    return reshape(y, type_of(y).shape[:-1])


def vecmat(
    x1: Any, x2: Any, /, out: Any = None, *, precision: str | None = None, **more: Any
) -> Any:
    """Vectors, conjugated, times matrices, axes before them broadcast, as `numpy.vecmat`."""
    x1, x2 = cast_first(np.matmul, (x1, x2), more)
    a, b = in_one_dtype(np.matmul, x1, x2, options(np.matmul, (x1, x2), True, more))
    no_scalars("vecmat", a, b, (1, 2))
    a = conjugated(a)
    shape = type_of(a).shape
    y = matmul(reshape(a, (*shape[:-1], 1, shape[-1])), b, precision=precision)
    return reshape(y, (*type_of(y).shape[:-2], type_of(y).shape[-1]))


UFUNCS[np.matmul], UFUNCS[np.vecdot] = matmul, vecdot
if hasattr(np, "matvec"):  # since NumPy 2.2
    UFUNCS[np.matvec], UFUNCS[np.vecmat] = matvec, vecmat


def dot(a: Any, b: Any, out: Any = None, *, precision: str | None = None) -> Any:
    """Over the last axis of `a` and the last but one of `b`; a number
    multiplies, as `numpy.dot`.
    """
    no_out("dot", out)
    a, b = in_one_dtype(None, a, b)
    if not type_of(a).ndim or not type_of(b).ndim:
        return e.multiply(a, b)
    return contract(
        a, b, ((type_of(a).ndim - 1,), (max(type_of(b).ndim - 2, 0),)), precision=precision
    )


def vdot(a: Any, b: Any, /, *, precision: str | None = None) -> Any:
    """The product of the flattened arrays, `a` conjugated, as `numpy.vdot`."""
    a, b = in_one_dtype(None, a, b)
    return contract(
        conjugated(ravel(a)),
        ravel(b),
        ((0,), (0,)),
        precision=precision,
    )


def inner(a: Any, b: Any, /, *, precision: str | None = None) -> Any:
    """Over the last axes of both, as `numpy.inner`."""
    a, b = in_one_dtype(None, a, b)
    if not type_of(a).ndim or not type_of(b).ndim:
        return e.multiply(a, b)
    return contract(a, b, ((type_of(a).ndim - 1,), (type_of(b).ndim - 1,)), precision=precision)


def outer(a: Any, b: Any, out: Any = None) -> Any:
    """The product of every element of `a` with every one of `b`, both
    flattened, as `numpy.outer`.
    """
    no_out("outer", out)
    a, b = ravel(a), ravel(b)
    return e.multiply(reshape(a, (type_of(a).size, 1)), b)


def tensordot(a: Any, b: Any, axes: Any = 2, *, precision: str | None = None) -> Any:
    """Over the last axes of `a` and the first of `b`, or over given pairs of
    axes, as `numpy.tensordot`.
    """
    a, b = in_one_dtype(None, a, b)
    rank_a, rank_b = type_of(a).ndim, type_of(b).ndim
    if isinstance(axes, tuple | list) or np.ndim(axes):
        of_a, of_b = map(integers_in, axes)
    else:
        n = operator.index(axes)
        of_a, of_b = list(range(rank_a - n, rank_a)), list(range(n))
    if len(of_a) != len(of_b):
        raise ShapeError(
            f"shape-mismatch for sum: axes {of_a} and {of_b}",
            where=here(),
            fix="one axis of b for each of a",
        )
    pairs = (
        tuple([one_axis(i, rank_a, a) for i in of_a]),
        tuple([one_axis(i, rank_b, b) for i in of_b]),
    )
    if not of_a:
        return e.multiply(reshape(a, type_of(a).shape + (1,) * rank_b), b)
    return contract(a, b, pairs, precision=precision)


def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    """The sum of a diagonal, as `numpy.trace`."""
    return total(diagonal(a, offset, axis1, axis2), -1, dtype, out)


def kron(a: Any, b: Any) -> Any:
    """Blocks of `b`, one scaled by each element of `a`, as `numpy.kron`."""
    a, b = array(a), array(b)
    ndim = max(type_of(a).ndim, type_of(b).ndim)
    own, other = ((1,) * (ndim - type_of(x).ndim) + type_of(x).shape for x in (a, b))
    apart = e.multiply(
        reshape(a, tuple([k for n in own for k in (n, 1)])),
        reshape(b, tuple([k for n in other for k in (1, n)])),
    )
    return reshape(apart, tuple([n * m for n, m in zip(own, other, strict=True)]))


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """The vector product along an axis, as `numpy.cross`; vectors of two elements have a third of 0,
    and two of them a number. Its elements are computed apart and stored where they go: to roll
    vectors is to copy them.
    """
    axisa, axisb, axisc = (axis,) * 3 if axis is not None else (axisa, axisb, axisc)
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    sizes = [type_of(x).shape[-1] for x in (a, b)]
    for x, n in zip((a, b), sizes, strict=True):
        if n not in (2, 3):
            what = f"cross takes vectors of 3 elements, or 2; got {type_of(x)}"
            raise ShapeError(what, where=here(), fix="x[..., :3]")
    a0, a1, *a2 = [part(a, type_of(a).ndim - 1, i, i + 1) for i in range(sizes[0])]
    b0, b1, *b2 = [part(b, type_of(b).ndim - 1, i, i + 1) for i in range(sizes[1])]
    across = e.subtract(e.multiply(a0, b1), e.multiply(a1, b0))
    if sizes == [2, 2]:
        return reshape(across, type_of(across).shape[:-1])
    y = concatenate([*first_two_of_cross(a0, a1, a2, b0, b1, b2), across], -1)
    return moveaxis(y, -1, axisc)


def first_two_of_cross(a0: Any, a1: Any, a2: Any, b0: Any, b1: Any, b2: Any) -> list[Any]:
    """Returns the first two components of the cross product a x b; `a2`, `b2` hold the third component
    of a vector of three, and are empty for a vector of two.
    """
    if not a2:
        return [e.multiply(a1, b2[0]), e.negative(e.multiply(a0, b2[0]))]
    if not b2:
        return [e.negative(e.multiply(a2[0], b1)), e.multiply(a2[0], b0)]
    pairs = (a1, b2[0], a2[0], b1), (a2[0], b0, a0, b2[0])
    return [e.subtract(e.multiply(p, q), e.multiply(r, s)) for p, q, r, s in pairs]


# ------------------------------------------------------------------------------------------- einsum


def einsum(*operands: Any, out: Any = None, dtype: Any = None, order: str = "K", casting: str = "safe",
           optimize: Any = False, precision: str | None = None) -> Any:  # fmt: skip
    """Products summed over letters, as `numpy.einsum`: any number of operands, two at a time in the
    order that multiplies and stores least; from left to right if that is no worse.

    >>> einsum("ij,j->i", np.eye(2), np.array([3.0, 4.0]))
    array([3., 4.])
    """
    no_out("einsum", out)
    checked_order(order)
    inputs, result, xs = spelled(operands)
    common = as_dtype(dtype) if dtype is not None else common_dtype(xs)
    for x in xs:
        check_casting(x, common, casting)
    xs = [cast(x, common) for x in xs]
    rest = [set(result).union(*inputs[:i], *inputs[i + 1 :]) for i in range(len(xs))]
    left = [single(*each) for each in zip(inputs, xs, rest, strict=True)]
    for i, j in order_of(left, set(result)):
        (b, of_b), (a, of_a) = left.pop(j), left[i]
        later = set(result).union(*(names for k, (_, names) in enumerate(left) if k != i))
        left[i] = pair(of_a, a, of_b, b, later, precision)
    y, names = single(left[0][1], left[0][0], set(result))
    y = ordered(y, tuple([names.index(n) for n in result]))
    return fresh(y) if y is xs[0] else y


def spelled(operands: Sequence[Any]) -> tuple[list[str], str, list[Any]]:
    """The letters of each input and of the result, dots written out, and the inputs as arrays."""
    if isinstance(operands[0], str):
        text, xs = operands[0].replace(" ", ""), [array(x) for x in operands[1:]]
    else:
        text, xs = _from_lists(operands)
    terms, arrow, result = text.partition("->")
    inputs = terms.split(",")
    if len(inputs) != len(xs):
        raise ArgumentError(
            f"einsum: {len(inputs)} terms in {text!r} but {len(xs)} operands", where=here()
        )
    dots = max(
        [type_of(x).ndim - len(t) + 3 for t, x in zip(inputs, xs, strict=True) if "..." in t],
        default=0,
    )
    letters = "".join(chr(0x100 + i) for i in range(dots))
    for t, x in zip(inputs, xs, strict=True):
        named = len(t.replace("...", ""))
        if named > type_of(x).ndim or ("..." not in t and named != type_of(x).ndim):
            what = f"einsum: {t!r} names {named} axes, but its operand is {type_of(x)}"
            raise ShapeError(what, where=here(), fix="a letter for each axis, or '...'")
    full = [
        t.replace(
            "...", letters[len(letters) - (type_of(x).ndim - len(t) + 3) :] if "..." in t else ""
        )
        for t, x in zip(inputs, xs, strict=True)
    ]
    if not arrow:
        seen = "".join(terms.replace("...", "").replace(",", ""))
        result = "..." * ("..." in terms) + "".join(
            sorted(n for n in set(seen) if seen.count(n) == 1)
        )
    result = result.replace("...", letters)
    if len(set(result)) < len(result) or not set(result) <= set("".join(full)):
        raise ArgumentError(
            f"einsum: the result of {text!r} names an axis twice, or one that no operand has",
            where=here(),
        )
    if dots and not set(letters) <= set(result):
        raise ShapeError(
            f"einsum: output has '...' missing in {text!r}, whose operands have more axes than letters",
            where=here(),
        )
    return full, result, xs


def _word(sub: Sequence[Any]) -> str:
    return "".join(
        "..." if i is Ellipsis else chr(0x61 + i) if i < 26 else chr(0x41 + i - 26) for i in sub
    )


def _from_lists(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """The form `einsum(a, [0, 1], b, [1, 2], [0, 2])` as text."""
    terms = [_word(sub) for sub in operands[1::2]]
    xs = [array(x) for x in operands[: len(operands) // 2 * 2 : 2]]
    return ",".join(terms) + (f"->{_word(operands[-1])}" if len(operands) % 2 else ""), xs


def single(names: str, x: Any, wanted: set[str]) -> tuple[Any, str]:
    """Letters that stand twice become diagonals; those that nobody wants are summed over."""
    for n in dict.fromkeys(names):
        while names.count(n) > 1:
            i, j = names.index(n), names.rindex(n)
            if type_of(x).shape[i] != type_of(x).shape[j]:
                raise ShapeError(
                    f"einsum: the axes {n!r} of {type_of(x)} differ in size", where=here()
                )
            x = diagonal(x, 0, i, j)
            names = names[:i] + names[i + 1 : j] + names[j + 1 :] + n
    gone = tuple([i for i, n in enumerate(names) if n not in wanted])
    if gone:
        x = total(x, gone, type_of(x).dtype)
    return x, "".join(n for n in names if n in wanted)


def order_of(operands: Sequence[tuple[Any, str]], result: set[str]) -> Sequence[tuple[int, int]]:
    """The two of those operands that are left to multiply next, until one is: of up to four the
    cheapest order, of more the cheapest pair first. The product stands where the first of them did.
    """
    sizes: dict[str, int] = {}
    for x, names in operands:
        for n, size in zip(names, type_of(x).shape, strict=True):
            sizes[n] = max(size, sizes.get(n, 1))

    def multiplied(left: Letters, i: int, j: int) -> tuple[int, Letters]:
        """The cost of a pair, and what is left after it."""
        others = [names for k, names in enumerate(left) if k not in (i, j)]
        both = left[i] | left[j]
        kept = both & frozenset(result).union(*others)
        others.insert(i, kept)
        return sum(math.prod(sizes[n] for n in some) for some in (both, kept)), tuple(others)

    def search(left: Letters) -> tuple[int, tuple[tuple[int, int], ...]]:
        pairs = [*combinations(range(len(left)), 2)]
        if len(left) > 4:
            pairs = [min(pairs, key=lambda p: multiplied(left, *p)[0])]
        found = []
        for p in pairs:
            cost, after = multiplied(left, *p)
            more, following = search(after)
            found.append((cost + more, (p, *following)))
        return min(found, key=lambda each: each[0], default=(0, ()))

    return search(tuple(frozenset(names) for _, names in operands))[1]


def pair(
    of_a: str, a: Any, of_b: str, b: Any, later: set[str], precision: str | None
) -> tuple[Any, str]:
    """The product of two operands: letters of both are kept if needed later, else summed over."""
    a, of_a = without_ones(a, of_a, b, of_b)
    b, of_b = without_ones(b, of_b, a, of_a)
    shared = [n for n in of_a if n in of_b]
    summed, kept = [n for n in shared if n not in later], [n for n in shared if n in later]
    sizes = dict(zip(of_a, type_of(a).shape, strict=True))
    for n, size in zip(of_b, type_of(b).shape, strict=True):
        if sizes.setdefault(n, size) != size:
            what = (
                f"einsum: axis {n!r} has size {sizes[n]} in {type_of(a)} but {size} in {type_of(b)}"
            )
            raise ShapeError(what, where=here(), fix="letters of equal size")
    if not summed:
        return elementwise_pair(of_a, a, of_b, b)
    over, beside = ((find(of_a, some), find(of_b, some)) for some in (summed, kept))
    y = DotGeneral(over, beside, precision)(a, b)
    free = [n for n in (*of_a, *of_b) if n not in shared]
    return y, "".join((*kept, *free))


def find(names: str, some: Sequence[str]) -> Dims:
    return tuple([names.index(n) for n in some])


def without_ones(a: Any, of_a: str, b: Any, of_b: str) -> tuple[Any, str]:
    """Axes of size 1 that broadcast against the other operand are left out."""
    sizes = dict(zip(of_b, type_of(b).shape, strict=True))
    gone = [i for i, n in enumerate(of_a) if type_of(a).shape[i] == 1 and sizes.get(n, 1) != 1]
    shape = tuple([n for i, n in enumerate(type_of(a).shape) if i not in gone])
    return reshape(a, shape), "".join(n for i, n in enumerate(of_a) if i not in gone)


def elementwise_pair(of_a: str, a: Any, of_b: str, b: Any) -> tuple[Any, str]:
    """A product in which nothing is summed."""
    names = of_a + "".join(n for n in of_b if n not in of_a)
    shape_b = dict(zip(of_b, type_of(b).shape, strict=True))
    b = ordered(b, tuple([of_b.index(n) for n in names if n in of_b]))
    b = reshape(b, tuple([shape_b.get(n, 1) for n in names]))
    return e.multiply(reshape(a, type_of(a).shape + (1,) * (len(names) - len(of_a))), b), names
