"""Rolled loops over rows of arrays become scans over the arrays, and mean the same."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2 import lax
from ge2.compile.pipeline import rewritten
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.loops.absorb_peeled import Loop, whole
from ge2.passes.loops.roll import roll
from ge2.passes.loops.rolled_to_scan import stack
from tests.exhaustive import examples
from tests.passes.graphs import alike, names

rng = np.random.default_rng(0)
N = 36
XS = rng.standard_normal((N, 2, 4))
W = rng.standard_normal((4, 4)) / 3
H = rng.standard_normal((2, 4))
BY_X = rng.standard_normal((4, 4)) / 3
PASSES = (*TIDY, roll, whole, stack)


def passed(f, *args):
    return alike(partial(run, PASSES), f, *args, rtol=1e-11, atol=1e-12)


def scans(graph):
    assert not any(isinstance(e.op, RepeatLoop) for e in graph.eqns)
    return [e.op for e in graph.eqns if isinstance(e.op, ScanLoop)]


def cell(w, h, x):
    return np.tanh(h @ w + x)


def states(w, xs, h, order=range(N)):
    found = []
    for t in order:
        h = cell(w, h, xs[t])
        found.append(h)
    return found


def in_python(by_x, w, xs, h):
    return sum((h * h).mean() for h in states(w, xs @ by_x, h)) / N


def as_scan(by_x, w, xs, h):
    def step(h, x):
        h = cell(w, h, x)
        return h, h

    return (lax.scan(step, h, xs @ by_x)[1] ** 2).mean()


def test_the_gradient_of_a_python_loop_is_that_of_a_scan():
    args = BY_X, W, XS, H
    looped, scanned = in_python, as_scan
    looped, scanned = (passed(ge2.grad(f, argnums=(0, 1)), *args) for f in (looped, scanned))
    for a, b in zip(scans(looped), scans(scanned), strict=True):
        assert (a.length, a.reverse, a.consts, a.carry) == (b.length, b.reverse, b.consts, b.carry)
        assert len(a.body.outputs) == len(b.body.outputs)
        assert [e.op.name for e in a.body.eqns].count("dot_general") == 1
    for name in ("dot_general", "concatenate", "reduce_sum", "transpose", "rev"):
        assert names(looped).count(name) == names(scanned).count(name), name


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_stack_of_all_states(axis, backwards):
    def f(w, xs, h):
        return np.stack(states(w, xs, h, range(N)[::-1] if backwards else range(N)), axis)

    graph = passed(f, W, XS, H)
    (loop,) = scans(graph)
    assert loop.reverse == backwards
    moved = [name for name in names(graph) if name not in ("scan", "reshape")]
    assert moved == [*["rev"] * backwards, *["transpose"] * bool(axis)]


def test_states_side_by_side():
    graph = passed(lambda w, xs, h: np.concatenate(states(w, xs, h), 1), W, XS, H)
    assert names(graph) == ["scan", "transpose", "reshape"]


def test_the_derivative_by_an_array_of_which_some_is_read():
    def f(xs, w, h):
        return states(w, xs, h, range(4, N))[-1].sum()

    graph = passed(ge2.grad(f), XS, W, H)
    assert [len(e.inputs) for e in graph.eqns if e.op.name == "concatenate"] == [2]


def test_rows_put_together_in_another_order():
    def f(w, xs, h):
        found = states(w, xs, h)
        return np.concatenate(found[::-1], 0), np.stack(found[1::2]), np.stack([h, *found])

    graph = passed(f, W, XS, H)
    assert len(scans(graph)) == 1
    assert max(len(e.inputs) for e in graph.eqns if e.op.name == "concatenate") <= N


@pytest.mark.parametrize("axis", [1, 2])
def test_steps_along_another_axis(axis):
    """They are read of the array turned, once, and so is their derivative."""
    order = [1, 0, 2] if axis == 1 else [1, 2, 0]

    def f(w, xs, h):
        for t in range(N):
            h = cell(w, h, xs[:, t] if axis == 1 else xs[..., t])
        return (h * h).sum()

    xs = XS.transpose(order)
    assert names(passed(f, W, xs, H))[:2] == ["transpose", "scan"]
    graph = passed(ge2.grad(f, argnums=(0, 1)), W, xs, H)
    assert [loop.length for loop in scans(graph)] == [N, N]
    assert names(graph).count("transpose") == 2


def test_parts_of_an_axis_that_no_loop_reads_stay():
    def f(x):
        return (
            sum(x[:, t] * (t + 1) for t in range(N)) * np.stack([x[:, t] for t in range(N)]).sum()
        )

    assert "transpose" not in names(passed(f, XS[:, 0].T))


def test_every_other_row():
    graph = passed(lambda w, xs, h: states(w, xs, h, range(1, N, 2))[-1], W, XS, H)
    assert names(graph) == ["slice", "scan"]


def test_two_arrays_in_opposite_directions():
    def f(w, xs, ys, h):
        for t in range(N):
            h = cell(w, h, xs[t]) + ys[N - 1 - t]
        return h

    assert names(passed(f, W, XS, XS[::-1] + 1, H)) == ["rev", "scan"]


def test_neighbours():
    def f(w, xs, h):
        for t in range(N - 1):
            h = cell(w, h, xs[t]) * xs[t + 1]
        return h

    assert names(passed(f, W, XS, H)) == ["slice", "slice", "scan"]


def test_no_elements_at_all():
    def f(w, h):
        found = [h]
        for _ in range(N):
            found.append(np.tanh(found[-1] @ w) * 2)
        return np.stack(found)

    assert sorted(names(passed(f, W, H))) == ["concatenate", "reshape", "scan"]


def test_what_lies_in_many_arrays_stays_a_loop_over_them():
    def layers(ws, x):
        for w in ws:
            x = np.tanh(x @ w)
        return x

    assert "repeat" in names(passed(layers, [W + i for i in range(N)], H))


def test_states_that_are_the_callers_stay_apart():
    def f(w, xs, h):
        return states(w, xs, h)

    assert names(passed(f, W, XS, H)).count("repeat") == 1


def test_two_losses_and_all_weights():
    def loss(params, xs, h):
        by_x, w, bias = params
        total, found = 0.0, []
        for t in range(N):
            h = np.tanh(xs[t] @ by_x + h @ w + bias)
            total = total + (h * h).sum()
            found.append(h)
        return total + np.stack(found).max(), h

    graph = passed(ge2.value_and_grad(loss, has_aux=True), (BY_X, W, np.ones(4)), XS, H)
    assert len(scans(graph)) == 2


def lstm(params, xs, h):
    c, total = h * 0.5, 0.0
    for t in range(N):
        z = xs[t] @ params[0] + h @ params[1]
        i, f, o, g = (z[:, k : k + 4] for k in range(0, 16, 4))
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        total = total + (h**2).mean()
    return total


def test_a_cell_with_two_states():
    params = [rng.standard_normal((4, 16)) / 4 for _ in range(2)]
    graph = passed(ge2.grad(lstm), params, XS, H)
    assert [loop.length for loop in scans(graph)] == [N, N]


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "blocked", "shim"])
@pytest.mark.parametrize("f", [in_python, lambda *args: np.stack(states(*args[1:])[::-1]).max()])
def test_it_computes_the_same(f, executor):
    f, args = ge2.grad(f, argnums=(0, 1, 2, 3)), (BY_X, W, XS, H)
    with ge2.disable_jit():
        wanted = f(*args)
    with ge2.config.using(executor=executor):
        found = ge2.jit(f)(*args)
    for y, z in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-9, atol=1e-11)


ORDERS = {
    "forward": lambda n: range(n),
    "backward": lambda n: range(n)[::-1],
    "every other": lambda n: range(0, n, 2),
    "inner": lambda n: range(1, n - 1),
}
ENDS = {
    "mean": lambda found: found[-1].mean(),
    "product": lambda found: found[-1].sum() * found[2].sum(),
    "last": lambda found: found[-1],
    "stack": lambda found: np.stack(found),
    "reversed": lambda found: np.concatenate(found[::-1], 1),
    "some": lambda found: found[0] * found[3] + found[-2],
    "sum": lambda found: sum(found),
    "losses": lambda found: sum((h * h).sum() for h in found),
}


def looping(order, end, second, moment, w, xs, ys, h):
    c, found = h, []
    for t in order(xs.shape[0]):
        h = np.tanh(h @ w + xs[t])
        if second:
            c = 0.5 * c + h @ ys[t] if moment else c * ys[t][:2] + h
            h = h + c
        found.append(h)
    return end(found)


@settings(max_examples=examples(40))
@given(
    order=st.sampled_from(sorted(ORDERS)),
    end=st.sampled_from(sorted(ENDS)),
    second=st.booleans(),
    moment=st.booleans(),
    wrt=st.sampled_from([(), (0,), (1, 2), (0, 1, 2, 3)]),
    n=st.integers(17, 27),
)
def test_random_loops(order, end, second, moment, wrt, n):
    f = partial(looping, ORDERS[order], ENDS[end], second, moment)
    if wrt:
        whole = f
        f = ge2.grad(lambda *args: np.sin(whole(*args)).sum(), argnums=wrt)
    draw = np.random.default_rng(n)
    args = W, draw.standard_normal((n, 2, 4)), draw.standard_normal((n, 4, 4)) / 2, H
    passed(f, *args)


@pytest.mark.parametrize(
    ("made", "dtype", "shape", "other"),
    [
        (lambda x: x.astype(np.float64), np.int64, (2, 4), (2, 4)),
        (lambda x: x.sum(0), np.float64, (3, 2, 4), (5, 2, 4)),
        (lambda x: x.sum(0).sum(0), np.float64, (3, 2, 4), (5, 2, 4)),
    ],
)
def test_elements_alike_that_are_made_of_others(made, dtype, shape, other):
    """Rounds take the same operation of arrays with other dtypes or shapes."""

    def f(w, xs, ys, h):
        total = 0.0
        for x in [*xs, *ys]:
            h = np.tanh(h @ w + made(x))
            total = total + h.sum()
        return total

    xs = rng.integers(0, 5, (N // 2, *shape)).astype(dtype)
    ys = rng.standard_normal((N // 2, *other)).astype(np.float32 if dtype == np.int64 else dtype)
    assert scans(passed(f, W, xs, ys, H))


# --------------------------------------------------------------------------------- how long it takes


def eliminated(a):
    """Gauss's elimination, element by element: each element of an iteration is one of thousands."""
    n = len(a)
    rows = [[a[i, j] for j in range(n)] for i in range(n)]
    for k in range(n):
        for i in range(k + 1, n):
            f = rows[i][k] / rows[k][k]
            for j in range(k, n):
                rows[i][j] = rows[i][j] - f * rows[k][j]
    return rows[-1][-1]


