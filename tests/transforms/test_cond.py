"""cond: values, derivatives and batches, nested, and errors that show where branches differ."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import jit
from ge2 import numpy as gnp
from ge2.base.errors import GradientError, InputError, TypeRuleError
from ge2.transforms import (
    checkpoint,
    cond,
    custom_vjp,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    make_jaxpr,
    vjp,
    vmap,
)
from tests.transforms.functions import close, points, slope


def here(error):
    return "test_cond.py" in str(error.value)


def f(x, y):
    """Two branches that read different values, capture different ones,
    and keep different residuals.
    """
    k = np.cos(y)
    return cond(
        np.sum(x) > 0.0, lambda x, y: np.sin(x) * np.exp(y), lambda x, y: x * x * k + y, x, y
    )


def branchless(x, y):
    return np.where(np.sum(x) > 0.0, np.sin(x) * np.exp(y), x * x * np.cos(y) + y)


SIDES = [np.array([0.5, 0.2, -0.1]), np.array([-0.5, 0.2, -0.1])]
side = pytest.mark.parametrize("x", SIDES)


@side
def test_values_and_derivatives(x):
    y, t = np.array([0.3, -0.7, 1.1]), np.array([1.0, -2.0, 0.5])
    close(f(x, y), branchless(x, y))
    close(make_jaxpr(f)(x, y)(x, y)[0], branchless(x, y))
    for n in (0, 1):
        close(jacrev(f, n)(x, y), jacrev(branchless, n)(x, y))
        close(jacfwd(f, n)(x, y), jacfwd(branchless, n)(x, y))
    close(jvp(f, (x, y), (t, y))[1], jvp(branchless, (x, y), (t, y))[1])
    total = lambda f: lambda x, y: np.sum(np.sin(f(x, y)))  # noqa: E731
    for a, b in zip(
        hessian(total(f), (0, 1))(x, y), hessian(total(branchless), (0, 1))(x, y), strict=True
    ):
        close(a[0], b[0])
        close(a[1], b[1])
    close(hessian(total(f))(x, y) @ t, slope(lambda x: grad(total(f))(x, y), x, t), 1e-7)


def test_only_the_branch_taken_is_computed():
    def run(x):
        return cond(
            x > 0, lambda x: np.log(x), lambda x: gnp.take(np.zeros(2), x.astype(int) - 100) * x, x
        )

    graph = make_jaxpr(run)(np.float64(1.0))
    close(graph(np.float64(1.0))[0], 0.0)
    with pytest.raises(IndexError):
        graph(np.float64(-1.0))


def test_a_mapped_predicate_selects():
    xs, y = np.stack(SIDES), np.array([0.3, -0.7, 1.1])
    close(vmap(f, (0, None))(xs, y), np.stack([f(x, y) for x in xs]))
    close(
        vmap(grad(lambda x, y: np.sum(f(x, y))), (0, None))(xs, y),
        np.stack([grad(lambda x: np.sum(f(x, y)))(x) for x in xs]),
    )
    close(
        grad(lambda y: np.sum(vmap(f, (0, None))(xs, y)))(y),
        sum(grad(lambda y, x=x: np.sum(f(x, y)))(y) for x in xs),
    )


@pytest.mark.parametrize("p", [True, False])
def test_a_shared_predicate_stays_a_branch(p):
    xs = points(np.random.default_rng(0), 3)
    g = lambda p, x: cond(p, lambda x: (np.sin(x), 1.0), lambda x: (x * 2, 2.0), x)  # noqa: E731
    run = vmap(g, in_axes=(None, 0), out_axes=(0, None))
    graph = make_jaxpr(run)(np.bool_(p), xs)
    assert [e.op.name for e in graph.graph.eqns].count("cond") == 1
    got = graph(np.bool_(p), xs)
    close(got[0], np.sin(xs) if p else xs * 2)
    assert float(got[1]) == (1.0 if p else 2.0)


def test_branches_of_which_one_is_mapped():
    xs, y = np.arange(6.0).reshape(3, 2), np.ones(2)
    g = lambda p, x, y: cond(p, lambda x, y: (x, y), lambda x, y: (y, y), x, y)  # noqa: E731
    for p in (True, False):
        a, b = make_jaxpr(vmap(g, in_axes=(None, 0, None), out_axes=(0, None)))(np.bool_(p), xs, y)(
            np.bool_(p), xs, y
        )
        close(a, xs if p else np.ones((3, 2)))
        close(b, y)


def test_nested():
    def g(x):
        def inner(x):
            return cond(x > 1.0, lambda x: x**3, lambda x: cond(x > 0.5, np.sin, np.cos, x), x)

        return cond(x > 0.0, inner, lambda x: 0.5 * x, x)

    xs = np.array([-1.0, 0.2, 0.7, 2.0])
    plain = [lambda x: 0.5 * x, np.cos, np.sin, lambda x: x**3]
    for x, h in zip(xs, plain, strict=True):
        close(grad(g)(x), grad(h)(x))
        close(grad(grad(g))(x), grad(grad(h))(x))
        close(jvp(g, (x,), (2.0,))[1], 2 * grad(h)(x))
        close(linearize(g, x)[1](2.0), 2 * grad(h)(x))
    close(vmap(grad(g))(xs), np.array([grad(h)(x) for x, h in zip(xs, plain, strict=True)]))
    close(
        vmap(grad(grad(g)))(xs),
        np.array([grad(grad(h))(x) for x, h in zip(xs, plain, strict=True)]),
    )


def test_trees_and_no_operands():
    def g(p, t):
        return cond(
            p > 0, lambda t: {"a": t["x"], "b": [t["y"]]}, lambda t: {"a": t["y"], "b": [t["x"]]}, t
        )

    assert grad(lambda t: g(1.0 * t["x"], t)["a"])({"x": 2.0, "y": 3.0}) == {"x": 1.0, "y": 0.0}
    assert grad(lambda x: cond(x > 0, lambda: x * x, lambda: x))(3.0) == 6.0
    assert (
        grad(lambda x: cond(x > 0, lambda: {"p": (x, None)}, lambda: {"p": (2 * x, None)})["p"][0])(
            -3.0
        )
        == 2.0
    )


def test_weak_numbers():
    x = np.float32(2.0)
    run = make_jaxpr(lambda x: cond(x > 0, lambda x: x, lambda x: 0.0, x))(x)
    # a Python number takes the dtype beside it
    assert run.graph.outputs[0].type.dtype == np.float32
    assert type(grad(lambda x: cond(x > 0, lambda x: x * x, lambda x: -x, x))(3.0)) is float
    value, pull = vjp(lambda x: cond(x > 0, lambda x: x * x, lambda x: 0, x), 3.0)
    assert (value, pull(1.0)) == (9.0, (6.0,)) and type(value) is float


def test_integer_predicates_and_operands():
    g = lambda n, x: cond(n, lambda n, x: x * n, lambda n, x: x, n, x)  # noqa: E731
    assert grad(g, argnums=1)(3, 2.0) == 3.0 and grad(g, argnums=1)(0, 2.0) == 1.0
    close(vmap(g)(np.array([0, 2, 5]), np.ones(3)), [1.0, 2.0, 5.0])
    assert make_jaxpr(g)(np.int32(2), 3.0)(np.int32(2), 3.0)[0] == 6.0


def test_sizes_of_zero():
    x = np.zeros((0, 2))
    close(grad(lambda x: np.sum(cond(np.sum(x) > 0, np.sin, np.cos, x)))(x), x)
    assert vmap(lambda x: cond(x[0] > 0, np.sin, np.cos, x))(x).shape == (0, 2)


def test_custom_rules_and_checkpoints_in_branches():
    h = custom_vjp(np.sin)
    h.defvjp(lambda x: (np.sin(x), x), lambda x, ct: (10 * np.cos(x) * ct,))
    g = lambda x: cond(x > 0, h, checkpoint(lambda x: np.exp(np.sin(x))), x)  # noqa: E731
    close(grad(g)(0.0 + 0.5), 10 * np.cos(0.5))
    close(
        vmap(grad(g))(np.array([0.5, -0.5])),
        [10 * np.cos(0.5), np.exp(np.sin(-0.5)) * np.cos(-0.5)],
    )


def test_decided_outside_of_a_trace():
    assert cond(True, lambda x: x + 1, lambda x: x - 1, 10) == 11
    assert cond(np.int8(0), lambda x: x + 1, lambda x: x - 1, 10) == 9
    assert grad(lambda x: cond(1 > 2, lambda x: x, lambda x: 3 * x, x))(1.0) == 3.0


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("true", "false", "says"),
    [
        (
            lambda x: x,
            lambda x: x[0],
            r"false branch.*returns f64\[\], the true branch.*returns f64\[2\]",
        ),
        (lambda x: x, lambda x: x.astype(np.float32), r"f32\[2\].*f64\[2\]"),
        (
            lambda x: {"a": [x, x]},
            lambda x: {"a": [x, x > 0]},
            r"at \['a'\]\[1\].*bool\[2\].*f64\[2\]",
        ),
        (lambda x: {"a": x}, lambda x: {"b": x}, "differ"),
        (lambda x: (x, x), lambda x: x, "differ"),
        (lambda x: x[0] > 0, lambda x: 1.0, r"~f64\[\].*bool\[\]"),
    ],
)
def test_branches_that_differ(true, false, says):
    with pytest.raises(TypeRuleError, match=says) as error:
        make_jaxpr(lambda x: cond(x[0] > 0, true, false, x))(np.ones(2))
    assert here(error)


@pytest.mark.parametrize("p", [np.array([True, False]), 1.5, "yes", None, np.array([1.0])])
def test_what_is_no_predicate(p):
    with pytest.raises(TypeRuleError, match="decided by a bool scalar") as error:
        cond(p, lambda: 1, lambda: 2)
    assert here(error)


def test_what_is_no_predicate_in_a_trace():
    with pytest.raises(TypeRuleError, match=r"got f64\[2\]") as error:
        make_jaxpr(lambda x: cond(x, lambda: 1, lambda: 2))(np.ones(2))
    assert here(error) and "np.any" in str(error.value)


def test_operands_that_are_no_arrays():
    class Thing:
        pass

    with pytest.raises(InputError, match="Thing"):
        make_jaxpr(lambda x: cond(x > 0, lambda t: 1.0, lambda t: 2.0, Thing()))(1.0)
    with pytest.raises(GradientError):
        grad(lambda x: cond(x > 0, lambda: 1, lambda: 2))(1.0)


def test_what_the_derivative_reads_is_given_again_or_shared():
    """Operands and results are no residuals, and branches share the places of theirs."""

    def sines(x, w):
        return np.tanh(np.sin(x @ w) @ w)

    def cosines(x, w):
        return np.exp(np.cos(x @ w) @ w)

    def f(x, w):
        return np.sum(cond(x[0, 0] > 0, sines, cosines, x, w))

    x = np.linspace(-1.0, 1.0, 16).reshape(4, 4)
    graph = make_jaxpr(grad(f))(x, x).graph
    (saving,) = (e for e in graph.eqns if e.op.name == "cond_saving")
    assert saving.op.residuals == 1
    (backward,) = (e for e in graph.eqns if e.op.name == "cond")
    assert set(backward.inputs) > {*saving.inputs[:1], *saving.outs} and saving.op.again == (1, 2)
    for start, branch in ((x, cosines), (-x, sines)):
        slope = grad(lambda x, w, branch=branch: np.sum(branch(x, w)))(start, x)
        close(grad(f)(start, x), slope)
        close(jit(grad(f))(start, x), slope)


def test_a_result_that_is_an_operand_or_comes_twice():
    def f(x):
        return sum(
            y.sum()
            for y in cond(x[0] > 0, lambda x: (x, np.exp(x), np.exp(x)), lambda x: (x * x, x, x), x)
        )

    close(grad(f)(np.array([1.0, 2.0])), 1 + 2 * np.exp([1.0, 2.0]))
    close(grad(f)(np.array([-1.0, 2.0])), 2 * np.array([-1.0, 2.0]) + 2)
