/* Matrix products: NumPy's own BLAS for large ones, loops for tiny ones and for the types that BLAS lacks.

   a[m, k] and b[k, n] have any strides, in elements; the rows of c[m, n] are c_row apart. BLAS wants one stride of
   each operand to be 1, which the caller sees to. */
#ifndef GE2_PRODUCT_H
#define GE2_PRODUCT_H

#include <stdlib.h>

#include "ge2/core.h"

#define GE2_TILE_WORK (1 << 21) /* multiplications worth a task of their own, some 0.1 ms */
#define GE2_WAKING (1 << 13)    /* multiplications from which on a BLAS may wake threads of its own: OpenBLAS, 9216 */
#define GE2_PARTS 32            /* of long sums, at most */
#define GE2_TILE 512            /* rows or columns of the largest tile; packing the other operand costs it 2 to 4 % */

/* Where all of BLAS is there, the loops for any size are compiled only for sizes that the text does not tell. */
#ifdef GE2_NO_BLAS
#define GE2_LACKS(gemm) (!(gemm))
#else
#define GE2_LACKS(gemm) 0
#endif

enum { GE2_ROW_MAJOR = 101, GE2_PLAIN = 111, GE2_TURNED = 112, GE2_LOWER = 122 };

/* The loops: rows of c are sums of rows of b, so that the innermost loop runs along both. */
#define GE2_PRODUCT_LOOPS(S, T, W)                                                                                  \
    GE2_FN void ge2_product_loops_##S(                                                                              \
        int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row,    \
        int64_t b_column, T *c, int64_t c_row) {                                                                    \
        if (n == 1) { /* no row to be summed in: a number is, in the same order */                                  \
            for (int64_t i = 0; i < m; i++) {                                                                       \
                W sum = 0;                                                                                          \
                for (int64_t l = 0; l < k; l++) sum += (W)a[i * a_row + l * a_column] * b[l * b_row];               \
                c[i * c_row] = (T)sum;                                                                              \
            }                                                                                                       \
            return;                                                                                                 \
        }                                                                                                           \
        for (int64_t i = 0; i < m; i++)                                                                             \
            for (int64_t first = 0; first < n; first += 64) {                                                       \
                const int64_t width = ge2_least(64, n - first);                                                     \
                W row[64];                                                                                          \
                for (int64_t j = 0; j < width; j++) row[j] = 0;                                                     \
                for (int64_t l = 0; l < k; l++) {                                                                   \
                    const W left = a[i * a_row + l * a_column];                                                     \
                    const T *right = b + l * b_row + first * b_column;                                              \
                    if (b_column == 1)                                                                              \
                        _Pragma("omp simd") for (int64_t j = 0; j < width; j++) row[j] += left * right[j];          \
                    else                                                                                            \
                        for (int64_t j = 0; j < width; j++) row[j] += left * right[j * b_column];                   \
                }                                                                                                   \
                for (int64_t j = 0; j < width; j++) c[i * c_row + first + j] = (T)row[j];                           \
            }                                                                                                       \
    }

/* Complex numbers are multiplied by parts, as NumPy and BLAS do it, without the branches of C99. */
#define GE2_TIMES_REAL(S, T)                                                                                        \
    GE2_FN T ge2_product_of_##S(T a, T b) { return a * b; }
#define GE2_TIMES_COMPLEX(S, T)                                                                                     \
    GE2_FN T ge2_product_of_##S(T a, T b) {                                                                         \
        return __builtin_complex(                                                                                   \
            __real__ a * __real__ b - __imag__ a * __imag__ b, __real__ a * __imag__ b + __imag__ a * __real__ b);  \
    }
GE2_TIMES_REAL(f32, float)
GE2_TIMES_REAL(f64, double)
GE2_TIMES_COMPLEX(c64, float _Complex)
GE2_TIMES_COMPLEX(c128, double _Complex)

/* For few terms: four sums of every fourth product, none of which waits for another, in the type itself. Each has at
   most a quarter of the terms, so their rounding is that of BLAS's strands. */
