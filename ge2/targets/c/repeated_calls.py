"""Calls that repeat, as loops over a table of their arguments: compiled
once, however many there are.

The calls of a C function differ in the numbers within `n[...]`, `p[...]` and `k[...]`: which size,
array or constant each is passed. Where all else repeats with a period, such a number becomes `first
+ step * t`, or is read from a table in `n` where it has no step. Loops that repeat become a loop
again, so nested Python loops stay nested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ge2.base.formatting import pattern
from ge2.codegen.text import Text
from ge2.targets.c.emit.skeleton import For, Stage
from ge2.targets.c.tuning import Files

REFERENCE = pattern(r"\b([npk])\[(\d+)\]")
MARK = "\0"  # in place of a number

# statements with marks, and the numbers they stand for, in order
Node = tuple[Stage, tuple[int, ...]]
# appends integers to `n`, and returns the index of the first
Table = Callable[[Sequence[int]], int]


def repeated_calls(calls: Sequence[Stage], table: Table, tuning: Files) -> tuple[Stage, ...]:
    """The same calls in the same order, those that repeat as loops."""
    if len(calls) < tuning.calls:
        return tuple(calls)
    nodes = list(map(parsed, calls))
    for depth in count():
        shorter = with_loops(nodes, f"t{depth}", table, tuning)
        if len(shorter) == len(nodes):
            return tuple(filled(text, iter(numbers)) for text, numbers in nodes)
        nodes = shorter
    raise AssertionError


def parsed(call: Stage) -> Node:
    """A call with marks for its numbers.

    >>> parsed(Text("f(p[2], n[10]);"))
    (Text(code='f(p[\\x00], n[\\x00]);', comment='', body=(), pragma='', end=''), (2, 10))
    """
    if not isinstance(call, Text):  # a loop of the user's, which has its own numbers
        return call, ()
    found = tuple(int(m[2]) for m in REFERENCE.finditer(call.code))
    return replace(call, code=REFERENCE.sub(rf"\1[{MARK}]", call.code)), found


def with_loops(nodes: Sequence[Node], variable: str, table: Table, tuning: Files) -> list[Node]:
    """The nodes, with every run that repeats by the shortest period at which any does as a loop."""
    known: dict[Stage, int] = {}
    keys = [known.setdefault(text, len(known)) for text, _ in nodes]
    for period in periods(keys, tuning.periods):
        found = runs(keys, period, tuning.iterations)
        if not found:
            continue
        made, at = list[Node](), 0
        for start, stop in found:
            made += [*nodes[at:start], looped(nodes[start:stop], period, variable, table)]
            at = stop
        return [*made, *nodes[at:]]
    return list(nodes)


def periods(keys: Sequence[int], most: int) -> list[int]:
    """The commonest distances between equal nodes, the shortest first."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, key in enumerate(keys):
        if key in last:
            distances[i - last[key]] += 1
        last[key] = i
    return sorted(period for period, _ in distances.most_common(most))


def runs(keys: Sequence[int], period: int, fewest: int) -> list[tuple[int, int]]:
    """Runs of nodes that equal those a period later, as whole iterations, `fewest` or more.

    >>> runs([7, 1, 2, 1, 2, 1, 2, 1, 8], 2, 3)
    [(1, 7)]
    """
    found, start = [], 0
    for i in range(len(keys) - period + 1):
        if i + period < len(keys) and keys[i] == keys[i + period]:
            continue
        iterations = (i + period - start) // period
        if iterations >= fewest:
            found.append((start, start + iterations * period))
        start = i + 1
    return [
        run for run, before in zip(found, [(0, 0), *found], strict=False) if run[0] >= before[1]
    ]


def looped(nodes: Sequence[Node], period: int, variable: str, table: Table) -> Node:
    """Iterations of equal nodes as one loop, whose length is a number in `n` too."""
    iterations = [nodes[i : i + period] for i in range(0, len(nodes), period)]
    columns = zip(
        *([n for _, numbers in each for n in numbers] for each in iterations), strict=True
    )
    moved = [by_iteration(column, variable, table) for column in columns]
    marks = iter([mark for mark, _ in moved])
    body = tuple(marked(text, marks) for text, _ in nodes[:period])
    length = table([len(iterations)])
    return For(variable, "0", f"n[{MARK}]", body), (length, *(first for _, first in moved))


def by_iteration(column: Sequence[int], variable: str, table: Table) -> tuple[str, int]:
    """A number that changes from iteration to iteration, as text with a mark
    and the number for that mark.

    >>> by_iteration((3, 5, 7), "t0", lambda numbers: 0), by_iteration((3, 3), "t0", lambda numbers: 0)
    (('\\x00 + 2 * t0', 3), ('\\x00', 3))
    """
    first, step = column[0], column[1] - column[0]
    if all(n == first + i * step for i, n in enumerate(column)):
        return (f"{MARK} + {step} * {variable}" if step else MARK), first
    return f"n[{MARK} + {variable}]", table(column)


def marked(call: Stage, marks: Iterator[str]) -> Any:
    """The call with something else for each mark."""

    def text(code: str) -> str:
        first, *rest = code.split(MARK)
        return first + "".join(next(marks) + part for part in rest)

    if isinstance(call, Text):
        return replace(call, code=text(call.code))
    if not isinstance(call, For):
        return call
    end = text(call.end)
    return replace(call, end=end, body=tuple(marked(each, marks) for each in call.body))


def filled(call: Stage, numbers: Iterator[int]) -> Stage:
    found: Stage = marked(call, map(str, numbers))
    return found
