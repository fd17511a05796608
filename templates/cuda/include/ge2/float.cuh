/* float32 and float64: arithmetic to NumPy's bits, CUDA's own functions for the rest.
 *
 * Errors are in units of the last place, for float32 and float64, as NVIDIA's programming guide has them ("Mathematical
 * Functions"); tests/gpu/test_accuracy.py measures them, of float32 at all 2^32 numbers. What errs by more than
 * the headers of C, which is 4, is marked with a star.
 */
#ifndef GE2_FLOAT_CUH
#define GE2_FLOAT_CUH

#include "ge2/core.cuh"

/* What only sums of products ask for: one rounding. */
GE2_FN float ge2_fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
GE2_FN double ge2_fma_f64(double a, double b, double c) { return fma(a, b, c); }

/* ---- a float's bits, and the float of some bits */

GE2_FN uint32_t ge2_bits_f32(float x) { return __float_as_uint(x); }
GE2_FN uint64_t ge2_bits_f64(double x) { return (uint64_t)__double_as_longlong(x); }
GE2_FN float ge2_of_bits_f32(uint32_t bits) { return __uint_as_float(bits); }
GE2_FN double ge2_of_bits_f64(uint64_t bits) { return __longlong_as_double((int64_t)bits); }

/* CUDA's own steps but for a look at large numbers, of which the exponential says as much: a seventh less. */
#ifndef GE2_SHIM
GE2_FN float ge2_tanh(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fabsf(x) * 0x1.715476p+1f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    const float far = copysignf(fmaf(inverse, -2.0f, 1.0f), x), square = x * x;
    float series = fmaf(square, 0x1.01e104p-6f, -0x1.ac795cp-5f);
    series = fmaf(square, series, 0x1.10b282p-3f);
    series = fmaf(square, series, -0x1.5553dap-2f);
    series = fmaf(square, series, 0.0f); /* +0 at 0, so that -0 stays */
    return fabsf(x) < 0x1.333334p-1f ? fmaf(x, series, x) : far;
}
/* What 1 is added to, or taken from, has no more bits than 1 has: errs by at most 2^-22, wherever x is. */
GE2_FN float ge2_tanh_beside_one(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fabsf(x) * 0x1.715476p+1f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    return copysignf(fmaf(inverse, -2.0f, 1.0f), x);
}
#else
GE2_FN float ge2_tanh(float x) { return tanhf(x); }
GE2_FN float ge2_tanh_beside_one(float x) { return tanhf(x); }
#endif

/* What is rounded to bfloat16 need not be known better: an instruction or two of the hardware, whose relative error is at
 * most 2^-10.9 for tanh and 2^-17 for the others, where rounding errs by 2^-8. Subnormal numbers may be 0. */
