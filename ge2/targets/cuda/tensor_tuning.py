"""Numbers of products and of attention on tensor cores, by which one of their kernels is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.arrays import FP8
from ge2.base.record import record

# -------- Numbers by which kernels of attention are planned: tiles, and what was measured of them.


@final
@record
class AttentionTile:
    """Warp groups of 64 queries each, keys of a block, and blocks of keys and of values in shared
    memory, for heads that are `width` features wide. `registers`: of a thread that copies, and of
    one that multiplies.
    """

    width: int
    groups: int
    keys: int
    stages: int
    registers: tuple[int, int] = (24, 240)


@final
@record
class AttentionMmaTile:
    """Warps that have `high` times 16 queries each, and keys of a block, for heads that are up to
    `width` features wide. `part`: of the rate of tensor cores, or of multiply-adds, that it reaches;
    `stages`: blocks in shared memory.
    """

    width: int
    warps: int
    high: int
    keys: int
    part: float
    stages: int = 1

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return 16 * self.warps * self.high

    @property
    def threads(self) -> int:
        return 32 * self.warps


@final
@record
class Attention:
    """Attention on Hopper's tensor cores. The first tile was measured on an H200."""

    tiles: tuple[AttentionTile, ...] = (
        AttentionTile(128, 2, 128, 2), AttentionTile(64, 3, 128, 2, (32, 160)), AttentionTile(64, 2, 128, 4),
        AttentionTile(256, 2, 64, 2),
    )  # fmt: skip
    three: float = 0.9  # the time of a row in tiles of three groups, to that in tiles of two
    # a block of 64 lines, of which each has two operands
    backward: tuple[AttentionTile, ...] = (
        AttentionTile(128, 2, 64, 3),
        AttentionTile(64, 2, 64, 4),
        AttentionTile(256, 2, 32, 2),
    )
    # queries, keys and features at most of which blocks of warps are quicker than those of groups of
    # warps, of which one is resident and mostly empty; on an H200 64 queries of 64 keys and 32 features
    # took 36 us beside 69, their derivative 57 beside 141, of 128 features 77 beside 97, 181 beside 242
    short: tuple[tuple[int, int, int], ...] = ((64, 256, 128),)
    short_backward: tuple[tuple[int, int, int], ...] = ((64, 64, 128), (128, 128, 32))
    # by the tensor cores of warps; of these parts none was measured
    mma: tuple[AttentionMmaTile, ...] = (
        AttentionMmaTile(64, 4, 2, 64, 0.5), AttentionMmaTile(64, 4, 1, 64, 0.35),
        AttentionMmaTile(128, 4, 2, 64, 0.5), AttentionMmaTile(128, 4, 2, 32, 0.45),
        AttentionMmaTile(128, 4, 1, 64, 0.35), AttentionMmaTile(128, 4, 1, 32, 0.3),
        AttentionMmaTile(256, 4, 1, 32, 0.35), AttentionMmaTile(256, 2, 1, 16, 0.2),
    )  # fmt: skip
    # of short attention alone: fewer warps, of which as many more blocks are resident
    mma_short: tuple[AttentionMmaTile, ...] = (
        AttentionMmaTile(64, 4, 1, 32, 0.34), AttentionMmaTile(64, 2, 1, 64, 0.3),
        AttentionMmaTile(64, 2, 1, 32, 0.29), AttentionMmaTile(64, 1, 1, 64, 0.2),
        AttentionMmaTile(64, 1, 1, 32, 0.19), AttentionMmaTile(64, 1, 1, 16, 0.17),
        AttentionMmaTile(128, 2, 1, 64, 0.3), AttentionMmaTile(128, 2, 1, 32, 0.29),
        AttentionMmaTile(128, 1, 1, 64, 0.2), AttentionMmaTile(128, 1, 1, 32, 0.19),
        AttentionMmaTile(128, 1, 1, 16, 0.17),
    )  # fmt: skip
    mma_backward: tuple[AttentionMmaTile, ...] = (
        AttentionMmaTile(64, 4, 2, 32, 0.4, 2), AttentionMmaTile(64, 4, 1, 64, 0.35, 2),
        AttentionMmaTile(64, 4, 1, 32, 0.3, 2), AttentionMmaTile(128, 4, 1, 32, 0.3, 2),
        AttentionMmaTile(128, 4, 1, 16, 0.25, 2), AttentionMmaTile(128, 2, 1, 16, 0.2, 2),
        AttentionMmaTile(256, 4, 1, 16, 0.25, 2), AttentionMmaTile(256, 2, 1, 16, 0.2, 2),
        AttentionMmaTile(256, 1, 1, 16, 0.1, 1),
    )  # fmt: skip
    mma_short_backward: tuple[AttentionMmaTile, ...] = (
        AttentionMmaTile(32, 4, 2, 32, 0.4, 2), AttentionMmaTile(32, 4, 1, 64, 0.4, 2),
        AttentionMmaTile(32, 4, 1, 32, 0.37, 2), AttentionMmaTile(32, 2, 1, 32, 0.3, 2),
        AttentionMmaTile(32, 1, 1, 32, 0.2, 2), AttentionMmaTile(32, 1, 1, 16, 0.17, 2),
        AttentionMmaTile(64, 4, 1, 32, 0.36, 2), AttentionMmaTile(64, 2, 1, 32, 0.3, 2),
        AttentionMmaTile(64, 1, 1, 32, 0.2, 2), AttentionMmaTile(64, 1, 1, 16, 0.17, 2),
        AttentionMmaTile(128, 2, 1, 32, 0.25, 2), AttentionMmaTile(128, 1, 1, 32, 0.18, 2),
        AttentionMmaTile(128, 1, 1, 16, 0.15, 2),
    )  # fmt: skip
    # sums of a thread beside which registers do not spill, as NVRTC showed: with dropout; with other
    # scores, or float32; of products alone; of the derivative by warps, of which a half are results
    crowded: tuple[int, int, int] = (112, 160, 192)
    crowded_backward: int = 160
    # features of a head times lines of a thread's rows that have random bits, beside which none spill
    sampled: int = 2048
    sharing: int = 32  # queries at most that share keys, if warps share these: 16 read them once
    resident: int = 2  # blocks of a multiprocessor by the tensor cores of warps
    bias: int = 200 << 10  # bytes of stages of the kernel of a bias's derivative
    bias_tile: tuple[int, int] = (128, 64)  # queries and keys of a block of it, on Hopper
    cache: int = 32 << 20  # bytes of keys and values that stay in the L2 cache
    busy: float = 0.75  # the part of the time in which tensor cores are
    share: int = 128  # keys at least that a warp has, where warps share them,
    sharers: int = 4  # warps of a block that do,
    waves: int = 4  # and how often all warps of a GPU are to have some
    in_turn: int = 8  # shares at least that a thread adds up
    # of few queries, as an H200 took its time for 1 to 256 batches of them:
    # the parts of the bandwidth where warps share keys, and where one warp of a block has queries
    apart: float = 0.78
    warps: float = 0.72
    merge: float = 2e-5  # seconds in which shares begin and are merged
    many: int = 1 << 27  # bytes of keys and values from which on others may be quicker
    # seconds in which a block takes 64 keys of 64 features by warps, and a tile by each 64 rows of wgmma
    waits: float = 1e-6
    waits_of_group: float = 0.8e-6


