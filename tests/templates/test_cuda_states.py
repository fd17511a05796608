"""Compensated sums and scans in CUDA: NumPy's, for any order of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ge2.base.arrays import COMPLEX128, FLOAT32, SHORT
from ge2.targets.cuda.emit.words import STORED, headers
from tests.templates.cuda_harness import launched
from tests.templates.test_folds import drawn


def test_compensated_sums(place: str) -> None:
    """1e100 and -1e100 take nothing with them; an infinite sum stays so, and so does -0.0."""
    source = """
extern "C" __global__ void total(const {T} *x, {T} *y, int n) {{
    {T} sum = {zero}, rest = {zero};
    for (int i = 0; i < n; i++) ge2_compensate_{t}(&sum, &rest, x[i]);
    y[0] = ge2_compensated_{t}(sum, rest);
}}"""
    sums = {(1e30, 1.0, -1e30): 1.0, (1.0, np.inf): np.inf, (-0.0, -0.0): -0.0, (1.0, 2.0): 3.0}
    for dtype in (FLOAT32, np.dtype(float), COMPLEX128):
        zero = "{-0.0, -0.0}" if dtype == COMPLEX128 else "-0.0f"
        body = source.format(T=STORED[dtype], t=SHORT[dtype], zero=zero)
        text = "\n".join(f'#include "ge2/{name}.cuh"' for name in headers(body)) + body
        for terms, want in sums.items():
            x = np.array(terms).astype(dtype)
            _, y, _ = launched(place, text, "total", 1, (x, np.empty(1, dtype), np.int32(x.size)))
            assert (y[0].real, np.signbit(y[0].real)) == (want, np.signbit(want))


# ---------------------------------------------------------------------- scans over warps and blocks

SCANS = """#include "ge2/fold.cuh"
#include "ge2/integer.cuh"
#include "ge2/warp.cuh"
struct Step {{ double by, more; int8_t count; }};
struct Then {{
    __device__ Step operator()(Step a, Step b) const {{
        return {{a.by * b.by, a.more * b.by + b.more, (int8_t)(a.count + b.count)}};
    }}
}};
extern "C" __global__ void __launch_bounds__({n}) scans(
    const int *a, int *a_out, const float *b, int64_t *b_out, const double *by, double *more, int8_t *count,
    int *left, int *across, int *of_eight, int *twice) {{
    const int i = (int)threadIdx.x;
    a_out[i] = ge2_block_scan<{n}>(a[i], ge2_add_i32);
    b_out[i] = ge2_block_scan<{n}>(ge2_at_f32(b[i], i), ge2_argmax_f32).index;
    const Step step = ge2_block_scan<{n}>(Step{{by[i], more[i], 1}}, Then());
    more[i] = step.more, count[i] = step.count;
    left[i] = ge2_lane_before(a[i], 1), across[i] = ge2_lane_across(a[i], 5);
    of_eight[i] = ge2_warp_scan<8>(a[i], ge2_add_i32);
    twice[i] = ge2_block_scan<{n}>(a_out[i], ge2_add_i32);
    twice[i] = ge2_block_scan<{n}>(twice[i] - a_out[i], ge2_add_i32); /* of the sums before */
}}
"""


def merged(by: np.ndarray, more: np.ndarray) -> Iterator[float]:
    """x -> by * x + more, one after the other, of 0; small numbers, so that nothing rounds."""
    total = 0.0
    for b, m in zip(by, more, strict=True):
        total = total * b + m
        yield total


@pytest.mark.exhaustive("n")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n", [32, 64, 256, 1024])
def test_scans_follow_the_threads(n: int, seed: int, place: str) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-(2**31), 2**31, n, np.int32), drawn(FLOAT32, n, seed)
    by, more = rng.choice([-1.0, 1.0], n), rng.integers(-9, 9, n).astype(float)
    want = list(merged(by, more))
    outs = [np.empty(n, t) for t in (np.int32, np.int64, np.int8, *[np.int32] * 4)]
    args = (a, outs[0], b, outs[1], by, more, *outs[2:])
    found = launched(place, SCANS.format(n=n), "scans", n, args, seed)
    outs, more = [found[1], found[3], *found[6:]], found[5]
    np.testing.assert_array_equal(outs[0], np.cumsum(a, dtype=np.int32))
    np.testing.assert_array_equal(outs[1], [np.argmax(b[: i + 1]) for i in range(n)])
    np.testing.assert_array_equal(more, want)
    np.testing.assert_array_equal(outs[2], np.arange(1, n + 1).astype(np.int8))
    lane = np.arange(n) % 32
    np.testing.assert_array_equal(outs[3], np.where(lane == 0, a, np.roll(a, 1)))
    np.testing.assert_array_equal(outs[4], a[np.arange(n) ^ 5])
    np.testing.assert_array_equal(outs[5], np.cumsum(a.reshape(-1, 8), 1, dtype=np.int32).ravel())
    sums = np.cumsum(outs[0], dtype=np.int32)
    np.testing.assert_array_equal(outs[6], np.cumsum(sums - outs[0], dtype=np.int32))
