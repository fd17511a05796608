"""Kernels of small arrays, as a training step of a small network has them.

Each is a chain of LINKS that wait for each other, in one program, so on a GPU one captured graph,
and nothing of a link is fused with another. What is told is the time of a link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.kernels import cross_entropy
from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import Draw, Work
from benchmarks.options import USUAL, Options
from benchmarks.record import Failure
from ge2.ops import Barrier

LINKS = 20
Link = Callable[..., tuple[Any, ...]]


def chain(link: Link, lib: Any, xp: Any, *xs: Any) -> Any:
    """The first arguments are handed from link to link, as many as it returns."""
    for _ in range(LINKS):
        made = held(lib, link(lib, xp, *xs))
        xs = (*made, *xs[len(made) :])
    return made


def held(lib: Any, xs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same values, which no compiler looks through."""
    found = Barrier()(*xs) if lib is ge2 else lib.lax.optimization_barrier(xs)
    return tuple(found) if isinstance(found, tuple | list) else (found,)


# ---------------------------------------------------------------------------------------- the links


def column_sum(lib: Any, xp: Any, s: Any, x: Any) -> tuple[Any, ...]:
    return ((x + s).sum(0) * 0.001,)


def masked(lib: Any, xp: Any, y: Any, s: Any, m: Any) -> tuple[Any, ...]:
    """The derivative of a relu layer: by its output, and by its bias, which is
    scaled as by an optimiser.
    """
    y = y * m
    return y, 0.9 * s + 0.1 * y.sum(0)


def gradient(lib: Any, xp: Any, z: Any, loss: Any, y: Any) -> tuple[Any, ...]:
    """Softmax cross-entropy, its gradient, and a step along that."""
    loss, slope = lib.value_and_grad(partial(cross_entropy, lib, xp))(z, y)
    return z - 0.5 * slope, loss


def with_bias(lib: Any, xp: Any, z: Any, b: Any, y: Any) -> tuple[Any, ...]:
    """The same with a bias, by which it is derived too: rows and columns of
    one array are folded.
    """
    slope = lib.grad(lambda z, b: cross_entropy(lib, xp, z + b, y), (0, 1))(z, b)
    return z - 0.5 * slope[0], b - 0.5 * slope[1]


def by_hand(z: Any, y: Any) -> tuple[Any, Any]:
    z = z.astype(np.float64)
    rows, e = np.arange(len(y)), np.exp(z - z.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    return loss, p / len(y)


def gradient_by_hand(z: Any, loss: Any, y: Any) -> Any:
    for _ in range(LINKS):
        loss, slope = by_hand(z, y)
        z = (z - 0.5 * slope).astype(np.float32)
    return z, np.float32(loss)


def with_bias_by_hand(z: Any, b: Any, y: Any) -> Any:
    for _ in range(LINKS):
        _, slope = by_hand(z + b, y)
        z, b = ((x - 0.5 * g).astype(np.float32) for x, g in ((z, slope), (b, slope.sum(0))))
    return z, b


# ---------------------------------------------------------------------------------------- the works


def work(
    title: str, link: Link, arguments: Callable[[Draw], tuple[Any, ...]], numpy: Any = None
) -> Work:
    return Work(
        f"{title}, one of {LINKS} in a row",
        partial(chain, link),
        arguments,
        None,
        numpy,
        tolerance=1e-3,
    )


def rows_of(n: int, m: int) -> Callable[[Draw], tuple[Any, ...]]:
    return lambda draw: (draw.normal(m), draw.normal(n, m))


def masks(n: int, m: int) -> Callable[[Draw], tuple[Any, ...]]:
    def arguments(draw: Draw) -> tuple[Any, ...]:
        x = draw.normal(n, m)
        return x, draw.normal(m), (draw.normal(n, m) > -9).astype(np.float32)

    return arguments


def classes(
    n: int, m: int, second: Callable[[Draw, int], Any]
) -> Callable[[Draw], tuple[Any, ...]]:
    return lambda draw: (draw.normal(n, m), second(draw, m), draw.below(m, n))


def number(draw: Draw, m: int) -> Any:
    return np.zeros((), np.float32)


def bias(draw: Draw, m: int) -> Any:
    return draw.normal(m)


# fmt: off
WORKS = {
    "small-columns-128": work("column sums f32 128x256", column_sum, rows_of(128, 256)),
    "small-columns-256": work("column sums f32 256x1024", column_sum, rows_of(256, 1024)),
    "small-mask-128": work("mask and column sums f32 128x256", masked, masks(128, 256)),
    "small-mask-256": work("mask and column sums f32 256x1024", masked, masks(256, 1024)),
    "small-loss-128": work(
        "cross-entropy and gradient f32 128x10", gradient, classes(128, 10, number), gradient_by_hand),
    "small-loss-256": work(
        "cross-entropy and gradient f32 256x10", gradient, classes(256, 10, number), gradient_by_hand),
    "small-bias-128": work(
        "gradient of cross-entropy by z and bias f32 128x10", with_bias, classes(128, 10, bias),
        with_bias_by_hand),
    "small-bias-256": work(
        "gradient of cross-entropy by z and bias f32 256x10", with_bias, classes(256, 10, bias),
        with_bias_by_hand),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    for row in lines("small", WORKS, options):
        yield (
            row
            if isinstance(row, Failure)
            else replace(
                row,
                ours=row.ours / LINKS,
                others={name: time / LINKS for name, time in row.others.items()},
                notes={name: note for name, note in row.notes.items() if name != "ge2"},
            )
        )
