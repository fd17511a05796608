/* Running sums and the like in one pass over memory: each element is read once and written once.
 *
 * `How` tells of a scan: its State, what that is of nothing (`start`, which changes no state), `of` one element and by
 * `merge` of two, the earlier first; the `result` that a state is written as; and `none`, an element that changes
 * nothing. Which states are merged, and in which order, follows from their places: the same bits each run.
 *
 * A pack is PACK neighbours along the line, read in accesses of WIDE; WIDE = 0: elements `step` apart. Packs count from
 * where the scan begins, with REVERSE the line's end. A tile is PACKS packs of each of the TEAM threads of a line, where
 * those of a warp lie side by side: pack k of all its lanes comes before pack k + 1 of any.
 */
#ifndef GE2_SCAN_CUH
#define GE2_SCAN_CUH

#include "ge2/ahead.cuh"
#include "ge2/pack.cuh"
#include "ge2/warp.cuh"

template <class T, int PACK, int PACKS>
struct ge2_packs {
    ge2_some<T, PACK> of[PACKS];
};

/* The same in shared memory, where they wait for what stands before them and take no registers. Left in these, the
 * compiler would keep what was made of each element, of twice the size. */
template <class T, int PACK, int PACKS, int TEAM>
struct ge2_room {
    ge2_some<T, PACK> of[PACKS * TEAM];
};
template <class T, int PACK, int PACKS, int TEAM>
GE2_FN void ge2_scan_keep(ge2_room<T, PACK, PACKS, TEAM> &room, const ge2_packs<T, PACK, PACKS> &mine) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) room.of[k * TEAM + threadIdx.x] = mine.of[k];
}
template <class T, int PACK, int PACKS, int TEAM>
GE2_FN ge2_some<T, PACK> ge2_scan_kept(const ge2_room<T, PACK, PACKS, TEAM> &room, int k) {
    return room.of[k * TEAM + threadIdx.x];
}
template <class T, int PACK, int PACKS>
GE2_FN ge2_some<T, PACK> ge2_scan_kept(const ge2_packs<T, PACK, PACKS> &mine, int k) {
    return mine.of[k];
}

/* The number of a thread's pack k within its tile. */
template <int TEAM, int PACKS>
GE2_FN int ge2_scan_pack(int k) {
    constexpr int WIDTH = TEAM < 32 ? TEAM : 32;
    const int thread = (int)threadIdx.x % TEAM;
    return thread / WIDTH * (WIDTH * PACKS) + k * WIDTH + thread % WIDTH;
}

/* Where in memory a pack begins; how many elements are there from it on, 0 for a pack beyond the line. */
template <int PACK, bool REVERSE, class I>
GE2_FN I ge2_scan_place(I pack, I n) {
    return (REVERSE ? (n + PACK - 1) / PACK - 1 - pack : pack) * PACK;
}

/* How many elements after a thread's first pack its pack k begins. */
template <int TEAM, int PACK, bool REVERSE>
GE2_FN constexpr int ge2_scan_after(int k) {
    return (REVERSE ? -k : k) * (TEAM < 32 ? TEAM : 32) * PACK;
}

/* Whether all packs of a tile are whole. */
template <int TEAM, int PACKS, int PACK, bool REVERSE, class I>
GE2_FN bool ge2_scan_whole(I first, I n) {
    return (first + TEAM * PACKS) * PACK <= n && (!REVERSE || first || n % PACK == 0);
}

