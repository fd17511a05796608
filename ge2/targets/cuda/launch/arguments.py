"""What launches are given: addresses, numbers that Python makes, and tensor maps.

A tensor map is a kernel's parameter of 128 bytes by which the TMA unit of a GPU copies tiles of an
array (`const __grid_constant__ CUtensorMap`). Its bytes are the driver's secret, so the driver
encodes one for each address: in the extension when an address changes, which for a graph is a patch
like that of any parameter. Numbers and limits are those of cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Final, final

import numpy as np

from ge2.base.dtypes import BFLOAT16
from ge2.base.errors import DeviceError, InputError, KernelError
from ge2.base.record import record
from ge2.targets.cuda.load.driver import LIBRARY

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
        """Why the driver takes no such tiles, in words; empty if it takes them."""
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
