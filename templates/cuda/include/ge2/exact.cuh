/* Sums of floats that atomics add without rounding, so that the order in which they come changes no bit.
 *
 * J. Demmel and H. D. Nguyen, "Fast reproducible floating-point summation" (2013). Each place has the largest exponent
 * of its updates (`top`). An update is cut into FOLDS parts, each a multiple of a unit that follows from `top` and from
 * the number of updates, at most 2^bits: sums of so many of them are exact in a double. What is cut off lies
 * 53 - bits bits below the largest update for one fold, 106 - 2 * bits for two.
 */
#ifndef GE2_EXACT_CUH
#define GE2_EXACT_CUH

#include "ge2/core.cuh"

/* A top is the biased exponent and 1; 0: there is no update, or none but -0.0. */
enum { GE2_EXACT_SPECIAL = 2048, GE2_EXACT_FAR = 600 };

GE2_FN double ge2_exact_power(int exponent) { return __longlong_as_double((int64_t)(exponent + 1023) << 52); }

/* Numbers near the ends of the range are summed as others by this power of two; a place has one. */
GE2_FN int ge2_exact_shift(int top) { return top > 1537 ? -GE2_EXACT_FAR : top < 513 ? GE2_EXACT_FAR : 0; }

/* Notes the exponent of an update. What was read before others have raised it costs an atomic in vain, no more. */
GE2_FN void ge2_exact_note(int *top, double x) {
    const int64_t word = __double_as_longlong(x);
    const int mine = word == INT64_MIN ? 0 : (int)(word >> 52 & 2047) + 1;
    if (__ldcv(top) < mine) atomicMax(top, mine);
}

/* The range of the exponents of all updates but zeros, by so many blocks of which this is one: range[0] is the largest
 * top, 0 if there is none, range[1] is GE2_EXACT_SPECIAL less the smallest. */
template <class N, class T, class F>
GE2_FN void ge2_exact_range(const T *updates, N n, int *range, N block, N blocks, F number) {
    __shared__ int all[2];
    if (threadIdx.x < 2) all[threadIdx.x] = 0;
    __syncthreads();
    int top = 0, low = GE2_EXACT_SPECIAL;
    const N step = blocks * (N)blockDim.x;
    #pragma unroll 4
    for (N k = block * (N)blockDim.x + threadIdx.x; k < n; k += step) {
        const int64_t word = __double_as_longlong(number(updates[k]));
        if (!(word << 1)) continue;
        const int mine = (int)(word >> 52 & 2047) + 1;
        top = mine > top ? mine : top, low = mine < low ? mine : low;
    }
    if (top) atomicMax(all, top), atomicMax(all + 1, GE2_EXACT_SPECIAL - low);
    __syncthreads();
    if (threadIdx.x < 2 && all[threadIdx.x]) atomicMax(range + threadIdx.x, all[threadIdx.x]);
}

/* Whether two parts of one unit hold all digits of every update, of which there are 24. */
GE2_FN bool ge2_exact_fits(const int *range, int bits) {
    const int low = range[1] < 0 ? 0 : range[1]; /* as it was cleared */
    return range[0] < GE2_EXACT_SPECIAL && range[0] + low - GE2_EXACT_SPECIAL <= 2 * (53 - bits) - 24;
}

/* MARKED: sums begin with -0.0, which any update but -0.0 changes, be it 0. */
template <int FOLDS, bool MARKED = false>
GE2_FN void ge2_exact_add(double *sums, int top, int bits, double x) {
    if (top == GE2_EXACT_SPECIAL) { /* infinities and NaN are all that counts */
        if (!isfinite(x)) atomicAdd(sums, x);
        return;
    }
    const int shift = ge2_exact_shift(top);
    int exponent = (top > 1 ? top - 1 : 1) + shift - 1023;
    double rest = x * ge2_exact_power(shift);
    for (int fold = 0; fold < FOLDS; fold++) {
        const double much = 1.5 * ge2_exact_power(exponent + bits), part = (rest + much) - much;
        if (part != 0 || (MARKED && !fold && !__double_as_longlong(x))) atomicAdd(sums + fold, part);
        rest -= part, exponent += bits - 54;
    }
}

/* What was added at a place; its sums have `copies`, which lie `apart`. */
template <int FOLDS, class N>
GE2_FN double ge2_exact_total(const double *sums, int top, N copies, N apart) {
    double total[FOLDS];
    for (int fold = 0; fold < FOLDS; fold++) total[fold] = -0.0;
    #pragma unroll 4
    for (N copy = 0; copy < copies; copy++)
        for (int fold = 0; fold < FOLDS; fold++) total[fold] += sums[copy * apart + fold];
    if (top == GE2_EXACT_SPECIAL) return total[0];
    return (FOLDS > 1 ? total[0] + total[FOLDS - 1] : total[0]) * ge2_exact_power(-ge2_exact_shift(top));
}

#endif
