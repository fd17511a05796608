"""Products for Hopper's tensor cores, as NumPy writes them; on a GPU and in the emulator alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

import ge2

BARE, FUSED = "wgmma product", "wgmma product and region"  # the families
BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype("f2"), np.dtype("f4")
# what one rounding errs at most, relative; of float32, what sums of this length do, of which tensor
# cores add parts with fewer digits
DIGITS: Final = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-18}
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


# constants that all these types have, since a Python number becomes the array's
ROOT, CUBE, SLOPE = 0.796875, 0.044677734375, 0.010009765625


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(ROOT * (x + CUBE * x * x * x)))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


ACTIVATIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "none": lambda x: x + 0.0,
    "relu": lambda x: np.maximum(x, 0),
    "leaky": lambda x: np.where(x > 0, x, SLOPE * x),
    "gelu": gelu,
    "silu": silu,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
BIASES: Final[dict[str, Callable[[int, int], tuple[int, ...]]]] = {
    "scalar": lambda m, n: (1, 1),
    "row": lambda m, n: (m, 1),
    "column": lambda m, n: (n,),
    "full": lambda m, n: (m, n),
}


def biased(activation: str) -> Callable[..., Any]:
    return lambda a, b, c: ACTIVATIONS[activation](a @ b + c)


# what a layer may be: each function, and the shapes of its arguments
LAYERS: Final[dict[str, Case]] = {
    "batch and time": (lambda x, w, c: gelu(x @ w + c), ((2, 136, 72), (72, 80), (80,))),
    "two results": (
        lambda a, b, c: (a @ b + c, np.tanh(a @ b + c)),
        ((136, 72), (72, 80), (80,)),
    ),
    "residual": (lambda a, b, c, r: gelu(a @ b + c) + r, ((200, 72), (72, 264), (264,), (200, 264))),
    "alpha and beta": (lambda a, b, c: 0.5 * (a @ b) + 2.0 * c, ((136, 72), (72, 80), (136, 80))),
    "gate": (
        lambda x, w, v: np.tanh(x @ w) * (x @ v),
        ((136, 72), (72, 80), (72, 80)),
    ),
    "batched": (lambda a, b, c: np.tanh(a @ b + c), ((3, 136, 72), (3, 72, 80), (80,))),
    "a bias of each batch": (
        lambda a, b, c: np.tanh(a @ b + c), ((3, 136, 72), (3, 72, 80), (3, 1, 80))
    ),
    "one matrix for all": (lambda a, b: np.tanh(a @ b), ((3, 136, 72), (72, 80))),
    "heads": (
        lambda a, b: np.tanh(np.einsum("bqhd,bkhd->bhqk", a, b)), ((2, 72, 3, 64), (2, 80, 3, 64))
    ),
    "several columns": (
        lambda x, w, c: np.tanh(np.einsum("bd,dhe->bhe", x, w) + c), ((136, 72), (72, 2, 40), (2, 40))
    ),
}  # fmt: skip
ROUNDINGS: Final = {"gate": 2}  # of its second product, too
TURNS: Final[dict[str, tuple[Callable[..., Any], bool, bool]]] = {
    "as they lie": (lambda a, b: a @ b, False, False),
    "second turned": (lambda a, b: a @ b.T, False, True),
    "first turned": (lambda a, b: a.T @ b, True, False),
    "both turned": (lambda a, b: a.T @ b.T, True, True),
}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def judge(found: Any, wanted: Any, terms: int, roundings: int = 1) -> None:
    """A result of sums of so many products of normal numbers: those stay float32, so that nothing
    but the result is rounded, unless there are more `roundings` of what it is made of.
    """
    found = (found,) if not isinstance(found, tuple) else found
    wanted = (wanted,) if not isinstance(wanted, tuple) else wanted
    assert len(found) == len(wanted)
    for y, w in zip(found, wanted, strict=True):
        assert y.shape == w.shape
        least = np.sqrt(terms) * (1.0 if y.dtype == F32 else 2.0**-6)
        size = np.maximum(np.abs(w), least)
        error = np.abs(np.asarray(y, np.float64) - w) / size
        assert not np.isnan(error).any()
        assert error.max() <= (roundings + 0.25) * DIGITS[np.dtype(y.dtype)], error.max()


def exactly(function: Callable[..., Any], *xs: Any) -> Any:
    """The function in float64."""
    return function(*(np.asarray(x, np.float64) for x in xs))


def kinds(lowered: Any) -> list[str]:
    """The families of a program's kernels."""
    return [k.choice.family.name for k in lowered.kernels]


def jitted(function: Callable[..., Any]) -> Any:
    return ge2.jit(function)


def of_turn(turn: str, shape: tuple[int, int, int], dtype: Any) -> tuple[Any, tuple[Any, Any]]:
    """A product whose operands are stored as they are or turned, and these."""
    function, first, second = TURNS[turn]
    (m, n, k), rng = shape, np.random.default_rng(2)
    a = drawn(rng, (k, m) if first else (m, k), dtype)
    return function, (a, drawn(rng, (n, k) if second else (k, n), dtype))


def rounded(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(ge2.numpy.matmul(a, b.T, precision="tf32") + c, 0)


def to_round(m: int, n: int, k: int) -> tuple[tuple[Any, ...], Any]:
    """Operands of `rounded`, which TF32 holds exactly, and what it makes of them."""
    rng = np.random.default_rng(3)
    a, b = (drawn(rng, s, BF16).astype(F32) for s in ((m, k), (n, k)))
    c = drawn(rng, (n,), F32)
    return (a, b, c), np.maximum(exactly(lambda a, b: a @ b.T, a, b) + c, 0)
