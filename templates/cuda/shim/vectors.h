/* Short vectors: float4 and its kin, aligned as CUDA aligns them. */
#ifndef GE2_SHIM_VECTORS_H
#define GE2_SHIM_VECTORS_H

#define GE2_SHIM_VECTORS(NAME, T, TWO, FOUR)                                                                \
    struct NAME##1 { T x; };                                                                                \
    struct alignas(TWO) NAME##2 { T x, y; };                                                                \
    struct NAME##3 { T x, y, z; };                                                                          \
    struct alignas(FOUR) NAME##4 { T x, y, z, w; };                                                         \
    GE2_SHIM_MAKE(NAME, T)

#define GE2_SHIM_MAKE(NAME, T)                                                                              \
    constexpr NAME##1 make_##NAME##1(T x) { return {x}; }                                                   \
    constexpr NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                           \
    constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                                   \
    constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

GE2_SHIM_VECTORS(char, signed char, 2, 4)
GE2_SHIM_VECTORS(uchar, unsigned char, 2, 4)
GE2_SHIM_VECTORS(short, short, 4, 8)
GE2_SHIM_VECTORS(ushort, unsigned short, 4, 8)
GE2_SHIM_VECTORS(int, int, 8, 16)
GE2_SHIM_VECTORS(long, long, 16, 16)
GE2_SHIM_VECTORS(ulong, unsigned long, 16, 16)
GE2_SHIM_VECTORS(longlong, long long, 16, 16)
GE2_SHIM_VECTORS(ulonglong, unsigned long long, 16, 16)
GE2_SHIM_VECTORS(float, float, 8, 16)
GE2_SHIM_VECTORS(double, double, 16, 16)

struct uint1 { unsigned x; }; /* uint3 is that of threadIdx */
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
GE2_SHIM_MAKE(uint, unsigned)

#undef GE2_SHIM_VECTORS
#undef GE2_SHIM_MAKE

#endif
