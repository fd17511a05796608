"""What a program launches on a device: launches that follow each other are one group, and one call.

Where arrays of the arena lie is known when all steps are written, so a launch first names places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from typing import Any, final

import numpy as np

from ge2.base.record import mutable, record
from ge2.codegen.layout import Line
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.launch import launches as lists
from ge2.targets.cuda.launch.dependencies import Access, waits
from ge2.targets.cuda.launch.launches import Call, Launch, LaunchList, Number, Pointer, Run
from ge2.targets.cuda.launch.product import Product

ARENA = "arena"
SHOWN = 64  # launches of a group that a text lists
Span = tuple[int, int]  # where an array of the arena lies, and how many bytes it has
# names of arguments as they come, and what copies one
Callers = tuple[frozenset[str], Callable[[Any], Any]]


@final
@record
class At:
    """A place:

    `offset` bytes from the beginning of an array of the program; `own`: of one in the arena.
    """

    array: str
    offset: int = 0
    own: bool = False

    @property
    def base(self) -> str:
        return ARENA if self.own else self.array


@final
@record
class Asked:
    """A number that Python makes at each call, as `text` says."""

    text: str
    nbytes: int


@final
@record
class Pending:
    """A kernel's launch, by the number of its source; or a product's, with its four places."""

    kernel: int | Product
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    arguments: tuple[At | Asked | np.generic | None, ...]
    written: frozenset[int]  # which of the arguments are memory that it writes
    name: str
    where: str
    waits: bool = False  # for the kernels before it, by itself
    lets: bool = False  # those that do so be launched while it runs
    together: bool = False  # whether its blocks wait for each other

    def __str__(self) -> str:
        """The launch as CUDA has it."""
        given = ", ".join(map(words, self.arguments))
        if not isinstance(self.kernel, int):
            return f"{self.name}({given})"
        grid, block = (" x ".join(map(str, size)) for size in (self.grid, self.block))
        shared = f", {self.shared}" if self.shared else ""
        return f"{self.name}<<<{grid}, {block}{shared}>>>({given})"


@final
@record
class While:
    """`round` as long as the bool at `going` holds, which `test` writes, and
    each round at its end.
    """

    test: tuple[Item, ...]
    round: tuple[Item, ...]
    going: At
    name: str
    where: str

    @property
    def lists(self) -> tuple[tuple[Item, ...], ...]:
        return self.test, self.round

    @property
    def arguments(self) -> tuple[At, ...]:
        return (self.going,)


@final
@record
class Branch:
    """That of the `lists` whose number is at `index`: else the nearest."""

    lists: tuple[tuple[Item, ...], ...]
    index: At
    dtype: np.dtype
    name: str
    where: str

    @property
    def arguments(self) -> tuple[At, ...]:
        return (self.index,)


Item = Pending | While | Branch


def words(argument: At | Asked | np.generic | None) -> str:
    if isinstance(argument, At):
        return argument.array + (f" + {argument.offset}" if argument.offset else "")
    return (
        argument.text if isinstance(argument, Asked) else "0" if argument is None else str(argument)
    )


@final
@mutable
class Group:
    """Launches with nothing between them but what may as well come `before`."""

    number: int
    before: list[Line] = field(default_factory=list)
    launches: list[Item] = field(default_factory=list)
    through: str = ""  # what calls it, to time it

    @property
    def name(self) -> str:
        return f"launches_{self.number}"

    @property
    def bases(self) -> list[str]:
        """The arrays that it is called with, by their names."""
        return [*dict.fromkeys(a.base for a in handed(self.launches) if isinstance(a, At))]

    @property
    def numbers(self) -> list[Asked]:
        return [*dict.fromkeys(a for a in handed(self.launches) if isinstance(a, Asked))]

    def lines(self) -> list[Line]:
        handed = ", ".join([*self.bases, *(number.text for number in self.numbers)])
        text = (
            f"{self.through}({self.name}, {handed})" if self.through else f"{self.name}({handed})"
        )
        call = [Line(text)] if self.launches else []
        shown = [Line(f"# {each}") for each in islice(texts(self.launches), SHOWN)]
        more = count(self.launches) - SHOWN
        return [*self.before, *shown, *([Line(f"# and {more} more")] if more > 0 else []), *call]

    def run(
        self,
        device: Device,
        kernels: list[Any],
        spans: Mapping[str, Span],
        callers: Callers | None,
        donors: Mapping[str, str],
    ) -> Run:
        """The group as a function of its arrays and numbers; as a graph, where that pays and it is
        no part of another program, which has no callers. `spans`: of arrays in the arena; `donors`:
        the arguments whose memory results take.
        """
        arrays = {name: i for i, name in enumerate(self.bases)}
        numbers = {number: i for i, number in enumerate(self.numbers)}

        def settled(a: Any) -> Any:
            if isinstance(a, At):
                return Pointer(arrays[a.base], a.offset + (spans[a.array][0] if a.own else 0))
            return Number(numbers[a]) if isinstance(a, Asked) else a

        found = listed(
            self.launches, settled, kernels, partial(accesses, spans=spans, donors=donors)
        )
        names, ready = callers or ((), itself)
        given = frozenset(i for name, i in arrays.items() if name in names)
        sizes = tuple(each.nbytes for each in self.numbers)
        return device.launches(
            LaunchList(found, len(arrays), sizes, given, ready, callers is not None)
        )


def itself(x: Any) -> Any:
    return x


def pending(
    kernel: CudaKernel,
    number: int,
    arguments: tuple[At | Asked | np.generic, ...],
    name: str,
    where: str,
    early: bool,
) -> Pending:
    """The launch of a kernel, by the number of its source."""
    return Pending(
        number, kernel.grid, kernel.shape, kernel.shared, arguments, written_by(kernel), name, where,
        early, kernel.lets, kernel.together,
    )  # fmt: skip


def written_by(kernel: CudaKernel) -> frozenset[int]:
    """Which arguments of a kernel it may write: memory that is not declared `const`."""
    memory = [(i, a) for i, a in enumerate(kernel.given) if a.kind in ("array", "result")]
    return frozenset(i for i, a in memory if a.kind == "result" or "const " not in a.declaration)


def handed(items: Sequence[Item]) -> Iterator[Any]:
    """All that launches are handed."""
    for each in items:
        yield from each.arguments
        for inner in () if isinstance(each, Pending) else each.lists:
            yield from handed(inner)


def count(items: Sequence[Item]) -> int:
    """How many launches there are, those in lists included; and a line
    for each loop, branch and case.
    """
    found = len(items)
    for each in items:
        if not isinstance(each, Pending):
            found += sum(map(count, each.lists)) + (
                len(each.lists) if isinstance(each, Branch) else 0
            )
    return found


def texts(items: Sequence[Item], margin: str = "") -> Iterator[str]:
    """A line for each, loops and branches as Python has them."""
    for each in items:
        if isinstance(each, Pending):
            yield f"{margin}{each}"
        elif isinstance(each, While):
            yield from texts(each.test, margin)
            yield f"{margin}while {words(each.going)}:"
            yield from texts(each.round, f"{margin}    ")
        else:
            yield f"{margin}match {words(each.index)}:"
            for n, inner in enumerate(each.lists):
                yield f"{margin}    case {n}:"
                yield from texts(inner, f"{margin}        ")


def anew(item: Item, place: Callable[[Any], Any], kernel: Callable[[Pending], Pending]) -> Item:
    """An item with other places and kernels."""
    if isinstance(item, Pending):
        return kernel(replace(item, arguments=tuple(map(place, item.arguments))))
    parts = [tuple(anew(each, place, kernel) for each in inner) for inner in item.lists]
    if isinstance(item, While):
        return replace(item, test=parts[0], round=parts[1], going=place(item.going))
    return replace(item, lists=tuple(parts), index=place(item.index))


def accesses(each: Item, spans: Mapping[str, Span], donors: Mapping[str, str]) -> list[Access]:
    """The memory that a launch reads and writes: of the arena its part of it,
    of all else the whole array.

    A loop and a branch reads and writes all that its lists do.
    """
    found = []
    for i, a in enumerate(each.arguments):
        if isinstance(a, At):
            offset, nbytes = spans[a.array] if a.own else (0, 1)
            base, written = (
                donors.get(a.base, a.base),
                isinstance(each, Pending) and i in each.written,
            )
            found.append(Access(base, offset, offset + max(nbytes, 1), written))
    for inner in () if isinstance(each, Pending) else each.lists:
        found += [access for item in inner for access in accesses(item, spans, donors)]
    return [*dict.fromkeys(found)]


def listed(
    items: Sequence[Item],
    settled: Callable[[Any], Any],
    kernels: list[Any],
    touched: Callable[[Item], list[Access]],
) -> tuple[lists.Item, ...]:
    """Launches as a device takes them, each with those that it waits for."""
    inner = partial(listed, settled=settled, kernels=kernels, touched=touched)
    found = list[lists.Item]()
    for each, after in zip(items, waits([*map(touched, items)]), strict=True):
        if isinstance(each, Pending):
            found.append(launch(each, tuple(map(settled, each.arguments)), kernels, after))
        elif isinstance(each, While):
            both, going = (inner(each.test), inner(each.round)), settled(each.going)
            found.append(lists.While(*both, going, after, each.name, each.where))
        else:
            cases, index = tuple(map(inner, each.lists)), settled(each.index)
            found.append(lists.Branch(cases, index, each.dtype, after, each.name, each.where))
    return tuple(found)


def launch(
    each: Pending, arguments: tuple[Any, ...], kernels: list[Any], after: tuple[int, ...]
) -> Launch | Call:
    if isinstance(each.kernel, int):
        kernel = kernels[each.kernel]
        return Launch(
            kernel, each.grid, each.block, each.shared, arguments, after, each.name, each.where,
            each.waits, each.lets, each.together,
        )  # fmt: skip
    first, other, result, scratch = arguments
    return Call(each.kernel, first, other, result, scratch, after, each.name, each.where)
