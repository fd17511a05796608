"""Loops and branches over arrays that want the whole GPU, beside JAX: one
kernel, whose blocks meet.

The time of a call that is waited for. JAX computes the same, with the same precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import back, leaves, to_jax
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import difference, finish, rounds
from benchmarks.cuda.programs import either, host_time, launched, product
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Faster, Row

WIDE = 1 << 20  # numbers of 4 MB
ROUNDS, SWEEPS, STEPS = 1000, 200, 512
BATCH, WIDTH = 32, 1024
Call = Callable[[], Any]
Work = Callable[[Any, Any], Callable[..., Any]]  # of a library, and of its functions of arrays


def run(options: Options = USUAL) -> Iterator[Row]:
    at = machine(options.quick)
    n, w, steps = (1 << 14, 128, 4) if options.quick else (WIDE, WIDTH, STEPS)
    turns, sweeps = (20, 5) if options.quick else (ROUNDS, SWEEPS)
    nbytes = f"{4 * n >> 20} MB" if n >= WIDE else f"{4 * n >> 10} KB"
    x, net = [ones(n)], drawn(w, steps)
    what = f"{steps}-step tanh RNN, width {w}, batch {BATCH}, tf32"
    works: dict[str, tuple[str, Work, list[Any]]] = {
        "wide-while": (f"a while loop of {turns} rounds on {nbytes}", partial(counted, turns), x),
        "wide-cond": (f"ten conds on {nbytes}, each decided by a sum", decided, x),
        "wide-stencil": (
            f"{sweeps} sweeps over {nbytes}, by neighbours",
            partial(swept, sweeps),
            x,
        ),
        "wide-rnn": (what, outputs, net),
        "wide-rnn-grad": (f"gradient of a {what}", gradient, net),
    }
    for name, (title, work, arrays) in works.items():
        if options.wants("grid", name):
            yield compared(title, work, arrays, options, at)
            at.release()


def compared(title: str, work: Work, arrays: list[Any], options: Options, at: Machine) -> Row:
    given = [at.xp.asarray(x) for x in arrays]
    compiled = ge2.jit(work(ge2, np))
    calls: dict[str, Call] = {"ge2": lambda: compiled(*given)}
    if (jax := peer("jax")) is not None:
        jax.config.update("jax_default_matmul_precision", "tensorfloat32")
        theirs, handed = jax.jit(work(jax, jax.numpy)), [to_jax(jax, x) for x in given]
        calls["jax"] = lambda: theirs(*handed)
    found = {name: [back(at.xp, y) for y in leaves(call())] for name, call in calls.items()}
    for y, ours in zip(found.get("jax", ()), found["ge2"], strict=False):
        worst, largest = difference(y, ours)
        assert worst <= 3e-2 * largest, f"{title}: JAX differs by {worst} of {largest}"
    finish(calls["ge2"](), at.wait)
    host = host_time(calls["ge2"], at.wait, options, 3)
    times = rounds(calls, at.wait, options.rounds_or(9))
    if jax is not None:
        jax.config.update("jax_default_matmul_precision", None)
    notes = {"ge2": f"host {host * 1e6:.0f} us; {launched(compiled)}"}
    targets = () if options.quick else (Faster(2, "jax"),)
    return Row(title, "seconds", times.pop("ge2"), times, targets, "float32", {}, notes)


# ---------------------------------------------------------------------------------------- the works


def ones(n: int) -> Any:
    return np.ones(n, np.float32)


def drawn(width: int, steps: int) -> list[Any]:
    """Weights, a state, and what comes in at each step."""
    rng = np.random.default_rng(0)
    shapes = (width, width), (BATCH, width), (steps, BATCH, width)
    w, h, xs = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return [w / np.float32(np.sqrt(width)), h, xs]


def counted(rounds: int, lib: Any, xp: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        start = xp.int32(0), x
        return lib.lax.while_loop(
            lambda c: c[0] < rounds, lambda c: (c[0] + 1, c[1] * 0.999 + 1.0), start
        )[1]

    return f


def decided(lib: Any, xp: Any) -> Callable[..., Any]:
    return partial(either, lib, xp)


def swept(sweeps: int, lib: Any, xp: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        def sweep(_: Any, c: Any) -> Any:
            return c * 0.5 + (xp.roll(c, 1) + xp.roll(c, -1)) * 0.25

        return lib.lax.fori_loop(0, sweeps, sweep, x)

    return f


def outputs(lib: Any, xp: Any) -> Callable[..., Any]:
    def f(w: Any, h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = xp.tanh(x + product(lib, h, w))
            return h, h

        return lib.lax.scan(step, h, xs)[1]

    return f


def gradient(lib: Any, xp: Any) -> Callable[..., Any]:
    forwards = outputs(lib, xp)
    return lib.grad(lambda *given: (forwards(*given) ** 2).mean(), (0, 1, 2))


__all__ = ["run"]
