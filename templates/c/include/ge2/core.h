/* What every generated file begins with: the types that a program and its caller share. */
#ifndef GE2_CORE_H
#define GE2_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for headers that a source may include */
#endif
#ifdef _OPENMP
int omp_get_thread_num(void);
int omp_get_num_threads(void);
#define GE2_THREAD omp_get_thread_num()
#else
#define GE2_THREAD 0
#endif

#include <stddef.h>
#if defined(__linux__) && defined(__LP64__) && defined(__GNUC__)
/* What is used of <string.h>, <time.h>, <sched.h>, <unistd.h> and <sys/syscall.h>, and whole numbers without the rest
   of <stdint.h>: gcc takes 6 ms to read those. A source may include them too, so types have names of ours. */
#define GE2_LINUX
#if __has_include(<stdint-gcc.h>)
#include <stdint-gcc.h>
#else
#include <stdint.h>
#endif
void *memcpy(void *to, const void *from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
typedef struct {
    long tv_sec, tv_nsec;
} ge2_time;
typedef struct {
    unsigned long bits[16];
} ge2_processors;
int ge2_clock(int clock, ge2_time *time) __asm__("clock_gettime");
int ge2_allowed(int thread, size_t size, ge2_processors *set) __asm__("sched_getaffinity");
int ge2_allow(int thread, size_t size, const ge2_processors *set) __asm__("sched_setaffinity");
int sched_getcpu(void);
int getpid(void);
long syscall(long number, ...);
#if defined(__x86_64__)
#define GE2_GETTID 186
#elif defined(__aarch64__) || defined(__riscv)
#define GE2_GETTID 178
#else
#include <sys/syscall.h>
#define GE2_GETTID SYS_gettid
#endif
#define GE2_STEADY 1 /* CLOCK_MONOTONIC */
#define GE2_COARSE 6 /* CLOCK_MONOTONIC_COARSE: a quarter of the time to read */
#else
#include <stdint.h>
#include <string.h>
#include <time.h>
typedef struct timespec ge2_time;
#define ge2_clock clock_gettime
#define GE2_COARSE CLOCK_MONOTONIC
#endif

#define GE2_FN static inline __attribute__((always_inline, unused))

/* What a header has for each type, GE2_FOR(MACRO, i8, ...) for MACRO(i8, ...): a source that says which types it needs,
   by GE2_SOME_TYPES and a line for each, has no others, which gcc would read for longer than it compiles some kernels. */
#ifdef GE2_SOME_TYPES
#define GE2_ALL_OF(macro, ...) macro(__VA_ARGS__)
#define GE2_NONE_OF(...)
#define GE2_SECOND(first, second, ...) second
#define GE2_CHOSEN(...) GE2_SECOND(__VA_ARGS__)
#define GE2_FOR(macro, type, ...) GE2_CHOSEN(GE2_HAS_##type, GE2_NONE_OF, )(macro, type, __VA_ARGS__)
#else
#define GE2_FOR(macro, type, ...) macro(type, __VA_ARGS__)
#endif

/* A function that stays one: its code is compiled once, not for each of its callers. */
#ifdef __clang__
#define GE2_ONCE_COMPILED noinline
#else
#define GE2_ONCE_COMPILED noinline, noclone
#endif
#define GE2_SINGLE static __attribute__((GE2_ONCE_COMPILED, unused))

/* A function whose time is that of others, which it calls: gcc does less to it. It does not become part of one
   without this, nor one without it part of this, unless that always is. GE2_SOONER only hands arguments on; a
   GE2_LIGHT one may copy or count, too; a GE2_BRANCHING one sorts, seeks or checks, and has vectors in loops that are
   said to have them alone. A GE2_CHOOSING one folds extremes of what is chosen: gcc would go on from each choice by
   a path of its own, on which it knows that one of two numbers is infinite, and have no vectors. */
#ifdef __clang__
#define GE2_SOONER
#define GE2_LIGHT
#define GE2_BRANCHING
#define GE2_WITHOUT_PATHS
#else
#define GE2_SOONER __attribute__((optimize("Og")))
#define GE2_LIGHT __attribute__((optimize("O1")))
#define GE2_BRANCHING __attribute__((optimize("O2")))
#define GE2_WITHOUT_PATHS __attribute__((optimize("no-thread-jumps")))
#endif
#define GE2_CALLER GE2_LIGHT GE2_SINGLE
#define GE2_CHOOSING GE2_WITHOUT_PATHS GE2_SINGLE
#define GE2_CALLED static __attribute__((noinline, unused)) /* a function that does not become part of its callers */

/* A function with variants for vectors, of which a library has one copy, though each of its parts defines it. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
#define GE2_ONE_COPY __attribute__((weak, visibility("hidden"), noinline, const))
#endif

/* Before one of two calls that differ only in the types of their arguments: gcc 12 takes them for the same call if the
   arguments are equal constants, and then passes 32 bits on the stack where 64 are read. */
#define GE2_ANOTHER_CALL __asm__ volatile("")

/* Of a loop over all elements of a large array, which does much: gcc writes what vectors leave over again for shorter
   ones, and then for single elements, of which the last are enough. A length that no vector has keeps it from that. */
#ifdef __clang__
#define GE2_LONG_LOOP
#else
#define GE2_LONG_LOOP simdlen(256)
#endif

/* Bytes of a vector register. */
#if defined(__AVX512F__)
#define GE2_VECTOR 64
#elif defined(__AVX__)
#define GE2_VECTOR 32
#else
#define GE2_VECTOR 16
#endif

/* A function of a matrix product, whose products and sums are fused, as BLAS has them: elsewhere a * b - a * b is to be 0.
   Where its vectors and tiles are written out, all of -O3 but strides that are taken for 1 makes it no quicker. */
#ifdef __clang__
#define GE2_FUSED
#define GE2_FUSED_VECTORS
#define GE2_FUSE _Pragma("clang fp contract(fast)")
#else
#define GE2_FUSED __attribute__((optimize("fp-contract=fast")))
#define GE2_FUSED_VECTORS __attribute__((optimize("O2", "version-loops-for-strides", "fp-contract=fast")))
#define GE2_FUSE
#endif

/* A large file has parts, of which compilers that run at once take some each, GE2_FIRST to GE2_LAST; what they share
   is seen by all, but by no other library. */
#ifdef GE2_FIRST
#define GE2_IN_PART(n) (GE2_FIRST <= n && n <= GE2_LAST)
#define GE2_SHARED __attribute__((visibility("hidden"), GE2_ONCE_COMPILED))
#else
#define GE2_IN_PART(n) 1
#define GE2_SHARED static __attribute__((GE2_ONCE_COMPILED))
#endif

/* A Python number or a constant; the kernel knows which member holds it. */
typedef union {
    double f;
    int64_t i;
    double c[2];
} ge2_number;

enum { GE2_OK = 0, GE2_INDEX = 1, GE2_POWER = 2, GE2_INTERRUPTED = 3, GE2_MATRIX = 4 };

/* The first error of a call. `equation` counts the equations of the graph that the file was made from. */
typedef struct {
    int64_t code, index, axis, size, equation;
} ge2_error;

/* Products that run at this moment in the process, and the threads that its BLAS had before the first of them. */
typedef struct {
    int64_t running, threads;
} ge2_products;

/* What a program borrows from its process: NumPy's BLAS (null where its symbols were not found), its sorts of contiguous
   elements in place (null where they were not), which use the vectors of the processor. */
typedef int (*ge2_sort)(void *line, intptr_t n, void *unused);

typedef struct {
    void *sgemm, *dgemm, *cgemm, *zgemm; /* cblas_?gemm */
    void *sgemv, *dgemv, *cgemv, *zgemv; /* cblas_?gemv */
    void *ssyrk, *dsyrk;                 /* cblas_?syrk */
    int64_t ilp64;                       /* whether their integers have 64 bits, or else 32 */
    int (*blas_threads)(void);           /* null with the next where the BLAS has no such functions */
    void (*set_blas_threads)(int);
    ge2_products *products;
    int (*with_python)(void);            /* PyGILState_Ensure, or null with the next two */
    int (*check_signals)(void);          /* PyErr_CheckSignals */
    void (*without_python)(int);         /* PyGILState_Release */
    ge2_sort sort_f32, sort_f64, sort_i32, sort_i64, sort_u32, sort_u64;
    void *const *loops;                  /* NumPy's over matrices and lines, each with what it is given: numpy_loops.h */
    ge2_error *error;
} ge2_services;

/* Asked by long loops: whether a signal's handler has raised an exception, which is then that of the call. Five times
   a second it asks Python. */
static __attribute__((unused, noinline, cold)) int ge2_interrupted(const ge2_services *lib) {
    static int64_t due = 0; /* milliseconds */
    ge2_time time;
    if (!lib->check_signals || ge2_clock(GE2_COARSE, &time)) return 0;
    const int64_t now = (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
    if (now < __atomic_load_n(&due, __ATOMIC_RELAXED)) return 0;
    __atomic_store_n(&due, now + 200, __ATOMIC_RELAXED);
    const int state = lib->with_python();
    const int raised = lib->check_signals();
    lib->without_python(state);
    if (raised && lib->error->code == GE2_OK) *lib->error = (ge2_error){GE2_INTERRUPTED, 0, 0, 0, -1};
    return raised;
}

/* Linux often wakes the threads of a team on the processor of the one that calls them, most of all in a virtual
   machine, whose idle processors look taken; there they wait until the caller has done everything alone. A thread
   that finds itself at `home` keeps away from then on. */
#if defined(_OPENMP) && defined(GE2_LINUX)
GE2_FN int ge2_home(void) { return sched_getcpu(); }

/* The processors of this process but for one, which may be all of them; true if there are any. */
GE2_SOONER GE2_SINGLE int ge2_others(int home, ge2_processors *set) {
    unsigned long any = 0;
    if (ge2_allowed(getpid(), sizeof *set, set)) return 0;
    const unsigned at = (unsigned)home; /* -1 where nobody knows */
    set->bits[at / 64 % 16] &= ~(1UL << at % 64);
    for (int i = 0; i < 16; i++) any |= set->bits[i];
    return any != 0;
}

GE2_SOONER GE2_SINGLE void ge2_apart(int home) {
    ge2_processors others;
    if (GE2_THREAD == 0 || sched_getcpu() != home || !ge2_others(home, &others)) return;
    ge2_allow(0, sizeof others, &others);
}

/* A team that shares its work by a counter is over when its slowest thread is. One that another process, or a spinning
   thread of this one, keeps from its processor would have it wait for a slice of the scheduler, some 4 ms, although the
   caller's processor is free by then: so the caller lets it go on there. */
#define GE2_TEAM 64 /* threads that are known, of a larger team the first */
#ifndef GE2_PATIENCE
#define GE2_PATIENCE 100 /* microseconds */
#endif
typedef struct {
    int home, finished, moved, threads[GE2_TEAM];
} ge2_team;

GE2_FN ge2_team ge2_team_here(void) { return (ge2_team){ge2_home(), 0, 0, {0}}; }

/* Each thread says so when it begins, ... */
GE2_FN void ge2_begin(ge2_team *team) {
    const int me = GE2_THREAD;
    if (me > 0 && me < GE2_TEAM) __atomic_store_n(&team->threads[me], (int)syscall(GE2_GETTID), __ATOMIC_RELEASE);
    ge2_apart(team->home);
}

static __attribute__((unused, noinline, cold)) void ge2_take_in(ge2_team *team) {
    const unsigned at = (unsigned)sched_getcpu();
    ge2_processors here = {{0}};
    here.bits[at / 64 % 16] = 1UL << at % 64;
    for (int i = 1; i < GE2_TEAM; i++) {
        const int thread = __atomic_load_n(&team->threads[i], __ATOMIC_ACQUIRE);
        if (thread > 0 && !ge2_allow(thread, sizeof here, &here)) team->moved = 1;
        if (thread < 0) team->threads[i] = 0; /* it has finished, and stays where it is */
    }
}

/* After the region, so that the next one does not begin with two threads on one processor. */
static __attribute__((unused, noinline, cold)) void ge2_send_back(const ge2_team *team) {
    ge2_processors others;
    if (!ge2_others(sched_getcpu(), &others)) return;
    for (int i = 1; i < GE2_TEAM; i++) {
        const int thread = team->threads[i];
        if (thread) ge2_allow(thread < 0 ? -thread : thread, sizeof others, &others);
    }
}

GE2_FN void ge2_over(const ge2_team *team) {
    if (team->moved) ge2_send_back(team);
}

/* ... and when it finds no more work. All of them are in the region still, so the numbers are theirs. */
GE2_SOONER GE2_SINGLE void ge2_end(ge2_team *team) {
    const int me = GE2_THREAD, others = omp_get_num_threads() - 1;
    if (me > 0) {
        if (me < GE2_TEAM) __atomic_store_n(&team->threads[me], -team->threads[me], __ATOMIC_RELEASE);
        __atomic_add_fetch(&team->finished, 1, __ATOMIC_ACQ_REL);
        return;
    }
    ge2_time began, now;
    ge2_clock(GE2_STEADY, &began);
    while (__atomic_load_n(&team->finished, __ATOMIC_ACQUIRE) < others) {
        ge2_clock(GE2_STEADY, &now);
        if ((now.tv_sec - began.tv_sec) * 1000000 + (now.tv_nsec - began.tv_nsec) / 1000 < GE2_PATIENCE) continue;
        ge2_take_in(team);
        return;
    }
}
#else
typedef int ge2_team;
GE2_FN int ge2_home(void) { return 0; }
GE2_FN void ge2_apart(int home) { (void)home; }
GE2_FN ge2_team ge2_team_here(void) { return 0; }
GE2_FN void ge2_begin(ge2_team *team) { (void)team; }
GE2_FN void ge2_end(ge2_team *team) { (void)team; }
GE2_FN void ge2_over(const ge2_team *team) { (void)team; }
#endif

/* An array by three numbers: the pointer among p or -1 for the arena, and two offsets from there. */
GE2_FN char *ge2_place(char *const *p, char *arena, const int64_t *at) {
    return (at[0] < 0 ? arena : p[at[0]]) + at[1] + at[2];
}

/* A copy, unless the result was made to lie where the source is. */
GE2_FN void ge2_copy(char *to, const char *source, int64_t size) {
    if (to != source) memcpy(to, source, (size_t)size);
}

/* After round t of a loop, what it wrote is read next, and what it read is written; at first that is `spare`,
   for the loop does not write over its arguments. */
GE2_FN void ge2_turn(char **q, int read, int written, char *spare, int64_t t) {
    char *last = q[read];
    q[read] = q[written];
    q[written] = t ? last : spare;
}

/* ---- a float's bits, and the float of some bits */

GE2_FN uint32_t ge2_bits_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

GE2_FN uint64_t ge2_bits_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

GE2_FN float ge2_of_bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

GE2_FN double ge2_of_bits_f64(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

GE2_FN int64_t ge2_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Iterations `from` to `to` of a kernel, by pointers to its arguments. */
typedef void ge2_task(const void *const *given, int64_t from, int64_t to);

/* All iterations of a kernel by several threads, in tasks of `chunk`. One function for all kernels of a file, since
   compilers need as long for such a loop as for a short kernel. By the call that gcc makes of a pragma, which it compiles
   sooner. */
typedef struct {
    ge2_task *task;
    const void *const *given;
    int64_t total, chunk, next;
    int home;
} ge2_work;

GE2_SOONER GE2_SINGLE void ge2_take(void *given) {
    ge2_work *work = given;
    const int64_t total = work->total, chunk = work->chunk;
    ge2_apart(work->home);
    for (int64_t from; (from = __atomic_fetch_add(&work->next, chunk, __ATOMIC_RELAXED)) < total;)
        work->task(work->given, from, ge2_least(from + chunk, total));
}

#if defined(_OPENMP) && !defined(__clang__)
void GOMP_parallel(void (*work)(void *), void *given, unsigned threads, unsigned flags);
#endif

GE2_SOONER GE2_SINGLE void ge2_share(
    ge2_task *task, const void *const *given, int64_t total, int64_t chunk, int threads
) {
    ge2_work work = {task, given, total, chunk, 0, ge2_home()};
#if defined(_OPENMP) && !defined(__clang__)
    GOMP_parallel(ge2_take, &work, (unsigned)threads, 0);
#else
    #pragma omp parallel num_threads(threads)
    ge2_take(&work);
#endif
}

#endif
