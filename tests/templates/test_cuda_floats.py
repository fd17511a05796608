"""float32 and float64 in CUDA, on the CPU:

NumPy's bits where it is exact; CUDA's own functions by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, SHORT
from ge2.ops.elementwise import LDEXP
from tests.templates.cuda_harness import Function, claims, elementwise, op_of, ops_of
from tests.templates.test_float_maths import (
    CLOSE,
    WIDER,
    errors,
    pairs,
    points,
    same,
    special,
    ulps,
)

BOTH = (FLOAT32, FLOAT64)
CUDA_OWN = {"rsqrt", *CLOSE}  # functions that err, here by what the C library's do
EXACT = sorted(set(ops_of(FLOAT32)) - CUDA_OWN - {"ldexp_int32", "ldexp_int64", "complex"})
EXTREMES = ("max", "min", "fmax", "fmin")  # of two zeros NumPy takes either
SUMS = ("logaddexp", "logaddexp2")  # whose terms may cancel
Loops = dict[tuple[np.dtype, str], Any]
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def loops(place: str) -> Loops:
    return elementwise({(d, name): f for d in BOTH for name, f in ops_of(d).items()}, place)


@pytest.fixture(params=BOTH, ids=str)
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    found: np.dtype = request.param
    return found


def operands(name: str, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    return (points(dtype),) if len(ops_of(dtype)[name].takes) == 1 else pairs(dtype)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", EXACT)
def test_what_numpy_has_exactly(name: str, dtype: np.dtype, loops: Loops) -> None:
    xs = operands(name, dtype)
    op = op_of(name)
    same(loops[dtype, name](*xs), op.reference(*xs), *xs, zeros=name not in EXTREMES)


def test_remainders_by_powers_of_two(dtype: np.dtype, loops: Loops) -> None:
    """Of what is far from the divisor, near its multiples, and below the normal numbers."""
    x = np.concatenate([points(dtype), -points(dtype), np.arange(-99, 99, dtype=dtype) / 4])
    for by in (1, 2, 32, 2048, 2.0**40, 2.0**64, 2.0**65, 0.5, -2):
        x_or_near = np.concatenate([x, np.nextafter(dtype.type(by) * 3, x), dtype.type(by) * x])
        y = np.full_like(x_or_near, by)
        same(loops[dtype, "rem"](x_or_near, y), np.remainder(x_or_near, y), x_or_near, y)


def off(name: str, dtype: np.dtype, loop: Any) -> np.ndarray:
    """Errors of results in their last place; of sums, in that of the largest of three numbers."""
    xs, short = operands(name, dtype), SHORT[dtype]
    if name not in SUMS:
        return np.abs(errors(loop, name, short, *xs))
    y, wide = loop(*xs), CLOSE[name][0](*(x.astype(WIDER[short]) for x in xs))
    finite = np.isfinite(wide.astype(dtype))
    same(y[~finite], wide.astype(dtype)[~finite], *(x[~finite] for x in xs))
    xs = tuple(x[finite] for x in xs)
    largest = np.maximum(*(np.where(np.isfinite(x), np.abs(x), 0) for x in xs))
    return np.abs(ulps(y[finite], wide[finite], largest))


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", sorted(CLOSE))
def test_every_name_has_its_function(name: str, dtype: np.dtype, loops: Loops, place: str) -> None:
    """As near the truth as the C library is, or as the header says of a GPU."""
    limit = 16 if name in ("cos", "tan") and dtype == FLOAT64 else 4
    if place == "gpu":
        limit = claims()[name][dtype] + 0.5 if name not in SUMS else 3
    assert off(name, dtype, loops[dtype, name]).max() <= limit
    x = special(dtype)
    xs = [x] if CLOSE[name][0].nin == 1 else [a.ravel() for a in np.meshgrid(x, x)]
    y, want = loops[dtype, name](*xs), CLOSE[name][0](*xs)
    end = ~np.isfinite(want) | ((want == 0) & (name not in SUMS))
    same(y[end], want[end], *(x[end] for x in xs))


def test_rsqrt(dtype: np.dtype, loops: Loops) -> None:
    x = points(dtype)
    y, truth = loops[dtype, "rsqrt"](x), 1 / np.sqrt(x.astype(WIDER[SHORT[dtype]]))
    finite = np.isfinite(truth)
    same(y[~finite], truth[~finite].astype(dtype), x[~finite])
    worst = np.abs(ulps(y[finite], truth[finite], np.zeros_like(y[finite]))).max()
    assert worst <= claims()["rsqrt"][dtype] + 0.5


def test_ldexp_rounds_once(dtype: np.dtype, loops: Loops) -> None:
    x = points(dtype)
    n = np.random.default_rng(0).integers(-2300, 2300, x.size, np.int32)
    n[::2] //= 8
    n[:4] = (2**31 - 1, -(2**31), 2**30, -(2**30))
    same(loops[dtype, "ldexp_int32"](x, n), LDEXP.reference(x, n), x, n)
    far = n.astype(np.int64) * 2**32
    same(loops[dtype, "ldexp_int64"](x, far), np.ldexp(x, far), x, far)


def test_parts_make_a_number(dtype: np.dtype, loops: Loops) -> None:
    x = special(dtype)
    y = loops[dtype, "complex"](x, x[::-1])
    assert y.dtype == (COMPLEX64 if dtype == FLOAT32 else COMPLEX128)
    same(y.real, x), same(y.imag, x[::-1].copy())


def test_extremes_begin_beyond_every_number(dtype: np.dtype, place: str) -> None:
    short = "f32" if dtype == FLOAT32 else "f64"
    ends = {
        k: Function(f"ge2_{k}_{short}() + 0 * {{0}}", (dtype,), dtype)
        for k in ("lowest", "highest")
    }
    found = {k: f(np.ones(1, dtype)).item() for k, f in elementwise(ends, place).items()}
    assert found == {"lowest": -np.inf, "highest": np.inf}
