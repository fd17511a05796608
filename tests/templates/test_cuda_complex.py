"""Complex numbers in CUDA, on the CPU:

NumPy's bits in arithmetic, C99's infinities and zeros beyond.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import COMPLEX64, COMPLEX128, real_part
from ge2.ops.elementwise import BY_NAME
from tests.templates.cuda_harness import Function, elementwise, op_of, ops_of
from tests.templates.test_complex_maths import bits, numpy_fuses, operands

BOTH = (COMPLEX64, COMPLEX128)
INVERSE = ("asin", "acos", "atan", "asinh", "acosh", "atanh")
MATHS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow",
    "sin", "cos", "tan", "sinh", "cosh", "tanh", *INVERSE,
)  # fmt: skip
EXACT = sorted(set(ops_of(COMPLEX64)) - set(MATHS))
FUSED = ("mul", "square", "abs")  # NumPy's loops over arrays fuse products, single numbers do not
Loops = dict[tuple[np.dtype, str], Any]
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def loops(place: str) -> Loops:
    return elementwise({(d, name): f for d in BOTH for name, f in ops_of(d).items()}, place)


@pytest.fixture(params=BOTH, ids=str)
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    found: np.dtype = request.param
    return found


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", EXACT)
def test_what_numpy_has_exactly(name: str, dtype: np.dtype, loops: Loops, place: str) -> None:
    op = op_of(name)
    given = operands(op, dtype)
    got, want = loops[dtype, name](*given), op.reference(*given)
    # by CUDA's hypot, which is not rounded as the C library's
    if name == "sign" and place == "gpu":
        finite = np.isfinite(want)
        assert (np.isfinite(got) == finite).all()
        assert (np.abs(got[finite] - want[finite]) <= 4 * np.finfo(dtype).eps).all()
        return
    if (name in FUSED or name.startswith("pow_")) and not numpy_fuses(dtype):
        finite = np.isfinite(want) & np.isfinite(got)
        near = np.abs(got[finite] - want[finite]) <= 9 * np.finfo(dtype).eps * np.abs(want[finite])
        assert near.all()
        return
    np.testing.assert_array_equal(bits(got), bits(want))


def samples(name: str, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Operands; of powers those whose angle is a number of some size, for
    beyond any angle is noise.
    """
    given = operands(op_of(name), dtype)
    if name == "exp2":
        return (given[0][~(np.abs(given[0].imag) > 1e4)],)
    if name == "pow":
        turns = np.abs(given[1].astype(np.complex128) * np.log(given[0].astype(np.complex128)))
        return tuple(x[~((turns > 1e4) & np.isfinite(turns))] for x in given)
    return given


def allowed(name: str, xs: tuple[np.ndarray, ...]) -> Any:
    """How many units a part may be off: more where an angle or a logarithm is a rounded product."""
    if name == "pow":  # whole ones by as many products
        a, b = (x.astype(np.complex128) for x in xs)
        return 8 + np.fmin(np.abs(b), 100) + 4 * np.nan_to_num(np.abs(b * np.log(a)))
    return 8 + np.abs(xs[0]) if name == "exp2" else np.full(xs[0].shape, 8)


