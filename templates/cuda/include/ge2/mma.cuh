/* Products by the tensor cores of a warp (mma.sync, from compute capability 8.0 on), whose operands come from shared memory.
 *
 * A tile of an operand has rows of INNER neighbours, and a few bytes more, by which the lanes that read eight rows below
 * each other meet in no bank. `turned`: these neighbours are lines (rows of the left operand, columns of the right one);
 * else they are terms of a sum. PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
 */
#ifndef GE2_MMA_CUH
#define GE2_MMA_CUH

#include "ge2/ahead.cuh"
#include "ge2/pack.cuh"
#include "ge2/place.cuh"

/* Bytes from a row of a tile to the next. */
template <class T, int INNER, bool TURNED>
GE2_FN constexpr int ge2_mma_pitch() {
    return INNER * (int)sizeof(T) + (TURNED && sizeof(T) == 4 ? 32 : 16);
}

/* ---- tiles, which all threads of a block bring. `from`: the first element of the tile; `pitch`, `step`: elements between
 * rows and between neighbours; `inner`, `outer`: how many there are. What is beyond is zero. */

/* WIDE elements at a time, on their way while the threads go on. */
template <class T, int WIDE, int INNER, int OUTER, bool TURNED, int THREADS, class Pitch, class Step>
GE2_FN void ge2_mma_bring(unsigned char *to, const T *from, Pitch pitch, Step step, int inner, int outer) {
    constexpr int PIECES = INNER / WIDE, ROWS = THREADS / PIECES;
    const int x = (int)threadIdx.x % PIECES * WIDE, y = (int)threadIdx.x / PIECES;
    const int some = min(max(inner - x, 0), WIDE);
#pragma unroll
    for (int n = 0; n < (OUTER + ROWS - 1) / ROWS; n++) {
        const int row = y + n * ROWS;
        if (OUTER % ROWS && row >= OUTER) break;  /* more threads than a thin tile has pieces */
        const int bytes = row < outer ? some * (int)sizeof(T) : 0;
        unsigned char *const place = to + row * ge2_mma_pitch<T, INNER, TURNED>() + x * (int)sizeof(T);
        ge2_ahead_part<WIDE * sizeof(T)>(place, from + row * pitch + x * step, bytes);
    }
}

/* Of elements of two bytes and of one that lie anyhow, what a thread holds between reading and writing: the neighbours of
 * a word. */
template <class T, int INNER, int OUTER, int THREADS>
struct ge2_mma_held {
    enum { MANY = 4 / sizeof(T), PIECES = INNER / MANY, ROWS = THREADS / PIECES, COUNT = (OUTER + ROWS - 1) / ROWS };
    T of[MANY][COUNT];

    template <class Pitch, class Step>
    __device__ __forceinline__ void read(const T *from, Pitch pitch, Step step, int inner, int outer) {
        const int x = (int)threadIdx.x % PIECES * MANY, y = (int)threadIdx.x / PIECES;
        const T *at = from + y * pitch + x * step;
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const int left = y + n * ROWS < outer ? inner - x : 0;
#pragma unroll
            for (int v = 0; v < MANY; v++) of[v][n] = v < left ? at[v * step] : (T)0;
            at += ROWS * pitch;
        }
    }
    __device__ __forceinline__ void write(unsigned char *to) const {
        const int x = (int)threadIdx.x % PIECES * MANY, y = (int)threadIdx.x / PIECES;
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const int row = y + n * ROWS;
            if (OUTER % ROWS && row >= OUTER) break;
            uint32_t word = 0;
#pragma unroll
            for (int v = 0; v < MANY; v++) word |= ((uint32_t)of[v][n] & (0xffffffffu >> (32 - 32 / MANY))) << v * (32 / MANY);
            *(uint32_t *)(to + row * (INNER * (int)sizeof(T) + 16) + x * (int)sizeof(T)) = word;
        }
    }
};

/* ---- operands that are made of arrays, element by element, as tiles of them come. Of such an array a thread holds PACK
 * neighbours in each of its rows of a tile, WIDE of which one access moves, between reading and making: one, where
 * neighbours share an element (not ALONG), and those of one row, where rows do (not DOWN). */
