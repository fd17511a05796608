"""What people try in their first hour works as in NumPy, or says what is wrong,
where, and what to write.
"""

from __future__ import annotations

import copy
import heapq
import inspect
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import errors

X = np.array([1.0, 2.0, 3.0])
M = np.arange(6, dtype=np.float32).reshape(2, 3)


def same(function: Any, *args: Any, **kwargs: Any) -> None:
    """Compiled, the function gives what NumPy gives."""
    again, more = copy.deepcopy((args, kwargs))  # for what the function writes
    found, wanted = ge2.jit(function)(*args, **kwargs), function(*again, **more)
    assert ge2.tree.structure(found) == ge2.tree.structure(wanted)
    for y, z in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(y, z)
        assert np.asarray(y).dtype == np.asarray(z).dtype


def refused(
    error: type[Exception],
    words: str,
    function: Any,
    *args: Any,
    fix: str = "",
    wrap: Any = ge2.jit,
) -> str:
    """The function is refused in these words, at a line of its own, with a fix."""
    with pytest.raises(error, match=words) as caught:
        wrap(function)(*args)
    text = str(caught.value)
    lines, first = inspect.getsourcelines(function)
    file = os.path.basename(inspect.getsourcefile(function) or "")
    place = re.search(rf"\n  at   {file}:(\d+) in ", text)
    assert place, text
    assert first <= int(place[1]) < first + len(lines), text
    assert re.search(rf"\n  try  .*{re.escape(fix)}", text), text
    return text


def refused_call(error: type[Exception], words: str, call: Any, fix: str = "") -> str:
    """A call is refused in these words, at its line, with a fix."""
    return refused(error, words, call, fix=fix, wrap=lambda f: f)


# ----------------------------------------------------------------------------------- what is jitted


class Model:
    def __init__(self, w: Any) -> None:
        self.w = w

    @ge2.jit
    def predict(self, x):
        return x @ self.w

    @ge2.jit(static_argnums=0)
    def constant(self, x):
        return x @ self.w


@ge2.tree_util.register_pytree_node_class
class Registered(Model):
    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(*children)


def test_jit_on_a_method():
    assert Registered(X).predict(X) == X @ X
    assert Model(X).constant(X) == X @ X
    text = refused_call(
        errors.InputError, "self of predict .* is a Model", lambda: Model(X).predict(X)
    )
    assert "register_pytree_node_class above Model" in text
    assert "static_argnums" in text


def test_jit_on_a_lambda_made_in_a_loop():
    assert [f(2.0) for f in [ge2.jit(lambda x, i=i: x * i) for i in range(3)]] == [0.0, 2.0, 4.0]


def options(x, scale=2, *more, mode="plain", offset=None, **rest):
    y = x * scale if mode == "plain" else -x
    y = y if offset is None else y + offset
    return (y, *more), rest


def test_kwargs_defaults_strings_and_none():
    same(options, X)
    same(options, X, 3)
    same(options, X, scale=3.5)
    same(options, X, 3, X, 1.0, mode="negative")
    same(options, X, offset=X, extra={"a": (1, None)})


def test_a_list_of_a_thousand_floats():
    same(lambda xs: sum(xs), [float(i) for i in range(1000)])


def test_jit_of_a_result():
    refused_call(
        errors.InputError,
        "jit takes a function; got array",
        lambda: ge2.jit(np.sin(X)),
        fix="ge2.jit(f)(x)",
    )


# ------------------------------------------------------------------------------- looking at a value


def test_print_in_a_trace(capsys):
    def f(x):
        print(x, x * 2)
        return x

    ge2.jit(f)(X)
    assert capsys.readouterr().out == "<x, traced f64[3]> <a traced f64[3]>\n"


def test_formatting():
    same(lambda x: x if f"{x} {x!r}" else None, X)
    refused(
        errors.ConcretizationTypeError,
        "formatted as a number, but it depends on x",
        lambda x: f"{x[0]:.3f}",
        X,
        fix="ge2.debug.print",
    )
    old = lambda x: "%f" % x  # noqa: E731, UP031
    refused(errors.ConcretizationTypeError, "x, traced ~f64.*used as a Python number", old, 1.0)


