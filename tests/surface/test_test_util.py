"""check_op and check_grads find what is wrong, and say where."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2 import extend
from ge2.base.errors import ArgumentError, TypeRuleError
from ge2.test_util import check_grads, check_op
from tests.together import needs_compiler

X = np.arange(1.0, 7.0).reshape(2, 3)


def test_it_is_there_without_an_import():
    assert ge2.test_util.check_op is check_op


# ----------------------------------------------------------------------------------------- check_op


class Double(extend.Op):
    """Twice x; subclasses get something wrong."""

    def infer(self, x):
        return (x,)

    def reference(self, x):
        return x + x

    def vjp(self, cts, ys, xs, wanted):
        return [cts[0] * 2.0]


def made(**body):
    return extend.op(type("Double", (Double,), {"name": "test_double", **body}))()


def writes(self, x):
    x[...] = x + x
    return x


WRONG = {
    "vjp gives .* differences of the reference": {
        "vjp": lambda self, cts, ys, xs, wanted: [cts[0] * 2.1]
    },
    r"jvp gives (.|\n)* differences of the reference": {
        "jvp": lambda self, ts, ys, xs: [ts[0] * 2.1]
    },
    "the second derivative gives": {
        "reference": lambda self, x: x**3,
        "vjp": lambda self, cts, ys, xs, wanted: [cts[0] * ge2.lax.stop_gradient(xs[0]) ** 2 * 3.0],
    },
    "the reference gives f32": {"reference": lambda self, x: (x + x).astype(np.float32)},
    "of the same values in another layout": {
        "reference": lambda self, x: np.ravel(x, "K").reshape(x.shape) * 2
    },
    "along .* place 0 of the batch is": {
        "batch": lambda self, xs, axes, size: ((self(xs[0].move_axis(axes[0], 0)[::-1]),), (0,))
    },
    "its batch along .2. has the shape": {
        "batch": lambda self, xs, axes, size: ((self(xs[0]),), (0,))
    },
    "read-only": {"reference": writes},
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_wrong_with_an_operation(says):
    check_op(made(), [X])
    with pytest.raises((AssertionError, ValueError), match=says):
        check_op(made(**WRONG[says]), [X])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            {"infer": lambda self, x: x},
            "infer of test_double is to return a tuple of types; it returned Array",
        ),
        (
            {"vjp": lambda self, cts, ys, xs, wanted: None},
            "vjp of test_double .* list of 1; .* a NoneType",
        ),
        (
            {"vjp": lambda self, cts, ys, xs, wanted: [cts[0], None]},
            "vjp of test_double .* of 1; .* 2",
        ),
        (
            {"jvp": lambda self, ts, ys, xs: ts[0] * 2.0},
            "jvp of test_double .* list of 1; .* a Tracer",
        ),
        (
            {"batch": lambda self, xs, axes, size: self(xs[0])},
            "batch of test_double .* of 2; .* a Tracer",
        ),
        (
            {"batch": lambda self, xs, axes, size: (self(xs[0]), [0])},
            "batch of .* list of 1; .* a Tracer",
        ),
    ],
)
def test_what_a_rule_returns_is_looked_at(body, says):
    with pytest.raises(TypeRuleError, match=says) as error:
        check_op(made(**body), [X])
    assert error.value.__notes__ == ["while check_op was given f64[2,3] for test_double"]


@needs_compiler
def test_c_that_computes_another_thing():
    right = "for (int64_t i = 0; i < x_size; i++) y[i] = x[i] + x[i];"
    check_op(made(c=right), [X, X.astype(np.float32), X.astype(int)])
    with pytest.raises(AssertionError, match="executed by 'c'"):
        check_op(made(c=right.replace("x[i] + x[i]", "x[i] * x[i]")), [X])


def test_samples_are_needed():
    with pytest.raises(ArgumentError, match="no samples"):
        check_op(made(), [])
    with pytest.raises(ArgumentError, match="takes an operation; got a function"):
        check_op(lambda x: x, [X])


# -------------------------------------------------------------------------------------- check_grads


def test_right_derivatives():
    check_grads(lambda p, n: {"y": np.sin(p["a"]) * n, "n": n}, ({"a": X}, 3), order=2)
    check_grads(lambda x: np.exp(x).sum(), (np.ones(3, np.float32),), order=2)
    check_grads(lambda z: z * z * 1j, (X + 2j,), order=2)
    check_grads(lambda x: x * 2.0, (3.0,), order=1, modes="fwd")


def test_wrong_derivatives():
    forward = ge2.custom_jvp(np.sin)
    forward.defjvp(lambda p, t: (np.sin(p[0]), t[0] * 1.1))
    with pytest.raises(
        AssertionError, match="fwd: the derivative is .* differences give .* off by"
    ):
        check_grads(forward, (1.0,), order=1)
    backward = ge2.custom_vjp(lambda x: x**2)
    backward.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * ge2.lax.stop_gradient(x) * ct,))
    check_grads(backward, (1.0,), order=1, modes=["rev"])
    with pytest.raises(AssertionError, match="rev of rev"):
        check_grads(backward, (1.0,), order=2, modes=["rev"])
    with pytest.raises(AssertionError):
        check_grads(lambda x: abs(x), (1e-5,), order=1)  # the differences reach over the corner
    check_grads(lambda x: abs(x), (1e-5,), order=1, eps=1e-6)
    check_grads(forward, (1.0,), order=1, atol=0.2)


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match="no modes 'back'"):
        check_grads(np.sin, (1.0,), 1, modes="back")
    with pytest.raises(ArgumentError, match="order=0"):
        check_grads(np.sin, (1.0,), 0)
    with pytest.raises(ArgumentError, match="takes a tuple of arguments; got a ndarray"):
        check_grads(np.sin, X, 1)
    with pytest.raises(ArgumentError, match="no argument that a derivative is by"):
        check_grads(lambda n: n * 2.0, (3,), 1)
