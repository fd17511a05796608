/* Products within attention, of tiles in shared memory: by the tensor cores of warps (mma.cuh), or of IEEE float32 by
 * multiply-adds.
 *
 * A warp has HIGH times 16 rows, and sums of these by lines, or by features, in registers, as mma.m16n8 has them: lane l has
 * those of rows l / 4 and 8 below, at neighbours l % 4 * 2 and the next of each eight columns. Rows of a tile are WIDTH features
 * and 16 bytes more, an odd number of 16 bytes apart: eight rows below each other are in different banks.
 */
#ifndef GE2_ATTEND_CUH
#define GE2_ATTEND_CUH

#include "ge2/mma.cuh"
#include "ge2/pair.cuh"

/* ---- the numbers that are multiplied: STEP terms of a sum at a time */

#define GE2_ATTEND_HALF(type)                                                                                      \
    struct ge2_attend_##type {                                                                                     \
        typedef uint16_t stored;                                                                                   \
        enum { STEP = 16, TENSOR = 1 };                                                                            \
        static __device__ __forceinline__ uint32_t rounded(const ge2_some<float, 2> &x) { return ge2_rounded_pair_##type(x); } \
        static __device__ __forceinline__ ge2_some<float, 2> pair_of(uint32_t x) { return ge2_pair_of_##type(x); } \
        static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b, uint32_t c) { \
            ge2_mma_##type(sums, a, b, c);                                                                         \
        }                                                                                                          \
    };
GE2_ATTEND_HALF(bf16)
GE2_ATTEND_HALF(f16)
#undef GE2_ATTEND_HALF
struct ge2_attend_tf32 {
    typedef float stored;
    enum { STEP = 8, TENSOR = 1 };
    static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b, uint32_t c) {
        ge2_mma_tf32(sums, a, b, c);
    }
};
struct ge2_attend_f32 {
    typedef float stored;
    enum { STEP = 4, TENSOR = 0 };
};

/* A number rounded to the bits that tensor cores take of it. */
GE2_FN uint32_t ge2_attend_rounded(float x) {
#ifndef GE2_SHIM
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#else
    return x == x ? __float_as_uint(x) + 0x1000u : 0x7fffffffu;
#endif
}

/* ---- factors of a warp's rows by lines, as sums lie: of half types rounded, as the left operand of mma.m16n8k16 has them */

template <class K, int LINES, int BYTES = (int)sizeof(typename K::stored)>
struct ge2_attend_factors {
    float at[LINES / 2];
    __device__ __forceinline__ void put(int eight, int half, const ge2_some<float, 2> &x) {
        at[eight * 4 + half * 2] = x.at[0];
        at[eight * 4 + half * 2 + 1] = x.at[1];
    }
    __device__ __forceinline__ ge2_some<float, 2> pair(int eight, int half) const {
        return {{at[eight * 4 + half * 2], at[eight * 4 + half * 2 + 1]}};
    }
};
template <class K, int LINES>
struct ge2_attend_factors<K, LINES, 2> {
    uint32_t at[LINES / 16][4];
    __device__ __forceinline__ void put(int eight, int half, const ge2_some<float, 2> &x) {
        at[eight / 2][eight % 2 * 2 + half] = K::rounded(x);
    }
    __device__ __forceinline__ ge2_some<float, 2> pair(int eight, int half) const {
        return K::pair_of(at[eight / 2][eight % 2 * 2 + half]);
    }
};

template <class K, int WIDTH>
GE2_FN constexpr int ge2_attend_pitch() {
    return WIDTH * (int)sizeof(typename K::stored) + 16;
}

/* ---- tiles: LINES rows of `width` features, zeros up to WIDTH and from row `left` on, WIDE features at a time */

