/* Integers as NumPy computes them: overflow wraps, a division by zero gives 0.
 *
 * Sums and products go through an unsigned type of at least 32 bits, where wrapping is defined. Quotients of up to
 * 32 bits go through a float type with more digits than the operands have bits: exact, and vectorised.
 */
#ifndef GE2_INTEGER_H
#define GE2_INTEGER_H

#include "core.h"

/* t: suffix; T: the type; W: the unsigned type it is computed in. */
#define GE2_INTEGER(t, T, W, BITS) \
    GE2_FN T ge2_add_##t(T a, T b) { return (T)((W)a + (W)b); } \
    GE2_FN T ge2_sub_##t(T a, T b) { return (T)((W)a - (W)b); } \
    GE2_FN T ge2_mul_##t(T a, T b) { return (T)((W)a * (W)b); } \
    GE2_FN T ge2_neg_##t(T a) { return (T)(0 - (W)a); } \
    GE2_FN T ge2_square_##t(T a) { return (T)((W)a * (W)a); } \
    GE2_FN T ge2_max_##t(T a, T b) { return a < b ? b : a; } \
    GE2_FN T ge2_min_##t(T a, T b) { return b < a ? b : a; } \
    GE2_FN T ge2_fmax_##t(T a, T b) { return a < b ? b : a; } \
    GE2_FN T ge2_fmin_##t(T a, T b) { return b < a ? b : a; } \
    GE2_FN T ge2_floor_##t(T a) { return a; } \
    GE2_FN T ge2_ceil_##t(T a) { return a; } \
    GE2_FN T ge2_trunc_##t(T a) { return a; } \
    GE2_FN T ge2_not_##t(T a) { return (T)~a; } \
    GE2_FN uint8_t ge2_lt_##t(T a, T b) { return a < b; } \
    GE2_FN uint8_t ge2_le_##t(T a, T b) { return a <= b; } \
    GE2_FN uint8_t ge2_truth_##t(T a) { return a != 0; } \
    GE2_FN uint8_t ge2_isfinite_##t(T a) { return (void)a, 1; } \
    GE2_FN uint8_t ge2_isinf_##t(T a) { return (void)a, 0; } \
    GE2_FN uint8_t ge2_isnan_##t(T a) { return (void)a, 0; } \
    GE2_FN T ge2_shift_left_##t(T a, T b) { return (W)b < BITS ? (T)((W)a << ((W)b & (BITS - 1))) : 0; } \
    GE2_FN T ge2_integer_pow_##t(T a, uint64_t n) { \
        W y = 1; \
        for (W x = (W)a; n; n >>= 1, x *= x) y *= (x & (0 - (W)(n & 1))) | (~n & 1); \
        return (T)y; \
    }

/* F: what quotients are computed in; Q: what holds them; INVERSE_OF_0: NumPy's, from a cast of infinity. */
#define GE2_UNSIGNED(t, T, W, BITS, F, Q) \
    GE2_INTEGER(t, T, W, BITS) \
    GE2_FN T ge2_abs_##t(T a) { return a; } \
    GE2_FN T ge2_sign_##t(T a) { return a != 0; } \
    GE2_FN T ge2_reciprocal_##t(T a) { return a == 1; } \
    GE2_FN T ge2_shift_right_##t(T a, T b) { return b < BITS ? (T)((W)a >> (b & (BITS - 1))) : 0; } \
    GE2_FN T ge2_pow_##t(T a, T b) { return ge2_integer_pow_##t(a, b); } \
    GE2_FN T ge2_floor_div_##t(T a, T b) { return b ? (T)(Q)((F)a / (F)(b ? b : 1)) : 0; } \
    GE2_FN T ge2_rem_##t(T a, T b) { return b ? (T)((W)a - (W)ge2_floor_div_##t(a, b) * b) : 0; } \
    GE2_FN T ge2_fmod_##t(T a, T b) { return ge2_rem_##t(a, b); } \
    GE2_BY_SIZE(t, T, W)

/* Several threads may meet a negative exponent; the first error of a call stands. */
static __attribute__((unused, noinline, cold)) void ge2_power_fails(const ge2_services *lib, int64_t equation) {
    _Pragma("omp critical(ge2_power)")
    if (lib->error->code == GE2_OK) *lib->error = (ge2_error){GE2_POWER, 0, 0, 0, equation};
}

/* `ge2_pow` of a negative exponent is the true power rounded towards 0; 0 for a = 0. NumPy refuses it, and so does
 * `ge2_power`: it is the error of the call. */
