"""Ahead of time: shapes in place of arrays, each stage looked at, and compiled
functions called as in JAX.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import ShapeDtypeStruct
from ge2.base.errors import InputError
from ge2.dispatch import cache

pytestmark = pytest.mark.any_executor

X = np.arange(3, dtype=np.float32)
SHAPE = ShapeDtypeStruct((3,), np.float32)


def scaled(x: Any, n: Any, *, mode: Any = "a") -> Any:
    return {"y": x * n, "z": (x.sum(),)} if mode == "a" else x


def test_a_shape_is_normal_and_compares() -> None:
    s = ShapeDtypeStruct([np.int64(2), 3], "float32")  # type: ignore[arg-type]
    assert (s.shape, s.dtype, s.ndim, s.size, s.weak_type) == ((2, 3), np.dtype("f4"), 2, 6, False)
    assert s == ShapeDtypeStruct((2, 3), np.float32) and hash(s) == hash(
        ShapeDtypeStruct((2, 3), np.float32)
    )
    assert s != ShapeDtypeStruct((2, 3), np.float64)
    assert s.type == ge2.eval_shape(lambda x: x, s).type


@pytest.mark.parametrize(("shape", "dtype", "words"), [
    (3, "f4", "the shape of a ShapeDtypeStruct is a tuple of sizes; got 3"),
    ((2, -1), "f4", r"got \(2, -1\)"), ((2.5,), "f4", "got"), ("23", "f4", "got '23'"),
    (None, "f4", "got None"),
    ((2,), None, "the dtype of a ShapeDtypeStruct is a dtype or its name; got None"),
    ((2,), "float31", "got 'float31'"),
])  # fmt: skip
def test_what_is_no_shape(shape: Any, dtype: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        ShapeDtypeStruct(shape, dtype)
    assert "at   test_aot.py:" in str(caught.value)


def test_eval_shape_takes_whatever_has_a_shape_and_a_dtype() -> None:
    like = SimpleNamespace(shape=(2, 3), dtype=np.float32)
    assert ge2.eval_shape(lambda x: x @ x.T, like) == ShapeDtypeStruct((2, 2), np.float32)
    found = ge2.eval_shape(lambda d, n: {"y": d["a"] * n, "n": n}, {"a": SHAPE}, 2.0)
    assert found == {"y": SHAPE, "n": ShapeDtypeStruct((), np.float64)}
    assert ge2.eval_shape(ge2.vmap(ge2.grad(lambda x: x * x)), SHAPE) == SHAPE


def test_nothing_is_computed() -> None:
    huge = ShapeDtypeStruct((1 << 20, 1 << 20), np.float64)
    assert ge2.eval_shape(lambda x: np.exp(x).sum(axis=0), huge).shape == (1 << 20,)


def test_each_stage_tells_what_goes_in_and_out() -> None:
    traced = ge2.jit(scaled, static_argnums=1, static_argnames="mode").trace(SHAPE, 2, mode="a")
    out = {"y": SHAPE, "z": (ShapeDtypeStruct((), np.float32),)}
    for stage in (traced, traced.lower(), traced.lower().compile()):
        assert stage.args_info == ((SHAPE,), {})
        assert stage.in_tree == ge2.tree.structure(((X,), {}))
        assert stage.out_info == out
        assert stage.out_tree == ge2.tree.structure(out)
        assert stage.fun_name == "scaled"
    assert "mul a 2.0" in str(traced)
    numbers = ge2.jit(lambda x, s: x * s).trace(SHAPE, s=2.0)
    assert numbers.args_info == ((SHAPE,), {"s": ShapeDtypeStruct((), np.float64, weak_type=True)})


def test_eval_shape_of_a_jitted_function_and_method() -> None:
    f = ge2.jit(scaled, static_argnums=1)
    assert f.eval_shape(SHAPE, 3)["y"] == SHAPE
    assert len(f.cache_report().entries) == 1

    class Model:
        @ge2.jit(static_argnums=0)
        def run(self, x: Any) -> Any:
            return x[:2]

    assert Model().run.eval_shape(SHAPE).shape == (2,)


def test_compiled_is_called_with_or_without_static_arguments() -> None:
    compiled = (
        ge2.jit(scaled, static_argnums=1, static_argnames="mode")
        .lower(SHAPE, 2, mode="a")
        .compile()
    )
    for result in (compiled(X), compiled(X, 2), compiled(X, mode="a"), compiled(X, 2, mode="a")):
        np.testing.assert_array_equal(result["y"], X * 2)
    with pytest.raises(InputError, match="n: static 2 against static 3"):
        compiled(X, 3)
    with pytest.raises(InputError, match="mode: static 'a' against static 'b'"):
        compiled(X, mode="b")


def test_compiled_traces_nothing() -> None:
    traces = []
    f = ge2.jit(lambda x: traces.append(1) or x * 2)
    compiled = f.lower(SHAPE).compile()
    np.testing.assert_array_equal(compiled(X), X * 2)
    wrong = ((X[:2],), "x: f32[3] against f32[2]"), ((X.astype("f8"),), "x: f32[3] against f64[3]")
    for args, words in (*wrong, ((X, X), "given"), ((), "x, left out")):
        with pytest.raises(InputError) as caught:
            compiled(*args)
        head = str(caught.value).splitlines()[0]
        assert head.startswith("<lambda> was compiled for other arguments: ")
        assert head.endswith(words)
    assert len(traces) == 1


def test_a_weak_shape_is_a_python_number() -> None:
    compiled = (
        ge2.jit(lambda x, s: x * s).lower(SHAPE, ShapeDtypeStruct((), np.float64, True)).compile()
    )
    result = compiled(X, 2.0)
    assert result.dtype == np.float32
    with pytest.raises(InputError, match="s: a Python float against f64"):
        compiled(X, np.float64(2))


def test_donation_is_that_of_the_shapes() -> None:
    with ge2.config.using(check=False):
        compiled = ge2.jit(lambda x: x * 2, donate_argnums=0).lower(SHAPE).compile()
        assert compiled.memory_analysis().donated == 12
        x = X.copy()
        assert np.shares_memory(compiled(x), x)
        view = np.arange(6, dtype=np.float32)[:3]
        with pytest.warns(ge2.errors.Ge2Warning, match="was not donated: it is a view"):
            np.testing.assert_array_equal(compiled(view), X * 2)
        np.testing.assert_array_equal(view, X)


def test_a_compiled_function_reads_what_it_closes_over_as_it_is_now() -> None:
    weights = np.ones(3, np.float32)
    compiled = ge2.jit(lambda x: x * weights).lower(SHAPE).compile()
    weights[:] = 5
    np.testing.assert_array_equal(compiled(X), X * 5)


def test_cost_and_memory_have_the_names_of_jax() -> None:
    lowered = ge2.jit(lambda x: np.exp(x) @ np.ones((3, 2), np.float32)).lower(
        ShapeDtypeStruct((4, 3), "f4")
    )
    cost, memory = lowered.cost_analysis(), lowered.compile().memory_analysis()
    assert (cost["flops"] >= 48, cost["transcendentals"], cost["bytes accessed"] > 0) == (
        True,
        12.0,
        True,
    )
    assert memory.output_size_in_bytes == 32
    assert memory.argument_size_in_bytes >= 48
    assert memory.temp_size_in_bytes >= 0
    assert memory.alias_size_in_bytes == 0


def test_shapes_where_arrays_are_wanted() -> None:
    for call in (
        lambda: ge2.vmap(lambda x: x)(SHAPE),
        lambda: ge2.grad(lambda x: np.sum(x))(SHAPE),
    ):
        with pytest.raises(
            InputError, match="x of .* is a ShapeDtypeStruct, which has no elements"
        ):
            call()
    with pytest.raises(InputError, match=r"is a ShapeDtypeStruct(.|\n)*f.lower"):
        ge2.jit(lambda x: x)(SHAPE)


def test_a_trace_and_the_shape_of_a_result_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("compiled")

    f = ge2.jit(lambda x: np.sin(x) * 2.0 + x.sum())
    with monkeypatch.context() as patch:
        patch.setattr(cache, "compiled", refuse)
        traced = f.trace(SHAPE)
        assert f.eval_shape(SHAPE) == SHAPE
        assert "sin" in str(traced)
        with pytest.raises(AssertionError, match="compiled"):
            traced.lower()
    x = np.ones(SHAPE.shape, SHAPE.dtype)
    np.testing.assert_allclose(f(x), np.sin(x) * 2 + x.sum(), rtol=1e-6)
    assert traced.lower().kernels
