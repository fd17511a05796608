/* What reductions begin with, and how their states merge: associative, NaN wins, the first of equals wins.
 *
 * `omp simd reduction(ge2_max_f32: m)` vectorises any loop. Rows in memory are twice as fast by ge2_row_max_f32: NaN is
 * a flag of its own there, so that from one element to the next there is but a single instruction.
 */
#ifndef GE2_FOLD_H
#define GE2_FOLD_H

#include "float_basic.h"

#define GE2_BOUNDS(t, T, LOWEST, HIGHEST) \
    GE2_FN T ge2_lowest_##t(void) { return LOWEST; } \
    GE2_FN T ge2_highest_##t(void) { return HIGHEST; }

GE2_FOR(GE2_BOUNDS, bool, uint8_t, 0, 1)
GE2_FOR(GE2_BOUNDS, i8, int8_t, INT8_MIN, INT8_MAX)
GE2_FOR(GE2_BOUNDS, i16, int16_t, INT16_MIN, INT16_MAX)
GE2_FOR(GE2_BOUNDS, i32, int32_t, INT32_MIN, INT32_MAX)
GE2_FOR(GE2_BOUNDS, i64, int64_t, INT64_MIN, INT64_MAX)
GE2_FOR(GE2_BOUNDS, u8, uint8_t, 0, UINT8_MAX)
GE2_FOR(GE2_BOUNDS, u16, uint16_t, 0, UINT16_MAX)
GE2_FOR(GE2_BOUNDS, u32, uint32_t, 0, UINT32_MAX)
GE2_FOR(GE2_BOUNDS, u64, uint64_t, 0, UINT64_MAX)

/* A value and its index. The start, an index after all others, gives way to every element. LESS(a, b) orders values. */
#define GE2_INDEXED(t, T, LESS) \
    typedef struct { \
        T value; \
        int64_t index; \
    } ge2_indexed_##t; \
    GE2_FN ge2_indexed_##t ge2_first_##t(void) { return (ge2_indexed_##t){0, INT64_MAX}; } \
    GE2_FN ge2_indexed_##t ge2_at_##t(T value, int64_t index) { return (ge2_indexed_##t){value, index}; } \
    /* whether b stands before a, where `above` is b's value before a's and `below` the opposite */ \
    GE2_FN int ge2_before_##t(ge2_indexed_##t a, ge2_indexed_##t b, int above, int below) { \
        const int earlier = b.index < a.index, number = a.value == a.value; \
        const int wins = b.value != b.value ? number | earlier : number & (above | (earlier & (below ^ 1))); \
        return a.index == INT64_MAX || (b.index != INT64_MAX && wins); \
    } \
    GE2_FN ge2_indexed_##t ge2_argmax_##t(ge2_indexed_##t a, ge2_indexed_##t b) { \
        return ge2_before_##t(a, b, LESS(a.value, b.value), LESS(b.value, a.value)) ? b : a; \
    } \
    GE2_FN ge2_indexed_##t ge2_argmin_##t(ge2_indexed_##t a, ge2_indexed_##t b) { \
        return ge2_before_##t(a, b, LESS(b.value, a.value), LESS(a.value, b.value)) ? b : a; \
    } \
    /* of a state and the element after all of its own; selections, no branches. Of numbers: one that is none wins only if \
       it comes first */ \
    GE2_FN ge2_indexed_##t ge2_number_##t(ge2_indexed_##t a, T value, int64_t index, int beyond) { \
        const int wins = beyond | (a.index == INT64_MAX); \
        return (ge2_indexed_##t){wins ? value : a.value, wins ? index : a.index}; \
    } \
    /* the same with no branch for a compiler to make of a choice: which of few elements wins nobody can foretell */ \
    GE2_FN ge2_indexed_##t ge2_masked_##t(ge2_indexed_##t a, T value, int64_t index, int beyond) { \
        const int first = a.index == INT64_MAX; \
        const int64_t wins = -(int64_t)(beyond | first); \
        const T further = beyond ? value : a.value; \
        return (ge2_indexed_##t){first ? value : further, (index & wins) | (a.index & ~wins)}; \
    } \
    GE2_FN ge2_indexed_##t ge2_later_##t(ge2_indexed_##t a, T value, int64_t index, int beyond) { \
        return ge2_number_##t(a, value, index, beyond | ((value != value) & (a.value == a.value))); \
    } \
    GE2_FN ge2_indexed_##t ge2_argmax_next_##t(ge2_indexed_##t a, T value, int64_t index) { \
        return ge2_later_##t(a, value, index, LESS(a.value, value)); \
    } \
    GE2_FN ge2_indexed_##t ge2_argmin_next_##t(ge2_indexed_##t a, T value, int64_t index) { \
        return ge2_later_##t(a, value, index, LESS(value, a.value)); \
    } \
    GE2_FN ge2_indexed_##t ge2_argmax_number_##t(ge2_indexed_##t a, T value, int64_t index) { \
        return ge2_masked_##t(a, value, index, LESS(a.value, value)); \
    } \
    GE2_FN ge2_indexed_##t ge2_argmin_number_##t(ge2_indexed_##t a, T value, int64_t index) { \
        return ge2_masked_##t(a, value, index, LESS(value, a.value)); \
    }

