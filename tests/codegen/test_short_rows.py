"""Rows too short for a vector: vectors go along the longer axis, and write the rows out."""

from __future__ import annotations

import re

import numpy as np

import ge2
from tests.together import needs_compiler

pytestmark = needs_compiler


def programs(image, planes, pairs, bits, numbers):
    channels = np.arange(3, dtype=np.float32)
    return (
        np.transpose(image.astype(np.float32) - channels, (0, 3, 1, 2)).copy(),
        image[:, ::-1, :, ::-1].astype(np.float32) * np.float32(0.5),
        (np.transpose(planes, (0, 2, 3, 1)) * np.float32(9)).astype(np.uint8),
        image[..., :2].astype(np.float32) * image[..., 2:].astype(np.float32),
        (bits[:, None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1),
        pairs[:, 0] * pairs[:, 1] + pairs[::-1, 1],
        *(
            np.packbits(numbers, axis, order)
            for axis in (0, 1, None)
            for order in ("big", "little")
        ),
        *(np.unpackbits(numbers, axis, n) for axis in (0, 1) for n in (None, 5, -3, 2000)),
    )


def test_rows_of_a_few_elements_are_written_out_within_vectors(rng):
    image = rng.integers(0, 256, (2, 5, 37, 3)).astype(np.uint8)
    planes = rng.random((2, 3, 6, 41)).astype(np.float32)
    pairs = rng.standard_normal((130, 2)).astype(np.float32)
    bits = rng.integers(0, 256, 77).astype(np.uint8)
    numbers = rng.integers(0, 3, (67, 45)).astype(np.uint8)
    args = image, planes, pairs, bits, numbers
    compiled = ge2.jit(programs)
    text = "".join(map(str, compiled.lower(*args).kernels))
    assert re.search(r"omp simd\n +for .*\n +for \(int64_t . = 0; . < 3; ", text)
    for ours, wanted in zip(compiled(*args), programs(*args), strict=True):
        assert ours.dtype == wanted.dtype
        np.testing.assert_array_equal(ours, wanted)
