/* Products whose powers of two are counted apart, so that none overflows or vanishes on the way. */
#ifndef GE2_SCALED_CUH
#define GE2_SCALED_CUH

#include "ge2/complex.cuh"

/* value * 2^power. A value is 0, not finite, or has an exponent from -400 to 400, so that a product of two neither
 * overflows nor vanishes: most stay in range, and are as they are. Of a complex number the larger part is in [1, 2), or
 * the smaller one might vanish. */
struct ge2_scaled_f64 {
    double value;
    int64_t power;
};
struct ge2_scaled_c128 {
    ge2_c128 value;
    int64_t power;
};

/* The exponent of a number; 0 where there is none to speak of. */
GE2_FN int ge2_exponent(double x) {
    const int found = (int)((uint64_t)__double_as_longlong(x) >> 52 & 0x7ff);
    return found == 0 || found == 0x7ff ? 0 : found - 1023;
}

/* 2^n for -1023 < n < 1024. */
GE2_FN double ge2_power_of_two(int n) { return __longlong_as_double((int64_t)(n + 1023) << 52); }

/* Whether an exponent is from -400 to 400. */
GE2_FN bool ge2_in_range(double x) {
    return ((uint32_t)((uint64_t)__double_as_longlong(x) >> 52) & 0x7ff) - (1023u - 400u) <= 800u;
}

GE2_FN ge2_scaled_f64 ge2_balanced_f64(double x, int64_t power) {
    if (ge2_in_range(x)) return {x, power};
    const int n = ge2_exponent(x) < 1023 ? ge2_exponent(x) : 1022;
    return {x * ge2_power_of_two(-n), power + n};
}

GE2_FN ge2_scaled_c128 ge2_balanced_c128(ge2_c128 x, int64_t power) {
    const double size = fmax(fabs(x.re), fabs(x.im));
    const int n = ge2_exponent(size) < 1023 ? ge2_exponent(size) : 1022;
    const double by = ge2_power_of_two(-n);
    return {{x.re * by, x.im * by}, power + n};
}

/* A number below the least normal one has its exponent in sight when it is 2^64 times as large. */
GE2_FN ge2_scaled_f64 ge2_scaled_of_f64(double x) {
    return fabs(x) < 0x1p-1022 ? ge2_balanced_f64(x * 0x1p64, x != 0 ? -64 : 0) : ge2_balanced_f64(x, 0);
}
GE2_FN ge2_scaled_c128 ge2_scaled_of_c128(ge2_c128 x) {
    const bool small = fabs(x.re) < 0x1p-1022 && fabs(x.im) < 0x1p-1022;
    return small ? ge2_balanced_c128({x.re * 0x1p64, x.im * 0x1p64}, -64) : ge2_balanced_c128(x, 0);
}

GE2_FN ge2_scaled_f64 ge2_scaled_mul_f64(ge2_scaled_f64 a, ge2_scaled_f64 b) {
    return ge2_balanced_f64(a.value * b.value, a.power + b.power);
}
GE2_FN ge2_scaled_c128 ge2_scaled_mul_c128(ge2_scaled_c128 a, ge2_scaled_c128 b) {
    return ge2_balanced_c128(ge2_mul_c128(a.value, b.value), a.power + b.power);
}

/* The power as one that `ldexp` takes; beyond these all is 0 or infinite. */
GE2_FN int ge2_within(int64_t power) { return power < -4000 ? -4000 : power > 4000 ? 4000 : (int)power; }

GE2_FN double ge2_unscaled_f64(ge2_scaled_f64 x) {
    return x.power ? ldexp(x.value, ge2_within(x.power)) : x.value;
}
GE2_FN ge2_c128 ge2_unscaled_c128(ge2_scaled_c128 x) {
    if (!x.power) return x.value;
    const int n = ge2_within(x.power);
    return {ldexp(x.value.re, n), ldexp(x.value.im, n)};
}

#endif
