"""Sources that are compiled together run as they do alone."""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.errors import CompileError
from ge2.targets.cuda.emulator import ShimDevice
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

pytestmark = needs_compiler

SOURCE = """#include "ge2/core.cuh"
constexpr int FACTOR = {0};
extern "C" __global__ void __launch_bounds__(32)
scaled(const int *a, int *b) {{
    b[threadIdx.x] = {1} * a[threadIdx.x];  // scaled(
}}
"""
X = np.arange(4, dtype=np.int32)


def scaled(kernel):
    y = np.zeros_like(X)
    kernel((1,), (4,), (X, y))
    return y


def kernel(*words):
    return ShimDevice().module(SOURCE.format(*words)).get_function("scaled")


def test_kernels_of_one_name_stay_apart():
    with together_in_cuda() as file:
        kernels = [kernel(n, "FACTOR") for n in (2, 3, 2)]
        assert [scaled(f).tolist() for f in kernels] == [(X * n).tolist() for n in (2, 3, 2)]
        assert (len(file.parts), file.made is not None) == (2, True)
        # which comes too late for the file
        assert scaled(kernel(5, "FACTOR")).tolist() == (X * 5).tolist()


def test_what_has_shared_memory_is_compiled_alone():
    with together_in_cuda() as file:
        found = kernel(2, "FACTOR")
        shared = SOURCE.replace("{{", "{{ __shared__ int x; x = {0};").format(7, "x")
        other = ShimDevice().module(shared).get_function("scaled")
        assert (scaled(found).tolist(), scaled(other).tolist()) == (
            (X * 2).tolist(),
            (X * 7).tolist(),
        )
        assert len(file.parts) == 1


def test_a_wrong_source_is_named_and_the_others_run():
    with together_in_cuda() as file:
        right, wrong = kernel(2, "FACTOR"), kernel(2, "FACTORS")
        assert scaled(right).tolist() == (X * 2).tolist()
        assert file.made is None
        with pytest.raises(CompileError, match="FACTORS"):
            scaled(wrong)


def test_the_shared_memory_of_headers_is_no_sum_over_kernels():
    # 16 KiB times FACTOR
    fold = "ge2_column_fold<4, 4096 * FACTOR>(1, [](int x, int y) { return x + y; })"
    with together_in_cuda() as file:
        text = '#include "ge2/team.cuh"\n' + SOURCE.replace("{1}", "(a[0] ? {1} : 1)")
        kernels = [
            ShimDevice().module(text.format(n, fold)).get_function("scaled") for n in (1, 2, 3)
        ]
        assert [scaled(f).tolist() for f in kernels] == [X.tolist()] * 3
        assert (len(file.parts), file.made is not None) == (3, True)
