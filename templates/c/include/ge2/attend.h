/* Products of small blocks for attention, whose scores never leave the caches.

   c[m, n] (+)= a[m, k] b[k, n]: rows of b and c lie in one piece, numbers of a have any strides. Six rows of two
   vectors are in registers at a time; each number of a is read once for both, and each vector of b for six rows. n is a
   number that the compiler knows: what is no pair of vectors is a function of its own, which then is not compiled where
   there is no such rest. */
#ifndef GE2_ATTEND_H
#define GE2_ATTEND_H

#include "ge2/core.h"
#include "ge2/float_exp.h"

#define GE2_STRIP(V, T, ROWS, VECTORS)                                                                              \
    for (; i + ROWS <= m; i += ROWS) {                                                                              \
        V sum[ROWS][VECTORS];                                                                                       \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                                      \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                               \
                sum[r][v] = add ? *(V *)(c + (i + r) * c_row + j + v * wide) : (V){0};                              \
        for (int64_t l = 0; l < k; l++) {                                                                           \
            V right[VECTORS];                                                                                       \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                               \
                right[v] = *(const V *)(b + l * b_row + j + v * wide);                                              \
            _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) {                                                \
                const T left = a[(i + r) * a_row + l * a_column];                                                   \
                _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++) sum[r][v] += left * right[v];             \
            }                                                                                                       \
        }                                                                                                           \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                                      \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                               \
                *(V *)(c + (i + r) * c_row + j + v * wide) = sum[r][v];                                             \
    }

/* to[columns, rows] = from[rows, columns], four by four numbers at a time. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define GE2_FOURS(S, T)                                                                                             \
    for (; i + 4 <= rows; i += 4)                                                                                   \
        for (int64_t j = 0; j + 4 <= columns; j += 4) {                                                             \
            const T *at = from + i * step + j;                                                                      \
            const ge2_four_##S a = *(const ge2_four_##S *)at, b = *(const ge2_four_##S *)(at + step),               \
                               c = *(const ge2_four_##S *)(at + 2 * step),                                          \
                               d = *(const ge2_four_##S *)(at + 3 * step),                                          \
                               p = __builtin_shufflevector(a, b, 0, 4, 1, 5),                                       \
                               q = __builtin_shufflevector(a, b, 2, 6, 3, 7),                                       \
                               r = __builtin_shufflevector(c, d, 0, 4, 1, 5),                                       \
                               s = __builtin_shufflevector(c, d, 2, 6, 3, 7);                                       \
            *(ge2_four_##S *)(to + j * lead + i) = __builtin_shufflevector(p, r, 0, 1, 4, 5);                       \
            *(ge2_four_##S *)(to + (j + 1) * lead + i) = __builtin_shufflevector(p, r, 2, 3, 6, 7);                 \
            *(ge2_four_##S *)(to + (j + 2) * lead + i) = __builtin_shufflevector(q, s, 0, 1, 4, 5);                 \
            *(ge2_four_##S *)(to + (j + 3) * lead + i) = __builtin_shufflevector(q, s, 2, 3, 6, 7);                 \
        }
#endif
#endif
#ifndef GE2_FOURS
#define GE2_FOURS(S, T)
#endif

#define GE2_ATTEND(S, T)                                                                                            \
    typedef T ge2_vector_##S __attribute__((vector_size(GE2_VECTOR), aligned(sizeof(T)), may_alias));               \
    typedef T ge2_four_##S __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));              \
    GE2_FUSED_VECTORS GE2_SINGLE void ge2_attend_product_##S(                                                       \
        int add, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b,          \
        int64_t b_row, T *restrict c, int64_t c_row) {                                                              \
        GE2_FUSE                                                                                                    \
        enum { wide = GE2_VECTOR / sizeof(T) };                                                                     \
        for (int64_t j = 0; j + 2 * wide <= n; j += 2 * wide) {                                                     \
            int64_t i = 0;                                                                                          \
            GE2_STRIP(ge2_vector_##S, T, 6, 2)                                                                      \
            GE2_STRIP(ge2_vector_##S, T, 1, 2)                                                                      \
        }                                                                                                           \
    }                                                                                                               \
    GE2_FUSED_VECTORS GE2_SINGLE void ge2_attend_rest_##S(                                                          \
        int add, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b,          \
        int64_t b_row, T *restrict c, int64_t c_row) {                                                              \
        GE2_FUSE                                                                                                    \
        int64_t j = 0, wide = GE2_VECTOR / sizeof(T);                                                               \
        for (; j + wide <= n; j += wide) {                                                                          \
            int64_t i = 0;                                                                                          \
            GE2_STRIP(ge2_vector_##S, T, 6, 1)                                                                      \
            GE2_STRIP(ge2_vector_##S, T, 1, 1)                                                                      \
        }                                                                                                           \
        for (wide = 4; j + wide <= n; j += wide) {                                                                  \
            int64_t i = 0;                                                                                          \
            GE2_STRIP(ge2_four_##S, T, 6, 1)                                                                        \
            GE2_STRIP(ge2_four_##S, T, 1, 1)                                                                        \
        }                                                                                                           \
        for (; j < n; j++)                                                                                          \
            for (int64_t i = 0; i < m; i++) {                                                                       \
                T sum = add ? c[i * c_row + j] : 0;                                                                 \
                for (int64_t l = 0; l < k; l++) sum += a[i * a_row + l * a_column] * b[l * b_row + j];              \
                c[i * c_row + j] = sum;                                                                             \
            }                                                                                                       \
    }                                                                                                               \
    GE2_FN void ge2_attend_##S(                                                                                     \
        int add, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b,          \
        int64_t b_row, T *restrict c, int64_t c_row) {                                                              \
        enum { pairs = 2 * GE2_VECTOR / sizeof(T) };                                                                \
        const int64_t most = n / pairs * pairs;                                                                     \
        if (most) ge2_attend_product_##S(add, m, most, k, a, a_row, a_column, b, b_row, c, c_row);                  \
        if (most < n)                                                                                               \
            ge2_attend_rest_##S(add, m, n - most, k, a, a_row, a_column, b + most, b_row, c + most, c_row);         \
    }                                                                                                               \
    GE2_SINGLE void ge2_attend_turned_##S(                                                                          \
        int64_t rows, int64_t columns, const T *from, int64_t step, T *restrict to, int64_t lead) {                 \
        int64_t i = 0;                                                                                              \
        GE2_FOURS(S, T)                                                                                             \
        for (int64_t l = 0; l < rows; l++)                                                                          \
            for (int64_t j = l < i ? columns / 4 * 4 : 0; j < columns; j++) to[j * lead + l] = from[l * step + j];  \
    }

GE2_ATTEND(f32, float)
GE2_ATTEND(f64, double)

#endif
