"""Products for tensor cores whose operands are made of other arrays, as NumPy writes them: some, and
random ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import ge2
from ge2.base.arrays import FP8
from ge2.ops.graphs.contraction import is_contraction, steps_of
from tests.kernels.wgmma_cases import BF16, DIGITS, F16, F32

E4M3 = FP8[0]

BY_WARPS = "mma product of operands that it makes"
BY_GROUPS = "wgmma product of operands that it makes"
Function = Callable[..., Any]
Given = tuple[Any, ...]  # a dtype and a shape
EPSILON: Final = np.float32(1e-5)


def zero(dtype: Any) -> Any:
    return np.float32(0).astype(dtype)


def norm(x: Any, gain: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPSILON) * gain + bias


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# each function, and its arguments. Of warp groups rows are multiples of 16 bytes apart
CASES: Final[dict[str, tuple[Function, tuple[Given, ...]]]] = {
    "cast": (lambda x, w: x.astype(BF16) @ w, ((F32, 70, 72), (BF16, 72, 80))),
    "cast to float16": (lambda x, w: x.astype(F16) @ w, ((F32, 134, 200), (F16, 200, 136))),
    "bytes": (
        lambda x, w: (x.astype(BF16) * zero(BF16).dtype.type(0.5)) @ w,
        (("i1", 70, 80), (BF16, 80, 88)),
    ),
    "mask": (
        lambda m, a, b: np.where(m, a, zero(BF16)) @ b,
        ((bool, 70, 144), (BF16, 70, 144), (BF16, 144, 80)),
    ),
    "dropout": (
        lambda m, a, b, c: np.maximum((m * a * np.float32(2)).astype(BF16) @ b + c, 0),
        ((bool, 70, 144), (F32, 70, 144), (BF16, 144, 80), (BF16, 80)),
    ),
    "rows and columns": (
        lambda a, m, r, g, b: ((a - m[:, None]) * r[:, None] * g) @ b,
        ((BF16, 70, 72), (BF16, 70), (BF16, 70), (BF16, 72), (BF16, 72, 80)),
    ),
    "what of zero is not zero": (
        lambda x, r, w: np.exp(x / r) @ w, ((F32, 70, 72), (F32, 1), (F32, 72, 80))
    ),
    "not even a number": (
        lambda x, g, w: (x / g).astype(BF16) @ w, ((F32, 70, 72), (F32, 72), (BF16, 72, 80))
    ),
    "batch and time": (
        lambda x, w, b: np.maximum(x.astype(BF16) @ w + b, 0),
        ((F32, 3, 40, 136), (BF16, 136, 80), (BF16, 80)),
    ),
    "batches": (
        lambda x, w: np.tanh(np.maximum(x, 0) @ w), ((BF16, 3, 40, 72), (BF16, 3, 72, 80))
    ),
    "batches that lie in two ways": (
        lambda x, w: np.maximum(x, 0) @ w.transpose(0, 2, 1, 3), ((BF16, 2, 3, 40, 72), (BF16, 2, 72, 3, 80))
    ),
    "a residual of the same array": (
        lambda x, w: np.maximum(x, 0) @ w + x, ((BF16, 72, 72), (BF16, 72, 72))
    ),
    "columns, whose sums": (
        lambda x, w: (y := np.maximum(x.astype(BF16) @ w, 0), np.sum(y, axis=0)),
        ((F32, 200, 72), (BF16, 72, 80)),
    ),
    "a norm's last step": (
        lambda x, g, b, w: norm(x.astype(F32), g, b).astype(BF16) @ w,
        ((BF16, 3, 40, 72), (F32, 72), (F32, 72), (BF16, 72, 80)),
    ),
    "a residual and its norm": (
        lambda x, r, g, b, w: (x + r, norm((x + r).astype(F32), g, b).astype(BF16) @ w),
        ((BF16, 70, 72), (BF16, 70, 72), (F32, 72), (F32, 72), (BF16, 72, 80)),
    ),
    "a softmax's last step": (
        lambda x, w: softmax(x).astype(BF16) @ w, ((F32, 70, 72), (BF16, 72, 80))
    ),
}  # fmt: skip
# of which warp groups make none, for a reason each
WARPS_ALONE: Final[dict[str, tuple[Function, tuple[Given, ...]]]] = {
    "the right one": (lambda x, w: x @ w.astype(BF16), ((BF16, 70, 72), (F32, 72, 80))),
    "both": (lambda x, w: x.astype(BF16) @ np.abs(w), ((F32, 70, 200), (BF16, 200, 80))),
    "lines are neighbours": (lambda x, w: x.astype(BF16).T @ w, ((F32, 72, 70), (BF16, 72, 80))),
    "turned, and the right one": (
        lambda x, w: x @ np.maximum(w, 0).T, ((BF16, 70, 72), (BF16, 80, 72))
    ),
    "odd rows": (lambda x, w: x.astype(BF16) @ w, ((F32, 67, 69), (BF16, 69, 83))),
    "odd rows of what of zero is not zero": (
        lambda x, w: (x.astype(F32) + np.float32(3)).astype(F16) @ w, ((F16, 67, 69), (F16, 69, 83))
    ),
    "every second": (
        lambda x, w: np.maximum(x[:, ::2], 0) @ w, ((BF16, 67, 140), (BF16, 70, 83))
    ),
    "a long sum": (lambda x, w: np.abs(x) @ w, ((BF16, 64, 1100), (BF16, 1100, 70))),
}  # fmt: skip
FLOATS = ("what of zero is not zero",)  # of float32, as tf32
# few rows times weights of another type, as inference has them: of k terms and n columns
WEIGHTS: Final[dict[str, tuple[Function, Callable[[int, int], tuple[Given, Given]]]]] = {
    "bytes times scales of columns": (
        lambda x, w, s: x @ (w.astype(BF16) * s), lambda k, n: (("i1", k, n), (BF16, n))
    ),
    "turned bytes times scales of rows": (
        lambda x, w, s: x @ (w.astype(BF16) * s[:, None]).T, lambda k, n: (("i1", n, k), (BF16, n))
    ),
    "fp8 times scales of float32": (
        lambda x, w, s: x @ (w.astype(F32) * s).astype(BF16), lambda k, n: ((E4M3, k, n), (F32, n))
    ),
    "bytes from the left": (
        lambda x, w, s: (w.astype(BF16) * s[:, None]) @ x.T, lambda k, n: (("i1", n, k), (BF16, n))
    ),
    "float32 from the left, turned": (
        lambda x, w, s: (w * s).astype(BF16).T @ x.T, lambda k, n: ((F32, k, n), (F32, n))
    ),
}  # fmt: skip


def drawn(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    if dtype is bool:
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-100, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def prologues(lowered: Any) -> list[tuple[str, int]]:
    """The kernels that make operands, and how many."""
    found = [(str(c.family.name), c.problem.op) for c in lowered.choices.values()]
    regions = ((name, op) for name, op in found if is_contraction(op))
    return [(name, n) for name, op in regions if (n := len(steps_of(op).prologues))]


def bound(made: Any, other: Any, wanted: Any, dtype: Any, roundings: int) -> Any:
    """What a product in float32 may err: the rounding of the result, and of elements that are made,
    which one kernel may hold in float32 where others round them.
    """
    unit = DIGITS[np.dtype(dtype)]
    spread = np.sqrt(np.square(made).sum(-1).max() * np.square(other).sum(-2).max())
    return unit * np.abs(wanted) + roundings * unit * spread


# ------------------------------------------------------------------------------------------ random

STEPS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "relu": lambda x, v: np.maximum(x, 0),
    "abs": lambda x, v: np.abs(x),
    "scaled": lambda x, v: 0.5 * x,
    "added": lambda x, v: x + v,
    "times": lambda x, v: x * v,
    "less": lambda x, v: v - x,
    "where": lambda x, v: np.where(v > 0, x, 0.25 * x),
    "tanh": lambda x, v: np.tanh(x),
    "one more": lambda x, v: 1 + x,
}
KINDS: Final[dict[str, Callable[[int, int], tuple[int, ...]]]] = {
    "full": lambda m, n: (m, n),
    "row": lambda m, n: (m, 1),
    "column": lambda m, n: (n,),
    "scalar": lambda m, n: (1, 1),
}


class Random:
    """A random product, of which one operand or both are made, by its seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.dtype = (BF16, F16)[rng.integers(2)]
        self.m, self.n, self.k = (int(rng.integers(1, 18)) * 8 for _ in range(3))
        if seed % 2:  # rows that lie anyhow
            self.m, self.n, self.k = self.m + 1, self.n - 3, self.k + 5
        self.k = max(self.k, 16)
        self.turns = bool(rng.integers(4) == 0), bool(rng.integers(2))
        self.made = ((True, False), (True, False), (False, True), (True, True))[rng.integers(4)]
        if seed % 4 == 0:  # which warp groups make
            self.turns, self.made = (False, self.turns[1]), (True, False)
            self.m, self.n, self.k = (max(size, 32) for size in (self.m, self.n, self.k))
        self.steps = [self.drawn_steps() for _ in range(2)]
        self.after = [None, np.tanh, lambda y: np.maximum(y, 0)][rng.integers(3)]

    def drawn_steps(self) -> list[tuple[str, str]]:
        count, rng = int(self.rng.integers(1, 4)), self.rng
        return [(str(rng.choice([*STEPS])), str(rng.choice([*KINDS]))) for _ in range(count)]

    def arrays(self) -> list[Any]:
        """The operands, of a type of their own if they are made, and what each step reads."""
        found = list[Any]()
        for n, shape in enumerate(((self.m, self.k), (self.k, self.n))):
            shape = shape[::-1] if self.turns[n] else shape
            wide = self.made[n] and self.rng.integers(2)
            found.append(drawn(self.rng, F32 if wide else self.dtype, *shape))
            for _, kind in self.steps[n] if self.made[n] else ():
                found.append(drawn(self.rng, found[-1].dtype, *KINDS[kind](*shape)))
        return found

    def operands(self, *xs: Any) -> tuple[Any, Any]:
        given, found = iter(xs), list[Any]()
        for n in (0, 1):
            x = next(given)
            for name, _ in self.steps[n] if self.made[n] else ():
                x = STEPS[name](x, next(given))
            if self.made[n]:
                x = x.astype(self.dtype)
            found.append(x.T if self.turns[n] else x)
        return found[0], found[1]

    def __call__(self, *xs: Any) -> Any:
        a, b = self.operands(*xs)
        return a @ b if self.after is None else self.after(a @ b)


def tf32(function: Function) -> Function:
    """The same with a product that rounds float32."""
    matmul = ge2.numpy.matmul
    return lambda x, r, w: matmul(np.exp(x / r), w, precision="tf32")
