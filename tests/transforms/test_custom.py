"""custom_vjp and custom_jvp: alone, in and under other transforms, and their errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from ge2 import jit
from ge2.base.config import config
from ge2.base.errors import GradientError, InputError, NoRuleError
from ge2.lax import scan
from ge2.transforms import (
    checkpoint,
    cond,
    custom_jvp,
    custom_vjp,
    float0,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    make_jaxpr,
    stop_gradient,
    vjp,
    vmap,
)
from ge2.transforms.custom_gradient import closure_convert
from tests.transforms.functions import close, slope


def here(error):
    return "test_custom.py" in str(error.value)


def with_vjp(factor=1.0):
    """sin, with a reverse derivative that is wrong by a factor, so that one sees which was used."""
    f = custom_vjp(lambda x: np.sin(x))
    f.defvjp(lambda x: (np.sin(x), x), lambda x, ct: (factor * np.cos(x) * ct,))
    return f


def with_jvp(factor=1.0):
    f = custom_jvp(lambda x: np.sin(x))
    f.defjvp(lambda p, t: (np.sin(p[0]), factor * np.cos(p[0]) * t[0]))
    return f


both = pytest.mark.parametrize("make", [with_vjp, with_jvp])


# --------------------------------------------------------------------------------------- both alike


@both
def test_it_computes_as_the_function(make):
    x = np.linspace(-1, 1, 5)
    close(make()(x), np.sin(x))
    close(vmap(make())(x), np.sin(x))
    close(make_jaxpr(make())(x)(x)[0], np.sin(x))


@both
def test_the_rule_is_used(make):
    x = np.linspace(-1, 1, 5)
    close(grad(lambda x: np.sum(make(10.0)(x)))(x), 10 * np.cos(x))
    assert grad(make(10.0))(0.0) == 10.0 and type(grad(make(10.0))(0.0)) is float
    close(vmap(grad(make(10.0)))(x), 10 * np.cos(x))
    close(grad(lambda x: np.sum(vmap(make(10.0))(x)))(x), 10 * np.cos(x))
    close(jacrev(make(10.0))(x), np.diag(10 * np.cos(x)))
    close(grad(lambda x: np.sum(checkpoint(make(10.0))(x)))(x), 10 * np.cos(x))
    close(grad(lambda x: np.sum(cond(x[0] < 0, make(10.0), np.cos, x)))(x), 10 * np.cos(x))


@both
def test_second_derivatives_are_those_of_the_rule(make):
    x = np.linspace(-1, 1, 5)
    close(vmap(grad(grad(make(10.0))))(x), -10 * np.sin(x))
    close(hessian(lambda x: np.sum(make(10.0)(x)))(x), np.diag(-10 * np.sin(x)))
    close(grad(grad(grad(make(2.0))))(0.5), -2 * np.cos(0.5))


@both
def test_vmap_with_shared_and_mapped_arguments(make):
    g = custom_vjp(lambda x, w: np.sum(x * w))
    g.defvjp(
        lambda x, w: (np.sum(x * w), (x, w)), lambda res, ct: (7.0 * res[1] * ct, 5.0 * res[0] * ct)
    )
    if make is with_jvp:
        g = custom_jvp(lambda x, w: np.sum(x * w))
        g.defjvp(lambda p, t: (np.sum(p[0] * p[1]), np.sum(7.0 * t[0] * p[1] + 5.0 * p[0] * t[1])))
    xs, w = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 3.0])
    dx, dw = grad(lambda xs, w: np.sum(vmap(g, (0, None))(xs, w)), argnums=(0, 1))(xs, w)
    close(dx, np.stack([7 * w, 7 * w]))
    close(dw, 5 * xs.sum(0))
    each = vmap(grad(g, argnums=1), in_axes=(1, None))(xs.T, w)
    close(each, 5 * xs)


@both
def test_other_transforms_inside_the_rule(make):
    g = make(1.0)
    h = custom_vjp(lambda x: np.sum(g(x)))
    h.defvjp(
        lambda x: vjp(lambda x: np.sum(g(x)), x), lambda pull, ct: pull(ct)
    ) if False else h.defvjp(
        lambda x: (np.sum(g(x)), x), lambda x, ct: (3.0 * ct * vmap(grad(g))(x),)
    )
    x = np.linspace(-1, 1, 3)
    close(grad(h)(x), 3 * np.cos(x))
    close(jacrev(grad(h))(x), np.diag(-3 * np.sin(x)))


@both
def test_closures_over_outer_traced_values(make):
    def outer(w, scale):
        def body(x):
            f = make(2.0)
            return f(x) * stop_gradient(w) + w * scale

        return np.sum(vmap(body)(np.arange(3.0)))

    assert grad(outer)(2.0, 5.0) == 15.0

    def rule_of_closure(w):
        f = custom_vjp(lambda x: x * stop_gradient(w))
        f.defvjp(lambda x: (x * stop_gradient(w), None), lambda _, ct: (ct * w * 10.0,))
        if make is with_jvp:
            f = custom_jvp(lambda x: x * stop_gradient(w))
            f.defjvp(lambda p, t: (p[0] * stop_gradient(w), t[0] * w * 10.0))
        return f

    close(vmap(lambda w: grad(rule_of_closure(w))(3.0))(np.array([1.0, 2.0])), [10.0, 20.0])
    # the rule itself has a derivative by w
    assert grad(lambda w: grad(rule_of_closure(w))(3.0))(2.0) == 10.0


@both
def test_a_derivative_by_what_the_function_closes_over_is_an_error(make):
    def f(w):
        g = custom_vjp(lambda x: x * w)
        g.defvjp(lambda x: (x * w, None), lambda _, ct: (ct,))
        if make is with_jvp:
            g = custom_jvp(lambda x: x * w)
            g.defjvp(lambda p, t: (p[0] * w, t[0]))
        return g(3.0)

    assert vmap(f)(np.array([1.0, 2.0])).tolist() == [3.0, 6.0]
    with pytest.raises(GradientError, match="reads from around it.*") as error:
        grad(f)(2.0)
    assert here(error) and "pass it as an argument" in str(error.value)
    with pytest.raises(GradientError, match="reads from around it"):
        vmap(grad(f))(np.ones(2))


@both
def test_nondiff_arguments(make):
    if make is with_vjp:

        @partial(custom_vjp, nondiff_argnums=(0, 2))
        def f(g, x, n):
            return g(x) * n

        f.defvjp(lambda g, x, n: (g(x) * n, x), lambda g, n, x, ct: (ct * n * 100.0,))
    else:

        @partial(custom_jvp, nondiff_argnums=(0, 2))
        def f(g, x, n):
            return g(x) * n

        f.defjvp(lambda g, n, p, t: (g(p[0]) * n, t[0] * n * 100.0))
    assert grad(lambda x: f(np.cos, x, 3))(0.0) == 300.0
    close(vmap(lambda x: grad(f, argnums=1)(np.cos, x, 2.0))(np.zeros(2)), [200.0, 200.0])
    assert f(np.cos, 0.0, 3) == 3.0


@both
def test_keyword_arguments_and_defaults(make):
    g = custom_vjp(lambda x, y=2.0: x * y)
    g.defvjp(lambda x, y: (x * y, y), lambda y, ct: (ct * y * 10, None))
    if make is with_jvp:
        g = custom_jvp(lambda x, y=2.0: x * y)
        g.defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1] * 10))
    assert grad(lambda x: g(x, y=3.0))(1.0) == 30.0
    assert grad(lambda x: g(y=3.0, x=x))(1.0) == 30.0
    assert g(2.0) == 4.0


@both
def test_a_rule_may_call_its_own_function(make):
    f = custom_vjp(lambda x: np.exp(x))
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (f(x) * ct,))
    if make is with_jvp:
        f = custom_jvp(lambda x: np.exp(x))
        f.defjvp(lambda p, t: (f(p[0]), f(p[0]) * t[0]))
    g = f
    for _ in range(4):
        g = grad(g)
        close(g(0.5), np.exp(0.5))
    with pytest.raises(NoRuleError, match="so high an order") as error:
        grad(g)(0.5)
    assert here(error)


@both
def test_rules_may_call_each_other(make):
    sin, cos = custom_vjp(lambda x: np.sin(x)), custom_vjp(lambda x: np.cos(x))
    if make is with_jvp:
        sin, cos = custom_jvp(lambda x: np.sin(x)), custom_jvp(lambda x: np.cos(x))
        sin.defjvp(lambda p, t: (sin(p[0]), cos(p[0]) * t[0]))
        cos.defjvp(lambda p, t: (cos(p[0]), -sin(p[0]) * t[0]))
    else:
        sin.defvjp(lambda x: (sin(x), x), lambda x, ct: (cos(x) * ct,))
        cos.defvjp(lambda x: (cos(x), x), lambda x, ct: (-sin(x) * ct,))
    f = sin
    with config.using(check=False):  # reading such long texts back takes its time
        for want in (np.cos(0.5), -np.sin(0.5), -np.cos(0.5), np.sin(0.5)):
            f = grad(f)
            close(f(0.5), want)


def test_a_rule_that_calls_its_own_function_often_is_traced_once_an_order():
    seen = []

    def double(x):
        seen.append(x)
        return x * 2.0

    f = custom_vjp(double)
    f.defvjp(lambda x: (f(x) + f(x) - f(x), x), lambda x, ct: (ct * f(x) / f(x) * 2.0,))
    assert grad(f)(3.0) == 2.0
    assert len(seen) < 12
    assert grad(grad(f))(3.0) == 0.0


@both
def test_a_function_that_calls_itself_is_not_its_rule(make):
    def power(x, n):
        return x if n == 1 else x * f(x, n - 1)

    f = (custom_vjp if make is with_vjp else custom_jvp)(power, nondiff_argnums=(1,))
    if make is with_vjp:
        f.defvjp(lambda x, n: (power(x, n), x), lambda n, x, ct: (ct * n * x ** (n - 1),))
    else:
        f.defjvp(lambda n, p, t: (power(p[0], n), t[0] * n * p[0] ** (n - 1)))
    assert grad(f)(2.0, 6) == 6 * 2.0**5  # deeper than rules are unrolled


def test_a_trace_that_looked_at_a_value_is_made_anew_for_another():
    f = custom_jvp(lambda x: np.sin(x) if x > 0 else np.cos(x))
    f.defjvp(lambda p, t: (f(p[0]), t[0] * f(p[0]) * f(-p[0])))
    assert grad(f)(0.5) == np.sin(0.5) * np.cos(-0.5)
    assert grad(f)(-0.5) == np.cos(-0.5) * np.sin(0.5)


def test_none_inside_a_tree_is_a_zero():
    f = custom_vjp(lambda t: t["a"] * t["b"])
    f.defvjp(lambda t: (t["a"] * t["b"], None), lambda _, ct: ({"a": None, "b": ct},))
    assert grad(f)({"a": 2.0, "b": 3.0}) == {"a": 0.0, "b": 1.0}


@both
def test_integers_and_sizes_of_zero(make):
    g = custom_vjp(lambda x, n: (x * n, n + 1))
    g.defvjp(lambda x, n: ((x * n, n + 1), n), lambda n, ct: (ct[0] * n * 2, None))
    if make is with_jvp:
        g = custom_jvp(lambda x, n: (x * n, n + 1))

        @g.defjvp
        def rule(p, t):
            assert t[1].dtype == float0
            return (p[0] * p[1], p[1] + 1), (t[0] * p[1] * 2, np.zeros((), float0))

    assert grad(lambda x: g(x, 3)[0])(1.0) == 6.0
    x = np.zeros((0, 2))
    close(grad(lambda x: np.sum(make()(x)))(x), x)
    close(vmap(grad(lambda x: g(x, 3)[0]))(np.zeros(0)), np.zeros(0))


@both
def test_methods(make):
    class Model:
        def __init__(self, w):
            self.w = w

        @partial(custom_vjp if make is with_vjp else custom_jvp, nondiff_argnums=(0,))
        def apply(self, x):
            return self.w * x

        if make is with_vjp:
            apply.defvjp(lambda self, x: (self.w * x, None), lambda self, _, ct: (ct * 9.0,))
        else:
            apply.defjvp(lambda self, p, t: (self.w * p[0], t[0] * 9.0))

    assert grad(Model(2.0).apply)(1.0) == 9.0


@both
def test_without_a_rule(make):
    f = (custom_vjp if make is with_vjp else custom_jvp)(lambda x: x)
    with pytest.raises(NoRuleError, match="without") as error:
        grad(f)(1.0)
    assert here(error)


# --------------------------------------------------------------------------------------- custom_vjp


def test_trees_as_arguments_residuals_and_results():
    @custom_vjp
    def f(p, x):
        return {"y": p["w"] * x, "s": (np.sum(x),)}

    def fwd(p, x):
        return f(p, x), {"w": p["w"], "x": [x, None]}

    def bwd(res, ct):
        return {"w": np.sum(ct["y"] * res["x"][0]), "unused": None}, ct["y"] * res["w"] + ct["s"][0]

    f.defvjp(fwd, bwd)
    p, x = {"w": 2.0, "unused": None}, np.ones(3)
    dp, dx = grad(lambda p, x: np.sum(f(p, x)["y"]) + f(p, x)["s"][0], argnums=(0, 1))(p, x)
    assert dp == {"w": 3.0, "unused": None}
    close(dx, [3.0, 3.0, 3.0])


def test_none_is_a_zero_for_a_whole_argument():
    f = custom_vjp(lambda t, x: t["a"] * t["b"] * x)
    f.defvjp(lambda t, x: (t["a"] * t["b"] * x, None), lambda _, ct: (None, ct))
    assert grad(f)({"a": 2.0, "b": 3.0}, 1.0) == {"a": 0.0, "b": 0.0}


def test_forward_mode_of_a_custom_vjp_is_an_error():
    for transform in (
        lambda f: jvp(f, (1.0,), (1.0,)),
        lambda f: linearize(f, 1.0),
        lambda f: jacfwd(f)(1.0),
    ):
        with pytest.raises(NoRuleError, match="custom_vjp has no forward derivative") as error:
            transform(with_vjp())
        assert here(error) and "custom_jvp" in str(error.value)
    # of its reverse derivative it is none
    close(jvp(grad(with_vjp()), (0.5,), (1.0,))[1], -np.sin(0.5))


def test_unread_results_have_a_zero_cotangent():
    seen = []
    f = custom_vjp(lambda x: (x, x * 2))
    f.defvjp(
        lambda x: ((x, x * 2), None), lambda _, ct: (seen.append(len(ct)) or ct[0] + 10 * ct[1],)
    )
    assert grad(lambda x: f(x)[1])(1.0) == 10.0
    assert set(seen) == {2}


def test_clipping_of_gradients():
    clip = custom_vjp(lambda x: x)
    clip.defvjp(lambda x: (x, None), lambda _, ct: (np.clip(ct, -1.0, 1.0),))
    x = np.array([0.1, 3.0])
    close(grad(lambda x: np.sum(clip(x) ** 2))(x), [0.2, 1.0])
    close(vmap(grad(lambda x: clip(x) ** 2))(x), [0.2, 1.0])


@pytest.mark.parametrize(
    ("bwd", "says"),
    [
        (lambda res, ct: ct, "returns a tuple"),
        (lambda res, ct: (ct, ct), "1 arguments; got 2 values"),
        (
            lambda res, ct: (np.ones(3),),
            r"cotangent that bwd.*returns for x \(f64\[2\]\) is f64\[3\]",
        ),
        (lambda res, ct: (np.ones(2, np.float32),), "f32"),
        (lambda res, ct: ("ct",), "is a str"),
        (lambda res, ct: ({"a": ct},), "a dict"),
    ],
)
def test_wrong_cotangents_of_a_rule(bwd, says):
    f = custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: (x * 2.0, None), bwd)
    with pytest.raises((GradientError, InputError), match=says) as error:
        grad(lambda x: np.sum(f(x)))(np.ones(2))
    assert here(error)


@pytest.mark.parametrize(
    ("fwd", "says"),
    [
        (lambda x: x, r"returns \(result, residuals\)"),
        (lambda x: (x[0], None), r"returns f64\[2\].*returns f64\[\]"),
        (lambda x: ((x, x), None), "differ"),
        (lambda x: (x.astype(np.float32), None), r"f64\[2\].*f32\[2\]"),
    ],
)
def test_wrong_results_of_fwd(fwd, says):
    f = custom_vjp(lambda x: x * 2.0)
    f.defvjp(fwd, lambda res, ct: (ct,))
    with pytest.raises((GradientError, InputError), match=says) as error:
        grad(lambda x: np.sum(f(x)))(np.ones(2))
    assert here(error)


# --------------------------------------------------------------------------------------- custom_jvp


def test_both_modes_follow_from_a_jvp_rule(rng):
    @custom_jvp
    def f(p, x):
        return {"y": np.tanh(x @ p["w"]), "s": np.sum(x)}

    @f.defjvp
    def rule(primals, tangents):
        (p, x), (dp, dx) = primals, tangents
        y = f(p, x)
        return y, {"y": (1 - y["y"] ** 2) * (dx @ p["w"] + x @ dp["w"]), "s": np.sum(dx)}

    p, x = {"w": rng.normal(size=(3, 2))}, rng.normal(size=3)
    plain = lambda p, x: np.sum(np.tanh(x @ p["w"]) ** 2) + np.sum(x)  # noqa: E731
    ours = lambda p, x: np.sum(f(p, x)["y"] ** 2) + f(p, x)["s"]  # noqa: E731
    for a, b in zip(grad(ours, (0, 1))(p, x), grad(plain, (0, 1))(p, x), strict=True):
        close(a["w"] if isinstance(a, dict) else a, b["w"] if isinstance(b, dict) else b)
    t = rng.normal(size=3)
    close(jvp(lambda x: ours(p, x), (x,), (t,))[1], slope(lambda x: plain(p, x), x, t), 1e-8)
    close(hessian(lambda x: ours(p, x))(x), hessian(lambda x: plain(p, x))(x))


def test_defjvps():
    f = custom_jvp(lambda x, y, z: x * y + z)
    f.defjvps(lambda t, ans, x, y, z: t * y, None, lambda t, ans, x, y, z: 5.0 * t)
    assert grad(f, argnums=(0, 1, 2))(2.0, 3.0, 4.0) == (3.0, 0.0, 5.0)
    assert jvp(f, (2.0, 3.0, 4.0), (1.0, 1.0, 1.0)) == (10.0, 8.0)
    assert grad(grad(f), argnums=1)(2.0, 3.0, 4.0) == 1.0
    g = custom_jvp(lambda x: x)
    g.defjvps(None)
    assert grad(g)(1.0) == 0.0


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda p, t: p[0], "returns .result, tangent."),
        (lambda p, t: (p[0], np.ones(3)), r"tangent that its rule.*f64\[2\].*f64\[3\]"),
        (lambda p, t: (p[0][0], t[0]), r"returns f64\[2\].*returns f64\[\]"),
        (lambda p, t: ((p[0],), (t[0],)), "differ"),
        (lambda p, t: (p[0], (t[0],)), "tangent"),
    ],
)
def test_wrong_results_of_a_rule(rule, says):
    f = custom_jvp(lambda x: x)
    f.defjvp(rule)
    with pytest.raises((GradientError, InputError), match=says) as error:
        grad(lambda x: np.sum(f(x)))(np.ones(2))
    assert here(error)


# ---------------------------------------------------------------------------------- nondiff by name


@both
def test_nondiff_arguments_by_name(make):
    kind = custom_vjp if make is with_vjp else custom_jvp
    f = kind(lambda m, x, n: m * x * n, nondiff_argnames=("n", "m"))
    if make is with_vjp:
        f.defvjp(lambda m, x, n: (m * x * n, None), lambda m, n, _, ct: (ct * n * 100 + m,))
    else:
        f.defjvp(lambda m, n, p, t: (m * p[0] * n, t[0] * n * 100 + m * t[0]))
    assert grad(f, 1)(1, 2.0, 3) == 301.0
    assert grad(lambda x: f(n=3, x=x, m=1))(2.0) == 301.0
    with pytest.raises(InputError, match="names 'k', but .* no such parameter") as error:
        kind(lambda x, n: x, nondiff_argnames="k")
    assert here(error)


@both
def test_closures_become_arguments(make):
    def outer(w, x):
        plain, consts = closure_convert(lambda x: x * w["a"], x)
        f = (custom_vjp if make is with_vjp else custom_jvp)(lambda x, *consts: plain(x, *consts))
        if make is with_vjp:
            f.defvjp(
                lambda x, a: (plain(x, a), (x, a)),
                lambda res, ct: (res[1] * ct, res[0] * ct * 10.0),
            )
        else:
            f.defjvp(lambda p, t: (plain(*p), t[0] * p[1] + p[0] * t[1] * 10.0))
        return f(x, *consts)

    assert grad(outer)({"a": 2.0}, 3.0) == {"a": 30.0}
    assert grad(outer, 1)({"a": 2.0}, 3.0) == 2.0
    close(vmap(grad(lambda a: outer({"a": a}, 3.0)))(np.ones(2)), [30.0, 30.0])
    with pytest.raises(InputError, match="converted for other arguments"):
        grad(lambda w: closure_convert(lambda x: x * w, 1.0)[0](np.ones(3), w).sum())(2.0)


@both
def test_in_a_scan(make):
    f = make(10.0)
    thrice = lambda x: scan(lambda c, _: (f(c), c), x, None, length=3)[0]  # noqa: E731
    x, slope = 0.5, 1.0
    for _ in range(3):
        x, slope = np.sin(x), slope * 10.0 * np.cos(x)
    close(thrice(0.5), x)
    for g in (grad(thrice), jit(grad(thrice)), lambda x: vmap(grad(thrice))(np.array([x]))[0]):
        close(g(0.5), slope)
    close(grad(grad(thrice))(0.5), grad(grad(lambda x: f(f(f(x)))))(0.5))
    close(jit(grad(grad(thrice)))(0.5), grad(grad(lambda x: f(f(f(x)))))(0.5))
    if make is with_jvp:
        close(jvp(thrice, (0.5,), (1.0,))[1], slope)
