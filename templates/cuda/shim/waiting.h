/* How threads wait for each other: at barriers, in shuffles and votes, and by looking again and again. */
#ifndef GE2_SHIM_WAITING_H
#define GE2_SHIM_WAITING_H

#include "state.h"

static void leave(State state) {
    Thread *t = now.thread;
    t->state = state;
    go(t->fiber, now.home, state == ENDED);
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

static void fence() {
    now.fenced = now.block->fenced = true;
    effort(GE2_SHIM_FENCE);
}

static void next_phase(Block *b) {
    b->phase = ++now.phases;
    b->fenced = false;
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
    next_phase(b);
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

/* All threads of the grid meet. Accesses before are set apart from those after. */
static void grid(const char *site) {
    barrier(site, GE2_SHIM_BARRIER, 0);
    if (now.thread->index == 0) {
        const uint64_t meeting = now.meetings;
        if (++now.met == now.blocks) {
            now.met = 0, now.meetings++;
            now.since = now.phases + 1;
            now.idle = 0;
        }
        while (now.meetings == meeting && !now.failed) effort(GE2_SHIM_SLEEP);
    }
    barrier(site, GE2_SHIM_BARRIER, 0);
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
    uint16_t turn = 0;
    for (int i = 0; i < count; i++)
        if ((mask >> i & 1) && lanes[i].turn > turn) turn = lanes[i].turn;
    for (int i = 0; i < count; i++) {
        if (!(mask >> i & 1) || lanes[i].state == ENDED) continue;
        if (op == GE2_SHIM_SYNC) lanes[i].turn = turn + 1;
        wake(b, lanes[i]);
    }
}

/* Lets the lanes of a mask go on, if all that live are there. */
static void warp_met(Block *b, const Thread &one) {
    int start = one.index / WARP * WARP;
    int count = now.size - start < WARP ? now.size - start : WARP;
    Thread *lanes = b->threads + start;
    for (int n = 1; n < count; n++) { /* the lane after this one is most often yet to come */
        const int i = (one.index - start + n) % count;
        const Thread &t = lanes[i];
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

#endif
