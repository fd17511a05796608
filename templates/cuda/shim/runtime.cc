/* Runs the blocks of a CUDA kernel on one thread of the CPU, each CUDA thread a fiber.
 *
 * A fiber runs until it waits for others (a barrier, a shuffle), pauses because it seems to spin, or ends. A block
 * whose fibers all wait for what other blocks do is left, and another is run; its shared memory is put aside.
 * What could never go on is reported, by line and thread, and ends the launch.
 */
#include "touch.h"

static void entry() {
    arrived(now.home);
    now.kernel->call(now.arguments);
    leave(ENDED);
}

static void run(Block *b, Thread &t) {
    if (!t.fiber.stack) {
        char *stack = now.stacks.take();
        if (!stack) return report(NO_MEMORY, nullptr, &t, "there is no memory for the stacks of threads");
        begin(t.fiber, stack, t.index, entry);
    }
    now.thread = &t;
    now.runtime.thread = t.at;
    now.runtime.lane = t.index % WARP;
    go(now.home, t.fiber, false);
    if ((t.state == ENDED || low(t.fiber)) && !whole(t.fiber))
        report(STACK_USED_UP, t.site, &t, "a thread has local variables beyond %zu bytes", (size_t)GE2_SHIM_STACK);
    if (t.state != ENDED) return;
    if (now.launch->waits && !t.waited)
        report(EARLY, nullptr, &t, "a thread ends and has not waited for the kernels before this one");
    now.stacks.give(t.fiber.stack);
    t.fiber.stack = nullptr;
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
            if (!(t.mask >> j & 1) || u.state == ENDED) continue;
            if (u.state == IN_WARP && u.mask == t.mask && u.op == t.op) continue;
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
            if (now.idle > PATIENCE)
                report(STUCK, nullptr, &b->threads[b->next[0]], "threads wait for what never comes");
            return false;
        }
        shuffle(b->ready, b->ready_count);
        for (int i = 0; i < b->ready_count && !now.failed; i++) {
            if (i + 1 < b->ready_count) fetch(b->threads[b->ready[i + 1]].fiber);
            run(b, b->threads[b->ready[i]]);
        }
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
    size_t words = words_of(shared_size()) + words_of(now.dynamic);
    b->words = now.launch->watched ? (Word *)memory(words, sizeof(Word)) : nullptr;
    return b;
}

static void start(Block *b, uint64_t number) {
    dim3 g = now.runtime.grid_size, s = now.runtime.block_size;
    b->at = {unsigned(number % g.x), unsigned(number / g.x % g.y), unsigned(number / g.x / g.y)};
    b->ready_count = b->next_count = b->paused_count = b->at_barrier = 0;
    b->living = now.size;
    b->begun = false;
    b->brought.count = 0;
    for (Meeting &each : b->multiplying) each = {};
    b->number = number + 1;
    next_phase(b);
    if (now.loaded == b) now.loaded = nullptr; /* what its predecessor left in shared memory is nobody's */
    for (int i = 0; i < now.size; i++) {
        Thread &t = b->threads[i];
        for (Laters &each : t.laters) each.count = each.group = 0;
        t.index = i, t.site = nullptr, t.effort = 0, t.turn = 0, t.waited = false;
        t.at = {i % s.x, i / s.x % s.y, i / s.x / s.y};
        wake(b, t);
    }
}

static void freed(Block *b) {
    if (!b) return;
    for (int i = 0; b->threads && i < now.size; i++)
        if (b->threads[i].fiber.stack) now.stacks.give(b->threads[i].fiber.stack);
    for (int i = 0; b->threads && i < now.size; i++)
        for (Laters &each : b->threads[i].laters) free(each.list);
    free(b->threads), free(b->ready), free(b->next), free(b->paused), free(b->aside), free(b->words), free(b->brought.list);
    free(b);
}

/* The order in which blocks are begun: that of their numbers, the last first, or any: by an even seed among neighbours,
 * eight at a time, by an odd one far apart, since members of a bundle have the blocks of one after those of another. As
 * soon as a block waits for others the first of those that are left is next, so that it finds all before it. */
