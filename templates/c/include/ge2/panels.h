/* The sizes of tiles of matrix products that registers hold, and of the panels of operands that are read for them.

   A tile has GE2_PANEL_ROWS rows and two vectors of columns: 12 accumulators of 16 vector registers, or 24 of 32. */
#ifndef GE2_PANELS_H
#define GE2_PANELS_H

#include "ge2/core.h"

#if defined(__AVX512F__) || defined(__aarch64__)
#define GE2_PANEL_ROWS 12
#else
#define GE2_PANEL_ROWS 6
#endif
#define GE2_PANEL_COLUMNS(T) ((int64_t)(2 * GE2_VECTOR / sizeof(T)))
#define GE2_PANEL_DEPTH (GE2_VECTOR > 32 ? 192 : 384) /* terms: a sliver of columns, 24 KB, stays in the first cache */
#define GE2_PANEL_FEW 8     /* tiles beside each other: fewer read an operand as it is sooner than they pack it */
#define GE2_PANEL_SMALL (1 << 15) /* bytes of an operand that are in a near cache however they are read */

/* Of few rows times the lines of a matrix: the terms that are added at once; the rows and vectors of a task, whose sums
   fit into a first cache; the bytes from which on lines are asked for before they are read. */
#define GE2_LINE_TERMS 8
#define GE2_LINE_ROWS 32
#define GE2_LINE_VECTORS (1024 / GE2_VECTOR)
#define GE2_LINES_FAR (1 << 20)

/* The rows of a tile of their products with four lines, as registers hold the sums; bytes of a line that are read at once. */
#define GE2_DOT_ROWS (GE2_PANEL_ROWS > 6 ? 4 : 2)
#define GE2_DOT_DEPTH 3072

#define GE2_PANEL_TILE GE2_FUSED GE2_FN
#define GE2_CALLED_TILE GE2_FUSED GE2_CALLED

/* The terms of a block of a sum of `inner`: the sizes alone decide, so sums are added in one order. */
GE2_FN int64_t ge2_panel_depth(int64_t inner) {
    const int64_t blocks = (inner + GE2_PANEL_DEPTH - 1) / GE2_PANEL_DEPTH;
    return (inner + blocks - 1) / blocks;
}

/* The slivers that `size` rows or columns have, `width` each but the last. */
GE2_FN int64_t ge2_slivers(int64_t size, int64_t width) { return (size + width - 1) / width; }

#if defined(__clang__)
#define GE2_PAIRS(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GE2_PAIRS(a, b, ...) __builtin_shuffle(a, b, (four){__VA_ARGS__})
#endif

/* A tile of c, whose elements are R, as T is multiplied: at its edges `rows` and `columns` of it are stored. It is called for
   slivers that are packed, whose strides are known, and `as_is` for those that are read where they are. FEW says that all
   columns are 64 bytes at most: those are one vector, or half of one. */
