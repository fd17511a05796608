/* Where the compiler is told to, it shows each access to memory to the runtime first, and wrong indices and addresses.
 *
 * The names are those by which gcc and clang call the runtimes of their sanitizers, which are not linked.
 */
#ifndef GE2_SHIM_HOOKS_H
#define GE2_SHIM_HOOKS_H

#ifdef GE2_SHIM_WATCH

#define GE2_SHIM_UNSEEN __attribute__((noinline, no_sanitize("thread", "undefined")))
#define GE2_SHIM_SEE(NAME, SIZE, HOW)                                                                       \
    extern "C" GE2_SHIM_UNSEEN void __tsan_##NAME(void *at) {                                               \
        ge2_shim->touch(at, SIZE, HOW, __builtin_return_address(0));                                        \
    }
#define GE2_SHIM_SEE_ALL(SIZE)                                                                              \
    GE2_SHIM_SEE(read##SIZE, SIZE, GE2_SHIM_READ | GE2_SHIM_ALIGNED)                                        \
    GE2_SHIM_SEE(write##SIZE, SIZE, GE2_SHIM_WRITE | GE2_SHIM_ALIGNED)                                      \
    GE2_SHIM_SEE(unaligned_read##SIZE, SIZE, GE2_SHIM_READ)                                                 \
    GE2_SHIM_SEE(unaligned_write##SIZE, SIZE, GE2_SHIM_WRITE)                                               \
    GE2_SHIM_SEE(volatile_read##SIZE, SIZE, GE2_SHIM_READ | GE2_SHIM_ALIGNED | GE2_SHIM_VOLATILE)           \
    GE2_SHIM_SEE(volatile_write##SIZE, SIZE, GE2_SHIM_WRITE | GE2_SHIM_ALIGNED | GE2_SHIM_VOLATILE)         \
    GE2_SHIM_SEE(unaligned_volatile_read##SIZE, SIZE, GE2_SHIM_READ | GE2_SHIM_VOLATILE)                    \
    GE2_SHIM_SEE(unaligned_volatile_write##SIZE, SIZE, GE2_SHIM_WRITE | GE2_SHIM_VOLATILE)
GE2_SHIM_SEE_ALL(1)
GE2_SHIM_SEE_ALL(2)
GE2_SHIM_SEE_ALL(4)
GE2_SHIM_SEE_ALL(8)
GE2_SHIM_SEE_ALL(16)
#undef GE2_SHIM_SEE
#undef GE2_SHIM_SEE_ALL

extern "C" {
GE2_SHIM_UNSEEN void __tsan_read_range(void *at, size_t size) {
    ge2_shim->touch(at, size, GE2_SHIM_READ, __builtin_return_address(0));
}
GE2_SHIM_UNSEEN void __tsan_write_range(void *at, size_t size) {
    ge2_shim->touch(at, size, GE2_SHIM_WRITE, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

struct ge2_shim_location {
    const char *file;
    unsigned line, column;
};
struct ge2_shim_misplaced {
    ge2_shim_location location;
    const void *type;
    unsigned char alignment, kind;
};

GE2_SHIM_UNSEEN void __ubsan_handle_out_of_bounds(ge2_shim_location *at, void *index) {
    ge2_shim->wrong(at->file, at->line, "index %lld lies outside of its array", (long long)index);
}
GE2_SHIM_UNSEEN void __ubsan_handle_type_mismatch_v1(ge2_shim_misplaced *at, void *address) {
    const char *words = address ? "an address is no multiple of the %lld bytes to which its type is aligned"
                                : "a null pointer is followed";
    ge2_shim->wrong(at->location.file, at->location.line, words, 1ll << at->alignment);
}
}

#define GE2_SHIM_LATE 1
#define GE2_SHIM_TOUCH(AT, HOW) ge2_shim->touch(AT, sizeof *(AT), HOW, __builtin_return_address(0))
#else
#define GE2_SHIM_UNSEEN inline
#define GE2_SHIM_LATE 0
#define GE2_SHIM_TOUCH(AT, HOW) ((void)0)
#endif

namespace {

/* Does what goes on beside a thread: at once, or as late as may be. */
template <class D>
inline void ge2_shim_later(ge2_shim_channel channel, void (*does)(const D &), const D &data) {
    static_assert(sizeof(D) <= 176, "no more is kept");
    if (GE2_SHIM_LATE) ge2_shim->later(channel, (void (*)(const void *))does, &data, sizeof data);
    else does(data);
}
inline void ge2_shim_group(ge2_shim_channel channel) {
    if (GE2_SHIM_LATE) ge2_shim->group(channel);
}
inline void ge2_shim_wait(ge2_shim_channel channel, int few) {
    if (GE2_SHIM_LATE) ge2_shim->wait(channel, few);
}

}

#endif
