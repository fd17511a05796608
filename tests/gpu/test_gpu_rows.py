"""The short ways of rows on a GPU, some of which are inline PTX: extremes by
pairs, picks, quotients.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from tests.codegen.test_cuda_rows import chosen, loss

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("n", [40, 4096, 20_000, 20_003])
@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=lambda d: d.__name__)
def test_extremes_and_picks(cp: Any, n: int, dtype: Any, rng: np.random.Generator) -> None:
    z, y = rng.normal(size=(300, n)).astype(dtype), rng.integers(-n, n, 300)
    z[1, 3], z[2, y[2]], z[3, 5], z[4] = np.nan, np.nan, np.inf, -np.inf
    wide = z.astype(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            ge2.jit(chosen)(cp.asarray(z), cp.asarray(y)).get(), chosen(z, y)
        )
    both = ge2.jit(lambda x: (x.astype(np.float32).min(-1), x.astype(np.float32).max(-1)))
    least, most = both(cp.asarray(z))
    np.testing.assert_array_equal(least.get(), wide.min(-1))
    np.testing.assert_array_equal(most.get(), wide.max(-1))


@pytest.mark.parametrize("n", [4096, 20_000, 50_304])
def test_cross_entropy_has_the_same_bits_each_time(
    cp: Any, n: int, rng: np.random.Generator
) -> None:
    z, y = (3 * rng.normal(size=(600, n))).astype(BF16), rng.integers(0, n, 600)
    both = ge2.jit(ge2.value_and_grad(loss))
    given = cp.asarray(z), cp.asarray(y)
    found = [[x.tobytes() for x in both(*given)] for _ in range(10)]
    assert all(each == found[0] for each in found)
    wide = z.astype(np.float64)
    want = np.log(np.exp(wide).sum(-1)) - wide[np.arange(600), y]
    np.testing.assert_allclose(float(both(*given)[0]), want.mean(), rtol=1e-6)


def test_quotients_by_one_divisor_a_row(cp: Any, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (4096, 512)).astype(np.float32)
    x *= np.exp2(rng.integers(-40, 40, (4096, 1))).astype(np.float32)
    found = ge2.jit(lambda x: x / x.max(-1, keepdims=True))(cp.asarray(x)).get()
    want = x / x.max(-1, keepdims=True)
    assert (found != want).mean() < 1e-5
    np.testing.assert_array_max_ulp(found, want, 1)