#define GE2_PANELS(S, T, R, FEW)                                                                                    \
    GE2_LIGHT GE2_CALLED void ge2_tile_edge_##S(                                                                    \
        const T *sum, R *c, int64_t c_row, int64_t rows, int64_t columns, int first) {                              \
        typedef T few __attribute__((vector_size(GE2_VECTOR / 2), aligned(sizeof(T)), may_alias));                  \
        enum { width = GE2_PANEL_COLUMNS(T), lanes = GE2_VECTOR / 2 / sizeof(T) };                                  \
        const int64_t high = ge2_least(rows, GE2_PANEL_ROWS), wide = ge2_least(columns, width);                     \
        for (int64_t i = 0; i < high; i++, sum += width, c += c_row) {                                              \
            int64_t j = 0;                                                                                          \
            if (sizeof(R) == sizeof(T))                                                                             \
                for (; j + lanes <= wide; j += lanes) {                                                             \
                    few *const y = (few *)(c + j), some = *(const few *)(sum + j);                                  \
                    if (!first) some += *y;                                                                         \
                    *y = some;                                                                                      \
                }                                                                                                   \
            for (; j < wide; j++) c[j] = first ? sum[j] : c[j] + sum[j];                                            \
        }                                                                                                           \
    }                                                                                                               \
    GE2_FUSED_VECTORS GE2_FN void ge2_tile_of_##S(                                                                  \
        int64_t depth, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row, R *c, int64_t c_row, \
        int64_t rows, int64_t columns, int first) {                                                                 \
        GE2_FUSE                                                                                                    \
        typedef T vector __attribute__((vector_size(GE2_VECTOR)));                                                  \
        typedef T half __attribute__((vector_size(GE2_VECTOR / 2)));                                                \
        typedef T anywhere __attribute__((vector_size(GE2_VECTOR), aligned(sizeof(T)), may_alias));                 \
        typedef T halfway __attribute__((vector_size(GE2_VECTOR / 2), aligned(sizeof(T)), may_alias));              \
        enum { lanes = GE2_VECTOR / sizeof(T) };                                                                    \
        T stored[GE2_PANEL_ROWS * 2 * lanes];                                                                       \
        if (FEW && columns <= lanes / 2) {                                                                          \
            half part[GE2_PANEL_ROWS];                                                                              \
            _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++) part[i] = (half){0};                  \
            for (int64_t l = 0; l < depth; l++) {                                                                   \
                const half right = *(const halfway *)(b + l * b_row);                                               \
                _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++)                                   \
                    part[i] += a[i * a_row + l * a_column] * right;                                                 \
            }                                                                                                       \
            _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++)                                       \
                *(halfway *)(stored + i * 2 * lanes) = part[i];                                                     \
            ge2_tile_edge_##S(stored, c, c_row, rows, columns, first);                                              \
            return;                                                                                                 \
        }                                                                                                           \
        vector sum[GE2_PANEL_ROWS][2];                                                                              \
        _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++) sum[i][0] = sum[i][1] = (vector){0};      \
        if (FEW && (GE2_VECTOR >= 64 || columns <= lanes))                                                          \
            for (int64_t l = 0; l < depth; l++) {                                                                   \
                const vector near = *(const anywhere *)(b + l * b_row);                                             \
                _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++)                                   \
                    sum[i][0] += a[i * a_row + l * a_column] * near;                                                \
            }                                                                                                       \
        else                                                                                                        \
            for (int64_t l = 0; l < depth; l++) {                                                                   \
                const anywhere *right = (const anywhere *)(b + l * b_row);                                          \
                const vector near = right[0], far = right[1];                                                       \
                _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++) {                                 \
                    const T x = a[i * a_row + l * a_column];                                                        \
                    sum[i][0] += x * near;                                                                          \
                    sum[i][1] += x * far;                                                                           \
                }                                                                                                   \
            }                                                                                                       \
        if (sizeof(R) == sizeof(T) && rows >= GE2_PANEL_ROWS && columns >= 2 * lanes) {                             \
            if (!first)                                                                                             \
                _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++) {                                 \
                    const anywhere *y = (const anywhere *)(c + i * c_row);                                          \
                    sum[i][0] += y[0];                                                                              \
                    sum[i][1] += y[1];                                                                              \
                }                                                                                                   \
            _Pragma("GCC unroll 12") for (int i = 0; i < GE2_PANEL_ROWS; i++) {                                     \
                anywhere *y = (anywhere *)(c + i * c_row);                                                          \
                y[0] = sum[i][0];                                                                                   \
                y[1] = sum[i][1];                                                                                   \
            }                                                                                                       \
            return;                                                                                                 \
        }                                                                                                           \
        memcpy(stored, sum, sizeof stored);                                                                         \
        ge2_tile_edge_##S(stored, c, c_row, rows, columns, first);                                                  \
    }                                                                                                               \
    GE2_FUSED_VECTORS GE2_CALLED void ge2_tile_##S(                                                                 \
        int64_t depth, const T *a, const T *b, R *c, int64_t c_row, int64_t rows, int64_t columns, int first) {     \
        ge2_tile_of_##S(depth, a, 1, GE2_PANEL_ROWS, b, GE2_PANEL_COLUMNS(T), c, c_row, rows, columns, first);      \
    }                                                                                                               \
    GE2_FUSED_VECTORS GE2_CALLED void ge2_tile_as_is_##S(                                                           \
        int64_t depth, const T *a, int64_t a_row, int64_t a_column, const T *b, int64_t b_row, R *c, int64_t c_row, \
        int64_t rows, int64_t columns, int first) {                                                                 \
        ge2_tile_of_##S(depth, a, a_row, a_column, b, b_row, c, c_row, rows, columns, first);                       \
    }

/* Of lines whose terms are neighbours so many are read at a time: from a line to the next many a cache has few places. */
#define GE2_PACK_TERMS 16

/* `n` terms of `width` lines, GE2_PACK_TERMS apart, as they are packed: squares of four are turned in registers. */
GE2_BRANCHING GE2_SINGLE void ge2_pack_turned(
    const void *square, void *packed, int64_t width, int64_t n) {
    typedef uint32_t four __attribute__((vector_size(16), may_alias));
    typedef uint32_t element __attribute__((may_alias));
    const element *const x = square;
    element *const to = packed;
    int64_t l = 0;
    for (; l + 4 <= n; l += 4)
        for (int64_t i = 0; i < width; i += 4) {
            four a[4], y[4];
            _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) memcpy(&a[r], x + (i + r) * GE2_PACK_TERMS + l, 16);
            const four p = GE2_PAIRS(a[0], a[2], 0, 4, 1, 5), q = GE2_PAIRS(a[1], a[3], 0, 4, 1, 5);
            const four r = GE2_PAIRS(a[0], a[2], 2, 6, 3, 7), s = GE2_PAIRS(a[1], a[3], 2, 6, 3, 7);
            y[0] = GE2_PAIRS(p, q, 0, 4, 1, 5), y[1] = GE2_PAIRS(p, q, 2, 6, 3, 7);
            y[2] = GE2_PAIRS(r, s, 0, 4, 1, 5), y[3] = GE2_PAIRS(r, s, 2, 6, 3, 7);
            _Pragma("GCC unroll 4") for (int t = 0; t < 4; t++) memcpy(to + (l + t) * width + i, &y[t], 16);
        }
    for (; l < n; l++)
        for (int64_t i = 0; i < width; i++) to[l * width + i] = x[i * GE2_PACK_TERMS + l];
}

