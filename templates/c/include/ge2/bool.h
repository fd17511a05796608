/* Truth values, bytes that are 0 or 1, as NumPy computes them: + is or, * is and. */
#ifndef GE2_BOOL_H
#define GE2_BOOL_H

#include "core.h"

GE2_FN uint8_t ge2_add_bool(uint8_t a, uint8_t b) { return a | b; }
GE2_FN uint8_t ge2_mul_bool(uint8_t a, uint8_t b) { return a & b; }
GE2_FN uint8_t ge2_max_bool(uint8_t a, uint8_t b) { return a | b; }
GE2_FN uint8_t ge2_min_bool(uint8_t a, uint8_t b) { return a & b; }
GE2_FN uint8_t ge2_fmax_bool(uint8_t a, uint8_t b) { return a | b; }
GE2_FN uint8_t ge2_fmin_bool(uint8_t a, uint8_t b) { return a & b; }
GE2_FN uint8_t ge2_lt_bool(uint8_t a, uint8_t b) { return a < b; }
GE2_FN uint8_t ge2_le_bool(uint8_t a, uint8_t b) { return a <= b; }
GE2_FN uint8_t ge2_not_bool(uint8_t a) { return a ^ 1; }
GE2_FN uint8_t ge2_abs_bool(uint8_t a) { return a; }
GE2_FN uint8_t ge2_floor_bool(uint8_t a) { return a; }
GE2_FN uint8_t ge2_ceil_bool(uint8_t a) { return a; }
GE2_FN uint8_t ge2_trunc_bool(uint8_t a) { return a; }
GE2_FN uint8_t ge2_truth_bool(uint8_t a) { return a; }
GE2_FN uint8_t ge2_isfinite_bool(uint8_t a) { return (void)a, 1; }
GE2_FN uint8_t ge2_isinf_bool(uint8_t a) { return (void)a, 0; }
GE2_FN uint8_t ge2_isnan_bool(uint8_t a) { return (void)a, 0; }

#endif
