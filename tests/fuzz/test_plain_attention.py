"""Attention as users write it, and its gradient: compiled for three generations of
GPUs, run in the emulator.

What a row is divided by comes twice in most of them: the scale of the scores,
and the sum of the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice, limits_of
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from tests.exhaustive import sampled
from tests.fuzz.networks import Step, centred, masked, softmax, split
from tests.fuzz.test_random_networks import faults, on_device
from tests.laws.test_cuda_compiled import ARCHITECTURES
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16

# how it is written, its mask, whether the maximum is subtracted, the dtype
Case = tuple[str, str, bool, Any]
CASES: tuple[Case, ...] = (
    ("heads", "where", True, F32),
    ("heads", "add", False, BF16),
    ("einsum", "where", True, BF16),
    ("einsum", "none", False, F32),
    ("einsum", "add", True, F16),
    ("block", "where", True, F16),
)


def heads(mask: str, cut: bool) -> Any:
    """Of arrays whose heads are an axis; the scale is a factor."""

    def f(q: Any, k: Any, v: Any, ct: Any, scale: Any) -> Any:
        scores = q @ np.swapaxes(k, -1, -2) * (1 / q.shape[-1] ** 0.5)
        return (softmax(masked(scores, mask), cut) @ v * ct).sum()

    return f


def einsum(mask: str, cut: bool) -> Any:
    """By `einsum`, the heads side by side; the scores are divided by an array."""

    def f(q: Any, k: Any, v: Any, ct: Any, scale: Any) -> Any:
        scores = np.einsum("bhqd,bhkd->bhqk", q, k) / scale
        return (np.einsum("bhqk,bhkd->bhqd", softmax(masked(scores, mask), cut), v) * ct).sum()

    return f


def block(mask: str, cut: bool) -> Any:
    """With its norm and a residual: one matrix gives queries, keys and values."""

    def f(w: Any, x: Any, out: Any, ct: Any, scale: Any) -> Any:
        b, heads, n, d = x.shape
        rows = np.swapaxes(x, 1, 2).reshape(b, n, heads * d)
        normed = centred(rows) / np.sqrt(rows.var(-1, keepdims=True) + 1e-2)
        q, k, v = (split(each, heads) for each in np.split(normed @ w, 3, axis=-1))
        y = softmax(masked(q @ np.swapaxes(k, -1, -2) / scale, mask), cut) @ v
        rows = rows + np.swapaxes(y, 1, 2).reshape(b, n, heads * d) @ out
        return (split(rows, heads) * ct).sum()

    return f


def step(case: Case, tokens: int, width: int, dtype: Any = None) -> Step:
    """The value and the three gradients of a case, in its own type or in another."""
    kind, mask, cut, own = case
    shape, every = (1, 2, tokens, width), 2 * width
    rng = np.random.default_rng(tokens)
    shapes = [(every, 3 * every), shape, (every, every)] if kind == "block" else [shape] * 3
    numbers = [rng.standard_normal(s) * s[0] ** -0.5 for s in (*shapes, shape)]
    arrays = [
        np.asarray(x.astype(own), dtype or own) for x in (*numbers, np.sqrt(np.asarray(width)))
    ]
    f = {"heads": heads, "einsum": einsum, "block": block}[kind](mask, cut)
    with config.using(executor="blocked"):  # which waits for no compiler
        entry = ge2.jit(ge2.value_and_grad(f, (0, 1, 2))).trace(*arrays).entry
    return Step(entry.graph, [*entry.captured, *arrays], np.dtype(dtype or own))


def kernels(arch: str) -> Iterator[str]:
    for i, case in enumerate(CASES):
        for assembler in assemblers(
            compile_graph(
                step(case, 300 if i % 2 else 64, 64).graph, device=OfflineDevice(limits_of(arch))
            )
        ):
            yield from (source.text() for source in assembler.kernels.sources.values())


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_kernel_compiles(arch: str) -> None:
    texts = dict.fromkeys(kernels(arch))
    orders = [Order(text, arch) for text in texts]
    drawn = sampled(orders, lambda order: order.source, lambda order: order.file)
    assert all(binary.cubin for binary in compile_all(drawn))
    assert any(text.count("= ge2_divisor_f32(") > 1 for text in texts)


@needs_compiler
def test_values_and_gradients_in_cuda() -> None:
    with together_in_cuda():
        steps = [(case, step(case, 24, 16)) for case in CASES]
        runs = [on_device(made.graph, ShimDevice()) for _, made in steps]
        wrong = [
            f"{case}: {why}"
            for (case, made), run in zip(steps, runs, strict=True)
            for why in faults(made, step(case, 24, 16, np.float64), run(*made.arrays))
        ]
    assert not wrong, "\n".join(wrong)
