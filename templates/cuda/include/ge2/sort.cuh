/* The order of a type as that of an unsigned number, its key: NaN last and -0.0 equal to 0.0, as NumPy has it. */
#ifndef GE2_SORT_CUH
#define GE2_SORT_CUH

#include "ge2/half.cuh"

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
    const uint32_t u = __float_as_uint(x + 0.0f), key = u >> 31 ? ~u : u | 1u << 31;
    return x != x ? UINT32_MAX : key;
}
GE2_FN uint64_t ge2_sort_key_f64(double x) {
    const uint64_t u = (uint64_t)__double_as_longlong(x + 0.0), key = u >> 63 ? ~u : u | 1ull << 63;
    return x != x ? UINT64_MAX : key;
}
GE2_FN uint32_t ge2_sort_key_f16(uint16_t x) { return ge2_sort_key_f32(ge2_cast_f16_f32(x)); }
GE2_FN uint32_t ge2_sort_key_bf16(uint16_t x) { return ge2_sort_key_f32(ge2_cast_bf16_f32(x)); }
GE2_FN uint32_t ge2_sort_key_f8_e4m3fn(uint8_t x) { return ge2_sort_key_f32(ge2_cast_f8_e4m3fn_f32(x)); }
GE2_FN uint32_t ge2_sort_key_f8_e5m2(uint8_t x) { return ge2_sort_key_f32(ge2_cast_f8_e5m2_f32(x)); }

#endif
