/* Sorting, and searching what is sorted: stable, with NaN last and -0.0 equal to 0.0, as NumPy does it.
 *
 * The order of a type is that of an unsigned number, its key. Lines are sorted by the bytes of their keys, the last
 * byte first; a byte that all keys share costs nothing. In a short line each element counts those before it.
 */
#ifndef GE2_SORT_H
#define GE2_SORT_H

#include "half.h"

GE2_FN uint8_t ge2_sort_key_bool(uint8_t x) { return x; }
GE2_FN uint8_t ge2_sort_key_u8(uint8_t x) { return x; }
GE2_FN uint16_t ge2_sort_key_u16(uint16_t x) { return x; }
GE2_FN uint32_t ge2_sort_key_u32(uint32_t x) { return x; }
GE2_FN uint64_t ge2_sort_key_u64(uint64_t x) { return x; }
GE2_FN uint8_t ge2_sort_key_i8(int8_t x) { return (uint8_t)x ^ 0x80; }
GE2_FN uint16_t ge2_sort_key_i16(int16_t x) { return (uint16_t)x ^ 0x8000; }
GE2_FN uint32_t ge2_sort_key_i32(int32_t x) { return (uint32_t)x ^ 1u << 31; }
GE2_FN uint64_t ge2_sort_key_i64(int64_t x) { return (uint64_t)x ^ 1ull << 63; }
GE2_FN uint32_t ge2_sort_key_f32(float x) {
    const uint32_t u = ge2_word_of(x + 0.0f), key = u >> 31 ? ~u : u | 1u << 31;
    return x != x ? UINT32_MAX : key;
}
GE2_FN uint64_t ge2_sort_key_f64(double x) {
    const uint64_t u = ge2_long_word_of(x + 0.0), key = u >> 63 ? ~u : u | 1ull << 63;
    return x != x ? UINT64_MAX : key;
}
GE2_FN uint32_t ge2_sort_key_f16(uint16_t x) { return ge2_sort_key_f32(ge2_cast_f16_f32(x)); }
GE2_FN uint32_t ge2_sort_key_bf16(uint16_t x) { return ge2_sort_key_f32(ge2_cast_bf16_f32(x)); }
GE2_FN uint32_t ge2_sort_key_f8_e4m3fn(uint8_t x) { return ge2_sort_key_f32(ge2_cast_f8_e4m3fn_f32(x)); }
GE2_FN uint32_t ge2_sort_key_f8_e5m2(uint8_t x) { return ge2_sort_key_f32(ge2_cast_f8_e5m2_f32(x)); }

enum { GE2_SHORT_LINE = 64, GE2_SEARCHES = 16 };

/* The largest first, NaN before all; the least first, NaN last; the largest first, NaN last. */
enum { GE2_LARGEST, GE2_RISING, GE2_FALLING };

/* ge2_sort_f32: keys with their indices, sorted by way of other[n]. ge2_top_f32: the k first of n elements in an
 * order, and equals in their own, with keys that rise in it: a heap of them has the worst on top, and an element
 * is looked at no more unless it is better. k is 1 at least, and n at most. ge2_search_f32: where up to GE2_SEARCHES values would
 * be inserted in a line of n, before or, at the `right`, after their equals. */
