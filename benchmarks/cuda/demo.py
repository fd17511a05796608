"""A training step of the demo on a GPU beside JAX, both with a donated state, and CuPy by hand.

Waited for after each step, what the host and the GPU take add up; steps that
follow each other overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import finish
from benchmarks.digits import stepper
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Row
from benchmarks.timing import medians
from ge2.cli import demo, milliseconds
from ge2.cli import demo as digits
from ge2.cli.demo import BATCH, SIZES

STEPS = 3  # after which every candidate must have the same loss
RUN = 12  # steps that follow each other: a pass over the data
ROUNDS, EPOCHS = 41, 30
LAYOUT = "float32 and int64, C order"
Call = Callable[[], Any]


def run(options: Options = USUAL) -> Iterator[Row]:
    jax = peer("jax")
    # which would widen what has no dtype, and round float32 to TF32 in products
    if jax is not None:
        jax.config.update("jax_enable_x64", False)
        jax.config.update("jax_default_matmul_precision", "highest")
    try:
        yield from rows(options, machine(options.quick))
    finally:
        if jax is not None:
            jax.config.update("jax_default_matmul_precision", None)


def rows(options: Options, at: Machine) -> Iterator[Row]:
    place = demo.Place(at.xp.asarray, at.wait)
    data = place.digits(digits.load())
    found = candidates(at, place, data.train_x[:BATCH], data.train_y[:BATCH])
    agree(found)
    by_hand = "cupy" if at.is_gpu else "numpy"
    found[by_hand] = found.pop("by hand")
    notes = {by_hand: "by hand, in place", "jax": "with products of IEEE float32, as in the others"}
    notes = {name: note for name, note in notes.items() if name in found}
    sizes = {"network": list(SIZES), "batch": BATCH}
    if options.wants("demo", "step"):
        times = medians(
            {name: waited(call, at) for name, call in found.items()}, options.rounds_or(ROUNDS)
        )
        notes["ge2"] = trained(place, data, 1 if options.quick else EPOCHS)
        yield Row(
            "the demo's step, waited for",
            "seconds",
            times.pop("ge2"),
            times,
            (),
            LAYOUT,
            sizes,
            notes,
        )
    if options.wants("demo", "steps"):
        times = medians(
            {name: many(call, at) for name, call in found.items()}, options.rounds_or(ROUNDS)
        )
        times = {name: seconds / RUN for name, seconds in times.items()}
        title = f"the demo's step, one of {RUN} in a row"
        yield Row(title, "seconds", times.pop("ge2"), times, (), LAYOUT, sizes)


def candidates(at: Machine, place: demo.Place, x: Any, y: Any) -> dict[str, Call]:
    def start() -> Any:
        return place.tree(digits.start())

    ours = ge2.jit(digits.train_step, donate_argnums=0)
    found = {
        "ge2": stepper(ours, start(), x, y),
        "by hand": stepper(digits.step_by_hand, start(), x, y),
    }
    jax = peer("jax")
    if jax is not None:
        theirs = import_module("benchmarks.digits_in_jax")
        step = jax.jit(theirs.train_step, donate_argnums=0)
        host = (a if isinstance(a, np.ndarray) else a.get() for a in (x, y))
        go = stepper(step, theirs.start(), *map(jax.numpy.asarray, host))
        found["jax"] = go
    return found


def agree(found: dict[str, Call]) -> None:
    losses = {name: [float(step()) for _ in range(STEPS)] for name, step in found.items()}
    for name, loss in losses.items():
        np.testing.assert_allclose(loss, losses["by hand"], rtol=1e-4, err_msg=name)


def waited(call: Call, at: Machine) -> Call:
    def go() -> None:
        finish(call(), at.wait)

    return go


def many(call: Call, at: Machine) -> Call:
    def go() -> None:
        for _ in range(RUN - 1):
            call()
        finish(call(), at.wait)

    return go


def trained(place: demo.Place, data: Any, epochs: int) -> str:
    """What the demo itself finds."""
    report = demo.train(ge2.jit(digits.train_step), data, epochs, 0, quiet=True, at=place)
    times = f"not donated {milliseconds(report.step)}, by hand {milliseconds(report.step_by_hand)}"
    kernels = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kernels.items()))
    accuracy = (
        f"test accuracy {report.accuracy:.4f} after {report.steps} steps in {report.training:.2f} s"
    )
    return f"the demo: {accuracy}; a step {times}; {kernels}"
