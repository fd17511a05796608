"""Random bits that regions make for themselves on CUDA: those of the stream,
wherever an element lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.pipeline import drawn, rewritten
from ge2.ops.random import UNSIGNED, Draw, RandomBits
from tests.passes.graphs import graph, same
from tests.together import needs_compiler

KEY = np.array([3, 1 << 31], np.uint32)


def ran(f: Any, *args: Any) -> tuple[Any, list[str]]:
    """What it computes through the shim, and by which kernels."""
    with config.using(executor="shim"):
        jitted = ge2.jit(f)
        found = jitted(*args)
        return found, [k.kind for k in jitted.lower(*args).executable.kernels]


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
@pytest.mark.parametrize("shape", [(1,), (31,), (1025,), (33, 16), (5, 7), (3, 1, 16), (4, 6, 5)])
def test_bits_of_every_place(
    shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator
) -> None:
    """With arrays that lie like them, that have rows alone, and that lie across."""
    x, row = (
        rng.integers(0, 100, shape).astype(dtype),
        rng.integers(0, 100, shape[-1:]).astype(dtype),
    )
    turned = np.ascontiguousarray(x.T)

    def f(key: Any, x: Any, row: Any, turned: Any) -> Any:
        bits = ge2.random.bits(key, shape, dtype)
        return bits + x, bits ^ row, bits & turned.T

    def g(key: Any, x: Any) -> Any:
        return (ge2.random.bits(key, shape, dtype) | x).T

    found, kinds = ran(f, KEY, x, row, turned)
    bits = RandomBits(shape, dtype).reference(KEY)
    for a, b in zip(found, (bits + x, bits ^ row, bits & x), strict=True):
        np.testing.assert_array_equal(a, b)
    across, more = ran(g, KEY, x)
    np.testing.assert_array_equal(across, (bits | x).T)
    assert "random bits" not in {*kinds, *more}


# Parts that begin where a pack of elements does, where none does, and that are one element.
PARTS = [
    ((2, 64), (slice(0, 1), slice(1, 2))), ((2, 37), (slice(0, 1), slice(1, 2))),
    ((6, 5, 4), (slice(1, 3), slice(4, 6))),
    ((3, 1, 8), (2, slice(0, 2))), ((101,), (slice(0, 32), slice(32, 101), slice(7, 8))),
]  # fmt: skip


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
@pytest.mark.parametrize(("shape", "parts"), PARTS, ids=str)
def test_bits_of_parts(shape: Any, parts: Any, dtype: np.dtype) -> None:
    def f(key: Any) -> Any:
        bits = ge2.random.bits(key, shape, dtype)
        return tuple(bits[part] ^ dtype.type(5) for part in parts)

    found, kinds = ran(f, KEY)
    bits = RandomBits(shape, dtype).reference(KEY)
    for y, part in zip(found, parts, strict=True):
        np.testing.assert_array_equal(y, bits[part] ^ dtype.type(5))
    assert "random bits" not in kinds


@needs_compiler
@pytest.mark.parametrize(
    "f",
    [
        lambda bits: (bits[:, 1:3] ^ np.uint32(1), bits[0] ^ np.uint32(1)),  # not one after another
        lambda bits: (bits[::2] ^ np.uint32(1),),
        lambda bits: (bits[0] ^ np.uint32(1), np.sort(bits[1])),  # a sort reads memory
        lambda bits: (bits[0] ^ np.uint32(1), bits),
        lambda bits: (bits[1],),
    ],
)
def test_parts_that_are_read_otherwise(f: Any) -> None:
    found, kinds = ran(lambda key: f(ge2.random.bits(key, (4, 6), np.uint32)), KEY)
    bits = RandomBits((4, 6), np.dtype(np.uint32)).reference(KEY)
    for y, wanted in zip(found, f(bits), strict=True):
        np.testing.assert_array_equal(y, wanted)
    assert "random bits" in kinds


@needs_compiler
def test_a_normal_stores_no_bits() -> None:
    """The radius is of the first half of them, the angle of the second."""
    found, kinds = ran(lambda key: ge2.random.normal(key, (130, 6), np.float32), KEY)
    np.testing.assert_allclose(
        found, ge2.random.normal(KEY, (130, 6), np.float32), rtol=1e-5, atol=1e-6
    )
    assert "random bits" not in kinds


@needs_compiler
def test_dropout_stores_no_bits(rng: np.random.Generator) -> None:
    def dropout(x: Any, b: Any, key: Any) -> Any:
        keep = ge2.random.uniform(key, x.shape, np.float32) < np.float32(0.9)
        return np.where(keep, np.tanh(x + b), np.float32(0))

    x, b = rng.normal(size=(33, 48)).astype(np.float32), rng.normal(size=48).astype(np.float32)
    found, kinds = ran(dropout, x, b, KEY)
    assert kinds == ["pointwise"]
    np.testing.assert_allclose(found, dropout(x, b, KEY), rtol=1e-6)
    slope, kinds = ran(ge2.grad(lambda *args: dropout(*args).sum()), x, b, KEY)
    assert kinds == ["pointwise"]
    np.testing.assert_array_equal(slope == 0, dropout(x, b, KEY) == 0)


@needs_compiler
def test_keys_made_in_a_program(rng: np.random.Generator) -> None:
    def noisy(x: Any, seed: Any) -> Any:
        one, two = ge2.random.split(ge2.random.key(seed))
        return x + ge2.random.uniform(one, x.shape) - ge2.random.uniform(two, x.shape)

    x = rng.normal(size=(7, 9))
    found, _ = ran(noisy, x, 5)
    np.testing.assert_allclose(found, noisy(x, 5), rtol=1e-12)


TEXT = """{ lambda ; k:u32[2] x:u32[4,5]. let
    b:u32[4,5] = random_bits[dtype=u32 shape=(4, 5)] k
    c:u32[4,5] = and x b
    d:u32[4,5] = xor c 1:u32[]
  in (d,) }"""


def test_the_pass() -> None:
    before = rewritten(graph(TEXT), "reference")
    after = drawn(before)
    assert [e.op.name for e in before.eqns] == ["random_bits", "region"]
    assert [e.op.name for e in after.eqns] == ["slice", "reshape", "slice", "reshape", "region"]
    x = np.arange(20, dtype=np.uint32).reshape(4, 5)
    same(before, after, KEY, x)
    assert (
        Draw((2,), np.dtype(np.uint8)).reference(*KEY).tolist()
        == RandomBits((2,), np.dtype(np.uint8)).reference(KEY).tolist()
    )


TURNED = """{ lambda ; k:u32[2] x:u32[4,5]. let
    b:u32[5,4] = random_bits[dtype=u32 shape=(5, 4)] k
    t:u32[4,5] = transpose[order=(1, 0)] b
    c:u32[4,5] = and x t
  in (c,) }"""


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("in (d,)", "in (d, b)"),  # somebody wants them
        TEXT.replace("in (d,)", "e:u32[] = reduce_max[axes=(0, 1)] b in (d, e)"),  # or all at once
        TURNED,
    ],
)
def test_bits_that_are_read_otherwise_are_stored(text: str) -> None:
    before = rewritten(graph(text), "reference")
    assert drawn(before) == before
