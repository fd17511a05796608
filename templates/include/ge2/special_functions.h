/* Special functions of float64 and float32: of the normal distribution, of gamma, of Bessel. One text for C and CUDA.
 *
 * No branches, so that loops of them are vectorised, but for those of polygamma. Errors: docs/design/special.md. What
 * it calls is defined by special_series.h, and by special.h and special.cuh, which include it.
 */
#ifndef GE2_SPECIAL_FUNCTIONS_H
#define GE2_SPECIAL_FUNCTIONS_H

#include "ge2/special_series.h"

/* ---- errors of a normal variable */

GE2_FN double ge2_erf_small_f64(double x) { return x * ge2_erf_near_0_f64(x * x); }

/* exp(a^2) erfc(a) for a >= 0 */
GE2_FN double ge2_erfcx_positive_f64(double a) {
    double y = ge2_erfcx_of_f64((a - 4.0) / (a + 4.0)) / (1.0 + 2.0 * a);
    return a > 0x1p60 ? 0x1.20dd750429b6dp-1 / a : y;
}

/* exp(-(square + low)) erfcx(a): the low part is what rounding took from the square */
GE2_FN double ge2_erfc_by_f64(double a, double square, double low) {
    double power = ge2_exp_f64(-square);
    return ge2_fma_f64(power, -low, power) * ge2_erfcx_positive_f64(a);
}

GE2_FN double ge2_erfc_far_f64(double size) {
    double a = size > 40.0 ? 40.0 : size, square = a * a;
    return ge2_erfc_by_f64(a, square, ge2_fma_f64(a, a, -square));
}

GE2_FN double ge2_erfcx_f64(double x) {
    double a = ge2_abs_f64(x), b = x < -30.0 ? 30.0 : a, square = b * b;
    double power = 2.0 * ge2_exp_f64(square), y = ge2_erfcx_positive_f64(x < 0 ? b : a);
    double low = square < 720.0 ? ge2_fma_f64(b, b, -square) : 0.0;
    double left = power < GE2_INFINITY_F64 ? ge2_fma_f64(power, low, power) - y : power;
    return x < 0 ? left : y;
}

/* the integral of the normal density up to x */
GE2_FN double ge2_ndtr_f64(double x) {
    double size = ge2_abs_f64(x), a = size > 60.0 ? 60.0 : size, half = 0.5 * a, square = half * a;
    double low = ge2_fma_f64(half, a, -square);
    double beyond = 0.5 * ge2_erfc_by_f64(a * 0x1.6a09e667f3bcdp-1, square, low);
    double near = 0.5 + 0.5 * ge2_erf_small_f64(x * 0x1.6a09e667f3bcdp-1);
    double y = x < 0 ? beyond : 1.0 - beyond;
    return size < 0.7 ? near : y;
}

GE2_FN double ge2_log_ndtr_f64(double x) {
    double tail = 0.5 * ge2_erfcx_positive_f64(ge2_abs_f64(x) * 0x1.6a09e667f3bcdp-1);
    double low = ge2_log_f64(tail) - 0.5 * x * x, high = ge2_log1p_f64(-ge2_ndtr_f64(-x));
    return x < -1.0 ? low : high;
}

GE2_FN double ge2_quantile_near_f64(double u) { return ge2_normal_a_f64(u) / ge2_normal_b_f64(u); }

/* the size of the quantile of a probability `rest`, or of 1 - rest, below 0.075 */
GE2_FN double ge2_quantile_far_f64(double rest) {
    double r = ge2_sqrt_f64(-ge2_log_f64(rest)), s = r - 1.6, t = r - 5.0;
    double far = ge2_normal_c_f64(s) / ge2_normal_d_f64(s);
    double farther = ge2_normal_e_f64(t) / ge2_normal_f_f64(t);
    double y = r > 5.0 ? farther : far;
    return rest == 0 ? GE2_INFINITY_F64 : y;
}

