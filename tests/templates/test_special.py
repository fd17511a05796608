"""Special functions in C, in CUDA and in the references: within a few ulp of
the truth, ends as in SciPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import FLOAT32, FLOAT64
from ge2.ops import SPECIAL, Bessel, Polygamma, special_reference
from tests.exhaustive import sampled
from tests.nvrtc import needs_nvrtc
from tests.templates import cuda_harness, harness
from tests.templates.conftest import ON_GPU
from tests.templates.cuda_harness import Function
from tests.templates.harness import IS_GCC, needs_compiler
from tests.templates.special_values import OF_TWO, VALUES
from tests.templates.test_float_maths import AVX2

HEADERS = ("special_series.h", "special_functions.h")
TEXT = "".join((harness.TEMPLATES / "include" / "ge2" / name).read_text() for name in HEADERS)
# The largest errors, in units of the last place of the right result;
# docs/design/special.md says so, too.
BOUNDS = {
    "erf": 2, "erfc": 3, "erfcx": 5, "erfinv": 6, "ndtr": 4, "log_ndtr": 4, "ndtri": 4, "logistic": 3,
    "logit": 3, "gammaln": 4, "digamma": 4, "polygamma1": 5, "polygamma2": 6, "polygamma3": 6, "bessel0": 4,
    "bessel1": 4, "bessel2": 6, "bessel_scaled0": 4, "bessel_scaled1": 4, "xlogy": 3, "xlog1py": 3,
}  # fmt: skip
LEFT = 24  # of gamma's functions below 0, away from roots
CUDA_OWN = {"erf": 2, "erfc": 5}
# Of float32, for functions that have forms of their own there, and where those are sampled.
BOUNDS_32 = {
    "erfinv": 3, "gammaln": 6, "digamma": 3, "bessel0": 7, "bessel1": 7, "bessel2": 7, "bessel_scaled0": 7,
    "bessel_scaled1": 7,
}  # fmt: skip
GAMMA_32 = ((-0.5, 3), (3, 9), (9, 1e4))
SAMPLED_32 = {"erfinv": ((-1, 1), (0.9, 1)), "gammaln": GAMMA_32, "digamma": GAMMA_32}
OPS: dict[str, Any] = {op.name: op for op in SPECIAL}
OPS |= {f"polygamma{n}": Polygamma(n) for n in (1, 2, 3)}
OPS |= {f"bessel{n}": Bessel(n) for n in (0, 1, 2)} | {
    f"bessel_scaled{n}": Bessel(n, True) for n in (0, 1)
}
inf, nan = np.inf, np.nan
ENDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "erf": ((nan, inf, -inf, 0.0, -0.0), (nan, 1, -1, 0.0, -0.0)),
    "erfc": ((nan, inf, -inf, 0.0, 30.0), (nan, 0, 2, 1, 0)),
    "erfcx": ((nan, inf, -inf, 0.0, -27.0), (nan, 0, inf, 1, inf)),
    "erfinv": ((nan, inf, -1.0, 1.0, 1.5, 0.0), (nan, nan, -inf, inf, nan, 0.0)),
    "ndtr": ((nan, inf, -inf, 0.0, -40.0), (nan, 1, 0, 0.5, 0)),
    "log_ndtr": ((nan, inf, -inf, 40.0), (nan, -0.0, -inf, -0.0)),
    "ndtri": ((nan, 0.0, -0.0, 1.0, 1.5, -0.1, 0.5), (nan, -inf, -inf, inf, nan, nan, 0.0)),
    "logistic": ((nan, inf, -inf, 0.0), (nan, 1, 0, 0.5)),
    "logit": ((nan, 0.0, 1.0, -0.1, 1.1, 0.5), (nan, -inf, inf, nan, nan, 0.0)),
    "gammaln": (
        (nan, inf, -inf, 0.0, -0.0, -1.0, -7.0, 1.0, 2.0),
        (nan, inf, -inf, inf, inf, inf, inf, 0, 0),
    ),
    "digamma": ((nan, inf, -inf, 0.0, -0.0, -1.0), (nan, inf, nan, -inf, inf, nan)),
    "polygamma1": ((nan, inf, 0.0, -2.0), (nan, 0, inf, inf)),
    "bessel0": ((nan, inf, -inf, 0.0, 800.0), (nan, inf, inf, 1, inf)),
    "bessel_scaled0": ((nan, inf, -inf, 0.0), (nan, 0, 0, 1)),
}
PAIRS = (
    (0, 0, 0), (0, nan, nan), (-0.0, 2, 0), (0, inf, 0), (0, -3, 0), (nan, 1, nan), (1, -3, nan),
)  # fmt: skip
Run = Callable[..., np.ndarray]


def named(op: Any, dtype: np.dtype) -> Function:
    count = len(op.partials) if hasattr(op, "partials") else 1
    return cuda_harness.of_op(op, *[dtype] * count)


def in_c(dtype: np.dtype) -> dict[str, Run]:
    found = {k: named(op, dtype) for k, op in OPS.items()}
    word = {FLOAT32: "float", FLOAT64: "double"}[dtype]
    functions = [(f.text, [word] * len(f.takes), word) for f in found.values()]
    loops = harness.elementwise(functions, ["ge2/special.h"])
    return {k: loops[f.text] for k, f in found.items()}


def in_cuda(dtype: np.dtype, place: str = "cpu") -> dict[str, Run]:
    return cuda_harness.elementwise({k: named(op, dtype) for k, op in OPS.items()}, place)


def on_gpu(dtype: np.dtype) -> dict[str, Run]:
    return in_cuda(dtype, "gpu")


def in_numpy(dtype: np.dtype) -> dict[str, Run]:
    return {k: op.reference for k, op in OPS.items()}


PLACES = [
    *(pytest.param(f, marks=needs_compiler) for f in (in_c, in_cuda)),
    pytest.param(on_gpu, marks=ON_GPU),
    pytest.param(in_numpy),
]


@pytest.fixture(scope="module", params=PLACES, ids=["c", "cuda", "gpu", "numpy"])
def runs(request: pytest.FixtureRequest) -> tuple[bool, dict[np.dtype, dict[str, Run]]]:
    return request.param in (in_cuda, on_gpu), {d: request.param(d) for d in (FLOAT32, FLOAT64)}


def bound(name: str, x: np.ndarray, cuda: bool) -> Any:
    most = CUDA_OWN.get(name, 0) if cuda else 0
    limit = most or BOUNDS[name]
    return np.where(x < -0.5, LEFT, limit) if name[:5] in ("gamma", "digam", "polyg") else limit


def check(name: str, y: np.ndarray, want: np.ndarray, most: Any, xs: Any) -> None:
    off = np.abs(y.astype(np.longdouble) - want) / np.spacing(np.abs(want).astype(y.dtype))
    bad = [
        (x, y[i], want[i], off[i])
        for i, x in enumerate(xs)
        if not off[i] <= np.broadcast_to(most, off.shape)[i]
    ]
    assert not bad, (name, bad)


def test_float64_is_within_its_bounds(runs: Any) -> None:
    cuda, of = runs
    for name, (x, want) in VALUES.items():
        xs, ys = np.array(x), np.array(want)
        check(name, of[FLOAT64][name](xs), ys, bound(name, xs, cuda) + 0.5, x)
    for name, (a, b, want) in OF_TWO.items():
        check(name, of[FLOAT64][name](np.array(a), np.array(b)), np.array(want), BOUNDS[name], a)


def check_float32(name: str, xs: np.ndarray, of: Any, most: Any) -> None:
    """Holds the float32 form of a function to its float64 form at these float32 numbers."""
    with np.errstate(all="ignore"):
        want = of[FLOAT64][name](xs.astype(FLOAT64))
        size = np.abs(want)
        normal = (size < np.finfo(FLOAT32).max) & (size > np.finfo(FLOAT32).tiny)
        y = of[FLOAT32][name](xs)
    assert y.dtype == FLOAT32
    check(name, y[normal], want[normal], np.broadcast_to(most, xs.shape)[normal], xs[normal])


def test_float32_is_float64_rounded_once_or_has_a_bound_of_its_own(runs: Any) -> None:
    cuda, of = runs
    own = {"logistic": 3, **BOUNDS_32, **({"erf": 2.5, "erfc": 4.5} if cuda else {})}
    for name, (x, _) in VALUES.items():
        xs = np.array(x, FLOAT32)
        most = np.where((name in ("gammaln", "digamma")) & (xs < -0.5), LEFT, own.get(name, 0.5001))
        check_float32(name, xs, of, most)


def test_own_forms_of_float32_keep_their_bounds_everywhere(runs: Any) -> None:
    """3,000 numbers a range, those next to the ends of the pieces among them."""
    random = np.random.default_rng(15)
    for name, most in BOUNDS_32.items():
        for low, high in SAMPLED_32.get(name, ((-9, 9), (7.9, 88))):
            xs = random.uniform(low, high, 3000).astype(FLOAT32)
            check_float32(name, xs, runs[1], most)


def test_ends_are_scipy_s(runs: Any) -> None:
    for dtype, of in runs[1].items():
        for name, (x, want) in ENDS.items():
            with np.errstate(all="ignore"):
                y = of[name](np.array(x, dtype))
            np.testing.assert_array_equal(y, np.array(want, dtype), err_msg=name)
            zero = y == 0
            np.testing.assert_array_equal(
                np.signbit(y)[zero], np.signbit(np.array(want))[zero], err_msg=name
            )
        a, b, want = (np.array(z, dtype) for z in zip(*PAIRS, strict=True))
        for name in OF_TWO:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(of[name](a, b), want, err_msg=name)


def test_the_references_have_the_numbers_of_the_header() -> None:
    numbers = {float.fromhex(h) for h in re.findall(r"-?0x1\.[0-9a-f]+p[+-]\d+|0x0\.0p\+0", TEXT)}
    tables = [v for k, v in vars(special_reference).items() if k.isupper() and isinstance(v, tuple)]
    tables.remove(special_reference.BERNOULLI)  # of the reference alone
    assert len(tables) == 15
    assert {x for table in tables for x in table} - {1.0} <= numbers


@needs_compiler
@pytest.mark.skipif(not IS_GCC, reason="reads what gcc reports")
def test_gcc_vectorises_the_loops(tmp_path: Path) -> None:
    functions = [
        (named(op, FLOAT64).text, ["double"] * len(named(op, FLOAT64).takes), "double")
        for op in OPS.values()
    ]
    text = harness.source(functions, ["ge2/special.h"])
    said = harness.build(text, tmp_path, ["-fopt-info-vec-optimized", "-fno-ipa-icf", *AVX2])[1]
    done = {int(line.split(":")[1]) for line in said.splitlines() if "loop vectorized" in line}
    lines = [i for i, line in enumerate(text.splitlines(), 1) if " y[i] = " in line]
    left = {name for name, line in zip(OPS, lines, strict=True) if line not in done}
    assert left == {name for name in OPS if name.startswith("polygamma")}


@needs_nvrtc
# the header by itself it compiles for all, in test_cuda_nvrtc
def test_nvrtc_compiles_them() -> None:
    cases = [(name, d) for d in (FLOAT32, FLOAT64) for name in OPS]
    drawn = sampled(cases, str, lambda case: case[0])
    text = cuda_harness.source([named(OPS[name], d) for name, d in drawn], kernels=True)
    assert len(cuda_harness.compiled(text, "sm_90a").kernels) == len(drawn)
