"""Places of extremes in C: vectors take the extreme of each run of elements, and a run whose extreme
is beyond what was found is gone through until it is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ge2.base.dtypes import BOOL, COMPLEX, INTEGERS
from ge2.codegen.loop_nest import Work
from ge2.codegen.text import Text, guard
from ge2.targets.c.emit.reductions import REAL, gathers_index, word
from ge2.targets.c.emit.skeleton import For, Stage
from ge2.targets.c.emit.types import GATHERED, expression

States = Mapping[Work, tuple[str, str]]  # of extremes: the name of each state, and its place


def screens(works: Iterable[Work], local: Iterable[Work]) -> bool:
    """True if a loop only finds where extremes of real numbers are: it may be gone through twice."""
    found = [w for w in works if w.kind != "compute"]
    return (
        bool(found)
        and all(
            w in local
            and w.kind == "fold"
            and gathers_index(w)
            and w.xs[0].dtype in (*REAL, *INTEGERS, BOOL)
            for w in found
        )
        and not any(x.dtype in COMPLEX for w in works for x in w.xs)
    )


def least_of(w: Work) -> str:
    """Returns the value with which the extreme of a run begins, before its first element."""
    end = "lowest" if word(w) == "argmax" else "highest"
    return expression(f"ge2_{end}()", [], w.xs[0].dtype, w.xs[0].dtype)


def order(w: Work) -> str:
    return ">" if word(w) == "argmax" else "<"


def extreme_of_run(w: Work, name: str, value: str) -> list[Text]:
    """The extreme of a run, whose place is sought later, and whether there was a NaN."""
    part = f"{name}_part"
    nan = Text(f"{name}_nan |= {value} != {value};")
    return [nan, Text(f"{part} = {value} {order(w)} {part} ? {value} : {part};")]


def beyond(w: Work, name: str, state: str) -> str:
    """The test of a run: whether its extreme is beyond what was found, in which no NaN was."""
    further = f"{name}_nan || {name}_part {order(w)} {state}.value"
    return f"({state}.index == INT64_MAX || ({state}.value == {state}.value && ({further})))"


def met(w: Work, name: str, state: str, value: str, index: str) -> Text:
    """The first element of a run that is its extreme, or NaN, ends the search."""
    at = expression("ge2_at({0}, {1})", [value, index], w.xs[0].dtype, w.xs[0].dtype)
    test = f"{name}_nan ? {value} != {value} : {value} == {name}_part"
    return guard(test, (Text(f"{state} = {at};"), Text("break;")))


def search(
    states: States,
    body: Callable[[Work | None], tuple[Stage, ...]],
    bounds: tuple[str, str, str],
    run: int,
) -> Stage:
    """The loop over runs. `body`: the statements of the loop within, which take extremes of a run
    (None), or seek one of them; `bounds`: its index, begin and end.
    """
    letter, begin, end = bounds
    head = [Text(f"const int64_t end = ge2_least(at + {run}, {end});")]
    clauses, seeking = "", list[Stage]()
    for w, (name, state) in states.items():
        dtype = w.xs[0].dtype
        head.append(Text(f"{GATHERED[dtype]} {name}_part = {least_of(w)};"))
        head.append(Text(f"int{8 * dtype.itemsize}_t {name}_nan = 0;"))
        kind = word(w).removeprefix("arg")
        clauses += f" reduction({kind}:{name}_part) reduction(|:{name}_nan)"
        seeking.append(For(letter, f"{beyond(w, name, state)} ? at : end", "end", body(w)))
    taking = For(letter, "at", "end", body(None), f"#pragma omp simd{clauses}")
    return For("at", begin, end, (*head, taking, *seeking), step=str(run))