template <class T, int PACK, int WIDE, int INNER, int OUTER, int THREADS, bool ALONG, bool DOWN>
struct ge2_mma_raw {
    enum { PIECES = INNER / PACK, ROWS = THREADS / PIECES, COUNT = DOWN ? (OUTER + ROWS - 1) / ROWS : 1, SOME = ALONG ? PACK : 1 };
    ge2_some<T, SOME> of[COUNT];

    template <class Pitch, class Step>
    __device__ __forceinline__ void read(const T *from, Pitch pitch, Step step, int inner, int outer) {
        const int x = ALONG ? (int)threadIdx.x % PIECES * PACK : 0, y = DOWN ? (int)threadIdx.x / PIECES : 0;
        const T *at = from + y * pitch + x * step;
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const int left = y + n * ROWS < outer ? inner - x : 0;
            if constexpr (WIDE > 1) {  /* rows are multiples of WIDE elements long */
#pragma unroll
                for (int v = 0; v < SOME; v += WIDE)
                    *(ge2_piece<T, WIDE> *)&of[n].at[v] = v < left ? *(const ge2_piece<T, WIDE> *)(at + v) : ge2_piece<T, WIDE>{};
            } else {
#pragma unroll
                for (int v = 0; v < SOME; v++) of[n].at[v] = v < left ? at[v * step] : T();
            }
            at += ROWS * pitch;
        }
    }
    __device__ __forceinline__ T at(int n, int v) const { return of[DOWN ? n : 0].at[ALONG ? v : 0]; }
};

/* A tile of `make(n, v)`: neighbour v of the thread's row n; of two bytes pairs of these, as `pair` makes one word of two.
 * Terms beyond the last are zero, whatever is made of nothing. */
template <class T, int PACK, int INNER, int OUTER, bool TURNED, int THREADS, class Make, class Pair>
GE2_FN void ge2_mma_make(unsigned char *to, int terms, Make make, Pair pair) {
    constexpr int PIECES = INNER / PACK, ROWS = THREADS / PIECES;
    const int x = (int)threadIdx.x % PIECES * PACK, y = (int)threadIdx.x / PIECES;
#pragma unroll
    for (int n = 0; n < (OUTER + ROWS - 1) / ROWS; n++) {
        const int row = y + n * ROWS;
        if (OUTER % ROWS && row >= OUTER) break;
        ge2_some<float, PACK> some;
#pragma unroll
        for (int v = 0; v < PACK; v++) some.at[v] = (TURNED ? row : x + v) < terms ? make(n, v) : 0.0f;
        unsigned char *const place = to + row * ge2_mma_pitch<T, INNER, TURNED>() + x * (int)sizeof(T);
        if constexpr (sizeof(T) == 4) {
            *(ge2_some<float, PACK> *)place = some;
        } else {
            ge2_some<uint32_t, PACK / 2> words;
#pragma unroll
            for (int v = 0; v < PACK; v += 2) words.at[v / 2] = pair(*(const ge2_some<float, 2> *)&some.at[v]);
            *(ge2_some<uint32_t, PACK / 2> *)place = words;
        }
    }
}

/* ---- fragments: 16 lines by 32 bytes of terms of an operand, at a line and a term of its tile. The words of a lane are
 * those of the left operand in PTX: of lines from 0 and from 8 on, then the same of the second half of the terms. So a
 * right operand's words are 0 and 2 for eight columns, 1 and 3 for the next. Of bytes whose neighbours are lines, what is
 * turned are pairs of lines: two words of terms become those of one line and of the next, so that lines 0, 2, 4 ... stand
 * in place of the first eight, and 1, 3, 5 ... in that of the others; `ge2_mma_line` tells where they belong. Terms come in
 * such an order that no two rows of a matrix meet in a bank. */

GE2_FN constexpr int ge2_mma_line(int line, int half) { return line * 2 + half; }

GE2_FN void ge2_mma_four(uint32_t (&words)[4], const unsigned char *row);
GE2_FN void ge2_mma_four_turned(uint32_t (&words)[4], const unsigned char *row);