#define GE2_SORTED(t, T, K) \
    typedef struct { \
        K key; \
        uint32_t index; \
    } ge2_pair_##t; \
    GE2_BRANCHING GE2_SINGLE void ge2_sort_##t(ge2_pair_##t *line, ge2_pair_##t *other, int64_t n) { \
        if (n <= GE2_SHORT_LINE) { \
            K keys[GE2_SHORT_LINE]; \
            int32_t place[GE2_SHORT_LINE] = {0}; \
            for (int64_t i = 0; i < n; i++) keys[i] = line[i].key; \
            for (int32_t j = 0; j < (int32_t)n; j++) { \
                const K key = keys[j]; \
                _Pragma("omp simd") \
                for (int32_t i = 0; i < (int32_t)n; i++) place[i] += (key < keys[i]) | ((key == keys[i]) & (j < i)); \
            } \
            for (int64_t i = 0; i < n; i++) other[place[i]] = line[i]; \
            memcpy(line, other, (uint64_t)n * sizeof *line); \
            return; \
        } \
        int64_t counts[sizeof(K)][256] = {{0}}; \
        for (int64_t i = 0; i < n; i++) { \
            const K key = line[i].key; \
            for (int byte = 0; byte < (int)sizeof(K); byte++) counts[byte][key >> 8 * byte & 255]++; \
        } \
        ge2_pair_##t *from = line, *to = other; \
        for (int byte = 0; byte < (int)sizeof(K); byte++) { \
            int64_t *place = counts[byte], at = 0; \
            if (place[from[0].key >> 8 * byte & 255] == n) continue; \
            for (int digit = 0; digit < 256; digit++) { \
                const int64_t count = place[digit]; \
                place[digit] = at, at += count; \
            } \
            for (int64_t i = 0; i < n; i++) to[place[from[i].key >> 8 * byte & 255]++] = from[i]; \
            ge2_pair_##t *swapped = from; \
            from = to, to = swapped; \
        } \
        if (from != line) memcpy(line, from, (uint64_t)n * sizeof *line); \
    } \
    GE2_FN int ge2_worse_##t(ge2_pair_##t a, ge2_pair_##t b) { \
        return (a.key > b.key) | ((a.key == b.key) & (a.index > b.index)); \
    } \
    GE2_FN void ge2_sink_##t(ge2_pair_##t *heap, int64_t n, int64_t at, ge2_pair_##t pair) { \
        for (int64_t under; (under = 2 * at + 1) < n; at = under) { \
            if (under + 1 < n && ge2_worse_##t(heap[under + 1], heap[under])) under++; \
            if (!ge2_worse_##t(heap[under], pair)) break; \
            heap[at] = heap[under]; \
        } \
        heap[at] = pair; \
    } \
    GE2_FN ge2_pair_##t ge2_turned_##t(const T *x, int64_t step, int64_t i, int order) { \
        const K key = ge2_sort_key_##t(x[i * step]); \
        const K turned = order == GE2_RISING ? key : order == GE2_FALLING ? (K)~(K)(key + 1) : (K)~key; \
        return (ge2_pair_##t){turned, (uint32_t)i}; \
    } \
    GE2_SINGLE void ge2_top_##t( \
        ge2_pair_##t *heap, const T *x, int64_t step, int64_t n, int64_t k, int order) { \
        for (int64_t i = 0; i < k; i++) heap[i] = ge2_turned_##t(x, step, i, order); \
        for (int64_t i = k / 2 - 1; i >= 0; i--) ge2_sink_##t(heap, k, i, heap[i]); \
        for (int64_t i = k; i < n; i++) { \
            const ge2_pair_##t pair = ge2_turned_##t(x, step, i, order); \
            if (pair.key < heap[0].key) ge2_sink_##t(heap, k, 0, pair); \
        } \
        for (int64_t last = k - 1; last > 0; last--) { \
            const ge2_pair_##t pair = heap[last]; \
            heap[last] = heap[0]; \
            ge2_sink_##t(heap, last, 0, pair); \
        } \
    } \
    GE2_FN void ge2_search_##t( \
        const T *line, int64_t n, int64_t step, const T *values, int64_t stride, int64_t count, int right, int64_t *out) { \
        K key[GE2_SEARCHES]; \
        int64_t at[GE2_SEARCHES] = {0}; \
        for (int64_t q = 0; q < count; q++) key[q] = ge2_sort_key_##t(values[q * stride]); \
        for (int64_t size = n, half; size > 0; size -= half) { \
            half = (size + 1) / 2; \
            for (int64_t q = 0; q < count; q++) { \
                const K found = ge2_sort_key_##t(line[(at[q] + half - 1) * step]); \
                at[q] += (found < key[q]) | (right & (found == key[q])) ? half : 0; \
            } \
        } \
        for (int64_t q = 0; q < count; q++) out[q] = at[q]; \
    }

GE2_FOR(GE2_SORTED, bool, uint8_t, uint8_t)
GE2_FOR(GE2_SORTED, i8, int8_t, uint8_t)
GE2_FOR(GE2_SORTED, i16, int16_t, uint16_t)
GE2_FOR(GE2_SORTED, i32, int32_t, uint32_t)
GE2_FOR(GE2_SORTED, i64, int64_t, uint64_t)
GE2_FOR(GE2_SORTED, u8, uint8_t, uint8_t)
GE2_FOR(GE2_SORTED, u16, uint16_t, uint16_t)
GE2_FOR(GE2_SORTED, u32, uint32_t, uint32_t)
GE2_FOR(GE2_SORTED, u64, uint64_t, uint64_t)
GE2_FOR(GE2_SORTED, f32, float, uint32_t)
GE2_FOR(GE2_SORTED, f64, double, uint64_t)
GE2_FOR(GE2_SORTED, f16, uint16_t, uint32_t)
GE2_FOR(GE2_SORTED, bf16, uint16_t, uint32_t)
GE2_FOR(GE2_SORTED, f8_e4m3fn, uint8_t, uint32_t)
GE2_FOR(GE2_SORTED, f8_e5m2, uint8_t, uint32_t)

#endif
