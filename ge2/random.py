"""Random numbers as pure functions of a key, the same under `jit`, `vmap` and op by op.

    k = key(0)
    k, sub = split(k)
    x = normal(sub, (3,))

A key is two words, uint32[2], and is used once: the same key gives the same numbers. The bits are
those of the counter-based generator Philox4x32-10 (Salmon et al., SC 2011). Floats are float64
unless another dtype is asked for, as in NumPy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from ge2.base.arrays import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    HALF,
    INT64,
    INTEGERS,
    NUMBERS,
)
from ge2.base.errors import InputError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.ir import Dims, is_traced, type_of
from ge2.numpy.promotion import array, as_dtype, broadcast, cast, common_shape, one_axis
from ge2.ops.elementwise import (
    ADD,
    AND,
    COS,
    DIV,
    GT,
    LOG,
    LT,
    MAX,
    MIN,
    MUL,
    SHIFT_RIGHT,
    SIN,
    SQRT,
    SUB,
    WHERE,
)
from ge2.ops.index import Gather
from ge2.ops.random import SPLIT, RandomBits, RandomFold
from ge2.ops.reduce import ArgMax, CumSum
from ge2.ops.shape import Concatenate, Iota, Reshape, Slice, Transpose
from ge2.ops.sort import ArgSort, SearchSorted

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "randint",
    "split",
    "uniform",
]
Shape = int | Sequence[int]
UINT8, UINT16, UINT32, UINT64 = (np.dtype(f"u{n}") for n in (1, 2, 4, 8))
LOW, HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
MANTISSA = {
    FLOAT64: (UINT64, 53),
    FLOAT32: (UINT32, 24),
    FLOAT16: (UINT16, 11),
    BFLOAT16: (UINT16, 8),
}


# --------------------------------------------------------------------------------------------- keys


def key(seed: Any) -> Any:
    """A key, uint32[2], from an integer; its low 64 bits count.

    >>> key(7)
    array([7, 0], dtype=uint32)
    """
    if isinstance(seed, np.ndarray) and seed.shape == ():
        seed = seed[()]
    if issubclass(type(seed), int | np.integer):
        return np.array([int(seed) & 0xFFFFFFFF, int(seed) >> 32 & 0xFFFFFFFF], UINT32)
    if not hasattr(seed, "dtype") or type_of(seed).shape or type_of(seed).dtype not in INTEGERS:
        what = f"a seed is an integer; got {_described(seed)}"
        raise InputError(what, where=here(), fix="ge2.random.key(0)")
    wide = cast(seed, UINT64)
    words = (AND(wide, LOW), SHIFT_RIGHT(wide, HALF_WORD))
    return Concatenate(0)(*(Reshape((1,))(cast(w, UINT32)) for w in words))


def split(key: Any, num: Shape = 2) -> Any:
    """`num` new keys, uint32[num, 2] (or of the shape `num`), independent of
    each other and of `key`.

    >>> split(key(0), 3).shape
    (3, 2)
    """
    shape = _shape(num)
    count = Iota((math.prod(shape),), 0, UINT32)()
    return RandomFold(SPLIT)(_key(key), Reshape(shape)(count))


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, such as the number of a step; its low 32 bits count.

    An array of integers gives an array of keys, uint32[..., 2].

    >>> bool(np.all(fold_in(key(0), 1) == fold_in(key(0), 2)))
    False
    """
    if issubclass(type(data), int):
        data = np.uint32(data & 0xFFFFFFFF)
    data = array(data)
    if type_of(data).dtype not in INTEGERS:
        what = f"fold_in takes an integer; got {type_of(data)}"
        raise InputError(what, where=here(), fix="data.astype(np.uint32)")
    return RandomFold()(_key(key), cast(data, UINT32))