/* Packs lines of an operand into slivers of `width` lines, term by term, as tiles read them; what is no line is 0. COPY(to, x)
   is how `width` neighbours of x are stored, READ an element `x` as a T. FULL: whether there may be a sliver of them; without,
   a function is as right, and slower. */
#define GE2_PACK(NAME, T, GIVEN, COPY, READ, WIDTH, FULL, LINES)                                                    \
    GE2_CALLED void NAME(int64_t size, int64_t depth, const GIVEN *from, int64_t line, int64_t term, T *to) {       \
        enum { width = WIDTH };                                                                                     \
        for (; size > 0; size -= width, from += width * line, to += width * depth) {                                \
            if (FULL && size >= width && line == 1)                                                                 \
                for (int64_t l = 0; l < depth; l++) COPY(to + l * width, from + l * term, READ)                     \
            else if (FULL && size >= width && term == 1 && sizeof(T) == 4 && width % 4 == 0)                        \
                LINES(width, depth, from, line, to);                                                                \
            else if (FULL && size >= width && (sizeof(T) != 4 || width % 4))                                        \
                for (int64_t l = 0; l < depth; l++)                                                                 \
                    _Pragma("GCC unroll 12") for (int64_t i = 0; i < width; i++) {                                  \
                        const GIVEN x = from[l * term + i * line];                                                  \
                        to[l * width + i] = READ;                                                                   \
                    }                                                                                               \
            else {                                                                                                  \
                const int64_t some = ge2_least(size, width);                                                        \
                for (int64_t l = 0; l < depth; l++) {                                                               \
                    _Pragma("GCC unroll 1") for (int64_t i = 0; i < some; i++) {                                    \
                        const GIVEN x = from[l * term + i * line];                                                  \
                        to[l * width + i] = READ;                                                                   \
                    }                                                                                               \
                    memset(to + l * width + some, 0, (width - some) * sizeof(T));                                   \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
    }
#define GE2_PACK_LINES(NAME, T, GIVEN, READ)                                                                        \
    GE2_CALLED void NAME(int64_t width, int64_t depth, const GIVEN *from, int64_t line, T *to) {                    \
        T square[2 * GE2_VECTOR / sizeof(T) * GE2_PACK_TERMS];                                                      \
        for (int64_t p = 0; p < depth; p += GE2_PACK_TERMS, to += width * GE2_PACK_TERMS) {                         \
            const int64_t n = ge2_least(GE2_PACK_TERMS, depth - p);                                                 \
            for (int64_t i = 0; i < width; i++) {                                                                   \
                const GIVEN *const terms = from + i * line + p;                                                     \
                T *const row = square + i * GE2_PACK_TERMS;                                                         \
                int64_t l = 0;                                                                                      \
                if (n == GE2_PACK_TERMS)                                                                            \
                    _Pragma("omp simd") for (l = 0; l < GE2_PACK_TERMS; l++) {                                      \
                        const GIVEN x = terms[l];                                                                   \
                        row[l] = READ;                                                                              \
                    }                                                                                               \
                _Pragma("GCC unroll 1") for (; l < n; l++) {                                                        \
                    const GIVEN x = terms[l];                                                                       \
                    row[l] = READ;                                                                                  \
                }                                                                                                   \
            }                                                                                                       \
            ge2_pack_turned(square, to, width, n);                                                                  \
        }                                                                                                           \
    }
#define GE2_PACK_SAME(to, from, READ) memcpy(to, from, width * sizeof *(to));
#define GE2_PACK_EACH(to, from, READ)                                                                               \
    for (int64_t i = 0; i < width; i++) {                                                                           \
        const __typeof__(*from) x = (from)[i];                                                                      \
        (to)[i] = READ;                                                                                             \
    }

/* The same of rows and of columns: of elements that are copied, for which gcc needs few of its passes, and of others; and of
   few rows, less than a sliver. */
#define GE2_PACKS(MARK, S, T, GIVEN, COPY, READ)                                                                    \
    GE2_BRANCHING GE2_PACK_LINES(ge2_pack_lines_##S, T, GIVEN, READ)                                                \
    MARK GE2_PACK(ge2_pack_rows_##S, T, GIVEN, COPY, READ, GE2_PANEL_ROWS, 1, ge2_pack_lines_##S)                   \
    MARK GE2_PACK(ge2_pack_few_rows_##S, T, GIVEN, COPY, READ, GE2_PANEL_ROWS, 0, ge2_pack_lines_##S)               \
    MARK GE2_PACK(ge2_pack_columns_##S, T, GIVEN, COPY, READ, GE2_PANEL_COLUMNS(T), 1, ge2_pack_lines_##S)
#define GE2_PACKING(S, T) GE2_PACKS(GE2_LIGHT, S, T, T, GE2_PACK_SAME, x)
#define GE2_PACKING_CAST(S, T, GIVEN, READ) GE2_PACKS(, S, T, GIVEN, GE2_PACK_EACH, READ)

#endif
