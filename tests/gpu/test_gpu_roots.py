"""Roots that are made with their inverse, beside IEEE's, for every number that they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from ge2.targets.cuda.load.gpu import gpu

pytestmark = pytest.mark.gpu

SOURCE = """
#include "ge2/core.cuh"
#include "ge2/root.cuh"
GE2_FN bool unlike(float a, float b) { return __float_as_uint(a) != __float_as_uint(b) && (a == a || b == b); }
extern "C" __global__ void __launch_bounds__(256) roots(int *wrong) {
    const float numbers[] = {1.0f, 0.5f, 3.0f, 0.3f, 1e6f, 1e-6f, 0.7853982f, 1048575.9f};
    /* from 2^-100 to infinity, and a NaN */
    for (int64_t bits = 0x0d800000 + blockIdx.x * 256 + threadIdx.x; bits <= 0x7fc00001; bits += gridDim.x * 256) {
        const float x = __uint_as_float((uint32_t)bits), root = __fsqrt_rn(x);
        const ge2_root found = ge2_root_f32(x);
        if (unlike(found.value, root)) atomicAdd(&wrong[0], 1);
        if (unlike(found.inverse, __fdiv_rn(1.0f, root))) atomicAdd(&wrong[1], 1);
        for (float number : numbers) {
            const float once = __fdiv_rn(number, root), twice = __fdiv_rn(once, root);
            if (unlike(ge2_over_root_f32(number, found), once)) atomicAdd(&wrong[2], 1);
            if (fabsf(twice) > 0x1p-125f && unlike(ge2_over_root_f32(once, found), twice)) atomicAdd(&wrong[3], 1);
        }
    }
}
"""


def test_all_numbers() -> None:
    import cupy

    wrong = cupy.zeros(4, np.int32)
    gpu(0).module(SOURCE).get_function("roots")((2048,), (256,), (wrong,))
    assert wrong.tolist() == [0, 0, 0, 0], "roots, inverses, quotients, quotients of those"
