"""The fallback where a kernel does not compile, or there is no memory: the next candidate serves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ge2.base.errors import CompileError, CompilerTrouble, TooLong
from ge2.base.source import size_words, warn
from ge2.choice import prefs
from ge2.choice.bench import Bench
from ge2.choice.choose import Candidate, Choice, fail, instead, made_once, settled
from ge2.compile.race import bench_of, first_line
from ge2.program import Step
from ge2.program.records import place

if TYPE_CHECKING:
    from ge2.compile.executable import Executable


def fallen(executable: Executable, error: Exception) -> bool:
    """Finds the kernels of a program that do not serve, by themselves, and has others taken for
    them; False if there are none such, or nothing else serves.

    A compiler that fails on a program of usual kernels is not asked for each of them: it may hang.
    """
    program, found, apart = executable.program, False, False
    for step in program.steps:
        if step.kind not in ("kernel", "copy", "matmul"):
            continue
        bench = bench_of(executable, program, step)
        if bench is None or isinstance(error, TooLong):
            return False
        choice = taken(executable, bench, step)
        usual = choice.by in ("order", "predicted", "built") and isinstance(error, CompilerTrouble)
        if usual or not (reason := trouble(bench, choice)):
            continue
        whole = by_pass(executable, step, choice)
        if whole is None and not choice.fallbacks:
            continue
        fail(whole or choice, reason)
        found, apart = True, apart or whole is not None
        said = f"the kernel {choice.taken.title} for {step.name} does not serve: {reason}"
        tell(executable, step, choice, f"{said}; the next candidate is taken")
    if apart and executable.remade is not None:
        other = executable.remade()
        executable.program, executable.branches = other.program, other.branches
    return found


def by_pass(executable: Executable, step: Step, choice: Choice) -> Choice | None:
    """The choice that a pass has made for several steps or a user's function, if that is what has to
    be made otherwise.
    """
    kept = step.eqn.choice
    if not isinstance(kept, Choice) or executable.remade is None:
        return None
    own = kept.family.name == choice.family.name or not choice.fallbacks
    return kept if own and kept.fallbacks else None


def taken(executable: Executable, bench: Bench, step: Step) -> Choice:
    """The choice that a program has taken for a step, as far as it was written."""
    with made_once(executable.chosen):
        return settled(step.eqn.choice, bench.problem, bench.caps, prefs(), bench.catalog)


def tell(executable: Executable, step: Step, choice: Choice, words: str) -> None:
    """A warning, and a line of the report."""
    executable.fallen.append(words)
    line = place(step.eqn)
    where = f"\n  at   {line}" if line else ""
    warn(
        f"{words}{where}",
        fix="ge2.explain(f)(*args), which shows the candidates",
        once=("kernel", choice.taken.title, step.eqn.op),
    )


# ------------------------------------------------------------------------------- no memory at a call


def lessened(executable: Executable) -> bool:
    """Has the kernel with the most scratch, of a program and those that it runs, give way to the
    next candidate that needs less; False if none does.
    """
    every = [executable, *(b for _, _, b in executable.inside())]
    found = [way for each in every for step in each.program.steps if (way := less(each, step))]
    if not found:
        return False
    owner, step, choice, other, most, nbytes = max(found, key=lambda way: way[4])
    instead(owner.chosen, choice, other)
    said = f"{owner.name} finds no memory: the kernel {choice.taken.title} for {step.name} needs"
    rest = f"{size_words(nbytes)}, is taken" if nbytes else "none, is taken"
    tell(executable, step, choice, f"{said} {size_words(most)} of scratch; {other.title}, {rest}")
    for each in every:
        each.unbuild()
    return True


Less = tuple["Executable", Step, Choice, Candidate, int, int]


def less(executable: Executable, step: Step) -> Less | None:
    """A step whose kernel needs scratch, and the next candidate with less of it."""
    if step.kind not in ("kernel", "copy", "matmul"):
        return None
    bench = bench_of(executable, executable.program, step)
    if bench is None:
        return None
    choice = taken(executable, bench, step)
    most = scratch(choice, choice.taken)
    for other in choice.fallbacks if most else ():
        if (nbytes := scratch(choice, other)) < most:
            return executable, step, choice, other, most, nbytes
    return None


def scratch(choice: Choice, candidate: Candidate) -> int:
    nbytes: int = getattr(replace(choice, taken=candidate).kernels(), "scratch", 0)
    return nbytes


def trouble(bench: Bench, choice: Choice) -> str:
    """The reason why the candidate that was taken does not serve; "" if it does."""
    try:
        with bench.here():
            bench.prepared(choice.taken)
    except CompileError as error:
        return f"it does not compile: {first_line(error)}"
    except MemoryError as error:
        return f"there is no memory for it: {first_line(error)}"
    return ""
