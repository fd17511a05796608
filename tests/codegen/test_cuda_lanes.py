"""Kernels whose threads lie along what is kept: what does not run along it is computed once a row."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.codegen.cuda.chip import Chip
from tests.codegen.texts import kernels
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


@pytest.mark.parametrize("f", [scaled_rows, twice, rows_alone, a_number_for_all])
@pytest.mark.parametrize("shape", [(128, 10), (7, 33), (300, 4), (1, 1), (40, 257)])
def test_what_belongs_to_a_row(f, shape, rng: np.random.Generator) -> None:
    a, c = rng.normal(size=shape[0]).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    with config.using(executor="shim"):
        found = ge2.jit(f)(a, c)
    want = f(a, c)
    for y, w in zip(np.atleast_1d(found) if isinstance(found, np.ndarray) else found, want, strict=True):
        np.testing.assert_allclose(y, w, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("columns", [4096, 8192, 4100])
def test_a_thread_has_several_packs_of_a_long_row(
    columns: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    def f(a, c):
        return np.tanh(a + c), a * c

    monkeypatch.setattr(Chip, "of", staticmethod(lambda _: Chip(1, 64, 65536, 1 << 16, 1 << 16)))
    a, c = (rng.normal(size=s).astype(np.float32) for s in ((5, columns), (columns,)))
    with config.using(executor="shim"):
        for y, w in zip(ge2.jit(f)(a, c), f(a, c), strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-6)
    ((_, text),) = kernels(f, a, c)
    assert ("k < TURNS" in text) == (columns % 4096 == 0)
