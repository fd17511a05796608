/* What is known of each word of memory, so that accesses which no barrier sets apart are seen.
 *
 * Of a word, its last write and the last reads by two threads are kept. Threads of a block are set apart by barriers,
 * lanes by `__syncwarp`; where fences order memory, nothing is said, nor of atomics or volatile accesses that meet.
 */
#ifndef GE2_SHIM_WATCH_H
#define GE2_SHIM_WATCH_H

#include <stdint.h>
#include <stdlib.h>

struct Access {
    uint32_t phase; /* a phase is what a block does between two barriers; 0: none */
    uint32_t block;
    uint32_t code;
    uint16_t thread, turn; /* turn: of its warp, between two of which all lanes meet */
    uint8_t bytes, how;
};

struct Word {
    Access write, reads[2];
};

/* The words of a page of memory. Pages are found by a table that grows. */
struct Pages {
    enum : uint64_t { SIZE = 4096, WORDS = SIZE / 4 };
    struct Page {
        uint64_t number;
        Word *words;
    } *table, last;
    uint64_t room, count;

    Word *page(uint64_t number) {
        if (last.words && last.number == number) return last.words;
        if (count * 2 >= room && !grow()) return nullptr;
        Page *p = place(number);
        if (!p->words) {
            p->words = (Word *)calloc(WORDS, sizeof(Word));
            if (!p->words) return nullptr;
            p->number = number;
            count++;
        }
        last = *p;
        return p->words;
    }

    Page *place(uint64_t number) {
        uint64_t i = number * 0x9e3779b97f4a7c15 >> 20 & (room - 1);
        while (table[i].words && table[i].number != number) i = (i + 1) & (room - 1);
        return &table[i];
    }

    bool grow() {
        Page *old = table;
        uint64_t before = room, more = room ? room * 2 : 1024;
        Page *bigger = (Page *)calloc(more, sizeof(Page));
        if (!bigger) return false;
        table = bigger, room = more;
        for (uint64_t i = 0; i < before; i++)
            if (old[i].words) *place(old[i].number) = old[i];
        free(old);
        return true;
    }

    /* Those of a launch are of no use to the next. */
    void forget() {
        for (uint64_t i = 0; i < room; i++) free(table[i].words);
        free(table);
        table = nullptr, room = count = 0;
        last = {};
    }
};

/* Whether two accesses by different threads, of which one writes, are set apart by nothing. `free_blocks`: blocks of
 * this launch have used no fence, so that nothing orders what two of them do. */
static inline bool conflict(const Access &old, const Access &now, uint32_t since, bool free_blocks) {
    if (old.phase < since || !(old.bytes & now.bytes)) return false;
    if (!((old.how | now.how) & 1)) return false;
    if ((old.how & 6) && (now.how & 6)) return false;
    if (old.block != now.block) return free_blocks;
    if (old.phase != now.phase || old.thread == now.thread) return false;
    return old.thread / 32 != now.thread / 32 || now.turn <= old.turn;
}

/* Notes an access, and gives the one that it conflicts with, if any. */
static inline const Access *noted(Word &word, const Access &now, uint32_t since, bool free_blocks) {
    static Access other;
    const Access *found = nullptr;
    const Access *before[] = {&word.write, &word.reads[0], &word.reads[1]};
    for (const Access *old : before)
        if (conflict(*old, now, since, free_blocks)) other = *old, found = &other;
    if (now.how & 1) {
        word.write = now;
        return found;
    }
    Access &first = word.reads[0];
    if (first.thread != now.thread || first.phase != now.phase) word.reads[1] = first;
    first = now;
    return found;
}

#endif
