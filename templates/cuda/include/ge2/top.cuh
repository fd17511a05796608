/* The largest keys of a line, in order: the larger first, and of equals the one at the lower place.
 *
 * The same are found whichever thread comes first: only sums are read of what is counted by atomics, and what takes its
 * turn to be kept is ordered after.
 */
#ifndef GE2_TOP_CUH
#define GE2_TOP_CUH

#include "ge2/warp.cuh"

enum { GE2_TOP_BITS = 11, GE2_TOP_DIGITS = 1 << GE2_TOP_BITS, GE2_TOP_MOST = 512 };

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

/* Does something with each of n keys and where it comes from, several of a thread on their way at once. */
template <int BLOCK, class Key, class Each>
GE2_FN void ge2_top_each(int n, Key key, Each each) {
    constexpr int AHEAD = sizeof(key(0)) > 4 ? 4 : 8;
    int t = threadIdx.x;
    for (; t + (AHEAD - 1) * BLOCK < n; t += AHEAD * BLOCK) {
        decltype(key(0)) some[AHEAD];
        #pragma unroll
        for (int v = 0; v < AHEAD; v++) some[v] = key(t + v * BLOCK);
        #pragma unroll
        for (int v = 0; v < AHEAD; v++) each(some[v], t + v * BLOCK);
    }
    for (; t < n; t += BLOCK) each(key(t), t);
}

/* Which digit the rest-th has, the highest digit first, if so many have each; `rest` is then which it is among the `many`
 * that have this digit. */
template <int BLOCK>
GE2_FN int ge2_top_digit(const int *counts, int &rest, int &many) {
    constexpr int EACH = GE2_TOP_DIGITS / BLOCK;
    __shared__ int chosen, before, found;
    const int first = GE2_TOP_DIGITS - 1 - (int)threadIdx.x * EACH;
    int sum = 0;
    #pragma unroll
    for (int v = 0; v < EACH; v++) sum += counts[first - v];
    int upto = ge2_block_scan<BLOCK>(sum, [](int a, int b) { return a + b; }) - sum;
    if (upto < rest && rest <= upto + sum)
        for (int v = 0; v < EACH; upto += counts[first - v++])
            if (upto < rest && rest <= upto + counts[first - v])
                chosen = first - v, before = upto, found = counts[first - v];
    __syncthreads();
    const int digit = chosen;
    rest -= before, many = found;
    __syncthreads(); /* all have read it, and the counts */
    return digit;
}

/* How often each digit is among the keys for which `digit(x, t)` is not negative. */
template <int BLOCK, class Key, class Digit>
GE2_FN void ge2_top_count(int *counts, int n, Key key, Digit digit) {
    for (int t = threadIdx.x; t < GE2_TOP_DIGITS; t += BLOCK) counts[t] = 0;
    __syncthreads();
    ge2_top_each<BLOCK>(n, key, [&](auto x, int t) {
        const int d = digit(x, t);
        if (d >= 0) atomicAdd(&counts[d], 1);
    });
    __syncthreads();
}

/* What is known of the rest-th key: its digits under `known` are those of `head`, and `many` keys have these; of those
 * that are equal it is found up to `least`, the place of the last. */
template <class K>
struct ge2_top_found {
    K head, known;
    int rest, many;
    unsigned least;
};

/* One digit of the keys after another, the highest first, until `enough(found)` or all are known. */
template <int BLOCK, class K, class Key, class Enough>
GE2_FN ge2_top_found<K> ge2_top_narrowed(int *counts, int n, int rest, Key key, Enough enough) {
    ge2_top_found<K> found = {0, 0, rest, n, UINT32_MAX};
    for (int left = 8 * (int)sizeof(K); left > 0 && !enough(found);) {
        const int bits = left < GE2_TOP_BITS ? left : GE2_TOP_BITS, mask = (1 << bits) - 1;
        left -= bits;
        const K head = found.head, known = found.known;
        ge2_top_count<BLOCK>(counts, n, key, [=](K x, int) {
            return (K)(x & known) == head ? (int)(x >> left) & mask : -1;
        });
        const int digit = ge2_top_digit<BLOCK>(counts, found.rest, found.many);
        found.head |= (K)digit << left, found.known |= (K)mask << left;
    }
    return found;
}

/* The first of those keys for which `wanted(x, t)` holds, in any order: GE2_TOP_MOST at most. Returns how many it holds for,
 * or some number beyond. */
template <int BLOCK, class K, class Key, class Wanted>
GE2_FN int ge2_top_take(K *keys, int *places, int n, Key key, Wanted wanted) {
    __shared__ int taken;
    if (threadIdx.x == 0) taken = 0;
    __syncthreads();
    ge2_top_each<BLOCK>(n, key, [&](K x, int t) {
        if (wanted(x, t)) {
            const int to = atomicAdd(&taken, 1);
            if (to < GE2_TOP_MOST) keys[to] = x, places[to] = t;
        }
    });
    __syncthreads();
    return taken;
}