#define GE2_FEW 64 /* terms of a sum */
#define GE2_PRODUCT_STRANDS(S, T)                                                                                   \
    GE2_FN void ge2_product_strands_##S(                                                                            \
        int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row,    \
        int64_t b_column, T *c, int64_t c_row) {                                                                    \
        for (int64_t i = 0; i < m; i++)                                                                             \
            for (int64_t first = 0; first < n; first += 16) {                                                       \
                const int64_t width = ge2_least(16, n - first);                                                     \
                T sum[4][16] = {{0}};                                                                               \
                _Pragma("GCC unroll 16") for (int64_t l = 0; l < k; l++) {                                          \
                    const T left = a[i * a_row + l * a_column];                                                     \
                    const T *right = b + l * b_row + first * b_column;                                              \
                    _Pragma("omp simd") for (int64_t j = 0; j < width; j++)                                         \
                        sum[l % 4][j] += ge2_product_of_##S(left, right[j * b_column]);                             \
                }                                                                                                   \
                for (int64_t j = 0; j < width; j++)                                                                 \
                    c[i * c_row + first + j] = (sum[0][j] + sum[1][j]) + (sum[2][j] + sum[3][j]);                   \
            }                                                                                                       \
    }

/* What the loops add up in: BLAS adds in several strands with fused products, one strand of float would err more. */
#define GE2_WIDE_f32 double
#define GE2_WIDE_f64 double
#define GE2_WIDE_c64 double _Complex
#define GE2_WIDE_c128 double _Complex

/* Rows times a vector that lies as they do, each in as many strands as a register has numbers; of many
   terms in more, and float in double. */
#define GE2_MANY 256   /* terms of a sum */
#define GE2_STRANDS 32
#define GE2_ROWS_REAL(S, T)                                                                                         \
    GE2_FN void ge2_product_rows_##S(                                                                               \
        int64_t m, int64_t k, const T *a, int64_t a_row, const T *b, T *c, int64_t c_row) {                         \
        for (int64_t i = 0; i < m; i++) {                                                                           \
            const T *row = a + i * a_row;                                                                           \
            T sum = 0;                                                                                              \
            int64_t l = 0;                                                                                          \
            if (k >= GE2_MANY) { /* BLAS adds as exactly */                                                         \
                GE2_WIDE_##S strand[GE2_STRANDS] = {0};                                                             \
                for (; l + GE2_STRANDS <= k; l += GE2_STRANDS)                                                      \
                    _Pragma("omp simd") for (int j = 0; j < GE2_STRANDS; j++)                                       \
                        strand[j] += (GE2_WIDE_##S)row[l + j] * b[l + j];                                           \
                for (int half = GE2_STRANDS / 2; half; half /= 2)                                                   \
                    for (int j = 0; j < half; j++) strand[j] += strand[j + half];                                   \
                sum = (T)strand[0];                                                                                 \
            }                                                                                                       \
            _Pragma("omp simd reduction(+ : sum)") for (int64_t t = l; t < k; t++) sum += row[t] * b[t];            \
            c[i * c_row] = sum;                                                                                     \
        }                                                                                                           \
    }
#define GE2_ROWS_COMPLEX(S, T, R)                                                                                   \
    GE2_FN void ge2_product_rows_##S(                                                                               \
        int64_t m, int64_t k, const T *a, int64_t a_row, const T *b, T *c, int64_t c_row) {                         \
        for (int64_t i = 0; i < m; i++) {                                                                           \
            const T *row = a + i * a_row;                                                                           \
            R real = 0, imag = 0;                                                                                   \
            _Pragma("omp simd reduction(+ : real, imag)") for (int64_t l = 0; l < k; l++) {                         \
                real += __real__ row[l] * __real__ b[l] - __imag__ row[l] * __imag__ b[l];                          \
                imag += __real__ row[l] * __imag__ b[l] + __imag__ row[l] * __real__ b[l];                          \
            }                                                                                                       \
            c[i * c_row] = __builtin_complex(real, imag);                                                           \
        }                                                                                                           \
    }
GE2_ROWS_REAL(f32, float)
GE2_ROWS_REAL(f64, double)
GE2_ROWS_COMPLEX(c64, float _Complex, float)
GE2_ROWS_COMPLEX(c128, double _Complex, double)

