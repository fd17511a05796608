/* ge2_cast_<from>_<to> for all pairs of dtypes, as NumPy's `astype` on x86-64; half types go through float32. */
#ifndef GE2_CAST_H
#define GE2_CAST_H

#include "half.h"

/* Without -ftrapping-math, gcc takes float -> integer -> float for one rounding, which keeps the sign of -0.5. */
#define GE2_UNSIGNED_ZERO(Y, X) (sizeof(X) < 4 || X != 0 ? (Y)X : (Y)0)

/* Doubles as integers of 64 bits, rounded towards 0, and back. Before AVX-512 x86-64 has no instruction for four of
 * them, and one such conversion keeps gcc from making vectors of all else in a loop: so high and low halves lie in
 * the last bits of sums with powers of two. Of numbers out of range the first is undefined, as in C. */
#if defined(__AVX2__) && !defined(__AVX512DQ__) && !defined(__AVX10_1__)
GE2_FN int64_t ge2_i64_of_f64(double x) {
    const double whole = __builtin_trunc(x), high = __builtin_floor(whole * 0x1p-32), low = whole - high * 0x1p32;
    const uint64_t upper = ge2_bits_f64(high + 0x1.8p52) << 32;
    return (int64_t)(upper + (ge2_bits_f64(low + 0x1p52) & UINT32_MAX));
}
GE2_FN double ge2_f64_of_u64(uint64_t x) {
    const double high = ge2_of_bits_f64(x >> 32 | 0x4530000000000000u); /* and 2^84 */
    return high - (0x1p84 + 0x1p52) + ge2_of_bits_f64((x & UINT32_MAX) | 0x4330000000000000u);
}
GE2_FN double ge2_f64_of_i64(int64_t x) {
    const double high = ge2_of_bits_f64(((uint64_t)x >> 32 ^ 0x80000000u) | 0x4530000000000000u);
    return high - (0x1p84 + 0x1p63 + 0x1p52) + ge2_of_bits_f64(((uint64_t)x & UINT32_MAX) | 0x4330000000000000u);
}
/* By way of double, which is rounded once: of more than 53 bits the last one stands for all that follow. */
GE2_FN float ge2_f32_of_i64(int64_t x) {
    const int64_t end = INT64_C(1) << 53, far = -(int64_t)((x > end) | (x < -end));
    const int64_t last = (x | ((x & 2047) + 2047)) & ~INT64_C(2047);
    return (float)ge2_f64_of_i64((last & far) | (x & ~far));
}
#else
GE2_FN int64_t ge2_i64_of_f64(double x) { return (int64_t)x; }
GE2_FN float ge2_f32_of_i64(int64_t x) { return GE2_UNSIGNED_ZERO(float, x); }
GE2_FN double ge2_f64_of_u64(uint64_t x) { return GE2_UNSIGNED_ZERO(double, x); }
GE2_FN double ge2_f64_of_i64(int64_t x) { return GE2_UNSIGNED_ZERO(double, x); }
#endif

/* A float as an integer, rounded towards 0. C leaves open what NaN and numbers out of range become: on x86-64 the least
 * integer. The halves of the two unsigned types are converted apart, as NumPy's loops over arrays do it. */
#define GE2_TRUNCATED(f, F) \
    GE2_FN int32_t ge2_truncated_i32_##f(F x) { \
        const int32_t inside = -(int32_t)((x >= -0x1p31f) & (x < 0x1p31f)); \
        return ((int32_t)x & inside) | (INT32_MIN & ~inside); \
    } \
    GE2_FN int64_t ge2_truncated_i64_##f(F x) { \
        const int64_t inside = -(int64_t)((x >= -0x1p63f) & (x < 0x1p63f)); \
        return (ge2_i64_of_f64(x) & inside) | (INT64_MIN & ~inside); \
    } \
    GE2_FN uint32_t ge2_truncated_u32_##f(F x) { \
        const uint32_t low = (uint32_t)ge2_truncated_i32_##f(x >= 0x1p31f ? x - 0x1p31f : x); \
        return x >= 0x1p31f ? low ^ 1u << 31 : low; \
    } \
    GE2_FN uint64_t ge2_truncated_u64_##f(F x) { \
        const uint64_t low = (uint64_t)ge2_truncated_i64_##f(x >= 0x1p63f ? x - 0x1p63f : x); \
        return x >= 0x1p63f ? low ^ 1ull << 63 : low; \
    }

GE2_TRUNCATED(f32, float)
GE2_TRUNCATED(f64, double)

#define GE2_CAST(f, F, t, T, Y) GE2_FN T ge2_cast_##f##_##t(F x) { return Y; }

/* X is the operand as a number in C, Y how that becomes an integer: Y(type, by way of, X). */
#define GE2_TO_INTEGERS(f, F, X, Y) \
    GE2_CAST(f, F, i8, int8_t, Y(int8_t, i32, X)) \
    GE2_CAST(f, F, i16, int16_t, Y(int16_t, i32, X)) \
    GE2_CAST(f, F, i32, int32_t, Y(int32_t, i32, X)) \
    GE2_CAST(f, F, i64, int64_t, Y(int64_t, i64, X)) \
    GE2_CAST(f, F, u8, uint8_t, Y(uint8_t, i32, X)) \
    GE2_CAST(f, F, u16, uint16_t, Y(uint16_t, i32, X)) \
    GE2_CAST(f, F, u32, uint32_t, Y(uint32_t, u32, X)) \
    GE2_CAST(f, F, u64, uint64_t, Y(uint64_t, u64, X))
