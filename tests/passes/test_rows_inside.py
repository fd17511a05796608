"""Regions of a GPU read the rows that indices name where those are."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.catalog import interpret
from ge2.ir import Graph, verify
from ge2.ops.graphs.region import Region
from ge2.ops.index import Gather
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.fuse import fuse
from ge2.passes.indices import rows_inside
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler

F = Any
RNG = np.random.default_rng(5)
TABLE, INDEX = RNG.normal(size=(50, 40)), RNG.integers(0, 50, (6, 7))


def rewritten(function: F, *arrays: Any) -> Graph:
    """The graph after the pass, which means the same."""
    closed = ge2.make_jaxpr(function)(*arrays)
    before, given = run((*TIDY, fuse), closed.graph), [*closed.captured, *arrays]
    after = rows_inside(before)
    verify(after)
    for x, y in zip(interpret(before, given), interpret(after, given), strict=True):
        np.testing.assert_array_equal(x, y)
    return after


def gathers(graph: Graph) -> int:
    return sum(isinstance(e.op, Gather) for e in graph.eqns)


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1)])
def test_sums_of_rows_are_one_region(axis: Any) -> None:
    graph = rewritten(lambda t, i: np.take(t, i, 0).sum(axis), TABLE, INDEX)
    (region,) = [e for e in graph.eqns if not e.op.is_view]
    assert isinstance(region.op, Region)
    assert gathers(graph) == 0 < gathers(region.op.graph)


@pytest.mark.parametrize(
    "function", [lambda t, i: t[i, i % 40] * 2, lambda t, i: (t[:, 0][i] * t[:6, :7]).sum(0)]
)
def test_single_elements_are_read_where_they_are_worked_on(function: F) -> None:
    assert gathers(rewritten(function, TABLE, INDEX)) == 0


def test_what_is_folded_may_be_gone_on_with() -> None:
    graph = rewritten(lambda t, i: np.tanh(np.take(t, i, 0).mean(1)) + t[:6], TABLE, INDEX)
    assert gathers(graph) == 0


def test_a_middle_axis_and_one_table_read_twice() -> None:
    def function(t: F, i: F, j: F) -> F:
        return (np.take(t, i, 1) * np.take(t, j, 1) + t[:, :1]).sum(1)

    table = TABLE.reshape(5, 10, 40)
    i, j = RNG.integers(0, 10, (2, 9))
    graph = rewritten(function, table, i, j)
    (region,) = [e for e in graph.eqns if isinstance(e.op, Region)]
    assert (gathers(graph), region.inputs.count(region.inputs[0])) == (0, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda t, i: np.take(t, i, 0),  # nothing reads it here
        lambda t, i: (np.take(t, i, 0), np.take(t, i, 0) * 2),  # the caller has it as well
        lambda t, i: np.take(t, i[0] % 40, 1) * 2,  # elements of rows
        lambda t, i: np.take(t[:, :1], i, 0).sum(1),  # rows of single elements
        lambda t, i: np.take(t, i, 0) - np.take(t, i, 0).mean(-1, keepdims=True),  # read again
        lambda t, i: np.take(t, i[0], 0)[:, None] * t[:9],  # for each row of another
        lambda t, i: np.take(t, i[0], 0).T * t[:40, :7],  # across
        lambda t, i: np.take(t, i[0], 0) @ t.T,  # by a product
        lambda t, i: np.take(t, i, 0).sum((1, 2)),  # along rows, and across them
        lambda t, i: np.take(t[0], i[0, :1]).reshape(()) * 2 + 1,  # where there is no axis
    ],
)
def test_what_stays(function: F) -> None:
    assert gathers(rewritten(function, TABLE, INDEX)) >= 1


def test_threads_have_short_rows_while_they_are_folded() -> None:
    """Forces of springs: what is between two points, along them, and the energy of all."""

    def springs(t: F, i: F, j: F) -> F:
        d = np.take(t, i, 0) - np.take(t, j, 0)
        r = np.sqrt((d**2).sum(1, keepdims=True) + 1)
        return d / r, (r**2).sum()

    for width, inside in ((3, True), (16, True), (40, False)):
        graph = rewritten(springs, TABLE[:, :width], *INDEX[:2])
        assert (gathers(graph) == 0) == inside


DTYPES = [np.float32, np.int16, np.bool_, np.complex64, np.float16, ml_dtypes.bfloat16]
INDICES = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64]
SHAPES = [
    ((7, 3), 0, (5, 3)),
    ((3, 9, 33), 1, (4,)),
    ((11, 2, 64), 0, (1, 6)),
    ((5, 1000), 0, (37,)),
]


def both(function: F, *arrays: Any) -> list[Any]:
    """Pairs of the results of one kernel, and of two."""
    with config.using(executor="shim", passes_off=("resident",)):
        compiled = ge2.jit(function)
        (kernel,) = compiled.lower(*arrays).kernels
        assert "gather[" in str(kernel)
        found = compiled(*arrays)
        with config.using(passes_off=("resident", "rows_inside")):
            assert len(ge2.jit(function).lower(*arrays).kernels) == 2
            wanted = ge2.jit(function)(*arrays)
    return [(np.asarray(a), np.asarray(b)) for a, b in zip(found, wanted, strict=True)]


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis", "count"), SHAPES)
def test_kernels(dtype: Any, shape: tuple[int, ...], axis: int, count: tuple[int, ...]) -> None:
    """Indices may be negative, or outside: then they wrap around."""
    x = RNG.integers(0, 3, shape).astype(dtype)  # whose sums are exact
    n = shape[axis]
    index = RNG.integers(-3 * n, 3 * n, count)
    w = RNG.integers(0, 3, shape[-1]).astype(dtype)

    def function(x: F, index: F, w: F) -> F:
        return np.take(x, index, axis) + w

    def total(x: F, index: F, w: F) -> F:
        return (np.take(x, index, axis) * w).sum(axis)

    def largest(x: F, index: F, w: F) -> F:
        return (np.take(x, index, axis) * w).max(-1)

    def further(x: F, index: F, w: F) -> F:
        return (np.take(x, index, axis) * w).sum(axis) * w[0]

    for each in (function, total, largest, further):
        f = lambda *a, each=each: (each(*a),)  # noqa: E731
        inside = f(x, np.mod(index, n), w)
        for (a, b), c in zip(both(f, x, index, w), inside, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", INDICES)
def test_types_of_indices(dtype: Any) -> None:
    """Each wraps around as in a kernel of its own, its extremes also."""
    ends = np.iinfo(dtype)
    index = np.array([0, 1, 6, 7, 8, ends.min, ends.max, ends.max - 3, 100, 0, 5, 6], dtype)
    x = RNG.integers(0, 9, (7, 36)).astype(np.float32)
    wanted = np.take(x, np.array([int(i) % 7 for i in index]).reshape(4, 3), 0).sum(1)
    ((a, b),) = both(lambda x, i: (np.take(x, i, 0).sum(1),), x, index.reshape(4, 3))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, wanted)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [2, 16, 33, 256, 1000, 1028, 5000, 20000])
def test_long_rows(length: int) -> None:
    """A row is read by as many threads as fit, and none reads beyond its end."""
    x = RNG.integers(0, 9, (4, length)).astype(np.float32)
    index, w = RNG.integers(-4, 4, (9, 2)), RNG.integers(0, 9, length).astype(np.float32)

    def function(x: F, i: F, w: F) -> F:
        return ((np.take(x, i, 0) * w).sum(-1),)

    ((a, b),) = both(function, x, index, w)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, (np.take(x, index, 0) * w).sum(-1))


def one_kernel(function: F, *arrays: Any) -> None:
    """Both indices and what they name are of one kernel, whose results are NumPy's."""
    with config.using(executor="emulator"):
        compiled = ge2.jit(function)
        (kernel,) = compiled.lower(*arrays).kernels
        found = compiled(*arrays)
    assert "gather[" in str(kernel)
    for a, b in zip(found, function(*arrays), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@needs_compiler
@pytest.mark.exhaustive("dtype", "width", table="short rows inside")
@pytest.mark.parametrize("dtype", [*DTYPES, np.float64])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 16])
def test_short_rows_at_indices_that_a_region_makes(width: int, dtype: Any) -> None:
    """Some are negative, and many are the same."""
    x, w = RNG.integers(0, 2, (9, width)).astype(dtype), RNG.integers(0, 2, (70, width))
    index = RNG.integers(-8, 8, 70).astype(np.int32)

    def function(x: F, index: F, w: F) -> F:
        return (x[index + 1] + x[index // 2] * w, x[index % 4])

    one_kernel(function, x, index, w.astype(dtype))


@needs_compiler
@pytest.mark.parametrize("axis", [0, 1, 2, (1, 2)])
def test_pixels_of_several_colours_at_indices_of_two_axes(axis: Any) -> None:
    """Corners of cells, whose places share their parts, and what is folded of them."""
    image = RNG.integers(0, 9, (20, 30, 3)).astype(np.float32)
    u, v = RNG.uniform(-20, 18, (40, 11)), RNG.uniform(-30, 28, (40, 11))

    def sampled(image: F, u: F, v: F) -> F:
        i, j = np.floor(u).astype(np.int32), np.floor(v).astype(np.int32)
        low, high = image[i, j] - image[i, j + 1], image[i + 1, j] - image[i + 1, j + 1]
        return np.where((u - i)[..., None] < 0.5, low, high)

    one_kernel(lambda *a: (sampled(*a),), image, u, v)
    one_kernel(lambda *a: (sampled(*a).max(axis),), image, u, v)


@needs_compiler
def test_functions_of_indices_and_of_elements_are_of_the_kernel_that_reads_them() -> None:
    """Other warps of a GPU work while one waits for what it reads."""
    table, at = RNG.normal(size=(7, 5)), RNG.uniform(0, 100, (40, 30))

    def function(table: F, at: F) -> F:
        i, j = np.floor(at % 7).astype(np.int32), at.astype(np.int64) % 5
        return (np.floor(table[i, j] % 3) + table[(i + 1) % 7, j],)

    one_kernel(function, table, at)


@needs_compiler
def test_several_kernels_read_the_same_short_rows() -> None:
    """What they would read of the rows as an array is more than their indices: forces between neighbours
    by what all of those neighbours' own have left.
    """
    x, near = RNG.integers(-2, 3, (40, 3)).astype(np.float32), RNG.integers(-40, 40, (40, 24))

    def forces(x: F, near: F) -> F:
        d = x[:, None] - x[near]
        r = np.maximum((d * d).sum(-1), 1)
        total = (r < 9).sum(1).astype(np.float32)
        f = (total[:, None] - total[near])[..., None] * d * r[..., None]
        return total, f.sum(1)

    for dtype in (np.int32, np.int8):
        with config.using(executor="emulator"):
            compiled = ge2.jit(forces)
            names = [k.name for k in compiled.lower(x, near.astype(dtype)).kernels]
            found = compiled(x, near.astype(dtype))
        assert not any("gather" in name for name in names) and len(names) == 2
        for a, b in zip(found, forces(x, near), strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_several_kernels_read_stays_where_they_would_read_more() -> None:
    """Of a large array, by long indices, or by many kernels."""

    def read(count: int, table: F, index: F) -> list[str]:
        def function(t: F, i: F) -> F:
            rows, w = t[i], np.ones(t.shape[1], t.dtype)
            for _ in range(count):
                w = np.cumsum((rows * w).max(0))
            return w

        with config.using(executor="emulator"):
            low = ge2.jit(function).lower(table, index)
        return [k.name for k in low.kernels if "gather" in k.name]

    def spec(n: int, width: int, dtype: Any = np.float32) -> Any:
        return ge2.ShapeDtypeStruct((n, width)[: 1 + (width > 0)], dtype)

    assert not read(3, spec(99, 4), spec(5000, 0, np.int32))
    assert read(3, spec(1 << 20, 4), spec(5000, 0, np.int32))
    assert read(3, spec(99, 2, np.float16), spec(5000, 0, np.int64))
    assert read(4, spec(99, 4), spec(5000, 0, np.int32))


def test_rows_of_many_elements_have_a_kernel_of_their_own() -> None:
    """Which would work out an index for each of a row's threads."""
    with config.using(executor="emulator"):
        low = ge2.jit(lambda x, i: x[i + 1] * 2).lower(np.ones((9, 17)), np.arange(5))
    assert [k.name for k in low.kernels] == ["pointwise_0", "pointwise_1"]


@needs_nvrtc
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbours_of_a_row_are_read_at_once(axis: int, dtype: Any) -> None:
    """By threads that lie along the rows, though there are many more indices; and nothing is spilled."""
    table = ge2.ShapeDtypeStruct((50000, 256), dtype)
    index = ge2.ShapeDtypeStruct((8192, 16), np.int32)
    found = kernels(lambda t, i: np.take(t, i, 0).sum(axis), table, index)
    (main, *rest) = [text for _, text in found]
    assert f"_read = ge2_read<PACK, {16 // np.dtype(dtype).itemsize}>(" in main
    assert not any("gather" in text for text in rest)
    for made in compile_all([Order(main, "sm_90a")]):
        assert not any(usage.spills for usage in made.kernels), made.kernels
