/* Exponential and hyperbolic functions of float32 and float64.
 *
 * x = n log(2) + r with |r| <= log(2)/2; exp(x) = 2**n exp(r). The sum x log2(e) + 1.5 * 2**23, or 2**52,
 * ends in n; a shift makes it an exponent. Results below the normal numbers are rounded once.
 */
#ifndef GE2_FLOAT_EXP_H
#define GE2_FLOAT_EXP_H

#include "ge2/float_basic.h"
#include "ge2/float_log.h"

/* `turns`, such a sum, holds n + twice the exponent's bias in its low bits. */
#define GE2_TURN_F32 (0x1.8p23f + 254.0f)
#define GE2_TURN_F64 (0x1.8p52 + 2046.0)

typedef struct {
    float turns, n, r;
} ge2_reduced_f32;

typedef struct {
    double turns, n, r;
} ge2_reduced_f64;

GE2_FN ge2_reduced_f32 ge2_exp_reduce_f32(float x) {
    float turns = __builtin_fmaf(x, 0x1.715476p+0f, GE2_TURN_F32), n = turns - GE2_TURN_F32;
    float r = __builtin_fmaf(n, 0x1.05c61p-29f, __builtin_fmaf(n, -0x1.62e43p-1f, x));
    return (ge2_reduced_f32){turns, n, r};
}

GE2_FN ge2_reduced_f64 ge2_exp_reduce_f64(double x) {
    double turns = __builtin_fma(x, 0x1.71547652b82fep+0, GE2_TURN_F64), n = turns - GE2_TURN_F64;
    double r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, __builtin_fma(n, -0x1.62e42fefa39efp-1, x));
    return (ge2_reduced_f64){turns, n, r};
}

/* 2**(n + shift) for the exponent of a normal number */
GE2_FN float ge2_power_f32(float turns, int shift) {
    return ge2_of_bits_f32((ge2_bits_f32(turns) + (uint32_t)(shift - 127)) << 23);
}

GE2_FN double ge2_power_f64(double turns, int64_t shift) {
    return ge2_of_bits_f64((ge2_bits_f64(turns) + (uint64_t)(shift - 1023)) << 52);
}

/* x * 2**n in two halves of n, so that what is too large or small for one exponent rounds once */
GE2_FN float ge2_times_power_f32(float x, float turns) {
    uint32_t whole = ge2_bits_f32(turns), half = whole >> 1;
    return x * ge2_of_bits_f32(half << 23) * ge2_of_bits_f32((whole - half) << 23);
}

GE2_FN double ge2_times_power_f64(double x, double turns) {
    uint64_t whole = ge2_bits_f64(turns), half = whole >> 1;
    return x * ge2_of_bits_f64(half << 52) * ge2_of_bits_f64((whole - half) << 52);
}

/* y where |x| is at most `limit` or NaN; else 0 or infinity, of which a sign's bits are made: after a choice of either
 * gcc goes on by paths that know what follows, and loops that compare a power have no vectors. */
GE2_FN float ge2_exp_ends_f32(float x, float y, float limit) {
    uint32_t below = 0 - (ge2_bits_f32(x) >> 31);
    float end = ge2_of_bits_f32(ge2_bits_f32(__builtin_inff()) & ~below);
    return __builtin_fabsf(x) > limit ? end : y;
}

GE2_FN double ge2_exp_ends_f64(double x, double y, double limit) {
    uint64_t below = 0 - (ge2_bits_f64(x) >> 63);
    double end = ge2_of_bits_f64(ge2_bits_f64(__builtin_inf()) & ~below);
    return __builtin_fabs(x) > limit ? end : y;
}

/* exp(r), relative error 2^-28 before rounding (float64: 2^-57) */
GE2_FN float ge2_exp_near_0_f32(float r) {
    float p = 0x1.6a4d34p-10f;
    p = __builtin_fmaf(p, r, 0x1.12398ep-7f);
    p = __builtin_fmaf(p, r, 0x1.5558b0p-5f);
    p = __builtin_fmaf(p, r, 0x1.555492p-3f);
    p = __builtin_fmaf(p, r, 0x1.fffffcp-2f);
    p = __builtin_fmaf(p, r, 1.0f);
    return __builtin_fmaf(p, r, 1.0f);
}