template <class How, int TEAM, int PACKS, int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN ge2_packs<T, PACK, PACKS> ge2_scan_read(const T *line, I first, I n, int64_t step) {
    ge2_packs<T, PACK, PACKS> found;
    if (WIDE && ge2_scan_whole<TEAM, PACKS, PACK, REVERSE>(first, n)) {
        const T *const x = line + ge2_scan_place<PACK, REVERSE>(first + ge2_scan_pack<TEAM, PACKS>(0), n);
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            found.of[k] = ge2_read<PACK, WIDE ? WIDE : 1>(x + ge2_scan_after<TEAM, PACK, REVERSE>(k));
        return found;
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const I at = ge2_scan_place<PACK, REVERSE>(first + ge2_scan_pack<TEAM, PACKS>(k), n);
        const I left = at < 0 ? 0 : n - at;
#pragma unroll
        for (int v = 0; v < PACK; v++)
            found.of[k].at[v] = v < left ? line[(at + v) * (WIDE ? 1 : step)] : How::none();
    }
    return found;
}

/* What all of a thread's elements come to: a state for each pack. These become what stands before the pack in the tile;
 * the whole tile's state is returned. Teams of more than a warp are the block. */
template <class How, int TEAM, int PACKS, bool REVERSE, class T, int PACK>
GE2_FN typename How::State ge2_scan_tile(const ge2_packs<T, PACK, PACKS> &mine, typename How::State (&before)[PACKS]) {
    typedef typename How::State State;
    constexpr int WIDTH = TEAM < 32 ? TEAM : 32;
    const int lane = (int)threadIdx.x % WIDTH;
    State whole = How::start();
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        State upto = How::of(mine.of[k].at[REVERSE ? PACK - 1 : 0]);
#pragma unroll
        for (int v = 1; v < PACK; v++) upto = How::merge(upto, How::of(mine.of[k].at[REVERSE ? PACK - 1 - v : v]));
        upto = ge2_warp_scan<WIDTH>(upto, How::merge);
        const State earlier = ge2_lane_before<WIDTH>(upto, 1);
        before[k] = lane ? How::merge(whole, earlier) : whole;
        whole = How::merge(whole, ge2_lane_at<WIDTH>(upto, WIDTH - 1));
    }
    if constexpr (TEAM > 32) {
        constexpr int WARPS = TEAM / 32;
        __shared__ ge2_words<State> of_warps[WARPS];
        const int warp = (int)threadIdx.x / 32;
        __syncthreads(); /* an earlier tile's are read */
        if (lane == 0) of_warps[warp] = ge2_words_of(whole);
        __syncthreads();
        const State upto = ge2_warp_scan<WARPS>(ge2_of_words<State>(of_warps[lane % WARPS]), How::merge);
        const State earlier = ge2_lane_at<WARPS>(upto, warp ? warp - 1 : 0);
        whole = ge2_lane_at<WARPS>(upto, WARPS - 1);
#pragma unroll
        for (int k = 0; k < PACKS; k++) before[k] = warp ? How::merge(earlier, before[k]) : before[k];
    }
    return whole;
}

/* Writes packs that a warp has in shared memory, from number `pack` on of the line, an element a lane: where no access
 * takes a pack whole, lanes that each write theirs would leave what is between to others. */
template <int PACK, int COUNT, bool REVERSE, class T, class I>
GE2_FN void ge2_scan_leave(const ge2_some<T, PACK> *packs, T *line, I pack, I n) {
    const int lane = (int)threadIdx.x % 32;
    const T *const some = packs->at;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < COUNT * PACK / 32; k++) {
        const int e = k * 32 + lane;
        line[ge2_scan_place<PACK, REVERSE>(pack + e / PACK, n) + e % PACK] = some[e];
    }
    __syncwarp();
}

template <class Mine>
constexpr bool ge2_scan_shares = false;
template <class T, int PACK, int PACKS, int TEAM>
constexpr bool ge2_scan_shares<ge2_room<T, PACK, PACKS, TEAM>> = TEAM >= 32;

