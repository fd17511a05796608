"""Stacks that a later loop makes again: under a memory limit, and only where that is the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import MemoryLimitError
from ge2.compile.memory.candidates import unstacked
from ge2.ir import Graph, verify
from ge2.passes.simplify import inline
from ge2.trace import tidy
from tests.compared import all_close
from tests.runtime.test_memory_limit import allocated, limited

N, BATCH, ROUNDS = 32, 64, 24
RNG = np.random.default_rng(0)
WS = [RNG.normal(size=(N, N)) / 6 for _ in range(4)]
XS = RNG.normal(size=(ROUNDS, BATCH, N))
START = np.zeros((BATCH, N))
STACK = XS.nbytes
MORE = STACK // 5  # what a round needs to make its values again


def gated(ws, xs, reverse=False):
    """Each round has two gates, of products; the derivative reads them and
    both parts of the carry.
    """
    a, b, c, d = ws

    def body(state, x):
        h, m = state
        gate = 1.0 / (1.0 + np.exp(-(x @ a + h @ b)))
        new = np.tanh(x @ c + h @ d)
        m = m * gate + new
        return (np.tanh(m) * new, m), None

    (h, _), _ = ge2.lax.scan(body, (START, START), xs, reverse=reverse)
    return np.sum(h * h)


def backward(ws, xs):
    return gated(ws, xs, True)


def twice(ws, xs):
    """Loops within a loop."""
    return np.sum(ge2.lax.map(lambda s: gated(ws, xs[:8] * s), np.array([0.5, 1.0])))


def highest(ws, xs):
    """The derivative of a maximum asks where it is."""

    def body(h, x):
        z = x @ ws[0] + h @ ws[1]
        return np.tanh(z) * np.max(z, axis=1, keepdims=True), None

    return np.sum(ge2.lax.scan(body, START, xs)[0])


def memory(f: Any) -> Any:
    return f.lower(WS, XS).memory_analysis()


def least(f: Any) -> int:
    with pytest.raises(MemoryLimitError) as error:
        limited(f, 1)(WS, XS)
    return int(re.search(r"memory_limit=(\d+)", str(error.value))[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "blocked"])
@pytest.mark.parametrize("f", [gated, backward, twice, highest])
def test_at_the_least_limit_the_gradient_is_the_same(executor: str, f: Any):
    with config.using(executor=executor, check=True):
        plain = ge2.jit(ge2.grad(f))
        found = least(f)
        small = limited(f, found)
        assert memory(small).peak == found <= memory(plain).peak
        all_close(small(WS, XS), plain(WS, XS), rtol=1e-9, atol=1e-12)


def test_stacks_of_gates_are_given_up_one_by_one():
    with config.using(passes_off=("products_outside",)):  # as it is where memory is limited
        full = memory(ge2.jit(ge2.grad(gated))).peak
    one, two = (limited(gated, full - n * STACK + MORE).lower(WS, XS) for n in (1, 2))
    assert [r.nbytes for r in one.remat.repeats] == [STACK]
    assert [r.nbytes for r in two.remat.repeats] == [STACK, STACK]
    assert all("in body" in line for line in two.remat.lines)
    work = sum(r.operations for r in one.remat.repeats)
    # two products
    assert ROUNDS * 2 * BATCH * N * N * 2 <= work < 1.2 * ROUNDS * 2 * BATCH * N * N * 2


def test_what_is_allocated_is_less():
    with config.using(executor="blocked", threads=1):
        full = memory(ge2.jit(ge2.grad(gated))).peak
        small = limited(gated, full - 2 * STACK + MORE)
        assert allocated(small, WS, XS) < full - 2 * STACK + MORE + 20_000


def graph_of(f: Any) -> Graph:
    return tidy(inline(ge2.make_jaxpr(ge2.grad(f))(WS, XS).graph))


def test_the_graph_without_a_stack():
    graph = graph_of(gated)
    found = list(unstacked(graph, lambda v: True))
    assert len(found) == 2
    for each in found:
        verify(each.graph)
        assert all(each.value not in e.outs for e in each.graph.eqns)
        args = [START, *WS, XS]
        all_close(each.graph(*args), graph(*args), rtol=1e-9, atol=1e-12)


def highest_of(read: bool) -> Graph:
    """A loop that stacks z and its maximum in each round, or where that
    is, and one that reads these.
    """

    def first(h, x):
        z = np.tanh(x @ WS[0])
        m = np.max(z, axis=1, keepdims=True)
        return h + m, ((z, m) if read else (z == m, m))

    def second(h, s):
        at, m = s
        return h + np.where(at == m if read else at, h, m), None

    def f(h, xs):
        h, stacks = ge2.lax.scan(first, h, xs)
        return ge2.lax.scan(second, h, stacks, reverse=True)[0]

    return tidy(inline(ge2.make_jaxpr(f)(START, XS).graph))


def test_a_stack_whose_values_are_compared_is_kept():
    """What is made again may differ in its last bit."""
    found = list(unstacked(highest_of(True), lambda v: True))
    assert not any(u.value.type.shape == XS.shape for u in found)


def test_a_maximum_is_made_again_with_what_it_is_of():
    found = [
        u for u in unstacked(highest_of(False), lambda v: True) if u.value.type.shape == XS.shape
    ]
    assert [e.op.name for u in found for e in u.again].count("reduce_max") == 1


def test_a_stack_that_is_returned_is_kept():
    def f(ws, xs):
        def body(h, x):
            z = np.tanh(x @ ws[0] + h @ ws[1])
            return np.sin(h) * z, z

        h, zs = ge2.lax.scan(body, START, xs)
        return np.sum(h), zs

    graph = tidy(inline(ge2.make_jaxpr(ge2.grad(f, has_aux=True))(WS, XS).graph))
    returned = set(graph.outputs)
    assert not any(u.value in returned for u in unstacked(graph, lambda v: True))
