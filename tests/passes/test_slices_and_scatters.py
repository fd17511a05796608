"""Slices before elementwise work, and one sum at indices for several, on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

import ge2
import ge2.numpy as nx
from ge2.base.arrays import INT64
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.catalog import interpret
from ge2.compile.rewrites.persistent import narrow_integers
from ge2.ir import Literal, verify
from ge2.ops.graphs.region import Region
from ge2.ops.index import ScatterAdd
from ge2.ops.shape import Iota, Pad
from ge2.passes import TIDY
from ge2.passes.context import NOTHING, Context, run
from ge2.passes.context import TUNING as PASSES
from ge2.passes.fuse import fuse
from ge2.passes.indices import join_scatters, repeated_updates, sums_of_zeros, unpadded_updates
from ge2.passes.reads import small_turned
from ge2.passes.slices import little_first, slices_first
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.limits import H200
from tests.compared import all_close, all_equal
from tests.kernels.programs import needs_compiler
from tests.passes.graphs import names


def cloud(x: Any, charge: Any) -> Any:
    """Charges at the corners of cells: sums at indices that come from columns."""
    n = 4
    low = np.floor(x).astype(np.int64)
    part = x - low
    grid = np.zeros(n * n)
    for i in (0, 1):
        for j in (0, 1):
            at = (low + np.array([i, j])) % n
            w = np.abs(1 - i - part[:, 0]) * np.abs(1 - j - part[:, 1]) * charge
            grid = grid + np.bincount(at[:, 0] * n + at[:, 1], weights=w, minlength=n * n)
    return grid


def alike(f: Any, by: Any, *args: Any) -> Any:
    """The graph after a pass, which is valid and has the values of the one before."""
    before = ge2.make_jaxpr(f)(*args).graph
    tidy = run(TIDY, before)
    after = by(tidy)
    verify(after)
    consts = ge2.make_jaxpr(f)(*args).captured
    all_close(after(*consts, *args), tidy(*consts, *args), rtol=1e-14)
    return tidy, after


def test_columns_are_sliced_before_what_is_done_to_them(rng: np.random.Generator) -> None:
    def f(x: Any, y: Any) -> Any:
        z = np.floor(x + y) * 2.0
        return z[:, 0] * z[:, 1] + z[:, 0], (z[:, 1:2] - z[:, 2:])[1:, 0]

    before, after = alike(f, slices_first, rng.normal(size=(9, 3)), rng.normal(size=3))
    shapes = {e.outs[0].type.shape for e in after.eqns if e.op.name == "floor"}
    assert shapes == {(9, 1), (8, 1)}
    assert names(after).count("floor") == 3 > names(before).count("floor")


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.exp(x)[:, :2] + np.exp(x)[:, 1:],  # more elements than there are
        lambda x: (np.exp(x)[:, 0], np.exp(x)),  # the whole is a result
        lambda x: np.exp(x)[:, 0] + np.exp(x).sum(1),  # or is read
        lambda x: np.exp(np.concatenate([x] * 4, 1))[:, :7],  # more than half of many columns
    ],
)
def test_what_is_read_whole_is_computed_whole(f: Any, rng: np.random.Generator) -> None:
    before, after = alike(f, slices_first, rng.normal(size=(9, 3)))
    assert after is before


@pytest.mark.parametrize(("rows", "several"), [(4, False), (1, True)])
def test_indices_of_rows_are_computed_whole(rows: int, several: bool, rng: Any) -> None:
    """No region reads them, but that of single elements is computed where these are read."""

    def f(x: Any, edges: Any) -> Any:
        ends = edges % 7
        x = x if rows > 1 else x[:, 0]
        return x[ends[:, 0]] - x[ends[:, 1]]

    before, after = alike(f, slices_first, rng.normal(size=(7, rows)), rng.integers(0, 99, (20, 2)))
    assert (after is not before) == several


def test_a_slice_of_a_slice(rng: np.random.Generator) -> None:
    def f(x: Any) -> Any:
        y = np.exp(x)
        return y[:, 0][2:] + y[:, 0][:-2], y[:, 1][3:]

    alike(f, slices_first, rng.normal(size=(9, 2)))


@pytest.mark.parametrize("by", [little_first, slices_first])
def test_a_slice_of_a_slice_that_has_nothing(by: Any, rng: np.random.Generator) -> None:
    """As in the derivative of a running product of five numbers, whose parts are halved until none is left."""

    def f(x: Any) -> Any:
        y = np.exp(x[::4] * 2.0)
        return np.concatenate([y[1:], np.sin(y[1:])])

    for n in (1, 2, 4, 5):
        alike(f, by, rng.normal(size=n))
    x = rng.normal(size=(4, 5))
    slope = ge2.grad(lambda x: ge2.lax.scan(lambda c, a: (c * a, np.cumprod(c)), x[0], x)[1].sum())
    found = ge2.jit(slope)(x)
    with config.using(executor="reference"):
        np.testing.assert_allclose(found, ge2.jit(slope)(x), rtol=1e-12)


@pytest.mark.parametrize("by", [little_first, slices_first])
def test_columns_of_points_are_computed_where_they_are_read(
    by: Any, rng: np.random.Generator
) -> None:
    """Each of them once, so that no array of points is written for it."""

    def f(x: Any) -> Any:
        y = np.floor(x * 3.0)
        return y[:, 0] * y[:, 1] + y[:, 2]

    assert names(alike(f, by, rng.normal(size=(40, 3)))[1])[0] == "slice"

    def twice(x: Any) -> Any:
        y = np.floor(x * 3.0)
        return y[:, 0] * y[:, 1] + y[:, 2] + y[:, :2].sum(1)

    assert names(alike(twice, by, rng.normal(size=(40, 3)))[1])[0] == "mul"


def test_sums_that_begin_with_zeros_are_one(rng: np.random.Generator) -> None:
    """Zeros that are added first are no work of their own."""

    def f(w: Any, v: Any, at: Any) -> Any:
        return np.bincount(at, w, 9) + 0.0 + np.bincount(at[::-1], v, 9)

    at = rng.integers(0, 9, 50)
    before, after = alike(f, join_scatters, rng.normal(size=50), rng.normal(size=50), at)
    assert names(before).count("scatter_add") == 2
    assert (names(after).count("scatter_add"), names(after).count("add")) == (1, 0)


def test_sums_at_indices_one_after_another_are_one(rng: np.random.Generator) -> None:
    x, charge = rng.uniform(0, 4, (50, 2)), rng.normal(size=50)
    before, after = alike(cloud, join_scatters, x, charge)
    assert names(before).count("scatter_add") == 4
    assert names(after).count("scatter_add") == 1
    with config.using(executor="shim"):
        np.testing.assert_allclose(ge2.jit(cloud)(x, charge), cloud(x, charge), rtol=1e-13)


def test_rows_at_four_corners_are_one_sum() -> None:
    """Of 131072 points in a plane of 16 features: the plane's derivative is written once."""

    def features(plane: Any, i: Any, j: Any, w: Any) -> Any:
        corners = ((i, j, w), (i + 1, j, 1 - w), (i, j + 1, w * w), (i + 1, j + 1, -w))
        return sum((plane[a, b] ** 2 * c[:, None]).sum() for a, b, c in corners)

    spec, n = ge2.ShapeDtypeStruct, 1 << 17
    at = spec((n,), np.int32)
    plane, w = spec((256, 256, 16), np.float32), spec((n,), np.float32)
    found = run(TIDY, ge2.make_jaxpr(ge2.grad(features))(plane, at, at, w).graph)
    after = join_scatters(found, Context(tuning=PASSES))
    assert (names(found).count("scatter_add"), names(after).count("scatter_add")) == (4, 1)


