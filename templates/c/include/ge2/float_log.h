/* Logarithms of float32 and float64, and the inverse hyperbolic functions made of them.
 *
 * x = 2**e * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2); log(x) = e log(2) + log(1 + f).
 */
#ifndef GE2_FLOAT_LOG_H
#define GE2_FLOAT_LOG_H

#include "ge2/float_basic.h"

typedef struct {
    float e, f;
} ge2_parts_f32;

typedef struct {
    double e, f;
} ge2_parts_f64;

/* e and f of a positive normal number */
GE2_FN ge2_parts_f32 ge2_parts_of_f32(float x) {
    uint32_t bits = ge2_bits_f32(x) - 0x3f3504f3; /* sqrt(1/2) */
    float m = ge2_of_bits_f32((bits & 0x7fffff) + 0x3f3504f3);
    return (ge2_parts_f32){(float)((int32_t)bits >> 23), m - 1.0f};
}

/* float64 finds e by adding 2**52, for not every machine converts vectors of int64 */
GE2_FN ge2_parts_f64 ge2_parts_of_f64(double x) {
    uint64_t bits = ge2_bits_f64(x) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
    double m = ge2_of_bits_f64((bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
    double e = ge2_of_bits_f64(bits >> 52 | 0x4330000000000000) - (0x1p52 + 1023);
    return (ge2_parts_f64){e, m - 1.0};
}

/* the same of any positive number: those below the normal ones are scaled first */
GE2_FN ge2_parts_f32 ge2_parts_of_any_f32(float x) {
    ge2_parts_f32 p = ge2_parts_of_f32(ge2_normal_f32(x));
    p.e -= x < 0x1p-126f ? 25.0f : 0.0f;
    return p;
}

GE2_FN ge2_parts_f64 ge2_parts_of_any_f64(double x) {
    ge2_parts_f64 p = ge2_parts_of_f64(ge2_normal_f64(x));
    p.e -= x < 0x1p-1022 ? 54.0 : 0.0;
    return p;
}

/* log(1 + f) - f = -f^2/2 + f^3 Q(f), as minimax polynomial: relative error 2^-27 of log(1 + f) */
GE2_FN float ge2_log_tail_f32(float f) {
    float q = -0x1.38932ap-4f;
    q = __builtin_fmaf(q, f, 0x1.056c84p-3f);
    q = __builtin_fmaf(q, f, -0x1.0d919ap-3f);
    q = __builtin_fmaf(q, f, 0x1.22d7c8p-3f);
    q = __builtin_fmaf(q, f, -0x1.5470e8p-3f);
    q = __builtin_fmaf(q, f, 0x1.99a026p-3f);
    q = __builtin_fmaf(q, f, -0x1.00022cp-2f);
    q = __builtin_fmaf(q, f, 0x1.555554p-2f);
    return __builtin_fmaf(q, f, -0.5f) * (f * f);
}

/* The same from log(1 + f) = 2 atanh(s), s = f / (2 + f), as f - f^2/2 + s (f^2/2 + s^2 R(s^2)): 2^-58 */
GE2_FN double ge2_log_tail_f64(double f) {
    double half = 0.5 * f * f, s = f / (2.0 + f), t = s * s;
    double r = 0x1.2f13d029ba0c9p-3;
    r = __builtin_fma(r, t, 0x1.39a0611118dcfp-3);
    r = __builtin_fma(r, t, 0x1.74664b74bb08ap-3);
    r = __builtin_fma(r, t, 0x1.c71c51d096e0fp-3);
    r = __builtin_fma(r, t, 0x1.249249423128dp-2);
    r = __builtin_fma(r, t, 0x1.999999997f9aap-2);
    r = __builtin_fma(r, t, 0x1.5555555555593p-1);
    return __builtin_fma(s, __builtin_fma(r, t, half), -half);
}

/* what any logarithm makes of 0, of what is below, of infinity and NaN */
GE2_FN float ge2_log_ends_f32(float x, float y) {
    y = ge2_chosen_f32(x == 0, -__builtin_inff(), x < __builtin_inff() ? y : x);
    return ge2_chosen_f32(x < 0, __builtin_nanf(""), y);
}

GE2_FN double ge2_log_ends_f64(double x, double y) {
    y = ge2_chosen_f64(x == 0, -__builtin_inf(), x < __builtin_inf() ? y : x);
    return ge2_chosen_f64(x < 0, __builtin_nan(""), y);
}

/* e log(2) + log(1 + f), with log(2) in two parts */
GE2_FN float ge2_log_sum_f32(ge2_parts_f32 p) {
    float low = __builtin_fmaf(p.e, -0x1.05c61p-29f, ge2_log_tail_f32(p.f));
    return __builtin_fmaf(p.e, 0x1.62e43p-1f, p.f + low);
}

GE2_FN double ge2_log_sum_f64(ge2_parts_f64 p) {
    double low = __builtin_fma(p.e, 0x1.abc9e3b39803fp-56, ge2_log_tail_f64(p.f));
    return __builtin_fma(p.e, 0x1.62e42fefa39efp-1, p.f + low);
}

/* below 1 ulp */
GE2_FN float ge2_log_f32(float x) { return ge2_log_ends_f32(x, ge2_log_sum_f32(ge2_parts_of_any_f32(x))); }
GE2_FN double ge2_log_f64(double x) { return ge2_log_ends_f64(x, ge2_log_sum_f64(ge2_parts_of_any_f64(x))); }

/* below 2 ulp; exact for powers of two */
GE2_FN float ge2_log2_f32(float x) {
    ge2_parts_f32 p = ge2_parts_of_any_f32(x);
    float r = p.f + ge2_log_tail_f32(p.f);
    float low = __builtin_fmaf(r, 0x1.4ae0cp-26f, r * 0x1.715476p+0f); /* log2(e) in two parts */
    return ge2_log_ends_f32(x, p.e + low);
}

GE2_FN double ge2_log2_f64(double x) {
    ge2_parts_f64 p = ge2_parts_of_any_f64(x);
    double r = p.f + ge2_log_tail_f64(p.f);
    double low = __builtin_fma(r, 0x1.777d0ffda0d24p-56, r * 0x1.71547652b82fep+0);
    return ge2_log_ends_f64(x, p.e + low);
}

GE2_FN float ge2_log10_f32(float x) {
    ge2_parts_f32 p = ge2_parts_of_any_f32(x);
    float r = (p.f + ge2_log_tail_f32(p.f)) * 0x1.bcb7b2p-2f;
    float low = __builtin_fmaf(p.e, -0x1.ec10c0p-27f, r); /* log10(2) in two parts */
    return ge2_log_ends_f32(x, __builtin_fmaf(p.e, 0x1.344136p-2f, low));
}

GE2_FN double ge2_log10_f64(double x) {
    ge2_parts_f64 p = ge2_parts_of_any_f64(x);
    double r = (p.f + ge2_log_tail_f64(p.f)) * 0x1.bcb7b1526e50ep-2;
    double low = __builtin_fma(p.e, -0x1.9dc1da994fd21p-59, r);
    return ge2_log_ends_f64(x, __builtin_fma(p.e, 0x1.34413509f79ffp-2, low));
}

/* log(1 + x): e is that of the rounded sum; then 1 + f = 2^-e (1 + x) comes from x itself, rounded once. */
GE2_FN float ge2_log1p_f32(float x) {
    float u = 1.0f + x;
    ge2_parts_f32 p = ge2_parts_of_f32(u);
    float scale = ge2_power_of_two_f32(-(int32_t)p.e);
    p.f = x < 0x1p30f ? __builtin_fmaf(x, scale, scale - 1.0f) : p.f;
    float y = ge2_log_ends_f32(u, ge2_log_sum_f32(p));
    return __builtin_fabsf(x) < 0x1p-24f ? x : y;
}

GE2_FN double ge2_log1p_f64(double x) {
    double u = 1.0 + x;
    ge2_parts_f64 p = ge2_parts_of_f64(u);
    uint64_t e = ge2_bits_f64(p.e + (0x1.8p52 - 1023)); /* its low bits are e - 1023 */
    double scale = ge2_of_bits_f64(-e << 52);
    p.f = x < 0x1p60 ? __builtin_fma(x, scale, scale - 1.0) : p.f;
    double y = ge2_log_ends_f64(u, ge2_log_sum_f64(p));
    return __builtin_fabs(x) < 0x1p-53 ? x : y;
}

/* log(x + sqrt(x^2 + 1)) = log1p(x + x^2 / (1 + sqrt(x^2 + 1))); log(2 x) where 1 cannot be seen; 3 ulp */
GE2_FN float ge2_asinh_f32(float x) {
    float a = __builtin_fabsf(x), square = a * a;
    float z = a + square / (1.0f + __builtin_sqrtf(square + 1.0f));
    float y = ge2_log1p_f32(a < 0x1p30f ? z : a) + (a < 0x1p30f ? 0.0f : 0x1.62e43p-1f);
    return __builtin_copysignf(y, x);
}

GE2_FN double ge2_asinh_f64(double x) {
    double a = __builtin_fabs(x), square = a * a;
    double z = a + square / (1.0 + __builtin_sqrt(square + 1.0));
    double y = ge2_log1p_f64(a < 0x1p60 ? z : a) + (a < 0x1p60 ? 0.0 : 0x1.62e42fefa39efp-1);
    return __builtin_copysign(y, x);
}

/* log(x + sqrt(x^2 - 1)) from t = x - 1; 3 ulp */
GE2_FN float ge2_acosh_f32(float x) {
    float t = x - 1.0f, z = t + __builtin_sqrtf(t * (t + 2.0f));
    float y = ge2_log1p_f32(x < 0x1p30f ? z : x) + (x < 0x1p30f ? 0.0f : 0x1.62e43p-1f);
    return x < 1.0f ? __builtin_nanf("") : y;
}

GE2_FN double ge2_acosh_f64(double x) {
    double t = x - 1.0, z = t + __builtin_sqrt(t * (t + 2.0));
    double y = ge2_log1p_f64(x < 0x1p60 ? z : x) + (x < 0x1p60 ? 0.0 : 0x1.62e42fefa39efp-1);
    return x < 1.0 ? __builtin_nan("") : y;
}

/* log((1 + x) / (1 - x)) / 2 = log1p(2 x / (1 - x)) / 2; 3 ulp */
GE2_FN float ge2_atanh_f32(float x) {
    float a = __builtin_fabsf(x);
    return __builtin_copysignf(0.5f * ge2_log1p_f32(2.0f * a / (1.0f - a)), x);
}

GE2_FN double ge2_atanh_f64(double x) {
    double a = __builtin_fabs(x);
    return __builtin_copysign(0.5 * ge2_log1p_f64(2.0 * a / (1.0 - a)), x);
}

#endif