template <class T, int INNER, bool TURNED>
GE2_FN void ge2_mma_take(uint32_t (&words)[4], const unsigned char *tile, int line, int term) {
    constexpr int PITCH = ge2_mma_pitch<T, INNER, TURNED>();
    const int lane = (int)threadIdx.x % 32;
    if constexpr (!TURNED) {
        ge2_mma_four(words, tile + (line + lane % 16) * PITCH + term * (int)sizeof(T) + lane / 16 * 16);
    } else if constexpr (sizeof(T) == 2) {
        ge2_mma_four_turned(words, tile + (term + lane % 8 + lane / 16 * 8) * PITCH + (line + lane / 8 % 2 * 8) * 2);
    } else if constexpr (sizeof(T) == 1) {
        const int pair = lane / 8 % 2 ^ lane / 4 % 2;  /* of four terms in a row, which one matrix has of lanes 0 and 1, the other of 2 and 3 */
        const uint32_t swapped = lane % 4 / 2 * 0x4444u;
        uint32_t pairs[4];
        ge2_mma_four_turned(pairs, tile + (term + lane / 16 * 16 + lane % 8 / 2 * 4 + pair * 2 + lane % 2) * PITCH + line);
#pragma unroll
        for (int n = 0; n < 4; n++) words[n] = __byte_perm(pairs[n / 2 * 2], pairs[n / 2 * 2 + 1], (n % 2 ? 0x7531u : 0x6420u) ^ swapped);
    } else {
#pragma unroll
        for (int n = 0; n < 4; n++)
            words[n] = *(const uint32_t *)(tile + (term + lane % 4 + n / 2 * 4) * PITCH + (line + lane / 4 + n % 2 * 8) * 4);
    }
}

/* ---- sums in shared memory: of each row, every other quad, and the others PLANE further */

template <int N, int PLANE, class S>
GE2_FN ge2_some<S, N> ge2_mma_sums(const S *row, int at) {
    constexpr int WIDE = N < 4 ? N : 4;
    ge2_some<S, N> found;
#pragma unroll
    for (int n = 0; n < N; n += WIDE) {
        const int quad = (at + n) / 4;
        const S *const from = row + quad % 2 * PLANE + quad / 2 * 4 + (at + n) % 4;
        *(ge2_some<S, WIDE> *)&found.at[n] = *(const ge2_some<S, WIDE> *)from;
    }
    return found;
}

#ifndef GE2_SHIM

/* Four matrices of eight rows of 16 bytes, of which lane l has the place of row l % 8 of matrix l / 8. */
#define GE2_MMA_FOUR(name, order)                                                                                   \
    GE2_FN void name(uint32_t (&words)[4], const unsigned char *row) {                                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" order ".shared.b16 {%0, %1, %2, %3}, [%4];"                    \
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])                               \
                     : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");                                    \
    }
GE2_MMA_FOUR(ge2_mma_four, "")
GE2_MMA_FOUR(ge2_mma_four_turned, ".trans")
#undef GE2_MMA_FOUR

/* 16 x 8 sums: those of rows l / 4 and 8 below, at columns l % 4 * 2 and the next. */
#define GE2_MMA(type, shape)                                                                                        \
    GE2_FN void ge2_mma_##type(float (&sums)[4], const uint32_t (&a)[4], uint32_t first, uint32_t second) {         \
        asm("mma.sync.aligned." shape ".row.col.f32." #type "." #type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "   \
            "{%8, %9}, {%0, %1, %2, %3};"                                                                           \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                            \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));                                 \
    }
GE2_MMA(bf16, "m16n8k16")
GE2_MMA(f16, "m16n8k16")
GE2_MMA(tf32, "m16n8k8")
#undef GE2_MMA

/* The same of bytes, whose sums wrap. */
#define GE2_MMA(a_type, b_type)                                                                                     \
    GE2_FN void ge2_mma_##a_type##_##b_type(int (&sums)[4], const uint32_t (&a)[4], uint32_t first, uint32_t second) { \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." #a_type "." #b_type ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
            "{%8, %9}, {%0, %1, %2, %3};"                                                                           \
            : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])                                            \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));                                 \
    }
GE2_MMA(s8, s8)
GE2_MMA(s8, u8)
GE2_MMA(u8, s8)
GE2_MMA(u8, u8)
#undef GE2_MMA

#else

/* What each lane of a warp shows the others. The next two shows have places of their own, and whoever is late for one of
 * them has read this one. */
