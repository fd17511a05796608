/* Random bits for the neighbouring elements of a thread: whole blocks of the generator, each made once. */
#ifndef GE2_DRAW_CUH
#define GE2_DRAW_CUH

#include "ge2/pack.cuh"
#include "ge2/random.cuh"

/* Elements first, first + 1, ... of a stream, so many at once that they are blocks or part of one: `first` is a
 * multiple of N. */
template <class T, int N>
GE2_FN ge2_some<T, N> ge2_random_some(uint32_t k0, uint32_t k1, uint64_t first) {
    constexpr int EACH = 16 / sizeof(T);
    ge2_some<T, N> found;
    if constexpr (N >= EACH) {
#pragma unroll
        for (int i = 0; i < N; i += EACH) {
            const ge2_block block = ge2_random_block(k0, k1, (first + i) / EACH);
            memcpy(&found.at[i], &block, sizeof block);
        }
    } else {
        const ge2_block block = ge2_random_block(k0, k1, first / EACH);
        const int bit = (int)(first % EACH) * (int)sizeof(T) * 8;
        const uint64_t low = block.a | (uint64_t)block.b << 32, high = block.c | (uint64_t)block.d << 32;
        const uint64_t half = (bit < 64 ? low : high) >> (bit & 63);
        memcpy(&found, &half, sizeof found);
    }
    return found;
}

#endif
