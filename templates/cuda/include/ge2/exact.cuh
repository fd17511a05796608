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

template <int FOLDS>
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
        if (part != 0) atomicAdd(sums + fold, part);
        rest -= part, exponent += bits - 54;
    }
}

/* What was added at a place; its sums have `copies`, which lie `apart`. */
template <int FOLDS, class N>
GE2_FN double ge2_exact_total(const double *sums, int top, N copies, N apart) {
    double total[FOLDS] = {};
    #pragma unroll 4
    for (N copy = 0; copy < copies; copy++)
        for (int fold = 0; fold < FOLDS; fold++) total[fold] += sums[copy * apart + fold];
    if (top == GE2_EXACT_SPECIAL) return total[0];
    return (FOLDS > 1 ? total[0] + total[FOLDS - 1] : total[0]) * ge2_exact_power(-ge2_exact_shift(top));
}

#endif
