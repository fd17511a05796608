"""Elementwise operations: special values of every dtype as in NumPy,
derivatives at awkward places.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FP8,
    INTEGERS,
    PYTHON,
    python_type,
)
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType, type_of
from ge2.ops import elementwise as el
from ge2.ops.pointlike import arguments, defined
from ge2.test_util.laws import graph_of, pulled, types_of

FLOATS = (FLOAT16, FLOAT32, FLOAT64)
KINDS = {
    "b": (BOOL,),
    "i": tuple(sorted(INTEGERS, key=str)),
    "f": FLOATS,
    "c": (COMPLEX64, COMPLEX128),
}
NAMES = """
    neg:negative asin:arcsin acos:arccos atan:arctan asinh:arcsinh acosh:arccosh atanh:arctanh not:invert
    population_count:bitwise_count is_finite:isfinite is_inf:isinf is_nan:isnan sign_bit:signbit eq:equal
    ne:not_equal lt:less le:less_equal gt:greater ge:greater_equal sub:subtract mul:multiply div:divide
    floor_div:floor_divide rem:remainder pow:power max:maximum min:minimum atan2:arctan2 and:bitwise_and
    or:bitwise_or xor:bitwise_xor shift_left:left_shift shift_right:right_shift abs:absolute
"""
RENAMED = dict(pair.split(":") for pair in NAMES.split())
OWN = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "frexp_mantissa": lambda x: np.frexp(x)[0],
    "frexp_exponent": lambda x: np.frexp(x)[1],
}


def in_numpy(name: str) -> Any:
    return OWN.get(name) or getattr(np, RENAMED.get(name, name))


def special(dtype: np.dtype) -> Any:
    """Values at the edges of a dtype."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array(
            [
                info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max,
                *([-1, -2] if info.min else []),
            ],
            dtype,
        )  # fmt: skip
    if dtype.kind == "c":
        parts = special(FLOAT32 if dtype == COMPLEX64 else FLOAT64)[::2]
        return np.array(
            [complex(a, b) for a, b in itertools.product(parts.tolist(), parts.tolist())], dtype
        )
    info = ml_dtypes.finfo(dtype)
    edges = [info.tiny, info.max, info.eps, info.smallest_subnormal]
    edges += [1 - info.epsneg, 1 + info.eps]
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0, 88.8, np.inf, np.nan, *map(float, edges)]
    return np.array([*values, *(-v for v in values)]).astype(dtype)