def compacted(x: Any, y: Any) -> Any:
    """The elements that are kept, at the front."""
    keep = x > 0
    out = np.zeros(x.shape[0] + 1)
    out[np.where(keep, np.cumsum(keep.astype(np.int32)) - 1, x.shape[0])] = x * y
    return out[:-1], np.cumsum((x < 1).astype(np.uint8))


NARROW = Context(tuning=replace(PASSES, narrowed=1))


def narrowed(f: Any, *args: Any) -> list[str]:
    """The operations that the pass made of others, with their types."""
    closed = ge2.make_jaxpr(f)(*args)
    found = run(TIDY, closed.graph)
    after = verify(narrow_integers(found, NARROW))
    all_equal(after(*closed.captured, *args), found(*closed.captured, *args))
    return [f"{e.op.name} {e.outs[0].type.dtype}" for e in after.eqns if e.op.name in WHOLE]


WHOLE = ("cumsum", "wrap")


def test_places_of_what_is_kept_have_32_bits(rng: np.random.Generator) -> None:
    """The sums that are returned are stored as they are, and computed by their own kernel alone."""
    x, y = rng.normal(size=(2, 300))
    assert narrowed(compacted, x, y) == ["cumsum int32", "wrap int32", "cumsum uint64"]
    with config.using(executor="emulator", tuning=(NARROW.tuning,)):
        all_equal(ge2.jit(compacted)(x, y), compacted(x, y))