/* A small product of known sizes. */
#define GE2_PRODUCT_SMALL(S, T)                                                                                     \
    GE2_FN void ge2_product_small_##S(                                                                              \
        int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row,    \
        int64_t b_column, T *c, int64_t c_row) {                                                                    \
        if (n == 1 && k > 16 && a_column == 1 && b_row == 1)                                                        \
            ge2_product_rows_##S(m, k, a, a_row, b, c, c_row);                                                      \
        else if (k <= GE2_FEW)                                                                                      \
            ge2_product_strands_##S(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                     \
        else                                                                                                        \
            ge2_product_loops_##S(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                       \
    }

/* The same, as functions: sizes that are not known, or not small, are not worth a text of their own. `rows` are those of a
   matrix that lie in one piece, times a column that does; `lines` those of a right operand. */
#define GE2_PRODUCT_ANY(S, T)                                                                                       \
    GE2_PRODUCT_SIZELESS(_##S, S, T, ge2_product_loops_##S(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row))\
    GE2_PRODUCT_SIZELESS(_lines_##S, S, T, ge2_product_loops_##S(m, n, k, a, a_row, a_column, b, b_row, 1, c, c_row))\
    GE2_PRODUCT_SIZELESS(_rows_##S, S, T, ge2_product_rows_##S(m, k, a, a_row, b, c, c_row))
#define GE2_PRODUCT_SIZELESS(FORM, S, T, CALL)                                                                      \
    GE2_SINGLE void ge2_product_any##FORM(                                                                          \
        int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row,    \
        int64_t b_column, T *c, int64_t c_row) {                                                                    \
        CALL;                                                                                                       \
    }                                                                                                               \
    GE2_PRODUCT_TINY(FORM, S, T)

/* A tiny one. Where its sizes stand in the text its loops are written for them, and part of the caller. */
#define GE2_PRODUCT_TINY(FORM, S, T)                                                                                \
    GE2_FN void ge2_product_tiny##FORM(                                                                             \
        int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row,    \
        int64_t b_column, T *c, int64_t c_row) {                                                                    \
        if (!__builtin_constant_p(m * n * k))                                                                       \
            ge2_product_any##FORM(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                       \
        else if (n == 1 && a_row == 1) /* columns times numbers, as if turned */                                    \
            ge2_product_small_##S(1, m, k, b, 1, b_row, a, a_column, 1, c, m);                                      \
        else                                                                                                        \
            ge2_product_small_##S(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                       \
    }

/* A known few terms each, along rows or columns of c: BLAS would pack more than it multiplies, and wake threads. */
#define GE2_THIN 4 /* terms of a sum */
#define GE2_PRODUCT_THIN(S, T)                                                                                      \
    GE2_FN void ge2_product_terms_##S(                                                                              \
        int64_t m, int64_t n, const int64_t k, const T *a, int64_t a_row, int64_t a_column, const T *b,             \
        int64_t b_row, int64_t b_column, T *c, int64_t c_row, int64_t c_column) {                                   \
        for (int64_t i = 0; i < m; i++) {                                                                           \
            T left[GE2_THIN];                                                                                       \
            for (int64_t l = 0; l < k; l++) left[l] = a[i * a_row + l * a_column];                                  \
            _Pragma("omp simd") for (int64_t j = 0; j < n; j++) {                                                   \
                T sum = ge2_product_of_##S(left[0], b[j * b_column]);                                               \
                for (int64_t l = 1; l < k; l++) sum += ge2_product_of_##S(left[l], b[l * b_row + j * b_column]);    \
                c[i * c_row + j * c_column] = sum;                                                                  \
            }                                                                                                       \
        }                                                                                                           \
    }

