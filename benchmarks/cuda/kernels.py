"""Fused kernels: pointwise, rows, reductions, a running sum, columns, a transpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cuda.measure import Lines, lines
from benchmarks.cuda.work import BF16, Draw, Work, at_most, plain
from benchmarks.options import USUAL, Options

ROWS, WIDE, LONG = 16384, 4096, 8192
HUGE, ADAMS = 1 << 28, 1 << 27
WORDS, VOCABULARY = 8192, 50304


# --------------------------------------------------------------------------------- what is computed


def bias_gelu(xp: Any, x: Any, b: Any) -> Any:
    y = x + b
    return 0.5 * y * (1 + xp.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))


def adam(xp: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.001 * m / (xp.sqrt(v) + 1e-8), m, v


def sum_of_squares(xp: Any, x: Any) -> Any:
    return (x * x).sum()


def layernorm(xp: Any, x: Any, g: Any, b: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return d / xp.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * g + b


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_columns(xp: Any, x: Any) -> Any:
    return xp.tanh(softmax(xp, x * 0.5 + 1)).sum(0)


def cross_entropy(lib: Any, xp: Any, z: Any, y: Any) -> Any:
    z = z.astype(xp.float32)
    top = lib.lax.stop_gradient(z.max(-1, keepdims=True))  # as in the libraries' own
    logs = xp.log(xp.exp(z - top).sum(-1)) + top[:, 0]
    return (logs - xp.take_along_axis(z, y[:, None], -1)[:, 0]).mean()


def cumsum(xp: Any, x: Any) -> Any:
    return xp.cumsum(x)


def column_sums(xp: Any, x: Any) -> Any:
    return x.sum(0)


def transposed(xp: Any, x: Any) -> Any:
    return x.T.copy()


def times(xp: Any, a: Any, b: Any) -> Any:
    return a @ b


def few_columns(xp: Any, a: Any, x: Any, b: Any) -> Any:
    return xp.maximum(a @ x + b, 0)


def layernorm_gradients(lib: Any, xp: Any, x: Any, g: Any, b: Any, ct: Any) -> Any:
    y, back = lib.vjp(partial(layernorm, xp), x, g, b)
    return (y, *back(ct))


def loss_and_gradient(lib: Any, xp: Any, z: Any, y: Any) -> Any:
    return lib.value_and_grad(partial(cross_entropy, lib, xp))(z, y)


# ----------------------------------------------------------------------------------------- in torch


def torch_gelu(torch: Any, x: Any, b: Any) -> Any:
    return torch.nn.functional.gelu(x + b, approximate="tanh")


def torch_layernorm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def torch_layernorm_gradients(torch: Any, compiled: Any, x: Any, g: Any, b: Any, ct: Any) -> Any:
    xs = [a.detach().requires_grad_() for a in (x, g, b)]
    y = compiled(*xs)
    return (y, *torch.autograd.grad(y, xs, ct))


def torch_cross_entropy(torch: Any, z: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(z.float(), y)


def torch_loss_and_gradient(torch: Any, compiled: Any, z: Any, y: Any) -> Any:
    z = z.detach().requires_grad_()
    loss = compiled(z, y)
    return loss, *torch.autograd.grad(loss, z)


def torch_softmax(torch: Any, x: Any) -> Any:
    return torch.softmax(x, -1)


# ------------------------------------------------------------------------------------------ by hand


def layernorm_gradients_by_hand(x: Any, g: Any, b: Any, ct: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    h, slope = d * inverse, ct * g
    along = slope.mean(-1, keepdims=True) + h * (slope * h).mean(-1, keepdims=True)
    return h * g + b, (slope - along) * inverse, (ct * h).sum(0), ct.sum(0)


def loss_and_gradient_by_hand(z: Any, y: Any) -> Any:
    rows = np.arange(len(y))
    p = softmax(np, z)
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    return loss, p / len(y)


# ---------------------------------------------------------------------------------------- the works


def norms(draw: Draw) -> tuple[Any, ...]:
    return tuple(draw.normal(*shape, dtype=BF16) for shape in ((ROWS, WIDE), (WIDE,), (WIDE,)))


def square(draw: Draw) -> tuple[Any, ...]:
    return (draw.normal(ROWS, LONG),)


def factors(*shapes: tuple[int, ...]) -> Callable[[Draw], tuple[Any, ...]]:
    return lambda draw: tuple(draw.normal(*shape, dtype=BF16) for shape in shapes)


def whole(draw: Draw) -> tuple[Any, ...]:
    return (draw.normal(HUGE),)


# fmt: off
WORKS = {
    "gelu": Work(
        "bias+gelu f32 16384x4096", plain(bias_gelu),
        lambda draw: (draw.normal(ROWS, WIDE), draw.normal(WIDE)), torch_gelu, targets=at_most(0.128)),
    "adam": Work(
        "Adam update f32 2^27", plain(adam), lambda draw: tuple(abs(draw.normal(ADAMS)) for _ in range(4)),
        adam, targets=at_most(0.888)),
    "squares": Work(
        "sum of squares f32 2^28", plain(sum_of_squares), whole, lambda torch, x: (x * x).sum(),
        targets=at_most(0.246), tolerance=1e-3),
    "layernorm": Work(
        "layernorm bf16 16384x4096", plain(layernorm), norms, torch_layernorm,
        targets=at_most(0.070), tolerance=2e-2),
    "layernorm-grad": Work(
        "layernorm bf16 16384x4096, forward and all gradients", layernorm_gradients,
        lambda draw: (*norms(draw), draw.normal(ROWS, WIDE, dtype=BF16)), torch_layernorm,
        layernorm_gradients_by_hand, targets=at_most(0.150), tolerance=3e-2,
        derived=torch_layernorm_gradients),
    "softmax": Work(
        "softmax f32 16384x8192", plain(softmax), square, torch_softmax, targets=at_most(0.265)),
    "softmax-long": Work(
        "softmax f32 64x2^20", plain(softmax), lambda draw: (draw.normal(64, 1 << 20),), torch_softmax,
        targets=at_most(0.21)),
    "softmax-columns": Work(
        "tanh(softmax(x*0.5+1)).sum(0) f32 16384x8192", plain(softmax_columns), square,
        lambda torch, x: torch.tanh(torch.softmax(x * 0.5 + 1, -1)).sum(0), targets=at_most(0.20)),
    "cross-entropy": Work(
        "cross-entropy and its gradient, bf16 8192x50304", loss_and_gradient,
        lambda draw: (draw.normal(WORDS, VOCABULARY, dtype=BF16), draw.below(VOCABULARY, WORDS)),
        torch_cross_entropy, loss_and_gradient_by_hand, targets=at_most(0.50), tolerance=2e-2,
        derived=torch_loss_and_gradient),
    "cumsum": Work(
        "cumsum f32 2^28", plain(cumsum), whole, lambda torch, x: torch.cumsum(x, 0),
        targets=at_most(0.63), tolerance=1e-2),
    "columns": Work(
        "column sums f32 16384x8192", plain(column_sums), square, lambda torch, x: x.sum(0),
        targets=at_most(0.135), tolerance=1e-3),
    # 0.9 of 4.0 TB/s, at which this chip copies; of few columns not timed yet
    "vector": Work(
        "matrix times vector bf16 8192x8192", plain(times), factors((LONG, LONG), (LONG,)),
        lambda torch, a, b: a @ b, targets=at_most(0.037), tolerance=2e-2),
    "vector-left": Work(
        "vector times matrix bf16 8192x8192", plain(times), factors((LONG,), (LONG, LONG)),
        lambda torch, a, b: a @ b, targets=at_most(0.037), tolerance=2e-2),
    "few-columns": Work(
        "relu(a@x+b) bf16 8192x8 by 8192", plain(few_columns), factors((LONG, LONG), (LONG, 8), (8,)),
        lambda torch, a, x, b: torch.relu(a @ x + b), targets=at_most(0.040), tolerance=2e-2),
    "transpose": Work(
        "copy of the transpose f32 16384x8192", plain(transposed), square, lambda torch, x: x.T.contiguous(),
        targets=at_most(0.28)),
}
# fmt: on


def run(options: Options = USUAL) -> Lines:
    return lines("kernels", WORKS, options)
