"""Layers that are the library's epilogues, as users write them; on a GPU and in the emulator alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import ge2
from tests.kernels.wgmma_cases import BF16, F16, F32

NAME: Final = "product by BLAS and its epilogue"
Layer = tuple[str, Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]
SHAPES: Final = (37, 48), (48, 72), (72,)


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def gelu(x: Any) -> Any:
    """The form with tanh in float64, for which `ge2.nn.gelu` stands in programs."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def slope(x: Any) -> Any:
    inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    steep = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * steep


def backward(ct: Any, w: Any, x: Any) -> Any:
    """The cotangent of what a GELU was of, whose values are an array."""
    _, back = ge2.vjp(ge2.nn.gelu, x)
    (found,) = back(ct @ w)
    return found


# each with its epilogue, the function as NumPy knows it, and shapes
LAYERS: Final[dict[str, Layer]] = {
    "relu": ("RELU", lambda a, b: relu(a @ b), lambda a, b: relu(a @ b), SHAPES[:2]),
    "bias": ("BIAS", lambda a, b, c: a @ b + c, lambda a, b, c: a @ b + c, SHAPES),
    "bias of a turned product": (
        "BIAS", lambda a, b, c: c + a.T @ b.T, lambda a, b, c: c + a.T @ b.T, ((48, 37), (72, 48), (72,))
    ),
    "relu of a bias": ("RELU_BIAS", lambda a, b, c: relu(c + a @ b), lambda a, b, c: relu(a @ b + c), SHAPES),
    "a bias from the second on, of batches": (
        "RELU_BIAS", lambda x, w, c: relu(x @ w + c[1:]), lambda x, w, c: relu(x @ w + c[1:]),
        ((2, 5, 48), (48, 72), (73,)),
    ),
    "relu of every second term": (
        "RELU_BIAS", lambda a, b, c: relu(a[:, ::2] @ b + c), lambda a, b, c: relu(a[:, ::2] @ b + c),
        ((37, 96), (48, 72), (72,)),
    ),
    "gelu": ("GELU", lambda a, b: ge2.nn.gelu(a @ b), lambda a, b: gelu(a @ b), SHAPES[:2]),
    "gelu of a bias": ("GELU_BIAS", lambda a, b, c: ge2.nn.gelu(a @ b + c), lambda a, b, c: gelu(a @ b + c), SHAPES),
    "gelu and its input": (
        "GELU_AUX", lambda a, b: (a @ b, ge2.nn.gelu(a @ b)), lambda a, b: (a @ b, gelu(a @ b)),
        SHAPES[:2],
    ),
    "gelu of a bias and its input": (
        "GELU_AUX_BIAS", lambda a, b, c: (ge2.nn.gelu(a @ b + c), a @ b + c),
        lambda a, b, c: (gelu(a @ b + c), a @ b + c), SHAPES,
    ),
    "slope of gelu": ("DGELU", backward, lambda ct, w, x: (ct @ w) * slope(x), ((37, 48), (48, 72), (37, 72))),
    "slope of gelu and sums": (
        "DGELU_BGRAD", lambda ct, w, x: (lambda y: (y, np.sum(y, axis=0)))(backward(ct, w, x)),
        lambda ct, w, x: (lambda y: (y, np.sum(y, axis=0)))((ct @ w) * slope(x)),
        ((37, 48), (48, 72), (37, 72)),
    ),
}  # fmt: skip
CASES: Final = [
    (name, dtype)
    for name, (kind, *_) in LAYERS.items()
    for dtype in (BF16, F16, F32)
    if dtype == BF16 or "GELU" not in kind  # whose tanh is too coarse
]


def called(lowered: Any) -> list[str]:
    """The families of all steps."""
    return [choice.taken.family.name for choice in lowered.choices.values()]
