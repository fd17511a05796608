/* The order of numbered places, those that are equal by their numbers: order[0], order[1], ... are the numbers, and
 * sorted[0] <= sorted[1] <= ... the places. N: the type of numbers and places, which are not negative. Blocks have 256
 * threads. Nothing depends on which thread comes first.
 */
#ifndef GE2_ORDER_CUH
#define GE2_ORDER_CUH

#include "ge2/digit.cuh"
#include "ge2/warp.cuh"

enum { GE2_ORDERING = 256, GE2_HELPERS = 8, GE2_DIGITS = 256 };

/* Counts what comes before each place: GE2_HELPERS neighbouring threads look at the others for one of them. */
template <class N>
GE2_FN void ge2_rank(const N *places, N n, N *order, N *sorted) {
    __shared__ N tile[1024];
    const int helper = threadIdx.x % GE2_HELPERS;
    const N own = (N)blockIdx.x * (GE2_ORDERING / GE2_HELPERS) + threadIdx.x / GE2_HELPERS;
    const N mine = own < n ? places[own] : 0;
    int before = 0;
    for (N first = 0; first < n; first += 1024) {
        const int size = n - first < 1024 ? (int)(n - first) : 1024;
        __syncthreads(); /* the tile before was looked at */
        for (int k = threadIdx.x; k < size; k += GE2_ORDERING) tile[k] = places[first + k];
        __syncthreads();
        for (int k = helper; k < size; k += GE2_HELPERS)
            before += tile[k] < mine || (tile[k] == mine && first + k < own);
    }
    for (int bit = GE2_HELPERS / 2; bit; bit /= 2) before += __shfl_xor_sync(GE2_EVERY_LANE, before, bit);
    if (helper == 0 && own < n) order[before] = own, sorted[before] = mine;
}

GE2_FN int ge2_digit(int64_t place, int64_t shift) { return (int)(place >> shift) & (GE2_DIGITS - 1); }

/* Order by one digit after another, the lowest first; each is three kernels. First: how often each digit is in each tile,
 * of which a block has one, and a thread RUN places, on their way at once. `place` reads that of a number, or finds it for
 * `places`, if that is not null. */