/* Goes on from what stands before, through each pack, and writes every state. */
template <class How, int TEAM, int PACKS, int PACK, int WIDE, bool REVERSE, class Mine, class R, class I>
GE2_FN void ge2_scan_write(Mine &mine, typename How::State carry, const typename How::State (&before)[PACKS],
                           R *line, I first, I n, int64_t step) {
    const bool all = WIDE && ge2_scan_whole<TEAM, PACKS, PACK, REVERSE>(first, n);
    const I place = ge2_scan_place<PACK, REVERSE>(first + ge2_scan_pack<TEAM, PACKS>(0), n);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        typename How::State state = How::merge(carry, before[k]);
        const auto pack = ge2_scan_kept(mine, k);
        ge2_some<R, PACK> made;
#pragma unroll
        for (int v = 0; v < PACK; v++) {
            const int u = REVERSE ? PACK - 1 - v : v;
            state = How::merge(state, How::of(pack.at[u]));
            made.at[u] = How::result(state);
        }
        const I at = place + ge2_scan_after<TEAM, PACK, REVERSE>(k);
        if (all) {
            if constexpr (ge2_scan_shares<Mine> && WIDE < PACK) {
                const int warp = (int)threadIdx.x / 32, pack = (warp * PACKS + k) * 32;
                mine.of[k * TEAM + threadIdx.x] = made;
                ge2_scan_leave<PACK, 32, REVERSE>(mine.of + k * TEAM + warp * 32, line, first + pack, n);
            } else {
                ge2_write<PACK, WIDE ? WIDE : 1>(line + at, made);
            }
        } else {
            const I left = at < 0 ? 0 : n - at;
#pragma unroll
            for (int v = 0; v < PACK; v++)
                if (v < left) line[(at + v) * (WIDE ? 1 : step)] = made.at[v];
        }
    }
}

/* ---------------------------------------------------------------------------------------------- blocks that share lines
 *
 * Each block leaves what its tile comes to, and finds what stands before it from what others left. A state lies in
 * words of 64 bits, 32 of them its own and a mark beside these: what is read is there as a whole or not at all, with no
 * fence. All words are 0 before the kernel. */

#ifndef GE2_SHIM
GE2_FN uint64_t ge2_look(const uint64_t *at) {
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
GE2_FN void ge2_leave(uint64_t *at, uint64_t word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(at), "l"(word) : "memory");
}
#else
GE2_FN uint64_t ge2_look(const uint64_t *at) { return __ldcv(at); }
GE2_FN void ge2_leave(uint64_t *at, uint64_t word) { atomicExch(at, word); }
#endif

constexpr uint64_t GE2_LEFT = 1ull << 32;

template <class S>
GE2_FN constexpr int ge2_state_words() {
    return (int)(sizeof(S) + 3) / 4;
}

/* Two words in one access, of which each is there as a whole or not at all. */
#ifndef GE2_SHIM
GE2_FN void ge2_look_two(const uint64_t *at, uint64_t *a, uint64_t *b) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(*a), "=l"(*b) : "l"(at) : "memory");
}
GE2_FN void ge2_leave_two(uint64_t *at, uint64_t a, uint64_t b) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" : : "l"(at), "l"(a), "l"(b) : "memory");
}
#else
GE2_FN void ge2_look_two(const uint64_t *at, uint64_t *a, uint64_t *b) { *a = ge2_look(at), *b = ge2_look(at + 1); }
GE2_FN void ge2_leave_two(uint64_t *at, uint64_t a, uint64_t b) { ge2_leave(at, a), ge2_leave(at + 1, b); }
#endif

/* A state as a whole, at a multiple of 16 bytes if it has an even number of words. */
template <class S>
GE2_FN void ge2_leave_whole(uint64_t *at, const S &state) {
    const ge2_words<S> words = ge2_words_of(state);
    constexpr int N = (int)(sizeof words.at / sizeof words.at[0]);
    if constexpr (N % 2 == 0) {
#pragma unroll
        for (int w = 0; w < N; w += 2) ge2_leave_two(at + w, GE2_LEFT | words.at[w], GE2_LEFT | words.at[w + 1]);
    } else {
#pragma unroll
        for (int w = 0; w < N; w++) ge2_leave(at + w, GE2_LEFT | words.at[w]);
    }
}

