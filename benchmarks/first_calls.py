"""What the first call of each program costs where nothing is cached: CPU time, compilers included.

Each runs in a process of its own, ge2 and JAX in turns, after its imports: traced, compiled,
loaded and computed once. JAX's compilation cache is off and ge2's is an empty folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.programs import programs
from benchmarks.programs.program import Program
from benchmarks.record import Failure, Faster, Row, mean_of

ROUNDS = 3  # of which the least counts
EACH = Faster(1 / 3, "jax")
ALL = Faster(1.0, "jax")
HEAD = """
import json, resource, time
from benchmarks.programs import programs
from benchmarks.programs.program import Draw

def spent():
    made = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), made.ru_utime + made.ru_stime

program = next(each for each in programs(({group!r},)) if each.name == {name!r})
arguments = program.arguments(Draw({quick}))
"""
# fmt: off
CALLS = {
    "ge2": HEAD + """
import ge2
call = ge2.jit(program.for_ge2())
before = spent()
call(*arguments)
after = spent()
stages = dict(call.report().bill.stages)
""",
    "jax": HEAD + """
import jax
jax.config.update("jax_enable_x64", True)
call = jax.jit(program.for_jax(jax))
arguments = [jax.numpy.asarray(each) for each in arguments]
before = spent()
jax.block_until_ready(call(*arguments))
after = spent()
stages = {{}}
""",
}
# fmt: on
TAIL = """
print(json.dumps({{"self": after[0] - before[0], "compilers": after[1] - before[1], **stages}}))
"""
SHOWN = ("trace", "import", "passes", "schedule", "render", "load", "other")


def run(options: Options = USUAL) -> list[Row | Failure]:
    """A row for each program, and the geometric mean; a failure stops nothing."""
    asked = [each for each in programs() if options.wants(each.group, each.name)]
    found = [line(each, options) for each in asked]
    rows = [each for each in found if isinstance(each, Row) and "jax" in each.others]
    if len(rows) < 2:
        return found
    targets = () if options.quick else (ALL,)
    return [*found, mean_of(f"geometric mean of {len(rows)} first calls", rows, *targets)]


def line(program: Program, options: Options) -> Row | Failure:
    names = ["ge2", *installed(["jax"])]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    try:
        for _ in range(options.rounds_or(ROUNDS)):
            for name in names:
                found[name].append(first_call(name, program, options.quick))
    except Exception as error:  # noqa: BLE001 -- the table shows what a user would meet
        return Failure(f"{program.group}: {program.name}", f"{type(error).__name__}: {error}")
    least = {name: min(each, key=cpu) for name, each in found.items()}
    seconds = {name: cpu(each) for name, each in least.items()}
    notes = {"ge2": split(least["ge2"])}
    targets = () if options.quick else (EACH,)
    title = f"{program.group}: {program.name}"
    return Row(title, "seconds", seconds.pop("ge2"), seconds, targets, "CPU time", {}, notes)


def first_call(name: str, program: Program, quick: bool) -> dict[str, float]:
    """CPU seconds of the process and of compilers, and those of ge2's stages by the clock."""
    text = (CALLS[name] + TAIL).format(group=program.group, name=program.name, quick=quick)
    with TemporaryDirectory() as folder:
        said = fresh(text, GE2_CACHE_DIR=folder, JAX_ENABLE_COMPILATION_CACHE="false").said
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def cpu(found: Mapping[str, Any]) -> float:
    return float(found["self"] + found["compilers"])


def split(found: Mapping[str, float]) -> str:
    """The parts of a first call, in milliseconds."""
    shown = {"compilers": found["compilers"]} | {k: found[k] for k in SHOWN if k in found}
    return ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in shown.items()) + " ms"
