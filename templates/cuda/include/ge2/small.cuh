/* Products of matrices that are small: a block has a tile of 16 x 16 of the result, and the whole sum.

   Terms come in stages of 16 slices. A team of 16 threads has a slice of each stage, and of the tile a thread of it has 4
   x 4. Four stages are on their way from the start, so that a sum of 256 float32 waits for memory once. At the end
   what the teams have is added up through shared memory, in order. docs/design/small_products.md counts it. */
#ifndef GE2_SMALL_CUH
#define GE2_SMALL_CUH

#include "ge2/ahead.cuh"
#include "ge2/pack.cuh"

constexpr int GE2_SMALL_SIDE = 16, GE2_SMALL_SLICES = 16, GE2_SMALL_AHEAD = 4;
constexpr int GE2_SMALL_THREADS = 256, GE2_SMALL_PITCH = GE2_SMALL_THREADS + 16; /* two slices of a warp: other banks */

/* What lies in memory as it is summed. */
struct ge2_small_same {};

/* A stage of one operand: 16 lines of DEPTH terms. ALONG: the terms of a line are neighbours in memory, and so here; else
   the lines of a term are. Slices that a warp reads together lie in other banks. */
template <class T, bool ALONG>
struct alignas(16) ge2_small_panel {
    static constexpr int STEP = 16 / sizeof(T), DEPTH = GE2_SMALL_SLICES * STEP;
    static constexpr int PITCH = ALONG ? DEPTH + 2 * STEP : GE2_SMALL_SIDE;
    T at[ALONG ? GE2_SMALL_SIDE * PITCH : DEPTH * PITCH];

    static __device__ __forceinline__ int place(int line, int term) {
        return ALONG ? line * PITCH + term : (term ^ (term / STEP & 1)) * PITCH + line;
    }
};

/* targets/cuda/products/small.py asks for five of each operand's. */
static_assert(sizeof(ge2_small_panel<float, true>) == 4608 && sizeof(ge2_small_panel<float, false>) == 4096, "");
static_assert(sizeof(ge2_small_panel<double, true>) == 4608 && sizeof(ge2_small_panel<double, false>) == 4096, "");

template <class A, class B, class T>
struct ge2_small_room {
    union {
        struct {
            A a;
            B b;
        } stage[GE2_SMALL_AHEAD + 1];
        T part[GE2_SMALL_SLICES * GE2_SMALL_PITCH];
    };
};

template <int WIDE, class T>
GE2_FN void ge2_small_copy(T *to, const T *from, ge2_small_same) {
    ge2_ahead_piece<WIDE * sizeof(T)>(to, from);
}

template <int WIDE, class T, class S, class Lift>
GE2_FN void ge2_small_copy(T *to, const S *from, Lift lift) {
    const ge2_piece<S, WIDE> some = *(const ge2_piece<S, WIDE> *)from;
    ge2_piece<T, WIDE> held;
#pragma unroll
    for (int i = 0; i < WIDE; i++) held.at[i] = lift(some.at[i]);
    *(ge2_piece<T, WIDE> *)to = held;
}

/* Brings the terms from `first` on; what is none, or of no line, is 0. `x` is where the tile's lines begin. */
template <int WIDE, class T, bool ALONG, class S, class I, class Lift>
GE2_FN void ge2_small_bring(
    ge2_small_panel<T, ALONG> &panel, const S *x, I pitch, I lines, I first, I terms, Lift lift
) {
    constexpr int DEPTH = ge2_small_panel<T, ALONG>::DEPTH;
    constexpr int ROW = (ALONG ? DEPTH : GE2_SMALL_SIDE) / WIDE;
    static_assert(GE2_SMALL_SIDE * DEPTH % (WIDE * GE2_SMALL_THREADS) == 0, "threads have parts of a stage");
#pragma unroll
    for (int n = 0; n < GE2_SMALL_SIDE * DEPTH / WIDE / GE2_SMALL_THREADS; n++) {
        const int piece = (int)threadIdx.x + n * GE2_SMALL_THREADS, outer = piece / ROW, inner = piece % ROW * WIDE;
        const int line = ALONG ? outer : inner, term = ALONG ? inner : outer;
        T *to = panel.at + panel.place(line, term);
        if (line < lines && first + term < terms)
            ge2_small_copy<WIDE>(to, x + (ALONG ? line * pitch + (first + term) : (first + term) * pitch + line), lift);
        else
            *(ge2_piece<T, WIDE> *)to = ge2_piece<T, WIDE>();
    }
}

