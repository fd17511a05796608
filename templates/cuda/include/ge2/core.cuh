/* What every generated kernel begins with: integers of fixed width, and complex numbers.
 *
 * Nothing of the toolkit is included, for its headers take most of a second to read. Under GE2_SHIM the same text is
 * C++ for the CPU: the shim has defined CUDA's words and functions before, and no PTX is to be seen.
 */
#ifndef GE2_CORE_CUH
#define GE2_CORE_CUH

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#define INT64_C(x) x##ll
#define UINT64_C(x) x##ull
#define INT8_MIN (-128)
#define INT8_MAX 127
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-INT64_C(9223372036854775807) - 1)
#define INT64_MAX INT64_C(9223372036854775807)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295u
#define UINT64_MAX UINT64_C(18446744073709551615)
#else
#include <stdint.h>
#endif

#define GE2_FN static __device__ __forceinline__
#define GE2_INFINITY_F32 __int_as_float(0x7f800000)
#define GE2_INFINITY_F64 __longlong_as_double(INT64_C(0x7ff0000000000000))
#define GE2_NAN_F32 __int_as_float(0x7fc00000)
#define GE2_NAN_F64 __longlong_as_double(INT64_C(0x7ff8000000000000))

#if !defined(GE2_SHIM) && __CUDA_ARCH__ >= 900
/* Whether a GPU holds about all threads of the grid at once: each of the many blocks of a larger one is done sooner without
 * a word to others. */
GE2_FN bool ge2_held_at_once() {
    const uint64_t blocks = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    return blocks * (blockDim.x * blockDim.y * blockDim.z) <= 1 << 18;
}
#endif

/* In a graph a kernel may be launched while those that it depends on run (docs/design/launches.md); anywhere else both
 * of these do nothing.
 *
 * Lets kernels that depend on this one be launched as soon as all of its blocks are there, or done. */
GE2_FN void ge2_let_kernels() {
#if !defined(GE2_SHIM) && __CUDA_ARCH__ >= 900
    if (ge2_held_at_once()) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Waits until the kernels have ended that this one depends on, and their writes are seen: before it touches memory. Grids
 * of all sizes wait: the host decides whether one is launched early, and no rule of this file must agree with its. */
GE2_FN void ge2_await_kernels() {
#ifdef GE2_SHIM
    ge2_shim->waited();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The turns of a loop from `first` by steps to what is below `end`. Where steps depend on the grid, only a loop that counts
 * its turns down is known by the compiler to have so many, and has what several of them read on its way at once; with a look
 * at the end between two, each waited for what it had read. */
template <class N, class M, class S>
GE2_FN N ge2_turns(N first, M end, S step) { return (N)(((first < end ? end - first : 0) + step - 1) / step); }

/* Complex numbers, read and written as a whole. Products and quotients are in complex.cuh. */
struct alignas(8) ge2_c64 {
    float re, im;
};
struct alignas(16) ge2_c128 {
    double re, im;
};
GE2_FN bool operator==(ge2_c64 a, ge2_c64 b) { return a.re == b.re && a.im == b.im; }
GE2_FN bool operator!=(ge2_c64 a, ge2_c64 b) { return !(a == b); }
GE2_FN bool operator==(ge2_c128 a, ge2_c128 b) { return a.re == b.re && a.im == b.im; }
GE2_FN bool operator!=(ge2_c128 a, ge2_c128 b) { return !(a == b); }
GE2_FN ge2_c64 ge2_complex_f32(float re, float im) { return {re, im}; }
GE2_FN ge2_c128 ge2_complex_f64(double re, double im) { return {re, im}; }

#endif
