"""The first or last few of sorted lines, found by folds of the lines, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from tests.passes.test_few_ranks import CASES, line

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("n", [300, 5000, 70_000])
def test_they_are_those_of_numpy(n: int, dtype: Any) -> None:
    import cupy

    x = line(dtype, n)
    for function in CASES.values():
        found = ge2.jit(function)(cupy.asarray(x))
        pairs = zip(ge2.tree.leaves(found), ge2.tree.leaves(function(x)), strict=True)
        for y, wanted in pairs:
            np.testing.assert_array_equal(y.get(), wanted)
