/* What every generated file begins with: the types that a program and its caller share. */
#ifndef GE2_CORE_H
#define GE2_CORE_H

#ifdef _OPENMP
#include <omp.h>
#define GE2_THREAD omp_get_thread_num()
#else
#define GE2_THREAD 0
#endif
#include <complex.h>
#include <stdint.h>
#include <string.h>

#define GE2_FN static inline __attribute__((always_inline, unused))

/* A large file is compiled in two parts at once, GE2_PART 1 and 2; what they share is seen by both, but by no
   other library. */
#ifdef GE2_PART
#define GE2_IN_PART(n) (GE2_PART == n)
#define GE2_SHARED __attribute__((visibility("hidden")))
#else
#define GE2_IN_PART(n) 1
#define GE2_SHARED static
#endif

/* A Python number or a constant; the kernel knows which member holds it. */
typedef union {
    double f;
    int64_t i;
    double c[2];
} ge2_number;

enum { GE2_OK = 0, GE2_INDEX = 1 };

/* The first error of a call. `equation` counts the equations of the graph that the file was made from. */
typedef struct {
    int64_t code, index, axis, size, equation;
} ge2_error;

/* What a program borrows from its process: NumPy's BLAS (null where its symbols were not found). */
typedef struct {
    void *sgemm, *dgemm, *cgemm, *zgemm; /* cblas_?gemm */
    int64_t ilp64;                       /* whether their integers have 64 bits, or else 32 */
    ge2_error *error;
} ge2_services;

GE2_FN int64_t ge2_least(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
