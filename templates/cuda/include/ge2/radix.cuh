/* A line of keys in order, by a block: one digit of eight bits after another, the lowest first. What all keys have in common
 * costs nothing. A tile of the line is put in order in shared memory, from where keys of one digit go on side by side.
 */
#ifndef GE2_RADIX_CUH
#define GE2_RADIX_CUH

#include "ge2/digit.cuh"

enum { GE2_RADIX = 256 };

/* What a block of THREADS has in shared memory, each with RUN keys at a time; PLACED: keys take places along. */
template <class K, int THREADS, int RUN, bool PLACED>
struct ge2_radix_room {
    int counts[sizeof(K)][GE2_RADIX];
    int before[GE2_RADIX]; /* where the next of a digit goes */
    int apart[GE2_RADIX];  /* how far that is from where it is in the tile */
    uint16_t inside[GE2_RADIX]; /* where the first of a digit is in the tile */
    uint16_t of_warp[THREADS / 32][GE2_RADIX];
    K keys[THREADS * RUN];
    int places[PLACED ? THREADS * RUN : 1];
};

GE2_FN int ge2_radix_sum(int a, int b) { return a + b; }

/* How often each digit is in a line. Returns which of them, the lowest in bit 0, are not the same in all keys. */
template <class K, int THREADS, int RUN, bool PLACED, class Key>
GE2_FN int ge2_radix_count(ge2_radix_room<K, THREADS, RUN, PLACED> &room, int n, Key key) {
    constexpr int BYTES = sizeof(K);
    const int t = threadIdx.x;
    for (int k = t; k < BYTES * GE2_RADIX; k += THREADS) (&room.counts[0][0])[k] = 0;
    __syncthreads();
    #pragma unroll 4
    for (int k = t; k < n; k += THREADS) {
        const K x = key(k);
        #pragma unroll
        for (int byte = 0; byte < BYTES; byte++) atomicAdd(&room.counts[byte][(int)(x >> 8 * byte) & (GE2_RADIX - 1)], 1);
    }
    __syncthreads();
    int apart = 0;
    for (int byte = 0; byte < BYTES; byte++)
        if (!__syncthreads_or(t < GE2_RADIX && room.counts[byte][t] == n)) apart |= 1 << byte;
    return apart;
}

/* Everything goes to its place by one digit, those that have the same in the order they are in: `to(rank, key, place)`. */
template <class K, int THREADS, int RUN, bool PLACED, class Key, class Place, class To>
GE2_FN void ge2_radix_move(
    ge2_radix_room<K, THREADS, RUN, PLACED> &room, int n, int byte, Key key, Place place, To to) {
    constexpr int WARPS = THREADS / 32, TILE = THREADS * RUN;
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int all = t < GE2_RADIX ? room.counts[byte][t] : 0;
    const int upto = ge2_block_scan<THREADS>(all, ge2_radix_sum);
    if (t < GE2_RADIX) room.before[t] = upto - all;
    const auto digit_of = [=](K x) { return (int)(x >> 8 * byte) & (GE2_RADIX - 1); };
    for (int first = 0; first < n; first += TILE) {
        K mine[RUN];
        int at[PLACED ? RUN : 1], digit[RUN], rank[RUN];
        #pragma unroll
        for (int r = 0; r < RUN; r++) {
            const int k = first + (warp * RUN + r) * 32 + lane;
            mine[r] = k < n ? key(k) : 0;
            if (PLACED) at[PLACED ? r : 0] = k < n ? place(k) : 0;
            digit[r] = k < n ? digit_of(mine[r]) : GE2_RADIX;
        }
        const int many = ge2_digit_ranks<GE2_RADIX, WARPS, RUN>(room.of_warp, digit, rank);
        const int inside = ge2_block_scan<THREADS>(t < GE2_RADIX ? many : 0, ge2_radix_sum) - many;
        if (t < GE2_RADIX) {
            room.inside[t] = (uint16_t)inside;
            room.apart[t] = room.before[t] - inside;
            room.before[t] += many;
        }
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < RUN; r++) {
            if (digit[r] == GE2_RADIX) continue;
            const int spot = room.inside[digit[r]] + room.of_warp[warp][digit[r]] + rank[r];
            room.keys[spot] = mine[r];
            if (PLACED) room.places[PLACED ? spot : 0] = at[PLACED ? r : 0];
        }
        __syncthreads();
        const int count = n - first < TILE ? n - first : TILE;
        for (int k = t; k < count; k += THREADS) {
            const K x = room.keys[k];
            to(room.apart[digit_of(x)] + k, x, PLACED ? room.places[PLACED ? k : 0] : 0);
        }
    }
    __syncthreads(); /* all of it is there */
}

