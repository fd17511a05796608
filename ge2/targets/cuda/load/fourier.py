"""Fourier transforms as launches of cuFFT's, and on the CPU in its place."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from functools import cache as once
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64
from ge2.base.errors import DeviceError, KernelError
from ge2.base.record import record
from ge2.choice import Problem
from ge2.ir import Dims
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.targets.cuda.launch.library_call import STREAM, Function, LibraryCall, Passed, at_address
from ge2.targets.cuda.load import library_path

# -------- Transforms as a library is asked for them, and on the CPU, at the same addresses.


MOST_AXES: Final = 3  # of one transform


@final
@record
class Lines:
    """The layout of the lines of a transform, counted in elements: the `sizes` of the array along the
    transformed axes, the stride `step` of the last of them, and the stride `apart` from line to line.
    """

    sizes: Dims
    step: int
    apart: int

    def steps(self) -> Dims:
        """From line to line, and then along each axis."""
        inner = (math.prod(self.sizes[n + 1 :]) for n in range(len(self.sizes)))
        return self.apart, *(self.step * n for n in inner)


@final
@record
class Transform:
    """A transform of `count` lines along neighbouring axes of so many places, called once for each of
    `starts`: the elements at which its operand and its result begin. `in_place`: the operand is the
    result of the transform before.
    """

    places: Dims
    count: int
    given: Lines
    made: Lines
    starts: tuple[tuple[int, int], ...]
    in_place: bool = False


@final
@record
class WantedTransform:
    """Transforms one after another of an array of `dtype` to one of `out`; as `numpy.fft` has them,
    but an inverse is not divided by its length.
    """

    dtype: np.dtype
    out: np.dtype
    inverse: bool
    transforms: tuple[Transform, ...]


@final
@record
class HostTransform:
    """By NumPy: a device that is the CPU has memory that it can read."""

    wanted: WantedTransform
    by = "NumPy"
    workspace = 0

    def __call__(self, stream: int, *arguments: int) -> None:
        wanted, (given, made) = self.wanted, arguments[:2]
        for each in wanted.transforms:
            dtype, source = (wanted.out, made) if each.in_place else (wanted.dtype, given)
            for begin, begin_out in each.starts:
                at = source + begin * dtype.itemsize, made + begin_out * wanted.out.itemsize
                shapes = (each.count, *each.given.sizes), (each.count, *each.made.sizes)
                x = at_address(at[0], dtype, shapes[0], each.given.steps())
                y = at_address(at[1], wanted.out, shapes[1], each.made.steps())
                y[...] = self.transformed(x, each)

    def transformed(self, x: Any, each: Transform) -> Any:
        if self.wanted.out.kind != "c":
            return np.fft.irfft(x, each.places[0], norm="forward")
        if x.dtype.kind != "c":
            return np.fft.rfft(x)
        axes = tuple(range(1, x.ndim))
        return (
            np.fft.ifftn(x, None, axes, "forward")
            if self.wanted.inverse
            else np.fft.fftn(x, None, axes)
        )


def transforms_of(problem: Problem) -> WantedTransform:
    """The transforms of an operation, one for neighbouring axes; all but the first in place."""
    (x,), (y,), op = problem.inputs, problem.outs, problem.op
    axes = [op.axis] if isinstance(op, Rfft | Irfft) else sorted(op.axes)  # type: ignore[attr-defined]
    inverse = isinstance(op, Irfft) or (isinstance(op, Fft) and op.inverse)
    found = list[Transform]()
    for axis, end in neighbours(axes):
        found.append(transform_of(axis, end, x.shape, y.shape, bool(found)))
    return WantedTransform(x.dtype, y.dtype, inverse, tuple(found))


def neighbours(axes: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of axes that follow each other, of as many as one transform may have.

    >>> neighbours([0, 2, 3, 4, 5])
    [(0, 1), (2, 5), (5, 6)]
    """
    found = list[tuple[int, int]]()
    for axis in axes:
        if found and found[-1][1] == axis and axis - found[-1][0] < MOST_AXES:
            found[-1] = found[-1][0], axis + 1
        else:
            found.append((axis, axis + 1))
    return found


def transform_of(first: int, end: int, given: Dims, made: Dims, in_place: bool) -> Transform:
    """The transform along the axes from `first` on and before `end`. Its lines are those of the axes
    after them, or before them; where there are both, a call has those of one side, the longer one.
    """
    before, after = math.prod(given[:first]), math.prod(given[end:])
    blocks = [math.prod(shape[first:]) for shape in (given, made)]
    places = tuple(map(max, given[first:end], made[first:end]))
    if after == 1 or (before > 1 and before > after):
        count, apart, calls, steps = before, blocks, after, [1, 1]
    else:
        count, apart, calls, steps = after, [1, 1], before, blocks
    lines = [
        Lines(shape[first:end], after, each)
        for shape, each in zip((given, made), apart, strict=True)
    ]
    starts = tuple((n * steps[0], n * steps[1]) for n in range(calls))
    return Transform(places, count, lines[0], lines[1], starts, in_place)


