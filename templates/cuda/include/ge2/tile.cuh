/* Square tiles in shared memory, by which arrays that lie across each other are read and written side by side.
 *
 * A tile has SIDE rows, and a row SIDE / PACK packs of so many neighbours. Pack c of row r lies at pack
 * c ^ (r / PACK % 8): neither those who put packs of a row there, nor those who take PACK elements below each other,
 * meet in a bank. */
#ifndef GE2_TILE_CUH
#define GE2_TILE_CUH

#include "ge2/pack.cuh"

template <class T, int PACK, int SIDE>
struct ge2_tile {
    ge2_some<T, PACK> of[SIDE * SIDE / PACK];
};

/* A place in a tile: which row, and how far along it. */
struct ge2_spot {
    int row, along;
};

/* Where a pack along a row is put, of the so manyth of all: row after row. */
template <int PACK, int SIDE>
GE2_FN ge2_spot ge2_tile_along(int number) {
    return {number / (SIDE / PACK), number % (SIDE / PACK) * PACK};
}

/* From where elements below each other are taken: a warp has 8 packs of rows, where there are as many, of 4 columns. */
template <int PACK, int SIDE>
GE2_FN ge2_spot ge2_tile_below(int number) {
    constexpr int PACKS = SIDE / PACK, WIDTH = PACKS < 8 ? PACKS : 8, GROUPS = PACKS / WIDTH;
    const int lane = number % 32, group = number / 32;
    return {(group % GROUPS * WIDTH + lane % WIDTH) * PACK, group / GROUPS * (32 / WIDTH) + lane / WIDTH};
}

template <class T, int PACK, int SIDE>
GE2_FN void ge2_tile_put(ge2_tile<T, PACK, SIDE> &tile, ge2_spot at, ge2_some<T, PACK> some) {
    const int pack = at.along / PACK ^ (at.row / PACK & 7 & (SIDE / PACK - 1));
    tile.of[at.row * (SIDE / PACK) + pack] = some;
}

template <class T, int PACK, int SIDE>
GE2_FN ge2_some<T, PACK> ge2_tile_take(const ge2_tile<T, PACK, SIDE> &tile, ge2_spot at) {
    const int pack = at.along / PACK ^ (at.row / PACK & 7 & (SIDE / PACK - 1));
    const int first = at.row * SIDE + pack * PACK + at.along % PACK; /* PACK rows have their packs at one place */
    ge2_some<T, PACK> found;
#pragma unroll
    for (int v = 0; v < PACK; v++) found.at[v] = ((const T *)tile.of)[first + v * SIDE];
    return found;
}

#endif
