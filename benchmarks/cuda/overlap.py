"""Kernels of a graph that are launched while those before them end, and the same where each waits.

The GPU's time of calls that follow each other, waited for once. Both compute the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import back, leaves
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import finish
from benchmarks.cuda.programs import ARRAYS, adamw, chain, launched, mlp_data, start, stepper
from benchmarks.options import USUAL, Options
from benchmarks.record import Row
from benchmarks.timing import medians
from ge2.base.config import config
from ge2.cli import demo
from ge2.cli import demo as digits

ROUNDS, STEPS = 31, 6
RUN = 24  # calls that follow each other
Call = Callable[[], Any]
Made = Callable[[Machine], tuple[Any, Call]]  # a jitted function, and a call of it


def run(options: Options = USUAL) -> Iterator[Row]:
    at = machine(options.quick)
    works: dict[str, tuple[str, Made]] = {
        "early-chain": ("a chain of 100 small kernels", chained),
        "early-mlp": ("MLP 784-1024-1024-10, batch 256, tf32, AdamW, donated", mlp),
        "early-demo": ("the demo's step", digits_step),
    }
    for name, (title, make) in works.items():
        if options.wants("overlap", name):
            yield from compared(f"{title}, one of {RUN} in a row", make, options, at)


def compared(title: str, make: Made, options: Options, at: Machine) -> Iterator[Row]:
    (ours, early), (_, whole) = make(at), make(at)
    calls = {"ge2": partial(under, True, early, at), "each waits": partial(under, False, whole, at)}
    for _ in range(STEPS):
        found, wanted = (under(overlap, f, at, 1) for overlap, f in ((True, early), (False, whole)))
        for y, w in zip(leaves(found), leaves(wanted), strict=True):
            same = bool((back(at.xp, y) == back(at.xp, w)).all())
            assert same, f"{title}: kernels that are launched early give other bits"
    with config.using(overlap=True):
        said = launched(ours)
    times = {name: took / RUN for name, took in medians(calls, options.rounds_or(ROUNDS)).items()}
    for name, words in (("ge2", ""), ("each waits", "; GE2_OVERLAP=off")):
        yield Row(
            title + words, "seconds", times[name], notes={"ge2": said} if name == "ge2" else {}
        )


def under(overlap: bool, call: Call, at: Machine, count: int = RUN) -> Any:
    """The last of so many results, waited for."""
    with config.using(overlap=overlap):
        for _ in range(count):
            found = call()
        finish(found, at.wait)
    return found


# ---------------------------------------------------------------------------------------- the works


def chained(at: Machine) -> tuple[Any, Call]:
    rng = np.random.default_rng(0)
    xs = [at.xp.asarray(rng.standard_normal((64, 64)).astype(np.float32)) for _ in range(ARRAYS)]
    compiled = ge2.jit(chain)
    return compiled, lambda: compiled(*xs)


def mlp(at: Machine) -> tuple[Any, Call]:
    ours, (x, y) = (
        ge2.jit(partial(adamw, ge2, np), donate_argnums=0),
        map(at.xp.asarray, mlp_data()),
    )
    return ours, stepper(ours, start(np.random.default_rng(1), at.xp.asarray), x, y)


def digits_step(at: Machine) -> tuple[Any, Call]:
    place = demo.Place(at.xp.asarray, at.wait)
    data = place.digits(digits.load())
    ours = ge2.jit(digits.train_step, donate_argnums=0)
    x, y = data.train_x[: digits.BATCH], data.train_y[: digits.BATCH]
    return ours, stepper(ours, place.tree(digits.start()), x, y)