def unit(name: str, part: np.ndarray, whole: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The last place of a part or, where parts cancel, of the number; NumPy's log1p adds to 1."""
    size = np.abs(whole if name in ("expm1", "pow", "exp2", "rsqrt") else part)
    return np.maximum(
        np.spacing(size.astype(real_part(dtype))), np.finfo(part.dtype).eps * (name == "log1p")
    )


def parts(z: np.ndarray) -> list[np.ndarray]:
    return [z.real, z.imag]


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", MATHS)
def test_other_functions_are_near_the_truth(
    name: str, dtype: np.dtype, loops: Loops, place: str
) -> None:
    xs = samples(name, dtype)
    wide = np.complex128 if dtype == COMPLEX64 else np.clongdouble
    got, truth = loops[dtype, name](*xs), op_of(name).reference(*(x.astype(wide) for x in xs))
    finite = np.isfinite(got) & np.isfinite(truth.astype(dtype))
    assert finite.sum() > finite.size / 3
    limit = allowed(name, xs) * (2 if place == "gpu" else 1)  # whose functions err a little more
    for g, t in zip(parts(got), parts(truth), strict=True):
        error = (np.abs(g.astype(t.dtype) - t) / unit(name, t, truth, dtype) / limit)[finite]
        worst = np.argmax(error)
        assert error[worst] <= 1, (
            error[worst],
            *(x[finite][worst] for x in xs),
            g[finite][worst],
            t[finite][worst],
        )


def ends_of_numpy(name: str, *xs: np.ndarray) -> np.ndarray:
    """What complex128 rounds to; but whole powers are products in the type itself."""
    dtype = xs[0].dtype
    rounded: np.ndarray = op_of(name).reference(*(x.astype(COMPLEX128) for x in xs)).astype(dtype)
    if name != "pow":
        return rounded
    whole = (xs[1].imag == 0) & (np.abs(xs[1].real) < 100) & (np.trunc(xs[1].real) == xs[1].real)
    return np.where(whole, op_of(name).reference(*xs), rounded)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", MATHS)
def test_other_functions_have_the_ends_of_numpy(name: str, dtype: np.dtype, loops: Loops) -> None:
    """Infinities, NaN, and the signs of zeros."""
    xs = samples(name, dtype)
    got, want = loops[dtype, name](*xs), ends_of_numpy(name, *xs)
    for g, w in zip(parts(got), parts(want), strict=True):
        end = ~np.isfinite(w) | ((w == 0) & (g == 0)) | ~np.isfinite(g)
        agree = ((g == w) & (np.signbit(g) == np.signbit(w))) | ((g != g) & (w != w))
        # C leaves the sign open beside a NaN, which has none on a GPU
        if name in ("atan", "asinh"):
            agree |= (np.abs(g) == np.abs(w)) & (np.isnan(xs[0].real) | np.isnan(xs[0].imag))
        bad = np.flatnonzero(end & ~agree)[:5]
        assert not bad.size, [(*(x[i] for x in xs), "gives", got[i], "not", want[i]) for i in bad]


def test_parts_that_nothing_cancels(place: str) -> None:
    """log1p of small numbers, and logarithms near the unit circle, where
    NumPy's own lose their digits.
    """
    z = np.array([1e-20 + 1e-12j, 3e-9 - 4e-9j, -0.6 + 0.8j, 0.28 + 0.96j, -1e-300 + 0j])
    names = {"log1p": ops_of(COMPLEX128)["log1p"], "log": ops_of(COMPLEX128)["log"]}
    loops = elementwise(names, place)
    exact = [1e-20 + 5e-25, 3e-9 + 0.5 * (16e-18 - 9e-18), None, None, -1e-300]
    for got, want in zip(loops["log1p"](z).real, exact, strict=True):
        assert want is None or abs(got - want) <= 1e-15 * abs(want)
    for point, got in zip(z[2:4], loops["log"](z[2:4]).real, strict=True):
        square = (
            Fraction(point.real) ** 2 + Fraction(point.imag) ** 2 - 1
        )  # log(1 + s) is s to 16 digits here
        assert abs(got - float(square) / 2) <= 1e-15 * abs(float(square) / 2)


@pytest.mark.parametrize("name", INVERSE)
def test_numbers_of_extreme_size(name: str, loops: Loops, place: str) -> None:
    sizes = [1e-310, 1e-300, 1e-160, 1e-20, 1e20, 1e160, 1e300, 1.7e308]
    z = np.array(
        [complex(a * s, b * t) for a in sizes for b in sizes for s in (1, -1) for t in (1, -1)]
    )
    truth = op_of(name).reference(z.astype(np.clongdouble))
    for g, t in zip(parts(loops[COMPLEX128, name](z)), parts(truth), strict=True):
        normal = np.abs(t) > 1e-300  # below, units of the last place are coarse
        off = np.abs(g.astype(t.dtype) - t)[normal] / np.spacing(np.abs(t).astype(float))[normal]
        assert off.max() < (16 if place == "gpu" else 8), z[normal][np.argmax(off)]


def test_operators_are_the_functions(place: str) -> None:
    z = COMPLEX128
    texts = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}"]
    names = ["add", "sub", "mul", "div"]
    found = elementwise({text: Function(text, (z, z), z) for text in texts}, place)
    named = elementwise({name: ops_of(z)[name] for name in names}, place)
    a, b = operands(BY_NAME["mul"], z)
    for text, name in zip(texts, names, strict=True):
        np.testing.assert_array_equal(bits(found[text](a, b)), bits(named[name](a, b)))
