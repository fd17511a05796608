"""How long `import ge2` takes over a bare interpreter, in new processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.record import Row, Target

ROOT = Path(__file__).parent.parent


def run(quick: bool = False) -> list[Row]:
    names = ["ge2", *(name for name in ("numpy", "jax", "torch") if find_spec(name) is not None)]
    programs = {"": "pass"} | {name: f"import {name}" for name in names}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(2 if quick else 12):
        for name, program in programs.items():
            took = once(program)
            if turn:  # the first turn writes bytecode and warms the disk's cache
                times[name].append(took)
    bare = median(times.pop(""))
    over = {name: max(median(found) - bare, 1e-6) for name, found in times.items()}
    return [Row("import, over bare Python", "seconds", over.pop("ge2"), over, Target(0.150))]


def once(program: str) -> float:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environment)
    return time.perf_counter() - began
