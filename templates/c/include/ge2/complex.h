/* Complex numbers as NumPy computes them: products and quotients by parts, without the branches of C99.
 *
 * NumPy's loops over arrays fuse one product of two wherever the processor can, and so does ge2_mul: the bits are
 * the same, but z * conj(z) is not quite real. Sines and their kin are the C library's, as in NumPy; roots,
 * exponentials and logarithms (complex_exp.h, complex_log.h) are made of functions of the parts, which have vectors.
 */
#ifndef GE2_COMPLEX_H
#define GE2_COMPLEX_H

#include "fold.h"

#include <complex.h>

#define GE2_POW_STEP(t) \
    if (left > 1) { \
        x = ge2_mul_##t(x, x), left >>= 1; \
        if (left & 1) y = any ? ge2_mul_##t(y, x) : x, any = 1; \
    }

GE2_FN float _Complex ge2_complex_f32(float a, float b) { return __builtin_complex(a, b); }
GE2_FN double _Complex ge2_complex_f64(double a, double b) { return __builtin_complex(a, b); }

/* t: suffix; T: the type; r: suffix of the parts; F: their type; L: f where the C library's names end in it. */
#define GE2_COMPLEX(t, T, r, F, L, U) \
    GE2_FN F ge2_real_##t(T x) { return __real__ x; } \
    GE2_FN F ge2_imag_##t(T x) { return __imag__ x; } \
    GE2_FN T ge2_conj_##t(T x) { return ge2_complex_##r(__real__ x, ge2_flipped_##r(__imag__ x)); } \
    GE2_FN T ge2_neg_##t(T x) { return ge2_complex_##r(ge2_flipped_##r(__real__ x), ge2_flipped_##r(__imag__ x)); } \
    GE2_FN T ge2_add_##t(T a, T b) { return ge2_complex_##r(__real__ a + __real__ b, __imag__ a + __imag__ b); } \
    GE2_FN T ge2_sub_##t(T a, T b) { return ge2_complex_##r(__real__ a - __real__ b, __imag__ a - __imag__ b); } \
    GE2_FN T ge2_times_##t(T a, F b) { return ge2_complex_##r(__real__ a * b, __imag__ a * b); } \
    GE2_FN T ge2_mul_##t(T a, T b) { \
        const F c = __real__ a, d = __imag__ a, e = __real__ b, f = __imag__ b; \
        return ge2_complex_##r(GE2_FMA(c, e, -(d * f)), GE2_FMA(c, f, d * e)); \
    } \
    GE2_FN T ge2_square_##t(T x) { \
        const F c = __real__ x, d = __imag__ x; \
        return ge2_complex_##r(GE2_FMA(c, c, -(d * d)), 2 * (c * d)); \
    } \
    /* what NumPy's power multiplies with */ \
    GE2_FN T ge2_unfused_##t(T a, T b) { \
        const F c = __real__ a, d = __imag__ a, e = __real__ b, f = __imag__ b; \
        return ge2_complex_##r(GE2_APART(c * e) - GE2_APART(d * f), GE2_APART(c * f) + GE2_APART(d * e)); \
    } \
    /* R. L. Smith, "Algorithm 116: complex division" (1962) */ \
    GE2_FN T ge2_div_##t(T a, T b) { \
        const F c = __real__ b, d = __imag__ b; \
        const int wide = GE2_ABS(c) >= GE2_ABS(d), zero = (c == 0) & (d == 0); \
        const F p = wide ? c : d, q = wide ? d : c, ratio = q / p, scale = 1 / (p + q * ratio); \
        const F x = wide ? __real__ a : __imag__ a, y = wide ? __imag__ a : __real__ a, turned = GE2_APART(x * ratio); \
        const F re = (x + GE2_APART(y * ratio)) * scale, im = (wide ? y - turned : turned - y) * scale; \
        return ge2_complex_##r(zero ? __real__ a / GE2_ABS(c) : re, zero ? __imag__ a / GE2_ABS(c) : im); \
    } \
    GE2_FN T ge2_reciprocal_##t(T x) { \
        const F c = __real__ x, d = __imag__ x; \
        const int wide = GE2_ABS(d) <= GE2_ABS(c); \
        const F p = wide ? c : d, q = wide ? d : c, ratio = q / p, size = p + q * ratio; \
        return ge2_complex_##r((wide ? 1 : ratio) / size, (wide ? -ratio : -1) / size); \
    } \
    GE2_FN uint8_t ge2_truth_##t(T x) { return (__real__ x != 0) | (__imag__ x != 0); } \
    GE2_FN uint8_t ge2_isnan_##t(T x) { return ge2_isnan_##r(__real__ x) | ge2_isnan_##r(__imag__ x); } \
    GE2_FN uint8_t ge2_isinf_##t(T x) { return ge2_isinf_##r(__real__ x) | ge2_isinf_##r(__imag__ x); } \
    GE2_FN uint8_t ge2_isfinite_##t(T x) { return ge2_isfinite_##r(__real__ x) & ge2_isfinite_##r(__imag__ x); } \
    /* by the real part, then by the imaginary part */ \
    GE2_FN uint8_t ge2_lt_##t(T a, T b) { \
        const int ordered = (__imag__ a == __imag__ a) & (__imag__ b == __imag__ b); \
        return ((__real__ a < __real__ b) & ordered) | ((__real__ a == __real__ b) & (__imag__ a < __imag__ b)); \
    } \
    GE2_FN uint8_t ge2_le_##t(T a, T b) { return ge2_lt_##t(a, b) | (a == b); } \
    GE2_FN T ge2_pick_##t(int first, T a, T b) { \
        return ge2_complex_##r(first ? __real__ a : __real__ b, first ? __imag__ a : __imag__ b); \
    } \
    /* by bits: for a choice gcc branches, or loads parts under a mask, and has no vectors */ \
    GE2_FN T ge2_where_##t(int first, T a, T b) { \
        const U mask = (U)0 - (U)(first != 0); \
        const U c = (ge2_bits_##r(__real__ a) & mask) | (ge2_bits_##r(__real__ b) & ~mask); \
        const U d = (ge2_bits_##r(__imag__ a) & mask) | (ge2_bits_##r(__imag__ b) & ~mask); \
        return ge2_complex_##r(ge2_of_bits_##r(c), ge2_of_bits_##r(d)); \
    } \
    GE2_FN T ge2_max_##t(T a, T b) { return ge2_pick_##t(ge2_isnan_##t(a) | ge2_le_##t(b, a), a, b); } \
    GE2_FN T ge2_min_##t(T a, T b) { return ge2_pick_##t(ge2_isnan_##t(a) | ge2_le_##t(a, b), a, b); } \
    GE2_FN T ge2_fmax_##t(T a, T b) { return ge2_pick_##t(ge2_isnan_##t(b) | ge2_le_##t(b, a), a, b); } \
    GE2_FN T ge2_fmin_##t(T a, T b) { return ge2_pick_##t(ge2_isnan_##t(b) | ge2_le_##t(a, b), a, b); } \
    GE2_FN T ge2_lowest_##t(void) { return ge2_complex_##r(ge2_lowest_##r(), ge2_lowest_##r()); } \
    GE2_FN T ge2_highest_##t(void) { return ge2_complex_##r(ge2_highest_##r(), ge2_highest_##r()); } \
    GE2_INDEXED(t, T, ge2_lt_##t) \
    /* an infinite part outweighs a NaN */ \
    GE2_FN F ge2_abs_##t(T x) { \
        const F c = GE2_ABS(__real__ x), d = GE2_ABS(__imag__ x), most = c < d ? d : c, least = c < d ? c : d; \
        const F ratio = ge2_chosen_##r((c == 0) & (d == 0), 0, least / most); \
        const F size = most * ge2_sqrt_##r(GE2_FMA(ratio, ratio, 1)); \
        return ge2_chosen_##r(ge2_isinf_##t(x), ge2_highest_##r(), size); \
    } \
    GE2_FN T ge2_sign_##t(T x) { \
        const F c = __real__ x, d = __imag__ x, size = __builtin_hypot##L(c, d); \
        const F re = ge2_isinf_##r(c) ? ge2_sign_##r(c) : 0, im = ge2_isinf_##r(d) ? ge2_sign_##r(d) : 0; \
        const T unit = re != 0 && im != 0 ? ge2_complex_##r(c - c, d - d) : ge2_complex_##r(re, im); \
        const T turned = size == 0 ? 0 : ge2_complex_##r(c / size, d / size); \
        return ge2_isinf_##r(size) ? unit : size != size ? ge2_complex_##r(size, size) : turned; \
    } \
    GE2_FN T ge2_rint_##t(T x) { return ge2_complex_##r(ge2_rint_##r(__real__ x), ge2_rint_##r(__imag__ x)); } \
    /* by half the angle, of 16th parts or of many times the number where a sum or a small part would be lost */ \
    GE2_FN T ge2_sqrt_##t(T x) { \
        const F c = GE2_ABS(__real__ x), d = GE2_ABS(__imag__ x), most = c < d ? d : c; \
        const int large = most > GE2_LARGE, small = most < GE2_SMALL, none = (c == 0) & (d == 0); \
        const F scale = large ? (F)0.0625 : small ? GE2_UP : 1, back = large ? 4 : small ? GE2_DOWN : 1; \
        const F e = c * scale, f = d * scale, size = ge2_abs_##t(ge2_complex_##r(e, f)); \
        const F root = ge2_sqrt_##r((e + size) / 2), quotient = f / (2 * root) * back; \
        const int endless = ge2_isinf_##r(d), far = ge2_isinf_##r(c), left = ge2_signbit_##r(__real__ x); \
        const F first = endless ? d : far ? c : none ? 0 : root * back; \
        const F other = endless ? d : far ? (d != d ? d : 0) : none ? 0 : quotient; \
        const F im = left & !endless ? first : other; \
        return ge2_complex_##r(left & !endless ? other : first, ge2_copysign_##r(im, __imag__ x)); \
    } \
    GE2_FN T ge2_sin_##t(T x) { return csin##L(x); } \
    GE2_FN T ge2_cos_##t(T x) { return ccos##L(x); } \
    GE2_FN T ge2_tan_##t(T x) { return ctan##L(x); } \
    GE2_FN T ge2_asin_##t(T x) { return casin##L(x); } \
    GE2_FN T ge2_acos_##t(T x) { return cacos##L(x); } \
    GE2_FN T ge2_atan_##t(T x) { return catan##L(x); } \
    GE2_FN T ge2_sinh_##t(T x) { return csinh##L(x); } \
    GE2_FN T ge2_cosh_##t(T x) { return ccosh##L(x); } \
    GE2_FN T ge2_tanh_##t(T x) { return ctanh##L(x); } \
    GE2_FN T ge2_asinh_##t(T x) { return casinh##L(x); } \
    GE2_FN T ge2_acosh_##t(T x) { return cacosh##L(x); } \
    GE2_FN T ge2_atanh_##t(T x) { return catanh##L(x); } \
    GE2_FN T ge2_rsqrt_##t(T x) { return ge2_div_##t(1, csqrt##L(x)); } \
    GE2_FN T ge2_exp2_##t(T x) { return cexp##L(ge2_times_##t(x, (F)0.693147180559945309417)); } \
    GE2_FN T ge2_log1p_##t(T x) { \
        const F c = __real__ x + 1, d = __imag__ x; \
        return ge2_complex_##r(__builtin_log##L(__builtin_hypot##L(c, d)), __builtin_atan2##L(d, c)); \
    } \
    GE2_FN T ge2_expm1_##t(T x) { \
        const F half = __builtin_sin##L(__imag__ x / 2); \
        return ge2_complex_##r(__builtin_expm1##L(__real__ x) * __builtin_cos##L(__imag__ x) - 2 * half * half, \
                               __builtin_exp##L(__real__ x) * __builtin_sin##L(__imag__ x)); \
    } \
    /* the square for each binary digit of n, from the lowest; written out as those of real numbers are */ \
    GE2_FN T ge2_integer_pow_##t(T x, int64_t n) { \
        uint64_t left = n < 0 ? -(uint64_t)n : (uint64_t)n; \
        int any = left & 1; \
        T y = any ? x : 1; \
        GE2_POW_STEP(t) GE2_POW_STEP(t) GE2_POW_STEP(t) GE2_POW_STEP(t) GE2_POW_STEP(t) GE2_POW_STEP(t) GE2_POW_STEP(t) \
        while (left > 1) GE2_POW_STEP(t) \
        return n < 0 ? ge2_reciprocal_##t(y) : y; \
    } \
    /* whole exponents below 100 by products, which from the fourth on begin with one by 1 */ \
    GE2_FN T ge2_pow_##t(T a, T b) { \
        const F c = __real__ b; \
        if (!ge2_truth_##t(b)) return 1; \
        if (!ge2_truth_##t(a)) return c > 0 ? 0 : ge2_complex_##r(__builtin_nan##L(""), __builtin_nan##L("")); \
        if (__imag__ b != 0 || !(c > -100 && c < 100) || c != (F)(int)c) return cpow##L(a, b); \
        if (c == 1) return a; \
        if (c == 2) return ge2_unfused_##t(a, a); \
        if (c == 3) return ge2_unfused_##t(a, ge2_unfused_##t(a, a)); \
        T y = 1; \
        for (int left = c < 0 ? -(int)c : (int)c; left;) { \
            if (left & 1) y = ge2_unfused_##t(y, a); \
            if (left >>= 1) a = ge2_unfused_##t(a, a); \
        } \
        return c < 0 ? ge2_div_##t(1, y) : y; \
    }

/* gcc 12 fuses alternate sums and differences of products even where contraction is off, but not through this. */
#if defined(__has_builtin) && __has_builtin(__builtin_assoc_barrier)
#define GE2_APART(x) __builtin_assoc_barrier(x)
#else
#define GE2_APART(x) (x)
#endif

#define GE2_ABS(x) __builtin_fabsf(x)
#define GE2_LARGE 0x1p124f
#define GE2_SMALL 0x1p-96f
#define GE2_UP 0x1p48f
#define GE2_DOWN 0x1p-24f
#ifdef __FP_FAST_FMAF
#define GE2_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define GE2_FMA(a, b, c) (GE2_APART((a) * (b)) + GE2_APART(c))
#endif
GE2_FOR(GE2_COMPLEX, c64, float _Complex, f32, float, f, uint32_t)

#undef GE2_ABS
#undef GE2_LARGE
#undef GE2_SMALL
#undef GE2_UP
#undef GE2_DOWN
#define GE2_ABS(x) __builtin_fabs(x)
#define GE2_LARGE 0x1p1020
#define GE2_SMALL 0x1p-960
#define GE2_UP 0x1p108
#define GE2_DOWN 0x1p-54
#ifdef __FP_FAST_FMA
#undef GE2_FMA
#define GE2_FMA(a, b, c) __builtin_fma(a, b, c)
#endif
GE2_FOR(GE2_COMPLEX, c128, double _Complex, f64, double, , uint64_t)

/* A sum of sums, by parts, as in fold.h. */
GE2_FN void ge2_compensate_c128(double _Complex *sum, double _Complex *rest, double _Complex part) {
    double re = __real__ *sum, im = __imag__ *sum, re_rest = __real__ *rest, im_rest = __imag__ *rest;
    ge2_compensate_f64(&re, &re_rest, __real__ part);
    ge2_compensate_f64(&im, &im_rest, __imag__ part);
    *sum = ge2_complex_f64(re, im), *rest = ge2_complex_f64(re_rest, im_rest);
}

GE2_FN double _Complex ge2_compensated_c128(double _Complex sum, double _Complex rest) {
    return ge2_complex_f64(
        ge2_compensated_f64(__real__ sum, __real__ rest), ge2_compensated_f64(__imag__ sum, __imag__ rest)
    );
}

#endif
