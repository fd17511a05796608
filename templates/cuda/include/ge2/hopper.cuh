/* Hopper's asynchronous units: barriers in shared memory, copies of tiles by tensor maps (TMA), and products of warp
 * groups (wgmma), whose sums stay in registers and whose operands lie in shared memory.
 *
 * Places in shared memory are 32-bit addresses. Tiles begin at multiples of 1024 bytes, and their rows of 128 bytes are
 * swizzled: the sixteen bytes number c of row r lie at c ^ (r % 8). PTX ISA, "Asynchronous Warpgroup Level Matrix
 * Multiply-Accumulate Instructions" and "Tensor Operations". The emulator's half does each step at once, or,
 * where accesses are watched, as late as it may be: a tile comes when somebody waits for it, and is no number until then.
 */
#ifndef GE2_HOPPER_CUH
#define GE2_HOPPER_CUH

#include "ge2/pack.cuh"
#include "ge2/place.cuh"

/* CUtensorMap: how tiles of an array are copied. */
struct alignas(64) ge2_tensor_map {
    uint64_t words[16];
};

/* The descriptor of an operand in shared memory, swizzled by 128 bytes: `stride` bytes to the next eight rows, `lead`
 * bytes to the next 64 elements of a row where operands are turned. */
GE2_FN uint64_t ge2_matrix_at(uint32_t place, int lead, int stride) {
    return (uint64_t)((place & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Two neighbours in a row of a tile of 64 columns, that came in boxes of ROWS rows, swizzled by as many bytes as a row has:
 * 128 of elements of two bytes, else 64. Of four bytes so few, that rows 0 and 1, and 2 and 3 of other eight columns, lie in
 * banks of their own. The row is a lane's, and `eights` further, which all lanes share. */
template <class T, int ROWS>
GE2_FN ge2_some<T, 2> ge2_tile_pair(const unsigned char *tile, int row, int eights, int column) {
    constexpr int WIDE = sizeof(T) == 4 ? 16 : 64, BYTES = WIDE * (int)sizeof(T);
    const int byte = column % WIDE * (int)sizeof(T), swizzle = (BYTES == 128 ? row % 8 : row / 2 % 4) * 16;
    const unsigned char *const at = tile + (row * BYTES + (byte ^ swizzle));
    return *(const ge2_some<T, 2> *)(at + (column / WIDE * ROWS + eights * 8) * BYTES);
}

#ifndef GE2_SHIM

GE2_FN uint32_t ge2_shared_place(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }

/* ---- barriers: a phase ends when all have arrived and all bytes that were announced are there */

GE2_FN void ge2_barrier_begin(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
GE2_FN void ge2_barriers_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
GE2_FN void ge2_barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
GE2_FN void ge2_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
GE2_FN void ge2_barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    while (!done);
}

/* ---- the sixteen barriers of a block that threads meet at */

GE2_FN void ge2_meetings_begin() {}
GE2_FN void ge2_meet(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
GE2_FN void ge2_meet_later(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- registers, which a warp group gives to another */

template <int COUNT> GE2_FN void ge2_fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> GE2_FN void ge2_more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

/* ---- copies of tiles, the innermost coordinate first */

#define GE2_INTO ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {"
GE2_FN void ge2_bulk_load(uint32_t to, const ge2_tensor_map *map, uint32_t barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d" GE2_INTO "%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
GE2_FN void ge2_bulk_load(uint32_t to, const ge2_tensor_map *map, uint32_t barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d" GE2_INTO "%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
GE2_FN void ge2_bulk_load(uint32_t to, const ge2_tensor_map *map, uint32_t barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d" GE2_INTO "%3, %4, %5, %6}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
GE2_FN void ge2_bulk_load(uint32_t to, const ge2_tensor_map *map, uint32_t barrier, int x, int y, int z, int w, int a) {
    asm volatile("cp.async.bulk.tensor.5d" GE2_INTO "%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(a) : "memory");
}
#undef GE2_INTO
GE2_FN void ge2_bulk_store(const ge2_tensor_map *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}
GE2_FN void ge2_bulk_store(const ge2_tensor_map *map, uint32_t from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
GE2_FN void ge2_bulk_store(const ge2_tensor_map *map, uint32_t from, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
GE2_FN void ge2_bulk_store(const ge2_tensor_map *map, uint32_t from, int x, int y, int z, int w, int a) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
                 ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w), "r"(a) : "memory");
}
GE2_FN void ge2_stores_begun() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until all stores but FEW have read shared memory. */
template <int FEW> GE2_FN void ge2_stores_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(FEW) : "memory"); }
GE2_FN void ge2_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/* What threads have written to shared memory, copies of tiles see after it. */
GE2_FN void ge2_shared_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- products of warp groups */

GE2_FN void ge2_products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GE2_FN void ge2_products_issued() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int FEW> GE2_FN void ge2_products_done() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(FEW) : "memory"); }
/* Sums that products had under way: none is read before this. */
template <int N> GE2_FN void ge2_products_hold(float (&total)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) asm volatile("" : "+f"(total[n])::"memory");
}

/* Four matrices of 8 x 8 numbers of two bytes: lane l has the place of row l % 8 of matrix l / 8, and of each matrix the
 * neighbours 2 * (l % 4) and the next of row l / 4. */
GE2_FN void ge2_store_matrices(uint32_t at, const uint32_t (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

#else

GE2_FN uint32_t ge2_shared_place(const void *at) { return (uint32_t)((const char *)at - ge2_shim_dynamic); }
GE2_FN char *ge2_shim_at(uint32_t place) { return ge2_shim_dynamic + place; }
GE2_FN uint32_t ge2_shim_swizzled(uint32_t place, uint32_t bytes) {
    return bytes ? place ^ (place >> 7 & (bytes / 16 - 1)) << 4 : place;
}

struct ge2_shim_barrier {
    uint16_t count, left;
    int32_t bytes : 31;
    uint32_t parity : 1;
};

GE2_SHIM_UNSEEN void ge2_shim_arrived(uint32_t barrier, int arrivals, int bytes) {
    ge2_shim_barrier &b = *(ge2_shim_barrier *)ge2_shim_at(barrier);
    b.left -= arrivals;
    b.bytes = b.bytes + bytes;
    if (b.left == 0 && b.bytes == 0) b.left = b.count, b.parity ^= 1;
}
GE2_SHIM_UNSEEN void ge2_barrier_begin(uint32_t barrier, int count) {
    *(ge2_shim_barrier *)ge2_shim_at(barrier) = {(uint16_t)count, (uint16_t)count, 0, 0};
}
inline void ge2_barriers_begun() {}
inline void ge2_barrier_expect(uint32_t barrier, int bytes) { ge2_shim_arrived(barrier, 1, bytes); }
inline void ge2_barrier_arrive(uint32_t barrier) { ge2_shim_arrived(barrier, 1, 0); }
GE2_SHIM_UNSEEN bool ge2_shim_passed(uint32_t barrier, uint32_t parity) {
    return ((ge2_shim_barrier *)ge2_shim_at(barrier))->parity != parity;
}
inline void ge2_barrier_wait(uint32_t barrier, uint32_t parity) {
    if (GE2_SHIM_LATE) ge2_shim->come(barrier);
    while (!ge2_shim_passed(barrier, parity)) {
        ge2_shim->pause(GE2_SHIM_SLEEP);
        if (GE2_SHIM_LATE) ge2_shim->come(barrier);
    }
    ge2_shim->fence();
}

struct ge2_shim_meeting {
    int here, number;
};
/* Each block's own: shared memory is what is local to a function. */
inline ge2_shim_meeting &ge2_shim_meeting_at(int number) {
    __shared__ ge2_shim_meeting meetings[16];
    return meetings[number];
}
GE2_SHIM_UNSEEN void ge2_meetings_begin() {
    if (threadIdx.x < 16) ge2_shim_meeting_at(threadIdx.x) = {0, 0};
}
/* The number of the meeting, which the last to come ends. */
GE2_SHIM_UNSEEN int ge2_shim_come(int number, int threads) {
    ge2_shim_meeting &m = ge2_shim_meeting_at(number);
    const int now = m.number;
    if (++m.here == threads) m.here = 0, m.number++;
    return now;
}
GE2_SHIM_UNSEEN bool ge2_shim_is_over(int number, int meeting) {
    return ge2_shim_meeting_at(number).number != meeting;
}
inline void ge2_meet(int number, int threads) {
    const int meeting = ge2_shim_come(number, threads);
    while (!ge2_shim_is_over(number, meeting)) ge2_shim->pause(GE2_SHIM_SLEEP);
    ge2_shim->fence();
}
inline void ge2_meet_later(int number, int threads) { ge2_shim_come(number, threads); }

template <int COUNT> void ge2_fewer_registers() {}
template <int COUNT> void ge2_more_registers() {}

/* As emulator/tensor_maps.py encodes it: sizes in elements, strides in bytes, the innermost axis first. */
struct ge2_shim_tiles {
    char *address;
    int32_t itemsize, rank, swizzle, unused;
    uint64_t sizes[5], strides[4];
    uint32_t box[5];
};

/* A copy of a tile. `awaited`: not yet there. The map is a parameter, which ends with its thread. */
struct ge2_shim_tile {
    ge2_shim_tiles map;
    uint32_t place, barrier;
    int from[5], bytes;
    bool stored, awaited;
};
/* Copies the elements of a tile; those that are outside of the array are read as zeros, and not written. */
GE2_SHIM_UNSEEN void ge2_shim_copied(const ge2_shim_tile &tile) {
    const ge2_shim_tiles &t = tile.map;
    const uint32_t place = tile.place;
    const int *const from = tile.from;
    const bool stored = tile.stored;
    uint64_t total = 1;
    for (int a = 0; a < t.rank; a++) total *= t.box[a];
    for (uint64_t n = 0; n < total; n++) {
        uint64_t rest = n;
        char *there = t.address;
        bool inside = true;
        for (int a = 0; a < t.rank; a++) {
            const int64_t index = from[a] + (int64_t)(rest % t.box[a]);
            rest /= t.box[a];
            inside = inside && index >= 0 && index < (int64_t)t.sizes[a];
            there += index * (a ? (int64_t)t.strides[a - 1] : t.itemsize);
        }
        char *here = ge2_shim_at(ge2_shim_swizzled(place + n * t.itemsize, t.swizzle));
        if (tile.awaited) __builtin_memset(here, 0xff, t.itemsize);
        else if (stored && inside) __builtin_memcpy(there, here, t.itemsize);
        if (!stored && inside) __builtin_memcpy(here, there, t.itemsize);
        if (!stored && !inside) __builtin_memset(here, 0, t.itemsize);
    }
}
GE2_SHIM_UNSEEN void ge2_shim_brought(const ge2_shim_tile &tile) {
    ge2_shim_copied(tile);
    ge2_shim_arrived(tile.barrier, 0, -tile.bytes);
}
template <class... Index>
void ge2_bulk_load(uint32_t to, const ge2_tensor_map *map, uint32_t barrier, Index... index) {
    const ge2_shim_tiles &t = *(const ge2_shim_tiles *)map;
    int bytes = t.itemsize;
    for (int a = 0; a < t.rank; a++) bytes *= t.box[a];
    ge2_shim_tile tile = {t, to, barrier, {index...}, bytes, false, true};
    if (GE2_SHIM_LATE) ge2_shim_copied(tile);
    tile.awaited = false;
    if (GE2_SHIM_LATE) ge2_shim->bring(barrier, (void (*)(const void *))ge2_shim_brought, &tile, sizeof tile);
    else ge2_shim_brought(tile);
}
template <class... Index>
void ge2_bulk_store(const ge2_tensor_map *map, uint32_t from, Index... index) {
    ge2_shim_later(GE2_SHIM_STORES, ge2_shim_copied, ge2_shim_tile{*(const ge2_shim_tiles *)map, from, 0, {index...}, 0, true, false});
}
inline void ge2_stores_begun() { ge2_shim_group(GE2_SHIM_STORES); }
template <int FEW> void ge2_stores_read() { ge2_shim_wait(GE2_SHIM_STORES, FEW); }
inline void ge2_stores_done() { ge2_shim_wait(GE2_SHIM_STORES, 0); }
inline void ge2_shared_written() { ge2_shim->fence(); }

inline void ge2_products_begin() {}
inline void ge2_products_issued() { ge2_shim_group(GE2_SHIM_PRODUCTS); }
template <int FEW> void ge2_products_done() { ge2_shim_wait(GE2_SHIM_PRODUCTS, FEW); }
template <int N> void ge2_products_hold(float (&total)[N]) {}

/* An element of an operand: of so many lines of it, at a term of the sum. */
template <class T, bool TURNED>
typename T::Sum ge2_shim_factor(uint64_t matrix, int line, int term) {
    const uint32_t at = (uint32_t)(matrix & 0x3fff) << 4, lead = (uint32_t)(matrix >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(matrix >> 32 & 0x3fff) << 4;
    const int row = TURNED ? term : line, column = TURNED ? line % 64 : term;
    const uint32_t place = at + (TURNED ? line / 64 * lead : 0) + row / 8 * stride + row % 8 * 128 + column * T::SIZE;
    return T::of(ge2_shim_at(ge2_shim_swizzled(place, 128)));
}

/* A warp group's product of 64 x 32 bytes of terms: each thread has two neighbours of eight columns, of two rows. `left`: of
 * the left operand, the thread's lines, in registers or not. */
struct ge2_shim_product {
    void *total;
    uint64_t a, b;
    int more;
    uint32_t words[4];
};
template <class T, int COLUMNS, bool TURNED_B, int TERMS>
GE2_SHIM_UNSEEN void ge2_shim_summed(const ge2_shim_product &p, const int32_t (&left)[2][TERMS]) {
    int32_t *const total = (int32_t *)p.total;
    for (int n = 0; n < COLUMNS / 2; n++) {
        const int column = n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2;
        if (!p.more) total[n] = 0;
        for (int k = 0; k < TERMS; k++)
            total[n] = ge2_shim_wrapped(total[n], left[n / 2 % 2][k], ge2_shim_factor<T, TURNED_B>(p.b, column, k));
    }
}
template <class T, int COLUMNS, bool TURNED_B, int TERMS>
GE2_SHIM_UNSEEN void ge2_shim_summed(const ge2_shim_product &p, const float (&left)[2][TERMS]) {
    float *const total = (float *)p.total;
    for (int n = 0; n < COLUMNS / 2; n++) {
        const int column = n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2;
        if (T::SIZE == 1) {
            float terms[TERMS + 1] = {p.more ? total[n] : 0.0f};
            for (int k = 0; k < TERMS; k++) terms[k + 1] = left[n / 2 % 2][k] * ge2_shim_factor<T, TURNED_B>(p.b, column, k);
            total[n] = ge2_shim_few(terms);
            continue;
        }
        double sum = p.more ? total[n] : 0.0f;
        for (int k = 0; k < TERMS; k++) sum += (double)left[n / 2 % 2][k] * ge2_shim_factor<T, TURNED_B>(p.b, column, k);
        total[n] = ge2_shim_cut(sum);
    }
}
/* `R`: of the right operand, which may be the other type of fp8, or of bytes. */
template <class T, int COLUMNS, bool TURNED_A, bool TURNED_B, class R>
GE2_SHIM_UNSEEN void ge2_shim_multiplied(const ge2_shim_product &p) {
    const int mate = threadIdx.x % 128, line = mate / 32 * 16 + mate % 32 / 4;
    typename T::Sum left[2][32 / T::SIZE];
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < 32 / T::SIZE; k++) left[s][k] = ge2_shim_factor<T, TURNED_A>(p.a, line + 8 * s, k);
    ge2_shim_summed<R, COLUMNS, TURNED_B>(p, left);
}
/* The same of 64 x 16 terms that are in registers: a lane has neighbours 2 * (l % 4) of rows l / 4 and 8 below, then those
 * 8 further along. */
template <class T, int COLUMNS, bool TURNED_B>
GE2_SHIM_UNSEEN void ge2_shim_multiplied_registers(const ge2_shim_product &p) {
    const int lane = threadIdx.x % 32;
    float left[2][16];
    for (int mate = 0; mate < 4; mate++)
        for (int n = 0; n < 4; n++) {
            const uint32_t pair = __shfl_sync(0xffffffffu, p.words[n], lane / 4 * 4 + mate);
            for (int k = 0; k < 2; k++) left[n % 2][n / 2 * 8 + mate * 2 + k] = T::of((const char *)&pair + 2 * k);
        }
    ge2_shim_summed<T, COLUMNS, TURNED_B>(p, left);
}
template <class T, int COLUMNS, bool TURNED_A, bool TURNED_B, class R = T>
void ge2_shim_multiply(typename T::Sum (&total)[COLUMNS / 2], uint64_t a, uint64_t b, int more) {
    ge2_shim_later(GE2_SHIM_PRODUCTS, ge2_shim_multiplied<T, COLUMNS, TURNED_A, TURNED_B, R>, ge2_shim_product{total, a, b, more, {}});
}
template <class T, int COLUMNS, bool TURNED_B>
void ge2_shim_multiply_registers(float (&total)[COLUMNS / 2], const uint32_t (&a)[4], uint64_t b, int more) {
    ge2_shim_later(GE2_SHIM_PRODUCTS, ge2_shim_multiplied_registers<T, COLUMNS, TURNED_B>, ge2_shim_product{total, 0, b, more, {a[0], a[1], a[2], a[3]}});
}

inline void ge2_store_matrices(uint32_t at, const uint32_t (&words)[4]) {
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < 4; n++) {
        const uint32_t row = __shfl_sync(0xffffffffu, at, n * 8 + lane / 4);
        __builtin_memcpy(ge2_shim_at(row) + lane % 4 * 4, &words[n], 4);
    }
}

#endif
#endif
