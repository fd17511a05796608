"""custom_batch: its rule is used, with what it reads from around it, and what it may not return."""

from __future__ import annotations

import gc
import weakref
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
    close(
        ge2.vmap(ge2.vmap(f, (None, 0)))(XS, np.ones((2, 4)))["sum"], np.repeat(want[:, None], 4, 1)
    )
    close(ge2.grad(lambda xs: ge2.vmap(f)(xs, np.ones(2))["sum"].sum())(XS), [W, W])
    assert len(calls) == 4
    close(ge2.jvp(f, (XS[0], 1.0), (XS[1], 1.0))[1]["sum"], XS[1] * W + 1)
    assert len(calls) == 4


def squares():
    """The sum of w x^2, and a rule that is ten times too large, so that one
    sees where it was used.
    """
    f = ge2.custom_batch(lambda x, w: (w * x * x).sum())

    @f.def_vmap
    def rule(size, batched, x, w):
        x, w = (
            a if b else np.broadcast_to(a, (size, 3)) for a, b in zip((x, w), batched, strict=True)
        )
        return (w * x * x).sum(1) * 10.0, True

    return f


def test_the_rule_of_a_derivative_is_the_derivative_of_the_rule():
    f = squares()
    w = np.array([1.0, 2.0, 3.0])
    for wrap in (lambda g: g, ge2.jit):
        by_x, by_w = (wrap(ge2.vmap(ge2.grad(f, n), (0, None))) for n in (0, 1))
        close(by_x(XS, w), 20 * w * XS)
        close(by_w(XS, w), 10 * XS * XS)
        close(wrap(ge2.vmap(ge2.hessian(f), (0, None)))(XS, w), np.stack([np.diag(2 * w)] * 2))
        close(
            wrap(ge2.vmap(ge2.grad(lambda x: ge2.grad(f)(x, w).sum())))(XS), np.stack([20 * w] * 2)
        )
        pushed = wrap(ge2.vmap(lambda x, t: ge2.jvp(f, (x, w), (t, w))))(XS, XS + 1)
        close(pushed[0], (10 * w * XS * XS).sum(1))
        close(pushed[1], (20 * w * XS * (XS + 1) + 10 * w * XS * XS).sum(1))
        one = wrap(ge2.vmap(lambda t: ge2.jvp(lambda x: f(x, w), (XS[1],), (t,))[1]))(XS)
        close(one, (2 * w * XS[1] * XS).sum(1))  # nothing but the tangent is mapped
        pulled = wrap(ge2.vmap(lambda ct: ge2.vjp(f, XS[1], w)[1](ct)[0]))(np.array([1.0, 2.0]))
        # nothing but the cotangent is mapped
        close(pulled, np.stack([2 * w * XS[1], 4 * w * XS[1]]))
    close(ge2.grad(lambda x: f(x, w))(XS[0]), 2 * w * XS[0])


def test_the_rule_of_a_derivative_with_results_that_are_shared():
    f = ge2.custom_batch(lambda x, y: (x * 2.0, y * 3.0))
    f.def_vmap(lambda size, batched, x, y: ((x * 2.0, y * 3.0), batched))
    got = ge2.vmap(ge2.grad(lambda x: f(x, 1.0)[0] * f(x, x)[1]))(np.array([1.0, 2.0]))
    close(got, [12.0, 24.0])
    dx, dy = ge2.vmap(lambda x, ct: ge2.vjp(f, x, 1.0)[1]((ct, ct)))(
        np.ones(2), np.array([1.0, 2.0])
    )
    close(dx, [2.0, 4.0])
    close(dy, [3.0, 6.0])


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

    assert (
        outer(2.0) == 30.0
        and ge2.grad(outer)(2.0) == 15.0
        and ge2.jit(ge2.grad(outer))(2.0) == 15.0
    )
    close(ge2.vmap(outer)(np.array([1.0, 2.0])), [15.0, 30.0])
    before = len(used)
    # the value is mapped too: not by the rule
    close(ge2.vmap(total)(XS, np.array([1.0, 2.0])), [3.0, 24.0])
    assert len(used) == before > 0


def test_a_large_array_that_the_function_reads_too():
    first, large = np.arange(3.0), np.ones((400, 400))
    f = ge2.custom_batch(lambda x: (x * first).sum() + large.sum())
    f.def_vmap(lambda size, batched, x: (x @ first + large.sum() + 1.0, True))
    close(ge2.vmap(f)(XS), XS @ first + 160001.0)
    close(ge2.jit(ge2.vmap(f))(XS), XS @ first + 160001.0)


def test_it_keeps_no_argument_alive():
    f = ge2.custom_batch(lambda x: x.sum())
    f.def_vmap(lambda size, batched, x: (x.sum(1), True))
    x = np.ones((2, 3))
    kept = weakref.ref(x)
    g = ge2.jit(ge2.vmap(f))
    g(x)
    made = ge2.make_jaxpr(f)(x[0])
    del x
    gc.collect()
    assert kept() is None and made is not None


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


def test_in_a_scan():
    f = ge2.custom_batch(lambda x: x * 2.0)
    f.def_vmap(lambda size, batched, x: (x * 20.0, True))
    thrice = lambda x: ge2.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]  # noqa: E731
    for g in (ge2.vmap(thrice), ge2.vmap(ge2.grad(thrice)), ge2.jit(ge2.vmap(thrice))):
        close(g(np.ones(2)), [8000.0, 8000.0])
    close(ge2.jit(thrice)(1.0), 8.0)


def test_equal_functions_keep_rules_of_their_own_in_a_derivative():
    """Equal operations share their derivatives, which what equality leaves out tells apart."""

    def of(times):
        f = ge2.custom_batch(lambda x: x * x)
        f.def_vmap(lambda size, batched, x: (times * x * x, True))
        return f

    fs = [of(10.0), of(100.0)]  # too large, so that one sees whose is used
    slope = ge2.grad(lambda x: sum(f(x * k) for k, f in enumerate(fs, 1)))
    close(slope(1.0), 2.0 + 8.0)
    close(ge2.vmap(slope)(np.ones(3)), np.full(3, 10 * 2.0 + 100 * 8.0))
