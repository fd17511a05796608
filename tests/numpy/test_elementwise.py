"""Every ufunc of NumPy and every elementwise function: values, dtypes,
broadcasting, weak numbers.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
import ge2.numpy as gnp
from ge2.base.arrays import BFLOAT16, FP8
from ge2.base.errors import ArgumentError, InputError, ShapeError, TypeRuleError
from ge2.base.tracebacks import inside
from ge2.ir import type_of
from ge2.trace import Input, stage
from tests.numpy.agreement import (
    COMPLEXES,
    DTYPES,
    FEW,
    FLOATS,
    NEWEST,
    agree,
    attempt,
    compare,
    draw,
    quietly,
    traced,
)

ALL = sorted(
    {f for n in dir(np) if isinstance(f := getattr(np, n), np.ufunc)}, key=lambda f: f.__name__
)
PLAIN = [f for f in ALL if f.signature is None]
UNARY = [f for f in PLAIN if f.nin == 1]
BINARY = [f for f in PLAIN if f.nin == 2]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, 3e38, np.inf, -np.inf, np.nan]
# equal up to rounding: a square root for a power of a half, and the like
POWERS = (np.power, np.float_power)
name = lambda f: f.__name__  # noqa: E731


def test_every_ufunc_is_there() -> None:
    # SciPy's are added to the table when a program that uses them is traced
    assert set(ALL) == {f for f in gnp.UFUNCS if getattr(np, f.__name__, None) is f}
    for f in ALL:
        assert inspect.unwrap(inside(getattr(gnp, f.__name__))) is gnp.UFUNCS[f]


@pytest.mark.parametrize("f", UNARY, ids=name)
def test_unary(f: np.ufunc, rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        agree(f, draw(rng, dtype, (3, 4)), exact=True)
        agree(f, draw(rng, dtype, (6, 4)).T[::-2, 1::2], exact=True)
        agree(f, draw(rng, dtype, (0, 2)), exact=True)
        agree(f, draw(rng, dtype)[()], exact=True)


@pytest.mark.parametrize("f", UNARY, ids=name)
def test_unary_of_numbers_and_lists(f: np.ufunc) -> None:
    for x in (True, 3, 0.5, 1 + 2j, [1, 2], [[0.5], [1.5]], (True, False)):
        agree(f, x, exact=True)


@pytest.mark.parametrize("f", UNARY, ids=name)
def test_unary_of_special_values(f: np.ufunc) -> None:
    for dtype in FLOATS:
        agree(f, quietly(np.array(SPECIAL).astype, dtype), exact=True)


@pytest.mark.parametrize("f", BINARY, ids=name)
def test_binary(f: np.ufunc, rng: np.random.Generator) -> None:
    low = 0 if f in (np.power, np.left_shift, np.right_shift) else -4
    for da, db in itertools.product(FEW, FEW):
        agree(
            f,
            draw(rng, da, (2, 3), low),
            draw(rng, db, (2, 3), low),
            exact=f not in POWERS,
            trace=da == db,
        )
    for dtype in DTYPES:
        agree(
            f,
            draw(rng, dtype, (3, 1), low),
            draw(rng, dtype, (2, 1, 4), low),
            exact=f not in POWERS,
        )
        agree(f, draw(rng, dtype, (3, 0), low), draw(rng, dtype, (1,), low), exact=f not in POWERS)
        agree(f, draw(rng, dtype, (), low)[()], draw(rng, dtype, (2,), low), exact=f not in POWERS)


@pytest.mark.parametrize("f", BINARY, ids=name)
def test_binary_beside_numbers(f: np.ufunc, rng: np.random.Generator) -> None:
    for dtype, number in itertools.product(DTYPES, (True, 3, 0.5, 1 + 2j)):
        x = draw(rng, dtype, (2, 3), 0)
        agree(f, x, number, exact=f not in POWERS)
        agree(f, number, x, exact=f not in POWERS)


@pytest.mark.parametrize("f", BINARY, ids=name)
def test_binary_of_special_values(f: np.ufunc) -> None:
    for dtype in FLOATS:
        x = quietly(np.array(SPECIAL).astype, dtype)
        agree(f, x, x[:, None], exact=f not in POWERS)


@pytest.mark.parametrize("f", BINARY, ids=name)
def test_binary_of_two_numbers_is_strong(f: np.ufunc) -> None:
    for a, b in itertools.product((True, 3, 0.5), repeat=2):
        agree(f, a, b, exact=f not in POWERS)
        want = attempt(f, a, b)
        compare(
            want,
            attempt(traced, f, a, b, only=[0, 1]),
            True,
            f"{f.__name__}({a}, {b}) of weak values",
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "f", [np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal], ids=name
)
@given(st.integers(-(2**70), 2**70), st.sampled_from([np.dtype(t) for t in "bBhHiIqQ"]))
def test_comparisons_with_any_int(f: np.ufunc, number: int, dtype: np.dtype) -> None:
    x = np.array([np.iinfo(dtype).min, 0, 7, np.iinfo(dtype).max], dtype)
    agree(f, x, number)
    agree(f, number, x)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "f", [np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal], ids=name
)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.lists(st.integers(0, 2**64 - 1), max_size=3),
)
def test_signed_and_unsigned_compare_exactly(
    f: np.ufunc, signed: list[int], unsigned: list[int]
) -> None:
    a, b = np.array(signed, "i8"), np.array(unsigned, "u8")[:, None]
    agree(f, a, b)
    agree(f, b, a)
    agree(f, a.astype("i1"), b)


def test_a_python_int_that_the_dtype_does_not_hold() -> None:
    for f in (np.add, np.maximum, np.bitwise_and):
        agree(f, np.uint8([1, 2]), 300)
        agree(f, np.uint8([1, 2]), -1)


@pytest.mark.parametrize(
    "exponent",
    [0, 1, 2, 3, 5, -1, -2, 0.5, 1.0, 2.0, 2.5, -0.5, True, 100, np.float32(2), np.int8(2)],
)
def test_powers(exponent: Any, rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        agree(np.power, draw(rng, dtype, (3, 4), 1), exponent)
        agree(np.power, exponent, draw(rng, dtype, (3, 4), 0))
    if NEWEST or exponent != 0.5:
        agree(np.power, np.array([0.0, -0.0, np.inf, -np.inf, np.nan]), exponent, exact=True)


def test_a_known_exponent_is_a_parameter() -> None:
    graph = stage(
        lambda x: [x**2, x**3, x**0.5, np.power(x, -2), x**2.5], [Input(type_of(np.ones(3)))]
    ).graph
    assert [e.op.name for e in graph.eqns] == [
        "square", "integer_pow", "sqrt", "integer_pow", "pow",
    ]  # fmt: skip


def test_dtype_argument(rng: np.random.Generator) -> None:
    for f, dtype, source in itertools.product((np.add, np.exp, np.sqrt), FEW, FEW):
        agree(f, *(draw(rng, source, (3,), 1),) * f.nin, dtype=dtype, trace=False, exact=True)


# --------------------------------------------------------------------------------------- half types


@pytest.mark.parametrize("dtype", [BFLOAT16, *FP8], ids=str)
def test_half_types_promote_as_float16(dtype: np.dtype) -> None:
    x = np.array([0.5, 1.5, 2.0]).astype(dtype)
    assert (
        gnp.add(x, x).dtype
        == gnp.add(x, 1).dtype
        == gnp.add(2.5, x).dtype
        == gnp.exp(x).dtype
        == dtype
    )
    assert gnp.add(x, np.float32(1)).dtype == np.float32
    assert gnp.add(x, np.float16(1)).dtype == np.float32
    assert gnp.add(x, np.int8(1)).dtype == dtype
    assert gnp.add(x, np.int16(1)).dtype == np.float32
    assert gnp.add(x, 1j).dtype == np.complex64
    assert gnp.less(x, 1).dtype.kind == "b"
    for f in (gnp.exp, gnp.tanh, gnp.log):
        np.testing.assert_array_equal(f(x), f(x.astype(np.float32)).astype(dtype))
    assert gnp.result_type(x, 1.0) == dtype
    assert gnp.promote_types(dtype, np.float16) == np.float32


def test_two_half_types_meet_in_float32() -> None:
    a, b = np.ones(2, ml_dtypes.bfloat16), np.ones(2, ml_dtypes.float8_e5m2)
    assert gnp.multiply(a, b).dtype == gnp.where(True, a, b).dtype == np.float32


# ---------------------------------------------------------------------------------------- operators


def weak(f: Any, *args: Any) -> Any:
    """The result of a function of weak values, as the graph gives it."""
    return traced(f, *args, only=range(len(args)))


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False, 3, -2, 2.5), repeat=2)))
def test_operators_on_numbers_are_pythons(a: Any, b: Any) -> None:
    import operator as op

    for f in (
        op.add, op.sub, op.mul, op.truediv, op.floordiv, op.mod, op.lt, op.le, op.gt, op.ge, op.eq,
        op.ne,
    ):  # fmt: skip
        if not b and f in (op.truediv, op.floordiv, op.mod):
            continue
        want, got = f(a, b), weak(f, a, b)
        assert got == want and type(got) is type(want), (f, a, b, got)
    if type(a) is not float and type(b) is not float:
        for f in (op.and_, op.or_, op.xor):
            assert weak(f, a, b) == f(a, b) and type(weak(f, a, b)) is type(f(a, b))
        if b >= 0:
            for f in (op.lshift, op.rshift, op.pow):
                assert weak(f, a, b) == f(a, b) and type(weak(f, a, b)) is type(f(a, b))
    assert weak(lambda x: [-x, +x, abs(x)], a) == [-a, +a, abs(a)]
    assert list(map(type, weak(lambda x: [-x, +x, abs(x)], a))) == [type(-a)] * 3


def test_a_weak_int_to_a_negative_power_is_a_float() -> None:
    assert weak(lambda x: x**-2, 4) == 4**-2


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "within a trace"])
@pytest.mark.parametrize(
    ("name", "a", "b"),
    [("add", 2**63 - 1, 5), ("subtract", -(2**63), 1), ("multiply", 2**40, 2**40)]
    + [(name, 7, 0) for name in ("floor_divide", "remainder", "divmod", "fmod")]
    + [("power", 3, 100), ("left_shift", 1, 70), ("floor_divide", -(2**63), -1)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(divide by zero|overflow)")
def test_functions_of_python_integers_are_of_int64(name: str, a: int, b: int, traced: bool) -> None:
    want = getattr(np, name)(a, b)
    f, constant = getattr(gnp, name), ge2.jit(lambda _: getattr(gnp, name)(a, b))
    got = ge2.jit(lambda a, b: f(a, b))(a, b) if traced else constant(1.0)
    assert np.array_equal(got, want)
    assert np.asarray(got).dtype == np.asarray(want).dtype


def test_a_weak_bool_is_inverted_logically() -> None:
    assert weak(lambda x: ~(x > 2), 3) is False


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_keep_an_arrays_dtype_beside_numbers(
    dtype: np.dtype, rng: np.random.Generator
) -> None:
    x = draw(rng, dtype, (3,), 1)
    for f in (
        lambda x, n: x + n, lambda x, n: n * x, lambda x, n: x / n, lambda x, n: x**n,
        lambda x, n: n < x,
    ):  # fmt: skip
        for n in (
            (2, 0.5) if dtype.kind != "b" else (3, 0.5)
        ):  # NumPy: np.power(True, 2) is an int64, True**2 an int8
            want = attempt(f, x, n)
            compare(want, attempt(traced, f, x, n), False, f"{dtype} and {n}")
            compare(want, attempt(traced, f, x, n, only=[0, 1]), False, f"{dtype} and traced {n}")


def test_an_operand_of_another_class_may_answer() -> None:
    class Other:
        def __radd__(self, x: Any) -> str:
            return "other"

    assert gnp.operators["add"](np.ones(2), Other()) is NotImplemented
    with pytest.raises(InputError, match="NoneType is neither an array nor a number"):
        gnp.operators["add"](np.ones(2), None)


# ---------------------------------------------------------------------------------------- functions


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_array(dtype: np.dtype, rng: np.random.Generator) -> None:
    for shape in ((3, 4), (0,), ()):
        x = draw(rng, dtype, shape)
        for f in (
            np.real, np.imag, np.isreal, np.iscomplex, np.iscomplexobj, np.copy, np.nan_to_num,
            np.angle, np.sinc,
        ):  # fmt: skip
            agree(f, x)
        if dtype not in COMPLEXES:
            agree(np.fix, x) if dtype.kind != "b" else None
            for f in (np.isposinf, np.isneginf):
                agree(f, x)
        for decimals in (0, 1, 2, -1):
            agree(np.round, x, decimals)
            agree(np.around, 100 * x, decimals)


def test_nan_to_num_takes_replacements() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0])
    agree(np.nan_to_num, x, nan=5.0, posinf=7.0, neginf=-7.0)
    agree(np.nan_to_num, x.astype("f4"))
    agree(np.nan_to_num, x.astype("c8"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("da", "db"), list(itertools.product(FEW, FEW)))
def test_where_and_clip(da: np.dtype, db: np.dtype, rng: np.random.Generator) -> None:
    a, b = draw(rng, da, (3, 1)), draw(rng, db, (4,))
    mask = rng.random((3, 4)) < 0.5
    agree(np.where, mask, a, b)
    agree(np.where, a, 1, b)
    agree(np.where, mask[0], a, 2.5)
    if np.dtype(bool) not in (da, db):
        agree(np.clip, a, b, draw(rng, db, (4,)) + db.type(3))
        agree(np.clip, a, None, b)
        agree(np.clip, a, b, None)
        agree(np.clip, a, 0, 1)
        agree(np.clip, a, min=b)


def test_clip_without_bounds_copies() -> None:
    agree(np.clip, np.arange(3))


def test_select(rng: np.random.Generator) -> None:
    x = draw(rng, "f4", (3, 4))
    agree(
        lambda x: np.select([x < 0, x > 1], [x, 2 * x], 7),
        x,
        ours=lambda x: gnp.select([x < 0, x > 1], [x, 2 * x], 7),
    )
    agree(
        lambda x: np.select([x < 0], [x.astype(int)]),
        x,
        ours=lambda x: gnp.select([x < 0], [x.astype(int)]),
    )
    with pytest.raises(InputError, match="dtype bool"):
        gnp.select([x], [x])


def test_where_of_one_argument() -> None:
    x = np.array([0, 1, 0, 2])
    np.testing.assert_array_equal(gnp.where(x), np.where(x))
    np.testing.assert_array_equal(gnp.argwhere(x), np.argwhere(x))
    np.testing.assert_array_equal(gnp.flatnonzero(x), np.flatnonzero(x))
    with pytest.raises(TypeError, match="depends on the values of x"):
        traced(np.where, x)


@pytest.mark.parametrize("dtype", FEW, ids=str)
def test_closeness(dtype: np.dtype, rng: np.random.Generator) -> None:
    x = draw(rng, dtype, (3, 4))
    for y in (x, x + dtype.type(1), x.astype("c16") * (1 + 1e-6), x[0]):
        for f in (np.isclose, np.allclose, np.array_equal, np.array_equiv):
            agree(f, x, y) if f is np.isclose else compare(
                [f(x, y)], [bool(traced(f, x, y))], True, f.__name__
            )
            compare([f(x, y)], [gnp.FUNCTIONS[f](x, y)], True, f.__name__)


def test_closeness_of_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0])
    for equal_nan in (False, True):
        agree(np.isclose, x, x[:, None], equal_nan=equal_nan)
        assert gnp.array_equal(x, x, equal_nan) is np.array_equal(x, x, equal_nan)
        assert gnp.allclose(x, x, equal_nan=equal_nan) is np.allclose(x, x, equal_nan=equal_nan)
    assert gnp.array_equal([1, 2], [1, 2, 3]) is False
    assert gnp.array_equiv([1, 2], [1, 2, 3]) is False


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_astype(source: np.dtype, rng: np.random.Generator) -> None:
    x = draw(rng, source, (3, 4))
    for target in DTYPES:
        agree(np.astype, x, target, exact=True)
    y = gnp.astype(x, source)
    assert y is not x and gnp.astype(x, source, copy=False) is x


# ------------------------------------------------------------------------------------------- errors


def test_errors_name_both_types_and_the_fix() -> None:
    with pytest.raises(
        ShapeError, match=r"add: f32\[2,3\], f64\[4\] do not broadcast(.|\n)*try  x.reshape"
    ):
        gnp.add(np.ones((2, 3), "f4"), np.ones(4))
    with pytest.raises(TypeRuleError, match=r"bitwise_and of float64, int64(.|\n)*try"):
        gnp.bitwise_and(np.ones(2), np.ones(2, int))
    with pytest.raises(ArgumentError, match=r"negative integer powers(.|\n)*try  x.astype"):
        gnp.power(np.arange(3), -1)


@pytest.mark.parametrize(
    "x",
    [
        np.array(["a"]), np.array([1], object), np.array(1, "M8[s]"), np.ones(2, ">f4"),
        np.longdouble(1),
    ],
)  # fmt: skip
def test_dtypes_that_are_not_supported_are_named(x: Any) -> None:
    for f in (
        lambda: gnp.add(x, 1),
        lambda: gnp.sum(x),
        lambda: gnp.where(True, x, x),
        lambda: gnp.exp(x),
    ):
        with pytest.raises(InputError, match="not supported(.|\n)*try  "):
            f()


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(InputError, match="masked array(.|\n)*filled"):
        gnp.add(np.ma.masked_array([1, 2], [True, False]), 1)


def test_where_without_out_is_an_error_that_names_the_way_round() -> None:
    x = np.ones(3)
    with pytest.raises(InputError, match=r"np.where\(mask"):
        gnp.add(x, x, where=x > 0)
    with pytest.raises(InputError, match="signature= is not supported"):
        gnp.add(x, x, signature="dd->d")


def test_methods_of_ufuncs(rng: np.random.Generator) -> None:
    x = draw(rng, "f8", (3, 4))
    for f, axis in itertools.product((np.add, np.multiply, np.maximum, np.minimum), (0, 1, None)):
        agree(f.reduce, x, axis=axis, ours=gnp.ufunc_method(f, "reduce"))
        if axis is not None:
            agree(f.accumulate, x, axis=axis, ours=gnp.ufunc_method(f, "accumulate"))
    for f in (np.logical_and, np.logical_or):
        agree(f.reduce, x > 0, ours=gnp.ufunc_method(f, "reduce"))
    for dtype in ("?", "i1", "u2", "f4"):
        y = draw(rng, dtype, (5,))
        agree(np.add.reduce, y, ours=gnp.ufunc_method(np.add, "reduce"))
        agree(np.add.accumulate, y, ours=gnp.ufunc_method(np.add, "accumulate"))
    agree(np.add.reduce, x, initial=5.0, keepdims=True, ours=gnp.ufunc_method(np.add, "reduce"))
    agree(np.subtract.outer, x, x[0], ours=gnp.ufunc_method(np.subtract, "outer"))
    for f, method in ((np.sin, "reduce"), (np.divmod, "outer"), (np.matmul, "accumulate")):
        with pytest.raises(TypeError, match="only supported for binary functions of one result"):
            gnp.ufunc_method(f, method)
