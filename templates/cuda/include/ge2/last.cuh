/* Which of several updates of a place is the last, by an atomic maximum of their numbers. */
#ifndef GE2_LAST_CUH
#define GE2_LAST_CUH

#include "ge2/core.cuh"

/* Takes in the number of an update of a place, one of those of a warp whose numbers fall from lane to lane: `turn`
 * counts them from the last on, of n. One place may be that of nearly all, as the one behind the end is for rows that
 * a filter drops, and takes one atomic after another: 4.7 ms for 2^22 of them on an H200. So an update that finds a
 * later one does nothing, and of those of a warp that name one place the last speaks for all. Lanes are compared with
 * all others only where some name the place of a neighbour, since that takes longer than the atomics of a permutation.
 */
template <class N>
GE2_FN void ge2_last(N *last, N at, N number, N turn, N n) {
    const int lane = (int)threadIdx.x & 31;
    const N rest = n - (turn - lane);
    const int end = rest < 32 ? (int)rest - 1 : 31; /* the last lane that has an update */
    const unsigned lanes = 0xffffffffu >> (31 - end);
    bool speaks = __ldcv(last + at) <= number;
    const N next = __shfl_sync(lanes, at, lane < end ? lane + 1 : 0);
    const N second = __shfl_sync(lanes, at, lane + 1 < end ? lane + 2 : 0);
    const bool meets = (next == at && lane < end) || (second == at && lane + 1 < end);
    if (__any_sync(lanes, speaks && meets)) {
        const unsigned alike = __match_any_sync(lanes, at);
        speaks = speaks && lane == __ffs((int)alike) - 1;
    }
    if (speaks) atomicMax(last + at, number + 1);
}

#endif
