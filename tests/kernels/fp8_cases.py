"""Products of fp8, as users write them: of arrays in float32 that are cast inside the program, since
a GPU has no arrays of fp8 for NumPy's users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

import ge2
from tests.kernels.wgmma_cases import BF16, F16, F32, drawn, silu

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
BARE, SCALED = "product by BLAS", "product by BLAS and its epilogue"
Case = tuple[Callable[..., Any], str, int, Any]


def wide(x: Any, y: Any) -> Any:
    return x.astype(F32) @ y.astype(F32)


# each of a, b and two scales; the family that multiplies fp8, the scales, the type of the result
CASES: Final[dict[str, Case]] = {
    "bfloat16": (lambda a, b, s, t: a.astype(BF16) @ b.astype(BF16), BARE, 0, BF16),
    "float16": (lambda a, b, s, t: a.astype(F16) @ b.astype(F16), BARE, 0, F16),
    "turned": (lambda a, b, s, t: a.T.astype(BF16).T @ b.astype(BF16), BARE, 0, BF16),
    "a scale": (lambda a, b, s, t: (wide(a, b) * s).astype(BF16), SCALED, 1, BF16),
    "two scales": (lambda a, b, s, t: (t * (s * wide(a, b))).astype(F16), SCALED, 2, F16),
    "a product of scales": (lambda a, b, s, t: (wide(a, b) * (s * t)).astype(BF16), SCALED, 2, BF16),
    "float32 that is asked": (
        lambda a, b, s, t: ge2.numpy.matmul(a.astype(F32), b.astype(F32), precision="fp8"),
        BARE, 0, F32,
    ),
}  # fmt: skip


def quantised(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of factors that are rounded to fp8."""
    return lambda x, y, s, t: function(x.astype(E4M3), y.astype(E4M3), s, t)


def exact(x: Any, y: Any, s: Any, t: Any, scales: int) -> Any:
    """The result in float64."""
    left, right = x.astype(E4M3).astype("f8"), y.astype(E4M3).astype("f8")
    return left @ right * (1.0, float(s), float(s) * float(t))[scales]


# -------- Layers of products of fp8 by warp groups, on a GPU and in the emulator alike.


OF_GROUPS: Final = "wgmma product", "wgmma product and region"
OF_COPIES: Final = "wgmma product of copies", "wgmma product of copies and region"
PAIR: Final = "wgmma pair of products and region"
TILES: Final = (
    "128 x 128", "128 x 128, narrow strips", "64 x 128", "64 x 64", "256 x 128", "128 x 192",
    "256 x 128, narrow strips", "128 x 192, narrow strips",
)  # fmt: skip
TYPES: Final = {f"{a.name} x {b.name}": (a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2)}
# Tensor cores cut off 33 numbers in each step below the 14th bit of the largest, and a thread adds up
# the sums of four steps: of numbers of both signs that errs by at most this part of the sum of
# absolute products, where nothing but their number is known by 132 times as much of each 128
FEW: Final = 2.0**-13
GROUP: Final = 128
UNITS: Final[Any] = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-22, E4M3: 2.0**-4, E5M2: 2.0**-3}
LEAST: Final[Any] = {E4M3: 2.0**-10, E5M2: 2.0**-17}  # what numbers near zero are off, of fp8


def of_fp8(a: Any, b: Any, left: Any = E4M3, right: Any = E4M3) -> Any:
    """The product of `a` and `b` turned, which are rounded to fp8, as one of bfloat16."""
    return a.astype(left).astype(BF16) @ b.astype(right).astype(BF16).swapaxes(-1, -2)


def scaled(a: Any, b: Any, r: Any, c: Any) -> Any:
    """One whose rows and columns have a scale each."""
    return (a.astype(E4M3).astype(F32) @ b.astype(E4M3).T.astype(F32) * r * c).astype(BF16)


def asked(a: Any, b: Any, c: Any) -> Any:
    """One in float32 that may be summed by few bits, and what is made of it."""
    left, right = a.astype(E4M3).astype(F32), b.astype(E4M3).T.astype(F32)
    return np.tanh(ge2.numpy.matmul(left, right, precision="fp8") + c)


