"""Regions of a GPU read the parts of joined, padded and updated arrays where those are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.catalog import interpret
from ge2.ir import Graph, verify
from ge2.ops.graphs import is_move
from ge2.ops.graphs.region import Region
from ge2.ops.reduce import CumProd, Reduce
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.fuse import fuse
from ge2.passes.moves_inside import moves_inside
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice, limits_of
from ge2.targets.cuda.limits import H200
from tests.compared import all_close, all_equal
from tests.together import needs_compiler

F = Any


def fused(function: F, *arrays: Any) -> tuple[Graph, list[Any]]:
    """The graph before the pass, and what it is given."""
    closed = ge2.make_jaxpr(function)(*arrays)
    return run((*TIDY, fuse), closed.graph), [*closed.captured, *arrays]


def moved(function: F, *arrays: Any) -> Graph:
    """The graph after the pass, which means the same."""
    before, given = fused(function, *arrays)
    after = moves_inside(before)
    verify(after)
    for eqn in after.eqns:
        if isinstance(eqn.op, Region):
            has_its_axes(eqn.op)
    all_equal(interpret(before, given), interpret(after, given))
    return after


def has_its_axes(region: Region) -> None:
    """Each equation has an axis of the space for each of its own: a number has none."""
    for e, at in zip(region.graph.eqns, region.axes, strict=True):
        shape = (e.inputs[0] if isinstance(e.op, Reduce) else e.outs[0]).type.shape
        assert len(at) == len(shape), e


def moves(graph: Graph) -> int:
    return sum(map(is_move, graph.eqns))


def regions(graph: Graph) -> int:
    return sum(isinstance(e.op, Region) for e in graph.eqns)


X, Y = np.arange(35.0).reshape(5, 7) ** 2 % 13, np.arange(35.0).reshape(5, 7)


def rolled(x: F) -> F:
    return np.roll(x, 1, 0) + np.roll(x, -1, 1) - 2 * x


def differences(x: F) -> F:
    gy, gx = np.gradient(x)
    return np.sqrt(gx**2 + gy**2)


def unevenly(x: F) -> F:
    """Differences by places, whose first distance doubled is a number that a region has computed."""
    return np.gradient(x[0], x[0] + Y[0])


def padded(x: F) -> F:
    p = np.pad(x, 1)
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * x


def edges(x: F) -> F:
    p = np.pad(x, 1, mode="edge")
    return p[2:, 1:-1] * p[:-2, 1:-1] - p[1:-1, 2:] * p[1:-1, :-2]


def constants(x: F) -> F:
    p = np.pad(x, 2, constant_values=3)
    return p[:5, :7] * x


def written(x: F) -> F:
    y = x * 1.0
    y[1:-1, 1:-1] = (x[:-2, 1:-1] + x[2:, 1:-1]) / 2
    return y * 3


def counted(x: F) -> F:
    n = np.arange(7.0)
    return np.concatenate([x[:, 1:] * n[1:], x[:, :1] - n[6]], 1) + x


def summed(x: F) -> F:
    d = np.roll(x, 1, 1) - x
    return d.sum(0), (d * d).sum()


def rows(x: F) -> F:
    y = np.roll(x, 2, 1) * x
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize(
    "function",
    [rolled, differences, padded, edges, constants, written, counted, summed, rows],
    ids=lambda f: f.__name__,
)
def test_moves_are_part_of_the_region_that_reads_them(function: F) -> None:
    graph = moved(function, X)
    assert moves(fused(function, X)[0])
    assert (moves(graph), regions(graph)) == (0, 1)


def test_a_number_that_a_moved_region_computes_has_no_axis() -> None:
    assert moves(moved(unevenly, X)) == 0


def test_a_join_that_is_a_result_computes_its_parts() -> None:
    graph = moved(lambda x, y: np.concatenate([x[1:] * y[1:], x[:1]]), X, Y)
    assert (moves(graph), regions(graph)) == (0, 1)


def test_a_join_of_arrays_that_are_there_stays_a_copy() -> None:
    graph = moved(lambda x, y: np.concatenate([x, y]), X, Y)
    assert (moves(graph), regions(graph)) == (1, 0)


def test_a_join_that_others_read_stays() -> None:
    def function(x: F) -> F:
        p = np.pad(x, 1)
        return p, p[1:-1, 1:-1] * x

    graph = moved(function, X)
    assert (moves(graph), regions(graph)) == (0, 2)
    assert graph.eqns[0].outs == graph.outputs[:1]
    j = moved(lambda x: (y := np.concatenate([x, x]), y[:5] * x), X)
    assert moves(j) == 1


def test_a_join_that_products_read_computes_its_parts() -> None:
    """Else each of its readers would."""

    def function(x: F) -> F:
        j = np.concatenate([np.sin(x[1:]), x[:1]])
        return np.cos(j) + 1, j @ x.T

    graph = moved(function, X)
    assert (moves(graph), regions(graph)) == (0, 2)


def test_a_torus_is_read_at_indices() -> None:
    """Joins along both axes, of parts of one array, are one read each."""

    def function(x: F) -> F:
        return sum(np.roll(np.roll(x, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1))

    (region,) = [e.op for e in moved(function, X).eqns if isinstance(e.op, Region)]
    names = [e.op.name for e in region.graph.eqns]
    assert (names.count("in_runs"), names.count("where"), names.count("pad")) == (8, 0, 0)


def test_repeated_edges_are_read_at_indices() -> None:
    (region,) = [e.op for e in moved(edges, X).eqns if isinstance(e.op, Region)]
    names = [e.op.name for e in region.graph.eqns]
    assert (names.count("in_runs"), names.count("where")) == (4, 0)


def test_costly_parts_are_not_computed_in_each_place() -> None:
    def function(x: F) -> F:
        p = np.pad(np.exp(x) * np.sin(x) / np.cos(x) + np.tanh(x), 1)
        return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]

    assert (moves(moved(function, X)), regions(moved(function, X))) == (0, 2)


def test_long_chains_of_joins_stay() -> None:
    """Rows that are appended one by one, and many arrays side by side."""

    def function(x: F) -> F:
        y = x[:1]
        for _ in range(600):
            y = np.concatenate([y * 1.5, x[:1]])
        return y * 2

    graph = moved(function, X)
    assert sum(len(e.op.graph.eqns) for e in graph.eqns if isinstance(e.op, Region)) < 6000
    assert moves(moved(lambda x: np.concatenate([x] * 60) * np.concatenate([x + 1] * 60), X))


def test_few_elements_are_written_where_they_belong() -> None:
    """And not the whole array again."""

    def function(x: F) -> F:
        y = x * 2
        y[1] = y[0] + 1
        return y @ y.T

    assert moves(moved(function, X)) == 1


def test_parts_that_are_nowhere_are_left_out() -> None:
    graph = moved(lambda x, y: np.concatenate([x, y, x * y])[6:9] + x[:3], X, Y)
    (region,) = [e.op for e in graph.eqns if isinstance(e.op, Region)]
    assert not {"where", "mul"} & {e.op.name for e in region.graph.eqns}


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "dtype", [np.float32, np.int16, np.bool_, np.complex64, ml_dtypes.bfloat16]
)
@pytest.mark.parametrize("shape", [(5, 7), (1, 9), (64, 33), (40,), (3, 4, 5)])
def test_kernels(dtype: Any, shape: tuple[int, ...]) -> None:
    """What a kernel with such reads computes is what the kernels compute that copy."""
    rng = np.random.default_rng(3)
    x, y = (rng.integers(0, 9, shape).astype(dtype) for _ in range(2))

    def function(x: F, y: F) -> F:
        last = x.ndim - 1
        j = np.roll(x, 1, last)
        w = np.where(y, np.concatenate([x[:1], y[1:]]), j)
        p = np.pad(y, [(1, 2)] * x.ndim)[tuple(slice(2, n + 2) for n in x.shape)]
        return w, np.where(p, np.roll(j, -2, 0), w)

    with config.using(executor="shim"):
        found = ge2.jit(function)(x, y)
        with config.using(passes_off=("moves_inside",)):
            wanted = ge2.jit(function)(x, y)
    for a, b, c in zip(found, wanted, function(x, y), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        np.testing.assert_array_equal(np.asarray(a), c)


@needs_compiler
@pytest.mark.parametrize("shape", [(70, 300), (3, 30, 257), (33, 513)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_thread_has_rows_below_one_another(shape: tuple[int, ...], dtype: Any) -> None:
    """Where there are many, as on a chip with few threads."""
    chip = replace(EMULATED, multiprocessors=1, threads_per_multiprocessor=256)
    x = np.random.default_rng(3).integers(0, 9, shape).astype(dtype)

    def points(x: F) -> F:
        return np.roll(x, 1, 0) + np.roll(x, -1, -1) * 2 - np.roll(x, 2, -1) + np.roll(x, -1, 0) * x

    with config.using(executor="shim", tuning=(chip,)):
        compiled = ge2.jit(points)
        assert "TURNS" in str(compiled.lower(x).kernels[0])
        np.testing.assert_array_equal(np.asarray(compiled(x)), points(x))


def test_places_in_a_large_array_have_64_bits() -> None:
    """Though the region is small."""
    x = ge2.ShapeDtypeStruct((3 << 30,), np.uint8)
    y = ge2.ShapeDtypeStruct((3, 1 << 30), np.uint8)
    with config.using(executor="shim"):
        joined = ge2.jit(lambda x: np.concatenate([x[-500:], x[-1000:-500]]) * 2).lower(x)
        padded = ge2.jit(lambda y: np.pad(y[2:, :9], 1)[:, 1:] * 2).lower(y)
    assert "int64_t a_window_by" in str(joined.kernels[0])
    assert "int64_t b_back" in str(padded.kernels[0])


@needs_compiler
def test_no_result_is_written_over_what_its_neighbours_read() -> None:
    x = np.arange(4096.0)

    def steps(x: F) -> F:
        for _ in range(3):
            x = np.roll(x, 1) * 0.5 + x
        return x

    with config.using(executor="shim"):
        np.testing.assert_array_equal(
            np.asarray(ge2.jit(steps, donate_argnums=0)(x.copy())), steps(x)
        )


def element(x: F, rng: np.random.Generator) -> F:
    return x[int(rng.integers(5)), int(rng.integers(7))]


def line(x: F, rng: np.random.Generator) -> F:
    """Three elements, along an axis of x or from anywhere."""
    i, j = int(rng.integers(3)), int(rng.integers(4))
    kind = rng.integers(6)
    if kind == 0:
        return x[i, j : j + 3]
    if kind == 1:
        return x[i : i + 3, j]
    if kind == 2:
        return np.stack([element(x, rng) for _ in range(3)])
    if kind == 3:
        return np.concatenate([x[i, j : j + 1], x[i + 1, j : j + 2]])
    return np.repeat(x[i, j], 3) if kind == 4 else x[i, j : j + 3][::-1]


def block(x: F, rng: np.random.Generator) -> F:
    """An array of (2, 3) elements of x."""
    i, j = int(rng.integers(3)), int(rng.integers(4))
    kind = rng.integers(5)
    if kind == 0:
        return x[i : i + 2, j : j + 3]
    if kind == 1:
        return x[i : i + 3, j : j + 2].T
    if kind == 2:
        return np.stack([line(x, rng), line(x, rng)])
    if kind == 3:
        return np.stack([np.stack([element(x, rng) for _ in range(2)]) for _ in range(3)], 1)
    return np.concatenate([x[i : i + 2, j : j + 1], x[i + 1 : i + 3, j : j + 2]], 1)


@pytest.mark.parametrize("seed", range(60))
def test_random_joins_of_parts_of_one_array(seed: int) -> None:
    def joined(x: F) -> F:
        rng = np.random.default_rng(seed)
        make = (element, line, block)[int(rng.integers(3))]
        parts = [make(x, rng) for _ in range(int(rng.integers(2, 4)))]
        axis = int(rng.integers(parts[0].ndim + 1))
        stacks = axis == parts[0].ndim or rng.integers(2)
        y = np.stack(parts, axis) if stacks else np.concatenate(parts, axis)
        return (y * 2, np.exp(-y).sum(0), np.pad(y, 1) * 3)[int(rng.integers(3))]

    moved(joined, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.stack([x[0, 1:4], x[2, 2:5]]) * 2,  # the column depends on the row
        lambda x: np.concatenate([x[0:2, 1:3], x[1:3, 2:4]], 1) * 2,
        lambda x: np.stack([x[0, 1], x[1, 2], x[2, 0]]).min() + x[0, 0],  # along a diagonal
        lambda x: np.stack([np.stack([x[0, 1], x[1, 1]]), np.stack([x[0, 2], x[1, 2]])]) * 2,
    ],
)
@needs_compiler
def test_parts_whose_indices_depend_on_more_than_one_place(function: F) -> None:
    moved(function, X)
    with config.using(executor="shim"):
        np.testing.assert_array_equal(ge2.jit(function)(X), function(X))


def turned_pairs(x: F, c: F) -> F:
    """Pairs of neighbours, turned by an angle each: as rotary embeddings are in some models."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return np.stack([a * c - b, a + b * c], -1).reshape(x.shape)


