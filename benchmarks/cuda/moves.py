"""Rows and elements that are read or written where integers say, and arrays
that are joined and padded.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work, plain
from benchmarks.options import USUAL, Options

MILLION, WIDTH, WORDS, FEW = 1 << 20, 64, 50_000, 64
ADDED = "adds by atomics, in any order, unless told otherwise; ge2 adds in one order"
ADDERS = {"jax": ADDED, "torch": ADDED}


def rows(xp: Any, x: Any, i: Any) -> Any:
    return x[i]


def elements(xp: Any, x: Any, i: Any) -> Any:
    return xp.take_along_axis(x, i, 1)


def embedding_gradient(lib: Any, xp: Any, table: Any, i: Any, updates: Any) -> Any:
    """The updates, added to the rows of zeros that the integers name."""
    if lib.__name__ == "jax":
        return xp.zeros_like(table).at[i].add(updates)
    return lib.vjp(lambda t: t[i], table)[1](updates)[0]


def embedding_gradient_by_hand(table: Any, i: Any, updates: Any) -> Any:
    found = np.zeros_like(table)
    np.add.at(found, i, updates)
    return found


def embedding_gradient_in_torch(torch: Any, table: Any, i: Any, updates: Any) -> Any:
    return torch.zeros_like(table).index_add_(0, i, updates)


def replaced(lib: Any, xp: Any, x: Any, i: Any, v: Any) -> Any:
    """A copy with other rows at distinct places."""
    return x.at[i].set(v) if lib.__name__ == "jax" else lib.numpy.setitem(x, i, v)


def replaced_by_hand(x: Any, i: Any, v: Any) -> Any:
    y = x.copy()
    y[i] = v
    return y


def joined(xp: Any, x: Any, y: Any) -> Any:
    return xp.concatenate([x + 1, y * 2], axis=1)


def joined_many(xp: Any, x: Any, y: Any, z: Any) -> Any:
    return xp.concatenate([x * 0.5, x - y, xp.maximum(y, 0), y * z, z + 1, z], axis=0)


def torch_joined_many(torch: Any, x: Any, y: Any, z: Any) -> Any:
    return torch.cat([x * 0.5, x - y, torch.relu(y), y * z, z + 1, z], 0)


def padded(xp: Any, x: Any) -> Any:
    return xp.pad(x * 2, ((1, 1), (2, 2)))


def five_points(xp: Any, x: Any) -> Any:
    around = xp.roll(x, 1, 0) + xp.roll(x, -1, 0) + xp.roll(x, 1, 1) + xp.roll(x, -1, 1)
    return x + 0.1 * (around - 4 * x)


def torch_five_points(torch: Any, x: Any) -> Any:
    around = torch.roll(x, 1, 0) + torch.roll(x, -1, 0) + torch.roll(x, 1, 1) + torch.roll(x, -1, 1)
    return x + 0.1 * (around - 4 * x)


def length_of_slope(xp: Any, x: Any) -> Any:
    gy, gx = xp.gradient(x)
    return xp.sqrt(gy * gy + gx * gx)


def torch_length_of_slope(torch: Any, x: Any) -> Any:
    gy, gx = torch.gradient(x)
    return torch.sqrt(gy * gy + gx * gx)


def some_rows(dtype: Any, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(MILLION, WIDTH), draw.below(MILLION, MILLION, dtype=dtype)


def embedding(words: int, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(words, WIDTH), draw.below(words, MILLION), draw.normal(MILLION, WIDTH)


def half_of_them(draw: Draw) -> tuple[Any, ...]:
    i = draw.distinct(MILLION, np.int64)[: draw.size(MILLION) // 2].copy()
    x = draw.normal(MILLION, WIDTH)
    return x, i, -x[: len(i)]


def of_shape(count: int, *shape: int) -> Any:
    return lambda draw: tuple(draw.normal(*shape) for _ in range(count))


# fmt: off
WORKS = {
    "gather-int32": Work(
        "2^20 rows of f32[2^20,64] by int32", plain(rows), partial(some_rows, np.int32),
        lambda torch, x, i: x[i], tolerance=0, eager=True),
    "gather-int64": Work(
        "2^20 rows of f32[2^20,64] by int64", plain(rows), partial(some_rows, np.int64),
        lambda torch, x, i: x[i], tolerance=0, eager=True),
    "gather-elements": Work(
        "take_along_axis of f32[2^20,64] by int64, axis 1", plain(elements),
        lambda draw: (draw.normal(MILLION, WIDTH), draw.below(WIDTH, MILLION, WIDTH)),
        lambda torch, x, i: torch.take_along_dim(x, i, 1), tolerance=0, eager=True),
    "scatter-add": Work(
        "2^20 rows of 64 f32 added into 50,000", embedding_gradient, partial(embedding, WORDS),
        embedding_gradient_in_torch, embedding_gradient_by_hand, eager=True, notes=ADDERS),
    "scatter-add-few": Work(
        "2^20 rows of 64 f32 added into 64", embedding_gradient, partial(embedding, FEW),
        embedding_gradient_in_torch, embedding_gradient_by_hand, tolerance=1e-3, eager=True, notes=ADDERS),
    "scatter": Work(
        "copy of f32[2^20,64] with 2^19 rows replaced", replaced, half_of_them,
        lambda torch, x, i, v: x.index_copy(0, i, v), replaced_by_hand, tolerance=0, eager=True),
    "concatenate": Work(
        "concatenate([x+1, y*2], axis=1) f32 2 of 16384x4096", plain(joined), of_shape(2, 16384, 4096),
        lambda torch, x, y: torch.cat([x + 1, y * 2], 1)),
    "concatenate-many": Work(
        "concatenate of 6 functions of x, y, z along axis 0, f32 4096x8192", plain(joined_many),
        of_shape(3, 4096, 8192), torch_joined_many),
    "five-points": Work(
        "a step of five points on a torus, f32 8192x8192", plain(five_points), of_shape(1, 8192, 8192),
        torch_five_points),
    "slopes": Work(
        "the length of the gradient, f32 8192x8192", plain(length_of_slope), of_shape(1, 8192, 8192),
        torch_length_of_slope),
    "pad": Work(
        "pad(x*2, ((1,1),(2,2))) f32 16384x8192", plain(padded), of_shape(1, 16384, 8192),
        lambda torch, x: torch.nn.functional.pad(x * 2, (2, 2, 1, 1))),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("moves", WORKS, options)
