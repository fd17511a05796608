/* Division by a number that many are divided by, such as the sum of a row. */
#ifndef GE2_DIVIDE_CUH
#define GE2_DIVIDE_CUH

#include "ge2/core.cuh"

/* A divisor, brought near to 1 by a power of two, and its reciprocal in two parts of one sign: x / d is two products and
   a fused sum, where a division is a dozen instructions. It is the quotient's rounding but for one in some millions,
   which are off by one unit in the last place. */
struct ge2_divisor {
    float scale, high, low;
};

/* 1 / d within a unit of the last place, for d between 2^-85 and 2^64; 0, infinity and NaN as a division has them. */
#ifndef GE2_SHIM
GE2_FN float ge2_inverse_f32(float d) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    return y;
}
#else
GE2_FN float ge2_inverse_f32(float d) { return 1.0f / d; }
#endif

GE2_FN ge2_divisor ge2_divisor_f32(float d) {
    const float size = fabsf(d);
    const float scale = size > 0x1p64f ? 0x1p-64f : size < 0x1p-64f ? 0x1p64f : 1.0f;
    const float scaled = d * scale;
    const float near = ge2_inverse_f32(scaled);
    if (!(size > 0.0f && size < GE2_INFINITY_F32)) return {scale, near, near};
    float high = fmaf(near, fmaf(-scaled, near, 1.0f), near); /* nearest, or the number beside it */
    if (fmaf(-scaled, high, 1.0f) < 0.0f) high = __uint_as_float(__float_as_uint(high) - 1); /* towards 0 */
    const float rest = fmaf(-scaled, high, 1.0f);
    return {scale, high, (rest > 0.0f ? rest : 0x1p-60f) * high}; /* not 0, or infinity times it would be NaN */
}

/* Whether the divisor is near enough to 1 already, as nearly all are. */
GE2_FN bool ge2_divisor_near(ge2_divisor by) { return by.scale == 1.0f; }
GE2_FN float ge2_over_near_f32(float x, ge2_divisor by) { return fmaf(x, by.high, x * by.low); }

GE2_FN float ge2_over_f32(float x, ge2_divisor by) {
    const float scaled = x * by.scale;
    return fmaf(scaled, by.high, scaled * by.low);
}

/* ---- the same in float64: a division is a dozen instructions and a branch, of which each waits for the one before */

struct ge2_divisor_of_f64 {
    double scale, high, low;
};

GE2_FN ge2_divisor_of_f64 ge2_divisor_f64(double d) {
    const double size = fabs(d);
    const double scale = size > 0x1p512 ? 0x1p-512 : size < 0x1p-512 ? 0x1p512 : 1.0;
    const double scaled = d * scale;
    double high = 1.0 / scaled;
    if (!(size > 0.0 && size < GE2_INFINITY_F64)) return {scale, high, high};
    if (fma(-scaled, high, 1.0) < 0.0) high = __longlong_as_double(__double_as_longlong(high) - 1); /* towards 0 */
    const double rest = fma(-scaled, high, 1.0);
    return {scale, high, (rest > 0.0 ? rest : 0x1p-120) * high}; /* not 0, or infinity times it would be NaN */
}

GE2_FN bool ge2_divisor_near(ge2_divisor_of_f64 by) { return by.scale == 1.0; }
GE2_FN double ge2_over_near_f64(double x, ge2_divisor_of_f64 by) { return fma(x, by.high, x * by.low); }

GE2_FN double ge2_over_f64(double x, ge2_divisor_of_f64 by) {
    const double scaled = x * by.scale;
    return fma(scaled, by.high, scaled * by.low);
}

#endif
