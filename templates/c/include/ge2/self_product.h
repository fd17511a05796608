/* A matrix times its own transpose: half of it is computed, by cblas_?syrk on the diagonal and by cblas_?gemm left of it,
   and mirrored. The sizes alone decide the tiles, so the bits are the same for any number of threads. */
#ifndef GE2_SELF_PRODUCT_H
#define GE2_SELF_PRODUCT_H

#include "ge2/product.h"

#define GE2_MIRROR 32 /* rows and columns of a block that is mirrored in cache */

/* c[n, n] = a @ a.T. The longest rows of tiles begin: what comes last is short. */
#define GE2_PRODUCT_WITH_ITSELF(S, T, SYRK)                                                                         \
    GE2_FN void ge2_product_diagonal_##S(                                                                           \
        const ge2_services *lib, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, T *c,           \
        int64_t c_row) {                                                                                            \
        const int64_t turn = a_column != 1 && k > 1, lead = turn ? a_column : n > 1 ? a_row : k;                    \
        const int how = turn ? GE2_TURNED : GE2_PLAIN;                                                              \
        if (lib->ilp64)                                                                                             \
            ((void (*)(int, int, int, int64_t, int64_t, T, const T *, int64_t, T, T *, int64_t))lib->SYRK)(         \
                GE2_ROW_MAJOR, GE2_LOWER, how, n, k, 1, a, lead, 0, c, c_row);                                      \
        else {                                                                                                      \
            GE2_ANOTHER_CALL;                                                                                       \
            ((void (*)(int, int, int, int, int, T, const T *, int, T, T *, int))lib->SYRK)(                         \
                GE2_ROW_MAJOR, GE2_LOWER, how, (int)n, (int)k, 1, a, (int)lead, 0, c, (int)c_row);                  \
        }                                                                                                           \
    }                                                                                                               \
    GE2_CALLED void ge2_mirror_##S(int64_t n, int64_t top, int64_t end, T *c) {                                     \
        for (int64_t left = top; left < n; left += GE2_MIRROR)                                                      \
            for (int64_t i = top; i < end; i++)                                                                     \
                for (int64_t j = left > i ? left : i + 1; j < ge2_least(left + GE2_MIRROR, n); j++)                 \
                    c[i * n + j] = c[j * n + i];                                                                    \
    }                                                                                                               \
    GE2_CALLER void ge2_product_with_itself_##S(                                                                    \
        const ge2_services *lib, int threads, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column,    \
        T *c) {                                                                                                     \
        if (!lib->SYRK || !lib->set_blas_threads) {                                                                 \
            ge2_product_by_blas_##S(lib, n, n, k, a, a_row, a_column, a, a_column, a_row, c, n);                    \
            return;                                                                                                 \
        }                                                                                                           \
        const int64_t high = ge2_tile(n, n * k / 2), tiles = (n + high - 1) / high;                                 \
        const int64_t blocks = (n + GE2_MIRROR - 1) / GE2_MIRROR;                                                   \
        if (n * n * k <= GE2_WAKING) { /* no work for several threads, of ours or of the BLAS */                    \
            ge2_product_diagonal_##S(lib, n, k, a, a_row, a_column, c, n);                                          \
            ge2_mirror_##S(n, 0, n, c);                                                                             \
            return;                                                                                                 \
        }                                                                                                           \
        ge2_products_begin(lib);                                                                                    \
        ge2_team team = ge2_team_here();                                                                            \
        _Pragma("omp parallel num_threads(tiles > 1 ? threads : 1)") {                                              \
            ge2_begin(&team);                                                                                       \
            _Pragma("omp for schedule(dynamic)") for (int64_t t = tiles - 1; t >= 0; t--) {                         \
                const int64_t top = t * high, rows = ge2_least(high, n - top);                                      \
                const T *from = a + top * a_row;                                                                    \
                if (top)                                                                                            \
                    ge2_product_by_blas_##S(                                                                        \
                        lib, rows, top, k, from, a_row, a_column, a, a_column, a_row, c + top * n, n);              \
                ge2_product_diagonal_##S(lib, rows, k, from, a_row, a_column, c + top * n + top, n);                \
            }                                                                                                       \
            _Pragma("omp for schedule(dynamic) nowait") for (int64_t block = 0; block < blocks; block++) {          \
                const int64_t top = block * GE2_MIRROR, end = ge2_least(top + GE2_MIRROR, n);                       \
                ge2_mirror_##S(n, top, end, c);                                                                     \
            }                                                                                                       \
            ge2_end(&team);                                                                                         \
        }                                                                                                           \
        ge2_over(&team);                                                                                            \
        ge2_products_end(lib);                                                                                      \
    }

#endif
