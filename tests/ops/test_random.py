"""Random bits: the published answers of Philox, and that any part can be made on its own."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import ops
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType
from ge2.ops.random import CHUNK, philox

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
# the file kat_vectors of Random123, philox4x32 with 10 rounds: counter, key, answer
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
U32 = np.dtype(np.uint32)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    found = philox([np.uint64(c) for c in counter], [np.uint64(k) for k in key])
    assert tuple(int(w) for w in found) == answer


def test_bits_are_the_words_in_order() -> None:
    key = np.zeros(2, np.uint32)
    bits = ops.RandomBits((8,), U32)(key)
    assert tuple(bits[:4].tolist()) == KNOWN[0][2]
    second = philox([np.uint64(c) for c in (1, 0, 0, 0)], [np.uint64(0)] * 2)
    assert bits[4:].tolist() == [int(w) for w in second]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_other_widths_are_the_same_bytes(dtype: str) -> None:
    key = np.array([5, 6], np.uint32)
    words = ops.RandomBits((16,), U32)(key)
    parts = ops.RandomBits((64 // np.dtype(dtype).itemsize,), np.dtype(dtype))(key)
    assert parts.dtype == dtype
    assert parts.tobytes() == words.tobytes()


def test_a_longer_array_begins_with_the_shorter() -> None:
    key = np.array([5, 6], np.uint32)
    long = ops.RandomBits((4 * CHUNK + 9,), U32)(key)
    assert np.array_equal(long[: 4 * CHUNK - 3], ops.RandomBits((4 * CHUNK - 3,), U32)(key))
    assert np.array_equal(long[:12], ops.RandomBits((3, 4), U32)(key).ravel())
    assert len(np.unique(long.reshape(-1)[: 4 * CHUNK + 8].view(np.uint64))) == 2 * CHUNK + 4


def test_many_keys_at_once_are_the_loop() -> None:
    keys = np.arange(12, dtype=np.uint32).reshape(2, 3, 2)
    bits = ops.RandomBits((5,), np.dtype("u2"))(keys)
    assert all(
        np.array_equal(bits[i], ops.RandomBits((5,), np.dtype("u2"))(keys[i]))
        for i in np.ndindex(2, 3)
    )


def test_keys_and_bits_never_meet() -> None:
    key = np.array([1, 2], np.uint32)
    count = np.arange(1000, dtype=np.uint32)
    folded = ops.RandomFold()(key, count).view(np.uint64)
    split = ops.RandomFold(2)(key, count).view(np.uint64)
    bits = ops.RandomBits((4000,), U32)(key).view(np.uint64)
    assert (
        len(np.unique(np.concatenate([folded.ravel(), split.ravel(), bits]))) == 1000 + 1000 + 2000
    )


def test_what_is_refused() -> None:
    key = ArrayType((2,), U32)
    with pytest.raises(TypeRuleError, match=r"a key u32\[2\]; got f64\[2\]"):
        ops.RandomBits((), U32).infer(ArrayType((2,), np.dtype(float)))
    with pytest.raises(TypeRuleError, match="unsigned"):
        ops.RandomBits((), np.dtype(float)).infer(key)
    with pytest.raises(TypeRuleError, match="uint32 data"):
        ops.RandomFold().infer(key, ArrayType((), np.dtype(int)))
    with pytest.raises(ShapeError, match="each key"):
        ops.RandomFold().infer(ArrayType((3, 2), U32), ArrayType((2,), U32))
