"""Random bits in CUDA are those of the op, element by element, by blocks, and
beyond 2^32 of those.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.arrays import SHORT
from ge2.ops.random import UNSIGNED, RandomBits, RandomFold
from tests.exhaustive import examples
from tests.templates.cuda_harness import Function, elementwise

U32, U64, I32 = (np.dtype(t) for t in (np.uint32, np.uint64, np.int32))
words = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def loops(place: str) -> dict[str, Any]:
    listed = {"fold": Function("ge2_random_fold({0}, {1}, {2}, {3})", (U32,) * 4, U64)}
    for d in UNSIGNED:
        t = SHORT[d]
        listed[f"bits_{t}"] = Function(
            f"ge2_random_bits_{t}({{0}}, {{1}}, {{2}})", (U32, U32, U64), d
        )
        block = f"ge2_random_of_block_{t}(ge2_random_block({{0}}, {{1}}, {{2}}), {{3}})"
        listed[f"block_{t}"] = Function(block, (U32, U32, U64, I32), d)
    return elementwise(listed, place)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(UNSIGNED), st.tuples(words, words), st.integers(0, 3000), st.integers(0, 300)
)
def test_any_part_of_a_stream(
    loops: dict[str, Any], dtype: np.dtype, key: tuple[int, int], first: int, count: int
) -> None:
    want = RandomBits((first + count,), dtype).reference(np.array(key, np.uint32))[first:]
    at = np.arange(first, first + count, dtype=np.uint64)
    np.testing.assert_array_equal(loops[f"bits_{SHORT[dtype]}"](*key, at), want)
    each = np.uint64(16 // dtype.itemsize)
    np.testing.assert_array_equal(loops[f"block_{SHORT[dtype]}"](*key, at // each, at % each), want)


def test_blocks_beyond_32_bits_go_on(loops: dict[str, Any]) -> None:
    """The number of a block has two words."""
    first = (1 << 34) - 2
    found = loops["bits_u32"](1, 2, np.arange(first, first + 6, dtype=np.uint64))
    early = RandomBits((6,), U32).reference(np.array((1, 2), np.uint32))
    assert len(set(found.tolist()) | set(early.tolist())) == 12


@settings(max_examples=examples(30), deadline=None)
@given(st.tuples(words, words), st.lists(words, min_size=1, max_size=20), st.integers(0, 5))
def test_new_keys(
    loops: dict[str, Any], key: tuple[int, int], data: list[int], purpose: int
) -> None:
    want = RandomFold(purpose).reference(np.array(key, np.uint32), np.array(data, np.uint32))
    got = loops["fold"](*key, data, purpose)
    np.testing.assert_array_equal(np.stack([got & 0xFFFFFFFF, got >> np.uint64(32)], -1), want)
