/* Which tile of a product a block has, and how the emulator reads what tensor cores multiply. */
#ifndef GE2_PLACE_CUH
#define GE2_PLACE_CUH

#include "ge2/core.cuh"
#include "ge2/half.cuh"

/* Where a tile of the result is: its first row and column, in tiles, and the batch. Tiles are taken GROUP rows at a
 * time, so that those under way at once share their operands in the L2 cache. */
struct ge2_place {
    int row, column, batch;
};

template <int GROUP>
GE2_FN ge2_place ge2_place_of(int tile, int down, int across) {
    const int batch = tile / (down * across), rest = tile % (down * across), wide = GROUP * across;
    const int first = rest / wide * GROUP, rows = down - first < GROUP ? down - first : GROUP, left = rest % wide;
    return {first + left % rows, left / rows, batch};
}

#ifdef GE2_SHIM
struct ge2_shim_bf16 {
    using Sum = float;
    GE2_FN float of(const char *at) { return __uint_as_float((uint32_t)*(const uint16_t *)at << 16); }
    enum { SIZE = 2 };
};
struct ge2_shim_f16 {
    using Sum = float;
    GE2_FN float of(const char *at) { return ge2_cast_f16_f32(*(const uint16_t *)at); }
    enum { SIZE = 2 };
};
/* The lowest 13 bits are not multiplied. */
struct ge2_shim_tf32 {
    using Sum = float;
    GE2_FN float of(const char *at) { return __uint_as_float(*(const uint32_t *)at & 0xffffe000u); }
    enum { SIZE = 4 };
};
/* Bits of a sum of products of fp8, the first of which is that of the largest of them. */
enum { GE2_SHIM_FEW = 14 };
struct ge2_shim_e4m3 {
    using Sum = float;
    GE2_FN float of(const char *at) { return ge2_cast_f8_e4m3fn_f32(*(const uint8_t *)at); }
    enum { SIZE = 1 };
};
struct ge2_shim_e5m2 {
    using Sum = float;
    GE2_FN float of(const char *at) { return ge2_cast_f8_e5m2_f32(*(const uint8_t *)at); }
    enum { SIZE = 1 };
};
/* Bytes, whose sums wrap. */
struct ge2_shim_s8 {
    using Sum = int32_t;
    GE2_FN int32_t of(const char *at) { return *(const int8_t *)at; }
    enum { SIZE = 1 };
};
struct ge2_shim_u8 {
    using Sum = int32_t;
    GE2_FN int32_t of(const char *at) { return *(const uint8_t *)at; }
    enum { SIZE = 1 };
};
GE2_FN int32_t ge2_shim_wrapped(int32_t sum, int32_t a, int32_t b) { return (int32_t)((uint32_t)sum + (uint32_t)(a * b)); }
/* A sum as tensor cores leave it after each step: what float32 does not hold is cut off, not rounded, so that the errors of
 * long sums add up. */
GE2_FN float ge2_shim_cut(double sum) {
    const float near = (float)sum;
    const bool beyond = fabs((double)near) > fabs(sum) && fabsf(near) <= 0x1.fffffep+127f;
    return beyond ? __uint_as_float(__float_as_uint(near) - 1) : near;
}
/* A sum of so many numbers as tensor cores make one of products of fp8: each is cut off below the last bit that is kept of
 * the largest. */
template <int COUNT>
GE2_FN float ge2_shim_few(const float (&terms)[COUNT]) {
    float most = 0;
    double sum = 0;
    for (int n = 0; n < COUNT; n++) {
        if (!(fabsf(terms[n]) <= 0x1.fffffep+127f)) most = __uint_as_float(0x7f800000u);
        else if (fabsf(terms[n]) > most) most = fabsf(terms[n]);
    }
    const int last = (int)(__float_as_uint(most) >> 23) - 127 - (GE2_SHIM_FEW - 1);
    const double up = ldexp(1.0, -last), down = ldexp(1.0, last); /* float64 holds all of their products */
    const bool some = most > 0 && most <= 0x1.fffffep+127f;
    for (int n = 0; n < COUNT; n++) sum += some ? trunc(terms[n] * up) * down : (double)terms[n];
    return ge2_shim_cut(sum);
}
#endif

#endif
