/* Arithmetic, comparison, rounding and the bits of float32 and float64: NumPy's results to the bit. */
#ifndef GE2_FLOAT_BASIC_H
#define GE2_FLOAT_BASIC_H

#include "ge2/core.h"

/* 2**n for the exponent of a normal number */
/* -x of what may be a fused product: gcc 12 makes -(a * b + c) of it -(a * b) - c, whose zeros have other signs. */
GE2_FN float ge2_flipped_f32(float x) { return ge2_of_bits_f32(ge2_bits_f32(x) ^ UINT32_C(1) << 31); }
GE2_FN double ge2_flipped_f64(double x) { return ge2_of_bits_f64(ge2_bits_f64(x) ^ UINT64_C(1) << 63); }

GE2_FN float ge2_power_of_two_f32(int32_t n) { return ge2_of_bits_f32((uint32_t)(n + 127) << 23); }
GE2_FN double ge2_power_of_two_f64(int64_t n) { return ge2_of_bits_f64((uint64_t)(n + 1023) << 52); }

/* ---- arithmetic */

GE2_FN float ge2_add_f32(float a, float b) { return a + b; }
GE2_FN double ge2_add_f64(double a, double b) { return a + b; }
GE2_FN float ge2_sub_f32(float a, float b) { return a - b; }
GE2_FN double ge2_sub_f64(double a, double b) { return a - b; }
GE2_FN float ge2_mul_f32(float a, float b) { return a * b; }
GE2_FN double ge2_mul_f64(double a, double b) { return a * b; }
GE2_FN float ge2_div_f32(float a, float b) { return a / b; }
GE2_FN double ge2_div_f64(double a, double b) { return a / b; }
GE2_FN float ge2_neg_f32(float x) { return -x; }
GE2_FN double ge2_neg_f64(double x) { return -x; }
GE2_FN float ge2_abs_f32(float x) { return __builtin_fabsf(x); }
GE2_FN double ge2_abs_f64(double x) { return __builtin_fabs(x); }
GE2_FN float ge2_square_f32(float x) { return x * x; }
GE2_FN double ge2_square_f64(double x) { return x * x; }
GE2_FN float ge2_reciprocal_f32(float x) { return 1.0f / x; }
GE2_FN double ge2_reciprocal_f64(double x) { return 1.0 / x; }
GE2_FN float ge2_sqrt_f32(float x) { return __builtin_sqrtf(x); }
GE2_FN double ge2_sqrt_f64(double x) { return __builtin_sqrt(x); }
GE2_FN float ge2_rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
GE2_FN double ge2_rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }
GE2_FN float ge2_degrees_f32(float x) { return x * (180.0f / 3.14159265358979323846f); }
GE2_FN double ge2_degrees_f64(double x) { return x * (180.0 / 3.14159265358979323846); }
GE2_FN float ge2_radians_f32(float x) { return x * (3.14159265358979323846f / 180.0f); }
GE2_FN double ge2_radians_f64(double x) { return x * (3.14159265358979323846 / 180.0); }

/* x**n by squaring, the products in the order of `multiplied` in ge2/ops/elementwise.py. n is a
 * constant; its bits are written out up to 255, for gcc does not vectorise around a loop. */
#define GE2_POW_BIT if (left > 1) { x *= x, left >>= 1; y = left & 1 ? y * x : y; }

GE2_FN float ge2_integer_pow_f32(float x, int64_t n) {
    uint64_t left = n < 0 ? -(uint64_t)n : (uint64_t)n;
    float y = left & 1 ? x : 1.0f;
    GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT
    while (left > 1) GE2_POW_BIT
    return n < 0 ? 1.0f / y : y;
}

GE2_FN double ge2_integer_pow_f64(double x, int64_t n) {
    uint64_t left = n < 0 ? -(uint64_t)n : (uint64_t)n;
    double y = left & 1 ? x : 1.0;
    GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT GE2_POW_BIT
    while (left > 1) GE2_POW_BIT
    return n < 0 ? 1.0 / y : y;
}

/* `a` if it is so, else `b`, by masks: where one of them is known, as an infinity is, gcc goes on from a choice by a path
 * on which it knows what follows, and a loop that compares the result, or takes its extreme, has no vectors. */
GE2_FN float ge2_chosen_f32(_Bool so, float a, float b) {
    uint32_t mask = 0 - (uint32_t)so;
    return ge2_of_bits_f32((ge2_bits_f32(a) & mask) | (ge2_bits_f32(b) & ~mask));
}
GE2_FN double ge2_chosen_f64(_Bool so, double a, double b) {
    uint64_t mask = 0 - (uint64_t)so;
    return ge2_of_bits_f64((ge2_bits_f64(a) & mask) | (ge2_bits_f64(b) & ~mask));
}

/* ---- comparison: maximum and minimum pass on a NaN, fmax and fmin pass on the other operand */

