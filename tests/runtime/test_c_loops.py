"""Loops as C: one function with nothing of Python inside, whatever is
carried, stacked or chosen.
"""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.compile import compile_graph
from ge2.errors import Ge2Error
from ge2.ops.graphs.loops import ScanLoop
from tests.compared import all_close, all_equal
from tests.together import needs_compiler

pytestmark = needs_compiler
rng = np.random.default_rng(0)
XS = rng.standard_normal((7, 4))
WIDE = rng.standard_normal((7, 100))


def kinds(f, *args):
    return {step.kind for step in compile_graph(ge2.make_jaxpr(f)(*args).graph).program.steps}


def in_c(f, *args):
    """Compiled as one C function that agrees with the references."""
    assert kinds(f, *args) <= {"kernel", "copy", "loop", "view", "host"}, kinds(f, *args)
    compiled = ge2.jit(f)
    with ge2.config.using(executor="reference"):
        want = ge2.jit(lambda *xs: f(*xs))(*args)
    for _ in range(2):
        all_close(ge2.tree.leaves(compiled(*args)), ge2.tree.leaves(want), rtol=1e-12, atol=1e-14)
    return compiled


def rotated(c, x):
    a, b, d = c
    return (b, d, np.sin(a) + x), (a, a + b, x)


def carried_twice(c, x):
    y = np.cos(c[0] + c[1]) * x
    return (y, y), y


def unchanged(c, x):
    return (c[0], c[1] + c[0] * x), (c[0], c[1])


def literal(c, x):
    return (np.zeros(x.shape), c[1] * x), np.ones(3)


def summed(c, x):
    return (c[0] + x.sum(), c[1] @ np.outer(x, x)), c[0]


STEPS = {
    "rotated": (rotated, 3),
    "carried_twice": (carried_twice, 2),
    "unchanged": (unchanged, 2),
    "literal": (literal, 2),
    "summed": (summed, 2),
}


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("xs", [XS, WIDE], ids=["short", "long"])
def test_what_is_carried_and_stacked(name, length, reverse, xs):
    step, count = STEPS[name]
    init = tuple(rng.standard_normal(xs.shape[1]) for _ in range(count))
    in_c(lambda init, xs: lax.scan(step, init, xs, reverse=reverse), init, xs[:length])


def test_a_large_round_is_shared_by_threads():
    x = rng.standard_normal((3, 800, 2000)).astype(np.float32)

    def step(c, x):
        c = np.tanh(c + x) * x
        return c, c.sum(0)

    f = ge2.jit(lambda c, xs: lax.scan(step, c, xs))
    results = []
    for threads in (1, 2):
        with ge2.config.using(threads=threads):
            results.append(f(x[0], x))
    assert "ge2_share(" in f.lower(x[0], x).as_text("c")
    all_equal(ge2.tree.leaves(results[0]), ge2.tree.leaves(results[1]))


def test_a_matrix_product_inside_and_one_over_the_limit_of_the_loops():
    for n in (5, 40):
        w, xs = rng.standard_normal((n, n)) / n, rng.standard_normal((6, 3, n))
        in_c(lambda w, xs: lax.scan(lambda h, x: (np.tanh(h @ w + x), h.sum(1)), xs[0], xs), w, xs)


def test_a_carry_is_updated_where_it_lies():
    def body(xs, i, c):
        c = c.copy()
        c[i] = xs[i] * 2
        return c

    def f(xs):
        return lax.fori_loop(0, 7, partial(body, xs), np.zeros((7, 4)))

    compiled = in_c(f, XS)
    np.testing.assert_array_equal(compiled(XS), XS * 2)


def cleared(x):
    def at(k, x):
        x[3 * k] = 0.0
        return x

    return lax.fori_loop(0, 2000, at, x.copy())


def cleared_while(x):
    def at(state):
        k, x = state
        x[3 * k] = 0.0
        return k + 1, x

    return lax.while_loop(lambda state: state[0] < 2000, at, (0, x.copy()))[1]


def picked(x):
    return lax.fori_loop(0, 2000, lambda k, s: np.maximum(s * 0.5, x[3 * k]), 0.0)


@pytest.mark.parametrize("f", [cleared, cleared_while, picked])
def test_a_loop_that_touches_single_elements_looks_for_interrupts_seldom(f):
    """However large the array is that they belong to: a look takes longer than such a round."""
    compiled = in_c(f, np.ones(9000))
    text = compiled.lower(np.ones(9000)).executable.text("c")
    looks = [line for line in text.splitlines() if "ge2_interrupted(lib)" in line]
    assert bool(looks) == (f is cleared_while)  # of a loop that is known to be short, never
    assert all("(t & 1023) == 1023 && " in line for line in looks), looks


