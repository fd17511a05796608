"""Integers and truth values in C equal NumPy's to the bit: all pairs of
8 bits, edges and draws beyond.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import BOOL, INTEGERS, SHORT
from ge2.ir import ArrayType
from ge2.ops.elementwise import ELEMENTWISE, IntegerPow
from ge2.ops.pointlike import Elementwise, kind
from tests.templates.harness import Loop, elementwise, needs_compiler

pytestmark = needs_compiler
DTYPES = sorted((BOOL, *INTEGERS), key=SHORT.__getitem__)
HEADERS = ["ge2/bool.h", "ge2/integer.h"]
POWERS = tuple(IntegerPow(n) for n in (0, 1, 2, 3, 7, 16))


def c_type(dtype: np.dtype) -> str:
    return "uint8_t" if dtype == BOOL else f"{dtype.name}_t"


def ops_of(dtype: np.dtype) -> list[Elementwise | IntegerPow]:
    found: list[Any] = [op for op in ELEMENTWISE if kind(dtype) in op.takes]
    return found if dtype == BOOL else [*found, *POWERS]


def in_c(op: Elementwise | IntegerPow, dtype: np.dtype) -> str:
    """The expression of an op, typed as the writer of C types it."""
    text = re.sub(r"(ge2_\w+)<(\w+)>\(\{0\}\)", r"\1({0}, \2)", op.lowering.expression)
    return re.sub(r"(ge2_\w+)\(", rf"\1_{SHORT[dtype]}(", text) + f" /* {op.name} of {dtype} */"


@pytest.fixture(scope="module")
def loops() -> dict[str, Loop]:
    functions = []
    for dtype in DTYPES:
        for op in ops_of(dtype):
            operands = [ArrayType((), dtype)] * count(op)
            gives = c_type(op.infer(*operands)[0].dtype)
            functions.append((in_c(op, dtype), [c_type(dtype)] * count(op), gives))
    return elementwise(functions, HEADERS)


def count(op: Elementwise | IntegerPow) -> int:
    return len(op.partials) if isinstance(op, Elementwise) else 1


def samples(dtype: np.dtype) -> np.ndarray:
    """All values of 8 bits; of wider types the edges, small and large draws."""
    if dtype == BOOL:
        return np.array([False, True])
    info = np.iinfo(dtype)
    if info.bits == 8:
        return np.arange(info.min, info.max + 1).astype(dtype)
    near = [*range(-70, 71), *(1 << k for k in range(info.bits))]
    edges = [x & ((1 << info.bits) - 1) for x in (*near, *(info.max - k for k in range(5)))]
    drawn = np.random.default_rng(info.bits).integers(info.min, info.max, 150, dtype, endpoint=True)
    return np.concatenate([np.array(edges, f"u{dtype.itemsize}").view(dtype), drawn])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_equals_numpy(dtype: np.dtype, loops: dict[str, Loop]) -> None:
    x = samples(dtype)
    a, b = (part.ravel() for part in np.meshgrid(x, x))
    for op in ops_of(dtype):
        operands = (a, b) if count(op) == 2 else (x,)
        if op.name == "pow":
            operands = tuple(part[b >= 0] for part in operands)  # NumPy refuses the others
        with np.errstate(all="ignore"):
            want = op.reference(*operands)
        got = loops[in_c(op, dtype)](*operands)
        np.testing.assert_array_equal(got.view(want.dtype), want, err_msg=op.name)


def test_a_negative_power_is_rounded_towards_zero() -> None:
    a, b = (part.ravel() for part in np.meshgrid(np.arange(-5, 6), [-1, -2, -63]))
    got = elementwise([("ge2_pow_i64", ["int64_t"] * 2, "int64_t")], HEADERS)["ge2_pow_i64"](a, b)
    with np.errstate(all="ignore"):
        want = np.where(a == 0, 0, a.astype(float) ** b).astype(np.int64)
    np.testing.assert_array_equal(got, want)