GE2_FN double ge2_ndtri_f64(double p) {
    double q = p - 0.5, near = q * ge2_quantile_near_f64(0.180625 - q * q);
    double far = ge2_quantile_far_f64(p < 0.5 ? p : 1.0 - p);
    return ge2_abs_f64(q) <= 0.425 ? near : ge2_copysign_f64(far, q);
}

GE2_FN double ge2_erfinv_f64(double x) {
    double q = 0.5 * x, near = x * (ge2_quantile_near_f64(0.180625 - q * q) * 0x1.6a09e667f3bcdp-2);
    double far = 0x1.6a09e667f3bcdp-1 * ge2_quantile_far_f64(0.5 * (1.0 - ge2_abs_f64(x)));
    return ge2_abs_f64(q) <= 0.425 ? near : ge2_copysign_f64(far, x);
}

/* ---- odds, and products with logarithms */

GE2_FN double ge2_logistic_f64(double x) {
    double power = ge2_exp_f64(-ge2_abs_f64(x));
    return (x < 0 ? power : 1.0) / (1.0 + power);
}

GE2_FN float ge2_logistic_f32(float x) {
    float power = ge2_exp_f32(-ge2_abs_f32(x));
    return (x < 0 ? power : 1.0f) / (1.0f + power);
}

/* 2 p - 1 is exact from 1/4 on */
GE2_FN double ge2_logit_f64(double p) {
    double s = 2.0 * p - 1.0, near = 2.0 * ge2_atanh_f64(s), far = ge2_log_f64(p / (1.0 - p));
    return ge2_abs_f64(s) < 0.5 ? near : far;
}

GE2_FN double ge2_xlogy_f64(double x, double y) {
    double product = x * ge2_log_f64(y);
    return x == 0 ? (y == y ? 0.0 : y) : product;
}

GE2_FN double ge2_xlog1py_f64(double x, double y) {
    double product = x * ge2_log1p_f64(y);
    return x == 0 ? (y == y ? 0.0 : y) : product;
}

/* ---- gamma. From 1/2 below 0 on by reflection: there the error is small beside 1, not beside a root. */

/* (z - 1) ... (z - n), n from 1 to 6 */
GE2_FN double ge2_falling_f64(double z, double n) {
    double y = n < 1.0 ? 1.0 : z - 1.0;
    y *= n < 2.0 ? 1.0 : z - 2.0;
    y *= n < 3.0 ? 1.0 : z - 3.0;
    y *= n < 4.0 ? 1.0 : z - 4.0;
    y *= n < 5.0 ? 1.0 : z - 5.0;
    return y * (n < 6.0 ? 1.0 : z - 6.0);
}

/* log|gamma(z)| for z >= -1/2: up to 8 from that of z - n, which is within 1/2 of 2 */
GE2_FN double ge2_gammaln_right_f64(double z) {
    double w = z < 8.0 ? z : 2.0, k = ge2_rint_f64(w), t = w - k;
    double rising = k > 1.5 ? 1.0 : k > 0.5 ? w : w * (w + 1.0);
    double factor = k > 1.5 ? ge2_falling_f64(w, k - 2.0) : rising;
    double step = ge2_log_f64(ge2_abs_f64(factor));
    double near = t * ge2_lgamma_near_2_f64(t) + (k > 1.5 ? step : -step);
    double inverse = 1.0 / z, tail = ge2_stirling_f64(inverse * inverse) * inverse;
    double far = (z - 0.5) * (ge2_log_f64(z) - 1.0) + (0x1.acfe390c97d69p-2 + tail);
    return z < 8.0 ? near : far;
}

GE2_FN double ge2_gammaln_f64(double x) {
    double a = ge2_abs_f64(x), y = ge2_gammaln_right_f64(x < -0.5 ? a : x);
    GE2_SELDOM(x < -0.5) {
        double turn = ge2_abs_f64(ge2_sin_near_f64(0x1.921fb54442d18p+1 * (a - ge2_rint_f64(a))));
        double left = ge2_log_f64(0x1.921fb54442d18p+1 / (a * turn)) - y;
        y = x < -0.5 ? (turn == 0 ? GE2_INFINITY_F64 : left) : y;
    }
    return a == GE2_INFINITY_F64 ? x : y;
}