def ones(i: Any, m: Any) -> Any:
    found = ge2.numpy.zeros(9, np.float32)
    np.add.at(found, i, np.float32(1))
    return found


@pytest.mark.parametrize(
    ("f", "dtypes"),
    [
        (lambda i, m: np.bincount(i, weights=m.astype(np.float64), minlength=9), ["int32"]),
        (ones, ["int32"]),
        (lambda i, m: np.bincount(i, weights=m * 0.5, minlength=9), []),
        (lambda i, m: np.bincount(i, weights=m.astype(np.float64), minlength=999), []),  # few
    ],
)
def test_counts_in_floating_point_are_counts(f: Any, dtypes: list[str], rng: Any) -> None:
    """A sum of masks or of one whole number is exact, and added in any order."""
    i, m = rng.integers(0, 9, 300), rng.integers(0, 2, 300).astype(bool)
    small = replace(PASSES, narrowed=1, summed=1)
    steps = (*TIDY, sums_of_zeros, repeated_updates, narrow_integers)
    after = run(steps, ge2.make_jaxpr(f)(i, m).graph, Context(tuning=small))
    sums = [e.outs[0].type.dtype for e in after.eqns if isinstance(e.op, ScatterAdd)]
    assert [str(dtype) for dtype in sums] == dtypes
    with config.using(executor="emulator", tuning=(small,)):
        all_equal(ge2.jit(lambda i, m: f(i, m))(i, m), f(i, m))


@pytest.mark.parametrize(
    ("f", "left"),
    [
        (lambda x, i: np.cumsum(i) * 2, ["cumsum int64"]),  # of numbers of 64 bits
        (lambda x, i: (j := i * 2, x.at[j].add(x)), []),  # a result
        (lambda x, i: x.at[i * 2].add(i * 2.0), ["wrap int32"]),
        (lambda x, i: x.at[j := i * 2].add(j.astype(x.dtype)), []),  # read by others
        (lambda x, i: x.at[i].add(x), []),  # which nothing makes
    ],
)
def test_other_whole_numbers_stay_as_they_are(f: Any, left: list[str], rng: Any) -> None:
    x, i = ge2.numpy.asarray(rng.normal(size=20)), rng.integers(0, 9, 20)
    assert narrowed(lambda x, i: f(x, i), x, i) == left


