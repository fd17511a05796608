/* Packs of float16 and bfloat16, of which a register holds two; and pairs of fp8. */
#ifndef GE2_PAIR_CUH
#define GE2_PAIR_CUH

#include "ge2/float.cuh"
#include "ge2/half.cuh"
#include "ge2/pack.cuh"

/* The elements 2 n and 2 n + 1. */
template <int N>
GE2_FN uint32_t ge2_pair(const ge2_some<uint16_t, N> &pack, int n) {
    uint32_t pairs[N / 2];
    memcpy(pairs, &pack, sizeof pairs);
    return pairs[n];
}

/* Element v: of bfloat16 one instruction, where taking it out of its pair first would be another. */
template <int N>
GE2_FN float ge2_pair_at_bf16(const ge2_some<uint16_t, N> &pack, int v) {
    const uint32_t pair = ge2_pair(pack, v / 2);
    return __uint_as_float(v % 2 ? pair & 0xffff0000u : pair << 16);
}
template <int N>
GE2_FN float ge2_pair_at_f16(const ge2_some<uint16_t, N> &pack, int v) { return ge2_cast_f16_f32(pack.at[v]); }

/* A register as two floats. */
GE2_FN ge2_some<float, 2> ge2_pair_of_bf16(uint32_t pair) {
    return {{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}};
}
GE2_FN ge2_some<float, 2> ge2_pair_of_f16(uint32_t pair) {
    return {{ge2_cast_f16_f32((uint16_t)pair), ge2_cast_f16_f32((uint16_t)(pair >> 16))}};
}

/* Two floats rounded, as a register holds them. */
#ifndef GE2_SHIM
GE2_FN uint32_t ge2_rounded_pair_bf16(const ge2_some<float, 2> &x) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x.at[1]), "f"(x.at[0]));
    return pair;
}
GE2_FN uint32_t ge2_rounded_pair_f16(const ge2_some<float, 2> &x) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x.at[1]), "f"(x.at[0]));
    return pair;
}
#else
GE2_FN uint32_t ge2_rounded_pair_bf16(const ge2_some<float, 2> &x) {
    return ge2_cast_f32_bf16(x.at[0]) | (uint32_t)ge2_cast_f32_bf16(x.at[1]) << 16;
}
GE2_FN uint32_t ge2_rounded_pair_f16(const ge2_some<float, 2> &x) {
    return ge2_cast_f32_f16(x.at[0]) | (uint32_t)ge2_cast_f32_f16(x.at[1]) << 16;
}
#endif

/* Two floats rounded to fp8, as `ge2_cast_f32_f8_...` does it. The instruction stops at the largest number, where these go on to
 * NaN or infinity, and its NaN has no sign. */
#if !defined(GE2_SHIM) && __CUDA_ARCH__ >= 890
#define GE2_FP8_PAIR(t, instruction) \
    GE2_FN uint16_t ge2_rounded_pair_##t(const ge2_some<float, 2> &x) { \
        uint16_t rounded; \
        asm("cvt.rn.satfinite." #instruction "x2.f32 %0, %1, %2;" : "=h"(rounded) : "f"(x.at[1]), "f"(x.at[0])); \
        uint32_t pair = rounded; \
        ge2_beyond_##t(x.at[0], 1, pair); \
        ge2_beyond_##t(x.at[1], 0x100, pair); \
        return (uint16_t)(pair | (__byte_perm(__float_as_uint(x.at[0]), __float_as_uint(x.at[1]), 0x73) & 0x8080)); \
    }
GE2_FN void ge2_beyond_f8_e4m3fn(float x, uint32_t bit, uint32_t &pair) { if (fabsf(x) > 464.0f) pair |= bit; }
GE2_FN void ge2_beyond_f8_e5m2(float x, uint32_t bit, uint32_t &pair) {
    if (fabsf(x) >= 61440.0f) pair += bit;
    if (x != x) pair ^= bit;
}
#else
#define GE2_FP8_PAIR(t, instruction) \
    GE2_FN uint16_t ge2_rounded_pair_##t(const ge2_some<float, 2> &x) { \
        return (uint16_t)(ge2_cast_f32_##t(x.at[0]) | ge2_cast_f32_##t(x.at[1]) << 8); \
    }
#endif
GE2_FP8_PAIR(f8_e4m3fn, e4m3)
GE2_FP8_PAIR(f8_e5m2, e5m2)
#undef GE2_FP8_PAIR

/* The largest and the least element, NaN where there is one: pair by pair, and then of two. */
#ifndef GE2_SHIM
#define GE2_OF_PAIRS(name, t) \
    template <int N> \
    GE2_FN float ge2_pair_##name##_##t(const ge2_some<uint16_t, N> &pack) { \
        uint32_t pair = ge2_pair(pack, 0); \
        for (int n = 1; n < N / 2; n++) \
            asm(#name ".NaN." #t "x2 %0, %0, %1;" : "+r"(pair) : "r"(ge2_pair(pack, n))); \
        ge2_some<uint16_t, 2> both; \
        memcpy(&both, &pair, sizeof both); \
        return ge2_##name##_f32(ge2_pair_at_##t(both, 0), ge2_pair_at_##t(both, 1)); \
    }
#else
#define GE2_OF_PAIRS(name, t) \
    template <int N> \
    GE2_FN float ge2_pair_##name##_##t(const ge2_some<uint16_t, N> &pack) { \
        float found = ge2_pair_at_##t(pack, 0); \
        for (int v = 1; v < N; v++) found = ge2_##name##_f32(found, ge2_pair_at_##t(pack, v)); \
        return found; \
    }
#endif
GE2_OF_PAIRS(max, bf16)
GE2_OF_PAIRS(max, f16)
GE2_OF_PAIRS(min, bf16)
GE2_OF_PAIRS(min, f16)

#endif
