"""The programs of numerical practice on a GPU, beside JAX on that GPU and beside CuPy as they stand.

Their sizes are those of the CPU's table: many are a matter of launches. CuPy runs the same text
operation by operation, where it has all of them.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import back, leaves, to_jax
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import release, rounds
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.programs import agree, means, programs
from benchmarks.programs.program import Draw, Program
from benchmarks.record import Failure, Faster, Row

ROUNDS = 5
Call = Callable[[], Any]


def run(options: Options = USUAL) -> Iterator[Row | Failure]:
    """A row a program, and the geometric means; a failure stops nothing."""
    at = machine(options.quick)
    rows = []
    for program in programs():
        if not (options.wants("suite", program.group) or options.wants("suite", program.name)):
            continue
        began = time.perf_counter()
        try:
            rows.append(line(program, options, at))
            yield rows[-1]
        except Exception as error:  # noqa: BLE001 whatever it is: time on a GPU is not spent twice
            traceback.print_exc()
            yield Failure(f"{program.group}: {program.name}", f"{type(error).__name__}: {error}")
        release(at)
        seconds = time.perf_counter() - began
        print(f"  {program.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    if len(rows) > 1:
        yield from means(rows, options, (Faster(2, "jax"), Faster(8, "cupy")))


def line(program: Program, options: Options, at: Machine) -> Row:
    arguments = program.arguments(Draw(options.quick))
    arrays = tuple(at.xp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments)
    compiled = ge2.jit(program.for_ge2())
    calls: dict[str, Call] = {"ge2": lambda: compiled(*arrays)}
    notes = {"bound by": program.bound_by} if program.bound_by else {}
    wanted = [np.asarray(y) for y in leaves(program(*arguments))] if not program.by else None
    wanted = compared(program, "ge2", calls["ge2"], wanted, at)
    for name, call in peers(program, arrays).items():
        try:
            compared(program, name, call, wanted, at)
        except Exception as error:  # noqa: BLE001 such as a function that it lacks: ours is timed all the same
            notes[name] = f"left out, {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        else:
            calls[name] = call
    times = rounds(calls, at.wait, options.rounds_or(ROUNDS))
    sizes = {"arguments": [f"{np.asarray(a).dtype}{list(np.shape(a))}" for a in arguments]}
    targets = () if options.quick else (Faster(0.9, "jax"),)
    title = f"{program.group}: {program.name}"
    return Row(title, "seconds", times.pop("ge2"), times, targets, "C order", sizes, notes)


def peers(program: Program, arrays: tuple[Any, ...]) -> dict[str, Call]:
    found: dict[str, Call] = {}
    jax = peer("jax")
    if jax is not None:
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", "highest")  # float32's own, as in ge2
        in_jax = jax.jit(program.for_jax(jax))
        moved = [to_jax(jax, a) if hasattr(a, "dtype") else a for a in arrays]
        found["jax"] = lambda: in_jax(*moved)
    if not program.by:  # CuPy derives nothing
        found["cupy"] = lambda: program(*arrays)
    return found


def compared(
    program: Program, name: str, call: Call, wanted: list[Any] | None, at: Machine
) -> list[Any]:
    """The results of a candidate; AssertionError unless they are those that are wanted."""
    found = [as_numpy(at, y) for y in leaves(call())]
    for y, y0 in zip(found, wanted or found, strict=True):
        assert y.shape == y0.shape, f"{program.name}: {name} has shape {y.shape}, not {y0.shape}"
        assert agree(y, y0, program.tolerance), f"{program.name}: {name} differs"
    return wanted or found


def as_numpy(at: Machine, y: Any) -> Any:
    y = back(at.xp, y) if hasattr(y, "dtype") else y
    return y.get() if hasattr(y, "get") else np.asarray(y)