/* Reads it, once it is there. */
template <class S>
GE2_FN S ge2_wait_for(const uint64_t *at) {
    ge2_words<S> words;
    constexpr int N = (int)(sizeof words.at / sizeof words.at[0]);
    uint64_t found[N], marks;
    do {
        marks = GE2_LEFT;
        if constexpr (N % 2 == 0) {
#pragma unroll
            for (int w = 0; w < N; w += 2) ge2_look_two(at + w, found + w, found + w + 1);
        } else {
#pragma unroll
            for (int w = 0; w < N; w++) found[w] = ge2_look(at + w);
        }
#pragma unroll
        for (int w = 0; w < N; w++) marks &= found[w];
    } while (!marks);
#pragma unroll
    for (int w = 0; w < N; w++) words.at[w] = (uint32_t)found[w];
    return ge2_of_words<S>(words);
}

template <class S>
GE2_FN void ge2_leave_state(uint64_t *at, const S &state, int64_t apart = 1) {
    const ge2_words<S> words = ge2_words_of(state);
#pragma unroll
    for (int w = 0; w < ge2_state_words<S>(); w++) ge2_leave(at + w * apart, GE2_LEFT | words.at[w]);
}

/* Whether a state is there, which is then read. */
template <class S>
GE2_FN bool ge2_look_for_state(const uint64_t *at, S &state, int64_t apart = 1) {
    ge2_words<S> words;
    uint64_t marks = GE2_LEFT;
#pragma unroll
    for (int w = 0; w < ge2_state_words<S>(); w++) {
        const uint64_t word = ge2_look(at + w * apart);
        words.at[w] = (uint32_t)word;
        marks &= word;
    }
    state = ge2_of_words<S>(words);
    return marks != 0;
}

/* The number of a block in the order in which blocks began: those before it run already, so it may wait for them. */
GE2_FN int ge2_ticket(uint64_t *counter) {
    __shared__ int ticket;
    if (threadIdx.x == 0) ticket = (int)atomicAdd((unsigned *)counter, 1u);
    __syncthreads();
    return ticket;
}

/* What stands before a tile of a line, `whole` being its own, for a block of TEAM threads. Tiles are merged by 32, these
 * again by 32, and then all such groups in order: a lane looks at one state of its kind, a warp at those of one kind. The
 * last tile of a group leaves what the group comes to, so nobody waits for more than two others in turn. A line has
 * states for its tiles, then for its groups of 32, then for those of 1024. */
template <class How, int TEAM>
GE2_FN typename How::State ge2_look_back(uint64_t *line, int tile, int tiles, typename How::State whole) {
    typedef typename How::State State;
    constexpr int WORDS = ge2_state_words<State>(), WARPS = TEAM / 32, KINDS = 3;
    static_assert(WARPS * 32 == TEAM, "a block of whole warps");
    __shared__ ge2_words<State> before[KINDS];
    uint64_t *const of_32 = line + (int64_t)tiles * WORDS, *const of_1024 = of_32 + (int64_t)(tiles + 31) / 32 * WORDS;
    const int thread = (int)threadIdx.x, lane = thread % 32;
    if (thread == 0) ge2_leave_whole(line + (int64_t)tile * WORDS, whole);
    for (int kind = thread / 32; kind < KINDS; kind += WARPS) {
        const uint64_t *const states = kind == 0 ? line + (int64_t)(tile / 32 * 32) * WORDS
                                     : kind == 1 ? of_32 + (int64_t)(tile / 1024 * 32) * WORDS
                                                 : of_1024;
        const int count = kind == 0 ? tile % 32 : kind == 1 ? tile / 32 % 32 : tile / 1024;
        State state = How::start();
        for (int first = 0; first < count; first += 32) {
            State mine = How::start();
            if (first + lane < count) mine = ge2_wait_for<State>(states + (int64_t)(first + lane) * WORDS);
            __syncwarp();
            state = How::merge(state, ge2_lane_at(ge2_warp_scan(mine, How::merge), 31));
        }
        if (lane == 0) {
            before[kind] = ge2_words_of(state);
            if (kind == 0 && tile % 32 == 31) ge2_leave_whole(of_32 + (int64_t)(tile / 32) * WORDS, How::merge(state, whole));
        }
    }
    __syncthreads();
    const State inside = How::merge(ge2_of_words<State>(before[1]), ge2_of_words<State>(before[0]));
    if (thread == 0 && tile % 1024 == 1023)
        ge2_leave_whole(of_1024 + (int64_t)(tile / 1024) * WORDS, How::merge(inside, whole));
    return How::merge(ge2_of_words<State>(before[2]), inside);
}

