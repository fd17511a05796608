/* How sin, cos and tan of float64, a header each, take most arguments the short way.
 *
 * gcc makes no vectors of a loop with a branch in it, but it calls variants of a function for vectors, named by their
 * instructions and lanes as the ABI of x86 has it, and these branch once a vector. A lane does not depend on others. */
#ifndef GE2_FLOAT_BY_ANGLE_H
#define GE2_FLOAT_BY_ANGLE_H

#include "ge2/float_trig.h"

#ifdef GE2_ONE_COPY
GE2_ONE_COPY ge2_angle_f64 ge2_angle_far_f64(double x) { return ge2_angle_of_f64(x); }

#define GE2_LANES(name, isa, lanes)                                                                          \
    typedef double ge2_##name##_##isa __attribute__((vector_size(8 * lanes)));                               \
    GE2_ONE_COPY ge2_##name##_##isa _ZGV##isa##N##lanes##v_ge2_##name##_f64(ge2_##name##_##isa given) {          \
        double x[lanes], y[lanes];                                                                           \
        uint64_t far = 0;                                                                                    \
        memcpy(x, &given, sizeof x);                                                                         \
        _Pragma("omp simd reduction(|:far)") for (int i = 0; i < lanes; i++) {                               \
            y[i] = ge2_##name##_of_angle(x[i], ge2_angle_near_f64(x[i]));                                    \
            far |= ge2_is_near(x[i]) ? 0 : 1;                                                                \
        }                                                                                                    \
        if (far)                                                                                             \
            _Pragma("GCC unroll 1") for (int i = 0; i < lanes; i++) y[i] = ge2_##name##_of_one(x[i]);        \
        memcpy(&given, y, sizeof y);                                                                         \
        return given;                                                                                        \
    }
#ifdef __AVX512F__
#define GE2_MOST_LANES(name) GE2_LANES(name, e, 8)
#else
#define GE2_MOST_LANES(name)
#endif
#define GE2_BY_ANGLE(name)                                                                                   \
    __attribute__((simd("notinbranch"), const)) double ge2_##name##_f64(double x);                           \
    GE2_ONE_COPY double ge2_##name##_of_one(double x) __asm__("ge2_" #name "_f64");                              \
    GE2_ONE_COPY double ge2_##name##_of_one(double x) {                                                          \
        return ge2_##name##_of_angle(x, ge2_is_near(x) ? ge2_angle_near_f64(x) : ge2_angle_far_f64(x));      \
    }                                                                                                        \
    GE2_LANES(name, b, 2)                                                                                    \
    GE2_LANES(name, d, 4)                                                                                    \
    GE2_MOST_LANES(name)
/* else a call goes into the branch that alone needs its result, and the loop has a branch */
#pragma GCC optimize("no-tree-sink")
#else
#define GE2_BY_ANGLE(name)                                                                                   \
    GE2_FN double ge2_##name##_f64(double x) { return ge2_##name##_of_angle(x, ge2_angle_of_f64(x)); }
#endif

#endif
