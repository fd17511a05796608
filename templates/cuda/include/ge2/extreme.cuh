/* The largest or smallest of floats that meet at a place, by atomics of integers: in any order they leave the same bits.
 *
 * The bits of floats of one sign are in the order of the numbers as signed integers where they are positive, and against
 * it as unsigned ones where they are negative; each of the four atomics is right whatever lies there. -0.0 counts as
 * smaller than 0.0, as in IEEE 754-2019 (`maximum`, `minimum`), and NaN wins: it is written as the largest integer of
 * that order, or the smallest.
 */
#ifndef GE2_EXTREME_CUH
#define GE2_EXTREME_CUH

#include "ge2/core.cuh"
#include "ge2/pack.cuh"

/* S and U are the signed and the unsigned integers of a float's size. */
template <class S, class U>
GE2_FN S ge2_extreme_key(U bits) {
    const U rest = (U)~(U)0 >> 1;
    return (S)(bits > rest ? bits ^ rest : bits);
}

/* What lies at neighbouring places, of which several are read at once. */
template <int PACK, class U>
GE2_FN ge2_some<U, PACK> ge2_extremes_at(const U *at) {
    ge2_some<U, PACK> there;
    if constexpr (PACK * sizeof(U) == sizeof(uint4)) {
        const uint4 all = __ldcv((const uint4 *)at);
        memcpy(there.at, &all, sizeof all);
    } else
        for (int v = 0; v < PACK; v++) there.at[v] = __ldcv(at + v);
    return there;
}

/* Takes in an update of a place where that lay, or what is further in the direction of all. */
template <bool LARGEST, class S, class U>
GE2_FN void ge2_extreme(U *at, U x, U infinity, U there) {
    const U rest = (U)~(U)0 >> 1, nan = LARGEST ? rest : (U)~(U)0;
    if ((x & rest) > infinity || (there & rest) > infinity) x = nan;
    const S mine = ge2_extreme_key<S>(x), other = ge2_extreme_key<S>(there);
    if (LARGEST ? mine <= other : mine >= other) return; /* what lies there goes one way only */
    const bool negative = x > rest;
    if (LARGEST != negative) {
        if (negative) atomicMax(at, x);
        else atomicMax((S *)at, (S)x);
    } else {
        if (negative) atomicMin(at, x);
        else atomicMin((S *)at, (S)x);
    }
}

#endif
