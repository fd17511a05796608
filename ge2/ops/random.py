"""Random bits as a pure function of a key: the counter-based generator Philox4x32-10.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC 2011). A block of four words depends on the key and its own number alone,
so any part can be made anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.arrays import INT64
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Axes,
    Batched,
    Dims,
    Op,
    Values,
)
from ge2.ops.index import leading
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.shape import front

UINT32 = np.dtype(np.uint32)
UNSIGNED = tuple(np.dtype(f"u{n}") for n in (1, 2, 4, 8))
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10
CHUNK = 1 << 14  # blocks made at a time, so that the words stay in cache
BITS, FOLD, SPLIT = range(3)  # the last word of the counter: what for, so that no two uses meet


def philox(counter: Sequence[Any], key: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Four words for each counter of four words and key of two, all 32 bits
    wide, held in uint64.
    """
    a, b, c, d = counter
    k0, k1 = key
    for turn in range(ROUNDS):
        if turn:
            k0, k1 = (k0 + STEPS[0]) & LOW, (k1 + STEPS[1]) & LOW
        p, q = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (q >> HALF_WORD) ^ b ^ k0, q & LOW, (p >> HALF_WORD) ^ d ^ k1, p & LOW
    return a, b, c, d


def words(key: Any, first: int, count: int) -> Any:
    """Blocks `first`, ..., `first + count - 1` of each key of `key[...,
    2]`, as uint32[..., count * 4].
    """
    numbers = np.arange(first, first + count, dtype=np.uint64)
    k0, k1 = (key[..., i, None].astype(np.uint64) for i in (0, 1))
    zero = np.zeros_like(numbers)
    block = philox((numbers & LOW, numbers >> HALF_WORD, zero, zero + np.uint64(BITS)), (k0, k1))
    out = np.empty((*key.shape[:-1], count, 4), UINT32)
    for i, word in enumerate(block):
        out[..., i] = word
    return out.reshape((*key.shape[:-1], count * 4))


class Keyed(Op):
    """Takes a key uint32[2], or an array of them with the words on its last axis."""

    __slots__ = ()
    may_alias = False

    def check_key(self, key: ArrayType) -> None:
        if key.dtype != UINT32 or not key.ndim or key.shape[-1] != 2:
            raise TypeRuleError(
                f"{self.name} takes a key u32[2]; got {key}", fix="ge2.random.key(seed)"
            )


@final
@record
class RandomBits(Keyed):
    """Uniform unsigned integers of that shape for each key:

    Philox's words in order, low parts first.
    """

    shape: Dims
    dtype: np.dtype
    name = "random_bits"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (key,) = types
        self.check_key(key)
        if self.dtype not in UNSIGNED:
            raise TypeRuleError(
                f"random_bits makes unsigned integers, not {self.dtype}", fix="np.uint32"
            )
        return (ArrayType((*key.shape[:-1], *self.shape), self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        (key,) = arrays
        blocks = -(-math.prod(self.shape) * self.dtype.itemsize // 16)
        many = math.prod(key.shape[:-1])
        bits = np.empty((many, blocks * 4), "<u4")
        step = max(CHUNK // max(many, 1), 1)
        for first in range(0, blocks, step):
            count = min(step, blocks - first)
            bits[:, first * 4 : (first + count) * 4] = words(key.reshape(many, 2), first, count)
        flat = bits.view(self.dtype.newbyteorder("<"))[:, : math.prod(self.shape)]
        return flat.astype(self.dtype, copy=False).reshape((*key.shape[:-1], *self.shape))

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return (self(front(xs[0], axes[0])),), (0,)


@final
@record
class RandomFold(Keyed):
    """A new key for each number: (key[*k, 2], data[*k, *d]) -> keys[*k, *d, 2];
    others for each `purpose`.
    """

    purpose: int = FOLD
    name = "random_fold"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        key, data = types
        self.check_key(key)
        if data.dtype != UINT32:
            raise TypeRuleError(
                f"random_fold takes uint32 data; got {data}", fix="data.astype(np.uint32)"
            )
        if data.shape[: key.ndim - 1] != key.shape[:-1]:
            raise ShapeError(f"random_fold takes data for each key; got keys {key}, data {data}")
        return (ArrayType((*data.shape, 2), UINT32),)

    def reference(self, *arrays: Any) -> Any:
        key, data = arrays
        data = np.asarray(data).astype(np.uint64)
        shape = key.shape[:-1] + (1,) * (data.ndim - key.ndim + 1)
        k0, k1 = (key[..., i].astype(np.uint64).reshape(shape) for i in (0, 1))
        zero = np.zeros_like(data)
        a, b, _, _ = philox((data, zero, zero, zero + np.uint64(self.purpose)), (k0, k1))
        return np.stack([a, b], -1).astype(UINT32)

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (key, data), (of_key, of_data) = xs, axes
        if of_key is None and key.ndim == 1:
            return (self(key, front(data, of_data)),), (0,)
        return (self(leading(key, of_key, size), leading(data, of_data, size)),), (0,)


@final
@record
class Draw(Pointlike):
    """RandomBits of a key given as two words, each made where it is read, from where an element is;
    those of a stream from element `first` on, where that is given as a third operand.
    """

    shape: Dims
    dtype: np.dtype
    name = "draw"
    lowering = Pointwise("")  # depends on the place; each target says it

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        first = types[2:] in ((), (ArrayType((), INT64),))
        if types[:2] != (ArrayType((), UINT32),) * 2 or not first:
            raise TypeRuleError(
                f"draw takes the two words of a key; got {', '.join(map(str, types))}"
            )
        return (ArrayType(self.shape, self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        key, first = np.stack(arrays[:2]), int(arrays[2]) if arrays[2:] else 0
        count = math.prod(self.shape)
        stream = RandomBits((first + count,), self.dtype).reference(key)
        return stream[first:].reshape(self.shape)
