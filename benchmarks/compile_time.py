"""How long it takes to trace, differentiate and optimise a long function, and
how that grows with its length.

The function is what people write, mixed: products, normalisations, softmax,
slices, joins, transposes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row
from ge2.compile.pipeline import rewritten
from ge2.compile.schedule import schedule

SHORT, LONG = 3_000, 30_000
ROWS, WIDTH = 8, 16
LAYOUT = "float32, C order"


def mixed(x: Any, weights: Any, blocks: int, xp: ModuleType = np) -> Any:
    for i in range(blocks):
        w, b = weights[i % len(weights)]
        h = xp.tanh(x @ w + b)
        h = h - h.mean(axis=-1, keepdims=True)
        h = h / xp.sqrt((h * h).mean(axis=-1, keepdims=True) + 1e-5)
        h = xp.where(h > 0, h, 0.1 * h)
        h = xp.concatenate([h[:, ::2], h[:, 1::2]], axis=1)
        p = xp.exp(h - h.max(axis=-1, keepdims=True))
        p = p / p.sum(axis=-1, keepdims=True)
        heads = p.reshape(ROWS, 4, WIDTH // 4).transpose(1, 0, 2)
        x = 0.5 * x + heads.transpose(1, 0, 2).reshape(ROWS, WIDTH)
    return (x**2).sum()


def run(options: Options = USUAL) -> list[Row]:
    short, long = (300, 3_000) if options.quick else (SHORT, LONG)
    ours_short, ours_long = [
        medians_of(ours, blocks(n), repeats) for n, repeats in ((short, 5), (long, 3))
    ]
    first_call = medians_of(to_kernels, blocks(short), 3)
    jax = peer("jax")
    theirs = {} if jax is None else {"jax": medians_of(partial(in_jax, jax), blocks(short), 3)}
    quarter, linear = ((), ()) if options.quick else ((AtMost(0.25),), (AtMost(11),))
    work, growth = "trace, grad, all passes", ours_long / ours_short
    about = {"layout": LAYOUT, "sizes": {"equations": [short, long], "x": [ROWS, WIDTH]}}
    return [
        Row(f"{work}: {short:,} equations", "seconds", ours_short, theirs, quarter, **about),
        Row(f"{work}: {long:,} equations", "seconds", ours_long, **about),
        Row(f"{work}: {long:,} over {short:,}", "times", growth, {}, linear, **about),
        Row(f"{work}, kernels: {short:,} equations", "seconds", first_call, **about),
    ]


def blocks(equations: int) -> int:
    """How many rounds of `mixed` trace to at least that many equations."""
    one, two = (length(n) for n in (1, 2))
    return 1 + -(-(equations - one) // (two - one))


def length(rounds: int) -> int:
    return len(ge2.make_jaxpr(partial(mixed, blocks=rounds))(*arguments()).graph.eqns)


def medians_of(work: Callable[[int], None], rounds: int, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        gc.collect()
        gc.freeze()  # what the peers keep alive is not ours to walk
        began = time.perf_counter()
        work(rounds)
        times.append(time.perf_counter() - began)
        gc.unfreeze()
    return median(times)


def ours(rounds: int) -> None:
    """Traces, differentiates, runs every pass, schedules; the text of the
    kernels is not counted.
    """
    closed = ge2.make_jaxpr(ge2.value_and_grad(partial(mixed, blocks=rounds)))(*arguments())
    schedule(rewritten(closed.graph, "reference"), ())


def to_kernels(rounds: int) -> None:
    """The same, and every kernel written and loaded: a first call, but for running it."""
    ge2.clear_caches()
    ge2.jit(ge2.value_and_grad(partial(mixed, blocks=rounds))).lower(*arguments())


def in_jax(jax: ModuleType, rounds: int) -> None:
    """Traces, differentiates and lowers; XLA's own passes are not counted."""
    jax.jit(jax.value_and_grad(partial(mixed, blocks=rounds, xp=jax.numpy))).lower(*arguments())


def arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    draw = partial(rng.standard_normal, dtype=np.float32)
    return draw((ROWS, WIDTH)), [(draw((WIDTH, WIDTH)), draw(WIDTH)) for _ in range(4)]
