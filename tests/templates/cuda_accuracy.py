"""How far float32's functions of one number are from the truth, by a kernel
over ranges of their bits.

The truth is float64's function, whose own error is not to be seen. What each
may err is said in float.cuh.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64
from ge2.targets.cuda.emit.words import headers
from tests.templates.cuda_harness import claims, ops_of

ROUNDED = ("square", "reciprocal", "sqrt")  # once; the others of those that claim nothing are exact
TWICE = ("degrees", "radians")  # by a factor that is itself rounded, as NumPy has it
SPACING = "ge2_ldexp_f64(ge2_copysign_f64(1.0, {0}), max(ge2_frexp_exponent_f64({0}) - 24, -149)) + 0 * {0}"
SPACING = f"{{0}} == 0 ? 0x1p-149 : fabs({{0}}) == 0x1.fffffep127 ? {{0}} * 1e300 : {SPACING}"

SOURCE = """
/* The largest error of the numbers whose bits are first, ..., first + count - 1: in 2^-16 of the last place,
   above those bits. And how many are NaN where the truth is not, or the other way, or the other zero. */
extern "C" __global__ void __launch_bounds__(256)
worst(uint32_t first, uint32_t count, unsigned long long *most, unsigned *wrong) {{
    unsigned long long mine = 0;
    unsigned other = 0;
    for (uint32_t k = blockIdx.x * 256 + threadIdx.x; k < count; k += gridDim.x * 256) {{
        const float x = ge2_of_bits_f32(first + k);
        const double wide = (double)x, truth = (double)({truth});
        const float y = (float)({narrow}), nearest = (float)truth;
        const bool none = nearest != nearest;
        if (none || y != y || (y == 0 && nearest == 0)) {{
            other += (y != y) != none || (!none && ge2_signbit_f32(y) != ge2_signbit_f32(nearest));
            continue;
        }}
        double off = fabs((double)y - truth);
        if (ge2_isfinite_f32(y) && ge2_isfinite_f32(nearest)) {{
            const int exponent = nearest == 0 ? -149 : ge2_frexp_exponent_f32(nearest) - 24;
            off = ldexp(off, exponent < -149 ? 149 : -exponent);
        }} else if (y == nearest) {{
            off = 0;
        }} else {{ /* beyond all numbers: in steps */
            const int a = (int)ge2_bits_f32(fabsf(y)), b = (int)ge2_bits_f32(fabsf(nearest));
            off = (y < 0) != (nearest < 0) ? 32767 : (double)(a < b ? b - a : a - b);
        }}
        const unsigned long long size = (unsigned long long)(fmin(off, 32767.0) * 65536.0);
        mine = max(mine, size << 32 | (first + k));
    }}
    atomicMax(most, mine);
    atomicAdd(wrong, other);
}}
"""


BESIDE_ONE = "tanh_beside_one"  # which errs by 2^-22: by four units of the least number beside 1.5


def unary() -> list[str]:
    """The ops of one float32, and what else float.cuh has; powers are
    compared with NumPy's elsewhere.
    """
    ops = [n for n, f in ops_of(FLOAT32).items() if len(f.takes) == 1 and not n.startswith("pow_")]
    return sorted({*ops, "erf", "erfc", BESIDE_ONE})


def text_of(name: str, dtype: np.dtype) -> str:
    if name == BESIDE_ONE:
        return f"1.5f + ge2_{name}({{0}})" if dtype == FLOAT32 else "1.5 + tanh({0})"
    found = ops_of(dtype).get(name)
    return found.text if found else f"ge2_{name}_{'f32' if dtype == FLOAT32 else 'f64'}({{0}})"


def source(name: str) -> str:
    truth = SPACING if name == "spacing" else text_of(name, FLOAT64)
    body = SOURCE.format(truth=truth.format("wide"), narrow=text_of(name, FLOAT32).format("x"))
    return "".join(f'#include "ge2/{each}.cuh"\n' for each in ("float", *headers(body))) + body


def limit(name: str) -> float:
    """In units of the last place, from the truth itself: half a unit more than
    is claimed of the nearest.
    """
    if name in TWICE:
        return 1.5
    if name == BESIDE_ONE:
        return 4.5
    return claims()[name][FLOAT32] + 0.5 if name in claims() else 0.5 * (name in ROUNDED)


def measured(
    device: Any, name: str, firsts: Iterable[int], count: int, blocks: int
) -> tuple[float, float, int]:
    """The largest error in ranges of `count` numbers, where it is, and how many ends are wrong."""
    with device.here() if hasattr(device, "here") else nullcontext():
        kernel = device.module(source(name)).get_function("worst")
        most, wrong = device.xp.zeros(1, np.uint64), device.xp.zeros(1, np.uint32)
        for first in firsts:
            kernel((blocks,), (256,), (np.uint32(first), np.uint32(count), most, wrong))
        packed, ends = int(most[0]), int(wrong[0])
    at = np.array(packed & 0xFFFFFFFF, np.uint32).view(np.float32)
    return (packed >> 32) / 65536, float(at), ends