template <class K, int WIDE, int WIDTH, int LINES, int THREADS>
GE2_FN void ge2_attend_bring(unsigned char *to, const typename K::stored *from, int step, int left, int width) {
    constexpr int SIZE = (int)sizeof(typename K::stored), PIECES = WIDTH / WIDE, PITCH = ge2_attend_pitch<K, WIDTH>();
    constexpr int MOST = PIECES > 64 ? 128 : PIECES > 32 ? 64 : PIECES > 16 ? 32 : PIECES > 8 ? 16 : PIECES > 4 ? 8 : 4;
    constexpr int ACROSS = MOST < THREADS ? MOST : THREADS, DOWN = THREADS / ACROSS;
    const int x = (int)threadIdx.x % ACROSS * WIDE, y = (int)threadIdx.x / ACROSS;
    const typename K::stored *at = from + y * (int64_t)step + x;
    to += y * PITCH + x * SIZE;
#pragma unroll
    for (int n = 0; n < LINES; n += DOWN) {
#pragma unroll
        for (int more = 0; more < PIECES; more += ACROSS)
            if ((LINES % DOWN == 0 || n + y < LINES) && (PIECES % ACROSS == 0 || more + x / WIDE < PIECES))
                ge2_ahead_part<WIDE * SIZE>(
                    to + n * PITCH + more * WIDE * SIZE, at + more * WIDE,
                    n < left - y && x + more * WIDE < width ? WIDE * SIZE : 0);
        at += DOWN * (int64_t)step;
    }
}

/* ---- total = rows x lines, over features */

template <class K, int WIDTH, int LINES, int HIGH>
GE2_FN void ge2_attend_multiply(float (&total)[HIGH][LINES / 2], const unsigned char *rows, const unsigned char *lines) {
    constexpr int PITCH = ge2_attend_pitch<K, WIDTH>();
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < HIGH * LINES / 2; n++) total[n / (LINES / 2)][n % (LINES / 2)] = 0.0f;
    if constexpr (K::TENSOR) {
#pragma unroll 2
        for (int term = 0; term < WIDTH; term += K::STEP) {
            uint32_t left[HIGH][4];
#pragma unroll
            for (int i = 0; i < HIGH; i++) ge2_mma_take<typename K::stored, WIDTH, false>(left[i], rows, i * 16, term);
#pragma unroll
            for (int line = 0; line < LINES; line += 16) {
                uint32_t right[4];
                ge2_mma_take<typename K::stored, WIDTH, false>(right, lines, line, term);
#pragma unroll
                for (int i = 0; i < HIGH; i++) {
                    K::multiply(*(float (*)[4])&total[i][line / 2], left[i], right[0], right[2]);
                    K::multiply(*(float (*)[4])&total[i][line / 2 + 4], left[i], right[1], right[3]);
                }
            }
        }
    } else {
#pragma unroll 2
        for (int term = 0; term < WIDTH; term += 4) {
            ge2_some<float, 4> left[HIGH * 2];
#pragma unroll
            for (int i = 0; i < HIGH * 2; i++)
                left[i] = *(const ge2_some<float, 4> *)(rows + (i * 8 + lane / 4) * PITCH + term * 4);
#pragma unroll
            for (int n = 0; n < LINES / 4; n++) {
                const auto right = *(const ge2_some<float, 4> *)(lines + (n / 2 * 8 + lane % 4 * 2 + n % 2) * PITCH + term * 4);
#pragma unroll
                for (int i = 0; i < HIGH * 2; i++) {
                    float &sum = total[i / 2][n / 2 * 4 + i % 2 * 2 + n % 2];
#pragma unroll
                    for (int each = 0; each < 4; each++) sum = fmaf(left[i].at[each], right.at[each], sum);
                }
            }
        }
    }
}

/* ---- total += factors x lines, over lines. `apart`: a warp's place for factors that go through shared memory: rows of LINES + 4
 * float32. */

