"""Sorting and searching in C against NumPy's stable sort: NaN last, equals in their order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import COMPLEX, SHORT
from ge2.choice import Problem
from ge2.compile.catalog import select
from ge2.ir.types import ArrayType
from ge2.ops.sort import ArgSort, SearchSorted, Sort, comparable
from ge2.targets.c import libraries
from tests.kernels.programs import Programs, alike, eager_threads, needs_compiler, numbers

pytestmark = [needs_compiler, pytest.mark.usefixtures("eager_threads")]
__all__ = ["eager_threads"]
DTYPES = [d for d in SHORT if d not in COMPLEX]


@settings(max_examples=4)
@given(st.data())
def test_sorted_as_the_references(data: st.DataObject) -> None:
    programs, draw = Programs(), data.draw
    for _ in range(6):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        shape = tuple(
            draw(st.lists(st.sampled_from((0, 1, 2, 3, 65, 300)), min_size=1, max_size=2))
        )
        x = numbers(rng, shape, draw(st.sampled_from(DTYPES)), small=draw(st.booleans()))
        op = draw(st.sampled_from((Sort, ArgSort)))(draw(st.integers(0, len(shape) - 1)))
        programs.add(op, programs.view(draw, x))
    programs.check()


@settings(max_examples=4)
@given(st.data())
def test_found_as_the_references(data: st.DataObject) -> None:
    programs, draw = Programs(), data.draw
    for _ in range(6):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        dtype, beside = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(((), (3,))))
        shape = (*beside, *draw(st.lists(st.sampled_from((0, 1, 2, 40)), max_size=2)))
        line = numbers(
            rng, (*beside, draw(st.sampled_from((0, 1, 2, 7, 64, 200)))), dtype, small=True
        )
        line = np.sort(comparable(line), -1, kind="stable").astype(dtype)
        values = programs.view(draw, numbers(rng, shape, dtype, small=True))
        op = SearchSorted(draw(st.sampled_from(("left", "right"))), len(beside))
        programs.add(op, (programs.given(line), line), values)
    programs.check()


def test_many_equals_in_a_long_line(rng: np.random.Generator) -> None:
    programs = Programs()
    for dtype in (np.int64, np.float64, np.uint8):
        x = rng.integers(0, 50, 5000).astype(dtype)
        programs.add(ArgSort(0), (programs.given(x), x))
        programs.add(Sort(0), (programs.given(x), x))
    programs.check()


def test_complex_numbers_are_left_to_numpy() -> None:
    t = ArrayType((3,), np.dtype(np.complex64))
    assert "by NumPy" in str(select(Problem(Sort(0), (t,), (t,), "c")))


@pytest.mark.parametrize("found", [True, False], ids=["numpy", "heap"])
def test_zeros_of_both_signs_and_keys_that_differ_in_their_last_bits(monkeypatch, rng, found):
    """By NumPy's sorts, and where those were not found; a run of 40 keys is sorted by their bytes."""
    if not found:
        monkeypatch.setattr(libraries, "sorts", lambda: (0,) * 6)
    special = rng.choice(np.array([0.0, -0.0, np.nan, np.inf, -1.0]), (3, 200))
    close = 1.0 + rng.integers(0, 40, (2, 400)) * np.finfo(np.float64).eps
    close[0, ::2] = rng.standard_normal(200)
    far = np.array([[-1, 1, -(1 << 63), (1 << 63) - 1, 0, 1]])

    def both(*arrays):
        return [(np.sort(x), np.argsort(x, kind="stable")) for x in arrays]

    arrays = special, close, far, special.astype(np.float32)
    for ours, x in zip(ge2.jit(both)(*arrays), arrays, strict=True):
        alike(ours[0], np.sort(x, kind="stable"))
        alike(ours[1], np.argsort(x, kind="stable"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_number_of_the_program_is_sought(dtype: np.dtype) -> None:
    """Half types, too, which a kernel holds as float32 where no array has them."""
    line = np.array([0, 1, 1, 3, 5]).astype(dtype)
    if line.dtype.kind == "b":
        line = np.array([False, False, True, True, True])
    sought = [*product((line[2], line[4]), ("left", "right"))]

    def places(x):
        return [np.searchsorted(x, value, side=side) for value, side in sought]

    assert ge2.jit(places)(line) == places(line)
