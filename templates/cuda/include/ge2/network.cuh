/* Lines in registers, put in order by networks of comparators: LANES neighbouring lanes of a warp have a line, each KEYS
 * keys of it. Which comparators there are is in the kernel's text, where those that no result needs are left out.
 *
 * A key is an unsigned number in the order of the elements; with the place of its element in its low bits, or beside it,
 * no two are equal, and equal elements keep their order.
 */
#ifndef GE2_NETWORK_CUH
#define GE2_NETWORK_CUH

#include "ge2/warp.cuh"

/* A key of 64 bits and the place of its element. */
struct ge2_network_pair {
    uint64_t key;
    uint32_t place;
    __device__ bool operator<(const ge2_network_pair &other) const {
        return (key < other.key) | ((key == other.key) & (place < other.place));
    }
};

/* A key and the place of its element, below 2^16, as one word; and that place. */
GE2_FN uint32_t ge2_network_placed(uint8_t key, int t) { return (uint32_t)key << 16 | (uint32_t)t; }
GE2_FN uint32_t ge2_network_placed(uint16_t key, int t) { return (uint32_t)key << 16 | (uint32_t)t; }
GE2_FN uint64_t ge2_network_placed(uint32_t key, int t) { return (uint64_t)key << 32 | (uint32_t)t; }
GE2_FN ge2_network_pair ge2_network_placed(uint64_t key, int t) { return {key, (uint32_t)t}; }
GE2_FN uint16_t ge2_network_place(uint32_t word) { return (uint16_t)word; }
GE2_FN uint16_t ge2_network_place(uint64_t word) { return (uint16_t)word; }
GE2_FN uint16_t ge2_network_place(const ge2_network_pair &word) { return (uint16_t)word.place; }

/* A comparator: the lesser comes first. */
template <class W>
GE2_FN void ge2_network_order(W &a, W &b) {
    const bool later = b < a;
    const W low = later ? b : a;
    b = later ? a : b;
    a = low;
}

#ifndef GE2_SHIM
/* The same by one comparison: the compiler would make a minimum and a maximum of it, by one each, of two words. */
GE2_FN void ge2_network_order(uint64_t &a, uint64_t &b) {
    asm("{.reg .pred later; .reg .b32 a0, a1, b0, b1, c0, c1, d0, d1; setp.lt.u64 later, %1, %0;"
        " mov.b64 {a0, a1}, %0; mov.b64 {b0, b1}, %1; selp.b32 c0, b0, a0, later; selp.b32 c1, b1, a1, later;"
        " selp.b32 d0, a0, b0, later; selp.b32 d1, a1, b1, later; mov.b64 %0, {c0, c1}; mov.b64 %1, {d0, d1};}"
        : "+l"(a), "+l"(b));
}
#endif

/* The lesser of what a lane has and what another has, or in the upper of the two the other. */
template <class W>
GE2_FN W ge2_network_kept(W mine, W other, bool upper) {
    return (other < mine) != upper ? other : mine;
}

/* Begins to merge the lines of two halves of `group` lanes: the first key meets the last, and so on. The lesser half then
 * has the lesser keys; of each half, those of lanes that are `apart` meet next, and last those within a lane. */
template <int KEYS, class W>
GE2_FN void ge2_network_meet(W *keys, int lane, int group) {
    const bool upper = lane & group / 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        const W first = ge2_lane_across(keys[KEYS - 1 - i], group - 1), last = ge2_lane_across(keys[i], group - 1);
        keys[i] = ge2_network_kept(keys[i], first, upper);
        keys[KEYS - 1 - i] = ge2_network_kept(keys[KEYS - 1 - i], last, upper);
    }
}

template <int KEYS, class W>
GE2_FN void ge2_network_across(W *keys, int lane, int apart) {
    const bool upper = lane & apart;
#pragma unroll
    for (int i = 0; i < KEYS; i++) keys[i] = ge2_network_kept(keys[i], ge2_lane_across(keys[i], apart), upper);
}

/* Where an element of a line is in the shared memory of a warp: each lane's keys follow each other, an odd number of
 * elements after those of the lane before, so that lanes read and write in different banks. */
template <int LANES, int KEYS>
GE2_FN int ge2_network_slot(int line, int t) {
    return (line * LANES + t / KEYS) * (KEYS | 1) + t % KEYS;
}

/* True in all lanes of a line if it is in one. */
template <int LANES>
GE2_FN bool ge2_network_any(bool one) {
    for (int apart = 1; apart < LANES; apart *= 2) one |= ge2_lane_across(one, apart);
    return one;
}

/* Zeros differ in their signs, and NaN in their bits, but are equal: each takes the bits of those of the line as it was,
 * in their order. `sorted(rank)`: an element of the N of the line, which is written; `given(t)`: one as it was. */
template <int N, class Given, class Key, class Sorted>
GE2_FN void ge2_network_settle(Given given, Key key, Sorted sorted) {
    const auto zero = key(0);
    auto now = zero;
    int t = 0;
#pragma unroll 1
    for (int rank = 0; rank < N; rank++) {
        const auto k = key(sorted(rank));
        if (k != zero && k != (decltype(now))-1) continue;
        if (k != now) now = k, t = 0;
        while (key(given(t)) != k) t++;
        sorted(rank) = given(t++);
    }
}

#endif