struct Order {
    uint64_t total, begun, first, step, start;
    bool far;
    unsigned char *done; /* a bit a block; none where they begin in their order */
    uint64_t window[WINDOW];
};

static uint64_t divisor(uint64_t a, uint64_t b) { return b ? divisor(b, a % b) : a; }

static bool ordered(Order &o, uint64_t total) {
    o = {};
    o.total = total;
    if (!now.shuffled && !now.reversed) return true;
    o.far = now.shuffled && now.launch->seed % 2;
    for (o.step = total * 5 / 8 | 1; o.far && divisor(o.step, total) != 1;) o.step++;
    o.start = o.far ? drawn(total) : 0;
    o.done = (unsigned char *)memory(total / 8 + 1, 1);
    return o.done != nullptr;
}

/* The block that is begun as number `k`, were there none that waits. */
static uint64_t wanted(Order &o, uint64_t k) {
    if (now.reversed) return o.total - 1 - k;
    if (o.far) return (o.start + k % o.total * o.step) % o.total;
    if (k % WINDOW == 0) {
        int size = o.total - k < WINDOW ? int(o.total - k) : int(WINDOW);
        for (int i = 0; i < size; i++) o.window[i] = k + i;
        shuffle(o.window, size);
    }
    return o.window[k % WINDOW];
}

static uint64_t next(Order &o, uint64_t &k) {
    if (!o.done) return o.begun++;
    o.begun++;
    uint64_t n = 0;
    if (now.idle > 0) {
        while (o.done[o.first / 8] >> o.first % 8 & 1) o.first++;
        n = o.first;
    } else {
        do n = wanted(o, k++);
        while (o.done[n / 8] >> n % 8 & 1);
    }
    o.done[n / 8] |= 1 << n % 8;
    return n;
}

static void run_grid(uint64_t total) {
    Block *resident[RESIDENT] = {}, *spare = nullptr;
    Order order;
    uint64_t drawn_so_far = 0;
    int count = 0, at = 0;
    bool more = ordered(order, total); /* another block is to be begun */
    while (!now.failed && (count || order.begun < total)) {
        if (order.begun < total && count < RESIDENT && (more || count == 0)) {
            Block *b = spare ? spare : made();
            spare = nullptr;
            if (now.failed) {
                freed(b);
                break;
            }
            start(b, next(order, drawn_so_far));
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
    free(order.done);
}

extern "C" __attribute__((visibility("default"))) int ge2_shim_launch(
    const ge2_shim_module *module, const ge2_shim_kernel *kernel, void *const *arguments,
    const ge2_shim_launch_of *launch, ge2_shim_report *told) {
    const uint32_t *grid_of = launch->grid, *block = launch->block;
    const uint64_t dynamic = launch->dynamic, seed = launch->seed;
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
    now.reversed = seed == LAST_FIRST;
    now.shuffled = seed && !now.reversed;
    now.failed = false;
    now.idle = 0;
    now.fenced = false;
    now.phases = 0;
    now.since = 1;
    now.blocks = (uint64_t)grid_of[0] * grid_of[1] * grid_of[2];
    now.met = now.meetings = 0;
    now.launch = launch;
    static const unsigned char POISON[] = {0xff, 0x7f, 0xa5, 0x5a};
    now.poison = POISON[seed % 4];
    now.report = told;
    now.runtime = {{}, {}, {block[0], block[1], block[2]}, {grid_of[0], grid_of[1], grid_of[2]}, 0, 
                   barrier, together, effort, fence, grid, touch, fail, wrong, waited,
                   later, group, wait, bring, come};
    *module->runtime = &now.runtime;
#ifdef GE2_SHIM_ASAN
    __asan_set_error_report_callback(told_by_sanitizer);
    __asan_unpoison_memory_region(module->dynamic, dynamic);
    __asan_poison_memory_region(module->dynamic + (dynamic + 7) / 8 * 8, module->dynamic_size - (dynamic + 7) / 8 * 8);
#else
    fill(module->dynamic + dynamic, now.poison, margin());
#endif
    run_grid(now.blocks);
    now.pages.forget();
#ifdef GE2_SHIM_ASAN
    __asan_set_error_report_callback(nullptr);
#endif
    return told->code;
}