#ifndef GE2_SHIM
GE2_FN float ge2_brief_tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GE2_FN float ge2_brief_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 0x1.715476p+0f));
    return y;
}
GE2_FN float ge2_brief_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GE2_FN float ge2_brief_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GE2_FN float ge2_brief_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GE2_FN float ge2_brief_div(float a, float b) {
    float y;
    asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#else
GE2_FN float ge2_brief_tanh(float x) { return tanhf(x); }
GE2_FN float ge2_brief_exp(float x) { return expf(x); }
GE2_FN float ge2_brief_exp2(float x) { return exp2f(x); }
GE2_FN float ge2_brief_log2(float x) { return log2f(x); }
GE2_FN float ge2_brief_inverse(float x) { return 1.0f / x; }
GE2_FN float ge2_brief_div(float a, float b) { return a / b; }
#endif
GE2_FN float ge2_brief_logistic(float x) { return ge2_brief_inverse(1.0f + ge2_brief_exp(-x)); }

/* ---- CUDA's functions under our names; lines with one function for each type */

#define GE2_UNARY(name, f, d) \
    GE2_FN float ge2_##name##_f32(float x) { return f(x); } \
    GE2_FN double ge2_##name##_f64(double x) { return d(x); }
#define GE2_BINARY(name, f, d) \
    GE2_FN float ge2_##name##_f32(float a, float b) { return f(a, b); } \
    GE2_FN double ge2_##name##_f64(double a, double b) { return d(a, b); }

GE2_UNARY(abs, fabsf, fabs)
GE2_UNARY(floor, floorf, floor)
GE2_UNARY(ceil, ceilf, ceil)
GE2_UNARY(trunc, truncf, trunc)
GE2_UNARY(rint, rintf, rint)
GE2_UNARY(sqrt, sqrtf, sqrt)
GE2_BINARY(copysign, copysignf, copysign)
GE2_BINARY(fmod, fmodf, fmod)
GE2_BINARY(nextafter, nextafterf, nextafter)

GE2_UNARY(rsqrt, rsqrtf, rsqrt)  /* 2, 1 */
GE2_UNARY(cbrt, cbrtf, cbrt)     /* 1, 1 */
GE2_UNARY(exp, expf, exp)        /* 2, 1 */
GE2_UNARY(exp2, exp2f, exp2)     /* 2, 1 */
GE2_UNARY(expm1, expm1f, expm1)  /* 1, 1 */
GE2_UNARY(log, logf, log)        /* 1, 1 */
GE2_UNARY(log2, log2f, log2)     /* 1, 1 */
GE2_UNARY(log10, log10f, log10)  /* 2, 1 */
GE2_UNARY(log1p, log1pf, log1p)  /* 1, 1 */
GE2_UNARY(sin, sinf, sin)        /* 2, 2 */
GE2_UNARY(cos, cosf, cos)        /* 2, 2 */
GE2_UNARY(tan, tanf, tan)        /* 4, 2 */
GE2_UNARY(asin, asinf, asin)     /* 2, 2 */
GE2_UNARY(acos, acosf, acos)     /* 2, 2 */
GE2_UNARY(atan, atanf, atan)     /* 2, 2 */
GE2_UNARY(sinh, sinhf, sinh)     /* 3, 2 */
GE2_UNARY(cosh, coshf, cosh)     /* 2, 1 */
GE2_UNARY(tanh, ge2_tanh, tanh)     /* 2, 1 */
GE2_UNARY(asinh, asinhf, asinh)  /* 3, 3 */
GE2_UNARY(acosh, acoshf, acosh)  /* 4, 3 */
GE2_UNARY(atanh, atanhf, atanh)  /* 3, 2 */
GE2_UNARY(erf, erff, erf)        /* 2, 2 */
GE2_UNARY(erfc, erfcf, erfc)     /* 4, 5* */

/* The sine and the cosine of an angle, which is reduced once for both; their bits are those of each by itself. */
template <class T>
struct ge2_sine_cosine {
    T sin, cos;
};
GE2_FN ge2_sine_cosine<float> ge2_sincos_f32(float x) {
    ge2_sine_cosine<float> both;
    sincosf(x, &both.sin, &both.cos);
    return both;
}
GE2_FN ge2_sine_cosine<double> ge2_sincos_f64(double x) {
    ge2_sine_cosine<double> both;
    sincos(x, &both.sin, &both.cos);
    return both;
}
GE2_BINARY(pow, powf, pow)       /* 4, 2 */
GE2_BINARY(atan2, atan2f, atan2) /* 3, 2 */
GE2_BINARY(hypot, hypotf, hypot) /* 3, 2 */

/* 1, 2, 4, ... and one over it, by which a product is exact, unless it is below the normal numbers */
GE2_FN bool ge2_is_power_of_2_f32(float x) { return x >= 1 && x <= 0x1p64f && !(ge2_bits_f32(x) & 0x7fffffu); }
GE2_FN bool ge2_is_power_of_2_f64(double x) {
    return x >= 1 && x <= 0x1p64 && !(ge2_bits_f64(x) & 0xfffffffffffffull);
}
GE2_FN float ge2_inverse_power_f32(float x) { return ge2_of_bits_f32(0x7f000000u - ge2_bits_f32(x)); }
GE2_FN double ge2_inverse_power_f64(double x) { return ge2_of_bits_f64(0x7fe0000000000000ull - ge2_bits_f64(x)); }

/* ---- what is said alike of both. r: suffix; F: the type; f: a suffix of literals; U: unsigned bits. */

#define GE2_FLOAT(r, F, f, U) \
    GE2_FN F ge2_add_##r(F a, F b) { return a + b; } \
    GE2_FN F ge2_sub_##r(F a, F b) { return a - b; } \
    GE2_FN F ge2_mul_##r(F a, F b) { return a * b; } \
    GE2_FN F ge2_div_##r(F a, F b) { return a / b; } \
    GE2_FN F ge2_neg_##r(F x) { return -x; } \
    GE2_FN F ge2_square_##r(F x) { return x * x; } \
    GE2_FN F ge2_reciprocal_##r(F x) { return 1 / x; } \
    GE2_FN F ge2_degrees_##r(F x) { return x * (180.0##f / 3.14159265358979323846##f); } \
    GE2_FN F ge2_radians_##r(F x) { return x * (3.14159265358979323846##f / 180.0##f); } \
    GE2_FN bool ge2_lt_##r(F a, F b) { return a < b; } \
    GE2_FN bool ge2_le_##r(F a, F b) { return a <= b; } \
    GE2_FN bool ge2_truth_##r(F x) { return x != 0; } \
    GE2_FN bool ge2_isnan_##r(F x) { return x != x; } \
    GE2_FN bool ge2_isinf_##r(F x) { return ge2_abs_##r(x) == ge2_highest_##r(); } \
    GE2_FN bool ge2_isfinite_##r(F x) { return ge2_abs_##r(x) < ge2_highest_##r(); } \
    GE2_FN bool ge2_signbit_##r(F x) { return ge2_bits_##r(x) >> (8 * sizeof(F) - 1); } \
    GE2_FN F ge2_sign_##r(F x) { return x > 0 ? (F)1 : x < 0 ? (F)-1 : x == 0 ? (F)0 : x; } \
    GE2_FN F ge2_heaviside_##r(F x, F at) { return x == 0 ? at : x < 0 ? (F)0 : x > 0 ? (F)1 : x; } \
    /* x**n by squaring, in the order of `multiplied` in ge2/ops/elementwise.py; n is a constant */ \
    GE2_FN F ge2_integer_pow_##r(F x, int64_t n) { \
        uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n; \
        F y = left & 1 ? x : 1; \
        while (left >>= 1) { \
            x *= x; \
            if (left & 1) y *= x; \
        } \
        return n < 0 ? 1 / y : y; \
    } \
    /* the bits of a positive float count upwards */ \
    GE2_FN F ge2_spacing_##r(F x) { \
        const F size = ge2_abs_##r(x), step = ge2_of_bits_##r(ge2_bits_##r(size) + 1) - size; \
        return x < 0 ? -step : step; \
    } \
    /* Remainders in the steps of NumPy's npy_divmod; by powers of two, as most are, with no loop of fmod. There a
     * quotient below the normal numbers may be -0.0 of a number below 0, which is one divisor more. */ \
    GE2_FN F ge2_rem_##r(F a, F b) { \
        if (ge2_is_power_of_2_##r(b)) { \
            const F r = a - ge2_floor_##r(a * ge2_inverse_power_##r(b)) * b; \
            return r < 0 ? r + b : r; \
        } \
        const F r = ge2_fmod_##r(a, b), turned = (b < 0) != (r < 0) ? r + b : r; \
        return b == 0 ? r : r == 0 ? ge2_copysign_##r(0, b) : turned; \
    } \
    GE2_FN F ge2_floor_div_##r(F a, F b) { \
        const F r = ge2_fmod_##r(a, b), quotient = (a - r) / b; \
        const F q = r != 0 && (b < 0) != (r < 0) ? quotient - 1 : quotient; \
        const F below = ge2_floor_##r(q), whole = q - below > 0.5##f ? below + 1 : below; \
        return b == 0 ? a / b : q == 0 ? ge2_copysign_##r(0, a / b) : whole; \
    } \
    /* of the larger and of what exp(-|a - b|) adds; 2 ulp of the largest of the three numbers */ \
    GE2_FN F ge2_logaddexp_##r(F a, F b) { \
        const F apart = a == b ? (F)0 : ge2_abs_##r(a - b); \
        return ge2_max_##r(a, b) + ge2_log1p_##r(ge2_exp_##r(-apart)); \
    } \
    GE2_FN F ge2_logaddexp2_##r(F a, F b) { \
        const F apart = a == b ? (F)0 : ge2_abs_##r(a - b); \
        return ge2_max_##r(a, b) + 1.44269504088896340736##f * ge2_log1p_##r(ge2_exp2_##r(-apart)); \
    }

