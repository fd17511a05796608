/* Trigonometric functions of float32 and float64, right for arguments of any size, and their inverses. */
#ifndef GE2_FLOAT_TRIG_H
#define GE2_FLOAT_TRIG_H

#include "ge2/float_basic.h"

/* ---- x = 2 pi (whole turns + k/4) + r with |r| <= pi/4
 *
 * The fraction s of x / (2 pi) is the sum of the fractions of x times pieces of 1 / (2 pi). What is whole in
 * a product is taken from it exactly, so no size of x needs a branch. The sum 4 s + 1.5 * 2**52 ends in k. */

typedef struct {
    float r;
    uint32_t k;
} ge2_angle_f32;

typedef struct {
    double r, low; /* in two parts */
    uint64_t k;
} ge2_angle_f64;

/* s + the fraction of x * piece, exact while x * piece has at most 53 bits */
GE2_FN double ge2_add_turns(double s, double x, double piece) {
    return s + __builtin_fma(x, piece, -__builtin_rint(x * piece));
}

/* Five pieces of 26 bits, and 53 bits of the rest, which x cannot make whole. */
GE2_FN ge2_angle_f32 ge2_angle_of_f32(float x) {
    double a = (double)x, s = ge2_add_turns(0.0, a, 0x1.45f3068p-3);
    s = ge2_add_turns(s, a, 0x1.7272208p-29);
    s = ge2_add_turns(s, a, 0x1.4a7f09p-56);
    s = ge2_add_turns(s, a, 0x1.abe8fa8p-81);
    s = ge2_add_turns(s, a, 0x1.a6ee06p-109);
    s = __builtin_fma(a, 0x1.b6295993c439p-134, s - __builtin_rint(s));
    double quarters = __builtin_fma(s, 4.0, 0x1.8p52);
    s = __builtin_fma(quarters - 0x1.8p52, -0.25, s);
    return (ge2_angle_f32){(float)(s * 0x1.921fb54442d18p+2), (uint32_t)ge2_bits_f64(quarters)};
}

/* 1 / (2 pi) in pieces of 48 bits, times 2**400 lest the last be too small */
static const double ge2_turns[] __attribute__((unused)) = {
    0x1.45f306dc9c880p+397, 0x1.529fc2757d0p+346, 0x1.f534ddc0db6p+302, 0x1.4acc9e21c82p+255,
    0x1.fe5163abdeb80p+206, 0x1.e2b0db92371c0p+159, 0x1.2126e97003240p+111, 0x1.2eea09d1921c0p+62,
    0x1.fc3bd639625p+13, 0x1.a73ee88235f40p-34, 0x1.2ebb4484e99c0p-82, 0x1.c09ad17df90p-132,
    0x1.3991d639835p-178, 0x1.9cfa4e422fc40p-225, 0x1.defc941d8ffc0p-273, 0x1.2fffbc0b30180p-323,
    0x1.f79788c5ad040p-369, 0x1.368fb69b3f660p-417, 0x1.93e584dba7a20p-465, 0x1.1fb34f2ff5160p-513,
    0x1.7527bac7ebe40p-562, 0x1.f17b3d0739f40p-610, 0x1.c529497535fc0p-657, 0x1.afd88fc6ae840p-705,
    0x1.580cc11bf1ep-756,
};

/* the first piece that x * 2**-400 times it is not whole for */
GE2_FN int32_t ge2_first_piece(double x) {
    int32_t e = (int32_t)(ge2_bits_f64(x) >> 52 & 2047) - 1075;
    return e < 0 ? 0 : (e * 1366) >> 16; /* e / 48 */
}

typedef struct {
    double sum, low;
} ge2_pair;

/* a + b, and what rounding took from it, which goes to `low` */
GE2_FN ge2_pair ge2_plus(ge2_pair a, double b) {
    double sum = a.sum + b, of_b = sum - a.sum;
    return (ge2_pair){sum, a.low + ((a.sum - (sum - of_b)) + (b - of_b))};
}

