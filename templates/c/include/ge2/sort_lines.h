/* Lines of elements of 32 and of 64 bits, sorted by NumPy's functions, which use the vectors of the processor, or by a
 * heap where those were not found. Stable, with NaN last and -0.0 equal to 0.0.
 */
#ifndef GE2_SORT_LINES_H
#define GE2_SORT_LINES_H

#include "sort.h"

typedef uint64_t __attribute__((may_alias)) ge2_any_word;

enum { GE2_LONG_RUN = 32 };

GE2_FN int ge2_bits(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }

/* ge2_lines_sort_f64: line[n] in place, by ge2_lines_heap_f64 where NumPy's sort was not found. ge2_lines_values_f64: the elements of x, sorted, in line[n]; NumPy leaves zeros of
 * both signs in any order, so they are written again, in theirs. */
#define GE2_LINES(t, T, MINUS_ZERO) \
    GE2_FN void ge2_lines_sink_##t(T *heap, int64_t n, int64_t at, T x) { \
        for (int64_t under; (under = 2 * at + 1) < n; at = under) { \
            if (under + 1 < n && ge2_sort_key_##t(heap[under + 1]) > ge2_sort_key_##t(heap[under])) under++; \
            if (ge2_sort_key_##t(heap[under]) <= ge2_sort_key_##t(x)) break; \
            heap[at] = heap[under]; \
        } \
        heap[at] = x; \
    } \
    GE2_CALLER void ge2_lines_heap_##t(T *line, int64_t n) { \
        for (int64_t at = n / 2 - 1; at >= 0; at--) ge2_lines_sink_##t(line, n, at, line[at]); \
        for (int64_t last = n - 1; last > 0; last--) { \
            const T x = line[last]; \
            line[last] = line[0]; \
            ge2_lines_sink_##t(line, last, 0, x); \
        } \
    } \
    static __attribute__((unused)) void ge2_lines_sort_##t(const ge2_services *lib, T *line, int64_t n) { \
        if (lib->sort_##t) { \
            lib->sort_##t(line, (intptr_t)n, 0); \
            return; \
        } \
        ge2_lines_heap_##t(line, n); \
    } \
    GE2_FN void ge2_lines_values_##t( \
        const ge2_services *lib, const T *x, int64_t step, int64_t n, T *line) { \
        int negative = 0; \
        for (int64_t i = 0; i < n; i++) { \
            line[i] = x[i * step]; \
            negative |= MINUS_ZERO(x[i * step]); \
        } \
        ge2_lines_sort_##t(lib, line, n); \
        if (!negative) return; \
        int64_t at = 0; \
        while (line[at] < 0) at++; \
        for (int64_t i = 0; i < n; i++) \
            if (x[i * step] == 0) line[at++] = x[i * step]; \
    }

#define GE2_NEVER(x) 0
#define GE2_MINUS_ZERO_f32(x) (ge2_word_of(x) == 1u << 31)
#define GE2_MINUS_ZERO_f64(x) (ge2_long_word_of(x) == 1ull << 63)
GE2_FOR(GE2_LINES, i32, int32_t, GE2_NEVER)
GE2_FOR(GE2_LINES, i64, int64_t, GE2_NEVER)
GE2_FOR(GE2_LINES, u32, uint32_t, GE2_NEVER)
GE2_LINES(u64, uint64_t, GE2_NEVER) /* by which indices of all types are sorted */
GE2_FOR(GE2_LINES, f32, float, GE2_MINUS_ZERO_f32)
GE2_FOR(GE2_LINES, f64, double, GE2_MINUS_ZERO_f64)

/* ge2_lines_indices_f64: the indices that sort x, in line[n], which has room for 2 n pairs where keys have 64 bits. An
 * element is sorted as one number: its key less the least one, and its index in the lowest bits. Where that leaves no
 * place for the last bits of keys, runs of equals are sorted by whole keys, or the line by bytes if a run is long
 * (ge2_lines_pairs_f64). gcc does less to what is seldom run. */
#define GE2_LINES_OF_INDICES(t, T, K) \
    GE2_CALLER void ge2_lines_pairs_##t(const T *x, int64_t step, int64_t n, ge2_any_word *line) { \
        ge2_pair_##t *pairs = (ge2_pair_##t *)line; \
        for (int64_t i = 0; i < n; i++) pairs[i] = (ge2_pair_##t){ge2_sort_key_##t(x[i * step]), (uint32_t)i}; \
        ge2_sort_##t(pairs, pairs + n, n); \
        for (int64_t i = 0; i < n; i++) line[i] = pairs[i].index; \
    } \
    static __attribute__((unused)) void ge2_lines_indices_##t( \
        const ge2_services *lib, const T *x, int64_t step, int64_t n, ge2_any_word *line) { \
        if (n < 1) return; \
        K least = ge2_sort_key_##t(x[0]), most = least; \
        for (int64_t i = 1; i < n; i++) { \
            const K key = ge2_sort_key_##t(x[i * step]); \
            least = key < least ? key : least; \
            most = key > most ? key : most; \
        } \
        const int bits = ge2_bits((uint64_t)n - 1), over = ge2_bits((K)(most - least)) + bits - 64, cut = over > 0 ? over : 0; \
        const uint64_t index = ((uint64_t)1 << bits) - 1; \
        for (int64_t i = 0; i < n; i++) \
            line[i] = (uint64_t)(K)(ge2_sort_key_##t(x[i * step]) - least) >> cut << bits | (uint64_t)i; \
        ge2_lines_sort_u64(lib, (uint64_t *)line, n); \
        for (int64_t from = 0, to; cut && from < n; from = to) { \
            for (to = from + 1; to < n && line[to] >> bits == line[from] >> bits; to++) \
                ; \
            if (to - from > GE2_LONG_RUN) { \
                ge2_lines_pairs_##t(x, step, n, line); \
                return; \
            } \
            for (int64_t i = from + 1, at; i < to; i++) { \
                const uint64_t word = line[i]; \
                const K key = ge2_sort_key_##t(x[(int64_t)(word & index) * step]); \
                for (at = i; at > from && key < ge2_sort_key_##t(x[(int64_t)(line[at - 1] & index) * step]); at--) \
                    line[at] = line[at - 1]; \
                line[at] = word; \
            } \
        } \
        for (int64_t i = 0; i < n; i++) line[i] &= index; \
    }

GE2_FOR(GE2_LINES_OF_INDICES, i32, int32_t, uint32_t)
GE2_FOR(GE2_LINES_OF_INDICES, i64, int64_t, uint64_t)
GE2_FOR(GE2_LINES_OF_INDICES, u32, uint32_t, uint32_t)
GE2_FOR(GE2_LINES_OF_INDICES, u64, uint64_t, uint64_t)
GE2_FOR(GE2_LINES_OF_INDICES, f32, float, uint32_t)
GE2_FOR(GE2_LINES_OF_INDICES, f64, double, uint64_t)

#endif
