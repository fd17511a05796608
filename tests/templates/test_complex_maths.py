"""Complex numbers in C equal NumPy's to the bit, but for roots, exponentials and logarithms, which are
a few units off: edges with each other, draws of all sizes.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from ge2.base.arrays import BOOL, COMPLEX64, COMPLEX128, FLOAT32, SHORT, real_part
from ge2.ir import ArrayType
from ge2.ops.elementwise import COMPLEX_OF, ELEMENTWISE, IntegerPow
from ge2.ops.pointlike import Elementwise
from tests.templates.harness import DTYPES, Loop, elementwise, needs_compiler

pytestmark = needs_compiler
PAIR = (COMPLEX64, COMPLEX128)
C_TYPES = {dtype: text for text, dtype in DTYPES.items() if text != "int"} | {BOOL: "uint8_t"}
OPS = [
    *(op for op in ELEMENTWISE if "c" in op.takes),
    *(IntegerPow(n) for n in (0, 1, 2, 3, 5, 8, -1, -2, -3)),
]
EDGES = [
    0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.3, 3.0, 1e-3, np.inf, -np.inf, np.nan, 99.0, 1e-44, 1e37,
    -1e20, 7.25,
]  # fmt: skip
FUSED = (
    "mul",
    "square",
    "abs",
    "integer_pow",
)  # NumPy's loops over arrays fuse products, single numbers do not

# made of functions of the parts, which gcc has vectors of, and so many units in the last place off
OF_PARTS = {"exp": 4, "sqrt": 3, "log": 4, "log2": 4, "log10": 4}


def count(op: Elementwise | IntegerPow) -> int:
    return len(op.partials) if isinstance(op, Elementwise) else 1


def in_c(op: Elementwise | IntegerPow, dtype: np.dtype) -> str:
    """The expression of an op, typed as the writer of C types it."""
    text = re.sub(r"(ge2_\w+)<(-?\w+)>\(\{0\}\)", r"\1({0}, \2)", op.lowering.expression)
    return re.sub(r"(ge2_\w+)\(", rf"\1_{SHORT[dtype]}(", text) + f" /* {op.name} of {dtype} */"


@pytest.fixture(scope="module")
def loops() -> dict[str, Loop]:
    functions = []
    for dtype in PAIR:
        for op in OPS:
            gives = op.infer(*[ArrayType((), dtype)] * count(op))[0].dtype
            functions.append((in_c(op, dtype), [C_TYPES[dtype]] * count(op), C_TYPES[gives]))
        part = real_part(dtype)
        functions.append((f"ge2_complex_{SHORT[part]}", [C_TYPES[part]] * 2, C_TYPES[dtype]))
    return elementwise(functions, ["ge2/complex.h", "ge2/complex_exp.h", "ge2/complex_log.h"])


def samples(dtype: np.dtype) -> np.ndarray:
    """Pairs of edges, then draws near 1 and of any size."""
    rng = np.random.default_rng(0)
    edges = np.array(np.meshgrid(EDGES, EDGES)).reshape(2, -1)
    large = rng.choice([-1, 1], (2, 1000)) * np.exp(rng.uniform(-30, 30, (2, 1000)))
    parts = np.concatenate([edges, rng.standard_normal((2, 1000)), large], 1).astype(
        real_part(dtype)
    )
    return COMPLEX_OF.reference(*parts)


def operands(op: Elementwise | IntegerPow, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    x = samples(dtype)
    if count(op) == 1:
        return (x,)
    edges = x[: len(EDGES) ** 2]
    a, b = (part.ravel() for part in np.meshgrid(edges, edges))
    order = np.random.default_rng(1).permutation(x.size)
    return np.concatenate([a, x]), np.concatenate([b, x[order]])


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of both parts, where every NaN is the same."""
    if x.dtype == BOOL:
        return x
    parts = x.view(real_part(x.dtype))
    return np.where(np.isnan(parts), 1, parts.view(f"u{parts.dtype.itemsize}"))


@pytest.mark.parametrize("dtype", PAIR, ids=str)
def test_every_op_equals_numpy(dtype: np.dtype, loops: dict[str, Loop]) -> None:
    for op in OPS:
        given = operands(op, dtype)
        with np.errstate(all="ignore"):
            want = op.reference(*given)
        got = loops[in_c(op, dtype)](*given).view(want.dtype)
        if op.name in FUSED and not numpy_fuses(dtype):
            finite = np.isfinite(want) & np.isfinite(got)
            near = np.abs(got[finite] - want[finite]) <= 9 * np.finfo(dtype).eps * np.abs(
                want[finite]
            )
            assert near.all(), op.name
            continue
        if op.name in OF_PARTS:
            assert units_apart(got, want) <= OF_PARTS[op.name], op.name
            continue
        np.testing.assert_array_equal(bits(got), bits(want), err_msg=op.name)


def units_apart(a: np.ndarray, b: np.ndarray) -> int:
    """The most units in the last place between parts of numbers; what is not finite, and a sign, is the
    same.
    """
    x, y = (z.view(real_part(z.dtype)) for z in (a, b))
    finite = np.isfinite(y)
    np.testing.assert_array_equal(bits(a)[~finite], bits(b)[~finite])
    np.testing.assert_array_equal(np.signbit(x[finite]), np.signbit(y[finite]))
    return int((np.abs(x[finite] - y[finite]) / np.spacing(np.abs(y[finite]))).max())


def numpy_fuses(dtype: np.dtype) -> bool:
    """Whether the imaginary part of z * conj(z) is the rounding error of a product, and not 0."""
    z = samples(dtype)[len(EDGES) ** 2 :][:100]
    return bool(np.any((z * np.conj(z)).imag))


@pytest.mark.parametrize("dtype", PAIR, ids=str)
def test_parts_make_a_number(dtype: np.dtype, loops: dict[str, Loop]) -> None:
    z = samples(dtype)
    made = loops[f"ge2_complex_{'f32' if real_part(dtype) == FLOAT32 else 'f64'}"](z.real, z.imag)
    np.testing.assert_array_equal(bits(made), bits(z))


@pytest.mark.parametrize("dtype", PAIR, ids=str)
def test_logarithms_near_the_unit_circle(dtype: np.dtype, loops: dict[str, Loop]) -> None:
    """Where the squares of the parts add up to almost 1, nothing that they round away is lost."""
    rng = np.random.default_rng(2)
    z = np.exp(1j * np.concatenate([rng.uniform(-4, 4, 5000), np.arange(-4, 5) * np.pi / 4]))
    near = np.concatenate([z, z * (1 + 1e-6 * rng.normal(size=z.shape))]).astype(dtype)
    log = next(op for op in OPS if op.name == "log")
    want = np.log(near)
    got = loops[in_c(log, dtype)](near).view(want.dtype)
    assert units_apart(got, want) <= OF_PARTS["log"]