template <int RUN, class N, class F>
GE2_FN void ge2_digit_counts(F place, N *places, N n, N shift, N *counts) {
    __shared__ int found[GE2_DIGITS];
    found[threadIdx.x] = 0;
    __syncthreads();
    const N own = (N)blockIdx.x * GE2_ORDERING * RUN + threadIdx.x;
    N at[RUN];
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        const N k = own + r * GE2_ORDERING;
        at[r] = k < n ? place(k) : 0;
    }
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        const N k = own + r * GE2_ORDERING;
        if (k >= n) continue;
        if (places) places[k] = at[r];
        atomicAdd(&found[ge2_digit(at[r], shift)], 1);
    }
    __syncthreads();
    counts[(N)threadIdx.x * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

/* Second: the counts of a digit, block `digit` has them, become how many are in the tiles before; and all of them. */
template <class N>
GE2_FN void ge2_digit_starts(N *counts, N *totals, N tiles) {
    __shared__ N whole;
    N *mine = counts + (N)blockIdx.x * tiles, before = 0;
    for (N first = 0; first < tiles; first += GE2_ORDERING) {
        const N tile = first + threadIdx.x;
        const N count = tile < tiles ? mine[tile] : 0;
        const N sum = ge2_block_scan<GE2_ORDERING>(count, [](N a, N b) { return a + b; });
        if (tile < tiles) mine[tile] = before + sum - count;
        if (threadIdx.x == GE2_ORDERING - 1) whole = sum;
        __syncthreads();
        before += whole;
        __syncthreads();
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

/* Third: everything goes to its place, those of one digit in the order they are in. A thread has RUN of them on their way
 * at once, a block a tile. They are put in order in shared memory first, so that those of a digit are written side by side.
 * `numbers`: which they are, null where they were never moved. */
template <int RUN, class N>
GE2_FN void ge2_digit_moves(
    const N *places, const N *numbers, N n, N shift, const N *counts, const N *totals, N *order, N *sorted
) {
    constexpr int WARPS = GE2_ORDERING / 32, TILE = GE2_ORDERING * RUN;
    __shared__ N start[GE2_DIGITS]; /* where the first of a digit goes, less where it is in the tile */
    __shared__ int in_tile[GE2_DIGITS];
    __shared__ uint16_t of_warp[WARPS][GE2_DIGITS];
    __shared__ N placed[TILE], numbered[TILE];
    const auto add = [](N a, N b) { return a + b; };
    const int t = threadIdx.x, warp = t / 32;
    const N tile = (N)blockIdx.x * TILE, own = tile + warp * 32 * RUN + t % 32;
    N place[RUN], number[RUN];
    int digit[RUN], rank[RUN];
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        const N k = own + 32 * r;
        place[r] = k < n ? places[k] : 0;
        number[r] = numbers && k < n ? numbers[k] : k;
        digit[r] = k < n ? ge2_digit(place[r], shift) : GE2_DIGITS;
    }
    const int count = ge2_digit_ranks<GE2_DIGITS, WARPS, RUN>(of_warp, digit, rank);
    const int before = (int)ge2_block_scan<GE2_ORDERING>((N)count, add) - count;
    in_tile[t] = before;
    __syncthreads();
    const N all = totals[t], upto = ge2_block_scan<GE2_ORDERING>(all, add);
    start[t] = upto - all + counts[(N)t * gridDim.x + blockIdx.x] - before;
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        if (digit[r] == GE2_DIGITS) continue;
        const int to = in_tile[digit[r]] + of_warp[warp][digit[r]] + rank[r];
        placed[to] = place[r];
        numbered[to] = number[r];
    }
    __syncthreads();
    for (int k = t; k < TILE && tile + k < n; k += GE2_ORDERING) {
        const N to = start[ge2_digit(placed[k], shift)] + k;
        order[to] = numbered[k];
        sorted[to] = placed[k];
    }
}

/* The same by fewer launches, where tiles are few: one for each digit, of BITS, by blocks of 1024 threads, a tile each.
 * counts[tile][digit] is how often a digit is in a tile; as every block needs all of them, tiles are at most some 128.
 */
enum { GE2_ORDERING_TILE = 1024 };

template <int BITS, class N>
GE2_FN int ge2_digit_of(N place, int turn) { return (int)(place >> (BITS * turn)) & ((1 << BITS) - 1); }

/* Where the first of each digit in the tile of this block goes: start[digit]. Several threads share the tiles; `room` is
 * for two numbers of each. */
template <int BITS>
GE2_FN void ge2_digit_tile_starts(const int *counts, int *start, int *room) {
    constexpr int DIGITS = 1 << BITS, SHARING = GE2_ORDERING_TILE / DIGITS;
    int *const of_all = room, *const of_those_before = room + GE2_ORDERING_TILE;
    const int t = threadIdx.x, digit = t % DIGITS, tile = blockIdx.x;
    int all = 0, before = 0;
    #pragma unroll 8
    for (int k = t / DIGITS; k < (int)gridDim.x; k += SHARING) {
        const int count = counts[k * DIGITS + digit];
        all += count;
        before += k < tile ? count : 0;
    }
    of_all[t] = all, of_those_before[t] = before;
    __syncthreads();
    all = before = 0;
    if (t < DIGITS)
        for (int k = t; k < GE2_ORDERING_TILE; k += DIGITS) all += of_all[k], before += of_those_before[k];
    const int upto = ge2_block_scan<GE2_ORDERING_TILE>(all, [](int a, int b) { return a + b; });
    if (t < DIGITS) start[t] = upto - all + before;
}

/* Everything goes to its place by digit number `turn`, those of one digit in the order they are in. `numbers`: which
 * they are, null where they were never moved. From shared memory those of one digit go on side by side. Counts of the next
 * digit, if LAST does not hold, are for the tiles that each comes to be in: whole numbers are added in any order. */
template <int BITS, int TILE, bool LAST, class N>
GE2_FN void ge2_digit_tile_moves(
    const N *places, const N *numbers, int n, int turn, int *counts, N *order, N *sorted
) {
    constexpr int DIGITS = 1 << BITS, WARPS = GE2_ORDERING_TILE / 32, EACH = TILE / GE2_ORDERING_TILE;
    constexpr int RUN = EACH < 2 || BITS > 8 || sizeof(N) > 4 ? 1 : 2; /* 48 KB in all */
    __shared__ int start[DIGITS], apart[DIGITS]; /* where the next of a digit goes, and how far that is from `inside` */
    __shared__ uint16_t inside[DIGITS];          /* where the first of a digit is among those at hand */
    __shared__ __align__(4) uint16_t of_warp[WARPS][DIGITS];
    __shared__ N room[2 * RUN * GE2_ORDERING_TILE];
    N *const placed = room, *const numbered = room + RUN * GE2_ORDERING_TILE;
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int *const mine = counts + (int)gridDim.x * DIGITS * turn, *const next = mine + (int)gridDim.x * DIGITS;
    ge2_digit_tile_starts<BITS>(mine, start, (int *)room);
    const int begin = (int)blockIdx.x * TILE, end = begin + TILE < n ? begin + TILE : n;
    for (int first = begin; first < end; first += RUN * GE2_ORDERING_TILE) {
        N place[RUN], number[RUN];
        int digit[RUN], rank[RUN];
        #pragma unroll
        for (int r = 0; r < RUN; r++) {
            const int at = first + (warp * RUN + r) * 32 + lane;
            const bool here = at < end;
            place[r] = here ? places[at] : 0;
            number[r] = here && numbers ? numbers[at] : at;
            digit[r] = here ? ge2_digit_of<BITS>(place[r], turn) : DIGITS;
        }
        const int sum = ge2_digit_ranks<DIGITS, WARPS, RUN>(of_warp, digit, rank);
        const int before = ge2_block_scan<GE2_ORDERING_TILE>(t < DIGITS ? sum : 0, [](int a, int b) { return a + b; }) - sum;
        if (t < DIGITS) inside[t] = (uint16_t)before, apart[t] = start[t] - before, start[t] += sum;
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < RUN; r++) {
            if (digit[r] == DIGITS) continue;
            const int spot = inside[digit[r]] + of_warp[warp][digit[r]] + rank[r];
            placed[spot] = place[r], numbered[spot] = number[r];
        }
        __syncthreads();
        const int count = end - first < RUN * GE2_ORDERING_TILE ? end - first : RUN * GE2_ORDERING_TILE;
        for (int k = t; k < count; k += GE2_ORDERING_TILE) {
            const N found = placed[k];
            const int to = apart[ge2_digit_of<BITS>(found, turn)] + k;
            order[to] = numbered[k];
            sorted[to] = found;
            if (!LAST) atomicAdd(&next[to / TILE * DIGITS + ge2_digit_of<BITS>(found, turn + 1)], 1);
        }
    }
}

