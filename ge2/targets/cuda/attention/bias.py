"""The kernel of the cotangent of an array of each query and key, which adds up over batches and heads.

What a block does is `templates/cuda/attention/bias.cu.jinja`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Text
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.types import STORED, SUFFIX

SHARED = 200 * 1024  # bytes of stages


@final
@record
class Left:
    """What is left of the cotangents of an array: along "rows", "keys" or "both", its type, and the
    size of each axis of batches with whether the array has it.
    """

    how: str
    dtype: np.dtype
    batch: tuple[tuple[int, bool], ...]


@final
@record
class BiasView:
    """What `templates/cuda/attention/bias.cu.jinja` prints; `back`: a `BackwardView`."""

    back: object
    pair: str
    stored: str
    cast: str
    head: tuple[Text, ...]


def kernel(
    left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int], text: str
) -> CudaKernel:
    """That of Hopper."""
    fixed = {f.name: f for f in first.fixed}
    names = ("ROWS", "LINES", "GROUPS", "PLANES")
    rows, lines, groups, planes = (fixed[name].value for name in names)
    row = planes * 128
    block = 2 * (rows + lines) * row
    stages = max(1, min(4, SHARED // block))
    numbers = (
        *(fixed[name] for name in (*names, "WIDTH", "LOW", "HIGH", "PACK")),
        Fixed("STAGES", stages, "turns whose operands are in shared memory"),
        Fixed("BLOCK", block, "their bytes"),
        Fixed("OTHERS", rows * row, "the place of the result's cotangents in them"),
        Fixed("LINES_AT", 2 * rows * row, "that of keys"),
        Fixed("LINE_OTHERS", (2 * rows + lines) * row, "that of values"),
        Fixed("BARRIERS", stages * block, "behind all tiles"),
    )
    made = of_first(left, pair, result, first, sizes, text, numbers)
    return replace(
        made, block=128 * (groups + 1), shared=stages * block + 16 * stages, single=True,
        template="cuda/attention/bias.cu.jinja",
    )  # fmt: skip


def of_first(
    left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int], text: str,
    fixed: tuple[Fixed, ...],
) -> CudaKernel:  # fmt: skip
    """The kernel whose rows are queries, with this result in place of its own; `sizes`: queries and
    keys.
    """
    numbers = {f.name: f.value for f in fixed}
    kept, shared = (
        math.prod(n for n, mine in left.batch if mine is which) for which in (True, False)
    )
    head, more = head_of(left)
    turns = Argument("int n_turns", "size", shared)
    own = "words", "first_tiles", "first_array", "scale"
    given = {a.name: a for a in first.arguments if a.name not in own}
    given.update({"left": result, "n_turns": turns, **more})
    cast = f"ge2_cast_f32_{SUFFIX[left.dtype]}" if left.dtype != FLOAT32 else ""
    tiles = -(-sizes[0] // numbers["ROWS"]) * -(-sizes[1] // numbers["LINES"])
    return replace(
        first, kind="attention bias", graph=f"The cotangent of an array of queries and keys in\n{text}",
        arguments=tuple(given.values()), grid=(kept * tiles,), fixed=fixed, equations=12,
        view=BiasView(first.view, pair, STORED[left.dtype], cast, head),
    )  # fmt: skip


def head_of(left: Left) -> tuple[tuple[Text, ...], dict[str, Argument]]:
    """Statements of the number of a head, of the place among those that the array has, and the turn."""
    sizes = {
        f"n_axis{n}": Argument(f"int n_axis{n}", "size", size)
        for n, (size, _) in enumerate(left.batch)
    }
    terms, rest, lines = "0", {True: "place", False: "turn"}, list[Text]()
    for n, (_, mine) in reversed([*enumerate(left.batch)]):
        lines.append(Text(f"const int axis{n} = {rest[mine]} % n_axis{n};"))
        rest[mine] = f"{rest[mine]} / n_axis{n}"
    for n, _ in enumerate(left.batch):
        terms = f"({terms}) * n_axis{n} + axis{n}" if n else f"axis{n}"
    return (*lines, Text(f"const int head = {terms};")), sizes
