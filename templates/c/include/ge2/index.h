/* Indices as NumPy takes them: -1 is the last element, and what lies outside is the error of the call. */
#ifndef GE2_INDEX_H
#define GE2_INDEX_H

#include "core.h"

/* The first error of a call stands. */
GE2_FN void ge2_fail(const ge2_services *lib, int64_t index, int64_t axis, int64_t size, int64_t equation) {
    if (lib->error->code == GE2_OK) *lib->error = (ge2_error){GE2_INDEX, index, axis, size, equation};
}

/* An index of several gathers that is outside, in a kernel that has looked at all from the least, `low`, to the greatest,
 * `high`. Threads may find others: of those of an axis the most negative is named, else the greatest. */
static __attribute__((unused, noinline, cold)) void ge2_index_fails(
    const ge2_services *lib, int64_t low, int64_t high, int64_t axis, int64_t size, int64_t equation) {
    const int64_t index = low < -size ? low : high;
    ge2_error *const e = lib->error;
    _Pragma("omp critical(ge2_index)")
    {
        const int same = e->code == GE2_INDEX && e->equation == equation && e->axis == axis;
        const int further = index < 0 || e->index < 0 ? index < e->index : index > e->index;
        const int earlier = e->code == GE2_INDEX && e->equation == equation && axis < e->axis;
        if (e->code == GE2_OK || earlier || (same && further)) *e = (ge2_error){GE2_INDEX, index, axis, size, equation};
    }
}

/* ge2_index_read_i64: an index out of an array, read once: another thread may write there after all were found inside.
 * ge2_index_i64: one that was found inside, counted from the start; what became of it since, it names an element.
 * ge2_index_outside_i64: whether one of n,
 * `step` apart, is outside an axis of that size; the first of them becomes the error. ge2_index_clamped_i64: an index
 * for those who look later whether it was `outside`. ge2_index_places_i64: n of them that were found inside, as places in an array of less than 2^31 elements in which the next
 * index is `by` further; `more` to what places those of another axis have made. */
#define GE2_INDICES_SHARED (1 << 17) /* indices from which on threads share them, in parts of so many */
#define GE2_INDICES_PART (1 << 14)
#define GE2_INDICES(t, T) \
    GE2_FN T ge2_index_read_##t(const T *x) { return *(const volatile T *)x; } \
    GE2_FN int64_t ge2_index_##t(T i, int64_t size) { \
        const int64_t at = (int64_t)i < 0 ? (int64_t)i + size : (int64_t)i; \
        return (uint64_t)at < (uint64_t)size ? at : 0; \
    } \
    GE2_FN int32_t ge2_index_near_##t(T i, int32_t size) { \
        const int32_t at = (int64_t)i < 0 ? (int32_t)i + size : (int32_t)i; \
        return (uint32_t)at < (uint32_t)size ? at : 0; \
    } \
    GE2_BRANCHING GE2_SINGLE void ge2_index_places_##t( \
        int32_t *places, const T *x, int64_t n, int64_t step, int64_t size, int64_t by, int more) { \
        const int32_t below = (int32_t)size, each = (int32_t)by; \
        if (step != 1 || more) { \
            _Pragma("omp simd") \
            for (int64_t i = 0; i < n; i++) \
                places[i] = (more ? places[i] : 0) + ge2_index_near_##t(x[i * step], below) * each; \
            return; \
        } \
        _Pragma("omp simd") \
        for (int64_t i = 0; i < n; i++) places[i] = ge2_index_near_##t(x[i], below) * each; \
    } \
    GE2_FN int ge2_index_is_outside_##t(T i, int64_t size) { \
        return (uint64_t)(int64_t)i + (uint64_t)size >= 2 * (uint64_t)size; \
    } \
    GE2_BRANCHING GE2_SINGLE int ge2_any_outside_##t(const T *x, int64_t n, int64_t size) { \
        int outside = 0; \
        _Pragma("omp simd reduction(| : outside)") \
        for (int64_t i = 0; i < n; i++) outside |= ge2_index_is_outside_##t(x[i], size); \
        return outside; \
    } \
    GE2_SOONER GE2_SINGLE void ge2_outside_task_##t(const void *const *given, int64_t from, int64_t to) { \
        const T *const x = *(const T *const *)given[0]; \
        if (ge2_any_outside_##t(x + from, to - from, *(const int64_t *)given[1])) \
            __atomic_store_n(*(int *const *)given[2], 1, __ATOMIC_RELAXED); \
    } \
    GE2_BRANCHING GE2_SINGLE int ge2_indices_outside_##t( \
        const T *x, int64_t n, int64_t step, int64_t size, int64_t axis, int64_t equation, int threads, \
        const ge2_services *lib) { \
        int outside = 0; \
        if (step != 1) { \
            _Pragma("omp simd reduction(| : outside)") \
            for (int64_t i = 0; i < n; i++) outside |= ge2_index_is_outside_##t(x[i * step], size); \
        } else if (n > GE2_INDICES_SHARED && threads > 1) { \
            int *const found = &outside; \
            ge2_share( \
                ge2_outside_task_##t, (const void *const[]){&x, &size, &found}, n, GE2_INDICES_PART, threads); \
        } else \
            outside = ge2_any_outside_##t(x, n, size); \
        if (!outside) return 0; \
        for (int64_t first = 0; first < n; first++) { \
            const T i = ge2_index_read_##t(x + first * step); \
            if (!ge2_index_is_outside_##t(i, size)) continue; \
            ge2_fail(lib, (int64_t)i, axis, size, equation); \
            return 1; \
        } \
        return 0; /* another thread has written there since */ \
    } \
    GE2_FN int ge2_index_outside_##t( \
        const T *x, int64_t n, int64_t step, int64_t size, int64_t axis, int64_t equation, int threads, \
        const ge2_services *lib) { \
        if (n == 1) { /* as in loops over single elements */ \
            const T index = x[0]; \
            if (!ge2_index_is_outside_##t(index, size)) return 0; \
            ge2_fail(lib, (int64_t)index, axis, size, equation); \
            return 1; \
        } \
        return ge2_indices_outside_##t(x, n, step, size, axis, equation, threads, lib); \
    }

GE2_FOR(GE2_INDICES, i8, int8_t)
GE2_FOR(GE2_INDICES, i16, int16_t)
GE2_FOR(GE2_INDICES, i32, int32_t)
GE2_FOR(GE2_INDICES, i64, int64_t)
GE2_FOR(GE2_INDICES, u8, uint8_t)
GE2_FOR(GE2_INDICES, u16, uint16_t)
GE2_FOR(GE2_INDICES, u32, uint32_t)
GE2_FOR(GE2_INDICES, u64, uint64_t)

#endif
