"""Views of the memory of a device's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge2.base.arrays import BFLOAT16, FP8
from ge2.targets.cuda.device import Device, upload, view
from ge2.targets.cuda.limits import H200


@pytest.mark.parametrize("dtype", [*sorted(FP8, key=str), BFLOAT16, np.dtype(np.float64)], ids=str)
def test_a_view_of_any_dtype(dtype: np.dtype) -> None:
    """Every second column of two rows, from the last to the first."""
    whole = np.arange(12).reshape(3, 4).astype(dtype)
    size = dtype.itemsize
    part = view(whole, 3 * size, (2, 2), dtype, (4 * size, -2 * size))
    assert part.dtype == dtype and part.astype(np.float64).tolist() == [[3, 1], [7, 5]]
    part[:] = np.zeros((), dtype)
    assert whole.astype(np.float64).sum() == 66 - 16


def test_a_view_of_nothing() -> None:
    assert view(np.empty(0), 0, (0, 3), np.dtype(ml_dtypes.float8_e5m2), (3, 1)).shape == (0, 3)


def test_what_is_uploaded_goes_to_the_device_itself() -> None:
    """Whichever device is the current one."""

    class Second(Device):
        limits, current = H200, False

        @contextmanager
        def here(self) -> Iterator[None]:
            self.current = True
            yield
            self.current = False

        @property
        def xp(self) -> Any:
            assert self.current
            return np

    found = upload(Second(), np.arange(3))
    assert found.tolist() == [0, 1, 2]
