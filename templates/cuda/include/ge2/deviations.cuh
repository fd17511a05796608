/* Sums of (x - mean)^2 over elements whose mean is not known before (B. Welford, 1962; of parts: T. Chan and others, 1979).
 *
 * Each element moves the mean by a part of its distance. `mean` is that of x - origin, where `origin` is an element: what is
 * rounded of it is small beside the distances, however far they all lie from 0. `count` is a number of the elements' type: beyond 2^24 it is
 * rounded, which changes the part alone, and that by less than the sum is rounded.
 */
#ifndef GE2_DEVIATIONS_CUH
#define GE2_DEVIATIONS_CUH

#include "ge2/float.cuh"
#include "ge2/team.cuh"

GE2_FN float ge2_part_of_f32(float some, float all) { return some * ge2_brief_inverse(all); }
GE2_FN double ge2_part_of_f64(double some, double all) { return some / all; }

#define GE2_DEVIATIONS(t, T) \
    struct ge2_deviations_##t { \
        T count, origin, mean, squares; \
    }; \
    GE2_FN ge2_deviations_##t ge2_no_deviations_##t() { return {0, 0, 0, 0}; } \
    GE2_FN ge2_deviations_##t ge2_deviation_of_##t(T x) { return {1, x, 0, 0}; } \
    /* the same bits whichever of them is a: it goes from the mean of more elements, or from the lesser origin */ \
    GE2_FN ge2_deviations_##t ge2_add_deviations_##t(ge2_deviations_##t a, ge2_deviations_##t b) { \
        const bool from_a = a.count > b.count || (a.count == b.count && a.origin < b.origin); \
        const ge2_deviations_##t more = from_a ? a : b, less = from_a ? b : a; \
        const T count = a.count + b.count, squares = a.squares + b.squares; \
        if (less.count == 0) return more; \
        const T apart = (less.origin - more.origin) + (less.mean - more.mean); \
        const T step = apart * ge2_part_of_##t(less.count, count); \
        return {count, more.origin, more.mean + step, ge2_fma_##t(step * more.count, apart, squares)}; \
    } \
    GE2_FN ge2_deviations_##t ge2_take_deviation_##t(ge2_deviations_##t a, T x) { \
        a.origin = a.count > 0 ? a.origin : x; \
        a.count += 1; \
        const T y = x - a.origin, apart = y - a.mean; \
        a.mean = ge2_fma_##t(apart, ge2_part_of_##t(1, a.count), a.mean); \
        a.squares = ge2_fma_##t(apart, y - a.mean, a.squares); \
        return a; \
    } \
    /* N elements more, a power of two, of which the mean is found first */ \
    template <int N> \
    GE2_FN ge2_deviations_##t ge2_take_deviations_##t(ge2_deviations_##t a, const T (&x)[N]) { \
        const T origin = a.count > 0 ? a.origin : x[0]; \
        T y[N], sum = 0, squares = 0; \
        for (int v = 0; v < N; v++) sum += y[v] = x[v] - origin; \
        const T mean = sum * ((T)1 / N); \
        for (int v = 0; v < N; v++) squares = ge2_fma_##t(y[v] - mean, y[v] - mean, squares); \
        return ge2_add_deviations_##t(a, {(T)N, origin, mean, squares}); \
    } \
    GE2_FN T ge2_sum_of_deviations_##t(ge2_deviations_##t a) { return a.squares; } \
    template <int SIZE, int BLOCK, bool AGAIN = true, class Merge> \
    GE2_FN ge2_deviations_##t ge2_team_fold(ge2_deviations_##t mine, Merge merge) { \
        return ge2_team_fold_by_lanes<SIZE, BLOCK, AGAIN>(mine, merge); \
    }

GE2_DEVIATIONS(f32, float)
GE2_DEVIATIONS(f64, double)

#endif
