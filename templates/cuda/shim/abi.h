/* What a compiled kernel and the runtime that runs it know of each other. Both are C++17 without a library. */
#ifndef GE2_SHIM_ABI_H
#define GE2_SHIM_ABI_H

#include <stddef.h>
#include <stdint.h>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

/* What the lanes of a warp, or the threads of a block, do together. */
enum ge2_shim_op {
    GE2_SHIM_SYNC, GE2_SHIM_SHUFFLE, GE2_SHIM_BALLOT, GE2_SHIM_ANY, GE2_SHIM_ALL, GE2_SHIM_MATCH_ANY,
    GE2_SHIM_MATCH_ALL, GE2_SHIM_ADD, GE2_SHIM_MIN, GE2_SHIM_MAX, GE2_SHIM_UMIN, GE2_SHIM_UMAX, GE2_SHIM_AND,
    GE2_SHIM_OR, GE2_SHIM_XOR,
    GE2_SHIM_BARRIER, GE2_SHIM_BARRIER_COUNT, GE2_SHIM_BARRIER_AND, GE2_SHIM_BARRIER_OR,
};

/* How near to a pause each of these brings a thread: one that spins does them again and again. */
enum ge2_shim_weight {
    GE2_SHIM_TOGETHER = 1,
    GE2_SHIM_ATOMIC = 16,
    GE2_SHIM_FENCE = 256,
    GE2_SHIM_SLEEP = 4096,
};

/* An access to memory. */
enum ge2_shim_access {
    GE2_SHIM_READ = 0,
    GE2_SHIM_WRITE = 1,
    GE2_SHIM_ATOMIC_ACCESS = 2,
    GE2_SHIM_VOLATILE = 4,
    GE2_SHIM_ALIGNED = 8, /* where its size divides its address, or it is an error */
    GE2_SHIM_AWAITED = 16, /* what a copy is to bring */
    GE2_SHIM_BROUGHT = 32, /* what it has brought */
};

/* What goes on while a thread computes, in groups of which it waits for all but the last few. */
enum ge2_shim_channel { GE2_SHIM_COPIES, GE2_SHIM_PRODUCTS, GE2_SHIM_STORES, GE2_SHIM_CHANNELS };

/* Where the running thread is, and what it may ask for. `site`: "file:line" of the CUDA source, for
 * reports, and behind its zero the number of the call, of which a line may have several. */
struct ge2_shim_runtime {
    uint3 thread, block;
    dim3 block_size, grid_size;
    int lane;
    int (*barrier)(const char *site, ge2_shim_op op, int value);
    uint64_t (*together)(const char *site, ge2_shim_op op, unsigned mask, uint64_t value, int lane);
    void (*pause)(int weight);
    void (*fence)();
    void (*grid)(const char *site); /* all threads of the grid meet */
    void (*touch)(const volatile void *at, size_t size, int how, const void *code);
    void (*fail)(const char *site, const char *what);
    void (*wrong)(const char *file, unsigned line, const char *words, long long number);
    void (*waited)(); /* for the kernels before this one */
    /* Where accesses are watched: what is done no sooner than the thread waits for it. */
    void (*later)(ge2_shim_channel channel, void (*does)(const void *), const void *data, size_t size);
    void (*group)(ge2_shim_channel channel);
    void (*wait)(ge2_shim_channel channel, int few);
    /* Likewise, no sooner than some thread of the block waits at a barrier, whose place in shared memory this is. */
    void (*bring)(uint32_t barrier, void (*does)(const void *), const void *data, size_t size);
    void (*come)(uint32_t barrier);
};

/* A compiled source: its pointer to the runtime, and its shared memory, which is that of the block that runs. */
struct ge2_shim_module {
    const ge2_shim_runtime **runtime;
    char *shared, *shared_end;
    char *dynamic;
    uint64_t dynamic_size;
    const char *code, *end; /* the library as it lies in memory */
    uint64_t fenced;        /* a sanitizer has set something between the variables of shared memory */
};

/* The bytes of an array that a kernel was given, and which of its arguments that was. */
struct ge2_shim_span {
    const char *begin, *end;
    int64_t argument;
};

/* What a launch is. `closed`: its spans are all that the kernel may touch. `watched`: its source was compiled so that
 * accesses are shown. `waits`: each thread is to wait for the kernels before this one, first of all. */
struct ge2_shim_launch_of {
    uint32_t grid[3], block[3];
    uint64_t dynamic, seed;
    const ge2_shim_span *spans;
    int32_t span_count, closed, watched, waits;
};

/* A parameter: 'p' a pointer, 'i' and 'u' integers, 'f' a float, 'b' a bool, 's' a struct. */
struct ge2_shim_parameter {
    int kind, size;
};

struct ge2_shim_kernel {
    const char *name;
    void (*call)(void *const *arguments);
    const ge2_shim_parameter *parameters;
    int count;
};

struct ge2_shim_report {
    int code, has_thread;
    uint3 block, thread;
    uint64_t code_at[2]; /* places in the library: of what is reported, and of what it conflicts with; or 0 */
    char site[160], text[480];
};

#endif
