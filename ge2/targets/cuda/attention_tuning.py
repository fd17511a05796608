"""Numbers by which kernels of attention are planned: tiles, and what was measured of them."""

from __future__ import annotations

from typing import final

from ge2.base.record import record


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
    # a block of 64 lines, of which each has two operands
    backward: tuple[AttentionTile, ...] = (
        AttentionTile(128, 2, 64, 3),
        AttentionTile(64, 2, 64, 4),
        AttentionTile(256, 2, 32, 2),
    )
    # by the tensor cores of warps; none was measured
    mma: tuple[AttentionMmaTile, ...] = (
        AttentionMmaTile(64, 4, 2, 64, 0.5), AttentionMmaTile(64, 4, 1, 64, 0.35),
        AttentionMmaTile(128, 4, 2, 64, 0.5), AttentionMmaTile(128, 4, 2, 32, 0.45),
        AttentionMmaTile(128, 4, 1, 64, 0.35), AttentionMmaTile(128, 4, 1, 32, 0.3),
        AttentionMmaTile(256, 4, 1, 32, 0.35), AttentionMmaTile(256, 2, 1, 16, 0.2),
    )  # fmt: skip
    mma_backward: tuple[AttentionMmaTile, ...] = (
        AttentionMmaTile(64, 4, 2, 32, 0.4, 2), AttentionMmaTile(64, 4, 1, 64, 0.35, 2),
        AttentionMmaTile(64, 4, 1, 32, 0.3, 2), AttentionMmaTile(128, 4, 1, 32, 0.3, 2),
        AttentionMmaTile(128, 4, 1, 16, 0.25, 2), AttentionMmaTile(128, 2, 1, 16, 0.2, 2),
        AttentionMmaTile(256, 4, 1, 16, 0.25, 2), AttentionMmaTile(256, 2, 1, 16, 0.2, 2),
        AttentionMmaTile(256, 1, 1, 16, 0.1, 1),
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
    cache: int = 32 << 20  # bytes of keys and values that stay in the L2 cache
    busy: float = 0.75  # the part of the time in which tensor cores are
    share: int = 128  # keys at least that a warp has, where warps share them,
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