GE2_FN uint8_t ge2_lt_f32(float a, float b) { return a < b; }
GE2_FN uint8_t ge2_lt_f64(double a, double b) { return a < b; }
GE2_FN uint8_t ge2_le_f32(float a, float b) { return a <= b; }
GE2_FN uint8_t ge2_le_f64(double a, double b) { return a <= b; }
GE2_FN uint8_t ge2_truth_f32(float x) { return x != 0; }
GE2_FN uint8_t ge2_truth_f64(double x) { return x != 0; }

/* `of_nan` where t is a NaN, else m. The choice is made of bits: gcc 12 turns (a ? x : y) != (a ? x : y) into
 * a choice of truths, which it does not vectorise, and so none of a maximum of a minimum. */
GE2_FN float ge2_if_nan_f32(float t, float of_nan, float m) {
    uint32_t x = ge2_bits_f32(of_nan), y = ge2_bits_f32(m);
    return ge2_of_bits_f32(t != t ? x : y);
}
GE2_FN double ge2_if_nan_f64(double t, double of_nan, double m) {
    uint64_t x = ge2_bits_f64(of_nan), y = ge2_bits_f64(m);
    return ge2_of_bits_f64(t != t ? x : y);
}
GE2_FN float ge2_max_f32(float a, float b) { return ge2_if_nan_f32(a, a, a > b ? a : b); }
GE2_FN double ge2_max_f64(double a, double b) { return ge2_if_nan_f64(a, a, a > b ? a : b); }
GE2_FN float ge2_min_f32(float a, float b) { return ge2_if_nan_f32(a, a, a < b ? a : b); }
GE2_FN double ge2_min_f64(double a, double b) { return ge2_if_nan_f64(a, a, a < b ? a : b); }

/* The same for a state that takes in one value after the other: a branch that is seldom taken is quicker than a
 * choice that the next one waits for. */
GE2_FN float ge2_running_max_f32(float state, float x) { return x > state || x != x ? x : state; }
GE2_FN double ge2_running_max_f64(double state, double x) { return x > state || x != x ? x : state; }
GE2_FN float ge2_running_min_f32(float state, float x) { return x < state || x != x ? x : state; }
GE2_FN double ge2_running_min_f64(double state, double x) { return x < state || x != x ? x : state; }

GE2_FN float ge2_fmax_f32(float a, float b) { return ge2_if_nan_f32(b, a, a > b ? a : b); }
GE2_FN double ge2_fmax_f64(double a, double b) { return ge2_if_nan_f64(b, a, a > b ? a : b); }
GE2_FN float ge2_fmin_f32(float a, float b) { return ge2_if_nan_f32(b, a, a < b ? a : b); }
GE2_FN double ge2_fmin_f64(double a, double b) { return ge2_if_nan_f64(b, a, a < b ? a : b); }

/* what every number is above or below: the states that a maximum and a minimum begin with */
GE2_FN float ge2_lowest_f32(void) { return -__builtin_inff(); }
GE2_FN double ge2_lowest_f64(void) { return -__builtin_inf(); }
GE2_FN float ge2_highest_f32(void) { return __builtin_inff(); }
GE2_FN double ge2_highest_f64(void) { return __builtin_inf(); }

/* ---- kinds of numbers */

