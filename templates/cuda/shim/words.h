/* The words that CUDA adds to C++, and where a thread is. */
#ifndef GE2_SHIM_WORDS_H
#define GE2_SHIM_WORDS_H

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

/* One copy, which belongs to the block that runs: the runtime puts it aside for another. */
#define __shared__ static __attribute__((used))

#define threadIdx (ge2_shim->thread)
#define blockIdx (ge2_shim->block)
#define blockDim (ge2_shim->block_size)
#define gridDim (ge2_shim->grid_size)
#define warpSize 32

#define __syncthreads() ((void)ge2_shim->barrier(GE2_SHIM_SITE, GE2_SHIM_BARRIER, 0))
#define __syncthreads_count(p) ge2_shim->barrier(GE2_SHIM_SITE, GE2_SHIM_BARRIER_COUNT, !!(p))
#define __syncthreads_and(p) ge2_shim->barrier(GE2_SHIM_SITE, GE2_SHIM_BARRIER_AND, !!(p))
#define __syncthreads_or(p) ge2_shim->barrier(GE2_SHIM_SITE, GE2_SHIM_BARRIER_OR, !!(p))

#define __syncwarp(...) ge2_shim_vote(GE2_SHIM_SITE, GE2_SHIM_SYNC, ge2_shim_mask(__VA_ARGS__), 0)
#define __ballot_sync(mask, p) ((unsigned)ge2_shim_ballot(GE2_SHIM_SITE, mask, p))
#define __any_sync(mask, p) ((int)ge2_shim_vote(GE2_SHIM_SITE, GE2_SHIM_ANY, mask, !!(p)))
#define __all_sync(mask, p) ((int)ge2_shim_vote(GE2_SHIM_SITE, GE2_SHIM_ALL, mask, !!(p)))
#define __match_any_sync(mask, x) ge2_shim_match_any(GE2_SHIM_SITE, mask, x)
#define __match_all_sync(mask, x, p) ge2_shim_match_all(GE2_SHIM_SITE, mask, x, p)
#define __reduce_add_sync(mask, x) ge2_shim_reduce(GE2_SHIM_SITE, GE2_SHIM_ADD, GE2_SHIM_ADD, mask, x)
#define __reduce_min_sync(mask, x) ge2_shim_reduce(GE2_SHIM_SITE, GE2_SHIM_MIN, GE2_SHIM_UMIN, mask, x)
#define __reduce_max_sync(mask, x) ge2_shim_reduce(GE2_SHIM_SITE, GE2_SHIM_MAX, GE2_SHIM_UMAX, mask, x)
#define __reduce_and_sync(mask, x) ge2_shim_reduce(GE2_SHIM_SITE, GE2_SHIM_AND, GE2_SHIM_AND, mask, x)
#define __reduce_or_sync(mask, x) ge2_shim_reduce(GE2_SHIM_SITE, GE2_SHIM_OR, GE2_SHIM_OR, mask, x)
#define __reduce_xor_sync(mask, x) ge2_shim_reduce(GE2_SHIM_SITE, GE2_SHIM_XOR, GE2_SHIM_XOR, mask, x)

#define __shfl_sync(...) ge2_shim_shuffle(GE2_SHIM_SITE, __VA_ARGS__)
#define __shfl_up_sync(...) ge2_shim_shuffle_up(GE2_SHIM_SITE, __VA_ARGS__)
#define __shfl_down_sync(...) ge2_shim_shuffle_down(GE2_SHIM_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) ge2_shim_shuffle_xor(GE2_SHIM_SITE, __VA_ARGS__)

#define __trap() ge2_shim->fail(GE2_SHIM_SITE, "__trap()")
#undef assert
#define assert(x) ((x) ? (void)0 : ge2_shim->fail(GE2_SHIM_SITE, "assert(" #x ")"))

#endif
