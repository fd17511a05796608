"""Kernels whose threads lie along what is kept: what does not run along it is
computed once a row.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.emulator import EMULATED
from tests.codegen.texts import kernels
from tests.compared import all_close
from tests.together import needs_compiler

pytestmark = needs_compiler


def scaled_rows(a, c):
    """A value of each row, read in the loop over the rows."""
    rows = c * np.tanh(a)[:, None]
    return rows, rows.sum(axis=0)


def twice(a, c):
    """And in a second one, which waits for the first."""
    rows = c * np.exp(a)[:, None]
    return (rows - rows.max(axis=0)) * np.exp(a)[:, None]


def rows_alone(a, c):
    return np.tanh(a), c.sum(axis=0)


def a_number_for_all(a, c):
    return (c * np.tanh(a[:1])).sum(axis=0)


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize("f", [scaled_rows, twice, rows_alone, a_number_for_all])
@pytest.mark.parametrize("shape", [(128, 10), (7, 33), (300, 4), (1, 1), (40, 257)])
def test_what_belongs_to_a_row(f, shape, rng: np.random.Generator) -> None:
    a, c = rng.normal(size=shape[0]).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    with config.using(executor="shim"):
        found = ge2.jit(f)(a, c)
    want = f(a, c)
    all_close(
        np.atleast_1d(found) if isinstance(found, np.ndarray) else found, want, rtol=2e-5, atol=2e-5
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("columns", [4096, 8192, 4100])
def test_a_thread_has_several_packs_of_a_long_row(columns: int, rng: np.random.Generator) -> None:
    def f(a, c):
        return np.tanh(a + c), a * c

    chip = replace(EMULATED, multiprocessors=1, threads_per_multiprocessor=64)
    a, c = (rng.normal(size=s).astype(np.float32) for s in ((5, columns), (columns,)))
    with config.using(executor="shim", tuning=(chip,)):
        all_close(ge2.jit(f)(a, c), f(a, c), rtol=1e-6)
    ((_, text),) = kernels(f, a, c, chip=chip)
    assert ("k < TURNS" in text) == (columns % 4096 == 0)


def test_more_rows_at_once_of_many(rng: np.random.Generator) -> None:
    """A variant for races, whose sums are the same."""
    few = replace(EMULATED.tuning.columns, many=1)
    chip = replace(EMULATED, tuning=replace(EMULATED.tuning, columns=few))
    a, c = (rng.normal(size=s).astype(np.float32) for s in ((300,), (300, 520)))
    name = "columns over axis 0, 8 rows at once"
    found = []
    for pins in ((), (Pin("region in CUDA", name),)):
        with config.using(executor="shim", tuning=(chip,), pins=pins):
            found.append(ge2.jit(np.matmul)(a, c))
            (choice,) = ge2.jit(np.matmul).lower(a, c).choices.values()
            assert (choice.taken.variant.name == name) == bool(pins)
            assert name in {each.variant.name for each in choice.candidates}
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], a @ c, rtol=2e-5, atol=2e-4)


def adam(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.001 * m / (np.sqrt(v) + 1e-8), m, v


@pytest.mark.parametrize(
    ("f", "shape", "pack"),
    [
        (adam, (64, 256), 1),
        (adam, (1024, 1024), 4),
        (lambda a, b, c, d: a * b + c * d, (64, 256), 4),
    ],
)
def test_a_thread_has_one_element_where_they_are_few_and_costly(f, shape, pack) -> None:
    ((kernel, text),) = kernels(f, *(np.zeros(shape, np.float32) for _ in range(4)))
    assert ("PACK" in text) == (pack > 1)
    assert kernel.grid == (math.prod(shape) // (256 * pack), 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=lambda d: d.__name__)
def test_an_update_of_few_elements(dtype, rng: np.random.Generator) -> None:
    xs = [abs(rng.normal(size=(13, 7))).astype(dtype) for _ in range(4)]
    with config.using(executor="shim"):
        for y, w in zip(ge2.jit(adam)(*xs), adam(*(x.astype(np.float64) for x in xs)), strict=True):
            np.testing.assert_allclose(
                y.astype(np.float64), w, rtol=5e-3 if dtype == np.float16 else 2e-6
            )


def grouped(hot, x):
    """Sums over rows that have all of the other axes, some of them, and none."""
    return (hot[:, :, None] * x[:, None, :]).sum(0), hot.sum(0), x.sum(0), (hot[:, 0] * 2).sum()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rows", "groups", "width"), [(40_000, 1, 8), (40_000, 5, 3), (3000, 4, 512), (3000, 4, 510)]
)
def test_blocks_share_rows_of_results_with_other_axes(rows, groups, width, rng):
    hot, x = rng.normal(size=(rows, groups)), rng.normal(size=(rows, width))
    with config.using(executor="shim"):
        found = ge2.jit(grouped)(hot, x)
    all_close(found, grouped(hot, x), rtol=1e-10, atol=1e-9)
    finished = [k for k, _ in kernels(grouped, hot, x) if k.kind == "finish"]
    assert len(finished) >= 2, "results that have other axes are merged apart"


def farther(x, y):
    """The farthest of some points, and how many are farther than half of that."""
    d = np.abs(x[:, None] - y) + np.sqrt((x[:, None] * y) ** 2 + 1)
    most = d.max(1)
    return most, (d > most[:, None] / 2).sum(1)


def summed(x, y):
    d = np.abs(x[:, None] - y) + np.sqrt((x[:, None] * y) ** 2 + 1)
    return d.max(1), d.sum(1)


@pytest.mark.parametrize(
    ("f", "columns", "several"),
    [(farther, 800, False), (farther, 40_000, True), (summed, 800, True)],
)
def test_columns_of_pairs_that_no_blocks_share_keep_a_chip_busy(f, columns, several) -> None:
    """A thread has several columns of them only where there are blocks enough."""
    x, y = np.ones(columns, np.float32), np.ones(1500, np.float32)
    chip = replace(EMULATED, multiprocessors=132, threads_per_multiprocessor=2048)
    text = "".join(text for _, text in kernels(f, x, y, chip=chip))
    assert ("v * COLUMNS" in text) == several
