"""Places of extremes in C: vectors take the extreme of each run of elements, and of the runs the first
that has the extreme of all is gone through, once, until it is met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ge2.base.dtypes import BOOL, COMPLEX, INEXACT, INTEGERS
from ge2.codegen.loop_nest import Work
from ge2.codegen.text import Text, guard
from ge2.targets.c.emit.reductions import REAL, gathers_index, word
from ge2.targets.c.emit.skeleton import For, Stage
from ge2.targets.c.emit.types import GATHERED, expression, number

RUN = 2048  # bytes of a run
States = Mapping[Work, tuple[str, str]]  # of extremes: the name of each state, and its place


def screens(works: Iterable[Work], local: Iterable[Work]) -> bool:
    """True if a loop only finds where extremes of real numbers are: a run may be gone through twice."""
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


def beyond(w: Work, name: str, state: str) -> Text:
    """A run whose extreme is beyond what was found, in which no NaN was, is the one to be gone through:
    until then the state has its extreme, and where it begins.
    """
    dtype = w.xs[0].dtype
    further = f"{name}_nan || {name}_part {order(w)} {state}.value"
    test = f"{state}.index == INT64_MAX || ({state}.value == {state}.value && ({further}))"
    nan = f"{name}_nan ? {number(math.nan, dtype)} : " if dtype in INEXACT else ""
    taken = expression("ge2_at({0}, at)", [f"{nan}{name}_part"], dtype, dtype)
    return guard(test, (Text(f"{state} = {taken};"), Text(f"{name}_run = at;")))


def met(w: Work, name: str, state: str, value: str, index: str) -> list[Text]:
    """The first element of its run that is the extreme, or NaN."""
    same = f"{value} == {state}.value"
    if w.xs[0].dtype in INEXACT:
        same += f" || ({state}.value != {state}.value && {value} != {value})"
    at = f"{name}_at"
    return [Text(f"{at} = ({same}) && {index} < {at} ? {index} : {at};")]


def search(
    states: States, body: Callable[[Work | None], tuple[Stage, ...]], bounds: tuple[str, str, str]
) -> list[Stage]:
    """The loop over runs, and after it one over the run of each extreme. `body`: the statements of the
    loop within, which take extremes of a run (None), or seek one of them; `bounds`: its index, begin
    and end.
    """
    letter, begin, end = bounds
    run = RUN // max(w.xs[0].dtype.itemsize for w in states)
    head = [Text(f"const int64_t end = ge2_least(at + {run}, {end});")]
    clauses = ""
    first, found, seeking = list[Stage](), list[Stage](), list[Stage]()
    for w, (name, state) in states.items():
        dtype = w.xs[0].dtype
        first.append(Text(f"int64_t {name}_run = {end}, {name}_at = INT64_MAX;"))
        head.append(Text(f"{GATHERED[dtype]} {name}_part = {least_of(w)};"))
        head.append(Text(f"int{8 * dtype.itemsize}_t {name}_nan = 0;"))
        kind = word(w).removeprefix("arg")
        clauses += f" reduction({kind}:{name}_part) reduction(|:{name}_nan)"
        found.append(beyond(w, name, state))
        last, simd = (
            f"ge2_least({name}_run + {run}, {end})",
            f"#pragma omp simd reduction(min:{name}_at)",
        )
        seeking.append(For(letter, f"{name}_run", last, body(w), simd))
        seeking.append(guard(f"{name}_at < INT64_MAX", f"{state}.index = {name}_at;"))
    taking = For(letter, "at", "end", body(None), f"#pragma omp simd{clauses}")
    return [*first, For("at", begin, end, (*head, taking, *found), step=str(run)), *seeking]