/* One call of cblas_?gemv: `rows` of `columns` numbers lie `lead` apart. */
#define GE2_PRODUCT_VECTOR(S, T, GEMV, ALPHA, ONE, ZERO)                                                            \
    GE2_FN void ge2_product_vector_##S(                                                                             \
        const ge2_services *lib, int how, int64_t rows, int64_t columns, const T *a, int64_t lead, const T *x,      \
        int64_t step, T *y) {                                                                                       \
        const T one = 1, zero = 0;                                                                                  \
        if (lib->ilp64)                                                                                             \
            ((void (*)(int, int, int64_t, int64_t, ALPHA, const T *, int64_t, const T *, int64_t, ALPHA, T *,       \
                       int64_t))lib->GEMV)(GE2_ROW_MAJOR, how, rows, columns, ONE, a, lead, x, step, ZERO, y, 1);   \
        else {                                                                                                      \
            GE2_ANOTHER_CALL;                                                                                       \
            ((void (*)(int, int, int, int, ALPHA, const T *, int, const T *, int, ALPHA, T *, int))lib->GEMV)(      \
                GE2_ROW_MAJOR, how, (int)rows, (int)columns, ONE, a, (int)lead, x, (int)step, ZERO, y, 1);          \
        }                                                                                                           \
        (void)one, (void)zero;                                                                                      \
    }

/* One call of cblas_?gemm, or of cblas_?gemv for a vector; `ALPHA` is how they take a factor. */
#define GE2_PRODUCT_BLAS(S, T, GEMM, GEMV, ALPHA, ONE, ZERO)                                                        \
    GE2_PRODUCT_LOOPS(S, T, GE2_WIDE_##S)                                                                           \
    GE2_PRODUCT_STRANDS(S, T)                                                                                       \
    GE2_PRODUCT_SMALL(S, T)                                                                                         \
    GE2_PRODUCT_ANY(S, T)                                                                                           \
    GE2_PRODUCT_THIN(S, T)                                                                                          \
    GE2_PRODUCT_VECTOR(S, T, GEMV, ALPHA, ONE, ZERO)                                                                \
    GE2_CALLER void ge2_product_by_blas_##S(                                                                        \
        const ge2_services *lib, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column,      \
        const T *b, int64_t b_row, int64_t b_column, T *c, int64_t c_row) {                                         \
        if (GE2_LACKS(lib->GEMM)) {                                                                                 \
            ge2_product_any_##S(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                         \
            return;                                                                                                 \
        }                                                                                                           \
        if (n == 1 && c_row == 1 && lib->GEMV && b_row > 0) { /* a @ x, x a column */                               \
            if (a_column == 1)                                                                                      \
                ge2_product_vector_##S(lib, GE2_PLAIN, m, k, a, m > 1 ? a_row : k, b, b_row, c);                    \
            else                                                                                                    \
                ge2_product_vector_##S(lib, GE2_TURNED, k, m, a, a_column, b, b_row, c);                            \
            return;                                                                                                 \
        }                                                                                                           \
        if (m == 1 && lib->GEMV && a_column > 0) { /* y @ b, y a row */                                             \
            if (b_column == 1)                                                                                      \
                ge2_product_vector_##S(lib, GE2_TURNED, k, n, b, k > 1 ? b_row : n, a, a_column, c);                \
            else                                                                                                    \
                ge2_product_vector_##S(lib, GE2_PLAIN, n, k, b, b_column, a, a_column, c);                          \
            return;                                                                                                 \
        }                                                                                                           \
        const T one = 1, zero = 0;                                                                                  \
        const int64_t turn_a = a_column != 1 && k > 1, turn_b = b_column != 1 && n > 1;                             \
        const int64_t lead_a = turn_a ? (k > 1 ? a_column : m) : (m > 1 ? a_row : k);                               \
        const int64_t lead_b = turn_b ? (n > 1 ? b_column : k) : (k > 1 ? b_row : n);                               \
        const int how_a = turn_a ? GE2_TURNED : GE2_PLAIN, how_b = turn_b ? GE2_TURNED : GE2_PLAIN;                 \
        if (lib->ilp64)                                                                                             \
            ((void (*)(int, int, int, int64_t, int64_t, int64_t, ALPHA, const T *, int64_t, const T *, int64_t,     \
                       ALPHA, T *, int64_t))lib->GEMM)(GE2_ROW_MAJOR, how_a, how_b, m, n, k, ONE, a, lead_a, b,     \
                                                       lead_b, ZERO, c, c_row);                                     \
        else {                                                                                                      \
            GE2_ANOTHER_CALL;                                                                                       \
            ((void (*)(int, int, int, int, int, int, ALPHA, const T *, int, const T *, int, ALPHA, T *,             \
                       int))lib->GEMM)(GE2_ROW_MAJOR, how_a, how_b, (int)m, (int)n, (int)k, ONE, a, (int)lead_a, b, \
                                       (int)lead_b, ZERO, c, (int)c_row);                                           \
        }                                                                                                           \
        (void)one, (void)zero;                                                                                      \
    }                                                                                                               \
    /* One that is no work for several threads, of ours or of the BLAS. */                                          \
    GE2_FN void ge2_product_alone_##S(                                                                              \
        const ge2_services *lib, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column,      \
        const T *b, int64_t b_row, int64_t b_column, T *c, int64_t c_row) {                                         \
        const int wakes = m * n * k > GE2_WAKING && lib->set_blas_threads;                                          \
        if (wakes) ge2_products_begin(lib);                                                                         \
        ge2_product_by_blas_##S(lib, m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                    \
        if (wakes) ge2_products_end(lib);                                                                           \
    }                                                                                                               \
    GE2_PRODUCT_PARTS(S, T)                                                                                         \
    GE2_PRODUCT_TILES(S, T)