def test_columns_side_by_side_are_one_kernel_however_large() -> None:
    """Written one by one they would lie apart: an access for each element."""
    after = moved(turned_pairs, np.arange(48.0).reshape(6, 8), np.arange(4.0))
    assert moves(after) == 0 and regions(after) == 1
    large = (
        ge2.ShapeDtypeStruct((64, 128, 128), np.float32),
        ge2.ShapeDtypeStruct((64,), np.float32),
    )
    after = moves_inside(run((*TIDY, fuse), ge2.make_jaxpr(turned_pairs)(*large).graph))
    assert moves(after) == 0 and regions(after) == 1


def turned(x: F, c: F, s: F) -> F:
    """Vectors whose halves are turned, as rotary embeddings are in other models."""
    h = x.shape[-1] // 2
    return x * c + np.concatenate([-x[..., h:], x[..., :h]], -1) * s


def filtered(x: F, w: F) -> F:
    p = np.pad(x, ((0, 0), (3, 0), (0, 0)))
    return np.tanh(sum(p[:, k : k + x.shape[1]] * w[k] for k in range(4)))


def with_slope(f: F) -> F:
    def back(x: F, *more: F) -> F:
        y, pull = ge2.vjp(lambda x: f(x, *more), x)
        return y, *pull(y)

    return back