/* A line in order: keys(0), ..., keys(n - 1), of which `to(rank, key, place)` is done with each. `spare`: room for 2 n keys,
 * and `places` for as many places. */
template <class K, int THREADS, int RUN, bool PLACED, class Key, class To>
GE2_FN void ge2_radix_sort(
    ge2_radix_room<K, THREADS, RUN, PLACED> &room, int n, Key key, K *spare, int *places, To to) {
    int left = ge2_radix_count(room, n, key);
    if (!left) {
        for (int k = threadIdx.x; k < n; k += THREADS) to(k, key(k), k);
        return;
    }
    const auto own = [](int k) { return k; };
    K *from = spare + n, *into = spare;
    int *place_from = places + n, *place_into = places;
    bool first = true;
    while (left) {
        const int byte = __ffs(left) - 1;
        left &= left - 1;
        const auto moved_key = [=](int k) { return from[k]; };
        const auto moved_place = [=](int k) { return place_from[k]; };
        const auto keep = [=](int rank, K x, int place) {
            into[rank] = x;
            if (PLACED) place_into[rank] = place;
        };
        if (first && left) ge2_radix_move(room, n, byte, key, own, keep);
        else if (first) ge2_radix_move(room, n, byte, key, own, to);
        else if (left) ge2_radix_move(room, n, byte, moved_key, moved_place, keep);
        else ge2_radix_move(room, n, byte, moved_key, moved_place, to);
        K *const other = from;
        int *const place_other = place_from;
        from = into, into = other, place_from = place_into, place_into = place_other, first = false;
    }
}

/* Zeros differ in their signs, and NaN in their bits, but are equal: those of a line in the order in which they are there,
 * `to(rank, t)` for each. `zero`: the key of both zeros; NaN have the largest. */
template <int THREADS, class K, class Key, class To>
GE2_FN void ge2_radix_settle(int n, K zero, Key key, To to) {
    constexpr K NONE = (K)~(K)0;
    __shared__ int less, known, zeros, nones;
    const int t = threadIdx.x;
    if (t == 0) less = 0, known = 0;
    __syncthreads();
    int mine = 0, numbers = 0;
    for (int k = t; k < n; k += THREADS) {
        const K x = key(k);
        mine += x < zero, numbers += x != NONE;
    }
    atomicAdd(&less, mine), atomicAdd(&known, numbers);
    __syncthreads();
    int at_zero = less, at_none = known;
    for (int first = 0; first < n; first += THREADS) {
        const int k = first + t;
        const K x = k < n ? key(k) : 0;
        const bool is_zero = k < n && x == zero, is_none = k < n && x == NONE;
        const int upto = ge2_block_scan<THREADS>((int)is_zero | (int)is_none << 16, ge2_radix_sum);
        if (is_zero) to(at_zero + (upto & 0xffff) - 1, k);
        if (is_none) to(at_none + (upto >> 16) - 1, k);
        if (t == THREADS - 1) zeros = upto & 0xffff, nones = upto >> 16;
        __syncthreads();
        at_zero += zeros, at_none += nones;
        __syncthreads();
    }
}

#endif