/* 1 / (z - 1) + ... + 1 / (z - n) for n up to 6 */
GE2_FN double ge2_reciprocals_f64(double z, double n) {
    double over = 0.0, under = 1.0;
    for (int i = 1; i < 7; i++) {
        double f = n < i ? 1.0 : z - i;
        over = ge2_fma_f64(over, f, n < i ? 0.0 : under);
        under *= f;
    }
    return over / under;
}

/* for z > 0: up to 8 from that between 1 and 2, where its root is */
GE2_FN double ge2_digamma_right_f64(double z) {
    double w = z < 8.0 ? z : 1.5, n = w < 1.0 ? 0.0 : ge2_floor_f64(w) - 1.0;
    double s = w < 1.0 ? w - 0.5 : w - n - 1.5;
    double step = w < 1.0 ? -1.0 / w : ge2_reciprocals_f64(w, n);
    double near = ((s + 0x1.3a4f395283812p-5) + 0x1.e563779a1f5b1p-60) * ge2_digamma_near_root_f64(s) + step;
    double inverse = 1.0 / z, u = inverse * inverse;
    double far = ge2_log_f64(z) - 0.5 * inverse - u * ge2_digamma_far_f64(u);
    return z < 8.0 ? near : far;
}

GE2_FN double ge2_digamma_f64(double x) {
    double y = ge2_digamma_right_f64(x < 0 ? 1.0 - x : x);
    GE2_SELDOM(x < 0) {
        double f = x - ge2_rint_f64(x);
        double left = y - 0x1.921fb54442d18p+1 / ge2_tan_near_f64(0x1.921fb54442d18p+1 * f);
        y = x < 0 ? (f == 0 ? GE2_NAN_F64 : left) : y;
    }
    return x == 0 ? -1.0 / x : y;
}

/* derivative n of digamma, n >= 1, for z > 0, without its sign: the sum of n! / (z + k)^(n + 1), of which
 * Euler's and Maclaurin's formula has the end */
GE2_FN double ge2_polygamma_right_f64(double z, int n) {
    double total = 0.0, y = z, before = 1.0; /* (n - 1)! */
    for (int i = 2; i < n; i++) before *= i;
    for (int i = 0; i < 16 + 2 * n; i++) {
        double near = y < 16 + 2 * n ? 1.0 : 0.0;
        total += near / ge2_integer_pow_f64(y, n + 1);
        y += near;
    }
    double w = 1.0 / y, u = w * w, r = before * (double)(n * (n + 1)) * u;
    double rest = before + 0.5 * before * n * w + r * 0x1.5555555555555p-4;
    r *= (double)((n + 2) * (n + 3)) * u, rest -= r * 0x1.6c16c16c16c17p-10;
    r *= (double)((n + 4) * (n + 5)) * u, rest += r * 0x1.1566abc011567p-15;
    r *= (double)((n + 6) * (n + 7)) * u, rest -= r * 0x1.bbd779334ef0bp-21;
    r *= (double)((n + 8) * (n + 9)) * u, rest += r * 0x1.66a8f2bf70ebep-26;
    r *= (double)((n + 10) * (n + 11)) * u, rest -= r * 0x1.22805d644267fp-31;
    r *= (double)((n + 12) * (n + 13)) * u, rest += r * 0x1.d6db2c4e09162p-37;
    r *= (double)((n + 14) * (n + 15)) * u, rest -= r * 0x1.7da4e1f79955cp-42;
    return before * n * total + ge2_integer_pow_f64(w, n) * rest;
}