/* The BLAS has one thread while products of ours run: its own threads spin and wait for each other, so they are in
   the way of ours and, on a busy machine, of themselves. */
GE2_FN void ge2_products_begin(const ge2_services *lib) {
    if (__atomic_fetch_add(&lib->products->running, 1, __ATOMIC_ACQ_REL) == 0)
        lib->products->threads = lib->blas_threads();
    lib->set_blas_threads(1);
}

GE2_FN void ge2_products_end(const ge2_services *lib) {
    if (__atomic_sub_fetch(&lib->products->running, 1, __ATOMIC_ACQ_REL) == 0)
        lib->set_blas_threads((int)lib->products->threads);
}

/* The length of a tile along an axis of `size`, whose lines take `work` multiplications each. */
GE2_FN int64_t ge2_tile(int64_t size, int64_t work) {
    const int64_t worth = GE2_TILE_WORK / (work > 0 ? work : 1) + 1, quarter = (size + 3) / 4;
    const int64_t tile = ge2_least(GE2_TILE, worth > quarter ? worth : quarter);
    return (tile + 15) / 16 * 16;
}

/* One product of few results, each a long sum: a team shares its terms, and the parts are added in their order. False
   where there is no memory for them. */
#define GE2_PRODUCT_PARTS(S, T)                                                                                     \
    GE2_CALLER int ge2_product_parts_##S(                                                                           \
        const ge2_services *lib, int threads, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row,           \
        int64_t a_column, const T *b, int64_t b_row, int64_t b_column, T *c) {                                      \
        const int64_t size = m * n, worth = GE2_TILE_WORK / size + 1, most = k / GE2_PARTS + 1;                     \
        const int64_t part = ((worth > most ? worth : most) + 15) / 16 * 16, parts = (k + part - 1) / part;         \
        T *sums = malloc((size_t)(parts * size) * sizeof *sums);                                                    \
        if (!sums) return 0;                                                                                        \
        ge2_products_begin(lib);                                                                                    \
        ge2_team team = ge2_team_here();                                                                            \
        _Pragma("omp parallel num_threads(threads)") {                                                              \
            ge2_begin(&team);                                                                                       \
            _Pragma("omp for schedule(dynamic) nowait") for (int64_t t = 0; t < parts; t++)                         \
                ge2_product_by_blas_##S(                                                                            \
                    lib, m, n, ge2_least(part, k - t * part), a + t * part * a_column, a_row, a_column,             \
                    b + t * part * b_row, b_row, b_column, sums + t * size, n);                                     \
            ge2_end(&team);                                                                                         \
        }                                                                                                           \
        ge2_over(&team);                                                                                            \
        ge2_products_end(lib);                                                                                      \
        for (int64_t j = 0; j < size; j++) {                                                                        \
            T sum = sums[j];                                                                                        \
            for (int64_t t = 1; t < parts; t++) sum += sums[t * size + j];                                          \
            c[j] = sum;                                                                                             \
        }                                                                                                           \
        free(sums);                                                                                                 \
        return 1;                                                                                                   \
    }