def test_a_branch():
    refused(
        errors.TracerBoolConversionError,
        "truth of .* depends on x",
        lambda x: x if x.sum() > 0 else -x,
        X,
        fix="np.where",
    )
    refused(
        errors.TracerBoolConversionError,
        "depends on x",
        lambda x, y: max(x, y),
        1.0,
        2.0,
        fix="np.maximum",
    )


def test_a_loop_over_an_argument():
    refused(
        errors.TracerIntegerConversionError,
        "n, traced .* Python int",
        lambda n: sum(range(n)),
        3,
        fix="ge2.lax.fori_loop(0, n, lambda i, x: body, x), or ge2.jit(f, static_argnames='n')",
    )


def test_python_numbers_from_an_array():
    fixes = {
        float: "x[0].astype(np.float64)",
        complex: "x[0].astype(np.complex128)",
        math.sin: "np.sin(x[0])",
        math.sqrt: "np.sqrt(x[0])",
    }
    for convert, fix in fixes.items():
        refused(
            errors.ConcretizationTypeError,
            "depends on x",
            lambda x: convert(x[0]),  # noqa: B023 it is called in the loop
            X,
            fix=fix,
        )
    refused(
        errors.ConcretizationTypeError,
        "Python number, but it depends on x",
        lambda x: x[0].item(),
        X,
    )
    refused(errors.ConcretizationTypeError, "x, traced .* Python number", lambda x: x.tolist(), X)
    refused(errors.TracerIntegerConversionError, "depends on x", lambda x: int(x[0]), X)


def test_len_iteration_unpacking_and_isinstance():
    same(lambda x: len(x) * x, X)
    same(lambda x: sum(row * 2 for row in x), M)
    same(lambda x: (lambda a, *b: (a, b))(*x), X)
    same(lambda x: list(zip(x, reversed(x), strict=True)), X)
    same(lambda x: x * 2 if isinstance(x, np.ndarray) else None, X)
    with pytest.raises(TypeError, match="unsized"):
        ge2.jit(lambda x: len(x))(np.float64(1))


def test_membership():
    refused(
        errors.TracerBoolConversionError,
        "depends on x",
        lambda x: 2.0 in x,
        X,
        fix="np.any(x == 2.0)",
    )


# ---------------------------------------------------------------------------------- making an array


def test_arrays_from_traced_values():
    asked = "NumPy asked for the elements of"
    same(lambda x, b: np.array([x[0], b]), X, 1.0)
    same(lambda x: np.asarray(x), X)
    same(lambda x, y: np.exp([x, y]), X, X)
    same(lambda x: np.float32(x), X)
    refused(
        errors.TracerArrayConversionError,
        asked,
        lambda x: np.bool_(x),
        X,
        fix="x.astype(np.bool_)",
    )
    np.testing.assert_array_equal(ge2.jit(lambda x: np.full(3, x))(2.5), np.full(3, 2.5))


def test_what_those_errors_offer_works():
    same(lambda x, b: np.stack([x[0], b]), X, np.float64(1))
    same(lambda x, y: np.exp(np.stack([x, y])), X, X)
    same(lambda x: x.astype(np.float32), X)
    np.testing.assert_array_equal(ge2.jit(lambda x: ge2.numpy.asarray(x))(X), X)
    np.testing.assert_array_equal(ge2.jit(lambda x: ge2.numpy.full(3, x))(2.5), np.full(3, 2.5))


def test_zeros_like_with_a_shape():
    same(lambda x: np.zeros_like(x, shape=(4,)), X)
    same(lambda x: np.ones_like(x, dtype=np.float32), X)


# ------------------------------------------------------------------------------------------ writing


def fill(x):
    y = np.zeros(3)
    for i in range(3):
        y[i] = x[i]
    return y


