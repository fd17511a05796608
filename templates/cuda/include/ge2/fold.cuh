/* What reductions begin with, and how their states merge: associative, NaN wins, the first of equals wins. */
#ifndef GE2_FOLD_CUH
#define GE2_FOLD_CUH

#include "ge2/float.cuh"

#define GE2_BOUNDS(t, T, LOWEST, HIGHEST) \
    GE2_FN T ge2_lowest_##t() { return LOWEST; } \
    GE2_FN T ge2_highest_##t() { return HIGHEST; }

GE2_BOUNDS(bool, bool, false, true)
GE2_BOUNDS(i8, int8_t, INT8_MIN, INT8_MAX)
GE2_BOUNDS(i16, int16_t, INT16_MIN, INT16_MAX)
GE2_BOUNDS(i32, int32_t, INT32_MIN, INT32_MAX)
GE2_BOUNDS(i64, int64_t, INT64_MIN, INT64_MAX)
GE2_BOUNDS(u8, uint8_t, 0, UINT8_MAX)
GE2_BOUNDS(u16, uint16_t, 0, UINT16_MAX)
GE2_BOUNDS(u32, uint32_t, 0, UINT32_MAX)
GE2_BOUNDS(u64, uint64_t, 0, UINT64_MAX)

/* A value and its index. The start, an index after all others, gives way to every element. LESS(a, b) orders values.
 * GE2(name): the name, or ge2_near_ before it where fewer than 2^31 - 1 elements are looked at, whose index I is an int;
 * NONE is the index after all others. */
#define GE2_INDEXED_BY(GE2, I, NONE, t, T, LESS) \
    struct GE2(indexed_##t) { \
        T value; \
        I index; \
    }; \
    GE2_FN GE2(indexed_##t) GE2(first_##t)() { return {T(), NONE}; } \
    GE2_FN GE2(indexed_##t) GE2(at_##t)(T value, I index) { return {value, index}; } \
    /* whether b stands before a, where `above` is b's value before a's and `below` the opposite */ \
    GE2_FN bool GE2(before_##t)(GE2(indexed_##t) a, GE2(indexed_##t) b, bool above, bool below) { \
        const bool earlier = b.index < a.index, number = a.value == a.value; \
        const bool wins = b.value != b.value ? number | earlier : number & (above | (earlier & !below)); \
        return a.index == NONE || (b.index != NONE && wins); \
    } \
    GE2_FN GE2(indexed_##t) GE2(argmax_##t)(GE2(indexed_##t) a, GE2(indexed_##t) b) { \
        return GE2(before_##t)(a, b, LESS(a.value, b.value), LESS(b.value, a.value)) ? b : a; \
    } \
    GE2_FN GE2(indexed_##t) GE2(argmin_##t)(GE2(indexed_##t) a, GE2(indexed_##t) b) { \
        return GE2(before_##t)(a, b, LESS(b.value, a.value), LESS(a.value, b.value)) ? b : a; \
    } \
    /* of a state and an element after all of its own: no index is compared with another */ \
    GE2_FN GE2(indexed_##t) GE2(later_##t)(GE2(indexed_##t) a, T value, I index, bool beyond) { \
        const bool wins = (a.index == NONE) | ((a.value == a.value) & (beyond | (value != value))); \
        return {wins ? value : a.value, wins ? index : a.index}; \
    } \
    GE2_FN GE2(indexed_##t) GE2(argmax_next_##t)(GE2(indexed_##t) a, T value, I index) { \
        return GE2(later_##t)(a, value, index, LESS(a.value, value)); \
    } \
    GE2_FN GE2(indexed_##t) GE2(argmin_next_##t)(GE2(indexed_##t) a, T value, I index) { \
        return GE2(later_##t)(a, value, index, LESS(value, a.value)); \
    }

#define GE2_LESS(a, b) ((a) < (b))
#define GE2_FAR(name) ge2_##name
#define GE2_NEAR(name) ge2_near_##name
#define GE2_INDEXED(t, T, LESS) \
    GE2_INDEXED_BY(GE2_FAR, int64_t, INT64_MAX, t, T, LESS) \
    GE2_INDEXED_BY(GE2_NEAR, int, INT32_MAX, t, T, LESS)
GE2_INDEXED(bool, bool, GE2_LESS)
GE2_INDEXED(i8, int8_t, GE2_LESS)
GE2_INDEXED(i16, int16_t, GE2_LESS)
GE2_INDEXED(i32, int32_t, GE2_LESS)
GE2_INDEXED(i64, int64_t, GE2_LESS)
GE2_INDEXED(u8, uint8_t, GE2_LESS)
GE2_INDEXED(u16, uint16_t, GE2_LESS)
GE2_INDEXED(u32, uint32_t, GE2_LESS)
GE2_INDEXED(u64, uint64_t, GE2_LESS)
GE2_INDEXED(f32, float, GE2_LESS)
GE2_INDEXED(f64, double, GE2_LESS)

/* The same of numbers that come in the order of their places, from `first` on, if any is before `end`: then the first of
   equals is there already, and a NaN stays. */
#define GE2_NEXT_BY(GE2, I, NONE, t, name, EDGE, WINS) \
    GE2_FN GE2(indexed_##t) GE2(name##_begin_##t)(I first, I end) { return {EDGE, first < end ? first : NONE}; } \
    template <class T> GE2_FN GE2(indexed_##t) GE2(name##_step_##t)(GE2(indexed_##t) a, T value, I index) { \
        const bool wins = !(WINS) & (a.value == a.value); \
        return {wins ? value : a.value, wins ? index : a.index}; \
    }
#define GE2_NEXT(t, name, EDGE, WINS) \
    GE2_NEXT_BY(GE2_FAR, int64_t, INT64_MAX, t, name, EDGE, WINS) \
    GE2_NEXT_BY(GE2_NEAR, int, INT32_MAX, t, name, EDGE, WINS)

GE2_NEXT(f32, argmin, GE2_INFINITY_F32, value >= a.value)
GE2_NEXT(f64, argmin, GE2_INFINITY_F64, value >= a.value)
GE2_NEXT(f32, argmax, -GE2_INFINITY_F32, value <= a.value)
GE2_NEXT(f64, argmax, -GE2_INFINITY_F64, value <= a.value)

/* What each addition rounds away is gathered beside it (D. E. Knuth's two-sum). The rest is no number where the sum is
 * none, and a sum of -0.0 stays so. */
#define GE2_COMPENSATED(r, F) \
    GE2_FN void ge2_compensate_##r(F *sum, F *rest, F part) { \
        const F total = *sum + part, taken = total - *sum; \
        *rest += (*sum - (total - taken)) + (part - taken); \
        *sum = total; \
    } \
    GE2_FN F ge2_compensated_##r(F sum, F rest) { return rest - rest == 0 && rest != 0 ? sum + rest : sum; }

GE2_COMPENSATED(f32, float)
GE2_COMPENSATED(f64, double)

#endif