/* The window after the last that goes on with the place of `from`: window w begins with number (w + 1) * WINDOW. Its number
 * is found by steps that double and then halve, so that a place of very many updates has their parts read many at once. */
template <int WINDOW, class N>
GE2_FN N ge2_windows_end(const N *sorted, N from, N n) {
    const N last = (n - 1) / WINDOW, mine = sorted[from];
    const auto goes_on = [&](N w) { return w < last && sorted[(w + 1) * WINDOW] == mine; };
    N inside = from / WINDOW, step = 1;
    if (!goes_on(inside)) return inside;
    while (goes_on(inside + step)) {
        inside += step;
        step *= 2;
    }
    while (step > 1) {
        step /= 2;
        if (goes_on(inside + step)) inside += step;
    }
    return inside + 1;
}

/* Does something with each place from `first` on, `end` not among them, that is none of the sorted ones. */
template <class N, class F>
GE2_FN void ge2_unnamed(const N *sorted, N n, N first, N end, F something) {
    N next = 0;
    for (N above = n; next < above;) { /* the first that is not below */
        const N middle = next + (above - next) / 2;
        if (sorted[middle] < first) next = middle + 1;
        else above = middle;
    }
    for (N place = first; place < end; place++) {
        if (next < n && sorted[next] == place) {
            if (place + 1 == end) break;
            N beyond = next + 1, step = 1; /* by longer and longer steps behind a run, then back by shorter ones */
            while (beyond + step <= n && sorted[beyond + step - 1] == place) beyond += step, step *= 2;
            for (; step; step /= 2)
                if (beyond + step <= n && sorted[beyond + step - 1] == place) beyond += step;
            next = beyond;
        } else
            something(place);
    }
}

