"""Scans that read, carry and return what is needed, and compute once what no round changes."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.ir import verify
from ge2.ops.graphs.loops import ScanLoop
from ge2.passes.context import Context
from ge2.passes.loops import trim
from ge2.passes.simplify import inline
from ge2.targets.cuda.emulator import limits_of
from tests.passes.graphs import alike

rng = np.random.default_rng(0)
XS, W = rng.standard_normal((6, 3)), rng.standard_normal((3, 3)) / 2


def trimmed(f, *args, rtol=1e-13, atol=0.0):
    """The graph after the pass, which must mean the same; and its scans."""
    graph = alike(lambda g: trim(inline(g)), f, *args, rtol=rtol, atol=atol)
    return graph, [e.op for e in graph.eqns if isinstance(e.op, ScanLoop)]


def test_results_that_nobody_reads_are_not_stacked():
    _, (loop,) = trimmed(
        lambda xs: lax.scan(lambda c, x: (c + x, (c * x, x + 1)), xs[0], xs)[1][1], XS
    )
    assert (loop.carry, len(loop.body.outputs), len(loop.body.inputs)) == (0, 1, 1)


def test_a_carry_that_only_keeps_itself_alive_is_dropped():
    def f(xs):
        return lax.scan(
            lambda c, x: ((c[0] + x, c[1] * 2, c[2] + c[1]), c[0]), (xs[0], xs[1], xs[2]), xs
        )[0][0]

    _, (loop,) = trimmed(f, XS)
    assert (loop.carry, len(loop.body.eqns)) == (1, 1)


def test_a_carry_that_stays_is_a_constant():
    _, (loop,) = trimmed(
        lambda xs: lax.scan(lambda c, x: ((c[0], c[1] + c[0] * x), None), (xs[0], xs[1]), xs)[0][1],
        XS,
    )
    assert (loop.consts, loop.carry) == (1, 1)


def test_what_no_round_changes_is_computed_once():
    graph, (loop,) = trimmed(
        lambda w, xs: lax.scan(lambda c, x: (c @ (w @ w).T + np.sin(w[0]), x), xs[0], xs)[0], W, XS
    )
    assert [e.op.name for e in loop.body.eqns if e.op.name != "transpose"] == ["dot_general", "add"]
    assert "sin" in [e.op.name for e in graph.eqns]


@pytest.mark.parametrize("by", [0, 1])
def test_the_cotangents_of_what_is_not_read_are_no_arrays(by):
    def f(w, xs):
        return (lax.scan(lambda c, x: (np.tanh(c @ w + x), c * 2), xs[0], xs)[0] ** 2).sum()

    _, (forward, backward) = trimmed(ge2.grad(f, by), W, XS)
    assert len(forward.body.outputs) - forward.carry <= 2
    elements = backward.body.inputs[backward.consts + backward.carry :]
    assert len(elements) <= 2


def test_a_loop_of_no_rounds_is_not_run_by_what_is_computed_before_it():
    f = ge2.jit(lambda w, xs: lax.scan(lambda c, x: (c * (1 / w.sum()), None), xs[0], xs[:0])[0])
    np.testing.assert_array_equal(f(np.zeros((3, 3)), XS), XS[0])


@pytest.mark.parametrize("start", [lambda x: x, lambda x: np.zeros_like(x)])
def test_a_carry_that_is_a_view_of_another_is_made_of_it_in_each_round(start):
    """Also where the view is one of a view, where it is read after the loop, and in no rounds."""

    def f(xs, count=6):
        x = start(xs)
        part = x[1:4]

        def step(c, row):
            x, head, turned = c
            x = x + turned.T[:1] * row + head[0]
            return (x, x[1:4], x[1:4].T), None

        return lax.scan(step, (x, part, part.T), xs[:count])[0][::2]

    for g in (f, lambda xs: f(xs, 0)):
        _, (loop,) = trimmed(g, XS)
        assert loop.carry == 1


def test_a_carry_that_begins_as_something_else_stays():
    def f(xs):
        step = lambda c, row: ((c[0] + c[1].sum() * row, c[0][:2]), None)  # noqa: E731
        return lax.scan(step, (xs, xs[2:4]), xs)[0][0]

    _, (loop,) = trimmed(f, XS)
    assert loop.carry == 2


def test_easy_work_on_large_arrays_stays_in_a_loop_on_a_gpu():
    """Adam's step: both moments are made of one gradient, which each iteration reads in any case."""

    def step(i, state, g):
        p, m, v = state
        return p - m / np.sqrt(v), 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g * g

    def before(shape, caps):
        def f(g, p, m, v):
            return lax.fori_loop(0, 9, lambda i, s: step(i, s, np.exp(g)), (p, m, v))

        closed = ge2.make_jaxpr(f)(*4 * [ge2.ShapeDtypeStruct(shape, np.float32)])
        found = trim(inline(closed.graph), Context(caps))
        loop = next(e.op for e in found.eqns if isinstance(e.op, ScanLoop))
        return loop.consts, {e.op.name for e in found.eqns} & {"mul", "exp"}

    gpu = limits_of("sm_90a")
    assert before((1 << 20,), gpu) == (1, {"exp"})
    assert before((1 << 10,), gpu) == before((1 << 20,), None) == (2, {"exp", "mul"})


def test_a_branch_that_writes_its_argument_and_returns_it_has_one_result():
    def f(x, v):
        def write(i, x):
            x[i, 0] = v[i]
            return x

        def body(i, x):
            return ge2.lax.cond(v[i] > 0, write, lambda i, x: x, i, x)

        return ge2.lax.fori_loop(0, 3, body, x)

    x, v = np.zeros((3, 2)), np.array([1.0, -1.0, 2.0])
    _, (loop,) = trimmed(f, x, v)
    body = verify(trim(loop.body))
    assert [len(e.outs) for e in body.eqns if e.op.name == "cond"] == [1]
    np.testing.assert_array_equal(ge2.jit(f)(x, v), [[1, 0], [0, 0], [2, 0]])


def test_results_of_branches_that_differ_in_a_sign_stay_apart():
    def f(x, wanted):
        return ge2.lax.cond(wanted, lambda x: (0.0, -0.0, x, x), lambda x: (0.0, 0.0, x, -x), x)

    for wanted in (np.bool_(False), np.bool_(True)):
        found = ge2.jit(f)(1.0, wanted)
        assert [np.signbit(y) for y in found] == [False, wanted, False, not wanted]
