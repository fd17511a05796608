"""A kernel compiled, loaded and launched on each GPU of this machine.

Run as `python -m ge2.targets.cuda.load.self_test`.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

from ge2.base.config import config
from ge2.base.errors import DeviceError
from ge2.targets.cuda.load.gpu import CudaDevice, gpu, probe
from ge2.targets.cuda.load.toolkit import driver

SIZE: Final = 1000


def main() -> int:
    """Says how it went in its last line; an exception tells the rest."""
    known = driver()
    for number in range(len(known.gpus) if known else 0):
        with config.using(cache_dir="none"):
            try_on(gpu(number))
    count = len(known.gpus) if known else 0
    sys.stdout.write(f"it gives the right result on {count} GPU{'' if count == 1 else 's'}\n")
    return 0


def try_on(device: CudaDevice) -> None:
    """DeviceError if the kernel gives a wrong result."""
    kernel = device.module(probe("trial")).get_function("trial")
    with device.here():
        a = device.xp.arange(SIZE, dtype=np.float32)
        b = device.xp.empty_like(a)
        kernel(((SIZE + 255) // 256,), (256,), (a, b, np.int32(SIZE), np.float32(3.0)))
        found = device.xp.asnumpy(b)
    if not np.array_equal(found, np.arange(SIZE, dtype=np.float32) * 3):
        raise DeviceError(
            f"{device.limits.name} computes wrong results", fix="nvidia-smi -q, for its errors"
        )


if __name__ == "__main__":
    raise SystemExit(main())
