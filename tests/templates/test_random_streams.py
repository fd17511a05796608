"""Random bits in C and in CUDA are those of the op, element by element, by blocks, and in rows that
begin and end anywhere.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.arrays import SHORT
from ge2.ops.random import UNSIGNED, RandomBits, RandomFold
from tests.exhaustive import examples
from tests.templates import cuda_harness, harness
from tests.templates.cuda_harness import Function
from tests.templates.harness import build, needs_compiler

FILL = """
void fill_{t}(uint32_t k0, uint32_t k1, uint64_t first, uint64_t count, {T} *out) {{
    ge2_random_fill_{t}(k0, k1, first, count, out);
}}"""
U32, U64, I32 = (np.dtype(t) for t in (np.uint32, np.uint64, np.int32))
words = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def loops(any_place: str) -> dict[str, Any]:
    listed = {"fold": Function("ge2_random_fold({0}, {1}, {2}, {3})", (U32,) * 4, U64)}
    for d in UNSIGNED:
        t = SHORT[d]
        bits = f"ge2_random_bits_{t}({{0}}, {{1}}, {{2}})"
        listed[f"bits_{t}"] = Function(bits, (U32, U32, U64), d)
        if any_place != "c":
            block = f"ge2_random_of_block_{t}(ge2_random_block({{0}}, {{1}}, {{2}}), {{3}})"
            listed[f"block_{t}"] = Function(block, (U32, U32, U64, I32), d)
    if any_place != "c":
        return cuda_harness.elementwise(listed, any_place)
    in_c = [
        (f.text, [f"{d.name}_t" for d in f.takes], f"{f.gives.name}_t") for f in listed.values()
    ]
    made = harness.elementwise(in_c, ["ge2/random.h"])
    return {name: made[f.text] for name, f in listed.items()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = [FILL.format(t=SHORT[d], T=f"{d.name}_t") for d in UNSIGNED]
    text = '#include "ge2/random.h"\n' + "\n".join(rows) + "\n"
    return ctypes.CDLL(str(build(text, tmp_path_factory.mktemp("random"))[0]))


def filled(
    library: Any, dtype: np.dtype, key: tuple[int, int], first: int, count: int
) -> np.ndarray:
    run = library[f"fill_{SHORT[dtype]}"]
    run.restype, run.argtypes = (
        None,
        [ctypes.c_uint32] * 2 + [ctypes.c_uint64] * 2 + [ctypes.c_void_p],
    )
    y = np.full(count + 1, 7, dtype)  # one more, which must stay
    run(*key, first, count, y.ctypes.data)
    assert y[count] == 7
    return y[:count]


@needs_compiler
@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(UNSIGNED), st.tuples(words, words), st.integers(0, 3000), st.integers(0, 3000)
)
def test_any_part_of_a_stream(
    library: Any, dtype: np.dtype, key: tuple[int, int], first: int, count: int
) -> None:
    want = RandomBits((first + count,), dtype).reference(np.array(key, np.uint32))[first:]
    np.testing.assert_array_equal(filled(library, dtype, key, first, count), want)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(UNSIGNED), st.tuples(words, words), st.integers(0, 3000), st.integers(0, 300)
)
def test_any_elements_of_a_stream(
    loops: dict[str, Any], dtype: np.dtype, key: tuple[int, int], first: int, count: int
) -> None:
    want = RandomBits((first + count,), dtype).reference(np.array(key, np.uint32))[first:]
    at, each = np.arange(first, first + count, dtype=np.uint64), np.uint64(16 // dtype.itemsize)
    np.testing.assert_array_equal(loops[f"bits_{SHORT[dtype]}"](*key, at), want)
    if block := loops.get(f"block_{SHORT[dtype]}"):
        np.testing.assert_array_equal(block(*key, at // each, at % each), want)


@needs_compiler
def test_blocks_beyond_32_bits_go_on(library: Any, loops: dict[str, Any]) -> None:
    """The number of a block has two words."""
    first = (1 << 34) - 2  # words
    found = loops["bits_u32"](1, 2, np.arange(first, first + 6, dtype=np.uint64))
    np.testing.assert_array_equal(filled(library, U32, (1, 2), first, 6), found)
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
