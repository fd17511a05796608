"""Launches on a device that follow each other, as one call in which pointers and numbers change.

`one_by_one` is what such a call means, and what runs it wherever nothing faster can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, final

import numpy as np

from ge2.backends.product import Product
from ge2.base.record import record

Run = Callable[..., None]
AHEAD: Final = 64  # launches among which the next one is chosen


@final
@record
class Pointer:
    """A place in array `array` of those that a run is called with, `offset` bytes from its beginning."""

    array: int
    offset: int = 0


@final
@record
class Number:
    """Number `number` of those that a run is called with, after the arrays."""

    number: int


@final
@record
class Launch:
    """A kernel's launch. Whatever among `arguments` is no pointer and no number is a NumPy scalar.

    `after`: the launches of the list that must have ended before. `where`: the user's line.
    """

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    arguments: tuple[Pointer | Number | np.generic, ...]
    after: tuple[int, ...]
    name: str
    where: str = ""


@final
@record
class Call:
    """A product that a library launches: of both factors, into the result, with its scratch."""

    product: Product
    first: Pointer
    other: Pointer
    result: Pointer
    scratch: Pointer | None
    after: tuple[int, ...]
    name: str
    where: str = ""


@final
@record
class LaunchList:
    """Launches that follow each other, to be called as `f(*arrays, *numbers)`.

    `arrays`: how many; each is an array of the device, or an address. Those of the `callers` come as they
    are: one that is not in C order, or begins where wide accesses may not, `ready` copies. `numbers`: the
    bytes of each, which is a NumPy scalar. `captured`: calls may become one graph.
    """

    launches: tuple[Launch | Call, ...]
    arrays: int
    numbers: tuple[int, ...]
    callers: frozenset[int]
    ready: Callable[[Any], Any]
    captured: bool


@final
@record
class Straight:
    """A program that is one run of launches, with arrays made for it before.

    It counts objects: what it is `given`, the arrays `made`, `constants`, numbers, and the scratch. `made`:
    of each what `empty` is called with; `compute` makes so many `numbers` of those given that are `asked`;
    `take` lends `nbytes` of scratch, with the list that it is put back into. `handed`: the objects that `run`
    is called with; `results`: those returned.
    """

    given: int
    made: tuple[tuple[Any, ...], ...]
    constants: tuple[Any, ...]
    numbers: int
    asked: tuple[int, ...]
    compute: Callable[..., tuple[Any, ...]] | None
    nbytes: int
    handed: tuple[int, ...]
    results: tuple[int, ...]
    take: Callable[[int], tuple[Any, list[Any]]]
    empty: Callable[..., Any]
    run: Run


def one_by_one(work: LaunchList, at: Callable[[Any], int]) -> Run:
    """What launches one after another; `at` tells where an array lies."""
    arrays, launches, ready = work.arrays, work.launches, work.ready

    def run(*raw: Any) -> None:
        given = [ready(x) if i in work.callers else x for i, x in enumerate(raw)]
        for each in launches:
            if isinstance(each, Call):
                each.product(
                    *(place(p, given, at) for p in (each.first, each.other, each.result, each.scratch))
                )
            else:
                handed = tuple(argument(a, given, arrays, at) for a in each.arguments)
                each.kernel(each.grid, each.block, handed, shared_mem=each.shared)

    return run


def in_any_order(launches: Sequence[Launch | Call], seed: int) -> tuple[Launch | Call, ...]:
    """The launches in a random order in which each comes after those that it waits for."""
    random, done, left = Random(seed), set[int](), list(range(len(launches)))
    found = list[Launch | Call]()
    while left:
        i = random.choice([n for n in left[:AHEAD] if done.issuperset(launches[n].after)])
        left.remove(i)
        done.add(i)
        found.append(launches[i])
    return tuple(found)


def argument(a: Any, given: Sequence[Any], arrays: int, at: Callable[[Any], int]) -> Any:
    """An argument as a kernel is handed it: an array as itself where it is meant from its beginning."""
    if isinstance(a, Number):
        return given[arrays + a.number]
    if not isinstance(a, Pointer):
        return a
    x = given[a.array]
    return np.uint64(place(a, given, at)) if a.offset or isinstance(x, int) else x


def place(pointer: Pointer | None, given: Sequence[Any], at: Callable[[Any], int]) -> int:
    """An address; 0 for none."""
    if pointer is None:
        return 0
    x = given[pointer.array]
    return (x if isinstance(x, int) else at(x)) + pointer.offset