template <class K, int WIDTH, int LINES, int HIGH>
GE2_FN void ge2_attend_add(
    float (&total)[HIGH][WIDTH / 2], const ge2_attend_factors<K, LINES> (&factors)[HIGH], const unsigned char *lines, float *apart) {
    constexpr int PITCH = ge2_attend_pitch<K, WIDTH>();
    const int lane = (int)threadIdx.x % 32;
    if constexpr (K::STEP == 16) {
#pragma unroll
        for (int line = 0; line < LINES; line += 16)
#pragma unroll
            for (int feature = 0; feature < WIDTH; feature += 16) {
                uint32_t right[4];
                ge2_mma_take<typename K::stored, WIDTH, true>(right, lines, feature, line);
#pragma unroll
                for (int i = 0; i < HIGH; i++) {
                    K::multiply(*(float (*)[4])&total[i][feature / 2], factors[i].at[line / 16], right[0], right[2]);
                    K::multiply(*(float (*)[4])&total[i][feature / 2 + 4], factors[i].at[line / 16], right[1], right[3]);
                }
            }
    } else if constexpr (K::TENSOR) {
        /* terms of a product are in any order: those of a lane are neighbours, as its factors are */
#pragma unroll
        for (int eight = 0; eight < LINES / 8; eight++) {
            uint32_t left[HIGH][4];
#pragma unroll
            for (int i = 0; i < HIGH; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) left[i][n] = ge2_attend_rounded(factors[i].at[eight * 4 + n % 2 * 2 + n / 2]);
            const unsigned char *const from = lines + (eight * 8 + lane % 4 * 2) * PITCH + lane / 4 * 4;
#pragma unroll
            for (int feature = 0; feature < WIDTH; feature += 8) {
                const uint32_t first = *(const uint32_t *)(from + feature * 4), second = *(const uint32_t *)(from + PITCH + feature * 4);
#pragma unroll
                for (int i = 0; i < HIGH; i++) K::multiply(*(float (*)[4])&total[i][feature / 2], left[i], first, second);
            }
        }
    } else {
        constexpr int APART = LINES + 4;
        __syncwarp();
#pragma unroll
        for (int n = 0; n < HIGH * LINES / 4; n++) {
            const int i = n / (LINES / 4), half = n % 2, eight = n / 2 % (LINES / 8);
            *(ge2_some<float, 2> *)(apart + (i * 16 + half * 8 + lane / 4) * APART + eight * 8 + lane % 4 * 2) = factors[i].pair(eight, half);
        }
        __syncwarp();
#pragma unroll 1
        for (int line = 0; line < LINES; line += 4) {
            ge2_some<float, 4> left[HIGH * 2];
#pragma unroll
            for (int i = 0; i < HIGH * 2; i++) left[i] = *(const ge2_some<float, 4> *)(apart + (i * 8 + lane / 4) * APART + line);
#pragma unroll
            for (int each = 0; each < 4; each++)
#pragma unroll
                for (int eight = 0; eight < WIDTH / 8; eight++) {
                    const auto right = *(const ge2_some<float, 2> *)(lines + (line + each) * PITCH + (eight * 8 + lane % 4 * 2) * 4);
#pragma unroll
                    for (int i = 0; i < HIGH * 4; i++) {
                        float &sum = total[i / 4][eight * 4 + i % 4];
                        sum = fmaf(left[i / 2].at[each], right.at[i % 2], sum);
                    }
                }
        }
    }
}

/* ---- sums of a warp's rows times a share of each go through shared memory, which has its rows at `rows`, WIDE features at a time;
 * `left` of the rows are there. */

template <class K, int WIDE, int WIDTH, int HIGH>
GE2_FN void ge2_attend_leave(
    typename K::stored *to, int step, int left, int width, unsigned char *rows, const float (&total)[HIGH][WIDTH / 2],
    const float (&share)[HIGH][2]) {
    typedef typename K::stored stored;
    constexpr int SIZE = (int)sizeof(stored), PITCH = ge2_attend_pitch<K, WIDTH>(), PIECES = WIDTH / WIDE;
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < HIGH * WIDTH / 4; n++) {
        const int i = n / (WIDTH / 4), half = n % 2, eight = n / 2 % (WIDTH / 8), at = eight * 4 + half * 2;
        const ge2_some<float, 2> both = {{total[i][at] * share[i][half], total[i][at + 1] * share[i][half]}};
        unsigned char *const place = rows + (i * 16 + half * 8 + lane / 4) * PITCH + (eight * 8 + lane % 4 * 2) * SIZE;
        if constexpr (SIZE == 2)
            *(uint32_t *)place = K::rounded(both);
        else
            *(ge2_some<float, 2> *)place = both;
    }
    __syncwarp();