/* What a mask chooses is moved to the front in its order, by two kernels, whose blocks have `tile` elements each, a multiple of
 * GE2_FRONT. First: how many each block has of them. */
enum { GE2_FRONT_EACH = 16, GE2_FRONT = GE2_ORDERING * GE2_FRONT_EACH };

template <class M, class A, class N>
GE2_FN void ge2_front_counts(const M *mask, A mask_step, N n, N tile, N *counts) {
    const N first = (N)blockIdx.x * tile, end = n - first < tile ? n : first + tile;
    N found = 0;
    #pragma unroll 8
    for (N k = first + threadIdx.x; k < end; k += GE2_ORDERING) found += mask[k * mask_step] != 0;
    const N all = ge2_block_scan<GE2_ORDERING>(found, [](N a, N b) { return a + b; });
    if (threadIdx.x == GE2_ORDERING - 1) counts[blockIdx.x] = all;
}

/* Second: each element that is chosen goes behind those before it, and for each that is not the end has one `rest` more. A
 * warp has rows of 32 elements, so that its lanes write side by side. */
template <class T, class M, class A, class B, class N>
GE2_FN void ge2_front_moves(
    const M *mask, A mask_step, const T *x, B x_step, T rest, N n, N tile, const N *counts, T *y
) {
    constexpr int WARPS = GE2_ORDERING / 32, EACH = GE2_FRONT_EACH;
    __shared__ N start;
    __shared__ int of_warp[WARPS];
    const int t = threadIdx.x, warp = t / 32;
    const unsigned lower = (1u << t % 32) - 1;
    N before = 0;
    for (N b = t; b < (N)blockIdx.x; b += GE2_ORDERING) before += counts[b];
    before = ge2_block_scan<GE2_ORDERING>(before, [](N a, N b) { return a + b; });
    if (t == GE2_ORDERING - 1) start = before;
    __syncthreads();
    before = start;
    const N first = (N)blockIdx.x * tile, end = n - first < tile ? n : first + tile;
    for (N chunk = first; chunk < end; chunk += GE2_FRONT) {
        const N own = chunk + warp * 32 * EACH + t % 32;
        unsigned chosen[EACH];
        T value[EACH];
        int count = 0;
        #pragma unroll
        for (int r = 0; r < EACH; r++) {
            const N k = own + 32 * r;
            chosen[r] = k < end && mask[k * mask_step];
        }
        #pragma unroll
        for (int r = 0; r < EACH; r++) {
            if (chosen[r]) value[r] = x[(own + 32 * r) * x_step];
            else value[r] = rest;
        }
        #pragma unroll
        for (int r = 0; r < EACH; r++) {
            chosen[r] = __ballot_sync(GE2_EVERY_LANE, chosen[r] != 0);
            count += __popc(chosen[r]);
        }
        if (t % 32 == 0) of_warp[warp] = count;
        __syncthreads();
        N mine = before;
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) mine += of_warp[w];
            before += of_warp[w];
        }
        #pragma unroll
        for (int r = 0; r < EACH; r++) {
            const N k = own + 32 * r, at = mine + __popc(chosen[r] & lower);
            if (k < end) y[chosen[r] & (lower + 1) ? at : n - 1 - (k - at)] = value[r];
            mine += __popc(chosen[r]);
        }
        __syncthreads(); /* the counts were read */
    }
}

#endif
