/* Indices as CuPy takes them: -1 is the last element, and what lies outside wraps around. An axis of size 0 has none. */
#ifndef GE2_INDEX_CUH
#define GE2_INDEX_CUH

#include "ge2/core.cuh"

/* A quotient takes some hundred instructions, so it is left to the indices that need one. */
#define GE2_INDICES(t, T) \
    GE2_FN int64_t ge2_index_##t(T i, int64_t size) { \
        const int64_t at = (int64_t)i < 0 ? (int64_t)i + size : (int64_t)i; \
        if ((uint64_t)at < (uint64_t)size) return at; \
        const int64_t rest = size ? (int64_t)i % size : 0; \
        return rest < 0 ? rest + size : rest; \
    }

GE2_INDICES(i8, int8_t)
GE2_INDICES(i16, int16_t)
GE2_INDICES(i32, int32_t)
GE2_INDICES(i64, int64_t)
GE2_INDICES(u8, uint8_t)
GE2_INDICES(u16, uint16_t)
GE2_INDICES(u32, uint32_t)

GE2_FN int64_t ge2_index_u64(uint64_t i, int64_t size) {
    return (int64_t)(i < (uint64_t)size ? i : size ? i % (uint64_t)size : 0);
}

#endif
