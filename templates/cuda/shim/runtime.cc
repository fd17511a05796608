/* Runs the blocks of a CUDA kernel on one thread of the CPU, each CUDA thread a fibre.
 *
 * A fibre runs until it waits for others (a barrier, a shuffle), pauses because it seems to spin, or ends. A block whose
 * fibres all wait for what other blocks do is left, and another is begun or gone on with; its shared memory is put aside.
 * What could never go on is reported, by line and thread, and ends the launch.
 */
#include "abi.h"
#include "fibre.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WARP = 32, RESIDENT = 32, WINDOW = 8, PATIENCE = 1 << 20 };
enum State { READY, PAUSED, AT_BARRIER, IN_WARP, ENDED };

struct Thread {
    Fibre fibre;
    State state;
    int index, effort; /* effort: how much it did that those who spin do */
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
};

static struct {
    ge2_shim_runtime runtime;
    const ge2_shim_module *module;
    const ge2_shim_kernel *kernel;
    void *const *arguments;
    Fibre home;
    Block *block, *loaded;
    Thread *thread;
    int size;
    size_t dynamic;
    uint64_t random;
    bool shuffled, failed;
    int idle; /* pauses since anything was achieved */
    unsigned char poison;
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
    if (!now.shuffled) return;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = drawn(i + 1);
        T kept = list[i];
        list[i] = list[j], list[j] = kept;
    }
}

/* ------------------------------------------------------------------------------------------------- reports */

enum { BARRIER_MISSED = 1, LANE_MISSING, STUCK, NO_MEMORY, OUT_OF_SHARED, STACK_USED_UP, ASKED };

