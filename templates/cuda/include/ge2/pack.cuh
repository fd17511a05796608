/* Neighbouring elements that one thread works on: read and written in accesses of up to 16 bytes. */
#ifndef GE2_PACK_CUH
#define GE2_PACK_CUH

#include "ge2/core.cuh"

/* What one instruction moves: WIDE elements, that begin at a multiple of their size. */
template <class T, int WIDE>
struct alignas(WIDE * sizeof(T)) ge2_piece {
    T at[WIDE];
};

/* N elements of a thread's own, of which as many are moved at once as have a power of two of bytes. */
template <class T, int N>
struct alignas((N * sizeof(T) & -(N * sizeof(T))) < 16 ? N * sizeof(T) & -(N * sizeof(T)) : 16) ge2_some {
    T at[N];
};

/* x[0] ... x[N - 1], of which `left` are there, and of which the first is at the place `at` of a row, perhaps before it;
 * those that are not there are 0. */
template <int N, int WIDE, class T>
GE2_FN ge2_some<T, N> ge2_read(const T *x, int64_t left = N, int64_t at = 0) {
    ge2_some<T, N> found;
    if (left >= N && at >= 0) {
#pragma unroll
        for (int i = 0; i < N / WIDE; i++)
            *(ge2_piece<T, WIDE> *)&found.at[i * WIDE] = ((const ge2_piece<T, WIDE> *)x)[i];
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) found.at[i] = i < left && at + i >= 0 ? x[i] : T();
    }
    return found;
}

/* x[0] and x[1], of which `left` are there, others are 0; at a multiple of two elements, of which both are there or none.
 * No branch stands between several such reads, so that they are under way at once. */
template <int WIDE, class T>
GE2_FN ge2_some<T, 2> ge2_read_pair(const T *x, int left) {
    ge2_some<T, 2> found = {};
    if (WIDE == 2) {
        if (left > 0) found = *(const ge2_some<T, 2> *)x;
    } else {
        if (left > 0) found.at[0] = x[0];
        if (left > 1) found.at[1] = x[1];
    }
    return found;
}

/* x[0] ... x[WIDE - 1], by one access, as the elements of a thread from AT on: where they are needed, else 0. */
template <int WIDE, int AT, class T, int N>
GE2_FN void ge2_read_part(ge2_some<T, N> &to, const T *x, bool needed = true, int64_t left = WIDE) {
    if (needed && left >= WIDE) {
        *(ge2_piece<T, WIDE> *)&to.at[AT] = *(const ge2_piece<T, WIDE> *)x;
    } else {
#pragma unroll
        for (int i = 0; i < WIDE; i++) to.at[AT + i] = needed && i < left ? x[i] : T();
    }
}

template <int N, int WIDE, class T>
GE2_FN void ge2_write(T *y, ge2_some<T, N> some, int64_t left = N, int64_t at = 0) {
    if (left >= N && at >= 0) {
#pragma unroll
        for (int i = 0; i < N / WIDE; i++)
            ((ge2_piece<T, WIDE> *)y)[i] = *(ge2_piece<T, WIDE> *)&some.at[i * WIDE];
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < left && at + i >= 0) y[i] = some.at[i];
    }
}

/* Writes N elements of each thread, from the place `at` on in a row of `count`. Rows begin anywhere, so no access
 * could move a thread's own. The threads of a warp, which lie side by side, exchange them instead: what they write at
 * a time is then in one piece. */
template <int N, int WIDE, int THREADS, class T, class I>
GE2_FN void ge2_write_row(T *row, ge2_some<T, N> some, I at, I count) {
    __shared__ ge2_some<T, N> room[THREADS];
    const int lane = threadIdx.x % 32;
    ge2_some<T, N> *warp = room + (threadIdx.x - lane);
    __syncwarp(); /* the others have read what is written over */
    warp[lane] = some;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < N / WIDE; k++) {
        const int piece = k * 32 + lane;
        const I to = at - lane * N + piece * WIDE;
        if (to < count) *(ge2_piece<T, WIDE> *)(row + to) = ((const ge2_piece<T, WIDE> *)warp)[piece];
    }
}

#endif