/* ---- a tile in shared memory: a thread has RUN packs in a row, an odd number, so that no two lanes meet in a bank. A
 * warp reads and writes what its own lanes go through, each time packs that lie side by side. */

template <class How, int TEAM, int RUN, int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN void ge2_scan_fill(ge2_room<T, PACK, RUN, TEAM> &room, const T *line, I first, I n, int64_t step) {
    const int lane = (int)threadIdx.x % 32, begin = (int)threadIdx.x / 32 * (32 * RUN);
    const I pack = first + begin + lane;
    if (WIDE && ge2_scan_whole<TEAM, RUN, PACK, REVERSE>(first, n)) {
        const T *const from = line + ge2_scan_place<PACK, REVERSE>(pack, n);
#pragma unroll
        for (int k = 0; k < RUN; k++) {
            const T *const at = from + ge2_scan_after<32, PACK, REVERSE>(k);
            if constexpr (WIDE * sizeof(T) >= 4) {
                ge2_ahead<WIDE>(room.of + begin + k * 32 + lane, at);
            } else {
                room.of[begin + k * 32 + lane] = ge2_read<PACK, WIDE ? WIDE : 1>(at);
            }
        }
    } else {
#pragma unroll 1
        for (int k = 0; k < RUN; k++) {
            const I at = ge2_scan_place<PACK, REVERSE>(pack + k * 32, n), left = at < 0 ? 0 : n - at;
            ge2_some<T, PACK> found;
#pragma unroll
            for (int v = 0; v < PACK; v++) found.at[v] = v < left ? line[(at + v) * (WIDE ? 1 : step)] : How::none();
            room.of[begin + k * 32 + lane] = found;
        }
    }
    ge2_ahead_wait();
    __syncwarp();
}

