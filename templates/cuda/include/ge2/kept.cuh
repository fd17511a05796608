/* Products by a matrix that the threads of a block keep from round to round, some of it in registers, the rest in shared
   memory.

   A team of SLICES lanes has four columns of the matrix. Of the sum over k each lane has the fours 4 * (lane + SLICES * i),
   so that what it reads of the other operand lies in one line with what its neighbours read. A chunk is such a four for
   each column: four pieces of four numbers, numbered one after another. The first OWN pieces are the thread's own. */
#ifndef GE2_KEPT_CUH
#define GE2_KEPT_CUH

#include "ge2/pack.cuh"
#include "ge2/warp.cuh"

typedef ge2_piece<float, 4> ge2_four;

/* The pieces that a thread has in registers. */
template <int OWN>
struct ge2_kept {
    ge2_four piece[OWN];
};

/* What a thread's slice of x, CHUNKS fours of it, adds to each of its four columns. */
template <int CHUNKS, int SLICES, int THREADS, int OWN>
GE2_FN void ge2_kept_product(const ge2_kept<OWN> &own, const ge2_four *rest, const float *x, float (&sums)[4]) {
    const int slice = (int)threadIdx.x % SLICES;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const ge2_four some = ((const ge2_four *)x)[chunk * SLICES + slice];
#pragma unroll
        for (int column = 0; column < 4; column++) {
            const int n = chunk * 4 + column;
            const ge2_four by = n < OWN ? own.piece[n < OWN ? n : 0] : rest[(n - OWN) * THREADS + threadIdx.x];
#pragma unroll
            for (int i = 0; i < 4; i++) sums[column] = fmaf(some.at[i], by.at[i], sums[column]);
        }
    }
}

/* Which of the four columns a lane has when the slices are added up. */
template <int SLICES>
GE2_FN int ge2_kept_column() {
    const int lane = (int)threadIdx.x % SLICES;
    return lane / (SLICES / 2) * 2 + lane / (SLICES / 4) % 2;
}

/* The sum of all slices for that column: lanes exchange what the other has to do with, half of it at a time. */
template <int SLICES>
GE2_FN float ge2_kept_sum(const float (&sums)[4]) {
    const int lane = (int)threadIdx.x % SLICES;
    const bool late = lane / (SLICES / 2), odd = lane / (SLICES / 4) % 2;
    const float first = (late ? sums[2] : sums[0]) + ge2_lane_across(late ? sums[0] : sums[2], SLICES / 2);
    const float second = (late ? sums[3] : sums[1]) + ge2_lane_across(late ? sums[1] : sums[3], SLICES / 2);
    float mine = (odd ? second : first) + ge2_lane_across(odd ? first : second, SLICES / 4);
    for (int bit = SLICES / 8; bit; bit /= 2) mine += ge2_lane_across(mine, bit);
    return mine;
}

#endif