def fill_all(x):
    y = np.zeros(3)
    y[:] = x
    return y


def add_to(x):
    y = np.zeros(3)
    y += x
    return y


def fill_traced(x):
    y = np.zeros_like(x)
    for i in range(3):
        y[i] = x[i] * i
    y += x
    return y


def change_argument(x):
    x += 1
    return x


def test_writing_into_arrays():
    for f in (fill, fill_all, add_to):
        same(f, X)
    same(fill_traced, X)
    same(change_argument, X.copy())


# --------------------------------------------------------------------------------------- randomness


def dropout(x):
    mask = np.random.random(3) > 0.5
    return x * mask


def test_np_random():
    text = refused(errors.ImpureError, "drew random numbers", dropout, X, fix="ge2.random")
    assert "in dropout" in text


# ---------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("array", "words", "fix"),
    [
        (np.array([None]), "dtype object", "x.astype"),
        (np.array(["a"]), "dtype <U1", "np.unique(x, return_inverse=True)[1]"),
        (np.array(["2020-01-01"], "M8[D]"), "dtype datetime64", "x.astype"),
        (np.ma.array([1.0], mask=[True]), "masked array", "x.filled"),
        (np.ones(2, ">f8" if np.little_endian else "<f8"), "another order", "newbyteorder"),
    ],
)  # fmt: skip
def test_arrays_of_other_kinds(array, words, fix):
    refused_call(
        errors.InputError,
        rf"params\['w'\] of .* is .*{words}",
        lambda: ge2.jit(lambda params: params)({"w": array}),
        fix=fix,
    )
    refused_call(errors.InputError, words, lambda: ge2.grad(lambda x: x.sum())(array), fix=fix)


def test_an_unhashable_static_argument():
    f = ge2.jit(lambda x, sizes: x, static_argnums=1)
    refused_call(
        errors.InputError,
        "static argument sizes of .* cannot be hashed: it is a list",
        lambda: f(X, [1]),
        fix="tuple",
    )


def test_integer_and_non_scalar_grad():
    refused_call(
        errors.GradientError,
        "derivative by x, i64",
        lambda: ge2.grad(lambda x: x.sum())(np.arange(3)),
        fix="astype(np.float64)",
    )
    refused_call(
        errors.GradientError,
        "derivative by x, ~i64",
        lambda: ge2.grad(lambda x: x * 2.0)(3),
        fix="3.0 in place of 3",
    )
    refused_call(
        errors.GradientError,
        r"one scalar result; .* returned f64\[3\]",
        lambda: ge2.grad(lambda x: x * 2)(X),
        fix="np.sum",
    )


STORED: list[Any] = []


@pytest.mark.usefixtures("collector_sees_modules")
def test_a_traced_value_stored_outside():
    def store(x):
        STORED.append(x * 2)
        return x

    ge2.jit(store)(X)
    text = refused_call(
        errors.UnexpectedTracerError,
        "outlived the trace of store",
        lambda: STORED[0] + 1,
        fix="return x, y: a value leaves",
    )
    assert "STORED" in text
    assert re.search(r"made at test_first_hour.py:\d+ in store", text)


def test_shapes_and_dtypes_that_do_not_fit():
    refused(errors.ShapeError, r"f64\[3\], f64\[2\]", lambda x, y: x + y, X, X[:2], fix="x.reshape")
    refused(errors.ShapeError, r"\[2,3\].*f64\[2\]", lambda x, y: x @ y, M, X[:2])
    refused(errors.ShapeError, "reshape", lambda x: x.reshape(2, 2), X)
    refused(errors.ShapeError, "concatenation axis 0", lambda x, y: np.concatenate([x, y]), X, M)
    refused(errors.TypeRuleError, "bitwise_and", lambda x: x & x, X)
    refused(errors.OutOfBoundsError, "index 5", lambda x: x[5], X)
    with pytest.raises(
        errors.OutOfBoundsError, match=r"axis 2 is out of bounds(.|\n)*test_first_hour.py"
    ):
        ge2.jit(lambda x: x.sum(axis=2))(X)


