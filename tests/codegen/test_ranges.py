"""Ranges of integers hold every value that is computed, and say what bounds an index."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.codegen.kernel_values import Ranges

BYTES = np.arange(256).astype(np.uint8), np.arange(-128, 128).astype(np.int8)
OF_X = {
    "mask": lambda x: x & 15,
    "negative mask": lambda x: x & -2 if x.dtype == np.int8 else x & 254,
    "remainder": lambda x: x % 7,
    "negative remainder": lambda x: x.astype(np.int16) % -7,
    "shift": lambda x: (x & 127) >> 3,
    "clip": lambda x: np.clip(x, 3, 9),
    "wrapped sum": lambda x: x + x,
    "wrapped product": lambda x: (x & 15) * 100,
    "difference": lambda x: x.astype(np.int64) - (x & 3),
    "choice": lambda x: np.where(x > 5, x & 3, 7),
    "narrower": lambda x: x.astype(np.int64).astype(np.int8),
    "bool": lambda x: ((x & 1).astype(bool) * 9)[::-1],
    "float": lambda x: x.astype(np.float32).astype(np.int32),
}


@pytest.mark.parametrize("name", OF_X)
def test_no_value_is_outside(name):
    for x in BYTES:
        graph = ge2.make_jaxpr(OF_X[name])(x).graph
        low, high = Ranges(graph).of(graph.outputs[0])
        y = OF_X[name](x)
        assert low <= int(y.min()) and int(y.max()) <= high


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("mask", (0, 15)),
        ("remainder", (0, 6)),
        ("clip", (3, 9)),
        ("shift", (0, 15)),
        ("choice", (0, 7)),
    ],
)
def test_bounds_are_found(name, bounds):
    graph = ge2.make_jaxpr(OF_X[name])(np.arange(5)).graph
    assert Ranges(graph).of(graph.outputs[0]) == bounds


def test_an_index_that_cannot_be_outside_is_not_looked_at():
    table, x = np.arange(256.0) * 2, np.arange(0, 90_000, 7)
    low = ge2.jit(lambda t, x: t[x & 255] + t[(x & 255) + 1 & 127]).lower(table, x)
    np.testing.assert_array_equal(
        low.executable(table, x)[0], table[x & 255] + table[(x & 255) + 1 & 127]
    )
    assert "ge2_index_" not in str(low.kernels[0])
    with pytest.raises(IndexError, match="255"):
        ge2.jit(lambda t, x: t[x & 255] * 2)(table[:255], x)
