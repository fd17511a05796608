/* Remainders and floored quotients of float32 and float64: NumPy's results to the bit. */
#ifndef GE2_FLOAT_REMAINDER_H
#define GE2_FLOAT_REMAINDER_H

#include "ge2/float_basic.h"

/* ---- quotients of any size */

/* r - q b, where q is a whole number nearest r / b: exact while q has at most 48 bits */
GE2_FN double ge2_reduce_by(double r, double b, double inverse, double scale) {
    return __builtin_fma(-__builtin_rint(r * (inverse / scale)), b * scale, r);
}

/* Exact: by multiples of b, 48 bits of the quotient at a time. The quotient of float32 has at most 278. */
GE2_FN float ge2_fmod_far_f32(float x, float y) {
    double a = (double)__builtin_fabsf(x), b = (double)__builtin_fabsf(y), inverse = 1.0 / b;
    double r = ge2_reduce_by(a, b, inverse, 0x1p240);
    r = ge2_reduce_by(r, b, inverse, 0x1p192);
    r = ge2_reduce_by(r, b, inverse, 0x1p144);
    r = ge2_reduce_by(r, b, inverse, 0x1p96);
    r = ge2_reduce_by(r, b, inverse, 0x1p48);
    r = ge2_reduce_by(r, b, inverse, 1.0);
    r = r < 0 ? r + b : r;
    return ge2_isinf_f32(y) && ge2_isfinite_f32(x) ? x : __builtin_copysignf((float)r, x);
}

/* 2098 bits would be too many: that of the x87, which takes 63 at a time and is exact, or else the C library's. No vectors. */
GE2_FN double ge2_fmod_far_f64(double a, double b) {
#if defined(__x86_64__)
    long double r = a;
    __asm__("1: fprem\n\tfnstsw %%ax\n\ttestb $4, %%ah\n\tjne 1b" : "+t"(r) : "u"((long double)b) : "ax", "cc");
    return (double)r;
#else
    return __builtin_fmod(a, b);
#endif
}

/* ---- quotients with fewer bits than a mantissa: a rounded one is the whole number or the next, either remainder is a
 * number, and so a fused product has it exactly */

GE2_FN uint8_t ge2_is_few_f32(float a, float b) {
    return (__builtin_fabsf(a / b) < 0x1p23f) & (__builtin_fabsf(b) < __builtin_inff());
}
GE2_FN uint8_t ge2_is_few_f64(double a, double b) {
    return (__builtin_fabs(a / b) < 0x1p52) & (__builtin_fabs(b) < __builtin_inf());
}

GE2_FN float ge2_fmod_near_f32(float a, float b) {
    float x = __builtin_fabsf(a), y = __builtin_fabsf(b), r = __builtin_fmaf(-__builtin_truncf(x / y), y, x);
    return __builtin_copysignf(r < 0 ? r + y : r, a);
}
GE2_FN double ge2_fmod_near_f64(double a, double b) {
    double x = __builtin_fabs(a), y = __builtin_fabs(b), r = __builtin_fma(-__builtin_trunc(x / y), y, x);
    return __builtin_copysign(r < 0 ? r + y : r, a);
}

/* ---- by powers of two from 1 that stand in the text, such as 1 itself: the product with the inverse is exact */

GE2_FN uint8_t ge2_is_power_f32(float b) {
    float size = __builtin_fabsf(b);
    return (ge2_bits_f32(b) & 0x7fffff) == 0 && size >= 1 && size < 0x1p60f;
}
GE2_FN uint8_t ge2_is_power_f64(double b) {
    double size = __builtin_fabs(b);
    return (ge2_bits_f64(b) & 0xfffffffffffff) == 0 && size >= 1 && size < 0x1p60;
}

GE2_FN float ge2_fmod_power_f32(float a, float b) {
    return __builtin_copysignf(a - __builtin_truncf(a * (1.0f / b)) * b, a);
}
GE2_FN double ge2_fmod_power_f64(double a, double b) {
    return __builtin_copysign(a - __builtin_trunc(a * (1.0 / b)) * b, a);
}

/* ---- remainders: gcc makes no vectors of a loop with a branch in it, but it calls these variants for vectors, which
 * branch once a vector, as those of float_by_angle.h do */

