/* Grids whose blocks wait for each other: a cooperative launch, which has all of them on the GPU at once.

   The word that they count in lies in the workspace that the driver gives each such launch, zero at first: its address
   is in %envreg1 (the upper half) and %envreg2, and the word follows one of 32 bits (cooperative_groups of CUDA's
   toolkit, details/driver_abi.h). So no launch shares it with another, whichever stream or graph it is in. */
#ifndef GE2_GRID_CUH
#define GE2_GRID_CUH

#include "ge2/core.cuh"

#ifdef GE2_SHIM
#define ge2_grid_wait() ge2_shim->grid(GE2_SHIM_SITE)
#else

GE2_FN uint32_t *ge2_grid_word() {
    uint32_t upper, lower;
    asm("mov.u32 %0, %%envreg1;" : "=r"(upper));
    asm("mov.u32 %0, %%envreg2;" : "=r"(lower));
    return (uint32_t *)((uint64_t)upper << 32 | lower) + 1;
}

/* All threads of the grid meet: what each has written before, all see after.

   The first block adds 2^31 less the number of the others, each of which adds one: when all have come the top bit is
   another, and the rest is as it was. */
GE2_FN void ge2_grid_wait() {
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *const word = ge2_grid_word();
        const uint32_t mine = blockIdx.x ? 1u : 0x80000000u - (gridDim.x - 1u);
        uint32_t before, now;
        asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(mine) : "memory");
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
        while (!((before ^ now) & 0x80000000u));
    }
    __syncthreads();
}

#endif
#endif