def test_updates_that_are_one_number_are_that_number(rng: np.random.Generator) -> None:
    def f(i: Any) -> Any:
        most = ge2.numpy.zeros((4, 2))
        np.maximum.at(most, i, 3.0)
        return np.bincount(i, minlength=4), most

    i = rng.integers(0, 3, 20).astype(np.int32)
    _, after = alike(f, repeated_updates, i)
    numbers = [e.inputs[1] for e in after.eqns if e.op.name.startswith("scatter")]
    assert [n.value for n in numbers if isinstance(n, Literal)] == [3, 1]
    with config.using(executor="emulator"):
        all_equal(ge2.jit(f)(i), f(i))


def test_zeros_keep_their_sign() -> None:
    def f(x: Any, i: Any, u: Any) -> Any:
        return x + np.bincount(i, weights=u, minlength=3) + np.bincount(i, weights=u, minlength=3)

    args = np.array([-0.0, -0.0, 0.0]), np.array([1, 1]), np.array([-0.0, -0.0])
    _, after = alike(f, join_scatters, *args)
    assert names(after).count("scatter_add") == 1
    assert not np.signbit(after(*args)[0]).any() and not np.signbit(f(*args)).any()


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i, u: (lambda s: (s, s.at[i].add(u)))(x.at[i].add(u)),  # the first is a result
        lambda x, i, u: x.at[i].add(u).at[i].max(u),
        lambda x, i, u: x.at[i].add(1.0).at[i].add(u),  # a number is no array to join
    ],
)
def test_other_updates_stay_apart(f: Any, rng: np.random.Generator) -> None:
    args = ge2.numpy.asarray(rng.normal(size=9)), rng.integers(0, 9, 5), rng.normal(size=5)
    before, after = alike(lambda x, i, u: f(x, i, u), join_scatters, *args)
    assert names(after) == names(before)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("f", "left"),
    [
        (lambda x: np.exp(x * 2.0)[::40] + 1.0, 5),
        (lambda x: np.exp(x)[7] - np.exp(x)[3:9], 0),  # some of it twice
        (lambda x: (x[:, None] * np.arange(20.0))[3::50, ::9], 12),
        (lambda x: sliding_window_view(x, 16)[::25] * 2.0, 8 * 16),  # places of windows
        (lambda x: sliding_window_view(x, 16)[5::25, 3:9:4].sum(1), 8 * 2),
        (lambda x: sliding_window_view(x.reshape(20, 10), 4, axis=0)[::9].sum(-1), 0),
        (lambda x: sliding_window_view(x, 16)[-1], 16),
        (lambda x: np.take(x, np.arange(190)[::-1])[::19], 0),
    ],
)
@pytest.mark.parametrize("by", [little_first, slices_first])
def test_what_is_read_of_a_little_is_computed_of_that(
    f: Any, left: int, by: Any, rng: np.random.Generator
) -> None:
    """`left`: the elements of the largest array that is made; 0 where others are."""
    x = rng.normal(size=200)
    _, after = alike(f, by, x)
    assert not left or max(v.type.size for e in after.eqns for v in e.outs) <= max(left, 20)
    np.testing.assert_allclose(ge2.jit(f)(x), f(x), rtol=1e-14)


def test_places_that_arguments_decide_are_all_looked_at() -> None:
    f = ge2.jit(lambda x, i: np.take(x, i)[::9] * 2.0)
    x, i = np.arange(5.0), np.zeros(30, np.int64)
    np.testing.assert_array_equal(f(x, i), np.zeros(4))
    i[1] = 7  # no slice reads it
    with pytest.raises(IndexError, match="out of bounds"):
        f(x, i)


def averaged(v: Any, n: int) -> Any:
    for _ in range(n):
        v = 0.49 * v[:-1] + 0.5 * v[1:]
    return v


GPU = Context(limits_of("sm_90a"), tails=True)


