/* The order of elements by a digit, in a block: how many of the same digit come before each. */
#ifndef GE2_DIGIT_CUH
#define GE2_DIGIT_CUH

#include "ge2/warp.cuh"

/* The lanes of the warp that have the same digit, of DIGITS, a power of two, and one more. A vote for each bit takes a
 * few clocks; __match_any_sync takes more than all of them. */
template <int DIGITS>
GE2_FN unsigned ge2_lanes_alike(int digit) {
    unsigned alike = GE2_EVERY_LANE;
    #pragma unroll
    for (int bit = 1; bit <= DIGITS; bit *= 2) {
        const unsigned votes = __ballot_sync(GE2_EVERY_LANE, digit & bit);
        alike &= digit & bit ? votes : ~votes;
    }
    return alike;
}

/* The digits of RUN elements of each thread of a block of whole warps, and how many of the same digit come before each: in
 * its warp, rank[r]; in the warps before, of_warp[warp][digit]. A warp has 32 * RUN elements one after another, number
 * 32 * r + lane is element r of a lane; a digit of DIGITS is that of no element. Returns how many have digit `threadIdx.x`. */
template <int DIGITS, int WARPS, int RUN>
GE2_FN int ge2_digit_ranks(uint16_t (&of_warp)[WARPS][DIGITS], const int (&digit)[RUN], int (&rank)[RUN]) {
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    uint32_t *const words = (uint32_t *)&of_warp[0][0];
    for (int k = t; k < WARPS * DIGITS / 2; k += WARPS * 32) words[k] = 0;
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        const unsigned alike = ge2_lanes_alike<DIGITS>(digit[r]), below = alike & ((1u << lane) - 1);
        const bool here = digit[r] < DIGITS;
        const int before = here ? of_warp[warp][digit[r]] : 0;
        rank[r] = before + __popc(below);
        __syncwarp();
        if (here && !below) of_warp[warp][digit[r]] = (uint16_t)(before + __popc(alike));
        __syncwarp();
    }
    __syncthreads();
    int sum = 0;
    if (t < DIGITS) {
        #pragma unroll 8
        for (int w = 0; w < WARPS; w++) {
            const int count = of_warp[w][t];
            of_warp[w][t] = (uint16_t)sum;
            sum += count;
        }
    }
    __syncthreads();
    return sum;
}

#endif
