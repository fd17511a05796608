/* Random bits as a pure function of a key: the counter-based generator Philox4x32-10.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
 * A block of four words depends on the key and its own number alone: any part of a stream is made anywhere, alike.
 */
#ifndef GE2_RANDOM_CUH
#define GE2_RANDOM_CUH

#include "ge2/core.cuh"

enum { GE2_RANDOM_BITS = 0 }; /* the last word of the counter says what for */

struct alignas(16) ge2_block {
    uint32_t a, b, c, d;
};

GE2_FN ge2_block ge2_philox(ge2_block x, uint32_t k0, uint32_t k1) {
    for (int turn = 0; turn < 10; turn++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t p = (uint64_t)x.a * 0xD2511F53u, q = (uint64_t)x.c * 0xCD9E8D57u;
        x = {(uint32_t)(q >> 32) ^ x.b ^ k0, (uint32_t)q, (uint32_t)(p >> 32) ^ x.d ^ k1, (uint32_t)p};
    }
    return x;
}

/* A new key, its first word the low one; other keys for each `purpose`. */
GE2_FN uint64_t ge2_random_fold(uint32_t k0, uint32_t k1, uint32_t data, uint32_t purpose) {
    const ge2_block x = ge2_philox({data, 0, 0, purpose}, k0, k1);
    return x.a | (uint64_t)x.b << 32;
}

GE2_FN ge2_block ge2_random_block(uint32_t k0, uint32_t k1, uint64_t number) {
    return ge2_philox({(uint32_t)number, (uint32_t)(number >> 32), 0, GE2_RANDOM_BITS}, k0, k1);
}

/* ge2_random_of_block_u32: element i of a block that holds it, 0 <= i < 4; of u8 there are 16. A thread that makes
 * several neighbours asks for their block once. ge2_random_bits_u32: element i of a stream, by itself. */
#define GE2_RANDOM(t, T) \
    GE2_FN T ge2_random_of_block_##t(ge2_block x, int i) { \
        const int bit = i * (int)sizeof(T) * 8; \
        const uint64_t low = x.a | (uint64_t)x.b << 32, high = x.c | (uint64_t)x.d << 32; \
        return (T)((bit < 64 ? low : high) >> (bit & 63)); \
    } \
    GE2_FN T ge2_random_bits_##t(uint32_t k0, uint32_t k1, uint64_t i) { \
        const uint64_t each = 16 / sizeof(T); \
        return ge2_random_of_block_##t(ge2_random_block(k0, k1, i / each), (int)(i % each)); \
    }

GE2_RANDOM(u8, uint8_t)
GE2_RANDOM(u16, uint16_t)
GE2_RANDOM(u32, uint32_t)
GE2_RANDOM(u64, uint64_t)

#endif