GE2_FN double ge2_exp_near_0_f64(double r) {
    double p = 0x1.adb2ec4c75dcfp-26;
    p = __builtin_fma(p, r, 0x1.28ae0d874ccf2p-22);
    p = __builtin_fma(p, r, 0x1.71df03c6d9af5p-19);
    p = __builtin_fma(p, r, 0x1.a01999510a810p-16);
    p = __builtin_fma(p, r, 0x1.a01a0139fcec1p-13);
    p = __builtin_fma(p, r, 0x1.6c16c1847a701p-10);
    p = __builtin_fma(p, r, 0x1.1111111124b02p-7);
    p = __builtin_fma(p, r, 0x1.55555555506b5p-5);
    p = __builtin_fma(p, r, 0x1.5555555555507p-3);
    p = __builtin_fma(p, r, 0x1.000000000000ap-1);
    p = __builtin_fma(p, r, 1.0);
    return __builtin_fma(p, r, 1.0);
}

/* about 1 ulp */
GE2_FN float ge2_exp_f32(float x) {
    ge2_reduced_f32 p = ge2_exp_reduce_f32(x);
    float y = ge2_times_power_f32(ge2_exp_near_0_f32(p.r), p.turns);
    return ge2_exp_ends_f32(x, y, 104.0f);
}

GE2_FN double ge2_exp_f64(double x) {
    ge2_reduced_f64 p = ge2_exp_reduce_f64(x);
    double y = ge2_times_power_f64(ge2_exp_near_0_f64(p.r), p.turns);
    return ge2_exp_ends_f64(x, y, 746.0);
}

/* 2**x: here n is x rounded, and r = x - n exact; about 1 ulp */
GE2_FN float ge2_exp2_f32(float x) {
    float turns = x + GE2_TURN_F32, r = x - (turns - GE2_TURN_F32);
    float p = 0x1.417872p-13f;
    p = __builtin_fmaf(p, r, 0x1.5f0952p-10f);
    p = __builtin_fmaf(p, r, 0x1.3b2dd4p-7f);
    p = __builtin_fmaf(p, r, 0x1.c6af7ap-5f);
    p = __builtin_fmaf(p, r, 0x1.ebfbdcp-3f);
    p = __builtin_fmaf(p, r, 0x1.62e430p-1f);
    float y = ge2_times_power_f32(__builtin_fmaf(p, r, 1.0f), turns);
    return ge2_exp_ends_f32(x, y, 151.0f);
}

/* 2**r, relative error 2^-57 */
GE2_FN double ge2_exp2_near_0_f64(double r) {
    double p = 0x1.e8257bee5e4cdp-32;
    p = __builtin_fma(p, r, 0x1.e6130638b1022p-28);
    p = __builtin_fma(p, r, 0x1.b525ff6152bc6p-24);
    p = __builtin_fma(p, r, 0x1.62bfccfd842eap-20);
    p = __builtin_fma(p, r, 0x1.ffcbfbff0c7f0p-17);
    p = __builtin_fma(p, r, 0x1.4309130c63fb9p-13);
    p = __builtin_fma(p, r, 0x1.5d87fe78b29e4p-10);
    p = __builtin_fma(p, r, 0x1.3b2ab6fba0fc5p-7);
    p = __builtin_fma(p, r, 0x1.c6b08d704a0d8p-5);
    p = __builtin_fma(p, r, 0x1.ebfbdff82c59dp-3);
    p = __builtin_fma(p, r, 0x1.62e42fefa39efp-1);
    return __builtin_fma(p, r, 1.0);
}

GE2_FN double ge2_exp2_f64(double x) {
    double turns = x + GE2_TURN_F64, r = x - (turns - GE2_TURN_F64);
    double y = ge2_times_power_f64(ge2_exp2_near_0_f64(r), turns);
    return ge2_exp_ends_f64(x, y, 1080.0);
}

/* exp(r) - 1, relative error 2^-31 before rounding (float64: 2^-61); in pairs, so that fewer steps wait for each other:
   loops over tanh wait more than they compute */
GE2_FN float ge2_expm1_near_0_f32(float r) {
    const float r2 = r * r;
    const float low = __builtin_fmaf(0x1.555554p-3f, r, 0.5f), middle = __builtin_fmaf(0x1.1112fap-7f, r, 0x1.5554f6p-5f);
    const float high = __builtin_fmaf(0x1.9e2688p-13f, r, 0x1.6d3c8cp-10f);
    const float p = __builtin_fmaf(__builtin_fmaf(high, r2, middle), r2, low);
    return __builtin_fmaf(p, r2, r);
}

