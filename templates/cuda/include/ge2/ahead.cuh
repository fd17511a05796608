/* Reads that go on while a thread computes: from memory to the thread's own place in shared memory. */
#ifndef GE2_AHEAD_CUH
#define GE2_AHEAD_CUH

#include "ge2/pack.cuh"

/* One access of BYTES, 4, 8 or 16, which both places are multiples of. */
template <int BYTES>
GE2_FN void ge2_ahead_piece(void *to, const void *from) {
#ifndef GE2_SHIM
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES) : "memory");
#else
    for (int i = 0; i < BYTES; i++) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
#endif
}

/* The same of the first `bytes` of it, which may be none; what follows them is zeros. */
template <int BYTES>
GE2_FN void ge2_ahead_part(void *to, const void *from, int bytes) {
#ifndef GE2_SHIM
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(place), "l"(from), "n"(BYTES), "r"(bytes)
                     : "memory");
#else
    for (int i = 0; i < BYTES; i++)
        ((unsigned char *)to)[i] = i < bytes ? ((const unsigned char *)from)[i] : (unsigned char)0;
#endif
}

/* N elements, WIDE at a time. */
template <int WIDE, class T, int N>
GE2_FN void ge2_ahead(ge2_some<T, N> *to, const T *from) {
#pragma unroll
    for (int i = 0; i < N; i += WIDE) ge2_ahead_piece<WIDE * sizeof(T)>(&to->at[i], from + i);
}

/* Waits until all that this thread asked for is there. */
GE2_FN void ge2_ahead_wait() {
#ifndef GE2_SHIM
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* Ends a group of what this thread asked for since the last one. */
GE2_FN void ge2_ahead_group() {
#ifndef GE2_SHIM
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until all groups of this thread but the last few are there. */
template <int FEW>
GE2_FN void ge2_ahead_wait_but() {
#ifndef GE2_SHIM
    asm volatile("cp.async.wait_group %0;" ::"n"(FEW) : "memory");
#endif
}

#endif