/* Five pieces, of which four products are taken in two parts each. */
GE2_FN ge2_angle_f64 ge2_angle_of_f64(double x) {
    const double *piece = ge2_turns + ge2_first_piece(x);
    double a = x * 0x1p-400;
    double p = a * piece[0], p_low = __builtin_fma(a, piece[0], -p);
    double q = a * piece[1], q_low = __builtin_fma(a, piece[1], -q);
    double u = a * piece[2], u_low = __builtin_fma(a, piece[2], -u);
    double v = a * piece[3], v_low = __builtin_fma(a, piece[3], -v);
    ge2_pair s = {p - __builtin_rint(p), 0.0};
    s = ge2_plus(s, p_low - __builtin_rint(p_low));
    s = ge2_plus(s, q - __builtin_rint(q));
    s = ge2_plus(s, q_low);
    s = ge2_plus(s, u - __builtin_rint(u));
    s = ge2_plus(s, u_low);
    s.sum -= __builtin_rint(s.sum);
    s = ge2_plus(s, v);
    s.low += __builtin_fma(a, piece[4], v_low);
    double quarters = __builtin_fma(s.sum, 4.0, 0x1.8p52);
    s.sum = __builtin_fma(quarters - 0x1.8p52, -0.25, s.sum);
    s = ge2_plus((ge2_pair){s.sum, 0.0}, s.low);
    double r = s.sum * 0x1.921fb54442d18p+2, low = __builtin_fma(s.sum, 0x1.921fb54442d18p+2, -r);
    low += __builtin_fma(s.low, 0x1.921fb54442d18p+2, s.sum * 0x1.1a62633145c07p-52);
    return (ge2_angle_f64){r, low, ge2_bits_f64(quarters)};
}

/* ---- sine and cosine for |r| <= pi/4: minimax polynomials of errors 2^-28, 2^-33 (float64: 2^-58, 2^-64) */

GE2_FN float ge2_sin_near_0_f32(float r) {
    float t = r * r;
    float p = -0x1.9954a8p-13f;
    p = __builtin_fmaf(p, t, 0x1.11077ap-7f);
    p = __builtin_fmaf(p, t, -0x1.555546p-3f);
    return __builtin_fmaf(p * t, r, r);
}

GE2_FN float ge2_cos_near_0_f32(float r) {
    float t = r * r;
    float p = 0x1.99e818p-16f;
    p = __builtin_fmaf(p, t, -0x1.6c0c28p-10f);
    p = __builtin_fmaf(p, t, 0x1.55554ap-5f);
    p = __builtin_fmaf(p, t, -0.5f);
    return __builtin_fmaf(p, t, 1.0f);
}

GE2_FN double ge2_sin_near_0_f64(double r, double low) {
    double t = r * r;
    double p = 0x1.5d926e6c654dbp-33;
    p = __builtin_fma(p, t, -0x1.ae5e64e418cf4p-26);
    p = __builtin_fma(p, t, 0x1.71de35770a04fp-19);
    p = __builtin_fma(p, t, -0x1.a01a019c126e9p-13);
    p = __builtin_fma(p, t, 0x1.111111110f894p-7);
    p = __builtin_fma(p, t, -0x1.5555555555549p-3);
    return r + __builtin_fma(p * t, r, __builtin_fma(-0.5 * t, low, low));
}

GE2_FN double ge2_cos_near_0_f64(double r, double low) {
    double t = r * r, most = __builtin_fma(t, -0.5, 1.0);
    double p = -0x1.8fa577281e055p-37;
    p = __builtin_fma(p, t, 0x1.1ee9da09a8f1ep-29);
    p = __builtin_fma(p, t, -0x1.27e4f7ef6a109p-22);
    p = __builtin_fma(p, t, 0x1.a01a019c8cec2p-16);
    p = __builtin_fma(p, t, -0x1.6c16c16c15008p-10);
    p = __builtin_fma(p, t, 0x1.555555555554bp-5);
    double rounded = __builtin_fma(t, -0.5, 1.0 - most); /* what `most` lacks */
    return most + (rounded + __builtin_fma(p * t, t, -r * low));
}

/* sine for k = 0, cosine for k = 1, their negatives for 2 and 3 */
GE2_FN float ge2_quadrant_f32(ge2_angle_f32 a, uint32_t k) {
    float y = k & 1 ? ge2_cos_near_0_f32(a.r) : ge2_sin_near_0_f32(a.r);
    return ge2_of_bits_f32(ge2_bits_f32(y) ^ (k & 2) << 30);
}

