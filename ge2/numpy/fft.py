"""The functions of `numpy.fft`: lengths, norms and several axes, made of three
transforms of `ops.fft`.

float16 and float32 are transformed in single precision, all else in double, as in NumPy 2.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, COMPLEX128, HALF, complex_of, real_part
from ge2.base.errors import ArgumentError, InputError, OutOfBoundsError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.composite import no_out
from ge2.numpy.promotion import array, cast, one_axis
from ge2.numpy.shapes import roll
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.ops.shape import Pad, Slice

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft",
    "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

fftfreq, rfftfreq = np.fft.fftfreq, np.fft.rfftfreq  # of lengths and spacings, which are not arrays
SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
TWO = (-2, -1)
Size = int | None
Sizes = Sequence[int] | None
Axes = Sequence[int] | None


def swapped(norm: str | None) -> str:
    """The norm of the transform in the other direction."""
    if norm not in SWAPPED:
        what = f'Invalid norm value {norm}; should be "backward","ortho" or "forward".'
        raise ArgumentError(what, where=here(), fix='"backward"')
    return SWAPPED[norm]


def factor(norm: str | None, n: int) -> float:
    """The factor of a forward transform of length n."""
    return {"backward": 1.0 / n, "ortho": 1.0 / math.sqrt(n), "forward": 1.0}[swapped(norm)]


def scaled(x: Any, by: float) -> Any:
    return x if by == 1 else e.multiply(x, by)


def length(n: Any, default: int) -> int:
    found = default if n is None else operator.index(n)
    if found < 1:
        what = f"Invalid number of FFT data points ({found}) specified."
        raise ArgumentError(what, where=here(), fix="n of at least 1")
    return found


def fitted(x: Any, axis: int, n: int) -> Any:
    """The first n elements along an axis, zeros where there are fewer."""
    shape, missing = type_of(x).shape, n - type_of(x).shape[axis]
    if missing > 0:
        high = tuple(missing if i == axis else 0 for i in range(len(shape)))
        return Pad((0,) * len(shape), high, (0,) * len(shape))(x)
    stop = (*shape[:axis], n, *shape[axis + 1 :])
    return Slice((0,) * len(shape), stop, (1,) * len(shape))(x) if missing else x


def spectral(dtype: np.dtype) -> np.dtype:
    """The dtype of a transform."""
    return COMPLEX128 if dtype == BOOL else complex_of(dtype)


def as_complex(a: Any) -> Any:
    x = array(a)
    return cast(x, spectral(type_of(x).dtype))


def c2c(a: Any, n: Any, axis: Any, norm: str | None, inverse: bool) -> Any:
    x = as_complex(a)
    along = one_axis(axis, type_of(x).ndim, x)
    n = length(n, type_of(x).shape[along])
    by = factor(swapped(norm) if inverse else norm, n)
    return scaled(Fft((along,), inverse)(fitted(x, along, n)), by)


# ----------------------------------------------------------------------------------------- one axis


def fft(a: Any, n: Size = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """The discrete Fourier transform along an axis, as `numpy.fft.fft`.

    >>> fft([1.0, 0.0, 0.0, 0.0])
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    no_out("fft", out)
    return c2c(a, n, axis, norm, False)