#define GE2_SIGNED(t, T, W, BITS, F, Q, INVERSE_OF_0) \
    GE2_INTEGER(t, T, W, BITS) \
    GE2_FN T ge2_abs_##t(T a) { return a < 0 ? (T)(0 - (W)a) : a; } \
    GE2_FN T ge2_sign_##t(T a) { return (T)((a > 0) - (a < 0)); } \
    GE2_FN T ge2_reciprocal_##t(T a) { return a == 1 || a == -1 ? a : a ? 0 : INVERSE_OF_0; } \
    GE2_FN T ge2_shift_right_##t(T a, T b) { return (T)(a >> ((W)b < BITS ? b : BITS - 1)); } \
    GE2_FN T ge2_pow_##t(T a, T b) { \
        T last = b & 1 ? a : (T)((W)a * (W)a); \
        return b < 0 ? ((W)a + 1 <= 2 ? last : 0) : ge2_integer_pow_##t(a, (uint64_t)b); \
    } \
    GE2_FN T ge2_power_##t(T a, T b, int64_t equation, const ge2_services *lib) { \
        if (b < 0) ge2_power_fails(lib, equation); \
        return ge2_pow_##t(a, b); \
    } \
    /* Rounded towards 0; the one quotient that overflows is least / -1, which wraps. Of up to 32 bits by masks: a choice \
       between numbers that are known becomes a branch, and a loop with two remainders had no vectors. A division of 64 \
       bits is worth a branch. */ \
    GE2_FN W ge2_quotient_##t(T a, T b) { \
        if (sizeof(T) == 8) { \
            const W q = (W)(Q)((F)a / (F)(b == 0 || b == -1 ? 1 : b)); \
            return b == 0 ? 0 : b == -1 ? 0 - q : q; \
        } \
        const W none = b == 0, turned = b == -1, some = none - 1, flip = 0 - turned; \
        const W q = (W)(Q)((F)a / (F)(T)((W)b + none + 2 * turned)); \
        return ((q ^ flip) + turned) & some; \
    } \
    GE2_FN T ge2_fmod_##t(T a, T b) { \
        if (sizeof(T) == 8) return b ? (T)((W)a - ge2_quotient_##t(a, b) * (W)b) : 0; \
        return (T)(((W)a - ge2_quotient_##t(a, b) * (W)b) & (0 - (W)(b != 0))); \
    } \
    /* all bits where a remainder has the sign that the divisor lacks */ \
    GE2_FN W ge2_astray_##t(T r, T b) { \
        if (sizeof(T) == 8) return r && (r ^ b) < 0 ? (W)-1 : 0; \
        return 0 - (W)((r != 0) & ((r ^ b) < 0)); \
    } \
    /* By a positive divisor of 64 bits that stands in the text: the complement of a negative a is divided, which \
       rounds down without a branch. */ \
    GE2_FN T ge2_rem_##t(T a, T b) { \
        if (sizeof(T) == 8 && __builtin_constant_p(b) && b > 0) { \
            const W flip = (W)(a >> (BITS - 1)); \
            return (T)((W)a - (((W)a ^ flip) / (W)b ^ flip) * (W)b); \
        } \
        const T r = ge2_fmod_##t(a, b); \
        return (T)((W)r + ((W)b & ge2_astray_##t(r, b))); \
    } \
    GE2_FN T ge2_floor_div_##t(T a, T b) { \
        if (sizeof(T) == 8 && __builtin_constant_p(b) && b > 0) { \
            const W flip = (W)(a >> (BITS - 1)); \
            return (T)(((W)a ^ flip) / (W)b ^ flip); \
        } \
        return (T)(ge2_quotient_##t(a, b) + ge2_astray_##t(ge2_fmod_##t(a, b), b)); \
    } \
    GE2_BY_SIZE(t, T, W)

/* What NumPy computes from absolute values. The greatest divisor: J. Stein's binary algorithm (1967). */
#define GE2_BY_SIZE(t, T, W) \
    GE2_FN W ge2_size_##t(T a) { return a < (T)1 ? 0 - (W)a : (W)a; } \
    GE2_FN W ge2_divisor_##t(W x, W y) { \
        if (!x || !y) return x | y; \
        const int twos = __builtin_ctzll(x | y); \
        for (x >>= __builtin_ctzll(x); y;) { \
            y >>= __builtin_ctzll(y); \
            const W d = x - y, less = 0 - (W)(x < y); /* a mask: a branch would be mispredicted */ \
            x = y + (d & less), y = (d ^ less) - less; \
        } \
        return x << twos; \
    } \
    GE2_FN T ge2_gcd_##t(T a, T b) { return (T)ge2_divisor_##t(ge2_size_##t(a), ge2_size_##t(b)); } \
    GE2_FN T ge2_lcm_##t(T a, T b) { \
        const W x = ge2_size_##t(a), y = ge2_size_##t(b), d = ge2_divisor_##t(x, y); \
        return d ? (T)(x / d * y) : 0; \
    } \
    GE2_FN uint8_t ge2_popcount_##t(T a) { \
        const W x = ge2_size_##t(a); \
        return (uint8_t)(sizeof x > 4 ? __builtin_popcountll(x) : __builtin_popcount((uint32_t)x)); \
    }

GE2_FOR(GE2_SIGNED, i8, int8_t, uint32_t, 8, float, int32_t, 0)
GE2_FOR(GE2_SIGNED, i16, int16_t, uint32_t, 16, float, int32_t, 0)
GE2_FOR(GE2_SIGNED, i32, int32_t, uint32_t, 32, double, int32_t, INT32_MIN)
GE2_FOR(GE2_SIGNED, i64, int64_t, uint64_t, 64, int64_t, int64_t, INT64_MIN)
GE2_FOR(GE2_UNSIGNED, u8, uint8_t, uint32_t, 8, float, int32_t)
GE2_FOR(GE2_UNSIGNED, u16, uint16_t, uint32_t, 16, float, int32_t)
GE2_FOR(GE2_UNSIGNED, u32, uint32_t, uint32_t, 32, double, uint32_t)
GE2_FOR(GE2_UNSIGNED, u64, uint64_t, uint64_t, 64, uint64_t, uint64_t)

#endif
