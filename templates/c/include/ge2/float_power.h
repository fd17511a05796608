/* Powers and roots of float32 and float64. */
#ifndef GE2_FLOAT_POWER_H
#define GE2_FLOAT_POWER_H

#include "ge2/float_basic.h"
#include "ge2/float_exp.h"
#include "ge2/float_log.h"

/* ---- |x|**y = 2**(y log2|x|), with as many more bits in the logarithm as the result's exponent takes */

/* float32 goes through float64: log2(1 + f) = s C(s^2), s = f / (2 + f), relative error 2^-43 */
GE2_FN double ge2_log2_for_pow_f32(double a) {
    ge2_parts_f64 p = ge2_parts_of_f64(a);
    double s = p.f / (2.0 + p.f), t = s * s;
    double c = 0x1.21bdf9d9371dcp-2;
    c = __builtin_fma(c, t, 0x1.479473d649973p-2);
    c = __builtin_fma(c, t, 0x1.a61a341d6f87dp-2);
    c = __builtin_fma(c, t, 0x1.2776c28cbea5cp-1);
    c = __builtin_fma(c, t, 0x1.ec709dc541ec0p-1);
    c = __builtin_fma(c, t, 0x1.71547652b824ep+1);
    return __builtin_fma(c, s, p.e);
}

/* 2**z, relative error 2^-34 */
GE2_FN double ge2_exp2_for_pow_f32(double z) {
    double turns = z + GE2_TURN_F64, r = z - (turns - GE2_TURN_F64);
    double p = 0x1.fe15c8239a8d3p-17;
    p = __builtin_fma(p, r, 0x1.446a41ae14a98p-13);
    p = __builtin_fma(p, r, 0x1.5d8a725a8c525p-10);
    p = __builtin_fma(p, r, 0x1.3b29dc174eb5ap-7);
    p = __builtin_fma(p, r, 0x1.c6b08aad0853ap-5);
    p = __builtin_fma(p, r, 0x1.ebfbe0a4ee9c5p-3);
    p = __builtin_fma(p, r, 0x1.62e42ff11763fp-1);
    p = __builtin_fma(p, r, 0x1.ffffffffab9ebp-1);
    return ge2_exp_ends_f64(z, p * ge2_power_f64(turns, 0), 1000.0);
}

typedef struct {
    double high, low;
} ge2_double;

/* float64 in two parts: log(1 + f) = s (2 + t (2/3 + t Q(t))), s = f / (2 + f), t = s^2; error 2^-64 */
GE2_FN ge2_double ge2_log2_for_pow_f64(double a) {
    ge2_parts_f64 x = ge2_parts_of_any_f64(a);
    double d = 2.0 + x.f, d_low = x.f - (d - 2.0), inverse = 1.0 / d;
    double s = x.f * inverse, s_low = (__builtin_fma(-s, d, x.f) - s * d_low) * inverse;
    double t = s * s, t_low = __builtin_fma(s, s, -t) + 2.0 * s * s_low;
    double q = 0x1.0e52981a53cf6p-3;
    q = __builtin_fma(q, t, 0x1.0f7e3e4e33934p-3);
    q = __builtin_fma(q, t, 0x1.3b1efdda71276p-3);
    q = __builtin_fma(q, t, 0x1.745ce9838fe4ap-3);
    q = __builtin_fma(q, t, 0x1.c71c722e74cc4p-3);
    q = __builtin_fma(q, t, 0x1.24924924571b4p-2);
    q = __builtin_fma(q, t, 0x1.9999999999b36p-2);
    q *= t;
    double c = 0x1.5555555555555p-1 + q, c_low = q - (c - 0x1.5555555555555p-1) + 0x1.5555555555555p-55;
    double u = t * c, u_low = __builtin_fma(t, c, -u) + (t * c_low + t_low * c);
    double v = 2.0 + u, v_low = u - (v - 2.0) + u_low;
    double w = s * v, w_low = __builtin_fma(s, v, -w) + (s * v_low + s_low * v);
    double h = w * 0x1.71547652b82fep+0, h_low = __builtin_fma(w, 0x1.71547652b82fep+0, -h);
    h_low += w * 0x1.777d0ffda0d24p-56 + w_low * 0x1.71547652b82fep+0;
    double high = x.e + h;
    return (ge2_double){high, h - (high - x.e) + h_low};
}

/* y log2|x| in two parts, then the power; the low part is NaN where the high one is beyond any exponent */
GE2_FN double ge2_exp2_for_pow_f64(ge2_double log2, double y) {
    double z = y * log2.high, low = __builtin_fma(y, log2.high, -z) + y * log2.low;
    double turns = z + GE2_TURN_F64, r = z - (turns - GE2_TURN_F64) + low;
    double power = ge2_times_power_f64(ge2_exp2_near_0_f64(r), turns);
    return ge2_exp_ends_f64(z, power, 1080.0);
}

/* What C prescribes: x**0 = 1**y = (-1)**(+-inf) = 1; a negative number to an odd power is negative, to one
 * that is not whole NaN. The sign is set without a choice, after which gcc does not make vectors of the loop. */
