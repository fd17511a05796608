"""Sums at indices by threads that have columns of their own, through the emulator: of few places,
with the same bits in any order of the threads.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.ops.index import ScatterAdd
from ge2.targets.cuda.emulator import EMULATED
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import chosen_kernels
from tests.exhaustive import examples
from tests.kernels.programs import needs_compiler
from tests.kernels.test_cuda_exact_sums import added
from tests.small import planned_by

pytestmark = needs_compiler
# where every other way takes a second an update
LANED = planned_by(
    EMULATED, "scatters", few=0, unordered=2, ranges=0, compared=1.0, digit=1.0, atomic=1.0,
    lane_round=(0.0, 0.0), lane_threads=1, lane_columns=1,
)  # fmt: skip
FLOATS = {"f2": 2e-3, "bfloat16": 2e-2, "f4": 1e-6, "f8": 1e-15}


@settings(max_examples=examples(12))
@given(st.data())
def test_sums_are_those_of_numpy(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(FLOATS)))
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    row = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), max_size=2))
    over = data.draw(st.sampled_from([(2,), (9,), (130,), (7, 11)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    indices = [rng.integers(-n, n, over) for n in sizes]
    x, updates = (rng.normal(size=(*s, *row)).astype(dtype) for s in (sizes, over))
    if data.draw(st.booleans()) and len(row) == 1:
        updates = np.asfortranarray(updates)
    found = added(x, updates, *indices, chip=LANED)
    wanted, size = x.astype(np.float64), np.abs(x.astype(np.float64))
    np.add.at(wanted, tuple(indices), updates.astype(np.float64))
    np.add.at(size, tuple(indices), np.abs(updates.astype(np.float64)))
    assert (np.abs(found.astype(np.float64) - wanted) <= FLOATS[kind] * size).all()


def test_zeros_keep_their_signs_and_no_place_is_touched_without_an_update() -> None:
    x = np.array([[-0.0, 0.0], [-0.0, 5.0], [-0.0, np.inf]], np.float32)
    updates = np.array([[-0.0, -0.0], [0.0, np.nan]] * 20, np.float32)
    found = added(x, updates, np.array([0, 2] * 20), chip=LANED)
    wanted = ScatterAdd((0,)).reference(x, updates, np.array([0, 2] * 20))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[:2]), np.signbit(wanted[:2]))


@pytest.mark.parametrize(
    ("places", "columns", "laned"), [(64, 64, True), (16, 768, True), (50_000, 64, False), (64, 1, False)]
)  # fmt: skip
def test_few_places_of_wide_rows_are_summed_so(places: int, columns: int, laned: bool) -> None:
    def sums(index: Any, updates: Any) -> Any:
        found = np.zeros((places, columns), np.float32)
        np.add.at(found, index, updates)
        return found

    given = (
        ge2.ShapeDtypeStruct((1 << 20,), "int64"),
        ge2.ShapeDtypeStruct((1 << 20, columns), "f4"),
    )
    made = ge2.make_jaxpr(sums)(*given).graph
    (kernel,) = chosen_kernels(made, H200, "sums")[-1:]
    assert ("sum" in kernel.name and "columns of their own" in str(kernel.choice.taken)) is laned
