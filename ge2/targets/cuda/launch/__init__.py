"""Launches on a device as one call, and their arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from ge2.base.arrays import BFLOAT16
from ge2.base.errors import DeviceError, InputError, KernelError
from ge2.base.record import record
from ge2.targets.cuda.load import LIBRARY

if TYPE_CHECKING:
    from ge2.codegen.layout import Line
    from ge2.program import Step
    from ge2.program.assembler import Call

# -------- What launches are given: addresses, numbers that Python makes, and tensor maps.
# A tensor map is a kernel's parameter of 128 bytes by which the TMA unit of a GPU copies tiles of
# an array (`const __grid_constant__ CUtensorMap`). Its bytes are the driver's secret, so the driver
# encodes one for each address: in the extension when an address changes, which for a graph is a
# patch like that of any parameter. Numbers and limits are those of cuda.h.


NBYTES: Final = 128  # also what its memory is aligned to
MOST_AXES, MOST_BOX = 5, 256
# CUtensorMapDataType; what is only copied may be any dtype of its size
TYPES: Final[dict[Any, int]] = {
    **{
        np.dtype(t): n for n, t in enumerate(("u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"))
    },
    BFLOAT16: 9,
}
BY_SIZE: Final = {1: 0, 2: 1, 4: 2, 8: 4}
SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle, by the bytes of its pattern
PROMOTIONS: Final = {0: 0, 64: 1, 128: 2, 256: 3}  # CUtensorMapL2promotion, by bytes
ARENA: Final = "arena"


@final
@record
class Address:
    """`offset` bytes from the beginning of an array of the program, which may lie `in_arena`.

    `within`: of an address in the whole arena, where its array begins and ends.
    """

    array: str
    offset: int = 0
    in_arena: bool = False
    within: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    @property
    def base(self) -> str:
        return ARENA if self.in_arena else self.array

    def __add__(self, offset: int) -> Address:
        return replace(self, offset=self.offset + offset)


@final
@record
class HostScalar:
    """A number of `nbytes` that Python makes at each call, as a text says."""

    text: str
    nbytes: int


class Encoding(ctypes.Structure):
    """As `Encoding` of templates/cuda/launch/driver.h: innermost axes first."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("interleave", ctypes.c_int),
        ("swizzle", ctypes.c_int),
        ("promotion", ctypes.c_int),
        ("fill", ctypes.c_int),
        ("sizes", ctypes.c_uint64 * MOST_AXES),
        ("strides", ctypes.c_uint64 * (MOST_AXES - 1)),
        ("box", ctypes.c_uint32 * MOST_AXES),
        ("steps", ctypes.c_uint32 * MOST_AXES),
    ]