GE2_FN double ge2_quadrant_f64(ge2_angle_f64 a, uint64_t k) {
    double y = k & 1 ? ge2_cos_near_0_f64(a.r, a.low) : ge2_sin_near_0_f64(a.r, a.low);
    return ge2_of_bits_f64(ge2_bits_f64(y) ^ (k & 2) << 62);
}

/* below 2 ulp */
GE2_FN float ge2_sin_f32(float x) {
    ge2_angle_f32 a = ge2_angle_of_f32(x);
    float y = ge2_quadrant_f32(a, a.k);
    return __builtin_fabsf(x) < 0x1p-12f ? x : y;
}

GE2_FN float ge2_cos_f32(float x) {
    ge2_angle_f32 a = ge2_angle_of_f32(x);
    return ge2_quadrant_f32(a, a.k + 1);
}

/* sine / cosine, or -cosine / sine in odd quadrants; below 4 ulp */
GE2_FN float ge2_tan_f32(float x) {
    ge2_angle_f32 a = ge2_angle_of_f32(x);
    float s = ge2_sin_near_0_f32(a.r), c = ge2_cos_near_0_f32(a.r);
    float y = (a.k & 1 ? -c : s) / (a.k & 1 ? s : c);
    return __builtin_fabsf(x) < 0x1p-12f ? x : y;
}

GE2_FN double ge2_sin_of_angle(double x, ge2_angle_f64 a) {
    double y = ge2_quadrant_f64(a, a.k);
    return __builtin_fabs(x) < 0x1p-27 ? x : y;
}

GE2_FN double ge2_cos_of_angle(double x, ge2_angle_f64 a) {
    (void)x;
    return ge2_quadrant_f64(a, a.k + 1);
}

GE2_FN double ge2_tan_of_angle(double x, ge2_angle_f64 a) {
    double s = ge2_sin_near_0_f64(a.r, a.low), c = ge2_cos_near_0_f64(a.r, a.low);
    double y = (a.k & 1 ? -c : s) / (a.k & 1 ? s : c);
    return __builtin_fabs(x) < 0x1p-27 ? x : y;
}

/* ---- float64, |x| < 2**27: a seventh of the work; for others there are float_sin.h, float_cos.h, float_tan.h */

GE2_FN uint8_t ge2_is_near(double x) { return __builtin_fabs(x) < 0x1p27; }

/* x - k pi/2 is exact with the first part of pi/2: below 1, and a multiple of 2**-53 unless k = 0 */
GE2_FN ge2_angle_f64 ge2_angle_near_f64(double x) {
    double quarters = __builtin_fma(x, 0x1.45f306dc9c883p-1, 0x1.8p52), k = quarters - 0x1.8p52;
    double p = k * 0x1.1a62633145c07p-54, p_low = __builtin_fma(k, 0x1.1a62633145c07p-54, -p);
    ge2_pair s = ge2_plus((ge2_pair){__builtin_fma(-k, 0x1.921fb54442d18p+0, x), 0.0}, -p);
    s.low += __builtin_fma(k, 0x1.f1976b7ed8fbcp-110, -p_low);
    return (ge2_angle_f64){s.sum, s.low, ge2_bits_f64(quarters)};
}

GE2_FN double ge2_sin_near_f64(double x) { return ge2_sin_of_angle(x, ge2_angle_near_f64(x)); }

GE2_FN double ge2_tan_near_f64(double x) { return ge2_tan_of_angle(x, ge2_angle_near_f64(x)); }

/* ---- inverse functions */

/* atan(z) for 0 <= z <= 1, relative error 2^-28 before rounding (float64: 2^-57) */
GE2_FN float ge2_atan_within_1_f32(float z) {
    float t = z * z;
    float p = -0x1.d4af0ap-10f;
    p = __builtin_fmaf(p, t, 0x1.64cd46p-7f);
    p = __builtin_fmaf(p, t, -0x1.fe0568p-6f);
    p = __builtin_fmaf(p, t, 0x1.da62aep-5f);
    p = __builtin_fmaf(p, t, -0x1.581638p-4f);
    p = __builtin_fmaf(p, t, 0x1.c08f94p-4f);
    p = __builtin_fmaf(p, t, -0x1.2420b8p-3f);
    p = __builtin_fmaf(p, t, 0x1.9991e6p-3f);
    p = __builtin_fmaf(p, t, -0x1.55553ep-2f);
    return __builtin_fmaf(p * t, z, z);
}