def test_a_while_loop_whose_rounds_are_many_and_few():
    def f(x, n):
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(c[1]) + x, c[1]), (0, x, x)
        )

    compiled = in_c(f, XS, 5)
    for n in (0, 1, 2, 9):
        with ge2.config.using(executor="reference"):
            want = f(XS, n)
        all_close(compiled(XS, n), want, rtol=1e-12)


def test_branches():
    branches = [
        lambda x, y: (x, y),
        lambda x, y: (y, x),
        lambda x, y: (x + y, np.ones(4)),
        lambda x, y: (x, x),
    ]

    def f(i, x, y):
        return lax.switch(i, branches, x, y)

    for i in range(-1, 6):
        in_c(f, np.int64(i), XS[0], XS[1])
    in_c(lambda p, x: lax.cond(p, lambda x: x * 2, lambda x: x, x), np.bool_(True), XS)


def test_loops_in_loops_in_branches():
    def f(x, xs):
        def inner(c, r):
            c = lax.while_loop(lambda v: (v * v).sum() < 50, lambda v: v * 2 + 0.1, c + r)
            c = lax.cond(
                c[0] > 0,
                lambda c: np.sqrt(abs(c)),
                lambda c: lax.fori_loop(0, 3, lambda i, v: v / 2, c),
                c,
            )
            return c, c[0]

        return lax.fori_loop(0, 2, lambda i, c: lax.scan(inner, c, xs)[0] + i, x)

    in_c(f, XS[0], XS)


def test_an_index_out_of_range_names_the_line_of_the_round():
    def f(xs, at):
        def step(c, i):
            return c + xs[i], None  # the line

        return lax.scan(step, xs[0], at)[0]

    compiled = ge2.jit(f)
    np.testing.assert_allclose(compiled(XS, np.array([1, 2])), XS[[0, 1, 2]].sum(0))
    with pytest.raises(IndexError, match=r"index 9 .*axis 0.*size 7(?s:.*)test_c_loops.py"):
        compiled(XS, np.array([1, 9, 2]))
    np.testing.assert_allclose(compiled(XS, np.array([1, 2])), XS[[0, 1, 2]].sum(0))


def test_another_length_is_the_same_text():
    f = ge2.jit(lambda xs: lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), np.zeros(4), xs))
    f(XS)
    assert (
        f.lower(XS[:3]).as_text("c").partition("#include")[2]
        == f.lower(XS).as_text("c").partition("#include")[2]
    )


def test_a_call_allocates_its_results_alone():
    def grad(xs):
        return ge2.grad(
            lambda xs: (lax.scan(lambda c, x: (np.tanh(c * x), c), xs[0], xs)[1] ** 2).sum()
        )(xs)

    f = ge2.jit(grad)
    xs = rng.standard_normal((500, 64))
    f(xs)
    tracemalloc.start()
    try:
        y = f(xs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= y.nbytes + 4096
    assert f.lower(xs).memory_analysis().arena >= xs.nbytes  # what is stacked between the two loops


def test_what_has_no_kernel_runs_as_a_loop_in_python():
    def f(xs):
        return lax.scan(lambda c, x: (c + np.sort(x * 1j).imag, np.sort(x + 1j)), xs[0], xs)

    assert "library" in kinds(f, XS)
    want = XS[0] + np.sort(XS * 1j, axis=1).imag.sum(0)
    np.testing.assert_allclose(ge2.jit(f)(XS)[0], want, rtol=1e-12)


def test_a_loop_beside_a_step_of_python_makes_results_itself():
    def f(x):
        first = ge2.pure_callback(lambda x: x + 1, x, x)
        return lax.scan(lambda c, e: (c * e, None), first, XS)[0]

    np.testing.assert_allclose(ge2.jit(f)(XS[0]), (XS[0] + 1) * XS.prod(0), rtol=1e-12)


def test_a_derivative_of_a_product_needs_nothing_of_python():
    assert "library" not in kinds(ge2.grad(np.prod), np.ones(3))


def test_the_program_is_named_after_what_it_does():
    f = ge2.jit(lambda xs: lax.scan(lambda c, x: (c + x, None), XS[0], xs)[0])
    text = f.lower(XS).as_text("c")
    assert "GE2_FN int scan_0(" in text and "scan_0(q, " in text
    assert isinstance(ge2.make_jaxpr(f)(XS).graph.eqns[0].op.jaxpr.eqns[-1].op, ScanLoop)


def test_a_carry_that_changes_is_an_error_under_jit_too():
    with pytest.raises(Ge2Error, match="the carry is f64"):
        ge2.jit(lambda xs: lax.scan(lambda c, x: (c[:2] + x[:2], None), XS[0], xs))(XS)