/* derivative n of cot(pi x) by c = cot(pi x): a polynomial, made from that of n - 1; n up to 14 */
GE2_FN double ge2_cotangents_f64(double c, int n) {
    double p[18] = {0.0, 1.0}, q[18] = {0.0};
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < k + 3; i++) {
            double slope = (i + 1) * p[i + 1] + (i ? (i - 1) * p[i ? i - 1 : 0] : 0.0);
            q[i] = -0x1.921fb54442d18p+1 * slope;
        }
        for (int i = 0; i < k + 3; i++) p[i] = q[i];
    }
    double y = p[n + 1];
    for (int i = n; i >= 0; i--) y = ge2_fma_f64(y, c, p[i]);
    return y;
}

GE2_FN double ge2_polygamma_f64(double x, int n) {
    double right = ge2_polygamma_right_f64(x < 0 ? 1.0 - x : x, n);
    double c = 1.0 / ge2_tan_near_f64(0x1.921fb54442d18p+1 * (x - ge2_rint_f64(x)));
    double left = -right - 0x1.921fb54442d18p+1 * ge2_cotangents_f64(c, n);
    return x < 0 ? left : n % 2 ? right : -right;
}

/* ---- modified Bessel functions I(n, x) / x^n, even, and those times exp(-|x|) */

/* up to 8: a power series without a sign */
GE2_FN double ge2_bessel_near_f64(double a, int n) {
    double u = 0.25 * a * a, y = 1.0, by = 1.0;
    for (int k = 26; k > 13; k--) y = ge2_fma_f64(y * u, 1.0 / (k * (k + n)), 1.0); /* compilers */
    for (int k = 13; k > 0; k--) y = ge2_fma_f64(y * u, 1.0 / (k * (k + n)), 1.0);  /* unroll 16 */
    for (int k = 1; k <= n; k++) by *= 0.5 / k;
    return by * y;
}

/* from 8 on, times exp(-a): a recurrence up from 0 and 1 */
GE2_FN double ge2_bessel_far_f64(double a, int n) {
    double t = 16.0 / a - 1.0, lower = ge2_bessel_far_0_f64(t), y = ge2_bessel_far_1_f64(t);
    for (int k = 1; k < n; k++) {
        double next = lower - 2.0 * k / a * y;
        lower = y, y = next;
    }
    return (n ? y : lower) / (ge2_sqrt_f64(a) * ge2_integer_pow_f64(a, n));
}

GE2_FN double ge2_bessel_f64(double x, int n) {
    double size = ge2_abs_f64(x), a = size > 2000.0 ? 2000.0 : size, half = ge2_exp_f64(0.5 * a);
    double near = ge2_bessel_near_f64(a < 8.0 ? a : 8.0, n);
    double far = ge2_bessel_far_f64(a < 8.0 ? 8.0 : a, n);
    double y = a < 8.0 ? near : far * half * half;
    return x == x ? y : x;
}

GE2_FN double ge2_bessel_scaled_f64(double x, int n) {
    double a = ge2_abs_f64(x), near = ge2_bessel_near_f64(a < 8.0 ? a : 8.0, n) * ge2_exp_f64(-a);
    double y = a < 8.0 ? near : ge2_bessel_far_f64(a < 8.0 ? 8.0 : a, n);
    return x == x ? y : x;
}

/* ---- float32 by polynomials of its own, where float64 would be what takes the time */

/* erfinv(x) / x of w = -log(1 - x^2) (M. Giles, 2010): up to w = 5, of s = w - 2.5; relative error 2^-28 */
GE2_FN float ge2_erfinv_near_f32(float s) {
    float p = 0x1.70efd4p-32f;
    p = ge2_fma_f32(p, s, -0x1.2d6e68p-27f);
    p = ge2_fma_f32(p, s, 0x1.35e02p-26f);
    p = ge2_fma_f32(p, s, 0x1.f43f6p-22f);
    p = ge2_fma_f32(p, s, -0x1.ccfc5ap-19f);
    p = ge2_fma_f32(p, s, -0x1.4cfcfap-18f);
    p = ge2_fma_f32(p, s, 0x1.c9c598p-13f);
    p = ge2_fma_f32(p, s, -0x1.486646p-10f);
    p = ge2_fma_f32(p, s, -0x1.11c42p-8f);
    p = ge2_fma_f32(p, s, 0x1.f91e8cp-3f);
    return ge2_fma_f32(p, s, 0x1.805c5ep+0f);
}

