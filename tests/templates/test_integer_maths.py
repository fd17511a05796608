"""Integers and truth values in C and in CUDA equal NumPy's to the bit: all pairs of
8 bits, edges and draws beyond.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import BOOL, INTEGERS, SHORT
from tests.templates import cuda_harness, harness
from tests.templates.cuda_harness import Function, op_of, ops_of

DTYPES = sorted((BOOL, *INTEGERS), key=SHORT.__getitem__)
HEADERS = ["ge2/bool.h", "ge2/integer.h"]
I64 = np.dtype(np.int64)


def c_type(dtype: np.dtype) -> str:
    return "uint8_t" if dtype == BOOL else f"{dtype.name}_t"


def in_c(name: str, dtype: np.dtype) -> str:
    """The expression of an op, typed as the writer of C types it."""
    text = re.sub(r"(ge2_\w+)<(\w+)>\(\{0\}\)", r"\1({0}, \2)", op_of(name).lowering.expression)
    return re.sub(r"(ge2_\w+)\(", rf"\1_{SHORT[dtype]}(", text) + f" /* {name} of {dtype} */"


def elementwise(functions: dict[Any, tuple[str, Function]], place: str) -> dict[Any, Any]:
    """Functions of arrays, by the text in C or as they are in CUDA."""
    if place != "c":
        return cuda_harness.elementwise({key: f for key, (_, f) in functions.items()}, place)
    listed = [(t, [*map(c_type, f.takes)], c_type(f.gives)) for t, f in functions.values()]
    made = harness.elementwise(listed, HEADERS)
    return {key: made[text] for key, (text, _) in functions.items()}


@pytest.fixture(scope="module")
def loops(any_place: str) -> dict[Any, Any]:
    functions = {(d, n): (in_c(n, d), f) for d in DTYPES for n, f in ops_of(d).items()}
    return elementwise(functions, any_place)


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
def test_every_op_equals_numpy(dtype: np.dtype, loops: dict[Any, Any]) -> None:
    x = samples(dtype)
    a, b = (part.ravel() for part in np.meshgrid(x, x))
    for name, function in ops_of(dtype).items():
        operands = (a, b) if len(function.takes) == 2 else (x,)
        if name == "pow":
            operands = tuple(part[b >= 0] for part in operands)  # NumPy refuses the others
        with np.errstate(all="ignore"):
            want = op_of(name).reference(*operands)
        got = loops[dtype, name](*operands)
        np.testing.assert_array_equal(got.view(want.dtype), want, err_msg=name)


def test_a_negative_power_is_rounded_towards_zero(any_place: str) -> None:
    a, b = (part.ravel() for part in np.meshgrid(np.arange(-5, 6), [-1, -2, -63]))
    text = "ge2_pow_i64({0}, {1})"
    loops = elementwise({"pow": (text, Function(text, (I64, I64), I64))}, any_place)
    with np.errstate(all="ignore"):
        want = np.where(a == 0, 0, a.astype(float) ** b).astype(np.int64)
    np.testing.assert_array_equal(loops["pow"](a, b), want)