def test_results_that_are_no_arrays():
    refused_call(
        errors.TypeRuleError,
        "returned 'a' .str.",
        lambda: ge2.jit(lambda x: "a")(X),
        fix="return x, y",
    )


# -------------------------------------------------------------------------------- what is not there


def test_a_function_that_is_not_traced():
    refused(
        errors.NoRuleError,
        "logn is not among",
        lambda x: np.emath.logn(2, x),
        M,
        fix="docs/functions.md",
    )
    refused(
        errors.ConcretizationTypeError,
        "np.unique .* shape",
        lambda x: np.unique(x),
        X,
        fix="np.sort(x)",
    )


def test_a_missing_rule():
    def f(x):
        return np.sum(np.sort(x).astype(int) ** 2 + 0.0 * x)

    ge2.grad(f)(X)
    y = ge2.custom_vjp(lambda x: x * 2)
    y.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 2,))
    refused_call(
        errors.NoRuleError,
        "custom_vjp has no forward derivative",
        lambda: ge2.jvp(y, (X,), (X,)),
        fix="ge2.custom_jvp",
    )


def test_shapes_that_depend_on_values():
    refused(
        errors.ConcretizationTypeError,
        "shape",
        lambda x: x[x > 1],
        X,
        fix="np.where(mask, x, other)",
    )
    refused(
        errors.ConcretizationTypeError,
        "shape",
        lambda x: np.nonzero(x),
        X,
        fix="np.where(mask, x, other)",
    )


def test_the_names_of_the_package():
    transforms = {
        "jit", "grad", "value_and_grad", "vjp", "jvp", "vmap", "linearize", "jacfwd", "jacrev",
        "jacobian",
    }  # fmt: skip
    rules = {
        "hessian", "custom_vjp", "custom_jvp", "checkpoint", "remat", "make_jaxpr", "eval_shape",
        "parse",
    }  # fmt: skip
    rest = {"ShapeDtypeStruct", "disable_jit", "clear_caches", "config", "bfloat16"}
    modules = {"lax", "tree", "tree_util", "random", "numpy", "errors"}
    assert all(hasattr(ge2, name) for name in {*transforms, *rules, *rest, *modules})
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", ge2.__version__)
    with pytest.raises(AttributeError, match="no attribute 'grads'"):
        ge2.grads


def test_a_constant_indexed_by_a_traced_column():
    def f(e):
        labels = np.arange(8)
        return labels[e[:, 0]]

    same(f, np.ones((2, 2), int))


# ------------------------------------------------------------------ functions of other modules
# The remedy, pasted in, computes what Python does: what is read from around is passed, too.


ELSEWHERE = {
    "heapq.nlargest(2, x)": "ge2.pure_callback(heapq.nlargest, like, 2, x)",
    "heapq.nlargest(2, x, key=lambda v: -v * x[0])": (
        "ge2.pure_callback(lambda x: heapq.nlargest(2, x, key=lambda v: -v * x[0]), like, x)"
    ),
    "heapq.nsmallest(2, x, key=None)": "ge2.pure_callback(heapq.nsmallest, like, 2, x, key=None)",
}


@pytest.mark.parametrize("call", ELSEWHERE)
def test_a_function_of_another_module_is_called_when_the_program_runs(
    call: str, tmp_path: Path
) -> None:
    file = tmp_path / "mistake.py"
    file.write_text(f"def f(x):\n    return {call}\ndef g(x):\n    return {ELSEWHERE[call]}\n")
    names: dict[str, Any] = {"heapq": heapq, "ge2": ge2, "like": [0.0, 0.0]}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(errors.ConcretizationTypeError) as error:
        ge2.jit(names["f"])(X)
    assert f"  try  {ELSEWHERE[call]}, with the result's type" in str(error.value)
    np.testing.assert_array_equal(ge2.jit(names["g"])(X), names["f"](X))