/* ---- what every number is above or below: the states that a maximum and a minimum begin with */

GE2_FN float ge2_lowest_f32() { return -GE2_INFINITY_F32; }
GE2_FN double ge2_lowest_f64() { return -GE2_INFINITY_F64; }
GE2_FN float ge2_highest_f32() { return GE2_INFINITY_F32; }
GE2_FN double ge2_highest_f64() { return GE2_INFINITY_F64; }

/* ---- maximum and minimum pass on a NaN, fmax and fmin pass on the other operand */

#ifndef GE2_SHIM
GE2_FN float ge2_max_f32(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
GE2_FN float ge2_min_f32(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#else
GE2_FN float ge2_max_f32(float a, float b) { return a != a ? a : a > b ? a : b; }
GE2_FN float ge2_min_f32(float a, float b) { return a != a ? a : a < b ? a : b; }
#endif
GE2_FN double ge2_max_f64(double a, double b) { return a != a ? a : a > b ? a : b; }
GE2_FN double ge2_min_f64(double a, double b) { return a != a ? a : a < b ? a : b; }
GE2_BINARY(fmax, fmaxf, fmax)
GE2_BINARY(fmin, fminf, fmin)

GE2_FLOAT(f32, float, f, uint32_t)
GE2_FLOAT(f64, double, , uint64_t)

/* ---- mantissa and exponent: x = m * 2**e, 1/2 <= |m| < 1; numbers below the normal ones are scaled first */

GE2_FN bool ge2_has_exponent_f32(float x) { return x != 0 && ge2_isfinite_f32(x); }
GE2_FN bool ge2_has_exponent_f64(double x) { return x != 0 && ge2_isfinite_f64(x); }
GE2_FN float ge2_normal_f32(float x) { return fabsf(x) < 0x1p-126f ? x * 0x1p25f : x; }
GE2_FN double ge2_normal_f64(double x) { return fabs(x) < 0x1p-1022 ? x * 0x1p54 : x; }

GE2_FN float ge2_frexp_mantissa_f32(float x) {
    const uint32_t bits = (ge2_bits_f32(ge2_normal_f32(x)) & 0x807fffffu) | 0x3f000000u;
    return ge2_has_exponent_f32(x) ? ge2_of_bits_f32(bits) : x;
}

GE2_FN double ge2_frexp_mantissa_f64(double x) {
    const uint64_t bits = (ge2_bits_f64(ge2_normal_f64(x)) & 0x800fffffffffffffull) | 0x3fe0000000000000ull;
    return ge2_has_exponent_f64(x) ? ge2_of_bits_f64(bits) : x;
}

GE2_FN int32_t ge2_frexp_exponent_f32(float x) {
    const int32_t e = (int32_t)(ge2_bits_f32(ge2_normal_f32(x)) >> 23 & 255) - 126;
    return ge2_has_exponent_f32(x) ? e - (fabsf(x) < 0x1p-126f ? 25 : 0) : 0;
}

GE2_FN int32_t ge2_frexp_exponent_f64(double x) {
    const int32_t e = (int32_t)(ge2_bits_f64(ge2_normal_f64(x)) >> 52 & 2047) - 1022;
    return ge2_has_exponent_f64(x) ? e - (fabs(x) < 0x1p-1022 ? 54 : 0) : 0;
}

/* x * 2**n, rounded once; any n of more than 2200 has the result of 2200 */
GE2_FN int ge2_ldexp_power(int64_t n) { return n < -2200 ? -2200 : n > 2200 ? 2200 : (int)n; }
GE2_FN float ge2_ldexp_f32(float x, int64_t n) { return ldexpf(x, ge2_ldexp_power(n)); }
GE2_FN double ge2_ldexp_f64(double x, int64_t n) { return ldexp(x, ge2_ldexp_power(n)); }

#endif