GE2_FN double ge2_expm1_near_0_f64(double r) {
    double p = 0x1.1f2efe34f4b56p-29;
    p = __builtin_fma(p, r, 0x1.af5f360a479ecp-26);
    p = __builtin_fma(p, r, 0x1.27e5055fd0ffep-22);
    p = __builtin_fma(p, r, 0x1.71ddf80af280ep-19);
    p = __builtin_fma(p, r, 0x1.a01a0194b09dep-16);
    p = __builtin_fma(p, r, 0x1.a01a01b004c87p-13);
    p = __builtin_fma(p, r, 0x1.6c16c16c195a1p-10);
    p = __builtin_fma(p, r, 0x1.111111110f653p-7);
    p = __builtin_fma(p, r, 0x1.5555555555550p-5);
    p = __builtin_fma(p, r, 0x1.5555555555559p-3);
    p = __builtin_fma(p, r, 0.5);
    return __builtin_fma(p, r * r, r);
}

/* 2**n expm1(r) + (2**n - 1), halved until the end lest 2**n overflow; 2 ulp */
GE2_FN float ge2_expm1_f32(float x) {
    ge2_reduced_f32 p = ge2_exp_reduce_f32(x);
    float half = ge2_power_f32(p.turns, -1);
    float y = 2.0f * __builtin_fmaf(half, ge2_expm1_near_0_f32(p.r), half - 0.5f);
    y = __builtin_fabsf(x) < 0x1p-25f ? x : y;
    y = ge2_chosen_f32(x < -20.0f, -1.0f, y);
    return ge2_chosen_f32(x > 89.0f, __builtin_inff(), y);
}

GE2_FN double ge2_expm1_f64(double x) {
    ge2_reduced_f64 p = ge2_exp_reduce_f64(x);
    double half = ge2_power_f64(p.turns, -1);
    double y = 2.0 * __builtin_fma(half, ge2_expm1_near_0_f64(p.r), half - 0.5);
    y = __builtin_fabs(x) < 0x1p-54 ? x : y;
    y = ge2_chosen_f64(x < -40.0, -1.0, y);
    return ge2_chosen_f64(x > 710.0, __builtin_inf(), y);
}

/* Both hyperbolic functions from C = cosh(r) and S = sinh(r), so that nothing cancels:
 * 2 sinh(x) = C (2**n - 2**-n) + S (2**n + 2**-n), 2 cosh(x) = C (2**n + 2**-n) + S (2**n - 2**-n). */
typedef struct {
    float c, s, plus, minus; /* plus, minus: (2**n + 2**-n) / 4, (2**n - 2**-n) / 4 */
} ge2_hyperbolic_f32;

typedef struct {
    double c, s, plus, minus;
} ge2_hyperbolic_f64;

GE2_FN ge2_hyperbolic_f32 ge2_hyperbolic_of_f32(float x) {
    float a = __builtin_fabsf(x);
    ge2_reduced_f32 p = ge2_exp_reduce_f32(a > 89.5f ? 89.5f : a);
    float up = ge2_power_f32(p.turns, -2);
    float down = ge2_power_f32(GE2_TURN_F32 - (p.n < 60.0f ? p.n : 60.0f), -2);
    float t = p.r * p.r;
    float c = __builtin_fmaf(__builtin_fmaf(0x1.6d4f14p-10f, t, 0x1.5554e6p-5f), t, 0.5f);
    float s = __builtin_fmaf(__builtin_fmaf(0x1.a2ddb4p-13f, t, 0x1.110fc0p-7f), t, 0x1.555556p-3f);
    c = __builtin_fmaf(c, t, 1.0f), s = __builtin_fmaf(s * t, p.r, p.r);
    return (ge2_hyperbolic_f32){c, s, up + down, up - down};
}