@final
@record
class Cudnn:
    """Attention by cuDNN, for heads up to a width: the parts of the rate of tensor cores that it
    reaches, forward and backward, where sequences are long; and the queries beside which a band loses
    as much again. Of NVIDIA's figures for an H200 and cuDNN 9.19.1 (cudnn-frontend,
    benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn: Llama 3.1, gpt-oss for 64).
    """

    parts: tuple[tuple[int, float, float], ...] = ((64, 0.39, 0.33), (128, 0.75, 0.64))
    short: tuple[int, int] = (650, 900)

    def part(self, width: int, backward: bool) -> tuple[float, int]:
        """The part of the rate, and what short sequences lose."""
        found = next((each for each in self.parts if width <= each[0]), self.parts[-1])
        return found[1 + backward], self.short[backward]


# -------- Tiles of products on Hopper's tensor cores, and the numbers by which one is chosen.


@final
@record
class WgmmaTile:
    """A tile of the result that a warp group of Hopper has, and the stages of operands in shared
    memory. `cost`: how long its products take beside those of the others, and `long` where sums are
    long; `drain`: how long its elements take to leave. `narrow`: elements leave by strips of half
    the usual width, whose room is one for more stages. `pair`: it has sums of two products. `apart`:
    those of each stage are added to others, and warp groups have so many stages each, or are
    `shared` by both, who have a half of the rows each. `blocks`: of a multiprocessor.
    """

    rows: int
    columns: int
    stages: int
    cost: float = 1.0
    long: float = 1.0
    drain: float = 1.0
    group: int = 8  # rows of tiles that are taken at a time, for the L2 cache
    narrow: bool = False
    pair: bool = False
    apart: bool = False
    shared: bool = False
    blocks: int = 1

    @property
    def products(self) -> int:
        return 2 if self.pair else 1

    @property
    def lines(self) -> int:
        """Rows of a warp group."""
        return self.rows // (1 + self.shared)


