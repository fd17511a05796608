"""How long `import ge2` takes over a bare interpreter, in new processes."""

from __future__ import annotations

from statistics import median

from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.record import AtMost, Row


def run(options: Options = USUAL) -> list[Row]:
    names = ["ge2", *installed(["numpy", "jax", "torch"])]
    programs = {"": "pass"} | {name: f"import {name}" for name in names}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(1 + (options.rounds or (1 if options.quick else 9))):
        for name, program in programs.items():
            took = fresh(program).seconds
            if turn:  # the first turn writes bytecode and warms the disk's cache
                times[name].append(took)
    bare = median(times.pop(""))
    over = {name: max(median(found) - bare, 1e-6) for name, found in times.items()}
    return [Row("import, over bare Python", "seconds", over.pop("ge2"), over, (AtMost(0.150),))]
