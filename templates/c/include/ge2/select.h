/* Elements of some ranks among the keys of a line, by levels: keys are counted in buckets between the least and the
   greatest, and those of a bucket with a rank in it are looked at closer. Each level reads what is left once or twice,
   and takes GE2_LEVEL_BITS bits off the range: there are at most six, whatever the order. */
#ifndef GE2_SELECT_H
#define GE2_SELECT_H

#include "sort.h"

enum { GE2_LEVEL_BITS = 11, GE2_LEVEL = 1 << GE2_LEVEL_BITS, GE2_FEW_KEYS = 64 };

GE2_FN uint8_t ge2_sort_value_bool(uint8_t key) { return key; }
GE2_FN uint8_t ge2_sort_value_u8(uint8_t key) { return key; }
GE2_FN uint16_t ge2_sort_value_u16(uint16_t key) { return key; }
GE2_FN uint32_t ge2_sort_value_u32(uint32_t key) { return key; }
GE2_FN uint64_t ge2_sort_value_u64(uint64_t key) { return key; }
GE2_FN int8_t ge2_sort_value_i8(uint8_t key) { return (int8_t)(key ^ 0x80); }
GE2_FN int16_t ge2_sort_value_i16(uint16_t key) { return (int16_t)(key ^ 0x8000); }
GE2_FN int32_t ge2_sort_value_i32(uint32_t key) { return (int32_t)(key ^ 1u << 31); }
GE2_FN int64_t ge2_sort_value_i64(uint64_t key) { return (int64_t)(key ^ 1ull << 63); }
GE2_FN float ge2_sort_value_f32(uint32_t key) { return ge2_float_of(key >> 31 ? key ^ 1u << 31 : ~key); }
GE2_FN double ge2_sort_value_f64(uint64_t key) { return ge2_double_of(key >> 63 ? key ^ 1ull << 63 : ~key); }
GE2_FN uint16_t ge2_sort_value_f16(uint32_t key) { return ge2_cast_f32_f16(ge2_sort_value_f32(key)); }
GE2_FN uint16_t ge2_sort_value_bf16(uint32_t key) { return ge2_cast_f32_bf16(ge2_sort_value_f32(key)); }
GE2_FN uint8_t ge2_sort_value_f8_e4m3fn(uint32_t key) { return ge2_cast_f32_f8_e4m3fn(ge2_sort_value_f32(key)); }
GE2_FN uint8_t ge2_sort_value_f8_e5m2(uint32_t key) { return ge2_cast_f32_f8_e5m2(ge2_sort_value_f32(key)); }

/* ge2_select_f32: found[r] is the key of rank ranks[r] - before in line[n], for `count` rising ranks; other[n] is room.
   What is in a bucket is moved without a branch, until the last of it is. */
#define GE2_SELECTING(t, K) \
    GE2_BRANCHING GE2_SINGLE void ge2_select_few_##t( \
        const K *line, int64_t n, const int64_t *ranks, int64_t before, int count, K *found) { \
        for (int32_t j = 0; j < (int32_t)n; j++) { \
            const K key = line[j]; \
            int32_t place = 0; \
            _Pragma("omp simd reduction(+ : place)") \
            for (int32_t i = 0; i < (int32_t)n; i++) place += (line[i] < key) | ((line[i] == key) & (i < j)); \
            for (int r = 0; r < count; r++) found[r] = ranks[r] - before == place ? key : found[r]; \
        } \
    } \
    GE2_BRANCHING GE2_SINGLE void ge2_select_##t( \
        K *line, K *other, int64_t n, const int64_t *ranks, int64_t before, int count, K *found) { \
        if (n <= GE2_FEW_KEYS) { \
            ge2_select_few_##t(line, n, ranks, before, count, found); \
            return; \
        } \
        K least = line[0], most = line[0]; \
        _Pragma("omp simd reduction(min : least) reduction(max : most)") \
        for (int64_t i = 0; i < n; i++) { \
            least = line[i] < least ? line[i] : least; \
            most = line[i] > most ? line[i] : most; \
        } \
        for (; count && ranks[0] == before; ranks++, found++, count--) *found = least; \
        for (; count && ranks[count - 1] - before == n - 1; count--) found[count - 1] = most; \
        if (!count) return; \
        int shift = 0; \
        while ((uint64_t)(K)(most - least) >> shift >= GE2_LEVEL) shift++; \
        uint32_t counts[2][GE2_LEVEL] = {{0}}; /* two, so that equal neighbours do not wait for each other */ \
        int64_t i = 0; \
        for (; i + 2 <= n; i += 2) { \
            counts[0][(K)(line[i] - least) >> shift]++; \
            counts[1][(K)(line[i + 1] - least) >> shift]++; \
        } \
        for (; i < n; i++) counts[0][(K)(line[i] - least) >> shift]++; \
        int64_t starts[count], sizes[count], first = before, at = 0; \
        int next[count]; /* the first rank that is not in a bucket; 0 where no rank begins one */ \
        K bucket = 0; \
        for (int r = 0; r < count; bucket++) { \
            const int64_t size = (int64_t)counts[0][bucket] + counts[1][bucket], end = first + size; \
            const int begun = r; \
            for (; r < count && ranks[r] < end; r++) { \
                found[r] = (K)(least + bucket); /* all of it, if a bucket is one key */ \
                next[r] = 0; \
            } \
            if (r > begun && shift) { \
                starts[begun] = first, sizes[begun] = size, next[begun] = r; \
                for (int64_t l = 0, moved = 0; moved < size; l++) { \
                    other[at + moved] = line[l]; \
                    moved += (K)(line[l] - least) >> shift == bucket; \
                } \
                at += size; \
            } \
            first = end; \
        } \
        at = 0; \
        for (int r = 0; r < count; r++) \
            if (next[r]) { \
                ge2_select_##t(other + at, line + at, sizes[r], ranks + r, starts[r], next[r] - r, found + r); \
                at += sizes[r]; \
            } \
    }

GE2_FOR(GE2_SELECTING, bool, uint8_t)
GE2_FOR(GE2_SELECTING, i8, uint8_t)
GE2_FOR(GE2_SELECTING, i16, uint16_t)
GE2_FOR(GE2_SELECTING, i32, uint32_t)
GE2_FOR(GE2_SELECTING, i64, uint64_t)
GE2_FOR(GE2_SELECTING, u8, uint8_t)
GE2_FOR(GE2_SELECTING, u16, uint16_t)
GE2_FOR(GE2_SELECTING, u32, uint32_t)
GE2_FOR(GE2_SELECTING, u64, uint64_t)
GE2_FOR(GE2_SELECTING, f32, uint32_t)
GE2_FOR(GE2_SELECTING, f64, uint64_t)
GE2_FOR(GE2_SELECTING, f16, uint32_t)
GE2_FOR(GE2_SELECTING, bf16, uint32_t)
GE2_FOR(GE2_SELECTING, f8_e4m3fn, uint32_t)
GE2_FOR(GE2_SELECTING, f8_e5m2, uint32_t)

#endif
