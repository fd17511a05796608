/* Truth values as NumPy computes them: + is or, * is and. They are bytes in memory, 0 or 1. */
#ifndef GE2_BOOL_CUH
#define GE2_BOOL_CUH

#include "ge2/core.cuh"

GE2_FN bool ge2_add_bool(bool a, bool b) { return a | b; }
GE2_FN bool ge2_mul_bool(bool a, bool b) { return a & b; }
GE2_FN bool ge2_max_bool(bool a, bool b) { return a | b; }
GE2_FN bool ge2_min_bool(bool a, bool b) { return a & b; }
GE2_FN bool ge2_fmax_bool(bool a, bool b) { return a | b; }
GE2_FN bool ge2_fmin_bool(bool a, bool b) { return a & b; }
GE2_FN bool ge2_lt_bool(bool a, bool b) { return !a & b; }
GE2_FN bool ge2_le_bool(bool a, bool b) { return !a | b; }
GE2_FN bool ge2_not_bool(bool a) { return !a; }
GE2_FN bool ge2_abs_bool(bool a) { return a; }
GE2_FN bool ge2_floor_bool(bool a) { return a; }
GE2_FN bool ge2_ceil_bool(bool a) { return a; }
GE2_FN bool ge2_trunc_bool(bool a) { return a; }
GE2_FN bool ge2_truth_bool(bool a) { return a; }
GE2_FN bool ge2_isfinite_bool(bool) { return true; }
GE2_FN bool ge2_isinf_bool(bool) { return false; }
GE2_FN bool ge2_isnan_bool(bool) { return false; }

#endif
