"""jvp and linearize: structures, types, auxiliary results, and errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ge2.base.errors import GradientError, InputError
from ge2.transforms import checkpoint, cond, float0, grad, jvp, linearize, make_jaxpr, vmap
from tests.transforms.functions import close


def test_structures_and_types():
    f = lambda t, n: {"a": t[0] * t[1] * n, "i": n + 1, "w": t[1] * 2}  # noqa: E731
    y, dy = jvp(f, ((np.ones(2), 3.0), 4), ((np.full(2, 5.0), 1.0), np.zeros((), float0)))
    close(y["a"], [12.0, 12.0])
    close(dy["a"], [64.0, 64.0])
    assert dy["i"].dtype == float0
    assert (y["w"], dy["w"]) == (6.0, 2.0) and type(y["w"]) is type(dy["w"]) is float


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.complex64])
def test_tangents_have_the_dtype_of_the_result(dtype):
    x = np.ones(3, dtype)
    y, dy = jvp(lambda x: x * x, (x,), (x,))
    assert y.dtype == dy.dtype == x.dtype
    close(dy.astype(complex), [2.0, 2.0, 2.0])


def test_python_numbers_may_be_tangents_of_scalars():
    assert jvp(lambda x: x * x, (np.float32(3.0),), (1.0,))[1] == np.float32(6.0)
    assert type(jvp(np.sin, (0.0,), (np.float64(2.0),))[1]) in (float, np.ndarray)


def test_has_aux():
    f = lambda x: (x * x, {"x": x, "n": 2})  # noqa: E731
    assert jvp(f, (3.0,), (1.0,), has_aux=True) == (9.0, 6.0, {"x": 3.0, "n": 2})
    y, push, aux = linearize(f, 3.0, has_aux=True)
    assert (y, push(1.0), push(2.0), aux) == (9.0, 6.0, 12.0, {"x": 3.0, "n": 2})


@pytest.mark.parametrize(
    "call", [lambda f, x, t: jvp(f, (x,), (t,)), lambda f, x, t: linearize(f, x)[1](t)]
)
@pytest.mark.parametrize(
    ("t", "says"),
    [
        (np.ones(2), r"tangent of x.*f64\[3\].*f64\[2\]"),
        (np.ones(3, np.float32), r"tangent of x.*f32\[3\]"),
        ([np.ones(3)], "tangent of x.*a list"),
        ("t", "str"),
    ],
)
def test_wrong_tangents(call, t, says):
    with pytest.raises((GradientError, InputError), match=says):
        call(lambda x: x * 2.0, np.ones(3), t)


def test_as_many_tangents_as_primals():
    with pytest.raises(InputError, match="the primals and the tangents differ") as error:
        jvp(lambda x, y: x, (1.0, 2.0), (1.0,))
    assert "test_forward.py" in str(error.value)
    with pytest.raises(InputError, match="takes a tuple of primals"):
        jvp(lambda x: x, 1.0, 1.0)
    with pytest.raises(GradientError, match="tangent of n.*integers have no derivative") as error:
        jvp(lambda n: n * 2.0, (3,), (1.0,))
    assert "test_forward.py" in str(error.value)


def test_sizes_of_zero():
    _, dy = jvp(lambda x: np.sum(x * 2, 0), (np.zeros((0, 3)),), (np.zeros((0, 3)),))
    close(dy, np.zeros(3))


def test_no_dependence_is_a_zero_tangent():
    _, dy = jvp(lambda x: (3.0, np.ones(2), np.zeros(2, int)), (1.0,), (1.0,))
    assert dy[0] == 0.0 and type(dy[0]) is float and dy[2].dtype == float0
    close(dy[1], np.zeros(2))


def test_linearize_computes_nothing_twice():
    push = linearize(lambda x: np.sin(np.exp(x)), np.ones(3))[1]
    names = [e.op.name for e in make_jaxpr(push)(np.ones(3)).graph.eqns]
    assert "exp" not in names and "cos" not in names and names.count("mul") == 2


def test_linearize_keeps_the_values_inside_a_branch():
    f = lambda x: cond(x[0] > 0, lambda x: np.sin(np.exp(x)), lambda x: x, x)  # noqa: E731
    seen = str(make_jaxpr(lambda t: linearize(f, np.ones(3))[1](t))(np.ones(3)))
    assert seen.count(" exp ") == seen.count(" sin ") == 1


def test_linearize_of_a_checkpoint_computes_it_again():
    f = checkpoint(lambda x: np.sin(np.exp(x)))
    seen = str(make_jaxpr(lambda x, t: linearize(f, x)[1](t))(np.ones(3), np.ones(3)))
    assert seen.count(" exp ") == 2 and "barrier" in seen


def test_a_linear_function_can_be_batched_and_differentiated():
    push = linearize(lambda x: np.sin(x) * x, np.array([0.5, 1.0]))[1]
    d = np.cos([0.5, 1.0]) * [0.5, 1.0] + np.sin([0.5, 1.0])
    close(vmap(push)(np.eye(2)), np.diag(d))
    close(grad(lambda t: np.sum(push(t)))(np.zeros(2)), d)


def test_the_point_may_be_traced():
    close(grad(lambda x: linearize(np.sin, x)[1](1.0))(0.5), -np.sin(0.5))
    close(
        vmap(lambda x: linearize(np.sin, x)[1](np.float64(2.0)))(np.array([0.0, np.pi])),
        [2.0, -2.0],
    )