def _key(key: Any) -> Any:
    """The key, or an error that says how to make one."""
    if isinstance(key, (*NUMBERS, np.integer)) or (is_traced(key) and type_of(key).weak):
        fix = f"ge2.random.key({key!r})" if isinstance(key, int) else "ge2.random.key(seed)"
        raise InputError(f"{_described(key)} is a number, not a key", where=here(), fix=fix)
    if not hasattr(key, "dtype"):
        fix = "ge2.random.key(seed), split as the numbers are needed"
        raise InputError(
            f"{_described(key)} is not a key: a key is uint32[2]", where=here(), fix=fix
        )
    t = type_of(key)
    if t.dtype == UINT32 and t.ndim > 1 and t.shape[-1] == 2:
        fix = "keys[i], or ge2.vmap over the keys"
        raise InputError(
            f"many keys were given, not one: a key is u32[2]; got {t}", where=here(), fix=fix
        )
    if t.dtype != UINT32 or t.shape != (2,):
        raise InputError(
            f"not a key: a key is u32[2]; got {t}", where=here(), fix="ge2.random.key(seed)"
        )
    return key


def _described(x: Any) -> str:
    if isinstance(x, NUMBERS):
        return repr(x)
    return (
        str(type_of(x)) if hasattr(x, "dtype") else f"{type(x).__module__}.{type(x).__qualname__}"
    )


def _shape(shape: Shape) -> Dims:
    try:
        found = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        raise InputError(f"a shape is a tuple of integers; got {shape!r}", where=here()) from None
    if min(found, default=0) < 0:
        what = f"a shape has no negative sizes; got {found}"
        raise ShapeError(what, where=here(), fix=f"{tuple([max(n, 0) for n in found])}")
    return found


def _operand(name: str, x: Any, dtype: np.dtype, shape: Dims) -> Any:
    """A parameter of a distribution in that dtype: a scalar, or repeated to the shape."""
    x = cast(array(x), dtype)
    own = type_of(x).shape
    if common_shape(name, [x, np.broadcast_to(dtype.type(0), shape)]) != shape:
        what = f"{name}: a parameter of shape {own} does not fit into shape {shape}"
        raise ShapeError(what, where=here(), fix="shape=")
    return broadcast(x, shape) if own else x


def _float(name: str, dtype: Any) -> np.dtype:
    found = as_dtype(dtype)
    if found not in MANTISSA:
        fix = "float64, float32, float16 or bfloat16, then astype"
        raise InputError(f"{name} makes floats; got dtype {found}", where=here(), fix=fix)
    return found


# ------------------------------------------------------------------------------------ distributions


def bits(key: Any, shape: Shape = (), dtype: Any = np.uint32) -> Any:
    """Uniform unsigned integers of all bits: uint8, uint16, uint32 or uint64.

    >>> bits(key(0), (2,))
    array([...], dtype=uint32)
    """
    found = as_dtype(dtype)
    if found not in (UINT8, UINT16, UINT32, UINT64):
        what = f"bits are unsigned integers; got dtype {found}"
        raise InputError(what, where=here(), fix="ge2.random.randint")
    return RandomBits(_shape(shape), found)(_key(key))


def uniform(
    key: Any, shape: Shape = (), dtype: Any = np.float64, minval: Any = 0.0, maxval: Any = 1.0
) -> Any:
    """Floats in [minval, maxval): equally spaced in [0, 1), with all bits of
    the mantissa, then scaled.

    `minval` and `maxval` broadcast to `shape`.

    >>> x = uniform(key(0), (1000,), np.float32, -1.0, 1.0)
    >>> bool(np.all((x >= -1) & (x < 1)))
    True
    """
    dtype, shape = _float("uniform", dtype), _shape(shape)
    u = _unit(bits(key, shape, MANTISSA[dtype][0]), dtype)
    if type(minval) in NUMBERS and type(maxval) in NUMBERS and (minval, maxval) == (0, 1):
        return u
    low, high = (_operand("uniform", v, dtype, shape) for v in (minval, maxval))
    x = ADD(MUL(u, SUB(high, low)), low)
    return WHERE(LT(x, high), x, low)  # rounding may reach the end, which is excluded


