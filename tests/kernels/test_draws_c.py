"""Random bits and keys in C: the reference's, bit for bit, for keys and data that are views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from ge2.ops.random import UNSIGNED, RandomBits, RandomFold
from tests.kernels.programs import Programs, alike, eager_threads, needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("eager_threads")]
__all__ = ["eager_threads"]
SIZES = st.lists(st.sampled_from((0, 1, 2, 3, 7)), max_size=2).map(tuple)
KEY = np.uint32


@settings(max_examples=5)
@given(st.data())
def test_as_the_references(data: st.DataObject) -> None:
    programs, draw = Programs(), data.draw
    for _ in range(4):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        keys, shape = draw(SIZES), draw(SIZES)
        key = programs.view(draw, rng.integers(0, 1 << 32, (*keys, 2), KEY))
        programs.add(RandomBits(shape, draw(st.sampled_from(UNSIGNED))), key)
        more = programs.view(draw, rng.integers(0, 1 << 32, (*keys, *shape), KEY))
        programs.add(RandomFold(draw(st.integers(0, 3))), key, more)
    programs.check()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_long_streams(dtype: np.dtype) -> None:
    key = np.array([[1, 2], [3, 4]], KEY)
    programs = Programs()
    programs.add(RandomBits((20_011,), dtype), (programs.given(key), key))
    alike(programs.results()[0], programs.wanted[0])


def test_random_numbers_are_one_program() -> None:
    def draw(seed: int) -> object:
        a, b = ge2.random.split(ge2.random.key(seed))
        return ge2.random.uniform(a, (1000,)), ge2.random.normal(b, (10, 5))

    with config.using(executor="blocked"):
        wanted = ge2.jit(draw)(3)
    with config.using(executor="c"):
        found = ge2.jit(draw)
        for y, z in zip(found(3), wanted, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-6)
