"""Prints and callbacks happen in the order of the program, once where they are
written, however it is run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.errors import ArgumentError, InputError, NoRuleError, TypeRuleError
from ge2.ir import Graph, has_effect
from ge2.transforms.graphs import DERIVE
from tests.surface.test_first_hour import refused_call as refused

X = np.array([1.0, 2.0, 3.0])
EXECUTORS = ("c", "blocked", "reference")
in_each_executor = pytest.mark.parametrize("executor", EXECUTORS)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def talking(x: Any) -> Any:
    ge2.debug.print("before {}", x[0])
    y = np.tanh(x) * 2
    ge2.debug.print("between")
    z = np.sum(y)
    ge2.debug.print("after {s:.2f}", s=z)
    return z


WANTED = ["before 1.0", "between", "after 5.44"]


# ----------------------------------------------------------------------------------------- printing


@in_each_executor
def test_prints_come_in_order_each_once(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ge2.config.using(executor=executor):
        f = ge2.jit(talking)
        assert f(X) == pytest.approx(talking(X))
        f(X)
    assert lines(capsys) == WANTED * 3


@pytest.mark.parametrize("wrap", [
    ge2.grad, lambda f: ge2.jit(ge2.grad(f)), lambda f: ge2.grad(ge2.jit(f)),
    lambda f: lambda x: ge2.jvp(f, (x,), (x,)), lambda f: ge2.jit(lambda x: ge2.vjp(f, x)[1](1.0)),
    lambda f: lambda x: ge2.jit(ge2.grad(ge2.grad(lambda a: f(x * a))))(1.0),
    lambda f: lambda x: ge2.linearize(f, x)[1](x),
])  # fmt: skip
def test_a_derivative_prints_once_and_passes(wrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrap(talking)(X)
    assert lines(capsys) == WANTED


def test_the_derivative_is_that_of_the_function_without_the_print() -> None:
    quiet = ge2.grad(lambda x: np.sum(np.tanh(x) * 2))(X)
    np.testing.assert_array_equal(ge2.grad(talking)(X), quiet)
    np.testing.assert_allclose(ge2.jit(ge2.grad(talking))(X), quiet)


@pytest.mark.parametrize("wrap", [lambda f: f, ge2.jit])
def test_a_batch_prints_for_each_element(wrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any, y: Any) -> Any:
        ge2.debug.print("{} {}", x, y)
        ge2.debug.print("no argument")
        ge2.debug.print("shared {}", y)
        return x * y

    wrap(ge2.vmap(f, in_axes=(0, None)))(np.array([1, 2]), 5)
    assert lines(capsys) == ["1 5", "2 5", "no argument", "shared 5"]
    wrap(ge2.vmap(ge2.vmap(f, in_axes=(None, 0)), in_axes=(0, None)))(
        np.array([1, 2]), np.array([5, 6])
    )
    assert lines(capsys)[:4] == ["1 5", "1 6", "2 5", "2 6"]
    wrap(ge2.vmap(f, in_axes=(1, 0)))(np.array([[1, 2], [3, 4]]), np.array([7, 8]))
    assert lines(capsys)[:2] == ["[1 3] 7", "[2 4] 8"]


def test_the_gradient_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        ge2.debug.print("x {}", x)
        return x * x

    np.testing.assert_array_equal(ge2.jit(ge2.vmap(ge2.grad(f)))(X), 2 * X)
    assert lines(capsys) == ["x 1.0", "x 2.0", "x 3.0"]


def test_equal_prints_are_not_one(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        for _ in range(2):
            ge2.debug.print("x {}", x)
            x = x + 0.0
        ge2.jit(lambda y: ge2.debug.print("inside {}", y))(x)
        ge2.jit(lambda y: ge2.debug.print("inside {}", y))(x)
        return 1.0

    assert ge2.jit(f)(2.0) == 1.0
    assert lines(capsys) == ["x 2.0"] * 2 + ["inside 2.0"] * 2


def test_inside_branches_only_the_taken_one_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        yes, no = (lambda x, w=w: ge2.debug.print("{} " + w, x) or x * 2 for w in ("yes", "no"))
        return ge2.lax.cond(x > 0, yes, no, x)

    assert [ge2.jit(f)(a) for a in (1.0, -1.0)] == [2.0, -2.0]
    assert [ge2.jit(ge2.grad(f))(a) for a in (1.0, -1.0)] == [2.0, 2.0]
    assert lines(capsys) == ["1.0 yes", "-1.0 no"] * 2


@in_each_executor
def test_inside_loops_each_round_prints_in_order(
    executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(c: Any, x: Any) -> Any:
        ge2.debug.print("{} {}", c, x)
        return c + x, c * x

    def scan(c: Any) -> Any:
        return ge2.lax.scan(body, c, np.array([1.0, 2.0, 3.0]))[0]

    def doubled(v: Any) -> Any:
        ge2.debug.print("{}", v)
        return v * 2

    with ge2.config.using(executor=executor):
        assert ge2.jit(scan)(0.5) == 6.5
        assert lines(capsys) == ["0.5 1.0", "1.5 2.0", "3.5 3.0"]
        assert ge2.jit(ge2.grad(scan))(0.5) == 1.0
        assert lines(capsys) == ["0.5 1.0", "1.5 2.0", "3.5 3.0"]
        ge2.jit(ge2.vmap(scan))(np.array([0.0, 1.0]))
        assert lines(capsys) == ["0.0 1.0", "1.0 1.0", "1.0 2.0", "2.0 2.0", "3.0 3.0", "4.0 3.0"]
        assert ge2.jit(lambda x: ge2.lax.while_loop(lambda v: v < 5, doubled, x))(1.0) == 8.0
        assert ge2.jit(lambda x: ge2.lax.fori_loop(0, 2, lambda i, v: doubled(v), x))(1.0) == 4.0
        assert lines(capsys) == ["1.0", "2.0", "4.0", "1.0", "2.0"]


def test_a_long_python_loop_prints_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any, w: Any) -> Any:
        for _ in range(20):
            ge2.debug.print("{}", x[0])
            x = np.tanh(w @ x)
        return x

    x, w = np.ones(2), np.eye(2) * 0.9
    ge2.jit(f)(x, w)
    compiled = lines(capsys)
    f(x, w)
    assert len(compiled) == 20
    np.testing.assert_allclose(
        np.array(compiled, float), np.array(lines(capsys), float), rtol=1e-12
    )


def test_a_pure_callback_in_a_loop() -> None:
    def body(c: Any, x: Any) -> Any:
        return ge2.pure_callback(lambda a, b: a + b, c, c, x), c

    total, sums = ge2.jit(lambda c, xs: ge2.lax.scan(body, c, xs))(np.float64(0), X)
    assert total == 6.0
    np.testing.assert_array_equal(sums, [0.0, 1.0, 3.0])


def test_a_cotangent_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    @ge2.custom_vjp
    def look(x: Any) -> Any:
        return x

    def bwd(_: Any, ct: Any) -> tuple[Any]:
        ge2.debug.print("cotangent {}", ct)
        return (ct,)

    look.defvjp(lambda x: (x, None), bwd)
    assert ge2.jit(ge2.grad(lambda x: look(x * 3.0) * 5.0))(1.0) == 15.0
    assert lines(capsys) == ["cotangent 5.0"]


def test_containers_strings_and_braces(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> None:
        ge2.debug.print("{0} {name!r} {{}} {0[a][1]:.1f}", {"a": (x, x * 2)}, name="w")

    f(1.5)
    ge2.jit(f)(1.5)
    assert lines(capsys) == ["{'a': (array(1.5), array(3.))} 'w' {} 3.0"] * 2


def test_formats_that_do_not_fit() -> None:
    fits = "does not fit its arguments: "
    refused(
        ArgumentError, fits + "there are too few", lambda: ge2.debug.print("{} {}", X), fix="{}"
    )
    refused(ArgumentError, fits + "argument 1 has no place", lambda: ge2.debug.print("{}", X, X))
    refused(ArgumentError, fits + "scale has no place", lambda: ge2.debug.print("{}", X, scale=2))
    refused(ArgumentError, fits + "'x' is not among them", lambda: ge2.debug.print("{x}"))
    refused(ArgumentError, fits + "Single '}'", lambda: ge2.debug.print("}"))
    refused(ArgumentError, fits + ".*no attribute 'shap'", lambda: ge2.debug.print("{0.shap}", X))
    refused(ArgumentError, "both {} and {0}", lambda: ge2.debug.print("{} {0[1]}", X))
    refused(InputError, "format string first; got a ndarray", lambda: ge2.debug.print(X))


def test_an_f_string_of_a_traced_value_is_refused() -> None:
    f = ge2.jit(lambda x: ge2.debug.print(f"x = {x}"))
    with pytest.raises(
        ArgumentError, match=r"made of a traced value: it holds <x, traced f64\[3\]>"
    ):
        f(X)


# ---------------------------------------------------------------------------------------- callbacks


@in_each_executor
def test_callbacks_get_arrays_of_their_own(executor: str) -> None:
    seen: list[Any] = []

    @ge2.jit
    def f(x: Any) -> Any:
        y = np.exp(x)
        ge2.debug.callback(lambda a, *, b: seen.append((a, b)), x, b={"y": y})
        ge2.debug.callback(lambda a: a.__imul__(0), x)
        return np.sum(y * x)

    with ge2.config.using(executor=executor):
        results = [f(X * k) for k in (1.0, 2.0)]
    assert results == pytest.approx([np.sum(np.exp(x) * x) for x in (X, 2 * X)])
    for k, (a, b) in zip((1.0, 2.0), seen, strict=True):
        np.testing.assert_array_equal(a, X * k)
        np.testing.assert_allclose(b["y"], np.exp(X * k))
    np.testing.assert_array_equal(X, [1.0, 2.0, 3.0])


def test_prints_and_callbacks_keep_one_order() -> None:
    seen: list[str] = []

    @ge2.jit
    def f(x: Any) -> Any:
        for i in range(5):
            ge2.debug.callback(lambda v, i=i: seen.append(f"{i} {v}"), x)
            x = x * 2
        return x

    f(1.0)
    assert seen == ["0 1.0", "1 2.0", "2 4.0", "3 8.0", "4 16.0"]


def test_an_exception_in_a_callback_comes_through() -> None:
    def stop(x: Any) -> None:
        raise KeyError("stopped by the callback")

    f = ge2.jit(lambda x: ge2.debug.callback(stop, x) or x * 2)
    for _ in range(2):
        with pytest.raises(KeyError, match="stopped by the callback"):
            f(X)


weights = np.ones(3)
noted: list[Any] = []


def note(x: Any) -> None:
    noted.append(x @ weights)


def test_a_callback_reads_what_its_names_are_bound_to_when_it_runs() -> None:
    """Though the trace around it ran with traced values for these arrays."""

    @ge2.jit
    def f(x: Any) -> Any:
        ge2.debug.callback(note, x)
        ge2.debug.callback(lambda v: noted.append(v @ weights), x)
        return x @ weights

    noted.clear()
    f(X)
    globals()["weights"] = np.full(3, 2.0)
    try:
        f(X)
    finally:
        globals()["weights"] = np.ones(3)
    assert noted == [6.0, 6.0, 12.0, 12.0]


class Meter:
    def __init__(self) -> None:
        self.scale, self.seen = np.full(3, 10.0), list[float]()

    def read(self, x: Any) -> None:
        self.seen.append(float(x @ self.scale))

    def run(self, x: Any) -> Any:
        ge2.debug.callback(self.read, x)
        return x * self.scale


def test_a_method_of_an_object_that_holds_arrays() -> None:
    meter = Meter()
    f = ge2.jit(meter.run)
    f(X)
    f(X)
    assert meter.seen == [60.0, 60.0]


history: list[float] = []


def remember(x: Any) -> None:
    history.append(float(x[0]))
    history[:] = history[-100:]


class Recorder:
    def __init__(self) -> None:
        self.history: list[Any] = []
        self.weights = np.ones(3)

    def record(self, x: Any) -> None:
        self.history = [*self.history, x]

    def step(self, x: Any) -> Any:
        ge2.debug.callback(self.record, x)
        return x * self.weights


def test_what_only_a_callback_reads_is_no_part_of_the_signature() -> None:
    """Else a callback that keeps a history would have its function traced anew at each call."""
    seen: list[Any] = []
    recorder = Recorder()

    def at_once(x: Any) -> Any:
        ge2.debug.callback(lambda v: seen.append(v) if len(seen) < 3 else None, x)
        return x * recorder.weights

    functions = [lambda x: ge2.debug.callback(remember, x) or x * 2, at_once, recorder.step]
    for function in functions:
        f = ge2.jit(function)
        for k in range(5):
            f(X * k)
        assert len(f.cache_report().entries) == 1, function
    assert history == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (len(seen), len(recorder.history)) == (3, 5)


def test_another_callback_of_the_same_name_is_another_signature() -> None:
    first, second = list[Any](), list[Any]()
    keep = first.append
    f = ge2.jit(lambda x: ge2.debug.callback(keep, x) or x * 2)
    f(X)
    keep = second.append
    f(X)
    assert (len(first), len(second)) == (1, 1)


def test_a_callback_that_closes_over_a_traced_value() -> None:
    @ge2.jit
    def f(x: Any) -> Any:
        y = x * 2
        ge2.debug.callback(lambda: [y])
        return x

    with pytest.raises(InputError, match=r"reads y, a traced value, which is gone") as caught:
        f(X)
    with pytest.raises(InputError, match=r"reads k, a traced value, which is gone"):
        ge2.jit(lambda x: ge2.debug.callback(lambda v, k=x: [v], x))(X)
    assert "try  pass it as an argument: ge2.debug.callback(f, ..., y)" in str(caught.value)
    refused(
        InputError,
        "takes a function; got a NoneType",
        lambda: ge2.debug.callback(print()),
        fix="f, x)",
    )


# ----------------------------------------------------------------------------------- pure callbacks


def sorted_rows(x: Any, **options: Any) -> Any:
    return ge2.pure_callback(lambda a: np.sort(a, axis=-1), x, x, **options)


@in_each_executor
def test_a_pure_callback_computes(executor: str) -> None:
    def f(x: Any) -> Any:
        out = {"a": ge2.ShapeDtypeStruct((), np.float32), "b": (x,)}
        found = ge2.pure_callback(
            lambda v, k: {"a": np.float32(v.sum() * k), "b": (v[::-1],)}, out, x, k=2
        )
        return found["a"] + 1, found["b"][0] * x

    with ge2.config.using(executor=executor):
        a, b = ge2.jit(f)(X)
    assert (a, a.dtype) == (13.0, np.float32)
    np.testing.assert_array_equal(b, X[::-1] * X)


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all",
                                    "legacy_vectorized"])  # fmt: skip
def test_how_a_batch_is_computed(method: str) -> None:
    shapes: list[Any] = []
    wanted = {
        "sequential": [((), ())] * 3, "sequential_unrolled": [((), ())] * 3, "expand_dims": [((3,), (1,))],
        "broadcast_all": [((3,), (3,))], "legacy_vectorized": [((3,), ())],
    }  # fmt: skip

    def add(a: Any, b: Any) -> Any:
        shapes.append((a.shape, b.shape))
        return np.asarray(a + b)

    def f(x: Any, y: Any) -> Any:
        return ge2.pure_callback(
            add, ge2.ShapeDtypeStruct((), np.float64), x, y, vmap_method=method
        )

    for wrap in (lambda f: f, ge2.jit):
        shapes.clear()
        np.testing.assert_array_equal(wrap(ge2.vmap(f, in_axes=(0, None)))(X, 1.0), X + 1)
        assert shapes == wanted[method]
    if method == "legacy_vectorized":
        return  # of two batches the function could not tell which is whose
    twice = ge2.jit(ge2.vmap(ge2.vmap(f, in_axes=(None, 0)), in_axes=(0, None)))(X, X * 10)
    np.testing.assert_array_equal(twice, X[:, None] + X * 10)


def test_an_unused_pure_callback_is_not_called_and_equal_ones_are_one() -> None:
    calls: list[int] = []

    def count(x: Any) -> Any:
        calls.append(1)
        return x

    f = ge2.jit(lambda x: (ge2.pure_callback(count, x, x), x)[1])
    f(X)
    assert not calls
    g = ge2.jit(lambda x: ge2.pure_callback(count, x, x) + ge2.pure_callback(count, x, x))
    np.testing.assert_array_equal(g(X), 2 * X)
    assert len(calls) == 1


def test_a_result_is_the_callers_own() -> None:
    kept = np.zeros(3)
    y = ge2.jit(lambda x: ge2.pure_callback(lambda a: kept, x, x))(X)
    y += 1
    np.testing.assert_array_equal(kept, 0)


def test_what_a_pure_callback_cannot() -> None:
    again = "custom_vjp or ge2.custom_jvp around it"
    total = lambda x: np.sum(sorted_rows(x))  # noqa: E731
    for wrap in (
        ge2.grad,
        lambda f: ge2.jit(ge2.grad(f)),
        lambda f: lambda x: ge2.jvp(f, (x,), (x,)),
    ):
        with pytest.raises(
            NoRuleError, match="pure_callback of <lambda> .* has no derivative"
        ) as caught:
            wrap(total)(X)
        assert again in str(caught.value)
        assert "in sorted_rows" in str(caught.value)
    with pytest.raises(
        NoRuleError, match='does not say how it is to be batched(.|\n)*vmap_method="seq'
    ):
        ge2.vmap(sorted_rows)(np.ones((2, 3)))
    with pytest.raises(ArgumentError, match="no vmap_method 'each'(.|\n)*'sequential'"):
        sorted_rows(X, vmap_method="each")
    np.testing.assert_array_equal(ge2.grad(lambda x: total(ge2.stop_gradient(x)) + np.sum(x))(X), 1)


@pytest.mark.parametrize(("returned", "words"), [
    (np.zeros(2), r"returned f64\[2\] as its result, but result_shape_dtypes says f64\[3\]"),
    (np.zeros(3, np.float32), r"returned f32\[3\] as its result, but .* says f64\[3\]"),
    ([np.zeros(3)], r"returned PyTreeDef\(\[\*\]\), but result_shape_dtypes is PyTreeDef\(\*\)"),
])  # fmt: skip
def test_a_result_that_is_not_as_promised(returned: Any, words: str) -> None:
    f = ge2.jit(lambda x: ge2.pure_callback(lambda a: returned, x, x))
    with pytest.raises(TypeRuleError, match=words):
        f(X)


def test_python_numbers_are_results_too() -> None:
    scalar = ge2.ShapeDtypeStruct((), np.float32)
    y = ge2.jit(lambda x: ge2.pure_callback(lambda a: 3, scalar, x))(X)
    assert (y, y.dtype) == (3.0, np.float32)
    refused(
        InputError, "result_shape_dtypes of pure_callback holds 'f32'",
        lambda: ge2.pure_callback(np.sort, "f32", X), fix="ge2.ShapeDtypeStruct(shape, dtype)",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- as graphs


def test_effects_are_seen_through_graphs_that_hold_graphs() -> None:
    inner = ge2.jit(lambda x: ge2.debug.print("x {}", x))
    closed = ge2.make_jaxpr(lambda x: (inner(x), np.sin(x))[1])(X)
    (call, _) = closed.graph.eqns
    assert call.op.name == "jit"
    assert has_effect(call.op)
    assert not has_effect(ge2.make_jaxpr(lambda x: ge2.jit(np.sin)(x))(1.0).graph.eqns[0].op)


def test_the_text_of_a_print_reads_back() -> None:
    graph: Graph = ge2.jit(lambda x: ge2.debug.print("x = {}", x)).trace(1.0).jaxpr
    assert "= debug_print[fmt='x = {}' keywords=() loops=()] a" in str(graph)
    assert ge2.parse(str(graph)) == graph


def test_the_text_of_a_callback_reads_back_while_there_is_its_function() -> None:
    def announce(x: Any) -> None: ...

    traced = ge2.jit(lambda x: ge2.debug.callback(announce, x)).trace(1.0)
    text = str(traced.jaxpr)
    assert "debug_callback[function=announce loops=()] a" in text
    assert ge2.parse(text) == traced.jaxpr
    with pytest.raises(
        ge2.errors.ParseError, match="nobody is a Python function, which a text cannot hold"
    ):
        ge2.parse(text.replace("announce", "nobody"))


@pytest.mark.parametrize("wrap", [lambda f: f, ge2.jit])
def test_what_a_checkpoint_runs_again_prints_nothing(
    wrap: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(x: Any) -> Any:
        y = np.sin(x)
        ge2.debug.print("{}", y)
        return np.exp(np.sin(y))

    def loop(x: Any) -> Any:
        return ge2.lax.scan(lambda c, _: (said(c), None), x, None, length=2)[0]

    def branch(x: Any) -> Any:
        return ge2.lax.cond(x > 0, said, np.cos, x)

    for f, count in ((said, 1), (loop, 2), (branch, 1), (ge2.checkpoint(said), 1)):
        plain = ge2.grad(f)(1.0)
        once = lines(capsys)
        assert len(once) == count
        np.testing.assert_allclose(wrap(ge2.grad(ge2.checkpoint(f)))(1.0), plain, rtol=1e-12)
        assert lines(capsys) == once


def test_a_print_does_not_change_what_a_checkpoint_keeps() -> None:
    def f(x: Any, loud: bool) -> Any:
        def body(c: Any, _: Any) -> Any:
            c = np.sin(c)
            if loud:
                ge2.debug.print("{}", c)
            return np.exp(np.sin(c)), None

        return ge2.lax.scan(body, x, None, length=4)[0]

    def residuals(loud: bool) -> int:
        (eqn,) = ge2.make_jaxpr(ge2.checkpoint(lambda x: f(x, loud)))(1.0).graph.eqns
        op: Any = eqn.op
        return op.saving((True,), DERIVE).residuals  # type: ignore[no-any-return]

    assert residuals(True) == residuals(False) == 1