def _unit(word: Any, dtype: np.dtype) -> Any:
    """Words as floats k / 2**m in [0, 1), m the bits of the mantissa."""
    unsigned, mantissa = MANTISSA[dtype]
    top = SHIFT_RIGHT(word, unsigned.type(8 * unsigned.itemsize - mantissa))
    return MUL(cast(top, dtype), dtype.type(2.0**-mantissa))


def normal(key: Any, shape: Shape = (), dtype: Any = np.float64) -> Any:
    """Floats of mean 0 and variance 1, by the transform of Box and Muller (1958).

    The radius is made of all bits of a word, so float32 reaches 6.7 and float64 9.5. Half types are
    made in float32 and rounded.

    >>> bool(abs(normal(key(0), (10000,)).mean()) < 0.05)
    True
    """
    dtype, shape = _float("normal", dtype), _shape(shape)
    wide = FLOAT32 if dtype in HALF else dtype
    unsigned = MANTISSA[wide][0]
    count = math.prod(shape)
    half = -(-count // 2)
    words = bits(key, (2, half), unsigned)
    first, second = (Reshape((half,))(Slice((i, 0), (i + 1, half), (1, 1))(words)) for i in (0, 1))
    scale = 2.0 ** (-8 * unsigned.itemsize)
    positive = MUL(ADD(cast(first, wide), wide.type(0.5)), wide.type(scale))  # in (0, 1]
    radius = SQRT(MUL(LOG(positive), wide.type(-2.0)))
    angle = MUL(_unit(second, wide), wide.type(2 * math.pi))
    both = Concatenate(0)(MUL(radius, COS(angle)), MUL(radius, SIN(angle)))
    return cast(Reshape(shape)(Slice((0,), (count,), (1,))(both)), dtype)


def exponential(key: Any, shape: Shape = (), dtype: Any = np.float64) -> Any:
    """Floats of density exp(-x), x > 0, by the logarithm of a uniform word.

    >>> bool(np.all(exponential(key(0), (100,)) >= 0))
    True
    """
    dtype, shape = _float("exponential", dtype), _shape(shape)
    wide = FLOAT32 if dtype in HALF else dtype
    unsigned = MANTISSA[wide][0]
    word = cast(bits(key, shape, unsigned), wide)
    positive = MUL(ADD(word, wide.type(0.5)), wide.type(2.0 ** (-8 * unsigned.itemsize)))
    return cast(SUB(wide.type(0), LOG(positive)), dtype)


def gumbel(key: Any, shape: Shape = (), dtype: Any = np.float64) -> Any:
    """Floats of density exp(-x - exp(-x)): added to logits, the largest sum is at i with the
    probability softmax(logits)[i].

    >>> bool(np.all(np.isfinite(gumbel(key(0), (100,)))))
    True
    """
    dtype, shape = _float("gumbel", dtype), _shape(shape)
    wide = FLOAT32 if dtype in HALF else dtype
    least = wide.type(np.finfo(wide).eps / 4)  # an exponential number may be rounded to 0
    return cast(SUB(wide.type(0), LOG(MAX(exponential(key, shape, wide), least))), dtype)


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None) -> Any:
    """bool: True with probability `p`, which broadcasts to `shape` (its own
    shape if none is given).

    >>> bernoulli(key(0), 1.0, (3,))
    array([ True,  True,  True])
    """
    p = array(p)
    shape = type_of(p).shape if shape is None else _shape(shape)
    dtype = type_of(p).dtype if type_of(p).dtype in (FLOAT32, *HALF) else FLOAT64
    wide = FLOAT32 if dtype in HALF else dtype
    return LT(uniform(key, shape, wide), _operand("bernoulli", p, wide, shape))


def randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any = np.int64) -> Any:
    """Integers in [minval, maxval), which broadcast to `shape`.

    Made by multiplying a word of twice the width with the length of the range and
    keeping the high part, so no integer is likelier than another by more than one part
    in 2**32 (2**64 for 64-bit dtypes). ValueError if the range is known to be empty;
    where it is not known, an empty range gives `minval`.

    >>> x = randint(key(0), (100,), -2, 3)
    >>> int(x.min()), int(x.max())
    (-2, 2)
    """
    dtype, shape = as_dtype(dtype), _shape(shape)
    if dtype not in INTEGERS:
        raise InputError(
            f"randint makes integers; got dtype {dtype}", where=here(), fix="ge2.random.uniform"
        )
    low, span = _range(minval, maxval, dtype, shape)
    if dtype.itemsize < 8:
        word = bits(key, shape, UINT64)
        high, rest = MUL(SHIFT_RIGHT(word, HALF_WORD), span), MUL(AND(word, LOW), span)
        chosen = SHIFT_RIGHT(ADD(high, SHIFT_RIGHT(rest, HALF_WORD)), HALF_WORD)
    else:
        words = bits(key, (2, *shape), UINT64)
        first, second = (_item(words, i, shape) for i in (0, 1))
        whole = isinstance(span, np.generic) and span == 0  # all of 2**64
        chosen = first if whole else _scaled(first, second, span)
    return cast(ADD(low, chosen), dtype)


def _item(x: Any, i: int, shape: Dims) -> Any:
    return Reshape(shape)(
        Slice((i, *(0 for _ in shape)), (i + 1, *shape), (1,) * (len(shape) + 1))(x)
    )


def _range(minval: Any, maxval: Any, dtype: np.dtype, shape: Dims) -> tuple[Any, Any]:
    """The least value and the length of the range, both as uint64 that wraps."""
    for v in (minval, maxval):
        if type_of(v).dtype not in INTEGERS:
            what = f"randint takes integer bounds; got {_described(v)}"
            raise InputError(what, where=here(), fix="int(bound)")
    if all(issubclass(type(v), int | np.integer) for v in (minval, maxval)):
        low, high = int(minval), int(maxval)
        info = np.iinfo(dtype)
        if low >= high or low < info.min or high > info.max + 1:
            what = f"randint: [{low}, {high}) is no range of {dtype}"
            raise ShapeError(what, where=here(), fix="minval < maxval, or another dtype=")
        return np.uint64(low % 2**64), np.uint64((high - low) % 2**64)
    signed = UINT64 if dtype == UINT64 else INT64
    low, high = (_operand("randint", v, signed, shape) for v in (minval, maxval))
    length = SUB(cast(high, UINT64), cast(low, UINT64))
    return cast(low, UINT64), WHERE(GT(high, low), length, np.uint64(1))


def _scaled(first: Any, second: Any, span: Any) -> Any:
    """The high 64 bits of (first, second) * span, the word of 128 bits in [0, 1)."""
    low, carried = MUL(first, span), _high(second, span)
    carry = cast(LT(ADD(low, carried), low), UINT64)
    return ADD(_high(first, span), carry)


def _high(a: Any, b: Any) -> Any:
    """The high 64 bits of the product of two uint64."""
    a1, a0 = SHIFT_RIGHT(a, HALF_WORD), AND(a, LOW)
    b1, b0 = SHIFT_RIGHT(b, HALF_WORD), AND(b, LOW)
    cross, other = MUL(a0, b1), MUL(a1, b0)
    middle = ADD(ADD(SHIFT_RIGHT(MUL(a0, b0), HALF_WORD), AND(cross, LOW)), AND(other, LOW))
    parts = (SHIFT_RIGHT(x, HALF_WORD) for x in (cross, other, middle))
    return reduce(ADD, parts, MUL(a1, b1))


