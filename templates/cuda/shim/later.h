/* What goes on beside the threads, where accesses are watched: it is done as late as it may be. */
#ifndef GE2_SHIM_LATER_H
#define GE2_SHIM_LATER_H

#include "waiting.h"

static void keep(Laters &all, uint32_t group, void (*does)(const void *), const void *data, size_t size) {
    if (all.count == all.room) {
        const uint32_t room = all.room ? all.room * 2 : 16;
        Later *more = size > sizeof more->data ? nullptr : (Later *)realloc(all.list, room * sizeof(Later));
        if (!more) return report(NO_MEMORY, nullptr, now.thread, "there is no memory for what is done later");
        all.list = more, all.room = room;
    }
    Later &one = all.list[all.count++];
    one.does = does, one.group = group, one.size = size;
    memcpy(one.data, data, size);
}

static void later(ge2_shim_channel channel, void (*does)(const void *), const void *data, size_t size) {
    Laters &all = now.thread->laters[channel];
    keep(all, all.group, does, data, size);
}

static void group(ge2_shim_channel channel) { now.thread->laters[channel].group++; }

/* A warp group multiplies as one: no thread goes on before all have their sums. */
static void multiplied() {
    const int start = now.thread->index / MATES * MATES, left = now.size - start;
    Meeting &m = now.block->multiplying[start / MATES];
    const int number = m.number;
    if (++m.here == (left < MATES ? left : +MATES)) m.here = 0, m.number++, now.idle = 0;
    while (m.number == number && !now.failed) effort(GE2_SHIM_SLEEP);
}

/* Does all of a thread's groups but the last few; with -1 what no group has, too. What is done may switch fibers. */
static void wait(ge2_shim_channel channel, int few) {
    Laters &all = now.thread->laters[channel];
    uint32_t done = 0;
    for (; done < all.count && (int64_t)all.list[done].group < (int64_t)all.group - few; done++) {
        const Later one = all.list[done];
        one.does(one.data);
    }
    memmove(all.list, all.list + done, (all.count - done) * sizeof(Later));
    all.count -= done;
    if (channel == GE2_SHIM_PRODUCTS) multiplied();
}

static void bring(uint32_t barrier, void (*does)(const void *), const void *data, size_t size) {
    keep(now.block->brought, barrier, does, data, size);
}

static void come(uint32_t barrier) {
    Laters &all = now.block->brought;
    uint32_t left = 0;
    for (uint32_t n = 0; n < all.count; n++) {
        const Later one = all.list[n];
        if (one.group == barrier) one.does(one.data);
        else all.list[left++] = one;
    }
    all.count = left;
}

#endif