def same(a: Any, b: Any) -> bool:
    """Equal, a NaN only to a NaN, and zeros by their sign."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        return same(a.real, b.real) and same(a.imag, b.imag)
    if a.dtype.kind not in "fV":
        return np.array_equal(a, b)
    a, b = a.astype(FLOAT64), b.astype(FLOAT64)
    return bool(np.all((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))))


def grid(op: el.Elementwise, dtype: np.dtype) -> tuple[Any, ...]:
    x = special(dtype)
    if len(op.partials) == 1:
        return (x,)
    a, b = (np.ascontiguousarray(v).ravel() for v in np.meshgrid(x, x))
    if op.name == "pow" and dtype.kind == "i":
        b = np.abs(b) % dtype.type(7)  # NumPy refuses negative powers of integers
    if op.name.startswith("shift"):
        b = b.astype(dtype) % dtype.type(8 * dtype.itemsize + 2)  # wide shifts too
    return a, b


@pytest.mark.parametrize("op", ops.ELEMENTWISE, ids=str)
def test_special_values_are_those_of_numpy(op: el.Elementwise) -> None:
    for dtype in (d for k in op.takes for d in KINDS[k]):
        xs = grid(op, dtype)
        with np.errstate(all="ignore"):
            assert same(op(*xs), in_numpy(op.name)(*xs)), f"{op} of {dtype}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "op", [op for op in ops.ELEMENTWISE if "f" in op.takes and op.through_float32], ids=str
)
@pytest.mark.parametrize("dtype", [BFLOAT16, *FP8], ids=str)
def test_half_types_are_the_float32_result_rounded(op: el.Elementwise, dtype: np.dtype) -> None:
    xs = grid(op, dtype)
    with np.errstate(all="ignore"):
        want = in_numpy(op.name)(*(x.astype(FLOAT32) for x in xs))
        got = op(*xs)
        assert same(got, want.astype(dtype) if want.dtype == FLOAT32 else want)


@pytest.mark.parametrize("dtype", [BFLOAT16, *FP8], ids=str)
def test_neighbours_of_half_types(dtype: np.dtype) -> None:
    one, two = np.ones(1, dtype), np.full(1, 2, dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert el.NEXTAFTER(one, two).astype(float) == 1 + eps
    assert el.SPACING(one).astype(float) == eps


# -------------------------------------------------------------------------------------------- casts


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "source",
    [BOOL, *sorted(INTEGERS, key=str), FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX64],
    ids=str,
)
@pytest.mark.parametrize(
    "target",
    [BOOL, np.dtype("i1"), np.dtype("u4"), FLOAT16, BFLOAT16, FLOAT64, COMPLEX128],
    ids=str,
)
def test_casts_are_those_of_numpy(source: np.dtype, target: np.dtype) -> None:
    x = np.array([0, 1, 2, 3, 5, 100]).astype(source)
    assert same(ops.ConvertElementType(target)(x), x.real.astype(target))


def test_a_cast_to_bool_asks_for_zero() -> None:
    x = np.array([0.0, -0.0, 0.1, np.nan, np.inf])
    assert ops.ConvertElementType(BOOL)(x).tolist() == [False, False, True, True, True]
    assert ops.ConvertElementType(BOOL)(np.array([0j, 1j])).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [np.dtype("i1"), np.dtype("u4")], ids=str)
@pytest.mark.parametrize("y", [0, 1, 2, 3, 7])
def test_powers_of_integers_are_those_of_numpy(dtype: np.dtype, y: int) -> None:
    x = special(dtype)
    assert same(ops.IntegerPow(y)(x), np.power(x, dtype.type(y)))


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("y", [-3, -2, -1, 0, 1, 2, 3, 7])
def test_integer_powers_are_those_of_numpy(dtype: np.dtype, y: int) -> None:
    x = special(dtype)
    with np.errstate(all="ignore"):
        got, want = ops.IntegerPow(y)(x), np.power(x, dtype.type(y))
    # the reciprocal of an overflow has no digits
    normal = ~(np.abs(want) < 4 * np.finfo(dtype).tiny)
    assert np.allclose(
        got[normal], want[normal], rtol=4 * np.finfo(dtype).eps, atol=0, equal_nan=True
    )
    assert np.array_equal(
        np.copysign(1, got[normal & ~np.isnan(want)]),
        np.copysign(1, want[normal & ~np.isnan(want)]),
    )


def test_integers_have_no_negative_powers() -> None:
    with pytest.raises(TypeRuleError):
        ops.IntegerPow(-1).infer(ArrayType((), np.dtype("i4")))


def test_ldexp_of_half_types_rounds_once() -> None:
    x = np.array([1.0, 1.5], BFLOAT16)
    assert ops.Ldexp()(x, np.array([3, -2], np.int32)).astype(float).tolist() == [8.0, 0.375]


# ------------------------------------------------------------------------------ awkward derivatives


def gradient(op: Any, *xs: Any) -> list[Any]:
    arrays = [np.asarray(x) for x in xs]
    joint = pulled(graph_of(op, types_of(arrays)), (True,) * len(arrays))
    y = np.asarray(op(*arrays))
    return [np.asarray(g).tolist() for g in joint(*arrays, np.ones_like(y))[1:]]


def test_integer_powers_of_zero() -> None:
    assert gradient(ops.IntegerPow(2), [0.0, 3.0]) == [[0.0, 6.0]]
    assert gradient(ops.IntegerPow(0), [0.0, 3.0]) == [[0.0, 0.0]]


def test_equal_operands_of_max_share_the_cotangent() -> None:
    assert gradient(el.MAX, [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == [[0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]
    assert gradient(el.MIN, [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]
    assert gradient(el.FMAX, [np.nan, 2.0], [1.0, np.nan]) == [[0.0, 1.0], [1.0, 0.0]]


def test_abs_at_zero_has_derivative_zero() -> None:
    assert gradient(el.ABS, [0.0, -2.0]) == [[0.0, -1.0]]
    assert gradient(el.ABS, [0j, 3 + 4j]) == [[0j, 0.6 - 0.8j]]
    assert gradient(el.SIGN, [0.0, -2.0]) == [[0.0, 0.0]]


# ------------------------------------------------------------------------------------------- errors


def test_shapes_and_dtypes_that_do_not_fit() -> None:
    f32, f64 = ArrayType((2,), FLOAT32), ArrayType((2,), FLOAT64)
    with pytest.raises(
        TypeRuleError, match=r"add takes arrays of one dtype; got f32\[2\], f64\[2\]"
    ):
        el.ADD.infer(f32, f64)
    with pytest.raises(ShapeError, match="one shape, or scalars"):
        el.ADD.infer(f32, ArrayType((3,), FLOAT32))
    with pytest.raises(TypeRuleError, match="1 arrays"):
        el.SIN.infer(f32, f32)
    with pytest.raises(TypeRuleError, match="bool or integer"):
        el.NOT.infer(f32)
    with pytest.raises(TypeRuleError, match="a bool mask"):
        el.WHERE.infer(f32, f32, f32)


@pytest.mark.parametrize("op", ops.ELEMENTWISE, ids=str)
def test_python_numbers_give_python_numbers(op: el.Elementwise) -> None:
    given = {"b": True, "i": 3, "f": 0.5, "c": 0.5 + 1j}
    for kind in op.takes:
        args = (given[kind],) * len(op.partials)
        (want,) = op.infer(*map(type_of, args))
        got = op(*args)
        if want.dtype in PYTHON.values():
            assert type(got) is python_type(want.dtype), f"{op}{args}"
        with np.errstate(all="ignore"):
            assert same(
                np.asarray(got).astype(want.dtype),
                np.asarray(in_numpy(op.name)(*args)).astype(want.dtype),
            )


def test_functions_of_headers_are_found_in_their_macros():
    for target in ("c", "cuda"):
        assert {"ge2_tanh_f32", "ge2_log_c128", "ge2_erfcx_f32", "ge2_max_u8"} <= defined(target)
        assert not {"ge2_tanh_", "ge2_name_f32", "ge2_sinn_f64", "ge2_max_f16"} & defined(target)
    assert arguments("a, f(b, c), (d)) e", 0) == ["a", "f(b, c)", "(d)"]
