/* A fiber: a function on a stack of its own, left and entered again by a switch of a few instructions. */
#ifndef GE2_SHIM_FIBER_H
#define GE2_SHIM_FIBER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define GE2_SHIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GE2_SHIM_ASAN 1
#endif
#endif

#ifdef GE2_SHIM_ASAN
extern "C" void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
extern "C" void __asan_poison_memory_region(void const volatile *at, size_t size);
extern "C" void __asan_unpoison_memory_region(void const volatile *at, size_t size);
extern "C" void __asan_set_error_report_callback(void (*)(const char *));
#define GE2_SHIM_RAW __attribute__((no_sanitize("address")))
enum : size_t { GE2_SHIM_STACK = 512 << 10 };
#else
#define GE2_SHIM_RAW
enum : size_t { GE2_SHIM_STACK = 128 << 10 };
#endif

#if defined(GE2_SHIM_UCONTEXT)
#include <ucontext.h>
#elif defined(__ELF__) && defined(__x86_64__)
#define GE2_SHIM_ASSEMBLY 1
asm(R"(
    .text
    .p2align 4
    .local ge2_shim_switch
    .type ge2_shim_switch, @function
ge2_shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size ge2_shim_switch, . - ge2_shim_switch
)");
enum { GE2_SHIM_SAVED = 6, GE2_SHIM_RETURN = 6, GE2_SHIM_FRAME = 8 };
#elif defined(__ELF__) && defined(__aarch64__)
#define GE2_SHIM_ASSEMBLY 1
asm(R"(
    .text
    .p2align 4
    .local ge2_shim_switch
    .type ge2_shim_switch, %function
ge2_shim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size ge2_shim_switch, . - ge2_shim_switch
)");
enum { GE2_SHIM_RETURN = 11, GE2_SHIM_FRAME = 20 };
#else
#include <ucontext.h>
#endif

#ifdef GE2_SHIM_ASSEMBLY
extern "C" void ge2_shim_switch(void **from, void *to) asm("ge2_shim_switch");
#endif

/* A stack, or the place of the thread that runs the fibers, whose stack is the system's. */
struct Fiber {
#ifdef GE2_SHIM_ASSEMBLY
    void *place;
#else
    ucontext_t place;
#endif
    char *stack;
    size_t size;
    void *fake; /* of the address sanitizer */
};

enum : uint64_t { GE2_SHIM_CANARY = 0x6e696b6f6f6c6261 };

/* The lowest word of a stack says whether it was used up: there are too many of them for a guard page each. */
GE2_SHIM_RAW static inline bool whole(const Fiber &f) { return *(const uint64_t *)f.stack == GE2_SHIM_CANARY; }

/* Whether it waits with half of its stack in use: only then is that word looked at before the thread ends, since it is in
 * no cache. */
static inline bool low(const Fiber &f) {
#ifdef GE2_SHIM_ASSEMBLY
    return (const char *)f.place < f.stack + f.size / 2;
#else
    return true;
#endif
}

/* Brings what is at the top of a stack into the cache, before the fiber goes on. */
static inline void fetch(const Fiber &f) {
#ifdef GE2_SHIM_ASSEMBLY
    if (f.stack) __builtin_prefetch(f.place);
#endif
}

GE2_SHIM_RAW static inline void begin(Fiber &f, char *stack, unsigned number, void (*entry)()) {
    f.stack = stack;
    f.size = GE2_SHIM_STACK;
    f.fake = nullptr;
#ifdef GE2_SHIM_ASAN
    __asan_unpoison_memory_region(stack, f.size); /* whoever was here may have left it without an end */
#endif
    *(uint64_t *)stack = GE2_SHIM_CANARY;
#ifdef GE2_SHIM_ASSEMBLY
    size_t colour = number % 16 * 192; /* else all stacks would share a few sets of the cache */
    void **top = (void **)(stack + f.size - colour) - GE2_SHIM_FRAME;
    for (int i = 0; i < GE2_SHIM_FRAME; i++) top[i] = nullptr;
    top[GE2_SHIM_RETURN] = (void *)entry;
    f.place = top;
#else
    getcontext(&f.place);
    f.place.uc_stack.ss_sp = stack;
    f.place.uc_stack.ss_size = f.size;
    f.place.uc_link = nullptr;
    makecontext(&f.place, entry, 0);
#endif
}

/* Goes on in `to`, until something goes on in `from`. `last`: nothing ever will. */
static inline void go(Fiber &from, Fiber &to, bool last) {
#ifdef GE2_SHIM_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake, to.stack, to.size);
#endif
#ifdef GE2_SHIM_ASSEMBLY
    ge2_shim_switch(&from.place, to.place);
#else
    swapcontext(&from.place, &to.place);
#endif
    (void)last;
#ifdef GE2_SHIM_ASAN
    __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

/* The first thing that a fiber does. Learns where the stack of `home` is. */
static inline void arrived(Fiber &home) {
#ifdef GE2_SHIM_ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (home.size == 0) home.stack = (char *)bottom, home.size = size;
#else
    (void)home;
#endif
}

/* Stacks that are free, mapped many at once: memory is used only where it is touched. */
struct Stacks {
    char **list;
    size_t count, room;

    char *take() {
        if (count == 0) more();
        return count ? list[--count] : nullptr;
    }

    void give(char *stack) { list[count++] = stack; }

    void more() {
        enum : size_t { MANY = 256 };
        void *slab = mmap(nullptr, MANY * GE2_SHIM_STACK, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (slab == MAP_FAILED) return;
        char **longer = (char **)realloc(list, (room + MANY) * sizeof *list);
        if (!longer) return;
        list = longer;
        room += MANY;
        for (size_t i = MANY; i-- > 0;) give((char *)slab + i * GE2_SHIM_STACK);
    }
};

#endif
