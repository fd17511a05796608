"""Lines that we watch, most of them without a target: what fuses badly shows here first."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import by_hand
from benchmarks.options import USUAL, Options
from benchmarks.record import Faster, Row
from benchmarks.several import MILLION, gelu, torch_gelu
from benchmarks.work import Draw, Work, lines

WORDS, WIDTH, TOKENS = 50_000, 256, 32_768


def cross_entropy(z: Any, labels: Any, xp: ModuleType = np) -> Any:
    z = z - z.max(-1, keepdims=True)
    log_p = z - xp.log(xp.exp(z).sum(-1, keepdims=True))
    return -xp.take_along_axis(log_p, labels[:, None], axis=1).mean()


def torch_cross_entropy(torch: ModuleType, z: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(z, labels.long())


def cumsum(x: Any, xp: ModuleType = np) -> Any:
    return xp.cumsum(x)


def torch_cumsum(torch: ModuleType, x: Any) -> Any:
    return torch.cumsum(x, 0)


def transposed(x: Any, xp: ModuleType = np) -> Any:
    return x.T + 1


def torch_transposed(torch: ModuleType, x: Any) -> Any:
    return (x.T + 1).contiguous()


def products(a: Any, b: Any, xp: ModuleType = np) -> Any:
    return a @ b


def torch_products(torch: ModuleType, a: Any, b: Any) -> Any:
    return a @ b


def gather(table: Any, ids: Any, xp: ModuleType = np) -> Any:
    return table[ids]


def torch_gather(torch: ModuleType, table: Any, ids: Any) -> Any:
    return table[ids]


def gathered(table: Any, ids: Any, updates: Any, xp: ModuleType = np) -> Any:
    """Its derivative by the table adds the updates to the rows that the ids name."""
    return (table[ids] * updates).sum()


def torch_gathered(torch: ModuleType, table: Any, ids: Any, updates: Any) -> Any:
    return (table[ids] * updates).sum()


def padded(a: Any, b: Any, xp: ModuleType = np) -> Any:
    return xp.pad(xp.concatenate([a, b], axis=1), ((1, 1), (2, 2)))


def torch_padded(torch: ModuleType, a: Any, b: Any) -> Any:
    return torch.nn.functional.pad(torch.cat([a, b], 1), (2, 2, 1, 1))


def mlp(x: Any, w: Any, bias: Any, xp: ModuleType = np) -> Any:
    return gelu(x @ w, bias, xp)


def torch_mlp(torch: ModuleType, x: Any, w: Any, bias: Any) -> Any:
    return torch_gelu(torch, x @ w, bias)


def leading_sum(x: Any, xp: ModuleType = np) -> Any:
    return x.sum(0)


def torch_leading_sum(torch: ModuleType, x: Any) -> Any:
    return x.sum(0)


def variance(x: Any, xp: ModuleType = np) -> Any:
    return x.var(-1)


def torch_variance(torch: ModuleType, x: Any) -> Any:
    return x.var(-1, correction=0)


def logits(draw: Draw) -> tuple[Any, Any]:
    return draw.normal(8192, 1000), draw.below(1000, 8192)


def words(draw: Draw) -> tuple[Any, Any]:
    return draw.normal(WORDS, WIDTH), draw.below(WORDS, TOKENS)


# fmt: off
WORKS = {
    "cross-entropy": Work(
        "cross-entropy with labels, (8192, 1000)", cross_entropy, logits, torch_cross_entropy,
        by_hand.cross_entropy),
    "cross-entropy-grad": Work(
        "grad of cross-entropy, (8192, 1000)", cross_entropy, logits, torch_cross_entropy,
        by_hand.cross_entropy_grad, (0,)),
    "cumsum": Work(
        "cumsum, 10 M", cumsum, lambda draw: (draw.normal(10 * MILLION),), torch_cumsum, tolerance=1e-3),
    "transpose": Work(
        "x.T + 1 of (4096, 4096)", transposed, lambda draw: (draw.normal(4096, 4096),), torch_transposed,
        by_hand.transposed),
    "gather": Work(
        "gather 32 k rows of (50000, 256)", gather, words, torch_gather),
    "scatter-add": Work(
        "scatter-add 32 k rows into (50000, 256)", gathered,
        lambda draw: (*words(draw), draw.normal(TOKENS, WIDTH)), torch_gathered, by_hand.scatter_add, (0,)),
    "pad": Work(
        "concatenate and pad, twice (4096, 512)", padded,
        lambda draw: (draw.normal(4096, 512), draw.normal(4096, 512)), torch_padded),
    "mlp": Work(
        "gelu(x @ w + b), 256 x 784 x 1024", mlp,
        lambda draw: (draw.normal(256, 784), draw.normal(784, 1024), draw.normal(1024)), torch_mlp),
    "layer": Work(
        "gelu(x @ w + b), 512 x 512 x 512", mlp,
        lambda draw: (draw.normal(512, 512), draw.normal(512, 512), draw.normal(512)), torch_mlp,
        targets=(Faster(1.2, "jax"),)),
    "tiny-products": Work(
        "65536 products of 4 x 4", products,
        lambda draw: (draw.normal(65_536, 4, 4), draw.normal(65_536, 4, 4)), torch_products,
        targets=(Faster(4, "numpy"),)),
    "leading-sum": Work(
        "sum over the leading axis of (100000, 64)", leading_sum,
        lambda draw: (draw.normal(100_000, 64),), torch_leading_sum),
    "variance": Work(
        "variance over the last axis of (4096, 1024)", variance,
        lambda draw: (draw.normal(4096, 1024),), torch_variance),
}
# fmt: on


def run(options: Options = USUAL) -> list[Row]:
    return lines("watched", WORKS, options)