@pytest.mark.parametrize(
    ("f", "regions"),
    [
        (lambda x, v: np.diff(x * v), 1),
        (lambda x, v: (lambda f: v[1:-1] - 0.1 * np.diff(f))(0.5 * (v[1:] + v[:-1]) ** 2), 1),
        (lambda x, v: averaged(v, 3), 1),
        (lambda x, v: averaged(v, 8), 2),
        (lambda x, v: (lambda u: u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:])(x * v), 1),
        (lambda x, v: np.diff(np.exp(v)), 1),
        (lambda x, v: np.diff(np.sin(np.exp(v)) ** 0.3), 2),  # dear
        (lambda x, v: (lambda u: u[2:] + u[:-2] + u[1:-1])(x * x.T[:, ::-1] + v[:20]), 2),
        (lambda x, v: (lambda u: (u[1:] - u[:-1], u))(x * v), 2),
        (lambda x, v: (lambda u: u[1:] @ u[:-1].T)(x * v), 1),  # a product reads it
    ],
)
def test_windows_of_cheap_work_are_work_on_windows(f: Any, regions: int, rng: Any) -> None:
    x, v = rng.random((20, 20)), rng.random(20)
    _, after = alike(f, lambda graph: slices_first(graph, GPU), x, v)
    assert sum(isinstance(e.op, Region) for e in fuse(after, GPU).eqns) == regions


def limited(x: Any) -> Any:
    """Differences of limited differences of a Laplacian, as weather models have them."""
    near = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    low = 4.0 * x[1:-1, 1:-1] - near
    down, right = low[1:] - low[:-1], low[:, 1:] - low[:, :-1]
    down = np.where(down * (x[2:-1, 1:-1] - x[1:-2, 1:-1]) > 0, 0, down)
    right = np.where(right * (x[1:-1, 2:-1] - x[1:-1, 1:-2]) > 0, 0, right)
    return down[1:, 1:-1] - down[:-1, 1:-1] + right[1:-1, 1:] - right[1:-1, :-1]


@pytest.mark.parametrize(
    ("f", "cached", "regions"),
    [
        (limited, False, 1),
        (limited, True, 4),  # each is dearer than to store it
        (lambda x: np.diff(x * 0.5), True, 1),
        (lambda x: (lambda y: (y, y[1:] - y[:-1]))(x * 0.5), False, 2),  # the caller gets it
        (lambda x: averaged(x, 30), False, 6),
        (lambda x: np.diff(np.exp(np.sin(x))), True, 2),
    ],
)
def test_in_c_windows_of_cheap_work_are_one_kernel_with_what_reads_them(
    f: Any, cached: bool, regions: int, rng: Any
) -> None:
    """A cache of no bytes stands for arrays that are in none."""
    rolling = replace(PASSES.rolling, cache=PASSES.rolling.cache if cached else 0)
    context = Context(gathers=True, tuning=replace(PASSES, rolling=rolling))
    _, after = alike(f, lambda graph: little_first(graph, context), rng.random((80, 90)))
    assert sum(isinstance(e.op, Region) for e in fuse(after, context).eqns) == regions


def test_small_arrays_are_turned_before_a_region_reads_them(rng: np.random.Generator) -> None:
    """Not those that are as large as its space, nor where the space is small."""
    tuning = replace(PASSES, turned=1 << 8)

    def regions(w: Any) -> list[Any]:
        def f(x: Any, w: Any) -> Any:
            y = x - w.T * 2.0
            return y / np.sqrt((y * y).sum(-1, keepdims=True))

        given = [rng.normal(size=(9, 4, 32)), w]
        closed = ge2.make_jaxpr(f)(*given)
        graph = fuse(run(TIDY, closed.graph))
        after = small_turned(graph, replace(NOTHING, tuning=tuning))
        verify(after)
        all_equal(interpret(after, given), interpret(graph, given))
        assert small_turned(graph) == graph
        return [e for e in after.eqns if isinstance(e.op, Region)]

    turn, rows = regions(rng.normal(size=(32, 4)))
    assert [e.op.name for e in turn.op.graph.eqns] == ["transpose", "convert_element_type"]
    assert "transpose" not in [e.op.name for e in rows.op.graph.eqns]
    assert len(regions(rng.normal(size=(32, 4, 9)))) == 1