def permutation(key: Any, x: Any, axis: int = 0) -> Any:
    """The elements of `x` along `axis` in random order; an integer stands for `arange(x)`.

    >>> sorted(permutation(key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    if issubclass(type(x), int | np.integer):
        return _order(key, operator.index(x))
    x = array(x)
    axis = one_axis(axis, type_of(x).ndim, x)
    return _taken(x, _order(key, type_of(x).shape[axis]), axis)


def _order(key: Any, n: int) -> Any:
    """0, ..., n - 1 in random order: words of 64 bits hardly ever meet."""
    return ArgSort(0)(bits(key, (n,), UINT64))


def _taken(x: Any, index: Any, axis: int) -> Any:
    """np.take along one axis."""
    y = Gather((axis,))(x, index)
    k = type_of(index).ndim
    order = (*range(k, k + axis), *range(k), *range(k + axis, type_of(y).ndim))
    return Transpose(order)(y) if axis else y


def choice(
    key: Any, a: Any, shape: Shape = (), replace: bool = True, p: Any = None, axis: int = 0
) -> Any:
    """Elements of `a` along `axis` (an integer stands for `arange(a)`),
    drawn with probabilities `p`.

    Without `p` all are equally likely. Without replacement and with `p`, elements are drawn one
    after another by the probabilities of those left.

    >>> choice(key(0), 5, (2, 3)).shape
    (2, 3)
    """
    shape = _shape(shape)
    count = math.prod(shape)
    whole = issubclass(type(a), int | np.integer)
    a = a if whole else array(a)
    axis = 0 if whole else one_axis(axis, type_of(a).ndim, a)
    n = operator.index(a) if whole else type_of(a).shape[axis]
    if count > (n if not replace else math.inf if n else 0):
        how = "" if replace else " without replacement"
        raise ShapeError(f"choice: {count} elements of {n}{how}", where=here())
    index = _drawn(key, n, shape, replace, None if p is None else array(p))
    return index if whole else _taken(a, index, axis)


def categorical(key: Any, logits: Any, axis: int = -1, shape: Shape | None = None) -> Any:
    """int64 indices along an axis of `logits`, drawn with the probabilities softmax(logits).

    `shape` is that of the result, which the other axes of `logits` broadcast to: theirs, if it is
    not given.

    >>> categorical(key(0), [[0.0, 0.0, -np.inf], [-np.inf, -np.inf, 0.0]]).shape
    (2,)
    """
    x = array(logits)
    axis = one_axis(axis, type_of(x).ndim, x)
    x = cast(x, type_of(x).dtype if type_of(x).dtype in (FLOAT32, FLOAT64) else FLOAT64)
    n, others = type_of(x).shape[axis], [i for i in range(type_of(x).ndim) if i != axis]
    rows = Transpose((*others, axis))(x)
    shape = type_of(rows).shape[:-1] if shape is None else _shape(shape)
    noise = gumbel(key, (*shape, n), type_of(x).dtype)
    return ArgMax(len(shape))(ADD(noise, broadcast(rows, (*shape, n))))


def _drawn(key: Any, n: int, shape: Dims, replace: bool, p: Any) -> Any:
    count = math.prod(shape)
    if p is None:
        if replace:
            return randint(key, shape, 0, max(n, 1))  # n is 0 for no elements alone
        return Reshape(shape)(Slice((0,), (count,), (1,))(_order(key, n)))
    t = type_of(p)
    if t.shape != (n,) or t.dtype not in FLOATS:
        raise ShapeError(
            f"choice: p has one probability for each of {n} elements; got {t}", where=here()
        )
    p = cast(p, FLOAT64)
    if not replace:
        first = ArgSort(0)(DIV(exponential(key, (n,)), p))  # the race of exponential clocks
        return Reshape(shape)(Slice((0,), (count,), (1,))(first))
    upto = CumSum(0)(p)
    total = Reshape(())(Slice((n - 1,), (n,), (1,))(upto))
    place = SearchSorted("right")(upto, MUL(uniform(key, shape), total))
    return MIN(place, np.int64(n - 1))


publish(globals(), advise=True)
