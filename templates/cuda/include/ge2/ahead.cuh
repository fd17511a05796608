/* Reads that go on while a thread computes: from memory to the thread's own place in shared memory. */
#ifndef GE2_AHEAD_CUH
#define GE2_AHEAD_CUH

#include "ge2/pack.cuh"

#ifdef GE2_SHIM
struct ge2_shim_copy {
    char *to;
    const char *from;
    int size, bytes;
    const void *code;
};
GE2_SHIM_UNSEEN void ge2_shim_copied_ahead(const ge2_shim_copy &c) {
    if (GE2_SHIM_LATE) ge2_shim->touch(c.to, c.size, GE2_SHIM_WRITE | GE2_SHIM_BROUGHT, c.code);
    if (GE2_SHIM_LATE && c.bytes) ge2_shim->touch(c.from, c.bytes, GE2_SHIM_READ, c.code);
    __builtin_memcpy(c.to, c.from, c.bytes);
    __builtin_memset(c.to + c.bytes, 0, c.size - c.bytes);
}
/* Both places are multiples of the size, of which `bytes` are read. */
GE2_SHIM_UNSEEN void ge2_shim_ahead(void *to, const void *from, int size, int bytes) {
    const ge2_shim_copy copy = {(char *)to, (const char *)from, size, bytes, __builtin_return_address(0)};
    if (GE2_SHIM_LATE) {
        if (bytes && (uintptr_t)from % size) ge2_shim->touch(from, size, GE2_SHIM_READ | GE2_SHIM_ALIGNED, copy.code);
        if (bytes) ge2_shim->touch(from, bytes, GE2_SHIM_READ, copy.code);
        ge2_shim->touch(to, size, GE2_SHIM_WRITE | GE2_SHIM_ALIGNED | GE2_SHIM_AWAITED, copy.code);
        __builtin_memset(to, 0xff, size);
    }
    ge2_shim_later(GE2_SHIM_COPIES, ge2_shim_copied_ahead, copy);
}
#endif

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
    ge2_shim_ahead(to, from, BYTES, BYTES);
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
    ge2_shim_ahead(to, from, BYTES, bytes);
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
#else
    ge2_shim_wait(GE2_SHIM_COPIES, -1);
#endif
}

/* Ends a group of what this thread asked for since the last one. */
GE2_FN void ge2_ahead_group() {
#ifndef GE2_SHIM
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    ge2_shim_group(GE2_SHIM_COPIES);
#endif
}

/* Waits until all groups of this thread but the last few are there. */
template <int FEW>
GE2_FN void ge2_ahead_wait_but() {
#ifndef GE2_SHIM
    asm volatile("cp.async.wait_group %0;" ::"n"(FEW) : "memory");
#else
    ge2_shim_wait(GE2_SHIM_COPIES, FEW);
#endif
}

#endif
