/* Products by a matrix that the blocks of a grid keep from round to round, each of them some columns, in registers.

   A block has HIGH rows of the result and 4 * TEAMS columns. A team of SLICES lanes, several warps perhaps, has four of
   these columns. Of the sum over k each lane has the fours 4 * (slice + SLICES * i), as in kept.cuh; so a row of the other
   operand, in shared memory, is read side by side. */
#ifndef GE2_SPREAD_CUH
#define GE2_SPREAD_CUH

#include "ge2/kept.cuh"

/* Copies so many rows of SUMS numbers, a multiple of four, into shared memory. */
template <int SUMS, int THREADS>
GE2_FN void ge2_spread_rows(float *to, const float *from, int rows) {
    for (int n = (int)threadIdx.x; n < rows * (SUMS / 4); n += THREADS) ((ge2_four *)to)[n] = ((const ge2_four *)from)[n];
}

/* Sums of COUNT numbers over WIDTH lanes, both powers of two: lanes exchange half of what they have, again and again.
   A lane ends with numbers COUNT / WIDTH * lane and so on, or shares one with its neighbours. */
template <int COUNT, int WIDTH>
GE2_FN void ge2_spread_sum(float (&sums)[COUNT]) {
    const int lane = (int)threadIdx.x % WIDTH;
    int count = COUNT;
#pragma unroll
    for (int bit = WIDTH / 2; bit; bit /= 2) {
        if (count == 1) {
            sums[0] += ge2_lane_across(sums[0], bit);
            continue;
        }
        count /= 2;
        const bool late = lane & bit;
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++)
            if (i < count) {
                const float mine = late ? sums[i + count] : sums[i], other = late ? sums[i] : sums[i + count];
                sums[i] = mine + ge2_lane_across(other, bit);
            }
    }
}

/* The products of HIGH rows in shared memory by the block's columns; what each warp of a team has of the sums, for
   `ge2_spread_result`, as [warp][row][column]. ROWS of them are done at once. */
template <int SUMS, int SLICES, int HIGH, int ROWS, int THREADS, int OWN>
GE2_FN void ge2_spread_product(const ge2_kept<OWN> &own, const float *x, float *parts) {
    constexpr int CHUNKS = SUMS / (4 * SLICES), WIDTH = SLICES < 32 ? SLICES : 32, COUNT = 4 * ROWS;
    constexpr int SHARE = WIDTH > COUNT ? WIDTH / COUNT : 1, LEFT = COUNT > WIDTH ? COUNT / WIDTH : 1;
    constexpr int WIDE = THREADS / SLICES * 4;
    const int slice = (int)threadIdx.x % SLICES, team = (int)threadIdx.x / SLICES, lane = slice % WIDTH;
#pragma unroll 1
    for (int row = 0; row < HIGH; row += ROWS) {
        float sums[COUNT] = {};
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            ge2_four some[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                some[r] = ((const ge2_four *)(x + (row + r) * SUMS))[chunk * SLICES + slice];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int column = 0; column < 4; column++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sums[r * 4 + column] =
                            fmaf(some[r].at[i], own.piece[chunk * 4 + column].at[i], sums[r * 4 + column]);
        }
        ge2_spread_sum<COUNT, WIDTH>(sums);
        if (lane % SHARE == 0) {
#pragma unroll
            for (int i = 0; i < LEFT; i++) {
                const int n = lane / SHARE * LEFT + i;
                parts[(slice / WIDTH * HIGH + row + n / 4) * WIDE + team * 4 + n % 4] = sums[i];
            }
        }
    }
}

/* Element `spot` of the block's HIGH x WIDE results: the sum of what WARPS warps have. */
template <int WARPS, int SIZE>
GE2_FN float ge2_spread_result(const float *parts, int spot) {
    float sum = parts[spot];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) sum += parts[warp * SIZE + spot];
    return sum;
}

#endif