@final
@record
class Few:
    """Products of fp8, whose sums are added for each stage. Fitted to what was measured on an H200
    (docs/design/fp8.md): costs are times of the least that tensor cores take.
    """

    tiles: tuple[WgmmaTile, ...] = (
        WgmmaTile(128, 128, 3, 1.38, 1.38, apart=True),
        WgmmaTile(64, 128, 4, 1.6, 1.6, apart=True),
        WgmmaTile(64, 64, 6, 2.87, 2.87, apart=True),
        WgmmaTile(256, 128, 4, 1.5, 1.5, apart=True, shared=True),
        WgmmaTile(128, 192, 5, 1.5, 1.5, apart=True, shared=True),
    )
    pairs: tuple[WgmmaTile, ...] = (
        WgmmaTile(128, 64, 3, 1.38, 1.38, pair=True, apart=True),
        WgmmaTile(64, 64, 3, 1.6, 1.6, pair=True, apart=True),
    )
    # times as long as beside the other warp group, which multiplies meanwhile, one takes by itself
    exclusive: float = 1.33
    lost: float = 0.03  # of the time of products, for each stage that strips take the room of
    # bytes of arrays and results that a warp group moves in a second, and how many more each element
    # is worth, and each equation of it: nothing hides those of a group but products of the other
    drained: float = 17.4e9
    narrow: float = 0.95  # the part of it by narrow strips
    element: float = 0.9
    equation: float = 0.13
    library: float = 1.24  # times the least that tensor cores take, for a library
    # times as long as a library and a region, up to which one kernel is not ranked behind them
    doubt: float = 1.1


@final
@record
class Wgmma:
    """Products on Hopper's tensor cores. The tiles were measured beside each other on an H200."""

    tiles: tuple[WgmmaTile, ...] = (
        WgmmaTile(128, 192, 4, drain=1.15), WgmmaTile(128, 128, 5, 1.02, 1.05),
        WgmmaTile(64, 64, 8, 1.7, 1.85, drain=1.3),
    )  # fmt: skip
    # of which a multiprocessor has two at a time, for matrices of one such tile and of so many terms at
    # most: a block of one tile after another takes so many seconds of each, however short its sums. 32768 of
    # 32 x 32 with relu took 72 us of an H200, and 149 by one block; of 96 x 96, which are four, 80, and 60 by 128 x 128
    brief: WgmmaTile = WgmmaTile(64, 64, 4, 1.7, 1.85, drain=1.3, blocks=2)
    terms: int = 128
    each: float = 0.48e-6
    # of two products, where registers have 128 sums; costs are those of one. Boxes have 64 columns
    pairs: tuple[WgmmaTile, ...] = (
        WgmmaTile(128, 64, 5, 1.02, 1.05, pair=True), WgmmaTile(64, 64, 8, 1.3, 1.3, pair=True),
    )  # fmt: skip
    few: Few = Few()  # of fp8
    # operations of half types in a clock of a multiprocessor: of tf32 a half, of fp8 twice as many
    rate: int = 4096
    clock: float = 1.7e9  # a second, under load
    # bytes of arrays and results that a warp group moves in a second while the other multiplies, and
    # the part of it by narrow strips and by packs, where a sum is four bytes more
    drained: float = 11e9
    narrow: float = 0.85
    packs: float = 0.7
    lost: float = 0.1  # of the time of products, for each stage that strips take the room of
    sectors: float = 2.1  # times as long where rows of a factor
    sector: int = 32  # are no multiples of so many bytes: 8192x1000x784 took 38 us, not 18
    thin: int = 32  # of rows or columns: fewer fill no half of a tile
    crowded: int = 128 * 128  # sums beside more of which no vectors fit that an operand is made of
    short: int = 64  # equations up to which elements may leave in registers
    unrolled: int = 12  # equations up to which they are written out for each strip
    strips: int = 3  # arrays, and results, for which there is room in shared memory
    vectors: int = 6  # bytes of each column for which there is room beside the stages
    # terms from which on a library splits sums, if so many times the least time is lost otherwise
    long: int = 2048
    idle: float = 1.3
    longest: int = 8192  # terms from which on a library takes
    library: float = 1.06  # so many times the least time, by larger tiles

    def rate_of(self, dtype: np.dtype) -> float:
        """Operations of a multiprocessor in a second."""
        return self.clock * self.rate * 2 / dtype.itemsize

    def tiles_of(self, dtype: np.dtype, pair: bool) -> tuple[WgmmaTile, ...]:
        """The tiles of products of a dtype, or of pairs of them."""
        if dtype not in FP8:
            return self.pairs if pair else self.tiles
        return self.few.pairs if pair else self.few.tiles

    def cost_of(self, tile: WgmmaTile, sums: int) -> float:
        """Returns how long products of so many terms take beside those in other tiles."""
        return tile.long if sums >= self.long else tile.cost


