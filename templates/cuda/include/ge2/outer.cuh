/* Products of float32 with few terms, whose result is most of what is moved: a block of 256 threads has 128 x 128
 * elements of it, a thread 8 x 8, in four parts of 4 x 4 that are 64 apart, so that lanes read and write side by side.
 * Of each stage of terms both factors are in shared memory, those of a row or a column below each other. */
#ifndef GE2_OUTER_CUH
#define GE2_OUTER_CUH

#include "ge2/pack.cuh"

enum { GE2_OUTER_SIDE = 128, GE2_OUTER_STAGE = 32, GE2_OUTER_PITCH = GE2_OUTER_SIDE + 4, GE2_OUTER_THREADS = 256 };

typedef float ge2_outer_room[GE2_OUTER_STAGE][GE2_OUTER_PITCH];

/* A stage of a factor: `line` and `term` are its steps along rows, or columns, and along terms. ALONG: terms lie side by
 * side. What is beyond either is 0. */
template <bool ALONG>
GE2_FN void ge2_outer_fill(ge2_outer_room &room, const float *x, int64_t line, int64_t term, int lines, int terms) {
#pragma unroll 8
    for (int e = threadIdx.x; e < GE2_OUTER_SIDE * GE2_OUTER_STAGE; e += GE2_OUTER_THREADS) {
        const int i = ALONG ? e / GE2_OUTER_STAGE : e % GE2_OUTER_SIDE;
        const int k = ALONG ? e % GE2_OUTER_STAGE : e / GE2_OUTER_SIDE;
        room[k][i] = i < lines && k < terms ? x[i * line + k * term] : 0.0f;
    }
}

/* Eight neighbours, four and four, of a term. */
GE2_FN void ge2_outer_take(const float *row, int first, float (&some)[8]) {
    const ge2_some<float, 4> low = ge2_read<4, 4>(row + first), high = ge2_read<4, 4>(row + first + 64);
#pragma unroll
    for (int v = 0; v < 4; v++) some[v] = low.at[v], some[4 + v] = high.at[v];
}

template <bool A_ALONG, bool B_ALONG>
GE2_FN void ge2_outer_product(
    int block, const float *a, int64_t a_row, int64_t a_term, const float *b, int64_t b_term, int64_t b_column,
    float *y, int64_t y_row, int rows, int columns, int terms
) {
    __shared__ __align__(16) ge2_outer_room left, right;
    const int across = (columns + GE2_OUTER_SIDE - 1) / GE2_OUTER_SIDE;
    const int row = block / across * GE2_OUTER_SIDE, column = block % across * GE2_OUTER_SIDE;
    const int i = threadIdx.x / 16 * 4, j = threadIdx.x % 16 * 4;
    float total[8][8] = {};
    for (int k = 0; k < terms; k += GE2_OUTER_STAGE) {
        if (k) __syncthreads(); /* the stage before is done */
        ge2_outer_fill<A_ALONG>(left, a + row * a_row + k * a_term, a_row, a_term, rows - row, terms - k);
        ge2_outer_fill<B_ALONG>(right, b + column * b_column + k * b_term, b_column, b_term, columns - column, terms - k);
        __syncthreads();
        const int end = terms - k < GE2_OUTER_STAGE ? terms - k : GE2_OUTER_STAGE;
#pragma unroll 4
        for (int t = 0; t < end; t++) {
            float mine[8], other[8];
            ge2_outer_take(left[t], i, mine);
            ge2_outer_take(right[t], j, other);
#pragma unroll
            for (int v = 0; v < 8; v++)
#pragma unroll
                for (int w = 0; w < 8; w++) total[v][w] = fmaf(mine[v], other[w], total[v][w]);
        }
    }
#pragma unroll
    for (int v = 0; v < 8; v++) {
        const int r = row + i + v % 4 + v / 4 * 64;
        if (r >= rows) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int c = column + j + half * 64;
            ge2_some<float, 4> made;
#pragma unroll
            for (int w = 0; w < 4; w++) made.at[w] = total[v][half * 4 + w];
            if (c < columns) ge2_write<4, 4>(y + r * y_row + c, made);
        }
    }
}

#endif
