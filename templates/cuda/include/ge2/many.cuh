/* Products of matrices so small that a thread has whole sums, of which there are many: it has some rows of a few columns.

   Factors are read as they lie, through the L1 cache: what threads beside each other read is the same, or lies together.
   Nothing is shared and nobody waits for another, so many loads are under way. Of terms that are neighbours rows of
   a thread are apart, so that those of threads beside each other lie together. */
#ifndef GE2_MANY_CUH
#define GE2_MANY_CUH

#include "ge2/pack.cuh"
#include "ge2/small.cuh"

constexpr int GE2_MANY_TERMS = 4; /* that are read before the first is added */

template <class T>
GE2_FN T ge2_many_lifted(T x, ge2_small_same) {
    return x;
}

template <class S, class Lift>
GE2_FN auto ge2_many_lifted(S x, Lift lift) {
    return lift(x);
}

/* TERMS terms of some lines, of which `lines` are there; what is none is 0. ALONG: neighbours in memory are terms, not
   lines. `x` is where the first of all lies. */
template <int WIDE, bool ALONG, int LINES, int TERMS, class T, class S, class I, class Lift>
GE2_FN void ge2_many_take(T (&found)[LINES][TERMS], const S *x, I pitch, int lines, Lift lift) {
    constexpr int ACROSS = ALONG ? TERMS : LINES, DOWN = ALONG ? LINES : TERMS, AT_ONCE = ACROSS % WIDE ? 1 : WIDE;
#pragma unroll
    for (int down = 0; down < DOWN; down++)
#pragma unroll
        for (int across = 0; across < ACROSS; across += AT_ONCE) {
            const bool there = (ALONG ? down : across) < lines;
            ge2_piece<S, AT_ONCE> some{};
            if (there) some = *(const ge2_piece<S, AT_ONCE> *)(x + (down * pitch + across));
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
                found[ALONG ? down : across + n][ALONG ? across + n : down] =
                    there ? ge2_many_lifted(some.at[n], lift) : T();
        }
}

/* Adds TERMS terms to LINES rows of columns, of which `lines` are there. */
template <
    int TERMS, int WIDE_A, bool ALONG_A, int WIDE_B, bool ALONG_B, int LINES, int PACK, class T, class A, class B, class I,
    class Left, class Right>
GE2_FN void ge2_many_add(
    ge2_some<T, PACK> (&totals)[LINES], int lines, const A *a, I apart, const B *b, I b_pitch, Left left_lift,
    Right right_lift
) {
    T left[LINES][TERMS], right[PACK][TERMS];
    ge2_many_take<WIDE_A, ALONG_A>(left, a, apart, lines, left_lift);
    ge2_many_take<WIDE_B, ALONG_B>(right, b, b_pitch, PACK, right_lift);
#pragma unroll
    for (int k = 0; k < TERMS; k++)
#pragma unroll
        for (int i = 0; i < LINES; i++)
#pragma unroll
            for (int j = 0; j < PACK; j++) totals[i].at[j] = fma(left[i][k], right[j][k], totals[i].at[j]);
}

/* LINES rows of PACK columns, of which `lines` are there, each GROUPS behind the last one if ALONG_A, else the next.
   `a` and `b` are where the first row and column begin. */
template <
    int SUMS, int GROUPS, int WIDE_A, bool ALONG_A, int WIDE_B, bool ALONG_B, int LINES, int PACK, class T, class A, class B,
    class I, class Left, class Right>
GE2_FN void ge2_many_product(
    ge2_some<T, PACK> (&totals)[LINES], int lines, const A *a, I a_pitch, const B *b, I b_pitch, Left left_lift,
    Right right_lift
) {
    constexpr int REST = SUMS % GE2_MANY_TERMS;
    constexpr int AT_ONCE = LINES > 4 && PACK > 1 ? 1 : SUMS > 16 || PACK > 1 ? 2 : 4; /* all loads need too many registers */
    const I a_step = ALONG_A ? I(1) : a_pitch, b_step = ALONG_B ? I(1) : b_pitch, apart = ALONG_A ? a_pitch * GROUPS : a_pitch;
#pragma unroll
    for (int i = 0; i < LINES; i++) totals[i] = ge2_some<T, PACK>();
#pragma unroll AT_ONCE
    for (int first = 0; first < SUMS - REST; first += GE2_MANY_TERMS)
        ge2_many_add<GE2_MANY_TERMS, WIDE_A, ALONG_A, WIDE_B, ALONG_B>(
            totals, lines, a + first * a_step, apart, b + first * b_step, b_pitch, left_lift, right_lift);
    if constexpr (REST > 0)
        ge2_many_add<REST, WIDE_A, ALONG_A, WIDE_B, ALONG_B>(
            totals, lines, a + (SUMS - REST) * a_step, apart, b + (SUMS - REST) * b_step, b_pitch, left_lift, right_lift);
}

#endif