__attribute__((format(printf, 4, 5))) static void report(int code, const char *site, const Thread *t, const char *words, ...) {
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

/* ------------------------------------------------------------------------------------------------- waiting */

static void leave(State state) {
    Thread *t = now.thread;
    t->state = state;
    go(t->fibre, now.home, state == ENDED);
}

static void wake(Block *b, Thread &t) {
    t.state = READY;
    b->next[b->next_count++] = t.index;
}

static void fail(const char *site, const char *what) {
    report(ASKED, site, now.thread, "%s", what);
    leave(ENDED);
}

static void effort(int weight) {
    Thread *t = now.thread;
    t->effort += weight;
    if (t->effort < GE2_SHIM_SLEEP) return;
    t->effort = 0;
    now.block->paused[now.block->paused_count++] = t->index;
    leave(PAUSED);
}

static uint64_t folded(ge2_shim_op op, uint64_t a, uint64_t b) {
    uint32_t x = a, y = b;
    switch (op) {
    case GE2_SHIM_BARRIER_COUNT:
    case GE2_SHIM_ADD: return x + y;
    case GE2_SHIM_MIN: return (int32_t)x < (int32_t)y ? x : y;
    case GE2_SHIM_MAX: return (int32_t)x > (int32_t)y ? x : y;
    case GE2_SHIM_UMIN: return x < y ? x : y;
    case GE2_SHIM_UMAX: return x > y ? x : y;
    case GE2_SHIM_ALL:
    case GE2_SHIM_BARRIER_AND:
    case GE2_SHIM_AND: return x & y;
    case GE2_SHIM_XOR: return x ^ y;
    default: return x | y;
    }
}

static bool same_site(const char *a, const char *b) {
    return a == b || (!strcmp(a, b) && !strcmp(a + strlen(a) + 1, b + strlen(b) + 1));
}

/* Lets those at the barrier go on, if all threads of the block are there. */
static void barrier_met(Block *b) {
    if (b->at_barrier == 0 || b->at_barrier < b->living) return;
    Thread *first = nullptr, *other = nullptr;
    for (int i = 0; i < now.size; i++) {
        Thread &t = b->threads[i];
        if (t.state == AT_BARRIER && !first) first = &t;
    }
    for (int i = 0; i < now.size && !other; i++) {
        Thread &t = b->threads[i];
        if (t.state != AT_BARRIER || t.op != first->op || !same_site(t.site, first->site)) other = &t;
    }
    if (other) {
        char text[256];
        report(BARRIER_MISSED, first->site, first, "%s is not reached by all threads of its block: %s",
               NAMES[first->op], place(*other, text));
        return;
    }
    uint64_t value = first->value;
    for (int i = 1; i < now.size; i++) value = folded(first->op, value, b->threads[i].value);
    b->at_barrier = 0;
    now.idle = 0;
    for (int i = 0; i < now.size; i++) {
        b->threads[i].value = value;
        wake(b, b->threads[i]);
    }
}

static int barrier(const char *site, ge2_shim_op op, int value) {
    Thread *t = now.thread;
    t->site = site, t->op = op, t->value = op == GE2_SHIM_BARRIER_COUNT || value == 0 ? value != 0 : 1;
    now.block->at_barrier++;
    t->effort = 0;
    t->state = AT_BARRIER;
    barrier_met(now.block);
    leave(t->state);
    return (int)t->value;
}

/* What each lane gets, once all are there. */
static void exchanged(Block *b, Thread *lanes, int count, unsigned mask, ge2_shim_op op) {
    uint64_t given[WARP], all = 0;
    bool first = true;
    for (int i = 0; i < count; i++) {
        if (!(mask >> i & 1) || lanes[i].state == ENDED) continue;
        given[i] = lanes[i].value;
        all = first ? given[i] : folded(op, all, given[i]);
        first = false;
    }
    for (int i = 0; i < count; i++) {
        Thread &t = lanes[i];
        if (!(mask >> i & 1) || t.state == ENDED) continue;
        uint64_t result = all;
        if (op == GE2_SHIM_SHUFFLE) {
            bool there = t.lane < count && (mask >> t.lane & 1) && lanes[t.lane].state != ENDED;
            if (!there)
                report(LANE_MISSING, t.site, &t, "%s(0x%08x) reads lane %d, which %s", NAMES[op], mask, t.lane,
                       t.lane >= count          ? "the block does not have"
                       : mask >> t.lane & 1     ? "has ended"
                                                : "is not in the mask");
            result = there ? given[t.lane] : 0;
        }
        if (op == GE2_SHIM_MATCH_ANY || op == GE2_SHIM_MATCH_ALL) {
            result = 0;
            for (int j = 0; j < count; j++)
                if ((mask >> j & 1) && lanes[j].state != ENDED && given[j] == given[i]) result |= uint64_t(1) << j;
        }
        t.value = result;
    }
    for (int i = 0; i < count; i++)
        if ((mask >> i & 1) && lanes[i].state != ENDED) wake(b, lanes[i]);
}

/* Lets the lanes of a mask go on, if all that live are there. */
static void warp_met(Block *b, const Thread &one) {
    int start = one.index / WARP * WARP;
    int count = now.size - start < WARP ? now.size - start : WARP;
    Thread *lanes = b->threads + start;
    for (int i = 0; i < count; i++) {
        Thread &t = lanes[i];
        if (!(one.mask >> i & 1) || t.state == ENDED) continue;
        if (t.state != IN_WARP || t.mask != one.mask || t.op != one.op) return;
    }
    exchanged(b, lanes, count, one.mask, one.op);
}

static uint64_t together(const char *site, ge2_shim_op op, unsigned mask, uint64_t value, int lane) {
    Thread *t = now.thread;
    effort(GE2_SHIM_TOGETHER);
    t->site = site, t->op = op, t->mask = mask, t->value = value, t->lane = lane;
    if (!(mask >> t->index % WARP & 1)) {
        report(LANE_MISSING, site, t, "%s(0x%08x) is called by lane %d, which is not in the mask", NAMES[op], mask,
               t->index % WARP);
        leave(ENDED);
    }
    t->state = IN_WARP;
    warp_met(now.block, *t);
    leave(t->state);
    return t->value;
}

/* Others may have waited for all but this thread. */
static void ended(Block *b, Thread &t) {
    b->living--;
    now.idle = 0;
    barrier_met(b);
    int start = t.index / WARP * WARP;
    for (int i = start; i < start + WARP && i < now.size; i++)
        if (b->threads[i].state == IN_WARP && (b->threads[i].mask >> t.index % WARP & 1)) warp_met(b, b->threads[i]);
}

static void entry() {
    arrived(now.home);
    now.kernel->call(now.arguments);
    leave(ENDED);
}

/* ------------------------------------------------------------------------------------------- shared memory */

static size_t shared_size() { return now.module->shared_end - now.module->shared; }

typedef uint64_t __attribute__((may_alias, aligned(1))) Word;

/* By hand: the sanitizer looks at each byte of a `memcpy`, and some of shared memory are its own. */
GE2_SHIM_RAW static void copy(char *to, const char *from, size_t size) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        *(Word *)(to + i) = *(const Word *)(from + i);
        asm volatile("" ::: "memory"); /* or the compiler would call `memcpy` */
    }
    for (; i < size; i++) to[i] = from[i];
}

