/* States that the threads of a warp or of a block merge, always in the same order: the same bits each run.
 *
 * `ge2_block_fold<256>(sum, ge2_add_f32)`: the sum of all 256 threads' sums, handed to each of them. A state is anything
 * that can be copied; `merge` may be any function of two states whose result does not depend on their order.
 */
#ifndef GE2_WARP_CUH
#define GE2_WARP_CUH

#include "ge2/core.cuh"

enum : uint32_t { GE2_WARP = 32, GE2_EVERY_LANE = 0xffffffffu };

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

/* What another lane holds: the one whose number differs in the bits of `mask`, the one `step` before, the one named.
 * All lanes of the warp must be there. */
#define GE2_SHUFFLE(name, shfl) \
    template <int WIDTH = GE2_WARP, class T> \
    GE2_FN T ge2_##name(T x, int other) { \
        ge2_words<T> words = ge2_words_of(x); \
        for (uint32_t &word : words.at) word = shfl(GE2_EVERY_LANE, word, other, WIDTH); \
        return ge2_of_words<T>(words); \
    }

GE2_SHUFFLE(lane_across, __shfl_xor_sync)
GE2_SHUFFLE(lane_before, __shfl_up_sync)
GE2_SHUFFLE(lane_at, __shfl_sync)

/* The merged states of WIDTH neighbouring lanes, a power of two, for each of them. */
template <int WIDTH = GE2_WARP, class T, class Merge>
GE2_FN T ge2_warp_fold(T state, Merge merge) {
    for (int mask = WIDTH / 2; mask; mask /= 2) state = merge(state, ge2_lane_across<WIDTH>(state, mask));
    return state;
}

/* The merged states of a lane and those before it; here the earlier state is the first operand of `merge`. */
template <int WIDTH = GE2_WARP, class T, class Merge>
GE2_FN T ge2_warp_scan(T state, Merge merge) {
    const int lane = (int)threadIdx.x % WIDTH;
    for (int step = 1; step < WIDTH; step *= 2) {
        const T before = ge2_lane_before<WIDTH>(state, step);
        if (lane >= step) state = merge(before, state);
    }
    return state;
}

/* The merged states of a block of THREADS, a power of two from 32 on, for each thread. */
template <int THREADS, class T, class Merge>
GE2_FN T ge2_block_fold(T state, Merge merge) {
    constexpr int WARPS = THREADS / (int)GE2_WARP;
    static_assert(WARPS * GE2_WARP == THREADS && (WARPS & (WARPS - 1)) == 0, "a power of two of whole warps");
    __shared__ ge2_words<T> states[WARPS];
    state = ge2_warp_fold(state, merge);
    if (WARPS == 1) return state;
    const int warp = (int)(threadIdx.x / GE2_WARP), lane = (int)(threadIdx.x % GE2_WARP);
    __syncthreads(); /* whoever reads the states of an earlier fold is done */
    if (lane == 0) states[warp] = ge2_words_of(state);
    __syncthreads();
    return ge2_warp_fold<WARPS>(ge2_of_words<T>(states[lane % WARPS]), merge);
}

#endif
