/* What the special functions need in CUDA; special_functions.h has them. */
#ifndef GE2_SPECIAL_CUH
#define GE2_SPECIAL_CUH

#include "ge2/float.cuh"

GE2_FN double ge2_sin_near_f64(double x) { return ge2_sin_f64(x); }
GE2_FN double ge2_tan_near_f64(double x) { return ge2_tan_f64(x); }

/* what few numbers need: threads go around it where none of a warp does */
#define GE2_SELDOM(test) if (test)

#include "ge2/special_functions.h"

#endif
