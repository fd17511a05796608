"""What transforms and control flow refuse, and what they take, at their edges."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import (
    custom_gradient,
    custom_jvp,
    custom_vjp,
    grad,
    jit,
    jvp,
    lax,
    linear_transpose,
    sequential_vmap,
    stop_gradient,
    vjp,
    vmap,
)
from ge2.base.errors import GradientError, InputError, TracerBoolConversionError, TypeRuleError
from ge2.transforms.solves import custom_linear_solve, custom_root

F32, ONES = np.float32(1.0), np.ones(3)


def identity(x):
    return x


def doubled(x):
    return lax.while_loop(lambda v: v < 10, lambda v: v * 2, x)


STOPPED = [
    (lambda x: stop_gradient(doubled(x)), 0.0),
    (lambda x: stop_gradient(doubled(x)) * x, 12.0),
    (lambda x: x * lax.cond(x > 0, lambda x: stop_gradient(doubled(x)), identity, x), 12.0),
    (
        lambda x: lax.scan(lambda c, _: (c + stop_gradient(doubled(c)), None), x, None, length=2)[
            0
        ],
        1.0,
    ),
    (lambda x: x + np.floor(doubled(x)).astype(int), 1.0),
]


@pytest.mark.parametrize(("f", "want"), STOPPED)
def test_what_no_cotangent_reaches_needs_no_derivative(f, want):
    assert grad(f)(1.5) == want


REFUSED = [
    (GradientError, lambda: vjp(identity, 1.0)[1](1j)),
    (GradientError, lambda: vjp(identity, 1.0)[1](True)),
    (GradientError, lambda: vjp(identity, ONES)[1](1j)),
    (GradientError, lambda: jvp(identity, (1.0,), (1j,))),
    (GradientError, lambda: jvp(identity, (F32,), (1j,))),
    (TypeRuleError, lambda: lax.cond(True, lambda x: (x, 1), identity, 1.0)),
    (TypeRuleError, lambda: lax.cond(F32 > 0, lambda x: ONES, lambda x: ONES[:2], 1.0)),
    (TypeRuleError, lambda: lax.switch(1, [lambda: ONES, lambda: ONES[:2]])),
    (InputError, lambda: lax.scan(lambda c, x: (c, x), 0.0, ONES, unroll=-1)),
    (InputError, lambda: lax.scan(lambda c, x: (c, x), 0.0, None, length=True)),
    (InputError, lambda: lax.scan(lambda c, x: (c, x), 0.0, ONES, unroll=0)),
    (InputError, lambda: lax.fori_loop(0, 3, lambda i, c: c, 0.0, unroll=-1)),
    (InputError, lambda: vmap(identity, in_axes=True)(np.eye(2))),
    (InputError, lambda: vmap(identity, out_axes=True)(np.eye(2))),
    (InputError, lambda: vmap(identity, axis_name="i")(np.eye(2))),
    (TypeRuleError, lambda: lax.while_loop(lambda x: x < 3, lambda x: True, F32)),
    (TypeRuleError, lambda: lax.while_loop(lambda x: x < 3, lambda x: x < 10, F32)),
    (TypeRuleError, lambda: lax.while_loop(lambda x: x < 3, lambda x: True, 1.0)),
    (TypeRuleError, lambda: lax.scan(lambda c, x: (True, x), F32, ONES)),
    (GradientError, lambda: custom_root(identity, 1.0, lambda f, x: (x, x), lambda g, y: y)),
    (GradientError, lambda: custom_linear_solve(identity, ONES, lambda f, b: ONES[:2])),
    (GradientError, lambda: custom_linear_solve(lambda x: (x,), ONES, lambda f, b: f(b)[0])),
    (GradientError, lambda: custom_linear_solve(identity, ONES, lambda f, b: (b, b))),
]


@pytest.mark.parametrize(("kind", "call"), REFUSED)
def test_refused_with_the_line(kind, call):
    with pytest.raises(kind) as error:
        call()
    assert "test_edges.py" in str(error.value)


def test_numbers_become_the_type_of_what_they_belong_to():
    assert isinstance(vjp(identity, 1.0)[1](2)[0], float)
    found = lax.cond(True, identity, lambda x: F32, 1.0)
    assert (
        found.dtype
        == jit(lambda p: lax.cond(p, identity, lambda x: F32, 1.0))(True).dtype
        == np.float32
    )
    assert lax.while_loop(lambda x: x < 3, lambda x: 5, F32).dtype == np.float32


def test_values_that_control_flow_only_passes_on_are_shared():
    xs, y = np.arange(3.0) - 1, 5.0

    def f(x, y):
        return lax.cond(x > 0, lambda a, b: (a, b), lambda a, b: (2 * a, b), x, y)

    def g(x, y):
        return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1]), (x, y))

    def h(x, y):
        return lax.scan(lambda c, t: ((c[0] + t, c[1]), None), (x, y), xs)[0]

    for each, want in ((f, [-2.0, 0.0, 1.0]), (g, [5.0, 5.0, 5.0]), (h, xs)):
        first, second = vmap(each, in_axes=(0, None), out_axes=(0, None))(xs, y)
        np.testing.assert_array_equal(first, want)
        assert np.ndim(second) == 0 and second == y

        def total(y):
            return sum(np.sum(v) for v in vmap(each, (0, None), (0, None))(xs, y))  # noqa: B023

        if each is not g:
            assert grad(total)(y) == 1.0


def test_a_rule_that_calls_its_function_on_the_tangent():
    triple = custom_jvp(lambda x: 3.0 * x)
    triple.defjvp(lambda p, t: (triple(p[0]), triple(t[0])))
    assert jvp(triple, (1.0,), (2.0,)) == (3.0, 6.0)
    assert grad(triple)(1.0) == 3.0
    assert grad(grad(lambda x: triple(x) * x))(1.0) == 6.0
    np.testing.assert_array_equal(vmap(grad(triple))(ONES), 3 * ONES)


def of_sign():
    f = custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), lambda r, ct: (ct * r if r > 0 else -ct,))
    return f


def test_a_rule_that_looks_at_a_residual():
    f = of_sign()
    assert (grad(f)(2.0), grad(f)(-2.0), grad(grad(f))(2.0)) == (2.0, -1.0, 1.0)
    want = 4 * np.sin(2.0) * np.cos(2.0) + 2 * np.sin(2.0) ** 2
    np.testing.assert_allclose(grad(lambda x: f(np.sin(x)) * f(x))(2.0), want)
    for transform, x in ((jit, 2.0), (vmap, ONES)):
        with pytest.raises(TracerBoolConversionError):
            transform(grad(f))(x)


def test_a_rule_that_reads_a_value_from_around_it():
    def f(x, w):
        g = custom_vjp(lambda x: x * w)
        g.defvjp(lambda x: (x * w, x), lambda r, ct: (ct * w,))
        return g(x)

    assert grad(f)(2.0, 3.0) == 3.0
    with pytest.raises(GradientError, match="reads from around it"):
        grad(f, 1)(2.0, 3.0)


def test_dead_code_is_not_transposed():
    def f(x):
        return (np.sin(x), x * x + 1, 2 * x)[2]

    assert linear_transpose(f, 1.0)(1.0) == (2.0,)


def test_pullbacks_leave_a_jitted_function_and_are_carried():
    f = jit(lambda x: vjp(lambda x: np.sum(np.sin(x) * x), x))
    x = np.arange(3.0)
    want = np.sin(x) + x * np.cos(x)
    pull = f(x)[1]
    np.testing.assert_allclose(pull(2.0)[0], 2 * want)
    apply = jit(lambda p, ct: p(ct))
    np.testing.assert_allclose(apply(pull, 2.0)[0], 2 * want)
    np.testing.assert_allclose(apply(f(x + 1)[1], 1.0)[0], np.sin(x + 1) + (x + 1) * np.cos(x + 1))

    def descend(carry, _):
        x, pull = carry
        x = x - 0.1 * pull(1.0)[0]
        return (x, vjp(lambda x: np.sum(x * x), x)[1]), None

    first = (x, vjp(lambda x: np.sum(x * x), x)[1])
    np.testing.assert_allclose(lax.scan(descend, first, None, length=3)[0][0], x * 0.8**3)


def test_custom_gradient():
    f = custom_gradient(lambda x: (np.sin(x), lambda ct: ct * x * 10.0))
    x = np.array([0.5, 2.0])
    assert (f(2.0), grad(f)(2.0), jit(grad(f))(2.0), grad(grad(f))(2.0)) == (
        np.sin(2.0),
        20.0,
        20.0,
        10.0,
    )
    np.testing.assert_allclose(vmap(grad(f))(x), 10 * x)
    want = 10 * np.sin(2.0) + np.sin(1.0) * 2 * 20.0
    np.testing.assert_allclose(grad(lambda x: f(x) * f(2 * x))(1.0), want)
    g = custom_gradient(lambda x, y: (x * y, lambda ct: (ct * y * 7, None)))
    assert grad(g, (0, 1))(2.0, 3.0) == (21.0, 0.0)
    with pytest.raises(GradientError, match="custom_gradient returns"):
        grad(custom_gradient(lambda x: x))(1.0)


def test_sequential_vmap():
    calls = []

    def f(x, y):
        calls.append(x.shape)
        return {"a": np.sin(x) * y, "b": x}

    x = np.arange(6.0).reshape(3, 2)
    found = vmap(sequential_vmap(f), (0, None))(x, 2.0)
    np.testing.assert_allclose(found["a"], np.sin(x) * 2)
    np.testing.assert_array_equal(found["b"], x)
    assert set(calls) == {(2,)}  # no batch was ever seen

    def total(x):
        return vmap(sequential_vmap(f), (0, None))(x, 2.0)["a"].sum()

    np.testing.assert_allclose(grad(total)(x), np.cos(x) * 2)


def test_symbolic_zeros_are_refused():
    for set_rule in (
        lambda: custom_vjp(identity).defvjp(identity, identity, symbolic_zeros=True),
        lambda: custom_jvp(identity).defjvp(identity, symbolic_zeros=True),
    ):
        with pytest.raises(InputError, match="symbolic_zeros"):
            set_rule()
