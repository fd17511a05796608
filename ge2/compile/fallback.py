"""What is done where a kernel does not compile, or finds no memory: the next candidate serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ge2.base.errors import CompileError, CompilerTrouble, TooLong
from ge2.base.log import warn
from ge2.choice.bench import Bench
from ge2.choice.choose import Choice, fail, settled
from ge2.choice.problem import prefs
from ge2.compile.race import bench_of, first_line
from ge2.program.records import place

if TYPE_CHECKING:
    from ge2.compile.executable import Executable


def fallen(executable: Executable, error: Exception) -> bool:
    """Finds the kernels of a program that do not serve, by themselves, and has others taken for
    them; False if there are none such, or nothing else serves.

    A compiler that fails on a program of usual kernels is not asked for each of them: it may hang.
    """
    program, found = executable.program, False
    for step in program.steps:
        if step.kind not in ("kernel", "copy", "matmul") or step.eqn.choice is not None:
            continue
        bench = bench_of(executable, program, step)
        if bench is None or isinstance(error, TooLong):
            return False
        choice = settled(None, bench.problem, bench.caps, prefs(), bench.catalog)
        usual = choice.by in ("order", "predicted") and isinstance(error, CompilerTrouble)
        if usual or not (reason := trouble(bench, choice)) or not choice.others:
            continue
        fail(choice, reason)
        found = True
        line = place(step.eqn)
        where = f"\n  at   {line}" if line else ""
        warn(
            f"the kernel {choice.taken.title} for {step.name} does not serve: {reason}; the next "
            f"candidate is taken{where}",
            fix="ge2.explain(f)(*args), which shows the candidates",
            once=("kernel", choice.taken.title, step.eqn.op),
        )
    return found


def trouble(bench: Bench, choice: Choice) -> str:
    """Why the candidate that was taken does not serve; "" if it does."""
    try:
        with bench.here():
            bench.prepared(choice.taken)
    except CompileError as error:
        return f"it does not compile: {first_line(error)}"
    except MemoryError as error:
        return f"there is no memory for it: {first_line(error)}"
    return ""