GE2_FN ge2_hyperbolic_f64 ge2_hyperbolic_of_f64(double x) {
    double a = __builtin_fabs(x);
    ge2_reduced_f64 p = ge2_exp_reduce_f64(a > 710.5 ? 710.5 : a);
    double up = ge2_power_f64(p.turns, -2);
    double down = ge2_power_f64(GE2_TURN_F64 - (p.n < 120.0 ? p.n : 120.0), -2);
    double t = p.r * p.r, c = 0x1.1f8bc723e0ec0p-29, s = 0x1.af5f58fad89a2p-26;
    c = __builtin_fma(c, t, 0x1.27e4cc1d630bfp-22), s = __builtin_fma(s, t, 0x1.71ddf7f8b494fp-19);
    c = __builtin_fma(c, t, 0x1.a01a01ad7a60bp-16), s = __builtin_fma(s, t, 0x1.a01a01b00ad46p-13);
    c = __builtin_fma(c, t, 0x1.6c16c16c15005p-10), s = __builtin_fma(s, t, 0x1.111111110f649p-7);
    c = __builtin_fma(c, t, 0x1.5555555555558p-5), s = __builtin_fma(s, t, 0x1.5555555555559p-3);
    c = __builtin_fma(c, t, 0.5);
    c = __builtin_fma(c, t, 1.0), s = __builtin_fma(s * t, p.r, p.r);
    return (ge2_hyperbolic_f64){c, s, up + down, up - down};
}

/* 2 ulp */
GE2_FN float ge2_sinh_f32(float x) {
    ge2_hyperbolic_f32 h = ge2_hyperbolic_of_f32(x);
    float y = 2.0f * __builtin_fmaf(h.c, h.minus, h.s * h.plus);
    return __builtin_fabsf(x) < 0x1p-13f ? x : __builtin_copysignf(y, x);
}

GE2_FN double ge2_sinh_f64(double x) {
    ge2_hyperbolic_f64 h = ge2_hyperbolic_of_f64(x);
    double y = 2.0 * __builtin_fma(h.c, h.minus, h.s * h.plus);
    return __builtin_fabs(x) < 0x1p-28 ? x : __builtin_copysign(y, x);
}

GE2_FN float ge2_cosh_f32(float x) {
    ge2_hyperbolic_f32 h = ge2_hyperbolic_of_f32(x);
    return 2.0f * __builtin_fmaf(h.c, h.plus, h.s * h.minus);
}

GE2_FN double ge2_cosh_f64(double x) {
    ge2_hyperbolic_f64 h = ge2_hyperbolic_of_f64(x);
    return 2.0 * __builtin_fma(h.c, h.plus, h.s * h.minus);
}

/* expm1(2 x) / (expm1(2 x) + 2), 3 ulp; errors of float32 have mean 0, to 2e-9. There one part of log(2) is
 * enough: n times what it lacks, 2e-9, is felt less and less as tanh goes to 1. */
GE2_FN float ge2_tanh_f32(float x) {
    float size = __builtin_fabsf(x), a = size + size;
    float turns = __builtin_fmaf(size, 0x1.715476p+1f, GE2_TURN_F32), n = turns - GE2_TURN_F32;
    float r = __builtin_fmaf(n, -0x1.62e43p-1f, a), half = ge2_power_f32(turns, -1);
    float y = __builtin_fmaf(half, ge2_expm1_near_0_f32(r), half - 0.5f);
    return __builtin_copysignf(a > 20.0f ? 1.0f : y / (y + 1.0f), x);
}

GE2_FN double ge2_tanh_f64(double x) {
    double a = __builtin_fabs(x + x);
    ge2_reduced_f64 p = ge2_exp_reduce_f64(a);
    double half = ge2_power_f64(p.turns, -1);
    double y = __builtin_fma(half, ge2_expm1_near_0_f64(p.r), half - 0.5);
    return __builtin_copysign(a > 40.0 ? 1.0 : y / (y + 1.0), x);
}

/* log(exp(a) + exp(b)) = the larger + log1p(exp(-|a - b|)); 2 ulp of the largest of the three numbers */
GE2_FN double ge2_logaddexp_f64(double a, double b) {
    double larger = a > b ? a : b, apart = a == b ? 0.0 : __builtin_fabs(a - b);
    return larger + ge2_log1p_f64(ge2_exp_f64(-apart));
}

GE2_FN float ge2_logaddexp_f32(float a, float b) { return (float)ge2_logaddexp_f64((double)a, (double)b); }

GE2_FN double ge2_logaddexp2_f64(double a, double b) {
    double larger = a > b ? a : b, apart = a == b ? 0.0 : __builtin_fabs(a - b);
    return larger + 0x1.71547652b82fep+0 * ge2_log1p_f64(ge2_exp2_f64(-apart));
}

GE2_FN float ge2_logaddexp2_f32(float a, float b) { return (float)ge2_logaddexp2_f64((double)a, (double)b); }

#endif