def test_an_array_that_loses_a_column_each_step_is_not_cut_into_columns() -> None:
    """What is read of a part of a value is no part of a joined array, as what a slice is written to is."""

    def tree(x: Any) -> Any:
        for _ in range(40):
            x = np.maximum(0.5 * (x[:, 1:] + x[:, :-1]), 1.0)
        return x[:, 0]

    before, after = alike(
        tree, lambda graph: slices_first(graph, GPU), np.ones((500, 41), np.float32)
    )
    columns = sum(v.type.shape == (500, 1) for e in after.eqns for v in e.outs)
    assert columns < 200 and len(after.eqns) < 4 * len(before.eqns)  # 2501 columns, of all steps


# ----------------------------------------------------------------------- the order of updates, once


def along_edges(x: Any, source: Any, target: Any, weight: Any) -> Any:
    """What the nodes of a graph get from their neighbours."""
    found = np.zeros(x.shape, x.dtype)
    np.add.at(found, target, x[source] * weight)
    return found


def rounds(x: Any, *edges: Any) -> Any:
    for _ in range(30):
        x = np.tanh(along_edges(x, *edges))
    return x


def scanned(x: Any, *edges: Any) -> Any:
    def round(x: Any, _: Any) -> Any:
        return np.tanh(along_edges(x, *edges)), None

    return ge2.lax.scan(round, x, None, length=30)[0]


def twice(x: Any, *edges: Any) -> Any:
    return along_edges(along_edges(x, *edges), *edges)


def other_places(x: Any, source: Any, target: Any, weight: Any) -> Any:
    for _ in range(30):
        x, target = along_edges(x, source, target, weight), target + 1
    return x


@pytest.mark.parametrize(
    ("f", "orders", "sums"), [(rounds, 1, 30), (scanned, 1, 1), (twice, 0, 0), (other_places, 0, 0)]
)
def test_sums_at_the_same_places_have_their_order_once(f: Any, orders: int, sums: int) -> None:
    """Where it pays: on an H200 an order takes as long as some ten sums of single numbers."""
    nodes, edges = 1 << 18, 1 << 20
    x, at, weight = (
        ge2.ShapeDtypeStruct((n,), np.dtype(t))
        for n, t in ((nodes, "f8"), (edges, "i8"), (edges, "f8"))
    )
    graph = ge2.make_jaxpr(f)(x, at, at, weight).graph
    planned = compile_graph(graph, device=OfflineDevice(H200)).program.graph
    assert [e.op.name for e in planned.eqns].count("update_order") == orders
    assert str(planned).count("sums_in_order[") == sums


@needs_compiler
@pytest.mark.parametrize("f", [rounds, scanned])
def test_sums_in_an_order_are_those_of_numpy(f: Any, rng: np.random.Generator) -> None:
    nodes, count = 3000, 700
    edges = rng.integers(0, nodes, count), rng.integers(-40, 40, count), rng.normal(size=count)
    with config.using(executor="emulator"):
        step, x = ge2.jit(f), rng.normal(size=nodes)
        assert "sums_in_order" in step.lower(x, *edges).as_text("cuda")
        np.testing.assert_allclose(step(x, *edges), rounds(x, *edges), rtol=1e-12)


def test_sums_that_cannot_have_an_order_keep_their_way() -> None:
    """None where a preference refuses it, and none where every index lies outside of an empty axis."""
    types = [((1 << 18,), "f8"), ((1 << 20,), "i8"), ((1 << 20,), "i8"), ((1 << 20,), "f8")]
    given = [ge2.ShapeDtypeStruct(shape, np.dtype(t)) for shape, t in types]
    for family in ("sums in order", "update order"):
        with config.using(prefer=f"-{family} in CUDA"):
            made = compile_graph(ge2.make_jaxpr(rounds)(*given).graph, device=OfflineDevice(H200))
        assert "sums_in_order[" not in str(made.program.graph)

    def nowhere(i: Any, u: Any) -> Any:
        y, z = np.zeros(0), np.zeros(0)
        np.add.at(y, i, u)
        np.add.at(z, i, u * 2)
        return y, z

    empty = ge2.make_jaxpr(nowhere)(given[1], given[3]).graph
    graph = compile_graph(empty, device=OfflineDevice(H200)).program.graph
    assert "update_order[" not in str(graph)