#define GE2_WRAPPED(T, way, X) (T)X
#define GE2_FROM_F32(T, way, X) (T)ge2_truncated_##way##_f32(X)
#define GE2_FROM_F64(T, way, X) (T)ge2_truncated_##way##_f64(X)
/* ml_dtypes makes 0 of NaN and the greatest or least integer of an infinity. */
#define GE2_FROM_F8(T, way, X) \
    X != X ? 0 : X == __builtin_inff() ? GE2_GREATEST(T) : X == -__builtin_inff() ? (T)~GE2_GREATEST(T) \
                                                         : (T)ge2_truncated_i32_f32(X)
#define GE2_GREATEST(T) (T)((T)-1 > 0 ? UINT64_MAX : UINT64_MAX >> (65 - 8 * sizeof(T)))

/* X is float or double, as g says. */
#define GE2_TO_HALVES(f, F, g, X) \
    GE2_CAST(f, F, f16, uint16_t, ge2_cast_##g##_f16(X)) \
    GE2_CAST(f, F, bf16, uint16_t, ge2_cast_##g##_bf16(X)) \
    GE2_CAST(f, F, f8_e4m3fn, uint8_t, ge2_cast_##g##_f8_e4m3fn(X)) \
    GE2_CAST(f, F, f8_e5m2, uint8_t, ge2_cast_##g##_f8_e5m2(X))

#define GE2_TO_COMPLEX(f, F, X) \
    GE2_CAST(f, F, c64, float _Complex, (float _Complex)X) \
    GE2_CAST(f, F, c128, double _Complex, (double _Complex)X)

#define GE2_INTEGER_CASTS(f, F) GE2_INTEGER_CASTS_BY(f, F, GE2_UNSIGNED_ZERO(float, x), GE2_UNSIGNED_ZERO(double, x))
#define GE2_INTEGER_CASTS_BY(f, F, FLOAT, DOUBLE) \
    GE2_CAST(f, F, bool, uint8_t, x != 0) \
    GE2_TO_INTEGERS(f, F, x, GE2_WRAPPED) \
    GE2_CAST(f, F, f32, float, FLOAT) \
    GE2_CAST(f, F, f64, double, DOUBLE) \
    GE2_TO_HALVES(f, F, f32, GE2_UNSIGNED_ZERO(float, x)) \
    GE2_CAST(f, F, c64, float _Complex, (float _Complex)GE2_UNSIGNED_ZERO(float, x)) \
    GE2_CAST(f, F, c128, double _Complex, (double _Complex)GE2_UNSIGNED_ZERO(double, x))

#define GE2_HALF_CASTS(f, F, TRUNCATED) \
    GE2_CAST(f, F, bool, uint8_t, ge2_cast_##f##_f32(x) != 0) \
    GE2_TO_INTEGERS(f, F, ge2_cast_##f##_f32(x), TRUNCATED) \
    GE2_CAST(f, F, f64, double, (double)ge2_cast_##f##_f32(x)) \
    GE2_TO_HALVES(f, F, f32, ge2_cast_##f##_f32(x)) \
    GE2_TO_COMPLEX(f, F, ge2_cast_##f##_f32(x))

#define GE2_FLOAT_CASTS(f, F, TRUNCATED) \
    GE2_CAST(f, F, bool, uint8_t, x != 0) \
    GE2_TO_INTEGERS(f, F, x, TRUNCATED) \
    GE2_CAST(f, F, f32, float, (float)x) \
    GE2_CAST(f, F, f64, double, (double)x) \
    GE2_TO_COMPLEX(f, F, x)

/* Of a complex number the real part remains, but for the question whether it is 0. */
#define GE2_COMPLEX_CASTS(f, F, g, TRUNCATED) \
    GE2_CAST(f, F, bool, uint8_t, (__real__ x != 0) | (__imag__ x != 0)) \
    GE2_TO_INTEGERS(f, F, __real__ x, TRUNCATED) \
    GE2_CAST(f, F, f32, float, (float)__real__ x) \
    GE2_CAST(f, F, f64, double, (double)__real__ x) \
    GE2_TO_HALVES(f, F, g, __real__ x) \
    GE2_TO_COMPLEX(f, F, x)

GE2_INTEGER_CASTS(bool, uint8_t)
GE2_INTEGER_CASTS(i8, int8_t)
GE2_INTEGER_CASTS(i16, int16_t)
GE2_INTEGER_CASTS(i32, int32_t)
GE2_INTEGER_CASTS_BY(i64, int64_t, ge2_f32_of_i64(x), ge2_f64_of_i64(x))
GE2_INTEGER_CASTS(u8, uint8_t)
GE2_INTEGER_CASTS(u16, uint16_t)
GE2_INTEGER_CASTS(u32, uint32_t)
GE2_INTEGER_CASTS_BY(u64, uint64_t, GE2_UNSIGNED_ZERO(float, x), ge2_f64_of_u64(x))
GE2_HALF_CASTS(f16, uint16_t, GE2_FROM_F32)
GE2_HALF_CASTS(bf16, uint16_t, GE2_FROM_F32)
GE2_HALF_CASTS(f8_e4m3fn, uint8_t, GE2_FROM_F8)
GE2_HALF_CASTS(f8_e5m2, uint8_t, GE2_FROM_F8)
GE2_FLOAT_CASTS(f32, float, GE2_FROM_F32)
GE2_FLOAT_CASTS(f64, double, GE2_FROM_F64)
GE2_COMPLEX_CASTS(c64, float _Complex, f32, GE2_FROM_F32)
GE2_COMPLEX_CASTS(c128, double _Complex, f64, GE2_FROM_F64)

#endif