/* and beyond, of s = sqrt(w) - 3; 2^-29 */
GE2_FN float ge2_erfinv_far_f32(float s) {
    float p = -0x1.ea3aap-16f;
    p = ge2_fma_f32(p, s, 0x1.504238p-13f);
    p = ge2_fma_f32(p, s, -0x1.238474p-12f);
    p = ge2_fma_f32(p, s, -0x1.f64f18p-14f);
    p = ge2_fma_f32(p, s, 0x1.82c7d6p-10f);
    p = ge2_fma_f32(p, s, -0x1.d38fbep-9f);
    p = ge2_fma_f32(p, s, 0x1.74be2ap-8f);
    p = ge2_fma_f32(p, s, -0x1.f4e008p-8f);
    p = ge2_fma_f32(p, s, 0x1.358106p-7f);
    p = ge2_fma_f32(p, s, 0x1.006dcap+0f);
    return ge2_fma_f32(p, s, 0x1.6a9efcp+1f);
}

GE2_FN float ge2_erfinv_f32(float x) {
    float rest = ge2_fma_f32(-x, x, 1.0f), w = -ge2_log_f32(rest);
    float near = ge2_erfinv_near_f32(w - 2.5f), far = ge2_erfinv_far_f32(ge2_sqrt_f32(w) - 3.0f);
    return x * (rest == 0 ? (float)GE2_INFINITY_F64 : w < 5.0f ? near : far);
}

/* log(gamma(2 + t)) / t for |t| <= 1/2; 2^-28 */
GE2_FN float ge2_lgamma_near_2_f32(float t) {
    float p = -0x1.1af50ap-12f;
    p = ge2_fma_f32(p, t, 0x1.2ac02cp-11f);
    p = ge2_fma_f32(p, t, -0x1.34c3b8p-10f);
    p = ge2_fma_f32(p, t, 0x1.795d1cp-9f);
    p = ge2_fma_f32(p, t, -0x1.e42476p-8f);
    p = ge2_fma_f32(p, t, 0x1.51357ep-6f);
    p = ge2_fma_f32(p, t, -0x1.13dfecp-4f);
    p = ge2_fma_f32(p, t, 0x1.4a34ccp-2f);
    return ge2_fma_f32(p, t, 0x1.b0ee6p-2f);
}

/* (z - 1) ... (z - n), n from 1 to 6 */
GE2_FN float ge2_falling_f32(float z, float n) {
    float y = n < 1.0f ? 1.0f : z - 1.0f;
    y *= n < 2.0f ? 1.0f : z - 2.0f;
    y *= n < 3.0f ? 1.0f : z - 3.0f;
    y *= n < 4.0f ? 1.0f : z - 4.0f;
    y *= n < 5.0f ? 1.0f : z - 5.0f;
    return y * (n < 6.0f ? 1.0f : z - 6.0f);
}

/* as in float64, with three terms of Stirling's series (DLMF 5.11.1) */
GE2_FN float ge2_gammaln_right_f32(float z) {
    float w = z < 8.0f ? z : 2.0f, k = ge2_rint_f32(w), t = w - k;
    float rising = k > 1.5f ? 1.0f : k > 0.5f ? w : w * (w + 1.0f);
    float factor = ge2_abs_f32(k > 1.5f ? ge2_falling_f32(w, k - 2.0f) : rising);
    float step = ge2_log_f32(z < 8.0f ? factor : z);
    float near = ge2_fma_f32(t, ge2_lgamma_near_2_f32(t), k > 1.5f ? step : -step);
    float inverse = 1.0f / z, u = inverse * inverse;
    float tail = ge2_fma_f32(ge2_fma_f32(0x1.a01a02p-11f, u, -0x1.6c16c2p-9f), u, 0x1.555556p-4f);
    float far = (z - 0.5f) * (step - 1.0f) + ge2_fma_f32(tail, inverse, 0x1.acfe3ap-2f);
    return z < 8.0f ? near : far;
}

