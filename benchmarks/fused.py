"""`sum(tanh(x*w+b)**2)` over ten million floats: one read of `x`, no
temporaries; how exact the sum is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import AtMost, Faster, Row
from benchmarks.work import Draw, Work, compiled_or_not, lines

SIZE, SEEDS = 10_000_000, 10
W, B = np.float32(0.7), np.float32(0.1)


def squares(x: Any, w: Any, b: Any, xp: ModuleType = np) -> Any:
    return (xp.tanh(x * w + b) ** 2).sum()


def torch_squares(torch: ModuleType, x: Any, w: Any, b: Any) -> Any:
    return (torch.tanh(x * w + b) ** 2).sum()


def arguments(draw: Draw) -> tuple[Any, Any, Any]:
    return draw.normal(SIZE), W, B


WORKS = {
    "fused-time": Work(
        "sum(tanh(x*w+b)**2), 10 M",
        squares,
        arguments,
        torch_squares,
        targets=(Faster(8, "numpy"), Faster(1.4, "jax")),
    )
}


def run(options: Options = USUAL) -> list[Row]:
    rows = lines("fused", WORKS, options)
    return [*rows, *([errors(options)] if options.wants("fused", "fused-error") else [])]


def errors(options: Options) -> Row:
    """The largest relative error against float64, over ten seeds."""
    size, seeds = (64, 2) if options.quick else (SIZE, SEEDS)
    notes: dict[str, str] = {}
    compiled = ge2.jit(squares)
    sums = summers(compiled, notes)
    worst = dict.fromkeys(sums, 0.0)
    for seed in range(seeds):
        x = np.random.default_rng(seed).standard_normal(size, np.float32)
        exact = float(squares(x.astype(np.float64), np.float64(W), np.float64(B)))
        for name, call in sums.items():
            worst[name] = max(worst[name], abs(float(call(x)) - exact) / exact)
    notes |= remarks(executor_of(compiled, x, W, B))
    title = f"its error against float64, worst of {seeds} seeds"
    sizes = {"arguments": [[size], [], []], "seeds": seeds}
    targets = () if options.quick else (AtMost(1e-7),)
    return Row(
        title, "relative", worst.pop("ge2"), worst, targets, "float32, C order", sizes, notes
    )


def summers(compiled: Callable[..., Any], notes: dict[str, str]) -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {
        "ge2": lambda x: compiled(x, W, B),
        "numpy": lambda x: squares(x, W, B),
    }
    jax, torch = peer("jax"), peer("torch")
    if jax is not None:
        in_jax = jax.jit(lambda x: squares(x, W, B, jax.numpy))
        found["jax"] = lambda x: in_jax(jax.numpy.asarray(x))
    if torch is not None:
        w, b = torch.as_tensor(W), torch.as_tensor(B)
        in_torch = compiled_or_not(
            torch, partial(torch_squares, torch), (torch.zeros(SIZE), w, b), notes
        )
        found["torch"] = lambda x: in_torch(torch.as_tensor(x), w, b)
    return found
