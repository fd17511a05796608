"""Random bits in C are those of the op, element by element and in rows that
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
from tests.templates.harness import Loop, build, elementwise, needs_compiler

pytestmark = needs_compiler
FILL = """
void fill_{t}(uint32_t k0, uint32_t k1, uint64_t first, uint64_t count, {T} *out) {{
    ge2_random_fill_{t}(k0, k1, first, count, out);
}}"""
words = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def loops() -> dict[str, Loop]:
    key = ["uint32_t"] * 2
    functions = [
        (f"ge2_random_bits_{SHORT[d]}", [*key, "uint64_t"], f"{d.name}_t") for d in UNSIGNED
    ]
    return elementwise(
        [*functions, ("ge2_random_fold", [*key, *key], "uint64_t")], ["ge2/random.h"]
    )


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


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(UNSIGNED), st.tuples(words, words), st.integers(0, 3000), st.integers(0, 3000)
)
def test_any_part_of_a_stream(
    library: Any,
    loops: dict[str, Loop],
    dtype: np.dtype,
    key: tuple[int, int],
    first: int,
    count: int,
) -> None:
    want = RandomBits((first + count,), dtype).reference(np.array(key, np.uint32))[first:]
    np.testing.assert_array_equal(filled(library, dtype, key, first, count), want)
    got = loops[f"ge2_random_bits_{SHORT[dtype]}"](
        *key, np.arange(first, first + count, dtype=np.uint64)
    )
    np.testing.assert_array_equal(got, want)


def test_blocks_beyond_32_bits_go_on(library: Any, loops: dict[str, Loop]) -> None:
    """The number of a block has two words."""
    first = (1 << 34) - 2  # words
    got = filled(library, np.dtype(np.uint32), (1, 2), first, 6)
    each = loops["ge2_random_bits_u32"](1, 2, np.arange(first, first + 6, dtype=np.uint64))
    np.testing.assert_array_equal(got, each)
    assert (
        len(set(got.tolist()) - set(filled(library, np.dtype(np.uint32), (1, 2), 0, 6).tolist()))
        == 6
    )


@settings(max_examples=examples(30), deadline=None)
@given(st.tuples(words, words), st.lists(words, min_size=1, max_size=20), st.integers(0, 5))
def test_new_keys(
    loops: dict[str, Loop], key: tuple[int, int], data: list[int], purpose: int
) -> None:
    want = RandomFold(purpose).reference(np.array(key, np.uint32), np.array(data, np.uint32))
    got = loops["ge2_random_fold"](*key, data, purpose)
    np.testing.assert_array_equal(np.stack([got & 0xFFFFFFFF, got >> np.uint64(32)], -1), want)
