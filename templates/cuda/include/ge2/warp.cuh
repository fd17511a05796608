/* States that pass between the lanes of a warp, and prefixes of them over a warp or a block.
 *
 * `ge2_block_scan<256>(sum, ge2_add_f32)`: the sum of a thread's state and of those before it in the block. A state is
 * anything that can be copied. Merges follow the numbers of the threads, the earlier state first, in an order that
 * THREADS alone decides: the same bits each run. Blocks are of one dimension.
 */
#ifndef GE2_WARP_CUH
#define GE2_WARP_CUH

#include "ge2/core.cuh"

#define GE2_EVERY_LANE 0xffffffffu

/* A value in words of 32 bits, of which a shuffle takes one at a time. */
template <class T>
struct ge2_words {
    uint32_t at[(sizeof(T) + 3) / 4];
};

template <class T>
GE2_FN ge2_words<T> ge2_words_of(const T &x) {
    ge2_words<T> words = {};
    memcpy(words.at, &x, sizeof(T));
    return words;
}

template <class T>
GE2_FN T ge2_of_words(const ge2_words<T> &words) {
    T x;
    memcpy(&x, words.at, sizeof(T));
    return x;
}

/* What another lane holds: the one `other` before, the one of that number, the one whose number differs in those bits;
 * among WIDTH neighbouring lanes, a power of two. All lanes of the warp must be there. */
#define GE2_SHUFFLE(name, shfl) \
    template <int WIDTH = 32, class T> \
    GE2_FN T ge2_##name(T x, int other) { \
        ge2_words<T> words = ge2_words_of(x); \
        for (uint32_t &word : words.at) word = shfl(GE2_EVERY_LANE, word, other, WIDTH); \
        return ge2_of_words<T>(words); \
    }

GE2_SHUFFLE(lane_before, __shfl_up_sync)
GE2_SHUFFLE(lane_at, __shfl_sync)
GE2_SHUFFLE(lane_across, __shfl_xor_sync)

/* The merged states of a lane and those before it among WIDTH neighbours. */
template <int WIDTH = 32, class T, class Merge>
GE2_FN T ge2_warp_scan(T state, Merge merge) {
    const int lane = (int)threadIdx.x % WIDTH;
    for (int step = 1; step < WIDTH; step *= 2) {
        const T before = ge2_lane_before<WIDTH>(state, step);
        if (lane >= step) state = merge(before, state);
    }
    return state;
}

/* BYTES of shared memory of the block, the same ones for all that take as many: a static array of each function would be
   one more for each operation that merges, and a kernel has 48 KB. Threads wait for each other before they write there. */
template <int BYTES>
GE2_FN unsigned char *ge2_block_room() {
    __shared__ __align__(16) unsigned char room[BYTES];
    return room;
}

/* The merged states of a thread and those before it in a block of THREADS, a power of two from 32 on. */
template <int THREADS, class T, class Merge>
GE2_FN T ge2_block_scan(T state, Merge merge) {
    constexpr int WARPS = THREADS / 32;
    static_assert(WARPS * 32 == THREADS && (WARPS & (WARPS - 1)) == 0, "a power of two of whole warps");
    __shared__ ge2_words<T> whole[WARPS];
    state = ge2_warp_scan(state, merge);
    if constexpr (WARPS > 1) {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        __syncthreads(); /* whoever reads what an earlier scan left is done */
        if (lane == 31) whole[warp] = ge2_words_of(state);
        __syncthreads();
        const T warps = ge2_warp_scan<WARPS>(ge2_of_words<T>(whole[lane % WARPS]), merge);
        const T before = ge2_lane_at(warps, warp ? warp - 1 : 0);
        if (warp) state = merge(before, state);
    }
    return state;
}

#endif