/* How many lanes of a warp, of the first so many, have a larger number, or the same before this one. */
template <class K>
GE2_FN int ge2_top_lanes_before(K mine, int lanes, int lane) {
    int rank = 0;
    for (int other = 0; other < lanes; other++) {
        const K x = (K)__shfl_sync(0xffffffffu, mine, other);
        rank += x > mine || (x == mine && other < lane);
    }
    return rank;
}

/* A key that k of the n keys or more reach, and few more do: of the largest keys that each of the threads has seen, that of
 * some rank among those of its warp, and of these that of some rank again. Nothing is counted, so that equal digits, which
 * most keys of a line have, keep no thread waiting. */
template <int BLOCK, class K, class Key>
GE2_FN K ge2_top_bound(int n, int k, Key key) {
    enum { WARPS = BLOCK / 32 };
    __shared__ K of_warps[WARPS];
    const int lane = (int)threadIdx.x % 32, each = (k + WARPS - 1) / WARPS, some = (k + each - 1) / each;
    K mine = 0;
    ge2_top_each<BLOCK>(n, key, [&](K x, int) { mine = x > mine ? x : mine; });
    if (ge2_top_lanes_before(mine, 32, lane) == each - 1) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = of_warps[lane % WARPS];
    const bool found = ge2_top_lanes_before(mine, WARPS, lane) == some - 1 && lane < WARPS;
    const int which = __ffs(__ballot_sync(0xffffffffu, found)) - 1;
    return (K)__shfl_sync(0xffffffffu, mine, which);
}

/* keys and places: the k first of key(0), ..., key(n - 1), and perhaps some that come after, in any order; returns how
 * many. Those that reach a bound, if there is room for them; else by one digit of the keys after another, and where more are equal than there is room for by one digit of their
 * places after another, it is known which are among the first. */
template <int BLOCK, class K, class Key>
GE2_FN int ge2_top_select(K *keys, int *places, int n, int k, Key key) {
    __shared__ int counts[GE2_TOP_DIGITS];
    const auto enough = [=](const ge2_top_found<K> &found) { return k - found.rest + found.many <= GE2_TOP_MOST; };
    if (k > 0 && k <= BLOCK) {
        const K bound = n > BLOCK / 2 ? ge2_top_bound<BLOCK, K>(n, k, key) : 0;
        const int reached = ge2_top_take<BLOCK>(keys, places, n, key, [=](K x, int) { return x >= bound; });
        if (reached <= GE2_TOP_MOST) return reached;
    }
    ge2_top_found<K> found = ge2_top_narrowed<BLOCK, K>(counts, n, k, key, enough);
    const K head = found.head, known = found.known;
    unsigned place = 0, sure = 0;
    for (int left = 33; left > 0 && !enough(found);) {
        left -= GE2_TOP_BITS;
        if (left && (n - 1) >> left == 0) continue; /* no place has such a digit but 0 */
        ge2_top_count<BLOCK>(counts, n, key, [=](K x, int t) {
            const bool equal = (K)(x & known) == head && ((unsigned)t & sure) == place;
            return equal ? GE2_TOP_DIGITS - 1 - (int)((unsigned)t >> left & (GE2_TOP_DIGITS - 1u)) : -1;
        });
        const int digit = ge2_top_digit<BLOCK>(counts, found.rest, found.many);
        place |= (unsigned)(GE2_TOP_DIGITS - 1 - digit) << left, sure |= (GE2_TOP_DIGITS - 1u) << left;
        found.least = place | ((1u << left) - 1);
    }
    const unsigned least = found.least;
    return ge2_top_take<BLOCK>(keys, places, n, key, [=](K x, int t) {
        const K begin = (K)(x & known);
        return begin > head || (begin == head && (unsigned)t <= least);
    });
}

/* The k-th key, the largest is the first. */
template <int BLOCK, class K, class Key>
GE2_FN K ge2_top_key(K *keys, int *places, int n, int k, Key key) {
    __shared__ int counts[GE2_TOP_DIGITS];
    __shared__ K chosen;
    const auto found = ge2_top_narrowed<BLOCK, K>(
        counts, n, k, key, [](const ge2_top_found<K> &each) { return each.many <= GE2_TOP_MOST; });
    if (found.known == (K)~(K)0) return found.head;
    const int count = ge2_top_take<BLOCK>(keys, places, n, key, [=](K x, int) {
        return (K)(x & found.known) == found.head;
    });
    const auto place = [=](int t) { return places[t]; };
    ge2_top_rank<BLOCK>(keys, count, count, (int)threadIdx.x, place, [&](int rank, int t) {
        if (rank == found.rest - 1) chosen = keys[t];
    });
    __syncthreads();
    const K key_of = chosen;
    __syncthreads(); /* all have read it, and the keys */
    return key_of;
}

