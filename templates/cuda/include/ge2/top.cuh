/* The largest keys of a line, in order: the larger first, and of equals the one at the lower place.
 *
 * The same are found whichever thread comes first: only sums are read of what is counted by atomics, and what takes its
 * turn to be kept is ordered after.
 */
#ifndef GE2_TOP_CUH
#define GE2_TOP_CUH

#include "ge2/warp.cuh"

enum { GE2_TOP_BLOCK = 256, GE2_TOP_DIGITS = 256, GE2_TOP_MOST = 512 };

/* Each of n keys that is among the first k goes to its rank: `to(rank, t)`. LANES threads share them; place(t): where key
 * t comes from. */
template <int LANES, class K, class Place, class To>
GE2_FN void ge2_top_rank(const K *keys, int n, int k, int lane, Place place, To to) {
    for (int t = lane; t < n; t += LANES) {
        const K mine = keys[t];
        const int at = place(t);
        int rank = 0;
        for (int other = 0; other < n; other++)
            rank += keys[other] > mine || (keys[other] == mine && place(other) < at);
        if (rank < k) to(rank, t);
    }
}

/* Which digit the rest-th has, the highest digit first, if so many have each; `rest` is then which it is among those that
 * have this digit. Returns whether it is the last of them. */
GE2_FN bool ge2_top_digit(const int *counts, int &digit, int &rest) {
    __shared__ int chosen, before, many;
    const int mine = GE2_TOP_DIGITS - 1 - (int)threadIdx.x, count = counts[mine];
    const int upto = ge2_block_scan<GE2_TOP_BLOCK>(count, [](int a, int b) { return a + b; });
    if (upto - count < rest && rest <= upto) chosen = mine, before = upto - count, many = count;
    __syncthreads();
    digit = chosen, rest -= before;
    const bool last = rest == many;
    __syncthreads(); /* all have read it, and the counts */
    return last;
}

/* keys[k] and places[k]: the k first of key(0), ..., key(n - 1), in any order. By one digit of the keys after another,
 * and where more than are wanted are equal by one digit of their places after another, it is known which the last is. */
template <class K, class Key>
GE2_FN void ge2_top_select(K *keys, int *places, int n, int k, Key key) {
    __shared__ int counts[GE2_TOP_DIGITS], taken;
    const int thread = threadIdx.x;
    K head = 0, known = 0; /* the digits of the last that are known, and where they are */
    int rest = k, digit;
    bool last = false;
    for (int shift = 8 * ((int)sizeof(K) - 1); shift >= 0 && !last; shift -= 8) {
        counts[thread] = 0;
        __syncthreads();
        for (int t = thread; t < n; t += GE2_TOP_BLOCK) {
            const K x = key(t);
            if ((K)(x & known) == head) atomicAdd(&counts[(int)(x >> shift) & (GE2_TOP_DIGITS - 1)], 1);
        }
        __syncthreads();
        last = ge2_top_digit(counts, digit, rest);
        head |= (K)digit << shift, known |= (K)(GE2_TOP_DIGITS - 1) << shift;
    }
    unsigned place = 0, sure = 0, least = UINT32_MAX; /* equals up to `least` are among the first */
    for (int shift = n > 1 << 24 ? 24 : n > 1 << 16 ? 16 : n > 1 << 8 ? 8 : 0; shift >= 0 && !last; shift -= 8) {
        counts[thread] = 0;
        __syncthreads();
        for (int t = thread; t < n; t += GE2_TOP_BLOCK)
            if ((K)(key(t) & known) == head && ((unsigned)t & sure) == place)
                atomicAdd(&counts[GE2_TOP_DIGITS - 1 - (t >> shift & (GE2_TOP_DIGITS - 1))], 1);
        __syncthreads();
        last = ge2_top_digit(counts, digit, rest);
        place |= (unsigned)(GE2_TOP_DIGITS - 1 - digit) << shift, sure |= (GE2_TOP_DIGITS - 1u) << shift;
        least = place | ((1u << shift) - 1);
    }
    if (thread == 0) taken = 0;
    __syncthreads();
    for (int t = thread; t < n; t += GE2_TOP_BLOCK) {
        const K x = key(t), begin = (K)(x & known);
        if (begin > head || (begin == head && (unsigned)t <= least)) {
            const int to = atomicAdd(&taken, 1);
            keys[to] = x, places[to] = t;
        }
    }
    __syncthreads();
}

#endif
