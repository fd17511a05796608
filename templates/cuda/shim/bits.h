/* Numbers as bits, and arithmetic that names its rounding. */
#ifndef GE2_SHIM_BITS_H
#define GE2_SHIM_BITS_H

namespace {

template <class To, class From>
To ge2_shim_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

inline int __float_as_int(float x) { return ge2_shim_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return ge2_shim_cast<unsigned>(x); }
inline float __int_as_float(int x) { return ge2_shim_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return ge2_shim_cast<float>(x); }
inline long long __double_as_longlong(double x) { return ge2_shim_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return ge2_shim_cast<double>(x); }
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline double __hiloint2double(int hi, int lo) {
    return ge2_shim_cast<double>((uint64_t)(unsigned)hi << 32 | (unsigned)lo);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev(unsigned(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= unsigned(both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
    return unsigned(((uint64_t)hi << 32 | lo) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by) {
    return unsigned(((uint64_t)hi << 32 | lo) >> (by & 31));
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned by) {
    return by >= 32 ? lo : __funnelshift_l(lo, hi, by);
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned by) {
    return by >= 32 ? hi : __funnelshift_r(lo, hi, by);
}
inline int __mulhi(int a, int b) { return int((int64_t)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frsqrt_rn(float a) { return float(1.0 / __builtin_sqrt((double)a)); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1.0 / a; }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }

/* Beyond the range of the integer is its nearest end; NaN is 0 in 32 bits, and the sign bit alone in 64. */
template <class I>
I ge2_shim_integer(double whole) {
    constexpr I sign = I(I(1) << (8 * sizeof(I) - 1));
    constexpr bool is_signed = I(-1) < I(0);
    constexpr I least = is_signed ? sign : I(0), most = I(~least);
    if (whole != whole) return sizeof(I) == 8 ? sign : I(0);
    if (whole <= (double)least) return least;
    return whole >= (double)most ? most : (I)whole;
}

#define GE2_SHIM_TO_INTEGER(FROM, F, TO, I)                                                                 \
    inline I __##FROM##2##TO##_rn(F x) { return ge2_shim_integer<I>(__builtin_nearbyint(x)); }              \
    inline I __##FROM##2##TO##_rz(F x) { return ge2_shim_integer<I>(__builtin_trunc(x)); }                  \
    inline I __##FROM##2##TO##_ru(F x) { return ge2_shim_integer<I>(__builtin_ceil(x)); }                   \
    inline I __##FROM##2##TO##_rd(F x) { return ge2_shim_integer<I>(__builtin_floor(x)); }
GE2_SHIM_TO_INTEGER(float, float, int, int)
GE2_SHIM_TO_INTEGER(float, float, uint, unsigned)
GE2_SHIM_TO_INTEGER(float, float, ll, long long)
GE2_SHIM_TO_INTEGER(float, float, ull, unsigned long long)
GE2_SHIM_TO_INTEGER(double, double, int, int)
GE2_SHIM_TO_INTEGER(double, double, uint, unsigned)
GE2_SHIM_TO_INTEGER(double, double, ll, long long)
GE2_SHIM_TO_INTEGER(double, double, ull, unsigned long long)
#undef GE2_SHIM_TO_INTEGER

inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return (double)x; }
inline double __ull2double_rn(unsigned long long x) { return (double)x; }
inline float __double2float_rn(double x) { return (float)x; }

}

#endif
