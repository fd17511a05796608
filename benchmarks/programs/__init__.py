"""Programs from numerical practice, written without a look at what compiles them.

Ten groups. Each program is plain NumPy as its users write it, and JAX beside it as its users write
that: the same text over `jax.numpy`, or a version of its own with JAX's loops and updates. They
are not tuned to one by one: a program that is slow stands for a class of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.programs.program import Draw, Program
from benchmarks.ran import executor_of, remarks
from benchmarks.record import Failure, Faster, Row, mean_of
from benchmarks.timing import medians

GROUPS = (
    "stencils",
    "linear_algebra",
    "statistics",
    "signals",
    "finance",
    "particles",
    "machine_learning",
    "recursions",
    "searching",
    "integers",
)
ROUNDS, BUDGET = 9, 1.5
EACH = Faster(0.95, "numpy"), Faster(0.8, "jax")
ALL = Faster(3.0, "numpy"), Faster(1.5, "jax")
Call = Callable[[], Any]


def programs(groups: Iterable[str] = GROUPS) -> list[Program]:
    """All of them, group by group, in the order of the files."""
    found = (vars(import_module(f"benchmarks.programs.{group}")).values() for group in groups)
    return [each for group in found for each in group if isinstance(each, Program)]


def run(options: Options = USUAL) -> list[Row | Failure]:
    """A row for each program, and the geometric means; a failure stops nothing."""
    asked = [each for each in programs() if options.wants(each.group, each.name)]
    found = [line(each, options) for each in asked]
    rows = [each for each in found if isinstance(each, Row)]
    return [*found, *means(rows, options)] if len(rows) > 1 else found


def means(rows: list[Row], options: Options, wanted: tuple[Faster, ...] = ALL) -> list[Row]:
    """Of all programs that have every peer, and of those whose time is not spent in a library."""
    most = max(len(row.others) for row in rows)
    whole = [row for row in rows if len(row.others) == most]
    ours = [row for row in whole if "bound by" not in row.notes]
    targets = () if options.quick else wanted
    found = [mean_of(f"geometric mean of {len(whole)} programs", whole)]
    if ours:
        title = f"geometric mean of the {len(ours)} that no library bounds"
        found.append(mean_of(title, ours, *targets))
    return found


def line(program: Program, options: Options) -> Row | Failure:
    arguments = program.arguments(Draw(options.quick))
    try:
        calls, notes = candidates(program, arguments)
        compare(program, calls)
        times = medians(calls, options.rounds_or(ROUNDS), BUDGET)
    except Exception as error:  # noqa: BLE001 -- the table shows what a user would meet
        return Failure(f"{program.group}: {program.name}", f"{type(error).__name__}: {error}")
    sizes = {"arguments": [f"{np.asarray(a).dtype}{list(np.shape(a))}" for a in arguments]}
    targets = () if options.quick else EACH
    ours = times.pop("ge2")
    title = f"{program.group}: {program.name}"
    return Row(title, "seconds", ours, times, targets, "C order", sizes, notes)


def candidates(
    program: Program, arguments: tuple[Any, ...]
) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls to be timed, and what is to be known of them."""
    compiled = ge2.jit(program.for_ge2())
    calls: dict[str, Call] = {"ge2": lambda: compiled(*arguments)}
    calls["ge2"]()
    notes = remarks(executor_of(compiled, *arguments))
    if program.bound_by:
        notes["bound by"] = program.bound_by
    if not program.by:  # NumPy derives nothing
        calls["numpy"] = lambda: program(*arguments)
    jax = peer("jax")
    if jax is not None:
        jax.config.update("jax_enable_x64", True)
        in_jax = jax.jit(program.for_jax(jax))
        moved = [jax.numpy.asarray(a) for a in arguments]
        calls["jax"] = lambda: jax.block_until_ready(in_jax(*moved))
    return calls, notes


def compare(program: Program, calls: dict[str, Call]) -> None:
    """Raises AssertionError unless every candidate computes the same."""
    wanted = leaves(calls["numpy" if "numpy" in calls else "ge2"]())
    for name, call in calls.items():
        for y, y0 in zip(leaves(call()), wanted, strict=True):
            assert y.shape == y0.shape, f"{program.name}: {name}"
            assert agree(y, y0, program.tolerance), f"{program.name}: {name} differs"


def agree(y: Any, wanted: Any, tolerance: float) -> bool:
    """Equal, of numbers that count; near to each other, as parts of the largest, of others."""
    if wanted.dtype.kind not in "fc":
        return bool((y != wanted).mean() <= 1e-6)  # a comparison of sums that round otherwise
    finite = np.isfinite(wanted)
    largest = max(1.0, float(np.abs(wanted[finite]).max(initial=0)))
    same = np.isclose(y, wanted, rtol=0, atol=tolerance * largest, equal_nan=True)
    return bool(same.all())


def leaves(result: Any) -> list[Any]:
    found = result if isinstance(result, tuple | list) else (result,)
    return [np.asarray(leaf) for leaf in found]