def ifft(a: Any, n: Size = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """The inverse of `fft`, as `numpy.fft.ifft`."""
    no_out("ifft", out)
    return c2c(a, n, axis, norm, True)


def rfft(a: Any, n: Size = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """The first n // 2 + 1 results of `fft` of real numbers, as `numpy.fft.rfft`."""
    no_out("rfft", out)
    x = array(a)
    dtype = type_of(x).dtype
    if dtype in COMPLEX:
        raise InputError(
            f"rfft takes real numbers; got {type_of(x)}", where=here(), fix="np.fft.fft, x.real"
        )
    x, along = cast(x, real_part(spectral(dtype))), one_axis(axis, type_of(x).ndim, x)
    n = length(n, type_of(x).shape[along])
    return scaled(Rfft(along)(fitted(x, along, n)), factor(norm, n))


def irfft(a: Any, n: Size = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """The inverse of `rfft`, n real numbers, as `numpy.fft.irfft`; n is even
    by default.
    """
    no_out("irfft", out)
    x = as_complex(a)
    along, given = one_axis(axis, type_of(x).ndim, x), type_of(array(a)).dtype
    n = length(n, 2 * (type_of(x).shape[along] - 1))
    y = Irfft(along, n)(fitted(x, along, n // 2 + 1))
    y = scaled(y, factor(swapped(norm), n))
    return cast(y, given) if given in HALF else y


def hfft(a: Any, n: Size = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """The transform, real, of the first half of a signal that mirrors itself,
    as `numpy.fft.hfft`.
    """
    no_out("hfft", out)
    return irfft(e.conjugate(array(a)), n, axis, swapped(norm))


def ihfft(a: Any, n: Size = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """The inverse of `hfft`, as `numpy.fft.ihfft`."""
    no_out("ihfft", out)
    return e.conjugate(rfft(a, n, axis, swapped(norm)))


# ------------------------------------------------------------------------------------- several axes


def lengths(x: Any, s: Sizes, axes: Axes, halved: bool = False) -> list[tuple[int, int]]:
    """The axes to transform, each with its length; `halved`: the last has only half of it."""
    shape = type_of(x).shape
    if s is None:
        places = range(len(shape)) if axes is None else [one_axis(i, len(shape), x) for i in axes]
        sizes = [shape[i] for i in places]
        if halved and sizes:
            sizes[-1] = 2 * (sizes[-1] - 1)
        return list(zip(places, sizes, strict=True))
    sizes, wanted = list(s), range(-len(s), 0) if axes is None else list(axes)
    if len(sizes) != len(wanted):
        raise ShapeError(
            "Shape and axes have different lengths.", where=here(), fix="a length for each axis"
        )
    found = [one_axis(i, len(shape), x) for i in wanted]
    return [(i, shape[i] if n == -1 else n) for i, n in zip(found, sizes, strict=True)]


def no_axes(pairs: Sequence[tuple[int, int]], x: Any) -> None:
    if not pairs:
        what = f"at least 1 axis must be transformed: {type_of(x)}"
        raise OutOfBoundsError(what, where=here(), fix="axes=(0,)")


def over(a: Any, pairs: Sequence[tuple[int, int]], inverse: bool, norm: str | None) -> Any:
    """A transform of complex numbers along several axes, the last first: one operation, unless an
    axis is named again.
    """
    places = tuple([along for along, _ in pairs])
    if len({*places}) < 2 or len({*places}) < len(places):
        for along, n in reversed(pairs):
            a = c2c(a, n, along, norm, inverse)
        return a
    x, by, wanted = as_complex(a), 1.0, swapped(norm) if inverse else norm
    for along, n in pairs:
        count = length(n, type_of(x).shape[along])
        x, by = fitted(x, along, count), by * factor(wanted, count)
    return scaled(Fft(places, inverse)(x), by)


def fftn(
    a: Any, s: Sizes = None, axes: Axes = None, norm: str | None = None, out: Any = None
) -> Any:
    """The transform along several axes, all by default, as `numpy.fft.fftn`."""
    no_out("fftn", out)
    x = array(a)
    return over(x, lengths(x, s, axes), False, norm)


def ifftn(
    a: Any, s: Sizes = None, axes: Axes = None, norm: str | None = None, out: Any = None
) -> Any:
    """The inverse of `fftn`, as `numpy.fft.ifftn`."""
    no_out("ifftn", out)
    x = array(a)
    return over(x, lengths(x, s, axes), True, norm)


def rfftn(
    a: Any, s: Sizes = None, axes: Axes = None, norm: str | None = None, out: Any = None
) -> Any:
    """`rfft` along the last of several axes, then `fft` along the others, as `numpy.fft.rfftn`."""
    no_out("rfftn", out)
    x = array(a)
    pairs = lengths(x, s, axes)
    no_axes(pairs, x)
    x = rfft(x, pairs[-1][1], pairs[-1][0], norm)
    return over(x, pairs[:-1], False, norm)


def irfftn(
    a: Any, s: Sizes = None, axes: Axes = None, norm: str | None = None, out: Any = None
) -> Any:
    """The inverse of `rfftn`, as `numpy.fft.irfftn`."""
    no_out("irfftn", out)
    x = array(a)
    pairs = lengths(x, s, axes, halved=True)
    no_axes(pairs, x)
    x = over(x, pairs[-2::-1], True, norm) if len(pairs) > 1 else x
    return irfft(x, pairs[-1][1], pairs[-1][0], norm)


def fft2(
    a: Any, s: Sizes = None, axes: Axes = TWO, norm: str | None = None, out: Any = None
) -> Any:
    """`fftn` along two axes, as `numpy.fft.fft2`."""
    return fftn(a, s, axes, norm, out)


def ifft2(
    a: Any, s: Sizes = None, axes: Axes = TWO, norm: str | None = None, out: Any = None
) -> Any:
    """`ifftn` along two axes, as `numpy.fft.ifft2`."""
    return ifftn(a, s, axes, norm, out)


def rfft2(
    a: Any, s: Sizes = None, axes: Axes = TWO, norm: str | None = None, out: Any = None
) -> Any:
    """`rfftn` along two axes, as `numpy.fft.rfft2`."""
    return rfftn(a, s, axes, norm, out)


def irfft2(
    a: Any, s: Sizes = None, axes: Axes = TWO, norm: str | None = None, out: Any = None
) -> Any:
    """`irfftn` along two axes, as `numpy.fft.irfft2`."""
    return irfftn(a, s, axes, norm, out)


# ------------------------------------------------------------------------------------------- shifts


def shifted(x: Any, axes: int | Axes, sign: int) -> Any:
    x = array(x)
    ndim = type_of(x).ndim
    wanted = range(ndim) if axes is None else axes if isinstance(axes, Sequence) else (axes,)
    places = tuple(one_axis(i, ndim, x) for i in wanted)
    sizes = (type_of(x).shape[i] for i in places)
    return roll(x, tuple(n // 2 if sign > 0 else -(n // 2) for n in sizes), places)


def fftshift(x: Any, axes: int | Axes = None) -> Any:
    """The frequency 0 moved to the middle, as `numpy.fft.fftshift`."""
    return shifted(x, axes, 1)


def ifftshift(x: Any, axes: int | Axes = None) -> Any:
    """The inverse of `fftshift`, as `numpy.fft.ifftshift`."""
    return shifted(x, axes, -1)


publish(globals())
