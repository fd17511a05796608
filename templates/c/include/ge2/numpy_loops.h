/* The loops that NumPy's own functions have over matrices and lines, which need no interpreter: LAPACK's functions and
   Fourier transforms of stacks, at any strides in bytes. And LAPACK's factors of a matrix, with systems solved by them. */
#ifndef GE2_NUMPY_LOOPS_H
#define GE2_NUMPY_LOOPS_H

#include "core.h"
#include <fenv.h>

/* The rows of `ge2_services.loops`, which `libraries.py` fills: of each float32, float64, complex64 and complex128. */
enum {
    GE2_SOLVE, GE2_DET, GE2_SLOGDET, GE2_CHOLESKY_LO, GE2_EIGH_LO, GE2_EIGH_UP, GE2_EIGVALSH_LO, GE2_EIGVALSH_UP,
    GE2_SVD, GE2_SVD_S, GE2_SVD_F, GE2_FFT, GE2_IFFT, GE2_RFFT_N_EVEN, GE2_RFFT_N_ODD, GE2_IRFFT,
    GE2_GETRF, GE2_GETRS
};
#define GE2_LOOP(lib, row, type) ((lib)->loops + 2 * (4 * (row) + (type)))

typedef void ge2_numpy_loop(char *const *operands, const intptr_t *sizes, const intptr_t *steps, void *given);
typedef void ge2_getrf(const int64_t *, const int64_t *, void *, const int64_t *, int64_t *, int64_t *);
typedef void ge2_getrs(
    const char *, const int64_t *, const int64_t *, const void *, const int64_t *, const int64_t *, void *,
    const int64_t *, int64_t *, size_t
);

/* Several threads may meet a matrix that fails; the first error of a call stands. */
static __attribute__((unused, noinline, cold)) void ge2_matrix_fails(
    const ge2_services *lib, int64_t failure, int64_t equation) {
    _Pragma("omp critical(ge2_matrix)")
    if (lib->error->code == GE2_OK) *lib->error = (ge2_error){GE2_MATRIX, failure, 0, 0, equation};
}

/* A loop says by the flag of an invalid operation that a matrix fails; `failure` is 0 where that is no error. */
GE2_SINGLE void ge2_numpy_call(
    const ge2_services *lib, int row, int type, char *const *operands, const intptr_t *sizes, const intptr_t *steps,
    int failure, int64_t equation) {
    if (failure) feclearexcept(FE_INVALID);
    ((ge2_numpy_loop *)GE2_LOOP(lib, row, type)[0])(operands, sizes, steps, GE2_LOOP(lib, row, type)[1]);
    if (failure && fetestexcept(FE_INVALID)) ge2_matrix_fails(lib, failure, equation);
}

/* The factors of a matrix by columns, in its place. */
GE2_SINGLE void ge2_numpy_lu(
    const ge2_services *lib, int type, void *lu, int64_t *swaps, int64_t n, int failure, int64_t equation) {
    int64_t info = 0;
    ((ge2_getrf *)GE2_LOOP(lib, GE2_GETRF, type)[0])(&n, &n, lu, &n, swaps, &info);
    if (info > 0) ge2_matrix_fails(lib, failure, equation);
}

/* The systems of k right sides by columns, in their place. */
GE2_SINGLE void ge2_numpy_lu_solve(
    const ge2_services *lib, int type, const char *mode, const void *lu, const int64_t *swaps, void *x, int64_t n,
    int64_t k) {
    int64_t info = 0;
    ((ge2_getrs *)GE2_LOOP(lib, GE2_GETRS, type)[0])(mode, &n, &k, lu, &n, swaps, x, &n, &info, 1);
}

#endif
