/* Threads, blocks, and what runs now; and how what is wrong is put into words. */
#ifndef GE2_SHIM_STATE_H
#define GE2_SHIM_STATE_H

#include "abi.h"
#include "fiber.h"
#include "watch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WARP = 32, MATES = 4 * WARP, RESIDENT = 256, WINDOW = 8, PATIENCE = 1 << 20, LAST_FIRST = 1 };
enum State { READY, PAUSED, AT_BARRIER, IN_WARP, ENDED };

/* Something that is done later. `group`: its number in its thread's channel, or its barrier. */
struct Later {
    void (*does)(const void *);
    uint32_t group, size;
    char data[176];
};

struct Laters {
    Later *list;
    uint32_t count, room, group;
};

/* Where the threads of a warp group meet, and how often they have. */
struct Meeting {
    int here, number;
};

struct Thread {
    Fiber fiber;
    Laters laters[GE2_SHIM_CHANNELS];
    State state;
    int index, effort; /* effort: how much it did that those who spin do */
    uint16_t turn;
    bool waited; /* for the kernels before this one */
    const char *site;  /* where it waits */
    uint3 at;
    ge2_shim_op op;
    unsigned mask;
    int lane; /* that a shuffle reads */
    uint64_t value;
};

struct Block {
    uint3 at;
    Thread *threads;
    int *ready, *next, *paused; /* numbers of threads */
    int ready_count, next_count, paused_count;
    int living, at_barrier;
    bool begun;
    char *aside; /* its shared memory, while another block runs */
    uint32_t number, phase;
    bool fenced; /* in this phase */
    Laters brought; /* by copies that barriers tell of */
    Meeting multiplying[1024 / MATES];
    Word *words; /* of its shared memory, where accesses are watched */
};

static struct {
    ge2_shim_runtime runtime;
    const ge2_shim_module *module;
    const ge2_shim_kernel *kernel;
    void *const *arguments;
    Fiber home;
    Block *block, *loaded;
    Thread *thread;
    int size;
    size_t dynamic;
    uint64_t random;
    bool shuffled, reversed, failed;
    int idle; /* pauses since anything was achieved */
    unsigned char poison;
    bool fenced;
    uint32_t phases, since; /* since: the phase before which all blocks have met */
    uint64_t blocks, met, meetings; /* how many there are, and have come to the next meeting; meetings so far */
    Pages pages;
    const ge2_shim_launch_of *launch;
    ge2_shim_report *report;
    Stacks stacks;
} now;

static const char *const NAMES[] = {
    "__syncwarp", "__shfl_sync", "__ballot_sync", "__any_sync", "__all_sync", "__match_any_sync", "__match_all_sync",
    "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync",
    "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or",
};

static uint64_t drawn(uint64_t below) {
    uint64_t x = now.random += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (x ^ (x >> 31)) % below;
}

template <class T>
static void shuffle(T *list, int64_t count) {
    for (int64_t i = 0; now.reversed && i < count / 2; i++) {
        T kept = list[i];
        list[i] = list[count - 1 - i], list[count - 1 - i] = kept;
    }
    if (!now.shuffled) return;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = drawn(i + 1);
        T kept = list[i];
        list[i] = list[j], list[j] = kept;
    }
}

enum { BARRIER_MISSED = 1, LANE_MISSING, STUCK, NO_MEMORY, OUT_OF_SHARED, STACK_USED_UP, ASKED, MISPLACED, RACE, EARLY, AWAITED };

__attribute__((format(printf, 4, 5)))
static void report(int code, const char *site, const Thread *t, const char *words, ...) {
    if (now.failed) return;
    now.failed = true;
    now.report->code = code;
    if (site) snprintf(now.report->site, sizeof now.report->site, "%s", site);
    if (now.block) now.report->block = now.block->at;
    now.report->has_thread = t != nullptr;
    if (t) now.report->thread = t->at;
    va_list list;
    va_start(list, words);
    vsnprintf(now.report->text, sizeof now.report->text, words, list);
    va_end(list);
}

static const char *place(const Thread &t, char (&text)[256]) {
    uint3 p = t.at;
    int size = snprintf(text, sizeof text, "thread (%u, %u, %u) ", p.x, p.y, p.z);
    char *rest = text + size;
    size_t room = sizeof text - size;
    if (t.state == ENDED) snprintf(rest, room, "has ended");
    else if (t.state == IN_WARP) snprintf(rest, room, "waits in %s(0x%08x) at %s", NAMES[t.op], t.mask, t.site);
    else if (t.state == AT_BARRIER) snprintf(rest, room, "waits in %s at %s", NAMES[t.op], t.site);
    else snprintf(rest, room, "runs");
    return text;
}

#ifdef GE2_SHIM_ASAN
/* The sanitizer knows neither blocks nor threads. */
static void told_by_sanitizer(const char *) {
    uint3 b = now.runtime.block, t = now.runtime.thread;
    const char *site = now.thread && now.thread->site ? now.thread->site : "its beginning";
    fprintf(stderr, "in %s, block (%u, %u, %u), thread (%u, %u, %u), after %s\n", now.kernel->name, b.x, b.y, b.z, t.x,
            t.y, t.z, site);
}
#endif

#endif
