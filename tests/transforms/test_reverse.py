"""grad, value_and_grad and vjp: arguments, structures, types, and errors."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from ge2.base.errors import GradientError, InputError, NoRuleError
from ge2.ir import ArrayType, Op
from ge2.transforms import float0, grad, jvp, make_jaxpr, stop_gradient, value_and_grad, vjp, vmap
from tests.transforms.functions import close

Point = namedtuple("Point", "x y")


def here(error):
    """Whether the error names a line of this file, right after what happened."""
    return "test_reverse.py" in str(error.value).split("\n  at   ")[1].split("\n")[0]


# ---------------------------------------------------------------------------------------- arguments


def test_argnums():
    f = lambda a, b, c: a * b + b * c * c  # noqa: E731
    assert grad(f)(2.0, 3.0, 4.0) == 3.0
    assert grad(f, argnums=-1)(2.0, 3.0, 4.0) == 24.0
    assert grad(f, argnums=(2, 0))(2.0, 3.0, 4.0) == (24.0, 3.0)
    assert grad(f, argnums=[1])(2.0, 3.0, 4.0) == (18.0,)
    assert grad(f, argnums=np.int64(1))(2.0, 3.0, 4.0) == 18.0


def test_keyword_arguments_and_what_is_no_array_pass():
    def f(x, power=2, *, mode="plain", scale=None):
        y = x**power
        return y if mode == "plain" else y * (1.0 if scale is None else scale)

    assert grad(f)(3.0) == 6.0
    assert grad(f)(3.0, power=3, mode="scaled", scale=2.0) == 54.0
    assert grad(f)(3.0, 3, mode="scaled") == 27.0


def test_the_gradient_has_the_structure_of_the_argument():
    tree = {"a": [np.ones(2), None], "b": Point(np.float32(2.0), (3.0, np.zeros((0, 2)))), "c": ()}
    found = grad(lambda t: np.sum(t["a"][0]) * t["b"].x * t["b"].y[0] + np.sum(t["b"].y[1]))(tree)
    assert found["a"][1] is None and found["c"] == ()
    assert isinstance(found["b"], Point) and found["b"].y[1].shape == (0, 2)
    close(found["a"][0], [6.0, 6.0])
    assert found["b"].x == 6.0 and found["b"].x.dtype == np.float32
    assert found["b"].y[0] == 4.0 and type(found["b"].y[0]) is float


def test_a_dataclass_is_a_container():
    @dataclass
    class Layer:
        w: np.ndarray
        b: float

    found = grad(lambda m: np.sum(m.w) * m.b)(Layer(np.ones(3), 2.0))
    assert isinstance(found, Layer) and found.b == 3.0
    close(found.w, [2.0, 2.0, 2.0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_gradient_has_the_dtype_of_the_argument(dtype):
    x = np.ones((2, 3), dtype)
    value, found = value_and_grad(lambda x: np.sum(x * x * 0.5))(x)
    assert found.dtype == x.dtype == value.dtype and found.shape == x.shape
    close(found.astype(float), np.ones((2, 3)))


def test_mixed_dtypes_each_get_their_own():
    a, b = grad(lambda a, b: np.sum(a * b), argnums=(0, 1))(np.ones(3, np.float32), np.full(3, 2.0))
    assert (a.dtype, b.dtype) == (np.float32, np.float64)


def test_python_numbers_in_and_out():
    value, slope = value_and_grad(lambda x: x * x + 1)(3.0)
    assert (value, slope) == (10.0, 6.0)
    assert type(value) is float and type(slope) is float
    assert type(grad(lambda x: np.sin(x))(0.0)) is float
    assert type(grad(grad(lambda x: np.sin(x)))(2.0)) is float
    y, pull = vjp(lambda x: x * 3.0, 2.0)
    assert (
        type(y) is float and type(pull(1.0)[0]) is float and type(pull(np.float64(1.0))[0]) is float
    )


def test_sizes_of_zero():
    value, found = value_and_grad(lambda x: np.sum(x * x))(np.zeros((0, 3)))
    assert value == 0.0 and found.shape == (0, 3)
    y, pull = vjp(lambda x: x * 2.0, np.zeros((2, 0)))
    assert pull(y)[0].shape == (2, 0)


def test_no_dependence_is_a_zero_gradient():
    close(grad(lambda x: 3.0)(np.ones(2)), np.zeros(2))
    close(grad(lambda x, y: np.sum(y))(np.ones(2), np.ones(3)), np.zeros(2))
    assert grad(lambda x: 1.0)(2.0) == 0.0 and type(grad(lambda x: 1.0)(2.0)) is float


def test_results_are_owned():
    x = np.ones(3)
    value, pull = vjp(lambda x: (x, x), x)
    assert not np.shares_memory(value[0], x) and not np.shares_memory(value[0], value[1])
    ct = np.ones(3)
    (found,) = pull((ct, np.zeros(3)))
    assert not np.shares_memory(found, ct) and found.flags.writeable
    close(pull((ct, ct))[0], [2.0, 2.0, 2.0])  # a second call, after the first


# ---------------------------------------------------------------------------------------- auxiliary


def test_has_aux():
    def f(x):
        y = np.sum(x * x)
        return y, {"y": y, "x": x, "n": 3}

    x = np.array([1.0, 2.0])
    found, aux = grad(f, has_aux=True)(x)
    close(found, [2.0, 4.0])
    assert aux["y"] == 5.0 and aux["n"] == 3 and type(aux["n"]) is int
    (value, aux), found = value_and_grad(f, has_aux=True)(x)
    assert value == 5.0 and aux["x"] is not x
    value, pull, aux = vjp(f, x, has_aux=True)
    close(pull(np.float64(2.0))[0], [4.0, 8.0])
    assert aux["n"] == 3


def test_derivatives_of_aux_flow_in_an_outer_gradient():
    outer = lambda x: grad(lambda z: (z**2, z**3), has_aux=True)(x)[1]  # noqa: E731
    assert grad(outer)(2.0) == 12.0


@pytest.mark.parametrize("result", [lambda x: x, lambda x: (x, x, x), lambda x: [x, x]])
def test_has_aux_without_a_pair(result):
    with pytest.raises(InputError, match="returns a pair") as error:
        grad(result, has_aux=True)(1.0)
    assert here(error)


def test_a_pair_without_has_aux():
    with pytest.raises(GradientError, match="one scalar result") as error:
        grad(lambda x: (x, x))(1.0)
    assert here(error) and "has_aux=True" in str(error.value)


# ----------------------------------------------------------------------------------------- integers


def test_integer_gradients_are_errors_that_name_the_argument():
    def f(model, count):
        return model["w"] * count

    with pytest.raises(GradientError, match=r"count.*~i64.*") as error:
        grad(f, argnums=1)({"w": 1.0}, 3)
    assert here(error) and "3.0 in place of 3" in str(error.value)
    with pytest.raises(GradientError, match=r"model\['w'\]"):
        grad(f)({"w": np.ones(2, np.int32)}, 3)
    with pytest.raises(GradientError, match="mode"):
        grad(lambda x, mode: x, argnums=1)(1.0, "fast")


def test_allow_int():
    found = grad(lambda n, x: n * x * x, argnums=(0, 1), allow_int=True)(3, 2.0)
    assert found[0].dtype == float0 and found[0].shape == () and found[1] == 12.0
    found = grad(lambda t: np.sum(t["n"] * t["x"]), allow_int=True)(
        {"n": np.arange(3), "x": np.ones(3)}
    )
    assert found["n"].dtype == float0 and found["n"].shape == (3,)
    close(found["x"], [0.0, 1.0, 2.0])


def test_allow_int_inside_vmap():
    f = grad(lambda n, x: np.sum(n * x), argnums=(0, 1), allow_int=True)
    ints, floats = vmap(f)(np.arange(6).reshape(2, 3), np.ones((2, 3)))
    assert ints.dtype == float0 and ints.shape == (2, 3)
    close(floats, np.arange(6.0).reshape(2, 3))


def test_integers_inside_a_function_carry_no_derivative():
    f = lambda x: np.sum(x * np.floor(x).astype(np.int64)) + x[np.argmax(x)]  # noqa: E731
    close(grad(f)(np.array([1.5, 2.5])), [1.0, 3.0])


# ------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (lambda x: x, r"returned f64\[2\]"),
        (lambda x: {}, "returned nothing"),
        (lambda x: [x[0], x[1]], r"f64\[\], f64\[\]"),
        (lambda x: x[0] > 0, "returned bool"),
        (lambda x: np.argmax(x), "returned i64"),
        (lambda x: x[0] * 1j, "returned c128"),
    ],
)
def test_what_is_no_real_scalar_has_no_gradient(f, says):
    with pytest.raises(GradientError, match=says) as error:
        grad(f)(np.ones(2))
    assert here(error)


def test_argnums_out_of_range():
    with pytest.raises(InputError, match="argument 2") as error:
        grad(lambda x: x, argnums=2)(1.0)
    assert here(error)
    with pytest.raises(InputError, match="was given 0") as error:
        grad(lambda x: x)(x=1.0)
    assert here(error) and "by position" in str(error.value)


def test_what_is_no_function():
    with pytest.raises(InputError, match=r"takes a function; got 3.0 \(float\)") as error:
        grad(3.0)(1.0)
    assert here(error)


@pytest.mark.parametrize(
    ("ct", "says"),
    [
        (np.ones(2), r"f64\[3\].*f64\[2\]"),
        (np.ones(3, np.float32), r"f64\[3\].*f32\[3\]"),
        ((np.ones(3),), "a tuple"),
        (None, "None"),
        ("one", "str"),
        (1.0, r"~f64"),
    ],
)
def test_wrong_cotangents(ct, says):
    _, pull = vjp(lambda x: x * 2.0, np.ones(3))
    with pytest.raises((GradientError, InputError), match=says) as error:
        pull(ct)
    assert here(error)


def test_a_wrong_cotangent_in_a_tree_is_named_by_its_path():
    _, pull = vjp(lambda x: {"a": x, "b": [x, x[0]]}, np.ones(3))
    with pytest.raises(GradientError, match=r"\['b'\]\[1\]") as error:
        pull({"a": np.ones(3), "b": [np.ones(3), np.ones(3)]})
    assert here(error)
    with pytest.raises(InputError, match="cotangent"):
        pull({"a": np.ones(3)})


def test_vjp_of_several_arguments_and_results():
    def f(x, n, t):
        return {"s": np.sin(x) * n, "i": n * 2, "t": (t[0] * x, t[1])}

    y, pull = vjp(f, np.array([1.0, 2.0]), 3, [np.ones(2), 4.0])
    assert y["i"] == 6
    ct = {"s": np.ones(2), "i": np.zeros((), float0), "t": (np.zeros(2), 5.0)}
    dx, dn, dt = pull(ct)
    close(dx, 3 * np.cos([1.0, 2.0]))
    assert dn.dtype == float0
    close(dt[0], np.zeros(2))
    assert dt[1] == 5.0


def test_a_cotangent_of_an_integer_is_no_number():
    _, pull = vjp(lambda x: (x, np.argmax(x)), np.ones(3))
    with pytest.raises(GradientError, match="integers have no derivative"):
        pull((np.ones(3), 1.0))


# ----------------------------------------------------------------------------- values, and no rules


def test_branches_on_values_under_nested_grad():
    f = lambda x: x**3 if x > 0 else -x  # noqa: E731
    assert grad(f)(2.0) == 12.0 and grad(f)(-2.0) == -1.0
    assert grad(grad(f))(2.0) == 12.0
    assert jvp(grad(f), (2.0,), (1.0,)) == (12.0, 12.0)


def test_a_value_that_a_derivative_flows_through_is_no_float():
    with pytest.raises(TypeError, match="stop_gradient"):
        grad(lambda x: x * float(x))(2.0)
    with pytest.raises(TypeError, match="stop_gradient"):
        grad(lambda x: vmap(lambda y, z: y * float(z), (0, None))(np.ones(2), x).sum())(2.0)
    assert grad(lambda x: x * float(stop_gradient(x)))(2.0) == 2.0


def test_stop_gradient():
    assert grad(lambda x: stop_gradient(x) * x)(3.0) == 3.0
    assert jvp(lambda x: stop_gradient(x) * x, (3.0,), (1.0,)) == (9.0, 3.0)
    assert grad(grad(lambda x: stop_gradient(x * x) * x * x))(3.0) == 18.0
    tree = stop_gradient({"a": 1.0, "b": [np.ones(2), 3]})
    assert tree["a"] == 1.0 and tree["b"][1] == 3


class Odd(Op):
    """An operation that someone began and did not finish."""

    name = "odd"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return types

    def reference(self, *arrays):
        return arrays[0]

    def params(self):
        return {}


@pytest.fixture
def odd(monkeypatch):
    from ge2 import ops

    monkeypatch.setitem(ops.TABLE, "odd", lambda: ODD)
    return ODD


ODD = Odd()


@pytest.mark.parametrize(
    "transform",
    [grad, lambda f: lambda x: jvp(f, (x,), (1.0,)), lambda f: lambda x: vmap(f)(np.ones(2) * x)],
)
def test_a_missing_rule_is_named_with_the_line_and_the_way_to_add_it(odd, transform):
    with pytest.raises(NoRuleError, match="odd") as error:
        transform(lambda x: odd(x) * 2.0)(1.0)
    assert here(error) and "CONTRIBUTING.md" in str(error.value)


# ----------------------------------------------------------------------------------- size of graphs


def test_three_gradients_of_fifteen_equations_are_at_most_300():
    def f(x):
        a = np.sin(x) * np.exp(-x)
        b = np.tanh(a + x * 0.5)
        c = np.sqrt(b * b + 1.0) / x
        return np.log(c) * np.cos(c) + a

    x = np.float64(0.7)
    assert len(make_jaxpr(f)(x).graph.eqns) == 15
    assert len(make_jaxpr(grad(grad(grad(f))))(x).graph.eqns) <= 300


def test_the_gradient_of_a_sum_has_no_needless_equations():
    found = make_jaxpr(grad(lambda x: np.sum(np.sin(x) * 1.0)))(np.ones(3))
    assert [e.op.name for e in found.graph.eqns] == ["cos"]


def test_a_part_that_is_read_twice_has_one_cotangent():
    """Each would else be padded with zeros to the whole."""

    def f(x):
        y = 0.0
        for i in range(10):
            y = np.tanh(y + x[i]) * x[i]
        return np.sum(y)

    x = np.random.default_rng(0).normal(size=(10, 3))
    names = [e.op.name for e in make_jaxpr(grad(f))(x).graph.eqns]
    assert names.count("pad") == 10
    dx = np.random.default_rng(1).normal(size=x.shape)
    close(jvp(f, (x,), (dx,))[1], (grad(f)(x) * dx).sum())


def test_the_cotangents_of_a_python_number_are_added_as_arrays():
    """No iteration of a loop makes a Python number, and the last of them is one."""

    def f(w, x):
        y = x[0]
        for i in range(10):
            y = np.tanh(w * y) + x[i]
        return np.sum(y)

    x = np.random.default_rng(0).normal(size=(10, 3))
    eqns = make_jaxpr(grad(f))(0.7, x).graph.eqns
    assert [e.op.name for e in eqns if e.outs[0].type.weak] == ["convert_element_type"]
    found = grad(f)(0.7, x)
    assert type(found) is float
    close(found, (f(0.7 + 1e-6, x) - f(0.7 - 1e-6, x)) / 2e-6)
