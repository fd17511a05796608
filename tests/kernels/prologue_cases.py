"""Products whose operands are made of other arrays, on a GPU and in the emulator alike."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ge2.ops.graphs.contraction import is_contraction, steps_of

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
NAME = "small product and region in CUDA"
Function = Any

CASES: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "bytes that are scaled": (
        lambda x, w, b: np.maximum((x.astype(F32) / np.float32(255) - np.float32(0.5)) @ w + b, 0),
        (("u1", 37, 64), ("f4", 64, 40), ("f4", 40)),
    ),
    "an activation": (
        lambda x, w, b: np.tanh(np.maximum(x, 0) @ w + b),
        (("f4", 33, 70), ("f4", 70, 24), ("f4", 24)),
    ),
    "the right one": (
        lambda x, w, b: np.tanh(x @ (w * np.float32(0.25)) + b),
        (("f4", 20, 18), ("f4", 18, 24), ("f4", 24)),
    ),
    "both": (
        lambda x, w, b: np.tanh((x.astype(F32) * 2) @ np.abs(w) + b),
        (("i2", 20, 36), ("f4", 36, 28), ("f4", 28)),
    ),
    "float64": (
        lambda x, w, b: np.exp(-((x * 0.1) @ w)) + b, (("f8", 19, 33), ("f8", 33, 17), ("f8", 17))
    ),
    "half types are rounded before": (
        lambda x, w, b: np.maximum(x.astype(BF16) @ w + b, 0),
        (("f4", 20, 30), (BF16, 30, 24), (BF16, 24)),
    ),
    "constants of both regions": (
        lambda x, w, b: (x * np.float32(1.7) - np.float32(255)) @ w * np.float32(3.3) + b * np.float32(77),
        (("f4", 12, 20), ("f4", 20, 12), ("f4", 12)),
    ),
}  # fmt: skip


def drawn(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape, dtype)
    return rng.standard_normal(shape).astype(dtype)


def prologues(lowered: Any) -> list[int]:
    """How many operands each product of a program makes."""
    ops = [choice.problem.op for choice in lowered.choices.values()]
    return [len(steps_of(op).prologues) for op in ops if is_contraction(op)]


def judge(found: Any, xs: Any, name: str) -> None:
    """A result is that of NumPy, in the type of the right operand."""
    function, given = CASES[name]
    wanted = np.asarray(function(*xs), np.float64)
    assert found.dtype == np.dtype(given[1][0])
    unit = 2.0**-7 if found.dtype == BF16 else 2e-5
    size = np.abs(wanted).max()
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=unit, atol=unit * size)