GE2_FN float ge2_gammaln_f32(float x) {
    float a = ge2_abs_f32(x), y = ge2_gammaln_right_f32(x < -0.5f ? a : x);
    GE2_SELDOM(x < -0.5f) {
        float turn = ge2_abs_f32(ge2_sin_f32(0x1.921fb6p+1f * (a - ge2_rint_f32(a))));
        float left = ge2_log_f32(0x1.921fb6p+1f / (a * turn)) - y;
        y = x < -0.5f ? (turn == 0 ? (float)GE2_INFINITY_F64 : left) : y;
    }
    return a == (float)GE2_INFINITY_F64 ? x : y;
}

/* digamma(3/2 + s) by its distance from the root, |s| <= 1/2; 2^-27 */
GE2_FN float ge2_digamma_near_root_f32(float s) {
    float p = 0x1.65418ap-7f;
    p = ge2_fma_f32(p, s, -0x1.0c43fp-6f);
    p = ge2_fma_f32(p, s, 0x1.186978p-6f);
    p = ge2_fma_f32(p, s, -0x1.a67e08p-6f);
    p = ge2_fma_f32(p, s, 0x1.4ea4b8p-5f);
    p = ge2_fma_f32(p, s, -0x1.fc5cd2p-5f);
    p = ge2_fma_f32(p, s, 0x1.850eaap-4f);
    p = ge2_fma_f32(p, s, -0x1.2febbep-3f);
    p = ge2_fma_f32(p, s, 0x1.eca19p-3f);
    p = ge2_fma_f32(p, s, -0x1.b1cb68p-2f);
    return ge2_fma_f32(p, s, 0x1.e6f0ccp-1f);
}

/* x^2 (log(x) - 1 / (2 x) - digamma(x)) of u = 1 / x^2, from x = 2 on; 2^-31 of digamma */
GE2_FN float ge2_digamma_far_f32(float u) {
    float p = -0x1.d466e6p-9f;
    p = ge2_fma_f32(p, u, 0x1.31abecp-8f);
    p = ge2_fma_f32(p, u, -0x1.fb598p-9f);
    p = ge2_fma_f32(p, u, 0x1.030e78p-8f);
    p = ge2_fma_f32(p, u, -0x1.110e74p-7f);
    return ge2_fma_f32(p, u, 0x1.555556p-4f);
}

/* for x >= -1/2: below 1 from that between 1 and 2, less 1 / x, and 1 / (x + 1) below 0 */
GE2_FN float ge2_digamma_right_f32(float x) {
    float s = x < 0 ? x + 0.5f : x < 1.0f ? x - 0.5f : x - 1.5f;
    float inverse = (x < 0 ? 2.0f * x + 1.0f : 1.0f) / (x < 0 ? x * (x + 1.0f) : x);
    float near = ((s + 0x1.3a4f3ap-5f) + -0x1.5af8fep-30f) * ge2_digamma_near_root_f32(s);
    float tail = ge2_fma_f32(ge2_digamma_far_f32(inverse * inverse), inverse, 0.5f);
    float far = ge2_log_f32(x) - inverse * tail;
    return x < 2.0f ? near - (x < 1.0f ? inverse : 0.0f) : far;
}

GE2_FN float ge2_digamma_f32(float x) {
    float y = ge2_digamma_right_f32(x < -0.5f ? 1.0f - x : x);
    GE2_SELDOM(x < -0.5f) {
        float f = x - ge2_rint_f32(x), left = y - 0x1.921fb6p+1f / ge2_tan_f32(0x1.921fb6p+1f * f);
        y = x < -0.5f ? (f == 0 ? (float)GE2_NAN_F64 : left) : y;
    }
    return y;
}

