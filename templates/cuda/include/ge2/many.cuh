/* Products of matrices so small that a thread has a whole sum, of which there are many: it has some rows of a column.

   Factors are read as they lie, through the L1 cache: what threads beside each other read is the same, or lies together.
   Nothing is shared and nobody waits for another, so many loads are under way. */
#ifndef GE2_MANY_CUH
#define GE2_MANY_CUH

#include "ge2/pack.cuh"
#include "ge2/small.cuh"

constexpr int GE2_MANY_TERMS = 4; /* that are read at once */

template <class T>
GE2_FN T ge2_many_lifted(T x, ge2_small_same) {
    return x;
}

template <class S, class Lift>
GE2_FN auto ge2_many_lifted(S x, Lift lift) {
    return lift(x);
}

/* Some terms of some lines, of which so many are there; what is none is 0. ALONG: neighbours in memory are terms, not
   lines. `x` is where the first of all lies. */
template <int WIDE, bool ALONG, int LINES, class T, class S, class I, class Lift>
GE2_FN void ge2_many_take(T (&found)[LINES][GE2_MANY_TERMS], const S *x, I pitch, int lines, int terms, Lift lift) {
    constexpr int ACROSS = ALONG ? GE2_MANY_TERMS : LINES, DOWN = ALONG ? LINES : GE2_MANY_TERMS;
    constexpr int AT_ONCE = ACROSS % WIDE ? 1 : WIDE;
#pragma unroll
    for (int down = 0; down < DOWN; down++)
#pragma unroll
        for (int across = 0; across < ACROSS; across += AT_ONCE) {
            const int line = ALONG ? down : across, term = ALONG ? across : down;
            ge2_piece<S, AT_ONCE> some{};
            const bool there = line < lines && term < terms;
            if (there) some = *(const ge2_piece<S, AT_ONCE> *)(x + (down * pitch + across));
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
                found[ALONG ? line : line + n][ALONG ? term + n : term] =
                    there ? ge2_many_lifted(some.at[n], lift) : T();
        }
}

/* LINES rows of a column, of which `lines` are there. `a` and `b` are where the first row and the column begin. */
template <
    int SUMS, int WIDE_A, bool ALONG_A, int WIDE_B, bool ALONG_B, int LINES, class T, class A, class B, class I, class Left,
    class Right>
GE2_FN void ge2_many_product(
    T (&totals)[LINES], int lines, const A *a, I a_pitch, const B *b, I b_pitch, Left left_lift, Right right_lift
) {
#pragma unroll
    for (int i = 0; i < LINES; i++) totals[i] = T();
#pragma unroll
    for (int first = 0; first < SUMS; first += GE2_MANY_TERMS) {
        T left[LINES][GE2_MANY_TERMS], right[1][GE2_MANY_TERMS];
        const int terms = SUMS - first;
        ge2_many_take<WIDE_A, ALONG_A>(left, a + first * (ALONG_A ? 1 : a_pitch), a_pitch, lines, terms, left_lift);
        ge2_many_take<WIDE_B, ALONG_B>(right, b + first * (ALONG_B ? 1 : b_pitch), b_pitch, 1, terms, right_lift);
#pragma unroll
        for (int k = 0; k < GE2_MANY_TERMS; k++)
            if (k < terms) {
#pragma unroll
                for (int i = 0; i < LINES; i++) totals[i] = fma(left[i][k], right[0][k], totals[i]);
            }
    }
}

#endif