/* `count` products, in tiles of their rows or columns that a team shares. The sizes alone decide the tiles, so the
   bits are the same for any number of threads. Of many products that are tiny, each is done by
   loops. */
#define GE2_PRODUCT_IN_TILES(NAME, ONE, S, T)                                                                       \
    GE2_CALLER void NAME(                                                                                           \
        const ge2_services *lib, int threads, int64_t count, int64_t m, int64_t n, int64_t k, const T *a,           \
        int64_t a_batch, int64_t a_row, int64_t a_column, const T *b, int64_t b_batch, int64_t b_row,               \
        int64_t b_column, T *c) {                                                                                   \
        const int64_t work = m * n * k;                                                                             \
        if (count * work <= GE2_TILE_WORK || !lib->set_blas_threads) {                                              \
            const int alone = work > GE2_WAKING && lib->set_blas_threads;                                           \
            if (alone) ge2_products_begin(lib);                                                                     \
            for (int64_t i = 0; i < count; i++)                                                                     \
                ONE(                                                                                                \
                    lib, m, n, k, a + i * a_batch, a_row, a_column, b + i * b_batch, b_row, b_column,               \
                    c + i * m * n, n);                                                                              \
            if (alone) ge2_products_end(lib);                                                                       \
            return;                                                                                                 \
        }                                                                                                           \
        const int rows = m >= n || m >= GE2_TILE;                                                                   \
        const int64_t high = rows ? ge2_tile(m, n * k) : m, wide = rows ? n : ge2_tile(n, m * k);                   \
        const int64_t down = (m + high - 1) / high, along = (n + wide - 1) / wide, tiles = count * down * along;    \
        const int64_t task = work < GE2_TILE_WORK ? GE2_TILE_WORK / work : 1; /* tiles of one */                    \
        if (tiles == 1 && m * n <= GE2_FEW * GE2_FEW && work > 2 * GE2_TILE_WORK &&                                 \
            ge2_product_parts_##S(lib, threads, m, n, k, a, a_row, a_column, b, b_row, b_column, c))                \
            return;                                                                                                 \
        ge2_products_begin(lib);                                                                                    \
        ge2_team team = ge2_team_here();                                                                            \
        _Pragma("omp parallel num_threads(threads)") {                                                              \
            ge2_begin(&team);                                                                                       \
            _Pragma("omp for schedule(dynamic, task) nowait") for (int64_t t = 0; t < tiles; t++) {                 \
                const int64_t i = t / (down * along), top = t / along % down * high, left = t % along * wide;       \
                ONE(                                                                                                \
                    lib, ge2_least(high, m - top), ge2_least(wide, n - left), k,                                    \
                    a + i * a_batch + top * a_row, a_row, a_column, b + i * b_batch + left * b_column, b_row,       \
                    b_column, c + i * m * n + top * n + left, n);                                                   \
            }                                                                                                       \
            ge2_end(&team);                                                                                         \
        }                                                                                                           \
        ge2_over(&team);                                                                                            \
        ge2_products_end(lib);                                                                                      \
    }
#define GE2_PRODUCT_TILES(S, T)                                                                                     \
    GE2_PRODUCT_IN_TILES(ge2_products_##S, ge2_product_by_blas_##S, S, T)                                           \
    GE2_PRODUCT_OF_MANY(_##S, S, T)                                                                                 \
    GE2_PRODUCT_OF_MANY(_lines_##S, S, T)                                                                           \
    GE2_PRODUCT_OF_MANY(_rows_##S, S, T)
#define GE2_PRODUCT_OF_MANY(FORM, S, T)                                                                             \
    GE2_FN void ge2_product_of_many##FORM(                                                                          \
        const ge2_services *lib, int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_column,      \
        const T *b, int64_t b_row, int64_t b_column, T *c, int64_t c_row) {                                         \
        (void)lib;                                                                                                  \
        ge2_product_any##FORM(m, n, k, a, a_row, a_column, b, b_row, b_column, c, c_row);                           \
    }                                                                                                               \
    GE2_PRODUCT_IN_TILES(ge2_tiny_products##FORM, ge2_product_of_many##FORM, S, T)

#endif