GE2_SHIM_RAW static void fill(char *to, unsigned char byte, size_t size) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        *(Word *)(to + i) = byte * UINT64_C(0x0101010101010101);
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
        if (!old->aside) return report(NO_MEMORY, nullptr, nullptr, "there is no memory to put a block's shared memory aside");
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
        report(OUT_OF_SHARED, nullptr, &b->threads[0], "writes beyond the %zu bytes of shared memory that it was given", now.dynamic);
#else
    (void)b;
#endif
}

/* ------------------------------------------------------------------------------------------------- running */

static void run(Block *b, Thread &t) {
    if (!t.fibre.stack) {
        char *stack = now.stacks.take();
        if (!stack) return report(NO_MEMORY, nullptr, &t, "there is no memory for the stacks of threads");
        begin(t.fibre, stack, t.index, entry);
    }
    now.thread = &t;
    now.runtime.thread = t.at;
    now.runtime.lane = t.index % WARP;
    go(now.home, t.fibre, false);
    if (!whole(t.fibre))
        report(STACK_USED_UP, t.site, &t, "a thread has local variables beyond %zu bytes", (size_t)GE2_SHIM_STACK);
    if (t.state != ENDED) return;
    now.stacks.give(t.fibre.stack);
    t.fibre.stack = nullptr;
    ended(b, t);
}

/* Why the threads of a block cannot go on. */
static void stuck(Block *b) {
    for (int i = 0; i < now.size; i++) {
        Thread &t = b->threads[i];
        if (t.state != IN_WARP) continue;
        int start = i / WARP * WARP;
        for (int j = 0; j < WARP && start + j < now.size; j++) {
            Thread &u = b->threads[start + j];
            if (!(t.mask >> j & 1) || u.state == ENDED || (u.state == IN_WARP && u.mask == t.mask && u.op == t.op)) continue;
            char text[256];
            return report(LANE_MISSING, t.site, &t, "%s(0x%08x) waits for lane %d, but %s", NAMES[t.op], t.mask, j,
                          place(u, text));
        }
    }
    report(STUCK, nullptr, nullptr, "its threads wait for each other");
}

/* Runs all threads that can, in turns, until there are none or another block is due. True: the block has ended. */
static bool run_block(Block *b, bool alone) {
    now.block = b;
    now.runtime.block = b->at;
    load(b);
    while (!now.failed) {
        int *list = b->next;
        b->next = b->ready, b->ready = list;
        b->ready_count = b->next_count, b->next_count = 0;
        if (b->ready_count == 0) {
            if (b->living == 0) return true;
            if (b->paused_count == 0) {
                stuck(b);
                break;
            }
            for (int i = 0; i < b->paused_count; i++) wake(b, b->threads[b->paused[i]]);
            b->paused_count = 0;
            now.idle += b->next_count;
            if (now.idle > PATIENCE) report(STUCK, nullptr, &b->threads[b->next[0]], "threads wait for what never comes");
            return false;
        }
        shuffle(b->ready, b->ready_count);
        for (int i = 0; i < b->ready_count && !now.failed; i++) run(b, b->threads[b->ready[i]]);
        if (now.shuffled && !alone && b->living && drawn(8) == 0) return false;
    }
    return false;
}

static void *memory(size_t count, size_t size) {
    void *at = calloc(count ? count : 1, size);
    if (!at) report(NO_MEMORY, nullptr, nullptr, "there is no memory for the threads of a block");
    return at;
}

static Block *made() {
    Block *b = (Block *)memory(1, sizeof(Block));
    if (!b) return nullptr;
    b->threads = (Thread *)memory(now.size, sizeof(Thread));
    b->ready = (int *)memory(now.size, sizeof(int));
    b->next = (int *)memory(now.size, sizeof(int));
    b->paused = (int *)memory(now.size, sizeof(int));
    return b;
}

