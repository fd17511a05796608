"""A list of launches as nodes of a graph, as the extension that launches them takes them.

The nodes of a list follow each other, and the lists within it come after it. A loop and a branch
are a decision, which is a kernel that reads a number, and a choice of lists, which goes by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.targets.cuda.launch.arguments import Address, HostScalar, TensorMap
from ge2.targets.cuda.launch.launches import Branch, Item, Launch, LaunchList, While
from ge2.targets.cuda.launch.library_call import (
    MOST_NUMBERS,
    MOST_WORDS,
    Function,
    LibraryCall,
    Passed,
    Stream,
    Table,
    bits,
    masked,
)

KERNEL, CALL, DECISION, CHOICE = range(4)  # kinds of nodes, as the extension numbers them
IF, WHILE, SWITCH = range(3)  # types of choices, as the driver numbers them
ONE: Final = (1, 1, 1)
AT: Final = "\n  at   "
After = tuple[int, ...]  # nodes that must have ended before
End = Callable[[After], object]


@final
class Nodes:
    """The nodes, and the first one and the number of those of each list.

    `decider`: the driver's handle of the kernel `ge2_decide`. Where the driver has no `switches`, a
    branch is a choice for each of its lists. `early`: of two kernels the second, which waits by
    itself, need not be launched after the first has ended, which lets it: that is told as ~n.
    """

    def __init__(self, work: LaunchList, decider: int, switches: bool, early: bool = False) -> None:
        self.arrays = {name: i for i, name in enumerate(work.arrays)}
        self.numbers = {number: i for i, number in enumerate(work.numbers)}
        self.decider, self.switches, self.early = decider, switches, early
        self.letting = set[int]()  # kernels that let others be launched while they run
        self.nodes = list[tuple[Any, ...]]()
        self.lists = list[tuple[int, int]]()
        self.handles = 0
        # lists to come, and what ends them
        self._waiting = list[tuple[Sequence[Item], End | None]]()

    def add_lists(self, items: Sequence[Item]) -> None:
        """Adds a list, and those within it."""
        self._waiting.append((items, None))
        for each, end in self._waiting:  # which grows meanwhile
            first = len(self.nodes)
            ends = self.add_all(each, ())
            if end is not None:
                end(ends)
            self.lists.append((first, len(self.nodes) - first))

    def add_all(self, items: Sequence[Item], before: After) -> After:
        """Adds launches that come after `before`; the last of them, or
        `before` if there are none.
        """
        last, ends = list[After](), set[int]()
        for each in items:
            needs = tuple(dict.fromkeys(n for i in each.after for n in last[i])) or before
            last.append(self.add(each, needs))
            ends = ends.difference(needs).union(last[-1])
        return tuple(sorted(ends)) or before

    def add(self, item: Item, needs: After) -> After:
        """Adds one; the nodes with which it ends."""
        if isinstance(item, While):
            return self.add_while(item, needs)
        if isinstance(item, Branch):
            return self.add_branch(item, needs)
        if item.of_library:
            return self.node(CALL, 0, (ONE, ONE, 0, self.functions(item)), needs, item)
        grid, block = ((*size, 1, 1)[:3] for size in (item.grid, item.block))
        parts = grid, block, item.shared, tuple(map(self.parameter, item.arguments))
        about = (1,) if item.cooperative else ()
        return self.node(KERNEL, item.function.ptr, parts, needs, item, *about)

    def node(
        self,
        kind: int,
        function: int,
        parts: tuple[Any, ...],
        needs: After,
        item: Item,
        *about: int,
    ) -> After:
        if self.early and kind == KERNEL and isinstance(item, Launch):
            if item.pdl_wait:
                whole = (n for n in needs if n not in self.letting)
                needs = (*whole, *(~n for n in needs if n in self.letting))
            if item.pdl_trigger:
                self.letting.add(len(self.nodes))
        self.nodes.append((kind, function, *parts, needs, title(item), about))
        return (len(self.nodes) - 1,)

    # -- loops and branches

    def add_while(self, item: While, needs: After) -> After:
        handle = self.handle()
        decide = partial(self.decision, item, item.going, handle, 1, -1)
        decided = decide(self.add_all(item.test, needs))
        return self.choice(item, handle, WHILE, [(item.body, decide)], decided)

    def add_branch(self, item: Branch, needs: After) -> After:
        lists, most = [(each, None) for each in item.lists], len(item.lists) - 1
        decide = partial(self.decision, item, item.index)
        if self.switches:
            handle = self.handle()
            return self.choice(item, handle, SWITCH, lists, decide(handle, most, -1, needs))
        handles = [self.handle() for _ in lists]
        decided = tuple(i for n, h in enumerate(handles) for i in decide(h, most, n, needs))
        found = [
            self.choice(item, h, IF, [each], decided)
            for h, each in zip(handles, lists, strict=True)
        ]
        return tuple(i for each in found for i in each)

    def handle(self) -> int:
        self.handles += 1
        return self.handles - 1

    def decision(
        self, item: While | Branch, at: Address, handle: int, most: int, which: int, needs: After
    ) -> After:
        """Reads a number from 0 to `most`; if `which` is not below 0, it is
        whether the number is that.
        """
        nbytes = -item.dtype.itemsize if item.dtype.kind == "i" else item.dtype.itemsize
        numbers = (np.int32(n) for n in (nbytes, most, which))
        handed = (np.uint64(0), at, *numbers)  # the extension knows the driver's handle
        return self.node(
            DECISION,
            self.decider,
            (ONE, ONE, 0, tuple(map(self.parameter, handed))),
            needs,
            item,
            handle,
        )

    def choice(
        self,
        item: Item,
        handle: int,
        type_: int,
        lists: Sequence[tuple[Sequence[Item], End | None]],
        needs: After,
    ) -> After:
        first = len(self._waiting)
        self._waiting += lists
        return self.node(
            CHOICE, 0, (ONE, ONE, 0, ()), needs, item, handle, type_, first, len(lists)
        )

    # -- arguments

    def functions(self, item: Launch) -> tuple[tuple[Any, ...], ...]:
        """The functions of a library: name, address, words, floating numbers, and what explains
        the number of an error.
        """
        call = item.function
        if not isinstance(call, LibraryCall):
            raise TypeError(f"{item.name} is called from Python alone")
        return tuple(map(partial(self.function_of, item), call.functions))

    def function_of(self, item: Launch, function: Function) -> tuple[Any, ...]:
        numbers = [*filter(is_floating, function.words)]
        words = [self.word(item, each) for each in function.words if not is_floating(each)]
        if len(words) > MOST_WORDS or len(numbers) > MOST_NUMBERS:
            raise ValueError(f"{function.name} takes more arguments than the extension passes")
        registers = tuple(map(register, numbers))
        return function.name, function.address, tuple(words), registers, item.function.explained

    def word(self, item: Launch, each: Any) -> Any:
        """An integer, None for the stream, a list for a table, or as a parameter."""
        if isinstance(each, Table):
            return [self.word(item, inner) for inner in each.words]
        if isinstance(each, Stream):
            return None
        if not isinstance(each, Passed):
            return masked(each)
        argument = item.arguments[each.number]
        if isinstance(argument, Address):
            return self.parameter(argument + each.offset)
        if isinstance(argument, HostScalar):
            return self.parameter(argument)
        if isinstance(argument, TensorMap):
            raise TypeError(f"{item.name} of a library is given a tensor map")
        return 0 if argument is None else bits(argument)

    def parameter(self, a: Any) -> Any:
        """An argument of a kernel: bytes, or (is it a number, which one, offset); of a tensor map
        also what is encoded.
        """
        if isinstance(a, Address):
            return False, self.arrays[a.array], a.offset
        if isinstance(a, HostScalar):
            return True, self.numbers[a], 0
        if isinstance(a, TensorMap):
            return *self.parameter(a.address), bytes(a.tiles.encoding())
        return np.asarray(a).tobytes()


def count(items: Sequence[Item]) -> int:
    """The kernels and functions of libraries of a list that has neither loops nor branches."""
    calls = [each.function for each in items if isinstance(each, Launch) and each.of_library]
    extra = (len(call.functions) - 1 for call in calls if isinstance(call, LibraryCall))
    return len(items) + sum(extra)


def title(each: Item) -> str:
    return f"{each.name}{AT}{each.where}" if each.where else each.name


def is_floating(word: Any) -> bool:
    return isinstance(word, float | np.floating)


def register(number: Any) -> bytes:
    """The bytes that a floating argument has in a register of eight."""
    found = number.tobytes() if isinstance(number, np.generic) else np.float64(number).tobytes()
    return found.ljust(8, b"\0")
