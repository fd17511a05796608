/* What is done at each access to memory, where the source was compiled so that accesses are shown. */
#ifndef GE2_SHIM_TOUCH_H
#define GE2_SHIM_TOUCH_H

#include "later.h"
#include "shared.h"

static const char *what(int how) { return how & GE2_SHIM_WRITE ? "writes" : "reads"; }

/* Where memory is, in the words of the kernel's author. */
static const char *named(const char *at, char (&text)[128]) {
    const ge2_shim_module *m = now.module;
    if (size_t(at - m->shared) < shared_size())
        snprintf(text, sizeof text, "byte %zu of static shared memory", size_t(at - m->shared));
    else if (size_t(at - m->dynamic) < m->dynamic_size)
        snprintf(text, sizeof text, "byte %zu of dynamic shared memory", size_t(at - m->dynamic));
    else {
        const ge2_shim_span *nearest = nullptr;
        size_t distance = 0;
        for (int i = 0; i < now.launch->span_count; i++) {
            const ge2_shim_span &s = now.launch->spans[i];
            size_t d = at < s.begin ? s.begin - at : at >= s.end ? at - s.end + 1 : 0;
            if (!nearest || d < distance) nearest = &s, distance = d;
        }
        if (nearest)
            snprintf(text, sizeof text, "byte %lld of argument %d", (long long)(at - nearest->begin),
                     (int)nearest->argument);
        else
            snprintf(text, sizeof text, "address %p", (const void *)at);
    }
    return text;
}

__attribute__((noreturn)) static void stop() {
    leave(ENDED);
    abort();
}

static uint64_t code_at(const void *code) { return (const char *)code - now.module->code; }

static void seen(Word *word, const char *at, size_t size, int how, const void *code, bool free_blocks) {
    Block *b = now.block;
    Thread *t = now.thread;
    const char *end = at + size;
    Access own = {b->phase, b->number, (uint32_t)code_at(code), (uint16_t)t->index, t->turn, 0, (uint8_t)(how & 23)};
    for (const char *from = at; from < end; word++) {
        const char *until = from - (uintptr_t)from % 4 + 4;
        if (until > end) until = end;
        own.bytes = 0;
        for (const char *p = from; p < until; p++) own.bytes |= 1 << (uintptr_t)p % 4;
        const Access old = word->write;
        if (old.how & GE2_SHIM_AWAITED && old.block == b->number && !(how & GE2_SHIM_BROUGHT)) {
            char text[128];
            report(AWAITED, nullptr, t, "%s %s, which a copy is yet to bring: its thread has not waited for it", what(how),
                   named(from, text));
            now.report->code_at[0] = code_at(code), now.report->code_at[1] = old.code;
            stop();
        }
        const Access *other = noted(*word, own, now.since, free_blocks);
        if (other && !b->fenced) {
            char text[128];
            char whose[32] = "another thread";
            if (other->block != b->number) snprintf(whose, sizeof whose, "a thread of block %u", other->block - 1);
            report(RACE, nullptr, t, "%s %s, which %s %s; no barrier sets them apart", what(how), named(from, text),
                   whose, what(other->how));
            now.report->code_at[0] = code_at(code), now.report->code_at[1] = other->code;
            stop();
        }
        from = until;
    }
}

static void waited() { now.thread->waited = true; }

/* Of memory that the kernels before this one may still use. */
static void early(const char *at, size_t size, int how, const void *code) {
    char text[128];
    report(EARLY, nullptr, now.thread, "%s %zu bytes at %s, before it waits for the kernels before this one", what(how),
           size, named(at, text));
    now.report->code_at[0] = code_at(code);
    stop();
}

static void misplaced(const char *at, size_t size, int how, const void *code, const char *why) {
    char text[128];
    report(MISPLACED, nullptr, now.thread, "%s %zu bytes at %s, %s", what(how), size, named(at, text), why);
    now.report->code_at[0] = code_at(code);
    stop();
}

/* Shown before each access, where the source was compiled so. */
static void touch(const volatile void *place, size_t size, int how, const void *code) {
    const char *at = (const char *)place;
    const ge2_shim_module *m = now.module;
    Block *b = now.block;
    Thread *t = now.thread;
    if (size_t(at - t->fiber.stack) < t->fiber.size) return;
    if (size_t(at - (const char *)&now) < sizeof now) return;
    if (how & GE2_SHIM_VOLATILE) effort(GE2_SHIM_ATOMIC);
    if (how & GE2_SHIM_ALIGNED && (uintptr_t)at % size)
        misplaced(at, size, how, code, "which is no multiple of its size");
    if (size_t(at - m->shared) < shared_size())
        return seen(b->words + (at - m->shared) / 4, at, size, how, code, false);
    if (size_t(at - m->dynamic) < m->dynamic_size) {
        size_t offset = at - m->dynamic;
        if (offset + size > now.dynamic) misplaced(at, size, how, code, "beyond what it was given");
        return seen(b->words + words_of(shared_size()) + offset / 4, at, size, how, code, false);
    }
    if (at >= m->code && at < m->end) return;
    bool inside = !now.launch->closed;
    for (int i = 0; i < now.launch->span_count && !inside; i++)
        inside = at >= now.launch->spans[i].begin && at + size <= now.launch->spans[i].end;
    if (!inside) misplaced(at, size, how, code, "outside of all arrays that it was given");
    if (now.launch->waits && !t->waited) early(at, size, how, code);
    while (size) {
        size_t left = Pages::SIZE - (uintptr_t)at % Pages::SIZE, part = size < left ? size : left;
        Word *words = now.pages.page((uintptr_t)at / Pages::SIZE);
        if (!words) return;
        seen(words + (uintptr_t)at % Pages::SIZE / 4, at, part, how, code, !now.fenced);
        at += part, size -= part;
    }
}

static void wrong(const char *file, unsigned line, const char *words, long long number) {
    char site[160];
    snprintf(site, sizeof site, "%s:%u", file, line);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    char text[160];
    snprintf(text, sizeof text, words, number);
#pragma GCC diagnostic pop
    report(MISPLACED, site, now.thread, "%s", text);
    stop();
}

#endif
