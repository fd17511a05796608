"""Twenty programs of loops over single elements and rows, each written twice.

`plain` is a Python loop over NumPy arrays, the oracle. `looped` is the same with
`fori_loop`: in ge2 it writes `x[i] = v` in the body, in JAX `x.at[i].set(v)`, which is
all that `Library.put` stands for.
"""

from benchmarks.element_loops.measure import PROGRAMS, run
from benchmarks.element_loops.program import Library, Program, in_float64, libraries

__all__ = ["PROGRAMS", "Library", "Program", "in_float64", "libraries", "run"]


def works() -> list[str]:
    """Parts of the workload: each program, and the Python loops of them all."""
    return [*(program.name for program in PROGRAMS), "python-loops"]
