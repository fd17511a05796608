"""A program's launches on a device: those that follow each other are one group, and one call.

Offsets in the arena are known when all steps are written, so a launch first names arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from typing import Any, final

from ge2.base.record import mutable
from ge2.codegen.layout import Line
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.launch.arguments import (
    ARENA,
    Address,
    HostScalar,
    LaunchArgument,
    address_of,
    readdressed,
    words,
)
from ge2.targets.cuda.launch.dependencies import Access, waits
from ge2.targets.cuda.launch.launches import (
    Branch,
    Item,
    Launch,
    LaunchList,
    Run,
    While,
    itself,
)

SHOWN = 64  # launches of a group that a text lists
Span = tuple[int, int]  # the offset of an array of the arena, and its bytes
# names of arguments as they come, and what copies one
Callers = tuple[frozenset[str], Callable[[Any], Any]]


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
        found = map(address_of, handed(self.launches))
        return [*dict.fromkeys(a.base for a in found if a is not None)]

    @property
    def numbers(self) -> list[HostScalar]:
        return [*dict.fromkeys(a for a in handed(self.launches) if isinstance(a, HostScalar))]

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

        def placed(a: Any) -> Any:
            if not isinstance(a, Address) or not a.in_arena:
                return a
            first, nbytes = spans[a.array]
            return Address(ARENA, a.offset + first, within=(first, first + nbytes))

        touched = partial(accesses, spans=spans, donors=donors)
        items = listed(
            self.launches, placed, kernels, touched, device.limits.tuning.launches.direct
        )
        names, ready = callers or (frozenset(), itself)
        arrays, numbers = tuple(self.bases), tuple(self.numbers)
        return device.launches(
            LaunchList(items, arrays, numbers, names, ready, callers is not None)
        )


def launch_of(
    kernel: CudaKernel,
    number: int,
    arguments: tuple[LaunchArgument, ...],
    name: str,
    where: str,
    early: bool,
) -> Launch:
    """The launch of a kernel, by the number of its source."""
    return Launch(
        number, kernel.grid, kernel.shape, kernel.shared, arguments, name, where, written_by(kernel),
        pdl_wait=early, pdl_trigger=kernel.lets, cooperative=kernel.together,
    )  # fmt: skip


def written_by(kernel: CudaKernel) -> frozenset[int]:
    """Returns which arguments of a kernel it may write: memory that is not declared `const`."""
    memory = [(i, a) for i, a in enumerate(kernel.given) if a.kind in ("array", "result")]
    return frozenset(i for i, a in memory if a.kind == "result" or "const " not in a.declaration)


def handed(items: Sequence[Item]) -> Iterator[Any]:
    """All that launches are handed."""
    for each in items:
        yield from each.arguments
        for inner in () if isinstance(each, Launch) else each.lists:
            yield from handed(inner)


def functions(groups: Iterable[Group]) -> set[int]:
    """The numbers of the kernels that are launched."""

    def of(items: Sequence[Item]) -> Iterator[int]:
        for each in items:
            if isinstance(each, Launch):
                yield from () if each.of_library else (each.function,)
            else:
                yield from (number for inner in each.lists for number in of(inner))

    return {number for group in groups for number in of(group.launches)}


def count(items: Sequence[Item]) -> int:
    """Returns how many launches there are, those in lists included; and a line
    for each loop, branch and case.
    """
    found = len(items)
    for each in items:
        if not isinstance(each, Launch):
            found += sum(map(count, each.lists)) + (
                len(each.lists) if isinstance(each, Branch) else 0
            )
    return found


def texts(items: Sequence[Item], margin: str = "") -> Iterator[str]:
    """A line for each, loops and branches as Python has them."""
    for each in items:
        if isinstance(each, Launch):
            yield f"{margin}{each}"
        elif isinstance(each, While):
            yield from texts(each.test, margin)
            yield f"{margin}while {words(each.going)}:"
            yield from texts(each.body, f"{margin}    ")
        else:
            yield f"{margin}match {words(each.index)}:"
            for n, inner in enumerate(each.lists):
                yield f"{margin}    case {n}:"
                yield from texts(inner, f"{margin}        ")


def rebound(item: Item, address: Callable[[Any], Any], launch: Callable[[Launch], Launch]) -> Item:
    """An item with other addresses, and launches changed besides."""
    if isinstance(item, Launch):
        arguments = tuple([readdressed(a, address) for a in item.arguments])
        return launch(item.changed(item.function, arguments, item.after))
    lists = [tuple(rebound(each, address, launch) for each in inner) for inner in item.lists]
    return item.changed(lists, address)


def accesses(each: Item, spans: Mapping[str, Span], donors: Mapping[str, str]) -> list[Access]:
    """The memory that a launch reads and writes: of the arena its part of it,
    of all else the whole array.

    A loop and a branch reads and writes all that its lists do.
    """
    found = []
    for i, a in enumerate(map(address_of, each.arguments)):
        if a is not None:
            offset, nbytes = spans[a.array] if a.in_arena else (0, 1)
            base, written = (
                donors.get(a.base, a.base),
                isinstance(each, Launch) and i in each.written,
            )
            found.append(Access(base, offset, offset + max(nbytes, 1), written))
    for inner in () if isinstance(each, Launch) else each.lists:
        found += [access for item in inner for access in accesses(item, spans, donors)]
    return [*dict.fromkeys(found)]


def listed(
    items: Sequence[Item],
    address: Callable[[Any], Any],
    kernels: Sequence[Any],
    touched: Callable[[Item], list[Access]],
    few: int,
) -> tuple[Item, ...]:
    """Launches of loaded kernels at these addresses, each with those that it waits for."""
    inner = partial(listed, address=address, kernels=kernels, touched=touched, few=few)
    found = list[Item]()
    for each, after in zip(items, waits([*map(touched, items)], few), strict=True):
        if isinstance(each, Launch):
            function = each.function if each.of_library else kernels[each.function]
            arguments = tuple([readdressed(a, address) for a in each.arguments])
            found.append(each.changed(function, arguments, after))
        else:
            item = each.changed([inner(nested) for nested in each.lists], address)
            found.append(replace(item, after=after))
    return tuple(found)
