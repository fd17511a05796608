/* Indices as CuPy takes them: -1 is the last element, and what lies outside wraps around. An axis of size 0 has none. */
#ifndef GE2_INDEX_CUH
#define GE2_INDEX_CUH

#include "ge2/core.cuh"

/* The remainder by quotients in double, of which the first leaves at most some sizes, the second one: few indices come
 * here. A quotient of 64 bits is a function, for whose sake kernels would put registers aside; and with a loop here the
 * reads at several indices of a thread waited for each other, for three times as long. */
GE2_FN int64_t ge2_index_rest(uint64_t i, uint64_t size) {
    if (!size) return 0;
    const double by = 1.0 / (double)size;
    int64_t rest = (int64_t)(i - (uint64_t)fmin((double)i * by, 0x1.fffffffffffffp63) * size);
    rest -= (int64_t)floor((double)rest * by) * (int64_t)size;
    rest = rest < 0 ? rest + (int64_t)size : rest;
    return rest >= (int64_t)size ? rest - (int64_t)size : rest;
}

#define GE2_INDICES(t, T) \
    GE2_FN int64_t ge2_index_##t(T i, int64_t size) { \
        const int64_t at = (int64_t)i < 0 ? (int64_t)i + size : (int64_t)i; \
        if ((uint64_t)at < (uint64_t)size) return at; \
        const int64_t rest = ge2_index_rest((int64_t)i < 0 ? 0 - (uint64_t)i : (uint64_t)i, (uint64_t)size); \
        return (int64_t)i < 0 && rest ? size - rest : rest; \
    }

GE2_INDICES(i8, int8_t)
GE2_INDICES(i16, int16_t)
GE2_INDICES(i32, int32_t)
GE2_INDICES(i64, int64_t)
GE2_INDICES(u8, uint8_t)
GE2_INDICES(u16, uint16_t)
GE2_INDICES(u32, uint32_t)

GE2_FN int64_t ge2_index_u64(uint64_t i, int64_t size) {
    return i < (uint64_t)size ? (int64_t)i : ge2_index_rest(i, (uint64_t)size);
}

#endif