GE2_FN uint8_t ge2_isnan_f32(float x) { return x != x; }
GE2_FN uint8_t ge2_isnan_f64(double x) { return x != x; }
GE2_FN uint8_t ge2_isinf_f32(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
GE2_FN uint8_t ge2_isinf_f64(double x) { return __builtin_fabs(x) == __builtin_inf(); }
GE2_FN uint8_t ge2_isfinite_f32(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
GE2_FN uint8_t ge2_isfinite_f64(double x) { return __builtin_fabs(x) < __builtin_inf(); }
GE2_FN uint8_t ge2_signbit_f32(float x) { return ge2_bits_f32(x) >> 31; }
GE2_FN uint8_t ge2_signbit_f64(double x) { return ge2_bits_f64(x) >> 63; }
GE2_FN float ge2_sign_f32(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x; }
GE2_FN double ge2_sign_f64(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x == 0 ? 0.0 : x; }
GE2_FN float ge2_copysign_f32(float a, float b) { return __builtin_copysignf(a, b); }
GE2_FN double ge2_copysign_f64(double a, double b) { return __builtin_copysign(a, b); }
GE2_FN float ge2_heaviside_f32(float x, float at) { return x == 0 ? at : x < 0 ? 0.0f : x > 0 ? 1.0f : x; }
GE2_FN double ge2_heaviside_f64(double x, double at) { return x == 0 ? at : x < 0 ? 0.0 : x > 0 ? 1.0 : x; }

/* ---- rounding to whole numbers */

GE2_FN float ge2_floor_f32(float x) { return __builtin_floorf(x); }
GE2_FN double ge2_floor_f64(double x) { return __builtin_floor(x); }
GE2_FN float ge2_ceil_f32(float x) { return __builtin_ceilf(x); }
GE2_FN double ge2_ceil_f64(double x) { return __builtin_ceil(x); }
GE2_FN float ge2_trunc_f32(float x) { return __builtin_truncf(x); }
GE2_FN double ge2_trunc_f64(double x) { return __builtin_trunc(x); }
GE2_FN float ge2_rint_f32(float x) { return __builtin_rintf(x); }
GE2_FN double ge2_rint_f64(double x) { return __builtin_rint(x); }

/* ---- neighbours: the bits of a positive float count upwards */

GE2_FN float ge2_spacing_f32(float x) {
    float size = __builtin_fabsf(x);
    float step = ge2_of_bits_f32(ge2_bits_f32(size) + 1) - size;
    return x < 0 ? -step : step;
}

GE2_FN double ge2_spacing_f64(double x) {
    double size = __builtin_fabs(x);
    double step = ge2_of_bits_f64(ge2_bits_f64(size) + 1) - size;
    return x < 0 ? -step : step;
}

GE2_FN float ge2_nextafter_f32(float x, float to) {
    uint32_t outwards = (x < to) == (x > 0) ? 1 : -1;
    float next = ge2_of_bits_f32(ge2_bits_f32(x) + outwards);
    next = x == 0 ? __builtin_copysignf(0x1p-149f, to) : next;
    next = x == to ? to : next;
    return x != x || to != to ? x + to : next;
}

GE2_FN double ge2_nextafter_f64(double x, double to) {
    uint64_t outwards = (x < to) == (x > 0) ? 1 : -1;
    double next = ge2_of_bits_f64(ge2_bits_f64(x) + outwards);
    next = x == 0 ? __builtin_copysign(0x1p-1074, to) : next;
    next = x == to ? to : next;
    return x != x || to != to ? x + to : next;
}

/* ---- mantissa and exponent: x = m * 2**e, 1/2 <= |m| < 1; numbers below the normal ones are scaled first */

GE2_FN uint8_t ge2_has_exponent_f32(float x) { return x != 0 && __builtin_fabsf(x) < __builtin_inff(); }
GE2_FN uint8_t ge2_has_exponent_f64(double x) { return x != 0 && __builtin_fabs(x) < __builtin_inf(); }
GE2_FN float ge2_normal_f32(float x) { return __builtin_fabsf(x) < 0x1p-126f ? x * 0x1p25f : x; }
GE2_FN double ge2_normal_f64(double x) { return __builtin_fabs(x) < 0x1p-1022 ? x * 0x1p54 : x; }

GE2_FN float ge2_frexp_mantissa_f32(float x) {
    uint32_t bits = (ge2_bits_f32(ge2_normal_f32(x)) & 0x807fffff) | 0x3f000000;
    return ge2_has_exponent_f32(x) ? ge2_of_bits_f32(bits) : x;
}

GE2_FN double ge2_frexp_mantissa_f64(double x) {
    uint64_t bits = (ge2_bits_f64(ge2_normal_f64(x)) & 0x800fffffffffffff) | 0x3fe0000000000000;
    return ge2_has_exponent_f64(x) ? ge2_of_bits_f64(bits) : x;
}

GE2_FN int32_t ge2_frexp_exponent_f32(float x) {
    int32_t e = (int32_t)(ge2_bits_f32(ge2_normal_f32(x)) >> 23 & 255) - 126;
    e -= __builtin_fabsf(x) < 0x1p-126f ? 25 : 0;
    return ge2_has_exponent_f32(x) ? e : 0;
}

GE2_FN int32_t ge2_frexp_exponent_f64(double x) {
    int32_t e = (int32_t)(ge2_bits_f64(ge2_normal_f64(x)) >> 52 & 2047) - 1022;
    e -= __builtin_fabs(x) < 0x1p-1022 ? 54 : 0;
    return ge2_has_exponent_f64(x) ? e : 0;
}

GE2_FN int64_t ge2_between_i64(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

/* x * 2**n, rounded once: float32 in float64, where nothing over- or underflows. */
GE2_FN float ge2_ldexp_f32(float x, int64_t n) {
    int32_t within = (int32_t)ge2_between_i64(n, -400, 400);
    return (float)((double)x * ge2_power_of_two_f64(within));
}

/* float64 in three steps. One downwards leaves at least 53 of them to the last, which alone rounds. */
GE2_FN int64_t ge2_ldexp_step_f64(int64_t n) { return n > 1023 ? 1023 : n < -1022 ? -969 : 0; }

GE2_FN double ge2_ldexp_f64(double x, int64_t n) {
    int64_t left = ge2_between_i64(n, -2200, 2200);
    int64_t first = ge2_ldexp_step_f64(left), second = ge2_ldexp_step_f64(left - first);
    left = ge2_between_i64(left - first - second, -1022, 1023);
    return x * ge2_power_of_two_f64(first) * ge2_power_of_two_f64(second) * ge2_power_of_two_f64(left);
}

#endif
