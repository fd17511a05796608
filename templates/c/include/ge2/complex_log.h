/* Logarithms of complex numbers, by the functions of their parts, which have vectors; the C library's has none. */
#ifndef GE2_COMPLEX_LOG_H
#define GE2_COMPLEX_LOG_H

#include "complex.h"
#include "float_log.h"
#include "float_trig.h"

/* log |x| and the angle. Near the unit circle |x|^2 - 1 is added up without a rounding but the last, with what the
 * squares round away; elsewhere the logarithm of the larger part and that of the rest are of one sign, or one is twice
 * the other. An infinite part outweighs one that is no number. */
#define GE2_COMPLEX_LOG(t, T, r, F, FABS, FUSED) \
    GE2_FN T ge2_log_##t(T x) { \
        const F c = FABS(__real__ x), d = FABS(__imag__ x), most = c < d ? d : c, least = c < d ? c : d; \
        const int near = (most >= (F)0.5) & (most < 2); \
        const F s = most * most, q = least * least, ratio = least == 0 ? 0 : least / most; \
        const F half = q < (F)0.25 ? 0 : (F)0.5, a = FUSED(most, most, -s), b = FUSED(least, least, -q); \
        const F lost = a + b, of_b = lost - a, last = (a - (lost - of_b)) + (b - of_b); \
        const F beyond = (((s - (1 - half)) + (q - half)) + lost) + last; \
        const F rest = ge2_log1p_##r(near ? beyond : ratio * ratio) / 2, size = ge2_log_##r(near ? 1 : most) + rest; \
        return ge2_complex_##r( \
            ge2_isinf_##t(x) ? ge2_highest_##r() : size, ge2_atan2_##r(__imag__ x, __real__ x)); \
    } \
    GE2_FN T ge2_log2_##t(T x) { return ge2_times_##t(ge2_log_##t(x), (F)1.442695040888963407360); } \
    GE2_FN T ge2_log10_##t(T x) { return ge2_times_##t(ge2_log_##t(x), (F)0.434294481903251827651); }
GE2_FOR(GE2_COMPLEX_LOG, c64, float _Complex, f32, float, __builtin_fabsf, __builtin_fmaf)
GE2_FOR(GE2_COMPLEX_LOG, c128, double _Complex, f64, double, __builtin_fabs, __builtin_fma)

#endif
