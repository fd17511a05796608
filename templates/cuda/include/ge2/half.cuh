/* float16, bfloat16 and fp8 from and to float32: rounded to nearest, ties to even, as NumPy and ml_dtypes do it.
 *
 * fp8 goes by integer operations, for the processor's own conversion saturates; e4m3fn knows no infinity and overflows
 * to NaN. A NaN stays one, but on a GPU float16 and bfloat16 have a single NaN: neither its sign nor its payload passes.
 */
#ifndef GE2_HALF_CUH
#define GE2_HALF_CUH

#include "ge2/core.cuh"

/* The magnitude `a` of a float, rounded to M bits of fraction and exponents of that bias; `top` where it is too large.
 * Below the least normal number, the sum with a power of two whose last place is the wanted one rounds it. */
GE2_FN uint32_t ge2_rounded(uint32_t a, int M, uint32_t bias, uint32_t top) {
    const int cut = 23 - M;
    const uint32_t unit = (uint32_t)(127 + 24 - M - (int)bias) << 23;
    const uint32_t normal = (a + (1u << (cut - 1)) - 1 + (a >> cut & 1) - ((127 - bias) << 23)) >> cut;
    const uint32_t small = __float_as_uint(__uint_as_float(a) + __uint_as_float(unit)) - unit;
    const uint32_t r = a < (128 - bias) << 23 ? small : normal;
    return r < top ? r : top;
}

/* The other way, exact; `least` is the number whose bits are 1. What is not finite, from `top` on, needs other rules. */
GE2_FN uint32_t ge2_widened(uint32_t a, int M, uint32_t bias, float least) {
    const uint32_t small = __float_as_uint((float)(int32_t)a * least);
    const uint32_t normal = (a << (23 - M)) + ((127 - bias) << 23);
    return a < 1u << M ? small : normal;
}

#ifndef GE2_SHIM
/* One of two: by itself a number would go through the unit of special functions, as tanh does. */
GE2_FN uint16_t ge2_cast_f32_f16(float x) {
#if __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return (uint16_t)pair;
#else
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#endif
}

GE2_FN uint16_t ge2_cast_f64_f16(double x) {
    uint16_t h;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h) : "d"(x));
    return h;
}

GE2_FN float ge2_cast_f16_f32(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return __uint_as_float(__float_as_uint(x) | ((uint32_t)h & 0x8000u) << 16); /* a NaN has lost its sign */
}

GE2_FN uint16_t ge2_cast_f32_bf16(float x) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return (uint16_t)pair;
}
#else
GE2_FN uint16_t ge2_cast_f32_f16(float x) {
    const uint32_t u = __float_as_uint(x), a = u & 0x7fffffffu;
    const uint32_t payload = a >> 13 & 0x3ff, nan = 0x7c00 + payload + !payload;
    return (uint16_t)((a > 0x7f800000u ? nan : ge2_rounded(a, 10, 15, 0x7c00)) | (u >> 16 & 0x8000));
}

/* NumPy rounds a double to float16 once. */
GE2_FN uint16_t ge2_cast_f64_f16(double x) {
    const uint64_t u = (uint64_t)__double_as_longlong(x), a = u & INT64_MAX, infinity = 0x7ffull << 52;
    const uint64_t payload = a >> 42 & 0x3ff, nan = 0x7c00 + payload + !payload;
    const uint64_t normal = (a + (1ull << 41) - 1 + (a >> 42 & 1) - (1008ull << 52)) >> 42;
    const uint64_t small = (uint64_t)(__double_as_longlong(fabs(x) + 0x1p28) - __double_as_longlong(0x1p28));
    const uint64_t r = a < 1009ull << 52 ? small : normal;
    return (uint16_t)((a > infinity ? nan : r < 0x7c00 ? r : 0x7c00) | (u >> 48 & 0x8000));
}

GE2_FN float ge2_cast_f16_f32(uint16_t h) {
    const uint32_t a = h & 0x7fff, r = ge2_widened(a, 10, 15, 0x1p-24f);
    return __uint_as_float((a < 0x7c00 ? r : a << 13 | 0x7f800000u) | (uint32_t)(h & 0x8000) << 16);
}

GE2_FN uint16_t ge2_cast_f32_bf16(float x) {
    const uint32_t u = __float_as_uint(x), nan = 0x7fc0 | (u >> 16 & 0x8000);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#endif

GE2_FN float ge2_cast_bf16_f32(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

GE2_FN uint8_t ge2_cast_f32_f8_e4m3fn(float x) {
    const uint32_t u = __float_as_uint(x);
    return (uint8_t)(ge2_rounded(u & 0x7fffffffu, 3, 7, 0x7f) | (u >> 24 & 0x80));
}

GE2_FN uint8_t ge2_cast_f32_f8_e5m2(float x) {
    const uint32_t u = __float_as_uint(x), a = u & 0x7fffffffu;
    return (uint8_t)((a > 0x7f800000u ? 0x7e : ge2_rounded(a, 2, 15, 0x7c)) | (u >> 24 & 0x80));
}

GE2_FN float ge2_cast_f8_e4m3fn_f32(uint8_t h) {
    const uint32_t a = h & 0x7f, r = ge2_widened(a, 3, 7, 0x1p-9f);
    return __uint_as_float((a < 0x7f ? r : 0x7fc00000u) | (uint32_t)(h & 0x80) << 24);
}

GE2_FN float ge2_cast_f8_e5m2_f32(uint8_t h) {
    const uint32_t a = h & 0x7f, r = ge2_widened(a, 2, 15, 0x1p-16f);
    return __uint_as_float((a < 0x7c ? r : a == 0x7c ? 0x7f800000u : 0x7fc00000u) | (uint32_t)(h & 0x80) << 24);
}

/* to the half types that NumPy does not know, ml_dtypes goes through float32 */
GE2_FN uint16_t ge2_cast_f64_bf16(double x) { return ge2_cast_f32_bf16((float)x); }
GE2_FN uint8_t ge2_cast_f64_f8_e4m3fn(double x) { return ge2_cast_f32_f8_e4m3fn((float)x); }
GE2_FN uint8_t ge2_cast_f64_f8_e5m2(double x) { return ge2_cast_f32_f8_e5m2((float)x); }

#endif
