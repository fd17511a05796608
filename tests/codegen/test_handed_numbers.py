"""A chip's record of numbers reaches the kernels and the predictions that are made by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.choice import Problem, Variant
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Operand
from ge2.compile import compile_graph
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.kernels.products import CudaBlas, CudaSmallProduct, axes_of
from ge2.targets.cuda.limits import H200, Limits
from ge2.targets.cuda.products.rules import many_seconds

MANY = DotGeneral(((2,), (1,)), ((0,), (0,)))


def problem(count: int, side: int) -> Problem:
    t = ArrayType((count, side, side), np.dtype("f4"))
    laid = tuple(
        Operand(role, i, strides_of(t.shape)) for role, i in (("in", 0), ("in", 1), ("out", 0))
    )
    return Problem(MANY, (t, t), (t,), "cuda", frozenset(), laid)


def with_numbers(**numbers: Any) -> Limits:
    products = replace(H200.tuning.products, **numbers)
    return replace(H200, tuning=replace(H200.tuning, products=products))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_of_many_products_that_a_thread_has(rows: int) -> None:
    x = np.ones((4096, 16, 16), np.float32)
    graph = ge2.make_jaxpr(lambda a, b: a @ b)(x, x).graph
    executable = compile_graph(graph, device=OfflineDevice(with_numbers(rows=rows, more_rows=rows)))
    (kernel,) = executable.kernels
    assert f"constexpr int LINES    = {rows:>4};" in str(kernel)


def test_a_clock_that_is_twice_as_fast_takes_half_the_time() -> None:
    slow, fast = (Caps.before(replace(H200, clock=n * H200.clock)) for n in (1, 2))
    family, one = CudaSmallProduct(), Variant()
    times = [family.seconds(problem(2, 64), one, c) - c.speed.launch for c in (slow, fast)]
    assert times[0] == pytest.approx(2 * times[1])


def test_more_rows_of_a_thread_are_fewer_loads() -> None:
    made = problem(1 << 16, 16)
    axes = axes_of(made)
    slow = [replace(with_numbers(rows=n, more_rows=n), clock=1e8) for n in (1, 4)]
    times = [many_seconds(made, axes, Caps.before(each)) for each in slow]
    assert times[0] > times[1]


def test_a_library_has_a_tile_for_each_of_many_matrices() -> None:
    """On an H200 65536 of 16 x 16 took 170 us by the library, and 60 by ours."""
    made, caps, one = problem(1 << 16, 16), Caps.before(H200), Variant()
    library, ours = (each.seconds(made, one, caps) for each in (CudaBlas(), CudaSmallProduct()))
    assert library == pytest.approx(170e-6, rel=0.1) and ours == pytest.approx(60e-6, rel=0.2)
