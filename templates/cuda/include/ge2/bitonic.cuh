/* A line in shared memory is put in order by a block. */
#ifndef GE2_BITONIC_CUH
#define GE2_BITONIC_CUH

#include "ge2/core.cuh"

/* SIZE keys, a power of two, the least first, and of equals the one of the lower place: by a bitonic network (K. E.
 * Batcher, 1968). Each key takes its place along; no two places are equal, so nothing depends on which thread is first. */
template <int SIZE, class K>
GE2_FN void ge2_bitonic_sort(K *keys, uint16_t *places) {
    for (int run = 2; run <= SIZE; run *= 2) {
        for (int apart = run / 2; apart; apart /= 2) {
            __syncthreads();
            for (int p = threadIdx.x; p < SIZE / 2; p += (int)blockDim.x) {
                const int i = 2 * p - (p & (apart - 1)), j = i + apart;
                const K a = keys[i], b = keys[j];
                const uint16_t at_a = places[i], at_b = places[j];
                const bool later = a > b || (a == b && at_a > at_b), falling = i & run;
                if (later != falling) keys[i] = b, keys[j] = a, places[i] = at_b, places[j] = at_a;
            }
        }
    }
    __syncthreads();
}

#endif