#ifdef GE2_ONE_COPY
#define GE2_REMAINDERS(T, t, isa, lanes)                                                                     \
    typedef T ge2_lanes_##t##_##isa __attribute__((vector_size(sizeof(T) * lanes)));                         \
    GE2_ONE_COPY ge2_lanes_##t##_##isa _ZGV##isa##N##lanes##vv_ge2_remainder_##t(                            \
        ge2_lanes_##t##_##isa given, ge2_lanes_##t##_##isa by) {                                             \
        T a[lanes], b[lanes], r[lanes];                                                                      \
        unsigned far = 0;                                                                                    \
        memcpy(a, &given, sizeof a), memcpy(b, &by, sizeof b);                                               \
        _Pragma("omp simd reduction(|:far)") for (int i = 0; i < lanes; i++) {                               \
            r[i] = ge2_fmod_near_##t(a[i], b[i]);                                                            \
            far |= ge2_is_few_##t(a[i], b[i]) ? 0 : 1;                                                       \
        }                                                                                                    \
        if (far) for (int i = 0; i < lanes; i++) r[i] = ge2_fmod_far_##t(a[i], b[i]);                        \
        memcpy(&given, r, sizeof r);                                                                         \
        return given;                                                                                        \
    }
#ifdef __AVX512F__
#define GE2_MOST_REMAINDERS(T, t, lanes) GE2_REMAINDERS(T, t, e, lanes)
#else
#define GE2_MOST_REMAINDERS(T, t, lanes)
#endif
#define GE2_REMAINDER(T, t, two, four, eight)                                                                \
    __attribute__((simd("notinbranch"), const)) T ge2_remainder_##t(T a, T b);                               \
    GE2_ONE_COPY T ge2_remainder_one_##t(T a, T b) __asm__("ge2_remainder_" #t);                             \
    GE2_ONE_COPY T ge2_remainder_one_##t(T a, T b) {                                                         \
        return ge2_is_few_##t(a, b) ? ge2_fmod_near_##t(a, b) : ge2_fmod_far_##t(a, b);                      \
    }                                                                                                        \
    GE2_REMAINDERS(T, t, b, two)                                                                             \
    GE2_REMAINDERS(T, t, d, four)                                                                            \
    GE2_MOST_REMAINDERS(T, t, eight)
GE2_REMAINDER(float, f32, 4, 8, 16)
GE2_REMAINDER(double, f64, 2, 4, 8)
/* else a call goes into the branch that alone needs its result, and the loop has a branch */
#pragma GCC optimize("no-tree-sink")
#else
GE2_FN float ge2_remainder_f32(float a, float b) { return ge2_fmod_far_f32(a, b); }
GE2_FN double ge2_remainder_f64(double a, double b) { return ge2_fmod_far_f64(a, b); }
#endif

GE2_FN float ge2_fmod_f32(float a, float b) {
    return __builtin_constant_p(b) && ge2_is_power_f32(b) ? ge2_fmod_power_f32(a, b) : ge2_remainder_f32(a, b);
}
GE2_FN double ge2_fmod_f64(double a, double b) {
    return __builtin_constant_p(b) && ge2_is_power_f64(b) ? ge2_fmod_power_f64(a, b) : ge2_remainder_f64(a, b);
}

/* in the steps of NumPy's npy_divmod */

GE2_FN float ge2_rem_f32(float a, float b) {
    float r = ge2_fmod_f32(a, b);
    float turned = (b < 0) != (r < 0) ? r + b : r;
    return ge2_chosen_f32(r == 0, __builtin_copysignf(0.0f, b), turned);
}

GE2_FN double ge2_rem_f64(double a, double b) {
    double r = ge2_fmod_f64(a, b);
    double turned = (b < 0) != (r < 0) ? r + b : r;
    return ge2_chosen_f64(r == 0, __builtin_copysign(0.0, b), turned);
}

GE2_FN float ge2_floor_div_f32(float a, float b) {
    float r = ge2_fmod_f32(a, b), given = (a - (b == 0 ? 0.0f : r)) / b;
    float q = r != 0 && (b < 0) != (r < 0) ? given - 1.0f : given;
    float whole = __builtin_floorf(q);
    whole = q - whole > 0.5f ? whole + 1.0f : whole;
    whole = q == 0 ? ge2_of_bits_f32((ge2_bits_f32(a) ^ ge2_bits_f32(b)) & UINT32_C(1) << 31) : whole;
    return b == 0 ? given : whole;
}

GE2_FN double ge2_floor_div_f64(double a, double b) {
    double r = ge2_fmod_f64(a, b), given = (a - (b == 0 ? 0.0 : r)) / b;
    double q = r != 0 && (b < 0) != (r < 0) ? given - 1.0 : given;
    double whole = __builtin_floor(q);
    whole = q - whole > 0.5 ? whole + 1.0 : whole;
    whole = q == 0 ? ge2_of_bits_f64((ge2_bits_f64(a) ^ ge2_bits_f64(b)) & UINT64_C(1) << 63) : whole;
    return b == 0 ? given : whole;
}

#endif