/* The thread's four lines of its slice: found[line][term]. */
template <class T, bool ALONG, int STEP>
GE2_FN void ge2_small_take(const ge2_small_panel<T, ALONG> &panel, int quarter, int slice, T (&found)[4][STEP]) {
    if constexpr (ALONG) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const auto some = *(const ge2_piece<T, STEP> *)&panel.at[panel.place(quarter + 4 * i, slice * STEP)];
#pragma unroll
            for (int k = 0; k < STEP; k++) found[i][k] = some.at[k];
        }
    } else {
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            const auto some = *(const ge2_some<T, 4> *)&panel.at[panel.place(quarter * 4, slice * STEP + k)];
#pragma unroll
            for (int i = 0; i < 4; i++) found[i][k] = some.at[i];
        }
    }
}

/* Which line of the tile is the thread's so many th. */
template <bool ALONG>
GE2_FN int ge2_small_line(int quarter, int i) {
    return ALONG ? quarter + 4 * i : quarter * 4 + i;
}

/* Where in the tile the element lies that the thread has in the end. */
template <bool ALONG>
GE2_FN int ge2_small_row() {
    return ge2_small_line<ALONG>((int)threadIdx.x / 16 % 4, (int)threadIdx.x / 64);
}

template <bool ALONG>
GE2_FN int ge2_small_column() {
    return ge2_small_line<ALONG>((int)threadIdx.x / 4 % 4, (int)threadIdx.x % 4);
}

/* The element of the product at ge2_small_row, ge2_small_column. `a` and `b` are where the tile's rows and columns begin,
   of which `rows` and `columns` are there; `shared` is a ge2_small_room. All threads of the block call it. */
template <class T, int WIDE_A, bool ALONG_A, int WIDE_B, bool ALONG_B, class A_, class B_, class I, class Left, class Right>
GE2_FN T ge2_small_product(
    void *shared, const A_ *a, I a_pitch, I rows, const B_ *b, I b_pitch, I columns, I terms, Left left_lift, Right right_lift
) {
    typedef ge2_small_panel<T, ALONG_A> A;
    typedef ge2_small_panel<T, ALONG_B> B;
    constexpr int STEP = A::STEP, SLOTS = GE2_SMALL_AHEAD + 1;
    auto &room = *(ge2_small_room<A, B, T> *)shared;
    const int slice = (int)threadIdx.x / 16, down = (int)threadIdx.x / 4 % 4, across = (int)threadIdx.x % 4;
    const I stages = (terms + A::DEPTH - 1) / A::DEPTH;

#pragma unroll
    for (int s = 0; s < GE2_SMALL_AHEAD; s++) {
        if (s < stages) {
            ge2_small_bring<WIDE_A>(room.stage[s].a, a, a_pitch, rows, I(s * A::DEPTH), terms, left_lift);
            ge2_small_bring<WIDE_B>(room.stage[s].b, b, b_pitch, columns, I(s * A::DEPTH), terms, right_lift);
        }
        ge2_ahead_group();
    }
    T sums[4][4] = {};
    int here = 0, next = GE2_SMALL_AHEAD;
#pragma unroll 1
    for (I s = 0; s < stages; s++) {
        ge2_ahead_wait_but<GE2_SMALL_AHEAD - 1>();
        __syncthreads();
        if (s + GE2_SMALL_AHEAD < stages) {
            const I first = (s + GE2_SMALL_AHEAD) * A::DEPTH;
            ge2_small_bring<WIDE_A>(room.stage[next].a, a, a_pitch, rows, first, terms, left_lift);
            ge2_small_bring<WIDE_B>(room.stage[next].b, b, b_pitch, columns, first, terms, right_lift);
        }
        ge2_ahead_group();
        T left[4][STEP], right[4][STEP];
        ge2_small_take(room.stage[here].a, down, slice, left);
        ge2_small_take(room.stage[here].b, across, slice, right);
#pragma unroll
        for (int k = 0; k < STEP; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = fma(left[i][k], right[j][k], sums[i][j]);
        here = here + 1 == SLOTS ? 0 : here + 1;
        next = next + 1 == SLOTS ? 0 : next + 1;
    }
    __syncthreads(); /* the stages are read to their end */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        ge2_some<T, 4> mine;
#pragma unroll
        for (int j = 0; j < 4; j++) mine.at[j] = sums[i][j];
        *(ge2_some<T, 4> *)&room.part[slice * GE2_SMALL_PITCH + i * 64 + (down * 4 + across) * 4] = mine;
    }
    __syncthreads();
    T parts[GE2_SMALL_SLICES];
#pragma unroll
    for (int s = 0; s < GE2_SMALL_SLICES; s++) parts[s] = room.part[s * GE2_SMALL_PITCH + threadIdx.x];
#pragma unroll
    for (int apart = 1; apart < GE2_SMALL_SLICES; apart *= 2)
#pragma unroll
        for (int s = 0; s + apart < GE2_SMALL_SLICES; s += 2 * apart) parts[s] += parts[s + apart];
    return parts[0];
}

#endif
