/* Exponentials of complex numbers, by the functions of their parts, which have vectors; the C library's has none. */
#ifndef GE2_COMPLEX_EXP_H
#define GE2_COMPLEX_EXP_H

#include "complex.h"
#include "float_cos.h"
#include "float_exp.h"
#include "float_sin.h"

/* exp(c) (cos(d) + i sin(d)). What exp(c) alone could not hold, a small cosine may bring back: so from `far` on it is
 * exp(c - far) and then exp(far). An infinite c outweighs a d that is no number; a d of 0 stays as it is. */
#define GE2_COMPLEX_EXP(t, T, r, F, FAR, EXP_OF_FAR) \
    GE2_FN T ge2_exp_##t(T x) { \
        const F c = __real__ x, d = __imag__ x, far = FAR; \
        const F size = ge2_exp_##r(c > far ? c - far : c), more = c > far ? EXP_OF_FAR : 1; \
        const F re = size * (ge2_cos_##r(d) * more), im = size * (ge2_sin_##r(d) * more); \
        const int ends = (d - d != 0) & ge2_isinf_##r(c), zero = d == 0; \
        const F first = zero ? size * more : ends ? size : re, other = c < 0 ? (d < 0 ? -(F)0 : (F)0) : d - d; \
        return ge2_complex_##r(first, zero ? d : ends ? other : im); \
    }
GE2_FOR(GE2_COMPLEX_EXP, c64, float _Complex, f32, float, 80, 0x1.55779cp+115f)
GE2_FOR(GE2_COMPLEX_EXP, c128, double _Complex, f64, double, 700, 0x1.d945df4f8ec8ep+1009)

#endif