@pytest.mark.parametrize(("f", "shapes"), [(turned, ((6, 16),) * 2), (filtered, ((4, 16),))])
@needs_compiler
def test_the_derivative_of_shifted_reads_is_one_kernel(f: F, shapes: Any) -> None:
    large = [(64, 512, 128), *((512 if s[0] == 6 else 4, 128) for s in shapes)]
    given = [ge2.ShapeDtypeStruct(s, np.float32) for s in large]
    graph = ge2.make_jaxpr(with_slope(f))(*given).graph
    made = compile_graph(graph, device=OfflineDevice(limits_of("sm_90a")))
    assert len(made.kernels) == 2
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape) for shape in ((2, 6, 16), *shapes)]
    with config.using(executor="shim"):
        found = ge2.jit(with_slope(f))(*arrays)
    all_close(found, with_slope(f)(*arrays), rtol=1e-12)


def waves(u: Any, before: Any) -> Any:
    """A step reads an array where it lies, behind a barrier, and its neighbours before it."""
    for _ in range(3):
        lap = np.zeros_like(u)
        inner = u[1:-1, 1:-1, 1:-1]
        lap[1:-1, 1:-1, 1:-1] = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] - 6 * inner
        u, before = 2 * u - before + 0.2 * lap, u
    return u, before


