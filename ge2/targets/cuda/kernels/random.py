"""Random bits and new keys in CUDA: a thread makes a block of 16 bytes of a
stream, wherever it lies.
"""

from __future__ import annotations

import math
from typing import final

from ge2.base.record import record
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.axes import merged, strides_of
from ge2.codegen.text import Operand, Text
from ge2.ops.random import RandomBits, RandomFold
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.kernel import Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import STORED
from ge2.targets.cuda.kernels.element_grid import (
    OVER,
    Elements,
    Grid,
    Spread,
    added,
    far,
    lettered,
    packed,
)
from ge2.targets.cuda.kernels.generated import Cuda

BYTES = 16  # of a block of the generator


@final
@record
class Bits:
    """What `templates/cuda/random_bits.cu.jinja` prints."""

    spread: Spread
    stored: str
    key: str
    to: str
    wide: int
    left: str


@final
class CudaBits(Cuda):
    name = "random bits in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, RandomBits) else f"{problem.op.name} draws no bits"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ins, outs = problem.arrays
        op, (key,), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, RandomBits)
        if not to.size:
            return Kernels(())
        n, lines = math.prod(op.shape), key.shape[:-1]
        per = BYTES // op.dtype.itemsize
        blocks, stored = -(-n // per), STORED[op.dtype]
        over, (x_over, y_over) = merged(
            lines, ins[0].strides[:-1], tuple(s * n for s in strides_of(lines))
        )
        letters = lettered(OVER, len(over))
        laid = (key.shape, ins[0].strides), (to.shape, strides_of(to.shape))
        grid = Grid(far((math.prod(lines) * blocks,), *laid), caps.chip.tuning.elements.block)
        spread = grid.spread([*letters, "b"], [*over, blocks])
        grid.fixed.append(Fixed("PER", per, "elements of a block of the generator"))
        first, second = words(grid, ins[0], letters, x_over)
        grid.array("key", ins[0], key.dtype)
        grid.result("y", outs[0], op.dtype)
        wide = packed(op.dtype, *y_over, outs[0].offset)
        left = "" if n % per == 0 else f", {grid.size('n', n)} - b * PER"
        to_block = added(grid.place("y", letters, y_over), "b * PER")
        view = Bits(spread, stored, f"{first}, {second}", to_block, wide, left)
        title, threads = described(problem), math.prod(lines) * blocks
        return Kernels((grid.kernel("random bits", title, view, threads, "random_bits"),))


@final
class CudaFold(Cuda):
    name = "random fold in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, RandomFold) else f"{problem.op.name} makes no keys"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ins, outs = problem.arrays
        op, (key, data), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, RandomFold)
        if not data.size:
            return Kernels(())
        own = (*ins[0].strides[:-1], *(0,) * (data.ndim - key.ndim + 1))
        of_data = (0,) * data.ndim if ins[1].value else ins[1].strides
        over, (x_over, d_over, y_over) = merged(data.shape, own, of_data, outs[0].strides[:-1])
        letters = lettered(OVER, len(over))
        laid = (to.shape, outs[0].strides), (key.shape, ins[0].strides), (data.shape, of_data)
        grid = Grid(far((data.size,), *laid), caps.chip.tuning.elements.block)
        spread = grid.spread(letters, over)
        first, second = words(grid, ins[0], letters, x_over)
        grid.array("key", ins[0], key.dtype)
        number = grid.element("data", ins[1], data.dtype, grid.place("data", letters, d_over))
        purpose = grid.size("purpose", op.purpose)
        grid.result("y", outs[0], key.dtype)
        to_words = [added(grid.place("y", letters, y_over), t) for t in ("0", "1")]
        lines = (
            Text(
                f"const uint64_t made = ge2_random_fold({first}, {second}, {number}, (uint32_t){purpose});"
            ),
            Text(f"y[{to_words[0]}] = (uint32_t)made;"),
            Text(f"y[{to_words[1]}] = (uint32_t)(made >> 32);"),
        )
        view = Elements(spread, lines)
        return Kernels((grid.kernel("random fold", described(problem), view, data.size),))


def words(
    grid: Grid, key: Operand, letters: list[str], strides: tuple[int, ...]
) -> tuple[str, str]:
    """Both words of a key."""
    place, step = grid.place("key", letters, strides), key.strides[-1]
    after = "1" if step == 1 else grid.size("word", step)
    return f"key[{place}]", f"key[{added(place, after)}]"
