"""Medians of interleaved repetitions: every candidate meets the same machine,
whatever else it is doing.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Mapping
from random import Random
from statistics import median

# CPU seconds of the process, for a machine that others share (`--alone`); else those of the wall
CPU = "BENCHMARKS_ALONE" in os.environ
clock = time.process_time if CPU else time.perf_counter
SAMPLE = 0.004  # seconds; a sample of a quick candidate is as many calls as fill it
PAUSE = 0.05  # lets spinning threads fall asleep: OpenBLAS spins for 2^26 ticks, 26 ms at 2.6 GHz
LEAST = 5  # rounds are made whatever they take


def medians(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 25, budget: float = math.inf
) -> dict[str, float]:
    """The median time of one call of each, in seconds; each is called before, to
    compile and to calibrate.

    Once `budget` seconds are spent, no round follows the fifth.
    """
    repeats = {name: calibrate(call) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    names, order = [*candidates], Random(0)
    end = time.perf_counter() + budget
    gc.collect()
    gc.disable()
    try:
        for done in range(rounds):
            if done >= LEAST and time.perf_counter() > end:
                break
            # so that none always follows the same other
            for name in order.sample(names, len(names)):
                time.sleep(PAUSE)
                candidates[name]()
                times[name].append(sample(candidates[name], repeats[name]))
    finally:
        gc.enable()
    return {name: median(found) for name, found in times.items()}


def calibrate(call: Callable[[], object]) -> int:
    call()
    return max(1, round(SAMPLE / max(sample(call, 3), 1e-9))) if SAMPLE else 1


def sample(call: Callable[[], object], repeats: int) -> float:
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats
