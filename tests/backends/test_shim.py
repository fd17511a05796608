"""CUDA sources on the CPU: what is right equals NumPy in any order of
threads, what is wrong is found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge2.base.config import config
from ge2.base.errors import CompileError, CompilerTrouble, InputError, KernelError
from ge2.targets.cuda.emulator import ShimDevice, _aligned, _parameter
from ge2.targets.cuda.emulator.shim import launcher
from ge2.targets.cuda.limits import A100, B200, H100, H200, KNOWN

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="blocks have shared memory of their own by a linker script",
)
SIZES = (1, 31, 32, 33, 1023, 1025, 7919)
SEEDS = (0, 1, 2, 3)
FULL = "0xffffffffu"


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        launcher()
    except CompilerTrouble as trouble:
        pytest.skip(str(trouble))


@pytest.fixture(params=[False, True], ids=["unwatched", "watched"])
def either(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is right is so whether accesses are watched or not."""
    with config.using(shim_watch=request.param):
        yield


def launched(
    source: str,
    args: tuple[Any, ...],
    grid: int = 1,
    block: int = 64,
    shared: int = 0,
    seed: int = 0,
) -> None:
    """Runs the first kernel of a source."""
    name = source.split("void ")[1].split("(")[0]
    ShimDevice(seed=seed).module(source).get_function(name)(
        (grid,), (block,), args, shared_mem=shared
    )


def kernel(body: str, parameters: str = "int *a, int n", name: str = "wrong") -> str:
    return f'extern "C" __global__ void {name}({parameters}) {{\n{body}\n}}\n'


def blocks(n: int, size: int) -> int:
    return -(-n // size)


# ------------------------------------------------------------------------------------ right kernels

ADD = kernel(
    """
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = __ldg(&a[i]) + k * b[i];""",
    "const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, float k, int64_t n",
    "add",
)

SUM = """
template <class T> __device__ __forceinline__ T of_warp(T x) {
    for (int by = 16; by > 0; by /= 2) x += __shfl_down_sync(0xffffffffu, x, by);
    return x;
}
template <class T> __device__ __forceinline__ T of_block(T x) {
    __shared__ T part[32];
    x = of_warp(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : T(0);
    return threadIdx.x < 32 ? of_warp(x) : x;
}
""" + kernel(
    """
    double x = 0;
    int odd = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        x += a[i], odd += (int)a[i] % 2;
    x = of_block(x);
    odd = of_block(odd);
    if (threadIdx.x == 0) sums[blockIdx.x] = x, odds[blockIdx.x] = odd;""",
    "const float *a, double *sums, int *odds, int n",
    "sum",
)

TRANSPOSE = kernel(
    """
    __shared__ double tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = a[(int64_t)y * columns + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
    if (x < rows && y < columns) b[(int64_t)y * rows + x] = tile[threadIdx.x][threadIdx.y];""",
    "const double *a, double *b, int rows, int columns",
    "transpose",
)

HISTOGRAM = kernel(
    """
    __shared__ unsigned own[16];
    if (threadIdx.x < 16) own[threadIdx.x] = 0;
    __syncthreads();
    const int step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) atomicAdd(&own[a[i]], 1u);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], (unsigned long long)own[threadIdx.x]);""",
    "const int *a, unsigned long long *counts, int n",
    "histogram",
)

SCAN = kernel(
    """
    __shared__ int s[64], before;
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    s[t] = i < n ? a[i] : 0;
    __syncthreads();
    for (int by = 1; by < 64; by *= 2) {
        int left = t >= by ? s[t - by] : 0;
        __syncthreads();
        s[t] += left;
        __syncthreads();
    }
    if (t == 0) {
        before = 0;
        if (blockIdx.x > 0) {
            while (flags[blockIdx.x - 1] == 0) WAIT;
            __threadfence();
            before = totals[blockIdx.x - 1];
        }
        totals[blockIdx.x] = before + s[63];
        __threadfence();
        flags[blockIdx.x] = 1;
    }
    __syncthreads();
    if (i < n) b[i] = before + s[t];""",
    "const int *a, int *b, volatile int *flags, volatile int *totals, int n",
    "scan",
)

REVERSE = kernel(
    """
    extern __shared__ __align__(16) unsigned char raw[];
    double *s = (double *)raw;
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = s[n - 1 - threadIdx.x];""",
    "double *a, int n",
    "reverse",
)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", SIZES)
def test_elements(n: int, seed: int, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, n)).astype(np.float32)
    c = np.full(n, np.nan, np.float32)
    launched(ADD, (a, b, c, np.float32(3), np.int64(n)), min(blocks(n, 64), 5), 64, seed=seed)
    np.testing.assert_array_equal(c, a + np.float32(3) * b)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", SIZES)
def test_a_sum_by_shuffles_and_shared_memory(n: int, seed: int, rng: np.random.Generator) -> None:
    a = rng.integers(0, 100, n).astype(np.float32)
    sums, odds = np.zeros(3), np.zeros(3, np.int32)
    launched(SUM, (a, sums, odds, np.int32(n)), 3, 128, seed=seed)
    assert sums.sum() == a.sum() and odds.sum() == (a % 2).sum()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (16, 17), (53, 2)])