#pragma unroll 4
    for (int piece = lane; piece < HIGH * 16 * PIECES; piece += 32) {
        const int row = piece / PIECES, x = piece % PIECES * WIDE;
        if (row < left && x < width)
            *(ge2_piece<stored, WIDE> *)(to + row * (int64_t)step + x) = *(const ge2_piece<stored, WIDE> *)(rows + row * PITCH + x * SIZE);
    }
}

/* ---- lines get share * (rows, turned, x factors): the sum over all rows of a tile, whose `own` first are there for this warp. Factors
 * go through shared memory at `turned`, and the sums through the lines themselves, which have been read. */

template <class K, int WIDE, int WIDTH, int ROWS, int LINES, int WARPS, int HIGH>
GE2_FN void ge2_attend_turn(
    typename K::stored *to, int step, int left, int width, const ge2_attend_factors<K, LINES> (&factors)[HIGH], int own,
    unsigned char *turned, const unsigned char *rows, unsigned char *lines, float share) {
    typedef typename K::stored stored;
    constexpr int DOWN = LINES / 16, SHARERS = WARPS > DOWN ? WARPS / DOWN : 1, ACROSS = WIDTH / 16 % SHARERS ? 1 : SHARERS;
    constexpr int PART = WIDTH / ACROSS, PITCH = ge2_attend_pitch<K, WIDTH>(), PIECES = PART / WIDE;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < HIGH * LINES / 4; n++) {
        const int eight = n % (LINES / 8), half = n / (LINES / 8) % 2, row = n / (LINES / 4) * 16 + half * 8 + lane / 4;
        const uint32_t word = row < own ? factors[n / (LINES / 4)].at[eight / 2][eight % 2 * 2 + half] : 0u;
        *(uint32_t *)(turned + (warp * HIGH * 16 + row) * ge2_attend_pitch<K, LINES>() + (eight * 8 + lane % 4 * 2) * 2) = word;
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < (DOWN * ACROSS + WARPS - 1) / WARPS; part++) {
        const int mine = part * WARPS + warp, line = mine % DOWN * 16, from = mine / DOWN * PART;
        if (mine >= DOWN * ACROSS) continue;
        float total[PART / 2] = {};
#pragma unroll
        for (int row = 0; row < ROWS; row += 16) {
            uint32_t some[4];
            ge2_mma_take<stored, LINES, true>(some, turned, line, row);
#pragma unroll
            for (int feature = 0; feature < PART; feature += 16) {
                uint32_t right[4];
                ge2_mma_take<stored, WIDTH, true>(right, rows, from + feature, row);
                K::multiply(*(float (*)[4])&total[feature / 2], some, right[0], right[2]);
                K::multiply(*(float (*)[4])&total[feature / 2 + 4], some, right[1], right[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < PART / 4; n++) {
            const int eight = n / 2, half = n % 2, at = eight * 4 + half * 2;
            const ge2_some<float, 2> both = {{total[at] * share, total[at + 1] * share}};
            *(uint32_t *)(lines + (line + half * 8 + lane / 4) * PITCH + (from + eight * 8 + lane % 4 * 2) * 2) = K::rounded(both);
        }
        __syncwarp();
#pragma unroll 4
        for (int piece = lane; piece < 16 * PIECES; piece += 32) {
            const int down = line + piece / PIECES, x = from + piece % PIECES * WIDE;
            if (down < left && x < width)
                *(ge2_piece<stored, WIDE> *)(to + down * (int64_t)step + x) = *(const ge2_piece<stored, WIDE> *)(lines + down * PITCH + x * 2);
        }
    }
}

#endif