GE2_FN double ge2_atan_within_1_f64(double z) {
    double t = z * z;
    double p = 0x1.bac871deefbc5p-17;
    p = __builtin_fma(p, t, -0x1.3e7df45f98c47p-13);
    p = __builtin_fma(p, t, 0x1.b3243bd867e9ap-11);
    p = __builtin_fma(p, t, -0x1.79a048071369dp-9);
    p = __builtin_fma(p, t, 0x1.d722a54bdedc7p-8);
    p = __builtin_fma(p, t, -0x1.c7243c5378646p-7);
    p = __builtin_fma(p, t, 0x1.6802e79d9aa34p-6);
    p = __builtin_fma(p, t, -0x1.e9ca354ba92ebp-6);
    p = __builtin_fma(p, t, 0x1.2c1f01d5c54acp-5);
    p = __builtin_fma(p, t, -0x1.599c4f1ba6391p-5);
    p = __builtin_fma(p, t, 0x1.82d7d7e408b44p-5);
    p = __builtin_fma(p, t, -0x1.ae5d8adb7818bp-5);
    p = __builtin_fma(p, t, 0x1.e1bb70d11c0abp-5);
    p = __builtin_fma(p, t, -0x1.110e4c7f1706fp-4);
    p = __builtin_fma(p, t, 0x1.3b136602ace6ap-4);
    p = __builtin_fma(p, t, -0x1.745d11a0e6eabp-4);
    p = __builtin_fma(p, t, 0x1.c71c717f010bfp-4);
    p = __builtin_fma(p, t, -0x1.249249237b9c0p-3);
    p = __builtin_fma(p, t, 0x1.9999999995494p-3);
    p = __builtin_fma(p, t, -0x1.5555555555525p-2);
    return __builtin_fma(p * t, z, z);
}

/* atan(x) = pi/2 - atan(1/x); below 3 ulp */
GE2_FN float ge2_atan_f32(float x) {
    float a = __builtin_fabsf(x);
    float y = ge2_atan_within_1_f32(a > 1.0f ? 1.0f / a : a);
    y = a > 1.0f ? 0x1.921fb6p+0f - (y + 0x1.777a5cp-25f) : y;
    return __builtin_copysignf(y, x);
}

GE2_FN double ge2_atan_f64(double x) {
    double a = __builtin_fabs(x);
    double y = ge2_atan_within_1_f64(a > 1.0 ? 1.0 / a : a);
    y = a > 1.0 ? 0x1.921fb54442d18p+0 - (y - 0x1.1a62633145c07p-54) : y;
    return __builtin_copysign(y, x);
}

/* From the ratio of the smaller to the larger, then by octant; two zeros have ratio 0, two infinities 1. */
GE2_FN float ge2_atan2_f32(float y, float x) {
    float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
    float small = b < a ? b : a, large = b < a ? a : b;
    float equal = large > 0 ? 1.0f : 0.0f;
    float angle = ge2_atan_within_1_f32(small == large ? equal : small / large);
    angle = b > a ? 0x1.921fb6p+0f - (angle + 0x1.777a5cp-25f) : angle;
    angle = ge2_signbit_f32(x) ? 0x1.921fb6p+1f - (angle + 0x1.777a5cp-24f) : angle;
    return __builtin_copysignf(angle, y);
}

GE2_FN double ge2_atan2_f64(double y, double x) {
    double a = __builtin_fabs(x), b = __builtin_fabs(y);
    double small = b < a ? b : a, large = b < a ? a : b;
    double equal = large > 0 ? 1.0 : 0.0;
    double angle = ge2_atan_within_1_f64(small == large ? equal : small / large);
    angle = b > a ? 0x1.921fb54442d18p+0 - (angle - 0x1.1a62633145c07p-54) : angle;
    angle = ge2_signbit_f64(x) ? 0x1.921fb54442d18p+1 - (angle - 0x1.1a62633145c07p-53) : angle;
    return __builtin_copysign(angle, y);
}

