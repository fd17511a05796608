"""Random bits and new keys in C: any part of a stream is made anywhere, alike."""

from __future__ import annotations

import math
from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import merged, strides_of
from ge2.codegen.text import Text
from ge2.ops.random import RandomBits, RandomFold
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.types import SUFFIX
from ge2.targets.c.kernels.generated import Generated, Pieces
from ge2.targets.c.kernels.strided_loops import Elements, Head, nest_of, shared

LETTERS = "ijklmopq"


@final
class CBits(Generated):
    name = "random bits in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, RandomBits) else f"{problem.op.name} draws no bits"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, outs), tuning = problem.arrays, caps.tuning.draws
        op, (key,) = problem.op, problem.inputs
        assert isinstance(op, RandomBits)
        head, n = Head(caps), math.prod(op.shape)
        lines = key.shape[:-1]
        over, (x_over, y_over) = merged(
            lines, ins[0].strides[:-1], tuple(s * n for s in strides_of(lines))
        )
        letters = LETTERS[: len(over)]
        head.array("key", ins[0], key.dtype)
        head.array("y", outs[0], op.dtype, written=True)
        ends, count = head.sizes(letters, over), head.size("n", n)
        first, second = words(head, "key", letters, x_over, ins[0].strides[-1])
        to = head.place("y", (*letters, "from"), (*y_over, 1))
        part = "(uint64_t)from, (uint64_t)size"
        each = (
            Text(
                f"const int64_t from = piece * {tuning.piece}, size = ge2_least({tuning.piece}, {count} - from);"
            ),
            Text(f"ge2_random_fill_{SUFFIX[op.dtype]}({first}, {second}, {part}, y + {to});"),
        )
        pieces = f"({count} + {tuning.piece - 1}) / {tuning.piece}"
        sharing = shared(head, len(ends) + 1, tuning.cost * math.prod(lines) * n, lines=2)
        view = Elements(nest_of((*letters, "piece"), (*ends, pieces)), sharing, each)
        return Pieces((head.skeleton(op.name, problem, "elements", view),))


@final
class CFold(Generated):
    name = "random fold in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, RandomFold) else f"{problem.op.name} makes no keys"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        (ins, outs), cost = problem.arrays, caps.tuning.draws.cost
        op, (key, data) = problem.op, problem.inputs
        assert isinstance(op, RandomFold)
        head = Head(caps)
        own = (*ins[0].strides[:-1], *(0,) * (data.ndim - key.ndim + 1))
        data_strides = (0,) * data.ndim if ins[1].value else ins[1].strides
        over, (x_over, d_over, y_over) = merged(data.shape, own, data_strides, outs[0].strides[:-1])
        letters = LETTERS[: len(over)]
        head.array("key", ins[0], key.dtype)
        number = head.array("data", ins[1], data.dtype)
        head.array("y", outs[0], key.dtype, written=True)
        ends = head.sizes(letters, over)
        first, second = words(head, "key", letters, x_over, ins[0].strides[-1])
        if not ins[1].value:
            number = f"data[{head.place('data', letters, d_over)}]"
        place, purpose = head.place("y", letters, y_over), head.size("purpose", op.purpose)
        each = (
            Text(
                f"const uint64_t made = ge2_random_fold({first}, {second}, {number}, (uint32_t){purpose});"
            ),
            Text(f"y[{place}] = (uint32_t)made;"),
            Text(f"y[{place} + 1] = (uint32_t)(made >> 32);"),
        )
        sharing = shared(head, len(ends), cost * data.size, lines=3) if ends else None
        view = Elements(nest_of(letters, ends), sharing, each)
        return Pieces((head.skeleton(op.name, problem, "elements", view),))


def words(
    head: Head, name: str, letters: str, strides: tuple[int, ...], step: int
) -> tuple[str, str]:
    """Both words of a key."""
    place = head.place(name, letters, strides)
    return f"{name}[{place}]", f"{name}[{place} + {'1' if step == 1 else head.size('word', step)}]"
