"""What kernels of a jitted function are called."""

from __future__ import annotations

from typing import Any


def kernels_of(f: Any) -> list[str]:
    """The kinds of its kernels, in order, without their numbers."""
    return [name.rpartition("_")[0].split(".")[0] for name in f.report().kernels]
