"""What a device's own array module computes: CuPy's functions where no kernel of ours serves.

An entry of the table is handed the module, the operation and its inputs as arrays of
the device; it returns another. bfloat16 and fp8, which CuPy does not order, go by
integers that are ordered as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ge2.base.dtypes import BFLOAT16, COMPLEX, EXTENDED, FP8, INT64
from ge2.ir import Eqn, Op
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.ops.linalg import Cholesky, Det, Linalg, Pinv, SlogDet, Solve
from ge2.ops.linalg.decompositions import Eigh, Qr, Svd
from ge2.ops.sort import ArgSort, SearchSorted, Sort, TopK
from ge2.targets.cuda.device import Device, surely

LAST = {BFLOAT16: 0x7F80, FP8[0]: 0x7E, FP8[1]: 0x7C}  # the greatest number's bits; beyond is NaN


def ordered(xp: ModuleType, x: Any) -> Any:
    """Numbers in the order of `x`: NaN is last, and the zeros are equal."""
    if x.dtype not in EXTENDED:
        return x
    whole = np.dtype(f"u{x.dtype.itemsize}")
    bits, half = x.view(whole), whole.type(1 << (8 * whole.itemsize - 1))
    size = bits & whole.type(half - 1)
    key = xp.where(bits >= half, half - size, half + size)
    return xp.where(size > LAST[x.dtype], whole.type(2 * int(half) - 1), key)


def argsorted(xp: ModuleType, x: Any, axis: int) -> Any:
    """Stably: CuPy's sorts are, and know no other kind."""
    if not x.size:
        return xp.empty(x.shape, INT64)
    return xp.argsort(x, axis, kind="stable") if xp is np else xp.argsort(x, axis)


def sort(xp: ModuleType, op: Any, x: Any) -> Any:
    if not x.size:
        return x.copy()
    if x.dtype in EXTENDED:
        bits = x.view(f"u{x.dtype.itemsize}")
        order = argsorted(xp, ordered(xp, x), op.axis)
        return xp.take_along_axis(bits, order, op.axis).view(x.dtype)
    return xp.sort(x, op.axis, kind="stable") if xp is np else xp.sort(x, op.axis)


def argsort(xp: ModuleType, op: Any, x: Any) -> Any:
    return argsorted(xp, ordered(xp, x), op.axis).astype(INT64, copy=False)


def top_k(xp: ModuleType, op: Any, x: Any) -> tuple[Any, Any]:
    """The end of what is sorted, backwards before and after: so the first of equals comes first."""
    axis = op.axis
    turned = (*(slice(None),) * axis, slice(None, None, -1))
    first = (*(slice(None),) * axis, slice(None, op.k))
    order = argsorted(xp, xp.ascontiguousarray(ordered(xp, x)[turned]), axis)
    at = (x.shape[axis] - 1 - order[turned])[first].astype(INT64)
    kept = x.view(f"u{x.dtype.itemsize}") if x.dtype in EXTENDED else x
    return xp.take_along_axis(kept, at, axis).view(x.dtype), at


def searchsorted(xp: ModuleType, op: Any, line: Any, values: Any) -> Any:
    line, values = ordered(xp, line), ordered(xp, values)
    if not op.beside:
        return xp.asarray(xp.searchsorted(line, values, op.side)).astype(INT64, copy=False)
    shape, many, n = values.shape, math.prod(line.shape[:-1]), line.shape[-1]
    lines, sought = line.reshape(many, n), values.reshape(many, math.prod(shape[op.beside :]))
    return halved(xp, lines, sought, op.side == "right").reshape(shape)


def halved(xp: ModuleType, lines: Any, sought: Any, after: bool) -> Any:
    """The place of each value in the line of its row, all at once: the part
    where it lies is halved.
    """
    n = lines.shape[1]
    low, high = xp.zeros(sought.shape, INT64), xp.full(sought.shape, n, INT64)
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        found = xp.take_along_axis(lines, xp.minimum(middle, n - 1), 1)
        right = (low < high) & ~before(sought, found, not after)
        low, high = xp.where(right, middle + 1, low), xp.where(right | (low >= high), high, middle)
    return low


def before(a: Any, b: Any, equal: bool) -> Any:
    """True if `a` stands before `b` in the order in which NaN is last; or where it does."""
    if a.dtype.kind != "f":
        return a <= b if equal else a < b
    none_a, none_b = a != a, b != b
    return (a <= b) | none_b if equal else (a < b) | (none_b & ~none_a)


# --------------------------------------------------------------------- matrices, Fourier transforms


def transform(xp: ModuleType, op: Any, x: Any) -> Any:
    return op.by(xp, x)


def qr(xp: ModuleType, op: Any, x: Any) -> Any:
    return tuple(xp.linalg.qr(x, "complete" if op.full else "reduced"))


def eigh(xp: ModuleType, op: Any, x: Any) -> Any:
    side = "L" if op.lower else "U"
    return tuple(xp.linalg.eigh(x, side)) if op.vectors else (xp.linalg.eigvalsh(x, side),)


def svd(xp: ModuleType, op: Any, x: Any) -> Any:
    found = xp.linalg.svd(x, op.full, op.vectors)
    return tuple(found) if op.vectors else (found,)


Served = Callable[..., Any]
SERVED: Mapping[type[Op], Served] = {
    Sort: sort,
    ArgSort: argsort,
    TopK: top_k,
    SearchSorted: searchsorted,
    Fft: transform,
    Rfft: transform,
    Irfft: transform,
    Solve: lambda xp, op, a, b: op.reference(a, b) if xp is np else xp.linalg.solve(a, b),
    Pinv: lambda xp, op, x: xp.linalg.pinv(x, op.rtol),
    Det: lambda xp, op, x: xp.linalg.det(x),
    SlogDet: lambda xp, op, x: tuple(xp.linalg.slogdet(x)),
    Cholesky: lambda xp, op, x: xp.linalg.cholesky(x),
    Qr: qr,
    Eigh: eigh,
    Svd: svd,
}


def serves(eqn: Eqn) -> Served | None:
    """The function of the table for an equation; None if there is none."""
    if isinstance(eqn.op, SearchSorted) and eqn.inputs[0].type.dtype in COMPLEX:
        return None  # which CuPy compares otherwise where a part is NaN
    if isinstance(eqn.op, Linalg) and any(0 in a.type.shape for a in eqn.inputs):
        return None  # which not all of CuPy's functions take
    return SERVED.get(type(eqn.op))


def by_arrays(device: Device, eqn: Eqn, *xs: Any) -> Any:
    """The result of an equation that the table serves; numbers become arrays of the device."""
    served, xp = serves(eqn), device.xp
    assert served is not None
    given = [xp.asarray(x, a.type.dtype) for x, a in zip(xs, eqn.inputs, strict=True)]
    return surely(device, lambda: served(xp, eqn.op, *given))