# -------- Plans of cuFFT's.
# A plan has scratch that the program lends it and the stream that it is launched on; both are told to
# it at each launch, so a plan belongs to one launch alone. Numbers are those of cufft.h and
# library_types.h. CuPy's own calls make arrays, and could not stand in the capture of a stream.


PACKAGES: Final = ("cu13", "cufft")
NAMES: Final = ("libcufft.so.12", "libcufft.so.11", "libcufft.so")
INSTALL: Final = "pip install 'nvidia-cufft>=12,<13', or ge2[cuda13]; ge2 doctor"
FORWARD, INVERSE = -1, 1
TYPES: Final = {FLOAT32: 0, FLOAT64: 1, COMPLEX64: 4, COMPLEX128: 5}
SIZES: Final = c_void_p  # of arrays of long long
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cufftCreate": (c_void_p,),
    "cufftDestroy": (c_int,),
    "cufftSetAutoAllocation": (c_int, c_int),
    "cufftXtMakePlanMany": (
        *(c_int, c_int, SIZES, SIZES, c_longlong, c_longlong, c_int),
        *(SIZES, c_longlong, c_longlong, c_int, c_longlong, c_void_p, c_int),
    ),
    "cufftSetStream": (c_int, c_void_p),
    "cufftSetWorkArea": (c_int, c_void_p),
    "cufftXtExec": (c_int, c_void_p, c_void_p, c_int),
}
# cufftResult
WORDS: Final = {
    1: "an invalid plan", 2: "no memory for a plan", 3: "an invalid type", 4: "an invalid address",
    5: "an internal error", 6: "a failed execution", 7: "a failed setup", 8: "an invalid size",
    16: "no such transform",
}  # fmt: skip


@once
def library() -> ctypes.CDLL:
    """The library of this machine: where NVIDIA's packages and toolkits have it, or where the system
    finds it by name. DeviceError if there is none.
    """
    path = library_path("libcufft", *PACKAGES)
    for place in (path,) if path else NAMES:
        try:
            found = ctypes.CDLL(place)
        except OSError as error:
            trouble = error
            continue
        for name, types in SIGNATURES.items():
            function = getattr(found, name)
            function.argtypes, function.restype = types, c_int
        return found
    why = f"Fourier transforms need cuFFT, which cannot be loaded: {trouble}"
    raise DeviceError(why, fix=INSTALL) from trouble


def words(status: int) -> str:
    return WORDS.get(status, "unknown")


def call(name: str, *args: Any) -> None:
    status = getattr(library(), name)(*args)
    if status:
        raise KernelError(f"{name} fails with {status}: {words(status)}")


def address(name: str) -> int:
    return ctypes.cast(getattr(library(), name), c_void_p).value or 0


@final
class Plans:
    """The plans of a launch, which live as long as it does, and the scratch that each asks for."""

    __slots__ = ("__weakref__", "handles", "workspace")

    def __init__(self, wanted: WantedTransform) -> None:
        self.handles: list[int] = []
        self.workspace = 0
        for each in wanted.transforms:
            handle, nbytes = c_int(), c_size_t()
            call("cufftCreate", byref(handle))
            weakref.finalize(self, library().cufftDestroy, handle).atexit = False
            call("cufftSetAutoAllocation", handle, 0)
            given = wanted.out if each.in_place else wanted.dtype
            call(
                "cufftXtMakePlanMany", handle, len(each.places), sizes(each.places),
                sizes(each.given.sizes), each.given.step, each.given.apart, TYPES[given],
                sizes(each.made.sizes), each.made.step, each.made.apart, TYPES[wanted.out],
                each.count, byref(nbytes), TYPES[complex_of(wanted)],
            )  # fmt: skip
            self.handles.append(handle.value)
            self.workspace = max(self.workspace, nbytes.value)


def complex_of(wanted: WantedTransform) -> Any:
    """The complex one of the two types, in which a transform is computed."""
    return wanted.out if wanted.out.kind == "c" else wanted.dtype


def sizes(along: Dims) -> Any:
    return (c_longlong * len(along))(*along)


def planned(wanted: WantedTransform) -> LibraryCall:
    """The transforms as one launch, of operand and result, and scratch."""
    plans = Plans(wanted)
    found: list[Function] = []
    direction = INVERSE if wanted.inverse else FORWARD
    for handle, each in zip(plans.handles, wanted.transforms, strict=True):
        found.append(Function("cufftSetStream", address("cufftSetStream"), (handle, STREAM)))
        if plans.workspace:
            scratch = handle, Passed(2)
            found.append(Function("cufftSetWorkArea", address("cufftSetWorkArea"), scratch))
        found += executions(handle, each, wanted, direction)
    return LibraryCall("cuFFT", found, plans.workspace, plans, words)


def executions(
    handle: int, each: Transform, wanted: WantedTransform, direction: int
) -> list[Function]:
    """The calls of a transform, an element of each of its starts on."""
    number, dtype = (1, wanted.out) if each.in_place else (0, wanted.dtype)
    places = (
        (Passed(number, begin * dtype.itemsize), Passed(1, end * wanted.out.itemsize))
        for begin, end in each.starts
    )
    name = "cufftXtExec"
    return [Function(name, address(name), (handle, *each, direction)) for each in places]
