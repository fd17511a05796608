"""Functions of a library in C as a launch like any other.

A call is any functions in order (a product; a descriptor's attribute and then the product; what
begins a group, its members, what ends it), each with its words: numbers, addresses, the addresses
of tables of addresses, and the stream. The extension calls them without Python, and captures what
they launch as part of a graph; when an address changes they are called, and captured, again. A
descriptor that one of them changes and another reads belongs to one launch alone: two threads may
launch two programs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_double, c_float, c_int, c_int64, c_uint64, cast
from functools import cache
from typing import Any, Final, Protocol, final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.base.errors import KernelError
from ge2.base.record import record

MOST_WORDS: Final = 24  # integers and addresses of a function, as the extension passes them
MOST_NUMBERS: Final = 8  # floating numbers of a function: more would lie on the stack


class Callee(Protocol):
    """What a launch calls that is no kernel: with a stream, and the addresses of its arguments, the
    last of which is scratch of `workspace` bytes. `by` names whose it is.
    """

    @property
    def by(self) -> str: ...

    @property
    def workspace(self) -> int: ...

    def __call__(self, stream: int, *arguments: int) -> None: ...


@final
@record
class Passed:
    """Argument `number` of the launch: an address, `offset` bytes on, or a number's bytes."""

    number: int
    offset: int = 0


@final
@record
class Table:
    """The address of these integers and addresses, eight bytes each, as long as a call takes."""

    words: tuple[int | Passed, ...]


@final
@record
class Stream:
    """The stream that the launches of a program are on."""


STREAM: Final = Stream()
# an integer of any width, a double, a float (np.float32), or one of the above
Word = int | float | np.float32 | Passed | Table | Stream


@final
@record
class Function:
    """A function of a library at an address, which returns 0, or else the number of an error."""

    name: str
    address: int
    words: tuple[Word, ...]

    def __call__(self, stream: int, arguments: Sequence[int]) -> int:
        """Calls it through ctypes, where the extension does not."""
        types, values, tables = list[Any](), list[Any](), list[Any]()
        for word in self.words:
            if isinstance(word, Table):
                numbers = [masked(value_of(each, stream, arguments)) for each in word.words]
                tables.append((c_uint64 * len(numbers))(*numbers))
                types.append(POINTER(c_uint64))
                values.append(cast(tables[-1], POINTER(c_uint64)))
                continue
            types.append(type_of(word))
            values.append(value_of(word, stream, arguments))
        return int(prototype(*types)(self.address)(*values))


@final
class LibraryCall:
    """Calls of a library named `by`, in order, with `workspace` bytes of scratch as last argument.

    `owner` keeps alive what the words point to; `explained` is what the library says of an error.
    `in_python`: the functions are Python's, which take far longer than a launch.
    """

    __slots__ = ("__weakref__", "by", "explained", "functions", "in_python", "owner", "workspace")

    def __init__(
        self,
        by: str,
        functions: Sequence[Function],
        workspace: int = 0,
        owner: object = None,
        explained: Callable[[int], str] = str,
        in_python: bool = False,
    ) -> None:
        self.by, self.functions, self.workspace = by, tuple(functions), workspace
        self.owner, self.explained, self.in_python = owner, explained, in_python

    def __call__(self, stream: int, *arguments: int) -> None:
        """Calls the functions, with the addresses of the arguments. KernelError if one fails."""
        for function in self.functions:
            status = function(stream, arguments)
            if status:
                said = self.explained(status)
                raise KernelError(f"{function.name} fails with {status}: {said}")


def value_of(word: Any, stream: int, arguments: Sequence[int]) -> Any:
    if isinstance(word, Passed):
        found = arguments[word.number]
        return bits(found) if isinstance(found, np.generic) else found + word.offset
    return stream if isinstance(word, Stream) else word


def type_of(word: Any) -> Any:
    if isinstance(word, np.generic):
        return c_float if word.dtype == FLOAT32 else c_double
    if isinstance(word, float):
        return c_double
    return c_int64 if isinstance(word, int) and word < 0 else c_uint64


def masked(word: int) -> int:
    """An integer as the eight bytes that it has in memory."""
    return int(word) & (2**64 - 1)


def bits(number: np.generic) -> int:
    """The bytes of a number as an integer."""
    return int.from_bytes(number.tobytes(), "little")


@cache
def prototype(*types: Any) -> Any:
    return CFUNCTYPE(c_int, *types)
