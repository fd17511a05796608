/* The part of NVIDIA's driver that reserves addresses and puts memory behind them, on the CPU.
 *
 * As with the real one, what has no memory, or no access to it, cannot be touched; memory lives as long as it is
 * mapped or has a handle; what was mapped at once is unmapped at once; addresses with memory are not freed. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE (64 << 10)
#define MOST 256
typedef int Status;
enum { WRONG = 1, NO_MEMORY = 2 };

long room = 64 * GRANULE;                /* bytes that there are yet */
int supported = 1, fail_access, ranges; /* what tests look at, and have go wrong */

static struct { char *at; size_t size; } range[MOST];
static struct { int fd, handles, mapped; size_t size; } memory[MOST];
static struct { char *at; size_t size; int memory; } map[MOST];

Status cuGetErrorName(Status status, const char **name) {
    *name = status == WRONG ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_FAKE";
    return 0;
}
Status cuDeviceGetAttribute(int *found, int which, int device) { return *found = which == 102 && supported, device < 0; }

static int is_wanted(const int32_t *prop) {
    int rest = 0;
    for (int i = 4; i < 8; i++) rest |= prop[i];
    return prop[0] == 1 && prop[1] == 0 && prop[2] == 1 && prop[3] == 0 && !rest;
}
Status cuMemGetAllocationGranularity(size_t *found, const int32_t *prop, int option) {
    *found = GRANULE;
    return !is_wanted(prop) || option != 0 ? WRONG : 0;
}

Status cuMemAddressReserve(uint64_t *found, size_t size, size_t alignment, uint64_t hint, unsigned long long flags) {
    if (size == 0 || size % GRANULE || alignment || hint || flags) return WRONG;
    for (int i = 0; i < MOST; i++) {
        if (range[i].at) continue;
        char *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return NO_MEMORY;
        range[i].at = at, range[i].size = size;
        ranges++;
        return *found = (uint64_t)(uintptr_t)at, 0;
    }
    return NO_MEMORY;
}
static int overlaps(char *at, size_t size) {
    for (int i = 0; i < MOST; i++)
        if (map[i].at && map[i].at < at + size && at < map[i].at + map[i].size) return 1;
    return 0;
}
Status cuMemAddressFree(uint64_t where, size_t size) {
    char *at = (char *)(uintptr_t)where;
    for (int i = 0; i < MOST; i++) {
        if (range[i].at != at || range[i].size != size) continue;
        if (overlaps(at, size)) return WRONG;
        munmap(at, size);
        range[i].at = NULL;
        ranges--;
        return 0;
    }
    return WRONG;
}

Status cuMemCreate(uint64_t *found, size_t size, const int32_t *prop, unsigned long long flags) {
    if (size == 0 || size % GRANULE || !is_wanted(prop) || flags) return WRONG;
    if ((long)size > room) return NO_MEMORY;
    for (int i = 1; i < MOST; i++) {
        if (memory[i].size) continue;
        int fd = memfd_create("fake", 0);
        if (fd < 0 || ftruncate(fd, (off_t)size)) return NO_MEMORY;
        memory[i].fd = fd, memory[i].handles = 1, memory[i].mapped = 0, memory[i].size = size;
        room -= (long)size;
        return *found = (uint64_t)i, 0;
    }
    return NO_MEMORY;
}
static void settle(int i) { /* what has neither a handle nor a place is free */
    if (memory[i].handles || memory[i].mapped) return;
    close(memory[i].fd);
    room += (long)memory[i].size;
    memory[i].size = 0;
}
Status cuMemRelease(uint64_t i) {
    if (i >= MOST || !memory[i].handles) return WRONG;
    memory[i].handles--;
    return settle((int)i), 0;
}
Status cuMemMap(uint64_t where, size_t size, size_t offset, uint64_t i, unsigned long long flags) {
    char *at = (char *)(uintptr_t)where;
    if (i >= MOST || memory[i].size != size || offset || flags || overlaps(at, size)) return WRONG;
    int inside = 0, free = -1;
    for (int k = 0; k < MOST; k++) {
        inside |= range[k].at && range[k].at <= at && at + size <= range[k].at + range[k].size;
        if (!map[k].at) free = k;
    }
    if (!inside || free < 0) return WRONG;
    if (mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory[i].fd, 0) == MAP_FAILED) return NO_MEMORY;
    map[free].at = at, map[free].size = size, map[free].memory = (int)i;
    memory[i].mapped++;
    return 0;
}
Status cuMemSetAccess(uint64_t where, size_t size, const int32_t *access, size_t count) {
    if (fail_access) return WRONG;
    if (access[0] != 1 || access[1] != 0 || access[2] != 3 || count != 1) return WRONG;
    return mprotect((char *)(uintptr_t)where, size, PROT_READ | PROT_WRITE) ? WRONG : 0;
}
Status cuMemUnmap(uint64_t where, size_t size) {
    char *at = (char *)(uintptr_t)where;
    for (int i = 0; i < MOST; i++) {
        if (map[i].at != at || map[i].size != size) continue;
        mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        map[i].at = NULL;
        memory[map[i].memory].mapped--;
        return settle(map[i].memory), 0;
    }
    return WRONG;
}
