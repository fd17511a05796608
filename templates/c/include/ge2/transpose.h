/* Arrays across each other: what is a row of one is a column of the other.
 *
 * A tile as wide as a cache line each way goes through a buffer, so that each line of memory is read or written once,
 * whole: rows that are a power of two apart share a few places of the cache, where a tile of whole rows does not stay.
 * Squares of vectors of 16 bytes are turned by interleaving a vector with the one half of the square below it, as often
 * as halving the square goes.
 */
#ifndef GE2_TRANSPOSE_H
#define GE2_TRANSPOSE_H

#include "core.h"

#if defined(__clang__)
#define GE2_INTERLEAVED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GE2_INTERLEAVED(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){__VA_ARGS__})
#endif

#define GE2_LOW_u8 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define GE2_HIGH_u8 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define GE2_LOW_u16 0, 8, 1, 9, 2, 10, 3, 11
#define GE2_HIGH_u16 4, 12, 5, 13, 6, 14, 7, 15
#define GE2_LOW_u32 0, 4, 1, 5
#define GE2_HIGH_u32 2, 6, 3, 7
#define GE2_LOW_u64 0, 2
#define GE2_HIGH_u64 1, 3

/* ge2_transpose_u32: y[s * y_s + d] = x[d * x_d + s] of elements of 4 bytes, for d below n_d and s below n_s, which is at most
 * the width of a tile. */
#define GE2_TRANSPOSING(t, E, N, W) \
    typedef E ge2_element_##t __attribute__((may_alias)); \
    typedef E ge2_vector_##t __attribute__((vector_size(16), may_alias)); \
    GE2_FN void ge2_transpose_block_##t(const ge2_element_##t *x, int64_t x_d, ge2_element_##t *y) { \
        ge2_vector_##t a[N], b[N]; \
        for (int r = 0; r < N; r++) memcpy(&a[r], x + r * x_d, 16); \
        for (int half = 1; half < N; half *= 2) { \
            for (int r = 0; r < N / 2; r++) { \
                b[2 * r] = GE2_INTERLEAVED(a[r], a[r + N / 2], GE2_LOW_##t); \
                b[2 * r + 1] = GE2_INTERLEAVED(a[r], a[r + N / 2], GE2_HIGH_##t); \
            } \
            for (int r = 0; r < N; r++) a[r] = b[r]; \
        } \
        for (int r = 0; r < N; r++) memcpy(y + r * W, &a[r], 16); \
    } \
    /* the rest of a tile; bytes would be put into vectors one by one, which gcc takes half a second for, and no time saves */ \
    GE2_CALLER void ge2_transpose_edge_##t( \
        const ge2_element_##t *x, int64_t x_d, ge2_element_##t *tile, int64_t n_d, int64_t s, int64_t n_s) { \
        for (; s < n_s; s++) \
            for (int64_t d = 0; d < n_d; d++) tile[s * W + d] = x[d * x_d + s]; \
    } \
    static __attribute__((unused)) void ge2_transpose_##t( \
        const void *from, int64_t x_d, void *to, int64_t y_s, int64_t n_d, int64_t n_s) { \
        const ge2_element_##t *x = from; \
        ge2_element_##t *y = to, tile[W * W] __attribute__((aligned(64))); \
        for (int64_t d0 = 0; d0 < n_d; d0 += W, x += W * x_d, y += W) { \
            const int64_t wide = ge2_least(W, n_d - d0); \
            if (wide == W && n_s == W) { \
                _Pragma("GCC unroll 1") /* or a register holds each of many addresses */ \
                for (int64_t d = 0; d < W; d += N) { \
                    for (int64_t r = 0; r < N; r++) __builtin_prefetch(x + (W + d + r) * x_d); \
                    for (int64_t s = 0; s < W; s += N) ge2_transpose_block_##t(x + d * x_d + s, x_d, tile + s * W + d); \
                } \
                _Pragma("GCC unroll 1") \
                for (int64_t s = 0; s < W; s++) \
                    for (int64_t r = 0; r < W; r += N) { /* by vectors as they were stored, which are still on their way */ \
                        ge2_vector_##t part; \
                        memcpy(&part, tile + s * W + r, 16); \
                        memcpy(y + s * y_s + r, &part, 16); \
                    } \
                continue; \
            } \
            int64_t d = 0; \
            for (; d + N <= wide; d += N) { \
                int64_t s = 0; \
                for (; s + N <= n_s; s += N) ge2_transpose_block_##t(x + d * x_d + s, x_d, tile + s * W + d); \
                if (N > 8) ge2_transpose_edge_##t(x + d * x_d, x_d, tile + d, N, s, n_s), s = n_s; \
                for (; s < n_s; s++) \
                    for (int64_t r = 0; r < N; r++) tile[s * W + d + r] = x[(d + r) * x_d + s]; \
            } \
            if (N > 8) ge2_transpose_edge_##t(x + d * x_d, x_d, tile + d, wide - d, 0, n_s), d = wide; \
            for (; d < wide; d++) \
                for (int64_t s = 0; s < n_s; s++) tile[s * W + d] = x[d * x_d + s]; \
            for (int64_t s = 0; s < n_s; s++) \
                for (int64_t r = 0; r < wide; r++) y[s * y_s + r] = tile[s * W + r]; \
        } \
    }

GE2_FOR(GE2_TRANSPOSING, u8, uint8_t, 16, 64)
GE2_FOR(GE2_TRANSPOSING, u16, uint16_t, 8, 32)
GE2_FOR(GE2_TRANSPOSING, u32, uint32_t, 4, 16)
GE2_FOR(GE2_TRANSPOSING, u64, uint64_t, 2, 8)

#endif
