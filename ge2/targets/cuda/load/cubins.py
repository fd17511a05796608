"""Cubins on a GPU: from memory, or, by a CuPy that loads none so, by `cupy.RawModule(path=...)`.

From memory the bytes that are loaded are those of the cache whose checksum was verified, nothing is
written, and a module goes when nobody has its kernels. CuPy keeps what a RawModule loads as long as
the process lives, and finds it by its path: so a path is never used twice. docs/design/cache.md has
the reasons.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ge2.targets.cuda.load.gpu import CudaDevice

_by_path: dict[tuple[int, str], Any] = {}  # by the GPU's number and the cubin's key


def loaded(device: CudaDevice, image: bytes, key: str) -> Any:
    """A cubin, or PTX, as CuPy's `Module`, whose functions have handles; the driver's error if it
    refuses the image. Equal keys are equal images.
    """
    cuda = device.xp.cuda
    with device.here():
        if not hasattr(cuda, "Module"):
            return by_path(device, image, key)
        found = cuda.Module()
        found.load(image)
        return found


def by_path(device: CudaDevice, image: bytes, key: str) -> Any:
    """The same image as a file, in a folder that this user alone may read, for as long as CuPy
    reads it.
    """
    from tempfile import TemporaryDirectory

    if (device.number, key) not in _by_path:
        with TemporaryDirectory(prefix="ge2-cubin-") as folder:
            path = os.path.join(folder, f"{key}.cubin")
            with open(path, "wb") as file:
                file.write(image)
            _by_path[device.number, key] = device.xp.RawModule(path=path).module
    return _by_path[device.number, key]
