/* The order of a type as that of an unsigned number, its key: NaN last and -0.0 equal to 0.0, as NumPy has it. */
#ifndef GE2_SORT_CUH
#define GE2_SORT_CUH

#include "ge2/core.cuh"

GE2_FN uint8_t ge2_sort_key_bool(uint8_t x) { return x; }
GE2_FN uint8_t ge2_sort_key_u8(uint8_t x) { return x; }
GE2_FN uint16_t ge2_sort_key_u16(uint16_t x) { return x; }
GE2_FN uint32_t ge2_sort_key_u32(uint32_t x) { return x; }
GE2_FN uint64_t ge2_sort_key_u64(uint64_t x) { return x; }
GE2_FN uint8_t ge2_sort_key_i8(int8_t x) { return (uint8_t)(x ^ 0x80); }
GE2_FN uint16_t ge2_sort_key_i16(int16_t x) { return (uint16_t)(x ^ 0x8000); }
GE2_FN uint32_t ge2_sort_key_i32(int32_t x) { return (uint32_t)x ^ 1u << 31; }
GE2_FN uint64_t ge2_sort_key_i64(int64_t x) { return (uint64_t)x ^ 1ull << 63; }
GE2_FN uint32_t ge2_sort_key_f32(float x) {
    const uint32_t u = __float_as_uint(x + 0.0f), key = u ^ ((uint32_t)((int32_t)u >> 31) | 1u << 31);
    return x != x ? UINT32_MAX : key;
}
GE2_FN uint64_t ge2_sort_key_f64(double x) {
    const uint64_t u = (uint64_t)__double_as_longlong(x + 0.0), key = u ^ ((uint64_t)((int64_t)u >> 63) | 1ull << 63);
    return x != x ? UINT64_MAX : key;
}

/* The element of a key: 0.0 for both zeros, and a NaN for all. */
GE2_FN uint8_t ge2_sort_value_bool(uint8_t key) { return key; }
GE2_FN uint8_t ge2_sort_value_u8(uint8_t key) { return key; }
GE2_FN uint16_t ge2_sort_value_u16(uint16_t key) { return key; }
GE2_FN uint32_t ge2_sort_value_u32(uint32_t key) { return key; }
GE2_FN uint64_t ge2_sort_value_u64(uint64_t key) { return key; }
GE2_FN int8_t ge2_sort_value_i8(uint8_t key) { return (int8_t)(key ^ 0x80); }
GE2_FN int16_t ge2_sort_value_i16(uint16_t key) { return (int16_t)(key ^ 0x8000); }
GE2_FN int32_t ge2_sort_value_i32(uint32_t key) { return (int32_t)(key ^ 1u << 31); }
GE2_FN int64_t ge2_sort_value_i64(uint64_t key) { return (int64_t)(key ^ 1ull << 63); }
GE2_FN float ge2_sort_value_f32(uint32_t key) {
    return __uint_as_float(key ^ (~(uint32_t)((int32_t)key >> 31) | 1u << 31));
}
GE2_FN double ge2_sort_value_f64(uint64_t key) {
    return __longlong_as_double((int64_t)(key ^ (~(uint64_t)((int64_t)key >> 63) | 1ull << 63)));
}

/* Not 0 for -0.0, whose bits are not those of its key's element; of NaN it may be anything. */
GE2_FN uint32_t ge2_sort_odd_f32(float x) { return __float_as_uint(x + 0.0f) ^ __float_as_uint(x); }
GE2_FN uint32_t ge2_sort_odd_f64(double x) {
    return (uint32_t)((uint64_t)(__double_as_longlong(x + 0.0) ^ __double_as_longlong(x)) >> 32);
}

/* Short floats: the sign is the highest of all BITS, and of magnitudes those above TOP are NaN. */
#define GE2_SORT_SHORT(name, T, BITS, TOP) \
    GE2_FN uint32_t ge2_sort_key_##name(T x) { \
        const uint32_t sign = 1u << (BITS - 1), a = x & (sign - 1); \
        return a > TOP ? UINT32_MAX : x & sign ? sign - a : sign + a; \
    } \
    GE2_FN T ge2_sort_value_##name(uint32_t key) { \
        const uint32_t sign = 1u << (BITS - 1); \
        return (T)(key < sign ? 2 * sign - key : key - sign); \
    } \
    GE2_FN uint32_t ge2_sort_odd_##name(T x) { return x == 1u << (BITS - 1); }

GE2_SORT_SHORT(f16, uint16_t, 16, 0x7c00)
GE2_SORT_SHORT(bf16, uint16_t, 16, 0x7f80)
GE2_SORT_SHORT(f8_e4m3fn, uint8_t, 8, 0x7e)
GE2_SORT_SHORT(f8_e5m2, uint8_t, 8, 0x7c)

#endif
