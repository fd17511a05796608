"""What a user sees of a running function when asked for: NaN, leaks, scopes, compilations."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.errors import NonFiniteError, UnexpectedTracerError

X = np.array([1.0, -2.0, 0.0])


def text_of(caught: pytest.ExceptionInfo[Any]) -> list[str]:
    return str(caught.value).splitlines()


# ---------------------------------------------------------------------------------------------- NaN


def norm(x: Any) -> Any:
    y = x * 2
    root = np.sqrt(y)
    return np.sum(y / root)


ROOT = norm.__code__.co_firstlineno + 2


@pytest.mark.parametrize("wrap", [
    ge2.jit, ge2.grad, lambda f: ge2.jit(ge2.grad(f)), lambda f: ge2.jit(lambda x: ge2.jit(f)(x) + 1),
    lambda f: lambda x: ge2.vmap(f)(x[None]), lambda f: ge2.jit(lambda x: ge2.checkpoint(f)(x)),
    lambda f: ge2.jit(lambda x: ge2.lax.cond(x[0] > 0, f, lambda x: x[0], x)),
])  # fmt: skip
@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_a_nan_is_blamed_on_the_first_equation_and_its_line(wrap: Any, executor: str) -> None:
    function = wrap(norm)
    with (
        ge2.debug_nans(),
        ge2.config.using(executor=executor),
        pytest.raises(NonFiniteError) as caught,
    ):
        function(X)
    first, operand, place, fix = text_of(caught)
    assert first.startswith("sqrt made a NaN in ")
    assert "1 of" in first
    assert operand.startswith("  of   f64[")
    assert "-4." in operand
    assert place == f"  at   test_seeing.py:{ROOT} in norm"
    assert "np.where around what it reads" in fix
    assert isinstance(caught.value, FloatingPointError)


def test_the_error_in_full() -> None:
    with ge2.debug_nans(), pytest.raises(NonFiniteError) as caught:
        ge2.jit(lambda x, y: x[2] + np.log(x * y))(np.linspace(3, -3, 20, dtype=np.float32), 2.0)
    assert text_of(caught)[:2] == [
        "log made a NaN in <lambda> (10 of 20 elements, the first at [10])",
        "  of   f32[20] from -6.0 to 6.0; -0.31578946 there",
    ]


def test_a_nan_that_reaches_no_result_or_was_given_is_none() -> None:
    with ge2.debug_nans():
        masked = ge2.jit(lambda x: np.where(x > 0, np.log(x), 0.0))(X)
        given = ge2.jit(lambda x: x * 2)(np.array([np.nan]))
        constant = ge2.jit(lambda x: x * np.nan)(X)
        integers = ge2.jit(lambda x: x + 1)(np.arange(3))
    np.testing.assert_array_equal(masked, 0.0)
    assert np.isnan(given).all()
    assert np.isnan(constant).all()
    np.testing.assert_array_equal(integers, [1, 2, 3])


def test_a_masked_nan_is_blamed_where_its_derivative_shows() -> None:
    def f(x: Any) -> Any:
        return np.sum(np.where(x > 0, np.sqrt(x), 0.0))

    with ge2.debug_nans(), pytest.raises(NonFiniteError, match="mul made a NaN"):
        ge2.jit(ge2.grad(f))(np.array([1.0, 0.0]))


def test_infinities_have_a_setting_of_their_own() -> None:
    f = ge2.jit(lambda x: np.exp(x * 1000))
    with ge2.debug_nans():
        assert f(X)[0] == np.inf
    with ge2.debug_infs():
        assert np.isnan(ge2.jit(lambda x: np.sqrt(x))(-1.0))
        with pytest.raises(
            NonFiniteError, match=r"exp made an infinity in <lambda> \(1 of 3 elements"
        ):
            f(X)
    assert f(X)[0] == np.inf


def test_a_watched_function_keeps_donated_arguments_and_prints_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = X.copy()

    def f(x: Any) -> Any:
        ge2.debug.print("once")
        return np.sqrt(x)

    with ge2.debug_nans(), pytest.raises(NonFiniteError, match="sqrt made a NaN"):
        ge2.jit(f, donate_argnums=0)(x)
    np.testing.assert_array_equal(x, X)
    assert capsys.readouterr().out == "once\n"


def test_a_nan_of_a_callback_is_that_of_the_callback() -> None:
    f = ge2.jit(lambda x: ge2.pure_callback(lambda a: a * np.nan, x, x))
    with ge2.debug_nans(), pytest.raises(NonFiniteError, match="pure_callback made a NaN"):
        f(X)


def test_a_nan_made_in_a_round_of_a_loop() -> None:
    def body(c: Any, x: Any) -> Any:
        return c + np.log(x), c

    f = ge2.jit(lambda xs: ge2.lax.scan(body, 0.0, xs)[0])
    with ge2.debug_nans(), pytest.raises(NonFiniteError) as caught:
        f(np.array([1.0, -3.0, 2.0]))
    first, operand, place, _ = text_of(caught)
    assert (first, operand) == ("log made a NaN in <lambda>", "  of   f64[] -3.0")
    assert place == f"  at   test_seeing.py:{body.__code__.co_firstlineno + 1} in body"


# -------------------------------------------------------------------------------------------- leaks


class Holder:
    value: Any = None


def test_a_leak_is_an_error_when_its_trace_ends() -> None:
    holder, kept = Holder(), []

    def leaky(x: Any) -> Any:
        holder.value = x * 2
        return x + 1

    ge2.jit(leaky)(X)
    with ge2.checking_leaks():
        with pytest.raises(
            UnexpectedTracerError, match="the attribute value of a Holder still holds it"
        ):
            ge2.jit(leaky)(X[:2])
        with pytest.raises(
            UnexpectedTracerError, match=r"x \(traced f64\[3\]\) outlived the trace"
        ):
            ge2.grad(lambda x: kept.append(x) or np.sum(x))(X)


def test_what_leaks_nothing_is_no_leak() -> None:
    weights = np.ones(3)

    @ge2.jit
    def inner(x: Any) -> Any:
        return np.tanh(x * weights)

    def f(x: Any) -> Any:
        ge2.debug.callback(lambda v: v @ weights, x)
        y = x.copy()
        y[0] += 1
        return np.sum(ge2.lax.cond(x[0] > 0, inner, lambda x: x, y))

    with ge2.checking_leaks():
        np.testing.assert_allclose(ge2.jit(ge2.grad(f))(X), ge2.grad(f)(X))
        ge2.vmap(ge2.jit(f))(np.ones((2, 3)))


# ------------------------------------------------------------------------------------------- scopes


def test_a_scope_names_kernels_and_errors() -> None:
    @ge2.named_scope("head")
    def head(x: Any) -> Any:
        return np.exp(x).sum()

    def model(x: Any, wrong: bool = False) -> Any:
        with ge2.named_scope("body"):
            with ge2.named_scope("norm"):
                x = x / np.sqrt(np.sum(x * x))
            if wrong:
                x = x + np.ones(7)
        return head(x)

    kernels = ge2.jit(model).lower(X).kernels
    scopes = {line.partition(" in ")[2] for kernel in kernels for line in kernel.lines}
    assert scopes == {"model (body/norm)", "head (head)"}
    assert "model (body/norm)" in str(kernels)
    with pytest.raises(ge2.errors.ShapeError, match=r"at   test_seeing.py:\d+ in model \(body\)"):
        ge2.jit(model, static_argnums=1)(X, True)
    with ge2.debug_nans(), pytest.raises(NonFiniteError, match=r"in model \(body/norm\)"):
        ge2.jit(model)(X * 0)


def test_scopes_change_no_graph() -> None:
    plain = ge2.make_jaxpr(np.tanh)(X).graph
    named = ge2.make_jaxpr(ge2.named_scope("a")(lambda x: np.tanh(x)))(X).graph
    assert plain == named


# ---------------------------------------------------------------------------------------- compiling


def test_log_compiles_says_what_and_why(caplog: pytest.LogCaptureFixture) -> None:
    f = ge2.jit(lambda x, scale: x * scale)
    with caplog.at_level(logging.WARNING, "ge2"), ge2.config.using(log_compiles=True):
        f(X, 2.0)
        f(X, 3.0)
        f(X[:2], 2)
    first, bill, second, _ = caplog.messages
    assert bill.startswith("<lambda>: ready in ") and "\n  trace " in bill
    assert first == (
        "<lambda>(x: f64[3], scale: a Python float) is traced and compiled: it is called for the first time"
    )
    assert second == (
        "<lambda>(x: f64[2], scale: a Python int) is traced and compiled: x: f64[3] against f64[2]; "
        "scale: a Python float against a Python int"
    )