@needs_compiler
def test_nothing_is_written_over_what_is_read_elsewhere_by_another_name() -> None:
    u, before = np.random.default_rng(1).standard_normal((2, 96, 96, 96))
    with config.using(executor="emulator"):
        found = ge2.jit(waves)(u, before)
    all_equal(found, waves(u, before))


def test_what_is_computed_again_between_steps_keeps_no_edges_outside() -> None:
    """0.1 * f is made again in each step, behind a barrier that is given parts of the padded array."""

    def steps(u: Any, f: Any, held: Any) -> Any:
        first = u
        for _ in range(3):
            p = np.pad(u, 1, mode="edge")
            around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
            u = np.where(held, first, 0.25 * (around - 0.1 * f))
        return u

    u, f = (np.broadcast_to(np.float32(n), (2048, 2048)) for n in range(2))
    graph = ge2.make_jaxpr(steps)(u, f, np.broadcast_to(np.True_, u.shape)).graph
    planned = compile_graph(graph, name="steps", device=OfflineDevice(H200))
    assert [step.name for step in planned.program.steps if step.kind == "kernel"] == [
        "pointwise"
    ] * 3


@pytest.mark.parametrize(
    "f",
    [
        lambda x, z: x + z.sum(),
        lambda x, z: (x * 2, np.prod(z) + np.any(z, 0)),
        lambda x, z: np.pad(x[:0] * 4, ((0, 3), (0, 0))),
        lambda x, z: np.concatenate([x[:0], np.zeros((2, 3)), x[:0]]),
        lambda x, z: np.pad(z, ((1, 2), (0, 0)), constant_values=2.0),
    ],
)
@needs_compiler
def test_arrays_of_no_elements_leave_no_memory_unwritten(f: Any) -> None:
    x, z = np.ones((1, 3)), np.ones((0, 3))
    with config.using(executor="emulator"):
        compiled = ge2.jit(f)
        for n in range(2):
            junk = [np.full(shape, 7.0 + n) for shape in ((1, 3), (2, 3), (3, 3)) * 20]
            del junk
            for y, w in zip(*map(ge2.tree.leaves, (compiled(x, z), f(x, z))), strict=True):
                np.testing.assert_array_equal(y, w)


