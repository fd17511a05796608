/* What the special functions need in C; special_functions.h has them. */
#ifndef GE2_SPECIAL_H
#define GE2_SPECIAL_H

#include "ge2/float_basic.h"
#include "ge2/float_exp.h"
#include "ge2/float_log.h"
#include "ge2/float_trig.h"

/* what few numbers need is computed of all, so that loops are vectorised */
#define GE2_SELDOM(test)

#define GE2_INFINITY_F64 __builtin_inf()
#define GE2_NAN_F64 __builtin_nan("")

GE2_FN double ge2_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
GE2_FN float ge2_fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

/* ---- what CUDA has itself, by what is below */

GE2_FN double ge2_erf_small_f64(double x);
GE2_FN double ge2_erfc_far_f64(double size);

GE2_FN double ge2_erfc_f64(double x) {
    double a = ge2_abs_f64(x), y = a < 0.5 ? 1.0 - ge2_erf_small_f64(a) : ge2_erfc_far_f64(a);
    return x < 0 ? 2.0 - y : y;
}

GE2_FN double ge2_erf_f64(double x) {
    double a = ge2_abs_f64(x), y = a < 1.0 ? ge2_erf_small_f64(a) : 1.0 - ge2_erfc_far_f64(a);
    return ge2_copysign_f64(y, x);
}

/* erf(x) / x of u = x^2 up to |x| = 4, where float rounds to 1: a quotient in double, relative error 2^-30 */
GE2_FN float ge2_erf_f32(float x) {
    const double c = x > 4.0f ? 4.0 : x < -4.0f ? -4.0 : (double)x, u = c * c;
    double p = -0x1.81308a7462a63p-25, q = -0x1.4cee18bc0d300p-21;
    p = ge2_fma_f64(p, u, -0x1.365dfbb778282p-22);
    p = ge2_fma_f64(p, u, 0x1.409b03677838dp-12);
    p = ge2_fma_f64(p, u, 0x1.837115d93dad6p-9);
    p = ge2_fma_f64(p, u, 0x1.a14932d84eb58p-5);
    p = ge2_fma_f64(p, u, 0x1.55d0b2b7dc1e9p-3);
    p = ge2_fma_f64(p, u, 0x1.20dd7508a8131p+0);
    q = ge2_fma_f64(q, u, 0x1.57eb342da5218p-15);
    q = ge2_fma_f64(q, u, 0x1.1096b91e5f8cbp-10);
    q = ge2_fma_f64(q, u, 0x1.ba14ca5dd9e62p-7);
    q = ge2_fma_f64(q, u, 0x1.b05d9c0fbd709p-4);
    q = ge2_fma_f64(q, u, 0x1.eccbda70b2589p-2);
    return (float)(c * p / ge2_fma_f64(q, u, 1.0));
}
GE2_FN float ge2_erfc_f32(float x) { return (float)ge2_erfc_f64((double)x); }

#include "ge2/special_functions.h"

#endif
