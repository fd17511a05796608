"""Pairs of products that one region reads, as NumPy writes them; on a GPU and in the emulator alike."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import ge2
from tests.kernels.wgmma_cases import F32, Case, gelu, silu, with_sum

WGMMA, MMA = "wgmma pair of products and region", "mma pair of products and region"
FAMILIES: Final = {"wgmma": WGMMA, "mma": MMA}
TILES: Final = {
    "wgmma": ("128 x 64", "64 x 64"),
    "mma": ("128 x 128 by 8", "128 x 64 by 8", "128 x 64 by 4", "128 x 32 by 8", "64 x 32 by 4"),
}
GATES: Final = {
    "swiglu": silu,
    "geglu": gelu,
    "glu": lambda x: 1 / (1 + np.exp(-x)),
    "reglu": lambda x: np.maximum(x, 0),
}


def gated(gate: str) -> Any:
    return lambda x, w, v: GATES[gate](x @ w) * (x @ v)


def gradients(x: Any, w: Any, v: Any, ct: Any) -> Any:
    """A gated unit and the cotangents of its products: no product is stored."""
    gate, back = ge2.vjp(lambda a, b: silu(a) * b, x @ w, x @ v)
    return (gate, *back(ct))


def halved(h: Any) -> Any:
    """A gated unit of one matrix for both halves."""
    a, b = np.split(h, 2, axis=-1)
    return silu(a) * b


def halves_and_cotangent(h: Any, ct: Any) -> Any:
    """It, and the cotangent of the one product, whose halves are made where they belong."""
    y, back = ge2.vjp(halved, h)
    return (y, *back(ct))


X, W, ROW = (136, 72), (72, 88), (136, 88)
# what a pair may be: each function, and the shapes of its arguments
LAYERS: Final[dict[str, Case]] = {
    "biases": (lambda x, w, v, b, c: silu(x @ w + b) * (x @ v + c), (X, W, W, (88,), (88,))),
    "products kept": (
        lambda x, w, v: (lambda a, b: (silu(a) * b, a, b))(x @ w, x @ v), ((200, 72), (72, 264), (72, 264))
    ),
    "one product kept": (lambda x, w, v: (lambda b: (np.tanh(x @ w) * b, b))(x @ v), (X, W, W)),
    "residual": (lambda x, w, v, r: gelu(x @ w) * (x @ v) + r, (X, W, W, ROW)),
    "an array in float32": (lambda x, w, v, r: (gelu(x @ w) * (x @ v)).astype(F32) + r.astype(F32), (X, W, W, ROW)),
    "a turned array": (lambda x, w, v, r: np.tanh(x @ w) * (x @ v) + r.T, (X, W, W, (88, 136))),
    "batch and time": (lambda x, w, v: np.tanh(x @ w) * (x @ v), ((2, 136, 72), (72, 80), (72, 80))),
    "batched": (lambda x, w, v: np.tanh(x @ w) * (x @ v), ((3, 136, 72), (3, 72, 80), (3, 72, 80))),
    "weights turned": (lambda x, w, v: silu(x @ w.T) * (x @ v.T), (X, (88, 72), (88, 72))),
    "input turned": (lambda x, w, v: silu(x.T @ w) * (x.T @ v), ((72, 136), W, W)),
    "halves of one matrix": (
        lambda x, w: np.tanh(x @ w[:, :88]) * (x @ w[:, 88:]), (X, (72, 176))
    ),
    "halves of one product": (lambda x, w: halved(x @ w), (X, (72, 176))),
    "halves of a product and a bias": (
        lambda x, w, b: halved(0.5 * (x @ w) + b), ((2, 136, 72), (72, 176), (176,))
    ),
    "halves of a product of a turned matrix": (lambda x, w: halved(x @ w.T), (X, (176, 72))),
    "cotangents of halves": (
        lambda x, w, ct: halves_and_cotangent(x @ w, ct), (X, (72, 176), ROW)
    ),
    "sums of columns": (lambda x, w, v, r: with_sum(np.tanh(x @ w) * (x @ v) * r), (X, W, W, ROW)),
    "both ways": (lambda x, w, v: (x @ w - x @ v, np.maximum(x @ w, x @ v)), (X, W, W)),
}  # fmt: skip