def test_a_large_array_is_one_kernel_where_that_saves_several_launches() -> None:
    """Its sides would be launches of their own; one side is written while the rest is."""
    x = ge2.ShapeDtypeStruct((1024, 1024), np.float32)

    def framed(x: F) -> F:
        return np.pad(x[1:-1, 1:-1] * 2, 1)

    def below(x: F) -> F:
        return np.pad(x[1:] * 2, ((0, 1), (0, 0)))

    def bordered(x: F) -> F:
        return np.concatenate([x[:1] * 2, x[1:-1] * 3, x[-1:] * 4])

    for f, left in ((framed, 0), (below, 1), (bordered, 0)):
        graph = run((*TIDY, fuse), ge2.make_jaxpr(f)(x).graph)
        assert moves(graph) == 1 and moves(moves_inside(graph)) == left


def test_places_are_counted_from_a_reshape_on() -> None:
    """Of the derivative of a product from the end: joins of one shape are read in another."""
    graph = ge2.make_jaxpr(lambda x, ct: ge2.vjp(CumProd(0, True), x)[1](ct))(
        *[np.ones(5)] * 2
    ).graph
    assert compile_graph(graph, device=OfflineDevice(limits_of("sm_90a"))).kernels


def test_a_step_in_time_reads_what_the_step_before_it_wrote_and_edges_that_nobody_writes() -> None:
    """Each step read what all steps before it wrote inside of edges, and kept it until then."""

    def steps(a: F, b: F, n: int) -> F:
        a, b = a.copy(), b.copy()
        for _ in range(n):
            b[1:-1] = a[:-2] + a[2:]
            a[1:-1] = b[1:-1] * 2 + b[:-2]
        return a, b

    def most(n: int) -> int:
        graph = moved(lambda a, b: steps(a, b, n), np.arange(9.0), np.ones(9))
        return max(len(e.inputs) for e in graph.eqns if isinstance(e.op, Region))

    assert most(3) == most(5) == most(8) <= 3


def test_beside_a_slice_is_what_other_updates_wrote_there() -> None:
    """An update of other elements, or of more of them, is seen beside a later one."""

    def f(x: F) -> F:
        x = x * 2
        x[1:5] = x[0:4] - 1
        x[2:4] = x[1:3] * x[3:5]
        x[2:4] = x[2:4] + x[4:6]
        x[3:6] = x[2:5] * 0.5
        return x[1:] - x[:-1]

    moved(f, np.arange(9.0))
    moved(lambda x: f(x) + f(x * 3), np.arange(9.0))


def heated(a: F, b: F, n: int) -> F:
    a, b = a.copy(), b.copy()
    for _ in range(n):
        b[1:-1, 1:-1] = 0.25 * (a[2:, 1:-1] + a[:-2, 1:-1] + a[1:-1, 2:] + a[1:-1, 1:-1])
        a[1:-1, 1:-1] = 0.25 * (b[2:, 1:-1] + b[:-2, 1:-1] + b[1:-1, 2:] + b[1:-1, 1:-1])
    return a, b


def kept_parts(a: F, b: F, n: int) -> F:
    b, total = b.copy(), 0.0
    for _ in range(n):
        part = np.tanh(a[1:] - b[:-1])
        b[1:] = part
        a = a * 0.5 + b
        b[0] = b[1] * 2
        total = total + part
    return a, b, total


@needs_compiler
@pytest.mark.parametrize("f", [heated, kept_parts])
def test_parts_are_read_in_the_arrays_that_they_are_written_into(f: F) -> None:
    a, b = np.random.default_rng(3).standard_normal((2, 100, 110))
    with config.using(executor="emulator", passes_off=("roll",)):
        all_close(ge2.jit(lambda a, b: f(a, b, 4))(a, b), f(a, b, 4))


@pytest.mark.parametrize(("size", "fewer"), [(240, 5), (20, 0)])
def test_large_parts_that_are_read_later_are_no_kernels_between_steps(
    size: int, fewer: int
) -> None:
    """A part that is read by itself as well was copied into its array, each step in time."""
    spec = ge2.ShapeDtypeStruct((size, size, size), np.float64)

    def heat(a: F, b: F) -> F:
        a, b = a.copy(), b.copy()
        for _ in range(6):
            b[1:-1, 1:-1, 1:-1] = a[2:, 1:-1, 1:-1] + a[:-2, 1:-1, 1:-1] - a[1:-1, 1:-1, 1:-1]
            a[1:-1, 1:-1, 1:-1] = b[1:-1, 2:, 1:-1] - b[1:-1, 1:-1, 1:-1] + b[1:-1, 1:-1, :-2]
        return a, b

    def kernels(*off: str) -> int:
        with config.using(passes_off=off):
            graph = ge2.make_jaxpr(heat)(spec, spec).graph
            return len(compile_graph(graph, device=OfflineDevice(H200)).kernels)

    assert kernels("read_where_written") - kernels() == fewer