/* What stands before a thread's run in the tile; `whole` becomes what the tile comes to. */
template <class How, int TEAM, int RUN, int PACK, bool REVERSE, class T>
GE2_FN typename How::State ge2_scan_runs(const ge2_room<T, PACK, RUN, TEAM> &room, typename How::State &whole) {
    typedef typename How::State State;
    constexpr int WARPS = TEAM / 32;
    __shared__ ge2_words<State> of_warps[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    State mine = How::start();
#pragma unroll(PACK > 4 || sizeof(State) > 8 ? 1 : RUN)
    for (int k = 0; k < RUN; k++) {
        const ge2_some<T, PACK> pack = room.of[threadIdx.x * RUN + k];
        State part = How::of(pack.at[REVERSE ? PACK - 1 : 0]);
#pragma unroll
        for (int v = 1; v < PACK; v++) part = How::merge(part, How::of(pack.at[REVERSE ? PACK - 1 - v : v]));
        mine = How::merge(mine, part);
    }
    const State upto = ge2_warp_scan(mine, How::merge);
    const State inside = ge2_lane_before(upto, 1);
    if (lane == 31) of_warps[warp] = ge2_words_of(upto);
    __syncthreads();
    const State warps = ge2_warp_scan<WARPS>(ge2_of_words<State>(of_warps[lane % WARPS]), How::merge);
    const State earlier = ge2_lane_at<WARPS>(warps, warp ? warp - 1 : 0);
    whole = ge2_lane_at<WARPS>(warps, WARPS - 1);
    return !warp ? lane ? inside : How::start() : lane ? How::merge(earlier, inside) : earlier;
}

/* Goes on from what stands before each run, and writes every state. */
template <class How, int TEAM, int RUN, int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN void ge2_scan_finish(ge2_room<T, PACK, RUN, TEAM> &room, typename How::State state, T *line, I first, I n, int64_t step) {
    typedef typename How::State State;
    const int lane = (int)threadIdx.x % 32, begin = (int)threadIdx.x / 32 * (32 * RUN);
#pragma unroll(PACK > 4 || sizeof(State) > 8 ? 1 : RUN)
    for (int k = 0; k < RUN; k++) {
        ge2_some<T, PACK> pack = room.of[threadIdx.x * RUN + k];
        State part = How::start(); /* of the pack alone, so that packs wait for each other only once */
#pragma unroll
        for (int v = 0; v < PACK; v++) {
            const int u = REVERSE ? PACK - 1 - v : v;
            part = v ? How::merge(part, How::of(pack.at[u])) : How::of(pack.at[u]);
            pack.at[u] = How::result(How::merge(state, part));
        }
        state = How::merge(state, part);
        room.of[threadIdx.x * RUN + k] = pack;
    }
    __syncwarp();
    const I pack = first + begin + lane;
    if (WIDE && WIDE < PACK && ge2_scan_whole<TEAM, RUN, PACK, REVERSE>(first, n)) {
        ge2_scan_leave<PACK, 32 * RUN, REVERSE>(room.of + begin, line, first + begin, n);
    } else if (WIDE && ge2_scan_whole<TEAM, RUN, PACK, REVERSE>(first, n)) {
        T *const to = line + ge2_scan_place<PACK, REVERSE>(pack, n);
#pragma unroll
        for (int k = 0; k < RUN; k++)
            ge2_write<PACK, WIDE ? WIDE : 1>(to + ge2_scan_after<32, PACK, REVERSE>(k), room.of[begin + k * 32 + lane]);
    } else {
#pragma unroll 1
        for (int k = 0; k < RUN; k++) {
            const I at = ge2_scan_place<PACK, REVERSE>(pack + k * 32, n), left = at < 0 ? 0 : n - at;
#pragma unroll
            for (int v = 0; v < PACK; v++)
                if (v < left) line[(at + v) * (WIDE ? 1 : step)] = room.of[begin + k * 32 + lane].at[v];
        }
    }
}

/* ------------------------------------------------------------------------------------------- lines that lie side by side
 *
 * A thread has PACK neighbouring lines, or columns; rows count from where the scan begins, `step` elements apart. */

template <class How, int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN ge2_some<T, PACK> ge2_scan_row(const T *x, I row, I n, int64_t step, int64_t apart) {
    const T *const at = x + (REVERSE ? n - 1 - row : row) * step;
    ge2_some<T, PACK> found;
    if constexpr (WIDE > 0) {
        found = ge2_read<PACK, WIDE>(at);
    } else {
#pragma unroll
        for (int v = 0; v < PACK; v++) found.at[v] = at[v * apart];
    }
    return found;
}

/* A pack as one that the compiler knows nothing of: it would keep what it made of each element, of twice the size. */
template <class T, int PACK>
GE2_FN ge2_some<T, PACK> ge2_anew(const ge2_some<T, PACK> &pack) {
    ge2_words<ge2_some<T, PACK>> words = ge2_words_of(pack);
#ifndef GE2_SHIM
#pragma unroll
    for (int w = 0; w < (int)(sizeof words / 4); w++) asm volatile("" : "+r"(words.at[w]));
#endif
    return ge2_of_words<ge2_some<T, PACK>>(words);
}

/* Takes a row in, and writes it. */
template <class How, int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN void ge2_scan_on(typename How::State (&states)[PACK], const ge2_some<T, PACK> &row, T *y, I number, I n,
                        int64_t step, int64_t apart) {
    const ge2_some<T, PACK> mine = ge2_anew(row);
    ge2_some<T, PACK> made;
#pragma unroll
    for (int v = 0; v < PACK; v++) {
        states[v] = How::merge(states[v], How::of(mine.at[v]));
        made.at[v] = How::result(states[v]);
    }
    T *const at = y + (REVERSE ? n - 1 - number : number) * step;
    if constexpr (WIDE > 0) {
        ge2_write<PACK, WIDE>(at, made);
    } else {
#pragma unroll
        for (int v = 0; v < PACK; v++) at[v * apart] = made.at[v];
    }
}

/* The same for a strip of COLUMNS packs whose rows blocks share, tile by tile: a thread has ROWS rows below each other.
 * `states` become what stands before them. Tiles are merged within groups of GROUP, then group after group. */
template <class How, int BLOCK, int COLUMNS, int ROWS, int GROUP, class T, int PACK>
GE2_FN void ge2_scan_strip(const ge2_packs<T, PACK, ROWS> &mine, typename How::State (&states)[PACK], uint64_t *strip,
                           int tile, int tiles) {
    typedef typename How::State State;
    constexpr int HEIGHT = BLOCK / COLUMNS, WIDTH = COLUMNS * PACK, WORDS = ge2_state_words<State>(), AT_ONCE = WORDS > 2 ? 2 : 4;
    static_assert(WIDTH <= BLOCK && GROUP % AT_ONCE == 0, "a thread for each column");
    __shared__ ge2_words<State> all[HEIGHT][WIDTH];
    const int thread = (int)threadIdx.x, height = thread / COLUMNS, left = thread % COLUMNS * PACK;
#pragma unroll
    for (int v = 0; v < PACK; v++) {
        State whole = How::of(mine.of[0].at[v]);
#pragma unroll
        for (int i = 1; i < ROWS; i++) whole = How::merge(whole, How::of(mine.of[i].at[v]));
        all[height][left + v] = ge2_words_of(whole);
    }
    __syncthreads();
    if (thread < WIDTH) {
        State whole = How::start();
#pragma unroll 8
        for (int h = 0; h < HEIGHT; h++) whole = How::merge(whole, ge2_of_words<State>(all[h][thread]));
        uint64_t *const column = strip + thread, *const groups = column + (int64_t)tiles * WORDS * WIDTH;
        ge2_leave_state(column + (int64_t)tile * WORDS * WIDTH, whole, WIDTH);
        const int group = tile / GROUP, inside = tile % GROUP;
        State before = How::start();
        for (int first = 0; first < inside; first += AT_ONCE) {
            State others[AT_ONCE];
            bool there;
            do {
                there = true;
#pragma unroll
                for (int e = 0; e < AT_ONCE; e++) {
                    others[e] = How::start();
                    if (first + e >= inside) continue;
                    const int64_t other = (int64_t)group * GROUP + first + e;
                    there &= ge2_look_for_state(column + other * WORDS * WIDTH, others[e], WIDTH);
                }
            } while (!there);
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) before = How::merge(before, others[e]);
        }
        State earlier = How::start();
        if (group)
            while (!ge2_look_for_state(groups + (int64_t)(group - 1) * WORDS * WIDTH, earlier, WIDTH)) {}
        before = How::merge(earlier, before);
        if (inside == GROUP - 1)
            ge2_leave_state(groups + (int64_t)group * WORDS * WIDTH, How::merge(before, whole), WIDTH);
#pragma unroll 8
        for (int h = 0; h < HEIGHT; h++) {
            const State next = How::merge(before, ge2_of_words<State>(all[h][thread]));
            all[h][thread] = ge2_words_of(before);
            before = next;
        }
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < PACK; v++) states[v] = ge2_of_words<State>(all[height][left + v]);
}

#endif
