"""custom_batch: its rule is used, with what it reads from around it, and what it may not return."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ge2
from ge2.base.errors import NoRuleError, TypeRuleError
from tests.transforms.functions import close

W = np.arange(3.0)
XS = np.arange(6.0).reshape(2, 3)


def recorded():
    """x * W + y, and how its rule was called."""
    calls = []

    @ge2.custom_batch
    def f(x, y):
        return {"sum": x * W + y, "y": y}

    @f.def_vmap
    def rule(size, batched, x, y):
        calls.append((size, batched))
        return {"sum": x * W + (y[:, None] if batched[1] else y), "y": y}, {
            "sum": any(batched),
            "y": batched[1],
        }

    return f, calls


def test_the_rule_is_used_and_told_what_is_mapped():
    f, calls = recorded()
    close(f(XS[0], 1.0)["sum"], XS[0] * W + 1)
    assert calls == []
    close(ge2.vmap(f)(XS, np.ones(2))["sum"], XS * W + 1)
    close(ge2.vmap(f, (0, None))(XS, 1.0)["y"], [1.0, 1.0])
    close(ge2.vmap(f, (None, 0))(XS[0], np.ones(2))["sum"], [XS[0] * W + 1] * 2)
    close(ge2.vmap(f, (1, 0), {"sum": 1, "y": 0})(XS.T, np.ones(2))["sum"], (XS * W + 1).T)
    assert calls == [(2, (True, True)), (2, (True, False)), (2, (False, True)), (2, (True, True))]


def test_under_other_transforms():
    f, calls = recorded()
    want = XS * W + 1
    close(ge2.jit(ge2.vmap(f))(XS, np.ones(2))["sum"], want)
    close(ge2.vmap(ge2.jit(f))(XS, np.ones(2))["sum"], want)
    close(ge2.vmap(ge2.vmap(f, (None, 0)))(XS, np.ones((2, 4)))["sum"], np.repeat(want[:, None], 4, 1))
    close(ge2.grad(lambda xs: ge2.vmap(f)(xs, np.ones(2))["sum"].sum())(XS), [W, W])
    used = len(calls)
    assert used == 4
    close(ge2.vmap(ge2.grad(lambda x: f(x, 1.0)["sum"].sum()))(XS), [W, W])  # of the derivative it is none
    close(ge2.jvp(f, (XS[0], 1.0), (XS[1], 1.0))[1]["sum"], XS[1] * W + 1)
    assert len(calls) == used


def test_values_from_around_the_rule():
    used = []

    def total(x, w):
        f = ge2.custom_batch(lambda x: (x * w).sum())

        @f.def_vmap
        def rule(size, batched, x):
            used.append(batched)
            return x @ (w * np.array([1.0, 1.0, 1.0])), True

        return f(x)

    def outer(w):
        return ge2.vmap(total, (0, None))(XS, w).sum()

    assert outer(2.0) == 30.0 and ge2.grad(outer)(2.0) == 15.0 and ge2.jit(ge2.grad(outer))(2.0) == 15.0
    close(ge2.vmap(outer)(np.array([1.0, 2.0])), [15.0, 30.0])
    before = len(used)
    close(ge2.vmap(total)(XS, np.array([1.0, 2.0])), [3.0, 24.0])  # the value is mapped too: not by the rule
    assert len(used) == before > 0


def test_nondiff_arguments_and_methods():
    @partial(ge2.custom_batch, nondiff_argnums=(1,))
    def power(x, n):
        return x**n

    power.def_vmap(lambda n, size, batched, x: (x**n * 10.0, batched[0]))
    close(ge2.vmap(lambda x: power(x, 2))(np.array([1.0, 2.0])), [10.0, 40.0])


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda x: x.sum(1), "returns .result, out_batched.; got a Tracer"),
        (lambda x: (x.sum(1), False), r"returns f64\[2\] for f64\[\]"),
        (lambda x: (x.sum(0), True), r"returns f64\[3\] for f64\[2\], a batch of the result"),
        (lambda x: (x.sum(1).astype(int), True), r"returns i64\[2\] for f64\[2\]"),
        (lambda x: ((x.sum(1),), True), "the function and the rule.* differ"),
        (lambda x: (x.sum(1), (True, True)), "out_batched that does not fit"),
    ],
)
def test_what_a_rule_may_not_return(result, says):
    f = ge2.custom_batch(lambda x: x.sum())
    f.def_vmap(lambda size, batched, x: result(x))
    with pytest.raises(TypeRuleError, match=says) as error:
        ge2.vmap(f)(XS)
    assert "test_custom_batch.py" in str(error.value)


def test_without_a_rule():
    with pytest.raises(NoRuleError, match="custom_batch without a rule"):
        ge2.vmap(ge2.custom_batch(lambda x: x.sum()))(XS)


def test_arrays_that_a_rule_makes_are_constants_of_the_graph():
    f = ge2.custom_vjp(lambda x: x * 1.0)
    f.defvjp(lambda x: (x * 1.0, None), lambda _, ct: (ct * np.arange(3.0),))
    close(ge2.jit(ge2.grad(lambda x: f(x).sum()))(np.ones(3)), np.arange(3.0))
    g = ge2.custom_batch(lambda x: x * 2.0)
    g.def_vmap(lambda size, batched, x: (x * np.array([2.0, 3.0]), True))
    made = ge2.make_jaxpr(ge2.vmap(g))(np.ones(2))
    assert "constant[" in str(made) and not made.captured
    close(ge2.jit(ge2.vmap(g))(np.ones(2)), [2.0, 3.0])
    g.def_vmap(lambda size, batched, x: ((x[0] * np.arange(2e5))[:2], True))
    with pytest.raises(NoRuleError, match="reads an array of 1 MB"):
        ge2.vmap(g)(np.ones(2))
