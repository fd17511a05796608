"""make_jaxpr, eval_shape and parse."""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.errors import InputError, ParseError
from ge2.ir import verify
from ge2.transforms import (
    ShapeDtypeStruct,
    eval_shape,
    grad,
    hessian,
    jacrev,
    jvp,
    linearize,
    make_jaxpr,
    parse,
    vjp,
    vmap,
)
from tests.transforms.functions import FUNCTIONS, N, close, points

TRANSFORMS = {
    "itself": lambda f: f,
    "grad": lambda f: grad(lambda x: np.sum(f(x))),
    "grad of grad": lambda f: grad(lambda x: np.sum(grad(lambda x: np.sum(f(x)))(x))),
    "vmap": lambda f: lambda x: vmap(f)(np.stack([x, x])),
    "vmap of grad": lambda f: lambda x: vmap(grad(lambda x: np.sum(f(x))))(np.stack([x, x])),
    "jacrev": jacrev,
    "vjp": lambda f: lambda x: vjp(f, x)[1](np.ones(np.shape(f(np.ones(N)))))[0],
}


@pytest.mark.exhaustive("transform")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_text_of_a_graph_reads_back_and_computes_the_same(name, transform, rng):
    x = points(rng)
    closed = make_jaxpr(TRANSFORMS[transform](FUNCTIONS[name]))(x)
    again = verify(parse(str(closed)))
    assert again == closed.graph and str(again) == str(closed)
    for a, b in zip(again(*closed.captured, x), closed(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_the_function_captured_comes_first():
    w = np.arange(3.0)
    closed = make_jaxpr(lambda x: x * w)(np.ones(3))
    assert str(closed).startswith("{ lambda a:f64[3] ; b:f64[3]. let")
    (captured,) = closed.captured
    close(captured, w)
    close(closed(np.full(3, 2.0))[0], 2 * w)


def test_static_arguments_and_shapes():
    f = lambda x, mode, n=2: {"y": np.sum(x, axis=0) * n} if mode == "sum" else x  # noqa: E731
    closed, shape = make_jaxpr(f, static_argnums=1, return_shape=True)(
        np.ones((2, 3), np.float32), "sum", n=3
    )
    assert shape == {"y": ShapeDtypeStruct((3,), np.dtype(np.float32))}
    assert len(closed.graph.inputs) == 2
    assert make_jaxpr(f, static_argnums=(-1,))(np.ones(2), "sum").graph.inputs[0].type.shape == (2,)


def test_eval_shape_computes_nothing():
    big = ShapeDtypeStruct((10**6, 10**6), np.float32)
    assert eval_shape(lambda x: x @ x.T + 1.0, big) == big
    found = eval_shape(
        grad(lambda p: np.sum(p["w"] * p["b"])), {"w": big, "b": ShapeDtypeStruct((), np.float32)}
    )
    assert found["w"] == big and found["b"].shape == ()
    assert eval_shape(lambda x: (x > 1, 2), 3.0)[0].dtype == bool
    assert eval_shape(lambda x: vmap(np.sum)(x), big).shape == (10**6,)
    assert eval_shape(
        hessian(lambda x: np.sum(x**2)), ShapeDtypeStruct((3,), np.float64)
    ).shape == (3, 3)


def test_a_shape_has_no_value_to_branch_on():
    with pytest.raises(TypeError, match="x"):
        eval_shape(lambda x: x if x > 0 else -x, ShapeDtypeStruct((), np.float64))
    with pytest.raises(TypeError):
        make_jaxpr(lambda x: x if x > 0 else -x)(1.0)


def test_graphs_of_functions_of_tangents():
    closed = make_jaxpr(lambda x, t: (jvp(np.sin, (x,), (t,))[1], linearize(np.sin, x)[1](t)))(
        0.5, 2.0
    )
    close(closed(0.5, 2.0), [2 * np.cos(0.5)] * 2)


def test_errors():
    with pytest.raises(InputError, match="argument 2"):
        make_jaxpr(lambda x: x, static_argnums=2)(1.0)
    with pytest.raises(InputError, match="object"):
        make_jaxpr(lambda x: x)(object())
    with pytest.raises(ParseError, match="line 2"):
        parse("{ lambda ; a:f32[3]. let\n b:f32[3] = tang a in (b,) }")