def two_layers(a: Any, b: Any, c: Any, w: Any) -> Any:
    """The first one's results are fp8."""
    y = np.tanh(of_fp8(a, b) + c).astype(E4M3)
    return y.astype(BF16) @ w.astype(E4M3).T.astype(BF16)


def all_types(a: Any, b: Any, r: Any) -> Any:
    """Results of one, two and four bytes, of which an array of fp8 that the product reads is a part."""
    low = a.astype(E4M3)
    y = low.astype(BF16) @ b.astype(E4M3).T.astype(BF16) + low.astype(BF16) * r
    return y.astype(E5M2).astype(F32) + 1, y, y.astype(F32) * 2


# of each: the function; of its other arguments the shapes, of m rows and n columns, and dtypes; and the exact
# function of the product and of these. Slopes are at most one
LAYERS: Final[dict[str, tuple[Callable[..., Any], str, Callable[..., Any]]]] = {
    "bias and tanh": (lambda a, b, c: np.tanh(of_fp8(a, b) + c), "n:bf16", lambda t, c: np.tanh(t + c)),
    "scales of rows and columns": (scaled, "m1:f4 n:f4", lambda t, r, c: t * r * c),
    "in float32": (asked, "n:f4", lambda t, c: np.tanh(t + c)),
    "residual": (lambda a, b, r: np.tanh(of_fp8(a, b)) + r, "mn:bf16", lambda t, r: np.tanh(t) + r),
    "two results": (
        lambda a, b, c: (of_fp8(a, b) + c, np.maximum(of_fp8(a, b) + c, 0)), "n:bf16",
        lambda t, c: (t + c, np.maximum(t + c, 0)),
    ),
    "mixed types": (
        lambda a, b, c: np.tanh(of_fp8(a, b, E4M3, E5M2) + c), "n:bf16", lambda t, c: np.tanh(t + c)
    ),
    "sums of columns": (
        lambda a, b: (lambda y: (y, np.sum(y.astype(F32), axis=0)))(np.tanh(of_fp8(a, b))), "",
        lambda t: (np.tanh(t), np.tanh(t).sum(axis=0)),
    ),
}  # fmt: skip


def arguments(names: str, m: int, n: int, rng: np.random.Generator) -> list[Any]:
    """The other arguments of a layer: positive where they scale."""
    shapes = {"n": (n,), "m1": (m, 1), "mn": (m, n)}
    dtypes = {"bf16": BF16, "f4": F32}
    pairs = (name.split(":") for name in names.split())
    return [rng.uniform(0.25, 1, shapes[s]).astype(dtypes[d]) for s, d in pairs]


def exact_sums(m: int, n: int, out: Any) -> tuple[tuple[Any, Any, Any], Any]:
    """Factors of few terms of few bits, whose sums are exact, and a bias with which some results are too
    large for fp8, or no numbers; and the results.
    """
    rng = np.random.default_rng(2)
    a = rng.choice([0.5, 1.0, -2.0, 16.0], (m, 16)).astype(F32)
    b = rng.choice([0.25, -1.0, 2.0], (n, 16)).astype(F32)
    c = rng.choice([0, 0, 0.125, 448, -61000, 1e6, -1e6, np.inf, np.nan, -np.nan], n).astype(BF16)
    return (a, b, c), (a @ b.T + c.astype(F32)).astype(BF16).astype(out)


def most_of(a: Any, b: Any) -> Any:
    """The sums of absolute products, in float64, of which tensor cores leave a part out."""
    return np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))


def beyond(found: Any, wanted: Any, most: Any) -> float:
    """How many times as far a result is from the exact one as it may be: one rounding and a quarter, and
    what tensor cores leave out of sums; numbers that follow with a slope of one at most err so, too.
    """
    unit, least = UNITS[np.dtype(found.dtype)], LEAST.get(np.dtype(found.dtype), 1e-6)
    bound = 1.25 * unit * np.abs(wanted) + FEW * most + least
    return float((np.abs(found.astype("f8") - wanted) / bound).max())