GE2_FN float ge2_pow_ends_f32(float x, float y, float power) {
    int whole = __builtin_rintf(y) == y, odd = whole & (__builtin_rintf(0.5f * y) != 0.5f * y);
    int one = (y == 0) | (x == 1.0f) | ((x == -1.0f) & (__builtin_fabsf(y) == __builtin_inff()));
    int undefined = (x < 0) & (x > -__builtin_inff()) & !whole;
    power = ge2_of_bits_f32(ge2_bits_f32(power) | ((uint32_t)odd << 31 & ge2_bits_f32(x)));
    power = ge2_chosen_f32(undefined, __builtin_nanf(""), power);
    return ge2_chosen_f32(one, 1.0f, power);
}

GE2_FN double ge2_pow_ends_f64(double x, double y, double power) {
    int64_t whole = __builtin_rint(y) == y, odd = whole & (__builtin_rint(0.5 * y) != 0.5 * y);
    int64_t one = (y == 0) | (x == 1.0) | ((x == -1.0) & (__builtin_fabs(y) == __builtin_inf()));
    int64_t undefined = (x < 0) & (x > -__builtin_inf()) & !whole;
    power = ge2_of_bits_f64(ge2_bits_f64(power) | ((uint64_t)odd << 63 & ge2_bits_f64(x)));
    power = ge2_chosen_f64(undefined, __builtin_nan(""), power);
    return ge2_chosen_f64(one, 1.0, power);
}

/* below 1 ulp */
GE2_FN float ge2_pow_f32(float x, float y) {
    double a = (double)__builtin_fabsf(x), log2 = ge2_log2_for_pow_f32(a);
    log2 = ge2_chosen_f64(a == 0, -__builtin_inf(), a < __builtin_inf() ? log2 : a);
    return ge2_pow_ends_f32(x, y, (float)ge2_exp2_for_pow_f32((double)y * log2));
}

GE2_FN double ge2_pow_f64(double x, double y) {
    double a = __builtin_fabs(x);
    ge2_double log2 = ge2_log2_for_pow_f64(a);
    log2.high = ge2_chosen_f64(a == 0, -__builtin_inf(), a < __builtin_inf() ? log2.high : a);
    return ge2_pow_ends_f64(x, y, ge2_exp2_for_pow_f64(log2, y));
}

/* ---- roots */

/* The third of the exponent's bits begins with 5 right bits; each of Halley's steps triples them. */
GE2_FN double ge2_cbrt_guess(double a) {
    uint32_t top = (uint32_t)(ge2_bits_f64(a) >> 32) / 3 + 715094163;
    return ge2_of_bits_f64((uint64_t)top << 32);
}

GE2_FN double ge2_cbrt_step(double y, double a) {
    double cube = y * y * y;
    return y * ((cube + 2.0 * a) / (2.0 * cube + a));
}

GE2_FN float ge2_cbrt_f32(float x) {
    double a = (double)__builtin_fabsf(x);
    double y = ge2_cbrt_step(ge2_cbrt_step(ge2_cbrt_guess(a), a), a);
    return ge2_has_exponent_f32(x) ? __builtin_copysignf((float)y, x) : x;
}

/* A last step of Newton's, of the exact residue, leaves 1 ulp. Extremes are scaled by 2**54 or 2**-54. */
GE2_FN double ge2_cbrt_f64(double x) {
    double a = __builtin_fabs(x), scaled = a < 0x1p-900 ? a * 0x1p54 : a > 0x1p900 ? a * 0x1p-54 : a;
    double y = ge2_cbrt_step(ge2_cbrt_step(ge2_cbrt_guess(scaled), scaled), scaled);
    double square = y * y, square_low = __builtin_fma(y, y, -square);
    double residue = __builtin_fma(square, y, -scaled) + square_low * y;
    y -= residue / (3.0 * square);
    y = a < 0x1p-900 ? y * 0x1p-18 : a > 0x1p900 ? y * 0x1p18 : y;
    return ge2_has_exponent_f64(x) ? __builtin_copysign(y, x) : x;
}

/* sqrt(a^2 + b^2), infinite if either is, even beside a NaN; float32 in float64, where no square overflows */
GE2_FN float ge2_hypot_f32(float a, float b) {
    double x = (double)a, y = (double)b;
    float size = (float)__builtin_sqrt(x * x + y * y);
    return ge2_chosen_f32(ge2_isinf_f32(a) | ge2_isinf_f32(b), __builtin_inff(), size);
}

GE2_FN double ge2_hypot_f64(double a, double b) {
    double x = __builtin_fabs(a), y = __builtin_fabs(b), large = x > y ? x : y;
    double scale = large > 0x1p500 ? 0x1p-600 : large < 0x1p-400 ? 0x1p600 : 1.0;
    x *= scale, y *= scale;
    double size = __builtin_sqrt(__builtin_fma(x, x, y * y)) / scale;
    return ge2_chosen_f64(ge2_isinf_f64(a) | ge2_isinf_f64(b), __builtin_inf(), size);
}

#endif
