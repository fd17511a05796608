"""How far float32's functions of one number are from the truth on a GPU: at all
2^32 numbers, a second each.

`pytest -m gpu tests/gpu/test_accuracy.py -k tanh` measures one; `-s` shows how
far it was off, and where.
"""

from __future__ import annotations

import pytest

from ge2.targets.cuda.load.gpu import gpu
from tests.templates.cuda_accuracy import limit, measured, unary

CHUNK = 1 << 28


@pytest.mark.parametrize("name", unary())
def test_all_numbers(name: str) -> None:
    device = gpu(0)
    blocks = 16 * device.limits.multiprocessors
    off, at, ends = measured(device, name, range(0, 1 << 32, CHUNK), CHUNK, blocks)
    print(f"{name:16} {off:.3f} of the last place at {at!r}")
    assert ends == 0, "NaN or the sign of zero"
    assert off <= limit(name) + 2**-12, f"{off} at {at!r}"
