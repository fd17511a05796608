"""Numbers that stand in a CUDA text are NumPy's, to the bit; each
language has its own words for them.
"""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.arrays import BOOL, COMPLEX, HALF, INTEGERS, SHORT
from ge2.codegen.user_kernels import baked
from ge2.targets.c import emit as c
from ge2.targets.cuda.emit import words as cuda
from ge2.targets.cuda.emulator import ShimDevice
from tests.templates.cuda_harness import needs_compiler

F32, F64, I32 = (np.dtype(t) for t in ("f4", "f8", "i4"))
REALS = (
    0.0, -0.0, 0.1, -1.5, 1 / 3, 1e-45, 5e-324, 1e22, 3.4028235e38, 1.7e308, np.inf, -np.inf,
    np.nan,
)  # fmt: skip


def values(dtype: np.dtype) -> list[object]:
    if dtype == BOOL:
        return [False, True]
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return [0, 1, 7, info.min, info.min + 1, info.max]
    if dtype in COMPLEX:
        return [complex(a, b) for a in REALS for b in (1.0, -0.0, np.inf, np.nan)]
    return list(REALS)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", sorted(set(SHORT) - HALF, key=str), ids=str)
def test_numbers_in_a_text(dtype: np.dtype) -> None:
    with np.errstate(all="ignore"):  # some are too large for float32
        want = np.array(values(dtype), dtype)
        lines = [f"y[{i}] = {cuda.number(x, dtype)};" for i, x in enumerate(values(dtype))]
    text = f'extern "C" __global__ void numbers({cuda.STORED[dtype]} *y) {{ {" ".join(lines)} }}\n'
    included = "".join(f'#include "ge2/{name}.cuh"\n' for name in cuda.headers(text))
    got = np.empty_like(want)
    ShimDevice().module(included + text).get_function("numbers")((1,), (1,), (got,))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got.real), np.signbit(want.real))


def test_the_words_of_each_language() -> None:
    power = "ge2_integer_pow<3>({0})"
    assert cuda.expression(power, ["x"], F32, F32) == c.expression(power, ["x"], F32, F32)
    assert cuda.expression("ge2_cast({0})", ["x"], F32, I32) == "ge2_cast_f32_i32(x)"
    assert (c.number(True, BOOL), cuda.number(True, BOOL)) == ("1", "true")
    assert (c.number(-np.inf, F64), cuda.number(-np.inf, F64)) == (
        "-__builtin_inf()",
        "-GE2_INFINITY_F64",
    )
    assert (c.spelt("$T f_$t", BOOL), cuda.spelt("$T f_$t", BOOL)) == (
        "_Bool f_bool",
        "bool f_bool",
    )
    assert set(cuda.STORED) == set(c.STORED) == set(SHORT)


@pytest.mark.parametrize("dtype", sorted((t for t in INTEGERS if t.kind == "i"), key=str), ids=str)
def test_the_least_integer_has_an_absolute_value(dtype: np.dtype) -> None:
    """In its own type it has none:

    NumPy warns of an overflow. It is a number that may be a size.
    """
    least = np.iinfo(dtype).min
    assert not baked(dtype.type(least), dtype, frozenset([-int(least)]))
    assert baked(dtype.type(least), dtype, frozenset([3]))