/* Between launches, what is known of the key of a rank is five words: those of ge2_top_found, and the first rank of which
 * the same is known, whose counts and keys are those of all. */
enum { GE2_TOP_STATE = 5 };

template <class K>
GE2_FN ge2_top_found<K> ge2_top_known(const uint64_t *state) {
    return {(K)state[0], (K)state[1], (int)state[2], (int)state[3], UINT32_MAX};
}

template <class K>
GE2_FN bool ge2_top_open(const ge2_top_found<K> &found) {
    return found.many > GE2_TOP_MOST && found.known != (K)~(K)0;
}

/* What is known of the keys of RANKS ranks by one digit more, of BITS bits above `left`, after all blocks have counted it.
 * The first block of a line leaves it in `to`. Returns which ranks are the first of which the same is known. */
template <int BLOCK, int RANKS, class K>
GE2_FN void ge2_top_next(
    ge2_top_found<K> (&found)[RANKS], int (&first)[RANKS], const uint64_t *from, uint64_t *to, const int *counts,
    int left, int bits, bool writes) {
    #pragma unroll
    for (int r = 0; r < RANKS; r++) {
        found[r] = ge2_top_known<K>(from + r * GE2_TOP_STATE);
        if (ge2_top_open(found[r])) {
            const int alike = (int)from[r * GE2_TOP_STATE + 4];
            const int digit = ge2_top_digit<BLOCK>(counts + alike * GE2_TOP_DIGITS, found[r].rest, found[r].many);
            found[r].head |= (K)digit << left, found[r].known |= (K)((1 << bits) - 1) << left;
        }
        first[r] = r > 0 && found[r].head == found[r - 1].head && found[r].known == found[r - 1].known ? first[r - 1] : r;
        if (writes && threadIdx.x == 0) {
            uint64_t *const mine = to + r * GE2_TOP_STATE;
            mine[0] = found[r].head, mine[1] = found[r].known, mine[2] = (uint64_t)found[r].rest;
            mine[3] = (uint64_t)found[r].many, mine[4] = (uint64_t)first[r];
        }
    }
}

/* Adds to `counts` how often each digit above `left` is among the keys of which the same is known as of that of a rank. */
template <int BLOCK, int RANKS, class K, class Key>
GE2_FN void ge2_top_count_all(
    int *counts, const ge2_top_found<K> (&found)[RANKS], const int (&first)[RANKS], int n, int left, int bits, Key key) {
    __shared__ int mine[RANKS][GE2_TOP_DIGITS];
    for (int t = threadIdx.x; t < RANKS * GE2_TOP_DIGITS; t += BLOCK) mine[0][t] = 0;
    __syncthreads();
    ge2_top_each<BLOCK>(n, key, [&](K x, int) {
        #pragma unroll
        for (int r = 0; r < RANKS; r++)
            if (first[r] == r && ge2_top_open(found[r]) && (K)(x & found[r].known) == found[r].head)
                atomicAdd(&mine[r][(int)(x >> left) & ((1 << bits) - 1)], 1);
    });
    __syncthreads();
    for (int t = threadIdx.x; t < RANKS * GE2_TOP_DIGITS; t += BLOCK)
        if (mine[0][t]) atomicAdd(counts + t, mine[0][t]);
}

/* kept[GE2_TOP_MOST] of each rank: the keys of which the same is known, in any order. */
template <int BLOCK, int RANKS, class K, class Key>
GE2_FN void ge2_top_keep(
    K *kept, int *taken, const ge2_top_found<K> (&found)[RANKS], const int (&first)[RANKS], int n, Key key) {
    ge2_top_each<BLOCK>(n, key, [&](K x, int) {
        #pragma unroll
        for (int r = 0; r < RANKS; r++)
            if (first[r] == r && found[r].many <= GE2_TOP_MOST && (K)(x & found[r].known) == found[r].head)
                kept[r * GE2_TOP_MOST + atomicAdd(taken + r, 1)] = x;
    });
}

/* The key of rank r, of those that were kept. */
template <int BLOCK, class K>
GE2_FN K ge2_top_kept(const K *kept, const uint64_t *states, int r) {
    __shared__ K keys[GE2_TOP_MOST], chosen;
    const ge2_top_found<K> found = ge2_top_known<K>(states + r * GE2_TOP_STATE);
    if (found.many > GE2_TOP_MOST) return found.head;
    const K *const from = kept + (int)states[r * GE2_TOP_STATE + 4] * GE2_TOP_MOST;
    __syncthreads(); /* all have read those of the rank before */
    for (int t = threadIdx.x; t < found.many; t += BLOCK) keys[t] = from[t];
    __syncthreads();
    const auto place = [](int t) { return t; };
    ge2_top_rank<BLOCK>(keys, found.many, found.many, (int)threadIdx.x, place, [&](int rank, int t) {
        if (rank == found.rest - 1) chosen = keys[t];
    });
    __syncthreads();
    return chosen;
}

#endif