template <class T>
struct ge2_shim_shown {
    T of[2][8][32];
    uint8_t turn[256];
};
template <class T>
GE2_SHIM_UNSEEN T *ge2_shim_show(const T &mine) {
    __shared__ ge2_shim_shown<T> shown;
    const int warp = threadIdx.x / 32;
    T *const all = shown.of[++shown.turn[threadIdx.x] & 1][warp];
    all[threadIdx.x % 32] = mine;
    return all;
}

GE2_FN void ge2_mma_four(uint32_t (&words)[4], const unsigned char *row) {
    const unsigned char *const *const rows = ge2_shim_show(row);
    __syncwarp();
    const int lane = (int)threadIdx.x % 32;
    for (int n = 0; n < 4; n++) words[n] = *(const uint32_t *)(rows[n * 8 + lane / 4] + lane % 4 * 4);
}
GE2_FN void ge2_mma_four_turned(uint32_t (&words)[4], const unsigned char *row) {
    const unsigned char *const *const rows = ge2_shim_show(row);
    __syncwarp();
    const int lane = (int)threadIdx.x % 32;
    for (int n = 0; n < 4; n++) {
        const unsigned char *const *const pair = rows + n * 8 + lane % 4 * 2;
        const uint16_t low = *(const uint16_t *)(pair[0] + lane / 4 * 2), high = *(const uint16_t *)(pair[1] + lane / 4 * 2);
        words[n] = (uint32_t)high << 16 | low;
    }
}

struct ge2_shim_factors {
    uint32_t a[4], b[2];
};
/* Takes each product of a sum: those of `word` of the factors' words, of which a lane has the sums `n`. */
template <class A, class B, class Take>
GE2_SHIM_UNSEEN void ge2_shim_mma(const ge2_shim_factors *all, int n, Take take) {
    const int lane = threadIdx.x % 32, many = 4 / A::SIZE;
    for (int word = 0; word < 8; word++) {
        const uint32_t &a = all[lane / 4 * 4 + word % 4].a[n / 2 + word / 4 * 2];
        const uint32_t &b = all[(lane % 4 * 2 + n % 2) * 4 + word % 4].b[word / 4];
        for (int k = 0; k < many; k++) take(A::of((const char *)&a + k * A::SIZE), B::of((const char *)&b + k * B::SIZE));
    }
}
template <class A, class B>
GE2_SHIM_UNSEEN void ge2_shim_mma_sums(float (&sums)[4], const ge2_shim_factors *all) {
    for (int n = 0; n < 4; n++) {
        double sum = sums[n];
        ge2_shim_mma<A, B>(all, n, [&](float a, float b) __attribute__((always_inline)) { sum += (double)a * b; });
        sums[n] = ge2_shim_cut(sum);
    }
}
template <class A, class B>
GE2_SHIM_UNSEEN void ge2_shim_mma_sums(int (&sums)[4], const ge2_shim_factors *all) {
    for (int n = 0; n < 4; n++)
        ge2_shim_mma<A, B>(all, n, [&](int a, int b) __attribute__((always_inline)) { sums[n] = ge2_shim_wrapped(sums[n], a, b); });
}
#define GE2_MMA(name, A, B)                                                                                         \
    GE2_FN void ge2_mma_##name(A::Sum (&sums)[4], const uint32_t (&a)[4], uint32_t first, uint32_t second) {        \
        const ge2_shim_factors *const all = ge2_shim_show(ge2_shim_factors{{a[0], a[1], a[2], a[3]}, {first, second}}); \
        __syncwarp();                                                                                               \
        ge2_shim_mma_sums<A, B>(sums, all);                                                                         \
    }
GE2_MMA(bf16, ge2_shim_bf16, ge2_shim_bf16)
GE2_MMA(f16, ge2_shim_f16, ge2_shim_f16)
GE2_MMA(tf32, ge2_shim_tf32, ge2_shim_tf32)
GE2_MMA(s8_s8, ge2_shim_s8, ge2_shim_s8)
GE2_MMA(s8_u8, ge2_shim_s8, ge2_shim_u8)
GE2_MMA(u8_s8, ge2_shim_u8, ge2_shim_s8)
GE2_MMA(u8_u8, ge2_shim_u8, ge2_shim_u8)
#undef GE2_MMA

#endif
#endif