/* asin(s) - s for 0 <= s <= 1/2, from t = s^2; relative error 2^-27 (float64: 2^-59) */
GE2_FN float ge2_asin_tail_f32(float s, float t) {
    float p = 0x1.596796p-5f;
    p = __builtin_fmaf(p, t, 0x1.8c33e6p-6f);
    p = __builtin_fmaf(p, t, 0x1.747c76p-5f);
    p = __builtin_fmaf(p, t, 0x1.330200p-4f);
    p = __builtin_fmaf(p, t, 0x1.5555c8p-3f);
    return p * t * s;
}

GE2_FN double ge2_asin_tail_f64(double s, double t) {
    double p = 0x1.0b6c1985b5988p-5;
    p = __builtin_fma(p, t, -0x1.586f9475f5bdap-6);
    p = __builtin_fma(p, t, 0x1.63e9145e5653ap-6);
    p = __builtin_fma(p, t, 0x1.e5076ae72d5ccp-9);
    p = __builtin_fma(p, t, 0x1.614b54df5e703p-7);
    p = __builtin_fma(p, t, 0x1.7583167acb1b7p-7);
    p = __builtin_fma(p, t, 0x1.ca1fd3b291b8cp-7);
    p = __builtin_fma(p, t, 0x1.1c49edba29420p-6);
    p = __builtin_fma(p, t, 0x1.6e8bdf01131ecp-6);
    p = __builtin_fma(p, t, 0x1.f1c71a93fa6e7p-6);
    p = __builtin_fma(p, t, 0x1.6db6db72145f4p-5);
    p = __builtin_fma(p, t, 0x1.333333332e118p-4);
    p = __builtin_fma(p, t, 0x1.5555555555577p-3);
    return p * t * s;
}

/* For |x| > 1/2, asin(|x|) = pi/2 - 2 asin(s), s = sqrt((1 - |x|) / 2); below 3 ulp */
GE2_FN float ge2_asin_f32(float x) {
    float a = __builtin_fabsf(x), t = a > 0.5f ? 0.5f - 0.5f * a : a * a;
    float s = a > 0.5f ? __builtin_sqrtf(t) : a, y = s + ge2_asin_tail_f32(s, t);
    y = a > 0.5f ? 0x1.921fb6p+0f - (2.0f * y + 0x1.777a5cp-25f) : y;
    return __builtin_copysignf(y, x);
}

GE2_FN double ge2_asin_f64(double x) {
    double a = __builtin_fabs(x), t = a > 0.5 ? 0.5 - 0.5 * a : a * a;
    double s = a > 0.5 ? __builtin_sqrt(t) : a, y = s + ge2_asin_tail_f64(s, t);
    y = a > 0.5 ? 0x1.921fb54442d18p+0 - (2.0 * y - 0x1.1a62633145c07p-54) : y;
    return __builtin_copysign(y, x);
}

/* acos(x) = pi/2 - asin(x), 2 asin(s) above 1/2, pi - 2 asin(s) below -1/2 */
GE2_FN float ge2_acos_f32(float x) {
    float a = __builtin_fabsf(x), t = a > 0.5f ? 0.5f - 0.5f * a : a * a;
    float s = a > 0.5f ? __builtin_sqrtf(t) : a, y = s + ge2_asin_tail_f32(s, t);
    float middle = 0x1.921fb6p+0f - (__builtin_copysignf(y, x) + 0x1.777a5cp-25f);
    float left = 0x1.921fb6p+1f - (2.0f * y + 0x1.777a5cp-24f);
    return a <= 0.5f ? middle : x < 0 ? left : 2.0f * y;
}

GE2_FN double ge2_acos_f64(double x) {
    double a = __builtin_fabs(x), t = a > 0.5 ? 0.5 - 0.5 * a : a * a;
    double s = a > 0.5 ? __builtin_sqrt(t) : a, y = s + ge2_asin_tail_f64(s, t);
    double middle = 0x1.921fb54442d18p+0 - (__builtin_copysign(y, x) - 0x1.1a62633145c07p-54);
    double left = 0x1.921fb54442d18p+1 - (2.0 * y - 0x1.1a62633145c07p-53);
    return a <= 0.5 ? middle : x < 0 ? left : 2.0 * y;
}

#endif
