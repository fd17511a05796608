/* A large matrix times a vector, by a team. Each number of the matrix is read once, so what counts is how well memory is
   read: eight lines at a time, along the lines as they lie. Processors see that many streams by themselves, and
   read them more slowly where they are told to prefetch. Tasks are
   small, so that a thread without a core for a moment leaves its share to the others, and the sizes alone decide them
   and the order of all sums. */
#ifndef GE2_VECTOR_PRODUCT_H
#define GE2_VECTOR_PRODUCT_H

#include <stdlib.h>

#include "ge2/product.h"

#define GE2_VECTOR_SUM 4096       /* terms of a sum in the matrix's own type */
#define GE2_VECTOR_TASK (1 << 18) /* numbers of the matrix in the smallest task, some 50 us */
#define GE2_VECTOR_TASKS 32       /* the most along an axis */
#define GE2_VECTOR_WIDTH 16384    /* bytes of the sums of columns at a time */

/* The part of an axis that a task has, if it has all of `across`, and the other axis is in `cut` parts. */
GE2_FN int64_t ge2_stretch(int64_t size, int64_t across, int64_t cut) {
    const int64_t worth = GE2_VECTOR_TASK / across + 1, most = size * cut / GE2_VECTOR_TASKS + 1;
    return ((worth > most ? worth : most) + 15) / 16 * 16;
}

/* COUNT lines or fewer times a vector: their sums in strands, as many as registers hold, and those in a wider type before
   they are long. Of fewer lines the last is read again, which is near. */
#define GE2_DOTS(S, T, COUNT, STRANDS)                                                                              \
    GE2_CALLED void ge2_dots_##COUNT##_##S(                                                                         \
        int64_t count, int64_t length, const T *a, int64_t lead, const T *x, GE2_WIDE_##S *sums) {                  \
        const T *line[COUNT];                                                                                       \
        for (int r = 0; r < COUNT; r++) line[r] = a + ge2_least(r, count - 1) * lead, sums[r] = 0;                  \
        for (int64_t l = 0, end; l < length; l = end) {                                                             \
            T strand[COUNT][STRANDS] = {{0}};                                                                       \
            end = ge2_least(l + GE2_VECTOR_SUM, length);                                                            \
            for (; l + STRANDS <= end; l += STRANDS)                                                                \
                _Pragma("GCC unroll 8") for (int r = 0; r < COUNT; r++)                                             \
                    _Pragma("omp simd") for (int j = 0; j < STRANDS; j++)                                           \
                        strand[r][j] += line[r][l + j] * x[l + j];                                                  \
            _Pragma("GCC unroll 1") for (int r = 0; r < COUNT; r++) {                                               \
                for (int half = STRANDS / 2; half; half /= 2)                                                       \
                    for (int j = 0; j < half; j++) strand[r][j] += strand[r][j + half];                             \
                sums[r] += strand[r][0];                                                                            \
                _Pragma("GCC unroll 1") for (int64_t t = l; t < end; t++) sums[r] += (GE2_WIDE_##S)line[r][t] * x[t];\
            }                                                                                                       \
        }                                                                                                           \
    }

/* The sum of `lines` lines of at most GE2_VECTOR_WIDTH bytes, each times its number of x. */
#define GE2_SUM_OF_LINES(S, T)                                                                                      \
    GE2_CALLED void ge2_sum_of_lines_##S(                                                                           \
        int64_t lines, int64_t length, const T *a, int64_t lead, const T *x, int64_t step,                          \
        T *restrict sum) {                                                                                          \
        for (int64_t j = 0; j < length; j++) sum[j] = 0;                                                            \
        int64_t i = 0;                                                                                              \
        for (; i + 8 <= lines; i += 8) {                                                                            \
            const T *r0 = a + i * lead, *r1 = r0 + lead, *r2 = r1 + lead, *r3 = r2 + lead;                          \
            const T *r4 = r3 + lead, *r5 = r4 + lead, *r6 = r5 + lead, *r7 = r6 + lead, *z = x + i * step;          \
            const T x0 = z[0], x1 = z[step], x2 = z[2 * step], x3 = z[3 * step];                                    \
            const T x4 = z[4 * step], x5 = z[5 * step], x6 = z[6 * step], x7 = z[7 * step];                         \
            _Pragma("omp simd") for (int64_t j = 0; j < length; j++)                                                \
                sum[j] += ((x0 * r0[j] + x1 * r1[j]) + (x2 * r2[j] + x3 * r3[j])) +                                 \
                          ((x4 * r4[j] + x5 * r5[j]) + (x6 * r6[j] + x7 * r7[j]));                                  \
        }                                                                                                           \
        for (; i < lines; i++)                                                                                      \
            _Pragma("omp simd") for (int64_t j = 0; j < length; j++)                                                \
                sum[j] += x[i * step] * a[i * lead + j];                                                            \
    }

/* The sums of parts that lie `apart`, in a wider type. */
#define GE2_SUM_OF_PARTS(S, T)                                                                                      \
    GE2_CALLED void ge2_sum_of_parts_##S(int64_t parts, int64_t apart, const T *part, int64_t length, T *c) {       \
        for (int64_t j = 0; j < length; j++) {                                                                      \
            GE2_WIDE_##S sum = part[j];                                                                             \
            for (int64_t t = 1; t < parts; t++) sum += part[t * apart + j];                                         \
            c[j] = (T)sum;                                                                                          \
        }                                                                                                           \
    }

