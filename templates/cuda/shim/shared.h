/* Shared memory: junk at first, and put aside where another block runs. */
#ifndef GE2_SHIM_SHARED_H
#define GE2_SHIM_SHARED_H

#include "state.h"

static size_t shared_size() { return now.module->shared_end - now.module->shared; }

static size_t words_of(size_t bytes) { return bytes / 4 + 1; }

typedef uint64_t __attribute__((may_alias, aligned(1))) Eight;

/* By hand: the sanitizer looks at each byte of a `memcpy`, and some of shared memory are its own. */
GE2_SHIM_RAW static void copy(char *to, const char *from, size_t size) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        *(Eight *)(to + i) = *(const Eight *)(from + i);
        asm volatile("" ::: "memory"); /* or the compiler would call `memcpy` */
    }
    for (; i < size; i++) to[i] = from[i];
}

GE2_SHIM_RAW static void fill(char *to, unsigned char byte, size_t size) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        *(Eight *)(to + i) = byte * UINT64_C(0x0101010101010101);
        asm volatile("" ::: "memory");
    }
    for (; i < size; i++) to[i] = (char)byte;
}

GE2_SHIM_RAW static bool untouched(const char *at, unsigned char byte, size_t size) {
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)at[i] != byte) return false;
    return true;
}

enum : size_t { MARGIN = 4096 }; /* beyond what was asked for, that is looked at */

static size_t margin() {
    size_t left = now.module->dynamic_size - now.dynamic;
    return left < MARGIN ? left : MARGIN;
}

static void load(Block *b) {
    if (now.loaded == b) return;
    char *fixed = now.module->shared, *dynamic = now.module->dynamic;
    size_t size = shared_size();
    if (now.loaded && size + now.dynamic) {
        Block *old = now.loaded;
        if (!old->aside) old->aside = (char *)malloc(size + now.dynamic);
        if (!old->aside) return report(NO_MEMORY, nullptr, nullptr, "there is no memory for a block's shared memory");
        copy(old->aside, fixed, size);
        copy(old->aside + size, dynamic, now.dynamic);
    }
    now.loaded = b;
    if (b->begun && b->aside) {
        copy(fixed, b->aside, size);
        copy(dynamic, b->aside + size, now.dynamic);
    } else {
        fill(fixed, now.poison, size);
        fill(dynamic, now.poison, now.dynamic);
    }
    b->begun = true;
}

static void check_shared(Block *b) {
#ifndef GE2_SHIM_ASAN
    if (!untouched(now.module->dynamic + now.dynamic, now.poison, margin()))
        report(OUT_OF_SHARED, nullptr, &b->threads[0], "writes beyond the %zu bytes of shared memory that it was given",
               now.dynamic);
#else
    (void)b;
#endif
}

#endif