@final
@record
class MmaTile:
    """A tile of the result that a block has, and of it its warps, `high` below each other and `broad`
    beside each other; bytes of terms, and stages of operands in shared memory. `part`: of the rate of
    tensor cores that it reaches. `pair`: it has sums of two products. `blocks`: of a multiprocessor,
    which wait for memory by turns, so that sums are in parts where they are fewer.
    """

    rows: int
    columns: int
    high: int
    broad: int
    terms: int
    stages: int
    part: float
    group: int = 8  # rows of tiles that are taken at a time, for the L2 cache
    pair: bool = False
    blocks: int = 1

    @property
    def products(self) -> int:
        return 2 if self.pair else 1

    @property
    def turned(self) -> MmaTile:
        """The tile whose rows are the columns of this one."""
        rows, columns, high, broad = self.columns, self.rows, self.broad, self.high
        return replace(self, rows=rows, columns=columns, high=high, broad=broad)

    @property
    def halved(self) -> MmaTile:
        """A tile of half the columns, which has sums of two products in place of those of one."""
        return replace(self, columns=self.columns // 2, pair=True)


@final
@record
class Mma:
    """Products by the tensor cores of warps."""

    tiles: tuple[MmaTile, ...] = (
        MmaTile(128, 256, 2, 4, 64, 4, 0.6), MmaTile(128, 128, 2, 4, 64, 4, 0.6), MmaTile(128, 128, 2, 2, 64, 4, 0.59),
        MmaTile(128, 64, 4, 2, 64, 4, 0.5), MmaTile(64, 64, 2, 2, 64, 4, 0.4),
    )  # fmt: skip
    long: int = 256  # terms of a part of a sum at least, where blocks share it,
    parts: int = 16  # of which it has no more
    # multiply-adds of half types with sums in float32 that a multiprocessor does in a clock, by compute
    # capability: of data sheets, the least of a generation; of another generation a cautious guess, so
    # that a library is not left for it
    rates: tuple[tuple[int, int], ...] = (
        (80, 1024),
        (87, 1024),
        (90, 1024),
        (100, 1024),
        (103, 1024),
    )
    unknown: int = 256
    one_by_one: float = 0.7  # of the rate, for each operand whose elements are read one by one
    # times the prediction on Hopper where rows are multiples of 16 bytes apart: a library was faster
    # in all that was measured, so that only a measurement chooses it there
    doubt: float = 100.0
    thin: int = 16  # terms: fewer fill no fragment
    crowded: int = 64  # sums of a thread beside which there is room for elements that are read,
    held: int = 160  # and so many of these at most
    words: int = 56  # of arrays that a thread has of a pack, beside which registers do not spill
    # equations from which on compilers keep to 128 registers and spill some, unless they are told that
    # two blocks of 128 threads are enough
    crowd: int = 64
    # of results with so few rows or columns at most, which wait for memory: terms of 256 bytes. The
    # smaller ones, two of which a multiprocessor has, are for races: nobody has measured them
    skinny: tuple[MmaTile, ...] = (
        MmaTile(64, 16, 4, 1, 256, 4, 0.5), MmaTile(16, 64, 1, 4, 256, 4, 0.5),
        MmaTile(32, 16, 2, 1, 256, 4, 0.45), MmaTile(16, 32, 1, 2, 256, 4, 0.45),
    )  # fmt: skip
    # of results with few rows, whose right operand is made of what is read, or with few columns the
    # other way round: registers have a stage of it on its way, and those before the first products at
    # once, which are few and short so that none spill
    waiting: tuple[MmaTile, ...] = (
        MmaTile(16, 64, 1, 4, 128, 3, 0.4, blocks=2), MmaTile(32, 64, 1, 4, 128, 3, 0.4, blocks=2),
        MmaTile(64, 64, 2, 2, 128, 3, 0.4, blocks=2), MmaTile(128, 64, 4, 2, 256, 2, 0.5),
    )  # fmt: skip

    def rate(self, generation: int) -> int:
        """Returns the multiply-adds of a multiprocessor in a clock, by its compute capability."""
        return dict(self.rates).get(generation, self.unknown)
