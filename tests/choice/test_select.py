"""`ge2.kernels.select` and `ge2.op_call`: one operation by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import kernels
from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.kernels import FUNCTIONS, Pin, Prefs, select
from ge2.ops.elementwise import BY_NAME
from ge2.targets.cuda.limits import A100
from tests.kernels.made_cases import softmax

RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 16), (16,)))
MATRIX = {"contract": ((1,), (0,)), "beside": ((), ())}


def normed(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


CASES = {
    "relu": ((X,), {}, np.maximum(X, 0)),
    "silu": ((X,), {}, X / (1 + np.exp(-X))),
    "gelu": ((X,), {}, gelu(X)),
    "softmax": ((X,), {}, softmax(X)),
    "log_softmax": ((X,), {}, np.log(softmax(X))),
    "layer_norm": ((X,), {"weight": B, "bias": B}, normed(X) * B + B),
    "rms_norm": ((X, B), {}, X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-5) * B),
    "gemm": ((X, W), {"transpose_b": True}, X @ W.T),
    "bias_add": ((X, B), {}, X + B),
    "gemm_bias_act": ((X, W, B), {"act": "relu"}, np.maximum(X @ W + B, 0)),
    "sdpa": (
        (X, X, X), {"causal": True},
        softmax(np.where(np.tri(8, dtype=bool), X @ X.T / 4, -np.inf)) @ X,
    ),
    "dot_general": ((X, W), MATRIX, X @ W),
    "reduce_sum": ((X,), {"axes": [1]}, X.sum(1)),
    "tanh": ((X,), {}, np.tanh(X)),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ op_call


def test_every_function_has_a_case() -> None:
    assert set(FUNCTIONS) <= set(CASES) <= set(kernels.names())


@pytest.mark.parametrize("name", CASES)
def test_an_operation_by_its_name(name: str) -> None:
    xs, attributes, wanted = CASES[name]
    with config.using(executor="blocked"):
        found = ge2.op_call(name, *xs, **attributes)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert found.dtype == np.float32


def test_half_types_are_rounded_once() -> None:
    x = X.astype(np.float16)
    found = ge2.op_call("gelu", x)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, gelu(x.astype(np.float32)).astype(np.float16))


def test_it_is_remembered_by_its_signature() -> None:
    from ge2.kernels import compiled

    ge2.op_call("gelu", X)
    f = compiled("gelu", ())
    traces = len(f.cache_report().entries)  # type: ignore[attr-defined]
    ge2.op_call("gelu", X)
    assert len(f.cache_report().entries) == traces  # type: ignore[attr-defined]
    ge2.op_call("gelu", X[:3])
    assert len(f.cache_report().entries) == traces + 1  # type: ignore[attr-defined]


def test_inside_a_trace_it_is_recorded() -> None:
    def f(x: Any) -> Any:
        return ge2.op_call("softmax", x) * 2

    with config.using(executor="blocked"):
        np.testing.assert_allclose(ge2.jit(f)(X), 2 * softmax(X), rtol=1e-5)
        assert "exp" in str(ge2.jit(f).lower(X))
        slope = ge2.grad(lambda x: (f(x) * X).sum())(X)
    assert np.abs(slope).max() > 0


def test_operations_as_they_are() -> None:
    np.testing.assert_array_equal(ge2.op_call(BY_NAME["neg"], X), -X)


@pytest.mark.parametrize(
    ("name", "attributes", "words"),
    [
        ("sofmax", {}, "there is no operation 'sofmax'.*\n.*'softmax'"),
        ("softmax", {"axs": 1}, "softmax has no attribute 'axs'.*\n.*axis="),
        ("reduce_sum", {"axis": 1}, "reduce_sum has no attribute 'axis'.*\n.*axes="),
        ("reduce_sum", {}, "reduce_sum needs axes\n.*try  axes=[.]{3}"),
        ("tanh", {"axis": 1}, "tanh has no attribute 'axis'.*\n.*no attributes"),
        ("softmax", {"axis": {}}, "attributes are numbers, words"),
        ("gemm_bias_act", {"act": "gleu"}, "there is no activation 'gleu'"),
    ],
)
def test_mistakes(name: str, attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"(?s){words}"):
        ge2.op_call(name, *((X, W, B) if name == "gemm_bias_act" else (X,)), **attributes)


# ------------------------------------------------------------------------------------------- select


def test_a_choice_for_a_gpu_that_is_not_here() -> None:
    small = select("dot_general", [X, W], "sm_90a", **MATRIX)
    assert small.taken.title == "small product in CUDA"
    large = ge2.ShapeDtypeStruct((4096, 4096), np.float32)
    found = select("dot_general", [large, large], A100, **MATRIX)
    assert found.taken.title == "product by BLAS"
    (refusal,) = [c for c in found.candidates if c.family.name == "small product in CUDA"]
    assert refusal.refusal == "a matrix has more than 524288 elements"
    assert "A100" in found.caps.kind and "H100" in small.caps.kind


def test_a_choice_for_the_processor() -> None:
    found = select("softmax", [X], "c")
    assert (found.family.name, found.by, found.problem.target) == ("region in C", "order", "c")
    assert [c.title for c in found.candidates][:1] == ["region in C"]
    assert select("dot_general", [X, W], "c", **MATRIX).taken.title.startswith("product in C")
    assert select(BY_NAME["tanh"], [X], "c").problem.op.kind == "pointwise"  # type: ignore[attr-defined]


def test_layouts_are_those_of_the_arrays() -> None:
    turned = select("dot_general", [X.T, X], "c", **MATRIX)
    assert [x.strides for x in turned.problem.operands[:2]] == [(1, 16), (16, 1)]


def test_preferences() -> None:
    wanted = Prefs(without=("small product in CUDA",))
    found = select("dot_general", [X, W], "sm_90a", wanted, **MATRIX)
    assert found.taken.title == "product by BLAS"
    pinned = Prefs(pins=(Pin("product in CUDA"),))
    assert select("dot_general", [X, W], "sm_90a", pinned, **MATRIX).by == "pinned"
    with config.using(prefer="product in CUDA"):
        assert select("dot_general", [X, W], "sm_90a", **MATRIX).taken.title == "product in CUDA"
    with pytest.raises(
        InputError, match=r"called 'xyz'(.|\n)*try  a name of ge2.kernels.families\(\)"
    ):
        select("softmax", [X], prefs=Prefs(only=("xyz",)))
    with pytest.raises(InputError, match="(?s)no family of kernels is called 'product by BLASS'"):
        select("dot_general", [X, W], "sm_90a", Prefs(only=("product by BLASS",)), **MATRIX)


def test_the_problem_of_a_choice_may_be_asked_again() -> None:
    found = select("softmax", [X], "sm_90a")
    again = select("softmax", found.problem, "sm_90a")
    assert again.taken.title == found.taken.title


def test_what_cannot_be_selected() -> None:
    with pytest.raises(InputError, match=r"sdpa becomes \d kernels on c"):
        select("sdpa", [X.astype(np.float16)] * 3, "c")
    with pytest.raises(InputError, match="'90a' is no architecture"):
        select("softmax", [X], "90a")
    with pytest.raises(InputError, match="'sm_999' is no architecture of a GPU"):
        select("softmax", [X], "sm_999")
    with pytest.raises(InputError, match="hw_caps is an architecture"):
        select("softmax", [X], 90)
    with pytest.raises(InputError, match="there is no operation 'sofmax'"):
        select("sofmax", [X], "c")
    with pytest.raises(
        InputError, match=r"a list of arrays, the operands of softmax[^$]*try  \[x\]"
    ):
        select("softmax", X, "c")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: ge2.op_call("reduce_sum", x, axes=1), "'int' object is not iterable"),
        (lambda x: ge2.op_call("integer_pow", x, y="a"), "is no operation of f64"),
        (lambda x: ge2.op_call("sdpa", x, x, x, mask=np.tri(4)), "a mask is of bool"),
        (
            lambda x: kernels.select("gelu", [x], "c", {"tune": "off"}),
            "prefs are ge2.kernels.Prefs",
        ),
        (lambda x: kernels.select("gelu", [x], "c", kernels.Prefs(tune="on!")), "'cached' or 'on'"),
    ],
)
def test_arguments_of_another_kind_are_named_where_they_are(call: Any, what: str) -> None:
    with pytest.raises(InputError) as error:
        call(np.ones((4, 4)))
    assert what in str(error.value)
    assert "test_select.py" in str(error.value)


def test_softmaxes_of_rows_without_elements() -> None:
    for dtype in (np.float16, np.float64):
        for name in ("softmax", "log_softmax"):
            y = ge2.op_call(name, np.zeros((3, 0), dtype))
            assert (y.shape, y.dtype) == ((3, 0), dtype)
