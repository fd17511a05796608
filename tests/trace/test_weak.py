"""Python numbers stay weak through operators, become strong in NumPy's
functions, come back as numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2

NUMBERS = (3, -2, 0, 2.5, -0.5, True, False, 1 + 2j)
BINARY = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    divmod, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
)  # fmt: skip
UNARY: dict[str, Callable[[Any], Any]] = {
    "-x": operator.neg,
    "+x": operator.pos,
    "abs(x)": abs,
    "x.real": lambda x: x.real,
    "x.imag": lambda x: x.imag,
    "x.conjugate()": lambda x: x.conjugate(),
    "round(x, 1)": lambda x: round(x, 1),
}


def through(f: Callable[..., Any], *args: Any) -> Any:
    """The function's result by way of its graph."""
    ys = ge2.make_jaxpr(f)(*args)(*args)
    return tuple(ys) if len(ys) > 1 else ys[0]


def check(f: Callable[..., Any], *args: Any) -> None:
    try:
        want = f(*args)
    except TypeError:
        if f is not UNARY["round(x, 1)"]:  # arrays of complex numbers are rounded by their parts
            with pytest.raises(TypeError):
                through(f, *args)
        return
    except (ArithmeticError, ValueError):  # which depend on the numbers
        return
    got = through(f, *args)
    assert type(got) is type(want)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert type(g) is type(w)
        assert g == pytest.approx(w, rel=1e-14)


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize("x", NUMBERS, ids=str)
@pytest.mark.parametrize("f", UNARY.values(), ids=UNARY)
def test_a_python_number_stays_one_through_an_operator(f: Any, x: Any) -> None:
    check(f, x)


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize("f", BINARY)
@pytest.mark.parametrize("x", NUMBERS, ids=str)
def test_two_python_numbers_give_one_of_pythons_type(f: Any, x: Any) -> None:
    for y in NUMBERS:
        if isinstance(x, complex) and f in (operator.lt, operator.le, operator.gt, operator.ge):
            continue
        if f is operator.pow and not (isinstance(x, complex) or isinstance(y, complex)):
            continue  # Python looks at the values to choose the type; see below
        check(f, x, y)
        check(lambda a, y=y: f(a, y), x)
        check(lambda a, y=y: f(y, a), x)


@pytest.mark.parametrize("n", [-2, -1, 0, 1, 2, 3, 0.5])
@pytest.mark.parametrize("x", [3, 2.5, 1 + 2j], ids=str)
def test_a_power_with_a_known_exponent_has_pythons_type(x: Any, n: Any) -> None:
    check(lambda a: a**n, x)


@given(
    st.sampled_from([operator.add, operator.sub, operator.mul]),
    st.integers(-(2**30), 2**30),
    st.integers(-(2**30), 2**30),
)
def test_ints_are_exact(f: Any, a: int, b: int) -> None:
    assert through(f, a, b) == f(a, b)
    assert type(through(f, a, b)) is int


DTYPES = ("?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")


@pytest.mark.exhaustive("f", "number")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [2, 2.5, True, 1j])
@pytest.mark.parametrize(
    "f",
    [
        operator.add, operator.mul, operator.truediv, operator.pow, operator.lt, operator.eq,
        operator.mod,
    ],
)  # fmt: skip
def test_a_weak_number_yields_to_the_dtype_of_an_array_as_nep_50_says(
    f: Any, number: Any, dtype: str
) -> None:
    x = np.ones(2, dtype)
    for args, swapped in (((x, number), False), ((number, x), True)):
        try:
            want = f(*args)
            if f is operator.pow and x.dtype == bool:
                continue  # NumPy looks at the value of a Python exponent
        except TypeError:
            with pytest.raises(TypeError):
                through(f, *args)
            continue
        traced_number = through(f, *args)
        literal = through((lambda a: f(number, a)) if swapped else (lambda a: f(a, number)), x)
        assert traced_number.dtype == literal.dtype == want.dtype
        np.testing.assert_array_equal(traced_number, want)
        np.testing.assert_array_equal(literal, want)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "np.sin": np.sin,
    "np.add": lambda x: np.add(x, 1),
    "np.multiply": lambda x: np.multiply(x, x),
    "np.where": lambda x: np.where(True, x, 1),
    "np.sum": np.sum,
    "np.abs": np.abs,
    "np.stack": lambda x: np.stack([x, 1]),
    "np.full_like": lambda x: np.full_like(x, 7),
    "np.maximum": lambda x: np.maximum(x, 1),
    "np.negative": np.negative,
    "np.square": np.square,
    "np.asarray": ge2.numpy.asarray,
    "np.real": np.real,
    "np.broadcast_to": lambda x: np.broadcast_to(x, (2,)),
}


@pytest.mark.parametrize("x", [3, 2.5, 1 + 2j], ids=str)
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_numpys_functions_make_a_number_strong(f: Any, x: Any) -> None:
    (out,) = ge2.make_jaxpr(f)(x).graph.outputs
    assert not out.type.weak
    assert out.type.dtype == np.asarray(f(x)).dtype
    (beside,) = ge2.make_jaxpr(lambda x: f(x) * np.ones(2, np.float16))(x).graph.outputs
    assert beside.type.dtype == (np.asarray(f(x)) * np.ones(2, np.float16)).dtype or not np.shape(
        f(x)
    )


def test_dtypes_do_not_creep_and_the_text_marks_weak_types() -> None:
    step = lambda x, rate, n: (x - rate * x / (n + 1), n + 1)  # noqa: E731
    closed = ge2.make_jaxpr(step)(np.ones(2, np.float32), 0.1, 3)
    x, n = closed.graph.outputs
    assert str(x.type) == "f32[2]"
    assert str(n.type) == "~i64[]"
    assert "{ lambda ; a:f32[2] b:~f64[] c:~i64[]. let" in str(closed)
    y, m = closed(np.ones(2, np.float32), 0.1, 3)
    assert (y.dtype, type(m), m) == (np.float32, int, 4)


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize(
    "x", [2.5, 3.5, -2.5, 3, True, np.float32(2.5), np.float64(-3.5), np.int8(4)], ids=repr
)
@pytest.mark.parametrize("f", [round, math.floor, math.ceil, math.trunc, int, bool])
def test_rounding_to_a_python_int_looks_at_the_value(f: Any, x: Any) -> None:
    if f is math.trunc and isinstance(x, np.generic):
        pytest.skip("NumPy's numbers have no __trunc__")
    seen: list[Any] = []

    def g(x: Any, y: Any) -> Any:
        found = f(x)
        seen.append(found)
        assert type(found) is (bool if f is bool else int)
        return y * found

    assert ge2.grad(g, argnums=1)(x, 1.0) == f(x)
    assert seen == [f(x)]


def test_adding_to_a_number_in_place_binds_it_anew() -> None:
    def f(x: Any) -> Any:
        before = x
        x += 1
        x *= 2
        return before, x

    assert through(f, 3) == (3, 8)
    with pytest.raises(TypeError, match="'float' object does not support item assignment"):
        ge2.make_jaxpr(lambda x: x.__setitem__(0, 1))(2.0)


def test_number_classes_of_python_are_not_arrays() -> None:
    seen: list[bool] = []
    ge2.make_jaxpr(
        lambda x, y: (seen.extend([isinstance(x, np.ndarray), isinstance(y, np.ndarray)]), x)[1]
    )(1.0, np.ones(2))
    assert seen == [False, True]
