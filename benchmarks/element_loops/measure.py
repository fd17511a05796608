"""The programs' times: loops beside JAX's, and Python loops, which are compiled
in processes of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import ge2
from benchmarks.element_loops import linear, signals, tables
from benchmarks.element_loops.program import SMALL, Library, Program, in_float64, libraries
from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import AtMost, Failure, Faster, Row, mean_of
from benchmarks.timing import medians
from ge2.targets.c.launcher import native

PROGRAMS: tuple[Program, ...] = (*linear.PROGRAMS, *signals.PROGRAMS, *tables.PROGRAMS)
ROUNDS, BUDGET = 15, 3.0
QUICK = 12  # the size of all programs in a quick run
LONGEST = 5.0  # seconds of the first call of a Python loop
TIMES = 10.0  # as fast as NumPy should a Python loop be, once it is compiled
FORM = "float64 and int64, C order"


def run(options: Options = USUAL) -> list[Row | Failure]:
    wanted = [p for p in PROGRAMS if options.wants("element_loops", p.name)]
    with in_float64():
        rows = [measured(p, options) for p in wanted]
    targets = (Faster(2, "jax"),) if len(rows) == len(PROGRAMS) and not options.quick else ()
    found: list[Row | Failure] = [*rows]
    if len(rows) > 1:
        found.append(mean_of("loops over single elements and rows: geometric mean", rows, *targets))
    if options.wants("element_loops", "python-loops"):
        found += in_python(PROGRAMS[:2] if options.quick else PROGRAMS, options)
    return found


def measured(program: Program, options: Options) -> Row:
    """The looped form beside JAX's, after both were held to the plain one."""
    size = QUICK if options.quick else program.size
    arguments, calls, ran = program.arguments(size), dict[str, Callable[[], Any]](), ""
    for name, library in libraries().items():
        compiled: Any = program.compiled(library)
        calls[name] = call_of(name, library, compiled, arguments)
        if name == "ge2":
            calls[name]()
            ran = executor_of(compiled.func, *compiled.args, *arguments)
    agree(program, calls, size)
    times = medians(calls, options.rounds_or(ROUNDS), BUDGET)
    targets = () if options.quick else (Faster(0.8, "jax"),)
    ours, sizes = times.pop("ge2"), {"n": size}
    return Row(
        f"{program.name}, n = {size}", "seconds", ours, times, targets, FORM, sizes, remarks(ran)
    )


def call_of(
    name: str, library: Library, compiled: Callable[..., Any], arguments: tuple[Any, ...]
) -> Callable[[], Any]:
    if name == "ge2":
        return partial(compiled, *arguments)
    jax = peer(name)
    assert jax is not None
    moved = [library.np.asarray(x) for x in arguments]
    return lambda: jax.block_until_ready(compiled(*moved))


def agree(program: Program, calls: dict[str, Callable[[], Any]], size: int) -> None:
    expected = program.plain(*program.arguments(size))
    for name, call in calls.items():
        found, message = np.asarray(call()), f"{program.name}: {name}"
        assert found.dtype == expected.dtype, message
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10, err_msg=message)


# ------------------------------------------------------------------------------------- Python loops


def in_python(programs: Sequence[Program], options: Options) -> list[Row]:
    """Of each program's plain form: its first call, and later ones beside NumPy's; then how many
    are both in time and that much faster.
    """
    size = QUICK if options.quick else SMALL
    firsts, laters = [], []
    for program in programs:
        with TemporaryDirectory() as folder:
            text = (
                "from benchmarks.element_loops.measure import first;"
                f" first({program.name!r}, {size}, {options.rounds_or(ROUNDS)})"
            )
            found = json.loads(fresh(text, GE2_CACHE_DIR=folder).said)
        title, sizes = f"{program.name} as a Python loop, n = {size}", {"n": size}
        targets = () if options.quick else (AtMost(LONGEST),)
        firsts.append(
            Row(f"{title}: first call, nothing cached", "seconds", found["first"], {}, targets,
                FORM, sizes)
        )  # fmt: skip
        others = {"numpy": found["numpy"]}
        laters.append(
            Row(f"{title}: later calls", "seconds", found["ge2"], others, (), FORM, sizes)
        )
    if options.quick:
        return [*firsts, *laters]
    return [*firsts, *laters, count_of(firsts, laters)]


def count_of(firsts: Sequence[Row], laters: Sequence[Row]) -> Row:
    """How many programs compile in time and are then TIMES as fast as NumPy."""
    missed = [
        later.work
        for first, later in zip(firsts, laters, strict=True)
        if first.missed or later.others["numpy"] < TIMES * later.ours
    ]
    work = f"Python loops that compile in {LONGEST:g} s and then miss {TIMES:g} x NumPy"
    bound = AtMost(len(laters) / 4)
    return Row(work, "programs", len(missed), {}, (bound,), FORM, {"missed": missed})


def first(name: str, size: int, rounds: int) -> None:
    """Compiles and calls the plain form of a program; prints seconds, of the
    first call and of later ones.
    """
    program = next(p for p in PROGRAMS if p.name == name)
    arguments, compiled = program.arguments(size), ge2.jit(program.plain)
    began = time.perf_counter()
    result = compiled(*arguments)
    first = time.perf_counter() - began
    np.testing.assert_allclose(result, program.plain(*arguments), rtol=1e-8, atol=1e-10)
    native()  # what calls programs is compiled meanwhile; later calls are those that find it there
    calls = {"ge2": partial(compiled, *arguments), "numpy": partial(program.plain, *arguments)}
    print(json.dumps({"first": first, **medians(calls, rounds, BUDGET)}))
