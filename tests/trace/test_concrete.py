"""Values on demand: evaluated where they are known, just what is
needed, once; else an error says why.
"""

from __future__ import annotations

import ast
import contextlib
import math
import numbers
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base import source
from ge2.base.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)
from ge2.ir import ArrayType, Evaluate, Op, type_of
from ge2.trace import Closed, Input, concrete, stage
from ge2.trace.concrete import Known

X = np.array([1.0, 2.0, 4.0])


def known(f: Callable[..., Any], *args: Any, active: bool = False) -> Closed:
    """The trace of a function of arrays whose values are known."""
    inputs = [Input(type_of(a), a, name, active) for name, a in zip("xyz", args, strict=False)]
    return stage(lambda *xs: [f(*xs)], inputs)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the operations that are computed rather than recorded."""
    seen: list[str] = []
    compute = Evaluate.apply

    def apply(self: Evaluate, op: Op, args: Any) -> Any:
        seen.append(op.name)
        return compute(self, op, args)

    monkeypatch.setattr(Evaluate, "apply", apply)
    return seen


# --------------------------------------------------------------------------------- what is computed


def test_only_what_a_branch_needs_is_evaluated(evaluated: list[str]) -> None:
    def f(x: Any) -> Any:
        np.cos(x)
        y = np.exp(x)
        return y if np.sum(np.sin(x)) > 0 else x

    known(f, X)
    assert evaluated == ["sin", "reduce_sum", "gt"]


def test_a_value_is_evaluated_once_however_often_it_is_asked_for(evaluated: list[str]) -> None:
    def f(x: Any) -> Any:
        s = np.sum(x)
        for _ in range(5):
            assert s > 3
            assert bool(s > 3)
            assert int(s) == 7
        return s

    known(f, X)
    assert evaluated.count("reduce_sum") == 1
    assert evaluated.count("gt") == 10  # each comparison is an equation of its own


def test_many_looks_cost_as_much_as_the_equations_they_need(evaluated: list[str]) -> None:
    def f(x: Any) -> Any:
        n = 0
        while np.max(x) < 1e30:
            x = x * 2
            n += 1
        return x * n

    closed = known(f, X)
    assert evaluated.count("mul") == evaluated.count("reduce_max") - 1 == 98
    assert [e.op.name for e in closed.graph.eqns].count("mul") == 99


def test_a_nested_trace_evaluates_in_the_trace_each_value_belongs_to(evaluated: list[str]) -> None:
    def inner(y: Any, s: Any) -> Any:
        return y * 2 if s + np.sum(y) > 0 else y

    def f(x: Any) -> Any:
        s = np.sum(np.sin(x))
        assert s > 0
        return ge2.grad(lambda y: np.sum(inner(y, s)))(x)

    known(f, X)
    assert evaluated.count("sin") == 1
    assert evaluated.count("reduce_sum") == 2


@pytest.mark.parametrize(
    "transform",
    [ge2.grad, lambda f: lambda x: ge2.jvp(f, (x,), (x,)), lambda f: lambda x: ge2.vjp(f, x)[0]],
)
def test_python_control_flow_works_under_derivatives(transform: Any) -> None:
    def f(x: Any) -> Any:
        y = x
        while np.sum(y) < 100:
            y = y * 2 if y[0] > 0 else -y
        for i in range(int(np.argmax(x))):
            y = y + i
        return np.sum(y * [10, 20, 30][int(x[0])]) if bool(x[1] > 1) and not x[2] < 0 else np.sum(x)

    got = transform(f)(X)
    assert np.all(np.isfinite(np.asarray(got[0] if isinstance(got, tuple) else got)))
    np.testing.assert_array_equal(ge2.grad(f)(X), np.full(3, 320.0))


def test_an_inner_derivative_looks_at_an_argument_that_is_an_outer_value() -> None:
    f = lambda x: ge2.grad(lambda y: y**3 if y > 0 else -y)(x)  # noqa: E731
    assert ge2.grad(f)(2.0) == 12.0
    assert ge2.grad(f)(-2.0) == 0.0
    assert ge2.grad(ge2.grad(lambda x: x**3 if int(x) == 2 else x))(2.0) == 12.0


# ------------------------------------------------------------------------------------- being marked


@pytest.mark.parametrize(
    ("f", "looked"),
    [
        (lambda x: x * 2, False),
        (lambda x: x if x[0] > 0 else -x, True),
        (lambda x: x[int(x[0])], True),
        (lambda x: x * len(x) * x.shape[0] * x.ndim, False),
        (lambda x: x if np.sum(ge2.numpy.arange(3)) > 0 else -x, False),  # the same whatever x is
        (lambda x: x if np.zeros(3)[0] > 0 else -x, False),
    ],
)
def test_a_trace_that_looked_is_marked(f: Any, looked: bool) -> None:
    assert known(f, X).looked is looked


def test_looking_from_inside_marks_the_outer_trace() -> None:
    assert known(lambda x: ge2.grad(lambda y: y * 2 if y > 0 else y)(x[0]), X).looked
    assert known(lambda x: ge2.grad(lambda y: y * 2 if x[0] > 0 else y)(1.0), X).looked
    assert not known(lambda x: x * ge2.grad(lambda y: y * 2 if y > 0 else y)(1.0), X).looked


# ----------------------------------------------------------------------------- what cannot be known


REAL = np.zeros(3)
ASKING: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("if", lambda x: x if x[0] > 0 else -x, TracerBoolConversionError, "np.where"),
    (
        "while",
        lambda x: next(iter(()), 0) if not np.any(x > 1e9) else 1,
        TracerBoolConversionError,
        "np.where(np.logical_not(np.any(",
    ),
    ("int", lambda x: int(x[0]), TracerIntegerConversionError, "x[0].astype(np.int64)"),
    ("range", lambda x: range(int(x[0])), TracerIntegerConversionError, "x[0].astype(np.int64)"),
    (
        "index",
        lambda x: [1, 2, 3][np.argmax(x)],
        TracerIntegerConversionError,
        "ge2.numpy.take([1, 2, 3], np.argmax(x), axis=0)",
    ),
    (
        "a mask by name",
        lambda x: (lambda chosen: REAL[chosen])(x > 0),
        TracerArrayConversionError,
        "np.where(chosen, REAL, 0)",
    ),
    (
        "a mask of masks",
        lambda x: REAL[~(x > 0) & (x < 2)],
        TracerArrayConversionError,
        "np.where(~(x > 0) & (x < 2), REAL, 0)",
    ),
    (
        "places, counted",
        lambda x: REAL[x.astype(int) - 1],
        TracerArrayConversionError,
        "ge2.numpy.take(REAL, x.astype(int) - 1, axis=0)",
    ),
    (
        "a test of a call",
        lambda x: x if np.any(x > 1) else -x,
        TracerBoolConversionError,
        "np.where(np.any(x > 1), x, -x)",
    ),
    ("round", lambda x: round(x[0]), TracerIntegerConversionError, "np.rint(x[0]).astype(int)"),
    ("float", lambda x: float(x[0]), ConcretizationTypeError, "x[0].astype(np.float64)"),
    ("complex", lambda x: complex(x[0]), ConcretizationTypeError, "x[0].astype(np.complex128)"),
    ("item", lambda x: x[0].item(), ConcretizationTypeError, "x[0] itself"),
    ("tolist", lambda x: x.tolist(), ConcretizationTypeError, "x itself"),
    ("bool_", lambda x: np.bool_(x[0]), ConcretizationTypeError, "x[0].astype(np.bool_)"),
    (
        "real array",
        lambda x: REAL.__setitem__(0, x[0]),
        ConcretizationTypeError,
        "REAL as an argument, which may be written",
    ),
    ("format", lambda x: f"{x[0]:.3f}", ConcretizationTypeError, "ge2.debug.print"),
    ("in", lambda x: 3.0 in x, TracerBoolConversionError, "np.any(x == 3.0)"),
]
asking = pytest.mark.parametrize(
    ("f", "error", "fix"), [a[1:] for a in ASKING], ids=[a[0] for a in ASKING]
)


@asking
def test_under_make_jaxpr_it_is_an_error_that_names_the_argument_the_line_and_the_fix(
    f: Any, error: Any, fix: str
) -> None:
    def theta_is_read(theta: Any) -> Any:
        f(theta * 2)
        return theta

    with pytest.raises(error) as caught:
        ge2.make_jaxpr(theta_is_read)(X)
    what, where, how = str(caught.value).split("\n")
    assert "depends on theta, which is not known while theta_is_read (test_concrete.py:" in what
    assert where.startswith("  at   test_concrete.py:")
    assert how.startswith("  try  ")
    assert fix in how


@asking
def test_under_vmap_a_batched_value_is_an_error_that_says_so(f: Any, error: Any, fix: str) -> None:
    def g(shared: Any, row: Any) -> Any:
        if shared[0] > 0:  # known
            f(row + shared)
        return row

    with pytest.raises(
        error, match="but row is mapped by vmap: it has a value for each place of the axis"
    ):
        ge2.vmap(g, in_axes=(None, 0))(X, np.ones((2, 3)))
    with pytest.raises(error, match="row is mapped by vmap"):  # through any further trace
        ge2.vmap(lambda row: ge2.grad(lambda y: np.sum(y) + (f(row * 2), 0.0)[1])(np.zeros(3)))(
            np.ones((2, 3))
        )


def test_what_vmap_shares_is_known() -> None:
    g = lambda n, row: row * 2 if n > 0 else row  # noqa: E731
    np.testing.assert_array_equal(ge2.vmap(g, in_axes=(None, 0))(1, X), X * 2)
    np.testing.assert_array_equal(ge2.vmap(lambda row: row * int(np.argmax(X)))(X), X * 2)


LOSSY = ("float", "complex", "item", "tolist", "bool_", "real array")
lossy = pytest.mark.parametrize("f", [a[1] for a in ASKING if a[0] in LOSSY], ids=LOSSY)


@lossy
def test_a_number_that_a_derivative_flows_through_is_an_error(f: Any) -> None:
    for run in (
        ge2.grad,
        lambda g: lambda x: ge2.jvp(g, (x,), (x,)),
        lambda g: lambda x: ge2.vjp(g, x),
    ):
        with pytest.raises(
            ConcretizationTypeError, match="a derivative flows through it and would be lost"
        ) as caught:
            run(lambda x: np.sum(x) + (f(np.sin(x)), 0.0)[1])(X)
        # not the first thing to do
        assert not re.search(r"try +ge2.stop_gradient", str(caught.value))
        assert "at   test_concrete.py:" in str(caught.value)


@lossy
def test_after_stop_gradient_it_works(f: Any) -> None:
    def g(x: Any) -> Any:
        f(ge2.lax.stop_gradient(np.sin(x)))
        return np.sum(x)

    np.testing.assert_array_equal(ge2.grad(g)(X), np.ones(3))


@lossy
def test_a_derivative_that_flows_in_an_outer_trace_counts(f: Any) -> None:
    def g(x: Any) -> Any:
        return np.sum(ge2.grad(lambda y: np.sum(y) + (f(x * 2), 0.0)[1])(X))

    with pytest.raises(ConcretizationTypeError, match="a derivative flows through it"):
        ge2.grad(g)(X)

    def through_an_argument(x: Any) -> Any:
        return np.sum(ge2.vmap(lambda y, z: y * (f(z), 1.0)[1], in_axes=(0, None))(X, x))

    with pytest.raises(ConcretizationTypeError, match="a derivative flows through it"):
        ge2.grad(through_an_argument)(X)


def test_integers_and_what_does_not_depend_on_the_argument_are_given() -> None:
    def f(x: Any, n: Any) -> Any:
        scale = float(n) + n.item() + np.asarray(n * 2) + float(np.argmax(x)) + math.sqrt(n)
        return np.sum(x) * scale

    np.testing.assert_array_equal(ge2.grad(f)(X, np.int64(4)), np.full(3, 4 + 4 + 8 + 2 + 2.0))
    assert ge2.grad(lambda x, y: x * float(y))(1.0, 3.0) == 3.0


def test_truth_and_int_of_more_than_one_element_are_numpys_errors() -> None:
    with pytest.raises(ValueError, match="ambiguous. Use a.any"):
        ge2.grad(lambda x: np.sum(x) if x > 0 else 0.0)(X)
    with pytest.raises(TypeError, match="only arrays of one element"):
        ge2.grad(lambda x: np.sum(x) * int(x))(X)
    with pytest.raises(TypeError, match="only integer scalar arrays"):
        ge2.grad(lambda x: [1.0][x[0]] * np.sum(x))(X)


def test_values_are_not_given_outside_the_trace() -> None:
    kept: list[Any] = []
    known(lambda x: kept.append(x[0] * 2) or x, X)
    for ask in (bool, int, float, np.asarray, lambda x: x.item(), lambda x: f"{x:.2f}"):
        with pytest.raises(UnexpectedTracerError, match="outlived the trace"):
            ask(kept[0])


def test_printing_shows_the_type_and_the_name() -> None:
    seen: list[str] = []
    known(lambda x: (seen.append(f"{x} {x * 2!r}"), x)[1], X)
    assert seen == ["<x, traced f64[3]> <a traced f64[3]>"]
    known(lambda x: (seen.append(f"{x[0]:.1f}"), x)[1], X)
    assert seen[1] == "1.0"


def test_types_are_all_that_an_abstract_input_tells() -> None:
    closed = stage(
        lambda x: [x.reshape(len(x), x.size // 3)], [Input(ArrayType((3,), np.dtype(np.float64)))]
    )
    assert closed.graph.outputs[0].type.shape == (3, 1)


def test_a_list_repeated_by_a_traced_python_number_is_not_an_array() -> None:
    assert known(lambda n: np.sum(np.array([1.0] * n)), 3).looked
    with pytest.raises(TracerIntegerConversionError, match="static"):
        ge2.jit(lambda n: [1] * n)(3)
    np.testing.assert_array_equal(ge2.jit(lambda x: [1, 2] * x)(np.ones(2)), [1, 2])


def test_numpy_does_not_hide_why_a_size_is_not_known() -> None:
    with pytest.raises(
        TracerIntegerConversionError, match=r"test_concrete.py(?s:.*)static_argnames"
    ):
        ge2.jit(lambda n: np.zeros(n))(3)


def test_the_length_of_a_range_is_looked_at():
    """As it is by NumPy's own function, which asks for the number."""
    for arange in (ge2.numpy.arange, np.arange):
        f = ge2.grad(lambda x, n, arange=arange: (x * arange(n + 1)).sum())
        np.testing.assert_array_equal(f(np.ones(4), 3), [0, 1, 2, 3])
    with pytest.raises(ConcretizationTypeError, match="the length of arange would depend on stop"):
        ge2.jit(ge2.numpy.arange)(3)


