"""The first or last few of sorted lines are folds of the lines, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.reads import few_ranks
from tests.passes.test_sorted_reads import lines
from tests.together import needs_compiler


def names(function: Any, *arrays: Any) -> list[str]:
    graph = few_ranks(run(TIDY, ge2.make_jaxpr(function)(*arrays).graph))
    return [e.op.name for e in graph.eqns]


CASES = {
    "first": lambda x: np.sort(x, -1)[:, :3],
    "last": lambda x: np.sort(x, -1)[:, -2:],
    "within": lambda x: (np.sort(x, -1)[:, 1:3], np.sort(x, -1)[:, 4]),
    "places": lambda x: np.argsort(x, -1, kind="stable")[:, :4],
    "last places": lambda x: np.argsort(x, -1, kind="stable")[:, -3:],
    "of columns": lambda x: np.sort(x.T, 0)[:2],
    "partition": lambda x: np.partition(x, 2, -1)[:, 2],
}


@needs_compiler
@pytest.mark.exhaustive("dtype", table="few ranks")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_numpy(name: str, dtype: Any) -> None:
    x = lines(dtype, 300)
    function = CASES[name]
    assert not {"sort", "argsort"} & {*names(function, x)}
    with config.using(executor="shim"):
        found = ge2.jit(function)(x)
    wanted = function(x)
    for y, w in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(y), w)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.sort(x, -1),  # all of it is a result
        lambda x: np.sort(x, -1)[:, :20],  # many
        lambda x: np.sort(x, -1)[:, 100:102],  # in the middle
        lambda x: np.sort(x, -1)[:, ::100],
        lambda x: np.sort(x[:, :50], -1)[:, :2],  # short lines are sorted in registers
        lambda x: np.sort(x + 1j, -1)[:, :2],
    ],
)
def test_others_are_sorted(function: Any) -> None:
    assert "sort" in names(function, lines(np.float64))


def test_of_lines_that_no_block_holds_one_is_folded_for_and_several_are_selected() -> None:
    x = np.zeros((2, 70_000), np.float32)
    assert "sort" in names(CASES["first"], x) and "argsort" in names(CASES["last places"], x)
    assert "sort" not in names(lambda x: np.sort(x, -1)[:, -1:], x)
    assert "argsort" not in names(lambda x: np.argsort(-x, -1, kind="stable")[:, :1], x)


LONG_CASES = {
    "beams": lambda x: np.argsort(-x, -1, kind="stable")[:, :4],
    "beams and their scores": lambda x: (
        i := np.argsort(-x, -1, kind="stable")[:, :4], np.take_along_axis(x, i, -1)
    ),
    "turned around": lambda x: np.argsort(x, -1, kind="stable")[:, ::-1][:, :4],
    "largest": lambda x: np.sort(x, -1)[:, -2:],
    "largest, turned around": lambda x: np.sort(x, -1)[:, ::-1][:, 1:5],
}  # fmt: skip


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG_CASES)
def test_a_few_of_few_long_lines_are_found_in_parts(name: str) -> None:
    """Among them are NaN, zeros of both signs, and more equal elements than a block keeps."""
    x = np.random.default_rng(5).standard_normal((3, 66_000)).astype(np.float32)
    x[0, 70:90:5], x[1, ::2], x[2] = np.nan, 3.0, np.where(x[2] < 0, -0.0, 0.0)
    x[1, 65_000] = 3.5
    with config.using(executor="shim"):
        f = ge2.jit(LONG_CASES[name])
        found, kernels = f(x), str(f.lower(x).kernels)
    assert "_of_parts" in kernels and "reduce" not in kernels
    pairs = zip(ge2.tree.leaves(found), ge2.tree.leaves(LONG_CASES[name](x)), strict=True)
    for y, w in pairs:
        np.testing.assert_array_equal(np.asarray(y), w)
