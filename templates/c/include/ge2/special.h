/* What the special functions need in C; special_functions.h has them. */
#ifndef GE2_SPECIAL_H
#define GE2_SPECIAL_H

#include "ge2/float_basic.h"
#include "ge2/float_exp.h"
#include "ge2/float_log.h"
#include "ge2/float_trig.h"

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

GE2_FN float ge2_erf_f32(float x) { return (float)ge2_erf_f64((double)x); }
GE2_FN float ge2_erfc_f32(float x) { return (float)ge2_erfc_f64((double)x); }

#include "ge2/special_functions.h"

#endif
