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

#define GE2_CALLED static __attribute__((noinline)) /* a function that does not become part of its callers */
#define GE2_PANEL_TILE GE2_FUSED GE2_FN
#define GE2_CALLED_TILE GE2_FUSED GE2_CALLED

/* The terms of a block of a sum of `inner`: the sizes alone decide, so sums are added in one order. */
GE2_FN int64_t ge2_panel_depth(int64_t inner) {
    const int64_t blocks = (inner + GE2_PANEL_DEPTH - 1) / GE2_PANEL_DEPTH;
    return (inner + blocks - 1) / blocks;
}

/* The slivers that `size` rows or columns have, `width` each but the last. */
GE2_FN int64_t ge2_slivers(int64_t size, int64_t width) { return (size + width - 1) / width; }

#endif
