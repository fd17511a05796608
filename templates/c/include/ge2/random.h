/* Random bits as a pure function of a key: the counter-based generator Philox4x32-10.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
 * A block of four words depends on the key and its own number alone: any part of a stream is made anywhere, alike.
 */
#ifndef GE2_RANDOM_H
#define GE2_RANDOM_H

#include "core.h"

enum { GE2_RANDOM_BITS = 0 }; /* the last word of the counter says what for */

typedef struct {
    uint32_t a, b, c, d;
} ge2_block;

GE2_FN ge2_block ge2_philox(ge2_block x, uint32_t k0, uint32_t k1) {
    for (int turn = 0; turn < 10; turn++, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
        const uint64_t p = (uint64_t)x.a * 0xD2511F53, q = (uint64_t)x.c * 0xCD9E8D57;
        x = (ge2_block){(uint32_t)(q >> 32) ^ x.b ^ k0, (uint32_t)q, (uint32_t)(p >> 32) ^ x.d ^ k1, (uint32_t)p};
    }
    return x;
}

/* A new key, its first word the low one; other keys for each `purpose`. */
GE2_FN uint64_t ge2_random_fold(uint32_t k0, uint32_t k1, uint32_t data, uint32_t purpose) {
    const ge2_block x = ge2_philox((ge2_block){data, 0, 0, purpose}, k0, k1);
    return x.a | (uint64_t)x.b << 32;
}

GE2_FN ge2_block ge2_random_block(uint32_t k0, uint32_t k1, uint64_t number) {
    return ge2_philox((ge2_block){(uint32_t)number, (uint32_t)(number >> 32), 0, GE2_RANDOM_BITS}, k0, k1);
}

/* The bytes first, ..., first + count - 1 of the stream of a key, low parts of words first. */
GE2_FN void ge2_random_bytes(uint32_t k0, uint32_t k1, uint64_t first, uint64_t count, char *out) {
    enum { BLOCKS = 64 };
    uint32_t words[4 * BLOCKS];
    while (count) {
        const uint64_t skipped = first % 16, left = sizeof words - skipped, size = count < left ? count : left;
        const uint64_t number = first / 16, blocks = (skipped + size + 15) / 16;
        _Pragma("omp simd")
        for (uint64_t i = 0; i < blocks; i++) {
            const ge2_block x = ge2_random_block(k0, k1, number + i);
            words[4 * i] = x.a, words[4 * i + 1] = x.b, words[4 * i + 2] = x.c, words[4 * i + 3] = x.d;
        }
        memcpy(out, (const char *)words + skipped, size);
        first += size, count -= size, out += size;
    }
}

/* ge2_random_bits_u32: element i of a stream, within any loop. ge2_random_fill_u32: a row of them, at a quarter of the
 * cost of one after the other. */
#define GE2_RANDOM(t, T) \
    GE2_FN T ge2_random_bits_##t(uint32_t k0, uint32_t k1, uint64_t i) { \
        const uint64_t bit = i * sizeof(T) % 16 * 8; \
        const ge2_block x = ge2_random_block(k0, k1, i * sizeof(T) / 16); \
        const uint64_t low = x.a | (uint64_t)x.b << 32, high = x.c | (uint64_t)x.d << 32; \
        return (T)((bit < 64 ? low : high) >> bit % 64); \
    } \
    GE2_FN void ge2_random_fill_##t(uint32_t k0, uint32_t k1, uint64_t first, uint64_t count, T *out) { \
        ge2_random_bytes(k0, k1, first * sizeof(T), count * sizeof(T), (char *)out); \
    }

GE2_FOR(GE2_RANDOM, u8, uint8_t)
GE2_FOR(GE2_RANDOM, u16, uint16_t)
GE2_FOR(GE2_RANDOM, u32, uint32_t)
GE2_FOR(GE2_RANDOM, u64, uint64_t)

#endif
