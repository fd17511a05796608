/* Sums in the shared memory of a block, by atomics that round nothing: the order in which they come changes no bit.
 *
 * A sum is a whole number of WORDS words, in two's complement. Shared memory adds words of 32 bits in one instruction,
 * wider ones in a loop; so a carry goes to the next word by an atomic of its own. A sum of floats has a unit that
 * follows from the largest exponent of its updates (`top`, as in exact.cuh) and from their number, at most 2^bits:
 * what is cut off lies 32 * WORDS - 1 - bits bits below the largest update.
 */
#ifndef GE2_FIXED_CUH
#define GE2_FIXED_CUH

#include "ge2/core.cuh"
#include "ge2/exact.cuh"

GE2_FN uint32_t ge2_fixed_carry(uint32_t *word, uint32_t more) {
    return more && atomicAdd(word, more) + more < more;
}

/* Adds a number of 96 bits, or the lowest of them: `high` stands above `low`. */
template <int WORDS>
GE2_FN void ge2_fixed_more(uint32_t *sum, uint64_t low, uint32_t high = 0) {
    uint32_t carry = ge2_fixed_carry(sum, (uint32_t)low);
    if constexpr (WORDS > 1) {
        const uint32_t middle = (uint32_t)(low >> 32) + carry;
        carry = (middle < carry) + ge2_fixed_carry(sum + 1, middle);
    }
    if constexpr (WORDS > 2)
        if (high + carry) atomicAdd(sum + 2, high + carry);
}

GE2_FN void ge2_fixed_note(int *top, double x) {
    const int64_t word = __double_as_longlong(x);
    if (word != INT64_MIN) atomicMax(top, (int)(word >> 52 & 2047) + 1);
}

/* The power of two of the lowest bit of a sum. */
template <int WORDS>
GE2_FN int ge2_fixed_unit(int top, int bits) { return (top > 1 ? top - 1 : 1) - 1075 - (32 * WORDS - 54 - bits); }

template <int WORDS>
GE2_FN void ge2_fixed_add(uint32_t *sum, int top, int bits, double x) {
    const uint64_t word = (uint64_t)__double_as_longlong(x), digits = word & UINT64_C(0xfffffffffffff);
    const int exponent = (int)(word >> 52 & 2047), negative = (int)(word >> 63);
    if (top == GE2_EXACT_SPECIAL) { /* infinities and NaN are all that counts */
        if (exponent == 2047) atomicOr(sum, digits ? 4u : negative ? 2u : 1u);
        return;
    }
    const uint64_t mine = digits | (uint64_t)(exponent > 0) << 52;
    const int left = (exponent ? exponent : 1) - 1075 - ge2_fixed_unit<WORDS>(top, bits);
    uint64_t low = left >= 0 ? mine << left : left > -64 ? mine >> -left : 0;
    uint32_t high = WORDS > 2 && left > 11 ? (uint32_t)(mine >> (64 - left)) : 0;
    if (negative) low = ~low + 1, high = ~high + (low == 0);
    ge2_fixed_more<WORDS>(sum, low, high);
}

/* The sum, rounded; -0.0 where there is no update, or none but -0.0. */
template <int WORDS>
GE2_FN double ge2_fixed_total(const uint32_t *sum, int top, int bits) {
    if (!top) return -0.0;
    if (top == GE2_EXACT_SPECIAL)
        return sum[0] == 1 ? GE2_INFINITY_F64 : sum[0] == 2 ? -GE2_INFINITY_F64 : GE2_NAN_F64;
    uint64_t low = (uint64_t)sum[1] << 32 | sum[0];
    const bool negative = sum[WORDS - 1] >> 31;
    uint32_t high = WORDS > 2 ? sum[WORDS - 1] : 0u - negative;
    if (negative) low = ~low + 1, high = ~high + (low == 0);
    const double size = high * 0x1p64 + ((double)(uint32_t)(low >> 32) * 0x1p32 + (double)(uint32_t)low);
    const int shift = ge2_exact_shift(top);
    const double total = size * ge2_exact_power(ge2_fixed_unit<WORDS>(top, bits) + shift) * ge2_exact_power(-shift);
    return negative ? -total : total;
}

/* A sum of whole numbers, and what it is modulo 2^64. */
template <int WORDS>
GE2_FN uint64_t ge2_fixed_whole(const uint32_t *sum) {
    return WORDS > 1 ? (uint64_t)sum[WORDS - 1] << 32 | sum[0] : sum[0];
}

/* A sum and what rounding has cut off of it. */
struct ge2_fixed_pair {
    double high, low;
};

GE2_FN ge2_fixed_pair ge2_fixed_merge(ge2_fixed_pair a, ge2_fixed_pair b) {
    const double sum = a.high + b.high, more = sum - a.high;
    if (!isfinite(sum)) return {sum, 0.0};
    return {sum, a.low + b.low + ((a.high - (sum - more)) + (b.high - more))};
}

GE2_FN double ge2_fixed_value(ge2_fixed_pair sum) { return sum.low == 0 ? sum.high : sum.high + sum.low; }

#endif
