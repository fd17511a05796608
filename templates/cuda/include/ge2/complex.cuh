/* Complex numbers as NumPy computes them: products and quotients by parts, without the branches of C99.
 *
 * NumPy's loops over arrays fuse one product of two wherever the processor can, and so does ge2_mul: the bits are
 * the same, but z * conj(z) is not quite real. Logarithms, sines and their kin are in complex_maths.cuh.
 */
#ifndef GE2_COMPLEX_CUH
#define GE2_COMPLEX_CUH

#include "ge2/fold.cuh"

/* t: suffix; T: the type; r: suffix of the parts; F: their type; FMA, ABS, HYPOT: CUDA's functions of that type. */
#define GE2_COMPLEX(t, T, r, F, FMA, ABS, HYPOT) \
    GE2_FN F ge2_real_##t(T x) { return x.re; } \
    GE2_FN F ge2_imag_##t(T x) { return x.im; } \
    GE2_FN T ge2_conj_##t(T x) { return {x.re, -x.im}; } \
    GE2_FN T ge2_neg_##t(T x) { return {-x.re, -x.im}; } \
    GE2_FN T ge2_add_##t(T a, T b) { return {a.re + b.re, a.im + b.im}; } \
    GE2_FN T ge2_sub_##t(T a, T b) { return {a.re - b.re, a.im - b.im}; } \
    GE2_FN T ge2_times_##t(T a, F b) { return {a.re * b, a.im * b}; } \
    GE2_FN T ge2_mul_##t(T a, T b) { \
        return {FMA(a.re, b.re, -(a.im * b.im)), FMA(a.re, b.im, a.im * b.re)}; \
    } \
    GE2_FN T ge2_square_##t(T x) { return {FMA(x.re, x.re, -(x.im * x.im)), 2 * (x.re * x.im)}; } \
    /* what NumPy's power multiplies with */ \
    GE2_FN T ge2_unfused_##t(T a, T b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; } \
    /* R. L. Smith, "Algorithm 116: complex division" (1962) */ \
    GE2_FN T ge2_div_##t(T a, T b) { \
        const bool wide = ABS(b.re) >= ABS(b.im), zero = b.re == 0 && b.im == 0; \
        const F p = wide ? b.re : b.im, q = wide ? b.im : b.re, ratio = q / p, scale = 1 / (p + q * ratio); \
        const F x = wide ? a.re : a.im, y = wide ? a.im : a.re, turned = x * ratio; \
        const F re = (x + y * ratio) * scale, im = (wide ? y - turned : turned - y) * scale; \
        return {zero ? a.re / ABS(b.re) : re, zero ? a.im / ABS(b.re) : im}; \
    } \
    GE2_FN T ge2_reciprocal_##t(T x) { \
        const bool wide = ABS(x.im) <= ABS(x.re); \
        const F p = wide ? x.re : x.im, q = wide ? x.im : x.re, ratio = q / p, size = p + q * ratio; \
        return {(wide ? 1 : ratio) / size, (wide ? -ratio : -1) / size}; \
    } \
    GE2_FN T operator-(T x) { return ge2_neg_##t(x); } \
    GE2_FN T operator+(T a, T b) { return ge2_add_##t(a, b); } \
    GE2_FN T operator-(T a, T b) { return ge2_sub_##t(a, b); } \
    GE2_FN T operator*(T a, T b) { return ge2_mul_##t(a, b); } \
    GE2_FN T operator/(T a, T b) { return ge2_div_##t(a, b); } \
    GE2_FN bool ge2_truth_##t(T x) { return x.re != 0 || x.im != 0; } \
    GE2_FN bool ge2_isnan_##t(T x) { return ge2_isnan_##r(x.re) || ge2_isnan_##r(x.im); } \
    GE2_FN bool ge2_isinf_##t(T x) { return ge2_isinf_##r(x.re) || ge2_isinf_##r(x.im); } \
    GE2_FN bool ge2_isfinite_##t(T x) { return ge2_isfinite_##r(x.re) && ge2_isfinite_##r(x.im); } \
    /* by the real part, then by the imaginary part */ \
    GE2_FN bool ge2_lt_##t(T a, T b) { \
        const bool ordered = a.im == a.im && b.im == b.im; \
        return (a.re < b.re && ordered) || (a.re == b.re && a.im < b.im); \
    } \
    GE2_FN bool ge2_le_##t(T a, T b) { return ge2_lt_##t(a, b) || a == b; } \
    GE2_FN T ge2_max_##t(T a, T b) { return ge2_isnan_##t(a) || ge2_le_##t(b, a) ? a : b; } \
    GE2_FN T ge2_min_##t(T a, T b) { return ge2_isnan_##t(a) || ge2_le_##t(a, b) ? a : b; } \
    GE2_FN T ge2_fmax_##t(T a, T b) { return ge2_isnan_##t(b) || ge2_le_##t(b, a) ? a : b; } \
    GE2_FN T ge2_fmin_##t(T a, T b) { return ge2_isnan_##t(b) || ge2_le_##t(a, b) ? a : b; } \
    GE2_FN T ge2_lowest_##t() { return {ge2_lowest_##r(), ge2_lowest_##r()}; } \
    GE2_FN T ge2_highest_##t() { return {ge2_highest_##r(), ge2_highest_##r()}; } \
    GE2_INDEXED(t, T, ge2_lt_##t) \
    /* an infinite part outweighs a NaN */ \
    GE2_FN F ge2_abs_##t(T x) { \
        const F c = ABS(x.re), d = ABS(x.im), most = c < d ? d : c, least = c < d ? c : d; \
        const F ratio = c == 0 && d == 0 ? (F)0 : least / most; \
        const F size = most * ge2_sqrt_##r(FMA(ratio, ratio, (F)1)); \
        return ge2_isinf_##t(x) ? ge2_highest_##r() : size; \
    } \
    GE2_FN T ge2_sign_##t(T x) { \
        const F c = x.re, d = x.im, size = HYPOT(c, d); \
        const F re = ge2_isinf_##r(c) ? ge2_sign_##r(c) : (F)0, im = ge2_isinf_##r(d) ? ge2_sign_##r(d) : (F)0; \
        if (ge2_isinf_##r(size)) return re != 0 && im != 0 ? T{c - c, d - d} : T{re, im}; \
        if (size != size) return {size, size}; \
        return size == 0 ? T{0, 0} : T{c / size, d / size}; \
    } \
    GE2_FN T ge2_rint_##t(T x) { return {ge2_rint_##r(x.re), ge2_rint_##r(x.im)}; } \
    /* the square for each binary digit of n, from the lowest */ \
    GE2_FN T ge2_integer_pow_##t(T x, int64_t n) { \
        T y = {1, 0}; \
        bool any = false; \
        for (uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n; left;) { \
            if (left & 1) y = any ? ge2_mul_##t(y, x) : x, any = true; \
            if (left >>= 1) x = ge2_mul_##t(x, x); \
        } \
        return n < 0 ? ge2_reciprocal_##t(y) : y; \
    } \
    /* A sum of sums, by parts, as in fold.cuh. */ \
    GE2_FN void ge2_compensate_##t(T *sum, T *rest, T part) { \
        ge2_compensate_##r(&sum->re, &rest->re, part.re); \
        ge2_compensate_##r(&sum->im, &rest->im, part.im); \
    } \
    GE2_FN T ge2_compensated_##t(T sum, T rest) { \
        return {ge2_compensated_##r(sum.re, rest.re), ge2_compensated_##r(sum.im, rest.im)}; \
    }

GE2_COMPLEX(c64, ge2_c64, f32, float, fmaf, fabsf, hypotf)
GE2_COMPLEX(c128, ge2_c128, f64, double, fma, fabs, hypot)

#endif
