"""Works for which kernels of several kinds are candidates: columns that one block or many fold, short
rows that registers sort, gathers inside what reads them, batches of small products.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work, at_most, plain
from benchmarks.options import USUAL, Options

POINTS, CENTRES, BODIES, BATCH = 1 << 20, 64, 8192, 1 << 16
WORDS, WIDTH = 50_000, 256


def nearest(xp: Any, x: Any, c: Any) -> Any:
    """The nearest centre of each point, and the sum of the distances to them."""
    d = ((x[:, None] - c) ** 2).sum(-1)
    return d.argmin(1), xp.sqrt(d.min(1)).sum()


def standardised(xp: Any, x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


def softmax_down(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(0))
    return e / e.sum(0)


def energy(xp: Any, p: Any) -> Any:
    """The sum of 1/r over all pairs of bodies, softened."""
    d = p[:, None] - p
    return (1 / xp.sqrt((d * d).sum(-1) + 1e-3)).sum()


def pull(lib: Any, xp: Any, p: Any) -> Any:
    return lib.grad(partial(energy, xp))(p)


def whole_sort(xp: Any, x: Any) -> Any:
    return xp.sort(x, axis=1)


def middle(xp: Any, x: Any) -> Any:
    return xp.sort(x, axis=1)[:, 16]


def bags(xp: Any, table: Any, i: Any) -> Any:
    return xp.take(table, i, 0).sum(1)


def embedding_gradient(lib: Any, xp: Any, table: Any, i: Any, ct: Any) -> Any:
    return lib.grad(lambda t: (xp.take(t, i, 0) * ct).sum())(table)


def small(xp: Any, a: Any, b: Any) -> Any:
    return xp.tanh(a @ b)


def long_softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_hand(lib: Any, xp: Any, p: Any) -> Any:
    """The gradient of the energy, block by block."""
    found = np.zeros_like(p, np.float64)
    for at in range(0, len(p), 256):
        d = p[at : at + 256, None].astype(np.float64) - p
        found[at : at + 256] = (-2 * d / ((d * d).sum(-1) + 1e-3)[..., None] ** 1.5).sum(1)
    return found


def added(lib: Any, xp: Any, table: Any, i: Any, ct: Any) -> Any:
    found = np.zeros_like(table)
    np.add.at(found, i, ct)
    return found


def rows_of_words(draw: Draw) -> tuple[Any, ...]:
    return (
        draw.normal(WORDS, WIDTH),
        draw.below(WORDS, BATCH, dtype=np.int32),
        draw.normal(BATCH, WIDTH),
    )


def columns(draw: Draw) -> tuple[Any, ...]:
    return (draw.normal(BATCH, 512),)


def rows(draw: Draw) -> tuple[Any, ...]:
    return (draw.normal(POINTS, 32),)


# fmt: off
WORKS = {
    "nearest": Work(
        "nearest of 64 centres and sum of distances, f32 2^20x8", plain(nearest),
        lambda draw: (draw.normal(POINTS, 8), draw.normal(CENTRES, 8)), None,
        targets=at_most(0.10), tolerance=1e-3),
    "standardised": Work(
        "(x-x.mean(0))/x.std(0) f32 65536x512", plain(standardised), columns,
        lambda torch, x: (x - x.mean(0)) / x.std(0, correction=0), targets=at_most(0.12), tolerance=1e-3),
    "softmax-down": Work(
        "softmax over axis 0, f32 65536x512", plain(softmax_down), columns,
        lambda torch, x: torch.softmax(x, 0)),
    "pull": Work(
        "gradient of the sum of 1/r, f32 8192 bodies", pull, lambda draw: (draw.normal(BODIES, 3),), None,
        by_hand, targets=at_most(0.20), tolerance=1e-2),
    "sort-rows": Work(
        "sort of f32 2^20 rows of 32", plain(whole_sort), rows, None, targets=at_most(0.30), tolerance=0),
    "sort-middle": Work(
        "the middle of each of f32 2^20 sorted rows of 32", plain(middle), rows, None,
        targets=at_most(0.20), tolerance=0),
    "bags": Work(
        "take(table, i, 0).sum(1), f32 50000x256, 8192x16", plain(bags),
        lambda draw: (draw.normal(WORDS, WIDTH), draw.below(WORDS, 8192, 16, dtype=np.int32)), None,
        targets=at_most(0.05), tolerance=1e-3),
    "embedding": Work(
        "gradient of 65536 rows of 256 f32 of 50000", embedding_gradient, rows_of_words, None, added,
        targets=at_most(0.08), tolerance=1e-3),
    "small-tanh": Work(
        "tanh(a@b) f32 65536 of 16x16", plain(small),
        lambda draw: (draw.normal(BATCH, 16, 16), draw.normal(BATCH, 16, 16)),
        lambda torch, a, b: torch.tanh(a @ b), targets=at_most(0.07), tolerance=2e-3),
    "long-softmax": Work(
        "softmax f32 64x2^20", plain(long_softmax), lambda draw: (draw.normal(64, POINTS),),
        lambda torch, x: torch.softmax(x, -1), targets=at_most(0.21)),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("candidates", WORKS, options)
