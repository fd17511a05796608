"""Products of bytes on a GPU: each bit is NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.kernels.test_cuda_byte_products import I8, TYPES, drawn, turned
from tests.kernels.wgmma_cases import TURNS

pytestmark = pytest.mark.gpu
FAMILIES = ["mma product", "wgmma product", "wgmma product of copies", "product by BLAS"]


def ran(cp: Any, family: str, function: Any, xs: Any) -> None:
    """By the family where it serves the product, else by what does."""
    with config.using(prefer=(family,)):
        found = ge2.jit(function)(*map(cp.asarray, xs)).get()
    np.testing.assert_array_equal(found, function(*xs), strict=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("shape", [(133, 87, 71), (272, 400, 528), (16, 512, 1024), (1000, 8, 64)])
@pytest.mark.parametrize("turn", TURNS)
def test_products(cp: Any, turn: str, shape: tuple[int, int, int], types: Any, family: str) -> None:
    ran(cp, family, *turned(turn, shape, types, 0))


@pytest.mark.parametrize("family", FAMILIES)
def test_batches(cp: Any, family: str) -> None:
    rng = np.random.default_rng(1)
    xs = drawn(rng, (3, 144, 272), I8), drawn(rng, (3, 208, 272), I8)
    ran(cp, family, lambda a, b: np.einsum("bik,bjk->bij", a, b, dtype=np.int32), xs)
