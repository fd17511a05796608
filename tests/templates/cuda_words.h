/* The words of CUDA that functions of one element use, for the CPU: what templates/cuda/include is compiled with here. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __forceinline__ inline __attribute__((always_inline, unused))

template <class To, class From>
static inline To ge2_bits_as(From x) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline float __int_as_float(int x) { return ge2_bits_as<float>(x); }
static inline float __uint_as_float(unsigned x) { return ge2_bits_as<float>(x); }
static inline unsigned __float_as_uint(float x) { return ge2_bits_as<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return ge2_bits_as<double>(x); }
static inline long long __double_as_longlong(double x) { return ge2_bits_as<long long>(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