static void start(Block *b, uint64_t number) {
    dim3 g = now.runtime.grid_size, s = now.runtime.block_size;
    b->at = {unsigned(number % g.x), unsigned(number / g.x % g.y), unsigned(number / g.x / g.y)};
    b->ready_count = b->next_count = b->paused_count = b->at_barrier = 0;
    b->living = now.size;
    b->begun = false;
    if (now.loaded == b) now.loaded = nullptr; /* what its predecessor left in shared memory is nobody's */
    for (int i = 0; i < now.size; i++) {
        Thread &t = b->threads[i];
        t.index = i, t.site = nullptr, t.effort = 0;
        t.at = {i % s.x, i / s.x % s.y, i / s.x / s.y};
        wake(b, t);
    }
}

static void freed(Block *b) {
    if (!b) return;
    for (int i = 0; b->threads && i < now.size; i++)
        if (b->threads[i].fibre.stack) now.stacks.give(b->threads[i].fibre.stack);
    free(b->threads), free(b->ready), free(b->next), free(b->paused), free(b->aside);
    free(b);
}

/* Blocks are begun in their order, or shuffled a few at a time, so that one that waits for those before it finds them. */
static void run_grid(uint64_t total) {
    Block *resident[RESIDENT] = {}, *spare = nullptr;
    uint64_t window[WINDOW], begun = 0;
    int count = 0, at = 0;
    bool more = true; /* another block is to be begun */
    while (!now.failed && (count || begun < total)) {
        if (begun < total && count < RESIDENT && (more || count == 0)) {
            if (begun % WINDOW == 0) {
                int size = total - begun < WINDOW ? int(total - begun) : int(WINDOW);
                for (int i = 0; i < size; i++) window[i] = begun + i;
                shuffle(window, size);
            }
            Block *b = spare ? spare : made();
            spare = nullptr;
            if (now.failed) return freed(b);
            start(b, window[begun++ % WINDOW]);
            at = count;
            resident[count++] = b;
        } else {
            at = now.shuffled ? int(drawn(count)) : (at + 1) % count;
        }
        Block *b = resident[at];
        more = false;
        if (!run_block(b, total == 1)) {
            more = b->living && (now.idle > 0 || count < 4);
            continue;
        }
        check_shared(b);
        if (now.loaded == b) now.loaded = nullptr;
        resident[at] = resident[--count];
        if (spare) freed(spare);
        spare = b;
    }
    for (int i = 0; i < count; i++) freed(resident[i]);
    freed(spare);
}

extern "C" __attribute__((visibility("default"))) int ge2_shim_launch(
    const ge2_shim_module *module, const ge2_shim_kernel *kernel, void *const *arguments, const uint32_t *grid,
    const uint32_t *block, uint64_t dynamic, uint64_t seed, ge2_shim_report *told) {
    memset(told, 0, sizeof *told);
    now.module = module;
    now.kernel = kernel;
    now.arguments = arguments;
    now.block = now.loaded = nullptr;
    now.thread = nullptr;
    now.home = {};
    now.size = block[0] * block[1] * block[2];
    now.dynamic = dynamic;
    now.random = seed * 0x2545f4914f6cdd1d;
    now.shuffled = seed != 0;
    now.failed = false;
    now.idle = 0;
    static const unsigned char POISON[] = {0xff, 0x7f, 0xa5, 0x5a};
    now.poison = POISON[seed % 4];
    now.report = told;
    now.runtime = {{}, {}, {block[0], block[1], block[2]}, {grid[0], grid[1], grid[2]}, 0, barrier, together, effort, fail};
    *module->runtime = &now.runtime;
#ifdef GE2_SHIM_ASAN
    __asan_set_error_report_callback(told_by_sanitizer);
    __asan_unpoison_memory_region(module->dynamic, dynamic);
    __asan_poison_memory_region(module->dynamic + (dynamic + 7) / 8 * 8, module->dynamic_size - (dynamic + 7) / 8 * 8);
#else
    fill(module->dynamic + dynamic, now.poison, margin());
#endif
    run_grid((uint64_t)grid[0] * grid[1] * grid[2]);
#ifdef GE2_SHIM_ASAN
    __asan_set_error_report_callback(nullptr);
#endif
    return told->code;
}
