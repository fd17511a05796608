/* Teams: so many threads side by side, within a warp or of several, that fold their values into one.

   The order in which values meet is fixed, so the same values give the same bits. */
#ifndef GE2_TEAM_CUH
#define GE2_TEAM_CUH

#include "ge2/warp.cuh"

/* What the SIZE threads of a team hold, merged; each of them gets it. A team of more than a warp is whole warps, and
   then all threads of the block call this together. Each call in a text has its own room, so what an earlier one read is
   waited for only with AGAIN: where a loop comes back to a call with no other between. */
template <int SIZE, int BLOCK, bool AGAIN = true, class S, class Merge>
GE2_FN S ge2_team_fold(S mine, Merge merge) {
    for (int bit = (SIZE < 32 ? SIZE : 32) / 2; bit; bit /= 2) mine = merge(mine, ge2_lane_across(mine, bit));
    if constexpr (SIZE > 32) {
        __shared__ __align__(16) unsigned char room[BLOCK / 32 * sizeof(S)];
        S *of_warps = (S *)room;
        const int warp = threadIdx.x / 32, first = threadIdx.x / SIZE * (SIZE / 32);
        if constexpr (AGAIN) __syncthreads(); /* the last round's fold is read to its end */
        if (threadIdx.x % 32 == 0) of_warps[warp] = mine;
        __syncthreads();
        S all[SIZE / 32];
#pragma unroll
        for (int w = 0; w < SIZE / 32; w++) all[w] = of_warps[first + w];
#pragma unroll
        for (int apart = 1; apart < SIZE / 32; apart *= 2)
#pragma unroll
            for (int w = 0; w + apart < SIZE / 32; w += 2 * apart) all[w] = merge(all[w], all[w + apart]);
        mine = all[0];
    }
    return mine;
}

/* The same, with the warps' values merged by lanes, where a merge is long: all threads would do 31 of them. */
template <int SIZE, int BLOCK, bool AGAIN, class S, class Merge>
GE2_FN S ge2_team_fold_by_lanes(S mine, Merge merge) {
    for (int bit = (SIZE < 32 ? SIZE : 32) / 2; bit; bit /= 2) mine = merge(mine, ge2_lane_across(mine, bit));
    if constexpr (SIZE > 32) {
        __shared__ __align__(16) unsigned char room[BLOCK / 32 * sizeof(S)];
        S *of_warps = (S *)room;
        if constexpr (AGAIN) __syncthreads();
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
        __syncthreads();
        mine = of_warps[threadIdx.x / SIZE * (SIZE / 32) + threadIdx.x % (SIZE / 32)];
        for (int bit = SIZE / 64; bit; bit /= 2) mine = merge(mine, ge2_lane_across(mine, bit));
    }
    return mine;
}

/* The same for threads that stand COLUMNS apart: a block of BLOCK threads is BLOCK / COLUMNS rows of them. */
template <int COLUMNS, int BLOCK, class S, class Merge>
GE2_FN S ge2_column_fold(S mine, Merge merge) {
    constexpr int ROWS = BLOCK / COLUMNS;
    if constexpr (ROWS > 1) {
        S *all = (S *)ge2_block_room<BLOCK * sizeof(S)>();
        __syncthreads();
        all[threadIdx.x] = mine;
        for (int half = ROWS / 2; half; half /= 2) {
            __syncthreads();
            if ((int)threadIdx.x < half * COLUMNS)
                all[threadIdx.x] = merge(all[threadIdx.x], all[threadIdx.x + half * COLUMNS]);
        }
        __syncthreads();
        mine = all[threadIdx.x % COLUMNS];
    }
    return mine;
}

#endif
