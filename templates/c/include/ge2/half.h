/* float16, bfloat16 and fp8 from and to float32, with integer operations that compilers vectorise.
 *
 * Rounded to nearest, ties to even, as NumPy and ml_dtypes do it; e4m3fn knows no infinity and overflows to NaN.
 */
#ifndef GE2_HALF_H
#define GE2_HALF_H

#include "core.h"

GE2_FN uint32_t ge2_word_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
GE2_FN float ge2_float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
GE2_FN uint64_t ge2_long_word_of(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
GE2_FN double ge2_double_of(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* The magnitude `a` of a float, rounded to M bits of fraction and exponents of that bias; `top` where it is too large.
 * Below the least normal number, the sum with a power of two whose last place is the wanted one rounds it. */
GE2_FN uint32_t ge2_rounded(uint32_t a, int M, uint32_t bias, uint32_t top) {
    const int cut = 23 - M;
    const uint32_t unit = (uint32_t)(127 + 24 - M - (int)bias) << 23;
    const uint32_t normal = (a + (1u << (cut - 1)) - 1 + (a >> cut & 1) - ((127 - bias) << 23)) >> cut;
    const uint32_t small = ge2_word_of(ge2_float_of(a) + ge2_float_of(unit)) - unit;
    const uint32_t r = a < (128 - bias) << 23 ? small : normal;
    return r < top ? r : top;
}

/* The other way, exact; `least` is the number whose bits are 1. What is not finite, from `top` on, needs other rules. */
GE2_FN uint32_t ge2_widened(uint32_t a, int M, uint32_t bias, float least) {
    const uint32_t small = ge2_word_of((float)(int32_t)a * least), normal = (a << (23 - M)) + ((127 - bias) << 23);
    return a < 1u << M ? small : normal;
}

GE2_FN uint16_t ge2_cast_f32_f16(float x) {
    const uint32_t u = ge2_word_of(x), a = u & 0x7fffffff;
    const uint32_t payload = a >> 13 & 0x3ff, nan = 0x7c00 + payload + !payload;
    return (uint16_t)((a > 0x7f800000 ? nan : ge2_rounded(a, 10, 15, 0x7c00)) | (u >> 16 & 0x8000));
}

GE2_FN uint16_t ge2_cast_f32_bf16(float x) {
    const uint32_t u = ge2_word_of(x), nan = 0x7fc0 | (u >> 16 & 0x8000);
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

GE2_FN uint8_t ge2_cast_f32_f8_e4m3fn(float x) {
    const uint32_t u = ge2_word_of(x);
    return (uint8_t)(ge2_rounded(u & 0x7fffffff, 3, 7, 0x7f) | (u >> 24 & 0x80));
}

GE2_FN uint8_t ge2_cast_f32_f8_e5m2(float x) {
    const uint32_t u = ge2_word_of(x), a = u & 0x7fffffff;
    return (uint8_t)((a > 0x7f800000 ? 0x7e : ge2_rounded(a, 2, 15, 0x7c)) | (u >> 24 & 0x80));
}

GE2_FN float ge2_cast_f16_f32(uint16_t h) {
    const uint32_t a = h & 0x7fff, r = ge2_widened(a, 10, 15, 0x1p-24f);
    return ge2_float_of((a < 0x7c00 ? r : a << 13 | 0x7f800000) | (uint32_t)(h & 0x8000) << 16);
}

/* There and back: a float32 in which the number stays, for the bits of a NaN that float16 has not are seen by none. */
GE2_FN float ge2_rounded_f16(float x) {
    const uint32_t u = ge2_word_of(x), a = u & 0x7fffffff;
    const uint32_t small = ge2_word_of((ge2_float_of(a) + 0.5f) - 0.5f), normal = (a + 0xfff + (a >> 13 & 1)) & ~0x1fffu;
    const uint32_t r = a < 0x38800000 ? small : normal, high = a > 0x7f800000 ? a : 0x7f800000;
    return ge2_float_of((r < 0x47800000 ? r : high) | (u & 0x80000000));
}

GE2_FN float ge2_cast_bf16_f32(uint16_t h) { return ge2_float_of((uint32_t)h << 16); }

GE2_FN float ge2_cast_f8_e4m3fn_f32(uint8_t h) {
    const uint32_t a = h & 0x7f, r = ge2_widened(a, 3, 7, 0x1p-9f);
    return ge2_float_of((a < 0x7f ? r : 0x7fc00000) | (uint32_t)(h & 0x80) << 24);
}

GE2_FN float ge2_cast_f8_e5m2_f32(uint8_t h) {
    const uint32_t a = h & 0x7f, r = ge2_widened(a, 2, 15, 0x1p-16f);
    return ge2_float_of((a < 0x7c ? r : a == 0x7c ? 0x7f800000 : 0x7fc00000) | (uint32_t)(h & 0x80) << 24);
}

/* NumPy rounds a double to float16 once; to the other half types, ml_dtypes goes through float32. */
GE2_FN uint16_t ge2_cast_f64_f16(double x) {
    const uint64_t u = ge2_long_word_of(x), a = u & INT64_MAX, infinity = 0x7ffull << 52;
    const uint64_t payload = a >> 42 & 0x3ff, nan = 0x7c00 + payload + !payload;
    const uint64_t normal = (a + (1ull << 41) - 1 + (a >> 42 & 1) - (1008ull << 52)) >> 42;
    const uint64_t small = ge2_long_word_of(__builtin_fabs(x) + 0x1p28) - ge2_long_word_of(0x1p28);
    const uint64_t r = a < 1009ull << 52 ? small : normal;
    return (uint16_t)((a > infinity ? nan : r < 0x7c00 ? r : 0x7c00) | (u >> 48 & 0x8000));
}

GE2_FN uint16_t ge2_cast_f64_bf16(double x) { return ge2_cast_f32_bf16((float)x); }
GE2_FN uint8_t ge2_cast_f64_f8_e4m3fn(double x) { return ge2_cast_f32_f8_e4m3fn((float)x); }
GE2_FN uint8_t ge2_cast_f64_f8_e5m2(double x) { return ge2_cast_f32_f8_e5m2((float)x); }

#endif
