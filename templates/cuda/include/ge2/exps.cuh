/* Sums of exp(x - most) over elements of which the largest is `most`, while that is not known.
 *
 * A sum is relative to `from`, which is less than the largest so far by 1 at most. So it is turned to another seldom, each
 * time by a factor that shrinks what was rounded before, and no x - from that counts is a large number whose rounding would.
 * Without elements `from` is the least number, so that -inf adds nothing.
 */
#ifndef GE2_EXPS_CUH
#define GE2_EXPS_CUH

#include "ge2/float.cuh"
#include "ge2/team.cuh"

#define GE2_EXPS(t, T, LEAST) \
    struct ge2_exps_##t { \
        T most, from, sum; \
    }; \
    GE2_FN ge2_exps_##t ge2_no_exps_##t() { return {-GE2_INFINITY_F32, LEAST, 0}; } \
    GE2_FN ge2_exps_##t ge2_exp_of_##t(T x) { return {x, x, 1}; } \
    /* the same bits whichever of them is a */ \
    GE2_FN ge2_exps_##t ge2_add_exps_##t(ge2_exps_##t a, ge2_exps_##t b) { \
        const T most = ge2_max_##t(a.most, b.most), known = ge2_max_##t(a.from, b.from); \
        const T from = most - known > 1 ? most : known; \
        return {most, from, a.sum * ge2_exp_##t(a.from - from) + b.sum * ge2_exp_##t(b.from - from)}; \
    } \
    /* N elements more, of which the largest is found first */ \
    template <int N> \
    GE2_FN ge2_exps_##t ge2_take_exps_##t(ge2_exps_##t a, const T (&x)[N]) { \
        T sum = 0; \
        for (int v = 0; v < N; v++) a.most = ge2_max_##t(a.most, x[v]); \
        if (a.most - a.from > 1) a.sum *= ge2_exp_##t(a.from - a.most), a.from = a.most; \
        for (int v = 0; v < N; v++) sum += ge2_exp_##t(x[v] - a.from); \
        a.sum += sum; \
        return a; \
    } \
    /* not a number where `most` is not finite, as exp(inf - inf) is */ \
    GE2_FN T ge2_sum_of_exps_##t(ge2_exps_##t a) { \
        return a.sum * ge2_exp_##t(a.from - a.most) + (a.most - a.most); \
    } \
    template <int SIZE, int BLOCK, bool AGAIN = true, class Merge> \
    GE2_FN ge2_exps_##t ge2_team_fold(ge2_exps_##t mine, Merge merge) { \
        return ge2_team_fold_by_lanes<SIZE, BLOCK, AGAIN>(mine, merge); \
    }

GE2_EXPS(f32, float, -3.402823466e38f)
GE2_EXPS(f64, double, -1.7976931348623157e308)

#endif
