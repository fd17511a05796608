/* Associative scans of several arrays at once: the parts that are not those of scan.cuh.
 *
 * An element is a struct of one number of each array. Where a line does not fill a tile, elements beyond it are zeros:
 * they come after all others, so nothing that is written is made of them.
 */
#ifndef GE2_PREFIXES_CUH
#define GE2_PREFIXES_CUH

#include "ge2/scan.cuh"

template <class T>
struct ge2_prefix_zeros {
    static __device__ T none() { return T(); }
};

/* Writes a thread's pack k of a tile. */
template <int TEAM, int PACKS, int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN void ge2_prefix_put(const ge2_some<T, PACK> &made, int k, T *line, I first, I n, int64_t step) {
    const I at = ge2_scan_place<PACK, REVERSE>(first + ge2_scan_pack<TEAM, PACKS>(k), n);
    if (WIDE && ge2_scan_whole<TEAM, PACKS, PACK, REVERSE>(first, n)) {
        ge2_write<PACK, WIDE ? WIDE : 1>(line + at, made);
        return;
    }
    const I left = at < 0 ? 0 : n - at;
#pragma unroll
    for (int v = 0; v < PACK; v++)
        if (v < left) line[(at + v) * (WIDE ? 1 : step)] = made.at[v];
}

/* Writes a row of columns side by side. */
template <int PACK, int WIDE, bool REVERSE, class T, class I>
GE2_FN void ge2_prefix_put_row(const ge2_some<T, PACK> &made, T *y, I row, I n, int64_t step, int64_t apart) {
    T *const at = y + (REVERSE ? n - 1 - row : row) * step;
    if constexpr (WIDE > 0) {
        ge2_write<PACK, WIDE>(at, made);
    } else {
#pragma unroll
        for (int v = 0; v < PACK; v++) at[v * apart] = made.at[v];
    }
}

#endif
