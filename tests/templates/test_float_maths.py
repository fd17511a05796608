"""The C vector maths of float32 and float64:

NumPy's bits where NumPy is exact, else few ulp from truth.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge2.ops import IntegerPow
from tests.exhaustive import sampled
from tests.templates.harness import (
    IS_GCC,
    Loop,
    build,
    elementwise,
    needs_compiler,
    ordered,
    source,
)

pytestmark = [needs_compiler, pytest.mark.usefixtures("quiet")]

POINTS = int(os.environ.get("GE2_TEST_POINTS", "100000"))
FAMILIES = ("basic", "exp", "log", "trig", "sin", "cos", "tan", "power", "remainder")
HEADERS = [f"ge2/float_{family}.h" for family in FAMILIES]
C = {"f32": "float", "f64": "double"}
DTYPE = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
Numpy = Callable[..., Any]

UNARY: dict[str, Numpy] = {
    "neg": np.negative,
    "abs": np.absolute,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "degrees": np.degrees,
    "radians": np.radians,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "spacing": np.spacing,
    "frexp_mantissa": lambda x: np.frexp(x)[0],
}
BINARY: dict[str, Numpy] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "heaviside": np.heaviside,
    "fmod": np.fmod,
    "rem": np.remainder,
    "floor_div": np.floor_divide,
}
TESTS: dict[str, Numpy] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "truth": lambda x: x != 0,
}
RELATIONS: dict[str, Numpy] = {"lt": np.less, "le": np.less_equal}
# Functions within few ulp of the truth: the NumPy function, which computes it
# in wider floats, and how many.
CLOSE: dict[str, tuple[np.ufunc, float]] = {
    "exp": (np.exp, 4),
    "exp2": (np.exp2, 4),
    "expm1": (np.expm1, 4),
    "sinh": (np.sinh, 4),
    "cosh": (np.cosh, 4),
    "tanh": (np.tanh, 4),
    "log": (np.log, 4),
    "log2": (np.log2, 4),
    "log10": (np.log10, 4),
    "log1p": (np.log1p, 4),
    "asinh": (np.arcsinh, 4),
    "acosh": (np.arccosh, 4),
    "atanh": (np.arctanh, 4),
    "sin": (np.sin, 4),
    "cos": (np.cos, 4),
    "tan": (np.tan, 4),
    "asin": (np.arcsin, 4),
    "acos": (np.arccos, 4),
    "atan": (np.arctan, 4),
    "cbrt": (np.cbrt, 4),
    "pow": (np.power, 4),
    "atan2": (np.arctan2, 4),
    "hypot": (np.hypot, 4),
    "logaddexp": (np.logaddexp, 4),
    "logaddexp2": (np.logaddexp2, 4),
}
WIDER = {"f32": np.float64, "f64": np.longdouble}
POWERS = (-5, -2, -1, 0, 1, 2, 3, 4, 7, 11, 64, 255, 300)


def functions() -> list[tuple[str, list[str], str]]:
    listed = []
    for s, t in C.items():
        listed += [(f"ge2_{name}_{s}", [t], t) for name in UNARY]
        listed += [(f"ge2_{name}_{s}", [t, t], t) for name in BINARY]
        listed += [(f"ge2_{name}_{s}", [t] * truth.nin, t) for name, (truth, _) in CLOSE.items()]
        listed += [(f"ge2_{name}_{s}", [t], "uint8_t") for name in TESTS]
        listed += [(f"ge2_{name}_{s}", [t, t], "uint8_t") for name in RELATIONS]
        listed += [(f"ge2_integer_pow_{s}({{0}}, {n})", [t], t) for n in POWERS]
        listed += [(f"ge2_ldexp_{s}", [t, n], t) for n in ("int32_t",)]
        listed += [(f"ge2_ldexp_{s}({{0}}, {{1}})", [t, "int64_t"], t)]
        listed += [(f"ge2_frexp_exponent_{s}", [t], "int32_t")]
        listed += [(f"ge2_{name}_{s}() + {{0}}", [t], t) for name in ("lowest", "highest")]
    return listed


@pytest.fixture(scope="module")
def loops() -> dict[str, Loop]:
    return elementwise(functions(), HEADERS)


def special(dtype: np.dtype) -> np.ndarray:
    """Numbers at which functions change their mind, with both signs."""
    info = np.finfo(dtype)
    edges = [
        0, 0.25, 0.5, 1, 1.5, 2, 2.5, 3, 10, 127, 1023, 1e6, np.pi, np.pi / 2, np.e, np.inf,
        np.nan,
    ]  # fmt: skip
    edges += [
        info.max, info.tiny, info.smallest_subnormal, info.tiny / 2, info.eps, 2.0**info.nmant,
    ]  # fmt: skip
    edges += [2.0 ** (info.nmant + 1), 2.0 ** (info.nmant - 1) + 0.5, 2.0**31, 2.0**32, 2.0**63]
    edges += [
        20, 40, 88.7, 88.8, 89, 104, 150, 709.7, 710, 746, 1075, 2.0**-12, 2.0**-27, 2.0**30,
        2.0**60,
    ]  # fmt: skip
    edges += [
        np.sqrt(0.5), np.log(2) / 2, np.log(2) * 1.5, np.pi / 4, 3 * np.pi / 4, 1e22,
        16367173 * 2.0**72, 2.0**27, 85445659 * np.pi / 2,
    ]  # fmt: skip
    edges += [
        6381956970095103 * 2.0**797 % float(info.max)
    ]  # as this float32 times 2**72, nearly whole turns
    x = np.array(edges, dtype)
    return np.concatenate(
        [x, -x, np.nextafter(x, dtype.type(np.inf)), np.nextafter(x, dtype.type(-np.inf))]
    )


@cache
def points(dtype: np.dtype, count: int = POINTS) -> np.ndarray:
    """Random bits, numbers of common sizes, whole and half numbers, and the special ones."""
    rng = np.random.default_rng(count)
    word = np.uint32 if dtype == np.float32 else np.uint64
    bits = rng.integers(0, np.iinfo(word).max, count // 2, word, endpoint=True).view(dtype)
    bits[np.isnan(bits)] = np.nan  # C libraries differ on signalling ones
    common = rng.normal(size=count // 4) * 10.0 ** rng.integers(-3, 4, count // 4)
    halves = rng.integers(-2000, 2000, count // 8) / 2
    edges = rng.choice(special(dtype), count // 8)
    edges = edges + np.spacing(edges) * rng.integers(-1000, 1000, edges.size).astype(dtype)
    return np.concatenate([special(dtype), bits, common.astype(dtype), halves.astype(dtype), edges])


def pairs(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special numbers, then random ones."""
    a, b = np.meshgrid(special(dtype), special(dtype))
    x = points(dtype)
    y = np.random.default_rng(1).permutation(x)
    near = x * np.random.default_rng(2).normal(size=x.size).astype(dtype)
    return np.concatenate([a.ravel(), x, x]), np.concatenate([b.ravel(), y, near])


