"""Launches as nodes of a CUDA graph, their dependencies, and whole calls made in C."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial, reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.command import Provisional
from ge2.base.compile_times import seconds_words
from ge2.base.config import config
from ge2.base.errors import KernelError, VerifyError
from ge2.base.record import mutable, record
from ge2.base.source import logger, say
from ge2.targets.cuda.device import address
from ge2.targets.cuda.launch import (
    Address,
    Branch,
    HostScalar,
    Item,
    Launch,
    LaunchList,
    Run,
    Straight,
    TensorMap,
    While,
    one_by_one,
)
from ge2.targets.cuda.launch.library_call import (
    MOST_NUMBERS,
    MOST_WORDS,
    Function,
    LibraryCall,
    Passed,
    Stream,
    Table,
    bits,
    extension_or,
    is_floating,
    masked,
    register,
)
from ge2.targets.cuda.load import LIBRARY
from ge2.targets.cuda.tuning import Launches

if TYPE_CHECKING:
    from typing import Protocol

    from ge2.targets.cuda.device import Device

    class CudaDevice(Device, Protocol):
        """A GPU as its launches know it."""

        @property
        def number(self) -> int: ...
        @property
        def context(self) -> int: ...
        @property
        def decider(self) -> int: ...
        @property
        def early(self) -> bool: ...
        @property
        def switches(self) -> bool: ...


# -------- A list of launches as nodes of a graph, as the extension that launches them takes them.
# The nodes of a list follow each other, and the lists within it come after it. A loop and a branch
# are a decision, which is a kernel that reads a number, and a choice of lists, which goes by it.


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
    itself, need not be launched after the first has ended, which lets it: that is told as ~n. One
    that is first of a list, or not in a graph, need not wait for what is before it in the stream.
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
        about = item.cooperative, self.early and item.pdl_wait
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


# -------- Launches that follow each other on a GPU, as one call of an extension in C
# (`templates/cuda/launch/launches.c`).
# The extension launches them one by one, or from the second call on as a captured graph, which it
# patches where pointers or numbers changed. Until it is there, and where no C can be compiled,
# Python launches one after another.


NO_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
IN_CAPTURE: Final = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
DECIDED: Final = "what the host decides"


def launches(device: CudaDevice, work: LaunchList) -> Run:
    """The list as a function, on CuPy's current stream.

    KernelError, with the user's line, for a launch that the driver refuses.
    """
    waiting = Meanwhile(device, work)
    made = extension_or(waiting)
    return (
        waiting if made is waiting else waiting.run if made is None else run_of(made, device, work)
    )


def from_python(device: CudaDevice, work: LaunchList) -> Run:
    return one_by_one(
        work,
        address,
        partial(downloaded, device),
        lambda: int(device.xp.cuda.get_current_stream().ptr),
    )


def downloaded(device: CudaDevice, item: While | Branch, place: int) -> Any:
    """The number by which a loop or a branch goes on, once all that was launched has ended."""
    stream, found = device.xp.cuda.get_current_stream(), np.empty((), item.dtype)
    if stream.ptr and stream.is_capturing():
        failed(DECIDED, IN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", title(item))
    to_host = device.xp.cuda.runtime.memcpyDeviceToHost
    device.xp.cuda.runtime.memcpyAsync(found.ctypes.data, place, found.nbytes, to_host, stream.ptr)
    stream.synchronize()
    return found[()]


@final
class Meanwhile:
    """Launches from Python, until the extension is there."""

    __slots__ = ("device", "run", "work")

    def __init__(self, device: CudaDevice, work: LaunchList) -> None:
        self.device, self.work = device, work
        self.run = from_python(device, work)

    def __call__(self, *given: Any) -> None:
        self.run(*given)

    def settle(self, made: Any) -> None:
        """Has the extension launch from now on; what it refuses stays with Python."""
        if made is None:
            return
        try:
            self.run = run_of(made, self.device, self.work)
        except (TypeError, ValueError, OSError, MemoryError) as trouble:
            logger().debug("a list of launches stays with Python: %s", trouble)

    @property
    def launches_natively(self) -> bool:
        """True if the extension launches."""
        return self.run.counts is not None

    def __getattr__(self, name: str) -> Any:
        """Counts of calls are those of what launches now."""
        return getattr(self.run, name)


def run_of(made: Any, device: CudaDevice, work: LaunchList) -> Run:
    choices = any(isinstance(each, While | Branch) for each in work.launches)
    pays = config.capture == "on" or (
        config.capture == "auto"
        and (choices or gains(work.launches, device.limits.tuning.launches.few))
    )
    captured = work.captured and pays
    early = config.overlap and any(map(waits_itself, work.launches)) and device.early
    nodes = Nodes(
        work, device.decider if choices and captured else 0, not choices or device.switches, early
    )
    nodes.add_lists(work.launches)
    stream: Callable[[], Any] = device.xp.cuda.get_current_stream
    callers, sizes = (
        bytes(a in work.callers for a in work.arrays),
        tuple(n.nbytes for n in work.numbers),
    )
    run: Run = made.Run(
        LIBRARY, device.context, callers, sizes, tuple(nodes.nodes), tuple(nodes.lists), captured,
        work.ready, stream, failed, work, partial(told, work) if config.log_compiles else None,
    )  # fmt: skip
    return run


def gains(items: Sequence[Item], few: int) -> bool:
    """True if a graph of launches is faster than they are one by one: of more than a few, and of
    functions in Python, which are called when it is captured alone.
    """
    calls = [each.function for each in items if isinstance(each, Launch) and each.of_library]
    return count(items) > few or any(isinstance(f, LibraryCall) and f.in_python for f in calls)


def waits_itself(item: Item) -> bool:
    """True if a kernel, or one in the lists of an item, waits by itself."""
    if isinstance(item, Launch):
        return item.pdl_wait
    return any(waits_itself(each) for inner in item.lists for each in inner)


def told(work: LaunchList, count: int, seconds: float) -> None:
    """Says that a graph was made."""
    words = "%d launches, the first of them %s, are a graph now: %s"
    say(words, count, work.launches[0].name, seconds_words(seconds))


def failed(what: str, status: int, name: str, of: str | None, library: bool = False) -> None:
    """The error of a launch; of one for which there is no memory, what its program makes an error
    of. The numbers of a library are its own.
    """
    if what != DECIDED:
        said = f"{what} fails with {name} ({status})" + (f" in {of}" if of else "")
        raise MemoryError(said) if status == NO_MEMORY and not library else KernelError(said)
    title, _, where = (of or "").partition(AT)
    why = f"{title} goes on by a number on the GPU, for which nobody can wait while a stream is captured"
    raise KernelError(
        why, where=where, fix="call it outside of the capture: ge2 makes a graph of its own of it"
    )


# -------- Which launches must end before another begins: those that touch the same memory, one of
# them writing.


LAUNCHES = Launches()


@final
@record
class Access:
    """Bytes `first` to `last`, that one excluded, of what begins at `base`;
    whether they are `written`.
    """

    base: str
    first: int
    last: int
    written: bool


@final
@mutable
class Touched:
    """The last writer of some bytes, and their readers since."""

    first: int
    last: int
    writer: int
    readers: list[int] = field(default_factory=list)


def waits(
    launches: Sequence[Sequence[Access]], few: int = LAUNCHES.direct
) -> list[tuple[int, ...]]:
    """For each launch those before it that it waits for; not those that
    one of them waits for itself. Of `few` those are left out alone for which another waits directly.

    >>> a, b = Access("arena", 0, 64, True), Access("arena", 64, 128, True)
    >>> read = [Access(x.base, x.first, x.last, False) for x in (a, b)]
    >>> waits([[a], [b], [read[0]], read, [a]])
    [(), (), (0,), (0, 1), (2, 3)]
    """
    known: dict[str, list[Touched]] = {}
    found: list[tuple[int, ...]] = []
    before: list[int] = []  # of each launch those that it waits for, itself or by others, as bits
    for i, accesses in enumerate(launches):
        needs: set[int] = set()
        for each in accesses:
            for other in known.get(each.base, ()):
                if other.first < each.last and each.first < other.last:
                    needs.add(other.writer)
                    needs.update(other.readers if each.written else ())
        needs.discard(-1)
        found.append(tuple(sorted(latest(needs, found, before, few))))
        before.append(reduce(or_, (before[n] | 1 << n for n in found[i]), 0))
        for each in sorted(accesses, key=lambda a: a.written):  # who reads and writes has written
            note(known.setdefault(each.base, []), each, i)
    return found


def latest(
    needs: set[int], found: Sequence[Sequence[int]], before: Sequence[int], few: int
) -> set[int]:
    """Those of the launches that none of the others waits for; where they are few, not directly."""
    if len(needs) <= few:
        return {n for n in needs if not any(n in found[m] for m in needs)}
    passed = reduce(or_, (before[n] for n in needs))
    return {n for n in needs if not passed >> n & 1}


def note(known: list[Touched], access: Access, i: int) -> None:
    """Remembers an access. What is written whole is forgotten."""
    if access.written:
        known[:] = [t for t in known if not (access.first <= t.first and t.last <= access.last)]
        known.append(Touched(access.first, access.last, i))
        return
    same = next((t for t in known if (t.first, t.last) == (access.first, access.last)), None)
    if same is None:
        known.append(Touched(access.first, access.last, -1, [i]))
    elif same.readers[-1:] != [i]:
        same.readers.append(i)


# -------- The same without shortcuts, where graphs are checked: what runs in order hides who does
# not wait.


def checked_waits(
    items: Sequence[Item], launches: Sequence[Sequence[Access]], few: int
) -> list[tuple[int, ...]]:
    """What `waits` finds. VerifyError if a launch would not wait, itself or by others, for one
    that touches the same memory.
    """
    found = waits(launches, few)
    if config.check:
        before = list[int]()
        for after in found:
            before += [reduce(or_, (before[n] | 1 << n for n in after), 0)]
        check_order(items, launches, before)
    return found


def check_places(
    items: Sequence[Item], launches: Sequence[Sequence[Access]], places: Sequence[Sequence[Item]]
) -> None:
    """VerifyError if launches in other places, those of a place at once, are not as good."""
    if not config.check:
        return
    numbers = dict[int, list[int]]()
    for n, item in enumerate(items):
        numbers.setdefault(id(item), []).append(n)
    before, done = [0] * len(items), 0
    for place in places:
        here = [numbers[id(item)].pop(0) for item in place]
        for n in here:
            before[n] = done
        done |= sum(1 << n for n in here)
    check_order(items, launches, before)


def check_order(
    items: Sequence[Item], launches: Sequence[Sequence[Access]], before: Sequence[int]
) -> None:
    """VerifyError if one that touches the same memory is not `before` a launch: as bits."""
    for i, needed in enumerate(conflicts(launches)):
        if missing := needed & ~before[i]:
            one, other = items[i], items[missing.bit_length() - 1].name
            why = f"{one.name} does not wait for {other}, which touches its memory, too"
            raise VerifyError(why, where=one.where)


def conflicts(launches: Sequence[Sequence[Access]]) -> list[int]:
    """For each launch those before it that touch the same bytes, one of both writing, as bits.

    >>> a, b = Access("arena", 0, 64, True), Access("arena", 32, 96, False)
    >>> conflicts([[a], [b], [b], [a]])
    [0, 1, 1, 7]
    """
    ends = dict[str, set[int]]()
    for each in chain.from_iterable(launches):
        ends.setdefault(each.base, set()).update((each.first, each.last))
    ordered = {base: sorted(found) for base, found in ends.items()}
    known = dict[tuple[str, int], tuple[int, int]]()  # who touched and who wrote what begins there
    found = list[int]()
    for i, accesses in enumerate(launches):
        mask, own = 0, list[tuple[tuple[str, int], bool]]()
        for each in accesses:
            at = ordered[each.base]
            parts = at[bisect_left(at, each.first) : bisect_left(at, each.last)]
            own += [((each.base, part), each.written) for part in parts]
        for key, written in own:
            mask |= known.get(key, (0, 0))[not written]
        for key, written in own:
            touched, wrote = known.get(key, (0, 0))
            known[key] = touched | 1 << i, wrote | written << i
        found.append(mask)
    return found


# -------- Programs whose whole call is made in C (`templates/cuda/launch/calls.h`): arrays for
# results, then launches.


Call = Callable[..., list[Any]]


def call(device: CudaDevice, work: Straight, otherwise: Call) -> Call:
    """A program as one call; `otherwise` is the same in Python, for where the
    extension does not serve.
    """
    waiting = Provisional(otherwise, lambda made: call_of(made, device, work, otherwise))
    made = extension_or(waiting)
    if made is None or made is waiting:
        return otherwise if made is None else waiting
    return call_of(made, device, work, otherwise)


def call_of(made: Any, device: CudaDevice, work: Straight, otherwise: Call) -> Call:
    launched = (
        work.run.run if isinstance(work.run, Meanwhile) and work.run.launches_natively else work.run
    )
    take, lost = work.take if work.nbytes else None, device.lost
    found: Call = made.Call(
        work.given, work.empty, work.made, work.constants, work.numbers, work.asked, work.compute, take,
        work.nbytes, work.handed, work.results,
        device.xp.cuda.runtime.getDevice, device.number, device.xp.cuda.get_current_stream, lost, otherwise,
        work.explain, launched,
    )  # fmt: skip
    return found
