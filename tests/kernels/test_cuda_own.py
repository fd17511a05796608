"""CUDA of the user's own computes what the references do: any dtype, layout,
number of results and launch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ge2 import extend
from ge2.base.arrays import FP8, SHORT
from ge2.base.errors import ArgumentError
from ge2.choice import Problem
from ge2.compile import compile_graph
from ge2.compile.catalog import select
from ge2.ir import ArrayType, Eqn, Graph, Literal, Var
from ge2.ops.shape import Transpose
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice, limits_of
from tests.exhaustive import sampled
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler


@extend.op
class Moved(extend.Op):
    """Each element, turned around the last axis by some places; the sum of it
    and the one before it too.
    """

    by: int
    steps: tuple[int, ...]
    on: bool
    name = "test_cuda_moved"
    several = True

    def infer(self, x: Any) -> Any:
        return x, x

    def reference(self, x: Any) -> Any:
        y = np.roll(x, self.by * self.steps[1], -1)
        return y, y

    cuda = """
    const int64_t n = x_shape[x_ndim - 1], i = thread % n, row = thread - i;
    const int64_t from = (i + (n - by) * steps[1]) % n;
    const x_t v = x[row + from];
    y0[thread] = v;
    if (on) y1[thread] = v;
    """


@extend.op
class Sums(extend.Op):
    """Sums of rows, a block a row: threads meet in shared memory."""

    name = "test_cuda_sums"
    batch = extend.in_front

    def infer(self, x: Any, scale: Any) -> Any:
        return (x.with_shape(x.shape[:-1]),)

    def reference(self, x: Any, scale: Any) -> Any:
        return (x.sum(-1) * scale).astype(x.dtype)

    def launch(self, x: ArrayType, scale: ArrayType) -> Any:
        return (1, math.prod(x.shape[:-1])), (8, 4), 32 * max(x.dtype.itemsize, 4)

    cuda = """
    extern __shared__ char memory[];
    y_t *part = (y_t *)memory;
    const int64_t row = thread / 32, n = x_shape[x_ndim - 1], lane = thread % 32;
    y_t sum = 0;
    for (int64_t i = lane; i < n; i += 32) sum += x[row * n + i];
    part[lane] = sum;
    __syncthreads();
    for (int far = 16; far; far /= 2) {
        if (lane < far) part[lane] += part[lane + far];
        __syncthreads();
    }
    if (lane == 0) y[row] = twice_$t(part[0]) * scale[0] / 2;
    """
    helpers = "static inline $T twice_$t($T x) { return x + x; }"


moved, sums = Moved(1, (4, 2), True), Sums()


def graph_of(op: Any, *types: ArrayType) -> Graph:
    inputs = tuple(map(Var, types))
    outs = tuple(map(Var, op.infer(*types)))
    return Graph(inputs, (Eqn(op, inputs, outs),), outs)


def ran(op: Any, *arrays: Any, **more: Any) -> list[Any]:
    graph = graph_of(op, *(ArrayType(x.shape, x.dtype) for x in arrays))
    program = compile_graph(graph, device=ShimDevice(**more))
    assert program.program.count("library") == 0
    return program(*arrays)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", list(SHORT), ids=str)
def test_every_dtype(dtype: np.dtype) -> None:
    x = np.arange(15).reshape(3, 5).astype(dtype)
    for y in ran(moved, x):
        assert y.tobytes() == moved.reference(x)[0].tobytes() and y.dtype == dtype


@needs_compiler
@pytest.mark.parametrize("n", [1, 31, 32, 33, 300])
def test_a_launch_of_ones_own(n: int, rng: np.random.Generator) -> None:
    """Blocks along y, threads along x and y, shared memory, barriers; each access is looked at."""
    x = rng.integers(-9, 9, (3, n)).astype(np.float32)
    (y,) = ran(sums, x, np.array([3], np.float32), watch=True, seed=5)
    assert y.tolist() == (x.sum(-1) * 3).tolist()


@needs_compiler
def test_operands_that_lie_otherwise_and_numbers(rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (7, 3)).astype(np.float16)
    inner, scale = Var(ArrayType((3, 7), x.dtype)), Literal.of(np.float16(2))
    outer, out = Var(ArrayType((7, 3), x.dtype)), Var(ArrayType((3,), x.dtype))
    eqns = (Eqn(Transpose((1, 0)), (outer,), (inner,)), Eqn(sums, (inner, scale), (out,)))
    (y,) = compile_graph(Graph((outer,), eqns, (out,)), device=ShimDevice())(x)
    assert y.tolist() == (x.sum(0) * 2).tolist()


@needs_compiler
def test_nothing_to_compute() -> None:
    for y in ran(moved, np.empty((0, 5))):
        assert y.shape == (0, 5)
    (y,) = ran(sums, np.empty((2, 0), np.float32), np.ones(1, np.float32))
    assert y.tolist() == [0.0, 0.0]


def test_it_is_chosen_where_there_is_cuda() -> None:
    @extend.op
    class Plain(extend.Op):
        name = "test_cuda_plain"

        def infer(self, x: Any) -> Any:
            return (x,)

        def reference(self, x: Any) -> Any:
            return x

    t = ArrayType((3,), np.dtype(np.float32))
    assert (
        select(Problem(moved, (t,), (t, t), "cuda")).family.name == "a kernel of your own in CUDA"
    )
    choice = select(Problem(Plain(), (t,), (t,), "cuda"))
    assert choice.family.name != "a kernel of your own in CUDA"
    assert (
        "not a kernel of your own in CUDA: test_cuda_plain has no CUDA" in str(choice).splitlines()
    )


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (3, "it is to return blocks and threads"),
        ((3,), "it is to return blocks and threads"),
        ((1, 2.0), "each is a whole number"),
        ((1, (1, 1, 1, 1)), "each is a whole number"),
        ((1, True), "each is a whole number"),
        ((0, 32), "at least 1 and at most"),
        (((1, 1 << 16), 32), "at least 1 and at most"),
        ((1, 2048), "at least 1 and at most"),
        ((1, (64, 32)), "at most 1024 threads in all"),
        ((1, 32, -1), "bytes of shared memory"),
    ],
)
def test_launches_that_are_refused(found: Any, says: str) -> None:
    @extend.op
    class Launched(extend.Op):
        name = "test_cuda_launched"

        def infer(self, x: Any) -> Any:
            return (x,)

        def reference(self, x: Any) -> Any:
            return x

        def launch(self, x: ArrayType) -> Any:
            return found

        cuda = "y[thread] = x[thread];"

    graph = graph_of(Launched(), ArrayType((3,), np.dtype(np.float32)))
    with pytest.raises(
        ArgumentError, match=rf"(?s)launch of test_cuda_launched returned .*{says}"
    ) as error:
        compile_graph(graph, device=ShimDevice()).build()
    assert "return -(-x.size // 256), 256" in str(error.value)


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_nvrtc_compiles_it(arch: str) -> None:
    device = OfflineDevice(limits_of(arch))
    for dtype in sampled(SHORT, lambda dtype: f"{dtype} for {arch}", lambda dtype: dtype.kind):
        compile_graph(graph_of(moved, ArrayType((3, 5), dtype)), device=device).build()
        if dtype.kind == "f" and dtype not in FP8:
            types = ArrayType((3, 5), dtype), ArrayType((1,), dtype)
            compile_graph(graph_of(sums, *types), device=device).build()