def same(found: np.ndarray, wanted: np.ndarray, *xs: np.ndarray, zeros: bool = True) -> None:
    """Equal to the bit; any NaN will do; without `zeros`, either zero will do too."""
    assert found.dtype == wanted.dtype
    agree = (found == wanted) | ((found != found) & (wanted != wanted))
    if zeros and found.dtype.kind == "f":
        agree &= (np.signbit(found) == np.signbit(wanted)) | (found != found)
    bad = np.flatnonzero(~agree)[:5]
    assert not bad.size, [(*(x[i] for x in xs), "gives", found[i], "not", wanted[i]) for i in bad]


@pytest.fixture(params=["f32", "f64"])
def short(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number_are_those_of_numpy(
    loops: dict[str, Loop], name: str, short: str
) -> None:
    x = points(DTYPE[short])
    same(loops[f"ge2_{name}_{short}"](x), UNARY[name](x), x)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_are_those_of_numpy(
    loops: dict[str, Loop], name: str, short: str
) -> None:
    a, b = pairs(DTYPE[short])
    extreme = name in ("max", "min", "fmax", "fmin")  # of two zeros NumPy takes either
    same(loops[f"ge2_{name}_{short}"](a, b), BINARY[name](a, b), a, b, zeros=not extreme)


@pytest.mark.parametrize("name", [*TESTS, *RELATIONS])
def test_questions_are_answered_as_numpy_does(
    loops: dict[str, Loop], name: str, short: str
) -> None:
    xs = pairs(DTYPE[short]) if name in RELATIONS else (points(DTYPE[short]),)
    wanted = (TESTS | RELATIONS)[name](*xs)
    same(loops[f"ge2_{name}_{short}"](*xs), wanted.astype(np.uint8), *xs)


def ulps(y: np.ndarray, truth: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Signed errors in units of the last place of the result or of `largest`;
    beyond all floats, in steps.
    """
    nearest = truth.astype(y.dtype)
    unit = np.spacing(np.maximum(np.abs(nearest), largest)).astype(truth.dtype)
    finite = np.isfinite(y) & np.isfinite(nearest)
    steps = ordered(y) - ordered(nearest)
    return np.where(finite, (y.astype(truth.dtype) - truth) / unit, steps).astype(np.float64)


def errors(f: Loop, name: str, short: str, *xs: np.ndarray) -> np.ndarray:
    """Errors in ulp; NaN and the signs of zeros must be NumPy's."""
    y, truth = f(*xs), CLOSE[name][0](*(x.astype(WIDER[short]) for x in xs))
    ends = ~np.all([np.isfinite(x) for x in xs], axis=0)
    truth[ends] = CLOSE[name][0](*xs)[ends]  # not every C library's powl knows infinities
    largest = np.zeros_like(y)
    if name in ("logaddexp", "logaddexp2") and short == "f64":  # sums whose terms may cancel
        largest = np.maximum(*(np.where(np.isfinite(x), np.abs(x), 0) for x in xs))
    undefined = np.isnan(truth)
    same(np.where(undefined, y, 0), np.where(undefined, truth, 0).astype(y.dtype), *xs)
    # whose terms cancel
    zero = (y == 0) & (truth.astype(y.dtype) == 0) & (not name.startswith("logaddexp"))
    same(np.where(zero, y, 0), np.where(zero, truth, 0).astype(y.dtype), *xs)
    return np.where(undefined, 0, ulps(y, truth, largest))


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", CLOSE)
def test_functions_are_within_few_ulp_of_the_truth(
    loops: dict[str, Loop], name: str, short: str
) -> None:
    truth, limit = CLOSE[name]
    xs = (points(DTYPE[short]),) if truth.nin == 1 else pairs(DTYPE[short])
    off = np.abs(errors(loops[f"ge2_{name}_{short}"], name, short, *xs))
    worst = int(np.argmax(off))
    print(f"{name:10} {short} {off[worst]:.2f} ulp at", *(x[worst] for x in xs))
    assert off[worst] <= limit, [x[worst] for x in xs]


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", CLOSE)
def test_ends_of_functions_are_those_of_numpy(
    loops: dict[str, Loop], name: str, short: str
) -> None:
    truth = CLOSE[name][0]
    x = special(DTYPE[short])
    xs = [x] if truth.nin == 1 else [a.ravel() for a in np.meshgrid(x, x)]
    y, wanted = loops[f"ge2_{name}_{short}"](*xs), truth(*xs)
    end = ~np.isfinite(wanted) | (wanted == 0)
    if name.startswith("logaddexp"):  # where terms cancel, NumPy's zero need not be ours
        end = ~np.isfinite(wanted)
    same(y[end], wanted[end], *(x[end] for x in xs))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_a_number_in_a_vector_does_not_depend_on_the_others(
    loops: dict[str, Loop], name: str, short: str
) -> None:
    """Vectors with a large number in them go another way, and the rest of a loop goes alone."""
    f, x = loops[f"ge2_{name}_{short}"], points(DTYPE[short], 1000)
    small = x[np.abs(x) < 2.0**26][:67]
    mixed = np.insert(small, np.arange(0, small.size, 3), 2.0**28)
    same(f(mixed)[mixed != 2.0**28], f(small), small)
    same(np.concatenate([f(one) for one in small[:, None]]), f(small), small)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("name", ["exp", "tanh"])
def test_errors_cancel_in_sums(loops: dict[str, Loop], name: str, short: str) -> None:
    x = np.random.default_rng(7).normal(size=1_000_000).astype(DTYPE[short])
    assert abs(errors(loops[f"ge2_{name}_{short}"], name, short, x).mean()) < 0.1
    y, truth = (
        loops[f"ge2_{name}_{short}"](x).astype(np.float64),
        CLOSE[name][0](x.astype(np.float64)),
    )
    assert abs(np.sum(y * y) / np.sum(truth * truth) - 1) < 1e-8


@pytest.mark.parametrize("n", POWERS)
def test_integer_powers_multiply_as_the_reference_does(
    loops: dict[str, Loop], n: int, short: str
) -> None:
    x = points(DTYPE[short])
    same(loops[f"ge2_integer_pow_{short}({{0}}, {n})"](x), IntegerPow(n).reference(x), x)


def test_ldexp_rounds_once(loops: dict[str, Loop], short: str) -> None:
    x = points(DTYPE[short])
    n = np.random.default_rng(0).integers(-2300, 2300, x.size, np.int32)
    n[::2] //= 8
    n[:4] = (2**31 - 1, -(2**31), 2**30, -(2**30))
    same(loops[f"ge2_ldexp_{short}"](x, n), np.ldexp(x, n), x, n)
    far = n.astype(np.int64) * 2**32
    same(loops[f"ge2_ldexp_{short}({{0}}, {{1}})"](x, far), np.ldexp(x, far), x, far)


def test_exponents_are_those_of_numpy(loops: dict[str, Loop], short: str) -> None:
    x = points(DTYPE[short])
    same(loops[f"ge2_frexp_exponent_{short}"](x), np.frexp(x)[1], x)


def test_extremes_begin_beyond_every_number(loops: dict[str, Loop], short: str) -> None:
    one = np.ones(1, DTYPE[short])
    assert loops[f"ge2_lowest_{short}() + {{0}}"](one) == -np.inf
    assert loops[f"ge2_highest_{short}() + {{0}}"](one) == np.inf


# Not vectorised: x**1, which is a copy.
AVX2 = ["-march=haswell"] if platform.machine() == "x86_64" else []
SCALAR = {f"ge2_integer_pow_{s}({{0}}, 1)" for s in C}


def vectorised(listed: list[tuple[str, list[str], str]], folder: Path) -> set[str]:
    """The texts whose loops gcc makes of vectors."""
    flags = ["-fopt-info-vec-optimized", "-fno-ipa-icf", *AVX2]
    text = source(listed, HEADERS)
    report = build(text, folder, flags)[1].splitlines()
    done = {int(line.split(":")[1]) for line in report if "loop vectorized" in line}
    lines = [i for i, line in enumerate(text.splitlines(), 1) if " y[i] = " in line]
    return {name for (name, _, _), i in zip(listed, lines, strict=True) if i in done}


@pytest.mark.skipif(not IS_GCC, reason="reads what gcc reports")
def test_gcc_vectorises_the_loops(tmp_path: Path) -> None:
    """For one processor, whichever this is."""
    listed = sampled(functions(), str, lambda f: re.sub("_f(32|64)", "", f[0]))  # in one dtype
    names = {name for name, _, _ in listed}
    left = names - vectorised(listed, tmp_path)
    assert (
        left - {name for name in names if "logaddexp" in name} == SCALAR & names
    )  # gcc 13 leaves those, gcc 12 does not


# Each a choice, or a comparison, which a compiler may fold into the next one.
CHOICES = [
    *(f"ge2_{name}_f64({{0}}, {{1}})" for name in ("max", "min", "fmax", "fmin")),
    *(f"(ge2_{name}_f64({{0}}, {{1}}) ? 0.1 * {{0}} : {{1}})" for name in ("lt", "le")),
    "ge2_heaviside_f64({0}, ge2_sin_f64({1}))",
    *("ge2_max_f64({0}, 0.5)", "ge2_min_f64(0.75, {0})", "ge2_sign_f64({0})", "ge2_abs_f64({0})"),
    *("({0} > 0.0 ? {0} : 0.0)", "({0} != {0} ? 0.0 : {0})", "ge2_sqrt_f64({0})"),
]


@pytest.mark.skipif(not IS_GCC, reason="reads what gcc reports")
def test_gcc_vectorises_choices_of_choices(tmp_path: Path) -> None:
    pairs = [(outer, inner) for outer in CHOICES for inner in CHOICES]
    drawn = {*sampled(pairs, str, lambda pair: pair[0]), *sampled(pairs, str, lambda pair: pair[1])}
    chains = [outer.replace("{0}", inner) for outer, inner in sorted(drawn)]
    listed = [(f"({chain}) + {{0}} * {{1}}", ["double"] * 2, "double") for chain in chains]
    assert {name for name, _, _ in listed} - vectorised(listed, tmp_path) == set()
