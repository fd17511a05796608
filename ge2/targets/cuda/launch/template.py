"""A program's launches in groups, consecutive ones fused where they do not depend on each other."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.record import mutable, record
from ge2.codegen.layout import Line
from ge2.ir import Eqn
from ge2.program import Program
from ge2.program.assembler import Call
from ge2.program.records import place
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emit import (
    OWN,
    CudaKernel,
    Source,
    axis_of,
    bare,
    bundle_of,
    can_be_bundled,
    of,
)
from ge2.targets.cuda.launch import (
    ARENA,
    Address,
    HostScalar,
    Item,
    Launch,
    LaunchArgument,
    LaunchList,
    Run,
    address_of,
    count,
    itself,
    readdressed,
    texts,
)
from ge2.targets.cuda.launch.graph import Access, check_places, checked_waits
from ge2.targets.cuda.limits import MORE_PARAMETERS
from ge2.targets.cuda.load.kernels import ProgramKernels
from ge2.targets.cuda.tuning import Launches

if TYPE_CHECKING:
    from ge2.targets.cuda.launch import Launching


# -------- A program's launches on a device: those that follow each other are one group, and one
# call.
# Offsets in the arena are known when all steps are written, so a launch first names arrays.


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
    found, written = list[Access](), each.written if isinstance(each, Launch) else ()
    for i, a in enumerate(map(address_of, each.arguments)):
        if a is not None:
            offset, nbytes = spans[a.array] if a.in_arena else (0, 1)
            base = donors.get(a.base, a.base)
            found.append(Access(base, offset, offset + max(nbytes, 1), i in written))
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
    waits = checked_waits(items, [*map(touched, items)], few)
    for each, after in zip(items, waits, strict=True):
        if isinstance(each, Launch):
            function = each.function if each.of_library else kernels[each.function]
            arguments = tuple([readdressed(a, address) for a in each.arguments])
            found.append(each.changed(function, arguments, after))
        else:
            item = each.changed([inner(nested) for nested in each.lists], address)
            found.append(replace(item, after=after))
    return tuple(found)


# -------- A program's launches in groups as they are written, and the lines of Python between them.


@final
@record
class Assembled:
    """A program that is assembled, as what calls it in C, or as a loop's body, needs to know it.

    `computed`: the lines that compute numbers. `sources`: those of its kernels.
    """

    program: Program
    parts: Sequence[Line | Group]
    computed: Sequence[Line]
    names: dict[str, Any]
    nbytes: int  # of the arena
    offsets: Mapping[str, int]  # in it
    sources: Sequence[Source]

    @property
    def groups(self) -> list[Group]:
        return [part for part in self.parts if isinstance(part, Group)]

    @property
    def numbers(self) -> bool:
        """True if it takes or returns Python numbers."""
        graph = self.program.graph
        return any(a.type.weak for a in (*graph.inputs, *graph.outputs))


@final
class Groups:
    """`timed`: the name of what times a call, if somebody wants to know: each launch is then a group.

    `apart`: whether the next launch begins a group. `splits`: after so many groups, what no graph
    holds.
    """

    def __init__(self, timed: Callable[[Call], str] | None) -> None:
        self.timed = timed
        self.parts: list[Line | Group] = []
        self.splits: list[tuple[int, str]] = []
        self.apart = False

    def __iter__(self) -> Iterator[Group]:
        return (part for part in self.parts if isinstance(part, Group))

    def current(self) -> Group:
        """That which the next launch is part of."""
        last = self.parts[-1] if self.parts else None
        alone = self.apart or (self.timed is not None and isinstance(last, Group) and last.launches)
        if isinstance(last, Group) and not alone:
            return last
        self.apart = False
        found = Group(len([*self]))
        self.parts.append(found)
        return found

    def add(self, code: Launching) -> None:
        """Adds the launches and lines of a step."""
        if code.computed or code.before:
            self.current().before += [*code.computed, *code.before]
        if self.timed is not None:
            for launch, call in zip(code.launches, code.calls, strict=True):
                group = self.current()
                group.launches.append(launch)
                group.through = self.timed(call)
        elif code.launches:
            self.current().launches += code.launches
        if code.split:
            self.split(code.step.eqn, code.split)
        self.parts += code.lines

    def split(self, eqn: Eqn, why: str) -> None:
        where = place(eqn)
        words = f"{eqn.op.name}, {why}" + (f", at {where}" if where else "")
        self.splits.append((sum(bool(g.launches) for g in self), words))

    def lines(self, first: int = 0) -> list[Line]:
        """The text, from a part on."""
        parts = self.parts[first:]
        return [x for p in parts for x in (p.lines() if isinstance(p, Group) else [p])]


# -------- Horizontal fusion: small launches of one kernel that do not wait for each other become
# one launch.
# The update of a model's parameters is a kernel an array, a hundred times over, of which most are a
# few thousand elements: a launch each costs more than their work. So does casting their weights,
# and summing the squares of their gradients.


Touched = Callable[[Item], list[Access]]

WORD: Final = 8  # bytes of a parameter, at most
SPARE: Final = 96  # bytes of parameters that a bundle leaves
ROWS: Final = 65535  # blocks of a grid along another axis than x


Ranges = list[tuple[int, int]]  # of bytes, the first and the one behind the last; apart, in order
Memory = dict[str, Ranges]


@final
@mutable
class Entry:
    """A launch, or several that are to be one, and the memory that they touch, by whose it is."""

    launches: list[Item]
    touched: Memory
    written: Memory
    key: Any = None
    blocks: int = 0

    def touches(self, other: Entry) -> bool:
        """True if one must end before the other begins."""
        return meet(self.written, other.touched) or meet(other.written, self.touched)

    def take(self, other: Entry) -> None:
        self.launches += other.launches
        self.blocks += other.blocks
        for own, more in (self.touched, other.touched), (self.written, other.written):
            for base, ranges in more.items():
                own[base] = joined([*own.get(base, ()), *ranges])


def memories_of(accesses: Sequence[Access]) -> tuple[Memory, Memory]:
    """The memory that is touched, and that which is written."""
    return memory_of(accesses), memory_of(each for each in accesses if each.written)


def memory_of(accesses: Iterable[Access]) -> Memory:
    found: Memory = {}
    for each in accesses:
        found.setdefault(each.base, []).append((each.first, each.last))
    return {base: joined(ranges) for base, ranges in found.items()}


def joined(ranges: Ranges) -> Ranges:
    """The same bytes as ranges that are apart and in order.

    >>> joined([(4, 6), (0, 2), (1, 3)])
    [(0, 3), (4, 6)]
    """
    if len(ranges) < 2:
        return ranges
    found = Ranges()
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def meet(one: Memory, other: Memory) -> bool:
    """True if there are bytes that are in both."""
    few, many = (one, other) if len(one) < len(other) else (other, one)
    return any(base in many and overlap(few[base], many[base]) for base in few)


def overlap(one: Ranges, other: Ranges) -> bool:
    """True if two lists of ranges have bytes in common.

    >>> overlap([(0, 2), (6, 8)], [(2, 6)]), overlap([(0, 2), (6, 8)], [(7, 9)])
    (False, True)
    """
    few, many = (one, other) if len(one) < len(other) else (other, one)
    for first, last in few:
        before = bisect_left(many, (last, 0)) - 1  # the last that begins before this one ends
        if before >= 0 and many[before][1] > first:
            return True
    return False


@final
class Bundling:
    """The launches of a program, group by group; `threads`: those that a GPU has at once;
    `parameters`: the bytes that its driver takes of a kernel.

    A launch of many rounds of them gains nothing: where it begins and ends is little of it.
    """

    def __init__(
        self,
        kernels: ProgramKernels,
        tuning: Launches,
        threads: int,
        parameters: int = MORE_PARAMETERS,
    ) -> None:
        self.kernels, self.tuning, self.threads = kernels, tuning, threads
        self.words = min(tuning.parameters, parameters - SPARE) // WORD
        self.sources: list[Source] = [*kernels.sources.values()]
        self.able: dict[int, bool] = {}
        # asked for again and again: the key of each launch, by its identity, and room for others
        self.keys: dict[int, tuple[Item, Any]] = {}
        self.kinds: dict[Any, Any] = {}
        self.rooms: dict[int, int] = {}

    def launches(self, items: Sequence[Item], touched: Touched) -> list[Item]:
        """The launches in an order that is as good, those that can be one as one; others where they
        were. `touched`: the memory that a launch reads and writes.
        """
        worth = {id(each) for each in self.worth(items)}
        if not worth:
            return [*items]
        accesses = [*map(touched, items)]
        met = [(x, *memories_of(each)) for x, each in zip(items, accesses, strict=True)]
        found = self.gathered([self.entry(*each) for each in met], worth)
        few = {id(x) for e in found if len(e.launches) < self.tuning.bundled for x in e.launches}
        if worth & few:
            found = self.gathered([self.entry(*each) for each in met], worth - few)
        check_places(items, accesses, [each.launches for each in found])
        return [launch for each in found for launch in self.made(each)]

    def worth(self, items: Sequence[Item]) -> list[Launch]:
        """The launches of which there are so many of a kind that they may be one."""
        keys = [self.key(item) for item in items] if len(items) >= self.tuning.bundled else []
        many = Counter(keys)
        return [
            item
            for item, key in zip(items, keys, strict=False)
            if isinstance(item, Launch) and key is not None and many[key] >= self.tuning.bundled
        ]

    def unhurried(self, groups: Sequence[Sequence[Item]]) -> tuple[set[str], set[str]]:
        """The arrays of the arena that such launches write, which may be earlier than in the program,
        and those that they read, which may be later.
        """
        early, late = set[str](), set[str]()
        for each in (launch for items in groups for launch in self.worth(items)):
            for i, a in enumerate(map(address_of, each.arguments)):
                if a is not None and a.in_arena:
                    (early if i in each.written else late).add(a.array)
        return early, late

    def gathered(self, entries: Sequence[Entry], worth: set[int]) -> list[Entry]:
        """The launches, those together of which it is worth it: again while there are fewer, since
        who stood between two may have gone to its like.
        """
        for each in entries:
            if id(each.launches[0]) not in worth:
                each.key = None
        found, count = [*entries], len(entries) + 1
        while len(found) < count:
            count, before, found = len(found), found, list[Entry]()
            for each in before:
                self.place(found, each)
        return found

    def entry(self, item: Item, touched: Memory, written: Memory) -> Entry:
        key = self.key(item)
        blocks = item.grid[axis_of(item.grid)] if isinstance(item, Launch) and key else 0
        return Entry([item], {**touched}, {**written}, key, blocks)

    def key(self, item: Item) -> Any:
        """Returns what launches that may be one share, one object; None for one that stays apart."""
        if id(item) not in self.keys:
            found = self.kind(item)
            self.keys[id(item)] = item, self.kinds.setdefault(found, found)
        return self.keys[id(item)][1]

    def kind(self, item: Item) -> Any:
        if not isinstance(item, Launch) or item.of_library or item.cooperative or item.shared:
            return None
        number, axis = item.function, axis_of(item.grid)
        threads = math.prod(item.grid) * math.prod(item.block)
        if threads > self.tuning.rounds * self.threads:
            return None
        kernel = self.sources[number].kernel
        if number not in self.able:
            self.able[number] = can_be_bundled(kernel, bare(self.sources[number].text()))
        if not self.able[number]:
            return None
        pairs = zip(item.arguments, kernel.given, strict=True)
        shared = (a for a, given in pairs if given.kind not in OWN)
        across = (*item.grid[:axis], *item.grid[axis + 1 :])
        return number, item.block, axis, across, tuple((type(a), repr(a)) for a in shared)

    def place(self, found: list[Entry], new: Entry) -> None:
        """Puts a launch to others of its kernel, or after all."""
        start, key = max(len(found) - self.tuning.window, 0), new.key
        near = range(len(found) - 1, start - 1, -1) if key is not None else ()
        alike = [i for i in near if found[i].key is key and not self.full(found[i], new)]
        last = self.last_touching(found, new, alike[-1]) if alike else start
        for i in alike:
            other = found[i]
            if i > last:
                other.take(new)
                return
            if i == last:
                break  # and what is before it is not asked: the first of a chain
            if not any(each.touches(other) for each in (new, *found[i + 1 :])):
                del found[i]
                other.take(new)
                found.append(other)
                return
        found.append(new)

    def last_touching(self, found: Sequence[Entry], new: Entry, first: int) -> int:
        """The last entry from the `first` on that must end before another begins; -1 if none must."""
        return next((i for i in range(len(found) - 1, first - 1, -1) if found[i].touches(new)), -1)

    def full(self, entry: Entry, new: Entry) -> bool:
        """True if parameters have no bytes for another launch, or a grid no blocks."""
        number, _, axis, *_ = entry.key
        blocks = entry.blocks + new.blocks
        many = len(entry.launches) + len(new.launches) > self.most(number)
        return many or (axis > 0 and blocks > ROWS)

    def most(self, number: int) -> int:
        """The launches of a kernel for whose parameters there are bytes."""
        if number not in self.rooms:
            given = self.sources[number].kernel.arguments
            own = sum(a.kind in OWN for a in given)
            self.rooms[number] = (self.words - (len(given) - own)) // (own + 1)
        return self.rooms[number]

    def members(self, number: int, count: int) -> int:
        """The members of a bundle of so many launches: a power of two, if there are bytes for that. So
        its text stays the same where one launch more or less can be part of it.
        """
        return max(count, min(1 << (count - 1).bit_length(), self.most(number)))

    def made(self, entry: Entry) -> list[Item]:
        launches = [each for each in entry.launches if isinstance(each, Launch)]
        if len(launches) < max(self.tuning.bundled, 2):
            return entry.launches
        number = launches[0].function
        kernel, price = self.sources[number].kernel, self.kernels.prices.get(number)
        one = replace(kernel, grid=launches[0].grid, block=launches[0].block[0])
        ends = ends_of(launches)
        idle = self.members(number, len(launches)) - len(launches)  # without blocks
        launches, ends = launches + launches[-1:] * idle, ends + ends[-1:] * idle
        bundle = bundle_of(one, ends)
        given, parameters = dict[str, LaunchArgument](), kernel.given
        for m, each in enumerate(launches):
            for a, x in zip(parameters, each.arguments, strict=True):
                given[of(m, a.name) if a.kind in OWN else a.name] = x
        arguments = tuple(
            [given[a.name] if a.name in given else np.int32(a.value) for a in bundle.given]
        )
        new, first = self.kernels.number(bundle)
        if price is not None:
            self.kernels.prices.setdefault(new, price)
        early = bundle.fits(self.threads) and first.waits
        name, where = f"{first.name}_{new}", launches[0].where
        return [launch_of(bundle, new, arguments, name, where, early)]


def ends_of(launches: Sequence[Launch]) -> list[int]:
    """The number of blocks up to the end of each launch's."""
    return [*accumulate(each.grid[axis_of(each.grid)] for each in launches)]
