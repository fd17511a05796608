/* Integers as NumPy computes them: overflow wraps, a division by zero gives 0.
 *
 * Sums and products go through an unsigned type of at least 32 bits, where wrapping is defined.
 */
#ifndef GE2_INTEGER_CUH
#define GE2_INTEGER_CUH

#include "ge2/core.cuh"

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
    GE2_FN bool ge2_lt_##t(T a, T b) { return a < b; } \
    GE2_FN bool ge2_le_##t(T a, T b) { return a <= b; } \
    GE2_FN bool ge2_truth_##t(T a) { return a != 0; } \
    GE2_FN bool ge2_isfinite_##t(T) { return true; } \
    GE2_FN bool ge2_isinf_##t(T) { return false; } \
    GE2_FN bool ge2_isnan_##t(T) { return false; } \
    GE2_FN T ge2_shift_left_##t(T a, T b) { return (W)b < BITS ? (T)((W)a << ((W)b & (BITS - 1))) : 0; } \
    GE2_FN T ge2_integer_pow_##t(T a, uint64_t n) { \
        W y = 1; \
        for (W x = (W)a; n; n >>= 1, x *= x) y = n & 1 ? y * x : y; \
        return (T)y; \
    }

#define GE2_UNSIGNED(t, T, W, BITS) \
    GE2_INTEGER(t, T, W, BITS) \
    GE2_FN T ge2_abs_##t(T a) { return a; } \
    GE2_FN T ge2_sign_##t(T a) { return a != 0; } \
    GE2_FN T ge2_reciprocal_##t(T a) { return a == 1; } \
    GE2_FN T ge2_shift_right_##t(T a, T b) { return b < BITS ? (T)((W)a >> (b & (BITS - 1))) : 0; } \
    GE2_FN T ge2_pow_##t(T a, T b) { return ge2_integer_pow_##t(a, b); } \
    GE2_FN T ge2_floor_div_##t(T a, T b) { return b ? (T)((W)a / (W)b) : 0; } \
    GE2_FN T ge2_rem_##t(T a, T b) { \
        if (b && !(b & (b - 1))) return (T)(a & (b - 1)); \
        return b ? (T)((W)a % (W)b) : 0; \
    } \
    GE2_FN T ge2_fmod_##t(T a, T b) { return ge2_rem_##t(a, b); } \
    GE2_BY_SIZE(t, T, W)

/* INVERSE_OF_0 is NumPy's, from a cast of infinity. `ge2_pow` of a negative exponent, which NumPy refuses, is the true
 * power rounded towards 0; 0 for a = 0. */
#define GE2_SIGNED(t, T, W, BITS, INVERSE_OF_0) \
    GE2_INTEGER(t, T, W, BITS) \
    GE2_FN T ge2_abs_##t(T a) { return a < 0 ? (T)(0 - (W)a) : a; } \
    GE2_FN T ge2_sign_##t(T a) { return (T)((a > 0) - (a < 0)); } \
    GE2_FN T ge2_reciprocal_##t(T a) { return a == 1 || a == -1 ? a : a ? 0 : INVERSE_OF_0; } \
    GE2_FN T ge2_shift_right_##t(T a, T b) { return (T)(a >> ((W)b < BITS ? b : BITS - 1)); } \
    GE2_FN T ge2_pow_##t(T a, T b) { \
        const T last = b & 1 ? a : (T)((W)a * (W)a); \
        return b < 0 ? ((W)a + 1 <= 2 ? last : (T)0) : ge2_integer_pow_##t(a, (uint64_t)b); \
    } \
    /* rounded towards 0; the one quotient that overflows is least / -1, which wraps */ \
    GE2_FN W ge2_quotient_##t(T a, T b) { return b == 0 ? (W)0 : b == -1 ? (W)(0 - (W)a) : (W)(a / b); } \
    GE2_FN T ge2_fmod_##t(T a, T b) { return b ? (T)((W)a - ge2_quotient_##t(a, b) * (W)b) : 0; } \
    /* most are by a power of two, which masks; of one divisor all threads take the same branch */ \
    GE2_FN T ge2_rem_##t(T a, T b) { \
        if (b > 0 && !(b & (b - 1))) return (T)(a & (b - 1)); \
        const T r = ge2_fmod_##t(a, b); \
        return (T)((W)r + (r && (r ^ b) < 0 ? (W)b : 0)); \
    } \
    GE2_FN T ge2_floor_div_##t(T a, T b) { \
        const T r = ge2_fmod_##t(a, b); \
        return (T)(ge2_quotient_##t(a, b) - (r && (r ^ b) < 0)); \
    } \
    GE2_BY_SIZE(t, T, W)

/* What NumPy computes from absolute values. The greatest divisor: J. Stein's binary algorithm (1967). */
#define GE2_BY_SIZE(t, T, W) \
    GE2_FN W ge2_size_##t(T a) { return a < (T)1 ? 0 - (W)a : (W)a; } \
    GE2_FN W ge2_divisor_##t(W x, W y) { \
        if (!x || !y) return x | y; \
        const int twos = __ffsll((int64_t)(x | y)) - 1; \
        for (x >>= __ffsll((int64_t)x) - 1; y;) { \
            y >>= __ffsll((int64_t)y) - 1; \
            const W least = x < y ? x : y; \
            y = x < y ? y - x : x - y, x = least; \
        } \
        return x << twos; \
    } \
    GE2_FN T ge2_gcd_##t(T a, T b) { return (T)ge2_divisor_##t(ge2_size_##t(a), ge2_size_##t(b)); } \
    GE2_FN T ge2_lcm_##t(T a, T b) { \
        const W x = ge2_size_##t(a), y = ge2_size_##t(b), d = ge2_divisor_##t(x, y); \
        return d ? (T)(x / d * y) : 0; \
    } \
    GE2_FN uint8_t ge2_popcount_##t(T a) { return (uint8_t)__popcll(ge2_size_##t(a)); }

GE2_SIGNED(i8, int8_t, uint32_t, 8, 0)
GE2_SIGNED(i16, int16_t, uint32_t, 16, 0)
GE2_SIGNED(i32, int32_t, uint32_t, 32, INT32_MIN)
GE2_SIGNED(i64, int64_t, uint64_t, 64, INT64_MIN)
GE2_UNSIGNED(u8, uint8_t, uint32_t, 8)
GE2_UNSIGNED(u16, uint16_t, uint32_t, 16)
GE2_UNSIGNED(u32, uint32_t, uint32_t, 32)
GE2_UNSIGNED(u64, uint64_t, uint64_t, 64)

#endif