#define GE2_DO(pragma) _Pragma(#pragma)
#define GE2_LESS(a, b) ((a) < (b))
#define GE2_MORE(a, b) ((a) > (b))
#define GE2_BLOCK 512

/* kind: max or min, which begins with `start`; W: an integer as wide as T, for the flag; NAN_: what it stands for. */
#define GE2_EXTREME(kind, start, BEFORE, t, T, W, NAN_) \
    GE2_DO(omp declare reduction(ge2_##kind##_##t : T : \
           omp_out = omp_in != omp_in || BEFORE(omp_in, omp_out) ? omp_in : omp_out) \
           initializer(omp_priv = ge2_##start##_##t())) \
    GE2_FN T ge2_row_##kind##_##t(const T *x, int64_t n) { \
        T m = ge2_##start##_##t(); \
        W nan = 0; \
        GE2_DO(omp simd reduction(kind : m) reduction(| : nan)) \
        for (int64_t i = 0; i < n; i++) m = BEFORE(x[i], m) ? x[i] : m, nan |= x[i] != x[i]; \
        return nan ? NAN_ : m; \
    } \
    /* the index of the first; n > 0 */ \
    GE2_FN int64_t ge2_row_arg##kind##_##t(const T *x, int64_t n) { \
        T best = x[0]; \
        int64_t at = 0; \
        for (int64_t i = 0; i < n && best == best; i += GE2_BLOCK) { \
            const T m = ge2_row_##kind##_##t(x + i, ge2_least(GE2_BLOCK, n - i)); \
            if (m != m || BEFORE(m, best)) best = m, at = i; \
        } \
        const int32_t size = (int32_t)ge2_least(GE2_BLOCK, n - at); \
        int32_t first = size; \
        GE2_DO(omp simd reduction(min : first)) \
        for (int32_t j = 0; j < size; j++) { \
            const int found = x[at + j] == best || x[at + j] != x[at + j]; \
            first = found && j < first ? j : first; \
        } \
        return at + first; \
    }

#define GE2_ROWS(t, T, W, NAN_) \
    GE2_EXTREME(max, lowest, GE2_MORE, t, T, W, NAN_) \
    GE2_EXTREME(min, highest, GE2_LESS, t, T, W, NAN_) \
    GE2_INDEXED(t, T, GE2_LESS)

GE2_FOR(GE2_ROWS, bool, uint8_t, uint8_t, m)
GE2_FOR(GE2_ROWS, i8, int8_t, int8_t, m)
GE2_FOR(GE2_ROWS, i16, int16_t, int16_t, m)
GE2_FOR(GE2_ROWS, i32, int32_t, int32_t, m)
GE2_FOR(GE2_ROWS, i64, int64_t, int64_t, m)
GE2_FOR(GE2_ROWS, u8, uint8_t, uint8_t, m)
GE2_FOR(GE2_ROWS, u16, uint16_t, uint16_t, m)
GE2_FOR(GE2_ROWS, u32, uint32_t, uint32_t, m)
GE2_FOR(GE2_ROWS, u64, uint64_t, uint64_t, m)
GE2_FOR(GE2_ROWS, f32, float, int32_t, __builtin_nanf(""))
GE2_FOR(GE2_ROWS, f64, double, int64_t, __builtin_nan(""))

/* What each addition rounds away is gathered beside it (D. E. Knuth's two-sum). */
GE2_FN void ge2_compensate_f64(double *sum, double *rest, double part) {
    const double total = *sum + part, taken = total - *sum;
    *rest += (*sum - (total - taken)) + (part - taken);
    *sum = total;
}

/* The rest is no number where the sum is none, and a sum of -0.0 stays so. */
GE2_FN double ge2_compensated_f64(double sum, double rest) {
    return rest - rest == 0 && rest != 0 ? sum + rest : sum;
}

#endif