def pooled(x: Any, ct: Any) -> Any:
    """Windows in steps along two axes, of which a derivative has zeros between."""
    seen = sliding_window_view(x, (3, 4), axis=(1, 2))[:, ::4, 1::5]
    return (seen.max((-1, -2)) * ct).sum() + (seen * ct[..., None, None]).sum()


def lines_apart(x: Any, ct: Any) -> Any:
    """Windows along one axis, of which every third is read, of every seventh column."""
    return (sliding_window_view(x, 7, axis=1)[:, ::3, ::7] * ct[..., None]).sum()


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize("f", [pooled, lines_apart])
def test_zeros_between_updates_are_not_added(
    f: Any, executor: str, rng: np.random.Generator
) -> None:
    x, ct = rng.standard_normal((2, 13, 15)), rng.standard_normal((2, 3, 3))
    graph = ge2.make_jaxpr(ge2.grad(f))(x, ct).graph
    after = verify(unpadded_updates(graph))
    assert after(x, ct)[0].tolist() == graph(x, ct)[0].tolist()
    sums = [e for e in after.eqns if e.op.name == "scatter_add"]
    sizes = [e.inputs[1].type.size for e in graph.eqns if e.op.name == "scatter_add"]
    assert sums and sum(e.inputs[1].type.size for e in sums) * 4 < sum(sizes)
    with config.using(executor=executor):
        np.testing.assert_allclose(ge2.jit(ge2.grad(f))(x, ct), graph(x, ct)[0], rtol=1e-12)


def test_updates_at_indices_of_the_caller_stay_padded() -> None:
    """One of them may be outside, which is an error; so do those added to more than zeros."""

    def of_caller(x: Any, i: Any, ct: Any) -> Any:
        return (x[i][::2] * ct).sum()

    def to_ones(u: Any) -> Any:
        y = np.ones((9, 3))
        np.add.at(y, np.arange(8) + np.arange(1)[0], np.pad(u, ((1, 3), (0, 0))))
        return y

    grad = ge2.make_jaxpr(ge2.grad(of_caller))(np.ones((9, 3)), np.arange(8), np.ones((4, 3))).graph
    for graph in (grad, ge2.make_jaxpr(to_ones)(np.ones((4, 3))).graph):
        assert {"scatter_add", "pad"} <= {*names(graph)}
        assert unpadded_updates(graph) is graph


@given(
    st.permutations(range(3)), st.lists(st.integers(0, 2), min_size=9, max_size=9),
    st.sampled_from([(0,), (1,), (0, 2), (1, 2), (0, 1, 2)]),
)  # fmt: skip
def test_any_padded_updates(order: list[int], sides: list[int], axes: tuple[int, ...]) -> None:
    """Of any axes, padded on any sides and between, in any order."""
    pad = Pad(*(tuple(sides[k : k + 3]) for k in (0, 3, 6)))
    u, indexed = np.arange(1.0, 13.0).reshape(2, 3, 2), len(axes)
    padded = np.transpose(pad.reference(u), order).shape
    rest = iter(padded[indexed:])
    shape = tuple(40 if a in axes else next(rest) for a in range(3))

    def f(u: Any) -> Any:
        count = [Iota(padded[:indexed], d, INT64)() for d in range(indexed)]
        return ScatterAdd(axes)(
            nx.zeros(shape), nx.transpose(pad(u), order), *[sum(count)] * indexed
        )

    graph = ge2.make_jaxpr(f)(u).graph
    found = verify(unpadded_updates(graph))
    np.testing.assert_array_equal(found(u)[0], graph(u)[0])