def factors(m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return drawn(rng, (m, k), F32), drawn(rng, (n, k), F32)


def low(x: Any, dtype: Any = E4M3) -> Any:
    """The numbers of fp8, in float64."""
    return x.astype(dtype).astype("f8")


# -------- Properties of these kernels: `ran(function, arguments, family, tile, prefer)` is what one makes.


def product_is_near(ran: Any, types: str, tile: str, shape: tuple[int, int, int]) -> None:
    (left, right), (a, b) = TYPES[types], factors(*shape)
    found = ran(lambda a, b: of_fp8(a, b, left, right), (a, b), OF_GROUPS[0], tile)
    most = most_of(low(a, left), low(b, right).T)
    assert beyond(found, low(a, left) @ low(b, right).T, most) <= 1


def layer_is_near(ran: Any, name: str, tile: str, m: int, n: int, k: int) -> None:
    function, others, exact = LAYERS[name]
    (a, b), right = factors(m, n, k), E5M2 if name == "mixed types" else E4M3
    xs = arguments(others, m, n, np.random.default_rng(1))
    tile = "" if "narrow" in tile and "float32" in name else tile
    found = ran(function, (a, b, *xs), OF_GROUPS[1], tile)
    most = most_of(low(a), low(b, right).T)
    wanted = exact(low(a) @ low(b, right).T, *(x.astype("f8") for x in xs))
    results = found if isinstance(found, tuple) else (found,)
    for y, w in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert y.shape == w.shape
        assert beyond(y, w, most if w.ndim == 2 else most.sum(axis=0)) <= 1


def pair_is_near(ran: Any, tile: str, m: int, n: int, k: int) -> None:
    (a, b), (_, c) = factors(m, n, k), factors(m, n, k, seed=5)
    gated = lambda a, b, c: silu(of_fp8(a, b)) * of_fp8(a, c)  # noqa: E731
    found = ran(gated, (a, b, c), PAIR, tile, (PAIR,))
    t, u = low(a) @ low(b).T, low(a) @ low(c).T
    most = most_of(low(a), low(b).T) * (np.abs(u) + 1) + most_of(low(a), low(c).T) * (np.abs(t) + 1)
    error = np.abs(found.astype("f8") - silu(t) * u)
    assert (error <= 2.0**-7 * np.abs(silu(t) * u) + 2 * FEW * most).all()


def copies_are_near(ran: Any, types: str, shape: tuple[int, int, int], half: Any) -> None:
    """Operands whose terms are apart: as NumPy's own `a @ b` has the right one, or whose rows are no
    multiples of 16 bytes apart.
    """
    (left, right), (a, b) = TYPES[types], factors(*shape)

    def product(a: Any, b: Any) -> Any:
        return np.tanh(a.astype(left).astype(half) @ b.astype(right).astype(half))

    found = ran(product, (a, np.ascontiguousarray(b.T)), OF_COPIES[1], "", OF_COPIES)
    exact = low(a, left) @ low(b, right).T
    assert beyond(found, np.tanh(exact), most_of(low(a, left), low(b, right).T)) <= 1


def one_sign_is_near(ran: Any, m: int, k: int) -> tuple[Any, Any, Any]:
    """What tensor cores cut off has one sign, too: a number of it is smaller than 2^-13 of the largest sum
    of its 128 terms, however many terms there are. Returns the factors, and what was found.
    """
    a, b = (np.abs(x) for x in factors(m, m, k, seed=7))

    def product(a: Any, b: Any) -> Any:
        left, right = a.astype(E4M3).astype(F32), b.astype(E4M3).T.astype(F32)
        return ge2.numpy.matmul(left, right, precision="fp8")

    found, exact = ran(product, (a, b), OF_GROUPS[0]), low(a) @ low(b).T
    error = np.abs(found - exact) / exact
    assert error.max() <= (GROUP + 4) * FEW / 4
    assert error.max() < 2.0**-8
    return a, b, found
