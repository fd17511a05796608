"""Launches on a device that follow each other, as one call in which pointers and numbers change.

`one_by_one` is what such a call means, and what runs it wherever nothing faster can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, final

import numpy as np

from ge2.base.record import record
from ge2.targets.cuda.launch.product import Product

Run = Callable[..., None]
AHEAD: Final = 64  # launches among which the next one is chosen


@final
@record
class Pointer:
    """A place in array `array` of those that a run is called with, `offset`
    bytes from its beginning.
    """

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
    `waits`: the kernel waits for them itself, before it looks at memory, so it may be launched
    while those run that let others: `lets`. `together`: its blocks wait for each other, so all of
    them must be on the device at once.
    """

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    arguments: tuple[Pointer | Number | np.generic, ...]
    after: tuple[int, ...]
    name: str
    where: str = ""
    waits: bool = False
    lets: bool = False
    together: bool = False


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
class While:
    """`round` as long as the bool at `going` holds, which `test` writes, and each round at its end.

    What is in a list waits for others of that list.
    """

    test: tuple[Item, ...]
    round: tuple[Item, ...]
    going: Pointer
    after: tuple[int, ...]
    name: str
    where: str = ""

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.bool_)


@final
@record
class Branch:
    """That of the `lists` whose number is the integer, or the bool, at
    `index`: else the nearest.
    """

    lists: tuple[tuple[Item, ...], ...]
    index: Pointer
    dtype: np.dtype
    after: tuple[int, ...]
    name: str
    where: str = ""


Item = Launch | Call | While | Branch


@final
@record
class LaunchList:
    """Launches that follow each other, to be called as `f(*arrays, *numbers)`.

    `arrays`: how many; each is an array of the device, or an address. Those of the `callers` come
    as they are: one that is not in C order, or begins where wide accesses may not, `ready` copies.
    `numbers`: the bytes of each, which is a NumPy scalar. `captured`: calls may become one graph.
    """

    launches: tuple[Item, ...]
    arrays: int
    numbers: tuple[int, ...]
    callers: frozenset[int]
    ready: Callable[[Any], Any]
    captured: bool


@final
@record
class Straight:
    """A program that is one run of launches, with arrays made for it before.

    It counts objects: what it is `given`, the arrays `made`, `constants`, numbers, and the scratch.
    `made`: of each what `empty` is called with; `compute` makes so many `numbers` of those given
    that are `asked`; `take` lends `nbytes` of scratch, with the list that it is put back into.
    `handed`: the objects that `run` is called with; `results`: those returned. `explain` is called
    with a MemoryError of the launches, and raises what is to be said of it.
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
    explain: Callable[[BaseException], None]
    run: Run


Decide = Callable[[While | Branch, int], Any]  # the number at an address by which an item goes on


def number_at(item: While | Branch, place: int) -> Any:
    """The number that decides, in memory that the host can read."""
    from ctypes import c_char

    memory: Any = (c_char * item.dtype.itemsize).from_address(place)
    return np.ndarray((), item.dtype, memory)[()]


def one_by_one(work: LaunchList, at: Callable[[Any], int], decide: Decide = number_at) -> Run:
    """What launches one after another; `at` tells where an array lies."""

    def run(*raw: Any) -> None:
        given = tuple(work.ready(x) if i in work.callers else x for i, x in enumerate(raw))
        launched(work.launches, Given(given, work.arrays, at, decide))

    return run


@final
@record
class Given:
    """What a call is given: so many arrays, and numbers after them."""

    xs: tuple[Any, ...]
    arrays: int
    at: Callable[[Any], int]
    decide: Decide

    def place(self, pointer: Pointer | None) -> int:
        """An address; 0 for none."""
        if pointer is None:
            return 0
        x = self.xs[pointer.array]
        return (x if isinstance(x, int) else self.at(x)) + pointer.offset

    def argument(self, a: Any) -> Any:
        """An argument as a kernel is handed it: an array as itself where it is
        meant from its beginning.
        """
        if isinstance(a, Number):
            return self.xs[self.arrays + a.number]
        if not isinstance(a, Pointer):
            return a
        x = self.xs[a.array]
        return np.uint64(self.place(a)) if a.offset or isinstance(x, int) else x


def launched(items: Sequence[Item], given: Given) -> None:
    for each in items:
        if isinstance(each, Launch):
            handed = tuple(map(given.argument, each.arguments))
            # as CuPy's functions have it
            more = {"enable_cooperative_groups": True} if each.together else {}
            each.kernel(each.grid, each.block, handed, shared_mem=each.shared, **more)
        elif isinstance(each, Call):
            each.product(*map(given.place, (each.first, each.other, each.result, each.scratch)))
        elif isinstance(each, While):
            launched(each.test, given)
            while given.decide(each, given.place(each.going)):
                launched(each.round, given)
        else:
            index = int(given.decide(each, given.place(each.index)))
            launched(each.lists[min(max(index, 0), len(each.lists) - 1)], given)


def in_any_order(launches: Sequence[Item], seed: int) -> tuple[Item, ...]:
    """The launches in a random order in which each comes after those that it
    waits for; in lists likewise.
    """
    random, done, left = Random(seed), set[int](), list(range(len(launches)))
    found = list[Item]()
    while left:
        i = random.choice([n for n in left[:AHEAD] if done.issuperset(launches[n].after)])
        left.remove(i)
        done.add(i)
        found.append(inside(launches[i], lambda items: in_any_order(items, seed)))
    return tuple(found)


def inside(item: Item, change: Callable[[tuple[Item, ...]], tuple[Item, ...]]) -> Item:
    """The item with its lists changed."""
    if isinstance(item, While):
        return replace(item, test=change(item.test), round=change(item.round))
    if isinstance(item, Branch):
        return replace(item, lists=tuple(map(change, item.lists)))
    return item