def test_a_transpose_in_tiles(shape: tuple[int, int], seed: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal(shape)
    b = np.empty(shape[::-1])
    run = ShimDevice(seed=seed).module(TRANSPOSE).get_function("transpose")
    run((blocks(shape[1], 16), blocks(shape[0], 16)), (16, 16), (a, b, *map(np.int32, shape)))
    np.testing.assert_array_equal(b, a.T)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", SIZES)
def test_a_histogram_by_atomics(n: int, seed: int, rng: np.random.Generator) -> None:
    a, counts = rng.integers(0, 16, n).astype(np.int32), np.zeros(16, np.uint64)
    launched(HISTOGRAM, (a, counts, np.int32(n)), 4, 96, seed=seed)
    np.testing.assert_array_equal(counts, np.bincount(a, minlength=16))


@pytest.mark.exhaustive("wait")
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("wait", ["__nanosleep(20)", "__threadfence()"])
@pytest.mark.parametrize("n", SIZES)
def test_a_block_waits_for_those_before_it(n: int, wait: str, rng: np.random.Generator) -> None:
    a, k = rng.integers(0, 100, n).astype(np.int32), blocks(n, 64)
    for seed in SEEDS:
        b, flags, totals = np.zeros(n, np.int32), np.zeros(k, np.int32), np.zeros(k, np.int32)
        launched(SCAN.replace("WAIT", wait), (a, b, flags, totals, np.int32(n)), k, 64, seed=seed)
        np.testing.assert_array_equal(b, np.cumsum(a))


@pytest.mark.usefixtures("either")
def test_a_block_waits_for_another_by_atomics_and_votes() -> None:
    """Blocks in pairs: the first waits for a word of the second, which is begun later."""
    source = kernel(
        """
    const int other = blockIdx.x ^ 1;
    if (blockIdx.x % 2) atomicExch(&a[blockIdx.x], 7);
    bool there;
    do there = atomicOr(&a[other], 0) != 0 || blockIdx.x % 2;
    while (!__all_sync(0xffffffffu, there));
    if (blockIdx.x % 2 == 0) atomicExch(&a[blockIdx.x], atomicAdd(&a[other], 0) + 1);"""
    )
    for seed in SEEDS:
        a = np.zeros(6, np.int32)
        launched(source, (a, np.int32(6)), 6, 32, seed=seed)
        assert a.tolist() == [8, 7, 8, 7, 8, 7]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory_whose_size_the_launch_gives(seed: int) -> None:
    a = np.arange(77.0)
    launched(REVERSE, (a, np.int32(77)), 1, 77, shared=77 * 8, seed=seed)
    np.testing.assert_array_equal(a, np.arange(77.0)[::-1])


@pytest.mark.usefixtures("either")
def test_shared_memory_is_of_each_block_and_begins_with_junk() -> None:
    source = kernel(
        """
    __shared__ int s[4];
    extern __shared__ int t[][2];
    a[blockIdx.x] = s[1] == t[1][1] && s[1] != 0;
    s[1] = t[1][1] = blockIdx.x;
    __syncthreads();
    a[n + blockIdx.x] = s[1] + t[1][1];"""
    )
    for seed in SEEDS:
        a = np.zeros(20, np.int32)
        launched(source, (a, np.int32(10)), 10, 1, shared=16, seed=seed)
        assert a[:10].tolist() == [1] * 10 and a[10:].tolist() == [2 * i for i in range(10)]


# ------------------------------------------------------------------------------ words and functions


def evaluated(expressions: dict[str, Any], threads: int = 32, kind: str = "long long") -> None:
    """Each lane's value of an expression of its number `t` equals the given
    list, or value of all lanes.
    """
    lines = "\n".join(f"y[{i} * {threads} + t] = {words};" for i, words in enumerate(expressions))
    y = np.zeros((len(expressions), threads), {"long long": np.int64, "double": np.float64}[kind])
    launched(
        kernel(f"const int t = threadIdx.x;\n{lines}", f"{kind} *y", "words"), (y,), 1, threads
    )
    for (words, expected), got in zip(expressions.items(), y, strict=True):
        np.testing.assert_array_equal(got, np.broadcast_to(expected, threads), words)


LANES = np.arange(32)


@pytest.mark.usefixtures("either")
def test_lanes_read_each_other() -> None:
    evaluated(
        {
            f"__shfl_sync({FULL}, t * 10, 5)": 50,
            f"__shfl_sync({FULL}, t * 10, 37)": 50,
            f"__shfl_sync({FULL}, (long long)t << 40, 5, 8)": (LANES // 8 * 8 + 5) << 40,
            f"__shfl_sync({FULL}, (char)t, 5)": 5,
            f"(long long)__shfl_sync({FULL}, t * 0.5, 5)": 2,
            f"__shfl_up_sync({FULL}, t, 3)": np.where(LANES < 3, LANES, LANES - 3),
            f"__shfl_up_sync({FULL}, t, 3, 16)": np.where(LANES % 16 < 3, LANES, LANES - 3),
            f"__shfl_down_sync({FULL}, t, 3)": np.where(LANES > 28, LANES, LANES + 3),
            f"__shfl_down_sync({FULL}, t, 1, 4)": np.where(LANES % 4 == 3, LANES, LANES + 1),
            f"__shfl_xor_sync({FULL}, t, 5)": LANES ^ 5,
            f"__shfl_xor_sync({FULL}, t, 16, 16)": np.where(LANES < 16, LANES, LANES ^ 16),
        }
    )


@pytest.mark.usefixtures("either")
def test_lanes_vote() -> None:
    evaluated(
        {
            f"__ballot_sync({FULL}, t % 3 == 0)": 0b01001001001001001001001001001001,
            f"__any_sync({FULL}, t == 31)": 1,
            f"__any_sync({FULL}, t == 32)": 0,
            f"__all_sync({FULL}, t < 32)": 1,
            f"__all_sync({FULL}, t < 31)": 0,
            f"__match_any_sync({FULL}, t / 16)": np.where(LANES < 16, 0xFFFF, 0xFFFF0000),
            f"__reduce_add_sync({FULL}, t)": 496,
            f"__reduce_min_sync({FULL}, -t)": -31,
            f"__reduce_max_sync({FULL}, -t)": 0,
            f"__reduce_max_sync({FULL}, (unsigned)-t)": 0xFFFFFFFF,
            f"__reduce_xor_sync({FULL}, 1u << t)": 0xFFFFFFFF,
            "t < 8 ? __ballot_sync(0xff, 1) : __ballot_sync(0xffffff00, 1)": np.where(
                LANES < 8, 0xFF, 0xFFFFFF00
            ),
            "__syncthreads_count(t % 2)": 16,
            "__syncthreads_or(t == 5)": 1,
            "__syncthreads_and(t != 5)": 0,
            "__activemask()": 1 << LANES,
        }
    )


def test_a_warp_that_is_not_full() -> None:
    evaluated({f"__ballot_sync({FULL}, 1)": 0xFFFFF, f"__all_sync({FULL}, t < 20)": 1}, threads=20)


@pytest.mark.usefixtures("either")
def test_bits() -> None:
    evaluated(
        {
            "__popc(0xf0f0)": 8,
            "__popcll(-1)": 64,
            "__clz(1)": 31,
            "__clz(0)": 32,
            "__clzll(0)": 64,
            "__ffs(0)": 0,
            "__ffs(8)": 4,
            "__brev(1)": 1 << 31,
            "(long long)(__brevll(6) >> 61)": 3,
            "__byte_perm(0x33221100, 0x77665544, 0x7240)": 0x77224400,
            "__funnelshift_l(0x80000001u, 0x2u, 1)": 5,
            "__funnelshift_r(0x80000001u, 0x3u, 1)": 0xC0000000,
            "__umulhi(0xffffffffu, 16)": 15,
            "__mulhi(-1, 16)": -1,
            "(long long)__umul64hi(~0ull, 16)": 15,
            "__float_as_int(-0.0f)": -(2**31),
            "__float_as_uint(1.0f)": 0x3F800000,
            "__double_as_longlong(1.0)": 0x3FF << 52,
            "__double2hiint(__hiloint2double(17, 5))": 17,
            "__float2int_rn(2.5f)": 2,
            "__float2int_rz(-2.5f)": -2,
            "__float2int_rd(-2.5f)": -3,
            "__float2int_ru(2.5f)": 3,
            "__float2int_rz(1e20f)": 2**31 - 1,
            "__float2int_rz(__int_as_float(0x7fc00000))": 0,
            "__double2uint_rz(-4.0)": 0,
            "__double2ll_rz(-1e30)": -(2**63),
            "sizeof(float4) + alignof(float4) + sizeof(float3) + alignof(double2)": 16
            + 16
            + 12
            + 16,
            "make_int4(1, 2, 3, 4).w + make_uint2(5, 6).y": 10,
        }
    )


@pytest.mark.usefixtures("either")
def test_functions_of_numbers() -> None:
    nan = "__longlong_as_double(0x7ff8000000000000ll)"
    evaluated(
        {
            "sqrt(2.0)": np.sqrt(2.0),
            "sizeof(tanh(0.5f)) + 10 * sizeof(tanh(0.5))": 84.0,
            "tanh(0.5f) == tanhf(0.5f)": 1.0,
            "tanh(0.5) != tanhf(0.5f)": 1.0,
            "fma(3.0, 4.0, 5.0)": 17.0,
            "__fmaf_rn(1.1f, 1.1f, -1.21f)": float(
                np.float32(np.float64(np.float32(1.1)) ** 2 - np.float64(np.float32(1.21)))
            ),
            "min(2.0f, 1.5)": 1.5,
            f"max(2.0, {nan})": 2.0,
            "max(2, 3) + min(2u, 3u) + max(2ll, 5ll)": 10.0,
            "abs(-2.5) + abs(-2) + fabs(-1.0f)": 5.5,
            f"isnan({nan}) + isinf(1.0f) + signbit(-0.0) + isfinite(1.0)": 3.0,
            "sinpi(1.0) + cospi(1.0) + sinpi(0.5) + cospi(0.5)": 0.0,
            "rsqrt(4.0) + rsqrtf(4.0f)": 1.0,
            "copysign(1.0, -0.0)": -1.0,
            "ldexp(1.5, 4)": 24.0,
        },
        kind="double",
    )


@pytest.mark.usefixtures("either")
def test_atomics_give_what_was_there() -> None:
    source = kernel(
        """
    float *f = (float *)(a + 8);
    unsigned long long *w = (unsigned long long *)(a + 10);
    const int t = threadIdx.x;
    atomicAdd(&a[0], 2); atomicSub(&a[1], 1); atomicMin(&a[2], -t); atomicMax(&a[3], t);
    atomicOr(&a[4], 1 << t); atomicAnd(&a[5], ~(1 << t)); atomicXor(&a[6], 3);
    atomicInc((unsigned *)&a[7], 4u); atomicAdd(f, 0.5f); atomicMax(w, 1ull << 40);
    if (threadIdx.x == 0) a[9] = atomicCAS(&a[12], 5, 6) + atomicCAS(&a[12], 5, 7) + atomicExch(&a[12], 1);"""
    )
    for seed in SEEDS:
        a = np.zeros(13, np.int32)
        a[5], a[12] = -1, 5
        launched(source, (a, np.int32(0)), 1, 31, seed=seed)
        assert a[:8].tolist() == [62, -31, -30, 30, 2**31 - 1, -(2**31), 3, 1]
        assert a[8:9].view(np.float32)[0] == 15.5 and a[9] == 5 + 6 + 6 and a[12] == 1
        assert a[10:12].view(np.int64)[0] == 1 << 40


@pytest.mark.usefixtures("either")
def test_arguments_of_every_kind() -> None:
    source = """
struct alignas(8) pair { float x, y; };
""" + kernel(
        "y[0] = a + b + c + d + e + p.x + p.y + (q ? 100 : 0) + (z == nullptr);",
        "double *y, char a, unsigned short b, int64_t c, float d, double e, const pair p, bool q, int *z",
        "kinds",
    )
    y = np.zeros(1)
    numbers = (np.int8(-1), np.uint16(2), np.int64(4), np.float32(8), np.float64(16))
    rest = (np.complex64(32 + 64j), np.bool_(True), None)
    launched(source, (np.uint64(y.ctypes.data), *numbers, *rest), 1, 1)
    assert y[0] == -1 + 2 + 4 + 8 + 16 + 96 + 100 + 1


def test_structs_are_aligned_as_their_type_asks() -> None:
    source = """
struct alignas(64) map { unsigned long long words[16]; };
""" + kernel(
        "y[0] = (int64_t)&a % 64; y[1] = (int64_t)&b % 64;",
        "int64_t *y, const map a, const map b",
        "maps",
    )
    y, word = np.ones(2, np.int64), np.zeros((), "V128")
    launched(source, (np.uint64(y.ctypes.data), word, word), 1, 1)
    assert y.tolist() == [0, 0]
    for n in (1, 8, 128):  # which is no luck
        made = [_parameter(bytes(n)) for _ in range(20)]
        assert not any(_aligned(memory) % 64 for memory in made)


# --------------------------------------------------------------------------------- planted mistakes

REPORTED = {
    "if (threadIdx.x < 5) __syncthreads();": "__syncthreads is not reached by all .*has ended",
    "if (threadIdx.x < 5) __syncthreads(); else __syncthreads();": "__syncthreads is not reached .*waits",
    "if (threadIdx.x >= n) return;\na[threadIdx.x] = __shfl_down_sync(0xffffffffu, a[threadIdx.x], 1);": (
        "reads lane 1, which has ended"
    ),
    "a[0] = __shfl_sync(0xffffffffu, 1, 40 % 32);": "reads lane 8, which the block does not have",
    "if (threadIdx.x < 4) a[0] = __shfl_sync(0xfu, 1, 4);": "reads lane 4, which is not in the mask",
    "a[0] = __shfl_sync(0x0fu, 1, 0);": "is called by lane 4, which is not in the mask",
    "if (threadIdx.x < 4) __syncwarp();\nelse __syncthreads();": "for lane 4, but .* waits in __syncthreads",
    "if (threadIdx.x < 4) __syncwarp();\nelse __any_sync(~0u, 1);": "for lane ., .* waits in __any_sync",
    "while (atomicAdd(&a[0], 0) == 0);": "wait for what never comes",
    "assert(threadIdx.x != 3);": "assert",
    "extern __shared__ int s[];\ns[threadIdx.x + 2] = 1;": "writes beyond the 20 bytes of shared memory",
}


@pytest.mark.exhaustive("body")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("body", REPORTED)
def test_what_has_no_meaning_is_reported(body: str, seed: int) -> None:
    threads = 5 if "40 % 32" in body or "extern" in body else 64
    if body.startswith(("if (threadIdx.x < 4)", "a[0] = __shfl_sync(0x0f")):
        threads = 5
    with pytest.raises(KernelError, match=REPORTED[body]) as caught:
        launched(kernel(body), (np.zeros(64, np.int32), np.int32(33)), 2, threads, 20, seed)
    assert str(caught.value).startswith("wrong: ") and "block (" in str(caught.value)


def test_a_report_names_line_block_and_thread() -> None:
    body = "int i = threadIdx.y;\nif (blockIdx.y == 1 && i == 2 && threadIdx.x == 3)\n    __trap();"
    run = ShimDevice().module(kernel(body)).get_function("wrong")
    with pytest.raises(KernelError, match=r"wrong.cu:4, block \(0, 1, 0\), thread \(3, 2, 0\)"):
        run((1, 2), (4, 4), (np.zeros(1, np.int32), np.int32(0)))


def test_after_a_report_all_goes_on() -> None:
    for _ in range(3):
        with pytest.raises(KernelError):
            launched(kernel("if (threadIdx.x < 5) __syncthreads();"), (None, np.int32(0)), 40, 1024)
        a = np.arange(64.0)
        launched(REVERSE, (a, np.int32(64)), 1, 64, shared=512)
        assert a[0] == 63


UNSAFE = {
    "no barrier before neighbours are read": (
        "__shared__ int s[64];\ns[threadIdx.x] = threadIdx.x;\na[threadIdx.x] = s[63 - threadIdx.x];"
    ),
    "no barrier before what was read is written": (
        """
        __shared__ int s[64];
        s[threadIdx.x] = 63 - threadIdx.x;
        __syncthreads();
        int left = s[(threadIdx.x + 63) % 64];
        s[threadIdx.x] = 0;
        a[threadIdx.x] = 62 - (left + 62) % 64;"""
    ),
    "lanes are taken to run together": (
        "__shared__ int s[64];\ns[threadIdx.x] = threadIdx.x;\na[threadIdx.x] = s[threadIdx.x ^ 31];"
    ),
    "what was never written is read": "__shared__ int s[64];\na[threadIdx.x] = s[threadIdx.x] + threadIdx.x;",
}


@pytest.mark.parametrize("what", UNSAFE)
def test_a_missing_barrier_shows_in_some_order(what: str) -> None:
    right = {"no barrier before neighbours are read": np.arange(64)[::-1]}
    right["lanes are taken to run together"] = np.arange(64) ^ 31
    results = []
    for seed in SEEDS:
        a = np.zeros(65, np.int32)
        launched(kernel(UNSAFE[what]), (a, np.int32(64)), 1, 64, seed=seed)
        results.append(a[:64].tolist())
    assert any(each != right.get(what, np.arange(64)).tolist() for each in results)
    assert len({tuple(each) for each in results}) > 1


WATCHED = {
    "__shared__ int s[64];\ns[threadIdx.x] = threadIdx.x;\na[threadIdx.x] = s[63 - threadIdx.x];": (
        "byte [0-9]+ of static shared memory, which another thread (reads|writes); no barrier",
        "wrong.cu:[34] and wrong.cu:[34], block",
    ),
    "extern __shared__ int s[];\ns[threadIdx.x] = n;\n__syncthreads();\na[threadIdx.x] = s[2]++;": (
        "byte 8 of dynamic shared memory, which another thread",
        "wrong.cu:5, block",
    ),
    "__shared__ int s[64];\ns[threadIdx.x] = n;\n__any_sync(~0u, n);\nn = s[threadIdx.x ^ 1];\na[0] = n;": (
        "of static shared memory, which another thread",
        "wrong.cu:[35] and wrong.cu:[35], block",
    ),
    "a[threadIdx.x / 2] = n;": (
        "writes byte [0-9]+ of argument 0, which another thread writes",
        "wrong.cu:2, block",
    ),
    "a[threadIdx.x] = n;": ("argument 0, which a thread of block [01] writes", "wrong.cu:2, block"),
    "if (threadIdx.x) return;\nif (blockIdx.x) a[0] = n;\nelse a[7] = a[0];": (
        "(reads|writes) byte 0 of argument 0, which a thread of block [01] (reads|writes)",
        "wrong.cu:[34] and wrong.cu:[34], block",
    ),
    "atomicAdd(&a[3], 1);\na[3] = 1;": ("byte 12 of argument 0, which", "wrong.cu:[23]"),
    "a[threadIdx.x + 64 * blockIdx.x] = n;": (
        "writes 4 bytes at byte [2-5][0-9]{2} of argument 0, outside of all arrays",
        "wrong.cu:2, block .1, 0, 0., thread",
    ),
    "n = a[-1];\nif (n == 5) a[0] = 1;": (
        "reads 4 bytes at byte -4 of argument 0, outside",
        "wrong.cu:2",
    ),
    "extern __shared__ int s[];\nif (s[threadIdx.x + 1] == 5) a[0] = 1;": (
        "reads 4 bytes at byte 256 of dynamic shared memory, beyond what it was given",
        "wrong.cu:3, block .*, thread .63,",
    ),
    "__shared__ int s[2][32];\nfor (int i = 0; i < 64; i++) s[0][i] = i;": (
        "index 32 lies outside",
        "wrong.cu:3, block",
    ),
    "float4 *f = (float4 *)(a + 1);\nf[0].x = 1;": (
        "no multiple of the 16 bytes to which its type is",
        "wrong.cu:3",
    ),
    "int *b = nullptr;\nif (n == 33) b[0] = 1;": ("a null pointer is followed", "wrong.cu:3"),
    "AHEAD __syncthreads();\na[64] = s[n - 33];": (
        "reads byte 0 of static shared memory, which a copy is yet to bring: its thread has not",
        "wrong.cu:3 and ahead.cuh",
    ),
    "AHEAD ge2_ahead_wait_but<1>(); __syncthreads();\na[64] = s[n - 33];": (
        "reads byte 0 of static shared memory, which a copy is yet to bring",
        "wrong.cu:3",
    ),
    "AHEAD s[threadIdx.x] = 1;\nge2_ahead_wait();": (
        "writes byte [0-9]+ of static shared memory, which a copy is yet to bring",
        "wrong.cu:2",
    ),
    "AHEAD ge2_ahead_wait(); __syncwarp();\na[64] = s[threadIdx.x ^ 32];": (
        "(reads|writes) byte [0-9]+ of static shared memory, which another thread (reads|writes)",
        "wrong.cu:[23]",
    ),
    "__shared__ int s[66];\nge2_ahead_piece<8>(s + 2 * (threadIdx.x / 2) + 1, a);": (
        "which is no multiple of its size",
        "ahead.cuh",
    ),
}
AHEAD = (
    "__shared__ int s[64]; ge2_ahead_piece<4>(s + threadIdx.x, a + threadIdx.x); ge2_ahead_group();"
)


@pytest.mark.exhaustive("body")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("body", WATCHED)
def test_accesses_that_are_watched(body: str, seed: int) -> None:
    source = kernel(body.replace("AHEAD", AHEAD))
    if "ge2_ahead" in source:
        source = source.replace("extern", '#include "ge2/ahead.cuh"\n#line 1\nextern', 1)
    run = ShimDevice(seed=seed, watch=True).module(source).get_function("wrong")
    with pytest.raises(KernelError, match=WATCHED[body][0]) as caught:
        run((2,), (64,), (np.zeros(64, np.int32), np.int32(33)), shared_mem=256)
    assert re.search(WATCHED[body][1], str(caught.value)), str(caught.value)


SET_APART = {
    "lanes that meet": """
        __shared__ int s[64];
        for (int i = 0; i < 3; i++) {
            s[threadIdx.x] = i;
            __syncwarp();
            n += s[threadIdx.x ^ 1];
            __syncwarp();
        }""",
    "bytes of one word": """
        __shared__ char s[64];
        s[threadIdx.x] = n;
        ((char *)a)[threadIdx.x + 64 * blockIdx.x] = n;""",
    "reads by all": "__shared__ int s;\nif (threadIdx.x == 0) s = 5;\n__syncthreads();\nn += s + a[0];",
    "blocks that use a fence": """
        __shared__ bool last;
        a[blockIdx.x] = 1;
        __threadfence();
        if (threadIdx.x == 0) last = atomicAdd(&a[9], 1) == 1;
        __syncthreads();
        if (last && threadIdx.x == 0) a[8] = a[0] + a[1];""".replace(
        "a[blockIdx", "if (threadIdx.x == 0) a[blockIdx"
    ),
    "a place that is only an address": "volatile int *p = *(volatile int **)(a + 2);\nn += *p;",
}


@pytest.mark.parametrize("what", SET_APART)
def test_accesses_that_are_set_apart(what: str) -> None:
    for seed in SEEDS:
        a = np.zeros(64, np.int32)
        a[2:4].view(np.uint64)[0] = a.ctypes.data
        run = (
            ShimDevice(seed=seed, watch=True).module(kernel(SET_APART[what])).get_function("wrong")
        )
        run((2,), (64,), (np.uint64(a.ctypes.data), np.int32(33)))


def test_local_variables_beyond_the_stack_are_refused() -> None:
    body = "int x[60000];\nfor (int i = 0; i < n; i++) x[i * 9] = i;\n__syncthreads();\na[0] = x[n] + x[2 * n];"
    with pytest.raises(CompileError, match="frame size"):
        launched(kernel(body), (np.zeros(1, np.int32), np.int32(3)))


def test_a_source_that_is_no_cpp_or_has_no_kernel() -> None:
    with pytest.raises(CompileError, match=r"wrong.cu:3.*error"):
        ShimDevice().module(
            kernel("int i;\ni = ;").replace("i;\ni", "i; i").replace("int i;", "int i;\n")
        )
    with pytest.raises(CompileError, match="no kernel"):
        ShimDevice().module("__device__ int f(int n) { return n; }")


ARRAY, NUMBER = np.zeros(1, np.int32), np.int32(1)
LAUNCHES: dict[str, tuple[Any, Any, Any, int]] = {
    "grid of .0, 1, 1.": ((0,), (1,), (ARRAY, NUMBER), 0),
    "grid of .1, 65536, 1.": ((1, 65536), (1,), (ARRAY, NUMBER), 0),
    "block of .1, 1, 65.": ((1,), (1, 1, 65), (ARRAY, NUMBER), 0),
    "with 1040 threads a block": ((1,), (26, 40), (ARRAY, NUMBER), 0),
    "takes 2 arguments; got 1": ((1,), (1,), (ARRAY,), 0),
    "argument 1 .* integer of 4 bytes; got int64": ((1,), (1,), (ARRAY, np.int64(1)), 0),
    "argument 1 .* integer of 4 bytes; got float32": ((1,), (1,), (ARRAY, np.float32(1)), 0),
    "argument 1 .* got an array": ((1,), (1,), (ARRAY, ARRAY), 0),
    "argument 0 .* an array or its address": ((1,), (1,), (NUMBER, NUMBER), 0),
    "shared memory, more than there is": ((1,), (1,), (ARRAY, NUMBER), 228 << 10),
}


@pytest.mark.parametrize("words", LAUNCHES)
def test_launches_that_a_gpu_refuses(words: str) -> None:
    grid, block, args, shared = LAUNCHES[words]
    run = ShimDevice(H100).module(kernel("a[0] = n;", name="plain")).get_function("plain")
    with pytest.raises(InputError, match=words):
        run(grid, block, args, shared_mem=shared)


def test_more_threads_than_the_bounds_that_a_kernel_names() -> None:
    source = "constexpr int BLOCK = 64;\n" + kernel("a[0] = n;").replace(
        "void", "void __launch_bounds__(BLOCK, 2)"
    )
    run = ShimDevice().module(source).get_function("wrong")
    run((1,), (64,), (np.zeros(1, np.int32), np.int32(1)))
    with pytest.raises(InputError, match="65 threads a block; it takes 64"):
        run((1,), (65,), (np.zeros(1, np.int32), np.int32(1)))


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no kernel other"):
        ShimDevice().module(ADD).get_function("other")


def test_the_order_is_that_of_the_settings_and_the_same_each_time() -> None:
    source = kernel("a[atomicAdd(&a[64], 1)] = threadIdx.x;")
    orders = []
    for seed in (0, 5, 5, 6):
        a = np.zeros(65, np.int32)
        with config.using(shim_seed=seed):
            ShimDevice().module(source).get_function("wrong")((1,), (64,), (a, np.int32(0)))
        orders.append(a[:64].tolist())
    assert orders[0] == list(range(64)) and orders[1] == orders[2] != orders[3]
    assert sorted(orders[1]) == sorted(orders[3]) == orders[0]


def test_the_order_of_blocks() -> None:
    """That of their numbers, the last first, neighbours in any order, and those far apart."""
    source = kernel("if (threadIdx.x == 0) a[atomicAdd(&a[n], 1)] = blockIdx.x;")
    orders = []
    for seed in range(4):
        a = np.zeros(41, np.int32)
        ShimDevice(seed=seed).module(source).get_function("wrong")((40,), (32,), (a, np.int32(40)))
        orders.append(a[:40].tolist())
    blocks = list(range(40))
    assert orders[:2] == [blocks, blocks[::-1]]
    assert [sorted(each) for each in orders[2:]] == [blocks] * 2
    near, far = (max(abs(b - n) for n, b in enumerate(each)) for each in orders[2:])
    assert 0 < near < 8 < far


@pytest.mark.parametrize("seed", range(4))
def test_blocks_that_wait_for_those_before_them_end_in_any_order(seed: int) -> None:
    """More of them than are begun at once, each of which waits for the one before."""
    source = kernel(
        "if (threadIdx.x || blockIdx.x == 0) return;\n"
        "while (atomicAdd(&a[blockIdx.x - 1], 0) == 0) __nanosleep(20);\n"
        "atomicExch(&a[blockIdx.x], n + blockIdx.x);"
    )
    a = np.eye(1, 600, dtype=np.int32)[0]
    ShimDevice(seed=seed).module(source).get_function("wrong")((600,), (32,), (a, np.int32(1)))
    assert a.tolist() == list(range(1, 601))


@pytest.mark.parametrize("seed", range(4))
def test_a_bundle_whose_members_wait_for_each_other_is_wrong_in_another_order(seed: int) -> None:
    """Sixteen blocks of one, and those of one that reads what it writes: right in their own order,
    and where neighbours change places.
    """
    source = kernel(
        "const int k = blockIdx.x % 16 * 32 + threadIdx.x;\n"
        "a[n * (1 + blockIdx.x / 16) + k] = a[n * (blockIdx.x / 16) + k] + 1;"
    )
    a, n = np.zeros(3 * 512, np.int32), np.int32(512)
    ShimDevice(seed=seed).module(source).get_function("wrong")((32,), (32,), (a, n))
    assert (a[1024:] == 2).all() == (seed in (0, 2))
    with pytest.raises(KernelError, match="a thread of block [0-9]+ (reads|writes)"):
        ShimDevice(seed=seed, watch=True).module(source).get_function("wrong")((32,), (32,), (a, n))


def test_launches_from_several_threads() -> None:
    def sums(n: int) -> list[float]:
        a, found = np.full(n, 2, np.float32), []
        for _ in range(20):
            part, odds = np.zeros(3), np.zeros(3, np.int32)
            launched(SUM, (a, part, odds, np.int32(n)), 3, 128)
            found.append(part.sum())
        return found

    with ThreadPoolExecutor(4) as pool:
        assert [set(each) for each in pool.map(sums, (100, 200, 300, 400))] == [
            {200},
            {400},
            {600},
            {800},
        ]


def test_static_shared_memory_beyond_48_kb() -> None:
    source = kernel("__shared__ double s[6145];\ns[threadIdx.x + n] = 1;\na[0] = s[0];")
    run = ShimDevice().module(source).get_function("wrong")
    with pytest.raises(InputError, match="49160 . 0 bytes of shared memory"):
        run((1,), (1,), (np.zeros(1, np.int32), np.int32(0)))


def test_limits_of_the_known_devices() -> None:
    assert {each.name: each.architecture for each in KNOWN} == {
        "A100": "sm_80",
        "H100": "sm_90a",
        "H200": "sm_90a",
        "B200": "sm_100a",
    }
    assert (A100.shared_optin, H200.shared_optin) == (163 << 10, 227 << 10)
    assert B200.multiprocessors == 148 and H200.threads == 132 * 2048


# -------------------------------------------------------------------------------- address sanitizer

OUTSIDE = {
    "heap-buffer-overflow": "a[threadIdx.x + 1] = n;",
    "global-buffer-overflow": "__shared__ int s[64]; s[threadIdx.x + n / 20] = 1; a[0] = s[n];",
    "use-after-poison": "extern __shared__ int s[]; if (n == 20) a[threadIdx.x] = s[threadIdx.x + n];",
    "stack-buffer-overflow": "int x[4]; for (int i = 0; i < n; i++) x[i % 5] = i; a[0] = x[n % 4];",
}
LARGE = kernel(
    "__shared__ double s[6100];\ns[6099] = 5;\n__syncthreads();\na[0] = s[6099];",
    "double *a",
    "large",
)
PROGRAM = """
import sys
import numpy as np
from ge2.targets.cuda.emulator import ShimDevice

for seed in (0, 1):
    device = ShimDevice(seed=seed)
    a, sums, odds = np.ones(7919, np.float32), np.zeros(3), np.zeros(3, np.int32)
    device.module(SUM).get_function("sum")((3,), (128,), (a, sums, odds, np.int32(7919)))
    assert sums.sum() == odds.sum() == 7919
    n, k = 1025, 17
    a, b = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    rest = (np.zeros(k, np.int32), np.zeros(k, np.int32), np.int32(n))
    device.module(SCAN).get_function("scan")((k,), (64,), (a, b, *rest))
    assert (b == np.cumsum(a)).all()
    a = np.arange(77.0)
    device.module(REVERSE).get_function("reverse")((1,), (77,), (a, np.int32(77)), shared_mem=77 * 8)
    assert a[0] == 76
    device.module(LARGE).get_function("large")((1,), (1,), (a,))
    assert a[0] == 5
for what, source in OUTSIDE.items():
    print("now", what, file=sys.stderr, flush=True)
    run = ShimDevice().module(source).get_function("wrong")
    run((1,), (64,), (np.zeros(64, np.int32), np.int32(20)), shared_mem=64 * 4)
"""


def test_places_outside_are_found_by_the_address_sanitizer(tmp_path: Path) -> None:
    """In one process, which goes on after each report; right kernels run first, without any."""
    asked = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    if not os.path.isabs(asked.stdout.strip()):
        pytest.skip("gcc has no address sanitizer here")
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nexec gcc "$@" -fsanitize=address -fsanitize-recover=address\n')
    compiler.chmod(0o755)
    variables = {
        "LD_PRELOAD": asked.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0",
        "PYTHONMALLOC": "malloc",
        "GE2_CC": str(compiler),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    sources = {what: kernel(body) for what, body in OUTSIDE.items()}
    scan = SCAN.replace("WAIT", "__nanosleep(20)")
    texts = f"SUM = {SUM!r}\nSCAN = {scan!r}\nREVERSE = {REVERSE!r}\nLARGE = {LARGE!r}\nOUTSIDE = {sources!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", texts + PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | variables,
    )
    right, *wrong = done.stderr.split("now ")
    assert done.returncode == 0 and right == "", right[-3000:]
    assert len(wrong) == len(OUTSIDE)
    for what, told in zip(OUTSIDE, wrong, strict=True):
        assert f"AddressSanitizer: {what}" in told, told[-3000:]
        assert "in wrong, block (0, 0, 0), thread (" in told