@final
@record
class Tiles:
    """Tiles of `box` elements of an array of `shape`, its axes outermost first.

    `strides`: elements from one index to the next of each axis; the last one is 1. `swizzle`: bytes
    of the pattern in which rows of a tile lie in shared memory, 0 for none; `promotion`: bytes that
    the L2 cache fetches at once. What is outside of the array is read as zeros.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    promotion: int = 128

    @property
    def refused(self) -> str:
        """The reason why the driver takes no such tiles, in words; empty if it takes them."""
        size = self.dtype.itemsize
        if not 1 <= len(self.shape) == len(self.strides) == len(self.box) <= MOST_AXES:
            return f"a tensor map has 1 to {MOST_AXES} axes"
        if self.strides[-1] != 1 or any(s < 0 or s * size % 16 for s in self.strides[:-1]):
            return "rows of a tensor map follow each other multiples of 16 bytes apart, elements together"
        if any(not 1 <= n <= MOST_BOX for n in self.box) or self.box[-1] * size % 16:
            return f"a tile has at most {MOST_BOX} elements an axis, its rows multiples of 16 bytes"
        if self.swizzle and self.box[-1] * size > self.swizzle:
            return "a row of a tile is longer than the pattern of its swizzle"
        return ""

    def encoding(self) -> Encoding:
        """It as the driver takes it. InputError if it takes none such."""
        if self.refused:
            raise InputError(self.refused)
        size, rank = self.dtype.itemsize, len(self.shape)
        type_ = TYPES[self.dtype] if self.dtype in TYPES else BY_SIZE[size]
        strides = [s * size for s in self.strides[:-1]]
        modes = 0, SWIZZLES[self.swizzle], PROMOTIONS[self.promotion], 0
        axes = (tuple(reversed(each)) for each in (self.shape, strides, self.box, (1,) * rank))
        return Encoding(type_, rank, *modes, *axes)


@final
@record
class TensorMap:
    """A parameter of 128 bytes: tiles of an array at an address that is a multiple of 16."""

    address: Address
    tiles: Tiles

    def __str__(self) -> str:
        return f"tiles of {'x'.join(map(str, self.tiles.box))} of {words(self.address)}"

    def encoded(self, address: int) -> Any:
        """The parameter for an address, where Python launches.

        DeviceError if no driver here knows tensor maps; KernelError if it refuses this one.
        """
        given, memory = self.tiles.encoding(), np.zeros(2 * NBYTES, np.uint8)
        found = memory[-memory.ctypes.data % NBYTES :][:NBYTES]
        try:
            encode = ctypes.CDLL(LIBRARY).cuTensorMapEncodeTiled
        except (OSError, AttributeError):
            what = "tensor maps are made by NVIDIA's driver, of CUDA 12 or newer"
            raise DeviceError(what, fix="ge2 doctor") from None
        to, place = ctypes.c_void_p(found.ctypes.data), ctypes.c_void_p(address)
        arrays = given.sizes, given.strides, given.box, given.steps
        modes = given.interleave, given.swizzle, given.promotion, given.fill
        status = encode(to, given.type, given.rank, place, *arrays, *modes)
        if status:
            raise KernelError(f"cuTensorMapEncodeTiled fails with {status} for {self}")
        return found.view(f"V{NBYTES}").reshape(())


LaunchArgument = Address | HostScalar | TensorMap | np.generic | None


def address_of(argument: LaunchArgument) -> Address | None:
    """The address that an argument is, or is made of; None for a number."""
    found = argument.address if isinstance(argument, TensorMap) else argument
    return found if isinstance(found, Address) else None


def readdressed(argument: Any, address: Callable[[Any], Any]) -> Any:
    """The argument with another address, if it has one."""
    if isinstance(argument, TensorMap):
        return TensorMap(address(argument.address), argument.tiles)
    return address(argument)


def words(argument: LaunchArgument) -> str:
    """An argument for people."""
    if isinstance(argument, Address):
        return argument.array + (f" + {argument.offset}" if argument.offset else "")
    if isinstance(argument, HostScalar):
        return argument.text
    return "0" if argument is None else str(argument)


# -------- Launches on a device that follow each other, as one call in which addresses and numbers
# change.
# One type of launch goes all the way from the assembler to the extension: it names the arrays and
# numbers that it is called with, and a list of launches says in which order a run is given them.
# `one_by_one` is what such a call means, and what runs it wherever nothing faster can.


AHEAD: Final = 64  # launches among which the next one is chosen
LAST_FIRST: Final = 1  # the seed of that order, as the emulator has it of blocks and threads


class Run(Protocol):
    """A list of launches as a function, and how its calls went.

    `counts`: calls, those launched one by one, captured graphs and patches of these; None where
    Python launches. `choices`: conditional nodes, and graphs captured again. `early`: waits that
    kernels overlap; `whole`, `trouble`: the reasons why none do, and why there is no graph.
    """

    counts: tuple[int, int, int, int] | None
    choices: tuple[int, int]
    seconds: float
    early: int
    whole: Exception | None
    trouble: Exception | None

    def __call__(self, *raw: Any) -> None: ...


@final
class FromPython:
    """Launches by Python, which counts nothing."""

    __slots__ = ("run",)
    counts = None
    choices = 0, 0
    seconds, early = 0.0, 0
    whole = trouble = None

    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run

    def __call__(self, *raw: Any) -> None:
        self.run(*raw)


@final
@record
class Launch:
    """A kernel, or functions of a library: what both are called with, and what they write.

    `function`: the number of a kernel's source, later the loaded kernel; or what is called with a
    stream and the addresses of its arguments, as a `LibraryCall` is. `written`: the arguments that
    are memory which it writes. `where`: the user's line. `after`: launches of its list that must
    have ended before. `pdl_wait`: the kernel waits for them itself, before it reads memory, so it
    may be launched while those run that allow it: `pdl_trigger`. `cooperative`: its blocks wait for
    each other, so all of them must be on the device at once.
    """

    function: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    arguments: tuple[LaunchArgument, ...]
    name: str
    where: str = ""
    written: frozenset[int] = frozenset()
    after: tuple[int, ...] = ()
    pdl_wait: bool = False
    pdl_trigger: bool = False
    cooperative: bool = False

    @property
    def of_library(self) -> bool:
        return not self.grid

    def changed(
        self, function: Any, arguments: tuple[LaunchArgument, ...], after: tuple[int, ...]
    ) -> Launch:
        """The launch with these; `replace` takes three times as long, of thousands in a loop."""
        return Launch(
            function, self.grid, self.block, self.shared, arguments, self.name, self.where,
            self.written, after, self.pdl_wait, self.pdl_trigger, self.cooperative,
        )  # fmt: skip

    def __str__(self) -> str:
        """The launch as CUDA has it."""
        given = ", ".join(map(words, self.arguments))
        if self.of_library:
            return f"{self.name}({given})"
        grid, block = (" x ".join(map(str, size)) for size in (self.grid, self.block))
        shared = f", {self.shared}" if self.shared else ""
        return f"{self.name}<<<{grid}, {block}{shared}>>>({given})"


@final
@record
class While:
    """`body` as long as the bool at `going` holds, which `test` writes, and
    each iteration at its end.

    Launches of a list wait for others of that list.
    """

    test: tuple[Item, ...]
    body: tuple[Item, ...]
    going: Address
    name: str
    where: str = ""
    after: tuple[int, ...] = ()

    @property
    def lists(self) -> tuple[tuple[Item, ...], ...]:
        return self.test, self.body

    @property
    def arguments(self) -> tuple[Address, ...]:
        return (self.going,)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.bool_)

    def changed(
        self, lists: Sequence[tuple[Item, ...]], address: Callable[[Any], Any] | None = None
    ) -> While:
        """The loop with other lists, and another address."""
        test, body = lists
        return replace(self, test=test, body=body, going=(address or itself)(self.going))


@final
@record
class Branch:
    """That of the `lists` whose number is the integer, or bool, at `index`: else the nearest."""

    lists: tuple[tuple[Item, ...], ...]
    index: Address
    dtype: np.dtype
    name: str
    where: str = ""
    after: tuple[int, ...] = ()

    @property
    def arguments(self) -> tuple[Address, ...]:
        return (self.index,)

    def changed(
        self, lists: Sequence[tuple[Item, ...]], address: Callable[[Any], Any] | None = None
    ) -> Branch:
        """The branch with other lists, and another address."""
        return replace(self, lists=tuple(lists), index=(address or itself)(self.index))


Item = Launch | While | Branch

if TYPE_CHECKING:

    class Launching(Protocol):
        """The launches and the lines of a step of a program."""

        @property
        def step(self) -> Step: ...

        computed: list[Line]
        before: list[Line]
        launches: list[Item]
        calls: list[Call]
        lines: list[Line]
        split: str


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


def itself(x: Any) -> Any:
    return x


@final
@record
class LaunchList:
    """Launches that follow each other, to be called as `f(*arrays, *numbers)`.

    Each of the `arrays` is one of the device, or an address. Those of the `callers` come as they
    are: one that is not in C order, or begins where wide accesses may not, `ready` copies.
    Each of the `numbers` is a NumPy scalar. `captured`: calls may become one graph.
    """

    launches: tuple[Item, ...]
    arrays: tuple[str, ...]
    numbers: tuple[HostScalar, ...]
    callers: frozenset[str]
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


Place = Callable[[int, Address, Any], Any]  # of an address, which is that in an array or an arena


def placed(at: int, _address: Address, _array: Any) -> Any:
    """An address as it is handed to a kernel that CuPy launches."""
    return np.uint64(at)


def one_by_one(
    work: LaunchList,
    at: Callable[[Any], int],
    decide: Decide = number_at,
    stream: Callable[[], int] = lambda: 0,
    encode: Callable[[TensorMap, int], Any] = TensorMap.encoded,
    place: Place = placed,
) -> Run:
    """Returns what launches one after another; `at` tells the address of an array, `stream` the
    current stream's handle, `encode` a tensor map for an address, `place` what a kernel is handed
    for one.
    """

    names = (*work.arrays, *work.numbers)
    copied = {name for name in names if name in work.callers}

    def run(*raw: Any) -> None:
        given = {n: work.ready(x) if n in copied else x for n, x in zip(names, raw, strict=True)}
        launched(work.launches, Given(given, at, decide, stream, encode, place))

    return FromPython(run)  # type: ignore[return-value]


@final
@record
class Given:
    """The arguments of a call: arrays and numbers."""

    xs: Mapping[Any, Any]
    at: Callable[[Any], int]
    decide: Decide
    stream: Callable[[], int]
    encode: Callable[[TensorMap, int], Any]
    place: Place

    def address(self, a: Any) -> Any:
        """An argument of a library's function: an address, 0 for none, or a number."""
        if not isinstance(a, Address):
            return 0 if a is None else self.argument(a)
        x = self.xs[a.array]
        return (x if isinstance(x, int) else self.at(x)) + a.offset

    def argument(self, a: Any) -> Any:
        """An argument as a kernel is handed it: an array as itself where it is
        meant from its beginning.
        """
        if isinstance(a, HostScalar):
            return self.xs[a]
        if isinstance(a, TensorMap):
            return self.encode(a, self.address(a.address))
        if not isinstance(a, Address):
            return a
        x = self.xs[a.array]
        return self.place(self.address(a), a, x) if a.offset or isinstance(x, int) else x