/* the series of ge2_bessel_near_f64 */
GE2_FN float ge2_bessel_near_f32(float a, int n) {
    float u = 0.25f * a * a, y = 1.0f, by = 1.0f;
    for (int k = 15; k > 0; k--) y = ge2_fma_f32(y * u, 1.0f / (k * (k + n)), 1.0f);
    for (int k = 1; k <= n; k++) by *= 0.5f / k;
    return by * y;
}

/* sqrt(x) exp(-x) I0(x) of t = 16 / x - 1, from x = 8 on; 2^-29 */
GE2_FN float ge2_bessel_far_0_f32(float t) {
    float p = 0x1.d3e5a4p-24f;
    p = ge2_fma_f32(p, t, 0x1.84dc98p-22f);
    p = ge2_fma_f32(p, t, 0x1.8c1c5ap-20f);
    p = ge2_fma_f32(p, t, 0x1.74e2p-17f);
    p = ge2_fma_f32(p, t, 0x1.1dab2ap-13f);
    p = ge2_fma_f32(p, t, 0x1.b87988p-9f);
    return ge2_fma_f32(p, t, 0x1.9bd428p-2f);
}

/* the same of I1; 2^-29 */
GE2_FN float ge2_bessel_far_1_f32(float t) {
    float p = -0x1.09bee2p-23f;
    p = ge2_fma_f32(p, t, -0x1.c37e28p-22f);
    p = ge2_fma_f32(p, t, -0x1.e9a59ep-20f);
    p = ge2_fma_f32(p, t, -0x1.f778e2p-17f);
    p = ge2_fma_f32(p, t, -0x1.cbc664p-13f);
    p = ge2_fma_f32(p, t, -0x1.3f796ap-7f);
    return ge2_fma_f32(p, t, 0x1.8ebe78p-2f);
}

GE2_FN float ge2_bessel_far_f32(float a, int n) {
    float t = 16.0f / a - 1.0f, lower = ge2_bessel_far_0_f32(t), y = ge2_bessel_far_1_f32(t);
    for (int k = 1; k < n; k++) {
        float next = lower - 2.0f * k / a * y;
        lower = y, y = next;
    }
    return (n ? y : lower) / (ge2_sqrt_f32(a) * ge2_integer_pow_f32(a, n));
}

GE2_FN float ge2_bessel_f32(float x, int n) {
    float size = ge2_abs_f32(x), a = size > 200.0f ? 200.0f : size, half = ge2_exp_f32(0.5f * a);
    float near = ge2_bessel_near_f32(a < 8.0f ? a : 8.0f, n);
    float far = ge2_bessel_far_f32(a < 8.0f ? 8.0f : a, n);
    float y = a < 8.0f ? near : far * half * half;
    return x == x ? y : x;
}

GE2_FN float ge2_bessel_scaled_f32(float x, int n) {
    float a = ge2_abs_f32(x), near = ge2_bessel_near_f32(a < 8.0f ? a : 8.0f, n) * ge2_exp_f32(-a);
    float y = a < 8.0f ? near : ge2_bessel_far_f32(a < 8.0f ? 8.0f : a, n);
    return x == x ? y : x;
}

/* ---- float32 by float64, rounded once */

#define GE2_ONCE(name) \
    GE2_FN float ge2_##name##_f32(float x) { return (float)ge2_##name##_f64((double)x); }
#define GE2_ONCE_OF_2(name) \
    GE2_FN float ge2_##name##_f32(float x, float y) { \
        return (float)ge2_##name##_f64((double)x, (double)y); \
    }
#define GE2_ONCE_WITH(name) \
    GE2_FN float ge2_##name##_f32(float x, int n) { return (float)ge2_##name##_f64((double)x, n); }

GE2_ONCE(erfcx)
GE2_ONCE(ndtr)
GE2_ONCE(log_ndtr)
GE2_ONCE(ndtri)
GE2_ONCE(logit)
GE2_ONCE_OF_2(xlogy)
GE2_ONCE_OF_2(xlog1py)
GE2_ONCE_WITH(polygamma)

#endif