/* c[i] = sum of a[i, :] * x: tasks are some lines, or parts of few long ones. */
#define GE2_EACH_LINE(S, T, COUNT)                                                                                  \
    GE2_CALLER void ge2_each_line_##COUNT##_##S(                                                                    \
        int64_t lines, int64_t length, const T *a, int64_t lead, const T *x, T *c, const ge2_services *lib,         \
        int threads) {                                                                                              \
        (void)lib;                                                                                                  \
        const int few = lines < GE2_VECTOR_TASKS;                                                                   \
        const int64_t wide = few ? ge2_least(length, ge2_stretch(length, lines, 1)) : length;                       \
        const int64_t along = (length + wide - 1) / wide;                                                           \
        const int64_t high = few ? lines : GE2_VECTOR_TASK / wide / 8 * 8 + 8;                                      \
        const int64_t tasks = (lines + high - 1) / high * along;                                                    \
        GE2_WIDE_##S parts[GE2_VECTOR_TASKS][GE2_VECTOR_TASKS]; /* of few lines */                                  \
        ge2_team team = ge2_team_here();                                                                            \
        _Pragma("omp parallel num_threads(threads)") {                                                              \
            ge2_begin(&team);                                                                                       \
            _Pragma("omp for schedule(dynamic) nowait") for (int64_t t = 0; t < tasks; t++) {                       \
                const int64_t left = t % along * wide, width = ge2_least(wide, length - left);                      \
                const int64_t top = t / along * high, end = ge2_least(top + high, lines);                           \
                GE2_WIDE_##S sums[COUNT];                                                                           \
                for (int64_t i = top, taken; i < end; i += taken) {                                                 \
                    taken = ge2_least(COUNT, end - i);                                                              \
                    ge2_dots_##COUNT##_##S(taken, width, a + i * lead + left, lead, x + left, sums);                \
                    for (int64_t r = 0; r < taken; r++)                                                             \
                        if (along > 1)                                                                              \
                            parts[i + r][t % along] = sums[r];                                                      \
                        else                                                                                        \
                            c[i + r] = (T)sums[r];                                                                  \
                }                                                                                                   \
            }                                                                                                       \
            ge2_end(&team);                                                                                         \
        }                                                                                                           \
        ge2_over(&team);                                                                                            \
        for (int64_t i = 0; along > 1 && i < lines; i++) {                                                          \
            GE2_WIDE_##S sum = parts[i][0];                                                                         \
            for (int64_t t = 1; t < along; t++) sum += parts[i][t];                                                 \
            c[i] = (T)sum;                                                                                          \
        }                                                                                                           \
    }

/* c = the sum of x[i] * a[i, :]: tasks are blocks of the matrix, whose sums are added in their order. BLAS does it
   where there is no memory for those. */
#define GE2_ALL_LINES(S, T)                                                                                         \
    GE2_CALLER void ge2_all_lines_##S(                                                                              \
        int64_t lines, int64_t length, const T *a, int64_t lead, const T *x, int64_t step, T *c,                    \
        const ge2_services *lib, int threads) {                                                                     \
        const int64_t most = GE2_VECTOR_WIDTH / sizeof(T), pieces = (length + most - 1) / most;                     \
        const int64_t wide = ge2_least(most, ((length + pieces - 1) / pieces + 15) / 16 * 16);                      \
        const int64_t along = (length + wide - 1) / wide, high = ge2_stretch(lines, wide, along);                   \
        const int64_t down = (lines + high - 1) / high;                                                             \
        T *parts = down > 1 ? malloc((size_t)(down * length) * sizeof *parts) : c;                                  \
        if (!parts) {                                                                                               \
            ge2_product_by_blas_##S(lib, 1, length, lines, x, 1, step, a, lead, 1, c, length);                      \
            return;                                                                                                 \
        }                                                                                                           \
        ge2_team team = ge2_team_here();                                                                            \
        _Pragma("omp parallel num_threads(threads)") {                                                              \
            ge2_begin(&team);                                                                                       \
            _Pragma("omp for schedule(dynamic) nowait") for (int64_t t = 0; t < down * along; t++) {                \
                const int64_t left = t % along * wide, top = t / along * high;                                      \
                ge2_sum_of_lines_##S(                                                                               \
                    ge2_least(high, lines - top), ge2_least(wide, length - left), a + top * lead + left, lead,      \
                    x + top * step, step, parts + t / along * length + left);                                       \
            }                                                                                                       \
            ge2_end(&team);                                                                                         \
            if (down > 1) {                                                                                         \
                _Pragma("omp barrier")                                                                              \
                _Pragma("omp for schedule(static)") for (int64_t t = 0; t < along; t++)                             \
                    ge2_sum_of_parts_##S(                                                                           \
                        down, length, parts + t * wide, ge2_least(wide, length - t * wide), c + t * wide);          \
            }                                                                                                       \
        }                                                                                                           \
        ge2_over(&team);                                                                                            \
        if (down > 1) free(parts);                                                                                  \
    }

/* One column, or one row, times a matrix whose lines are read as they lie: by their sums, or by a sum of them. */
#define GE2_PRODUCT_WITH_LINES(S, T, COUNT)                                                                         \
    GE2_DOTS(S, T, COUNT, (COUNT == 1 ? 32 : (int)(64 / sizeof(T))))                                                \
    GE2_EACH_LINE(S, T, COUNT)
#define GE2_PRODUCT_OF_LINES(S, T)                                                                                  \
    GE2_SUM_OF_LINES(S, T)                                                                                          \
    GE2_SUM_OF_PARTS(S, T)                                                                                          \
    GE2_ALL_LINES(S, T)

#endif
