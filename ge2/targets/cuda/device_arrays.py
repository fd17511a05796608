"""What stands around a call on a device: which is current, arguments as kernels
read them, the CPU's part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import HALF
from ge2.base.errors import Ge2Error
from ge2.base.interpreter import hush, restore
from ge2.ir import Eqn
from ge2.targets.cuda.device import Device, address, download, surely, upload
from ge2.targets.cuda.load.scratch import ran_out

Failed = Callable[[BaseException], BaseException]


def current_first(
    device: Device, run: Callable[..., list[Any]], failed: Failed | None = None
) -> Callable[..., list[Any]]:
    """Runs a program with its device CuPy's current one.

    `failed` makes the error of one without memory.
    """
    if device.number is None:
        return run
    here, number, current = device.here, device.number, device.xp.cuda.runtime.getDevice
    lost = device.lost

    def there(*arrays: Any) -> list[Any]:
        if lost:
            device.check()
        try:
            if current() == number:
                return run(*arrays)
            with here():
                return run(*arrays)
        except Exception as error:
            explain(failed, error)
            raise

    return there


def explain(failed: Failed | None, error: BaseException) -> None:
    """Raises what is to be said of an error if there was no memory, and nobody has said it yet."""
    if failed is not None and not isinstance(error, Ge2Error) and ran_out(error):
        raise failed(error) from error


def again(device: Device, trouble: Exception, *wanted: tuple[Any, ...]) -> list[Any]:
    """Arrays for which there was no memory, when all that nobody uses was given back.

    Else the trouble.
    """
    if device.scratch is None or not ran_out(trouble):
        raise trouble
    device.scratch.spare()
    return [device.xp.ndarray(*each) for each in wanted]


def anew(device: Device, nbytes: int) -> tuple[Any, list[Any]]:
    """Scratch of one call alone, where nothing is gained by keeping it; and
    where it is put after that.
    """
    return device.xp.empty(nbytes, np.uint8), []


def quietly(run: Callable[..., list[Any]], *arrays: Any) -> list[Any]:
    """Runs a program with none of NumPy's warnings."""
    loud = hush()
    try:
        return run(*arrays)
    finally:
        restore(loud)


def scalar(value: np.ndarray, dtype: np.dtype) -> np.generic:
    """A number as a kernel is handed it."""
    found: Any = value.astype(dtype)
    return found[()]  # type: ignore[no-any-return]


def narrowed(dtype: np.dtype, wanted: np.dtype, x: Any) -> Any:
    """A Python number of `dtype` as a kernel holds it."""
    value = np.asarray(x)
    return (value.astype(dtype).astype(wanted) if dtype in HALF else value.astype(wanted))[()]


def ready(device: Device, x: Any) -> Any:
    """An array of the device as kernels read it: in C order, from a place that
    wide accesses may begin at.
    """
    x = x if isinstance(x, device.xp.ndarray) else upload(device, x)
    if x.flags.c_contiguous and address(x) % 16 == 0:
        return x
    return surely(device, lambda: device.xp.array(x, order="C", copy=True))


def elsewhere(device: Device, eqn: Eqn, *xs: Any) -> Any:
    """The reference on the CPU."""
    weak = [a.type.weak for a in eqn.inputs]
    arrays = [
        np.asarray(x, a.type.dtype) if w else download(x).view(a.type.dtype)
        for x, a, w in zip(xs, eqn.inputs, weak, strict=True)
    ]
    ys = eqn.op.reference(*arrays)
    found = [
        y if v.type.weak else upload(device, np.asarray(y, v.type.dtype))
        for y, v in zip(ys if eqn.op.several else (ys,), eqn.outs, strict=True)
    ]
    return found if eqn.op.several else found[0]