def test_a_traced_mask_costs_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its elements are known was asked by an error that reads the file it is raised for."""

    def refused(*args: Any) -> None:
        raise AssertionError("an error was made")

    def f(x: Any) -> Any:
        y = np.zeros_like(x)
        for _ in range(3):
            y[x > 0] = x[x > 0] + 1
            x = x[::-1] - y
        return y

    monkeypatch.setattr(concrete, "refuse", refused)
    x = np.array([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(ge2.jit(f)(x), f(x))


def test_a_file_is_read_once_for_questions_about_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda text: texts.append(text) or parse(text))

    def f(x: Any) -> Any:
        for _ in range(5):
            with contextlib.suppress(TypeError):
                float(x)
        return x

    source.parsed.cache_clear()
    ge2.jit(f)(np.float32(1))
    assert len(texts) == 1


def strided(x, stride, flag, power=2):
    """A function that asks of what kind its numbers are, as many do."""
    assert isinstance(stride, int)
    assert not isinstance(stride, np.ndarray)
    assert isinstance(flag, bool)
    assert isinstance(power, int | float)
    assert isinstance(power, numbers.Number)
    assert isinstance(x, np.ndarray)
    return np.sum(x[::stride] ** power)


def test_numbers_are_of_the_classes_they_were_given_as():
    x = np.arange(6.0)
    wanted = [0, 0, 4, 0, 8, 0]
    np.testing.assert_array_equal(ge2.grad(strided)(x, 2, True), wanted)
    compiled = ge2.jit(ge2.grad(strided), static_argnums=(1, 2))
    np.testing.assert_array_equal(compiled(x, 2, True), wanted)
    np.testing.assert_array_equal(compiled(x, 2, True, power=3.0), [0, 0, 12, 0, 48, 0])
    with pytest.raises(TracerIntegerConversionError, match="static_argnames='stride'"):
        ge2.jit(strided, static_argnames="flag")(x, stride=2, flag=True)


def statistics(x, n):
    return np.percentile(x, n), np.var(x, ddof=n), np.nanpercentile(x, n), x[n], x[n, None]


def draws(key, n):
    return ge2.random.fold_in(key, n), ge2.random.randint(key, (3,), 0, n)


def test_numbers_that_are_traced_are_taken_where_known_ones_are():
    x, key = np.arange(6.0), ge2.random.key(0)
    for f, given in ((statistics, (x, 1)), (draws, (key, 9))):
        for found, wanted in zip(ge2.jit(f)(*given), f(*given), strict=True):
            np.testing.assert_allclose(found, wanted)
    np.testing.assert_array_equal(ge2.jit(ge2.random.key)(7), ge2.random.key(7))


def test_what_is_not_known_is_sought_once_and_not_through_all_that_came_before(monkeypatch) -> None:
    """NumPy asks each element of `np.array([...])` for its value, in every iteration."""
    asked: list[int] = []
    maker = Known.maker
    monkeypatch.setattr(Known, "maker", lambda *given: asked.append(1) or maker(*given))

    def looked_at(n: int) -> int:
        def steps(x):
            for _ in range(n):
                x = np.array([x[0] * 0.5, x[1] + x[0]])
            return x

        asked.clear()
        x = np.ones(2)
        np.testing.assert_allclose(ge2.jit(steps)(x), steps(x))
        return len(asked)

    few, many = looked_at(20), looked_at(80)
    assert 0 < many <= 5 * few
