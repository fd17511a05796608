/* Columns a few threads wide: a block has some side by side, and those below each other merge what they hold.

   The lanes of a warp meet by shuffles, then the warps in shared memory, all states in one go. The order in which states
   meet is fixed, so the same states give the same bits. */
#ifndef GE2_COLUMNS_CUH
#define GE2_COLUMNS_CUH

#include "ge2/warp.cuh"

/* Merged states of N each, of the threads of a block that stand COLUMNS apart, a power of two up to 32; each of them
   gets the N of its column. All threads of the block, whole warps, call this together. */
template <int COLUMNS, int BLOCK, int N, class S, class Merge>
GE2_FN void ge2_columns_merge(S (&mine)[N], Merge merge) {
#pragma unroll
    for (int bit = COLUMNS; bit < 32; bit *= 2)
#pragma unroll
        for (int n = 0; n < N; n++) mine[n] = merge(mine[n], ge2_lane_across(mine[n], bit));
    constexpr int WARPS = BLOCK / 32, WIDTH = COLUMNS * N;
    constexpr int ROOM = sizeof(S) <= 4 ? 32 : sizeof(S) <= 8 ? 16 : 4; /* states that find registers */
    constexpr int AT_ONCE = WARPS < ROOM ? WARPS : ROOM;
    if constexpr (WARPS > 1) {
        S *all = (S *)ge2_block_room<WARPS * WIDTH * sizeof(S)>();
        __syncthreads(); /* what an earlier call left is read */
        if (threadIdx.x % 32 < COLUMNS)
#pragma unroll
            for (int n = 0; n < N; n++) all[threadIdx.x / 32 * WIDTH + threadIdx.x % 32 * N + n] = mine[n];
        __syncthreads();
#pragma unroll 1
        for (int at = threadIdx.x; at < WIDTH; at += BLOCK) {
            S found = all[at];
#pragma unroll
            for (int first = 0; first < WARPS; first += AT_ONCE) {
                S some[AT_ONCE];
#pragma unroll
                for (int w = 0; w < AT_ONCE; w++) some[w] = all[(first + w) * WIDTH + at];
#pragma unroll
                for (int apart = 1; apart < AT_ONCE; apart *= 2)
#pragma unroll
                    for (int w = 0; w + apart < AT_ONCE; w += 2 * apart) some[w] = merge(some[w], some[w + apart]);
                found = first ? merge(found, some[0]) : some[0];
            }
            all[at] = found; /* which no other thread reads before they meet */
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < N; n++) mine[n] = all[threadIdx.x % COLUMNS * N + n];
    }
}

/* The same where each thread holds one state. */
template <int COLUMNS, int BLOCK, class S, class Merge>
GE2_FN S ge2_columns_fold(S mine, Merge merge) {
    S one[1] = {mine};
    ge2_columns_merge<COLUMNS, BLOCK>(one, merge);
    return one[0];
}

#endif