def launched(items: Sequence[Item], given: Given) -> None:
    for each in items:
        if isinstance(each, While):
            launched(each.test, given)
            while given.decide(each, given.address(each.going)):
                launched(each.body, given)
        elif isinstance(each, Branch):
            index = int(given.decide(each, given.address(each.index)))
            launched(each.lists[min(max(index, 0), len(each.lists) - 1)], given)
        elif each.of_library:
            each.function(given.stream(), *map(given.address, each.arguments))
        else:
            handed = tuple(map(given.argument, each.arguments))
            # as CuPy's functions have it
            more = {"enable_cooperative_groups": True} if each.cooperative else {}
            each.function(each.grid, each.block, handed, shared_mem=each.shared, **more)


def in_any_order(launches: Sequence[Item], seed: int) -> tuple[Item, ...]:
    """The launches in a random order in which each comes after those that it waits for, or the last
    of them first; in lists likewise.
    """
    random, done, left = Random(seed), set[int](), list(range(len(launches)))
    found = list[Item]()
    while left:
        free = [n for n in left[:AHEAD] if done.issuperset(launches[n].after)]
        i = free[-1] if seed == LAST_FIRST else random.choice(free)
        left.remove(i)
        done.add(i)
        found.append(changed_lists(launches[i], partial(in_any_order, seed=seed)))
    return tuple(found)


def changed_lists(item: Item, change: Callable[[tuple[Item, ...]], tuple[Item, ...]]) -> Item:
    """The item with its lists changed."""
    return item if isinstance(item, Launch) else item.changed([*map(change, item.lists)])
