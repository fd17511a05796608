"""Arrays that are added to part by part become a value for each part, and mean the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.compile.pipeline import rewritten
from ge2.ir import Graph, verify
from ge2.ops.index import UpdateSlice
from ge2.ops.shape import Pad
from ge2.passes import TIDY
from ge2.passes.context import NOTHING, Context, run
from ge2.passes.loops.parts import parts_as_values, updates_added
from tests.passes import graphs

rng = np.random.default_rng(0)


def names(graph: Graph) -> list[str]:
    return [e.op.name for e in graph.eqns]


def after(f: Any, *xs: Any) -> Graph:
    """The graph after the pass, which must mean the same as the one before."""
    closed = ge2.make_jaxpr(f)(*xs)
    before = run(TIDY[: TIDY.index(parts_as_values)], closed.graph)
    graph, given = verify(parts_as_values(before, NOTHING)), [*closed.captured, *xs]
    for found, wanted in zip(graph(*given), before(*given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)
    return graph


def padded(x: Any, low: Any, shape: Any) -> Any:
    high = tuple(n - a - m for n, a, m in zip(shape, low, np.shape(x), strict=True))
    return Pad(tuple(low), high, (0,) * len(shape))(x)


def biquad(x: Any, b: Any, a: Any) -> Any:
    y = np.zeros_like(x)
    for n in range(len(x)):
        y[n] = b[0] * x[n]
        if n >= 1:
            y[n] += b[1] * x[n - 1] - a[1] * y[n - 1]
        if n >= 2:
            y[n] += b[2] * x[n - 2] - a[2] * y[n - 2]
    return np.sum(y * y)


def scaled_steps(x: Any, w: Any) -> Any:
    """Rows that are written and read, each changed twice."""
    y = np.zeros((len(x) + 1, x.shape[1]))
    for t in range(len(x)):
        y[t + 1] = np.tanh(y[t] * w + x[t])
        y[t + 1] /= 1.0 + np.sum(y[t + 1] ** 2)
    return np.sum(y[1:] * x)


def table(x: Any) -> Any:
    """Elements of a table, each of those above and to the left."""
    y = np.zeros((len(x) + 1, len(x) + 1))
    for i in range(len(x)):
        for j in range(len(x)):
            y[i + 1, j + 1] = x[i] * x[j] + np.sin(y[i, j + 1] + y[i + 1, j]) * y[i, j]
    return y[len(x), len(x)]


def parts_of_both(x: Any) -> Any:
    """Rows and elements of the same array, and all of it."""
    total = np.sum(x**3)
    for i in range(len(x)):
        total = total + np.sum(x[i]) * x[i, 1] * x[-1, i % x.shape[1]]
    return total


GIVEN = {
    biquad: (rng.normal(size=30), rng.normal(size=3), rng.normal(size=3) * 0.1),
    scaled_steps: (rng.normal(size=(20, 3)), 0.7),
    table: (rng.normal(size=6),),
    parts_of_both: (rng.normal(size=(12, 3)),),
}


@pytest.mark.parametrize("f", GIVEN)
def test_a_derivative_of_parts_means_the_same(f: Any) -> None:
    xs = GIVEN[f]
    after(ge2.grad(f, argnums=tuple(range(len(xs)))), *xs)
    found = ge2.jit(ge2.grad(f, argnums=tuple(range(len(xs)))))(*xs)
    steps = [rng.normal(size=np.shape(x)) for x in xs]
    along = lambda h: f(*(x + h * d for x, d in zip(xs, steps, strict=True)))  # noqa: E731
    wanted = (along(1e-5) - along(-1e-5)) / 2e-5
    total = sum(np.sum(g * d) for g, d in zip(found, steps, strict=True))
    np.testing.assert_allclose(total, wanted, rtol=1e-6)


@pytest.mark.parametrize("f", [biquad, scaled_steps, table])
def test_no_whole_array_is_written(f: Any) -> None:
    found = names(after(ge2.grad(f, argnums=len(GIVEN[f]) - 1), *GIVEN[f]))
    assert "update_slice" not in found


@pytest.mark.parametrize("f", [biquad, scaled_steps])
@pytest.mark.parametrize("length", [40, 80])
def test_the_derivative_of_a_long_loop_is_two_loops(f: Any, length: int) -> None:
    xs = [rng.normal(size=(length, *np.shape(GIVEN[f][0])[1:])), *GIVEN[f][1:]]
    by = tuple(range(1, len(xs)))
    found = names(rewritten(ge2.make_jaxpr(ge2.grad(f, argnums=by))(*xs).graph, "c"))
    assert found.count("scan") == 2
    assert found.count("pad") <= 2
    assert "update_slice" not in found


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(30))
def test_random_steps_mean_the_same(seed: int) -> None:
    """Parts of a grid are added to, written, cleared and read, and now and then all is read."""
    draw = np.random.default_rng(seed)
    rows, columns = (
        sorted({0, 6, *draw.integers(1, 6, 2).tolist()}),
        sorted({0, 5, *draw.integers(1, 5, 1).tolist()}),
    )
    shape, parts = (6, 5), list[tuple[tuple[int, int], tuple[int, int]]]()
    for a, b in pairwise(rows):
        parts += [((a, c), (b - a, d - c)) for c, d in pairwise(columns)]
    kinds = draw.choice(["add", "add", "add", "write", "clear", "read", "odd", "whole"], 40)
    if seed % 2:
        kinds = kinds[kinds != "whole"]
    places = draw.integers(0, len(parts), len(kinds))

    def f(x: Any, start: Any) -> Any:
        y, found = start if seed % 3 else padded(x[:1, :1], (0, 0), shape), x[0, 0]
        for kind, place in zip(kinds, places, strict=True):
            low, part = parts[place]
            inside = tuple(slice(a, a + n) for a, n in zip(low, part, strict=True))
            if kind == "add":
                y = y + padded(np.sin(x[: part[0], : part[1]] + found), low, shape)
            elif kind == "write":
                y = UpdateSlice(low, (1, 1))(y, np.cos(x[: part[0], : part[1]] * found))
            elif kind == "clear":
                y = UpdateSlice(low, (1, 1))(y, np.zeros(part))
            elif kind == "read":
                found = found + np.sum(y[inside] ** 2) * 0.1
            elif kind == "odd":
                found = found + np.sum(y[1 : 1 + part[0], 1:3]) * 0.1
            else:
                found = found + np.mean(y)
        return y, found

    x, start = draw.normal(size=shape), draw.normal(size=shape)
    after(f, x, start)
    with ge2.disable_jit():
        wanted = f(x, start)
    for y, w in zip(ge2.jit(f)(x, start), wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-12, atol=1e-12)


def test_few_parts_of_a_large_array_are_written_into_it() -> None:
    """Nothing is gained if all of it is made of pieces."""

    def f(x: Any) -> Any:
        total = 1.0
        for i in range(10):
            total = total * x[7 * i]
        return total + np.sum(x**3)

    found = names(after(ge2.grad(f), rng.normal(size=1000)))
    assert found.count("update_slice") == 10
    assert "concatenate" not in found


def test_an_array_that_is_read_after_each_step_stays() -> None:
    def f(x: Any) -> Any:
        y = np.zeros(50)
        for i in range(20):
            y = y + padded(np.sum(y * x[0]).reshape(1), (i,), (50,))
        return y

    assert names(after(f, rng.normal(size=(3, 50)))).count("pad") == 20


# ----------------------------------------------------------------------------------- updates added


def test_a_number_has_no_parts() -> None:
    """A sum with an array whose parts were added to, and of which such a sum begins."""

    def f(x: Any) -> Any:
        total: Any = 0.5
        for n in range(40):
            total = total + padded(x[n % 3, None] * n, (n, 0), (40, 4))
        return total, 1.5 + padded(x[:1], (1, 0), (40, 4))

    x = rng.standard_normal((3, 4))
    after(f, x)
    for y, wanted in zip(ge2.jit(f)(x), f(x), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-13)


@pytest.mark.parametrize("zero", [0.0, np.float64(0.0), np.zeros(())])
def test_updates_are_added_to_a_number(zero: Any) -> None:
    def f(i: Any, u: Any) -> Any:
        return zero + np.bincount(i, weights=u, minlength=9)

    i, u = rng.integers(0, 9, 50), rng.standard_normal(50)
    np.testing.assert_allclose(ge2.jit(f)(i, u), f(i, u), rtol=1e-12)


ZEROS = "z:f64[5,2] = broadcast_in_dim[dims=() shape=(5, 2)] 0.0:f64[]"


def test_updates_are_added_to_the_array_itself() -> None:
    text = f"""{{ lambda ; x:f64[5,2] u:f64[2] v:f64[2] i:i64[] j:i64[]. let
        {ZEROS}
        a:f64[5,2] = scatter_add[axes=(0,)] z u i
        b:f64[5,2] = scatter_add[axes=(0,)] a v j
        y:f64[5,2] = add x b
      in (y,) }}"""
    assert graphs.after(updates_added, text) == graphs.lines("""
        f:f64[5,2] = scatter_add[axes=(0,)] a b d
        g:f64[5,2] = scatter_add[axes=(0,)] f c e
        in (g,) }
    """)


def test_both_operands_may_be_updates() -> None:
    text = f"""{{ lambda ; u:f64[2] v:f64[2] i:i64[] j:i64[]. let
        {ZEROS}
        a:f64[5,2] = scatter_add[axes=(0,)] z u i
        b:f64[5,2] = scatter_add[axes=(0,)] z v j
        y:f64[5,2] = add a b
      in (y,) }}"""
    assert graphs.after(updates_added, text) == graphs.lines("""
        e:f64[5,2] = broadcast_in_dim[dims=() shape=(5, 2)] 0.0:f64[]
        f:f64[5,2] = scatter_add[axes=(0,)] e a c
        g:f64[5,2] = scatter_add[axes=(0,)] f b d
        in (g,) }
    """)


@pytest.mark.parametrize(
    "equations",
    [
        "a:f64[5,2] = scatter_add[axes=(0,)] x u i; y:f64[5,2] = add x a",  # of no zeros
        f"{ZEROS}; a:f64[5,2] = scatter_add[axes=(0,)] z u i; b:f64[5,2] = add x a; y:f64[5,2] = mul a b",
        f"{ZEROS}; a:f64[5,2] = scatter_add[axes=(0,)] z u i; y:f64[5,2] = add a a",
        f"{ZEROS}; a:f64[5,2] = scatter_add[axes=(0,)] z u i; y:f64[5,2] = add 0.0:f64[] a",  # of a number
    ],
)
def test_updates_that_are_read_otherwise_stay(equations: str) -> None:
    lines = "\n".join(equations.split("; "))
    before = graphs.graph(f"{{ lambda ; x:f64[5,2] u:f64[2] i:i64[]. let {lines} in (y,) }}")
    assert updates_added(before) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("e:f64[5,2] = exp x", "y:f64[5,2] = add e a"),
        ("", "b:f64[5,2] = add x a\n y:f64[5,2] = exp b"),
    ],
)
def test_what_is_one_kernel_with_the_sum_stays(before: str, after: str) -> None:
    """As in the gradient of a cross entropy: rows are made, and folded, as they are added to."""
    text = f"""{{ lambda ; x:f64[5,2] u:f64[2] i:i64[]. let
        {ZEROS}
        {before}
        a:f64[5,2] = scatter_add[axes=(0,)] z u i
        {after}
      in (y,) }}"""
    assert updates_added(graphs.graph(text)) == graphs.graph(text)


@pytest.mark.parametrize("loop", ["scan", "fori", "python"])
def test_a_loop_that_reads_at_traced_places_adds_where_it_read(loop: str) -> None:
    x, w, at = rng.normal(size=(40, 3)), rng.normal(size=3), rng.integers(0, 40, 60)

    def f(x: Any, w: Any, at: Any) -> Any:
        step = lambda h, i: np.tanh(h * w + x[i] * x[-i])  # noqa: E731
        if loop == "scan":
            return np.sum(ge2.lax.scan(lambda h, i: (step(h, i), None), w, at)[0])
        if loop == "fori":
            return np.sum(ge2.lax.fori_loop(0, 60, lambda i, h: step(h, at[i]), w))
        h = w
        for i in range(60):
            h = step(h, at[i])
        return np.sum(h)

    graph = rewritten(ge2.make_jaxpr(ge2.grad(f, argnums=(0, 1)))(x, w, at).graph, "c")
    bodies = [g for e in graph.eqns if e.op.name == "scan" for g in e.op.graphs()]  # type: ignore[attr-defined]
    inner = [rewritten(g, "c", Context(body=True)) for g in bodies]
    assert any("scatter_add" in names(g) for g in inner)
    assert not [
        v
        for g in inner
        for e in g.eqns
        for v in e.outs
        if e.op.name == "add" and v.type.shape == x.shape
    ]
    found = ge2.jit(ge2.grad(f, argnums=(0, 1)))(x, w, at)
    with ge2.disable_jit():
        wanted = ge2.grad(f, argnums=(0, 1))(x, w, at)
    for y, wanted_y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, wanted_y, rtol=1e-9, atol=1e-12)