def energy(points):
    """A sum over pairs, whose derivative is a loop for each point."""
    total = 0.0
    for i in range(len(points)):
        for j in range(i):
            x, y = points[i, 0] - points[j, 0], points[i, 1] - points[j, 1]
            total = total + 1.0 / np.sqrt(x * x + y * y + 0.1)
    return total


@pytest.mark.parametrize(
    ("f", "shape"),
    [(eliminated, (20, 20)), (ge2.grad(energy), (28, 2))],
    ids=["elimination", "energy"],
)
def test_ends_of_loops_are_found_among_what_reads_the_same(f, shape, monkeypatch):
    """There are fewer attempts than equations, not as many for each value of each iteration."""
    tried, made = list[Loop](), Loop.made
    monkeypatch.setattr(Loop, "made", lambda *args: tried.append(args[0]) or made(*args))
    graph = ge2.make_jaxpr(f)(np.ones(shape)).graph
    rolled = run((*TIDY, roll), graph)
    assert any(isinstance(e.op, RepeatLoop) for e in rolled.eqns)
    whole(rolled)
    assert len(tried) < len(graph.eqns)


@pytest.mark.parametrize("length", [16, 48])
def test_blocks_are_rows_of_an_array_cut_into_blocks(length):
    """Of a loop and of its derivative, which makes one product of all iterations for the weights."""

    def loss(x, w):
        y, h = np.zeros_like(x), np.zeros(50)
        for b in range(0, len(x), 50):
            h = np.tanh(h @ w + x[b : b + 50])
            y[b : b + 50] = h
        return np.sum(y * y)

    x, w = rng.standard_normal(length * 50), rng.standard_normal((50, 50)) * 0.1
    gradient = ge2.grad(loss, argnums=(0, 1))
    graph = rewritten(ge2.make_jaxpr(gradient)(x, w).graph, "c")
    loops = [e.op for e in graph.eqns if isinstance(e.op, ScanLoop)]
    assert [op.length for op in loops] in ([length] * 2, [length, length - 1])
    assert not any(isinstance(e.op, RepeatLoop) for e in graph.eqns)
    assert not any(v.type.size == 2500 for op in loops for e in op.body.eqns for v in e.outs)
    with ge2.disable_jit():
        wanted = gradient(x, w)
    for found, expected in zip(ge2.jit(gradient)(x, w), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("start", [0, 3])
def test_blocks_that_do_not_cut_an_array_evenly_stay_slices(start):
    def f(x):
        y = np.zeros(5)
        for b in range(12):
            y = np.tanh(y + x[start + 5 * b : start + 5 * b + 5])
        return y

    x = rng.standard_normal(62 + start)
    graph = rewritten(ge2.make_jaxpr(f)(x).graph, "c")
    assert not any(e.op.name == "reshape" and e.outs[0].type.shape == (12, 5) for e in graph.eqns)
    np.testing.assert_allclose(ge2.jit(f)(x), f(x), rtol=1e-14)
