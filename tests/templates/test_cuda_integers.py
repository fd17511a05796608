"""Integers and truth values in CUDA equal NumPy's to the bit: all pairs of 8
bits, edges and draws beyond.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import BOOL, INTEGERS, SHORT
from ge2.ops.elementwise import BY_NAME, IntegerPow
from tests.templates.cuda_harness import Function, elementwise, ops_of
from tests.templates.test_integer_maths import samples

DTYPES = sorted((BOOL, *INTEGERS), key=SHORT.__getitem__)


@pytest.fixture(scope="module")
def loops(place: str) -> dict[tuple[np.dtype, str], Any]:
    return elementwise({(d, name): f for d in DTYPES for name, f in ops_of(d).items()}, place)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_equals_numpy(dtype: np.dtype, loops: dict[tuple[np.dtype, str], Any]) -> None:
    x = samples(dtype)
    a, b = (part.ravel() for part in np.meshgrid(x, x))
    for name in ops_of(dtype):
        op = BY_NAME.get(name) or IntegerPow(int(name[4:]))
        operands = (a, b) if len(ops_of(dtype)[name].takes) == 2 else (x,)
        if name == "pow":
            operands = tuple(part[b >= 0] for part in operands)  # NumPy refuses the others
        with np.errstate(all="ignore"):
            want = op.reference(*operands)
        np.testing.assert_array_equal(loops[dtype, name](*operands), want, err_msg=name)


def test_a_negative_power_is_rounded_towards_zero(place: str) -> None:
    i64 = np.dtype(np.int64)
    a, b = (part.ravel() for part in np.meshgrid(np.arange(-5, 6), [-1, -2, -63]))
    got = elementwise({"pow": Function("ge2_pow_i64({0}, {1})", (i64, i64), i64)}, place)["pow"](
        a, b
    )
    with np.errstate(all="ignore"):
        want = np.where(a == 0, 0, a.astype(float) ** b).astype(np.int64)
    np.testing.assert_array_equal(got, want)
