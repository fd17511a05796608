"""How soon the demo's step has run: its first call with nothing cached, a
process with all cached.
"""

from __future__ import annotations

from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.fresh import Finished, caches, fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.ran import remarks
from benchmarks.record import AtMost, Row

PROGRAM = """
import time
import numpy as np
import {library}
from {digits} import BATCH, SIZES, start, train_step
rng = np.random.default_rng(0)
x = rng.random((BATCH, SIZES[0]), np.float32)
y = rng.integers(0, SIZES[-1], BATCH)
state = start()
step = {library}.jit(train_step)
began = time.perf_counter()
state, loss = step(state, x, y)
loss = float(loss)
print(time.perf_counter() - began)
"""
TAIL = """
from benchmarks.ran import executor_of
print(executor_of(step, state, x, y))
"""
# fmt: off
PROGRAMS = {
    "ge2": PROGRAM.format(library="ge2", digits="ge2.cli.demo"),
    "jax": PROGRAM.format(library="jax", digits="benchmarks.digits_in_jax"),
}
# fmt: on
LAYOUT = "float32 and int64, C order"


def run(options: Options = USUAL) -> list[Row]:
    names = ["ge2", *installed(["jax"])]
    first: dict[str, list[float]] = {name: [] for name in names}
    whole: dict[str, list[float]] = {name: [] for name in names}
    notes: dict[str, str] = {}
    for turn in range(1 + (options.rounds or (1 if options.quick else 5))):
        for name in names:
            cold, warm = in_new_cache(name)
            seconds, *ran = cold.said.split()
            notes |= remarks(*ran) if ran else {}
            if turn:  # the first turn writes bytecode and warms the disk's cache
                first[name].append(float(seconds))
                whole[name].append(warm.seconds)
    return [
        row("first call, nothing cached", first, AtMost(0.8), notes),
        row("process, all cached", whole, AtMost(0.45), notes),
    ]


def in_new_cache(name: str) -> tuple[Finished, Finished]:
    """The program run twice, the first time with an empty cache."""
    with TemporaryDirectory() as folder:
        variables = caches(folder)
        tail = TAIL if name == "ge2" else ""
        return fresh(PROGRAMS[name] + tail, **variables), fresh(PROGRAMS[name], **variables)


def row(what: str, times: dict[str, list[float]], target: AtMost, notes: dict[str, str]) -> Row:
    others = {name: median(found) for name, found in times.items()}
    ours = others.pop("ge2")
    return Row(
        f"the demo's step on random data: {what}",
        "seconds",
        ours,
        others,
        (target,),
        LAYOUT,
        {},
        notes,
    )
